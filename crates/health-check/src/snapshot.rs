//! Everything that a plan is made from, as plain values: one moment of the cluster, and what this process remembers.

mod nodes;

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use jiff::{SignedDuration, Timestamp};
use nodeward_api::CephClusterState;
use nodeward_api::node_health_check::NodeHealthCheckStatus;
use nodeward_core::drain::NodeDrains;
use nodeward_core::id::{NamespacedName, NodeName, NodeUid, ResourceVersion};
use nodeward_core::lease::LeaseView;
use nodeward_core::node::NodeView;
use nodeward_core::node_health_check::CheckSpec;
pub use nodeward_core::node_health_check::{RemediationKind, TemplateRef};
use nodeward_core::signal::SignalInputs;
use serde_json::Value;

use crate::observations::Observations;
use crate::plan::CheckRef;

pub use self::nodes::Nodes;

/// Name of a NodeHealthCheck.
pub type CheckName = Arc<str>;

/// What a source tells.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Reading<T> {
    /// This, and nothing else.
    Known(T),
    /// It cannot be read, for this reason: what it would tell may be so, or not.
    Unknown(String),
}

impl<T: Default> Default for Reading<T> {
    fn default() -> Self {
        Self::Known(T::default())
    }
}

impl<T> Reading<T> {
    /// What is known.
    pub const fn known(&self) -> Option<&T> {
        match self {
            Self::Known(told) => Some(told),
            Self::Unknown(_) => None,
        }
    }
}

/// One moment of the cluster, as far as the health of its nodes is concerned. What this process wrote and its caches do not
/// show yet lies over what they show.
#[derive(Debug, Clone, Default)]
pub struct Snapshot {
    /// All NodeHealthChecks.
    pub checks: BTreeMap<CheckName, Arc<CheckFacts>>,
    /// All nodes.
    pub nodes: Nodes,
    /// For how long the watch of nodes has given no sign of life.
    pub nodes_silent_for: SignedDuration,
    /// The templates that the NodeHealthChecks name.
    pub templates: BTreeMap<TemplateRef, TemplateState>,
    /// Remediations of every kind that a specification or a status names, of any owner.
    pub remediations: Vec<Arc<RemediationFacts>>,
    /// What may be done with each of these kinds.
    pub kinds: BTreeMap<RemediationKind, KindFacts>,
    /// Leases in the namespace of leases, by name.
    pub leases: BTreeMap<Arc<str>, Arc<LeaseView>>,
    /// NodeDrains.
    pub drains: NodeDrains,
    /// Nodes that a NodeMaintenance is about.
    pub maintenances: Reading<BTreeSet<NodeName>>,
    /// MachineHealthChecks, and whether each only handles the termination of machines; none where the group
    /// `machine.openshift.io` is not served.
    pub machine_health_checks: Reading<BTreeMap<NamespacedName, bool>>,
    /// Machines, with what an owner reference needs.
    pub machines: Reading<BTreeMap<NamespacedName, MachineFacts>>,
    /// OpenShift's `Infrastructure.status.controlPlaneTopology`; `None` elsewhere.
    pub control_plane_topology: Reading<Option<Arc<str>>>,
    /// What guards the members of etcd on OpenShift; `None` elsewhere.
    pub etcd: Reading<Option<EtcdGuards>>,
    /// What the upgrade signal reads.
    pub signals: SignalInputs,
    /// What ceph-pdb tells of the CephClusters that the policy names, by namespace.
    pub ceph: BTreeMap<Arc<str>, Reading<Arc<CephClusterState>>>,
    /// A live leader of the peer, and where: nothing is written beside it.
    pub peer: Reading<Option<String>>,
    /// Nothing is started before: the API server, or this process, was away.
    pub settle_until: Option<Timestamp>,
    /// By how much the wall clock has been stepped since this process began: what is counted by our clock goes along.
    pub clock_stepped_by: SignedDuration,
    /// What this process remembers.
    pub memory: Observations,
}

/// A NodeHealthCheck.
#[derive(Debug, Clone, PartialEq)]
pub struct CheckFacts {
    /// Name.
    pub name: CheckName,
    /// UID.
    pub uid: Arc<str>,
    /// Resource version: the precondition of each write.
    pub resource_version: ResourceVersion,
    /// `metadata.generation`.
    pub generation: i64,
    /// It is being deleted.
    pub deleting: bool,
    /// Its specification, compiled.
    pub spec: CheckSpec,
    /// Its status: what we wrote last, until the cache leaves the version that this was based on.
    pub status: Arc<NodeHealthCheckStatus>,
}

impl CheckFacts {
    /// Its name and UID.
    pub fn reference(&self) -> CheckRef {
        CheckRef {
            name: Arc::clone(&self.name),
            uid: Arc::clone(&self.uid),
        }
    }
}

/// A Node, with what only health-check reads.
#[derive(Debug, Clone, PartialEq)]
pub struct NodeFacts {
    /// What all operators read.
    pub view: NodeView,
    /// `metadata.creationTimestamp`.
    pub created: Timestamp,
    /// Its conditions.
    pub conditions: Box<[ConditionFacts]>,
    /// Its Machine (annotation `machine.openshift.io/machine`).
    pub machine: Option<NamespacedName>,
}

