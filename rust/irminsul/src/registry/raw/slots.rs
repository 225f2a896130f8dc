//! Numbers of slots -> one word each that says whether it is live, which life it is in, and who pins it.
//!
//! Knows nothing of what a slot stands for. Slots are never given back to the allocator before the
//! end, so a word may be read through a number that is long out of date.
//!
//! A word is `[generation: 32 | dead: 1 | pins: 31]`. A life begins with [`Slots::publish`], which
//! raises the generation, and ends with [`Slots::retire`] or [`Slots::evict`], which set `dead`. No
//! pin is added after that. Whoever sees the word dead without pins first (the end of life itself or
//! the last unpin, exactly one of them) owns the slot and recycles it.

use std::sync::OnceLock;

use super::sync::{AtomicU32, AtomicU64, FIRST_BUCKET, Ordering, fence};

const DEAD: u64 = 1 << 31;
const PINS: u64 = DEAD - 1;

const BUCKETS: usize = 26;

/// One life of one slot.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Handle(u64);

impl Handle {
    /// The handle with these bits, which [`Handle::bits`] gave.
    pub fn from_bits(bits: u64) -> Self {
        Self(bits)
    }

    /// Generation in the upper half, slot in the lower; never 0.
    pub fn bits(self) -> u64 {
        self.0
    }

    /// The slot's number.
    pub fn slot(self) -> u32 {
        self.0 as u32
    }

    fn new(generation: u64, slot: u32) -> Self {
        Self(generation << 32 | u64::from(slot))
    }

    fn generation(self) -> u64 {
        self.0 >> 32
    }
}

#[derive(Debug)]
struct Slot<E> {
    word: AtomicU64,
    /// Next vacant slot plus one, while this one is vacant.
    next: AtomicU32,
    extra: E,
}

impl<E: Default> Default for Slot<E> {
    fn default() -> Self {
        Self {
            word: AtomicU64::new(DEAD),
            next: AtomicU32::new(0),
            extra: E::default(),
        }
    }
}

/// A growing set of slots, each with something shared beside its word.
#[derive(Debug)]
pub struct Slots<E> {
    buckets: [OnceLock<Box<[Slot<E>]>>; BUCKETS],
    /// Vacant slots: [changes: 32 | first one plus one: 32]. The count of changes keeps a stale
    /// `pop` from putting back a slot that was taken and recycled meanwhile.
    vacant: AtomicU64,
    /// Slots that were ever used.
    fresh: AtomicU32,
}

impl<E> Default for Slots<E> {
    fn default() -> Self {
        Self {
            buckets: [const { OnceLock::new() }; BUCKETS],
            vacant: AtomicU64::new(0),
            fresh: AtomicU32::new(0),
        }
    }
}

impl<E: Default> Slots<E> {
    /// A vacant slot for the caller alone, to be published or recycled; none when all numbers are
    /// taken.
    pub fn claim(&self) -> Option<u32> {
        if let Some(slot) = self.pop() {
            return Some(slot);
        }
        // Relaxed: the number alone is shared; the bucket's lock publishes its memory.
        let slot = self.fresh.fetch_add(1, Ordering::Relaxed);
        let (bucket, _) = locate(slot);
        if bucket >= BUCKETS {
            self.fresh.fetch_sub(1, Ordering::Relaxed);
            return None;
        }
        let make = || {
            (0..FIRST_BUCKET << bucket)
                .map(|_| Slot::default())
                .collect()
        };
        self.buckets[bucket].get_or_init(make);
        Some(slot)
    }

    /// Begins the life of a claimed slot whose `extra` the caller has filled.
    pub fn publish(&self, slot: u32) -> Handle {
        let word = &self.at(slot).word;
        // Relaxed: the slot is the caller's, and nobody changes the word of a vacant slot.
        let generation = (word.load(Ordering::Relaxed) >> 32) + 1;
        // Release pairs with the acquire of the CAS in `pin`: who pins sees what was filled in.
        word.store(generation << 32, Ordering::Release);
        Handle::new(generation, slot)
    }
}

impl<E> Slots<E> {
    fn at(&self, slot: u32) -> &Slot<E> {
        let (bucket, offset) = locate(slot);
        let bucket = self.buckets[bucket].get().map(|bucket| &bucket[offset]);
        // A number comes from `claim`, which made the bucket.
        bucket.unwrap_or_else(|| unreachable!("slot {slot} was never claimed"))
    }

