//! `irminsul.Registry`: recorded tokens, found again at any position.
//!
//! Knows nothing of matching; it converts arguments and releases the interpreter lock for long work.

use pyo3::prelude::*;
use pyo3::types::PyDict;

use irminsul::Entry;

use crate::chunk_params::ChunkParams;
use crate::failure::Failure;
use crate::namespace::{Field, Namespace};
use crate::numbers::{unsigned, unsigned_or};
use crate::policy::Policy;
use crate::quota::Quota;
use crate::reuse_plan::ReusePlan;
use crate::tokens::{MANY, detached, token_ids};

const NODE: &str = "node ids in [0, 2**64)";
const SIZE: &str = "0 to 2**64 - 1";

/// Donors of KV rows: recorded token paths, found again at any position of later prompts.
///
/// Nodes form a forest that mirrors the engine's own tree. A node is a number that the host chose; the
/// registry keeps its ids, not its rows. Every method may be called from any thread; long ones release
/// the interpreter lock.
///
/// Parameters
/// ----------
/// capacity_tokens : int
///     Most tokens held, in [1, 2**40]. When they do not suffice, the least recently used nodes without
///     children are evicted, except those that a plan pins.
/// params : ChunkParams, optional
///     Chunk sizes.
/// policy : Policy, optional
///     Limits that every plan keeps.
///
/// Raises
/// ------
/// InvalidParams
///     The capacity is out of range.
///
/// Notes
/// -----
/// Hashes only suggest donors. Every token of a plan was compared with the recorded id at its place, so
/// a hash collision cannot serve another text's rows.
///
/// Examples
/// --------
/// >>> import irminsul
/// >>> namespace = irminsul.Namespace(model="deepseek-ai/DeepSeek-V2-Lite")
/// >>> registry = irminsul.Registry(1_000_000)
/// >>> text = [(i * 2654435761) % 100003 for i in range(1000)]
/// >>> registry.add(1, None, text, namespace=namespace)
/// >>> with registry.lookup([7, 8, 9, *text], namespace=namespace) as plan:
/// ...     [type(segment).__name__ for segment in plan.segments]
/// ['Compute', 'Reuse', 'Compute']
/// >>> plan.segments[1].delta
/// 3
#[pyclass(frozen, module = "irminsul", name = "Registry")]
#[derive(Debug)]
pub(crate) struct Registry(irminsul::Registry);

impl Registry {
    /// Whether a call may have to wait for another thread's: a long `forget` would otherwise stop all of Python.
    /// Where there is no interpreter lock, another thread may begin a change or a fork at any moment, and the fork
    /// would wait for one that is attached and has to wait for it.
    fn may_wait(&self) -> bool {
        cfg!(Py_GIL_DISABLED) || self.0.is_busy()
    }

    /// Runs short `work`, without the interpreter lock if it may have to wait.
    fn in_turn<T: Send>(
        &self,
        py: Python<'_>,
        work: impl Send + FnOnce(&irminsul::Registry) -> T,
    ) -> Result<T, Failure> {
        self.in_turn_of(py, 0, work)
    }

    /// Runs `work` on `len` tokens, without the interpreter lock if it takes long or may have to wait.
    fn in_turn_of<T: Send>(
        &self,
        py: Python<'_>,
        len: usize,
        work: impl Send + FnOnce(&irminsul::Registry) -> T,
    ) -> Result<T, Failure> {
        let len = if self.may_wait() { MANY } else { len };
        detached(py, len, || work(&self.0))
    }
}

