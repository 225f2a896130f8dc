//! More threads than loom can exhaust, at random: evictors, pinners and writers over few slots, and
//! histories of a small map checked against a map behind a mutex.
//!
//! The files are the crate's own; only the primitives below them are shuttle's.

#![allow(dead_code, unused_imports, unreachable_pub, missing_docs)]

#[path = "../../../irminsul/src/registry/cache.rs"]
mod cache;
mod history;
#[path = "../../../irminsul/src/registry/node.rs"]
mod node;
mod raw;
#[path = "../../../irminsul/src/registry/table.rs"]
mod table;

use std::sync::Arc;
use std::sync::atomic::{AtomicI64, Ordering::Relaxed};

use cache::Cache;
use history::{History, Op};
use raw::Pin;
use shuttle::rand::{Rng, thread_rng};
use shuttle::thread;

const ROUNDS: usize = 5_000;

/// A value that knows its key and is counted while it exists.
#[derive(Debug)]
struct Tagged {
    key: u64,
    alive: Arc<AtomicI64>,
}

impl Tagged {
    fn new(key: u64, alive: &Arc<AtomicI64>) -> Self {
        alive.fetch_add(1, Relaxed);
        let alive = Arc::clone(alive);
        Self { key, alive }
    }
}

impl Drop for Tagged {
    fn drop(&mut self) {
        // Whoever still reads this finds another key.
        self.key = u64::MAX;
        self.alive.fetch_sub(1, Relaxed);
    }
}

fn fight(cache: &Cache<Tagged>, alive: &Arc<AtomicI64>) {
    let mut pins: Vec<(u64, Pin<'_, Tagged>)> = Vec::new();
    for _ in 0..12 {
        let key = thread_rng().gen_range(1..=11);
        match thread_rng().gen_range(0..4) {
            // One set of seven ways: every insertion beyond evicts, or finds all pinned.
            0 => {
                cache.insert(key, Tagged::new(key, alive));
            }
            1 => {
                cache.remove(key);
            }
            2 => pins.extend(cache.get(key).map(|pin| (key, pin))),
            _ => drop(pins.pop()),
        }
        assert!(pins.iter().all(|(key, pin)| pin.key == *key));
    }
}

#[test]
fn eight_slots_are_fought_over() {
    let model = || {
        let alive = Arc::new(AtomicI64::new(0));
        let cache = Arc::new(Cache::new(1));
        let threads: Vec<_> = (0..4)
            .map(|_| {
                let (cache, alive) = (Arc::clone(&cache), Arc::clone(&alive));
                thread::spawn(move || fight(&cache, &alive))
            })
            .collect();
        threads
            .into_iter()
            .for_each(|thread| thread.join().expect("thread"));
        let (keys, _) = cache.counts();
        assert_eq!(
            alive.load(Relaxed),
            keys as i64,
            "what is not in the map was freed"
        );
        for key in 1..=11 {
            cache.remove(key);
        }
        assert_eq!((alive.load(Relaxed), cache.counts().0), (0, 0));
    };
    shuttle::check_random(model, ROUNDS);
    shuttle::check_pct(model, ROUNDS / 4, 3);
}

#[test]
fn histories_are_those_of_a_map_behind_a_mutex() {
    let model = || {
        let history = Arc::new(History::default());
        let cache = Arc::new(Cache::new(4));
        let threads: Vec<_> = (0..3)
            .map(|thread| {
                let (cache, history) = (Arc::clone(&cache), Arc::clone(&history));
                thread::spawn(move || {
                    for step in 0..4 {
                        let key = thread_rng().gen_range(1..=2);
                        let value = 10 * thread + step;
                        match thread_rng().gen_range(0..3) {
                            0 => {
                                history.record(|| Op::Insert(key, value, cache.insert(key, value)))
                            }
                            1 => history.record(|| Op::Remove(key, cache.remove(key))),
                            _ => history.record(|| Op::Get(key, cache.get(key).map(|v| *v))),
                        }
                    }
                })
            })
            .collect();
        threads
            .into_iter()
            .for_each(|thread| thread.join().expect("thread"));
        history.check();
    };
    shuttle::check_random(model, ROUNDS);
}
