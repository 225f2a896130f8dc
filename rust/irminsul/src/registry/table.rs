//! (namespace, hash of some text) -> the few places worth looking at, in a table of fixed size.
//!
//! Knows nothing of tokens or runs: a place is a word, and the matcher has to prove it. Reads take no
//! lock and never wait; writes lock one set.
//!
//! A set is `[meta, 7 keys]` in one cache line, then the places of each key. Every place is one
//! atomic word at a fixed position, so a reader sees each of them whole, added or removed, whatever
//! a writer does to the others. Meta is `[hand: 3 bits from 16 | referenced: 7 bits from 8 | lock]`.

use super::raw::{AtomicU64, Lines, Ordering, spin};

/// Keys in a set.
const WAYS: usize = 7;
/// Words before the places.
const HEAD: usize = 8;
const WORDS_IN_LINE: usize = 8;

const LOCK: u64 = 1;
const REFERENCED: u32 = 8;
const HAND: u32 = 16;

/// What became of an insertion.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Inserted {
    /// The place is in the table.
    Added,
    /// It took the position of this other one.
    Replaced(u64),
    /// The caller's rule found no position for it.
    Refused,
    /// All keys of its set are held by others that may not be evicted.
    Full,
}

/// Up to `N` places for each key.
#[derive(Debug)]
pub struct Table<const N: usize> {
    lines: Lines,
    sets: u64,
    places: AtomicU64,
    keys: AtomicU64,
    evicted: AtomicU64,
}

/// Where one key lies.
#[derive(Clone, Copy)]
struct Way {
    set: usize,
    way: usize,
}

impl<const N: usize> Table<N> {
    /// Cache lines of one set.
    pub(super) const LINES: usize = 1 + (WAYS * N).div_ceil(WORDS_IN_LINE);

    /// Bytes of memory for each key that fits.
    pub const BYTES_PER_KEY: f64 = (Self::LINES * WORDS_IN_LINE * 8) as f64 / WAYS as f64;

    /// A table of `sets` sets of seven keys.
    pub fn new(sets: usize) -> Self {
        let sets = sets.max(1);
        Self {
            lines: Lines::zeroed(sets * Self::LINES),
            sets: sets as u64,
            places: AtomicU64::new(0),
            keys: AtomicU64::new(0),
            evicted: AtomicU64::new(0),
        }
    }

    /// Bytes that the table takes when it is full.
    pub fn bytes(&self) -> usize {
        self.lines.len() * WORDS_IN_LINE * 8
    }

    /// Numbers of places, of keys, and of keys that were evicted so far.
    pub fn counts(&self) -> (usize, usize, u64) {
        // Relaxed: counts order nothing.
        let get = |count: &AtomicU64| count.load(Ordering::Relaxed);
        let (places, keys) = (get(&self.places), get(&self.keys));
        (places as usize, keys as usize, get(&self.evicted))
    }

    pub(super) fn set(&self, key: u64) -> usize {
        // High bits of the product: no division, and any number of sets.
        let spread = key.wrapping_mul(0x9E37_79B9_7F4A_7C15);
        ((u128::from(spread) * u128::from(self.sets)) >> 64) as usize * Self::LINES
    }

    fn meta(&self, set: usize) -> &AtomicU64 {
        self.lines.word(set, 0)
    }

    fn key(&self, way: Way) -> &AtomicU64 {
        self.lines.word(way.set, 1 + way.way)
    }

    fn place(&self, way: Way, at: usize) -> &AtomicU64 {
        self.lines.word(way.set, HEAD + way.way * N + at)
    }

    /// Asks for a key's line to be fetched into the cache.
    pub fn prefetch(&self, key: u64) {
        self.lines.prefetch(self.set(key));
    }

    fn find(&self, key: u64) -> Option<Way> {
        let set = self.set(key);
        // Acquire pairs with the release of the key in `insert`: its places are seen then.
        let same = |way: &usize| self.key(Way { set, way: *way }).load(Ordering::Acquire) == key;
        let way = (0..WAYS).find(same)?;
        Some(Way { set, way })
    }

    /// The places of `key`, which is not 0, in no order; zeros where there is none.
    pub fn get(&self, key: u64) -> [u64; N] {
        let mut found = [0; N];
        let Some(way) = self.find(key) else {
            return found;
        };
        for (at, place) in found.iter_mut().enumerate() {
            // Acquire pairs with the release of places in `insert`: if a place of a later key is read
            // here, then that the key went is seen below.
            *place = self.place(way, at).load(Ordering::Acquire);
        }
        // Relaxed: ordered behind the acquires above.
        if self.key(way).load(Ordering::Relaxed) != key {
            return [0; N];
        }
        self.refer(way);
        found
    }

    /// Whether `place` is one of the key's now: the check after a pin.
    pub fn holds(&self, key: u64, place: u64) -> bool {
        self.get(key).contains(&place)
    }

    /// Notes that a key is in use, for the evictor.
    fn refer(&self, way: Way) {
        let (meta, bit) = (self.meta(way.set), 1 << (REFERENCED + way.way as u32));
        // Relaxed: a hint. Looked at first, so that keys in use are not written to by every reader.
        if meta.load(Ordering::Relaxed) & bit == 0 {
            meta.fetch_or(bit, Ordering::Relaxed);
        }
    }

