//! Tokens -> the places whose window key is small, eight keys at a time.
//!
//! Knows nothing of donors. A key is the sum of the last 32 gear values, each shifted by its age, so
//! it can be doubled up: from sums over 1 to 2, 4, 8, 16 and 32 tokens, five passes over a block in
//! the nearest cache and no chain from token to token.

use std::arch::x86_64::{
    _mm256_castsi256_ps, _mm256_cmpeq_epi32, _mm256_loadu_si256, _mm256_movemask_ps,
    _mm256_setzero_si256, _mm256_srli_epi32,
};

use crate::gear::mix;
use crate::window::{SAMPLE_SHIFT, WINDOW_TOKENS};

/// Tokens before a block that its first keys depend on.
const BEFORE: usize = WINDOW_TOKENS - 1;

/// Keys in a block.
pub(crate) const BLOCK: usize = 1024;

/// Lanes of a vector: keys are read so many at a time.
const LANES: usize = 8;

/// One sum for each token of a block and each before it, and room for the last vector.
type Sums = [u32; BLOCK + BEFORE + LANES];

/// Room for the sums, to be used again and again: clearing it takes as long as a pass.
#[derive(Debug)]
pub(crate) struct Scratch(Box<[Sums; 2]>);

impl Default for Scratch {
    fn default() -> Self {
        Self(Box::new([[0; _]; 2]))
    }
}

/// Calls `found` with the index (among the keys) and the key of each that is small. `tokens` are the
/// 31 before the block, then those of the block, up to 1,024.
///
/// # Safety
/// The processor has AVX2.
#[target_feature(enable = "avx2")]
pub(crate) unsafe fn sampled(
    tokens: &[u32],
    secret: u32,
    scratch: &mut Scratch,
    mut found: impl FnMut(usize, u32),
) {
    let [even, odd] = &mut *scratch.0;
    let tokens = &tokens[..tokens.len().min(BLOCK + BEFORE)];
    for (sum, &token) in even.iter_mut().zip(tokens) {
        *sum = mix(token ^ secret) as u32;
    }
    double::<1>(even, odd);
    double::<2>(odd, even);
    double::<4>(even, odd);
    double::<8>(odd, even);
    double::<16>(even, odd);
    let count = tokens.len().saturating_sub(BEFORE);
    for first in (0..count).step_by(LANES) {
        let lanes: &[u32; LANES] = odd[BEFORE + first..].first_chunk().unwrap_or(&[0; LANES]);
        // Safety: eight lanes are read from an array of eight.
        let keys = unsafe { _mm256_loadu_si256(lanes.as_ptr().cast()) };
        let top = _mm256_srli_epi32::<SAMPLE_SHIFT>(keys);
        let small = _mm256_cmpeq_epi32(top, _mm256_setzero_si256());
        let mut bits = _mm256_movemask_ps(_mm256_castsi256_ps(small)) as u32;
        while bits != 0 {
            let lane = bits.trailing_zeros() as usize;
            // The last vector reaches over the end.
            if first + lane < count {
                found(first + lane, lanes[lane]);
            }
            bits &= bits - 1;
        }
    }
}

/// Sums over twice as many tokens: those of the `AGE` tokens before, shifted by as many, are added.
#[target_feature(enable = "avx2")]
fn double<const AGE: usize>(from: &Sums, to: &mut Sums) {
    to[..AGE].copy_from_slice(&from[..AGE]);
    for ((to, &new), &old) in to[AGE..].iter_mut().zip(&from[AGE..]).zip(from) {
        *to = new.wrapping_add(old << AGE);
    }
}
