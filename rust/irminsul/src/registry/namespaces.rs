//! Namespaces -> small ids, and the nodes that live in each.
//!
//! Knows nothing of what a node holds. A namespace without nodes takes no memory. Readers find the ids
//! in [`Core`]; the members are the writer's.

use std::collections::{BTreeSet, HashMap};
use std::sync::Arc;

use super::forest::NodeKey;
use super::tenants::{Account, Tenant, Tenants};
use super::view::Core;
use crate::namespace::Namespace;

/// What readers find of a namespace.
#[derive(Debug)]
pub(crate) struct Space {
    pub(crate) id: u64,
    pub(crate) tenant: Arc<Tenant>,
}

/// Ids of the namespaces in use; an id is never given twice.
#[derive(Debug, Default)]
pub(crate) struct Namespaces {
    ids: HashMap<Namespace, u64>,
    members: HashMap<u64, Members>,
    pub(crate) tenants: Tenants,
    last_id: u64,
}

#[derive(Debug)]
struct Members {
    namespace: Namespace,
    nodes: BTreeSet<NodeKey>,
}

impl Namespaces {
    pub(crate) fn len(&self) -> usize {
        self.ids.len()
    }

    pub(crate) fn id(&self, namespace: &Namespace) -> Option<u64> {
        self.ids.get(namespace).copied()
    }

    /// The id of a namespace that is about to get a node.
    pub(crate) fn intern(&mut self, core: &Core, namespace: &Namespace) -> u64 {
        if let Some(id) = self.id(namespace) {
            return id;
        }
        self.last_id += 1;
        let members = Members {
            namespace: namespace.clone(),
            nodes: BTreeSet::new(),
        };
        self.ids.insert(namespace.clone(), self.last_id);
        self.members.insert(self.last_id, members);
        let account = self.tenants.account(namespace.tenant());
        account.namespaces.insert(self.last_id);
        let space = Space {
            id: self.last_id,
            tenant: Arc::clone(&account.shared),
        };
        let spaces = core.namespaces.pin();
        spaces.insert(namespace.clone(), Arc::new(space));
        self.last_id
    }

    pub(crate) fn join(&mut self, id: u64, node: NodeKey) {
        if let Some(members) = self.members.get_mut(&id) {
            members.nodes.insert(node);
        }
    }

    pub(crate) fn leave(&mut self, core: &Core, id: u64, node: NodeKey) {
        if let Some(members) = self.members.get_mut(&id) {
            members.nodes.remove(&node);
        }
        self.release(core, id);
    }

    /// Lets a namespace go if no node is left in it.
    pub(crate) fn release(&mut self, core: &Core, id: u64) {
        if self
            .members
            .get(&id)
            .is_some_and(|members| members.nodes.is_empty())
            && let Some(members) = self.members.remove(&id)
        {
            core.namespaces.pin().remove(&members.namespace);
            self.ids.remove(&members.namespace);
            let tenant = members.namespace.tenant();
            self.tenants.account(tenant).namespaces.remove(&id);
            self.tenants.close(tenant);
        }
    }

    /// The account of the tenant whose namespace this is.
    pub(crate) fn account(&mut self, id: u64) -> Option<&mut Account> {
        let members = self.members.get(&id)?;
        Some(self.tenants.account(members.namespace.tenant()))
    }

    /// All nodes of a tenant.
    pub(crate) fn nodes_of_tenant(&self, name: &[u8]) -> Vec<NodeKey> {
        let namespaces = self.tenants.get(name).map(|account| &account.namespaces);
        let members = namespaces
            .into_iter()
            .flatten()
            .filter_map(|id| self.members.get(id));
        members
            .flat_map(|members| members.nodes.iter().copied())
            .collect()
    }

    pub(crate) fn nodes(&self, namespace: &Namespace) -> Vec<NodeKey> {
        let members = self.id(namespace).and_then(|id| self.members.get(&id));
        members.map_or_else(Vec::new, |members| members.nodes.iter().copied().collect())
    }
}