    /// Adds a place to a key. `position` says where among the key's places (zeros are vacant) it
    /// goes, if anywhere. When the set is full, a key gives way that was not used lately and whose
    /// places `evictable` allows to go.
    pub fn insert(
        &self,
        key: u64,
        place: u64,
        position: impl FnOnce(&[u64; N]) -> Option<usize>,
        evictable: impl FnMut(&[u64; N]) -> bool,
    ) -> Inserted {
        let set = self.set(key);
        let _lock = self.lock(set);
        if let Some(way) = self.find(key) {
            let Some(at) = position(&self.places(way)) else {
                return Inserted::Refused;
            };
            // Release pairs with the acquire in `get`: what the place stands for is published.
            let before = self.place(way, at).swap(place, Ordering::Release);
            if before != 0 {
                return Inserted::Replaced(before);
            }
            self.places.fetch_add(1, Ordering::Relaxed);
            return Inserted::Added;
        }
        let Some(way) = self.vacancy(set, evictable) else {
            return Inserted::Full;
        };
        // Release for who still reads the places of the key before: it sees that the key went.
        self.place(way, 0).store(place, Ordering::Release);
        // Release pairs with the acquire in `find`.
        self.key(way).store(key, Ordering::Release);
        self.places.fetch_add(1, Ordering::Relaxed);
        self.keys.fetch_add(1, Ordering::Relaxed);
        Inserted::Added
    }

    /// Removes a place of a key; says whether it was there.
    pub fn remove(&self, key: u64, place: u64) -> bool {
        let _lock = self.lock(self.set(key));
        let Some(way) = self.find(key) else {
            return false;
        };
        let places = self.places(way);
        let Some(at) = places.iter().position(|&other| other == place) else {
            return false;
        };
        if places.iter().filter(|&&other| other != 0).count() == 1 {
            self.key(way).store(0, Ordering::Release);
            self.keys.fetch_sub(1, Ordering::Relaxed);
        }
        self.place(way, at).store(0, Ordering::Release);
        self.places.fetch_sub(1, Ordering::Relaxed);
        true
    }

    /// Removes everything.
    pub fn clear(&self) {
        for set in (0..self.lines.len()).step_by(Self::LINES) {
            let _lock = self.lock(set);
            for way in 0..WAYS {
                self.empty(Way { set, way });
            }
        }
    }

    fn places(&self, way: Way) -> [u64; N] {
        // Relaxed: written under the lock that the caller holds.
        std::array::from_fn(|at| self.place(way, at).load(Ordering::Relaxed))
    }

    /// Makes a way vacant: first the key, then its places.
    fn empty(&self, way: Way) {
        if self.key(way).swap(0, Ordering::Release) == 0 {
            return;
        }
        self.keys.fetch_sub(1, Ordering::Relaxed);
        for at in 0..N {
            // Release: who reads the zero or a later place sees that the key went.
            if self.place(way, at).swap(0, Ordering::Release) != 0 {
                self.places.fetch_sub(1, Ordering::Relaxed);
            }
        }
    }

    /// A vacant way of a locked set, made by CLOCK if need be: the hand passes over keys that were
    /// used since it came by, and over those that may not go. Two rounds visit each key unused.
    fn vacancy(&self, set: usize, mut evictable: impl FnMut(&[u64; N]) -> bool) -> Option<Way> {
        let free = |way: &usize| self.key(Way { set, way: *way }).load(Ordering::Relaxed) == 0;
        if let Some(way) = (0..WAYS).find(free) {
            return Some(Way { set, way });
        }
        let meta = self.meta(set);
        for _ in 0..2 * WAYS {
            let seen = meta.load(Ordering::Relaxed);
            let way = (seen >> HAND & 7) as usize % WAYS;
            let (bit, next) = (
                1 << (REFERENCED + way as u32),
                (way as u64 + 1) % WAYS as u64,
            );
            // The hand is written under the lock alone; readers add bits meanwhile, hence no store.
            meta.fetch_xor((way as u64 ^ next) << HAND, Ordering::Relaxed);
            if seen & bit != 0 {
                meta.fetch_and(!bit, Ordering::Relaxed);
            } else if evictable(&self.places(Way { set, way })) {
                self.empty(Way { set, way });
                self.evicted.fetch_add(1, Ordering::Relaxed);
                return Some(Way { set, way });
            }
        }
        None
    }

    fn lock(&self, set: usize) -> SetLock<'_> {
        let meta = self.meta(set);
        let mut round = 0;
        // Acquire pairs with the release of the unlock: the last holder's writes are seen.
        while meta.fetch_or(LOCK, Ordering::Acquire) & LOCK != 0 {
            spin(round);
            round += 1;
        }
        SetLock(meta)
    }
}

/// Held by the one writer of a set.
struct SetLock<'a>(&'a AtomicU64);

impl Drop for SetLock<'_> {
    fn drop(&mut self) {
        // Release pairs with the acquire of the next lock.
        self.0.fetch_and(!LOCK, Ordering::Release);
    }
}

/// One key for a hash in a namespace. Different hashes of one namespace never share a key but for 0. Who does not
/// know the seed cannot tell which keys share a set.
pub fn table_key(seed: u64, namespace: u64, hash: u64) -> u64 {
    let mut key = hash ^ namespace.wrapping_mul(0xD6E8_FEB8_6659_FD93);
    key = (key ^ key >> 32).wrapping_mul(0xD6E8_FEB8_6659_FD93);
    key = (key ^ seed.wrapping_mul(0xA076_1D64_78BD_642F)).wrapping_mul(0xE703_7ED1_A0B4_28DB);
    key = (key ^ key >> 29).wrapping_mul(0x9E37_79B9_7F4A_7C15);
    (key ^ key >> 32).max(1)
}
