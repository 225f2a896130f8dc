//! Candidates -> cuts between the smallest and the largest size.
//!
//! Knows nothing of hashes. Equals [`crate::chunk::Cutter`].

use crate::chunk::Cut;
use crate::gear::WINDOW;
use crate::params::ChunkParams;
use crate::scan::{Candidates, WORDS};
use crate::simd::Looks;

/// Room for the cuts of a block, of shortest chunks.
#[derive(Debug)]
pub(crate) struct Room([u32; WORDS + 1]);

impl Room {
    pub(crate) fn new() -> Self {
        Self([0; _])
    }
}

/// The second pass: chunk sizes applied to candidates. Equals [`crate::chunk::Cutter`].
#[derive(Debug)]
pub(crate) struct Sizes {
    min: usize,
    max: usize,
    last_cut: usize,
    last_marker: usize,
}

impl Sizes {
    /// Goes on after the last cut and the last marker cut (or the start of the text).
    pub(crate) fn new(params: &ChunkParams, last_cut: usize, last_marker: usize) -> Self {
        Self {
            min: params.min() as usize,
            max: params.max() as usize,
            last_cut,
            last_marker,
        }
    }

    /// Looks for the cuts of a block, if there are no markers in it.
    pub(crate) fn looks<'a>(&self, found: &'a Candidates, cuts: &'a mut Room) -> Option<Looks<'a>> {
        let known = found.scanned() - found.base();
        let longest = (self.last_cut + self.max).checked_sub(found.base())?;
        let sizes = [self.min, self.max];
        (!found.marked()).then(|| Looks::new(found.bits(), known, sizes, longest, &mut cuts.0))
    }

    /// Emits the cuts that looks found, which began at token `base`, as the index after the last token.
    pub(crate) fn take(&mut self, looks: Looks<'_>, base: usize, mut emit: impl FnMut(usize, Cut)) {
        let (cuts, longest) = looks.finish();
        for &cut in cuts {
            emit(base + cut as usize, Cut::Content);
        }
        self.last_cut = base + longest - self.max;
    }

    /// Emits the cuts that what was scanned so far decides, one after the other, markers included.
    pub(crate) fn advance(&mut self, found: &Candidates, mut emit: impl FnMut(usize, Cut)) {
        loop {
            let longest = self.last_cut + self.max;
            let content = found.content(self.last_cut + self.min - 1, longest);
            let end = content.map_or(longest, |index| index + 1);
            if let Some(marker) = self.marker(found, end) {
                (self.last_cut, self.last_marker) = (marker, marker);
                emit(marker, Cut::Marker);
            } else if end <= found.scanned() {
                self.last_cut = end;
                emit(end, Cut::Content);
            } else {
                return;
            }
        }
    }

    /// The next marker cut at or before `limit`.
    #[inline]
    fn marker(&self, found: &Candidates, limit: usize) -> Option<usize> {
        if !found.marked() {
            return None;
        }
        let from = self.last_cut.max(self.last_marker + WINDOW - 1);
        found.marker(from, limit).map(|index| index + 1)
    }
}
