//! Everything that a plan is made from, as plain values: one moment of the CephClusters and of what Ceph says of itself.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use jiff::{SignedDuration, Timestamp};
use nodeward_api::CephClusterState;
use nodeward_api::ceph_state::LeaderLease;
use rados::Options;

use crate::ceph::OsdId;
use crate::ceph::answers::{OsdDump, OsdTree, Rule, Status};
use crate::ceph::freshness::Doubt;
use crate::ceph::pg_health::CleanPattern;
use crate::ceph::reckoning::PoolStates;
use crate::ceph::stop_check::StopAnswer;
use crate::ceph::topology::DomainType;
use crate::plan::daemon_budgets::{DaemonBudget, Daemons};
use crate::plan::noout::NooutRecord;
use crate::plan::write::WriteKey;

/// Name of a namespace. Rook has one CephCluster in each.
pub type Namespace = Arc<str>;

/// Name of a Node.
pub type NodeName = Arc<str>;

/// One moment of all CephClusters.
#[derive(Debug, Clone, Default)]
pub struct Snapshot {
    /// By namespace.
    pub clusters: BTreeMap<Namespace, Arc<ClusterSnapshot>>,
    /// Namespaces whose objects cannot be told now, with the reason: nothing is planned for them.
    pub unknown: BTreeMap<Namespace, Arc<str>>,
}

/// One moment of a CephCluster.
#[derive(Debug, Clone)]
pub struct ClusterSnapshot {
    /// The CephCluster.
    pub cluster: CephClusterFacts,
    /// Its OSDs, as their Deployments and Pods show them.
    pub osds: BTreeMap<OsdId, OsdObjects>,
    /// When the OSDs' pods or nodes changed last: what Ceph was asked before that does not count.
    pub osds_changed_at: Timestamp,
    /// All PodDisruptionBudgets of the namespace, by name.
    pub budgets: BTreeMap<Arc<str>, BudgetFacts>,
    /// How many of each other daemon there are to be. Monitors out of the quorum are those that Ceph names.
    pub daemons: Daemons,
    /// What could not be written last, each with the API server's words, or Ceph's.
    pub refused_writes: BTreeMap<WriteKey, Arc<str>>,
    /// ConfigMap `rook-ceph-pdbstatemap`.
    pub state_map: StateMap,
    /// ConfigMap `nodeward-ceph-pdb`: what was published last.
    pub published: Option<Published>,
    /// The lease by which others see that ceph-pdb is alive; `None` where it elects no leader.
    pub leader_lease: Option<LeaderLease>,
    /// How to connect to its Ceph, or why that is not known; `None` while that is still being read.
    pub target: Option<Result<Options, CephProblem>>,
    /// What Ceph says.
    pub ceph: CephState,
}

/// A CephCluster, as far as it matters here.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CephClusterFacts {
    /// Its namespace.
    pub namespace: Namespace,
    /// Its name.
    pub name: Arc<str>,
    /// UID, for owner references.
    pub uid: Arc<str>,
    /// It is being deleted.
    pub is_deleting: bool,
    /// Its Ceph runs elsewhere (`spec.external.enable`).
    pub is_external: bool,
    /// Rook's own manager of budgets is on (`spec.disruptionManagement.managePodBudgets`).
    pub is_managed_by_rook: bool,
    /// `spec.disruptionManagement.osdMaintenanceTimeout`, a number of minutes.
    pub osd_maintenance_timeout: Option<SignedDuration>,
    /// `spec.disruptionManagement.pgHealthCheckTimeout`, a number of minutes; 0 is none.
    pub pg_health_check_timeout: Option<SignedDuration>,
    /// `spec.disruptionManagement.pgHealthyRegex`, or else the usual pattern.
    pub clean_pattern: CleanPattern,
    /// The fields of `spec` that cannot be read, each with what is wrong. Their defaults count.
    pub unreadable: Vec<String>,
}

