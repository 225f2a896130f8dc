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
    let mut questions = Questions::new();
    let mut bounds = Vec::new();
    let mut scanned = prompt.prefix_len;
    while scanned < tokens.len() {
        // A marker further back than a window is as good as none.
        let last_marker = scanned.saturating_sub(WINDOW);
        let mut cuts = Cuts::new(params, tokens, scanned, scanned, last_marker);
        bounds.clear();
        bounds.push(scanned);
        // One block first: a span that it finds may cover the next.
        let mut ahead = false;
        loop {
            let end = cuts.next_block(ahead, |end, _| bounds.push(end));
            (scanned, ahead) = (end.unwrap_or(tokens.len()), true);
            let last = bounds[bounds.len() - 1];
            if scanned == tokens.len() && last != scanned {
                bounds.push(scanned);
            }
            questions.ask(search, tokens, &bounds, cover);
            if scanned == tokens.len() || cover.covered() > scanned {
                break;
            }
            bounds.clear();
            bounds.push(last);
        }
        scanned = scanned.max(cover.covered());
    }
}

/// Chunks that are looked up together, with room that is used again.
struct Questions {
    fingerprints: Vec<u64>,
    keys: Vec<u64>,
    /// How many: few where a span was found just now, which may cover the rest.
    size: usize,
}

impl Questions {
    fn new() -> Self {
        Self {
            fingerprints: Vec::with_capacity(GROUPS.end),
            keys: Vec::with_capacity(GROUPS.end),
            size: GROUPS.start,
        }
    }

    /// Looks up the chunks between consecutive bounds that no span covers.
    fn ask(
        &mut self,
        search: &mut Search<'_, '_>,
        tokens: &[u32],
        bounds: &[usize],
        cover: &mut Cover,
    ) {
        let mut next = 0;
        while next + 1 < bounds.len() {
            let covered = cover.covered();
            next += bounds[next + 1..].partition_point(|&end| end <= covered);
            let group = &bounds[next..bounds.len().min(next + self.size + 1)];
            self.fingerprints.clear();
            hash_chunks(tokens, group, &mut self.fingerprints);
            self.keys.clear();
            let keys = self
                .fingerprints
                .iter()
                .map(|&print| search.fetch_chunk(print));
            self.keys.extend(keys);
            for (bounds, &key) in group.windows(2).zip(&self.keys) {
                let (start, end) = (bounds[0], bounds[1]);
                if end > cover.covered() {
                    let donors = search.chunk_donors(key);
                    let donors = donors.as_ref().map_or(&[][..], Donors::as_slice);
                    cover.offer(search, start, end, donors);
                }
            }
            next += self.fingerprints.len();
            let found = cover.covered() > covered;
            self.size = if found {
                GROUPS.start
            } else {
                GROUPS.end.min(2 * self.size)
            };
        }
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
