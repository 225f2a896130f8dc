//! Tokens that arrive in pieces -> the chunks of the whole sequence.
//!
//! Knows nothing of where the pieces come from. It holds a few blocks at a time, which stay in the
//! processor's cache while they are scanned and hashed.

use crate::chunk::{Chunks, Cut, Cuts};
use crate::gear::WINDOW;
use crate::params::ChunkParams;
use crate::simd::hash_chunks;

/// Tokens that are taken in before they are scanned: blocks enough for looks at one beside the scan of the
/// next, and few enough for the second-level cache.
const BLOCK: usize = 2 * crate::scan::BLOCK;

/// Chunks a sequence piece by piece; the result does not depend on the pieces.
///
/// ```
/// use irminsul::{ChunkParams, Chunker, chunk};
/// let (tokens, params) = ((0..5000).collect::<Vec<u32>>(), ChunkParams::default());
/// let mut chunker = Chunker::new(&params);
/// tokens.chunks(700).for_each(|piece| chunker.push(piece));
/// assert_eq!(chunker.finish(), chunk(&tokens, &params));
/// ```
#[derive(Debug, Clone)]
pub struct Chunker {
    params: ChunkParams,
    /// Room for tokens, of which the first `used` are the sequence's from `origin` on: context, then
    /// what was not scanned yet. It only grows, and blocks are written over each other.
    text: Vec<u32>,
    used: usize,
    origin: usize,
    scanned: usize,
    last_marker: usize,
    bounds: Vec<usize>,
    fingerprints: Vec<u64>,
}

impl Chunker {
    /// A chunker at the start of a sequence.
    pub fn new(params: &ChunkParams) -> Self {
        Self {
            params: *params,
            text: Vec::new(),
            used: 0,
            origin: 0,
            scanned: 0,
            last_marker: 0,
            bounds: vec![0],
            fingerprints: Vec::new(),
        }
    }

    /// Takes the next tokens.
    pub fn push(&mut self, tokens: &[u32]) {
        self.push_with(tokens.len(), |at, room| {
            room.copy_from_slice(&tokens[at..at + room.len()]);
        });
    }

    /// Takes the next `count` tokens, which `fill` writes: it is given an offset among them and
    /// room for some, and is called once for each block.
    pub fn push_with(&mut self, count: usize, mut fill: impl FnMut(usize, &mut [u32])) {
        let mut at = 0;
        while at < count {
            let pending = self.origin + self.used - self.scanned;
            let room = (BLOCK - pending).min(count - at);
            let end = self.used + room;
            self.text.resize(end.max(self.text.len()), 0);
            fill(at, &mut self.text[self.used..end]);
            self.used = end;
            at += room;
            if pending + room == BLOCK {
                self.scan();
            }
        }
    }

    /// Ends the sequence.
    pub fn finish(mut self) -> Chunks {
        self.scan();
        let end = self.origin + self.used;
        if self.bounds.last() != Some(&end) {
            self.bounds.push(end);
            self.hash();
        }
        Chunks::from_parts(self.bounds, self.fingerprints)
    }

    /// Scans what is pending, and forgets what no later chunk needs.
    fn scan(&mut self) {
        let Self {
            params,
            text,
            used,
            origin,
            scanned,
            last_marker,
            bounds,
            ..
        } = self;
        let (origin, text) = (*origin, &text[..*used]);
        let last_cut = bounds.last().map_or(0, |end| end - origin);
        // A marker further back than the context is further back than a window, too.
        let marker = last_marker.saturating_sub(origin);
        let mut cuts = Cuts::new(params, text, *scanned - origin, last_cut, marker);
        let mut emit = |end: usize, cut| {
            bounds.push(origin + end);
            if cut == Cut::Marker {
                *last_marker = origin + end;
            }
        };
        while cuts.next_block(true, &mut emit).is_some() {}
        *scanned = origin + text.len();
        self.hash();
        let last_cut = self.bounds.last().map_or(0, |end| end - self.origin);
        let needed = last_cut.min(self.used.saturating_sub(WINDOW));
        self.text.copy_within(needed..self.used, 0);
        self.used -= needed;
        self.origin += needed;
    }

    /// Fingerprints the chunks that were cut.
    fn hash(&mut self) {
        let fresh = &self.bounds[self.fingerprints.len()..];
        let local: Vec<usize> = fresh.iter().map(|bound| bound - self.origin).collect();
        hash_chunks(&self.text[..self.used], &local, &mut self.fingerprints);
    }
}
