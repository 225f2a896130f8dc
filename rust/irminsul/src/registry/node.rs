//! One node of the host -> whether it lives, decided by one word among readers, remover and evictor.
//!
//! Knows nothing of tokens. The evictor must not take a node whose run a plan pins, and no lock stands
//! between the two:
//!
//! - a reader pins the run (CAS on its word), then looks at the node;
//! - the evictor marks the node, then looks at the run's pins.
//!
//! All four are SeqCst, so at least one of them sees the other. The evictor that sees a pin takes its
//! mark back. A reader that sees the mark takes it away, and the evictor's last CAS fails. Whether the
//! node went is decided by that CAS alone, and a reader that finds the node gone pinned too late.

use super::raw::{AtomicU64, Ordering};

const LIVE: u64 = 0;
const MARKED: u64 = 1;
const DEAD: u64 = 2;

/// What readers share of a node.
#[derive(Debug)]
pub(crate) struct NodeCell {
    /// The host's id.
    pub(crate) host: u64,
    state: AtomicU64,
    used: AtomicU64,
}

impl NodeCell {
    pub(crate) fn new(host: u64, used: u64) -> Self {
        let (state, used) = (AtomicU64::new(LIVE), AtomicU64::new(used));
        Self { host, state, used }
    }

    /// Whether the node lives, to the best of what this thread has seen. A plan asks again by
    /// [`NodeCell::keep`].
    pub(crate) fn is_live(&self) -> bool {
        // Relaxed: whoever acts on the answer pins and asks `keep`.
        self.state.load(Ordering::Relaxed) != DEAD
    }

    /// Asks for the node to stay, by who has pinned its run; says whether it does. The host may
    /// still remove it.
    pub(crate) fn keep(&self) -> bool {
        // SeqCst: after the pin, against `evict`.
        match self.state.load(Ordering::SeqCst) {
            LIVE => true,
            MARKED => {
                let kept =
                    self.state
                        .compare_exchange(MARKED, LIVE, Ordering::SeqCst, Ordering::SeqCst);
                // The evictor may have taken its mark back, or another reader; or the node went.
                kept.map_or_else(|state| state != DEAD, |_| true)
            }
            _ => false,
        }
    }

    /// Ends the node, by the host's wish; says whether it lived. For the one writer.
    pub(crate) fn remove(&self) -> bool {
        // SeqCst only to be in one order with the others.
        self.state.swap(DEAD, Ordering::SeqCst) != DEAD
    }

    /// Ends the node unless its run is pinned; says whether it did. For the one writer.
    pub(crate) fn evict(&self, pins: impl Fn() -> u64) -> bool {
        if pins() != 0 || !self.change(LIVE, MARKED) {
            return false;
        }
        if pins() != 0 {
            // A reader may have done so already.
            self.change(MARKED, LIVE);
            return false;
        }
        self.change(MARKED, DEAD)
    }

    fn change(&self, from: u64, to: u64) -> bool {
        // SeqCst: the mark comes before the look at the pins.
        let changed = self
            .state
            .compare_exchange(from, to, Ordering::SeqCst, Ordering::SeqCst);
        changed.is_ok()
    }

    /// Notes a use at the writer's present tick. Looked at first, so that nodes in use are not written
    /// to by every reader.
    pub(crate) fn touch(&self, tick: u64) {
        // Relaxed: ages order evictions and publish nothing.
        if self.used.load(Ordering::Relaxed) < tick {
            self.used.store(tick, Ordering::Relaxed);
        }
    }

    pub(crate) fn used(&self) -> u64 {
        self.used.load(Ordering::Relaxed)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_pinned_node_is_not_evicted_and_a_removed_one_is_gone() {
        let node = NodeCell::new(7, 0);
        assert!(!node.evict(|| 1) && node.keep());
        assert!(node.evict(|| 0) && !node.keep() && !node.is_live());
        assert!(!node.remove());
        let node = NodeCell::new(7, 0);
        assert!(node.remove() && !node.evict(|| 0) && !node.keep());
    }

    #[test]
    fn a_reader_takes_the_mark_away() {
        let node = NodeCell::new(7, 0);
        let pins = std::cell::Cell::new(0);
        let evicted = node.evict(|| {
            // The second look comes with the mark set; a reader that pins now is not seen by it.
            pins.set(pins.get() + 1);
            assert!(pins.get() == 1 || node.keep());
            0
        });
        assert!(!evicted && node.is_live());
    }
}
