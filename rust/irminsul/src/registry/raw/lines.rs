//! A number of cache lines -> that many lines of zeroed atomic words.
//!
//! Knows nothing of their meaning. The system hands zeroed pages out when they are first written, so
//! a large table takes no memory before it is used.

use std::alloc::{Layout, alloc_zeroed, handle_alloc_error};

use super::sync::AtomicU64;

/// Words in a line of 64 bytes.
pub(crate) const WORDS: usize = 8;

/// One cache line.
#[derive(Debug)]
#[repr(align(64))]
pub(crate) struct Line([AtomicU64; WORDS]);

/// Lines of atomic words, all zero at first.
#[derive(Debug)]
pub(crate) struct Lines(Box<[Line]>);

impl Lines {
    pub(crate) fn zeroed(count: usize) -> Self {
        let layout = Layout::array::<Line>(count.max(1))
            .unwrap_or_else(|_| handle_alloc_error(Layout::new::<Line>()));
        // The layout has a line's alignment.
        #[allow(clippy::cast_ptr_alignment)]
        // Safety: the layout is not empty. All-zero bytes are valid atomics, and the box has the layout
        // that its memory was allocated with.
        unsafe {
            let lines = alloc_zeroed(layout).cast::<Line>();
            if lines.is_null() {
                handle_alloc_error(layout);
            }
            let lines = std::ptr::slice_from_raw_parts_mut(lines, count.max(1));
            Self(Box::from_raw(lines))
        }
    }

    pub(crate) fn len(&self) -> usize {
        self.0.len()
    }

    pub(crate) fn word(&self, line: usize, word: usize) -> &AtomicU64 {
        &self.0[line + word / WORDS].0[word % WORDS]
    }

    /// Asks for a line to be fetched into the cache.
    pub(crate) fn prefetch(&self, line: usize) {
        #[cfg(target_arch = "x86_64")]
        {
            use std::arch::x86_64::{_MM_HINT_T0, _mm_prefetch};
            let line: *const Line = &raw const self.0[line];
            // Safety: a prefetch reads nothing that the program sees; the address is valid besides.
            unsafe { _mm_prefetch::<_MM_HINT_T0>(line.cast()) };
        }
        #[cfg(not(target_arch = "x86_64"))]
        let _ = line;
    }
}
