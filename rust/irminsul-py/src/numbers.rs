//! Python integers -> numbers of the core, refused by name when out of range.
//!
//! Knows nothing of what a number means; the core checks its own ranges.

use pyo3::exceptions::PyOverflowError;
use pyo3::prelude::*;

use crate::failure::Failure;

/// Reads an unsigned number; `allowed` is the range in words.
pub(crate) fn unsigned<T: TryFrom<u64>>(
    name: &'static str,
    value: &Bound<'_, PyAny>,
    allowed: &'static str,
) -> Result<T, Failure> {
    let refused = || Failure::Number {
        name,
        value: value.to_string(),
        allowed,
    };
    let number = match value.extract::<u64>() {
        Ok(number) => number,
        Err(error) if error.is_instance_of::<PyOverflowError>(value.py()) => return Err(refused()),
        Err(error) => return Err(Failure::Python(error)),
    };
    T::try_from(number).map_err(|_| refused())
}

/// Reads a 32-bit number, or takes the default when it was not given.
pub(crate) fn unsigned_or(
    name: &'static str,
    value: Option<&Bound<'_, PyAny>>,
    default: u32,
) -> Result<u32, Failure> {
    value.map_or(Ok(default), |value| unsigned(name, value, "0 to 2**32 - 1"))
}
