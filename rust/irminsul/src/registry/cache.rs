//! Keys -> pinned values, out of one table and one slab: the parts by themselves.
//!
//! Knows nothing of tokens. The registry puts the same parts together with versions and nodes; this is
//! what the models check against a map behind a mutex, and what the benches compare with other maps.

use super::raw::{Handle, Pin, Slab};
use super::table::{Inserted, Table};

/// A map of fixed size whose values cannot be evicted or freed while they are pinned.
#[derive(Debug)]
pub struct Cache<T> {
    table: Table<1>,
    slab: Slab<T>,
}

impl<T> Cache<T> {
    /// An empty map of `sets` sets of seven keys.
    pub fn new(sets: usize) -> Self {
        Self {
            table: Table::new(sets),
            slab: Slab::default(),
        }
    }

    /// The value of a key, which is not 0.
    pub fn get(&self, key: u64) -> Option<Pin<'_, T>> {
        let [word] = self.table.get(key);
        // The handle names one life of the slot. If that has ended, the key was removed or evicted
        // after it was found.
        if word == 0 {
            None
        } else {
            self.slab.pin(Handle::from_bits(word))
        }
    }

    /// Whether a key is there.
    pub fn contains(&self, key: u64) -> bool {
        self.table.get(key) != [0]
    }

    /// Adds a key that is not there; says whether it did. It does not when its set is full of pinned
    /// values either.
    pub fn insert(&self, key: u64, value: T) -> bool {
        let Ok(handle) = self.slab.insert(value) else {
            return false;
        };
        let vacant = |places: &[u64; 1]| (places[0] == 0).then_some(0);
        let evict = |places: &[u64; 1]| self.slab.evict(Handle::from_bits(places[0]));
        let added = self.table.insert(key, handle.bits(), vacant, evict) == Inserted::Added;
        if !added {
            self.slab.retire(handle);
        }
        added
    }

    /// Removes a key; says whether it was there. A pinned value is freed by its last unpin.
    pub fn remove(&self, key: u64) -> bool {
        let [word] = self.table.get(key);
        // Whoever takes the word out of the table ends the life, and nobody else.
        let removed = word != 0 && self.table.remove(key, word);
        if removed {
            self.slab.retire(Handle::from_bits(word));
        }
        removed
    }

    /// Numbers of keys, and of keys that were evicted so far.
    pub fn counts(&self) -> (usize, u64) {
        let (_, keys, evicted) = self.table.counts();
        (keys, evicted)
    }
}
