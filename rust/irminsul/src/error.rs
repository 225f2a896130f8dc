//! Refused input -> one enum whose text says what was wrong, which value, and what is allowed.
//!
//! Knows nothing of Python; the binding maps each variant to a Python class in one place.

use thiserror::Error;

/// Everything the crate refuses to do.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum Error {
    /// A parameter lies outside its range.
    #[error("{name} is {value}; allowed: {allowed}")]
    InvalidParams {
        /// Name of the parameter.
        name: &'static str,
        /// The refused value.
        value: i128,
        /// The range in words.
        allowed: &'static str,
    },
    /// A node of the registry needs between one and 2^32 - 1 tokens.
    #[error("a node of {len} tokens; allowed: 1 to 4294967295")]
    InvalidLength {
        /// The refused number of tokens.
        len: usize,
    },
    /// A child was given another namespace than its parent.
    #[error("node {node} has parent {parent} in another namespace; a path stays in one namespace")]
    NamespaceMismatch {
        /// The node that was to be added.
        node: u64,
        /// Its parent.
        parent: u64,
    },
    /// No live node has this id.
    #[error("no live node {node}: it was never added, was removed, or was evicted")]
    UnknownNode {
        /// The unknown id.
        node: u64,
    },
    /// A live node has this id already.
    #[error("node {node} is live already; remove it first or choose another id")]
    DuplicateNode {
        /// The id in question.
        node: u64,
    },
    /// The tokens do not fit and nothing may be evicted.
    #[error(
        "{needed} tokens do not fit: {resident} of {capacity} are taken by pinned nodes and their \
         ancestors, or the node alone exceeds the capacity"
    )]
    RegistryFull {
        /// Tokens that were to be added.
        needed: usize,
        /// Tokens held after evicting everything that may be evicted.
        resident: usize,
        /// The registry's capacity.
        capacity: usize,
    },
    /// A tenant has reached one of its own limits, and nothing of it may be evicted.
    #[error(
        "tenant {tenant:?} has {used} of {limit} {quota} and needs {needed} more; release its plans, \
         remove some of its nodes, or raise its quota"
    )]
    QuotaExceeded {
        /// The tenant, as text.
        tenant: String,
        /// Which limit: entries, tokens or pins.
        quota: &'static str,
        /// How much was asked for.
        needed: usize,
        /// How much the tenant has.
        used: usize,
        /// The limit.
        limit: usize,
    },
}

/// Result of the crate's fallible calls.
pub type Result<T> = std::result::Result<T, Error>;

pub(crate) fn check(
    ok: bool,
    name: &'static str,
    value: i128,
    allowed: &'static str,
) -> Result<()> {
    if ok {
        Ok(())
    } else {
        Err(Error::InvalidParams {
            name,
            value,
            allowed,
        })
    }
}
