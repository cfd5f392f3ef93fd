//! From a Node, a PersistentVolume, a budget, a lease or an owner's hold to what decisions read.

use std::sync::Arc;

use jiff::Timestamp;
use k8s_openapi::api::core::v1::{Node, PersistentVolume};
use k8s_openapi::api::policy::v1::PodDisruptionBudget;
use k8s_openapi::apimachinery::pkg::util::intstr::IntOrString;
use nodeward_api::{DisruptionHold, annotation};
use nodeward_core::budget::BudgetView;
use nodeward_core::id::{BudgetKey, NamespacedName};
use nodeward_scheduling::{NodeAffinity, NodeProjector};

use super::machines;
use crate::snapshot::{BudgetEntry, HoldFacts, NodeFacts};

/// Projects nodes to what drain-lock reads.
pub(super) fn node_projector() -> NodeProjector {
    NodeProjector::keeping(&[
        annotation::CORDONED_BY,
        annotation::KARPENTER_DO_NOT_DISRUPT,
        annotation::DO_NOT_DISRUPT_BY,
        machines::MACHINE,
        machines::CLUSTER_NAMESPACE,
    ])
}

/// Projects one node alone; `None` without a name.
pub fn project_node(node: &Node) -> Option<NodeFacts> {
    node_projector().project(node)
}

/// Which nodes a volume can be reached from, and which claim it is bound to; `None` for a volume that says neither.
/// Read from the volume alone: what binds it names its claim.
pub fn project_volume(volume: &PersistentVolume) -> Option<(NamespacedName, NodeAffinity)> {
    let is_given_back = volume
        .status
        .as_ref()
        .and_then(|status| status.phase.as_deref())
        .is_some_and(|phase| matches!(phase, "Released" | "Failed"));
    if is_given_back {
        return None;
    }
    let spec = volume.spec.as_ref()?;
    let claim = spec.claim_ref.as_ref()?;
    let required = spec.node_affinity.as_ref()?.required.as_ref()?;
    Some((
        NamespacedName::new(claim.namespace.as_deref()?, claim.name.as_deref()?),
        NodeAffinity(required.clone()),
    ))
}

/// Projects a budget as drain-lock reads it; `None` without namespace or name.
pub fn project_budget(budget: &PodDisruptionBudget) -> Option<BudgetEntry> {
    let annotation = |key: &str| {
        let annotations = budget.metadata.annotations.as_ref()?;
        annotations.get(key).map(|value| value.as_str().into())
    };
    let min_available = budget.spec.as_ref().and_then(|spec| spec.min_available.as_ref());
    let max_unavailable = budget.spec.as_ref().and_then(|spec| spec.max_unavailable.as_ref());
    Some(BudgetEntry {
        view: Arc::new(BudgetView::project(budget)?),
        zero_unavailable: max_unavailable.is_some_and(|most| match most {
            IntOrString::Int(pods) => *pods == 0,
            IntOrString::String(share) => share.trim_end_matches('%').parse() == Ok(0),
        }),
        counts_present_pods: matches!(min_available, Some(IntOrString::Int(_))),
        locked_by: annotation(annotation::LOCKED_BY),
    })
}

/// Projects an owner's hold.
pub fn project_hold(hold: &DisruptionHold) -> Option<HoldFacts> {
    let namespace = hold.metadata.namespace.as_deref()?;
    let asked_until = hold.spec.expires_at;
    let until = hold.status.as_ref().and_then(|status| status.effective_until);
    Some(HoldFacts {
        key: NamespacedName::new(namespace, hold.metadata.name.as_deref()?),
        uid: hold.metadata.uid.as_deref().unwrap_or_default().into(),
        budget: BudgetKey::new(namespace, hold.spec.pdb_ref.as_str()),
        disruptions: hold.spec.disruptions,
        reason: hold.spec.reason.as_str().into(),
        until: earlier(asked_until, until),
        created: hold
            .metadata
            .creation_timestamp
            .as_ref()
            .map_or(Timestamp::UNIX_EPOCH, |time| time.0),
        asked_until,
        released_by: annotation::released_by(&hold.metadata).map(Into::into),
        generation: hold.metadata.generation.unwrap_or_default(),
        status: hold.status.clone().map(Arc::new),
    })
}

/// What policy allows counts where it is less than what was asked for.
fn earlier(one: Option<Timestamp>, other: Option<Timestamp>) -> Option<Timestamp> {
    one.into_iter().chain(other).min()
}
