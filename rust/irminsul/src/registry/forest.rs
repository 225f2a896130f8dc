//! Insertions, splits and removals -> the forest of runs that mirrors the host's tree.
//!
//! Knows nothing of fingerprints or eviction: who is told what to index or to evict is decided
//! above.

use std::collections::HashMap;
use std::ops::Range;
use std::sync::atomic::AtomicU64;

use super::run::{Anchor, AnchorKind, NodeKey, Place, Run, RunHeader, RunId, RunWindow};
use super::spread::Spread;

/// One node of the host: the tokens `[start, end)` of a run.
#[derive(Debug)]
pub(crate) struct Node {
    pub(crate) host: u64,
    pub(crate) run: RunId,
    pub(crate) start: u32,
    pub(crate) end: u32,
    pub(crate) parent: Option<NodeKey>,
    /// Live nodes whose parent this is.
    pub(crate) children: u32,
    /// Whether the eviction queue holds this node.
    pub(crate) queued: bool,
    /// Logical time of the last use; raised by lookups that share the registry.
    pub(crate) used: AtomicU64,
}

impl Node {
    pub(crate) fn place(&self, offset: u32) -> Place {
        Place {
            run: self.run,
            offset: self.start + offset,
        }
    }

    pub(crate) fn len(&self) -> u32 {
        self.end - self.start
    }
}

/// The end of a path: what a child's chunking continues from.
#[derive(Debug, Default)]
pub(crate) struct PathTail {
    pub(crate) tokens: Vec<u32>,
    pub(crate) since_cut: usize,
    pub(crate) since_marker: usize,
}

/// All runs and nodes of a registry.
#[derive(Debug, Default)]
pub(crate) struct Forest {
    runs: HashMap<RunId, Run, Spread>,
    nodes: HashMap<NodeKey, Node, Spread>,
    by_host: HashMap<u64, NodeKey, Spread>,
    next_id: u64,
    tokens: usize,
    resident: usize,
}

impl Forest {
    pub(crate) fn run(&self, id: RunId) -> Option<&Run> {
        self.runs.get(&id)
    }

    pub(crate) fn run_mut(&mut self, id: RunId) -> Option<&mut Run> {
        self.runs.get_mut(&id)
    }

    pub(crate) fn key(&self, host: u64) -> Option<NodeKey> {
        self.by_host.get(&host).copied()
    }

    pub(crate) fn node(&self, key: NodeKey) -> Option<&Node> {
        self.nodes.get(&key)
    }

    pub(crate) fn node_mut(&mut self, key: NodeKey) -> Option<&mut Node> {
        self.nodes.get_mut(&key)
    }

    /// Numbers of nodes and runs, of live tokens, and of tokens held in memory.
    pub(crate) fn counts(&self) -> (usize, usize, usize, usize) {
        (
            self.nodes.len(),
            self.runs.len(),
            self.tokens,
            self.resident,
        )
    }

    pub(crate) fn resident(&self) -> usize {
        self.resident
    }

    /// Position at which the row of the token at `place` was computed.
    pub(crate) fn position(&self, place: Place) -> Option<u64> {
        Some(self.run(place.run)?.base_position + u64::from(place.offset))
    }

    /// Where `run` continues, if rows there lie at the positions just before its own.
    pub(crate) fn seamless_parent(&self, run: &Run) -> Option<Place> {
        run.parent
            .filter(|&place| self.position(place) == Some(run.base_position))
    }

    /// Drops everything but the count of ids, so that old ids stay dead.
    pub(crate) fn clear(&mut self) {
        *self = Self {
            next_id: self.next_id,
            ..Self::default()
        };
    }

    fn fresh_id(&mut self) -> u64 {
        self.next_id += 1;
        self.next_id
    }

    /// Adds a run of one node. The caller has checked that `host` is free and the parent is live.
    pub(crate) fn insert(
        &mut self,
        host: u64,
        parent: Option<NodeKey>,
        header: RunHeader,
        tokens: &[u32],
        anchors: Vec<Anchor>,
    ) -> (RunId, NodeKey) {
        let (run_id, key) = (RunId(self.fresh_id()), NodeKey(self.fresh_id()));
        let end = tokens.len() as u32;
        let run = Run::new(header, tokens, anchors, key);
        self.runs.insert(run_id, run);
        if let Some(place) = header.parent
            && let Some(above) = self.runs.get_mut(&place.run)
        {
            above
                .children
                .entry((place.offset, tokens[0]))
                .or_default()
                .push(run_id);
        }
        if let Some(above) = parent.and_then(|key| self.nodes.get_mut(&key)) {
            above.children += 1;
        }
        let used = AtomicU64::new(0);
        let node = Node {
            host,
            run: run_id,
            start: 0,
            end,
            parent,
            children: 0,
            queued: false,
            used,
        };
        self.nodes.insert(key, node);
        self.by_host.insert(host, key);
        self.tokens += tokens.len();
        self.resident += tokens.len();
        (run_id, key)
    }

