//! Donors of one stretch of the prompt -> the longest verified span through it.
//!
//! Knows nothing of other spans but the one before, whose rotation it would rather keep.

use std::cmp::Reverse;
use std::ops::Range;

use super::Prompt;
use super::span::Span;
use crate::policy::Policy;
use crate::registry::walk::{RunPiece, extend_left, extend_right};
use crate::registry::{Donors, Place, View};

/// Tokens to the right of a stretch that decide between donors; only the winner is followed
/// further.
const LOOKAHEAD: usize = 256;

/// Token comparisons allowed per prompt token. Honest text takes two to four; crafted donors could
/// otherwise make every stretch compare the same long text again.
const BUDGET_PER_TOKEN: usize = 16;

/// Tokens of agreement that outweigh one more level of approximation. Without it, long copies of
/// copies win every time, and depths grow with the traffic.
const DEPTH_COST: i64 = 4;

/// Tokens that agree less what their depth costs, then whether the rotation stays as before.
type Score = (i64, bool);

/// One lookup at work.
#[derive(Debug)]
pub(crate) struct Search<'a, 'v> {
    view: &'a View<'v>,
    policy: &'a Policy,
    prompt: &'a Prompt<'a>,
    budget: usize,
}

impl<'a, 'v> Search<'a, 'v> {
    pub(crate) fn new(view: &'a View<'v>, policy: &'a Policy, prompt: &'a Prompt<'a>) -> Self {
        let budget = BUDGET_PER_TOKEN * prompt.tokens.len();
        Self {
            view,
            policy,
            prompt,
            budget,
        }
    }

    /// Prompt positions that may be reused: neither prefix, nor sink, nor last token.
    pub(crate) fn bounds(&self) -> Range<usize> {
        let end = self.prompt.tokens.len().saturating_sub(1);
        let start = self.prompt.prefix_len.max(self.policy.sink_tokens as usize);
        start.min(end)..end
    }

    pub(crate) fn min_span(&self) -> usize {
        self.policy.min_span as usize
    }

    /// The key of a chunk, whose donors will be asked for soon.
    pub(crate) fn fetch_chunk(&self, fingerprint: u64) -> u64 {
        self.view.fetch_chunk(self.prompt.namespace, fingerprint)
    }

    pub(crate) fn chunk_donors(&self, key: u64) -> Option<Donors> {
        self.view.chunk_donors(self.prompt.namespace, key)
    }

    /// The key of a window, whose donors will be asked for soon.
    pub(crate) fn fetch_window(&self, hash: u32) -> u64 {
        self.view.fetch_window(self.prompt.namespace, hash)
    }

    pub(crate) fn window_donors(&self, key: u64) -> Option<Donors> {
        self.view.window_donors(self.prompt.namespace, key)
    }

    /// The best span through the end of `stretch`, if one is long enough; it may begin before the
    /// stretch.
    pub(crate) fn best(
        &mut self,
        stretch: Range<usize>,
        previous: Option<&Span>,
        donors: &[Place],
    ) -> Option<Span> {
        let continued = previous.and_then(|span| self.continuation(span, stretch.end));
        let places = continued.into_iter().chain(donors.iter().copied());
        let delta = previous.map(Span::delta);
        let mut found: Vec<(Score, Place)> = places
            .filter_map(|place| Some((self.score(&stretch, place, delta)?, place)))
            .collect();
        // Stable, so that equals keep the order of the index.
        found.sort_by_key(|&(score, _)| Reverse(score));
        let spans = found
            .into_iter()
            .map(|(_, place)| self.follow(stretch.end, place));
        spans.flatten().next()
    }

    /// The place that follows `span` at an unchanged rotation, for the prompt position `at`.
    fn continuation(&self, span: &Span, at: usize) -> Option<Place> {
        let last = span.pieces.last()?;
        let offset = u32::try_from(last.end as usize + at.checked_sub(span.end())?).ok()?;
        let run = self.view.run(last.run)?;
        let before = offset.checked_sub(1)?;
        run.live_range(before)?;
        // Most stretches fail here, which keeps this try cheaper than a probe of the index.
        let follows = run.tokens(before..offset) == &self.prompt.tokens[at - 1..at];
        follows.then_some(Place {
            run: last.run,
            offset,
        })
    }

    /// Tokens that agree near the stretch, and whether the rotation stays that of the previous
    /// span.
    fn score(&mut self, stretch: &Range<usize>, place: Place, delta: Option<i64>) -> Option<Score> {
        let tokens = self.prompt.tokens;
        let position = self.view.position(place)?;
        let left = self.left(place, &tokens[stretch.clone()]);
        if left.is_empty() {
            return None;
        }
        let ahead = (stretch.end + LOOKAHEAD).min(tokens.len());
        let right = self.right(place, &tokens[stretch.end..ahead]);
        let depth = self.depth(left.iter().chain(&right));
        let agreed = (total(&left) + total(&right)) as i64;
        let keeps = delta == Some(stretch.end as i64 - position as i64);
        Some((agreed - DEPTH_COST * i64::from(depth), keeps))
    }

    fn depth<'p>(&self, pieces: impl Iterator<Item = &'p RunPiece>) -> u32 {
        let runs = pieces.filter_map(|piece| self.view.run(piece.run));
        runs.map(|run| run.header.depth).max().unwrap_or(0)
    }

    /// Follows a donor to both sides of the prompt position `at` and trims what was found.
    fn follow(&mut self, at: usize, place: Place) -> Option<Span> {
        let bounds = self.bounds();
        let tokens = self.prompt.tokens;
        let mut pieces = self.left(place, &tokens[bounds.start.min(at)..at]);
        let left = total(&pieces);
        for piece in self.right(place, &tokens[at..bounds.end.max(at)]) {
            match pieces.last_mut() {
                Some(last) if last.run == piece.run && last.end == piece.start => {
                    last.end = piece.end;
                }
                _ => pieces.push(piece),
            }
        }
        let runs = || pieces.iter().filter_map(|piece| self.view.run(piece.run));
        let span = Span {
            target: at - left,
            length: total(&pieces),
            source: self.view.position(place)?.checked_sub(left as u64)?,
            hops: runs().map(|run| run.header.hops).max().unwrap_or(0),
            depth: self.depth(pieces.iter()),
            pieces,
        };
        self.trim(span)
    }

    /// Cuts off rows that may not move and positions that must be computed; drops what is too
    /// short.
    fn trim(&self, span: Span) -> Option<Span> {
        let bounds = self.bounds();
        let mut start = span.target.max(bounds.start);
        if span.delta() != 0 {
            let sink_end = i64::from(self.policy.sink_tokens) + span.delta();
            start = start.max(sink_end.max(0) as usize);
        }
        let end = span.end().min(bounds.end);
        (start + self.min_span() <= end).then(|| span.clip(start, end))
    }

    fn left(&mut self, place: Place, text: &[u32]) -> Vec<RunPiece> {
        let text = &text[text.len() - text.len().min(self.budget)..];
        let pieces = extend_left(self.view, self.policy, place, text);
        self.spend(&pieces);
        pieces
    }

    fn right(&mut self, place: Place, text: &[u32]) -> Vec<RunPiece> {
        let text = &text[..text.len().min(self.budget)];
        let pieces = extend_right(self.view, self.policy, place, text);
        self.spend(&pieces);
        pieces
    }

    fn spend(&mut self, pieces: &[RunPiece]) {
        self.budget = self.budget.saturating_sub(total(pieces) + 1);
    }
}

fn total(pieces: &[RunPiece]) -> usize {
    pieces.iter().map(RunPiece::len).sum()
}
