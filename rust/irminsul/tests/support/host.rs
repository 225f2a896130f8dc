//! A registry and what it was told -> plans, checked for everything that must hold of any plan.
//!
//! Knows nothing of how matches are found.

use std::collections::HashMap;

use irminsul::{ChunkParams, Compute, Entry, Namespace, Policy, Registry, Reuse, Segment};

use super::random_ids;

/// A registry that remembers what it was told.
pub(crate) struct Host {
    pub(crate) registry: Registry,
    pub(crate) namespace: Namespace,
    pub(crate) nodes: HashMap<u64, Node>,
}

pub(crate) struct Node {
    tokens: Vec<u32>,
    base: u64,
    hops: u32,
    depth: u32,
}

impl Host {
    pub(crate) fn new(policy: Policy) -> Self {
        Self::with_bits(policy, 64)
    }

    pub(crate) fn with_bits(policy: Policy, bits: u32) -> Self {
        let params = ChunkParams::default();
        let registry = Registry::with_fingerprint_bits(1 << 24, params, policy, bits);
        let registry = registry.expect("valid parameters");
        Self {
            registry,
            namespace: Namespace::default(),
            nodes: HashMap::new(),
        }
    }

    pub(crate) fn record(&mut self, tokens: &[u32]) -> u64 {
        self.add(None, tokens, 0, 0)
    }

    pub(crate) fn add(
        &mut self,
        parent: Option<u64>,
        tokens: &[u32],
        hops: u32,
        depth: u32,
    ) -> u64 {
        let node = self.nodes.len() as u64;
        let above = parent.map(|parent| &self.nodes[&parent]);
        let base = above.map_or(0, |above| above.base + above.tokens.len() as u64);
        let root = Entry::root(node, tokens, &self.namespace);
        let entry = Entry {
            parent,
            base_position: base,
            hops,
            depth,
            ..root
        };
        self.registry.add(&entry).expect("a new node");
        let tokens = tokens.to_vec();
        self.nodes.insert(
            node,
            Node {
                tokens,
                base,
                hops,
                depth,
            },
        );
        node
    }

    /// The reused spans, after checking everything that must hold for any plan.
    pub(crate) fn plan(&self, prompt: &[u32], prefix_len: usize) -> Vec<Reuse> {
        let plan = self
            .registry
            .lookup(prompt, &self.namespace, prefix_len)
            .expect("valid");
        let mut at = prefix_len;
        let mut spans = Vec::new();
        for segment in plan.segments() {
            let (start, end) = match segment {
                Segment::Compute(Compute { start, end }) => (*start, *end),
                Segment::Reuse(span) => {
                    self.check(prompt, span);
                    spans.push(span.clone());
                    (span.target, span.target + span.length)
                }
            };
            assert_eq!(start, at, "segments tile the prompt");
            assert!(end > start);
            at = end;
        }
        assert_eq!(at, prompt.len());
        assert_eq!(plan.reused_tokens(), reused(&spans));
        spans
    }

    fn check(&self, prompt: &[u32], span: &Reuse) {
        let policy = self.registry.policy();
        let end = span.target + span.length;
        assert!(span.target >= policy.sink_tokens as usize && end < prompt.len());
        assert!(span.length >= policy.min_span as usize);
        assert!(span.delta() == 0 || span.source >= u64::from(policy.sink_tokens));
        let mut at = span.target;
        for piece in &span.pieces {
            let node = &self.nodes[&piece.node];
            let ids = &node.tokens[piece.offset..piece.offset + piece.length];
            assert_eq!(ids, &prompt[at..at + piece.length], "reused ids are equal");
            let position = node.base + piece.offset as u64;
            assert_eq!(
                position as i64 - span.source as i64,
                (at - span.target) as i64
            );
            assert!(node.hops <= span.hops && node.depth <= span.depth);
            at += piece.length;
        }
        assert_eq!(at, end, "pieces make up the span");
    }
}

pub(crate) fn text(seed: u64, len: usize) -> Vec<u32> {
    random_ids(seed, len, 100_000)
}

pub(crate) fn join(parts: &[&[u32]]) -> Vec<u32> {
    parts.concat()
}

pub(crate) fn reused(spans: &[Reuse]) -> usize {
    spans.iter().map(|span| span.length).sum()
}

pub(crate) fn deltas(spans: &[Reuse]) -> Vec<i64> {
    spans.iter().map(Reuse::delta).collect()
}