    /// Makes the first `at` tokens of a node a node of their own, its new parent.
    pub(crate) fn split(&mut self, key: NodeKey, at: u32, head_host: u64) -> Option<NodeKey> {
        let head_key = NodeKey(self.fresh_id());
        let node = self.nodes.get_mut(&key)?;
        let run = self.runs.get_mut(&node.run)?;
        let border = node.start + at;
        run.split_segment(run.segment_at(node.start), border, head_key);
        let used = AtomicU64::new(*node.used.get_mut());
        let head = Node {
            host: head_host,
            run: node.run,
            start: node.start,
            end: border,
            parent: node.parent.replace(head_key),
            children: 1,
            queued: false,
            used,
        };
        node.start = border;
        self.nodes.insert(head_key, head);
        self.by_host.insert(head_host, head_key);
        Some(head_key)
    }

    /// Removes a node; returns it with what the index has to forget.
    pub(crate) fn remove(&mut self, key: NodeKey) -> Option<Removed> {
        let node = self.nodes.remove(&key)?;
        self.by_host.remove(&node.host);
        self.tokens -= node.len() as usize;
        let run = self.runs.get_mut(&node.run)?;
        let range = node.start..node.end;
        let anchors = run.anchors_in(&range).to_vec();
        let windows = run.windows_in(&range).to_vec();
        let namespace = run.namespace;
        self.resident -= run.kill_segment(run.segment_at(node.start));
        if run.is_dead() {
            self.drop_run(node.run);
        }
        let parent = node.parent.filter(|parent| self.nodes.contains_key(parent));
        if let Some(above) = parent.and_then(|key| self.nodes.get_mut(&key)) {
            above.children -= 1;
        }
        Some(Removed {
            run: node.run,
            namespace,
            anchors,
            windows,
            parent,
        })
    }

    fn drop_run(&mut self, id: RunId) {
        let Some(run) = self.runs.remove(&id) else {
            return;
        };
        let Some(place) = run.parent else { return };
        let Some(above) = self.runs.get_mut(&place.run) else {
            return;
        };
        let slot = (place.offset, run.first_token);
        if let Some(siblings) = above.children.get_mut(&slot) {
            siblings.retain(|&run| run != id);
            if siblings.is_empty() {
                above.children.remove(&slot);
            }
        }
    }

    /// The last `limit` live tokens before `place`, and how far back the last cuts lie.
    pub(crate) fn path_tail(&self, place: Place, limit: usize) -> PathTail {
        let mut pieces: Vec<&[u32]> = Vec::new();
        let (mut len, mut since_cut, mut since_marker) = (0, None, None);
        let mut next = Some(place);
        while let Some(Place { run: id, offset }) = next.filter(|_| len < limit) {
            let Some(run) = self.run(id) else { break };
            if offset == 0 {
                next = run.parent;
                continue;
            }
            let Some(Range { start, .. }) = run.live_range(offset - 1) else {
                break;
            };
            let start = start.max(offset.saturating_sub((limit - len) as u32));
            for anchor in run.anchors_in(&(start..offset)).iter().rev() {
                let distance = len + (offset - anchor.end) as usize;
                if anchor.kind != AnchorKind::Tail {
                    since_cut.get_or_insert(distance);
                }
                if anchor.kind == AnchorKind::Marker {
                    since_marker.get_or_insert(distance);
                }
            }
            pieces.push(run.tokens(start..offset));
            len += (offset - start) as usize;
            next = Some(Place {
                run: id,
                offset: start,
            });
        }
        pieces.reverse();
        // No cut within `limit` tokens happens only where removed ancestors hide it.
        let since_cut = since_cut.unwrap_or(len).min(limit - 1);
        PathTail {
            tokens: pieces.concat(),
            since_cut,
            since_marker: since_marker.unwrap_or(len),
        }
    }
}

/// What a removed node leaves to be forgotten.
#[derive(Debug)]
pub(crate) struct Removed {
    pub(crate) run: RunId,
    pub(crate) namespace: u64,
    pub(crate) anchors: Vec<Anchor>,
    pub(crate) windows: Vec<RunWindow>,
    pub(crate) parent: Option<NodeKey>,
}
