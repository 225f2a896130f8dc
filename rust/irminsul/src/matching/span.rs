//! A verified span -> the part of it that the policy allows.
//!
//! Knows nothing of the registry beyond the ids of runs.

use std::cmp::Reverse;

use crate::policy::Policy;
use crate::registry::walk::RunPiece;

/// Prompt tokens `[target, target + length)` that equal recorded ones, whose rows lie at `source`
/// and after.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Span {
    pub(crate) target: usize,
    pub(crate) length: usize,
    pub(crate) source: u64,
    pub(crate) hops: u32,
    pub(crate) depth: u32,
    pub(crate) pieces: Vec<RunPiece>,
}

impl Span {
    pub(crate) fn end(&self) -> usize {
        self.target + self.length
    }

    pub(crate) fn delta(&self) -> i64 {
        self.target as i64 - self.source as i64
    }

    /// The part inside `[start, end)`, which must overlap the span.
    pub(crate) fn clip(self, start: usize, end: usize) -> Self {
        let (start, end) = (start.max(self.target), end.min(self.end()));
        if (start, end) == (self.target, self.end()) {
            return self;
        }
        let skip = start - self.target;
        Self {
            target: start,
            length: end - start,
            source: self.source + skip as u64,
            pieces: slice(&self.pieces, skip, end - self.target),
            ..self
        }
    }
}

/// The pieces that make up the tokens `[start, end)` of their concatenation.
pub(crate) fn slice(pieces: &[RunPiece], start: usize, end: usize) -> Vec<RunPiece> {
    let mut at = 0;
    let mut kept = Vec::with_capacity(pieces.len());
    for piece in pieces {
        let (from, to) = (start.max(at), end.min(at + piece.len()));
        if from < to {
            let shift = |x: usize| piece.start + (x - at) as u32;
            kept.push(RunPiece {
                run: piece.run,
                start: shift(from),
                end: shift(to),
            });
        }
        at += piece.len();
    }
    kept
}

/// Applies what needs all spans: heads that are computed again, the largest number, the least gain.
pub(crate) fn finish(spans: Vec<Span>, policy: &Policy) -> Vec<Span> {
    let head = policy.recompute_head as usize;
    let long_enough = |span: &Span| span.length >= head + policy.min_span as usize;
    let headless = |span: Span| {
        let (start, end) = (span.target + head, span.end());
        span.clip(start, end)
    };
    let spans: Vec<Span> = spans
        .into_iter()
        .filter(long_enough)
        .map(headless)
        .collect();
    keep_worth(spans, policy)
}

/// The largest number of spans that is allowed, or none if they save too little.
pub(crate) fn keep_worth(spans: Vec<Span>, policy: &Policy) -> Vec<Span> {
    let spans = keep_longest(spans, policy.max_segments as usize);
    if policy.is_worth(spans.len(), spans.iter().map(|span| span.length).sum()) {
        spans
    } else {
        Vec::new()
    }
}

/// At most `count` spans, the longest ones (the earlier of equals), in order.
fn keep_longest(mut spans: Vec<Span>, count: usize) -> Vec<Span> {
    if spans.len() > count {
        let mut order: Vec<usize> = (0..spans.len()).collect();
        order.sort_by_key(|&i| (Reverse(spans[i].length), i));
        let mut keep = vec![false; spans.len()];
        order[..count].iter().for_each(|&i| keep[i] = true);
        let mut keep = keep.into_iter();
        spans.retain(|_| keep.next().unwrap_or(false));
    }
    spans
}
