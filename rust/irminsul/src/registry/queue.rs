//! Nodes and the times of their last use -> the order of eviction.
//!
//! Knows nothing of pins or the forest's shape; the registry checks those when a node comes up.

use std::cmp::Reverse;
use std::collections::BinaryHeap;

use super::forest::NodeKey;

/// Least recently used first. Times may be outdated: whoever pops compares with the node's own.
#[derive(Debug, Default)]
pub(crate) struct EvictionQueue {
    heap: BinaryHeap<Reverse<(u64, NodeKey)>>,
}

impl EvictionQueue {
    pub(crate) fn push(&mut self, used: u64, key: NodeKey) {
        self.heap.push(Reverse((used, key)));
    }

    pub(crate) fn pop(&mut self) -> Option<(u64, NodeKey)> {
        self.heap.pop().map(|Reverse(entry)| entry)
    }

    pub(crate) fn len(&self) -> usize {
        self.heap.len()
    }

    pub(crate) fn retain(&mut self, keep: impl Fn(NodeKey) -> bool) {
        self.heap.retain(|Reverse((_, key))| keep(*key));
    }
}
