//! Token ids -> sampled windows: short stretches that a recording and a prompt pick alike, wherever
//! they begin.
//!
//! Knows nothing of chunks or donors. Windows find what chunks cannot: repeated text too short to
//! hold a whole chunk.
//!
//! The key of a window is the low half of the rolling gear hash, which depends on its last 32
//! tokens and on nothing else. A window is sampled where its key is small, so both sides sample the
//! same windows without agreeing on any offset, and a prompt probes one offset in sixteen instead
//! of all of them (windows recorded at fixed strides find slightly more with as many entries, but
//! every offset of the prompt has to be probed).

use crate::gear::mix;
use crate::simd::{self, SampleScratch};

/// Tokens in a window; bits of its key.
pub(crate) const WINDOW_TOKENS: usize = 32;

/// One offset in this many is sampled.
pub(crate) const SAMPLING: usize = 16;

/// Keys without a bit from this one on are sampled. The comparison is on the top bits, which depend
/// on all tokens of the window.
pub(crate) const SAMPLE_SHIFT: i32 = 32 - SAMPLING.ilog2() as i32;

/// A sampled window.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Window {
    /// One past its last token.
    pub(crate) end: usize,
    /// Hash of its tokens: a guess, as every hash here.
    pub(crate) key: u32,
}

impl Window {
    pub(crate) fn start(&self) -> usize {
        self.end - WINDOW_TOKENS
    }
}

/// Tokens that are looked at one after the other where there is no faster way.
const STEP: usize = 1024;

/// The sampled windows of a text that end after a place, step by step; a window needs all its tokens.
///
/// A run of one window (constant text) is sampled at its first place only.
#[derive(Debug)]
pub(crate) struct Sampler<'a> {
    tokens: &'a [u32],
    secret: u32,
    scratch: &'a mut SampleScratch,
    /// Tokens looked at.
    scanned: usize,
    previous: Option<u32>,
}

impl<'a> Sampler<'a> {
    /// The windows of `tokens` that end in `(from, tokens.len()]`.
    pub(crate) fn new(
        tokens: &'a [u32],
        from: usize,
        secret: u32,
        scratch: &'a mut SampleScratch,
    ) -> Self {
        Self {
            tokens,
            secret,
            scratch,
            scanned: from.max(WINDOW_TOKENS - 1),
            previous: None,
        }
    }

    /// Looks no more at windows that end up to `end`.
    pub(crate) fn skip_to(&mut self, end: usize) {
        self.scanned = self.scanned.max(end);
    }

    /// Appends the windows of one more step; false when there is none left.
    pub(crate) fn step(&mut self, windows: &mut Vec<Window>) -> bool {
        if self.scanned >= self.tokens.len() {
            return false;
        }
        let Self {
            tokens,
            secret,
            scanned,
            ref mut scratch,
            ref mut previous,
        } = *self;
        let text = &tokens[scanned + 1 - WINDOW_TOKENS..];
        let mut found = |index, key| {
            if *previous != Some(key) {
                *previous = Some(key);
                let end = scanned + index + 1;
                windows.push(Window { end, key });
            }
        };
        let mut count = simd::sampled(text, secret, scratch, &mut found);
        if count == 0 {
            count = STEP.min(tokens.len() - scanned);
            scalar(&text[..count + WINDOW_TOKENS - 1], secret, found);
        }
        self.scanned += count;
        true
    }
}

/// As [`simd::sampled`], token by token: the reference.
fn scalar(tokens: &[u32], secret: u32, mut found: impl FnMut(usize, u32)) {
    let roll = |key: u32, &token: &u32| (key << 1).wrapping_add(mix(token ^ secret) as u32);
    let (before, block) = tokens.split_at(WINDOW_TOKENS - 1);
    let mut key = before.iter().fold(0, roll);
    for (index, token) in block.iter().enumerate() {
        key = roll(key, token);
        if key >> SAMPLE_SHIFT == 0 {
            found(index, key);
        }
    }
}

/// All sampled windows of `tokens` that end in `(from, tokens.len()]`.
pub(crate) fn windows(tokens: &[u32], from: usize, secret: u32) -> Vec<Window> {
    let rest = tokens.len().saturating_sub(from);
    let mut windows = Vec::with_capacity(rest / SAMPLING + rest / (4 * SAMPLING));
    let mut scratch = SampleScratch::default();
    let mut sampler = Sampler::new(tokens, from, secret, &mut scratch);
    while sampler.step(&mut windows) {}
    windows
}

#[cfg(test)]
mod tests {
    use super::*;

    fn text(seed: u32, len: usize) -> Vec<u32> {
        let mut state = u64::from(seed) * 2 + 1;
        let next = || {
            state = state.wrapping_mul(0x5851_F42D_4C95_7F2D).wrapping_add(1);
            (state >> 47) as u32
        };
        std::iter::repeat_with(next).take(len).collect()
    }

    fn sampled(tokens: &[u32], from: usize) -> Vec<Window> {
        windows(tokens, from, 0)
    }

    #[test]
    fn the_fast_way_finds_what_the_scalar_one_does() {
        let mut scratch = SampleScratch::default();
        for (seed, len) in [(1, 32), (2, 33), (3, 1054), (4, 1055), (5, 1056), (6, 5000)] {
            for secret in [0, 0xDEAD_BEEF] {
                let tokens = text(seed, len);
                let (mut fast, mut slow) = (Vec::new(), Vec::new());
                let first = len.min(1055);
                scalar(&tokens[..first], secret, |index, key| {
                    slow.push((index, key));
                });
                let count = simd::sampled(&tokens, secret, &mut scratch, |index, key| {
                    fast.push((index, key));
                });
                assert!(count == 0 || (count == first - 31 && fast == slow));
            }
        }
    }

    #[test]
    fn samples_are_a_function_of_the_window_alone() {
        let shared = text(1, 400);
        let ends = |head: &[u32]| {
            let all: Vec<u32> = head.iter().chain(&shared).copied().collect();
            let inside = |w: &Window| w.end >= head.len() + WINDOW_TOKENS;
            let shift = |w: Window| Window {
                end: w.end - head.len(),
                ..w
            };
            sampled(&all, 0)
                .into_iter()
                .filter(inside)
                .map(shift)
                .collect::<Vec<_>>()
        };
        let alone = ends(&[]);
        assert!(!alone.is_empty());
        for seed in 2..40 {
            assert_eq!(ends(&text(seed, seed as usize * 3)), alone);
        }
    }

    #[test]
    fn starting_late_gives_the_rest_of_the_same_samples() {
        let tokens = text(3, 500);
        let all = sampled(&tokens, 0);
        for from in 0..=500 {
            let rest: Vec<Window> = all.iter().copied().filter(|w| w.end > from).collect();
            assert_eq!(sampled(&tokens, from), rest, "from {from}");
        }
    }

    #[test]
    fn one_offset_in_sixteen_is_sampled() {
        let count = sampled(&text(4, 160_000), 0).len();
        assert!((9_500..10_500).contains(&count), "{count}");
    }

    #[test]
    fn constant_text_is_sampled_once_at_most() {
        for token in 0..2_000 {
            assert!(sampled(&[token; 300], 0).len() <= 1);
        }
    }

    #[test]
    fn short_texts_hold_no_window() {
        for len in 0..WINDOW_TOKENS {
            assert!(sampled(&text(5, len), 0).is_empty());
        }
        assert!(sampled(&text(5, 100), 100).is_empty());
        assert!(sampled(&text(5, 100), 101).is_empty());
    }
}
