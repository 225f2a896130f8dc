//! Tokens -> chunk bounds and fingerprints.
//!
//! Knows nothing of donors or namespaces. This is the scalar reference that every faster path must equal.

use std::ops::Range;

use crate::gear::{MARKER_THRESHOLD, WINDOW, roll};
use crate::params::ChunkParams;
use crate::scan::{Candidates, Scanner};
use crate::simd::{self, Looks};
use crate::sizes::{Room, Sizes};

/// Why a chunk ends.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Cut {
    /// The rolling hash fell below the threshold, or the chunk reached its largest size.
    Content,
    /// The rolling hash fell below the marker threshold, which cuts below the smallest size too.
    Marker,
}

/// The rolling state: feed tokens in order, learn after each whether a chunk ends there.
#[derive(Debug, Clone)]
pub struct Cutter {
    min: usize,
    max: usize,
    threshold: u64,
    secret: u32,
    hash: u64,
    since_cut: usize,
    since_marker: usize,
}

impl Cutter {
    /// A cutter at the start of a sequence.
    pub fn new(params: &ChunkParams) -> Self {
        Self {
            min: params.min() as usize,
            max: params.max() as usize,
            threshold: params.threshold(),
            secret: params.secret(),
            hash: 0,
            since_cut: 0,
            since_marker: 0,
        }
    }

    /// A cutter in the middle of a sequence: `window` holds the tokens before it (at least 64 where there are as
    /// many), and the two distances count tokens since the last cut and since the last marker cut or the start.
    pub fn resume(
        params: &ChunkParams,
        window: &[u32],
        since_cut: usize,
        since_marker: usize,
    ) -> Self {
        let mut cutter = Self {
            since_cut,
            since_marker,
            ..Self::new(params)
        };
        let tail = &window[window.len().saturating_sub(WINDOW)..];
        cutter.hash = tail
            .iter()
            .fold(0, |hash, &token| roll(hash, token ^ cutter.secret));
        cutter
    }

    /// Takes one token; says whether a chunk ends after it.
    ///
    /// A marker's window may not reach back over the previous marker cut. Markers are 64 tokens long, so this
    /// costs none of them, and it bounds the damage of the one id whose gear value is zero: a long run of it
    /// keeps the hash at zero and would otherwise be cut after every token.
    #[inline]
    pub fn push(&mut self, token: u32) -> Option<Cut> {
        self.hash = roll(self.hash, token ^ self.secret);
        self.since_cut += 1;
        self.since_marker += 1;
        if self.hash < MARKER_THRESHOLD && self.since_marker >= WINDOW {
            self.since_cut = 0;
            self.since_marker = 0;
            return Some(Cut::Marker);
        }
        let content = self.hash < self.threshold && self.since_cut >= self.min;
        if content || self.since_cut >= self.max {
            self.since_cut = 0;
            return Some(Cut::Content);
        }
        None
    }
}

/// One chunk: the tokens `[start, end)` and their fingerprint.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Chunk {
    /// First token.
    pub start: usize,
    /// One past the last token.
    pub end: usize,
    /// xxHash64 of the chunk's tokens.
    pub fingerprint: u64,
}

/// The chunks of one token sequence; they tile it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Chunks {
    bounds: Vec<usize>,
    fingerprints: Vec<u64>,
}

impl Chunks {
    pub(crate) fn from_parts(bounds: Vec<usize>, fingerprints: Vec<u64>) -> Self {
        Self {
            bounds,
            fingerprints,
        }
    }

    /// Chunk bounds: one more than there are chunks, from 0 to the number of tokens.
    pub fn bounds(&self) -> &[usize] {
        &self.bounds
    }

    /// One fingerprint per chunk.
    pub fn fingerprints(&self) -> &[u64] {
        &self.fingerprints
    }

    /// Number of chunks.
    pub fn len(&self) -> usize {
        self.fingerprints.len()
    }

    /// True when there were no tokens.
    pub fn is_empty(&self) -> bool {
        self.fingerprints.is_empty()
    }

    /// The chunk at `index`, if there is one.
    pub fn get(&self, index: usize) -> Option<Chunk> {
        let fingerprint = *self.fingerprints.get(index)?;
        Some(Chunk {
            start: self.bounds[index],
            end: self.bounds[index + 1],
            fingerprint,
        })
    }

    /// The chunks in order.
    pub fn iter(&self) -> impl Iterator<Item = Chunk> + '_ {
        (0..self.len()).filter_map(|index| self.get(index))
    }

    /// The token range of every chunk.
    pub fn ranges(&self) -> impl Iterator<Item = Range<usize>> + '_ {
        self.iter().map(|chunk| chunk.start..chunk.end)
    }
}

