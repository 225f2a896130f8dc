//! Limits that would be exceeded -> leaves that go, the least recently used first.
//!
//! Knows nothing of hashes. What a plan pins stays, and what lies above it.

use super::forest::NodeKey;
use super::queue::EvictionQueue;
use super::state::State;
use crate::error::{Error, Result};

impl State {
    /// Puts a leaf into the eviction queue, once.
    pub(super) fn enqueue(&mut self, key: NodeKey) {
        self.changes += 1;
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
            self.queue.push(node.cell.used(), key);
        }
    }

    /// Evicts least recently used leaves that no plan pins until `needed` more tokens fit.
    pub(super) fn make_room(&mut self, needed: usize, parent: Option<NodeKey>) -> Result<()> {
        let capacity = self.config.capacity_tokens;
        let released = self.core.released();
        if self.refused == Some((released, self.changes, parent))
            && self.forest.resident().saturating_add(needed) > capacity
        {
            return Err(self.full(needed));
        }
        let mut kept = Vec::new();
        while needed <= capacity && self.forest.resident() + needed > capacity {
            let Some((used, key)) = self.queue.pop() else {
                break;
            };
            let Some(node) = self.forest.node_mut(key) else {
                continue;
            };
            let now = node.cell.used();
            if now > used {
                self.queue.push(now, key);
                continue;
            }
            node.queued = false;
            if node.children > 0 {
                continue;
            }
            if Some(key) == parent || !self.evict(key) {
                kept.push(key);
            }
        }
        // What is pinned is in use now. With its old age, each insertion would come by it again.
        let now = self.core.reader_tick();
        for key in kept {
            if let Some(node) = self.forest.node(key) {
                node.cell.touch(now);
            }
            self.enqueue(key);
        }
        if self.forest.resident().saturating_add(needed) > capacity {
            // All leaves are pinned until a plan is released or a node comes or goes.
            self.refused = (needed <= capacity).then_some((released, self.changes, parent));
            return Err(self.full(needed));
        }
        Ok(())
    }

    /// Evicts a tenant's own least recently used leaves until so much more fits its limits.
    pub(super) fn make_room_for_tenant(
        &mut self,
        tenant: &[u8],
        entries: usize,
        tokens: usize,
        parent: Option<NodeKey>,
    ) -> Result<()> {
        let admitted = self.namespaces.tenants.admit(tenant, entries, tokens);
        let impossible = |error: &Error| match error {
            Error::QuotaExceeded { needed, limit, .. } => needed > limit,
            _ => false,
        };
        if admitted.is_ok() || admitted.as_ref().is_err_and(impossible) {
            return admitted;
        }
        let (more_entries, more_tokens) = self.namespaces.tenants.slack(tenant);
        let enough = |state: &Self| {
            let (entries, tokens) = (entries + more_entries, tokens + more_tokens);
            state
                .namespaces
                .tenants
                .admit(tenant, entries, tokens)
                .is_ok()
        };
        let mut leaves = EvictionQueue::default();
        for key in self.namespaces.nodes_of_tenant(tenant) {
            self.push_leaf(&mut leaves, key);
        }
        while !enough(self) {
            let Some((_, key)) = leaves.pop() else { break };
            let above = self.forest.node(key).and_then(|node| node.parent);
            if Some(key) != parent
                && self.evict(key)
                && let Some(above) = above
            {
                self.push_leaf(&mut leaves, above);
            }
        }
        self.namespaces.tenants.admit(tenant, entries, tokens)
    }

    /// Puts a node into a queue if it is a leaf.
    fn push_leaf(&self, leaves: &mut EvictionQueue, key: NodeKey) {
        let node = self.forest.node(key).filter(|node| node.children == 0);
        if let Some(node) = node {
            leaves.push(node.cell.used(), key);
        }
    }

    /// Evicts a leaf unless a plan pins it; says whether it did.
    fn evict(&mut self, key: NodeKey) -> bool {
        let Some(node) = self.forest.node(key) else {
            return false;
        };
        let slot = node.run.slot();
        let evicted = node.cell.evict(|| self.core.runs.pins(slot));
        if evicted {
            self.forget_node(key);
            self.evicted += 1;
        }
        evicted
    }
}

#[cfg(test)]
mod tests {
    use crate::{ChunkParams, Entry, Namespace, Policy, Quota, Registry};

    #[test]
    fn what_was_found_pinned_counts_as_used() {
        let policy = Policy::default();
        let registry = Registry::new(3000, ChunkParams::default(), policy).expect("valid");
        let namespace = Namespace::default();
        let text = |seed: u32| -> Vec<u32> { (0..1000).map(|at| at * 64 + seed).collect() };
        let add = |node: u32| {
            let tokens = text(node);
            let entry = Entry::root(node.into(), &tokens, &namespace);
            registry.add(&entry).expect("evicts");
        };
        add(0);
        let mut plan = registry.lookup(&text(0), &namespace, 0).expect("valid");
        assert!(plan.reused_tokens() > 0);
        (1..4).for_each(add);
        plan.release();
        add(4);
        let gone: Vec<u64> = (0..5).filter(|&node| !registry.contains(node)).collect();
        assert_eq!(gone, [1, 2]);
    }

    #[test]
    fn a_refused_insertion_fits_once_a_plan_lets_go_or_a_node_goes() {
        let registry = Registry::new(3000, ChunkParams::default(), Policy::default());
        let registry = registry.expect("valid");
        let namespace = Namespace::default();
        let text = |seed: u32| -> Vec<u32> { (0..1000).map(|at| at * 64 + seed).collect() };
        let add = |node: u32| {
            let tokens = text(node);
            registry
                .add(&Entry::root(node.into(), &tokens, &namespace))
                .is_ok()
        };
        assert!((0..3).all(add));
        let look = |node| registry.lookup(&text(node), &namespace, 0).expect("valid");
        let mut plans: Vec<_> = (0..3).map(look).collect();
        assert!((3..6).all(|node| !add(node)));
        plans[1].release();
        assert!(add(6) && !registry.contains(1));
        let last = look(6);
        assert!(!add(7) && !add(7));
        drop(last);
        assert!(add(7) && !registry.contains(6));
        let _last = look(7);
        assert!(!add(8) && registry.discard(7));
        // Removed under its plan.
        assert!(add(8));
    }

    #[test]
    fn a_tenant_gives_a_whole_old_path_before_newer_nodes() {
        let registry = Registry::new(1 << 20, ChunkParams::default(), Policy::default());
        let registry = registry.expect("valid");
        let namespace = Namespace::default();
        let quota = Quota {
            tokens: Some(3200),
            ..Quota::default()
        };
        registry.set_quota(None, Some(quota));
        let tokens: Vec<u32> = (0..100).collect();
        let add = |node: u64, parent: Option<u64>| {
            let entry = Entry {
                parent,
                ..Entry::root(node, &tokens, &namespace)
            };
            registry.add(&entry).expect("evicts");
        };
        (0..20).for_each(|node: u64| add(node, node.checked_sub(1)));
        (20..33).for_each(|node| add(node, None));
        // One node too many, and a sixteenth of the limit more.
        let gone: Vec<u64> = (0..33).filter(|&node| !registry.contains(node)).collect();
        assert_eq!(gone, [17, 18, 19]);
    }
}
