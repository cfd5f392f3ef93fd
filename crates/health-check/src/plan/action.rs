//! What a plan has done: each action carries its own preconditions, and may be done twice without harm.

use std::fmt;
use std::sync::Arc;

use super::evidence::NodeEvidence;
use super::may_start::Condition;
use crate::default::DefaultStep;
use crate::snapshot::{CheckName, RemediationFacts, RemediationKind, TemplateFacts, TemplateRef};
use jiff::Timestamp;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{LabelSelector, OwnerReference};
use nodeward_api::node_health_check::NodeHealthCheckStatus;
use nodeward_api::node_lease;
use nodeward_api::reason::HealthEvent;
use nodeward_core::id::{NamespacedName, NodeName, NodeUid, ResourceVersion};
use nodeward_core::lease::LeaseView;
use nodeward_runtime::LeaseTerms;

/// Something to do.
#[derive(Debug, Clone, PartialEq)]
pub enum Action {
    /// Write a NodeHealthCheck's status: the one write that orders leaders, pauses, caps and thresholds.
    WriteStatus(Box<StatusWrite>),
    /// Write the default selector, once.
    WriteSelector(SelectorWrite),
    /// Create a remediation, after the leases that it needs.
    StartRemediation(Box<StartRemediation>),
    /// Delete a remediation.
    DeleteRemediation(RemediationWrite),
    /// Annotate a remediation.
    AnnotateRemediation(RemediationWrite, RemediationChange),
    /// Renew, take again or give back a lease.
    Lease(LeaseChange),
    /// Annotate a Node.
    AnnotateNode {
        /// Its name.
        node: NodeName,
        /// Its UID.
        node_uid: NodeUid,
        /// The annotation as it was seen.
        before: Option<String>,
        /// The change.
        change: NodeChange,
    },
    /// Take a step on the way to the default NodeHealthCheck.
    Default {
        /// The step.
        step: DefaultStep,
        /// The template of the NodeHealthCheck.
        template: TemplateRef,
    },
}

/// Delete or annotate a remediation.
#[derive(Debug, Clone, PartialEq)]
pub struct RemediationWrite {
    /// Whose it is.
    pub check: CheckRef,
    /// The remediation.
    pub remediation: RemediationRef,
    /// As it was seen, if it was.
    pub seen: Option<Arc<RemediationFacts>>,
    /// What it rests on, where that matters.
    pub evidence: Option<NodeEvidence>,
}

/// A NodeHealthCheck.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct CheckRef {
    /// Name.
    pub name: CheckName,
    /// UID.
    pub uid: Arc<str>,
}

/// Write a NodeHealthCheck's status.
#[derive(Debug, Clone, PartialEq)]
pub struct StatusWrite {
    /// The NodeHealthCheck.
    pub check: CheckRef,
    /// What it replaces: on a conflict the plan is made anew.
    pub base: ResourceVersion,
    /// The status.
    pub status: Arc<NodeHealthCheckStatus>,
    /// What to say once it is written.
    pub announcements: Vec<Announcement>,
}

/// Something that people are told once it has happened.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Announcement {
    /// What happened.
    pub event: HealthEvent,
    /// The node that it happened to, besides the NodeHealthCheck.
    pub node: Option<(NodeName, NodeUid)>,
    /// The same for a person.
    pub note: String,
}

/// Write the default selector.
#[derive(Debug, Clone, PartialEq)]
pub struct SelectorWrite {
    /// The NodeHealthCheck.
    pub check: CheckRef,
    /// What it replaces.
    pub base: ResourceVersion,
    /// The selector.
    pub selector: LabelSelector,
}

/// Create a remediation. Its intent stands in the status already.
#[derive(Debug, Clone, PartialEq)]
pub struct StartRemediation {
    /// The NodeHealthCheck.
    pub check: CheckRef,
    /// The node.
    pub node: NodeName,
    /// UID of the node.
    pub node_uid: NodeUid,
    /// Which step it is, from 0.
    pub step: usize,
    /// The template.
    pub template: TemplateRef,
    /// What the template says.
    pub made_from: Arc<TemplateFacts>,
    /// The node's Machine, if it is an owner.
    pub machine: Option<OwnerReference>,
    /// Kind of the remediation.
    pub kind: RemediationKind,
    /// Namespace and name of the remediation.
    pub key: NamespacedName,
    /// What is asked again before it is created, in this order. Leases that it took itself are given back if the create fails.
    pub conditions: Vec<Condition>,
}

