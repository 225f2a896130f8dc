//! Prompt chunks and recorded donors -> verified, extended spans.
//!
//! Knows nothing of holes or segments; it hands over what is equal, token by token, and the plan decides what to use.

use crate::chunk::{Chunk, Chunks};
use crate::policy::Policy;
use crate::registry::walk::{RunPiece, extend_left, extend_right};
use crate::registry::{Donor, State};

/// What is looked up.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Prompt<'a> {
    pub(crate) tokens: &'a [u32],
    pub(crate) namespace: u64,
    pub(crate) prefix_len: usize,
}

/// Prompt tokens `[target, target + length)` that equal recorded ones, whose rows lie at `source` and after.
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
}

/// Non-overlapping spans in prompt order, trimmed to what `policy` allows.
///
/// Each chunk is compared with its donors up to its own start only; the chosen donor alone is followed further.
/// What a span covers is not looked at again, so the work stays linear in the prompt, whatever the donors.
pub(crate) fn find_spans(
    state: &State,
    policy: &Policy,
    prompt: &Prompt<'_>,
    chunks: &Chunks,
) -> Vec<Span> {
    let mut spans: Vec<Span> = Vec::new();
    let floor = prompt.prefix_len.max(policy.sink_tokens as usize);
    let mut covered = floor;
    for chunk in chunks.iter() {
        let start = chunk.start + prompt.prefix_len;
        let end = chunk.end + prompt.prefix_len;
        let chunk = Chunk {
            start,
            end,
            ..chunk
        };
        if end <= covered {
            continue;
        }
        let delta = spans.last().map(Span::delta);
        let Some(donor) = choose(state, policy, prompt, &chunk, covered, delta) else {
            continue;
        };
        let span = extend(state, policy, prompt, end, covered, donor);
        if let Some(span) = trim(&span, policy, floor, prompt.tokens.len()) {
            covered = span.end();
            spans.push(span);
        }
    }
    keep_longest(spans, policy.max_segments as usize)
}

/// The donor to follow: most tokens of the chunk equal, then the delta of the previous span, then the index's order.
fn choose<'a>(
    state: &'a State,
    policy: &Policy,
    prompt: &Prompt<'_>,
    chunk: &Chunk,
    covered: usize,
    delta: Option<i64>,
) -> Option<&'a Donor> {
    let text = &prompt.tokens[chunk.start.max(covered)..chunk.end];
    let mut best: Option<((usize, bool), &Donor)> = None;
    for donor in state.index.get(prompt.namespace, chunk.fingerprint) {
        let pieces = extend_left(&state.forest, policy, donor.end, text);
        let equal = pieces.iter().map(RunPiece::len).sum::<usize>();
        let position = state.forest.position(donor.end)?;
        let continues = delta == Some(chunk.end as i64 - position as i64);
        let score = (equal, continues);
        if equal > 0 && best.is_none_or(|(other, _)| score > other) {
            best = Some((score, donor));
        }
    }
    best.map(|(_, donor)| donor)
}

/// Follows a donor to both sides of the prompt position `at`.
fn extend(
    state: &State,
    policy: &Policy,
    prompt: &Prompt<'_>,
    at: usize,
    covered: usize,
    donor: &Donor,
) -> Span {
    let forest = &state.forest;
    let mut pieces = extend_left(forest, policy, donor.end, &prompt.tokens[covered..at]);
    let left: usize = pieces.iter().map(RunPiece::len).sum();
    let right = extend_right(forest, policy, donor.end, &prompt.tokens[at..]);
    let length = left + right.iter().map(RunPiece::len).sum::<usize>();
    for piece in right {
        match pieces.last_mut() {
            Some(last) if last.run == piece.run && last.end == piece.start => last.end = piece.end,
            _ => pieces.push(piece),
        }
    }
    let runs = || pieces.iter().filter_map(|piece| forest.run(piece.run));
    let hops = runs().map(|run| run.hops).max().unwrap_or(0);
    let depth = runs().map(|run| run.depth).max().unwrap_or(0);
    let source = forest.position(donor.end).unwrap_or(0) - left as u64;
    Span {
        target: at - left,
        length,
        source,
        hops,
        depth,
        pieces,
    }
}

/// Cuts a span to what may be reused, or drops it.
fn trim(span: &Span, policy: &Policy, floor: usize, prompt_len: usize) -> Option<Span> {
    let mut start = span.target.max(floor);
    if span.delta() != 0 {
        let sink_end = i64::from(policy.sink_tokens) + span.delta();
        start = start.max(sink_end.max(0) as usize);
    }
    start += policy.recompute_head as usize;
    let end = span.end().min(prompt_len.saturating_sub(1));
    if start + policy.min_span as usize > end {
        return None;
    }
    let pieces = slice(&span.pieces, start - span.target, end - span.target);
    let source = span.source + (start - span.target) as u64;
    Some(Span {
        target: start,
        length: end - start,
        source,
        pieces,
        ..*span
    })
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

/// At most `count` spans, the longest ones (the earlier of equals), in order.
fn keep_longest(mut spans: Vec<Span>, count: usize) -> Vec<Span> {
    if spans.len() > count {
        let mut order: Vec<usize> = (0..spans.len()).collect();
        order.sort_by_key(|&i| (std::cmp::Reverse(spans[i].length), i));
        let mut keep = vec![false; spans.len()];
        order[..count].iter().for_each(|&i| keep[i] = true);
        let mut keep = keep.into_iter();
        spans.retain(|_| keep.next().unwrap_or(false));
    }
    spans
}