/// A condition of a node.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ConditionFacts {
    /// Type.
    pub type_: Arc<str>,
    /// `True`, `False` or `Unknown`.
    pub status: Arc<str>,
    /// `lastTransitionTime`.
    pub last_transition: Option<Timestamp>,
    /// From when its duration counts by our clock as it was before any step, see [`crate::observations::counts_since`].
    pub counts_since: Timestamp,
}

impl NodeFacts {
    /// The condition of this type.
    pub fn condition(&self, type_: &str) -> Option<&ConditionFacts> {
        self.conditions.iter().find(|condition| *condition.type_ == *type_)
    }
}

/// What is known of a template.
#[derive(Debug, Clone, PartialEq)]
pub enum TemplateState {
    /// It has not been read yet, or the last read failed.
    Unknown,
    /// It is there.
    Found(Arc<TemplateFacts>),
    /// There is none of that name.
    NotFound,
    /// The API server does not serve its kind.
    KindAbsent,
    /// We may not read it; the server's words.
    Forbidden(String),
}

/// A template.
#[derive(Debug, Clone, PartialEq)]
pub struct TemplateFacts {
    /// `spec.template.spec`, where it has one: the specification of its remediations.
    pub spec: Option<Value>,
    /// It carries the annotation `remediation.medik8s.io/multiple-templates-support`: a node may have several remediations of
    /// its kind.
    pub supports_multiple: bool,
}

/// What may be done with a kind of remediations.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct KindFacts {
    /// Whether all of its objects are known.
    pub listed: Listed,
    /// Its role lets us annotate them. Where it does not, the status carries the state.
    pub may_annotate: bool,
}

/// Whether all objects of a kind are known. What is absent from a list that is not complete may exist.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Listed {
    /// They are.
    Complete,
    /// They are still being listed.
    NotYet,
    /// The API server does not serve the kind.
    NotServed,
    /// We may not list them; the server's words.
    Forbidden(String),
}

/// A remediation.
#[derive(Debug, Clone, PartialEq, Eq)]
#[allow(clippy::struct_excessive_bools, reason = "each is a mark of its own that others set")]
pub struct RemediationFacts {
    /// Kind.
    pub kind: RemediationKind,
    /// Namespace and name.
    pub key: NamespacedName,
    /// UID.
    pub uid: Arc<str>,
    /// Resource version.
    pub resource_version: ResourceVersion,
    /// `metadata.creationTimestamp`.
    pub created: Timestamp,
    /// `metadata.deletionTimestamp`: it is being deleted.
    pub deleting: Option<Timestamp>,
    /// What keeps it while it is being deleted.
    pub finalizers: Box<[Box<str>]>,
    /// Its node: annotation `remediation.medik8s.io/node-name`, or else its own name.
    pub node: NodeName,
    /// It is known to be of that node: the annotation tells, or a controller of NodeHealthChecks has named it. Others may name
    /// theirs after machines.
    pub tells_node: bool,
    /// UID of its node (annotation `nodeward.dev/node-uid`); the peer writes none.
    pub node_uid: Option<NodeUid>,
    /// Name of its template (annotation `remediation.medik8s.io/template-name`).
    pub template: Option<Arc<str>>,
    /// UIDs of its owners.
    pub owners: Box<[Arc<str>]>,
    /// It carries the label `remediation.medik8s.io/isControlPlaneNode`.
    pub is_control_plane: bool,
    /// Annotation `remediation.medik8s.io/nhc-timed-out`; one that cannot be read is as of the end of time.
    pub timed_out: Option<Timestamp>,
    /// Annotation `remediation.medik8s.io/healthy-delay`.
    pub healthy_since: Option<Timestamp>,
    /// It carries the annotation `nodehealthcheck.medik8s.io/old-remediation-cr-flag`.
    pub is_flagged_old: bool,
    /// Status of its condition `Succeeded`.
    pub succeeded: Option<Arc<str>>,
    /// Its condition `PermanentNodeDeletionExpected` is `True`.
    pub node_deletion_expected: bool,
}

impl RemediationFacts {
    /// Whether its remediator may still be at work, as far as it tells itself: so one counts that no NodeHealthCheck here looks
    /// after.
    pub fn runs(&self) -> bool {
        self.timed_out.is_none() && !matches!(self.succeeded.as_deref(), Some("True" | "False"))
    }
}

/// A Machine.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct MachineFacts {
    /// Group and version.
    pub api_version: Arc<str>,
    /// UID.
    pub uid: Arc<str>,
}

/// What guards the members of etcd on OpenShift.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct EtcdGuards {
    /// `disruptionsAllowed` of each PodDisruptionBudget of `openshift-etcd`.
    pub disruptions_allowed: Vec<i32>,
    /// By node, whether its guard pod (`app=guard`) is Ready, or not known not to be.
    pub guards: BTreeMap<NodeName, bool>,
}
