//! Tokens -> the places where the rolling hash is small -> cuts.
//!
//! Knows nothing of fingerprints. Finding small hashes does not depend on earlier cuts, so it can
//! run over many places at once; the sizes are applied to the few places found, in a second pass.

use crate::gear::{MARKER_THRESHOLD, WINDOW, roll};
use crate::params::ChunkParams;
use crate::simd::{AHEAD, Block, Looks, Rare, scan_block};

/// Most tokens that are looked at before sizes are applied: eight stretches of the vector scans,
/// which fit the second-level cache together with what is hashed next. A stretch is not a multiple
/// of 4 KiB long, which would make the eight loads compete for one cache set.
pub(crate) const BLOCK: usize = 8 * 2064;

/// Tokens of a group of the vector scans: 64 steps.
const GROUP: usize = 512;

/// Fewer tokens than this do not pay for the warm-up of eight stretches.
const MIN_BLOCK: usize = 256;

/// Words of a block: one before its first token, 63 tokens that do not fill a step of the vector
/// scans, and those that a search may read behind the last.
pub(crate) const WORDS: usize = 1 + BLOCK / 64 + 1 + AHEAD;

/// One bit for each token of a block, the lowest first.
#[derive(Debug)]
struct Bits([u64; WORDS]);

/// The first bit set in `[from, to)`.
fn first(words: &[u64], from: usize, to: usize) -> Option<usize> {
    let mut mask = !0 << (from % 64);
    for (at, &bits) in words.iter().enumerate().skip(from / 64) {
        if bits & mask != 0 || (at + 1) * 64 >= to {
            let found = at * 64 + (bits & mask).trailing_zeros() as usize;
            return (found < to).then_some(found);
        }
        mask = !0;
    }
    None
}

/// Where the rolling hash is small, for the tokens of one block.
#[derive(Debug)]
pub(crate) struct Candidates {
    /// Token that the first bit stands for.
    base: usize,
    /// One past the last token looked at.
    scanned: usize,
    /// Tokens after which the hash is below the threshold.
    content: Bits,
    /// Tokens after which it is below the marker threshold too; no words if there are none.
    markers: Vec<u64>,
}

impl Candidates {
    pub(crate) fn new() -> Self {
        Self {
            base: 0,
            scanned: 0,
            content: Bits([0; WORDS]),
            markers: Vec::new(),
        }
    }

    /// Token that the first bit stands for.
    pub(crate) fn base(&self) -> usize {
        self.base
    }

    /// One past the last token looked at.
    pub(crate) fn scanned(&self) -> usize {
        self.scanned
    }

    /// The bits of content candidates.
    pub(crate) fn bits(&self) -> &[u64] {
        &self.content.0
    }

    /// Whether there are markers.
    pub(crate) fn marked(&self) -> bool {
        !self.markers.is_empty()
    }

    /// Fills the word before a block, of which only the last bit may be set.
    fn open(&mut self, small: bool, marker: bool) {
        self.content.0[0] = u64::from(small) << 63;
        self.mark(0, u64::from(marker) << 63);
    }

    /// Keeps a word of markers. There are none before the first marker of a block turns up.
    fn mark(&mut self, word: usize, markers: u64) {
        if markers != 0 {
            self.markers.resize(WORDS, 0);
        }
        if let Some(kept) = self.markers.get_mut(word) {
            *kept = markers;
        }
    }

    /// The first content candidate in `[from, to)`.
    #[inline]
    pub(crate) fn content(&self, from: usize, to: usize) -> Option<usize> {
        self.find(&self.content.0, from, to)
    }

    /// The first marker in `[from, to)`.
    pub(crate) fn marker(&self, from: usize, to: usize) -> Option<usize> {
        self.find(&self.markers, from, to)
    }

    #[inline]
    fn find(&self, words: &[u64], from: usize, to: usize) -> Option<usize> {
        let from = from.max(self.base);
        let to = to.min(self.scanned).checked_sub(self.base)?;
        Some(self.base + first(words, from - self.base, to)?)
    }
}

/// How far a text was scanned.
#[derive(Debug)]
pub(crate) struct Scanner {
    /// One past the last token looked at.
    scanned: usize,
    /// The rolling hash before `scanned`, where it is known.
    hash: Option<u64>,
    /// The first whole window, which ends before the first block, may end a chunk.
    fresh: bool,
}

