//! Short descriptions of token sequences -> the sequences, by the rules of `tests/reference/tokens.py`.
//!
//! Knows nothing of the crate under test.
#![allow(dead_code)] // Each test binary uses a part.

pub(crate) mod host;

use std::path::Path;

use serde::Deserialize;
use serde::de::DeserializeOwned;

/// One part of a golden token sequence.
#[derive(Debug, Deserialize)]
#[serde(untagged)]
pub(crate) enum Part {
    Repeat {
        ids: Vec<u32>,
        times: usize,
    },
    Steps {
        start: i64,
        count: i64,
        step: i64,
    },
    Random {
        seed: u64,
        count: usize,
        below: u64,
        power: usize,
    },
}

/// An endless SplitMix64 stream.
pub(crate) fn splitmix(mut seed: u64) -> impl Iterator<Item = u64> {
    std::iter::repeat_with(move || {
        seed = seed.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let z = (seed ^ (seed >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        let z = (z ^ (z >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        z ^ (z >> 31)
    })
}

/// `count` ids below `below`.
pub(crate) fn random_ids(seed: u64, count: usize, below: u64) -> Vec<u32> {
    splitmix(seed)
        .take(count)
        .map(|x| (x % below) as u32)
        .collect()
}

/// The concatenation of the parts.
pub(crate) fn expand(parts: &[Part]) -> Vec<u32> {
    let mut tokens = Vec::new();
    for part in parts {
        match part {
            Part::Repeat { ids, times } => tokens.extend(ids.repeat(*times)),
            Part::Steps { start, count, step } => {
                tokens.extend((0..*count).map(|i| (start + i * step) as u32));
            }
            Part::Random {
                seed,
                count,
                below,
                power,
            } => {
                let numbers: Vec<u64> = splitmix(*seed).take(count * power).collect();
                let least = |group: &[u64]| group.iter().map(|x| x % below).min();
                tokens.extend(numbers.chunks(*power).filter_map(least).map(|x| x as u32));
            }
        }
    }
    tokens
}

/// Reads `tests/golden/<name>` of the repository.
pub(crate) fn golden<T: DeserializeOwned>(name: &str) -> T {
    let path = Path::new(env!("CARGO_MANIFEST_DIR"))
        .join("../../tests/golden")
        .join(name);
    let text = std::fs::read_to_string(&path).expect("golden file");
    serde_json::from_str(&text).expect("golden file is JSON of the expected shape")
}
