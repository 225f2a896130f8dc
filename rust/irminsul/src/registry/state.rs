//! One operation of the host -> consistent changes of forest, index, namespaces and eviction queue.
//!
//! Knows nothing of locks or of plans. Everything is checked before anything changes.

use std::sync::atomic::{AtomicU64, Ordering};

use super::anchors::anchors;
use super::forest::{Forest, PathTail};
use super::index::{CHUNK_DONORS, Donor, Index, WINDOW_DONORS};
use super::namespaces::Namespaces;
use super::queue::EvictionQueue;
use super::run::{Anchor, AnchorKind, NodeKey, Place, RunHeader, RunId, RunWindow};
use super::{Entry, RegistryConfig};
use crate::error::{Error, Result, check};
use crate::namespace::Namespace;
use crate::window::{SAMPLING, WINDOW_TOKENS, windows};

/// Positions stay below this, so that differences fit a signed 64-bit number.
const MAX_POSITION: u64 = 1 << 62;

/// The registry's contents, to be guarded by one lock.
#[derive(Debug)]
pub(crate) struct State {
    pub(crate) forest: Forest,
    pub(crate) index: Index<CHUNK_DONORS>,
    pub(crate) windows: Index<WINDOW_DONORS>,
    pub(crate) namespaces: Namespaces,
    pub(crate) evicted: u64,
    queue: EvictionQueue,
    clock: AtomicU64,
    config: RegistryConfig,
}

impl State {
    pub(crate) fn new(config: RegistryConfig) -> Self {
        Self {
            forest: Forest::default(),
            index: Index::new(config.fingerprint_bits),
            windows: Index::new(config.fingerprint_bits),
            namespaces: Namespaces::default(),
            evicted: 0,
            queue: EvictionQueue::default(),
            clock: AtomicU64::new(1),
            config,
        }
    }

    /// Marks nodes used now. Relaxed suffices: the times order evictions and publish nothing.
    pub(crate) fn touch(&self, keys: impl Iterator<Item = NodeKey>) {
        let now = self.clock.fetch_add(1, Ordering::Relaxed);
        for node in keys.filter_map(|key| self.forest.node(key)) {
            node.used.store(now, Ordering::Relaxed);
        }
    }

    pub(crate) fn add(&mut self, entry: &Entry<'_>) -> Result<()> {
        let parent = self.check_entry(entry)?;
        self.make_room(entry.tokens.len(), parent)?;
        let place = parent
            .and_then(|key| self.forest.node(key))
            .map(|node| node.place(node.len()));
        let limit = self.config.params.max() as usize;
        let tail = place.map_or_else(PathTail::default, |place| {
            self.forest.path_tail(place, limit)
        });
        let anchors = anchors(&self.config.params, &tail, entry.tokens);
        let namespace = self.namespaces.intern(entry.namespace);
        let header = RunHeader {
            namespace,
            parent: place,
            base_position: entry.base_position,
            hops: entry.hops,
            depth: entry.depth,
        };
        let indexed = anchors.clone();
        let (run, key) = self
            .forest
            .insert(entry.node, parent, header, entry.tokens, anchors);
        self.namespaces.join(namespace, key);
        self.index_run(run, &header, &indexed);
        if self.config.policy.windows {
            self.index_windows(run, &header, &tail.tokens, entry.tokens);
        }
        self.touch([key].into_iter().chain(parent));
        self.enqueue(key);
        Ok(())
    }

    fn check_entry(&self, entry: &Entry<'_>) -> Result<Option<NodeKey>> {
        let len = entry.tokens.len();
        if len == 0 || len > u32::MAX as usize {
            return Err(Error::InvalidLength { len });
        }
        let base = entry.base_position;
        check(
            base <= MAX_POSITION,
            "base_position",
            base.into(),
            "at most 2^62",
        )?;
        if self.forest.key(entry.node).is_some() {
            return Err(Error::DuplicateNode { node: entry.node });
        }
        let Some(parent) = entry.parent else {
            return Ok(None);
        };
        let key = self
            .forest
            .key(parent)
            .ok_or(Error::UnknownNode { node: parent })?;
        let run = self
            .forest
            .node(key)
            .and_then(|node| self.forest.run(node.run));
        if run.map(|run| run.namespace) != self.namespaces.id(entry.namespace) {
            return Err(Error::NamespaceMismatch {
                node: entry.node,
                parent,
            });
        }
        Ok(Some(key))
    }

    fn index_run(&mut self, run: RunId, header: &RunHeader, anchors: &[Anchor]) {
        let min_tail = self.config.policy.min_span;
        let mut previous = 0;
        for anchor in anchors {
            let tail_len = anchor.end - previous;
            previous = anchor.end;
            if anchor.kind == AnchorKind::Tail && tail_len < min_tail {
                continue;
            }
            let end = Place {
                run,
                offset: anchor.end,
            };
            let donor = Donor {
                end,
                hops: header.hops,
                depth: header.depth,
            };
            self.index
                .insert(header.namespace, anchor.fingerprint, donor);
        }
    }

