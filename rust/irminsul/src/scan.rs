//! Tokens -> the places where the rolling hash is small -> cuts.
//!
//! Knows nothing of fingerprints. Finding small hashes does not depend on earlier cuts, so it can
//! run over many places at once; the sizes are applied to the few places found, in a second pass.

use std::hint::select_unpredictable;

use crate::chunk::Cut;
use crate::gear::{MARKER_THRESHOLD, WINDOW, roll};
use crate::params::ChunkParams;
use crate::simd;

/// Most tokens that are looked at before sizes are applied: eight stretches of the vector scans,
/// which fit the second-level cache together with what is hashed next. A stretch is not a multiple
/// of 4 KiB long, which would make the eight loads compete for one cache set.
pub(crate) const BLOCK: usize = 8 * 2064;

/// Fewer tokens than this do not pay for the warm-up of eight stretches.
const MIN_BLOCK: usize = 256;

/// Words that are searched without a branch in between.
const AHEAD: usize = 4;

/// Words of a block: one before its first token, 63 tokens that do not fill a step of the vector
/// scans, and those that a search may read behind the last.
const WORDS: usize = 1 + BLOCK / 64 + 1 + AHEAD;

/// One bit for each token of a block, the lowest first.
#[derive(Debug)]
struct Bits([u64; WORDS]);

impl Bits {
    /// The first bit set in `[from, to)`.
    ///
    /// Where it lies cannot be predicted, so four words are searched with selections. The
    /// searches of a block form one chain, and a wrong branch in each would double its length.
    #[inline]
    fn first(&self, from: usize, to: usize) -> Option<usize> {
        let mut word = from / 64;
        let mut mask = !0 << (from % 64);
        while word * 64 < to {
            let words: &[u64; AHEAD] = self.0[word..].first_chunk()?;
            let (a, b, c, d) = (words[0] & mask, words[1], words[2], words[3]);
            let (bits, at) = select_unpredictable(c != 0, (c, 128), (d, 192));
            let (bits, at) = select_unpredictable(b != 0, (b, 64), (bits, at));
            let (bits, at) = select_unpredictable(a != 0, (a, 0), (bits, at));
            if bits != 0 {
                let found = word * 64 + at + bits.trailing_zeros() as usize;
                return (found < to).then_some(found);
            }
            (word, mask) = (word + AHEAD, !0);
        }
        None
    }
}

/// Where the rolling hash is small, for the tokens of one block.
#[derive(Debug)]
pub(crate) struct Candidates {
    /// Token that the first bit stands for.
    base: usize,
    /// One past the last token looked at.
    scanned: usize,
    /// The rolling hash before `scanned`, where it is known.
    hash: Option<u64>,
    /// Tokens after which the hash is below the threshold.
    content: Bits,
    /// Tokens after which it is below the marker threshold too; meaningless unless `marked`.
    markers: Bits,
    marked: bool,
    /// The first whole window, which ends before the first block, may end a chunk.
    fresh: bool,
}

impl Candidates {
    /// Before the tokens of `text[from..]`. No rule allows a cut before the first whole window.
    pub(crate) fn new(text: &[u32], from: usize) -> Self {
        let scanned = from.max(WINDOW).min(text.len());
        Self {
            base: 0,
            scanned,
            hash: None,
            content: Bits([0; WORDS]),
            markers: Bits([0; WORDS]),
            marked: false,
            fresh: from < WINDOW && scanned == WINDOW,
        }
    }

    /// Looks at the next block; false if there was none left.
    pub(crate) fn scan_block(&mut self, text: &[u32], params: &ChunkParams) -> bool {
        let left = text.len() - self.scanned;
        if left == 0 && !self.fresh {
            return false;
        }
        self.base = self.scanned.saturating_sub(64);
        self.marked = false;
        // Blocks of one size, so that none is too short to be worth while.
        let count = left.div_ceil(left.div_ceil(BLOCK).max(1));
        if count < MIN_BLOCK || !self.scan_stretches(text, count, params) {
            self.enter(text, params);
            self.scan_tokens(text, count, params);
        } else if text.len() - self.scanned < 64 {
            self.scan_tokens(text, text.len() - self.scanned, params);
        }
        true
    }

