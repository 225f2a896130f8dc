//! Every protocol between the registry's threads, in all interleavings that the memory model allows.
//!
//! The files are the crate's own; only the primitives below them are loom's. Values sit in cells whose
//! accesses loom checks, so that a read of freed ids is found as a race.

#![allow(dead_code, unreachable_pub, missing_docs)]

#[path = "../../../irminsul/src/registry/cache.rs"]
mod cache;
#[path = "../../../irminsul/src/registry/node.rs"]
mod node;
mod raw;
#[path = "../../../irminsul/src/registry/table.rs"]
mod table;

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};

use cache::Cache;
use loom::thread;
use node::NodeCell;
use raw::{AtomicU64, Current, Handle, Ordering, Slab, Slots, fence};
use table::{Inserted, Table};

/// A value that counts its ends, to see that it has exactly one.
#[derive(Debug)]
struct Counted {
    value: u64,
    ends: Arc<AtomicUsize>,
}

impl Drop for Counted {
    fn drop(&mut self) {
        self.ends.fetch_add(1, Relaxed);
    }
}

fn counted(value: u64) -> (Counted, Arc<AtomicUsize>) {
    let ends = Arc::new(AtomicUsize::new(0));
    let counted = Counted {
        value,
        ends: Arc::clone(&ends),
    };
    (counted, ends)
}

/// Explores with at most three preemptions where three threads would take too long otherwise.
fn check(model: impl Fn() + Sync + Send + 'static) {
    let mut builder = loom::model::Builder::new();
    builder.preemption_bound = Some(3);
    builder.check(model);
}

#[test]
fn ids_are_freed_once_and_never_under_a_pin() {
    check(|| {
        let slab = Arc::new(Slab::default());
        let (first, ends) = counted(1);
        let handle = slab.insert(first).expect("room");
        let readers: Vec<_> = (0..2)
            .map(|_| {
                let slab = Arc::clone(&slab);
                thread::spawn(move || {
                    if let Some(pin) = slab.pin(handle) {
                        assert_eq!(pin.value, 1);
                    }
                })
            })
            .collect();
        slab.retire(handle);
        assert!(slab.pin(handle).is_none(), "no pin after the end");
        // May take the same slot, and the first handle must not fit it.
        let (second, _ends) = counted(2);
        let other = slab.insert(second).expect("room");
        assert_eq!(slab.pin(other).map(|pin| pin.value), Some(2));
        readers
            .into_iter()
            .for_each(|reader| reader.join().expect("reader"));
        assert_eq!(ends.load(Relaxed), 1);
    });
}

#[test]
fn ids_are_seen_by_whoever_comes_by_the_handle() {
    check(|| {
        let shared = Arc::new((AtomicU64::new(0), Slab::default()));
        // Loom does not see the lock that orders the making of the slots.
        shared.1.retire(shared.1.insert(0).expect("room"));
        let reader = {
            let shared = Arc::clone(&shared);
            thread::spawn(move || {
                // Relaxed: the word alone has to order the value before the pin.
                let bits = shared.0.load(Ordering::Relaxed);
                let pin = (bits != 0).then(|| shared.1.pin(Handle::from_bits(bits)));
                assert!(pin.flatten().is_none_or(|pin| *pin == 1));
            })
        };
        let handle = shared.1.insert(1).expect("room");
        shared.0.store(handle.bits(), Ordering::Relaxed);
        reader.join().expect("reader");
    });
}

#[test]
fn what_is_pinned_is_not_evicted() {
    check(|| {
        let slab = Arc::new(Slab::default());
        let (value, ends) = counted(1);
        let handle = slab.insert(value).expect("room");
        let evictor = {
            let slab = Arc::clone(&slab);
            thread::spawn(move || slab.evict(handle))
        };
        if let Some(pin) = slab.pin(handle) {
            assert_eq!((pin.value, ends.load(Relaxed)), (1, 0));
        }
        let evicted = evictor.join().expect("evictor");
        assert_eq!(ends.load(Relaxed), usize::from(evicted));
        assert_eq!(slab.pin(handle).is_none(), evicted);
    });
}

#[test]
fn a_node_is_kept_or_evicted_and_never_both() {
    check(|| {
        let runs = Arc::new(Slots::<()>::default());
        let slot = runs.claim().expect("room");
        let run = runs.publish(slot);
        let node = Arc::new(NodeCell::new(7, 0));
        let readers: Vec<_> = (0..2)
            .map(|_| {
                let (runs, node) = (Arc::clone(&runs), Arc::clone(&node));
                thread::spawn(move || {
                    assert!(runs.pin(run));
                    fence(Ordering::SeqCst);
                    // The pin stays, as a plan's does.
                    node.keep()
                })
            })
            .collect();
        let evicted = node.evict(|| runs.pins(slot));
        let kept: Vec<bool> = readers
            .into_iter()
            .map(|r| r.join().expect("reader"))
            .collect();
        assert!(
            kept.iter().all(|&kept| kept != evicted),
            "{kept:?} {evicted}"
        );
        assert_eq!(node.is_live(), !evicted);
    });
}

