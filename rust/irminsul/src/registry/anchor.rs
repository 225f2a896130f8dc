//! What the index holds of a run, kept with the run so that it can be removed.
//!
//! Knows nothing of how either is found.

/// A chunk that ends in a run.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Anchor {
    pub(crate) end: u32,
    pub(crate) fingerprint: u64,
    pub(crate) kind: AnchorKind,
}

/// What ended the chunk of an anchor.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum AnchorKind {
    Content,
    Marker,
    /// The run's end: no cut, so a child continues this chunk.
    Tail,
}

/// A sampled window that ends in a run.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct RunWindow {
    pub(crate) end: u32,
    pub(crate) key: u32,
}

/// The items that end inside `(from, to]`; `end` tells where.
pub(crate) fn ends_in<T>(items: &[T], from: u32, to: u32, end: impl Fn(&T) -> u32) -> &[T] {
    let at = |offset| items.partition_point(|item| end(item) <= offset);
    &items[at(from)..at(to)]
}
