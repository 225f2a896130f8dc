//! `irminsul.Reuse`: prompt positions whose rows are relocated.
//!
//! Knows nothing of how they were found.

use pyo3::prelude::*;
use pyo3::types::PyTuple;

use crate::piece::Piece;

/// Prompt positions whose rows are copied from recorded ones and rotated.
///
/// Attributes
/// ----------
/// target : int
///     First prompt position.
/// length : int
///     Number of positions.
/// source : int
///     Position at which the first row was computed.
/// delta : int
///     Rotation that the rows need, in positions: ``target - source``.
/// hops : int
///     Most rotations that any of the rows has been through already.
/// depth : int
///     Largest approximation depth of any of the rows; 0 when all were computed over exact context.
/// pieces : tuple of Piece
///     Where the rows lie; concatenated they are the span.
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