#[test]
fn readers_see_one_version_after_another_and_none_at_the_end() {
    check(|| {
        let shared = Arc::new((Current::default(), Slab::default()));
        let ((first, ends_1), (second, ends_2)) = (counted(1), counted(2));
        assert!(shared.0.publish(&shared.1, first));
        let reader = {
            let shared = Arc::clone(&shared);
            thread::spawn(move || {
                let see = || shared.0.pin(&shared.1).map_or(3, |version| version.value);
                let (earlier, later) = (see(), see());
                assert!(earlier <= later, "{earlier} then {later}");
            })
        };
        assert!(shared.0.publish(&shared.1, second));
        shared.0.clear(&shared.1);
        reader.join().expect("reader");
        assert_eq!((ends_1.load(Relaxed), ends_2.load(Relaxed)), (1, 1));
    });
}

#[test]
fn slots_come_from_the_vacant_list_to_one_thread_each() {
    check(|| {
        let slots = Arc::new(Slots::<()>::default());
        let all = [slots.claim(), slots.claim()].map(|slot| slot.expect("room"));
        all.iter().for_each(|&slot| slots.recycle(slot));
        let other = {
            let slots = Arc::clone(&slots);
            thread::spawn(move || {
                let slot = slots.claim().expect("room");
                slots.recycle(slot);
                slots.claim().expect("room")
            })
        };
        let mine = slots.claim().expect("room");
        assert_ne!(mine, other.join().expect("other"));
    });
}

fn vacant(places: &[u64; 2]) -> Option<usize> {
    places.iter().position(|&place| place == 0)
}

#[test]
fn a_reader_never_gets_the_places_of_another_key() {
    check(|| {
        let table = Arc::new(Table::<2>::new(1));
        for key in 1..=7 {
            assert_eq!(
                table.insert(key, 10 * key, vacant, |_| true),
                Inserted::Added
            );
        }
        let reader = {
            let table = Arc::clone(&table);
            thread::spawn(move || table.get(1))
        };
        // Takes the way of key 1 for key 8.
        let only = |places: &[u64; 2]| places[0] == 10;
        assert_eq!(table.insert(8, 80, vacant, only), Inserted::Added);
        let seen = reader.join().expect("reader");
        assert!(seen == [10, 0] || seen == [0, 0], "{seen:?}");
        assert_eq!(table.get(8), [80, 0]);
    });
}

#[test]
fn a_place_that_stays_is_always_seen() {
    check(|| {
        let table = Arc::new(Table::<2>::new(1));
        table.insert(1, 10, vacant, |_| true);
        table.insert(1, 11, vacant, |_| true);
        let reader = {
            let table = Arc::clone(&table);
            thread::spawn(move || table.get(1))
        };
        assert!(table.remove(1, 10));
        table.insert(1, 12, vacant, |_| true);
        let seen = reader.join().expect("reader");
        assert!(seen.contains(&11), "{seen:?}");
    });
}

#[test]
fn writers_of_one_set_take_turns() {
    check(|| {
        let table = Arc::new(Table::<2>::new(1));
        let other = {
            let table = Arc::clone(&table);
            thread::spawn(move || table.insert(1, 10, vacant, |_| true))
        };
        let mine = table.insert(1, 11, vacant, |_| true);
        assert_eq!(
            (mine, other.join().expect("other")),
            (Inserted::Added, Inserted::Added)
        );
        let mut places = table.get(1);
        places.sort_unstable();
        assert_eq!((places, table.counts()), ([10, 11], (2, 1, 0)));
    });
}

#[test]
fn a_value_found_by_a_key_is_of_that_key() {
    check(|| {
        let cache = Arc::new(Cache::new(1));
        cache.insert(1, 1);
        let reader = {
            let cache = Arc::clone(&cache);
            thread::spawn(move || cache.get(1).map(|value| *value))
        };
        // The slot of key 1 is free again and goes to key 2.
        assert!(cache.remove(1));
        assert!(cache.insert(2, 2));
        assert!(matches!(reader.join().expect("reader"), None | Some(1)));
        assert_eq!(cache.get(2).map(|value| *value), Some(2));
    });
}
