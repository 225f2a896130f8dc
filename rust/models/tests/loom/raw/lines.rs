//! As the crate's `lines`, without its allocation tricks: loom's atomics are made one by one.

use super::sync::AtomicU64;

const WORDS: usize = 8;

#[derive(Debug)]
pub(crate) struct Lines(Vec<AtomicU64>);

impl Lines {
    pub(crate) fn zeroed(count: usize) -> Self {
        Self((0..count * WORDS).map(|_| AtomicU64::new(0)).collect())
    }

    pub(crate) fn len(&self) -> usize {
        self.0.len() / WORDS
    }

    pub(crate) fn word(&self, line: usize, word: usize) -> &AtomicU64 {
        &self.0[line * WORDS + word]
    }

    pub(crate) fn prefetch(&self, _: usize) {}
}
