//! A text -> a block of eight stretches, which the vector scans hash side by side.
//!
//! Knows nothing of instruction sets; it holds what all of them share.

use crate::gear::WINDOW;
use crate::params::ChunkParams;

/// Stretches of the text that are hashed at once.
pub(super) const LANES: usize = 8;

/// Most steps whose results are collected before they are stored: a word for each stretch.
pub(super) const GROUP: usize = 32;

/// Eight stretches in a row, with a whole window of tokens before the first.
#[derive(Debug)]
pub(crate) struct Block<'a> {
    tokens: &'a [u32],
    /// Tokens in a stretch, a multiple of 8.
    pub(super) stride: usize,
    pub(super) secret: u32,
    pub(super) threshold: u64,
}

impl<'a> Block<'a> {
    /// A window and then a multiple of 64 tokens.
    pub(crate) fn new(tokens: &'a [u32], params: &ChunkParams) -> Self {
        let (secret, threshold) = (params.secret(), params.threshold());
        let stride = (tokens.len() - WINDOW) / LANES;
        debug_assert!(
            stride > 0 && stride.is_multiple_of(8) && tokens.len() == WINDOW + 8 * stride
        );
        Self {
            tokens,
            stride,
            secret,
            threshold,
        }
    }

    /// Where to read the four tokens from `at` on of the first stretch, its window included; those
    /// of the others follow at distances of the stride.
    #[inline]
    pub(super) fn quads(&self, at: usize) -> *const u32 {
        debug_assert!(at + 4 + (LANES - 1) * self.stride <= self.tokens.len());
        // No further than the tokens reach, which the assertion restates for the last stretch.
        self.tokens.as_ptr().wrapping_add(at)
    }
}

/// What a scan of a block leaves behind beside the bits.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Seen {
    /// The hash before the first token.
    pub(crate) first: u64,
    /// The hash after the last token.
    pub(crate) last: u64,
    /// Whether there are markers.
    pub(crate) marked: bool,
}

/// The bits of a block: those of one stretch after those of the other.
pub(super) struct Bits<'a> {
    words: &'a mut [u64],
    stride: usize,
    marked: bool,
}

impl<'a> Bits<'a> {
    pub(super) fn new(words: &'a mut [u64], block: &Block<'_>) -> Self {
        debug_assert_eq!(words.len() * 64, LANES * block.stride);
        Self {
            words,
            stride: block.stride,
            marked: false,
        }
    }

    /// Stores the results of up to 32 steps from `step` on, a word for each stretch.
    #[inline(always)] // Eight short stores, in the innermost loop but one.
    #[allow(clippy::inline_always)]
    pub(super) fn store(&mut self, step: usize, lanes: [u32; LANES]) {
        let (stride, at) = (self.stride / 8, step / 8);
        let bytes = bytes_of(self.words);
        if self.stride - step < GROUP {
            return store_part(bytes, stride, at, lanes);
        }
        for (row, word) in bytes.chunks_exact_mut(stride).zip(lanes) {
            row[at..at + 4].copy_from_slice(&word.to_le_bytes());
        }
    }

    /// As [`Bits::store`] for bits that are rare: the words are cleared before the first.
    #[cold]
    pub(super) fn store_rare(&mut self, step: usize, lanes: [u32; LANES]) {
        if lanes == [0; LANES] && !self.marked {
            return;
        }
        if !self.marked {
            self.words.fill(0);
            self.marked = true;
        }
        self.store(step, lanes);
    }

    pub(super) fn marked(&self) -> bool {
        self.marked
    }
}

/// Stores what is left of each stretch from byte `at` on, less than a word.
#[cold]
fn store_part(bytes: &mut [u8], stride: usize, at: usize, lanes: [u32; LANES]) {
    for (row, word) in bytes.chunks_exact_mut(stride).zip(lanes) {
        let rest = &mut row[at..];
        rest.copy_from_slice(&word.to_le_bytes()[..rest.len()]);
    }
}

/// The bytes of words, lowest first on every processor that this is compiled for.
fn bytes_of(words: &mut [u64]) -> &mut [u8] {
    let count = size_of_val(words);
    // Safety: the same memory; bytes need no alignment and every value is one.
    unsafe { std::slice::from_raw_parts_mut(words.as_mut_ptr().cast::<u8>(), count) }
}
