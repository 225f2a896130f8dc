//! (namespace, hash of some text) -> the few donors worth looking at.
//!
//! Knows nothing of tokens: a donor found here is a guess that the matcher has to prove.

use std::cmp::Reverse;
use std::collections::HashMap;

use super::run::{Place, RunId};
use super::spread::Spread;

/// Donors kept for one chunk. Enough for a choice, few enough that a text which every session
/// carries does not crowd the index.
pub(crate) const CHUNK_DONORS: usize = 4;

/// Donors kept for one window. There are eight windows to a chunk, and a second donor finds 0.2
/// points more.
pub(crate) const WINDOW_DONORS: usize = 2;

/// The place just after a text with the wanted hash.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Donor {
    pub(crate) end: Place,
    pub(crate) hops: u32,
    pub(crate) depth: u32,
}

impl Donor {
    const NONE: Self = Self {
        end: Place {
            run: RunId(0),
            offset: 0,
        },
        hops: 0,
        depth: 0,
    };

    /// Better donors first: least approximate, least rotated, newest.
    fn rank(&self) -> (u32, u32, Reverse<RunId>) {
        (self.depth, self.hops, Reverse(self.end.run))
    }
}

/// Up to `N` donors, best first. Inline: most entries hold one, and there are many entries.
#[derive(Debug, Clone, Copy)]
struct Donors<const N: usize> {
    places: [Donor; N],
    len: usize,
}

impl<const N: usize> Donors<N> {
    const EMPTY: Self = Self {
        places: [Donor::NONE; N],
        len: 0,
    };

    fn as_slice(&self) -> &[Donor] {
        &self.places[..self.len]
    }

    /// Adds a donor in its place, the worst giving way; says whether it was good enough.
    fn insert(&mut self, donor: Donor) -> bool {
        let at = self
            .as_slice()
            .partition_point(|other| other.rank() < donor.rank());
        if at == N {
            return false;
        }
        self.len = N.min(self.len + 1);
        self.places[at..self.len].rotate_right(1);
        self.places[at] = donor;
        true
    }

    fn remove(&mut self, end: Place) {
        if let Some(at) = self.as_slice().iter().position(|donor| donor.end == end) {
            self.places[at..self.len].rotate_left(1);
            self.len -= 1;
        }
    }
}

/// Donors of a registry, at most `N` for each hash.
#[derive(Debug)]
pub(crate) struct Index<const N: usize> {
    entries: HashMap<(u64, u64), Donors<N>, Spread>,
    /// Bits of a hash that are used; fewer than 64 only in tests of collisions.
    mask: u64,
    len: usize,
}

impl<const N: usize> Index<N> {
    pub(crate) fn new(hash_bits: u32) -> Self {
        let mask = u64::MAX.checked_shr(64 - hash_bits).unwrap_or(0);
        Self {
            entries: HashMap::default(),
            mask,
            len: 0,
        }
    }

    /// Number of donors and of hashes.
    pub(crate) fn counts(&self) -> (usize, usize) {
        (self.len, self.entries.len())
    }

    pub(crate) fn get(&self, namespace: u64, hash: u64) -> &[Donor] {
        self.entries
            .get(&(namespace, hash & self.mask))
            .map_or(&[], Donors::as_slice)
    }

    /// Adds a donor, unless better ones fill the entry; says whether it did. A run gives one donor
    /// to a hash, its first: repetitive text would otherwise take every place.
    pub(crate) fn insert(&mut self, namespace: u64, hash: u64, donor: Donor) -> bool {
        let entry = self
            .entries
            .entry((namespace, hash & self.mask))
            .or_insert(Donors::EMPTY);
        if entry
            .as_slice()
            .iter()
            .any(|other| other.end.run == donor.end.run)
        {
            return false;
        }
        let before = entry.len;
        let added = entry.insert(donor);
        self.len += entry.len - before;
        added
    }

    /// Removes the donor that ends at `end`, if it is there.
    pub(crate) fn remove(&mut self, namespace: u64, hash: u64, end: Place) {
        let key = (namespace, hash & self.mask);
        let Some(entry) = self.entries.get_mut(&key) else {
            return;
        };
        let before = entry.len;
        entry.remove(end);
        self.len -= before - entry.len;
        if entry.len == 0 {
            self.entries.remove(&key);
        }
    }

    pub(crate) fn clear(&mut self) {
        self.entries.clear();
        self.len = 0;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn donor(run: u64, hops: u32, depth: u32) -> Donor {
        Donor {
            end: Place {
                run: RunId(run),
                offset: 9,
            },
            hops,
            depth,
        }
    }

    fn runs(index: &Index<2>) -> Vec<u64> {
        index
            .get(1, 5)
            .iter()
            .map(|donor| donor.end.run.0)
            .collect()
    }

    #[test]
    fn the_best_donors_stay() {
        let mut index = Index::<2>::new(64);
        assert!(index.insert(1, 5, donor(1, 0, 1)));
        assert!(index.insert(1, 5, donor(2, 3, 0)));
        assert_eq!(runs(&index), [2, 1]);
        assert!(index.insert(1, 5, donor(3, 1, 0)));
        assert_eq!(runs(&index), [3, 2]);
        assert!(!index.insert(1, 5, donor(4, 0, 9)));
        assert!(!index.insert(1, 5, donor(3, 0, 0)), "a run gives one donor");
        assert_eq!(index.counts(), (2, 1));
    }

    #[test]
    fn removal_forgets_exactly_one() {
        let mut index = Index::<2>::new(64);
        index.insert(1, 5, donor(1, 0, 0));
        index.insert(1, 5, donor(2, 0, 0));
        index.remove(
            1,
            5,
            Place {
                run: RunId(1),
                offset: 8,
            },
        );
        assert_eq!(runs(&index), [2, 1]);
        index.remove(
            1,
            5,
            Place {
                run: RunId(2),
                offset: 9,
            },
        );
        assert_eq!(runs(&index), [1]);
        index.remove(
            1,
            5,
            Place {
                run: RunId(1),
                offset: 9,
            },
        );
        assert_eq!(index.counts(), (0, 0));
    }

    #[test]
    fn namespaces_do_not_meet() {
        let mut index = Index::<2>::new(0);
        index.insert(1, 5, donor(1, 0, 0));
        assert!(index.get(2, 5).is_empty());
        assert_eq!(index.get(1, 77).len(), 1, "no bit of the hash is used");
    }
}
