//! Python objects -> the irminsul crate and back. The only crate that knows PyO3; no algorithm lives here.

use pyo3::prelude::*;

/// The module `irminsul._core`.
#[pymodule]
fn _core(module: &Bound<'_, PyModule>) -> PyResult<()> {
    module.add("__version__", env!("CARGO_PKG_VERSION"))?;
    Ok(())
}
