//! Verified spans -> ordered segments that tile the prompt, kept true to the registry.
//!
//! Knows nothing of how spans were found, nor of the engine's rows.

use std::collections::BTreeSet;
use std::sync::Arc;

use crate::matching::{Span, slice};
use crate::registry::walk::RunPiece;
use crate::registry::{RunId, Shared, State};

/// Consecutive rows of one node of the host.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Piece {
    /// The host's id of the node.
    pub node: u64,
    /// First token inside the node as it was when the plan was made or last revalidated.
    pub offset: usize,
    /// Number of tokens.
    pub length: usize,
}

/// Prompt positions whose rows are copied from recorded ones and rotated.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Reuse {
    /// First prompt position.
    pub target: usize,
    /// Number of positions.
    pub length: usize,
    /// Position at which the first row was computed.
    pub source: u64,
    /// Most rotations that any of the rows has been through.
    pub hops: u32,
    /// Largest approximation depth of any of the rows.
    pub depth: u32,
    /// Where the rows lie; concatenated they are the span.
    pub pieces: Vec<Piece>,
}

impl Reuse {
    /// Rotation that the rows need: `target - source`.
    pub fn delta(&self) -> i64 {
        self.target as i64 - self.source as i64
    }
}

/// Prompt positions `[start, end)` that the engine computes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Compute {
    /// First prompt position.
    pub start: usize,
    /// One past the last position.
    pub end: usize,
}

/// Part of a plan.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub enum Segment {
    /// Rows to relocate.
    Reuse(Reuse),
    /// A hole.
    Compute(Compute),
}

/// What to do for the prompt positions `[prefix_len, n)`.
///
/// While a plan lives, its donors are not evicted for room; the host may still remove them.
#[derive(Debug)]
pub struct ReusePlan {
    registry: Arc<Shared>,
    spans: Vec<Span>,
    segments: Vec<Segment>,
    pins: Vec<Arc<()>>,
    prefix_len: usize,
    prompt_len: usize,
}

impl ReusePlan {
    pub(crate) fn new(
        registry: &Arc<Shared>,
        state: &State,
        spans: Vec<Span>,
        prefix_len: usize,
        prompt_len: usize,
    ) -> Self {
        let mut plan = Self {
            registry: Arc::clone(registry),
            segments: tile(state, &spans, prefix_len, prompt_len),
            pins: Vec::new(),
            spans,
            prefix_len,
            prompt_len,
        };
        plan.pin(state);
        plan.touch(state);
        plan
    }

    /// The segments in order; they tile `[prefix_len, n)`.
    pub fn segments(&self) -> &[Segment] {
        &self.segments
    }

    /// Prompt positions whose rows are reused.
    pub fn reused_tokens(&self) -> usize {
        self.spans.iter().map(|span| span.length).sum()
    }

    /// Prompt positions that the engine computes.
    pub fn computed_tokens(&self) -> usize {
        self.prompt_len - self.prefix_len - self.reused_tokens()
    }

    /// Compares the plan with the registry as it is now: positions whose donors died become `Compute`, and pieces
    /// follow splits. Returns true when no segment changed.
    pub fn revalidate(&mut self) -> bool {
        let registry = Arc::clone(&self.registry);
        let state = registry.read();
        let policy = registry.policy();
        let min_span = policy.min_span as usize;
        let mut spans = Vec::with_capacity(self.spans.len());
        for span in self.spans.drain(..) {
            spans.extend(survivors(
                &state,
                span,
                min_span,
                policy.recompute_head as usize,
            ));
        }
        let segments = tile(&state, &spans, self.prefix_len, self.prompt_len);
        let unchanged = segments == self.segments;
        self.spans = spans;
        self.segments = segments;
        unchanged
    }

    /// Lets the donors be evicted. The segments stay readable.
    pub fn release(&mut self) {
        self.pins.clear();
    }

    fn pin(&mut self, state: &State) {
        let pieces = self.spans.iter().flat_map(|span| &span.pieces);
        let runs: BTreeSet<RunId> = pieces.map(|piece| piece.run).collect();
        let runs = runs.into_iter().filter_map(|id| state.forest.run(id));
        self.pins = runs.map(|run| Arc::clone(&run.pin)).collect();
    }

    fn touch(&self, state: &State) {
        let pieces = self.spans.iter().flat_map(|span| &span.pieces);
        state.touch(
            pieces
                .flat_map(|piece| nodes_of(state, piece))
                .map(|(key, _)| key),
        );
    }
}

/// The live nodes under a piece, each with the part of the piece that it holds.
fn nodes_of(state: &State, piece: &RunPiece) -> Vec<(crate::registry::NodeKey, RunPiece)> {
    let Some(run) = state.forest.run(piece.run) else {
        return Vec::new();
    };
    let mut found = Vec::new();
    let mut index = run.segment_at(piece.start);
    while index < run.segments.len() && run.segment_range(index).start < piece.end {
        let range = run.segment_range(index);
        let part = RunPiece {
            run: piece.run,
            start: piece.start.max(range.start),
            end: piece.end.min(range.end),
        };
        found.extend(run.segments[index].node.map(|key| (key, part)));
        index += 1;
    }
    found
}

/// The stretches of a span that are still live and long enough.
///
/// A stretch that begins after removed rows is a span of its own, whose head is computed again as any other's.
fn survivors(state: &State, span: Span, min_span: usize, recompute_head: usize) -> Vec<Span> {
    let mut live: Vec<(usize, usize)> = Vec::new();
    let mut at = 0;
    for piece in &span.pieces {
        for (_, part) in nodes_of(state, piece) {
            let start = at + (part.start - piece.start) as usize;
            match live.last_mut() {
                Some(last) if last.1 == start => last.1 += part.len(),
                _ => live.push((start, start + part.len())),
            }
        }
        at += piece.len();
    }
    if live == [(0, span.length)] {
        return vec![span];
    }
    let stretch = |(start, end): (usize, usize)| {
        let start = if start == 0 {
            0
        } else {
            start + recompute_head
        };
        (start + min_span <= end).then(|| Span {
            target: span.target + start,
            length: end - start,
            source: span.source + start as u64,
            pieces: slice(&span.pieces, start, end),
            ..span
        })
    };
    live.into_iter().filter_map(stretch).collect()
}

/// Spans -> segments, with holes between.
fn tile(state: &State, spans: &[Span], prefix_len: usize, prompt_len: usize) -> Vec<Segment> {
    let mut segments = Vec::with_capacity(2 * spans.len() + 1);
    let mut at = prefix_len;
    for span in spans {
        if at < span.target {
            segments.push(Segment::Compute(Compute {
                start: at,
                end: span.target,
            }));
        }
        segments.push(Segment::Reuse(reuse(state, span)));
        at = span.end();
    }
    if at < prompt_len {
        segments.push(Segment::Compute(Compute {
            start: at,
            end: prompt_len,
        }));
    }
    segments
}

fn reuse(state: &State, span: &Span) -> Reuse {
    let mut pieces = Vec::new();
    for (key, part) in span.pieces.iter().flat_map(|piece| nodes_of(state, piece)) {
        let Some(node) = state.forest.node(key) else {
            continue;
        };
        let offset = (part.start - node.start) as usize;
        pieces.push(Piece {
            node: node.host,
            offset,
            length: part.len(),
        });
    }
    let Span {
        target,
        length,
        source,
        hops,
        depth,
        ..
    } = *span;
    Reuse {
        target,
        length,
        source,
        hops,
        depth,
        pieces,
    }
}
