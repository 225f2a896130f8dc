//! `irminsul.Chunk`: one chunk.
//!
//! Knows nothing of how it was cut.

use pyo3::prelude::*;

/// The tokens [start, end) and their fingerprint.
///
/// Attributes
/// ----------
/// start, end : int
///     First token, and one past the last.
/// fingerprint : int
///     xxHash64 (seed 0) of the ids as little-endian 32-bit words. An index, never a proof of equality.
#[pyclass(frozen, eq, hash, get_all, module = "irminsul", name = "Chunk")]
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) struct Chunk {
    start: usize,
    end: usize,
    fingerprint: u64,
}

impl From<irminsul::Chunk> for Chunk {
    fn from(chunk: irminsul::Chunk) -> Self {
        Self {
            start: chunk.start,
            end: chunk.end,
            fingerprint: chunk.fingerprint,
        }
    }
}

#[pymethods]
impl Chunk {
    #[classattr]
    fn __match_args__() -> (&'static str, &'static str, &'static str) {
        ("start", "end", "fingerprint")
    }

    fn __len__(&self) -> usize {
        self.end - self.start
    }

    fn __repr__(&self) -> String {
        format!(
            "Chunk(start={}, end={}, fingerprint={:#018x})",
            self.start, self.end, self.fingerprint
        )
    }
}
