//! Namespaces -> small ids, and the nodes that live in each.
//!
//! Knows nothing of what a node holds. A namespace without nodes takes no memory.

use std::collections::{BTreeSet, HashMap};

use super::run::NodeKey;
use crate::namespace::Namespace;

/// Ids of the namespaces in use; an id is never given twice.
#[derive(Debug, Default)]
pub(crate) struct Namespaces {
    ids: HashMap<Namespace, u64>,
    members: HashMap<u64, Members>,
    next_id: u64,
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
    pub(crate) fn intern(&mut self, namespace: &Namespace) -> u64 {
        if let Some(id) = self.id(namespace) {
            return id;
        }
        self.next_id += 1;
        let members = Members {
            namespace: namespace.clone(),
            nodes: BTreeSet::new(),
        };
        self.ids.insert(namespace.clone(), self.next_id);
        self.members.insert(self.next_id, members);
        self.next_id
    }

    pub(crate) fn join(&mut self, id: u64, node: NodeKey) {
        if let Some(members) = self.members.get_mut(&id) {
            members.nodes.insert(node);
        }
    }

    pub(crate) fn leave(&mut self, id: u64, node: NodeKey) {
        let Some(members) = self.members.get_mut(&id) else {
            return;
        };
        members.nodes.remove(&node);
        if members.nodes.is_empty() {
            self.ids.remove(&members.namespace);
            self.members.remove(&id);
        }
    }

    /// Drops everything but the count of ids.
    pub(crate) fn clear(&mut self) {
        *self = Self {
            next_id: self.next_id,
            ..Self::default()
        };
    }

    pub(crate) fn nodes(&self, namespace: &Namespace) -> Vec<NodeKey> {
        let members = self.id(namespace).and_then(|id| self.members.get(&id));
        members.map_or_else(Vec::new, |members| members.nodes.iter().copied().collect())
    }
}
