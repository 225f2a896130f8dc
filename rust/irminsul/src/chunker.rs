//! Tokens that arrive in pieces -> the chunks of the whole sequence.
//!
//! Knows nothing of where the pieces come from. It holds a few blocks at a time, which stay in the
//! processor's cache while they are scanned and hashed. A thread's next sequence finds their memory there.

use std::cell::Cell;

use crate::chunk::{Chunks, Cut, Cuts};
use crate::gear::WINDOW;
use crate::params::ChunkParams;
use crate::simd::hash_chunks_before;

/// Tokens that are taken in before they are scanned: blocks enough for looks at one beside the scan of the
/// next, and few enough for the second-level cache.
const BLOCK: usize = 2 * crate::scan::BLOCK;

/// Most tokens of the memory that a thread keeps between sequences.
const KEPT: usize = 16 * BLOCK;

thread_local! {
    /// Of some length, with any tokens in it.
    static SPARE: Cell<Vec<u32>> = const { Cell::new(Vec::new()) };
}

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
            // Without a spare (the thread ends), there is only less to use again.
            text: SPARE.try_with(Cell::take).unwrap_or_default(),
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
        let fill = |at: usize, room: &mut [u32]| {
            room.copy_from_slice(&tokens[at..at + room.len()]);
        };
        self.push_with(tokens.len(), fill, |at| tokens.as_ptr().wrapping_add(at));
    }

    /// Takes the next `count` tokens, which `fill` writes: it is given an offset among them and
    /// room for some, and is called once for each block. `place` says from where the one at an offset will be
    /// read, so that it can be fetched in time; it is a hint, and may be null.
    pub fn push_with(
        &mut self,
        count: usize,
        mut fill: impl FnMut(usize, &mut [u32]),
        place: impl Fn(usize) -> *const u32,
    ) {
        let expected = count / self.params.avg() as usize * 5 / 4 + 2;
        self.bounds.reserve(expected);
        self.fingerprints.reserve(expected);
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
                self.scan(place(at));
            }
        }
    }

    /// Ends the sequence.
    pub fn finish(mut self) -> Chunks {
        self.scan(std::ptr::null());
        let end = self.origin + self.used;
        if self.bounds.last() != Some(&end) {
            self.bounds.push(end);
            self.hash(std::ptr::null());
        }
        let (bounds, fingerprints) = (&mut self.bounds, &mut self.fingerprints);
        Chunks::from_parts(std::mem::take(bounds), std::mem::take(fingerprints))
    }

    /// Scans what is pending, and forgets what no later chunk needs. What comes next lies at `later`.
    fn scan(&mut self, later: *const u32) {
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
        self.hash(later);
        let last_cut = self.bounds.last().map_or(0, |end| end - self.origin);
        let needed = last_cut.min(self.used.saturating_sub(WINDOW));
        self.text.copy_within(needed..self.used, 0);
        self.used -= needed;
        self.origin += needed;
    }

    /// Fingerprints the chunks that were cut.
    fn hash(&mut self, later: *const u32) {
        let fresh = &self.bounds[self.fingerprints.len()..];
        let local: Vec<usize> = fresh.iter().map(|bound| bound - self.origin).collect();
        let text = &self.text[..self.used];
        hash_chunks_before(text, &local, &mut self.fingerprints, later);
    }
}

impl Drop for Chunker {
    fn drop(&mut self) {
        if self.text.capacity() <= KEPT {
            let text = std::mem::take(&mut self.text);
            // An error means that the thread ends, and the memory with it.
            let _ = SPARE.try_with(|spare| spare.set(text));
        }
    }
}
