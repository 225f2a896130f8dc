//! Limits that would be exceeded -> leaves that go, the least recently used first.
//!
//! Knows nothing of hashes. What a plan pins stays, and what lies above it.

use super::forest::NodeKey;
use super::state::State;
use crate::error::{Error, Result};

impl State {
    /// Puts a leaf into the eviction queue, once.
    pub(super) fn enqueue(&mut self, key: NodeKey) {
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
        for key in kept {
            self.enqueue(key);
        }
        if self.forest.resident().saturating_add(needed) > capacity {
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
        // A round evicts leaves; their parents are the next round's.
        let mut evicted = true;
        while evicted && !enough(self) {
            evicted = false;
            for key in self.leaves_of_tenant(tenant) {
                evicted |= Some(key) != parent && self.evict(key);
                if enough(self) {
                    break;
                }
            }
        }
        self.namespaces.tenants.admit(tenant, entries, tokens)
    }

    /// The leaves of a tenant, least recently used first.
    fn leaves_of_tenant(&self, tenant: &[u8]) -> Vec<NodeKey> {
        let nodes = self.namespaces.nodes_of_tenant(tenant).into_iter();
        let leaf = |key| {
            let node = self.forest.node(key).filter(|node| node.children == 0)?;
            Some((node.cell.used(), key))
        };
        let mut leaves: Vec<(u64, NodeKey)> = nodes.filter_map(leaf).collect();
        leaves.sort_unstable();
        leaves.into_iter().map(|(_, key)| key).collect()
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
