//! `os.fork` -> calls of what the crate wants to be told before and after.
//!
//! Knows nothing of registries.

use irminsul::fork;
use pyo3::prelude::*;
use pyo3::types::PyDict;

#[pyfunction]
fn hold() {
    fork::hold();
}

#[pyfunction]
fn go_on() {
    fork::go_on();
}

#[pyfunction]
fn start_over() {
    fork::start_over();
}

/// Registers them, where there are forks.
pub(crate) fn register(module: &Bound<'_, PyModule>) -> PyResult<()> {
    let os = module.py().import("os")?;
    if !os.hasattr("register_at_fork")? {
        return Ok(());
    }
    let calls = PyDict::new(module.py());
    calls.set_item("before", wrap_pyfunction!(hold, module)?)?;
    calls.set_item("after_in_parent", wrap_pyfunction!(go_on, module)?)?;
    calls.set_item("after_in_child", wrap_pyfunction!(start_over, module)?)?;
    os.call_method("register_at_fork", (), Some(&calls))?;
    Ok(())
}
