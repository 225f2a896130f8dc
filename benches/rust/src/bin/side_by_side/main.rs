//! The core and its peers in turns on the same ids -> one JSON file.
//!
//! All candidates of a case run in rounds, one after the other, so that whatever else the machine
//! does falls on each of them, each after an untimed run, which finds the ids in the caches as a
//! tokenizer leaves them. Times are the thread's own processor time. The figure is the median over the samples that were taken while the core's other thread was idle before and after, of
//! which each candidate gets as many as asked for, unless the machine is too busy; the median of
//! all samples and the best are kept too.

mod paths;
mod sibling;

use std::collections::BTreeMap;
use std::hint::black_box;

use cpu_time::ThreadTime;
use irminsul::{ChunkParams, Cutter, Namespace, chunk, chunk_bounds, fingerprint};
use irminsul_benches::{bytes, machine, registry, text, uniform};
use serde_json::{Value, json};

type Candidate<'a> = (&'a str, Box<dyn FnMut() + 'a>);

/// Times of one candidate in nanoseconds, sorted.
#[derive(Default)]
struct Times {
    /// While the core was the thread's alone.
    alone: Vec<f64>,
    all: Vec<f64>,
}

/// The figures of one candidate: times in nanoseconds, or whatever they were turned into.
#[derive(Clone, Copy)]
struct Figures {
    median: f64,
    best: f64,
    /// The median over all samples, shared cores included.
    all: f64,
    alone: usize,
}

impl Figures {
    fn map(self, change: impl Fn(f64) -> f64) -> Self {
        Self {
            median: change(self.median),
            best: change(self.best),
            all: change(self.all),
            ..self
        }
    }
}

impl Times {
    fn add(&mut self, time: f64, alone: bool) {
        self.all.push(time);
        if alone {
            self.alone.push(time);
        }
    }

    fn figures(&mut self) -> Figures {
        let median = |times: &mut Vec<f64>| {
            times.sort_by(f64::total_cmp);
            times.get(times.len() / 2).copied()
        };
        let all = median(&mut self.all).unwrap_or(f64::NAN);
        Figures {
            median: median(&mut self.alone).unwrap_or(all),
            best: self.all.first().copied().unwrap_or(f64::NAN),
            all,
            alone: self.alone.len(),
        }
    }
}

/// Most rounds, as a multiple of the samples asked for, unless a second argument says how many.
const PATIENCE: usize = 8;

fn patience() -> usize {
    let given = std::env::args().nth(2).and_then(|given| given.parse().ok());
    given.unwrap_or(PATIENCE)
}

/// Runs all candidates in turns, each long enough to be timed, until each was alone in `count` of them.
fn rounds<'a>(mut candidates: Vec<Candidate<'a>>, count: usize) -> BTreeMap<&'a str, Figures> {
    sibling::learn();
    let mut times: BTreeMap<&str, Times> = BTreeMap::new();
    for _ in 0..patience() * count {
        for (name, run) in &mut candidates {
            run();
            let before = sibling::probe();
            let start = ThreadTime::now();
            run();
            let nanoseconds = start.elapsed().as_nanos() as f64;
            let alone = sibling::is_alone(before.max(sibling::probe()));
            times.entry(name).or_default().add(nanoseconds, alone);
        }
        if times.values().all(|times| times.alone.len() >= count) {
            break;
        }
    }
    times
        .into_iter()
        .map(|(name, mut times)| (name, times.figures()))
        .collect()
}

/// One row of the results file.
struct Row<'a> {
    bar_id: &'a str,
    case: String,
    metric: &'a str,
    unit: &'a str,
    bar: &'a str,
}

impl Row<'_> {
    fn json(&self, figures: Figures, rival: Option<(&str, f64)>) -> Value {
        json!({
            "bar_id": self.bar_id, "case": self.case, "metric": self.metric, "unit": self.unit,
            "value": round(figures.median), "best": round(figures.best), "bar": self.bar,
            "samples": figures.alone, "median_with_shared_core": round(figures.all),
            "rival": rival.map(|(name, _)| name), "rival_value": rival.map(|(_, value)| round(value)),
        })
    }
}

fn round(value: f64) -> f64 {
    (value * 100.0).round() / 100.0
}

/// Repeats short work so that one timing takes tens of microseconds.
fn repeat<'a, T>(times: usize, mut work: impl FnMut() -> T + 'a) -> Box<dyn FnMut() + 'a> {
    Box::new(move || {
        for _ in 0..times {
            black_box(work());
        }
    })
}

