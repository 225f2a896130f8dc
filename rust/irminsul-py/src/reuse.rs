//! `irminsul.Reuse`: prompt positions whose rows are relocated.
//!
//! Knows nothing of how they were found.

use pyo3::prelude::*;
use pyo3::types::PyTuple;

use crate::piece::Piece;

/// `length` rows from `target` on, computed at `source` and after.
#[pyclass(frozen, eq, hash, module = "irminsul", name = "Reuse")]
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(crate) struct Reuse(irminsul::Reuse);

impl From<&irminsul::Reuse> for Reuse {
    fn from(reuse: &irminsul::Reuse) -> Self {
        Self(reuse.clone())
    }
}

#[pymethods]
impl Reuse {
    #[classattr]
    fn __match_args__() -> (&'static str, &'static str, &'static str, &'static str) {
        ("target", "length", "source", "pieces")
    }

    #[getter]
    fn target(&self) -> usize {
        self.0.target
    }

    #[getter]
    fn length(&self) -> usize {
        self.0.length
    }

    #[getter]
    fn source(&self) -> u64 {
        self.0.source
    }

    #[getter]
    fn delta(&self) -> i64 {
        self.0.delta()
    }

    #[getter]
    fn hops(&self) -> u32 {
        self.0.hops
    }

    #[getter]
    fn depth(&self) -> u32 {
        self.0.depth
    }

    #[getter]
    fn pieces<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyTuple>> {
        let pieces: Vec<Piece> = self.0.pieces.iter().map(Piece::from).collect();
        PyTuple::new(py, pieces)
    }

    fn __repr__(&self) -> String {
        let irminsul::Reuse {
            target,
            length,
            source,
            hops,
            depth,
            ..
        } = self.0;
        format!(
            "Reuse(target={target}, length={length}, source={source}, delta={}, hops={hops}, depth={depth}, \
             pieces={})",
            self.delta(),
            self.0.pieces.len()
        )
    }
}