    /// What lies beside the word of a slot, whatever life the slot is in.
    pub fn extra(&self, slot: u32) -> &E {
        &self.at(slot).extra
    }

    /// Adds a pin to this very life; fails once it has ended.
    pub fn pin(&self, handle: Handle) -> bool {
        let word = &self.at(handle.slot()).word;
        // Relaxed: only a guess for the CAS.
        let mut seen = word.load(Ordering::Relaxed);
        loop {
            if seen >> 32 != handle.generation() || seen & DEAD != 0 || seen & PINS == PINS {
                return false;
            }
            // Acquire pairs with the release in `publish`: what was filled in is seen.
            let pinned =
                word.compare_exchange_weak(seen, seen + 1, Ordering::Acquire, Ordering::Relaxed);
            match pinned {
                Ok(_) => return true,
                Err(now) => seen = now,
            }
        }
    }

    /// Takes a pin away; true when the caller has to recycle the slot.
    #[must_use]
    pub fn unpin(&self, slot: u32) -> bool {
        // Release pairs with the fence below, in whichever thread frees: our reads come before.
        let before = self.at(slot).word.fetch_sub(1, Ordering::Release);
        let last = before & (DEAD | PINS) == DEAD | 1;
        if last {
            // Pairs with the release of every other unpin.
            fence(Ordering::Acquire);
        }
        last
    }

    /// Ends a life that this thread alone may end; true when the caller has to recycle the slot.
    #[must_use]
    pub fn retire(&self, handle: Handle) -> bool {
        // Acquire pairs with the release of the unpins before, in case that there is none left;
        // release with the fence of the last one after.
        let before = self.at(handle.slot()).word.fetch_or(DEAD, Ordering::AcqRel);
        before & (DEAD | PINS) == 0
    }

    /// Ends a life that nobody pins; the caller then has to recycle the slot.
    #[must_use]
    pub fn evict(&self, handle: Handle) -> bool {
        let live = handle.generation() << 32;
        // Acquire pairs with the release of the unpins before.
        let word = &self.at(handle.slot()).word;
        word.compare_exchange(live, live | DEAD, Ordering::AcqRel, Ordering::Relaxed)
            .is_ok()
    }

    /// Number of pins of a slot's present life.
    pub fn pins(&self, slot: u32) -> u64 {
        // Relaxed: who acts on the answer puts a fence before it (see `node.rs`).
        self.at(slot).word.load(Ordering::Relaxed) & PINS
    }

    /// Gives a slot back whose life has ended. One whose generations are used up is left alone, so
    /// that no handle ever fits two lives.
    pub fn recycle(&self, slot: u32) {
        // Relaxed: the slot is the caller's.
        if self.at(slot).word.load(Ordering::Relaxed) >> 32 == u64::from(u32::MAX) {
            return;
        }
        let mut head = self.vacant.load(Ordering::Relaxed);
        loop {
            self.at(slot).next.store(head as u32, Ordering::Relaxed);
            let next = changed(head, slot + 1);
            // Release pairs with the acquire in `pop`: the next owner sees `next` and what was freed.
            let pushed =
                self.vacant
                    .compare_exchange_weak(head, next, Ordering::Release, Ordering::Relaxed);
            match pushed {
                Ok(_) => return,
                Err(now) => head = now,
            }
        }
    }

    fn pop(&self) -> Option<u32> {
        // Acquire pairs with the release in `recycle`.
        let mut head = self.vacant.load(Ordering::Acquire);
        loop {
            let slot = (head as u32).checked_sub(1)?;
            let next = self.at(slot).next.load(Ordering::Relaxed);
            let popped = self.vacant.compare_exchange_weak(
                head,
                changed(head, next),
                Ordering::Acquire,
                Ordering::Acquire,
            );
            match popped {
                Ok(_) => return Some(slot),
                Err(now) => head = now,
            }
        }
    }
}

/// The head of the vacant list after one more change.
fn changed(head: u64, first: u32) -> u64 {
    let changes = ((head >> 32) as u32).wrapping_add(1);
    u64::from(changes) << 32 | u64::from(first)
}

/// Bucket of a slot, and its place there.
pub(super) fn locate(slot: u32) -> (usize, usize) {
    let shifted = u64::from(slot) + u64::from(FIRST_BUCKET);
    let bucket = shifted.ilog2() - FIRST_BUCKET.ilog2();
    let start = u64::from(FIRST_BUCKET) << bucket;
    (bucket as usize, (shifted - start) as usize)
}
