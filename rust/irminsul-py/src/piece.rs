//! `irminsul.Piece`: consecutive rows of one node.
//!
//! Knows nothing of the span it belongs to.

use pyo3::prelude::*;

/// Consecutive rows of one node.
///
/// Attributes
/// ----------
/// node : int
///     The id that the host gave.
/// offset : int
///     First token inside the node as it was when the plan was made or last revalidated.
/// length : int
///     Number of tokens.
#[pyclass(frozen, eq, hash, get_all, module = "irminsul", name = "Piece")]
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) struct Piece {
    node: u64,
    offset: usize,
    length: usize,
}

impl From<&irminsul::Piece> for Piece {
    fn from(piece: &irminsul::Piece) -> Self {
        Self {
            node: piece.node,
            offset: piece.offset,
            length: piece.length,
        }
    }
}

#[pymethods]
impl Piece {
    #[classattr]
    fn __match_args__() -> (&'static str, &'static str, &'static str) {
        ("node", "offset", "length")
    }

    fn __repr__(&self) -> String {
        format!(
            "Piece(node={}, offset={}, length={})",
            self.node, self.offset, self.length
        )
    }
}
