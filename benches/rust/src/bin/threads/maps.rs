//! Concurrent maps -> one trait: find and pin, add, remove.
//!
//! Knows nothing of threads or clocks. All maps hold the same entries under the same hasher. A read
//! finds the entry, pins it (one CAS on its word), reads it, and takes the pin away, as a lookup does.
//! Maps without a pin of their own do it inside their guard, which spares them a reference count.

use std::collections::HashMap;
use std::hash::{BuildHasherDefault, Hasher};
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, PoisonError, RwLock};

use irminsul::parts::Cache;

/// Keys are hashes already.
#[derive(Default)]
pub struct Identity(u64);

impl Hasher for Identity {
    fn finish(&self) -> u64 {
        self.0
    }

    fn write(&mut self, _: &[u8]) {
        unreachable!("keys are 64-bit numbers");
    }

    fn write_u64(&mut self, key: u64) {
        self.0 = key;
    }
}

type Hash = BuildHasherDefault<Identity>;

const DEAD: u64 = 1 << 31;

/// What is stored: a word for pins, and something to read.
pub struct Entry {
    word: AtomicU64,
    digest: u64,
}

impl Entry {
    fn new(key: u64) -> Self {
        Self {
            word: AtomicU64::new(0),
            digest: key.rotate_left(17),
        }
    }

    /// Pins, reads, unpins.
    fn visit(&self) -> u64 {
        let mut seen = self.word.load(Ordering::Relaxed);
        loop {
            if seen & DEAD != 0 {
                return 0;
            }
            let pinned = self.word.compare_exchange_weak(
                seen,
                seen + 1,
                Ordering::Acquire,
                Ordering::Relaxed,
            );
            match pinned {
                Ok(_) => break,
                Err(now) => seen = now,
            }
        }
        let digest = self.digest;
        self.word.fetch_sub(1, Ordering::Release);
        digest
    }
}

/// A concurrent map of entries for at most `capacity` keys.
pub trait Map: Send + Sync {
    /// Digest of a key's entry, read under a pin.
    fn visit(&self, key: u64) -> Option<u64>;
    /// Whether a key is there, without a pin.
    fn peek(&self, key: u64) -> bool;
    /// Adds a key that is not there.
    fn insert(&self, key: u64);
    /// Removes a key.
    fn remove(&self, key: u64);
}

impl Map for Cache<u64> {
    fn visit(&self, key: u64) -> Option<u64> {
        self.get(key).map(|digest| *digest)
    }

    fn peek(&self, key: u64) -> bool {
        self.contains(key)
    }

    fn insert(&self, key: u64) {
        Cache::insert(self, key, key.rotate_left(17));
    }

    fn remove(&self, key: u64) {
        Cache::remove(self, key);
    }
}

/// Makes room in maps that have no capacity of their own: a key near the new one goes first.
pub struct Bounded<M> {
    map: M,
    room: AtomicUsize,
}

impl<M> Bounded<M> {
    fn new(map: M, capacity: usize) -> Self {
        let room = AtomicUsize::new(capacity);
        Self { map, room }
    }

    /// Adds by `add`, which says whether it did; `drop_one` takes some key out.
    fn insert(&self, add: impl FnOnce() -> bool, drop_one: impl Fn() -> bool) {
        if self.room.load(Ordering::Relaxed) == 0 && drop_one() {
            self.room.fetch_add(1, Ordering::Relaxed);
        }
        if self.room.load(Ordering::Relaxed) > 0 && add() {
            self.room.fetch_sub(1, Ordering::Relaxed);
        }
    }

    fn removed(&self, removed: bool) {
        if removed {
            self.room.fetch_add(1, Ordering::Relaxed);
        }
    }
}

/// Tries a few keys of the working set, which is made of multiples of one odd number.
fn some_key(key: u64, remove: impl Fn(u64) -> bool) -> bool {
    (1..8).any(|step| remove(key.wrapping_add(crate::SPREAD.wrapping_mul(step * 37))))
}

type Papaya = papaya::HashMap<u64, Entry, Hash>;

impl Map for Bounded<Papaya> {
    fn visit(&self, key: u64) -> Option<u64> {
        self.map.pin().get(&key).map(Entry::visit)
    }

    fn peek(&self, key: u64) -> bool {
        self.map.pin().contains_key(&key)
    }

    fn insert(&self, key: u64) {
        let pinned = self.map.pin();
        let drop_one = || some_key(key, |other| pinned.remove(&other).is_some());
        Self::insert(
            self,
            || pinned.try_insert(key, Entry::new(key)).is_ok(),
            drop_one,
        );
    }

    fn remove(&self, key: u64) {
        self.removed(self.map.pin().remove(&key).is_some());
    }
}

type Dash = dashmap::DashMap<u64, Entry, Hash>;

impl Map for Bounded<Dash> {
    fn visit(&self, key: u64) -> Option<u64> {
        self.map.get(&key).map(|entry| entry.visit())
    }

