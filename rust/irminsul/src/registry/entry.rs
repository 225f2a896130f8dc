//! What a host says of a node, and what a registry says of itself.
//!
//! Knows nothing of how either is kept.

use crate::namespace::Namespace;

/// Tokens to record, with everything the host knows about them.
#[derive(Debug, Clone, Copy)]
pub struct Entry<'a> {
    /// The host's id of this node.
    pub node: u64,
    /// The host's id of the node that this one continues.
    pub parent: Option<u64>,
    /// Token ids of this node alone, without its ancestors'.
    pub tokens: &'a [u32],
    /// What may share these rows.
    pub namespace: &'a Namespace,
    /// Position at which the row of the first token was computed.
    pub base_position: u64,
    /// Rotations that the rows have been through.
    pub hops: u32,
    /// Approximation depth; 0 for rows computed over exact context.
    pub depth: u32,
}

impl<'a> Entry<'a> {
    /// A node without parent, at position 0, computed exactly.
    pub fn root(node: u64, tokens: &'a [u32], namespace: &'a Namespace) -> Self {
        Self {
            node,
            parent: None,
            tokens,
            namespace,
            base_position: 0,
            hops: 0,
            depth: 0,
        }
    }
}

/// Counts of what a registry holds and has done.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Stats {
    /// Live nodes.
    pub nodes: usize,
    /// Insertions of which something lives.
    pub runs: usize,
    /// Tokens of live nodes.
    pub tokens: usize,
    /// Tokens held in memory; bounded by the capacity.
    pub resident_tokens: usize,
    /// The bound.
    pub capacity_tokens: usize,
    /// Fingerprints with a donor.
    pub fingerprints: usize,
    /// Donors.
    pub donors: usize,
    /// Donors of sampled windows.
    pub windows: usize,
    /// Namespaces with a live node.
    pub namespaces: usize,
    /// Nodes evicted for room so far.
    pub evicted_nodes: u64,
    /// Lookups so far.
    pub lookups: u64,
    /// Tokens that those lookups planned to reuse.
    pub reused_tokens: u64,
    /// Tokens that those lookups left to be computed.
    pub computed_tokens: u64,
}
