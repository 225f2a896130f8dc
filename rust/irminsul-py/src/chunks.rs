//! `irminsul.Chunks` and `irminsul.chunk`: the chunks of one token sequence.
//!
//! Knows nothing of the cut rule.

use pyo3::exceptions::PyIndexError;
use pyo3::prelude::*;
use pyo3::sync::PyOnceLock;
use pyo3::types::{PyBytes, PyIterator, PyTuple};

use crate::chunk::Chunk;
use crate::chunk_params::ChunkParams;
use crate::failure::Failure;
use crate::tokens::{detached, token_ids};

/// Chunk bounds and fingerprints.
#[pyclass(frozen, sequence, module = "irminsul", name = "Chunks")]
pub(crate) struct Chunks {
    core: irminsul::Chunks,
    bounds: PyOnceLock<Py<PyAny>>,
    fingerprints: PyOnceLock<Py<PyAny>>,
}

#[pymethods]
impl Chunks {
    #[getter]
    fn bounds<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyAny>> {
        let bytes = || {
            self.core
                .bounds()
                .iter()
                .flat_map(|&at| (at as i64).to_ne_bytes())
                .collect()
        };
        array(py, &self.bounds, "int64", bytes)
    }

    #[getter]
    fn fingerprints<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyAny>> {
        let bytes = || {
            self.core
                .fingerprints()
                .iter()
                .flat_map(|f| f.to_ne_bytes())
                .collect()
        };
        array(py, &self.fingerprints, "uint64", bytes)
    }

    fn __len__(&self) -> usize {
        self.core.len()
    }

    fn __getitem__(&self, index: isize) -> PyResult<Chunk> {
        let len = self.core.len();
        let at = if index < 0 {
            index + len as isize
        } else {
            index
        };
        let chunk = usize::try_from(at).ok().and_then(|at| self.core.get(at));
        chunk
            .map(Chunk::from)
            .ok_or_else(|| PyIndexError::new_err(format!("chunk {index} of {len}")))
    }

    fn __iter__<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyIterator>> {
        let chunks: Vec<Chunk> = self.core.iter().map(Chunk::from).collect();
        PyTuple::new(py, chunks)?.try_iter()
    }

    fn __repr__(&self) -> String {
        let tokens = self.core.bounds().last().copied().unwrap_or(0);
        format!("Chunks({} chunks of {tokens} tokens)", self.core.len())
    }
}

/// A read-only numpy array, made on first use and then kept.
fn array<'py>(
    py: Python<'py>,
    cell: &PyOnceLock<Py<PyAny>>,
    dtype: &str,
    bytes: impl FnOnce() -> Vec<u8>,
) -> PyResult<Bound<'py, PyAny>> {
    let make = || {
        let data = PyBytes::new(py, &bytes());
        let array = PyModule::import(py, "numpy")?.call_method1("frombuffer", (data, dtype))?;
        Ok::<_, PyErr>(array.unbind())
    };
    Ok(cell.get_or_try_init(py, make)?.bind(py).clone())
}

/// Cuts token ids into chunks and fingerprints each.
#[pyfunction]
#[pyo3(signature = (tokens, params=None), text_signature = "(tokens, params=None)")]
pub(crate) fn chunk(
    tokens: &Bound<'_, PyAny>,
    params: Option<PyRef<'_, ChunkParams>>,
) -> Result<Chunks, Failure> {
    let ids = token_ids(tokens)?;
    let params = params.map_or_else(irminsul::ChunkParams::default, |params| params.0);
    let core = detached(tokens.py(), ids.len(), || irminsul::chunk(&ids, &params));
    Ok(Chunks {
        core,
        bounds: PyOnceLock::new(),
        fingerprints: PyOnceLock::new(),
    })
}
