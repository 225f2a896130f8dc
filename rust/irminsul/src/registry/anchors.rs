//! Tokens of an insertion, with the path before them -> the chunks that end in them.
//!
//! Knows nothing of the forest. Chunking continues where the parent's path left off, so that the cuts do not depend
//! on how a host divides a path into nodes.

use super::anchor::{Anchor, AnchorKind};
use super::path::PathTail;
use crate::chunk::{Cut, Cuts};
use crate::params::ChunkParams;
use crate::simd::hash_chunks;

/// The chunks that end in `tokens`; the last one, ended by no cut, is a tail.
pub(crate) fn anchors(params: &ChunkParams, tail: &PathTail, tokens: &[u32]) -> Vec<Anchor> {
    let from = tail.tokens.len();
    let text = [tail.tokens.as_slice(), tokens].concat();
    let (last_cut, last_marker) = (from - tail.since_cut, from - tail.since_marker);
    let mut cuts = Cuts::new(params, &text, from, last_cut, last_marker);
    let mut bounds = vec![last_cut];
    let mut kinds = Vec::new();
    let mut fingerprints = Vec::new();
    let mut emit = |end, cut| {
        bounds.push(end);
        kinds.push(if cut == Cut::Marker {
            AnchorKind::Marker
        } else {
            AnchorKind::Content
        });
    };
    while cuts.next_block(true, &mut emit).is_some() {}
    if bounds.last() != Some(&text.len()) {
        bounds.push(text.len());
        kinds.push(AnchorKind::Tail);
    }
    hash_chunks(&text, &bounds, &mut fingerprints);
    let ends = bounds[1..].iter().map(|end| (end - from) as u32);
    let found = ends.zip(fingerprints).zip(kinds);
    found
        .map(|((end, fingerprint), kind)| Anchor {
            end,
            fingerprint,
            kind,
        })
        .collect()
}
