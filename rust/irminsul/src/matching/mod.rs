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

use crate::chunk::Chunks;
use crate::params::ChunkParams;
use crate::policy::Policy;
use crate::registry::State;
use crate::window::windows;

use cover::Cover;
use search::Search;
pub(crate) use span::{Span, slice};

/// What is looked up.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Prompt<'a> {
    pub(crate) tokens: &'a [u32],
    pub(crate) namespace: u64,
    pub(crate) prefix_len: usize,
}

/// Non-overlapping spans in prompt order, trimmed to what `policy` allows.
///
/// `chunks` are those of the tokens after the prefix. What a span covers is not looked at again,
/// and the work is budgeted, so it stays linear in the prompt whatever the donors.
pub(crate) fn find_spans(
    state: &State,
    policy: &Policy,
    params: &ChunkParams,
    prompt: &Prompt<'_>,
    chunks: &Chunks,
) -> Vec<Span> {
    let mut search = Search::new(state, policy, prompt);
    let mut cover = Cover::new(search.bounds());
    for chunk in chunks.iter() {
        let (start, end) = (
            chunk.start + prompt.prefix_len,
            chunk.end + prompt.prefix_len,
        );
        if end > cover.covered() {
            let donors = state.index.get(prompt.namespace, chunk.fingerprint);
            cover.offer(&mut search, start, end, donors);
        }
    }
    if policy.windows {
        let rest = std::mem::take(&mut cover);
        cover = search_gaps(&mut search, prompt, params.secret(), rest);
    }
    span::finish(cover.into_spans(), policy)
}

/// Looks for sampled windows between the spans of `found`.
fn search_gaps(search: &mut Search<'_>, prompt: &Prompt<'_>, secret: u32, found: Cover) -> Cover {
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
                    cover.offer(search, window.start(), window.end, donors);
                }
            }
        }
        let Some(next) = later.next() else {
            return cover;
        };
        cover.append(next, search.min_span());
    }
}
