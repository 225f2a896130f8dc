//! Tokens -> candidate bits, eight stretches of the text at a time. AVX2.
//!
//! Knows nothing of chunk sizes. Bit-identical to the scalar scan in `scan.rs`.
//!
//! At the default sizes every 64th token is a candidate, too many to search for by branches, so all
//! comparisons are kept, as one bit of a word per stretch. They look at the upper halves of the
//! hashes; what these do not decide (a marker, or a tie with the threshold) is so rare that the
//! whole group is looked at again.

use std::arch::x86_64::_mm256_movemask_epi8;
#[cfg(not(miri))]
use std::arch::x86_64::{
    __m256i, _mm256_add_epi8, _mm256_loadu_si256, _mm256_or_si256, _mm256_set1_epi64x,
};

use super::avx2::lanes;
use super::block::{Bits, Block, GROUP, LANES, Rare, Seen};
use super::looks::Looks;
#[cfg(not(miri))]
use super::steps_avx2::{FIRST, SECOND, zeros};
use super::steps_avx2::{Limit, State, advance, exact, group, hashes, load};
#[cfg(not(miri))]
use super::unit::{self, Desk, Factors};
use crate::gear::{MARKER_THRESHOLD, WINDOW};

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

/// Rows of a bit for each lane -> words of a bit for each row.
#[cfg(not(miri))]
#[target_feature(enable = "avx2")]
fn words(rows: &[u8; GROUP]) -> [u32; LANES] {
    // Safety: a register is read from as many bytes; the load needs no alignment.
    #[allow(clippy::cast_ptr_alignment)]
    let mut rows = unsafe { _mm256_loadu_si256(rows.as_ptr().cast::<__m256i>()) };
    let mut words = [0; LANES];
    for word in words.iter_mut().rev() {
        *word = _mm256_movemask_epi8(rows) as u32;
        rows = _mm256_add_epi8(rows, rows);
    }
    words
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
