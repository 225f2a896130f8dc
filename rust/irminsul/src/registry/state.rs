//! One operation of the host -> consistent changes of forest, tables, namespaces and eviction queue.
//!
//! Knows nothing of plans. One writer at a time owns this; readers see what it publishes in [`Core`].
//! Everything is checked before anything changes.

use std::sync::Arc;

use super::forest::{Forest, NewRun, NodeKey};
use super::indexing::AHEAD;
use super::namespaces::Namespaces;
use super::path::PathTail;
use super::prepare::Prepared;
use super::queue::EvictionQueue;
use super::version::{Place, RunHeader, RunId};
use super::view::Core;
use super::{Entry, Ordering, RegistryConfig};
use crate::error::{Error, Result, check};
use crate::namespace::Namespace;

/// Positions stay below this, so that differences fit a signed 64-bit number.
const MAX_POSITION: u64 = 1 << 62;

/// The writer's side of a registry.
#[derive(Debug)]
pub(crate) struct State {
    pub(crate) forest: Forest,
    pub(crate) namespaces: Namespaces,
    pub(crate) evicted: u64,
    pub(super) core: Arc<Core>,
    pub(super) queue: EvictionQueue,
    pub(super) config: RegistryConfig,
    serial: u64,
    /// Counts what may make a leaf evictable.
    pub(super) changes: u64,
    /// As of which releases and changes all leaves but this parent were found pinned, so that the next
    /// insertion need not look again.
    pub(super) refused: Option<(u64, u64, Option<NodeKey>)>,
}

/// Where an insertion would go, as of when it was checked.
#[derive(Debug)]
pub(crate) struct Site {
    parent: Option<NodeKey>,
    pub(crate) tail: PathTail,
}

impl State {
    pub(crate) fn new(config: RegistryConfig, core: Arc<Core>) -> Self {
        Self {
            forest: Forest::default(),
            namespaces: Namespaces::default(),
            evicted: 0,
            core,
            queue: EvictionQueue::default(),
            config,
            serial: 0,
            changes: 0,
            refused: None,
        }
    }

    /// The first half of an insertion: checks it, and says what it continues.
    pub(crate) fn site(&self, entry: &Entry<'_>) -> Result<Site> {
        let parent = self.check_entry(entry)?;
        let limit = self.config.params.max() as usize;
        let place = parent.and_then(|key| Some(self.forest.node(key)?.end_place()));
        let tail = place.map_or_else(PathTail::default, |place| {
            self.forest.path_tail(&self.core, place, limit)
        });
        Ok(Site { parent, tail })
    }

    /// The second half: records what was prepared for a site. False when the site has changed
    /// meanwhile and everything has to be done again.
    pub(crate) fn add(
        &mut self,
        entry: &Entry<'_>,
        site: &Site,
        prepared: &Prepared,
    ) -> Result<bool> {
        if self.check_entry(entry)? != site.parent {
            return Ok(false);
        }
        let tenant = entry.namespace.tenant();
        let entries = 1 + prepared.anchors.len() + prepared.windows.len();
        self.make_room_for_tenant(tenant, entries, entry.tokens.len(), site.parent)?;
        self.make_room(entry.tokens.len(), site.parent)?;
        let tick = self.next_tick();
        let parent = site.parent.and_then(|key| self.forest.node(key));
        let place = parent.map(|node| {
            node.cell.touch(tick);
            node.end_place()
        });
        let namespace = self.namespaces.intern(&self.core, entry.namespace);
        self.serial += 1;
        let header = RunHeader {
            namespace,
            parent: place,
            base_position: entry.base_position,
            hops: entry.hops,
            depth: entry.depth,
            serial: self.serial,
        };
        let new = NewRun {
            host: entry.node,
            parent: site.parent,
            header,
            tokens: entry.tokens,
            anchors: prepared.anchors.clone(),
        };
        let Some((run, key)) = self.forest.insert(&self.core, new, tick) else {
            self.namespaces.release(&self.core, namespace);
            return Err(self.full(entry.tokens.len()));
        };
        self.namespaces.join(namespace, key);
        self.index_chunks(run, &header, &prepared.anchors);
        let windows = self.index_windows(run, &header, &prepared.windows);
        if let Some(account) = self.namespaces.account(namespace) {
            account.nodes += 1;
            account.entries += 1 + prepared.anchors.len() + windows.len();
            account.tokens += entry.tokens.len();
        }
        self.forest.set_windows(run, windows);
        self.enqueue(key);
        Ok(true)
    }

