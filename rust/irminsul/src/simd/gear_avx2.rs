//! Tokens -> candidate bits, eight stretches of the text at a time. AVX2.
//!
//! Knows nothing of chunk sizes. Bit-identical to the scalar scan in `scan.rs`.
//!
//! A stretch is one lane of 64-bit state; four make a register. Loads of four tokens from each of
//! four stretches are turned into registers of two tokens per lane: the 32-bit multiply ignores
//! the upper one, and one shift brings it down. The mixed value is `low * C + (a << 32)`. Its second
//! term touches upper halves only, so its sum is kept apart in eight lanes of 32 bits, which
//! saves half of its shifts and additions.
//!
//! At the default sizes every 64th token is a candidate, too many to search for by branches, so all
//! comparisons are kept, as one bit of a word per stretch. They look at the upper halves of the
//! hashes; what these do not decide (a marker, or a tie with the threshold) is so rare that the
//! whole group is looked at again.
//!
//! `unit.rs` has the same steps in assembly for whole groups; these here do the rest of a stretch, and
//! everything where the code is interpreted.

use std::arch::x86_64::{
    __m128i, __m256i, _mm_loadu_si128, _mm256_add_epi32, _mm256_add_epi64, _mm256_and_si256,
    _mm256_blend_epi32, _mm256_broadcastsi128_si256, _mm256_castsi128_si256, _mm256_cmpeq_epi32,
    _mm256_cmpgt_epi64, _mm256_min_epu32, _mm256_movemask_epi8, _mm256_mul_epu32, _mm256_or_si256,
    _mm256_set1_epi32, _mm256_set1_epi64x, _mm256_setzero_si256, _mm256_srli_epi64,
    _mm256_unpackhi_epi32, _mm256_unpackhi_epi64, _mm256_unpacklo_epi32, _mm256_unpacklo_epi64,
    _mm256_xor_si256,
};

use super::avx2::{lanes, opaque, read, shuffle};
use super::block::{Bits, Block, GROUP, LANES, Rare, Seen};
use super::looks::Looks;
#[cfg(not(miri))]
use super::unit::{self, Desk, Factors, Lanes};
use crate::gear::{MARKER_THRESHOLD, WINDOW};

/// The factors of the mixing.
const FIRST: i64 = 0x9E37_79B1;
const SECOND: i64 = 0xF2D4_A6C7;

/// The hashes of stretches 0, 1, 4, 5 are `a` and those of 2, 3, 6, 7 are `b`, an order in which
/// halves of both shuffle into 0..8; to the upper halves, `upper` is to be added.
#[derive(Clone, Copy)]
struct State {
    a: __m256i,
    b: __m256i,
    upper: __m256i,
}

/// The tokens of one step, in the lower halves of the lanes.
#[derive(Clone, Copy)]
struct Tokens {
    a: __m256i,
    b: __m256i,
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

/// Fills the candidate bits of a block and, if there are any, those of markers; takes looks meanwhile.
///
/// # Safety
/// Needs AVX2 and BMI1.
#[target_feature(enable = "avx2")]
pub(super) unsafe fn scan(
    block: &Block<'_>,
    content: Bits<'_>,
    markers: Rare<'_>,
    looks: &mut Looks<'_>,
) -> Seen {
    let scan = Scan {
        block,
        content,
        markers,
        state: State::new(),
    };
    match (block.secret != 0, block.threshold as u32 != 0) {
        (false, false) => scan.run::<false, false>(looks),
        (false, true) => scan.run::<false, true>(looks),
        (true, false) => scan.run::<true, false>(looks),
        (true, true) => scan.run::<true, true>(looks),
    }
}

/// A block under way.
struct Scan<'a> {
    block: &'a Block<'a>,
    content: Bits<'a>,
    markers: Rare<'a>,
    state: State,
}