fn scalar(tokens: &[u32], params: &ChunkParams) -> u64 {
    let mut cutter = Cutter::new(params);
    let mut start = 0;
    let mut sum = 0;
    for (at, &token) in tokens.iter().enumerate() {
        if cutter.push(token).is_some() {
            sum ^= fingerprint(&tokens[start..=at]);
            start = at + 1;
        }
    }
    sum
}

/// A rolling Gear hash over bytes with the published crate, and a hash of each chunk.
fn gearhash_chunks(data: &[u8]) -> u64 {
    let mut hasher = gearhash::Hasher::default();
    let (mut start, mut at, mut sum) = (0, 0, 0);
    // 512 bytes on average, as many as 128 ids take.
    while let Some(boundary) = hasher.next_match(&data[at..], 0xFF80_0000_0000_0000) {
        at += boundary;
        if at - start >= 256 {
            sum ^= twox_hash::XxHash64::oneshot(0, &data[start..at]);
            start = at;
        }
    }
    sum
}

fn fastcdc_chunks(data: &[u8]) -> u64 {
    let chunks = fastcdc::v2020::FastCDC::new(data, 256, 512, 2048);
    chunks.fold(0, |sum, c| {
        sum ^ twox_hash::XxHash64::oneshot(0, &data[c.offset..c.offset + c.length])
    })
}

/// Chunkers of bytes from the package index; each chunk is hashed as ours are.
const PEERS: [&str; 2] = ["gearhash crate + xxHash64", "fastcdc crate + xxHash64"];

fn chunking(rows: &mut Vec<Value>) {
    let default = ChunkParams::default();
    let large = ChunkParams::new(128, 512, 2048, 0).expect("valid sizes");
    for (length, times, samples) in [
        (1 << 10, 64, 301),
        (1 << 13, 8, 301),
        (1 << 17, 1, 301),
        (1 << 24, 1, 7),
    ] {
        for (ids, tokens) in [
            ("text-like ids", text(1, length)),
            ("uniform ids", uniform(1, length)),
        ] {
            let data = bytes(&tokens);
            let candidates: Vec<Candidate<'_>> = vec![
                ("bounds", repeat(times, || chunk_bounds(&tokens, &default))),
                (
                    "bounds, 128/512/2048",
                    repeat(times, || chunk_bounds(&tokens, &large)),
                ),
                ("chunks", repeat(times, || chunk(&tokens, &default))),
                (
                    "chunks, 128/512/2048",
                    repeat(times, || chunk(&tokens, &large)),
                ),
                (
                    "scalar reference",
                    repeat(times, || scalar(&tokens, &default)),
                ),
                (
                    "gearhash crate + xxHash64",
                    repeat(times, || gearhash_chunks(&data)),
                ),
                (
                    "fastcdc crate + xxHash64",
                    repeat(times, || fastcdc_chunks(&data)),
                ),
            ];
            let timed = rounds(candidates, samples);
            let rate = |nanoseconds: f64| 1000.0 * (length * times) as f64 / nanoseconds;
            let rival = |name| Some((name, rate(timed[name].median)));
            let slower = |peer| timed[PEERS[0]].median > timed[peer].median;
            let fastest = if slower(PEERS[1]) { PEERS[1] } else { PEERS[0] };
            for (name, bar_id, bar) in [
                ("bounds", "core.1", ">= 3000"),
                ("bounds, 128/512/2048", "core.1", ">= 3000"),
                ("chunks", "core.2", ">= 1500"),
                ("chunks, 128/512/2048", "core.2", ">= 1500"),
            ] {
                let bar = if length == 1 << 17 { bar } else { "" };
                let case = format!("{name}, {length} {ids}");
                let row = Row {
                    bar_id,
                    case,
                    metric: "throughput",
                    unit: "M tokens/s",
                    bar,
                };
                for peer in ["scalar reference", fastest] {
                    rows.push(row.json(timed[name].map(rate), rival(peer)));
                }
            }
        }
    }
}

