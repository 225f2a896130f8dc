//! Insertions, splits and removals -> the forest of runs that mirrors the host's tree.
//!
//! Knows nothing of hashes or eviction: who is told what to index or to evict is decided above. One
//! writer owns this; what readers may see of it, it publishes in [`Core`].

use std::collections::HashMap;
use std::sync::Arc;

use super::Ordering;
use super::anchor::{Anchor, RunWindow, ends_in};
use super::node::NodeCell;
use super::spread::Spread;
use super::version::{Place, RunHeader, RunId, Version};
use super::view::{Core, Fork};

/// Id of a node inside the registry; never given twice, unlike the host's ids.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(crate) struct NodeKey(pub(crate) u64);

/// One node of the host: the tokens `[start, end)` of a run.
#[derive(Debug)]
pub(crate) struct Node {
    pub(crate) cell: Arc<NodeCell>,
    pub(crate) run: RunId,
    pub(crate) start: u32,
    pub(crate) end: u32,
    pub(crate) parent: Option<NodeKey>,
    /// Live nodes whose parent this is.
    pub(crate) children: u32,
    /// Whether the eviction queue holds this node.
    pub(crate) queued: bool,
}

impl Node {
    pub(crate) fn len(&self) -> usize {
        (self.end - self.start) as usize
    }

    /// Where a child continues.
    pub(crate) fn end_place(&self) -> Place {
        Place {
            run: self.run,
            offset: self.end,
        }
    }
}

/// What only the writer knows of a run.
#[derive(Debug)]
pub(crate) struct Run {
    pub(crate) id: RunId,
    pub(crate) header: RunHeader,
    pub(super) anchors: Vec<Anchor>,
    windows: Vec<RunWindow>,
    /// First token ever held; the run is filed under it where it continues its parent.
    first_token: u32,
    live_nodes: u32,
    live_tokens: usize,
    held: usize,
    /// The run after this one at the same fork.
    newer: Option<RunId>,
}

impl Run {
    fn fork(&self) -> Option<Fork> {
        let parent = self.header.parent?;
        Some((parent.run, parent.offset, self.first_token))
    }
}

/// A run to be: everything about it but its id.
#[derive(Debug)]
pub(crate) struct NewRun<'a> {
    pub(crate) host: u64,
    pub(crate) parent: Option<NodeKey>,
    pub(crate) header: RunHeader,
    pub(crate) tokens: &'a [u32],
    pub(crate) anchors: Vec<Anchor>,
}

/// All runs and nodes of a registry.
#[derive(Debug, Default)]
pub(crate) struct Forest {
    /// By slot; a slot lives one life at a time.
    runs: HashMap<u32, Run, Spread>,
    nodes: HashMap<NodeKey, Node, Spread>,
    by_host: HashMap<u64, NodeKey, Spread>,
    next_key: u64,
    tokens: usize,
    resident: usize,
}

impl Forest {
    pub(crate) fn run(&self, id: RunId) -> Option<&Run> {
        self.runs.get(&id.slot()).filter(|run| run.id == id)
    }

    pub(crate) fn run_at(&self, slot: u32) -> Option<&Run> {
        self.runs.get(&slot)
    }

