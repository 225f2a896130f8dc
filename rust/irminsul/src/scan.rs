//! Tokens -> the places where the rolling hash is small -> cuts.
//!
//! Knows nothing of fingerprints. Finding small hashes does not depend on earlier cuts, so it can
//! run over many places at once; the sizes are applied to the few places found, in a second pass.

use crate::chunk::Cut;
use crate::gear::{MARKER_THRESHOLD, WINDOW, roll};
use crate::params::ChunkParams;

/// Where the rolling hash is small, for the token indices `[origin, scanned)`.
#[derive(Debug)]
pub(crate) struct Candidates {
    /// Index that the first bit stands for.
    origin: usize,
    /// One past the last index looked at.
    scanned: usize,
    /// One bit for each index: the hash after that token is below the threshold. Padded by a word.
    bits: Vec<u8>,
    /// Indices whose hash is below the marker threshold too, in order.
    markers: Vec<usize>,
}

/// Words are read at any byte, so that many bytes follow the last bit.
const PADDING: usize = 8;

impl Candidates {
    /// Room for the indices `[origin, end)`.
    pub(crate) fn new(origin: usize, end: usize) -> Self {
        let bits = vec![0; end.saturating_sub(origin).div_ceil(8) + PADDING];
        Self {
            origin,
            scanned: origin,
            bits,
            markers: Vec::new(),
        }
    }

    pub(crate) fn is_new(&self) -> bool {
        self.scanned == self.origin
    }

    pub(crate) fn scanned(&self) -> usize {
        self.scanned
    }

    /// The bytes for the next `count` indices, which a faster scan fills; both the number of
    /// indices scanned so far and `count` are multiples of 8.
    #[cfg(any(target_arch = "x86_64", target_arch = "aarch64"))]
    pub(crate) fn next_bytes(&mut self, count: usize) -> &mut [u8] {
        let start = (self.scanned - self.origin) / 8;
        self.scanned += count;
        &mut self.bits[start..start + count / 8]
    }

    /// Adds marker places, in order and behind those already there.
    #[cfg(any(target_arch = "x86_64", target_arch = "aarch64"))]
    pub(crate) fn add_markers(&mut self, found: impl Iterator<Item = usize>) {
        self.markers.extend(found);
    }

    /// Looks at the indices up to `end`, one by one.
    pub(crate) fn scan(&mut self, text: &[u32], end: usize, params: &ChunkParams) {
        let secret = params.secret();
        let threshold = params.threshold();
        let window = &text[self.scanned.saturating_sub(WINDOW - 1)..self.scanned];
        let mut hash = window
            .iter()
            .fold(0, |hash, &token| roll(hash, token ^ secret));
        for (index, &token) in text[..end].iter().enumerate().skip(self.scanned) {
            hash = roll(hash, token ^ secret);
            if hash < threshold {
                let bit = index - self.origin;
                self.bits[bit / 8] |= 1 << (bit % 8);
            }
            if hash < MARKER_THRESHOLD {
                self.markers.push(index);
            }
        }
        self.scanned = end.max(self.scanned);
    }

    /// The first candidate in `[from, to)`.
    fn first(&self, from: usize, to: usize) -> Option<usize> {
        let mut bit = from.max(self.origin) - self.origin;
        let end = to.min(self.scanned).checked_sub(self.origin)?;
        while bit < end {
            let at = bit / 8;
            let bytes = self.bits[at..at + PADDING].try_into().unwrap_or_default();
            let word = u64::from_le_bytes(bytes) >> (bit % 8);
            if word != 0 {
                let found = bit + word.trailing_zeros() as usize;
                return (found < end).then_some(found + self.origin);
            }
            bit = (at + PADDING) * 8;
        }
        None
    }
}

/// The second pass: chunk sizes applied to candidates. Equals [`crate::chunk::Cutter`].
#[derive(Debug)]
pub(crate) struct Sizes {
    min: usize,
    max: usize,
    last_cut: usize,
    last_marker: usize,
    next_marker: usize,
}

impl Sizes {
    /// Goes on after the last cut and the last marker cut (or the start of the text).
    pub(crate) fn new(params: &ChunkParams, last_cut: usize, last_marker: usize) -> Self {
        let (min, max) = (params.min() as usize, params.max() as usize);
        Self {
            min,
            max,
            last_cut,
            last_marker,
            next_marker: 0,
        }
    }

    /// Emits the cuts that what was scanned so far decides, as the index after the last token.
    pub(crate) fn advance(&mut self, found: &Candidates, mut emit: impl FnMut(usize, Cut)) {
        loop {
            let longest = self.last_cut + self.max;
            let content = match found.first(self.last_cut + self.min - 1, longest) {
                Some(index) => index + 1,
                None => longest,
            };
            match self.marker(found, content) {
                Some(end) => {
                    self.last_cut = end;
                    self.last_marker = end;
                    emit(end, Cut::Marker);
                }
                None if content <= found.scanned => {
                    self.last_cut = content;
                    emit(content, Cut::Content);
                }
                None => return,
            }
        }
    }

    /// The next marker cut at or before `limit`.
    fn marker(&mut self, found: &Candidates, limit: usize) -> Option<usize> {
        while let Some(&index) = found.markers.get(self.next_marker) {
            let end = index + 1;
            if end > limit {
                return None;
            }
            self.next_marker += 1;
            if end >= self.last_marker + WINDOW {
                return Some(end);
            }
        }
        None
    }
}
