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
use crate::numbers::unsigned;
use crate::once::get_or_make;
use crate::tokens::{chunk_array, detached, token_ids};

/// The chunks of one token sequence, in order; they tile it.
///
/// A sequence of :class:`Chunk`, and two arrays for work in bulk.
///
/// Attributes
/// ----------
/// bounds : numpy.ndarray, int64 [n + 1]
///     Chunk ``i`` is the tokens ``[bounds[i], bounds[i + 1])``; starts with 0, ends with the number of
///     tokens. Read-only.
/// fingerprints : numpy.ndarray, uint64 [n]
///     One fingerprint per chunk. Read-only.
#[pyclass(frozen, sequence, module = "irminsul", name = "Chunks")]
pub(crate) struct Chunks {
    core: irminsul::Chunks,
    bounds: PyOnceLock<Py<PyAny>>,
    fingerprints: PyOnceLock<Py<PyAny>>,
}

impl From<irminsul::Chunks> for Chunks {
    fn from(core: irminsul::Chunks) -> Self {
        Self {
            core,
            bounds: PyOnceLock::new(),
            fingerprints: PyOnceLock::new(),
        }
    }
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
    Ok(get_or_make(cell, py, make)?.bind(py).clone())
}

/// Cut token ids into content-defined chunks and fingerprint each.
///
/// A chunk ends after a token where the rolling hash of the last 64 ids falls below a threshold, so
/// the same text is cut the same way wherever it stands.
///
/// Parameters
/// ----------
/// tokens : sequence, 1-D integer array or CPU tensor of ids in [0, 2**32)
///     numpy arrays, ``array.array``, memoryviews and CPU tensors of 16, 32 or 64 bit integers are
///     fast; lists, tuples and ranges work. Strided arrays are copied.
/// params : ChunkParams, optional
///     Chunk sizes; ``ChunkParams()`` by default.
///
/// Returns
/// -------
/// Chunks
///     Bounds and fingerprints.
///
/// Raises
/// ------
/// InvalidTokens
///     An id is negative, too large or no integer, or the object is not one-dimensional.
///
/// Notes
/// -----
/// Gear hash with 64-bit state, ``h = (h << 1) + mix(id)``; a cut where ``h < 2**64 / (avg - min)``
/// and the chunk has ``min`` tokens, where ``h < 2**24`` (boundary markers) whatever its length, and
/// at ``max``. The interpreter lock is released above 8,192 tokens.
///
/// Examples
/// --------
/// >>> import irminsul
/// >>> chunks = irminsul.chunk(range(1000))
/// >>> int(chunks.bounds[0]), int(chunks.bounds[-1])
/// (0, 1000)
/// >>> all(64 <= len(chunk) <= 512 for chunk in list(chunks)[:-1])
/// True
#[pyfunction]
#[pyo3(signature = (tokens, params=None), text_signature = "(tokens, params=None)")]
pub(crate) fn chunk(
    tokens: &Bound<'_, PyAny>,
    params: Option<PyRef<'_, ChunkParams>>,
) -> Result<Chunks, Failure> {
    let params = params.map_or_else(irminsul::ChunkParams::default, |params| params.0);
    if let Some(chunks) = chunk_array(tokens, &params) {
        return chunks.map(Chunks::from);
    }
    let ids = token_ids(tokens)?;
    let core = detached(tokens.py(), ids.len(), || irminsul::chunk(&ids, &params))?;
    Ok(Chunks::from(core))
}

/// Cut several token sequences, with one release of the interpreter lock for all of them.
///
/// Parameters
/// ----------
/// prompts : sequence of token sequences, or one flat token sequence with `offsets`
///     Each as :func:`chunk` takes it.
/// params : ChunkParams, optional
///     Chunk sizes; ``ChunkParams()`` by default.
/// offsets : 1-D array of int64 [k + 1] or sequence of int, optional
///     Ragged form: `prompts` is flat, and sequence ``i`` is ``prompts[offsets[i]:offsets[i + 1]]``.
///     Starts with 0, never falls, and ends with the number of tokens.
///
/// Returns
/// -------
/// list of Chunks
///     One for each sequence, in order.
///
/// Raises
/// ------
/// InvalidTokens
///     Some ids cannot be used.
/// InvalidParams
///     The offsets do not divide the tokens.
///
/// Examples
/// --------
/// >>> import irminsul
/// >>> [len(chunks) for chunks in irminsul.chunk_many([[1, 2, 3], [], [4]])]
/// [1, 0, 1]
/// >>> [len(chunks) for chunks in irminsul.chunk_many([1, 2, 3, 4], offsets=[0, 3, 3, 4])]
/// [1, 0, 1]
#[pyfunction]
#[pyo3(
    signature = (prompts, params=None, *, offsets=None),
    text_signature = "(prompts, params=None, *, offsets=None)"
)]
pub(crate) fn chunk_many(
    prompts: &Bound<'_, PyAny>,
    params: Option<PyRef<'_, ChunkParams>>,
    offsets: Option<&Bound<'_, PyAny>>,
) -> Result<Vec<Chunks>, Failure> {
    let params = params.map_or_else(irminsul::ChunkParams::default, |params| params.0);
    let mut many = Vec::new();
    let ends = if let Some(offsets) = offsets {
        many.push(token_ids(prompts)?);
        checked_offsets(offsets, many[0].len())?
    } else {
        for prompt in prompts.try_iter()? {
            many.push(token_ids(&prompt?)?);
        }
        Vec::new()
    };
    let total = many.iter().map(|tokens| tokens.len()).sum();
    let texts: Vec<&[u32]> = if ends.is_empty() {
        many.iter().map(|tokens| &tokens[..]).collect()
    } else {
        ends.windows(2)
            .map(|pair| &many[0][pair[0]..pair[1]])
            .collect()
    };
    let work = || {
        texts
            .iter()
            .map(|text| irminsul::chunk(text, &params))
            .collect::<Vec<_>>()
    };
    Ok(detached(prompts.py(), total, work)?
        .into_iter()
        .map(Chunks::from)
        .collect())
}

/// Offsets that start at 0, never fall, and end at `len`.
fn checked_offsets(offsets: &Bound<'_, PyAny>, len: usize) -> Result<Vec<usize>, Failure> {
    let mut ends = Vec::new();
    for offset in offsets.try_iter()? {
        let offset: usize = unsigned("an offset", &offset?, "0 to the number of tokens")?;
        let previous = ends.last().copied();
        if offset > len || previous.map_or(offset != 0, |previous| offset < previous) {
            let allowed = "0 first, then never falling, up to the number of tokens";
            return Err(Failure::Number {
                name: "an offset",
                value: offset.to_string(),
                allowed,
            });
        }
        ends.push(offset);
    }
    if ends.last() != Some(&len) {
        let value = ends.last().map_or("missing".to_owned(), usize::to_string);
        let allowed = "the number of tokens";
        return Err(Failure::Number {
            name: "the last offset",
            value,
            allowed,
        });
    }
    Ok(ends)
}
