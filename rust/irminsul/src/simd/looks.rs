//! Candidate bits of a block and chunk sizes -> cuts, one look at a time.
//!
//! Knows nothing of hashes or markers. A look is a chain of some twenty cycles with nothing to predict;
//! a vector scan of the next block, which leaves the general registers idle, hides it.

use std::hint::select_unpredictable;

/// Words that one look searches.
pub(crate) const AHEAD: usize = 4;

/// The search for cuts among the candidates of one block. Places count from the block's first bit.
#[derive(Debug)]
pub(crate) struct Looks<'a> {
    pub(super) bits: &'a [u64],
    /// Places that the bits are known of.
    pub(super) known: usize,
    pub(super) min: usize,
    pub(super) max: usize,
    /// Where to search on; at most `known`.
    pub(super) from: usize,
    /// Where the chunk ends at the latest.
    pub(super) longest: usize,
    /// Receives the place after each cut; the entry after the last may hold anything.
    pub(super) cuts: &'a mut [u32],
    pub(super) count: usize,
}

impl<'a> Looks<'a> {
    /// A search for the end of a chunk that begins `max` before `longest`; `bits` go on for a look
    /// behind the last place, and there is room for the cuts of shortest chunks.
    pub(crate) fn new(
        bits: &'a [u64],
        known: usize,
        [min, max]: [usize; 2],
        longest: usize,
        cuts: &'a mut [u32],
    ) -> Self {
        assert!(bits.len() >= known / 64 + AHEAD && cuts.len() > known / min + 1);
        assert!(known < u32::MAX as usize && 0 < min && min < max && max < 1 << 31);
        let from = (longest + min - 1).saturating_sub(max).min(known);
        Self {
            bits,
            known,
            min,
            max,
            from,
            longest,
            cuts,
            count: 0,
        }
    }

    /// No search.
    pub(crate) fn none(cuts: &'a mut [u32; 2]) -> Self {
        Self::new(&[0; AHEAD], 0, [1, 2], 1, cuts)
    }

    /// One look: finds a cut or passes by the words that it searched. False when nothing is left.
    #[inline]
    pub(crate) fn look(&mut self) -> bool {
        let word = self.from / 64;
        let Some(words) = self.bits[word..].first_chunk::<AHEAD>() else {
            return false;
        };
        let (a, b, c, d) = (
            words[0] >> (self.from % 64) << (self.from % 64),
            words[1],
            words[2],
            words[3],
        );
        let (bits, at) = select_unpredictable(c != 0, (c, 128), (d, 192));
        let (bits, at) = select_unpredictable(b != 0, (b, 64), (bits, at));
        let (bits, at) = select_unpredictable(a != 0, (a, 0), (bits, at));
        // Where there is no bit, this is the first place that was not searched.
        let place = word * 64 + at + bits.trailing_zeros() as usize;
        let found = select_unpredictable(bits != 0, place + 1, self.longest);
        let end = found.min(self.longest);
        // What lies behind the known places is garbage.
        let cut = end <= (place + 1).min(self.known);
        self.cuts[self.count] = end as u32;
        self.count += usize::from(cut);
        let before = self.from;
        let from = select_unpredictable(cut, end + self.min - 1, place);
        self.from = from.min(self.known);
        self.longest = select_unpredictable(cut, end + self.max, self.longest);
        cut || self.from > before
    }

    /// The places after the cuts found, and where the chunk behind the last one ends at the latest.
    pub(crate) fn finish(mut self) -> (&'a [u32], usize) {
        while self.look() {}
        (&self.cuts[..self.count], self.longest)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Cuts of sizes within bounds, one place after the other.
    fn slow(
        bits: &[u64],
        known: usize,
        min: usize,
        max: usize,
        longest: usize,
    ) -> (Vec<u32>, usize) {
        let mut start = longest as i64 - max as i64;
        let mut cuts = Vec::new();
        for place in 0..known {
            let len = place as i64 + 1 - start;
            let bit = bits[place / 64] >> (place % 64) & 1 == 1;
            if len >= max as i64 || bit && len >= min as i64 {
                cuts.push(place as u32 + 1);
                start = place as i64 + 1;
            }
        }
        (cuts, (start + max as i64) as usize)
    }

    #[test]
    fn looks_find_what_a_walk_over_all_places_finds() {
        let mut state = 1_u64;
        let mut next = || {
            state = state
                .wrapping_mul(0x5851_F42D_4C95_7F2D)
                .wrapping_add(0x1405_7B7E_F767_814F);
            state >> 33
        };
        for case in 0..400 {
            let (min, known) = (64 + case % 5 * 31, 64 + next() as usize % 2000);
            let max = min + 2 + next() as usize % 700;
            let words =
                (0..known / 64 + 1 + AHEAD).map(|_| next() & next() << 31 & next() & next() << 9);
            let bits: Vec<u64> = words.collect();
            // A chunk that begins up to its longest before the first place, and was not cut there.
            let longest = 1 + next() as usize % max;
            let mut cuts = vec![0; known / min + 2];
            let (found, rest) = Looks::new(&bits, known, [min, max], longest, &mut cuts).finish();
            assert_eq!(
                (found.to_vec(), rest),
                slow(&bits, known, min, max, longest),
                "{case}"
            );
        }
    }
}
