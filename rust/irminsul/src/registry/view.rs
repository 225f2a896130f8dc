//! Ids and hashes -> runs as this reader sees them, without a lock.
//!
//! Knows nothing of prompts. A view holds each run that it was asked for until its end, and shows it as
//! it was when it was asked for first.

use std::sync::Arc;

use super::namespaces::Space;
use super::raw::{Current, Holds, Pin, Slab, Slots, fence};
use super::table::{Table, table_key};
use super::version::{Place, RunId, Version};
use super::{AtomicU64, Ordering, RegistryConfig};
use crate::namespace::Namespace;
use crate::window::SAMPLING;

/// Donors kept for one chunk. Enough for a choice, few enough that a text which every session
/// carries does not crowd the index.
pub(crate) const CHUNK_DONORS: usize = 4;

/// Donors kept for one window. There are eight windows to a chunk, and a second donor finds 0.2
/// points more.
pub(crate) const WINDOW_DONORS: usize = 2;

/// Small registries get room for chance.
const MIN_SETS: usize = 64;
/// A gigabyte of ids is indexed in full; what is beyond that competes for the same sets.
const MAX_CHUNK_SETS: usize = 1 << 22;
const MAX_WINDOW_SETS: usize = 1 << 24;

/// Continuations compared at a fork, newest first. Radix trees with pages of one token have one at
/// most.
const MAX_FORK: usize = 8;

/// What a run's slot holds beside its word, in whatever life.
#[derive(Debug, Default)]
pub(crate) struct RunCell {
    /// The present version; none for a run that is gone.
    pub(crate) version: Current,
    /// Id of the run before this one that continues the same place by the same token; 0 for none.
    pub(crate) older: AtomicU64,
}

/// Where runs continue: offset and first token behind a run's id.
pub(crate) type Fork = (RunId, u32, u32);

/// Everything that readers share.
#[derive(Debug)]
pub(crate) struct Core {
    /// A run's word; plans pin it.
    pub(crate) runs: Slots<RunCell>,
    /// What readers hold while they compare.
    pub(crate) versions: Slab<Version>,
    pub(crate) chunks: Table<CHUNK_DONORS>,
    pub(crate) windows: Table<WINDOW_DONORS>,
    /// The newest run at each fork.
    pub(crate) forks: papaya::HashMap<Fork, RunId, super::spread::Spread>,
    /// Ids of the namespaces that hold something.
    pub(crate) namespaces: papaya::HashMap<Namespace, Arc<Space>>,
    /// The writer's age of the last insertion.
    pub(crate) tick: AtomicU64,
    /// Times that plans took their pins away.
    released: AtomicU64,
    /// Bits of a hash that are used; fewer than 64 only in tests of collisions.
    mask: u64,
    /// What decides the sets beside the hash: the deployment's secret, and not chance, since the ranks
    /// of one engine have to evict alike.
    seed: u64,
}

impl Core {
    /// Tables for a registry of this size, nothing in them.
    ///
    /// Half the keys are free when there is a chunk to half the average size, which is what the
    /// smallest chunks and short nodes together come to, and a window to each sampled offset.
    pub(crate) fn new(config: &RegistryConfig) -> Self {
        let capacity = config.capacity_tokens;
        let chunks = (capacity / (config.params.avg() as usize / 2)).div_ceil(4);
        let windows = if config.policy.windows {
            capacity / SAMPLING
        } else {
            0
        };
        let bits = config.fingerprint_bits;
        Self {
            runs: Slots::default(),
            versions: Slab::default(),
            chunks: Table::new(chunks.clamp(MIN_SETS, MAX_CHUNK_SETS)),
            windows: Table::new(windows.div_ceil(4).clamp(MIN_SETS, MAX_WINDOW_SETS)),
            forks: papaya::HashMap::default(),
            namespaces: papaya::HashMap::new(),
            tick: AtomicU64::new(0),
            released: AtomicU64::new(0),
            mask: u64::MAX.checked_shr(64 - bits).unwrap_or(0),
            seed: config.params.secret().into(),
        }
    }

    /// The age that a use by a reader has now.
    pub(crate) fn reader_tick(&self) -> u64 {
        // Relaxed: ages publish nothing.
        self.tick.load(Ordering::Relaxed) + 1
    }

    /// The present version of whatever run lives in a slot.
    pub(crate) fn version_at(&self, slot: u32) -> Option<Pin<'_, Version>> {
        self.runs.extra(slot).version.pin(&self.versions)
    }

    /// The present version of a run.
    pub(crate) fn version(&self, id: RunId) -> Option<Pin<'_, Version>> {
        self.version_at(id.slot())
            .filter(|version| version.id == id)
    }

    /// Pins runs for a plan; drops those from the list that are gone. Nodes may be asked to stay after
    /// it.
    pub(crate) fn pin(&self, runs: &mut Vec<RunId>) {
        runs.retain(|run| self.runs.pin(run.handle()));
        // Pairs with the fence in `NodeCell::evict`.
        fence(Ordering::SeqCst);
    }

    /// Takes a plan's pins away. The last one of a run frees its slot after its end.
    pub(crate) fn unpin(&self, ids: impl Iterator<Item = RunId>) {
        for id in ids {
            if self.runs.unpin(id.slot()) {
                self.runs.recycle(id.slot());
            }
        }
        // Release pairs with the acquire in `released`: who sees the count sees the pins gone.
        self.released.fetch_add(1, Ordering::Release);
    }

    /// How often plans took their pins away.
    pub(crate) fn released(&self) -> u64 {
        // Acquire pairs with the release in `unpin`.
        self.released.load(Ordering::Acquire)
    }

    pub(crate) fn key(&self, namespace: u64, hash: u64) -> u64 {
        table_key(self.seed, namespace, hash & self.mask)
    }
}

