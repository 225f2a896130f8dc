//! Prompt tokens, prompt chunks and recorded donors -> verified, extended spans.
//!
//! Knows nothing of holes or segments; it hands over what is equal, token by token, and the plan
//! decides what to use.
//!
//! Two passes. Chunks first: long, few, and specific. Then sampled windows in the gaps that chunks
//! left. Each hit is followed to both sides while ids agree, so a span ends where the text differs
//! and not where a chunk does.

mod cover;
mod search;
mod span;

use crate::chunk::{Cut, Cuts};
use crate::chunker::BLOCK;
use crate::gear::WINDOW;
use crate::params::ChunkParams;
use crate::policy::Policy;
use crate::registry::View;
use crate::simd::hash_chunks;
use crate::window::windows;

use cover::Cover;
use search::Search;
pub(crate) use span::{Span, slice};

/// Chunks that are fingerprinted at once, so that several hashes run side by side.
const GROUP: usize = 16;

/// What is looked up.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Prompt<'a> {
    pub(crate) tokens: &'a [u32],
    pub(crate) namespace: u64,
    pub(crate) prefix_len: usize,
}

/// Non-overlapping spans in prompt order, trimmed to what `policy` allows.
///
/// What a span covers is neither cut, nor hashed, nor looked at again, and the work is budgeted, so it
/// stays linear in the prompt whatever the donors.
pub(crate) fn find_spans(
    view: &View<'_>,
    policy: &Policy,
    params: &ChunkParams,
    prompt: &Prompt<'_>,
) -> Vec<Span> {
    let mut search = Search::new(view, policy, prompt);
    let mut cover = Cover::new(search.bounds());
    search_chunks(&mut search, params, prompt, &mut cover);
    if policy.windows {
        let rest = std::mem::take(&mut cover);
        cover = search_gaps(&mut search, prompt, params.secret(), rest);
    }
    span::finish(cover.into_spans(), policy)
}

/// Looks chunks up block by block, and goes on behind what a span covers as if a cut lay there: the
/// text is new from there on, so the chunk that is cut short would have found nothing.
fn search_chunks(
    search: &mut Search<'_, '_>,
    params: &ChunkParams,
    prompt: &Prompt<'_>,
    cover: &mut Cover,
) {
    let tokens = prompt.tokens;
    let before = |at: usize| at.saturating_sub(WINDOW);
    let mut scanned = prompt.prefix_len;
    let (mut last_cut, mut last_marker) = (scanned, before(scanned));
    while scanned < tokens.len() {
        let reach = tokens.len().min(scanned + BLOCK);
        let mut cuts = Cuts::new(params, &tokens[..reach], scanned, last_cut, last_marker);
        let mut bounds = vec![last_cut];
        let mut emit = |end, cut| {
            bounds.push(end);
            if cut == Cut::Marker {
                last_marker = end;
            }
        };
        while cuts.next_block(&mut emit) {}
        scanned = reach;
        if reach == tokens.len() && bounds.last() != Some(&reach) {
            bounds.push(reach);
        }
        last_cut = bounds[bounds.len() - 1];
        offer_chunks(search, tokens, &bounds, cover);
        if cover.covered() > scanned {
            scanned = cover.covered();
            (last_cut, last_marker) = (scanned, before(scanned));
        }
    }
}

/// Looks up the chunks between consecutive bounds that no span covers.
fn offer_chunks(search: &mut Search<'_, '_>, tokens: &[u32], bounds: &[usize], cover: &mut Cover) {
    let mut fingerprints = Vec::with_capacity(GROUP);
    let mut next = 0;
    while next + 1 < bounds.len() {
        let covered = cover.covered();
        next += bounds[next + 1..].partition_point(|&end| end <= covered);
        let group = &bounds[next..bounds.len().min(next + GROUP + 1)];
        fingerprints.clear();
        hash_chunks(tokens, group, &mut fingerprints);
        fingerprints
            .iter()
            .for_each(|&print| search.prefetch_chunk(print));
        for (bounds, &fingerprint) in group.windows(2).zip(&fingerprints) {
            let (start, end) = (bounds[0], bounds[1]);
            if end > cover.covered() {
                let donors = search.chunk_donors(fingerprint);
                cover.offer(search, start, end, donors.as_slice());
            }
        }
        next += fingerprints.len();
    }
}

/// Looks for sampled windows between the spans of `found`.
fn search_gaps(
    search: &mut Search<'_, '_>,
    prompt: &Prompt<'_>,
    secret: u32,
    found: Cover,
) -> Cover {
    let bounds = search.bounds();
    let mut cover = Cover::new(bounds.clone());
    let mut later = found.into_spans().into_iter().peekable();
    loop {
        let end = later.peek().map_or(bounds.end, |span| span.target);
        if end >= cover.covered() + search.min_span() {
            let text = &prompt.tokens[..end];
            for window in windows(text, cover.covered(), secret) {
                if window.end > cover.covered() {
                    let donors = search.window_donors(window.key);
                    cover.offer(search, window.start(), window.end, donors.as_slice());
                }
            }
        }
        let Some(next) = later.next() else {
            return cover;
        };
        cover.append(next, search.min_span());
    }
}
