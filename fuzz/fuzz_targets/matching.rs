//! Any trees of texts and any prompt -> plans that tile it and reuse only equal ids.
#![no_main]

#[path = "../../rust/irminsul/tests/support/mod.rs"]
mod support;
mod texts;

use arbitrary::Arbitrary;
use irminsul::Policy;
use libfuzzer_sys::fuzz_target;
use support::host::Host;
use texts::{Part, text};

#[derive(Arbitrary, Debug)]
struct Input {
    nodes: Vec<(Vec<Part>, u8, u8)>,
    prompt: Vec<Part>,
    /// Which earlier nodes the prompt begins with.
    quotes: Vec<u8>,
    prefix: u16,
    recompute_head: u8,
    min_span: u8,
    windows: bool,
    /// Fingerprint bits: few make collisions.
    bits: u8,
}

fuzz_target!(|input: Input| {
    let policy = Policy {
        recompute_head: u32::from(input.recompute_head),
        min_span: 1 + u32::from(input.min_span),
        windows: input.windows,
        ..Policy::default()
    };
    let mut host = Host::with_bits(policy, [0, 3, 8, 64][usize::from(input.bits % 4)]);
    let mut known = Vec::new();
    for (parts, parent, hops) in input.nodes.iter().take(12) {
        let tokens = text(parts);
        if tokens.is_empty() {
            continue;
        }
        let parent =
            (!known.is_empty() && parent % 2 == 1).then(|| u64::from(*parent) % known.len() as u64);
        host.add(parent, &tokens, u32::from(*hops % 4), 0);
        known.push(tokens);
    }
    let mut prompt = Vec::new();
    for quote in input.quotes.iter().take(6).filter(|_| !known.is_empty()) {
        prompt.extend_from_slice(&known[usize::from(*quote) % known.len()]);
    }
    prompt.extend(text(&input.prompt));
    host.plan(&prompt, usize::from(input.prefix).min(prompt.len()));
});
