//! A text -> blocks of eight stretches, which the vector scans hash side by side.
//!
//! Knows nothing of instruction sets; it holds what all of them need and the rare scalar work.

use crate::gear::{MARKER_THRESHOLD, WINDOW, roll};
use crate::params::ChunkParams;
use crate::scan::Candidates;

/// Stretches of the text that are hashed at once.
pub(super) const LANES: usize = 8;

/// Longest stretch. Not a multiple of 4 KiB, which would make the eight loads compete for one cache
/// set; eight of them fit the second-level cache together with what is hashed next.
const STRIDE: usize = 2064;

/// Shortest stretch that pays for its 64 tokens of warm-up.
const MIN_STRIDE: usize = 64;

/// Steps between two looks at whether any hash could be a marker's.
pub(super) const GROUP: usize = 8;

/// Eight stretches in a row, with a whole window of tokens before the first.
pub(super) struct Block<'a> {
    text: &'a [u32],
    start: usize,
    pub(super) stride: usize,
    pub(super) secret: u32,
    pub(super) threshold: u64,
}

impl<'a> Block<'a> {
    /// The next block where `found` stands; none when too few tokens are left for it to pay.
    pub(super) fn next(found: &Candidates, text: &'a [u32], params: &ChunkParams) -> Option<Self> {
        let start = found.scanned();
        let stride = ((text.len() - start) / LANES).min(STRIDE) / GROUP * GROUP;
        let (secret, threshold) = (params.secret(), params.threshold());
        let pays = start >= WINDOW && stride >= MIN_STRIDE;
        pays.then_some(Self {
            text,
            start,
            stride,
            secret,
            threshold,
        })
    }

    /// Number of tokens.
    pub(super) fn len(&self) -> usize {
        LANES * self.stride
    }

    /// The tokens of the block with the window before them.
    pub(super) fn tokens(&self) -> &[u32] {
        &self.text[self.start - WINDOW..self.start + self.len()]
    }

    /// Looks at one group of steps hash by hash: one of them may be a marker's.
    #[cold]
    pub(super) fn collect_markers(&self, step: usize, markers: &mut Markers) {
        for lane in 0..LANES {
            let at = self.start + lane * self.stride + step;
            let (known, mut hash) = markers.hashes[lane];
            if known != at {
                let window = &self.text[at - WINDOW..at];
                hash = window
                    .iter()
                    .fold(0, |hash, &token| roll(hash, token ^ self.secret));
            }
            for index in at..at + GROUP {
                hash = roll(hash, self.text[index] ^ self.secret);
                if hash < MARKER_THRESHOLD {
                    markers.found[lane].push(index);
                }
            }
            markers.hashes[lane] = (at + GROUP, hash);
        }
    }

    /// Stores one bit per stretch for each of the eight steps from `step` on; row `i` of `rows`
    /// holds step `i`.
    ///
    /// # Safety
    /// `bits` has a bit for each token of the block, and `step + GROUP <= stride`.
    #[cfg(target_arch = "x86_64")]
    #[inline(always)] // A call would spill every vector register.
    #[allow(clippy::inline_always)]
    pub(super) unsafe fn store_rows(&self, step: usize, rows: u64, bits: &mut [u8]) {
        // Safety: the caller's promise.
        unsafe { self.store_columns(step, transpose(rows), bits) };
    }

    /// Stores eight steps from `step` on; byte `i` of `columns` belongs to stretch `i`.
    ///
    /// # Safety
    /// As [`Block::store_rows`].
    #[inline(always)]
    #[allow(clippy::inline_always)]
    pub(super) unsafe fn store_columns(&self, step: usize, columns: u64, bits: &mut [u8]) {
        debug_assert!(bits.len() == self.len() / 8 && step + GROUP <= self.stride);
        let mut at = step / 8;
        for column in columns.to_le_bytes() {
            // Safety: lane * stride / 8 + step / 8 is below LANES * stride / 8, by the promise.
            unsafe { *bits.get_unchecked_mut(at) = column };
            at += self.stride / 8;
        }
    }
}

/// Places of markers found in a block: in order within each lane, and lanes follow one another.
#[derive(Debug, Default)]
pub(super) struct Markers {
    pub(super) found: [Vec<usize>; LANES],
    /// For each lane, an index and the hash before it: a run of the id whose hash is zero is looked
    /// at group after group.
    hashes: [(usize, u64); LANES],
}

/// Transposes 8 x 8 bits.
#[cfg(any(target_arch = "x86_64", test))]
#[inline(always)]
#[allow(clippy::inline_always)]
fn transpose(x: u64) -> u64 {
    let swap = |x: u64, shift: u32, mask: u64| {
        let t = (x ^ (x >> shift)) & mask;
        x ^ t ^ (t << shift)
    };
    let x = swap(x, 7, 0x00AA_00AA_00AA_00AA);
    let x = swap(x, 14, 0x0000_CCCC_0000_CCCC);
    swap(x, 28, 0x0000_0000_F0F0_F0F0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn transposing_moves_bit_j_of_row_i_to_bit_i_of_row_j() {
        for (i, j) in (0..8).flat_map(|i| (0..8).map(move |j| (i, j))) {
            assert_eq!(transpose(1 << (8 * i + j)), 1 << (8 * j + i));
        }
    }
}
