//! Lists, buffers and CPU tensors of token ids -> u32 ids in memory of our own.
//!
//! Knows nothing of what the ids are used for. It always copies: other threads may write to a
//! foreign buffer while the interpreter lock is released.

use std::ffi::CStr;

use irminsul::{ChunkParams, Chunker, Chunks};
use pyo3::buffer::{ElementType, PyBuffer, PyUntypedBuffer};
use pyo3::prelude::*;
use pyo3::sync::PyOnceLock;
use pyo3::types::{PyBool, PyList, PyMemoryView, PyRange, PyTuple};

use crate::failure::{Failure, caught};
use crate::once::get_or_make;
use crate::raw::{self, Items};
use crate::scratch::Tokens;
use crate::wide::{Id, Wide};

/// Above this many tokens a call releases the interpreter lock; below, handing the lock over costs
/// more than it frees.
pub(crate) const DETACH_TOKENS: usize = 8192;

/// For work that takes long, or may wait, whatever it is about.
pub(crate) const MANY: usize = usize::MAX;

/// Runs `work`, without the interpreter lock when there are many tokens.
pub(crate) fn detached<T: Send>(
    py: Python<'_>,
    len: usize,
    work: impl Send + FnOnce() -> T,
) -> Result<T, Failure> {
    if len > DETACH_TOKENS {
        py.detach(|| caught(work))
    } else {
        caught(work)
    }
}

/// Copies the ids out of any supported object; strided buffers are read element by element.
pub(crate) fn token_ids(object: &Bound<'_, PyAny>) -> Result<Tokens, Failure> {
    if let Ok(list) = object.cast::<PyList>() {
        if let Some(tokens) = raw::small_ints(list) {
            return Ok(tokens);
        }
        return from_items(list.len(), list.iter());
    }
    if let Ok(tuple) = object.cast::<PyTuple>() {
        return from_items(tuple.len(), tuple.iter());
    }
    if let Ok(range) = object.cast::<PyRange>() {
        // A range may be far longer than memory; its last item is out of range then.
        let len = range.len()?;
        if len > 0 {
            token_id(len - 1, &range.get_item(len - 1)?)?;
        }
        let items = range.try_iter()?.collect::<PyResult<Vec<_>>>()?;
        return from_items(len, items.into_iter());
    }
    if let Ok(buffer) = PyUntypedBuffer::get(object) {
        return from_buffer(object, &buffer);
    }
    // PyO3 wants strides, which exporters of plain arrays may leave out and a memoryview fills in.
    if let Ok(view) = PyMemoryView::from(object)
        && let Ok(buffer) = PyUntypedBuffer::get(&view)
    {
        return from_buffer(&view, &buffer);
    }
    // PyO3 hands out no buffer without a shape, which is what scalars have.
    if object
        .getattr("ndim")
        .is_ok_and(|ndim| ndim.eq(0).unwrap_or(false))
    {
        return Err(Failure::Dimensions { ndim: 0 });
    }
    if object.hasattr("__dlpack__")? {
        return from_dlpack(object);
    }
    Err(Failure::NotTokens {
        type_name: type_name(object),
    })
}

fn type_name(object: &Bound<'_, PyAny>) -> String {
    object
        .get_type()
        .name()
        .map_or_else(|_| "?".to_owned(), |name| name.to_string())
}

fn from_items<'py>(
    len: usize,
    items: impl Iterator<Item = Bound<'py, PyAny>>,
) -> Result<Tokens, Failure> {
    let mut tokens = Tokens::with_room(len)?;
    for (index, item) in items.enumerate() {
        tokens.push(token_id(index, &item)?);
    }
    Ok(tokens)
}

fn token_id(index: usize, item: &Bound<'_, PyAny>) -> Result<u32, Failure> {
    if item.is_instance_of::<PyBool>() {
        return Err(Failure::NotAnInteger {
            index,
            type_name: type_name(item),
        });
    }
    if let Ok(token) = item.extract::<u32>() {
        return Ok(token);
    }
    // The failed conversion says too little: tell a wrong type from a wrong value.
    if item.hasattr("__index__")? {
        return Err(Failure::OutOfRange {
            index,
            value: item.to_string(),
        });
    }
    Err(Failure::NotAnInteger {
        index,
        type_name: type_name(item),
    })
}

static FROM_DLPACK: PyOnceLock<Py<PyAny>> = PyOnceLock::new();

fn from_dlpack(object: &Bound<'_, PyAny>) -> Result<Tokens, Failure> {
    let py = object.py();
    let import = || Ok::<_, PyErr>(py.import("numpy")?.getattr("from_dlpack")?.unbind());
    let array = get_or_make(&FROM_DLPACK, py, import)?
        .bind(py)
        .call1((object,));
    let unreadable = |reason: PyErr| Failure::Unreadable {
        type_name: type_name(object),
        reason: reason.value(py).to_string(),
    };
    let array = array.map_err(unreadable)?;
    let buffer = PyUntypedBuffer::get(&array).map_err(unreadable)?;
    from_buffer(&array, &buffer)
}

