//! Tokens -> candidate bits, eight stretches of the text at a time. AVX2.
//!
//! Knows nothing of chunk sizes. Bit-identical to the scalar scan in `scan.rs`.
//!
//! A stretch is one lane of 64-bit state; four make a register. Loads of four tokens from each of
//! four stretches are turned into registers of two tokens per lane (`vinserti128`, `vpunpckqdq`):
//! the 32-bit multiply ignores the upper one, and one shift brings it down. Candidates are too
//! frequent at the default sizes to be searched for by branches, so the comparison of every step
//! is kept as a byte, and eight of those are transposed to one byte per stretch.

use std::arch::x86_64::{
    __m128i, __m256i, _mm_loadu_si128, _mm256_add_epi64, _mm256_castps_si256,
    _mm256_castsi128_si256, _mm256_castsi256_ps, _mm256_cmpeq_epi32, _mm256_cmpgt_epi64,
    _mm256_inserti128_si256, _mm256_min_epu32, _mm256_movemask_epi8, _mm256_movemask_ps,
    _mm256_mul_epu32, _mm256_set1_epi32, _mm256_set1_epi64x, _mm256_setzero_si256,
    _mm256_shuffle_ps, _mm256_slli_epi64, _mm256_srli_epi64, _mm256_unpackhi_epi64,
    _mm256_unpacklo_epi64, _mm256_xor_si256,
};

use super::block::{Block, GROUP, Markers};
use crate::gear::WINDOW;

/// The states of all stretches: 0, 1, 4, 5 in `a` and 2, 3, 6, 7 in `b`, an order in which the
/// upper halves of both shuffle into 0..8.
#[derive(Clone, Copy)]
struct State {
    a: __m256i,
    b: __m256i,
}

/// The tokens of one step, in the lower halves of the lanes.
#[derive(Clone, Copy)]
struct Tokens {
    a: __m256i,
    b: __m256i,
}

/// Fills the candidate bits of a block and adds the places of markers.
///
/// # Safety
/// Needs AVX2.
#[target_feature(enable = "avx2")]
pub(super) unsafe fn scan(block: &Block<'_>, bits: &mut [u8], markers: &mut Markers) {
    if block.threshold as u32 == 0 {
        scan_as::<false>(block, bits, markers);
    } else {
        scan_as::<true>(block, bits, markers);
    }
}

/// Compares on all 64 bits when `EXACT`, else on the upper 32, which suffices when the lower half
/// of the threshold is zero.
#[target_feature(enable = "avx2")]
fn scan_as<const EXACT: bool>(block: &Block<'_>, bits: &mut [u8], markers: &mut Markers) {
    let tokens = block.tokens();
    let secret = _mm256_set1_epi32(block.secret as i32);
    let mut state = State {
        a: _mm256_setzero_si256(),
        b: _mm256_setzero_si256(),
    };
    let limit = Limit::new(block.threshold);
    let mut least = _mm256_setzero_si256();
    for step in (0..WINDOW).step_by(4) {
        let tokens = load(tokens, step, block.stride, secret);
        four_steps::<EXACT>(&mut state, &mut least, tokens, &limit);
    }
    for step in (0..block.stride).step_by(GROUP) {
        least = _mm256_set1_epi32(-1);
        let first = load(tokens, WINDOW + step, block.stride, secret);
        let rows = four_steps::<EXACT>(&mut state, &mut least, first, &limit);
        let second = load(tokens, WINDOW + step + 4, block.stride, secret);
        let more = four_steps::<EXACT>(&mut state, &mut least, second, &limit);
        // Safety: `bits` was made for this block, and `step` is a multiple of GROUP below stride.
        unsafe { block.store_rows(step, rows | more << 32, bits) };
        let zero = _mm256_cmpeq_epi32(least, _mm256_setzero_si256());
        if _mm256_movemask_epi8(zero) != 0 {
            block.collect_markers(step, markers);
        }
    }
}

/// Advances all stretches by four tokens; byte `i` of the result says which are below the limit
/// after token `i`. Written out, because the compiler keeps it a loop otherwise.
#[inline]
#[target_feature(enable = "avx2")]
fn four_steps<const EXACT: bool>(
    state: &mut State,
    least: &mut __m256i,
    tokens: [Tokens; 4],
    limit: &Limit,
) -> u64 {
    let mut row = |tokens: Tokens| {
        state.a = roll_lanes(state.a, tokens.a);
        state.b = roll_lanes(state.b, tokens.b);
        let upper = upper_halves(*state);
        *least = _mm256_min_epu32(*least, upper);
        u64::from(limit.below::<EXACT>(*state, upper))
    };
    let [first, second, third, fourth] = tokens;
    row(first) | row(second) << 8 | row(third) << 16 | row(fourth) << 24
}

