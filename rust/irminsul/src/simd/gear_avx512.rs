//! Tokens -> candidate bits, eight stretches of the text at a time. AVX-512.
//!
//! Knows nothing of chunk sizes. Bit-identical to the scalar scan in `scan.rs`.
//!
//! As `gear_avx2.rs`, with all eight states in one register, an unsigned comparison of 64 bits, and
//! a masked addition that collects its results.

use std::arch::x86_64::{
    __m128i, __m512i, _mm_loadu_si128, _mm512_add_epi64, _mm512_castsi128_si512,
    _mm512_cmpeq_epi32_mask, _mm512_cmplt_epu64_mask, _mm512_inserti32x4, _mm512_mask_or_epi64,
    _mm512_min_epu32, _mm512_mul_epu32, _mm512_set1_epi32, _mm512_set1_epi64, _mm512_setzero_si512,
    _mm512_slli_epi64, _mm512_srli_epi64, _mm512_storeu_si512, _mm512_unpackhi_epi64,
    _mm512_unpacklo_epi64, _mm512_xor_si512,
};

use super::block::{Bits, Block, GROUP, LANES, Rare, Seen};
use crate::gear::{MARKER_THRESHOLD, WINDOW};

/// The upper 32-bit halves in a mask of 16.
const UPPER: u16 = 0xAAAA;

/// Fills the candidate bits of a block and, if there are any, those of markers.
///
/// # Safety
/// Needs AVX-512F.
#[target_feature(enable = "avx512f")]
pub(super) unsafe fn scan(block: &Block<'_>, mut content: Bits<'_>, mut markers: Rare<'_>) -> Seen {
    let mut state = _mm512_setzero_si512();
    for step in (0..WINDOW).step_by(4) {
        for tokens in load(block, step) {
            state = advance(state, tokens);
        }
    }
    let first = lanes(state)[0];
    for step in (0..block.stride).step_by(GROUP) {
        let before = state;
        let (bits, near) = group(block, &mut state, step, block.threshold);
        content.store(step, bits);
        if near {
            let (bits, _) = group(block, &mut { before }, step, MARKER_THRESHOLD);
            markers.store(block, step, bits);
        }
    }
    Seen {
        first,
        last: lanes(state)[LANES - 1],
    }
}

/// Advances all stretches by a group of steps. Returns the bits of those that are below the
/// threshold, and whether there may be markers among them.
#[inline]
#[target_feature(enable = "avx512f")]
fn group(
    block: &Block<'_>,
    state: &mut __m512i,
    step: usize,
    threshold: u64,
) -> ([u32; LANES], bool) {
    let limit = _mm512_set1_epi64(threshold as i64);
    let (mut found, mut least) = (_mm512_setzero_si512(), _mm512_set1_epi32(-1));
    let count = (block.stride - step).min(GROUP);
    for at in (0..count).step_by(4) {
        for (t, tokens) in load(block, WINDOW + step + at).into_iter().enumerate() {
            *state = advance(*state, tokens);
            least = _mm512_min_epu32(least, *state);
            let below = _mm512_cmplt_epu64_mask(*state, limit);
            let bit = _mm512_set1_epi64(1 << (at + t));
            found = _mm512_mask_or_epi64(found, below, found, bit);
        }
    }
    let zero = _mm512_cmpeq_epi32_mask(least, _mm512_setzero_si512());
    (lanes(found).map(|bits| bits as u32), zero & UPPER != 0)
}

/// Loads the tokens `[at, at + 4)` of each stretch, counted from the start of its window: one
/// register for each step, a token in the lower half of each lane.
#[inline]
#[target_feature(enable = "avx512f")]
#[allow(clippy::cast_ptr_alignment)] // The loads need no alignment.
fn load(block: &Block<'_>, at: usize) -> [__m512i; 4] {
    let first = block.quads(at);
    let lane = |lane: usize| {
        // Safety: `quads` vouches for four tokens at each multiple of the stride.
        unsafe { _mm_loadu_si128(first.add(lane * block.stride).cast::<__m128i>()) }
    };
    let secret = _mm512_set1_epi32(block.secret as i32);
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
    let upper = |pair| _mm512_srli_epi64::<32>(pair);
    [low, upper(low), high, upper(high)]
}

/// [`crate::gear::roll`] in eight lanes.
#[inline]
#[target_feature(enable = "avx512f")]
fn advance(hash: __m512i, token: __m512i) -> __m512i {
    let a = _mm512_mul_epu32(token, _mm512_set1_epi64(0x9E37_79B1));
    let low = _mm512_mul_epu32(_mm512_srli_epi64::<13>(a), _mm512_set1_epi64(0xF2D4_A6C7));
    let mixed = _mm512_add_epi64(low, _mm512_slli_epi64::<32>(a));
    _mm512_add_epi64(_mm512_add_epi64(hash, hash), mixed)
}

#[inline]
#[target_feature(enable = "avx512f")]
fn lanes(value: __m512i) -> [u64; LANES] {
    let mut lanes = [0; LANES];
    // Safety: the array is 64 bytes long; the store needs no alignment.
    #[allow(clippy::cast_ptr_alignment)]
    unsafe {
        _mm512_storeu_si512(lanes.as_mut_ptr().cast::<__m512i>(), value);
    }
    lanes
}
