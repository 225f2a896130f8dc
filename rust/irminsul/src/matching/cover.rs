//! Spans offered from left to right -> an ordered cover without overlaps.
//!
//! Knows nothing of how a span was found.

use std::ops::Range;

use super::search::Search;
use super::span::Span;
use crate::registry::Place;

/// Spans in prompt order that do not overlap.
#[derive(Debug, Default)]
pub(crate) struct Cover {
    spans: Vec<Span>,
    floor: usize,
}

impl Cover {
    /// An empty cover of the prompt positions `bounds`.
    pub(crate) fn new(bounds: Range<usize>) -> Self {
        Self {
            spans: Vec::new(),
            floor: bounds.start,
        }
    }

    /// End of the last span: what lies before it is decided.
    pub(crate) fn covered(&self) -> usize {
        self.spans.last().map_or(self.floor, Span::end)
    }

    pub(crate) fn into_spans(self) -> Vec<Span> {
        self.spans
    }

    /// Takes the best span through one of `donors`, whose texts should equal the prompt's `[start,
    /// end)`.
    ///
    /// A span that reaches back over earlier ones replaces them: one long span needs one rotation
    /// and no seams.
    pub(crate) fn offer(
        &mut self,
        search: &mut Search<'_, '_>,
        start: usize,
        end: usize,
        donors: &[Place],
    ) {
        if donors.is_empty() && self.spans.is_empty() {
            return;
        }
        let window = start.max(self.covered())..end;
        let Some(span) = search.best(window, self.spans.last(), donors) else {
            return;
        };
        let before = self.spans.partition_point(|old| old.target < span.target);
        let free = self.spans[..before].last().map_or(self.floor, Span::end);
        if free + search.min_span() <= span.end() {
            self.spans.truncate(before);
            let end = span.end();
            self.spans.push(span.clip(free, end));
        }
    }

    /// Takes a span that begins after the start of the last one, which wins where they overlap.
    pub(crate) fn append(&mut self, next: Span, min_span: usize) {
        if next.end() <= self.covered() {
            return;
        }
        while let Some(last) = self.spans.pop_if(|last| last.end() > next.target) {
            if last.target + min_span <= next.target {
                let start = last.target;
                self.spans.push(last.clip(start, next.target));
            }
        }
        self.spans.push(next);
    }
}
