//! Tokens of an insertion, with the path before them -> everything that is hashed of them.
//!
//! Knows nothing of the forest. Done before the writer's lock is taken: it is most of the work.

use super::RegistryConfig;
use super::anchor::{Anchor, RunWindow};
use super::anchors::anchors;
use super::path::PathTail;
use crate::window::{SAMPLING, WINDOW_TOKENS, windows};

/// Chunks and sampled windows that end in the tokens of an insertion.
#[derive(Debug)]
pub(crate) struct Prepared {
    pub(crate) anchors: Vec<Anchor>,
    pub(crate) windows: Vec<RunWindow>,
}

impl Prepared {
    pub(crate) fn new(config: &RegistryConfig, tail: &PathTail, tokens: &[u32]) -> Self {
        let anchors = anchors(&config.params, tail, tokens);
        let windows = if config.policy.windows {
            run_windows(config.params.secret(), &tail.tokens, tokens)
        } else {
            Vec::new()
        };
        Self { anchors, windows }
    }
}

/// The sampled windows that end in a run. Crafted text may sample everywhere; twice the usual number
/// bounds what it can occupy.
fn run_windows(secret: u32, before: &[u32], tokens: &[u32]) -> Vec<RunWindow> {
    let before = &before[before.len().saturating_sub(WINDOW_TOKENS - 1)..];
    let text = [before, tokens].concat();
    let limit = 2 * tokens.len() / SAMPLING + 2;
    let found = windows(&text, before.len(), secret);
    found
        .into_iter()
        .take(limit)
        .map(|window| RunWindow {
            end: (window.end - before.len()) as u32,
            key: window.key,
        })
        .collect()
}
