//! Recorded token paths -> donors for later prompts: one writer at a time, readers without a lock.
//!
//! Knows nothing of engines or memory pools: a node is a number the host chose. `state` and `forest` are
//! the writer's, behind a mutex; `view` is what readers see, `raw`, `table` and `node` how they share it
//! (docs/adr/005).

/// The concurrent parts by themselves, for the benches and models beside this crate.
#[doc(hidden)]
pub mod parts {
    pub use super::cache::Cache;
    pub use super::raw::{Handle, Pin, Slab, Slots};
    pub use super::table::{Inserted, Table, table_key};
}

mod anchor;
mod anchors;
mod cache;
mod entry;
mod evict;
mod forest;
pub mod fork;
mod indexing;
mod namespaces;
mod node;
mod path;
mod prepare;
mod queue;
#[allow(unsafe_code)]
mod raw;
mod shared;
mod spread;
mod state;
mod table;
mod tenants;
#[cfg(test)]
mod tests;
mod version;
mod view;
pub(crate) mod walk;

use std::sync::{Arc, Mutex, TryLockError};

use crate::error::{Error, Result, check};
use crate::matching::{Prompt, find_spans};
use crate::namespace::Namespace;
use crate::params::ChunkParams;
use crate::plan::ReusePlan;
use crate::policy::Policy;
use crate::quota::{Quota, Usage};

pub use entry::{Entry, Stats};
use fork::Change;
pub(crate) use node::NodeCell;
use prepare::Prepared;
use raw::{AtomicU64, Ordering};
pub(crate) use shared::Shared;
use state::State;
pub(crate) use tenants::Tenant;
pub(crate) use version::{Place, RunId};
pub(crate) use view::{Core, Donors, View};

/// Largest capacity in tokens.
const MAX_CAPACITY: usize = 1 << 40;

#[derive(Debug, Clone, Copy)]
pub(crate) struct RegistryConfig {
    pub(crate) capacity_tokens: usize,
    pub(crate) params: ChunkParams,
    pub(crate) policy: Policy,
    pub(crate) fingerprint_bits: u32,
}

/// Recorded tokens, found again at any position. Clones share their contents; every method may be called from any
/// thread.
///
/// ```
/// use irminsul::{Entry, Namespace, Policy, ChunkParams, Registry};
/// let registry = Registry::new(1 << 20, ChunkParams::default(), Policy::default())?;
/// let namespace = Namespace::default();
/// let text: Vec<u32> = (0..2000_u32).map(|i| i.wrapping_mul(2_654_435_761) >> 15).collect();
/// registry.add(&Entry::root(7, &text, &namespace))?;
/// let prompt: Vec<u32> = (0..100).chain(text.iter().copied()).chain(0..100).collect();
/// let plan = registry.lookup(&prompt, &namespace, 0)?;
/// assert_eq!(plan.reused_tokens(), 2000 - 32);
/// # Ok::<(), irminsul::Error>(())
/// ```
#[derive(Debug, Clone)]
pub struct Registry {
    shared: Arc<Shared>,
}

impl Registry {
    /// An empty registry for up to `capacity_tokens` tokens.
    ///
    /// # Errors
    /// `InvalidParams` for a capacity of 0 or above 2^40, or a policy that cannot be kept.
    pub fn new(capacity_tokens: usize, params: ChunkParams, policy: Policy) -> Result<Self> {
        Self::with_fingerprint_bits(capacity_tokens, params, policy, 64)
    }

    /// A registry that uses only the low bits of each fingerprint, for tests of collisions.
    ///
    /// # Errors
    /// As [`Registry::new`], and `InvalidParams` for other than 0 to 64 bits.
    #[doc(hidden)]
    pub fn with_fingerprint_bits(
        capacity_tokens: usize,
        params: ChunkParams,
        policy: Policy,
        fingerprint_bits: u32,
    ) -> Result<Self> {
        let capacity_ok = (1..=MAX_CAPACITY).contains(&capacity_tokens);
        check(
            capacity_ok,
            "capacity_tokens",
            capacity_tokens as i128,
            "1 to 2**40",
        )?;
        check(
            fingerprint_bits <= 64,
            "fingerprint_bits",
            fingerprint_bits.into(),
            "0 to 64",
        )?;
        policy.validate()?;
        let config = RegistryConfig {
            capacity_tokens,
            params,
            policy,
            fingerprint_bits,
        };
        let core = Arc::new(Core::new(&config));
        let shared = Shared {
            config,
            state: Mutex::new(State::new(config, Arc::clone(&core))),
            core,
            lookups: AtomicU64::new(0),
            reused_tokens: AtomicU64::new(0),
            computed_tokens: AtomicU64::new(0),
        };
        Ok(Self {
            shared: Arc::new(shared),
        })
    }

    /// Chunk sizes that everything in here was cut with.
    pub fn params(&self) -> &ChunkParams {
        &self.shared.config.params
    }

    /// Limits that every plan keeps.
    pub fn policy(&self) -> &Policy {
        self.shared.policy()
    }

