//! A process about to fork -> no registry is being changed at that moment.
//!
//! Knows nothing of registries. A child has a copy of the memory and only the thread that forked: it would
//! wait forever for a change that another thread had begun. Readers take part in none of this, since
//! nobody waits for them.

use std::sync::atomic::{AtomicU64, Ordering};

use super::raw::spin;

/// Changes under way in the lower half, threads that are about to fork in the upper.
static STATE: AtomicU64 = AtomicU64::new(0);

/// One thread that is about to fork.
const FORKING: u64 = 1 << 32;

/// A change of a registry: while it lives, no other thread gets past [`hold`].
#[derive(Debug)]
pub(super) struct Change(());

impl Change {
    /// Waits for threads that are about to fork.
    pub(super) fn begin() -> Self {
        let mut round = 0;
        loop {
            let seen = STATE.load(Ordering::Relaxed);
            // Acquire pairs with the release of whoever ended a fork.
            let begun = || {
                STATE.compare_exchange_weak(seen, seen + 1, Ordering::Acquire, Ordering::Relaxed)
            };
            if seen < FORKING && begun().is_ok() {
                return Self(());
            }
            spin(round);
            round += 1;
        }
    }
}

impl Drop for Change {
    fn drop(&mut self) {
        // Release pairs with the acquire in `hold`: what was changed is in the child's copy.
        STATE.fetch_sub(1, Ordering::Release);
    }
}

/// Whether a change would have to wait for a fork.
pub(super) fn is_held() -> bool {
    STATE.load(Ordering::Relaxed) >= FORKING
}

/// Before a fork: holds changes off, and waits for the end of those under way.
pub fn hold() {
    STATE.fetch_add(FORKING, Ordering::Relaxed);
    let mut round = 0;
    // Acquire pairs with the release at the end of a change.
    while STATE.load(Ordering::Acquire) & (FORKING - 1) != 0 {
        spin(round);
        round += 1;
    }
}

/// After a fork, in the parent: lets changes go on.
pub fn go_on() {
    STATE.fetch_sub(FORKING, Ordering::Release);
}

/// After a fork, in the child, where no other thread is left.
pub fn start_over() {
    STATE.store(0, Ordering::Release);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn changes_and_forks_keep_out_of_each_others_way() {
        let under_way = AtomicU64::new(0);
        std::thread::scope(|scope| {
            for _ in 0..3 {
                scope.spawn(|| {
                    for _ in 0..2000 {
                        let change = Change::begin();
                        under_way.fetch_add(1, Ordering::Relaxed);
                        under_way.fetch_sub(1, Ordering::Relaxed);
                        drop(change);
                    }
                });
            }
            for _ in 0..200 {
                hold();
                assert!(is_held());
                assert_eq!(under_way.load(Ordering::Relaxed), 0);
                go_on();
            }
        });
    }
}
