//! Tokens of eight stretches -> their rolling hashes and which of these are small, step by step. AVX2.
//!
//! Knows nothing of a block's bits. `unit.rs` has the same steps in assembly for whole groups; these do
//! the rest of a stretch, and everything where the code is interpreted.
//!
//! A stretch is one lane of 64-bit state; four make a register. Loads of four tokens from each of
//! four stretches are turned into registers of two tokens per lane: the 32-bit multiply ignores
//! the upper one, and one shift brings it down. The mixed value is `low * C + (a << 32)`. Its second
//! term touches upper halves only, so its sum is kept apart in eight lanes of 32 bits, which
//! saves half of its shifts and additions.

use std::arch::x86_64::{
    __m128i, __m256i, _mm_loadu_si128, _mm256_add_epi32, _mm256_add_epi64, _mm256_and_si256,
    _mm256_blend_epi32, _mm256_broadcastsi128_si256, _mm256_castsi128_si256, _mm256_cmpeq_epi32,
    _mm256_cmpgt_epi64, _mm256_min_epu32, _mm256_mul_epu32, _mm256_or_si256, _mm256_set1_epi32,
    _mm256_set1_epi64x, _mm256_setzero_si256, _mm256_srli_epi64, _mm256_unpackhi_epi32,
    _mm256_unpackhi_epi64, _mm256_unpacklo_epi32, _mm256_unpacklo_epi64, _mm256_xor_si256,
};

use super::avx2::{lanes, opaque, read, shuffle};
use super::block::{Block, GROUP, LANES};
#[cfg(not(miri))]
use super::unit::Lanes;
use crate::gear::WINDOW;

/// The factors of the mixing.
pub(super) const FIRST: i64 = 0x9E37_79B1;
pub(super) const SECOND: i64 = 0xF2D4_A6C7;

/// The hashes of stretches 0, 1, 4, 5 are `a` and those of 2, 3, 6, 7 are `b`, an order in which
/// halves of both shuffle into 0..8; to the upper halves, `upper` is to be added.
#[derive(Clone, Copy)]
pub(super) struct State {
    pub(super) a: __m256i,
    pub(super) b: __m256i,
    pub(super) upper: __m256i,
}

/// The tokens of one step, in the lower halves of the lanes.
#[derive(Clone, Copy)]
pub(super) struct Tokens {
    pub(super) a: __m256i,
    pub(super) b: __m256i,
}

/// Bit `i` of every lane, for step `i` of a group.
#[repr(align(32))]
struct StepBits([[u32; LANES]; GROUP]);

static BITS: StepBits = {
    let mut bits = [[0; LANES]; GROUP];
    let mut step = 0;
    while step < GROUP {
        bits[step] = [1 << step; LANES];
        step += 1;
    }
    StepBits(bits)
};

impl State {
    #[target_feature(enable = "avx2")]
    pub(super) fn new() -> Self {
        let zero = _mm256_setzero_si256();
        Self {
            a: zero,
            b: zero,
            upper: zero,
        }
    }

    #[cfg(not(miri))]
    #[target_feature(enable = "avx2")]
    pub(super) fn lanes(self) -> Lanes {
        Lanes {
            a: self.a,
            b: self.b,
            upper: self.upper,
            least: _mm256_set1_epi32(-1),
            ties: _mm256_setzero_si256(),
        }
    }
}

#[cfg(not(miri))]
impl From<Lanes> for State {
    fn from(Lanes { a, b, upper, .. }: Lanes) -> Self {
        Self { a, b, upper }
    }
}

#[inline]
#[target_feature(enable = "avx2")]
pub(super) fn zeros(lanes: __m256i) -> __m256i {
    _mm256_cmpeq_epi32(lanes, _mm256_setzero_si256())
}

/// The cut threshold in the forms that comparisons of upper halves take.
pub(super) struct Limit {
    /// Largest upper half that is certainly below the threshold.
    pub(super) below: __m256i,
    /// The upper half that does not decide, where the lower half of the threshold is not zero.
    pub(super) tie: __m256i,
}

impl Limit {
    #[target_feature(enable = "avx2")]
    pub(super) fn new(threshold: u64) -> Self {
        // At least 2^12, since no chunk may be longer than 2^20.
        let upper = (threshold >> 32) as i32;
        Self {
            below: _mm256_set1_epi32(upper.wrapping_sub(1)),
            tie: _mm256_set1_epi32(upper),
        }
    }
}

/// Advances all stretches by a group of steps. Returns the candidate bits, and ones where they may
/// be wrong or where there may be markers.
#[inline]
#[target_feature(enable = "avx2")]
pub(super) fn group<const KEYED: bool, const TIES: bool>(
    block: &Block<'_>,
    state: &mut State,
    step: usize,
    limit: &Limit,
) -> (__m256i, __m256i) {
    let zero = _mm256_setzero_si256();
    let (mut found, mut least, mut ties) = (zero, _mm256_set1_epi32(-1), zero);
    let count = (block.stride - step).min(GROUP);
    for (at, bits) in (0..count).step_by(4).zip(BITS.0.as_chunks::<4>().0) {
        for (tokens, bit) in load::<KEYED>(block, WINDOW + step + at)
            .into_iter()
            .zip(bits)
        {
            *state = advance(*state, tokens);
            let upper = upper_halves(*state);
            least = _mm256_min_epu32(least, upper);
            if TIES {
                ties = _mm256_or_si256(ties, _mm256_cmpeq_epi32(upper, limit.tie));
            }
            let below = _mm256_cmpeq_epi32(_mm256_min_epu32(upper, limit.below), upper);
            found = _mm256_or_si256(found, _mm256_and_si256(below, read(bit)));
        }
    }
    (found, _mm256_or_si256(ties, zeros(least)))
}

