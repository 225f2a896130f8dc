//! What the clones of a registry share, and the turn of its one writer.
//!
//! Knows nothing of what is read or written.

use std::ops::{Deref, DerefMut};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use super::fork::Change;
use super::raw::{AtomicU64, Ordering};
use super::state::State;
use super::{Core, RegistryConfig, Stats};
use crate::policy::Policy;

#[derive(Debug)]
pub(crate) struct Shared {
    pub(super) config: RegistryConfig,
    pub(super) state: Mutex<State>,
    pub(crate) core: Arc<Core>,
    pub(super) lookups: AtomicU64,
    pub(super) reused_tokens: AtomicU64,
    pub(super) computed_tokens: AtomicU64,
}

impl Shared {
    // A panic while the lock was held is a bug, but not a reason to take the host down with further panics.
    pub(super) fn writer(&self) -> Writer<'_> {
        let change = Change::begin();
        let state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        Writer {
            state,
            _change: change,
        }
    }

    pub(crate) fn policy(&self) -> &Policy {
        &self.config.policy
    }

    pub(super) fn stats(&self) -> Stats {
        let state = self.writer();
        let (nodes, runs, tokens, resident_tokens) = state.forest.counts();
        let (donors, fingerprints, _) = self.core.chunks.counts();
        let count = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        Stats {
            nodes,
            runs,
            tokens,
            resident_tokens,
            capacity_tokens: self.config.capacity_tokens,
            fingerprints,
            donors,
            windows: self.core.windows.counts().0,
            namespaces: state.namespaces.len(),
            evicted_nodes: state.evicted,
            lookups: count(&self.lookups),
            reused_tokens: count(&self.reused_tokens),
            computed_tokens: count(&self.computed_tokens),
        }
    }
}

/// The writer's turn. Fields are dropped in order: the lock is free again before the change is over.
pub(super) struct Writer<'a> {
    state: MutexGuard<'a, State>,
    _change: Change,
}

impl Deref for Writer<'_> {
    type Target = State;

    fn deref(&self) -> &State {
        &self.state
    }
}

impl DerefMut for Writer<'_> {
    fn deref_mut(&mut self) -> &mut State {
        &mut self.state
    }
}
