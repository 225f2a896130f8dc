//! A number of cache lines -> that many lines of zeroed atomic words.
//!
//! Knows nothing of their meaning. The system hands zeroed pages out when they are first written, so
//! a large table takes no memory before it is used. Lookups go to lines at random, so small pages would
//! cost a walk of the page tables each; large ones are asked for.

use std::alloc::{Layout, alloc_zeroed, handle_alloc_error};

use super::sync::AtomicU64;

/// Words in a line of 64 bytes.
const WORDS: usize = 8;

/// Lines of atomic words, all zero at first.
#[derive(Debug)]
pub(crate) struct Lines {
    words: Box<[AtomicU64]>,
    /// Words before the first whole line. Asking the allocator for aligned memory would make it write
    /// the zeros.
    skipped: usize,
}

impl Lines {
    pub(crate) fn zeroed(count: usize) -> Self {
        let words = count.max(1) * WORDS + WORDS - 1;
        let layout = Layout::array::<AtomicU64>(words)
            .unwrap_or_else(|_| handle_alloc_error(Layout::new::<AtomicU64>()));
        // Safety: the layout is not empty and is that of the boxed slice; zero bytes are valid atomics.
        let words = unsafe {
            // The layout has a word's alignment.
            #[allow(clippy::cast_ptr_alignment)]
            let first = alloc_zeroed(layout).cast::<AtomicU64>();
            if first.is_null() {
                handle_alloc_error(layout);
            }
            Box::from_raw(std::ptr::slice_from_raw_parts_mut(first, words))
        };
        ask_for_large_pages(&words);
        let skipped = words.as_ptr().align_offset(64).min(WORDS - 1);
        Self { words, skipped }
    }

    pub(crate) fn len(&self) -> usize {
        self.words.len() / WORDS
    }

    pub(crate) fn word(&self, line: usize, word: usize) -> &AtomicU64 {
        &self.words[self.skipped + line * WORDS + word]
    }

    /// Asks for a line to be fetched into the cache.
    pub(crate) fn prefetch(&self, line: usize) {
        #[cfg(target_arch = "x86_64")]
        {
            use std::arch::x86_64::{_MM_HINT_T0, _mm_prefetch};
            let word: *const AtomicU64 = self.word(line, 0);
            // Safety: a prefetch reads nothing that the program sees; the address is valid besides.
            unsafe { _mm_prefetch::<_MM_HINT_T0>(word.cast()) };
        }
        #[cfg(not(target_arch = "x86_64"))]
        let _ = line;
    }
}

/// Bytes of a large page.
#[cfg(all(target_os = "linux", not(miri)))]
const LARGE_PAGE: usize = 2 << 20;

/// Asks for large pages where some fit; a system that has none left gives small ones.
#[cfg(all(target_os = "linux", not(miri)))]
fn ask_for_large_pages(words: &[AtomicU64]) {
    use std::ffi::{c_int, c_void};

    unsafe extern "C" {
        fn madvise(start: *mut c_void, length: usize, advice: c_int) -> c_int;
    }
    const MADV_HUGEPAGE: c_int = 14;

    let start = words.as_ptr().cast_mut().cast::<u8>();
    let before = start.align_offset(LARGE_PAGE);
    let length = size_of_val(words).saturating_sub(before) / LARGE_PAGE * LARGE_PAGE;
    if length > 0 {
        // Safety: whole pages inside the memory that is ours; what they hold does not change. That the system
        // knows no large pages is no error.
        unsafe {
            madvise(start.wrapping_add(before).cast(), length, MADV_HUGEPAGE);
        }
    }
}

/// Only Linux has to be asked.
#[cfg(not(all(target_os = "linux", not(miri))))]
fn ask_for_large_pages(_: &[AtomicU64]) {}
