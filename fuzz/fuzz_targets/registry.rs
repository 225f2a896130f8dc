//! Any sequence of a host's calls -> typed errors for wrong ones, plans with living donors for right ones.
#![no_main]

mod texts;

use std::collections::HashMap;

use arbitrary::Arbitrary;
use irminsul::{ChunkParams, Entry, Namespace, Policy, Registry, ReusePlan, Segment};
use libfuzzer_sys::fuzz_target;
use texts::{Part, text};

#[derive(Arbitrary, Debug)]
enum Call {
    Add {
        node: u8,
        parent: Option<u8>,
        parts: Vec<Part>,
        space: bool,
    },
    Split {
        node: u8,
        at: u16,
        head: u8,
    },
    Remove {
        node: u8,
    },
    Forget {
        space: bool,
    },
    Clear,
    Lookup {
        quotes: Vec<u8>,
        parts: Vec<Part>,
        prefix: u16,
        space: bool,
        keep: bool,
    },
    Revalidate,
    Release,
}

/// What the host believes to be in the registry: ids, by node, with their namespace.
#[derive(Default)]
struct Model {
    nodes: HashMap<u64, (Vec<u32>, bool)>,
}

struct Host {
    registry: Registry,
    spaces: [Namespace; 2],
    model: Model,
    plans: Vec<(ReusePlan, Vec<u32>)>,
}

impl Host {
    fn add(&mut self, node: u8, parent: Option<u8>, parts: &[Part], space: bool) {
        let (node, parent) = (u64::from(node), parent.map(u64::from));
        let mut tokens = text(parts);
        tokens.truncate(4000);
        let namespace = &self.spaces[usize::from(space)];
        let entry = Entry {
            parent,
            ..Entry::root(node, &tokens, namespace)
        };
        if self.registry.add(&entry).is_ok() {
            assert!(!self.model.nodes.contains_key(&node) || !tokens.is_empty());
            self.model.nodes.insert(node, (tokens, space));
        }
    }

    fn split(&mut self, node: u8, at: u16, head: u8) {
        let (node, head, at) = (u64::from(node), u64::from(head), usize::from(at));
        if self.registry.split(node, at, head).is_ok() {
            // A node may have been evicted since, but not one that was just split.
            let (tokens, space) = self.model.nodes.remove(&node).expect("known to both");
            let (first, second) = tokens.split_at(at);
            self.model.nodes.insert(head, (first.to_vec(), space));
            self.model.nodes.insert(node, (second.to_vec(), space));
        }
    }

    fn lookup(&mut self, quotes: &[u8], parts: &[Part], prefix: u16, space: bool, keep: bool) {
        let mut prompt = Vec::new();
        for quote in quotes.iter().take(8) {
            if let Some((tokens, _)) = self.model.nodes.get(&u64::from(*quote)) {
                prompt.extend_from_slice(tokens);
            }
        }
        prompt.extend(text(parts).into_iter().take(2000));
        let prefix = usize::from(prefix);
        let namespace = &self.spaces[usize::from(space)];
        match self.registry.lookup(&prompt, namespace, prefix) {
            Err(_) => assert!(prefix > prompt.len(), "only the prefix can be wrong"),
            Ok(plan) => {
                self.check(&plan, &prompt, prefix, space);
                if keep && self.plans.len() < 4 {
                    self.plans.push((plan, prompt));
                }
            }
        }
    }

    fn check(&self, plan: &ReusePlan, prompt: &[u32], prefix: usize, space: bool) {
        let mut at = prefix;
        for segment in plan.segments() {
            match segment {
                Segment::Compute(hole) => {
                    assert_eq!(hole.start, at);
                    at = hole.end;
                }
                Segment::Reuse(span) => {
                    assert_eq!(span.target, at);
                    for piece in &span.pieces {
                        assert!(
                            self.registry.contains(piece.node),
                            "donors of a fresh plan live"
                        );
                        let (tokens, owner) = &self.model.nodes[&piece.node];
                        assert_eq!(*owner, space, "namespaces never mix");
                        let ids = &tokens[piece.offset..piece.offset + piece.length];
                        assert_eq!(ids, &prompt[at..at + piece.length]);
                        at += piece.length;
                    }
                    assert_eq!(at, span.target + span.length);
                }
            }
        }
        assert_eq!(at, prompt.len());
    }

    fn call(&mut self, call: Call) {
        match call {
            Call::Add {
                node,
                parent,
                parts,
                space,
            } => self.add(node, parent, &parts, space),
            Call::Split { node, at, head } => self.split(node, at, head),
            Call::Remove { node } => {
                self.registry.discard(u64::from(node));
                assert!(!self.registry.contains(u64::from(node)));
            }
            Call::Forget { space } => {
                self.registry.forget(&self.spaces[usize::from(space)]);
            }
            Call::Clear => self.registry.clear(),
            Call::Lookup {
                quotes,
                parts,
                prefix,
                space,
                keep,
            } => {
                self.lookup(&quotes, &parts, prefix, space, keep);
            }
            Call::Revalidate => {
                for (plan, prompt) in &mut self.plans {
                    plan.revalidate();
                    let planned = plan.reused_tokens() + plan.computed_tokens();
                    assert!(planned <= prompt.len());
                }
            }
            Call::Release => self.plans.clear(),
        }
        let stats = self.registry.stats();
        assert!(stats.resident_tokens <= stats.capacity_tokens);
    }
}

fuzz_target!(|input: (u8, Vec<Call>)| {
    let (bits, calls) = input;
    let bits = [0, 4, 64][usize::from(bits % 3)];
    let (params, policy) = (ChunkParams::default(), Policy::default());
    let registry = Registry::with_fingerprint_bits(20_000, params, policy, bits);
    let spaces = ["one", "two"]
        .map(|tenant| Namespace::new(b"", b"", b"", b"", tenant.as_bytes()).expect("short"));
    let mut host = Host {
        registry: registry.expect("valid sizes"),
        spaces,
        model: Model::default(),
        plans: Vec::new(),
    };
    for call in calls.into_iter().take(60) {
        host.call(call);
    }
});
