//! Items of integer arrays -> 64 bits each, in which an id that is out of range shows.
//!
//! Knows nothing of buffers.

use pyo3::buffer::Element;

/// What the items of an array of ids are.
pub(crate) trait Id: Element + Copy + Send + Into<i128> {}

impl<T: Element + Copy + Send + Into<i128>> Id for T {}

/// An id of any width as 64 bits, of which negative ones set the upper half.
pub(crate) struct Wide(pub(crate) u64);

macro_rules! widen {
    ($($narrow:ty),*) => {$(
        impl From<$narrow> for Wide {
            #[inline]
            #[allow(clippy::cast_lossless)] // The signed ones do not fit without loss.
            fn from(value: $narrow) -> Self {
                Self(value as u64)
            }
        }
    )*};
}

widen!(i16, u16, i32, u32, i64, u64);
