//! Verified spans -> ordered segments that tile the prompt, kept true to the registry.
//!
//! Knows nothing of how spans were found, nor of the engine's rows.

use std::sync::Arc;

use crate::error::Result;
use crate::matching::{Span, keep_worth, slice};
use crate::registry::walk::RunPiece;
use crate::registry::{NodeCell, RunId, Shared, Tenant, View};

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
    pins: Vec<RunId>,
    tenant: Option<Arc<Tenant>>,
    prefix_len: usize,
    prompt_len: usize,
}

impl ReusePlan {
    pub(crate) fn new(
        registry: &Arc<Shared>,
        view: &View<'_>,
        tenant: Option<Arc<Tenant>>,
        spans: Vec<Span>,
        prefix_len: usize,
        prompt_len: usize,
    ) -> Result<Self> {
        let mut plan = Self {
            registry: Arc::clone(registry),
            segments: Vec::new(),
            pins: Vec::new(),
            tenant,
            spans,
            prefix_len,
            prompt_len,
        };
        plan.pin()?;
        plan.keep(view);
        plan.segments = tile(view, &plan.spans, prefix_len, prompt_len);
        Ok(plan)
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

    /// Compares the plan with the registry as it is now: positions whose donors died become `Compute`, all of them
    /// when what is left saves less than `min_gain`, and pieces follow splits. Returns true when no segment changed.
    pub fn revalidate(&mut self) -> bool {
        let registry = Arc::clone(&self.registry);
        let view = View::new(&registry.core);
        let is_live = |node: &NodeCell| node.is_live();
        self.cut_to(&view, is_live);
        let segments = tile(&view, &self.spans, self.prefix_len, self.prompt_len);
        let unchanged = segments == self.segments;
        self.segments = segments;
        unchanged
    }

    /// Lets the donors be evicted. The segments stay readable.
    pub fn release(&mut self) {
        if let Some(tenant) = &self.tenant {
            tenant.remove_pins(self.pins.len());
        }
        self.registry.core.unpin(self.pins.drain(..));
    }

    /// Pins every run that a span uses, once. A run that is gone has no live node either.
    fn pin(&mut self) -> Result<()> {
        let pieces = self.spans.iter().flat_map(|span| &span.pieces);
        let mut runs: Vec<RunId> = pieces.map(|piece| piece.run).collect();
        runs.sort_unstable();
        runs.dedup();
        if let Some(tenant) = &self.tenant {
            tenant.add_pins(runs.len())?;
            let counted = runs.len();
            self.registry.core.pin(&mut runs);
            tenant.remove_pins(counted - runs.len());
        }
        self.pins = runs;
        Ok(())
    }

    /// Keeps the nodes under the spans from being evicted, or gives up what died before the pins.
    fn keep(&mut self, view: &View<'_>) {
        let tick = self.registry.core.reader_tick();
        self.cut_to(view, |node| {
            let kept = node.keep();
            if kept {
                node.touch(tick);
            }
            kept
        });
    }

    fn cut_to(&mut self, view: &View<'_>, is_live: impl Fn(&NodeCell) -> bool) {
        let policy = self.registry.policy();
        let (min_span, head) = (policy.min_span as usize, policy.recompute_head as usize);
        let spans = std::mem::take(&mut self.spans).into_iter();
        let rest = spans.flat_map(|span| survivors(view, span, min_span, head, &is_live));
        // What died inside a span makes two of it.
        self.spans = keep_worth(rest.collect(), policy);
    }
}

impl Drop for ReusePlan {
    fn drop(&mut self) {
        self.release();
    }
}

/// The nodes under a piece, each with the part of the piece that it holds, and where it begins.
fn nodes_of<'v>(
    view: &'v View<'_>,
    piece: &RunPiece,
) -> impl Iterator<Item = (&'v NodeCell, RunPiece, u32)> + 'v {
    let piece = *piece;
    let run = view.run(piece.run);
    let first = run.map_or(0, |run| run.segment_at(piece.start));
    run.into_iter().flat_map(move |run| {
        (first..run.segments.len())
            .map(|index| (index, run.segment_range(index)))
            .take_while(move |(_, range)| range.start < piece.end)
            .map(move |(index, range)| {
                let part = RunPiece {
                    run: piece.run,
                    start: piece.start.max(range.start),
                    end: piece.end.min(range.end),
                };
                (&*run.segments[index].node, part, range.start)
            })
    })
}

/// The stretches of a span that are still live and long enough.
///
/// A stretch that begins after removed rows is a span of its own, whose head is computed again as any other's.
fn survivors(
    view: &View<'_>,
    span: Span,
    min_span: usize,
    recompute_head: usize,
    is_live: impl Fn(&NodeCell) -> bool,
) -> Vec<Span> {
    let mut live: Vec<(usize, usize)> = Vec::new();
    let mut at = 0;
    for piece in &span.pieces {
        for (node, part, _) in nodes_of(view, piece) {
            if !is_live(node) {
                continue;
            }
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
fn tile(view: &View<'_>, spans: &[Span], prefix_len: usize, prompt_len: usize) -> Vec<Segment> {
    let mut segments = Vec::with_capacity(2 * spans.len() + 1);
    let mut at = prefix_len;
    for span in spans {
        if at < span.target {
            segments.push(Segment::Compute(Compute {
                start: at,
                end: span.target,
            }));
        }
        segments.push(Segment::Reuse(reuse(view, span)));
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

fn reuse(view: &View<'_>, span: &Span) -> Reuse {
    let mut pieces = Vec::new();
    for (node, part, start) in span.pieces.iter().flat_map(|piece| nodes_of(view, piece)) {
        pieces.push(Piece {
            node: node.host,
            offset: (part.start - start) as usize,
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
