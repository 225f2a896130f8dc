//! A place in the forest and prompt tokens -> how far their ids agree, to the left or to the right.
//!
//! Knows nothing of chunks or plans. Parents are unique, so walking left needs no choice; walking
//! right chooses the continuation that agrees longest.

use std::ops::Range;

use super::forest::Forest;
use super::run::{Place, Run, RunId};
use crate::policy::Policy;

/// Continuations compared at a fork, newest first. Radix trees with pages of one token have one at
/// most.
const MAX_FORK: usize = 8;

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

/// Tokens compared at once; whole blocks compare as memory.
const BLOCK: usize = 16;

/// Length of the longest common suffix.
fn common_suffix(a: &[u32], b: &[u32]) -> usize {
    let blocks = a.rchunks_exact(BLOCK).zip(b.rchunks_exact(BLOCK));
    let equal = BLOCK * blocks.take_while(|(x, y)| x == y).count();
    let (a, b) = (&a[..a.len() - equal], &b[..b.len() - equal]);
    let rest = a.iter().rev().zip(b.iter().rev());
    equal + rest.take_while(|(x, y)| x == y).count()
}

/// Length of the longest common prefix.
fn common_prefix(a: &[u32], b: &[u32]) -> usize {
    let blocks = a.chunks_exact(BLOCK).zip(b.chunks_exact(BLOCK));
    let equal = BLOCK * blocks.take_while(|(x, y)| x == y).count();
    let rest = a[equal..].iter().zip(&b[equal..]);
    equal + rest.take_while(|(x, y)| x == y).count()
}

/// Walks left from `place` while tokens equal the end of `prompt`; pieces come in path order.
pub(crate) fn extend_left(
    forest: &Forest,
    policy: &Policy,
    place: Place,
    prompt: &[u32],
) -> Vec<RunPiece> {
    let mut pieces = Vec::new();
    let mut rest = prompt;
    let mut next = Some(place);
    while let Some(Place { run: id, offset }) = next {
        let Some(run) = forest
            .run(id)
            .filter(|run| policy.admits(run.hops, run.depth))
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
            forest.seamless_parent(run)
        } else {
            None
        };
    }
    pieces.reverse();
    pieces
}

/// Walks left inside one run; returns where agreement ends and shortens `rest` by what agreed.
fn walk_run_left(run: &Run, from: u32, rest: &mut &[u32]) -> u32 {
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
    forest: &Forest,
    policy: &Policy,
    place: Place,
    prompt: &[u32],
) -> Vec<RunPiece> {
    let mut pieces: Vec<RunPiece> = Vec::new();
    let mut rest = prompt;
    let mut at = place;
    while let Some((piece, full)) = best_continuation(forest, policy, at, rest) {
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
    forest: &Forest,
    policy: &Policy,
    place: Place,
    prompt: &[u32],
) -> Option<(RunPiece, bool)> {
    let first = *prompt.first()?;
    let run = forest.run(place.run)?;
    let own = Some(place).filter(|place| run.live_range(place.offset).is_some());
    let children = run.children.get(&(place.offset, first));
    let children = children.into_iter().flatten().rev().take(MAX_FORK);
    let children = children.map(|&run| Place { run, offset: 0 });
    let mut best: Option<(RunPiece, bool)> = None;
    for start in own.into_iter().chain(children) {
        let Some(found) = continuation(forest, policy, place, start, prompt) else {
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
    forest: &Forest,
    policy: &Policy,
    place: Place,
    start: Place,
    prompt: &[u32],
) -> Option<(RunPiece, bool)> {
    let run = forest.run(start.run)?;
    if !policy.admits(run.hops, run.depth) || forest.position(place) != forest.position(start) {
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
