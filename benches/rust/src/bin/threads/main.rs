//! The registry's map and its peers under many threads -> one JSON file.
//!
//! Each thread stands on a core of its own, starts at a barrier, stamps its own start and end, and
//! draws keys that were made before. A rate is the sum of the threads' own rates; one call in 64 is
//! timed by itself. Maps take turns and are used again from sample to sample.

mod lookups;
mod maps;

use std::hint::black_box;
use std::sync::Barrier;
use std::time::{Duration, Instant};

use irminsul_benches::splitmix;
use maps::Map;
use serde_json::{Value, json};

/// Keys are multiples of this.
pub const SPREAD: u64 = 0x9E37_79B9_7F4A_7C15;

const CAPACITY: usize = 1 << 18;
/// Calls of one thread in one sample, unless its time runs out before.
const CALLS: usize = 1 << 18;
const LONGEST: Duration = Duration::from_millis(60);
/// One call in so many is timed, and the clock is looked at.
const TIMED: usize = 64;

/// One case.
#[derive(Clone, Copy)]
struct Case {
    threads: usize,
    /// Percent of calls that read; the others add and remove in turns.
    reads: u32,
    zipf: bool,
    /// Keys, in units of half the capacity.
    half_capacities: usize,
    pins: bool,
}

/// Ranks drawn with the frequencies of rank^-0.99, or evenly.
fn ranks(seed: u64, keys: usize, zipf: bool) -> Vec<u32> {
    let uniform = splitmix(seed).map(|x| (x >> 11) as f64 / (1_u64 << 53) as f64);
    // The inverse of the integral of x^-0.99.
    let (power, top) = (0.01_f64, (keys as f64).powf(0.01));
    let rank = |u: f64| {
        let rank = if zipf {
            (1.0 + u * (top - 1.0)).powf(1.0 / power) - 1.0
        } else {
            u * keys as f64
        };
        (rank as usize).min(keys - 1) as u32
    };
    uniform.take(CALLS).map(rank).collect()
}

fn key(rank: u32) -> u64 {
    SPREAD.wrapping_mul(u64::from(rank) + 1)
}

/// What one thread saw.
#[derive(Default)]
struct Seen {
    calls_per_s: f64,
    hits: usize,
    reads: usize,
    times: Vec<f64>,
}

fn work(map: &dyn Map, case: Case, ranks: &[u32], start: &Barrier) -> Seen {
    let mut seen = Seen::default();
    start.wait();
    let begin = Instant::now();
    let mut calls = 0;
    for (call, &rank) in ranks.iter().enumerate() {
        calls += 1;
        let key = key(rank);
        // Cheap and the same for every map; the low bits of the call number would alias with TIMED.
        let dice = (call as u64).wrapping_mul(SPREAD) >> 57;
        let timed = (call % TIMED == 0).then(Instant::now);
        if dice * 100 < u64::from(case.reads) << 7 {
            seen.reads += 1;
            let hit = if case.pins {
                map.visit(key).is_some()
            } else {
                map.peek(key)
            };
            seen.hits += usize::from(black_box(hit));
        } else if dice.is_multiple_of(2) {
            map.insert(key);
        } else {
            map.remove(key);
        }
        if let Some(timed) = timed {
            seen.times.push(timed.elapsed().as_nanos() as f64);
            if begin.elapsed() > LONGEST {
                break;
            }
        }
    }
    seen.calls_per_s = f64::from(calls) / begin.elapsed().as_secs_f64();
    seen
}

fn sample(map: &dyn Map, case: Case, draws: &[Vec<u32>]) -> Vec<Seen> {
    let start = Barrier::new(case.threads);
    let cores = core_affinity::get_core_ids().unwrap_or_default();
    std::thread::scope(|scope| {
        let spawn = |thread: usize| {
            let (start, cores) = (&start, &cores);
            scope.spawn(move || {
                if let Some(&core) = cores.get(thread) {
                    core_affinity::set_for_current(core);
                }
                work(map, case, &draws[thread], start)
            })
        };
        let threads: Vec<_> = (0..case.threads).map(spawn).collect();
        threads
            .into_iter()
            .filter_map(|thread| thread.join().ok())
            .collect()
    })
}

/// Value at a share of sorted values.
fn at(sorted: &[f64], share: f64) -> f64 {
    let last = sorted.len().saturating_sub(1);
    sorted
        .get((last as f64 * share) as usize)
        .copied()
        .unwrap_or(0.0)
}

/// Rates in M calls/s, latencies in ns and the hit rate of one map.
#[derive(Default)]
struct Figures {
    rates: Vec<f64>,
    times: Vec<f64>,
    hits: usize,
    reads: usize,
}

impl Figures {
    fn add(&mut self, seen: Vec<Seen>) {
        self.rates
            .push(seen.iter().map(|seen| seen.calls_per_s).sum::<f64>() / 1e6);
        for seen in seen {
            self.hits += seen.hits;
            self.reads += seen.reads;
            self.times.extend(seen.times);
        }
    }

    fn finish(&mut self) {
        self.rates.sort_by(f64::total_cmp);
        self.times.sort_by(f64::total_cmp);
    }
}

