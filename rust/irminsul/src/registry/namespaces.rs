//! Namespaces -> small ids, and the nodes that live in each.
//!
//! Knows nothing of what a node holds. A namespace without nodes takes no memory. Readers find the ids
//! in [`Core`]; the members are the writer's.

use std::collections::{BTreeSet, HashMap};

use super::forest::NodeKey;
use super::view::Core;
use crate::namespace::Namespace;

/// Ids of the namespaces in use; an id is never given twice.
#[derive(Debug, Default)]
pub(crate) struct Namespaces {
    ids: HashMap<Namespace, u64>,
    members: HashMap<u64, Members>,
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
        core.namespaces
            .pin()
            .insert(namespace.clone(), self.last_id);
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
        }
    }

    pub(crate) fn nodes(&self, namespace: &Namespace) -> Vec<NodeKey> {
        let members = self.id(namespace).and_then(|id| self.members.get(&id));
        members.map_or_else(Vec::new, |members| members.nodes.iter().copied().collect())
    }
}