    /// Ages count insertions, in even numbers; readers stamp the odd number after the last one.
    fn next_tick(&self) -> u64 {
        // Relaxed: ages publish nothing.
        self.core.tick.fetch_add(2, Ordering::Relaxed) + 2
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
            "at most 2**62",
        )?;
        if self.forest.key(entry.node).is_some() {
            return Err(Error::DuplicateNode { node: entry.node });
        }
        let Some(parent) = entry.parent else {
            return Ok(None);
        };
        let unknown = Error::UnknownNode { node: parent };
        let key = self.forest.key(parent).ok_or(unknown)?;
        let run = self
            .forest
            .node(key)
            .and_then(|node| self.forest.run(node.run));
        if run.map(|run| run.header.namespace) != self.namespaces.id(entry.namespace) {
            return Err(Error::NamespaceMismatch {
                node: entry.node,
                parent,
            });
        }
        Ok(Some(key))
    }

    pub(crate) fn split(&mut self, host: u64, at: usize, head_host: u64) -> Result<()> {
        let unknown = Error::UnknownNode { node: host };
        let key = self.forest.key(host).ok_or(unknown)?;
        let (run, len) = self
            .forest
            .node(key)
            .map_or((RunId(0), 0), |node| (node.run, node.len()));
        check(
            at >= 1 && at < len,
            "at",
            at as i128,
            "at least 1 and less than the node's length",
        )?;
        if self.forest.key(head_host).is_some() {
            return Err(Error::DuplicateNode { node: head_host });
        }
        let head = self.forest.split(&self.core, key, at as u32, head_host);
        let head = head.ok_or_else(|| self.full(0))?;
        if let Some(run) = self.forest.run(run) {
            let namespace = run.header.namespace;
            self.namespaces.join(namespace, head);
            if let Some(account) = self.namespaces.account(namespace) {
                account.nodes += 1;
                account.entries += 1;
            }
        }
        Ok(())
    }

    pub(crate) fn discard(&mut self, host: u64) -> bool {
        self.forest
            .key(host)
            .is_some_and(|key| self.remove_key(key))
    }

    fn remove_key(&mut self, key: NodeKey) -> bool {
        let Some(node) = self.forest.node(key) else {
            return false;
        };
        node.cell.remove();
        self.forget_node(key);
        true
    }

    /// Takes a dead node out of everything.
    pub(super) fn forget_node(&mut self, key: NodeKey) {
        let Some(removed) = self.forest.remove(&self.core, key) else {
            return;
        };
        self.changes += 1;
        let (namespace, run) = (removed.namespace, removed.run);
        for anchor in &removed.anchors {
            let offset = anchor.end;
            let table_key = self.core.key(namespace, anchor.fingerprint);
            self.core
                .chunks
                .remove(table_key, Place { run, offset }.word());
        }
        for (at, window) in removed.windows.iter().enumerate() {
            if let Some(later) = removed.windows.get(at + AHEAD) {
                self.core
                    .windows
                    .prefetch(self.core.key(namespace, later.key.into()));
            }
            let offset = window.end;
            let table_key = self.core.key(namespace, window.key.into());
            self.core
                .windows
                .remove(table_key, Place { run, offset }.word());
        }
        if let Some(account) = self.namespaces.account(namespace) {
            account.nodes -= 1;
            account.entries -= 1 + removed.anchors.len() + removed.windows.len();
            account.tokens -= removed.freed;
        }
        self.namespaces.leave(&self.core, namespace, key);
        if let Some(parent) = removed.parent {
            self.enqueue(parent);
        }
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
        for key in self.forest.keys() {
            self.remove_key(key);
        }
        self.queue = EvictionQueue::default();
    }

    pub(super) fn full(&self, needed: usize) -> Error {
        Error::RegistryFull {
            needed,
            resident: self.forest.resident(),
            capacity: self.config.capacity_tokens,
        }
    }
}
