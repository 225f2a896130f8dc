//! A value that is made on first use -> the same one from then on, without a thread that waits for another.
//!
//! Knows nothing of what is made. `PyOnceLock` fills a cell itself only after it has let go of the interpreter
//! while the cell counts as being filled: a process that is forked at that moment would have a cell that
//! nobody fills, and wait for it.

use pyo3::prelude::*;
use pyo3::sync::PyOnceLock;

/// What stands in `cell`, or what `make` gives, which then stands there unless another thread has been faster.
pub(crate) fn get_or_make<'a, T, E>(
    cell: &'a PyOnceLock<T>,
    py: Python<'_>,
    make: impl FnOnce() -> Result<T, E>,
) -> Result<&'a T, E> {
    if cell.get(py).is_none() {
        let _late = cell.set(py, make()?);
    }
    Ok(cell.get(py).expect("a cell that was filled stays filled"))
}
