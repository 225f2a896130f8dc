//! Tokens -> candidate bits, eight stretches of the text at a time. AVX-512.
//!
//! Knows nothing of chunk sizes. Bit-identical to the scalar scan in `scan.rs`.
//!
//! As `gear_avx2.rs`, with all eight states in one register and an unsigned comparison of 64 bits
//! that yields the bits of a step directly.

use std::arch::x86_64::{
    __m128i, __m512i, _mm_loadu_si128, _mm512_add_epi64, _mm512_castsi128_si512,
    _mm512_cmplt_epu64_mask, _mm512_inserti32x4, _mm512_min_epu64, _mm512_mul_epu32,
    _mm512_set1_epi32, _mm512_set1_epi64, _mm512_setzero_si512, _mm512_slli_epi64,
    _mm512_srli_epi64, _mm512_unpackhi_epi64, _mm512_unpacklo_epi64, _mm512_xor_si512,
};

use super::block::{Block, GROUP, Markers};
use crate::gear::{MARKER_THRESHOLD, WINDOW};

/// Fills the candidate bits of a block and adds the places of markers.
///
/// # Safety
/// Needs AVX-512F.
#[target_feature(enable = "avx512f")]
pub(super) unsafe fn scan(block: &Block<'_>, bits: &mut [u8], markers: &mut Markers) {
    let tokens = block.tokens();
    let secret = _mm512_set1_epi32(block.secret as i32);
    let threshold = _mm512_set1_epi64(block.threshold as i64);
    let marker = _mm512_set1_epi64(MARKER_THRESHOLD as i64);
    let mut state = _mm512_setzero_si512();
    let mut least = state;
    for step in (0..WINDOW).step_by(4) {
        let tokens = load(tokens, step, block.stride, secret);
        four_steps(&mut state, &mut least, tokens, threshold);
    }
    for step in (0..block.stride).step_by(GROUP) {
        least = _mm512_set1_epi64(-1);
        let first = load(tokens, WINDOW + step, block.stride, secret);
        let rows = four_steps(&mut state, &mut least, first, threshold);
        let second = load(tokens, WINDOW + step + 4, block.stride, secret);
        let more = four_steps(&mut state, &mut least, second, threshold);
        // Safety: `bits` was made for this block, and `step` is a multiple of GROUP below stride.
        unsafe { block.store_rows(step, rows | more << 32, bits) };
        if _mm512_cmplt_epu64_mask(least, marker) != 0 {
            block.collect_markers(step, markers);
        }
    }
}

/// Advances all stretches by four tokens; byte `i` of the result says which are below the threshold
/// after token `i`.
#[inline]
#[target_feature(enable = "avx512f")]
fn four_steps(
    state: &mut __m512i,
    least: &mut __m512i,
    tokens: [__m512i; 4],
    threshold: __m512i,
) -> u64 {
    let mut row = |token: __m512i| {
        *state = roll_lanes(*state, token);
        *least = _mm512_min_epu64(*least, *state);
        u64::from(_mm512_cmplt_epu64_mask(*state, threshold))
    };
    let [first, second, third, fourth] = tokens;
    row(first) | row(second) << 8 | row(third) << 16 | row(fourth) << 24
}

/// Loads the tokens `[at, at + 4)` of each stretch: one register for each step, a token in the
/// lower half of each lane.
#[inline]
#[target_feature(enable = "avx512f")]
#[allow(clippy::cast_ptr_alignment)] // The load needs no alignment.
fn load(tokens: &[u32], at: usize, stride: usize, secret: __m512i) -> [__m512i; 4] {
    debug_assert!(at + 7 * stride + 4 <= tokens.len());
    let lane = |lane: usize| {
        // Safety: callers stay inside the block: its window, then `stride` tokens for each lane.
        unsafe { _mm_loadu_si128(tokens.as_ptr().add(at + lane * stride).cast::<__m128i>()) }
    };
    let four = |first: usize| {
        let quarters = _mm512_castsi128_si512(lane(first));
        let quarters = _mm512_inserti32x4::<1>(quarters, lane(first + 2));
        let quarters = _mm512_inserti32x4::<2>(quarters, lane(first + 4));
        _mm512_xor_si512(_mm512_inserti32x4::<3>(quarters, lane(first + 6)), secret)
    };
    let (even, odd) = (four(0), four(1));
    let (low, high) = (
        _mm512_unpacklo_epi64(even, odd),
        _mm512_unpackhi_epi64(even, odd),
    );
    [
        low,
        _mm512_srli_epi64::<32>(low),
        high,
        _mm512_srli_epi64::<32>(high),
    ]
}

/// [`crate::gear::roll`] in eight lanes.
#[inline]
#[target_feature(enable = "avx512f")]
fn roll_lanes(hash: __m512i, token: __m512i) -> __m512i {
    let a = _mm512_mul_epu32(token, _mm512_set1_epi64(0x9E37_79B1));
    let low = _mm512_mul_epu32(_mm512_srli_epi64::<13>(a), _mm512_set1_epi64(0xF2D4_A6C7));
    let mixed = _mm512_add_epi64(low, _mm512_slli_epi64::<32>(a));
    _mm512_add_epi64(_mm512_add_epi64(hash, hash), mixed)
}
