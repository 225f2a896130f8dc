//! Calls of several threads with their results -> whether some order of them explains the results.
//!
//! Knows nothing of the map that was called; it runs the calls on a map of the standard library, one
//! after the other, in every order that real time allows (Wing and Gong's search).

use std::collections::HashMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, PoisonError};

/// A call and what it returned.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Op {
    Insert(u64, u64, bool),
    Remove(u64, bool),
    Get(u64, Option<u64>),
}

impl Op {
    /// Runs the call on the model; false when it returns something else there.
    fn agrees(self, map: &mut HashMap<u64, u64>) -> bool {
        match self {
            Self::Insert(key, value, added) => {
                let vacant = !map.contains_key(&key);
                map.entry(key).or_insert(value);
                vacant == added
            }
            Self::Remove(key, removed) => map.remove(&key).is_some() == removed,
            Self::Get(key, found) => map.get(&key).copied() == found,
        }
    }
}

#[derive(Debug, Clone, Copy)]
struct Call {
    op: Op,
    start: u64,
    end: u64,
}

/// Calls in the order of their ends, with the times of their starts.
#[derive(Debug, Default)]
pub(crate) struct History {
    clock: AtomicU64,
    calls: Mutex<Vec<Call>>,
}

impl History {
    pub(crate) fn record(&self, call: impl FnOnce() -> Op) {
        let tick = || self.clock.fetch_add(1, Ordering::SeqCst);
        let start = tick();
        let op = call();
        let end = tick();
        let mut calls = self.calls.lock().unwrap_or_else(PoisonError::into_inner);
        calls.push(Call { op, start, end });
    }

    /// Asserts that the history is linearizable.
    pub(crate) fn check(&self) {
        let calls = self.calls.lock().unwrap_or_else(PoisonError::into_inner);
        let left: Vec<Call> = calls.clone();
        assert!(
            explain(&left, &HashMap::new()),
            "no order explains {calls:?}"
        );
    }
}

fn explain(left: &[Call], map: &HashMap<u64, u64>) -> bool {
    let Some(first_end) = left.iter().map(|call| call.end).min() else {
        return true;
    };
    let may_be_next = |call: &&Call| call.start < first_end;
    left.iter().filter(may_be_next).any(|next| {
        let mut after = map.clone();
        let rest: Vec<Call> = left
            .iter()
            .filter(|call| call.start != next.start)
            .copied()
            .collect();
        next.op.agrees(&mut after) && explain(&rest, &after)
    })
}

#[test]
fn an_impossible_history_is_refused() {
    let history = History::default();
    history.record(|| Op::Insert(1, 5, true));
    history.record(|| Op::Get(1, None));
    let calls = history.calls.lock().expect("unpoisoned").clone();
    assert!(!explain(&calls, &HashMap::new()));
}