/// An OSD, as Kubernetes has it.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct OsdObjects {
    /// Its pod.
    pub pod: OsdPod,
    /// The node that its pod is bound to.
    pub node: Option<NodeName>,
    /// That node, or else the one that Ceph says it last ran on.
    pub last_node: Option<NodeName>,
    /// What is true of its last node.
    pub node_state: NodeState,
    /// Its pod runs and is not Ready.
    pub is_unready: bool,
    /// When nobody is to end its pod any more: the pod is on its way out, and its node has not been Ready for long. Until somebody
    /// repairs the node the OSD may run on.
    pub abandoned_at: Option<Timestamp>,
    /// Labels `topology-location-TYPE` of its Deployment and Pod, by type. Where the two differ the pod's count: a budget
    /// selects by them.
    pub locations: BTreeMap<DomainType, Arc<str>>,
    /// Rook replaces it (annotation `osd.rook.io/replace-in-progress` of its Deployment).
    pub is_being_replaced: bool,
}

/// How an OSD's pod is. Whether it is Ready says nothing of its data.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum OsdPod {
    /// There is none.
    #[default]
    Missing,
    /// Its containers do not run yet.
    Pending,
    /// They run.
    Running,
    /// It is on its way out, or has ended.
    Terminating,
}

/// What is true of an OSD's node.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub enum NodeState {
    /// Pods may be scheduled to it.
    Schedulable,
    /// It is being drained, for this reason: such as `unschedulable`, the key of a taint, or the name of a NodeDrain.
    Draining(Arc<str>),
    /// It has no Node object any more.
    Gone,
    /// Which node it is, is not known.
    #[default]
    Unknown,
}

/// A PodDisruptionBudget.
#[derive(Debug, Clone, PartialEq, Eq)]
#[expect(clippy::struct_excessive_bools, reason = "each is a fact of its own")]
pub struct BudgetFacts {
    /// UID: the precondition of its deletion.
    pub uid: Arc<str>,
    /// Resource version: the precondition of a write.
    pub resource_version: Arc<str>,
    /// It is being deleted.
    pub is_deleting: bool,
    /// It carries our label and names the CephCluster as its owner.
    pub is_ours: bool,
    /// Labels, owner and `unhealthyPodEvictionPolicy` are as we write them for its form.
    pub is_exact: bool,
    /// What it selects and allows, where that has the form of one of Rook's; `None` where it has not.
    pub form: Option<BudgetForm>,
    /// It is not ours, and selects an OSD's pod, whatever form it has.
    pub selects_osds: bool,
    /// Its selector in words, for reports of a foreign budget.
    pub selector: Arc<str>,
}

/// The forms of Rook's budgets, and ours.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum BudgetForm {
    /// `app=rook-ceph-osd`, all but some.
    Osds(DefaultBudget),
    /// `topology-location-TYPE`, one domain.
    OsdsOfDomain {
        /// `maxUnavailable`.
        max_unavailable: i32,
        /// The domain.
        domain: DomainKey,
    },
    /// Of another daemon.
    Daemon(DaemonBudget),
}

/// The budget of all OSDs but some.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DefaultBudget {
    /// So many OSDs may be unavailable: 0, or 1 of ours; Rook's old ones allow more.
    pub max_unavailable: i32,
    /// Domains that it does not select: `topology-location-TYPE NotIn […]`.
    pub except_domains: BTreeSet<DomainKey>,
    /// OSDs that it does not select: `osd NotIn […]`.
    pub except_osds: BTreeSet<OsdId>,
}

/// A failure domain of a type: a budget selects by both.
pub type DomainKey = (DomainType, Arc<str>);

/// ConfigMap `rook-ceph-pdbstatemap`: Rook's own keys, and our records of `noout`.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct StateMap {
    /// Resource version; `None` where there is no such ConfigMap.
    pub resource_version: Option<Arc<str>>,
    /// Our records, by CRUSH bucket.
    pub noout: BTreeMap<Arc<str>, NooutRecord>,
    /// What Rook left there.
    pub rook: RookState,
    /// Keys of ours that cannot be read, with what is wrong.
    pub unreadable: Vec<String>,
}

/// What Rook's own manager has left in its ConfigMap.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct RookState {
    /// `draining-failure-domain`.
    pub draining_domain: Option<Arc<str>>,
    /// `set-no-out`.
    pub set_noout: bool,
    /// `DOMAIN-noout-last-set-at`, by domain.
    pub noout_set_at: BTreeMap<Arc<str>, Timestamp>,
}

/// ConfigMap `nodeward-ceph-pdb`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Published {
    /// Resource version.
    pub resource_version: Arc<str>,
    /// Key `state`; `None` where it cannot be read.
    pub state: Option<CephClusterState>,
}