    /// Indexes the sampled windows that end in a run. Crafted text may sample everywhere; twice the
    /// usual number bounds what it can occupy.
    fn index_windows(&mut self, run: RunId, header: &RunHeader, before: &[u32], tokens: &[u32]) {
        let before = &before[before.len().saturating_sub(WINDOW_TOKENS - 1)..];
        let text = [before, tokens].concat();
        let mut kept = Vec::new();
        let limit = 2 * tokens.len() / SAMPLING + 2;
        for window in windows(&text, before.len(), self.config.params.secret()).take(limit) {
            let end = (window.end - before.len()) as u32;
            let donor = Donor {
                end: Place { run, offset: end },
                hops: header.hops,
                depth: header.depth,
            };
            if self
                .windows
                .insert(header.namespace, u64::from(window.key), donor)
            {
                kept.push(RunWindow {
                    end,
                    key: window.key,
                });
            }
        }
        if let Some(run) = self.forest.run_mut(run) {
            run.windows = kept;
        }
    }

    pub(crate) fn split(&mut self, host: u64, at: usize, head_host: u64) -> Result<()> {
        let key = self
            .forest
            .key(host)
            .ok_or(Error::UnknownNode { node: host })?;
        let len = self.forest.node(key).map_or(0, super::forest::Node::len) as usize;
        check(
            at >= 1 && at < len,
            "at",
            at as i128,
            "at least 1 and less than the node's length",
        )?;
        if self.forest.key(head_host).is_some() {
            return Err(Error::DuplicateNode { node: head_host });
        }
        let Some(head) = self.forest.split(key, at as u32, head_host) else {
            return Ok(());
        };
        let run = self
            .forest
            .node(head)
            .and_then(|node| self.forest.run(node.run));
        if let Some(namespace) = run.map(|run| run.namespace) {
            self.namespaces.join(namespace, head);
        }
        Ok(())
    }

    pub(crate) fn discard(&mut self, host: u64) -> bool {
        self.forest
            .key(host)
            .is_some_and(|key| self.remove_key(key))
    }

    fn remove_key(&mut self, key: NodeKey) -> bool {
        let Some(removed) = self.forest.remove(key) else {
            return false;
        };
        for anchor in &removed.anchors {
            let end = Place {
                run: removed.run,
                offset: anchor.end,
            };
            self.index
                .remove(removed.namespace, anchor.fingerprint, end);
        }
        for window in &removed.windows {
            let end = Place {
                run: removed.run,
                offset: window.end,
            };
            self.windows
                .remove(removed.namespace, u64::from(window.key), end);
        }
        self.namespaces.leave(removed.namespace, key);
        if let Some(parent) = removed.parent {
            self.enqueue(parent);
        }
        true
    }

    pub(crate) fn forget(&mut self, namespace: &Namespace) -> usize {
        let nodes = self.namespaces.nodes(namespace);
        // Newest first: children go before their parents, which then need not be queued as leaves.
        nodes
            .iter()
            .rev()
            .filter(|&&key| self.remove_key(key))
            .count()
    }

    pub(crate) fn clear(&mut self) {
        self.forest.clear();
        self.index.clear();
        self.windows.clear();
        self.namespaces.clear();
        self.queue = EvictionQueue::default();
    }

    /// Puts a leaf into the eviction queue, once.
    fn enqueue(&mut self, key: NodeKey) {
        let (live, ..) = self.forest.counts();
        if self.queue.len() > 2 * live + 64 {
            let forest = &self.forest;
            self.queue.retain(|key| forest.node(key).is_some());
        }
        let Some(node) = self.forest.node_mut(key) else {
            return;
        };
        if node.children == 0 && !node.queued {
            node.queued = true;
            self.queue.push(*node.used.get_mut(), key);
        }
    }

    /// Evicts least recently used leaves that no plan pins until `needed` more tokens fit.
    fn make_room(&mut self, needed: usize, parent: Option<NodeKey>) -> Result<()> {
        let capacity = self.config.capacity_tokens;
        let mut kept = Vec::new();
        while needed <= capacity && self.forest.resident() + needed > capacity {
            let Some((used, key)) = self.queue.pop() else {
                break;
            };
            let Some(node) = self.forest.node_mut(key) else {
                continue;
            };
            let now = *node.used.get_mut();
            if now > used {
                self.queue.push(now, key);
                continue;
            }
            node.queued = false;
            if node.children > 0 {
                continue;
            }
            if Some(key) == parent || self.is_pinned(key) {
                kept.push(key);
            } else if self.remove_key(key) {
                self.evicted += 1;
            }
        }
        for key in kept {
            self.enqueue(key);
        }
        let resident = self.forest.resident();
        if resident.saturating_add(needed) > capacity {
            return Err(Error::RegistryFull {
                needed,
                resident,
                capacity,
            });
        }
        Ok(())
    }

    fn is_pinned(&self, key: NodeKey) -> bool {
        let run = self
            .forest
            .node(key)
            .and_then(|node| self.forest.run(node.run));
        run.is_some_and(super::run::Run::is_pinned)
    }
}