#[pymethods]
impl Registry {
    #[new]
    #[pyo3(
        signature = (capacity_tokens, params=None, policy=None, *, _fingerprint_bits=64),
        text_signature = "(capacity_tokens, params=None, policy=None, *, _fingerprint_bits=64)"
    )]
    #[allow(clippy::used_underscore_binding)] // Private to the tests, so named like it.
    fn new(
        capacity_tokens: &Bound<'_, PyAny>,
        params: Option<PyRef<'_, ChunkParams>>,
        policy: Option<PyRef<'_, Policy>>,
        _fingerprint_bits: u32,
    ) -> Result<Self, Failure> {
        let capacity = unsigned("capacity_tokens", capacity_tokens, "1 to 2**40")?;
        let params = params.map_or_else(irminsul::ChunkParams::default, |params| params.0);
        let policy = policy.map_or_else(irminsul::Policy::default, |policy| policy.0);
        let registry =
            irminsul::Registry::with_fingerprint_bits(capacity, params, policy, _fingerprint_bits)?;
        Ok(Self(registry))
    }

    #[getter]
    fn params(&self) -> ChunkParams {
        ChunkParams(*self.0.params())
    }

    #[getter]
    fn policy(&self) -> Policy {
        Policy(*self.0.policy())
    }

    /// Record a node.
    ///
    /// Parameters
    /// ----------
    /// node : int
    ///     The host's id for it, in [0, 2**64), not live already.
    /// parent : int or None
    ///     The live node that this one continues.
    /// tokens : sequence, 1-D integer array or CPU tensor of ids in [0, 2**32)
    ///     The node's own ids, without its ancestors'; at least one. Copied.
    /// namespace : Namespace
    ///     What may share the rows; the parent's.
    /// base_position : int, optional
    ///     Position at which the first row was computed; where the parent ends by default, and 0 without one.
    /// hops : int
    ///     Rotations that the rows have been through.
    /// depth : int
    ///     Approximation depth: 0 for rows computed over exact context.
    ///
    /// Raises
    /// ------
    /// DuplicateNode
    ///     The id is live.
    /// UnknownNode
    ///     The parent is not live; it may have been evicted.
    /// InvalidTokens
    ///     The ids cannot be used, or there are none.
    /// InvalidParams
    ///     A number is out of range, or the parent lives in another namespace.
    /// RegistryFull
    ///     The tokens exceed the capacity, or pinned nodes leave no room.
    /// QuotaExceeded
    ///     The same for a limit of the tenant's own.
    #[pyo3(
        signature = (node, parent, tokens, *, namespace, base_position=None, hops=None, depth=None),
        text_signature = "($self, node, parent, tokens, *, namespace, base_position=None, hops=0, depth=0)"
    )]
    #[allow(clippy::too_many_arguments)] // One for each keyword of the Python signature.
    fn add(
        &self,
        node: &Bound<'_, PyAny>,
        parent: Option<&Bound<'_, PyAny>>,
        tokens: &Bound<'_, PyAny>,
        namespace: &Bound<'_, Namespace>,
        base_position: Option<&Bound<'_, PyAny>>,
        hops: Option<&Bound<'_, PyAny>>,
        depth: Option<&Bound<'_, PyAny>>,
    ) -> Result<(), Failure> {
        let ids = token_ids(tokens)?;
        let namespace = &namespace.get().core;
        let parent = parent
            .map(|parent| unsigned("parent", parent, NODE))
            .transpose()?;
        let base_position = match (base_position, parent) {
            (Some(position), _) => unsigned("base_position", position, "0 to 2**62")?,
            (None, Some(parent)) => {
                self.in_turn(tokens.py(), |registry| registry.end_position(parent))??
            }
            (None, None) => 0,
        };
        let entry = Entry {
            parent,
            base_position,
            hops: unsigned_or("hops", hops, 0)?,
            depth: unsigned_or("depth", depth, 0)?,
            ..Entry::root(unsigned("node", node, NODE)?, &ids, namespace)
        };
        let add = |registry: &irminsul::Registry| registry.add(&entry);
        Ok(self.in_turn_of(tokens.py(), ids.len(), add)??)
    }

    /// Record one node without a parent: ``add(location, None, tokens, ...)``.
    ///
    /// Raises as :meth:`add` does.
    #[pyo3(
        signature = (tokens, location, *, namespace, base_position=None),
        text_signature = "($self, tokens, location, *, namespace, base_position=0)"
    )]
    fn record(
        &self,
        tokens: &Bound<'_, PyAny>,
        location: &Bound<'_, PyAny>,
        namespace: &Bound<'_, Namespace>,
        base_position: Option<&Bound<'_, PyAny>>,
    ) -> Result<(), Failure> {
        self.add(location, None, tokens, namespace, base_position, None, None)
    }

    /// Make the first `at` tokens of a node a node of their own, the parent of what remains.
    ///
    /// This is what a radix tree does when a prompt leaves a node half-way. Donors stay valid, and plans
    /// follow when revalidated.
    ///
    /// Parameters
    /// ----------
    /// node : int
    ///     A live node; it keeps the tokens [at, end).
    /// at : int
    ///     At least 1 and less than the node's length.
    /// new_node : int
    ///     Id of the head, not live already.
    ///
    /// Raises
    /// ------
    /// UnknownNode, DuplicateNode, InvalidParams
    ///     As the parameters say.
    fn split(
        &self,
        node: &Bound<'_, PyAny>,
        at: &Bound<'_, PyAny>,
        new_node: &Bound<'_, PyAny>,
    ) -> Result<(), Failure> {
        let py = node.py();
        let at = unsigned("at", at, "at least 1 and less than the node's length")?;
        let (node, new_node) = (
            unsigned("node", node, NODE)?,
            unsigned("new_node", new_node, NODE)?,
        );
        Ok(self.in_turn(py, |registry| registry.split(node, at, new_node))??)
    }

    /// Remove a node at once, also when a plan pins it; its children live on.
    ///
    /// Raises
    /// ------
    /// UnknownNode
    ///     The id is not live.
    fn remove(&self, node: &Bound<'_, PyAny>) -> Result<(), Failure> {
        let py = node.py();
        let node = unsigned("node", node, NODE)?;
        Ok(self.in_turn(py, |registry| registry.remove(node))??)
    }

    /// Remove a node if it is live, and return whether it was.
    fn discard(&self, node: &Bound<'_, PyAny>) -> Result<bool, Failure> {
        let py = node.py();
        let node = unsigned("node", node, NODE)?;
        self.in_turn(py, |registry| registry.discard(node))
    }

    fn __contains__(&self, node: &Bound<'_, PyAny>) -> Result<bool, Failure> {
        let py = node.py();
        let contains = |node| self.in_turn(py, |registry| registry.contains(node));
        node.extract().map_or(Ok(false), contains)
    }

    /// Remove every node of a namespace, and return how many there were.
    fn forget(&self, py: Python<'_>, namespace: &Bound<'_, Namespace>) -> Result<usize, Failure> {
        let namespace = &namespace.get().core;
        detached(py, MANY, || self.0.forget(namespace))
    }

    /// Remove everything.
    fn clear(&self, py: Python<'_>) -> Result<(), Failure> {
        detached(py, MANY, || self.0.clear())
    }

    /// Plan the reuse of recorded rows for a prompt.
    ///
    /// Parameters
    /// ----------
    /// tokens : sequence, 1-D integer array or CPU tensor of ids in [0, 2**32)
    ///     The whole prompt.
    /// namespace : Namespace
    ///     Only nodes of an equal namespace are considered.
    /// prefix_len : int
    ///     Positions that the engine's own prefix cache covers; the plan starts after them.
    ///
    /// Returns
    /// -------
    /// ReusePlan
    ///     Segments that tile [prefix_len, len(tokens)); it pins what it reuses until released.
    ///
    /// Raises
    /// ------
    /// InvalidTokens
    ///     The ids cannot be used.
    /// InvalidParams
    ///     The prefix is longer than the prompt.
    /// QuotaExceeded
    ///     The tenant's living plans pin as much as it may.
    ///
    /// Notes
    /// -----
    /// The first `sink_tokens` positions and the last one are always computed, and rows computed at a
    /// position below `sink_tokens` are reused at delta 0 only. Work is linear in the prompt's length.
    #[pyo3(
        signature = (tokens, *, namespace, prefix_len=None),
        text_signature = "($self, tokens, *, namespace, prefix_len=0)"
    )]
    fn lookup(
        &self,
        tokens: &Bound<'_, PyAny>,
        namespace: &Bound<'_, Namespace>,
        prefix_len: Option<&Bound<'_, PyAny>>,
    ) -> Result<ReusePlan, Failure> {
        let ids = token_ids(tokens)?;
        let prefix_len = prefix_len.map_or(Ok(0), |len| unsigned("prefix_len", len, SIZE))?;
        let namespace = &namespace.get().core;
        let work = || self.0.lookup(&ids, namespace, prefix_len);
        Ok(ReusePlan::new(detached(tokens.py(), ids.len(), work)??))
    }

    /// Limit what a tenant may take.
    ///
    /// What it holds already stays until its next insertion, which evicts the tenant's own least recently
    /// used nodes and nobody else's.
    ///
    /// Parameters
    /// ----------
    /// quota : Quota or None
    ///     The limits; None takes them away.
    /// tenant : str or bytes, optional
    ///     The field of that name of the tenant's namespaces; without one, every tenant that has no limits
    ///     of its own.
    ///
    /// Examples
    /// --------
    /// >>> import irminsul
    /// >>> registry = irminsul.Registry(1000)
    /// >>> registry.set_quota(irminsul.Quota(tokens=100), tenant="a")
    /// >>> registry.record(range(101), 1, namespace=irminsul.Namespace(tenant="a"))
    /// Traceback (most recent call last):
    ///     ...
    /// irminsul.errors.QuotaExceeded: tenant "a" has 0 of 100 tokens and needs 101 more; release its plans, remove some of its nodes, or raise its quota
    #[pyo3(signature = (quota, *, tenant=None), text_signature = "($self, quota, *, tenant=None)")]
    #[allow(clippy::needless_pass_by_value)] // Extracted values are handed over by PyO3.
    fn set_quota(
        &self,
        py: Python<'_>,
        quota: Option<PyRef<'_, Quota>>,
        tenant: Option<Field>,
    ) -> Result<(), Failure> {
        let quota = quota.map(|quota| quota.0);
        let tenant = tenant.as_ref().map(Field::as_bytes);
        self.in_turn(py, |registry| registry.set_quota(tenant, quota))
    }

    /// Return what a tenant holds, as a new dict: nodes, entries, tokens, pins.
    #[pyo3(signature = (tenant), text_signature = "($self, tenant)")]
    #[allow(clippy::needless_pass_by_value)]
    fn usage<'py>(&self, py: Python<'py>, tenant: Field) -> PyResult<Bound<'py, PyDict>> {
        let usage = self.in_turn(py, |registry| registry.usage(tenant.as_bytes()))?;
        let counts = PyDict::new(py);
        counts.set_item("nodes", usage.nodes)?;
        counts.set_item("entries", usage.entries)?;
        counts.set_item("tokens", usage.tokens)?;
        counts.set_item("pins", usage.pins)?;
        Ok(counts)
    }

    /// Return counts of what is held and was done, as a new dict.
    fn stats<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyDict>> {
        let stats = self.in_turn(py, irminsul::Registry::stats)?;
        let counts = PyDict::new(py);
        counts.set_item("nodes", stats.nodes)?;
        counts.set_item("runs", stats.runs)?;
        counts.set_item("tokens", stats.tokens)?;
        counts.set_item("resident_tokens", stats.resident_tokens)?;
        counts.set_item("capacity_tokens", stats.capacity_tokens)?;
        counts.set_item("fingerprints", stats.fingerprints)?;
        counts.set_item("donors", stats.donors)?;
        counts.set_item("windows", stats.windows)?;
        counts.set_item("namespaces", stats.namespaces)?;
        counts.set_item("evicted_nodes", stats.evicted_nodes)?;
        counts.set_item("lookups", stats.lookups)?;
        counts.set_item("reused_tokens", stats.reused_tokens)?;
        counts.set_item("computed_tokens", stats.computed_tokens)?;
        Ok(counts)
    }

    fn __repr__(&self, py: Python<'_>) -> Result<String, Failure> {
        let stats = self.in_turn(py, irminsul::Registry::stats)?;
        Ok(format!(
            "Registry({} nodes, {} of {} tokens)",
            stats.nodes, stats.tokens, stats.capacity_tokens
        ))
    }
}
