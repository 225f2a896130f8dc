//! A registry under many threads -> plans that are right for their own text, whatever happens beside them.
//!
//! Knows nothing of interleavings; `rust/models` explores those of the parts.

mod support;

use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use irminsul::parts::Cache;
use irminsul::{ChunkParams, Entry, Error, Namespace, Policy, Quota, Registry, Reuse, Segment};
use support::random_ids;

const DOCUMENTS: u64 = 24;
const LENGTH: usize = 3000;

fn document(node: u64) -> Vec<u32> {
    random_ids(node % DOCUMENTS + 1, LENGTH, 100_000)
}

fn spans(segments: &[Segment]) -> impl Iterator<Item = &Reuse> {
    segments.iter().filter_map(|segment| match segment {
        Segment::Reuse(reuse) => Some(reuse),
        Segment::Compute(_) => None,
    })
}

/// Looks documents up at a shift, and checks each row of each plan: the host's ids say which document
/// a node is of, and splits leave positions as they were.
fn read(registry: &Registry, namespace: &Namespace, seed: u64, stop: &AtomicBool) -> usize {
    let mut reused = 0;
    let mut draw = seed;
    while !stop.load(Ordering::Relaxed) {
        draw = draw.wrapping_mul(0x5851_F42D_4C95_7F2D).wrapping_add(1);
        let wanted = (draw >> 33) % DOCUMENTS;
        let prompt = [&[1, 2, 3][..], &document(wanted)].concat();
        let mut plan = registry
            .lookup(&prompt, namespace, 0)
            .expect("within the quota");
        for _ in 0..2 {
            let mut at = 0;
            for segment in plan.segments() {
                let (start, end) = match segment {
                    Segment::Reuse(reuse) => (reuse.target, reuse.target + reuse.length),
                    Segment::Compute(hole) => (hole.start, hole.end),
                };
                assert_eq!(start, at, "segments tile the prompt");
                at = end;
            }
            assert_eq!(at, prompt.len());
            for reuse in spans(plan.segments()) {
                assert_eq!(reuse.delta(), 3, "rows of this document and of no other");
                assert!(
                    reuse
                        .pieces
                        .iter()
                        .all(|piece| piece.node % DOCUMENTS == wanted)
                );
            }
            reused += plan.reused_tokens();
            plan.revalidate();
        }
    }
    reused
}

/// Adds, splits and removes documents, always within the capacity.
fn write(registry: &Registry, namespace: &Namespace, next: &AtomicU64, rounds: u64) {
    for round in 0..rounds {
        let node = next.fetch_add(DOCUMENTS, Ordering::Relaxed) + round % DOCUMENTS;
        let tokens = document(node);
        match registry.add(&Entry::root(node, &tokens, namespace)) {
            Ok(()) | Err(Error::RegistryFull { .. }) => {}
            Err(error) => panic!("{error}"),
        }
        let head = next.fetch_add(DOCUMENTS, Ordering::Relaxed) + node % DOCUMENTS;
        // Another writer's insertion may have evicted it meanwhile.
        let _ = registry.split(node, 1000, head);
        if round % 3 == 0 {
            registry.discard(node);
        }
    }
}

#[test]
fn plans_are_right_while_nodes_come_split_and_go() {
    let policy = Policy::default();
    let registry = Registry::new(10 * LENGTH, ChunkParams::default(), policy).expect("valid");
    let namespace = Namespace::default();
    let (stop, next) = (AtomicBool::new(false), AtomicU64::new(DOCUMENTS));
    let reused: usize = std::thread::scope(|scope| {
        let (registry, namespace) = (&registry, &namespace);
        let (stop, next) = (&stop, &next);
        let readers: Vec<_> = (0..3)
            .map(|seed| scope.spawn(move || read(registry, namespace, seed, stop)))
            .collect();
        let writers: Vec<_> = (0..2)
            .map(|_| scope.spawn(move || write(registry, namespace, next, 300)))
            .collect();
        for writer in writers {
            writer.join().expect("writer");
        }
        stop.store(true, Ordering::Relaxed);
        readers
            .into_iter()
            .map(|reader| reader.join().expect("reader"))
            .sum()
    });
    assert!(reused > 0, "readers met something");
    assert!(registry.stats().evicted_nodes > 0, "the evictor worked");
    registry.clear();
    let left = registry.stats();
    assert_eq!(
        (left.donors, left.windows, left.resident_tokens, left.runs),
        (0, 0, 0, 0)
    );
}

