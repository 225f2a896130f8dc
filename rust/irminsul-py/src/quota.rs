//! `irminsul.Quota`: what one tenant may take.
//!
//! Knows nothing of how it is counted.

use pyo3::prelude::*;
use pyo3::types::PyType;

use crate::failure::Failure;
use crate::numbers::unsigned;

/// Limits for one tenant of a registry; None is no limit.
///
/// A tenant is the field of that name of a Namespace; all its namespaces count together. When an
/// insertion would go over `entries` or `tokens`, the tenant's own least recently used nodes are evicted,
/// and nobody else's.
///
/// Parameters
/// ----------
/// entries : int or None
///     Nodes, chunks and windows held.
/// tokens : int or None
///     Tokens held in memory.
/// pins : int or None
///     Insertions that plans keep from being evicted, counted once for each plan.
///
/// Raises
/// ------
/// InvalidParams
///     A number is negative or too large.
#[pyclass(frozen, eq, hash, module = "irminsul", name = "Quota")]
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Hash)]
pub(crate) struct Quota(pub(crate) irminsul::Quota);

type Limit<'a, 'py> = Option<&'a Bound<'py, PyAny>>;
type Args = (Option<usize>, Option<usize>, Option<usize>);

#[pymethods]
impl Quota {
    #[new]
    #[pyo3(
        signature = (entries=None, tokens=None, pins=None),
        text_signature = "(entries=None, tokens=None, pins=None)"
    )]
    fn new(
        entries: Limit<'_, '_>,
        tokens: Limit<'_, '_>,
        pins: Limit<'_, '_>,
    ) -> Result<Self, Failure> {
        let limit = |name, limit: Limit<'_, '_>| {
            limit
                .map(|limit| unsigned(name, limit, "0 to 2**64 - 1"))
                .transpose()
        };
        Ok(Self(irminsul::Quota {
            entries: limit("entries", entries)?,
            tokens: limit("tokens", tokens)?,
            pins: limit("pins", pins)?,
        }))
    }

    #[getter]
    fn entries(&self) -> Option<usize> {
        self.0.entries
    }

    #[getter]
    fn tokens(&self) -> Option<usize> {
        self.0.tokens
    }

    #[getter]
    fn pins(&self) -> Option<usize> {
        self.0.pins
    }

    fn __reduce__<'py>(&self, py: Python<'py>) -> (Bound<'py, PyType>, Args) {
        let args = (self.0.entries, self.0.tokens, self.0.pins);
        (py.get_type::<Self>(), args)
    }

    fn __repr__(&self) -> String {
        let limit = |limit: Option<usize>| limit.map_or("None".to_owned(), |l| l.to_string());
        format!(
            "Quota(entries={}, tokens={}, pins={})",
            limit(self.0.entries),
            limit(self.0.tokens),
            limit(self.0.pins)
        )
    }
}