    /// Records a node. Evicts least recently used leaves when the capacity is reached.
    ///
    /// # Errors
    /// `DuplicateNode`, `UnknownNode` (the parent), `NamespaceMismatch`, `InvalidLength`, `InvalidParams`,
    /// `RegistryFull`, `QuotaExceeded`; nothing was recorded then, though older nodes may have been evicted.
    pub fn add(&self, entry: &Entry<'_>) -> Result<()> {
        loop {
            let site = self.shared.writer().site(entry)?;
            // Most of the work, without the lock.
            let prepared = Prepared::new(&self.shared.config, &site.tail, entry.tokens);
            if self.shared.writer().add(entry, &site, &prepared)? {
                return Ok(());
            }
        }
    }

    /// Makes the first `at` tokens of `node` a node `head` of their own, the parent of what remains. Donors and the
    /// plans that use them stay valid.
    ///
    /// # Errors
    /// `UnknownNode`, `DuplicateNode` (`head`), or `InvalidParams` when `at` is not inside the node.
    pub fn split(&self, node: u64, at: usize, head: u64) -> Result<()> {
        self.shared.writer().split(node, at, head)
    }

    /// Removes a node at once, also when a plan pins it; such a plan learns of it by revalidation. Children live on.
    ///
    /// # Errors
    /// `UnknownNode`.
    pub fn remove(&self, node: u64) -> Result<()> {
        if self.discard(node) {
            Ok(())
        } else {
            Err(Error::UnknownNode { node })
        }
    }

    /// Removes a node if it is live; says whether it was.
    pub fn discard(&self, node: u64) -> bool {
        self.shared.writer().discard(node)
    }

    /// The position behind a node's last row, where a child's rows usually begin.
    ///
    /// # Errors
    /// `UnknownNode`.
    pub fn end_position(&self, node: u64) -> Result<u64> {
        let state = self.shared.writer();
        state
            .forest
            .end_position(node)
            .ok_or(Error::UnknownNode { node })
    }

    /// Whether a live node has this id.
    pub fn contains(&self, node: u64) -> bool {
        self.shared.writer().forest.key(node).is_some()
    }

    /// Removes every node of a namespace; returns how many there were.
    pub fn forget(&self, namespace: &Namespace) -> usize {
        self.shared.writer().forget(namespace)
    }

    /// Whether another thread is at work on the registry, so that any call but a lookup would wait: a hint for callers
    /// that hold a lock of their own.
    #[doc(hidden)]
    pub fn is_busy(&self) -> bool {
        // Whoever tries the lock may have it at the moment of a fork.
        fork::is_held() || {
            let _change = Change::begin();
            matches!(self.shared.state.try_lock(), Err(TryLockError::WouldBlock))
        }
    }

    /// Removes everything.
    pub fn clear(&self) {
        self.shared.writer().clear();
    }

    /// Plans the reuse of recorded rows for the prompt positions from `prefix_len` on.
    ///
    /// # Errors
    /// `InvalidParams` when the prefix is longer than the prompt; `QuotaExceeded` when the tenant's living
    /// plans pin as much as it may.
    pub fn lookup(
        &self,
        tokens: &[u32],
        namespace: &Namespace,
        prefix_len: usize,
    ) -> Result<ReusePlan> {
        let len = prefix_len as i128;
        check(
            prefix_len <= tokens.len(),
            "prefix_len",
            len,
            "at most the prompt's length",
        )?;
        let core = &self.shared.core;
        let view = View::new(core);
        let space = core.namespaces.pin().get(namespace).cloned();
        let spans = space.as_ref().map_or_else(Vec::new, |space| {
            let prompt = Prompt {
                tokens,
                namespace: space.id,
                prefix_len,
            };
            find_spans(&view, self.policy(), self.params(), &prompt)
        });
        let tenant = space.map(|space| Arc::clone(&space.tenant));
        let plan = ReusePlan::new(&self.shared, &view, tenant, spans, prefix_len, tokens.len())?;
        let add = |counter: &AtomicU64, by: usize| counter.fetch_add(by as u64, Ordering::Relaxed);
        add(&self.shared.lookups, 1);
        add(&self.shared.reused_tokens, plan.reused_tokens());
        add(&self.shared.computed_tokens, plan.computed_tokens());
        Ok(plan)
    }

    /// Limits what one tenant may take, or, without a tenant, every tenant that has no limits of its own.
    /// `None` takes limits away. What a tenant holds already stays until its next insertion, which evicts
    /// the tenant's own least recently used leaves and nobody else's.
    pub fn set_quota(&self, tenant: Option<&[u8]>, quota: Option<Quota>) {
        self.shared
            .writer()
            .namespaces
            .tenants
            .set_quota(tenant, quota);
    }

    /// What a tenant holds now.
    pub fn usage(&self, tenant: &[u8]) -> Usage {
        self.shared.writer().namespaces.tenants.usage(tenant)
    }

    /// Counts of what is held and was done; a snapshot.
    pub fn stats(&self) -> Stats {
        self.shared.stats()
    }
}