impl Scanner {
    /// Before the tokens of `text[from..]`. No rule allows a cut before the first whole window.
    pub(crate) fn new(text: &[u32], from: usize) -> Self {
        let scanned = from.max(WINDOW).min(text.len());
        Self {
            scanned,
            hash: None,
            fresh: from < WINDOW && scanned == WINDOW,
        }
    }

    /// Looks at the next block, and perhaps for cuts in the one before; false if there was none left.
    pub(crate) fn scan_block(
        &mut self,
        text: &[u32],
        params: &ChunkParams,
        found: &mut Candidates,
        looks: &mut Looks<'_>,
    ) -> bool {
        let left = text.len() - self.scanned;
        if left == 0 && !self.fresh {
            return false;
        }
        found.base = self.scanned.saturating_sub(64);
        found.markers.clear();
        // Blocks of one size, so that none is too short to be worth while.
        let blocks = left.div_ceil(BLOCK).max(1);
        let count = left.div_ceil(blocks);
        // Whole groups of the vector scans, as long as another block follows.
        let count = if blocks > 1 {
            count / GROUP * GROUP
        } else {
            count
        };
        if count < MIN_BLOCK || !self.scan_stretches(text, count, params, found, looks) {
            self.enter(text, params, found);
            self.scan_tokens(text, count, params, found);
        } else if text.len() - self.scanned < 64 {
            self.scan_tokens(text, text.len() - self.scanned, params, found);
        }
        found.scanned = self.scanned;
        true
    }

    /// Looks at about `count` tokens, a multiple of 64, with vector instructions, if there are any.
    fn scan_stretches(
        &mut self,
        text: &[u32],
        count: usize,
        params: &ChunkParams,
        found: &mut Candidates,
        looks: &mut Looks<'_>,
    ) -> bool {
        let count = count / 64 * 64;
        let (start, words) = (self.scanned, 1..=count / 64);
        let block = Block::new(&text[start - WINDOW..start + count], params);
        let content = &mut found.content.0[words];
        let markers = Rare::new(&mut found.markers, WORDS, 1..count / 64 + 1);
        let Some(seen) = scan_block(&block, content, markers, looks) else {
            return false;
        };
        self.scanned += count;
        self.hash = Some(seen.last);
        self.open(seen.first, params, found);
        true
    }

    /// The rolling hash before the first token of a block that is scanned token by token.
    fn enter(&mut self, text: &[u32], params: &ChunkParams, found: &mut Candidates) {
        let window = &text[self.scanned.saturating_sub(WINDOW)..self.scanned];
        let secret = params.secret();
        let hash = *self.hash.get_or_insert_with(|| {
            let hashes = window.iter().map(|&token| token ^ secret);
            hashes.fold(0, roll)
        });
        self.open(hash, params, found);
    }

    /// Whether a chunk may end before a block, after which token the hash is this.
    fn open(&mut self, hash: u64, params: &ChunkParams, found: &mut Candidates) {
        let fresh = std::mem::take(&mut self.fresh);
        found.open(
            fresh && hash < params.threshold(),
            fresh && hash < MARKER_THRESHOLD,
        );
    }

    /// Looks at `count` tokens one by one, from the start of a word on.
    fn scan_tokens(
        &mut self,
        text: &[u32],
        count: usize,
        params: &ChunkParams,
        found: &mut Candidates,
    ) {
        let mut hash = self.hash.unwrap_or_default();
        let (secret, threshold) = (params.secret(), params.threshold());
        for tokens in text[self.scanned..self.scanned + count].chunks(64) {
            let (mut content, mut markers) = (0, 0);
            for (at, &token) in tokens.iter().enumerate() {
                hash = roll(hash, token ^ secret);
                content |= u64::from(hash < threshold) << at;
                markers |= u64::from(hash < MARKER_THRESHOLD) << at;
            }
            let word = (self.scanned - found.base) / 64;
            found.content.0[word] = content;
            found.mark(word, markers);
            self.scanned += tokens.len();
        }
        self.hash = Some(hash);
    }
}