/// The bits of a group again, by comparing all 64 bits of the hashes.
#[cold]
#[target_feature(enable = "avx2")]
pub(super) fn exact<const KEYED: bool>(
    block: &Block<'_>,
    mut state: State,
    step: usize,
    threshold: u64,
) -> [u32; LANES] {
    let sign = _mm256_set1_epi64x(i64::MIN);
    let limit = _mm256_set1_epi64x(threshold as i64 ^ i64::MIN);
    let mut found = _mm256_setzero_si256();
    let count = (block.stride - step).min(GROUP);
    for (at, bits) in (0..count).step_by(4).zip(BITS.0.as_chunks::<4>().0) {
        for (tokens, bit) in load::<KEYED>(block, WINDOW + step + at)
            .into_iter()
            .zip(bits)
        {
            state = advance(state, tokens);
            let (a, b) = whole(state);
            let below = |hash| _mm256_cmpgt_epi64(limit, _mm256_xor_si256(hash, sign));
            let below = shuffle::<0b11_01_11_01>(below(a), below(b));
            found = _mm256_or_si256(found, _mm256_and_si256(below, read(bit)));
        }
    }
    lanes(found)
}

/// Loads the tokens `[at, at + 4)` of each stretch, counted from the start of its window.
///
/// `vinserti128` from memory would do the blend's work, but at half the rate.
#[inline]
#[target_feature(enable = "avx2")]
#[allow(clippy::cast_ptr_alignment)] // The loads need no alignment.
pub(super) fn load<const KEYED: bool>(block: &Block<'_>, at: usize) -> [Tokens; 4] {
    let first = block.quads(at);
    let lane = |lane: usize| {
        // Safety: `quads` vouches for four tokens at each multiple of the stride.
        unsafe { _mm_loadu_si128(first.add(lane * block.stride).cast::<__m128i>()) }
    };
    let secret = _mm256_set1_epi32(block.secret as i32);
    let pair = |low: usize, high: usize| {
        let high = opaque(_mm256_broadcastsi128_si256(lane(high)));
        let pair = _mm256_blend_epi32::<0xF0>(_mm256_castsi128_si256(lane(low)), high);
        if KEYED {
            _mm256_xor_si256(pair, secret)
        } else {
            pair
        }
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

/// [`crate::gear::roll`] in eight lanes. Doubling by addition, because shifts share two ports.
#[inline]
#[target_feature(enable = "avx2")]
pub(super) fn advance(state: State, tokens: Tokens) -> State {
    let (first, second) = (_mm256_set1_epi64x(FIRST), _mm256_set1_epi64x(SECOND));
    // Opaque, or the compiler makes two multiplications of it, one for each use.
    let a = opaque(_mm256_mul_epu32(tokens.a, first));
    let b = opaque(_mm256_mul_epu32(tokens.b, first));
    let roll = |hash, a| {
        let low = _mm256_mul_epu32(_mm256_srli_epi64::<13>(a), second);
        opaque(_mm256_add_epi64(_mm256_add_epi64(hash, hash), low))
    };
    let upper = _mm256_add_epi32(state.upper, state.upper);
    State {
        a: roll(state.a, a),
        b: roll(state.b, b),
        upper: opaque(_mm256_add_epi32(upper, shuffle::<0b10_00_10_00>(a, b))),
    }
}

/// The upper halves of all eight hashes, in the order of the stretches.
#[inline]
#[target_feature(enable = "avx2")]
fn upper_halves(state: State) -> __m256i {
    _mm256_add_epi32(shuffle::<0b11_01_11_01>(state.a, state.b), state.upper)
}

/// All 64 bits of the hashes, in the order of the state.
#[target_feature(enable = "avx2")]
fn whole(state: State) -> (__m256i, __m256i) {
    let zero = _mm256_setzero_si256();
    let (a, b) = (
        _mm256_unpacklo_epi32(zero, state.upper),
        _mm256_unpackhi_epi32(zero, state.upper),
    );
    (_mm256_add_epi64(state.a, a), _mm256_add_epi64(state.b, b))
}

/// All hashes, in the order of the stretches.
#[target_feature(enable = "avx2")]
pub(super) fn hashes(state: State) -> [u64; LANES] {
    let (a, b) = whole(state);
    let (low, high) = (
        lanes(shuffle::<0b10_00_10_00>(a, b)),
        lanes(shuffle::<0b11_01_11_01>(a, b)),
    );
    std::array::from_fn(|lane| u64::from(low[lane]) | u64::from(high[lane]) << 32)
}