/// What Ceph says.
#[derive(Debug, Clone)]
pub enum CephState {
    /// Nobody has asked it yet.
    Connecting,
    /// It answers.
    Answering(Arc<CephView>),
    /// It does not.
    Silent {
        /// Why, in words that say what to do.
        problem: CephProblem,
        /// Since when.
        since: Timestamp,
        /// What it said last: for names and places, never for opening a budget.
        last: Option<Arc<CephView>>,
    },
}

impl CephState {
    /// What it said last, however old that is.
    pub fn last_view(&self) -> Option<&Arc<CephView>> {
        match self {
            Self::Connecting => None,
            Self::Answering(view) => Some(view),
            Self::Silent { last, .. } => last.as_ref(),
        }
    }

    /// What it is from `now` on, for Ceph does not answer. Another reason does not make the silence begin anew.
    #[must_use]
    pub fn silenced(self, problem: CephProblem, now: Timestamp) -> Self {
        let since = match &self {
            Self::Silent { since, .. } => *since,
            Self::Connecting | Self::Answering(_) => now,
        };
        Self::Silent {
            problem,
            since,
            last: self.last_view().cloned(),
        }
    }
}

/// Why Ceph says nothing.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CephProblem {
    /// Which kind of problem it is.
    pub kind: CephProblemKind,
    /// The whole message.
    pub message: Arc<str>,
}

impl CephProblem {
    /// A problem.
    pub fn new(kind: CephProblemKind, message: impl Into<Arc<str>>) -> Self {
        let message = message.into();
        Self { kind, message }
    }
}

/// Kinds of problems with Ceph.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum CephProblemKind {
    /// librados is not installed.
    LibraryMissing,
    /// No Secret with a user and a key, or none that may be used.
    CredentialsMissing,
    /// librados does not know the type of the key.
    KeyTypeUnknown,
    /// The monitors refuse the user or the key.
    Authentication,
    /// No monitor answers in time.
    Unreachable,
    /// The connection's thread has not come back from a call.
    Hung,
    /// A command was refused, or its answer cannot be read.
    CommandFailed,
}

/// One round of answers.
#[derive(Debug, Clone)]
pub struct CephView {
    /// When the first of its commands was sent: it knows nothing of what changed later.
    pub asked_at: Timestamp,
    /// `status`.
    pub status: Status,
    /// The map of the OSDs, which all rounds of its epoch share.
    pub map: Arc<CephMap>,
    /// Monitors outside the quorum.
    pub mons_out_of_quorum: BTreeSet<Arc<str>>,
    /// Since when the statistics of placement groups are current; `None` while they are not.
    pub fresh_since: Option<Timestamp>,
    /// Whether `fresh_since` says something of Ceph: after connecting, two reports of each OSD have to be awaited first.
    pub is_freshness_known: bool,
    /// What has happened since they were last current.
    pub doubt: Doubt,
    /// A fingerprint of what they depend on.
    pub basis: Arc<str>,
    /// What both witnesses say, by the OSDs asked for: only with fresh statistics, of known OSDs, without a change of the map since
    /// the question, and where nothing is unknown.
    pub stop_answers: BTreeMap<BTreeSet<OsdId>, StopAnswer>,
    /// Placement groups by pool, as of the newest report that was asked for; empty without one.
    pub pool_states: PoolStates,
    /// Why a question has no answer: the manager hangs, or refuses.
    pub stop_problem: Option<CephProblem>,
}

/// What the map of the OSDs says, in its epoch.
#[derive(Debug, Clone, PartialEq)]
pub struct CephMap {
    /// `osd dump`.
    pub dump: OsdDump,
    /// `osd tree`.
    pub tree: OsdTree,
    /// `osd crush rule dump`.
    pub rules: Vec<Rule>,
    /// The node that each OSD last ran on (`osd metadata`).
    pub hostnames: BTreeMap<OsdId, Arc<str>>,
}

/// What the connection to a cluster is to find out.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct CephQuestions {
    /// Something is down, on its way out or unclean: `status` each second. Else at most one command a minute.
    pub is_watchful: bool,
    /// Of which pools the placement groups are that are not clean.
    pub wants_pool_states: bool,
    /// Which OSDs may be down together; asked on fresh statistics, and again with each newer ones.
    pub may_stop: BTreeSet<BTreeSet<OsdId>>,
}