/// One reader.
#[derive(Debug)]
pub(crate) struct View<'a> {
    core: &'a Core,
    held: Holds<'a, Version>,
}

/// Donors of one text, best first.
#[derive(Debug)]
pub(crate) struct Donors {
    places: [Place; CHUNK_DONORS],
    len: usize,
}

impl Donors {
    pub(crate) fn as_slice(&self) -> &[Place] {
        &self.places[..self.len]
    }
}

impl<'a> View<'a> {
    pub(crate) fn new(core: &'a Core) -> Self {
        Self {
            core,
            held: Holds::default(),
        }
    }

    pub(crate) fn run(&self, id: RunId) -> Option<&Version> {
        self.at(id.slot()).filter(|version| version.id == id)
    }

    fn at(&self, slot: u32) -> Option<&Version> {
        self.held.get(slot, || self.core.version_at(slot))
    }

    /// The key of a chunk; its line is fetched into the cache.
    pub(crate) fn fetch_chunk(&self, namespace: u64, fingerprint: u64) -> u64 {
        let key = self.core.key(namespace, fingerprint);
        self.core.chunks.prefetch(key);
        key
    }

    /// The key of a window; its line is fetched into the cache.
    pub(crate) fn fetch_window(&self, namespace: u64, hash: u32) -> u64 {
        let key = self.core.key(namespace, hash.into());
        self.core.windows.prefetch(key);
        key
    }

    /// Donors of a chunk, if there is any.
    #[inline]
    pub(crate) fn chunk_donors(&self, namespace: u64, key: u64) -> Option<Donors> {
        let words = self.core.chunks.get(key);
        // Most questions end here.
        (words != [0; CHUNK_DONORS]).then(|| self.donors(namespace, words))
    }

    /// Donors of a window, if there is any.
    #[inline]
    pub(crate) fn window_donors(&self, namespace: u64, key: u64) -> Option<Donors> {
        let words = self.core.windows.get(key);
        (words != [0; WINDOW_DONORS]).then(|| self.donors(namespace, words))
    }

    /// The key said where to look, not what is there: whether a run is of this namespace, it says
    /// itself.
    #[inline(never)]
    fn donors<const N: usize>(&self, namespace: u64, words: [u64; N]) -> Donors {
        let nowhere = Place {
            run: RunId(0),
            offset: 0,
        };
        let mut donors = Donors {
            places: [nowhere; CHUNK_DONORS],
            len: 0,
        };
        let mut ranks = [(0, 0, 0); CHUNK_DONORS];
        for word in words {
            let offset = word as u32;
            let run = if word == 0 {
                None
            } else {
                self.at((word >> 32) as u32)
            };
            let Some(run) =
                run.filter(|run| run.header.namespace == namespace && offset <= run.end())
            else {
                continue;
            };
            let rank = run.header.rank();
            let at = ranks[..donors.len].partition_point(|other| *other < rank);
            donors.len += 1;
            ranks[at..donors.len].rotate_right(1);
            donors.places[at..donors.len].rotate_right(1);
            (ranks[at], donors.places[at]) = (
                rank,
                Place {
                    run: run.id,
                    offset,
                },
            );
        }
        donors
    }

    /// The places that follow `place` in other runs whose first token is `first`, newest first.
    pub(crate) fn continuations(
        &self,
        place: Place,
        first: u32,
    ) -> impl Iterator<Item = Place> + '_ {
        let newest = self
            .core
            .forks
            .pin()
            .get(&(place.run, place.offset, first))
            .copied();
        let mut next = newest;
        std::iter::from_fn(move || {
            let run = next.take()?;
            // Acquire pairs with the release in `Forest`: the link of a run that is reached is seen.
            let older = self
                .core
                .runs
                .extra(run.slot())
                .older
                .load(Ordering::Acquire);
            next = (older != 0).then_some(RunId(older));
            Some(run)
        })
        .take(MAX_FORK)
        // A slot may have begun another life on the way: only who names this place as its parent
        // counts.
        .filter(move |&run| {
            self.run(run)
                .is_some_and(|run| run.header.parent == Some(place))
        })
        .map(|run| Place { run, offset: 0 })
    }

    /// Where `run` continues, if rows there lie at the positions just before its own.
    pub(crate) fn seamless_parent(&self, run: &Version) -> Option<Place> {
        run.header
            .parent
            .filter(|&place| self.position(place) == Some(run.header.base_position))
    }

    /// Position at which the row of the token at `place` was computed.
    pub(crate) fn position(&self, place: Place) -> Option<u64> {
        Some(self.run(place.run)?.position(place.offset))
    }
}
