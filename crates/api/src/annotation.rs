//! Annotations that Nodeward reads or writes.

use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;

/// On a Node: when the drain that drain-keeper times began, see [`crate::drain_clock::DrainClock`].
pub const DRAIN_CLOCK: &str = "nodeward.dev/drain-clock";

/// On a PodDisruptionBudget: the last time drain-keeper overrode it, see [`crate::last_override::LastOverride`].
pub const LAST_OVERRIDE: &str = "nodeward.dev/last-override";

/// On a Pod (or as a label, which comes first): how a drain treats it, see `nodeward_core::opt_out`.
pub const DRAIN: &str = "nodeward.dev/drain";

/// On a Pod, with the value [`KARPENTER_DO_NOT_DISRUPT_TRUE`] or a duration since its start: Karpenter's way of asking that a
/// pod finish before its node goes (<https://karpenter.sh/docs/concepts/disruption/#pod-level-controls>), see
/// `nodeward_core::opt_out`. On a Node: Karpenter is not to remove it of its own accord, as it does with an emptied one, cordoned
/// or not.
pub const KARPENTER_DO_NOT_DISRUPT: &str = "karpenter.sh/do-not-disrupt";

/// The value of [`KARPENTER_DO_NOT_DISRUPT`] that means it without end.
pub const KARPENTER_DO_NOT_DISRUPT_TRUE: &str = "true";

/// On a Pod, by drain-keeper: its Deployment is told to roll so that it moves, see [`crate::surge_record::SurgeRecord`].
pub const SURGED: &str = "nodeward.dev/surged";

/// On a Pod or a Deployment, or as a label of it, with the value `never`: the Deployment is not told to roll. What is not known
/// counts as that, too.
pub const SURGE: &str = "nodeward.dev/surge";

/// On a Deployment's template, and so on its pods: when it was last told to roll (RFC 3339), as `kubectl rollout restart` writes it.
pub const RESTARTED_AT: &str = "kubectl.kubernetes.io/restartedAt";

/// On a PodDisruptionBudget: its owner holds all of it, for the reason that is the value. The short form of a
/// [`crate::disruption_hold::DisruptionHold`].
pub const HOLD: &str = "nodeward.dev/hold";

/// On a PodDisruptionBudget, by the operator that keeps it, with the value [`COUNTS_NODE`]: pods of one node take one disruption
/// together, for once one of them is down it leaves the others of that node out of the budget.
pub const COUNTS: &str = "nodeward.dev/counts";

/// The only value of [`COUNTS`].
pub const COUNTS_NODE: &str = "node";

/// On a PodDisruptionBudget, by drain-lock: when the hold that [`HOLD`] declares ends, whoever forgets to remove it (RFC 3339).
pub const HOLD_UNTIL: &str = "nodeward.dev/hold-until";

/// On a PodDisruptionBudget, by drain-lock: the nodes whose drains hold disruptions of it, for people to see. Never read for a
/// decision.
pub const LOCKED_BY: &str = "nodeward.dev/locked-by";

/// On a Node, by drain-lock: the NodeDrain that it was cordoned for, see [`crate::cordon_record::CordonRecord`]. A node without
/// it is never uncordoned.
pub const CORDONED_BY: &str = "nodeward.dev/cordoned-by";

/// On a Node, by drain-lock, whose name is the value: [`KARPENTER_DO_NOT_DISRUPT`] is there for its drain. From a node without it
/// that is never taken away.
pub const DO_NOT_DISRUPT_BY: &str = "nodeward.dev/do-not-disrupt-by";

/// On a NodeDrain or a DisruptionHold: an administrator frees what it holds, though nothing shows that it is safe. The value
/// says who and why, and is logged, counted and announced.
pub const RELEASE: &str = "nodeward.dev/release";

/// Who released an object by hand, and why: what its annotation [`RELEASE`] says; `None` where it says nothing.
pub fn released_by(meta: &ObjectMeta) -> Option<&str> {
    let said = meta.annotations.as_ref()?.get(RELEASE)?.trim();
    (!said.is_empty()).then_some(said)
}

/// On the Eviction of a held pod, by drain-lock alone: the grant that it rests on, `<ticket>/<grant>`. The webhook refuses one
/// that is no longer in force, and one that anybody else sends.
pub const TICKET: &str = "nodeward.dev/ticket";

/// On a NodeDrain, by drain-lock's webhook: when its requester last evicted a pod (RFC 3339), to a minute.
pub const LAST_EVICTION: &str = "nodeward.dev/last-eviction";

/// On a NodeDrain, by drain-lock's webhook: when the eviction of a pod was refused for the second time since a pod of the node last
/// went (RFC 3339), to a minute. Its drainer asks for pods in an order of its own.
pub const REFUSED_AGAIN: &str = "nodeward.dev/refused-again";

/// On the Lease by which drain-lock's replicas elect their leader: that it plans, see [`crate::planned_at::PlannedAt`].
pub const PLANNED_AT: &str = "nodeward.dev/planned-at";

/// On a remediation: the name of the node that it is for.
pub const REMEDIATION_NODE_NAME: &str = "remediation.medik8s.io/node-name";

/// On a remediation: the name of the template that it was made from.
pub const REMEDIATION_TEMPLATE_NAME: &str = "remediation.medik8s.io/template-name";

/// On a remediation, by health-check: the UID of the Node that it is for.
pub const REMEDIATION_NODE_UID: &str = "nodeward.dev/node-uid";

/// On a remediation: when its step of the escalation timed out or failed (RFC 3339). Its remediator is to stop.
pub const REMEDIATION_TIMED_OUT: &str = "remediation.medik8s.io/nhc-timed-out";

/// On a remediation: from when on its node's conditions are healthy, while `healthyDelay` keeps it (RFC 3339).
pub const HEALTHY_DELAY: &str = "remediation.medik8s.io/healthy-delay";

/// On a Node, by a person: it is healthy, `healthyDelay` need not be waited for. Removed once it was heeded.
pub const MANUALLY_CONFIRMED_HEALTHY: &str = "remediation.medik8s.io/manually-confirmed-healthy";

/// On a remediation template, by its remediator: a node may have a remediation of each template of the kind, under names that
/// are not the node's.
pub const MULTIPLE_TEMPLATES_SUPPORT: &str = "remediation.medik8s.io/multiple-templates-support";

/// On a remediation, with the value [`OLD_REMEDIATION_FLAG_ON`]: it is older than 48 hours, and was reported.
pub const OLD_REMEDIATION_FLAG: &str = "nodehealthcheck.medik8s.io/old-remediation-cr-flag";

/// The value of [`OLD_REMEDIATION_FLAG`].
pub const OLD_REMEDIATION_FLAG_ON: &str = "flagon";

/// On a Node, by health-check: how often it was remediated of late, and when that last ended: what `backoff` counts from.
pub const REMEDIATIONS: &str = "nodeward.dev/remediations";
