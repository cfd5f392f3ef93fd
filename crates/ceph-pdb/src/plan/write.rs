//! What a plan writes, each with its preconditions.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use nodeward_api::CephClusterState;

use super::noout::NooutRecord;
use crate::snapshot::{BudgetForm, Namespace};

/// One write for one CephCluster.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PlannedWrite {
    /// The CephCluster that it is for; it owns what is created.
    pub owner: Owner,
    /// The write.
    pub write: Write,
}

/// A CephCluster as an owner.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct Owner {
    /// Its namespace.
    pub namespace: Namespace,
    /// Its name.
    pub name: Arc<str>,
    /// Its UID.
    pub uid: Arc<str>,
}

/// What is written.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Write {
    /// Creates a PodDisruptionBudget, or makes it ours with this spec.
    WriteBudget {
        /// Its name.
        name: Arc<str>,
        /// The precondition; `None`: it does not exist.
        resource_version: Option<Arc<str>>,
        /// Its spec.
        form: BudgetForm,
    },
    /// Deletes a PodDisruptionBudget of ours.
    DeleteBudget {
        /// Its name.
        name: Arc<str>,
        /// A precondition.
        uid: Arc<str>,
        /// A precondition.
        resource_version: Arc<str>,
        /// Another budget, which protects its pods from now on: read from the API server before the deletion. `None` for a
        /// budget whose pods are gone.
        rests_on: Option<Arc<str>>,
    },
    /// Takes our label from a PodDisruptionBudget, and changes nothing else: it is Rook's again.
    ReleaseBudget {
        /// Its name.
        name: Arc<str>,
        /// The precondition.
        resource_version: Arc<str>,
    },
    /// Writes our records of `noout` to ConfigMap `rook-ceph-pdbstatemap`.
    WriteStateMap {
        /// The precondition; `None`: it does not exist.
        resource_version: Option<Arc<str>>,
        /// Whether they take over what Rook's own manager has left: its keys then say that nothing is drained.
        takes_over: bool,
        /// All records.
        noout: BTreeMap<Arc<str>, NooutRecord>,
    },
    /// Sets or clears `noout` on CRUSH buckets. The records are written again, unchanged, under `state_map_version` right before:
    /// a conflict stops the commands, so that two leaders cannot undo each other.
    SetNoout {
        /// The buckets.
        buckets: BTreeSet<Arc<str>>,
        /// Set, or clear.
        on: bool,
        /// Resource version of ConfigMap `rook-ceph-pdbstatemap`.
        state_map_version: Arc<str>,
        /// All records, as they stand there.
        noout: BTreeMap<Arc<str>, NooutRecord>,
    },
    /// Writes ConfigMap `nodeward-ceph-pdb`.
    Publish {
        /// The precondition; `None`: it does not exist.
        resource_version: Option<Arc<str>>,
        /// Its content.
        state: Box<CephClusterState>,
        /// It differs from what is published only in what two processes that lead at once may see at different moments.
        is_own_view: bool,
    },
}

/// What a write is about: at most one write of a key is under way.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub enum WriteKey {
    /// A PodDisruptionBudget, by namespace and name.
    Budget(Namespace, Arc<str>),
    /// The records of `noout` and the flags in Ceph. They share a key: a record must not change while a command rests on it.
    Noout(Namespace),
    /// The published state.
    State(Namespace),
}

impl PlannedWrite {
    /// What it is about.
    pub fn key(&self) -> WriteKey {
        self.write.key(&self.owner.namespace)
    }
}

impl WriteKey {
    /// Of which namespace.
    pub const fn namespace(&self) -> &Namespace {
        match self {
            Self::Budget(namespace, _) | Self::Noout(namespace) | Self::State(namespace) => namespace,
        }
    }
}

impl Write {
    /// What it is about, in this namespace.
    pub fn key(&self, namespace: &Namespace) -> WriteKey {
        let namespace = Arc::clone(namespace);
        match (self.budget(), self) {
            (Some(name), _) => WriteKey::Budget(namespace, Arc::clone(name)),
            (None, Self::Publish { .. }) => WriteKey::State(namespace),
            (None, _) => WriteKey::Noout(namespace),
        }
    }

    /// The PodDisruptionBudget that it is about.
    pub const fn budget(&self) -> Option<&Arc<str>> {
        match self {
            Self::WriteBudget { name, .. } | Self::DeleteBudget { name, .. } | Self::ReleaseBudget { name, .. } => {
                Some(name)
            }
            Self::WriteStateMap { .. } | Self::SetNoout { .. } | Self::Publish { .. } => None,
        }
    }

    /// Its kind, as a label of metrics and log lines.
    pub const fn label(&self) -> &'static str {
        match self {
            Self::WriteBudget {
                resource_version: None, ..
            } => "create_budget",
            Self::WriteBudget { .. } => "patch_budget",
            Self::DeleteBudget { .. } => "delete_budget",
            Self::ReleaseBudget { .. } => "release_budget",
            Self::WriteStateMap { .. } => "write_state_map",
            Self::SetNoout { on: true, .. } => "set_noout",
            Self::SetNoout { on: false, .. } => "clear_noout",
            Self::Publish { .. } => "publish",
        }
    }
}
