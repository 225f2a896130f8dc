//! What one tenant may take of a registry.
//!
//! Knows nothing of how it is counted.

/// Limits for one tenant; `None` is no limit.
///
/// A tenant is the field of that name of a [`crate::Namespace`]; all its namespaces count together.
///
/// ```
/// let quota = irminsul::Quota { tokens: Some(1_000_000), ..Default::default() };
/// assert_eq!(quota.pins, None);
/// ```
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Hash)]
pub struct Quota {
    /// Nodes, chunks and windows held.
    pub entries: Option<usize>,
    /// Tokens held in memory.
    pub tokens: Option<usize>,
    /// Insertions that plans keep from being evicted, counted once for each plan.
    pub pins: Option<usize>,
}

/// What one tenant holds now.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Usage {
    /// Live nodes.
    pub nodes: usize,
    /// Nodes, chunks and windows held.
    pub entries: usize,
    /// Tokens held in memory.
    pub tokens: usize,
    /// Insertions that plans keep from being evicted, counted once for each plan.
    pub pins: usize,
}
