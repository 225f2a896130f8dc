//! Memory of Python objects -> numbers.
//!
//! The only file here with `unsafe`. Knows nothing of errors: whatever is unusual is left to the
//! caller, who goes through Python's own calls.
//!
//! For the items of a list, going through those calls costs five to nine nanoseconds an id, more than chunking and hashing
//! it. Integers below 2^30 hold their value in one digit at a known place, which builds for one
//! version of CPython may read. Builds for the stable ABI may not.

use std::marker::PhantomData;
use std::ptr::NonNull;

use pyo3::buffer::{Element, PyBuffer};
use pyo3::prelude::*;
use pyo3::types::PyList;

use crate::scratch::Tokens;

/// The items of a contiguous buffer, which may be read without the interpreter lock.
///
/// The buffer keeps the memory in place. Nothing keeps another thread from writing to it; items are
/// therefore only ever copied out, each once, and the copy is what is worked on.
pub(crate) struct Items<'a, T> {
    first: NonNull<T>,
    len: usize,
    buffer: PhantomData<&'a PyBuffer<T>>,
}

// Safety: the memory is plain numbers that the buffer keeps alive, and it is only read.
unsafe impl<T: Element + Send> Send for Items<'_, T> {}

// Safety: as above; every access is a read.
unsafe impl<T: Element + Send> Sync for Items<'_, T> {}

impl<'a, T: Element> Items<'a, T> {
    /// `None` for a buffer that is not contiguous.
    pub(crate) fn new(buffer: &'a PyBuffer<T>) -> Option<Self> {
        let items = buffer.as_slice_ptr()?;
        Some(Self {
            first: items.cast::<T>(),
            len: items.len(),
            buffer: PhantomData,
        })
    }

    pub(crate) fn len(&self) -> usize {
        self.len
    }

    /// Where an item lies, to be fetched into the cache.
    pub(crate) fn place(&self, at: usize) -> *const T {
        self.first.as_ptr().wrapping_add(at)
    }

    /// The items from `at` on, at most `count`.
    pub(crate) fn copy(&self, at: usize, count: usize) -> impl ExactSizeIterator<Item = T> + '_ {
        let end = self.len.min(at.saturating_add(count));
        // Safety: PyO3 has checked type and alignment, and the index is below the length.
        (at.min(end)..end).map(move |index| unsafe { self.first.add(index).read() })
    }
}

/// The ids, if every item is an exact `int` in [0, 2^30).
#[cfg(not(Py_LIMITED_API))]
pub(crate) fn small_ints(list: &Bound<'_, PyList>) -> Option<Tokens> {
    use pyo3::ffi::PyList_GET_ITEM;
    use pyo3::sync::critical_section::with_critical_section;

    if !layout::holds(list.py()) {
        return None;
    }
    // Without a global lock, another thread could resize the list meanwhile.
    with_critical_section(list, || {
        let len = list.len();
        let mut ids = Tokens::with_room(len).ok()?;
        for index in 0..len {
            // Safety: `index` is below the length, no Python code runs in between, and the item
            // stays alive as long as the list, which nobody else can change now.
            let item = unsafe { PyList_GET_ITEM(list.as_ptr(), index as isize) };
            // Safety: the item is a live object.
            ids.push(unsafe { layout::small_int(item) }?);
        }
        Some(ids)
    })
}

/// The stable ABI does not show an integer's digits.
#[cfg(Py_LIMITED_API)]
pub(crate) fn small_ints(_: &Bound<'_, PyList>) -> Option<Tokens> {
    None
}

#[cfg(not(Py_LIMITED_API))]
mod layout {
    use std::convert::Infallible;

    use pyo3::ffi::{PyLong_CheckExact, PyObject};
    use pyo3::prelude::*;
    use pyo3::sync::PyOnceLock;

    use crate::once::get_or_make;

    /// CPython's integer up to 3.11: the sign is the sign of the number of digits.
    #[cfg(not(Py_3_12))]
    #[repr(C)]
    struct Int {
        head: pyo3::ffi::PyVarObject,
        digit: u32,
    }

    /// CPython's integer from 3.12 on: the tag holds the number of digits above three other bits,
    /// of which the lower two are 0 for positive numbers and 1 for zero.
    #[cfg(Py_3_12)]
    #[repr(C)]
    struct Int {
        head: PyObject,
        tag: usize,
        digit: u32,
    }

    /// The value of an exact `int` of at most one digit that is not negative.
    ///
    /// # Safety
    /// `object` points to a live object, and the caller is attached to the interpreter.
    #[inline]
    pub(super) unsafe fn small_int(object: *mut PyObject) -> Option<u32> {
        // Safety: the object is live.
        if unsafe { PyLong_CheckExact(object) } == 0 {
            return None;
        }
        let int = object.cast::<Int>();
        // Safety: exact integers have this layout, which `holds` has checked; each has room for a
        // digit, zero included. Only these two fields are read, never the reference count.
        #[cfg(not(Py_3_12))]
        let (size, digit) = unsafe { ((*int).head.ob_size, (*int).digit) };
        #[cfg(not(Py_3_12))]
        let (zero, positive) = (size == 0, size == 1);
        #[cfg(Py_3_12)]
        let (tag, digit) = unsafe { ((*int).tag & !4, (*int).digit) };
        #[cfg(Py_3_12)]
        let (zero, positive) = (tag == 1, tag == 8);
        match (zero, positive) {
            (true, _) => Some(0),
            (_, true) => Some(digit),
            _ => None,
        }
    }

    /// Whether this interpreter lays integers out as expected: tried once on a few of them.
    pub(super) fn holds(py: Python<'_>) -> bool {
        static HOLDS: PyOnceLock<bool> = PyOnceLock::new();
        let check = || -> Result<bool, Infallible> {
            let read = |value: i64| {
                let object = value.into_pyobject(py).ok()?;
                // Safety: the object is live and we are attached.
                unsafe { small_int(object.as_ptr()) }
            };
            let small = [0, 1, 256, 257, 32_767, 32_768, 129_279, (1 << 30) - 1];
            let large = [-1, -300, 1 << 30, 1 << 32, -(1 << 30), i64::MAX];
            Ok(small.iter().all(|&value| read(value) == Some(value as u32))
                && large.iter().all(|&value| read(value).is_none()))
        };
        let Ok(&holds) = get_or_make(&HOLDS, py, check);
        holds
    }
}
