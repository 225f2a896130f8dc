//! Calls that copy tokens -> memory that the next call on the same thread uses again.
//!
//! Knows nothing of where tokens come from. Fresh memory for a long prompt costs more in page
//! faults than copying into it.

use std::cell::Cell;
use std::ops::Deref;

use crate::failure::Failure;

/// Longest buffer that a thread keeps, in tokens: 4 MiB.
const KEPT_TOKENS: usize = 1 << 20;

thread_local! {
    static SPARE: Cell<Vec<u32>> = const { Cell::new(Vec::new()) };
}

/// Token ids, in memory that goes back to the thread's spare when they are dropped.
#[derive(Debug)]
pub(crate) struct Tokens(Vec<u32>);

impl Tokens {
    /// No tokens, with room for `len`.
    pub(crate) fn with_room(len: usize) -> Result<Self, Failure> {
        // Without a spare (the thread ends), there is only less to use again.
        let mut spare = SPARE.try_with(Cell::take).unwrap_or_default();
        spare.clear();
        spare
            .try_reserve(len)
            .map_err(|_| Failure::Memory { tokens: len })?;
        Ok(Self(spare))
    }

    pub(crate) fn push(&mut self, token: u32) {
        self.0.push(token);
    }

    pub(crate) fn extend(&mut self, tokens: impl Iterator<Item = u32>) {
        self.0.extend(tokens);
    }
}

impl Deref for Tokens {
    type Target = [u32];

    fn deref(&self) -> &[u32] {
        &self.0
    }
}

impl Drop for Tokens {
    fn drop(&mut self) {
        let tokens = std::mem::take(&mut self.0);
        if tokens.capacity() <= KEPT_TOKENS {
            // An error means that the thread ends and the memory is freed anyway.
            let _ = SPARE.try_with(|spare| spare.set(tokens));
        }
    }
}
