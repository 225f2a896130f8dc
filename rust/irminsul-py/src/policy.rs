//! `irminsul.Policy`: limits on reuse.
//!
//! Knows nothing of plans.

use pyo3::prelude::*;
use pyo3::types::PyType;

use crate::failure::Failure;
use crate::numbers::unsigned_or;

/// Limits that every plan of a registry keeps.
///
/// Parameters
/// ----------
/// sink_tokens : int
///     Positions below this are always computed, and rows computed below it never move.
/// min_span : int
///     Shorter spans are computed instead, in tokens.
/// recompute_head : int
///     Tokens at the head of every span that are computed again.
/// max_hops, max_depth : int
///     Most rotations, and largest approximation depth, of rows that may still be reused.
/// max_segments : int
///     Most reused spans in one plan; the longest are kept.
/// windows : bool
///     Whether gaps between matched chunks are searched for shorter repeated text.
/// span_cost : int
///     What one more span costs, as tokens of prefill: its share of the copy, one more hole.
/// min_gain : int
///     Least tokens of prefill that a plan must save after ``span_cost``.
///
/// Raises
/// ------
/// InvalidParams
///     A number is negative, too large, or 0 for ``min_span`` or ``max_segments``.
#[pyclass(frozen, eq, hash, module = "irminsul", name = "Policy")]
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Hash)]
pub(crate) struct Policy(pub(crate) irminsul::Policy);

type Args = (u32, u32, u32, u32, u32, u32, bool, u32, u32);
type Number<'a, 'py> = Option<&'a Bound<'py, PyAny>>;

#[pymethods]
impl Policy {
    #[new]
    #[pyo3(
        signature = (sink_tokens=None, min_span=None, recompute_head=None, max_hops=None, max_depth=None, max_segments=None, windows=true, span_cost=None, min_gain=None),
        text_signature = "(sink_tokens=32, min_span=32, recompute_head=0, max_hops=16, max_depth=64, max_segments=256, windows=True, span_cost=8, min_gain=16)"
    )]
    #[allow(clippy::too_many_arguments)] // One for each keyword of the Python signature.
    fn new(
        sink_tokens: Number<'_, '_>,
        min_span: Number<'_, '_>,
        recompute_head: Number<'_, '_>,
        max_hops: Number<'_, '_>,
        max_depth: Number<'_, '_>,
        max_segments: Number<'_, '_>,
        windows: bool,
        span_cost: Number<'_, '_>,
        min_gain: Number<'_, '_>,
    ) -> Result<Self, Failure> {
        let default = irminsul::Policy::default();
        let policy = irminsul::Policy {
            sink_tokens: unsigned_or("sink_tokens", sink_tokens, default.sink_tokens)?,
            min_span: unsigned_or("min_span", min_span, default.min_span)?,
            recompute_head: unsigned_or("recompute_head", recompute_head, default.recompute_head)?,
            max_hops: unsigned_or("max_hops", max_hops, default.max_hops)?,
            max_depth: unsigned_or("max_depth", max_depth, default.max_depth)?,
            max_segments: unsigned_or("max_segments", max_segments, default.max_segments)?,
            windows,
            span_cost: unsigned_or("span_cost", span_cost, default.span_cost)?,
            min_gain: unsigned_or("min_gain", min_gain, default.min_gain)?,
        };
        policy.validate()?;
        Ok(Self(policy))
    }

    #[getter]
    fn sink_tokens(&self) -> u32 {
        self.0.sink_tokens
    }

    #[getter]
    fn min_span(&self) -> u32 {
        self.0.min_span
    }

    #[getter]
    fn recompute_head(&self) -> u32 {
        self.0.recompute_head
    }

    #[getter]
    fn max_hops(&self) -> u32 {
        self.0.max_hops
    }

    #[getter]
    fn max_depth(&self) -> u32 {
        self.0.max_depth
    }

    #[getter]
    fn max_segments(&self) -> u32 {
        self.0.max_segments
    }

    #[getter]
    fn windows(&self) -> bool {
        self.0.windows
    }

    #[getter]
    fn span_cost(&self) -> u32 {
        self.0.span_cost
    }

    #[getter]
    fn min_gain(&self) -> u32 {
        self.0.min_gain
    }

    fn __reduce__<'py>(&self, py: Python<'py>) -> (Bound<'py, PyType>, Args) {
        let p = &self.0;
        let args = (
            p.sink_tokens,
            p.min_span,
            p.recompute_head,
            p.max_hops,
            p.max_depth,
            p.max_segments,
            p.windows,
            p.span_cost,
            p.min_gain,
        );
        (py.get_type::<Self>(), args)
    }

    fn __repr__(&self) -> String {
        let p = &self.0;
        let windows = if p.windows { "True" } else { "False" };
        format!(
            "Policy(sink_tokens={}, min_span={}, recompute_head={}, max_hops={}, max_depth={}, \
             max_segments={}, windows={windows}, span_cost={}, min_gain={})",
            p.sink_tokens,
            p.min_span,
            p.recompute_head,
            p.max_hops,
            p.max_depth,
            p.max_segments,
            p.span_cost,
            p.min_gain
        )
    }
}
