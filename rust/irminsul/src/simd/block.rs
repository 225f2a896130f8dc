//! A text -> a block of eight stretches, which the vector scans hash side by side.
//!
//! Knows nothing of instruction sets; it holds what all of them share.

use std::ops::Range;

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
}

/// The bits of a block: those of one stretch after those of the other.
pub(super) struct Bits<'a> {
    words: &'a mut [u64],
    stride: usize,
}

impl<'a> Bits<'a> {
    pub(super) fn new(words: &'a mut [u64], block: &Block<'_>) -> Self {
        assert_eq!(words.len() * 64, LANES * block.stride);
        Self {
            words,
            stride: block.stride,
        }
    }

    /// Where the last stretch's word for the group of steps from `step` on goes, and how many bytes before
    /// it that of each other stretch.
    pub(super) fn last_word(&mut self, step: usize) -> (*mut u8, usize) {
        let apart = self.stride / 8;
        debug_assert!(step + GROUP <= self.stride);
        let first = self.words.as_mut_ptr().cast::<u8>();
        (first.wrapping_add((LANES - 1) * apart + step / 8), apart)
    }

    /// Stores the results of up to 32 steps from `step` on, a word for each stretch.
    #[inline(always)] // Eight short stores, in the innermost loop but one.
    #[allow(clippy::inline_always)]
    pub(super) fn store(&mut self, step: usize, lanes: [u32; LANES]) {
        if self.stride - step < GROUP {
            return store_part(bytes_of(self.words), self.stride / 8, step / 8, lanes);
        }
        let (last, apart) = self.last_word(step);
        for (lane, word) in lanes.into_iter().rev().enumerate() {
            // Safety: a group of steps of each stretch lies inside the words, see `last_word`.
            unsafe {
                let place = last.wrapping_sub(lane * apart);
                place.cast::<[u8; 4]>().write(word.to_le_bytes());
            }
        }
    }
}

/// Bits that few blocks have any of: there are no words before the first.
pub(crate) struct Rare<'a> {
    /// Empty, or all words that the block's are part of.
    words: &'a mut Vec<u64>,
    all: usize,
    ours: Range<usize>,
}

impl<'a> Rare<'a> {
    /// Of `all` words, those at `ours` are the block's.
    pub(crate) fn new(words: &'a mut Vec<u64>, all: usize, ours: Range<usize>) -> Self {
        Self { words, all, ours }
    }

    /// As [`Bits::store`].
    #[cold]
    pub(super) fn store(&mut self, block: &Block<'_>, step: usize, lanes: [u32; LANES]) {
        if lanes == [0; LANES] && self.words.is_empty() {
            return;
        }
        self.words.resize(self.all, 0);
        Bits::new(&mut self.words[self.ours.clone()], block).store(step, lanes);
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
