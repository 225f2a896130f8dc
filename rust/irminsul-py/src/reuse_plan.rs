//! `irminsul.ReusePlan`: what to do for each prompt position.
//!
//! Knows nothing of the engine; it hands the core's segments over as Python objects.

use std::sync::{Mutex, MutexGuard, PoisonError};

use pyo3::prelude::*;
use pyo3::types::PyTuple;

use crate::compute::Compute;
use crate::failure::{Failure, caught};
use crate::reuse::Reuse;

/// What to do for each prompt position behind the exact prefix.
///
/// While a plan is alive and not released, the nodes it reuses are not evicted for room; the host may
/// still remove them, which :meth:`revalidate` finds. Use it as a context manager, or call
/// :meth:`release`.
#[pyclass(frozen, module = "irminsul", name = "ReusePlan")]
#[derive(Debug)]
pub(crate) struct ReusePlan(Mutex<irminsul::ReusePlan>);

impl ReusePlan {
    pub(crate) fn new(core: irminsul::ReusePlan) -> Self {
        Self(Mutex::new(core))
    }

    // Never held while Python code may run: that could come back here and wait for itself.
    fn core(&self) -> MutexGuard<'_, irminsul::ReusePlan> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[pymethods]
impl ReusePlan {
    /// Segments in order, tuple of Reuse and Compute; they tile [prefix_len, n).
    #[getter]
    fn segments<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyTuple>> {
        let segments = self.core().segments().to_vec();
        let mut objects = Vec::with_capacity(segments.len());
        for segment in &segments {
            objects.push(match segment {
                irminsul::Segment::Reuse(reuse) => Bound::new(py, Reuse::from(reuse))?.into_any(),
                irminsul::Segment::Compute(compute) => {
                    Bound::new(py, Compute::from(compute))?.into_any()
                }
            });
        }
        PyTuple::new(py, objects)
    }

    /// Number of positions whose rows are reused.
    #[getter]
    fn reused_tokens(&self) -> usize {
        self.core().reused_tokens()
    }

    /// Number of positions that the engine computes, without the exact prefix.
    #[getter]
    fn computed_tokens(&self) -> usize {
        self.core().computed_tokens()
    }

    /// Compare the plan with the registry as it is now.
    ///
    /// Positions whose nodes were removed become Compute, and pieces follow splits. Call it after the
    /// engine's own allocation, which may have evicted donors.
    ///
    /// Returns
    /// -------
    /// bool
    ///     True when no segment changed.
    fn revalidate(&self) -> Result<bool, Failure> {
        caught(|| self.core().revalidate())
    }

    /// Let the nodes be evicted. The segments stay readable.
    fn release(&self) -> Result<(), Failure> {
        caught(|| self.core().release())
    }

    fn __enter__(slf: PyRef<'_, Self>) -> PyRef<'_, Self> {
        slf
    }

    #[pyo3(signature = (*_exception))]
    fn __exit__(&self, _exception: &Bound<'_, PyTuple>) -> Result<(), Failure> {
        self.release()
    }

    fn __repr__(&self) -> String {
        let plan = self.core();
        format!(
            "ReusePlan({} segments, {} tokens reused, {} computed)",
            plan.segments().len(),
            plan.reused_tokens(),
            plan.computed_tokens()
        )
    }
}