#[test]
fn a_plan_keeps_its_nodes_while_insertions_press() {
    let policy = Policy::default();
    let registry = Registry::new(4 * LENGTH, ChunkParams::default(), policy).expect("valid");
    let namespace = Namespace::default();
    let kept = document(0);
    registry
        .add(&Entry::root(0, &kept, &namespace))
        .expect("room");
    let next = AtomicU64::new(DOCUMENTS);
    std::thread::scope(|scope| {
        let plan = registry.lookup(&kept, &namespace, 0).expect("valid");
        for _ in 0..2 {
            scope.spawn(|| write(&registry, &namespace, &next, 100));
        }
        let mut plan = plan;
        for _ in 0..200 {
            assert!(plan.revalidate(), "evicted under a pin");
            std::thread::yield_now();
        }
    });
}

#[test]
fn quotas_hold_under_concurrent_lookups() {
    let policy = Policy::default();
    let registry = Registry::new(1 << 20, ChunkParams::default(), policy).expect("valid");
    let namespace = Namespace::new(b"", b"", b"", b"", b"t").expect("short");
    let tokens = document(0);
    registry
        .add(&Entry::root(0, &tokens, &namespace))
        .expect("room");
    registry.set_quota(
        Some(b"t"),
        Some(Quota {
            pins: Some(2),
            ..Quota::default()
        }),
    );
    let (refused, most) = (AtomicU64::new(0), AtomicU64::new(0));
    std::thread::scope(|scope| {
        for _ in 0..4 {
            scope.spawn(|| {
                for _ in 0..200 {
                    match registry.lookup(&tokens, &namespace, 0) {
                        Ok(_plan) => {
                            let pins = registry.usage(b"t").pins as u64;
                            most.fetch_max(pins, Ordering::Relaxed);
                        }
                        Err(Error::QuotaExceeded { .. }) => {
                            refused.fetch_add(1, Ordering::Relaxed);
                        }
                        Err(error) => panic!("{error}"),
                    }
                }
            });
        }
    });
    // Readers that are being refused are counted for a moment.
    assert!(most.load(Ordering::Relaxed) <= 4);
    assert_eq!(registry.usage(b"t").pins, 0);
}

/// Each thread owns some keys, so what its calls return is decided; neighbours share their sets.
#[test]
fn the_map_agrees_with_papaya_and_with_a_plain_map() {
    let (cache, oracle) = (Cache::<u64>::new(64), papaya::HashMap::<u64, u64>::new());
    std::thread::scope(|scope| {
        for thread in 0..4_u64 {
            let (cache, oracle) = (&cache, &oracle);
            scope.spawn(move || {
                let mut plain = HashMap::new();
                for (step, draw) in random_ids(thread + 1, 60_000, 1 << 16).iter().enumerate() {
                    let key = 4 * u64::from(draw % 40) + thread + 1;
                    let value = key << 32 | step as u64;
                    match draw >> 8 & 3 {
                        0 => {
                            let added = cache.insert(key, value);
                            assert_eq!(added, oracle.pin().try_insert(key, value).is_ok());
                            plain.entry(key).or_insert(value);
                        }
                        1 => {
                            let removed = cache.remove(key);
                            assert_eq!(removed, oracle.pin().remove(&key).is_some());
                            assert_eq!(removed, plain.remove(&key).is_some());
                        }
                        _ => {
                            let found = cache.get(key).map(|value| *value);
                            assert_eq!(found, oracle.pin().get(&key).copied());
                            assert_eq!(found, plain.get(&key).copied());
                        }
                    }
                }
            });
        }
    });
    assert_eq!(cache.counts(), (oracle.len(), 0));
}
