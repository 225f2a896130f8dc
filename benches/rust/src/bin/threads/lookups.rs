//! Whole lookups from many threads while one thread records and removes -> rows.
//!
//! Knows nothing of the maps. The same registry behind a readers-writer lock stands beside it: what
//! lookups and insertions cost each other when they share one.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Barrier, PoisonError, RwLock};
use std::time::{Duration, Instant};

use irminsul::{ChunkParams, Entry, Namespace, Policy, Registry};
use irminsul_benches::text;
use serde_json::{Value, json};

const PROMPT: usize = 8192;
const DOCUMENTS: u64 = 64;
const RUNNING: Duration = Duration::from_millis(700);

struct Texts {
    namespace: Namespace,
    documents: Vec<Vec<u32>>,
}

/// Lookups in microseconds, in order, and how many insertions there were meanwhile.
struct Outcome {
    times: Vec<f64>,
    lookups_per_s: f64,
    insertions: u64,
}

fn run(registry: &Registry, texts: &Texts, lock: Option<&RwLock<()>>, threads: usize) -> Outcome {
    let start = Barrier::new(threads + 1);
    let stop = AtomicBool::new(false);
    let read = || lock.map(|lock| lock.read().unwrap_or_else(PoisonError::into_inner));
    let write = || lock.map(|lock| lock.write().unwrap_or_else(PoisonError::into_inner));
    std::thread::scope(|scope| {
        let reader = |seed: usize| {
            let (start, read) = (&start, &read);
            scope.spawn(move || {
                let mut times = Vec::new();
                start.wait();
                let begin = Instant::now();
                while begin.elapsed() < RUNNING {
                    let document = &texts.documents[(seed + times.len() * 7) % DOCUMENTS as usize];
                    let call = Instant::now();
                    let guard = read();
                    let plan = registry.lookup(document, &texts.namespace, 0);
                    drop(guard);
                    times.push(call.elapsed().as_secs_f64() * 1e6);
                    drop(plan);
                }
                (times.len() as f64 / begin.elapsed().as_secs_f64(), times)
            })
        };
        let writer = scope.spawn(|| {
            let fresh = text(7, 4 * PROMPT);
            let mut insertions = 0;
            start.wait();
            while !stop.load(Ordering::Relaxed) {
                let node = 1_000_000 + insertions;
                let guard = write();
                let _ = registry.add(&Entry::root(node, &fresh, &texts.namespace));
                drop(guard);
                let guard = write();
                registry.discard(node);
                drop(guard);
                insertions += 1;
            }
            insertions
        });
        let readers: Vec<_> = (0..threads).map(reader).collect();
        let seen: Vec<_> = readers
            .into_iter()
            .filter_map(|reader| reader.join().ok())
            .collect();
        stop.store(true, Ordering::Relaxed);
        let lookups_per_s = seen.iter().map(|(rate, _)| rate).sum();
        let mut times: Vec<f64> = seen.into_iter().flat_map(|(_, times)| times).collect();
        times.sort_by(f64::total_cmp);
        Outcome {
            times,
            lookups_per_s,
            insertions: writer.join().unwrap_or(0),
        }
    })
}

/// Lookups of recorded prompts at 1 to `most` threads, a writer beside them.
pub fn rows(most: usize, rows: &mut Vec<Value>) {
    let namespace = Namespace::default();
    let documents: Vec<_> = (0..DOCUMENTS)
        .map(|seed| text(100 + seed, PROMPT))
        .collect();
    let params = ChunkParams::default();
    let registry = Registry::new(1 << 22, params, Policy::default()).expect("valid sizes");
    for (node, document) in (0..).zip(&documents) {
        let entry = Entry::root(node, document, &namespace);
        registry.add(&entry).expect("room for it");
    }
    let texts = Texts {
        namespace,
        documents,
    };
    let lock = RwLock::new(());
    for readers in [1, 2, 4, 8, 15].into_iter().filter(|&n| n == 1 || n < most) {
        let ours = run(&registry, &texts, None, readers);
        let locked = run(&registry, &texts, Some(&lock), readers);
        let case = format!("{readers} threads look 8192 known ids up, one adds and removes 32768");
        let mut row = |metric: &str, unit: &str, value: f64, rival: f64, samples: usize| {
            eprintln!("{case}: {metric} {value:.1} {unit}, behind a lock {rival:.1}");
            rows.push(json!({
                "bar_id": "core.9", "case": case, "metric": metric, "unit": unit,
                "value": (value * 10.0).round() / 10.0, "rival": "behind a readers-writer lock",
                "rival_value": (rival * 10.0).round() / 10.0, "bar": "", "samples": samples,
            }));
        };
        row(
            "lookups",
            "per s",
            ours.lookups_per_s,
            locked.lookups_per_s,
            1,
        );
        row(
            "insertions",
            "",
            ours.insertions as f64,
            locked.insertions as f64,
            1,
        );
        for (share, metric) in [(0.5, "p50"), (0.99, "p99"), (0.999, "p99.9")] {
            let (mine, theirs) = (
                super::at(&ours.times, share),
                super::at(&locked.times, share),
            );
            row(metric, "us", mine, theirs, ours.times.len());
        }
    }
}
