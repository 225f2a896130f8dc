//! Refused calls -> the exception classes of `irminsul.errors`, in one match.
//!
//! Knows nothing of algorithms; every other file returns a `Failure` and never names an exception class.

use std::ffi::CString;
use std::panic::{AssertUnwindSafe, catch_unwind};

use irminsul::Error;
use pyo3::exceptions::PyMemoryError;
use pyo3::prelude::*;
use pyo3::sync::PyOnceLock;
use pyo3::types::PyType;

use crate::once::get_or_make;

/// Why a call from Python was refused.
#[derive(Debug)]
pub(crate) enum Failure {
    /// The core refused it.
    Core(Error),
    /// An element of a sequence is no integer.
    NotAnInteger { index: usize, type_name: String },
    /// An id lies outside [0, 2^32).
    OutOfRange { index: usize, value: String },
    /// A buffer of the wrong element type.
    Format { format: CString },
    /// An array of other than one dimension.
    Dimensions { ndim: usize },
    /// An object that holds no tokens.
    NotTokens { type_name: String },
    /// An array that could not be read from the CPU; the text is the array library's.
    Unreadable { type_name: String, reason: String },
    /// An integer argument outside its range.
    Number {
        name: &'static str,
        value: String,
        allowed: &'static str,
    },
    /// The core panicked, which is a bug of its own.
    Internal { reason: String },
    /// Memory for this many tokens cannot be had.
    Memory { tokens: usize },
    /// Python raised by itself; handed on as it is.
    Python(PyErr),
}

/// Runs `work` of the core. A panic becomes a failure: what PyO3 would raise for it is no `Exception`, so that a
/// host which survives every error of a plugin would still end.
pub(crate) fn caught<T>(work: impl FnOnce() -> T) -> Result<T, Failure> {
    // Locks that a panic poisons are used on, and whoever sees the failure gives the registry up.
    catch_unwind(AssertUnwindSafe(work)).map_err(|payload| {
        let text = payload.downcast_ref::<String>().map(String::as_str);
        let text = text.or_else(|| payload.downcast_ref::<&str>().copied());
        Failure::Internal {
            reason: text.unwrap_or("no reason given").to_owned(),
        }
    })
}

/// What a bug in the core looks like from Python; for tests.
#[pyfunction]
pub(crate) fn _panic(py: Python<'_>, reason: &str) -> Result<(), Failure> {
    py.detach(|| caught(|| panic!("{reason}")))
}

impl From<Error> for Failure {
    fn from(error: Error) -> Self {
        Self::Core(error)
    }
}

impl From<PyErr> for Failure {
    fn from(error: PyErr) -> Self {
        Self::Python(error)
    }
}

impl From<Failure> for PyErr {
    fn from(failure: Failure) -> Self {
        let class = match &failure {
            Failure::Python(_) | Failure::Memory { .. } => "",
            Failure::Internal { .. } => "InternalError",
            Failure::Core(Error::UnknownNode { .. }) => "UnknownNode",
            Failure::Core(Error::DuplicateNode { .. }) => "DuplicateNode",
            Failure::Core(Error::RegistryFull { .. }) => "RegistryFull",
            Failure::Core(Error::QuotaExceeded { .. }) => "QuotaExceeded",
            Failure::Core(Error::InvalidLength { .. })
            | Failure::NotAnInteger { .. }
            | Failure::OutOfRange { .. }
            | Failure::Format { .. }
            | Failure::Dimensions { .. }
            | Failure::NotTokens { .. }
            | Failure::Unreadable { .. } => "InvalidTokens",
            // Also for variants that a later core may add: they are refusals of an argument.
            Failure::Core(_) | Failure::Number { .. } => "InvalidParams",
        };
        match failure {
            Failure::Python(error) => error,
            Failure::Memory { .. } => PyMemoryError::new_err(failure.to_string()),
            failure => raise(class, failure.to_string()),
        }
    }
}

fn raise(class: &str, message: String) -> PyErr {
    static MODULE: PyOnceLock<Py<PyModule>> = PyOnceLock::new();
    Python::attach(|py| {
        let import = || PyModule::import(py, "irminsul.errors").map(Bound::unbind);
        let found = get_or_make(&MODULE, py, import)
            .and_then(|module| module.bind(py).getattr(class))
            .and_then(|class| Ok(class.cast_into::<PyType>()?));
        match found {
            Ok(class) => PyErr::from_type(class, message),
            Err(error) => error,
        }
    })
}

impl std::fmt::Display for Failure {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Core(error) => error.fmt(f),
            Self::Python(error) => error.fmt(f),
            Self::Internal { reason } => write!(
                f,
                "the core failed ({reason}); this is a bug, please report it with this text"
            ),
            Self::Memory { tokens } => write!(f, "no memory for {tokens} tokens"),
            Self::NotAnInteger { index, type_name } => {
                write!(
                    f,
                    "tokens[{index}] is of type {type_name}; allowed: integers in [0, 2**32)"
                )
            }
            Self::OutOfRange { index, value } => {
                write!(
                    f,
                    "tokens[{index}] is {value}; allowed: integers in [0, 2**32)"
                )
            }
            Self::Format { format } => write!(
                f,
                "tokens have the buffer format {format:?}; allowed: native integers of 16, 32 or 64 bits \
                 (raw little-endian bytes: memoryview(data).cast('I'))"
            ),
            Self::Dimensions { ndim } => {
                write!(f, "tokens have {ndim} dimensions; allowed: 1")
            }
            Self::NotTokens { type_name } => write!(
                f,
                "tokens are of type {type_name}; allowed: list, tuple, range, integer array or buffer, CPU tensor"
            ),
            Self::Unreadable { type_name, reason } => write!(
                f,
                "tokens of type {type_name} cannot be read on the CPU ({reason}); allowed: integer CPU tensors"
            ),
            Self::Number {
                name,
                value,
                allowed,
            } => {
                write!(f, "{name} is {value}; allowed: {allowed}")
            }
        }
    }
}
