//! Chunks and windows of a new run -> donors in the tables.
//!
//! Knows nothing of the forest's shape.

use super::anchor::{Anchor, AnchorKind, RunWindow};
use super::state::State;
use super::table::{Inserted, Table};
use super::version::{Place, RunHeader, RunId};

/// Insertions and removals that the table is asked to fetch ahead.
pub(super) const AHEAD: usize = 8;

impl State {
    pub(super) fn index_chunks(&self, run: RunId, header: &RunHeader, anchors: &[Anchor]) {
        let min_tail = self.config.policy.min_span;
        let mut previous = 0;
        for (at, anchor) in anchors.iter().enumerate() {
            if let Some(later) = anchors.get(at + AHEAD) {
                let key = self.core.key(header.namespace, later.fingerprint);
                self.core.chunks.prefetch(key);
            }
            let tail_len = anchor.end - previous;
            previous = anchor.end;
            if anchor.kind == AnchorKind::Tail && tail_len < min_tail {
                continue;
            }
            let key = self.core.key(header.namespace, anchor.fingerprint);
            let offset = anchor.end;
            self.index(&self.core.chunks, key, Place { run, offset }, header);
        }
    }

    /// Returns the windows that the table took.
    pub(super) fn index_windows(
        &self,
        run: RunId,
        header: &RunHeader,
        windows: &[RunWindow],
    ) -> Vec<RunWindow> {
        let key = |window: &RunWindow| self.core.key(header.namespace, window.key.into());
        let mut kept = Vec::with_capacity(windows.len());
        for (at, window) in windows.iter().enumerate() {
            if let Some(later) = windows.get(at + AHEAD) {
                self.core.windows.prefetch(key(later));
            }
            let offset = window.end;
            if self.index(
                &self.core.windows,
                key(window),
                Place { run, offset },
                header,
            ) {
                kept.push(*window);
            }
        }
        kept
    }

    /// Adds a donor, unless better ones fill the entry; says whether it did. A run gives one donor to
    /// a hash, its first: repetitive text would otherwise take every place.
    fn index<const N: usize>(
        &self,
        table: &Table<N>,
        key: u64,
        place: Place,
        header: &RunHeader,
    ) -> bool {
        let slot = |word: u64| (word >> 32) as u32;
        let rank = |word: u64| self.forest.run_at(slot(word)).map(|run| run.header.rank());
        let position = |places: &[u64; N]| {
            if places
                .iter()
                .any(|&word| word != 0 && slot(word) == place.run.slot())
            {
                return None;
            }
            if let Some(vacant) = places.iter().position(|&word| word == 0) {
                return Some(vacant);
            }
            let worst = (0..N).max_by_key(|&at| rank(places[at]))?;
            (Some(header.rank()) < rank(places[worst])).then_some(worst)
        };
        let unpinned = |word: &u64| *word == 0 || self.core.runs.pins(slot(*word)) == 0;
        let evictable = |places: &[u64; N]| places.iter().all(unpinned);
        matches!(
            table.insert(key, place.word(), position, evictable),
            Inserted::Added | Inserted::Replaced(_)
        )
    }
}