fn run(case: Case, samples: usize) -> Vec<(&'static str, Figures)> {
    let keys = CAPACITY / 2 * case.half_capacities;
    let draws: Vec<Vec<u32>> = (0..case.threads as u64)
        .map(|thread| ranks(thread + 1, keys, case.zipf))
        .collect();
    let maps = maps::all(CAPACITY);
    for (_, map) in &maps {
        (0..keys.min(CAPACITY) as u32)
            .rev()
            .for_each(|rank| map.insert(key(rank)));
    }
    let mut figures: Vec<(&str, Figures)> = maps
        .iter()
        .map(|(name, _)| (*name, Figures::default()))
        .collect();
    for round in 0..=samples {
        for ((_, map), (_, figures)) in maps.iter().zip(&mut figures) {
            let seen = sample(&**map, case, &draws);
            // The first round warms up.
            if round > 0 {
                figures.add(seen);
            }
        }
    }
    figures.iter_mut().for_each(|(_, figures)| figures.finish());
    figures
}

fn rows(case: Case, figures: &[(&str, Figures)], samples: usize, rows: &mut Vec<Value>) {
    let name = format!(
        "{} threads, {}/{} {}, keys {}x capacity, {}",
        case.threads,
        case.reads,
        100 - case.reads,
        if case.zipf { "zipf 0.99" } else { "uniform" },
        case.half_capacities as f64 / 2.0,
        if case.pins { "pin and unpin" } else { "peek" },
    );
    let rate = |figures: &Figures| at(&figures.rates, 0.5);
    let ours = &figures[0].1;
    let main = case.pins && case.reads == 95 && case.zipf && case.half_capacities == 2;
    for (rival, theirs) in &figures[1..] {
        let bar = if main && *rival == "papaya" {
            ">= the rival"
        } else {
            ""
        };
        rows.push(json!({
            "bar_id": "core.9", "case": name, "metric": "throughput", "unit": "M calls/s",
            "value": round(rate(ours)), "rival": rival, "rival_value": round(rate(theirs)),
            "bar": bar, "samples": samples,
            "hit_rate": round(ours.hits as f64 / ours.reads as f64),
            "rival_hit_rate": round(theirs.hits as f64 / theirs.reads as f64),
        }));
    }
    // Quantiles beside papaya, the rival that the bars name.
    let (rival, theirs) = &figures[1];
    for (share, metric) in [(0.5, "p50"), (0.99, "p99"), (0.999, "p99.9")] {
        let bar = if main && metric == "p99.9" && case.threads == 16 {
            "< 10000"
        } else {
            ""
        };
        rows.push(json!({
            "bar_id": "core.9", "case": name, "metric": metric, "unit": "ns",
            "value": at(&ours.times, share), "rival": rival,
            "rival_value": at(&theirs.times, share), "bar": bar, "samples": ours.times.len(),
        }));
    }
    let shown: Vec<String> = figures
        .iter()
        .map(|(name, f)| {
            format!(
                "{name} {:.1} ({:.0}/{:.0}/{:.0} ns)",
                rate(f),
                at(&f.times, 0.5),
                at(&f.times, 0.99),
                at(&f.times, 0.999)
            )
        })
        .collect();
    eprintln!("{name}: {}", shown.join(", "));
}

fn round(value: f64) -> f64 {
    (value * 1000.0).round() / 1000.0
}

/// The main case at every number of threads, everything else at the largest.
fn cases(cores: usize) -> Vec<Case> {
    let most = [16, 8, 4, 2, 1]
        .into_iter()
        .find(|&n| n <= cores)
        .unwrap_or(1);
    let main = Case {
        threads: most,
        reads: 95,
        zipf: true,
        half_capacities: 2,
        pins: true,
    };
    let mut cases = Vec::new();
    for threads in [1, 2, 4, 8, 16].into_iter().filter(|&n| n <= most) {
        for pins in [true, false] {
            cases.push(Case {
                threads,
                pins,
                ..main
            });
        }
    }
    for zipf in [true, false] {
        for reads in [95, 99, 50] {
            for half_capacities in [1, 2, 8] {
                if !(zipf && reads == 95 && half_capacities == 2) {
                    cases.push(Case {
                        reads,
                        zipf,
                        half_capacities,
                        ..main
                    });
                }
            }
        }
    }
    cases
}

fn main() -> std::io::Result<()> {
    let mut arguments = std::env::args().skip(1);
    let path = arguments
        .next()
        .unwrap_or_else(|| "results.json".to_owned());
    let mut number = |default| {
        arguments
            .next()
            .and_then(|n| n.parse().ok())
            .unwrap_or(default)
    };
    let (samples, seconds) = (number(5), number(3600));
    let begin = Instant::now();
    let machine = irminsul_benches::machine();
    let cores = core_affinity::get_core_ids().map_or(1, |cores| cores.len());
    let mut all = Vec::new();
    lookups::rows(cores.min(16), &mut all);
    // The most important first; what does not fit the time is left out.
    for case in cases(cores) {
        if begin.elapsed().as_secs() < seconds as u64 {
            rows(case, &run(case, samples), samples, &mut all);
        }
    }
    let command = "cargo run --release --manifest-path benches/rust/Cargo.toml --bin threads";
    let results = json!({ "machine": machine, "command": command, "rows": all });
    std::fs::write(path, serde_json::to_string_pretty(&results)? + "\n")
}
