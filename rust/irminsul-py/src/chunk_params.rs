//! `irminsul.ChunkParams`: chunk sizes.
//!
//! Knows nothing of chunking.

use pyo3::prelude::*;
use pyo3::types::PyType;

use crate::failure::Failure;
use crate::numbers::unsigned;

const U32: &str = "0 to 2**32 - 1";

/// How token ids are cut into chunks.
///
/// Text cut under different parameters never matches, so one set serves a whole deployment.
///
/// Parameters
/// ----------
/// min : int
///     Shortest chunk in tokens, at least 64 (the window of the rolling hash). Boundary markers cut
///     below it too, and the last chunk may be shorter.
/// avg : int
///     Length in tokens that the cut threshold ``2**64 / (avg - min)`` aims at; at least ``min + 2``.
/// max : int
///     Longest chunk in tokens; at least ``avg``, at most 2**20.
/// secret : int
///     Value in [0, 2**32) that is XORed into every id before hashing, so that clients cannot craft
///     prompts of shortest chunks. Keep it the same on every server that shares a registry.
///
/// Raises
/// ------
/// InvalidParams
///     A size is out of range; the message names it.
///
/// Examples
/// --------
/// >>> import irminsul
/// >>> irminsul.ChunkParams()
/// ChunkParams(min=64, avg=128, max=512)
#[pyclass(frozen, eq, hash, module = "irminsul", name = "ChunkParams")]
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Hash)]
pub(crate) struct ChunkParams(pub(crate) irminsul::ChunkParams);

type Args = (u32, u32, u32, u32);

#[pymethods]
impl ChunkParams {
    #[new]
    #[pyo3(signature = (min=None, avg=None, max=None, secret=None), text_signature = "(min=64, avg=128, max=512, secret=0)")]
    fn new(
        min: Option<&Bound<'_, PyAny>>,
        avg: Option<&Bound<'_, PyAny>>,
        max: Option<&Bound<'_, PyAny>>,
        secret: Option<&Bound<'_, PyAny>>,
    ) -> Result<Self, Failure> {
        let default = irminsul::ChunkParams::default();
        let read = |name, value: Option<&Bound<'_, PyAny>>, default| match value {
            Some(value) => unsigned(name, value, U32),
            None => Ok(default),
        };
        Ok(Self(irminsul::ChunkParams::new(
            read("min", min, default.min())?,
            read("avg", avg, default.avg())?,
            read("max", max, default.max())?,
            read("secret", secret, default.secret())?,
        )?))
    }

    #[getter]
    fn min(&self) -> u32 {
        self.0.min()
    }

    #[getter]
    fn avg(&self) -> u32 {
        self.0.avg()
    }

    #[getter]
    fn max(&self) -> u32 {
        self.0.max()
    }

    #[getter]
    fn secret(&self) -> u32 {
        self.0.secret()
    }

    fn __reduce__<'py>(&self, py: Python<'py>) -> (Bound<'py, PyType>, Args) {
        (
            py.get_type::<Self>(),
            (self.min(), self.avg(), self.max(), self.secret()),
        )
    }

    // The secret stays out of logs.
    fn __repr__(&self) -> String {
        let secret = if self.secret() == 0 {
            ""
        } else {
            ", secret=..."
        };
        format!(
            "ChunkParams(min={}, avg={}, max={}{secret})",
            self.min(),
            self.avg(),
            self.max()
        )
    }
}
