//! One node of the host -> whether it lives, decided by one word among readers, remover and evictor.
//!
//! Knows nothing of tokens. The evictor must not take a node whose run a plan pins, and no lock stands
//! between the two:
//!
//! - a reader pins the run, passes a SeqCst fence ([`fence`]), then looks at the node;
//! - the evictor marks the node, passes such a fence, then looks at the run's pins.
//!
//! So at least one of them sees the other. The evictor that sees a pin takes its mark back. A reader
//! that sees the mark takes it away, and the evictor's last CAS fails. Whether the node went is decided
//! by that CAS alone, and a reader that finds the node gone pinned too late.

use super::raw::{AtomicU64, Ordering, fence};

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

    /// Asks for the node to stay, by who has pinned its run and passed a SeqCst fence since; says
    /// whether it does. The host may still remove it.
    pub(crate) fn keep(&self) -> bool {
        // Relaxed, here and below: the fences order these, and the node's own word has one order.
        match self.state.load(Ordering::Relaxed) {
            LIVE => true,
            // The evictor may have taken its mark back, or another reader; or the node went.
            MARKED => self
                .change(MARKED, LIVE)
                .map_or_else(|state| state != DEAD, |()| true),
            _ => false,
        }
    }

    /// Ends the node, by the host's wish; says whether it lived. For the one writer.
    pub(crate) fn remove(&self) -> bool {
        self.state.swap(DEAD, Ordering::Relaxed) != DEAD
    }

    /// Ends the node unless its run is pinned; says whether it did. For the one writer.
    pub(crate) fn evict(&self, pins: impl Fn() -> u64) -> bool {
        if pins() != 0 || self.change(LIVE, MARKED).is_err() {
            return false;
        }
        // Pairs with the fence between a reader's pin and its `keep`.
        fence(Ordering::SeqCst);
        if pins() == 0 {
            return self.change(MARKED, DEAD).is_ok();
        }
        // A reader may have done so already.
        let _ = self.change(MARKED, LIVE);
        false
    }

    fn change(&self, from: u64, to: u64) -> Result<(), u64> {
        self.state
            .compare_exchange(from, to, Ordering::Relaxed, Ordering::Relaxed)
            .map(drop)
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
