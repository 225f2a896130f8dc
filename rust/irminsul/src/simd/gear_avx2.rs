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

use crate::gear::{MARKER_THRESHOLD, WINDOW, roll};
use crate::params::ChunkParams;
use crate::scan::Candidates;

/// Stretches of the text that are hashed at once.
const LANES: usize = 8;

/// Longest stretch. Not a multiple of 4 KiB, which would make the eight loads compete for one cache
/// set; eight of them fit the second-level cache together with what is hashed next.
const STRIDE: usize = 2064;

/// Shortest stretch that pays for its 64 tokens of warm-up.
const MIN_STRIDE: usize = 64;

/// Steps between two looks at whether any hash could be a marker's.
const GROUP: usize = 8;

/// Scans one block: up to eight stretches from where `found` stands. Returns false when too few
/// tokens are left for this to pay.
pub(crate) fn scan_block(found: &mut Candidates, text: &[u32], params: &ChunkParams) -> bool {
    let start = found.scanned();
    let stride = ((text.len() - start) / LANES).min(STRIDE) / GROUP * GROUP;
    if start < WINDOW || stride < MIN_STRIDE || !is_x86_feature_detected!("avx2") {
        return false;
    }
    let mut markers = Vec::new();
    let block = Block {
        text,
        start,
        stride,
        secret: params.secret(),
    };
    let bits = found.next_bytes(LANES * stride);
    // Safety: AVX2 was detected. `start >= WINDOW`, `start + LANES * stride <= text.len()`, and
    // `bits` has LANES * stride / 8 bytes.
    unsafe {
        if params.threshold() as u32 == 0 {
            block.scan::<false>(params.threshold(), bits, &mut markers);
        } else {
            block.scan::<true>(params.threshold(), bits, &mut markers);
        }
    }
    found.add_markers(&mut markers);
    true
}

struct Block<'a> {
    text: &'a [u32],
    start: usize,
    stride: usize,
    secret: u32,
}

/// The states of all stretches: 0, 1, 4, 5 in `a` and 2, 3, 6, 7 in `b`, an order in which the
/// upper halves of both shuffle into 0..8.
#[derive(Clone, Copy)]
struct State {
    a: __m256i,
    b: __m256i,
}

/// Four steps of tokens: registers with tokens 0 and 1, and 2 and 3, of each stretch.
struct Tokens {
    a: [__m256i; 2],
    b: [__m256i; 2],
}

impl Block<'_> {
    /// Compares on all 64 bits when `EXACT`, else on the upper 32, which suffices when the lower
    /// half of the threshold is zero.
    ///
    /// # Safety
    /// Needs AVX2, WINDOW tokens before `start`, LANES * stride after it, and a bit for each.
    #[target_feature(enable = "avx2")]
    unsafe fn scan<const EXACT: bool>(
        &self,
        threshold: u64,
        bits: &mut [u8],
        markers: &mut Vec<usize>,
    ) {
        // Safety: the caller's promise covers every token from `start - WINDOW` on.
        let first = unsafe { self.text.as_ptr().add(self.start) };
        let secret = _mm256_set1_epi32(self.secret as i32);
        let mut state = State {
            a: _mm256_setzero_si256(),
            b: _mm256_setzero_si256(),
        };
        for step in (0..WINDOW).step_by(4) {
            // Safety: these are the WINDOW tokens before each stretch.
            let tokens = unsafe { load(first.sub(WINDOW).add(step), self.stride, secret) };
            for t in 0..4 {
                state = advance(state, &tokens, t);
            }
        }
        let limit = Limit::new(threshold);
        let stride_bytes = self.stride / 8;
        for step in (0..self.stride).step_by(GROUP) {
            let mut rows = 0_u64;
            let mut least = _mm256_set1_epi32(-1);
            for half in 0..2 {
                // Safety: `step + 8 <= stride`, so these are tokens of the stretches.
                let tokens = unsafe { load(first.add(step + 4 * half), self.stride, secret) };
                for t in 0..4 {
                    state = advance(state, &tokens, t);
                    let upper = upper_halves(state);
                    least = _mm256_min_epu32(least, upper);
                    let row = limit.below::<EXACT>(state, upper);
                    rows |= u64::from(row) << (8 * (4 * half + t));
                }
            }
            let columns = transpose(rows).to_le_bytes();
            for (lane, column) in columns.into_iter().enumerate() {
                bits[lane * stride_bytes + step / 8] = column;
            }
            let zero = _mm256_cmpeq_epi32(least, _mm256_setzero_si256());
            if _mm256_movemask_epi8(zero) != 0 {
                self.collect_markers(step, markers);
            }
        }
    }

    /// Looks at one group of steps hash by hash: some upper half is zero there.
    #[cold]
    fn collect_markers(&self, step: usize, markers: &mut Vec<usize>) {
        for lane in 0..LANES {
            let at = self.start + lane * self.stride + step;
            let window = &self.text[at - WINDOW..at];
            let mut hash = window
                .iter()
                .fold(0, |hash, &token| roll(hash, token ^ self.secret));
            for index in at..at + GROUP {
                hash = roll(hash, self.text[index] ^ self.secret);
                if hash < MARKER_THRESHOLD {
                    markers.push(index);
                }
            }
        }
    }
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
///
/// # Safety
/// `at + lane * stride` must be readable for four tokens, for each of the eight lanes.
#[inline]
#[target_feature(enable = "avx2")]
#[allow(clippy::cast_ptr_alignment)] // The load has no alignment.
unsafe fn load(at: *const u32, stride: usize, secret: __m256i) -> Tokens {
    // Safety: the caller's promise; loads need no alignment.
    let lane = |lane: usize| unsafe { _mm_loadu_si128(at.add(lane * stride).cast::<__m128i>()) };
    let pair = |low: usize, high: usize| {
        let low = _mm256_castsi128_si256(lane(low));
        _mm256_xor_si256(_mm256_inserti128_si256::<1>(low, lane(high)), secret)
    };
    let (a04, a15, b26, b37) = (pair(0, 4), pair(1, 5), pair(2, 6), pair(3, 7));
    Tokens {
        a: [
            _mm256_unpacklo_epi64(a04, a15),
            _mm256_unpackhi_epi64(a04, a15),
        ],
        b: [
            _mm256_unpacklo_epi64(b26, b37),
            _mm256_unpackhi_epi64(b26, b37),
        ],
    }
}

/// One step of all stretches, with token `t` of the four loaded.
#[inline]
#[target_feature(enable = "avx2")]
fn advance(state: State, tokens: &Tokens, t: usize) -> State {
    let pick = |pair: __m256i| {
        if t.is_multiple_of(2) {
            pair
        } else {
            _mm256_srli_epi64::<32>(pair)
        }
    };
    State {
        a: roll_lanes(state.a, pick(tokens.a[t / 2])),
        b: roll_lanes(state.b, pick(tokens.b[t / 2])),
    }
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

/// Transposes 8 x 8 bits.
#[inline]
fn transpose(x: u64) -> u64 {
    let swap = |x: u64, shift: u32, mask: u64| {
        let t = (x ^ (x >> shift)) & mask;
        x ^ t ^ (t << shift)
    };
    let x = swap(x, 7, 0x00AA_00AA_00AA_00AA);
    let x = swap(x, 14, 0x0000_CCCC_0000_CCCC);
    swap(x, 28, 0x0000_0000_F0F0_F0F0)
}
