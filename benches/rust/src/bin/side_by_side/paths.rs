//! Every set of vector instructions that this processor has, in turns on the same ids -> rows.
//!
//! Knows nothing of peers. All paths give the same bits; only their speed differs.

use irminsul::{ChunkParams, Vectors, chunk, chunk_bounds};
use irminsul_benches::text;
use serde_json::Value;

use crate::{Candidate, Row, repeat, rounds};

/// Sizes, and what they are called in the rows.
fn sizes() -> [(&'static str, ChunkParams); 2] {
    let large = ChunkParams::new(128, 512, 2048, 0).expect("valid sizes");
    [("", ChunkParams::default()), (", 128/512/2048", large)]
}

/// The paths, narrowest first.
fn paths() -> Vec<(&'static str, Vectors)> {
    let all = [
        ("scalar", Vectors::Scalar),
        ("AVX2 or NEON", Vectors::Narrow),
        ("AVX2 scans, AVX-512 hashes", Vectors::Mixed),
        ("AVX-512", Vectors::Wide),
    ];
    Vectors::Wide.allow();
    let has = |vectors: Vectors| vectors <= Vectors::at_hand();
    all.into_iter().filter(|&(_, v)| has(v)).collect()
}

/// Throughput of bounds and chunks on each path beside the widest.
pub(crate) fn rows(rows: &mut Vec<Value>) {
    let paths = paths();
    let (widest, _) = paths[paths.len() - 1];
    for (length, times, samples) in [(1 << 10, 64, 101), (1 << 13, 8, 101), (1 << 17, 1, 301)] {
        let tokens = text(1, length);
        let tokens = &tokens;
        for (suffix, params) in sizes() {
            let mut names = Vec::new();
            for &(path, vectors) in &paths {
                names.push((format!("bounds{suffix}"), path, vectors, false));
                names.push((format!("chunks{suffix}"), path, vectors, true));
            }
            let labels: Vec<String> = names
                .iter()
                .map(|(name, path, ..)| format!("{name} {path}"))
                .collect();
            let candidates: Vec<Candidate<'_>> = names
                .iter()
                .zip(&labels)
                .map(|(&(_, _, vectors, hashed), label)| {
                    let mut run = if hashed {
                        repeat(times, move || chunk(tokens, &params).len())
                    } else {
                        repeat(times, move || chunk_bounds(tokens, &params).len())
                    };
                    let run: Box<dyn FnMut()> = Box::new(move || {
                        vectors.allow();
                        run();
                    });
                    (label.as_str(), run)
                })
                .collect();
            let timed = rounds(candidates, samples);
            let rate = |nanoseconds: f64| 1000.0 * (length * times) as f64 / nanoseconds;
            for ((name, path, ..), label) in names.iter().zip(&labels) {
                let row = Row {
                    bar_id: if name.starts_with('b') {
                        "core.1"
                    } else {
                        "core.2"
                    },
                    case: format!("{name}, {length} text-like ids, {path} path"),
                    metric: "throughput",
                    unit: "M tokens/s",
                    bar: "",
                };
                let rival = rate(timed[format!("{name} {widest}").as_str()].median);
                rows.push(row.json(timed[label.as_str()].map(rate), Some((widest, rival))));
            }
        }
    }
    Vectors::Mixed.allow();
}