impl StartRemediation {
    /// Whether its node is of the control plane.
    pub fn is_of_control_plane(&self) -> bool {
        self.leases().any(|lease| lease.name == LeaseName::ControlPlane)
    }

    /// The leases that it takes.
    pub fn leases(&self) -> impl Iterator<Item = &LeaseChange> {
        self.conditions.iter().filter_map(|condition| match condition {
            Condition::Lease(change) => Some(change),
            _ => None,
        })
    }

    /// Whether a status still has its intent. One that was withdrawn must not be followed, however old the plan is.
    pub fn is_intended_in(&self, status: &NodeHealthCheckStatus) -> bool {
        let entries = status
            .unhealthy_nodes
            .iter()
            .filter(|entry| entry.name == self.node.as_str());
        let mut remediations = entries.flat_map(|entry| &entry.remediations);
        remediations.any(|remediation| {
            let resource = &remediation.resource;
            resource.uid.is_none()
                && resource.kind.as_deref() == Some(&*self.kind.kind)
                && resource.namespace.as_deref().unwrap_or_default() == &*self.key.namespace
                && resource.name.as_deref() == Some(&*self.key.name)
        })
    }
}

/// A remediation that exists.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct RemediationRef {
    /// Its kind.
    pub kind: RemediationKind,
    /// Namespace and name.
    pub key: NamespacedName,
    /// UID: the precondition of each write.
    pub uid: Arc<str>,
    /// Its node.
    pub node: NodeName,
}

/// A change of a remediation's annotations.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum RemediationChange {
    /// Its step is over: `remediation.medik8s.io/nhc-timed-out`.
    TimedOut(Timestamp),
    /// Since when its node is healthy: `remediation.medik8s.io/healthy-delay`; `None`: the node is not any more.
    HealthySince(Option<Timestamp>),
    /// It is old: `nodehealthcheck.medik8s.io/old-remediation-cr-flag`.
    FlagOld,
}

/// A change of a Node's annotations.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum NodeChange {
    /// How often it was remediated: `nodeward.dev/remediations`; `None`: long enough ago.
    Remediations(Option<String>),
    /// A person's word was heeded: `remediation.medik8s.io/manually-confirmed-healthy` goes.
    ConfirmationHeeded,
}

/// A change of a lease.
#[derive(Debug, Clone, PartialEq)]
pub struct LeaseChange {
    /// Which lease.
    pub name: LeaseName,
    /// As it was seen, if it was.
    pub seen: Option<Arc<LeaseView>>,
    /// What is done.
    pub step: LeaseStep,
}

/// Which lease.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub enum LeaseName {
    /// A node's.
    Node(NodeName),
    /// The one for control-plane nodes.
    ControlPlane,
}

impl fmt::Display for LeaseName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Node(node) => f.write_str(&node_lease::name_of(node.as_str())),
            Self::ControlPlane => f.write_str(node_lease::CONTROL_PLANE),
        }
    }
}

/// What is done to a lease.
#[derive(Debug, Clone, PartialEq)]
pub enum LeaseStep {
    /// It is taken, or renewed. A node's lease goes with its Node.
    Take(LeaseTerms),
    /// It is deleted, as it was seen.
    GiveBack,
}