/// The cut threshold in the forms that the comparisons take.
struct Limit {
    /// Largest upper half that is below the threshold, where its lower half is zero.
    upper: __m256i,
    /// The threshold with its sign flipped, for the signed comparison of 64 bits.
    signed: __m256i,
    sign: __m256i,
}

impl Limit {
    #[target_feature(enable = "avx2")]
    fn new(threshold: u64) -> Self {
        let sign = 1_u64 << 63;
        Self {
            upper: _mm256_set1_epi32(((threshold >> 32) as u32).wrapping_sub(1) as i32),
            signed: _mm256_set1_epi64x((threshold ^ sign) as i64),
            sign: _mm256_set1_epi64x(sign as i64),
        }
    }

    /// One bit per stretch: its state is below the threshold.
    #[inline]
    #[target_feature(enable = "avx2")]
    fn below<const EXACT: bool>(&self, state: State, upper: __m256i) -> u8 {
        let mask = if EXACT {
            let below = |h| _mm256_cmpgt_epi64(self.signed, _mm256_xor_si256(h, self.sign));
            upper_halves(State {
                a: below(state.a),
                b: below(state.b),
            })
        } else {
            _mm256_cmpeq_epi32(_mm256_min_epu32(upper, self.upper), upper)
        };
        _mm256_movemask_ps(_mm256_castsi256_ps(mask)) as u8
    }
}

/// Loads the tokens `[at, at + 4)` of each stretch.
#[inline]
#[target_feature(enable = "avx2")]
#[allow(clippy::cast_ptr_alignment)] // The load needs no alignment.
fn load(tokens: &[u32], at: usize, stride: usize, secret: __m256i) -> [Tokens; 4] {
    debug_assert!(at + 7 * stride + 4 <= tokens.len());
    let lane = |lane: usize| {
        // Safety: callers stay inside the block: its window, then `stride` tokens for each lane.
        unsafe { _mm_loadu_si128(tokens.as_ptr().add(at + lane * stride).cast::<__m128i>()) }
    };
    let pair = |low: usize, high: usize| {
        let low = _mm256_castsi128_si256(lane(low));
        _mm256_xor_si256(_mm256_inserti128_si256::<1>(low, lane(high)), secret)
    };
    let (a04, a15, b26, b37) = (pair(0, 4), pair(1, 5), pair(2, 6), pair(3, 7));
    let low = Tokens {
        a: _mm256_unpacklo_epi64(a04, a15),
        b: _mm256_unpacklo_epi64(b26, b37),
    };
    let high = Tokens {
        a: _mm256_unpackhi_epi64(a04, a15),
        b: _mm256_unpackhi_epi64(b26, b37),
    };
    let upper = |pair: Tokens| Tokens {
        a: _mm256_srli_epi64::<32>(pair.a),
        b: _mm256_srli_epi64::<32>(pair.b),
    };
    [low, upper(low), high, upper(high)]
}

/// [`crate::gear::roll`] in four lanes. Doubling by addition, because shifts share two ports.
#[inline]
#[target_feature(enable = "avx2")]
fn roll_lanes(hash: __m256i, token: __m256i) -> __m256i {
    let a = _mm256_mul_epu32(token, _mm256_set1_epi64x(0x9E37_79B1));
    let low = _mm256_mul_epu32(_mm256_srli_epi64::<13>(a), _mm256_set1_epi64x(0xF2D4_A6C7));
    let mixed = _mm256_add_epi64(low, _mm256_slli_epi64::<32>(a));
    _mm256_add_epi64(_mm256_add_epi64(hash, hash), mixed)
}

/// The upper halves of all eight states, in the order of the stretches.
#[inline]
#[target_feature(enable = "avx2")]
fn upper_halves(state: State) -> __m256i {
    let (a, b) = (_mm256_castsi256_ps(state.a), _mm256_castsi256_ps(state.b));
    _mm256_castps_si256(_mm256_shuffle_ps::<0b11_01_11_01>(a, b))
}
