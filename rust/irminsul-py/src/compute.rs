//! `irminsul.Compute`: prompt positions that the engine computes.
//!
//! Knows nothing of why nothing was found for them.

use pyo3::prelude::*;

/// The prompt positions [start, end), which the engine computes.
///
/// Attributes
/// ----------
/// start, end : int
///     First position, and one past the last.
#[pyclass(frozen, eq, hash, get_all, module = "irminsul", name = "Compute")]
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) struct Compute {
    start: usize,
    end: usize,
}

impl From<&irminsul::Compute> for Compute {
    fn from(compute: &irminsul::Compute) -> Self {
        Self {
            start: compute.start,
            end: compute.end,
        }
    }
}

#[pymethods]
impl Compute {
    #[classattr]
    fn __match_args__() -> (&'static str, &'static str) {
        ("start", "end")
    }

    fn __repr__(&self) -> String {
        format!("Compute(start={}, end={})", self.start, self.end)
    }
}
