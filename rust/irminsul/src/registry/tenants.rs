//! Tenants -> what each may take and takes.
//!
//! Knows nothing of nodes. Pins are counted by readers, in atomics; everything else by the writer.

use std::collections::{BTreeSet, HashMap};
use std::sync::Arc;

use super::raw::{AtomicU64, Ordering};
use crate::error::{Error, Result};
use crate::quota::{Quota, Usage};

/// What readers share of a tenant.
#[derive(Debug)]
pub(crate) struct Tenant {
    name: Vec<u8>,
    pins: AtomicU64,
    most_pins: AtomicU64,
}

impl Tenant {
    /// Counts pins, or refuses them all.
    pub(crate) fn add_pins(&self, count: usize) -> Result<()> {
        // Relaxed, here and below: a count that publishes nothing. Two readers that reach the limit at
        // once may both be refused, never both be let in.
        let used = self.pins.fetch_add(count as u64, Ordering::Relaxed);
        let limit = self.most_pins.load(Ordering::Relaxed);
        if count == 0 || used.saturating_add(count as u64) <= limit {
            return Ok(());
        }
        self.remove_pins(count);
        Err(self.exceeded("pins", count, used as usize, limit as usize))
    }

    pub(crate) fn remove_pins(&self, count: usize) {
        self.pins.fetch_sub(count as u64, Ordering::Relaxed);
    }

    fn set_most_pins(&self, quota: &Quota) {
        let most = quota.pins.map_or(u64::MAX, |pins| pins as u64);
        self.most_pins.store(most, Ordering::Relaxed);
    }

    fn exceeded(&self, quota: &'static str, needed: usize, used: usize, limit: usize) -> Error {
        Error::QuotaExceeded {
            tenant: String::from_utf8_lossy(&self.name).into_owned(),
            quota,
            needed,
            used,
            limit,
        }
    }
}

/// The writer's side of a tenant.
#[derive(Debug)]
pub(crate) struct Account {
    pub(crate) shared: Arc<Tenant>,
    /// Ids of its namespaces that hold something.
    pub(crate) namespaces: BTreeSet<u64>,
    pub(crate) nodes: usize,
    pub(crate) entries: usize,
    pub(crate) tokens: usize,
    /// Its own limits; none for those of everybody.
    quota: Option<Quota>,
}

impl Account {
    fn is_idle(&self) -> bool {
        self.namespaces.is_empty() && self.quota.is_none()
    }
}

/// All tenants that hold something or have limits of their own.
#[derive(Debug, Default)]
pub(crate) struct Tenants {
    accounts: HashMap<Vec<u8>, Account>,
    default: Quota,
}

impl Tenants {
    pub(crate) fn account(&mut self, name: &[u8]) -> &mut Account {
        if !self.accounts.contains_key(name) {
            let tenant = Tenant {
                name: name.to_vec(),
                pins: AtomicU64::new(0),
                most_pins: AtomicU64::new(u64::MAX),
            };
            tenant.set_most_pins(&self.default);
            let account = Account {
                shared: Arc::new(tenant),
                namespaces: BTreeSet::new(),
                nodes: 0,
                entries: 0,
                tokens: 0,
                quota: None,
            };
            self.accounts.insert(name.to_vec(), account);
        }
        // Put there just now if it was not.
        match self.accounts.get_mut(name) {
            Some(account) => account,
            None => unreachable!("the account was opened"),
        }
    }

    pub(crate) fn get(&self, name: &[u8]) -> Option<&Account> {
        self.accounts.get(name)
    }

    /// Sets the limits of one tenant (none: those of everybody again), or those of everybody.
    pub(crate) fn set_quota(&mut self, name: Option<&[u8]>, quota: Option<Quota>) {
        if let Some(name) = name {
            self.account(name).quota = quota;
            self.close(name);
        } else {
            self.default = quota.unwrap_or_default();
        }
        for account in self.accounts.values() {
            let quota = account.quota.unwrap_or(self.default);
            account.shared.set_most_pins(&quota);
        }
    }

    fn quota(&self, name: &[u8]) -> Quota {
        let own = self.accounts.get(name).and_then(|account| account.quota);
        own.unwrap_or(self.default)
    }

    /// Forgets a tenant that holds nothing and has no limits of its own.
    pub(crate) fn close(&mut self, name: &[u8]) {
        if self.accounts.get(name).is_some_and(Account::is_idle) {
            self.accounts.remove(name);
        }
    }

    pub(crate) fn usage(&self, name: &[u8]) -> Usage {
        self.accounts
            .get(name)
            .map_or_else(Usage::default, |account| Usage {
                nodes: account.nodes,
                entries: account.entries,
                tokens: account.tokens,
                pins: account.shared.pins.load(Ordering::Relaxed) as usize,
            })
    }

    /// Whether so much more fits a tenant's limits.
    pub(crate) fn admit(&self, name: &[u8], entries: usize, tokens: usize) -> Result<()> {
        let (quota, usage) = (self.quota(name), self.usage(name));
        let limits = [
            ("entries", quota.entries, usage.entries, entries),
            ("tokens", quota.tokens, usage.tokens, tokens),
        ];
        for (which, limit, used, needed) in limits {
            if let Some(limit) = limit
                && used.saturating_add(needed) > limit
            {
                return Err(Error::QuotaExceeded {
                    tenant: String::from_utf8_lossy(name).into_owned(),
                    quota: which,
                    needed,
                    used,
                    limit,
                });
            }
        }
        Ok(())
    }

    /// What has to be freed at once when a limit is reached: a sixteenth of it, so that looking for the
    /// oldest nodes pays.
    pub(crate) fn slack(&self, name: &[u8]) -> (usize, usize) {
        let quota = self.quota(name);
        let part = |limit: Option<usize>| limit.unwrap_or(0) / 16;
        (part(quota.entries), part(quota.tokens))
    }
}