/// `KEYED`: the secret is not 0. `TIES`: the lower half of the threshold is not 0.
impl Scan<'_> {
    #[target_feature(enable = "avx2")]
    fn run<const KEYED: bool, const TIES: bool>(mut self, looks: &mut Looks<'_>) -> Seen {
        for step in (0..WINDOW).step_by(4) {
            for tokens in load::<KEYED>(self.block, step) {
                self.state = advance(self.state, tokens);
            }
        }
        let first = hashes(self.state)[0];
        let limit = Limit::new(self.block.threshold);
        let done = self.whole_groups::<KEYED, TIES>(&limit, looks);
        for step in (done..self.block.stride).step_by(GROUP) {
            let before = self.state;
            let (bits, doubtful) = group::<KEYED, TIES>(self.block, &mut self.state, step, &limit);
            self.content.store(step, lanes(bits));
            if _mm256_movemask_epi8(doubtful) != 0 {
                if TIES {
                    let bits = exact::<KEYED>(self.block, before, step, self.block.threshold);
                    self.content.store(step, bits);
                }
                self.mark::<KEYED>(before, step);
            }
        }
        Seen {
            first,
            last: hashes(self.state)[LANES - 1],
        }
    }

    /// Intrinsics do it all.
    #[cfg(miri)]
    fn whole_groups<const KEYED: bool, const TIES: bool>(
        &mut self,
        _: &Limit,
        _: &mut Looks<'_>,
    ) -> usize {
        0
    }

    /// Advances by all whole groups of steps; returns how many steps these are. The words of each group
    /// are stored during the next.
    #[cfg(not(miri))]
    #[target_feature(enable = "avx2")]
    fn whole_groups<const KEYED: bool, const TIES: bool>(
        &mut self,
        limit: &Limit,
        looks: &mut Looks<'_>,
    ) -> usize {
        let block = self.block;
        let whole = block.stride / unit::GROUP * unit::GROUP;
        let factors = factors(limit);
        let mut desk = Desk::new(block.secret, block.threshold, looks);
        // There is no group before the first, so its words go nowhere.
        let mut nowhere = [0; 8 * LANES];
        let mut to = (nowhere[8 * (LANES - 1)..].as_mut_ptr(), 8);
        for step in (0..whole).step_by(unit::GROUP) {
            let before = self.state;
            let mut lanes = self.state.lanes();
            let at = (block.quads(WINDOW + step), block.stride);
            let index = step / unit::GROUP;
            // Safety: AVX2 and BMI1; `quads` vouches for the tokens, `last_word` for the words.
            unsafe { unit::group::<KEYED, TIES>(&mut lanes, &factors, &mut desk, index, at, to) };
            self.state = State::from(lanes);
            to = self.content.last_word(step);
            let doubtful = _mm256_or_si256(lanes.ties, zeros(lanes.least));
            if _mm256_movemask_epi8(doubtful) != 0 {
                self.doubt::<KEYED, TIES>(before, step, &mut desk);
            }
        }
        if let Some(last) = whole.checked_sub(unit::GROUP) {
            let rows = &desk.rows[last / unit::GROUP % 2];
            for (half, rows) in rows.as_chunks().0.iter().enumerate() {
                self.content.store(last + half * GROUP, words(rows));
            }
        }
        desk.settle(looks);
        whole
    }

    /// Looks at a group of the assembly again.
    #[cfg(not(miri))]
    #[cold]
    #[target_feature(enable = "avx2")]
    fn doubt<const KEYED: bool, const TIES: bool>(
        &mut self,
        mut before: State,
        step: usize,
        desk: &mut Desk,
    ) {
        let rows = &mut desk.rows[step / unit::GROUP % 2];
        for (half, rows) in rows.as_chunks_mut::<GROUP>().0.iter_mut().enumerate() {
            let step = step + half * GROUP;
            if TIES {
                let bits = exact::<KEYED>(self.block, before, step, self.block.threshold);
                *rows = turned(bits);
            }
            self.mark::<KEYED>(before, step);
            for at in (0..GROUP).step_by(4) {
                for tokens in load::<KEYED>(self.block, WINDOW + step + at) {
                    before = advance(before, tokens);
                }
            }
        }
    }

    /// Looks for markers in a group of steps.
    #[cold]
    #[target_feature(enable = "avx2")]
    fn mark<const KEYED: bool>(&mut self, before: State, step: usize) {
        let bits = exact::<KEYED>(self.block, before, step, MARKER_THRESHOLD);
        self.markers.store(self.block, step, bits);
    }
}

impl State {
    #[target_feature(enable = "avx2")]
    fn new() -> Self {
        let zero = _mm256_setzero_si256();
        Self {
            a: zero,
            b: zero,
            upper: zero,
        }
    }

    #[cfg(not(miri))]
    #[target_feature(enable = "avx2")]
    fn lanes(self) -> Lanes {
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

/// What the assembly multiplies by and compares with.
#[cfg(not(miri))]
#[target_feature(enable = "avx2")]
fn factors(limit: &Limit) -> Factors {
    Factors {
        first: _mm256_set1_epi64x(FIRST),
        second: _mm256_set1_epi64x(SECOND),
        below: limit.below,
    }
}

#[inline]
#[target_feature(enable = "avx2")]
fn zeros(lanes: __m256i) -> __m256i {
    _mm256_cmpeq_epi32(lanes, _mm256_setzero_si256())
}

/// Rows of a bit for each lane -> words of a bit for each row.
#[cfg(not(miri))]
fn words(rows: &[u8; GROUP]) -> [u32; LANES] {
    std::array::from_fn(|lane| {
        let bits = rows.iter().enumerate();
        bits.fold(0, |word, (row, byte)| {
            word | u32::from(byte >> lane & 1) << row
        })
    })
}

/// Words of a bit for each row -> rows of a bit for each lane.
#[cfg(not(miri))]
fn turned(words: [u32; LANES]) -> [u8; GROUP] {
    std::array::from_fn(|row| {
        let bits = words.iter().enumerate();
        bits.fold(0, |byte, (lane, word)| {
            byte | ((word >> row & 1) as u8) << lane
        })
    })
}

/// The cut threshold in the forms that comparisons of upper halves take.
struct Limit {
    /// Largest upper half that is certainly below the threshold.
    below: __m256i,
    /// The upper half that does not decide, where the lower half of the threshold is not zero.
    tie: __m256i,
}

impl Limit {
    #[target_feature(enable = "avx2")]
    fn new(threshold: u64) -> Self {
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
fn group<const KEYED: bool, const TIES: bool>(
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
fn exact<const KEYED: bool>(
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
fn load<const KEYED: bool>(block: &Block<'_>, at: usize) -> [Tokens; 4] {
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
fn advance(state: State, tokens: Tokens) -> State {
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
fn hashes(state: State) -> [u64; LANES] {
    let (a, b) = whole(state);
    let (low, high) = (
        lanes(shuffle::<0b10_00_10_00>(a, b)),
        lanes(shuffle::<0b11_01_11_01>(a, b)),
    );
    std::array::from_fn(|lane| u64::from(low[lane]) | u64::from(high[lane]) << 32)
}
