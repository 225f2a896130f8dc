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

/// Tokens in a window; bits of its key.
pub(crate) const WINDOW_TOKENS: usize = 32;

/// One offset in this many is sampled.
pub(crate) const SAMPLING: usize = 16;

/// Keys below this are sampled. The comparison is on the top bits, which depend on all tokens of
/// the window.
const THRESHOLD: u32 = 1 << (32 - SAMPLING.ilog2());

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

/// The sampled windows of `tokens` that end in `(from, tokens.len()]`; a window needs all its
/// tokens.
///
/// A run of one window (constant text) is sampled at its first place only.
pub(crate) fn windows(
    tokens: &[u32],
    from: usize,
    secret: u32,
) -> impl Iterator<Item = Window> + '_ {
    let warm = (from + 1).saturating_sub(WINDOW_TOKENS);
    let first_end = from.max(WINDOW_TOKENS - 1);
    let mut key = 0_u32;
    let mut previous = None;
    let text = tokens.get(warm..).unwrap_or(&[]);
    text.iter().enumerate().filter_map(move |(at, &token)| {
        key = (key << 1).wrapping_add(mix(token ^ secret) as u32);
        let end = warm + at + 1;
        if key >= THRESHOLD || end <= first_end || previous == Some(key) {
            return None;
        }
        previous = Some(key);
        Some(Window { end, key })
    })
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
        windows(tokens, from, 0).collect()
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