fn from_buffer(object: &Bound<'_, PyAny>, buffer: &PyUntypedBuffer) -> Result<Tokens, Failure> {
    let ndim = buffer.dimensions();
    if ndim != 1 {
        return Err(Failure::Dimensions { ndim });
    }
    let format = buffer.format();
    if !is_native(format) {
        return Err(Failure::Format {
            format: format.to_owned(),
        });
    }
    if let Some(tokens) = from_typed(object.py(), buffer) {
        return tokens;
    }
    // What is left is explicitly little-endian, as ctypes arrays are, or not aligned: numpy copies it into order.
    let array = PyModule::import(object.py(), "numpy")?.call_method1("asarray", (object,))?;
    let native = array
        .getattr("dtype")?
        .call_method1("newbyteorder", ("=",))?;
    let array = array.call_method1("astype", (native,))?;
    from_typed(object.py(), &PyUntypedBuffer::get(&array)?).unwrap_or_else(|| {
        Err(Failure::Format {
            format: format.to_owned(),
        })
    })
}

/// Whether a format is that of integers of 16 bits and more in this machine's byte order.
///
/// PyO3 takes big-endian formats for native ones on little-endian machines, so they are told apart
/// here.
fn is_native(format: &CStr) -> bool {
    let integers = match ElementType::from_format(format) {
        ElementType::SignedInteger { bytes } | ElementType::UnsignedInteger { bytes } => bytes >= 2,
        _ => false,
    };
    let swapped = matches!(format.to_bytes(), [b'>' | b'!', ..]) && cfg!(target_endian = "little");
    integers && !swapped
}

/// Copies aligned native integers; `None` for anything else.
fn from_typed(py: Python<'_>, buffer: &PyUntypedBuffer) -> Option<Result<Tokens, Failure>> {
    if let Ok(buffer) = buffer.as_typed::<u32>() {
        return Some(narrow(py, buffer));
    }
    (buffer
        .as_typed()
        .map(|buffer: &PyBuffer<i64>| narrow(py, buffer)))
    .or_else(|_| {
        buffer
            .as_typed()
            .map(|buffer: &PyBuffer<i32>| narrow(py, buffer))
    })
    .or_else(|_| {
        buffer
            .as_typed()
            .map(|buffer: &PyBuffer<u64>| narrow(py, buffer))
    })
    .or_else(|_| {
        buffer
            .as_typed()
            .map(|buffer: &PyBuffer<u16>| narrow(py, buffer))
    })
    .or_else(|_| {
        buffer
            .as_typed()
            .map(|buffer: &PyBuffer<i16>| narrow(py, buffer))
    })
    .ok()
}

/// Narrows with one test for all ids, which the compiler turns into vector code; only a failure is
/// looked for again.
fn narrow<T: Id>(py: Python<'_>, buffer: &PyBuffer<T>) -> Result<Tokens, Failure>
where
    Wide: From<T>,
{
    let mut tokens = Tokens::with_room(buffer.item_count())?;
    let mut outside = 0;
    let low = |value: T| {
        let Wide(wide) = Wide::from(value);
        outside |= wide >> 32;
        wide as u32
    };
    match Items::new(buffer) {
        Some(items) => tokens.extend(items.copy(0, items.len()).map(low)),
        None => tokens.extend(buffer.to_vec(py)?.into_iter().map(low)),
    }
    if outside == 0 {
        Ok(tokens)
    } else {
        Err(out_of_range(py, buffer))
    }
}

/// Names the first id that is out of range.
fn out_of_range<T: Id>(py: Python<'_>, buffer: &PyBuffer<T>) -> Failure {
    let values = match buffer.to_vec(py) {
        Ok(values) => values,
        Err(error) => return Failure::Python(error),
    };
    let mut values = values.into_iter().map(Into::<i128>::into).enumerate();
    let wrong = values.find(|(_, value)| u32::try_from(*value).is_err());
    let (index, value) = wrong.unwrap_or_default();
    Failure::OutOfRange {
        index,
        value: value.to_string(),
    }
}

/// Chunks a contiguous array without a copy of the whole: block by block, without the interpreter
/// lock when there are many ids. `None` for anything else, which `token_ids` takes.
pub(crate) fn chunk_array(
    object: &Bound<'_, PyAny>,
    params: &ChunkParams,
) -> Option<Result<Chunks, Failure>> {
    if object.is_exact_instance_of::<PyList>() {
        return None;
    }
    let buffer = PyUntypedBuffer::get(object).ok()?;
    if buffer.dimensions() != 1 || !is_native(buffer.format()) {
        return None;
    }
    let py = object.py();
    if let Ok(buffer) = buffer.as_typed::<u32>() {
        return chunk_items(py, buffer, params);
    }
    if let Ok(buffer) = buffer.as_typed::<i64>() {
        return chunk_items(py, buffer, params);
    }
    if let Ok(buffer) = buffer.as_typed::<i32>() {
        return chunk_items(py, buffer, params);
    }
    buffer
        .as_typed::<u64>()
        .ok()
        .and_then(|buffer| chunk_items(py, buffer, params))
}

fn chunk_items<T: Id>(
    py: Python<'_>,
    buffer: &PyBuffer<T>,
    params: &ChunkParams,
) -> Option<Result<Chunks, Failure>>
where
    Wide: From<T>,
{
    let items = Items::new(buffer)?;
    let cut = detached(py, items.len(), || {
        let mut chunker = Chunker::new(params);
        let mut outside = 0;
        let narrow = |at: usize, room: &mut [u32]| {
            for (id, value) in room.iter_mut().zip(items.copy(at, usize::MAX)) {
                let Wide(wide) = Wide::from(value);
                outside |= wide >> 32;
                *id = wide as u32;
            }
        };
        chunker.push_with(items.len(), narrow, |at| items.place(at).cast());
        (chunker.finish(), outside)
    });
    Some(match cut {
        Ok((chunks, 0)) => Ok(chunks),
        Ok(_) => Err(out_of_range(py, buffer)),
        Err(failure) => Err(failure),
    })
}
