//! Tokens of an insertion, with the path before them -> the chunks that end in them.
//!
//! Knows nothing of the forest. Chunking continues where the parent's path left off, so that the cuts do not depend
//! on how a host divides a path into nodes.

use super::forest::PathTail;
use super::run::{Anchor, AnchorKind};
use crate::chunk::{Cut, Cutter};
use crate::fingerprint::fingerprint;
use crate::params::ChunkParams;

/// The chunks that end in `tokens`; the last one, ended by no cut, is a tail.
pub(crate) fn anchors(params: &ChunkParams, tail: &PathTail, tokens: &[u32]) -> Vec<Anchor> {
    let mut cutter = Cutter::resume(params, &tail.tokens, tail.since_cut, tail.since_marker);
    let pending = tail.since_cut;
    let mut text = tail.tokens[tail.tokens.len() - pending..].to_vec();
    text.extend_from_slice(tokens);
    let mut start = 0;
    let mut found = Vec::with_capacity(tokens.len() / params.avg() as usize + 2);
    for (at, &token) in tokens.iter().enumerate() {
        let Some(cut) = cutter.push(token) else {
            continue;
        };
        let end = pending + at + 1;
        let kind = if cut == Cut::Marker {
            AnchorKind::Marker
        } else {
            AnchorKind::Content
        };
        let fingerprint = fingerprint(&text[start..end]);
        found.push(Anchor {
            end: at as u32 + 1,
            fingerprint,
            kind,
        });
        start = end;
    }
    if start < text.len() {
        let fingerprint = fingerprint(&text[start..]);
        found.push(Anchor {
            end: tokens.len() as u32,
            fingerprint,
            kind: AnchorKind::Tail,
        });
    }
    found
}
