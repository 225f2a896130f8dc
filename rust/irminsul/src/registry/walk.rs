//! A place in the forest and prompt tokens -> how far their ids agree, to the left or to the right.
//!
//! Knows nothing of chunks or plans. Parents are unique, so walking left needs no choice; walking
//! right chooses the continuation that agrees longest.

use std::ops::Range;

use super::version::{Place, RunId, Version};
use super::view::View;
use crate::policy::Policy;

/// Tokens `[start, end)` of a run that were compared equal.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct RunPiece {
    pub(crate) run: RunId,
    pub(crate) start: u32,
    pub(crate) end: u32,
}

impl RunPiece {
    pub(crate) fn len(&self) -> usize {
        (self.end - self.start) as usize
    }
}

/// Tokens compared at once, as memory: long texts by the large block, their ends by the small one.
const BLOCKS: [usize; 2] = [256, 16];

/// Length of the longest common suffix.
fn common_suffix(a: &[u32], b: &[u32]) -> usize {
    let mut equal = 0;
    let rest = |equal| (&a[..a.len() - equal], &b[..b.len() - equal]);
    for block in BLOCKS {
        let (x, y) = rest(equal);
        let blocks = x.rchunks_exact(block).zip(y.rchunks_exact(block));
        equal += block * blocks.take_while(|(x, y)| x == y).count();
    }
    let (x, y) = rest(equal);
    let pairs = x.iter().rev().zip(y.iter().rev());
    equal + pairs.take_while(|(x, y)| x == y).count()
}

/// Length of the longest common prefix.
fn common_prefix(a: &[u32], b: &[u32]) -> usize {
    let mut equal = 0;
    for block in BLOCKS {
        let blocks = a[equal..].chunks_exact(block);
        let blocks = blocks.zip(b[equal..].chunks_exact(block));
        equal += block * blocks.take_while(|(x, y)| x == y).count();
    }
    let pairs = a[equal..].iter().zip(&b[equal..]);
    equal + pairs.take_while(|(x, y)| x == y).count()
}

/// Walks left from `place` while tokens equal the end of `prompt`; pieces come in path order.
pub(crate) fn extend_left(
    view: &View<'_>,
    policy: &Policy,
    place: Place,
    prompt: &[u32],
) -> Vec<RunPiece> {
    let mut pieces = Vec::new();
    let mut rest = prompt;
    let mut next = Some(place);
    while let Some(Place { run: id, offset }) = next {
        let Some(run) = view
            .run(id)
            .filter(|run| policy.admits(run.header.hops, run.header.depth))
        else {
            break;
        };
        let start = walk_run_left(run, offset, &mut rest);
        if start < offset {
            pieces.push(RunPiece {
                run: id,
                start,
                end: offset,
            });
        }
        next = if start == 0 && !rest.is_empty() {
            view.seamless_parent(run)
        } else {
            None
        };
    }
    pieces.reverse();
    pieces
}

/// Walks left inside one run; returns where agreement ends and shortens `rest` by what agreed.
fn walk_run_left(run: &Version, from: u32, rest: &mut &[u32]) -> u32 {
    let mut offset = from;
    while offset > 0 && !rest.is_empty() {
        let Some(Range { start, .. }) = run.live_range(offset - 1) else {
            break;
        };
        let equal = common_suffix(run.tokens(start..offset), rest);
        offset -= equal as u32;
        *rest = &rest[..rest.len() - equal];
        if offset > start {
            break;
        }
    }
    offset
}

/// Walks right from `place` while tokens equal the start of `prompt`; pieces come in path order.
pub(crate) fn extend_right(
    view: &View<'_>,
    policy: &Policy,
    place: Place,
    prompt: &[u32],
) -> Vec<RunPiece> {
    let mut pieces: Vec<RunPiece> = Vec::new();
    let mut rest = prompt;
    let mut at = place;
    while let Some((piece, full)) = best_continuation(view, policy, at, rest) {
        rest = &rest[piece.len()..];
        at = Place {
            run: piece.run,
            offset: piece.end,
        };
        match pieces.last_mut() {
            Some(last) if last.run == piece.run && last.end == piece.start => last.end = piece.end,
            _ => pieces.push(piece),
        }
        if !full {
            break;
        }
    }
    pieces
}

/// The continuation of `place` that agrees longest with `prompt`, and whether it agreed to its
/// node's end.
fn best_continuation(
    view: &View<'_>,
    policy: &Policy,
    place: Place,
    prompt: &[u32],
) -> Option<(RunPiece, bool)> {
    let first = *prompt.first()?;
    let run = view.run(place.run)?;
    let own = Some(place).filter(|place| run.live_range(place.offset).is_some());
    let children = view.continuations(place, first);
    let mut best: Option<(RunPiece, bool)> = None;
    for start in own.into_iter().chain(children) {
        let Some(found) = continuation(view, policy, place, start, prompt) else {
            continue;
        };
        if best.is_none_or(|(piece, _)| found.0.len() > piece.len()) {
            best = Some(found);
        }
    }
    best
}

/// Agreement of `prompt` with the node that starts at `start`, which follows `place`.
fn continuation(
    view: &View<'_>,
    policy: &Policy,
    place: Place,
    start: Place,
    prompt: &[u32],
) -> Option<(RunPiece, bool)> {
    let run = view.run(start.run)?;
    if !policy.admits(run.header.hops, run.header.depth)
        || view.position(place) != view.position(start)
    {
        return None;
    }
    let live = run.live_range(start.offset)?;
    let equal = common_prefix(run.tokens(start.offset..live.end), prompt) as u32;
    let end = start.offset + equal;
    let piece = RunPiece {
        run: start.run,
        start: start.offset,
        end,
    };
    (equal > 0).then_some((piece, end == live.end))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn agreement_is_measured_to_the_token() {
        let text: Vec<u32> = (0..700).collect();
        for at in [0, 1, 15, 16, 17, 255, 256, 257, 271, 272, 273, 512, 699] {
            let mut other = text.clone();
            other[at] = u32::MAX;
            assert_eq!(common_prefix(&text, &other), at);
            assert_eq!(common_prefix(&other[..600], &text), at.min(600));
            assert_eq!(common_suffix(&text, &other), 699 - at);
            assert_eq!(common_suffix(&other, &text[..700]), 699 - at);
        }
        assert_eq!(common_prefix(&text, &text[..300]), 300);
        assert_eq!(common_suffix(&text, &text[400..]), 300);
        assert_eq!(common_prefix(&text, &[]) + common_suffix(&[], &text), 0);
    }
}