    fn peek(&self, key: u64) -> bool {
        self.map.contains_key(&key)
    }

    fn insert(&self, key: u64) {
        let drop_one = || some_key(key, |other| self.map.remove(&other).is_some());
        let add = || match self.map.entry(key) {
            dashmap::Entry::Vacant(vacant) => {
                vacant.insert(Entry::new(key));
                true
            }
            dashmap::Entry::Occupied(_) => false,
        };
        Self::insert(self, add, drop_one);
    }

    fn remove(&self, key: u64) {
        self.removed(self.map.remove(&key).is_some());
    }
}

type Scc = scc::HashIndex<u64, Arc<Entry>, Hash>;

impl Map for Bounded<Scc> {
    fn visit(&self, key: u64) -> Option<u64> {
        self.map.peek_with(&key, |_, entry| entry.visit())
    }

    fn peek(&self, key: u64) -> bool {
        self.map.contains(&key)
    }

    fn insert(&self, key: u64) {
        let drop_one = || some_key(key, |other| self.map.remove_sync(&other));
        let add = || self.map.insert_sync(key, Arc::new(Entry::new(key))).is_ok();
        Self::insert(self, add, drop_one);
    }

    fn remove(&self, key: u64) {
        self.removed(self.map.remove_sync(&key));
    }
}

type Locked = RwLock<HashMap<u64, Entry, Hash>>;

impl Map for Bounded<Locked> {
    fn visit(&self, key: u64) -> Option<u64> {
        let map = self.map.read().unwrap_or_else(PoisonError::into_inner);
        map.get(&key).map(Entry::visit)
    }

    fn peek(&self, key: u64) -> bool {
        let map = self.map.read().unwrap_or_else(PoisonError::into_inner);
        map.contains_key(&key)
    }

    fn insert(&self, key: u64) {
        let write = || self.map.write().unwrap_or_else(PoisonError::into_inner);
        let drop_one = || some_key(key, |other| write().remove(&other).is_some());
        let add = || match write().entry(key) {
            std::collections::hash_map::Entry::Vacant(vacant) => {
                vacant.insert(Entry::new(key));
                true
            }
            std::collections::hash_map::Entry::Occupied(_) => false,
        };
        Self::insert(self, add, drop_one);
    }

    fn remove(&self, key: u64) {
        let mut map = self.map.write().unwrap_or_else(PoisonError::into_inner);
        self.removed(map.remove(&key).is_some());
    }
}

type Quick = quick_cache::sync::Cache<u64, Arc<Entry>, quick_cache::UnitWeighter, Hash>;

impl Map for Quick {
    fn visit(&self, key: u64) -> Option<u64> {
        self.get(&key).map(|entry| entry.visit())
    }

    fn peek(&self, key: u64) -> bool {
        self.contains_key(&key)
    }

    fn insert(&self, key: u64) {
        Quick::insert(self, key, Arc::new(Entry::new(key)));
    }

    fn remove(&self, key: u64) {
        Quick::remove(self, &key);
    }
}

type Moka = moka::sync::Cache<u64, Arc<Entry>, Hash>;

impl Map for Moka {
    fn visit(&self, key: u64) -> Option<u64> {
        self.get(&key).map(|entry| entry.visit())
    }

    fn peek(&self, key: u64) -> bool {
        self.contains_key(&key)
    }

    fn insert(&self, key: u64) {
        Moka::insert(self, key, Arc::new(Entry::new(key)));
    }

    fn remove(&self, key: u64) {
        self.invalidate(&key);
    }
}

/// Every map, ours first, papaya second.
pub fn all(capacity: usize) -> Vec<(&'static str, Box<dyn Map>)> {
    let quick = Quick::with(
        capacity,
        capacity as u64,
        quick_cache::UnitWeighter,
        Hash::default(),
        quick_cache::sync::DefaultLifecycle::default(),
    );
    let moka = moka::sync::Cache::builder().max_capacity(capacity as u64);
    // Those that would grow are given their room, so that no table is half moved while it is measured.
    let papaya = Papaya::with_capacity_and_hasher(2 * capacity, Hash::default());
    let dash = Dash::with_capacity_and_hasher(capacity, Hash::default());
    let scc = Scc::with_capacity_and_hasher(capacity, Hash::default());
    let locked = RwLock::new(HashMap::with_capacity_and_hasher(capacity, Hash::default()));
    vec![
        // As in the registry: half the keys of a set are free at the capacity.
        ("irminsul", Box::new(Cache::<u64>::new(capacity / 4))),
        ("papaya", Box::new(Bounded::new(papaya, capacity))),
        ("dashmap", Box::new(Bounded::new(dash, capacity))),
        ("scc HashIndex", Box::new(Bounded::new(scc, capacity))),
        ("quick_cache", Box::new(quick)),
        ("moka", Box::new(moka.build_with_hasher(Hash::default()))),
        ("RwLock<HashMap>", Box::new(Bounded::new(locked, capacity))),
    ]
}
