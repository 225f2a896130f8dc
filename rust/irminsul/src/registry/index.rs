//! (namespace, fingerprint) -> the few donors worth looking at.
//!
//! Knows nothing of tokens: a donor found here is a guess that the matcher has to prove.

use std::cmp::Reverse;
use std::collections::HashMap;

use super::run::{Place, RunId};

/// Donors kept for one fingerprint. Enough for a choice, few enough that a text which every session carries does
/// not crowd the index.
pub(crate) const MAX_DONORS: usize = 4;

/// The place just after a chunk with the wanted fingerprint.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Donor {
    pub(crate) end: Place,
    pub(crate) hops: u32,
    pub(crate) depth: u32,
}

impl Donor {
    /// Better donors first: least approximate, least rotated, newest.
    fn rank(&self) -> (u32, u32, Reverse<RunId>) {
        (self.depth, self.hops, Reverse(self.end.run))
    }
}

/// All donors of a registry.
#[derive(Debug)]
pub(crate) struct Index {
    donors: HashMap<(u64, u64), Vec<Donor>>,
    /// Bits of a fingerprint that are used; fewer than 64 only in tests of collisions.
    mask: u64,
    len: usize,
}

impl Index {
    pub(crate) fn new(fingerprint_bits: u32) -> Self {
        let mask = u64::MAX.checked_shr(64 - fingerprint_bits).unwrap_or(0);
        Self {
            donors: HashMap::new(),
            mask,
            len: 0,
        }
    }

    /// Number of donors and of fingerprints.
    pub(crate) fn counts(&self) -> (usize, usize) {
        (self.len, self.donors.len())
    }

    pub(crate) fn get(&self, namespace: u64, fingerprint: u64) -> &[Donor] {
        self.donors
            .get(&(namespace, fingerprint & self.mask))
            .map_or(&[], Vec::as_slice)
    }

    /// Adds a donor, unless better ones fill the entry. A run gives one donor to a fingerprint, its first:
    /// repetitive text would otherwise take every place.
    pub(crate) fn insert(&mut self, namespace: u64, fingerprint: u64, donor: Donor) {
        let entry = self
            .donors
            .entry((namespace, fingerprint & self.mask))
            .or_default();
        if entry.iter().any(|other| other.end.run == donor.end.run) {
            return;
        }
        let at = entry.partition_point(|other| other.rank() < donor.rank());
        if at == MAX_DONORS {
            return;
        }
        self.len += usize::from(entry.len() < MAX_DONORS);
        entry.truncate(MAX_DONORS - 1);
        entry.insert(at, donor);
    }

    /// Removes the donor that ends at `end`, if it is there.
    pub(crate) fn remove(&mut self, namespace: u64, fingerprint: u64, end: Place) {
        let key = (namespace, fingerprint & self.mask);
        let Some(entry) = self.donors.get_mut(&key) else {
            return;
        };
        let before = entry.len();
        entry.retain(|donor| donor.end != end);
        self.len -= before - entry.len();
        if entry.is_empty() {
            self.donors.remove(&key);
        }
    }

    pub(crate) fn clear(&mut self) {
        self.donors.clear();
        self.len = 0;
    }
}