    pub(crate) fn set_windows(&mut self, id: RunId, windows: Vec<RunWindow>) {
        if let Some(run) = self.runs.get_mut(&id.slot()) {
            run.windows = windows;
        }
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

    /// The position behind the last row of a live node.
    pub(crate) fn end_position(&self, host: u64) -> Option<u64> {
        let node = self.node(self.key(host)?)?;
        let run = self.run(node.run)?;
        Some(run.header.base_position + u64::from(node.end))
    }

    pub(crate) fn keys(&self) -> Vec<NodeKey> {
        self.nodes.keys().copied().collect()
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

    fn fresh_key(&mut self) -> NodeKey {
        self.next_key += 1;
        NodeKey(self.next_key)
    }

    fn add_node(&mut self, key: NodeKey, node: Node) {
        self.by_host.insert(node.cell.host, key);
        self.nodes.insert(key, node);
    }

    /// Adds a run of one node and shows it to readers; none when there is no slot for it. The caller
    /// has checked that the host's id is free and the parent lives.
    pub(crate) fn insert(
        &mut self,
        core: &Core,
        new: NewRun<'_>,
        tick: u64,
    ) -> Option<(RunId, NodeKey)> {
        let slot = core.runs.claim()?;
        let id = RunId(core.runs.publish(slot).bits());
        let cell = Arc::new(NodeCell::new(new.host, tick));
        let version = Version::new(id, new.header, new.tokens, Arc::clone(&cell));
        if !publish_version(core, version) {
            retire_run(core, id);
            return None;
        }
        let run = Run {
            id,
            header: new.header,
            anchors: new.anchors,
            windows: Vec::new(),
            first_token: new.tokens[0],
            live_nodes: 1,
            live_tokens: new.tokens.len(),
            held: new.tokens.len(),
            newer: None,
        };
        self.link(core, &run);
        self.runs.insert(slot, run);
        if let Some(above) = new.parent.and_then(|key| self.nodes.get_mut(&key)) {
            above.children += 1;
        }
        let node = Node {
            cell,
            run: id,
            start: 0,
            end: new.tokens.len() as u32,
            parent: new.parent,
            children: 0,
            queued: false,
        };
        self.tokens += new.tokens.len();
        self.resident += new.tokens.len();
        let key = self.fresh_key();
        self.add_node(key, node);
        Some((id, key))
    }

    /// Files a run where it continues its parent, before the others there.
    fn link(&mut self, core: &Core, run: &Run) {
        let Some(fork) = run.fork() else { return };
        let forks = core.forks.pin();
        let older = forks.get(&fork).copied();
        // Release pairs with the acquire in `View::continuations`.
        let link = older.map_or(0, |older| older.0);
        core.runs
            .extra(run.id.slot())
            .older
            .store(link, Ordering::Release);
        if let Some(older) = older.and_then(|older| self.runs.get_mut(&older.slot())) {
            older.newer = Some(run.id);
        }
        forks.insert(fork, run.id);
    }

    fn unlink(&mut self, core: &Core, run: &Run) {
        let Some(fork) = run.fork() else { return };
        // Relaxed: the writer's own store.
        let older = core.runs.extra(run.id.slot()).older.load(Ordering::Relaxed);
        if let Some(newer) = run.newer {
            core.runs
                .extra(newer.slot())
                .older
                .store(older, Ordering::Release);
        } else if older == 0 {
            core.forks.pin().remove(&fork);
        } else {
            core.forks.pin().insert(fork, RunId(older));
        }
        if let Some(older) = self
            .runs
            .get_mut(&RunId(older).slot())
            .filter(|_| older != 0)
        {
            older.newer = run.newer;
        }
    }

    /// Makes the first `at` tokens of a node a node of their own, its new parent; none when there is
    /// no slot for it.
    pub(crate) fn split(
        &mut self,
        core: &Core,
        key: NodeKey,
        at: u32,
        head_host: u64,
    ) -> Option<NodeKey> {
        let node = self.nodes.get(&key)?;
        let (run, start, border) = (node.run, node.start, node.start + at);
        let cell = Arc::new(NodeCell::new(head_host, node.cell.used()));
        let version = core.version(run)?;
        let index = version.segment_at(start);
        if !publish_version(core, version.split(index, border, Arc::clone(&cell))) {
            return None;
        }
        let head_key = self.fresh_key();
        let node = self.nodes.get_mut(&key)?;
        node.start = border;
        let head = Node {
            cell,
            run,
            start,
            end: border,
            parent: node.parent.replace(head_key),
            children: 1,
            queued: false,
        };
        self.add_node(head_key, head);
        if let Some(run) = self.runs.get_mut(&run.slot()) {
            run.live_nodes += 1;
        }
        Some(head_key)
    }

    /// Takes a node out that has died; returns it with what the index has to forget.
    pub(crate) fn remove(&mut self, core: &Core, key: NodeKey) -> Option<Removed> {
        let node = self.nodes.remove(&key)?;
        self.by_host.remove(&node.cell.host);
        self.tokens -= node.len();
        let parent = node.parent.filter(|parent| self.nodes.contains_key(parent));
        if let Some(above) = parent.and_then(|key| self.nodes.get_mut(&key)) {
            above.children -= 1;
        }
        let run = self.runs.get_mut(&node.run.slot())?;
        run.live_nodes -= 1;
        run.live_tokens -= node.len();
        let mut removed = Removed {
            freed: 0,
            run: run.id,
            namespace: run.header.namespace,
            anchors: ends_in(&run.anchors, node.start, node.end, |anchor| anchor.end).to_vec(),
            windows: ends_in(&run.windows, node.start, node.end, |window| window.end).to_vec(),
            parent,
        };
        let resident = self.resident;
        if run.live_nodes == 0 {
            self.drop_run(core, node.run);
        } else if run.live_tokens * 2 <= run.held {
            // Otherwise there is nothing to give back, and no need to look at all nodes of the run.
            self.shrink_run(core, node.run);
        }
        removed.freed = resident - self.resident;
        Some(removed)
    }

    fn drop_run(&mut self, core: &Core, id: RunId) {
        let Some(run) = self.runs.remove(&id.slot()) else {
            return;
        };
        self.resident -= run.held;
        self.unlink(core, &run);
        retire_run(core, id);
    }

    fn shrink_run(&mut self, core: &Core, id: RunId) {
        let Some(smaller) = core.version(id).and_then(|version| version.shrink()) else {
            return;
        };
        let held = smaller.held();
        if publish_version(core, smaller)
            && let Some(run) = self.runs.get_mut(&id.slot())
        {
            self.resident -= run.held - held.len();
            run.held = held.len();
            run.anchors = ends_in(&run.anchors, held.start, held.end, |anchor| anchor.end).to_vec();
            run.windows = ends_in(&run.windows, held.start, held.end, |window| window.end).to_vec();
        }
    }
}

/// Shows readers a new version of a run; false when there is no slot for it.
fn publish_version(core: &Core, version: Version) -> bool {
    let cell = core.runs.extra(version.id.slot());
    cell.version.publish(&core.versions, version)
}

/// Hides a run from readers. Its slot begins another life when the last plan unpins it.
fn retire_run(core: &Core, id: RunId) {
    core.runs.extra(id.slot()).version.clear(&core.versions);
    if core.runs.retire(id.handle()) {
        core.runs.recycle(id.slot());
    }
}

/// What a removed node leaves to be forgotten.
#[derive(Debug)]
pub(crate) struct Removed {
    /// Tokens of memory that were given back.
    pub(crate) freed: usize,
    pub(crate) run: RunId,
    pub(crate) namespace: u64,
    pub(crate) anchors: Vec<Anchor>,
    pub(crate) windows: Vec<RunWindow>,
    pub(crate) parent: Option<NodeKey>,
}