/// Cuts `tokens` into chunks and fingerprints each.
///
/// ```
/// use irminsul::{ChunkParams, chunk};
/// let tokens: Vec<u32> = (0..10_000_u32).map(|i| i.wrapping_mul(2_654_435_761)).collect();
/// let chunks = chunk(&tokens, &ChunkParams::default());
/// assert_eq!(chunks.bounds().first(), Some(&0));
/// assert_eq!(chunks.bounds().last(), Some(&10_000));
/// ```
pub fn chunk(tokens: &[u32], params: &ChunkParams) -> Chunks {
    let expected = room(tokens, params);
    let mut bounds = Vec::with_capacity(expected);
    let mut fingerprints = Vec::with_capacity(expected);
    bounds.push(0);
    let mut cuts = Cuts::new(params, tokens, 0, 0, 0);
    while cuts.next_block(true, |end, _| bounds.push(end)).is_some() {
        // While the blocks are in the cache.
        if bounds.len() > fingerprints.len() + GATHERED {
            simd::hash_chunks(tokens, &bounds[fingerprints.len()..], &mut fingerprints);
        }
    }
    if bounds.last() != Some(&tokens.len()) {
        bounds.push(tokens.len());
    }
    simd::hash_chunks(tokens, &bounds[fingerprints.len()..], &mut fingerprints);
    Chunks {
        bounds,
        fingerprints,
    }
}

/// Chunks that are worth while to hash side by side: with few, some streams idle at the end.
const GATHERED: usize = 96;

/// Room for the bounds of `tokens`. Chunks are a little shorter than `avg`: none is longer than `max`.
fn room(tokens: &[u32], params: &ChunkParams) -> usize {
    tokens.len() / params.avg() as usize * 5 / 4 + 2
}

/// The chunk bounds of `tokens` alone, for callers that fingerprint in another way or not at all.
///
/// ```
/// use irminsul::{ChunkParams, chunk, chunk_bounds};
/// let (tokens, params) = ((0..5000).collect::<Vec<u32>>(), ChunkParams::default());
/// assert_eq!(chunk_bounds(&tokens, &params), chunk(&tokens, &params).bounds());
/// ```
pub fn chunk_bounds(tokens: &[u32], params: &ChunkParams) -> Vec<usize> {
    let mut bounds = Vec::with_capacity(room(tokens, params));
    bounds.push(0);
    let mut cuts = Cuts::new(params, tokens, 0, 0, 0);
    while cuts.next_block(true, |end, _| bounds.push(end)).is_some() {}
    if bounds.last() != Some(&tokens.len()) {
        bounds.push(tokens.len());
    }
    bounds
}

/// The cuts of a text, block by block, by the fastest means at hand. Equals [`Cutter`].
#[derive(Debug)]
pub(crate) struct Cuts<'a> {
    params: &'a ChunkParams,
    text: &'a [u32],
    scanner: Scanner,
    /// The block whose cuts come next, if it was scanned already, and the other one.
    found: [Candidates; 2],
    now: usize,
    ahead: bool,
    sizes: Sizes,
    room: Room,
}

impl<'a> Cuts<'a> {
    /// The cuts after `text[..from]`, which is context, with the last cut and the last marker cut
    /// (or the start of the text) at the given places in it.
    pub(crate) fn new(
        params: &'a ChunkParams,
        text: &'a [u32],
        from: usize,
        last_cut: usize,
        last_marker: usize,
    ) -> Self {
        Self {
            params,
            text,
            scanner: Scanner::new(text, from),
            found: [Candidates::new(), Candidates::new()],
            now: 0,
            ahead: false,
            sizes: Sizes::new(params, last_cut, last_marker),
            room: Room::new(),
        }
    }

    /// Emits the cuts of one more block and returns where it ends; none when there was none left.
    /// With `ahead`, the block after it is scanned at the same time, which is faster unless the caller
    /// stops then.
    pub(crate) fn next_block(
        &mut self,
        ahead: bool,
        emit: impl FnMut(usize, Cut),
    ) -> Option<usize> {
        let Self { params, text, .. } = *self;
        let [even, odd] = &mut self.found;
        let (found, next) = if self.now == 0 {
            (even, odd)
        } else {
            (odd, even)
        };
        let mut scan = |found: &mut Candidates, looks: &mut Looks<'_>| {
            self.scanner.scan_block(text, params, found, looks)
        };
        if !self.ahead && !scan(found, &mut Looks::none(&mut [0; 2])) {
            return None;
        }
        if let Some(mut looks) = self.sizes.looks(found, &mut self.room) {
            self.ahead = ahead && scan(next, &mut looks);
            self.sizes.take(looks, found.base(), emit);
        } else {
            self.ahead = false;
            self.sizes.advance(found, emit);
        }
        let end = found.scanned();
        self.now ^= usize::from(self.ahead);
        Some(end)
    }
}
