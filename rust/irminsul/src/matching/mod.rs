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

use crate::chunk::Cuts;
use crate::gear::WINDOW;
use crate::params::ChunkParams;
use crate::policy::Policy;
use crate::registry::{Donors, View};
use crate::simd::{SampleScratch, hash_chunks};
use crate::window::Sampler;

use cover::Cover;
use search::Search;
pub(crate) use span::{Span, keep_worth, slice};

/// Chunks that are fingerprinted at once, so that several hashes run side by side: few at first, as
/// the first one found may cover the rest, then more and more.
const GROUPS: std::ops::Range<usize> = 16..256;

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
    let mut scanned = prompt.prefix_len;
    while scanned < tokens.len() {
        // A marker further back than a window is as good as none.
        let last_marker = scanned.saturating_sub(WINDOW);
        let mut cuts = Cuts::new(params, tokens, scanned, scanned, last_marker);
        let mut bounds = vec![scanned];
        // One block first: a span that it finds may cover the next.
        let mut ahead = false;
        loop {
            let end = cuts.next_block(ahead, |end, _| bounds.push(end));
            (scanned, ahead) = (end.unwrap_or(tokens.len()), true);
            let last = bounds[bounds.len() - 1];
            if scanned == tokens.len() && last != scanned {
                bounds.push(scanned);
            }
            offer_chunks(search, tokens, &bounds, cover);
            if scanned == tokens.len() || cover.covered() > scanned {
                break;
            }
            bounds = vec![last];
        }
        scanned = scanned.max(cover.covered());
    }
}

/// Looks up the chunks between consecutive bounds that no span covers.
fn offer_chunks(search: &mut Search<'_, '_>, tokens: &[u32], bounds: &[usize], cover: &mut Cover) {
    let (mut fingerprints, mut keys) = (Vec::new(), Vec::new());
    let mut next = 0;
    let mut size = GROUPS.start;
    while next + 1 < bounds.len() {
        let covered = cover.covered();
        next += bounds[next + 1..].partition_point(|&end| end <= covered);
        let group = &bounds[next..bounds.len().min(next + size + 1)];
        size = GROUPS.end.min(2 * size);
        fingerprints.clear();
        hash_chunks(tokens, group, &mut fingerprints);
        keys.clear();
        keys.extend(fingerprints.iter().map(|&print| search.fetch_chunk(print)));
        for (bounds, &key) in group.windows(2).zip(&keys) {
            let (start, end) = (bounds[0], bounds[1]);
            if end > cover.covered() {
                let donors = search.chunk_donors(key);
                let donors = donors.as_ref().map_or(&[][..], Donors::as_slice);
                cover.offer(search, start, end, donors);
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
    let mut scratch = SampleScratch::default();
    let mut later = found.into_spans().into_iter().peekable();
    loop {
        let end = later.peek().map_or(bounds.end, |span| span.target);
        if end >= cover.covered() + search.min_span() {
            let text = &prompt.tokens[..end];
            let mut sampler = Sampler::new(text, cover.covered(), secret, &mut scratch);
            search_gap(search, &mut sampler, &mut cover);
        }
        let Some(next) = later.next() else {
            return cover;
        };
        cover.append(next, search.min_span());
    }
}

/// Looks for the windows of one gap. What a span covers is passed over.
fn search_gap(search: &mut Search<'_, '_>, sampler: &mut Sampler<'_>, cover: &mut Cover) {
    let mut windows = Vec::new();
    let mut keys = Vec::new();
    while sampler.step(&mut windows) {
        keys.clear();
        keys.extend(windows.iter().map(|window| search.fetch_window(window.key)));
        for (window, &key) in windows.drain(..).zip(&keys) {
            if window.end > cover.covered() {
                let donors = search.window_donors(key);
                let donors = donors.as_ref().map_or(&[][..], Donors::as_slice);
                cover.offer(search, window.start(), window.end, donors);
            }
        }
        sampler.skip_to(cover.covered());
    }
}
