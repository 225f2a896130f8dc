//! Token sequences that real text never is -> the chunks of the slow reference.
//!
//! Knows nothing of how chunks are found. Lengths go through all sizes of the fast paths' pieces.

mod support;

use irminsul::{ChunkParams, Chunker, Cutter, chunk, chunk_bounds, fingerprint};
use support::random_ids;

/// Endless periodic, constant, counting and two-symbol texts, by name.
fn texts(len: usize) -> Vec<(&'static str, Vec<u32>)> {
    let cycle = |period: usize| -> Vec<u32> {
        let ids = random_ids(period as u64, period, 129_280);
        ids.into_iter().cycle().take(len).collect()
    };
    // Frequencies that fall as one over the rank.
    let rank = |id: u32| ((f64::from(id) / f64::from(u32::MAX) * 11.7).exp()) as u32;
    vec![
        ("id 0, whose hash is a marker's", vec![0; len]),
        ("one id", vec![7; len]),
        ("the largest id", vec![u32::MAX; len]),
        ("period 2", cycle(2)),
        ("period 3", cycle(3)),
        ("period 64", cycle(64)),
        ("period 65", cycle(65)),
        ("counting", (0..len as u32).collect()),
        (
            "counting down",
            (0..len as u32).rev().map(|id| id.wrapping_sub(9)).collect(),
        ),
        ("two symbols", random_ids(1, len, 2)),
        (
            "Zipf",
            random_ids(2, len, 1 << 32).into_iter().map(rank).collect(),
        ),
    ]
}

fn reference(tokens: &[u32], params: &ChunkParams) -> Vec<usize> {
    let mut cutter = Cutter::new(params);
    let mut bounds = vec![0];
    bounds.extend((1..=tokens.len()).filter(|&end| cutter.push(tokens[end - 1]).is_some()));
    if bounds.last() != Some(&tokens.len()) {
        bounds.push(tokens.len());
    }
    bounds
}

fn check(name: &str, tokens: &[u32], params: &ChunkParams) {
    let expected = reference(tokens, params);
    let chunks = chunk(tokens, params);
    assert_eq!(
        chunks.bounds(),
        expected,
        "{name}, {} tokens, {params:?}",
        tokens.len()
    );
    assert_eq!(
        chunk_bounds(tokens, params),
        expected,
        "{name}, {} tokens",
        tokens.len()
    );
    for part in chunks.iter() {
        assert_eq!(
            part.fingerprint,
            fingerprint(&tokens[part.start..part.end]),
            "{name}: {part:?}"
        );
    }
    let mut chunker = Chunker::new(params);
    tokens.chunks(5000).for_each(|piece| chunker.push(piece));
    assert_eq!(
        chunker.finish(),
        chunks,
        "{name}, {} tokens in pieces",
        tokens.len()
    );
}

/// Thresholds with and without a lower half, with and without a secret.
fn params() -> Vec<ChunkParams> {
    [
        (64, 128, 512, 0),
        (128, 512, 2048, 0),
        (64, 66, 66, 0xDEAD_BEEF),
        (100, 256, 1024, 1),
        (64, 1 << 20, 1 << 20, 0),
    ]
    .map(|(min, avg, max, secret)| ChunkParams::new(min, avg, max, secret).expect("in range"))
    .to_vec()
}

#[test]
fn every_length_up_to_a_few_steps_of_the_fast_paths() {
    for (name, tokens) in texts(700) {
        for params in params() {
            for len in (0..700).step_by(7).chain(250..330).chain(60..70) {
                check(name, &tokens[..len], &params);
            }
        }
    }
}

#[test]
fn lengths_around_the_blocks_of_the_fast_paths() {
    for (name, tokens) in texts(2 * 8 * 2064 + 200) {
        for params in params() {
            for len in [
                16_447, 16_448, 16_511, 16_512, 16_513, 16_576, 16_577, 16_640, 33_100,
            ] {
                check(name, &tokens[..len], &params);
            }
        }
    }
}

#[test]
fn a_hundred_thousand_tokens() {
    for (name, tokens) in texts(100_003) {
        for params in params() {
            check(name, &tokens, &params);
        }
    }
}