/// What an action is about: at most one of a key runs at once.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub enum ActionKey {
    /// A NodeHealthCheck's status.
    Status(CheckName),
    /// A NodeHealthCheck's specification.
    Selector(CheckName),
    /// A node's next remediation.
    Start(CheckName, NodeName),
    /// A remediation's end.
    Delete(RemediationRef),
    /// An annotation of a remediation.
    Annotate(RemediationRef, &'static str),
    /// A lease.
    Lease(LeaseName),
    /// An annotation of a Node.
    Node(NodeUid, &'static str),
    /// The default NodeHealthCheck.
    Default,
}

impl Action {
    /// Whether it keeps or ends what is there already, and begins nothing.
    pub const fn is_clean_up(&self) -> bool {
        match self {
            Self::DeleteRemediation(_) | Self::AnnotateRemediation(..) | Self::Lease(_) | Self::AnnotateNode { .. } => {
                true
            }
            Self::WriteStatus(_) | Self::WriteSelector(_) | Self::StartRemediation(_) | Self::Default { .. } => false,
        }
    }

    /// The NodeHealthCheck and the kind of remediations that it needs a right for, and which.
    pub fn right(&self) -> Option<(CheckName, RemediationKind, &'static str)> {
        let (check, kind, verb) = match self {
            Self::StartRemediation(start) => (&start.check, &start.kind, "create"),
            Self::DeleteRemediation(write) => (&write.check, &write.remediation.kind, "delete"),
            Self::AnnotateRemediation(write, _) => (&write.check, &write.remediation.kind, "patch"),
            Self::WriteStatus(_)
            | Self::WriteSelector(_)
            | Self::Lease(_)
            | Self::AnnotateNode { .. }
            | Self::Default { .. } => return None,
        };
        Some((Arc::clone(&check.name), kind.clone(), verb))
    }

    /// What it is about.
    pub fn key(&self) -> ActionKey {
        match self {
            Self::WriteStatus(write) => ActionKey::Status(Arc::clone(&write.check.name)),
            Self::WriteSelector(write) => ActionKey::Selector(Arc::clone(&write.check.name)),
            Self::StartRemediation(start) => ActionKey::Start(Arc::clone(&start.check.name), start.node.clone()),
            Self::DeleteRemediation(write) => ActionKey::Delete(write.remediation.clone()),
            Self::AnnotateRemediation(write, change) => {
                ActionKey::Annotate(write.remediation.clone(), change.annotation())
            }
            Self::Lease(change) => ActionKey::Lease(change.name.clone()),
            Self::AnnotateNode { node_uid, change, .. } => ActionKey::Node(node_uid.clone(), change.annotation()),
            Self::Default { .. } => ActionKey::Default,
        }
    }
}

impl RemediationChange {
    /// The annotation that changes.
    pub const fn annotation(self) -> &'static str {
        match self {
            Self::TimedOut(_) => nodeward_api::annotation::REMEDIATION_TIMED_OUT,
            Self::HealthySince(_) => nodeward_api::annotation::HEALTHY_DELAY,
            Self::FlagOld => nodeward_api::annotation::OLD_REMEDIATION_FLAG,
        }
    }

    /// Its new value; `None`: it is removed.
    pub fn value(self) -> Option<String> {
        match self {
            Self::TimedOut(at) => Some(nodeward_core::deadline::to_the_second(at)),
            Self::HealthySince(since) => since.map(nodeward_core::deadline::to_the_second),
            Self::FlagOld => Some(nodeward_api::annotation::OLD_REMEDIATION_FLAG_ON.to_owned()),
        }
    }
}

impl NodeChange {
    /// The annotation that changes.
    pub const fn annotation(&self) -> &'static str {
        match self {
            Self::Remediations(_) => nodeward_api::annotation::REMEDIATIONS,
            Self::ConfirmationHeeded => nodeward_api::annotation::MANUALLY_CONFIRMED_HEALTHY,
        }
    }

    /// Its new value; `None`: it is removed.
    pub fn value(&self) -> Option<&str> {
        match self {
            Self::Remediations(value) => value.as_deref(),
            Self::ConfirmationHeeded => None,
        }
    }
}

impl fmt::Display for ActionKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Status(check) => write!(f, "status of NodeHealthCheck {check}"),
            Self::Selector(check) => write!(f, "selector of NodeHealthCheck {check}"),
            Self::Start(check, node) => write!(f, "remediation of node {node} for NodeHealthCheck {check}"),
            Self::Delete(remediation) => write!(f, "deletion of {remediation}"),
            Self::Annotate(remediation, annotation) => write!(f, "annotation {annotation} of {remediation}"),
            Self::Lease(lease) => write!(f, "lease {lease}"),
            Self::Node(uid, annotation) => write!(f, "annotation {annotation} of the node with UID {uid}"),
            Self::Default => f.write_str("default NodeHealthCheck"),
        }
    }
}

impl fmt::Display for RemediationRef {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} {}", self.kind.kind, self.key)
    }
}
