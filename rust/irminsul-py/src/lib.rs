//! Python objects -> the irminsul crate and back. The only crate that knows PyO3; no algorithm lives here.

// Doc comments here become Python docstrings, with Python's lists in their examples.
#![allow(clippy::doc_link_with_quotes)]
#![deny(unsafe_code)]

mod chunk;
mod chunk_params;
mod chunks;
mod compute;
mod failure;
mod fork;
mod namespace;
mod numbers;
mod once;
mod piece;
mod policy;
mod quota;
#[allow(unsafe_code)]
mod raw;
mod registry;
mod reuse;
mod reuse_plan;
mod scratch;
mod tokens;
mod wide;

use pyo3::prelude::*;

/// The module `irminsul._core`.
#[pymodule]
fn _core(module: &Bound<'_, PyModule>) -> PyResult<()> {
    module.add("__version__", env!("CARGO_PKG_VERSION"))?;
    module.add_class::<chunk_params::ChunkParams>()?;
    module.add_class::<chunk::Chunk>()?;
    module.add_class::<chunks::Chunks>()?;
    module.add_class::<namespace::Namespace>()?;
    module.add_class::<policy::Policy>()?;
    module.add_class::<quota::Quota>()?;
    module.add_class::<registry::Registry>()?;
    module.add_class::<reuse_plan::ReusePlan>()?;
    module.add_class::<reuse::Reuse>()?;
    module.add_class::<compute::Compute>()?;
    module.add_class::<piece::Piece>()?;
    module.add_function(wrap_pyfunction!(chunks::chunk, module)?)?;
    module.add_function(wrap_pyfunction!(chunks::chunk_many, module)?)?;
    // Not a name that the module exports.
    module.setattr("_panic", wrap_pyfunction!(failure::_panic, module)?)?;
    fork::register(module)?;
    Ok(())
}