    /// Looks at about `count` tokens, a multiple of 64, with vector instructions, if there are any.
    fn scan_stretches(&mut self, text: &[u32], count: usize, params: &ChunkParams) -> bool {
        let count = count / 64 * 64;
        let (start, words) = (self.scanned, 1..=count / 64);
        let block = simd::Block::new(&text[start - WINDOW..start + count], params);
        let (content, markers) = (&mut self.content.0, &mut self.markers.0);
        let Some(seen) = simd::scan_block(&block, &mut content[words.clone()], &mut markers[words])
        else {
            return false;
        };
        self.scanned += count;
        self.hash = Some(seen.last);
        self.marked = seen.marked;
        self.open(seen.first, params);
        true
    }

    /// The rolling hash before the first token of a block that is scanned token by token.
    fn enter(&mut self, text: &[u32], params: &ChunkParams) {
        let window = &text[self.scanned.saturating_sub(WINDOW)..self.scanned];
        let secret = params.secret();
        let hash = *self.hash.get_or_insert_with(|| {
            let hashes = window.iter().map(|&token| token ^ secret);
            hashes.fold(0, roll)
        });
        self.open(hash, params);
    }

    /// Fills the word before a block, of which only the last bit may be set.
    fn open(&mut self, hash: u64, params: &ChunkParams) {
        let bit = |small: bool| u64::from(small && self.fresh) << 63;
        let marker = bit(hash < MARKER_THRESHOLD);
        self.content.0[0] = bit(hash < params.threshold());
        self.fresh = false;
        self.mark(0, marker);
    }

    /// Looks at `count` tokens one by one, from the start of a word on.
    fn scan_tokens(&mut self, text: &[u32], count: usize, params: &ChunkParams) {
        let mut hash = self.hash.unwrap_or_default();
        let (secret, threshold) = (params.secret(), params.threshold());
        for tokens in text[self.scanned..self.scanned + count].chunks(64) {
            let (mut content, mut markers) = (0, 0);
            for (at, &token) in tokens.iter().enumerate() {
                hash = roll(hash, token ^ secret);
                content |= u64::from(hash < threshold) << at;
                markers |= u64::from(hash < MARKER_THRESHOLD) << at;
            }
            let word = (self.scanned - self.base) / 64;
            self.content.0[word] = content;
            self.mark(word, markers);
            self.scanned += tokens.len();
        }
        self.hash = Some(hash);
    }

    /// Keeps a word of markers. Words are cleared when the first marker of a block turns up.
    fn mark(&mut self, word: usize, markers: u64) {
        if markers != 0 && !self.marked {
            self.markers.0.fill(0);
            self.marked = true;
        }
        if self.marked {
            self.markers.0[word] = markers;
        }
    }

    /// The first content candidate in `[from, to)`.
    #[inline]
    fn content(&self, from: usize, to: usize) -> Option<usize> {
        Self::find(&self.content, self.base, from, to.min(self.scanned))
    }

    /// The first marker in `[from, to)`.
    fn marker(&self, from: usize, to: usize) -> Option<usize> {
        Self::find(&self.markers, self.base, from, to.min(self.scanned))
    }

    #[inline]
    fn find(bits: &Bits, base: usize, from: usize, to: usize) -> Option<usize> {
        let from = from.max(base);
        let found = bits.first(from - base, to.checked_sub(base)?)?;
        Some(base + found)
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

    /// Emits the cuts that what was scanned so far decides, as the index after the last token.
    #[inline]
    pub(crate) fn advance(&mut self, found: &Candidates, mut emit: impl FnMut(usize, Cut)) {
        loop {
            let longest = self.last_cut + self.max;
            let content = found.content(self.last_cut + self.min - 1, longest);
            let end = content.map_or(longest, |index| index + 1);
            if let Some(marker) = self.marker(found, end) {
                (self.last_cut, self.last_marker) = (marker, marker);
                emit(marker, Cut::Marker);
            } else if end <= found.scanned {
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
        if !found.marked {
            return None;
        }
        let from = self.last_cut.max(self.last_marker + WINDOW - 1);
        found.marker(from, limit).map(|index| index + 1)
    }
}