fn lookups(rows: &mut Vec<Value>) {
    let namespace = Namespace::default();
    let prompt = text(1, 1 << 17);
    let shifted = [&text(2, 100)[..], &prompt].concat();
    let samples = 101;
    for windows in [false, true] {
        let (full, other) = (registry(&prompt, windows), registry(&[], windows));
        let candidates: Vec<Candidate<'_>> = vec![
            (
                "all known at delta 0",
                repeat(1, || full.lookup(&prompt, &namespace, 0)),
            ),
            (
                "all known, shifted by 100",
                repeat(1, || full.lookup(&shifted, &namespace, 0)),
            ),
            (
                "nothing known",
                repeat(1, || other.lookup(&prompt, &namespace, 0)),
            ),
            ("chunks alone", repeat(1, || chunk(&prompt, full.params()))),
        ];
        let timed = rounds(candidates, samples);
        let us = |nanoseconds: f64| nanoseconds / 1000.0;
        let alone = us(timed["chunks alone"].median);
        for (name, times) in &timed {
            let (bar_id, bar) = match (*name, windows) {
                ("chunks alone", _) => continue,
                ("nothing known", false) => ("core.5", "<= 120"),
                ("nothing known", true) => ("core.6", "<= 600"),
                _ => ("core.4", "<= 150"),
            };
            let case = format!("{name}, 131072 text-like ids, windows {windows}");
            let row = Row {
                bar_id,
                case,
                metric: "lookup",
                unit: "us",
                bar,
            };
            let rival = Some(("chunking and fingerprints alone", alone));
            rows.push(row.json(times.map(us), rival));
        }
    }
}

/// Time for each token of a lookup that finds nothing, from 128k to 16M tokens.
fn linearity(rows: &mut Vec<Value>) {
    let namespace = Namespace::default();
    let registry = registry(&[], true);
    let (short, long) = (text(3, 1 << 17), text(3, 1 << 24));
    let samples = 7;
    let candidates: Vec<Candidate<'_>> = vec![
        (
            "short",
            repeat(1, || registry.lookup(&short, &namespace, 0)),
        ),
        ("long", repeat(1, || registry.lookup(&long, &namespace, 0))),
    ];
    let timed = rounds(candidates, samples);
    let each = |name: &str, length: f64| timed[name].map(|nanoseconds| nanoseconds / length);
    let case = "nothing known, 16777216 text-like ids, windows true".to_owned();
    let row = Row {
        bar_id: "core.7",
        case,
        metric: "time per token",
        unit: "ns",
        bar: "<= 1.5 of the rival",
    };
    let short = each("short", f64::from(1 << 17)).median;
    let long = each("long", f64::from(1 << 24));
    rows.push(row.json(long, Some(("131072 ids", short))));
}

/// Prompts made to be expensive: shortest chunks, equal chunks everywhere, many alike donors.
fn adversarial(rows: &mut Vec<Value>) {
    let namespace = Namespace::default();
    let length = 1 << 17;
    let cases = [
        ("one id, never cut", vec![1; length]),
        ("id 0, cut every 64", vec![0; length]),
        ("period 64", text(4, 64).repeat(length / 64)),
        (
            "two symbols",
            uniform(5, length).iter().map(|id| id & 1).collect(),
        ),
    ];
    let plain = text(1, length);
    let known = registry(&plain, true);
    let samples = 51;
    for (name, prompt) in &cases {
        let hostile = registry(prompt, true);
        for node in 200..216 {
            let entry = irminsul::Entry::root(node, prompt, &namespace);
            hostile.add(&entry).expect("room for it");
        }
        let candidates: Vec<Candidate<'_>> = vec![
            (
                "hostile",
                repeat(1, || hostile.lookup(prompt, &namespace, 0)),
            ),
            ("plain", repeat(1, || known.lookup(&plain, &namespace, 0))),
        ];
        let timed = rounds(candidates, samples);
        let case = format!("{name}, {length} ids, recorded 17 times");
        let row = Row {
            bar_id: "core.10",
            case,
            metric: "lookup",
            unit: "us",
            bar: "<= 1.5 of the rival",
        };
        let us = |nanoseconds: f64| nanoseconds / 1000.0;
        let rival = Some(("text-like ids, recorded once", us(timed["plain"].median)));
        rows.push(row.json(timed["hostile"].map(us), rival));
    }
}

/// Writes what there is of the results.
fn save(path: &str, machine: &str, rows: &[Value]) -> std::io::Result<()> {
    let command = "cargo run --release --manifest-path benches/rust/Cargo.toml --bin side_by_side";
    let results = json!({ "machine": machine, "command": command, "rows": rows });
    std::fs::write(path, serde_json::to_string_pretty(&results)? + "\n")
}

fn main() -> std::io::Result<()> {
    let path = std::env::args()
        .nth(1)
        .unwrap_or_else(|| "results.json".to_owned());
    let machine = machine();
    sibling::calibrate();
    let mut rows = Vec::new();
    // Each result is kept as it comes, should the machine be taken away.
    for step in [paths::rows, lookups, chunking, linearity, adversarial] {
        step(&mut rows);
        save(&path, &machine, &rows)?;
    }
    Ok(())
}
