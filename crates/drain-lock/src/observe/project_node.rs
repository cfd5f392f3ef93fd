//! From a Node, a PersistentVolume, a lease or an owner's hold to what decisions read.

use std::collections::BTreeMap;
use std::sync::Arc;

use jiff::Timestamp;
use k8s_openapi::api::coordination::v1::Lease;
use k8s_openapi::api::core::v1::{Node, PersistentVolume};
use nodeward_api::{DisruptionHold, annotation, condition};
use nodeward_core::id::{BudgetKey, NamespacedName};
use nodeward_core::node::Taint;

use super::intern::Pool;
use super::project_pod::{amounts, node_selector};
use crate::snapshot::scheduling::NodeSelector;
use crate::snapshot::{ConditionFacts, HoldFacts, LeaseFacts, NodeFacts};

/// Conditions of a node that a drain sets.
const DRAIN_CONDITIONS: [&str; 2] = [condition::DRAIN_IN_PROGRESS, condition::DRAINED];

/// Projects one node alone; `None` without a name.
pub fn project_node(node: &Node) -> Option<NodeFacts> {
    NodeProjector::default().project(node)
}

/// Projects nodes, and lets them share what they have in common.
#[derive(Debug, Default)]
pub struct NodeProjector {
    texts: Pool<str>,
}

impl NodeProjector {
    /// Projects a node; `None` without a name.
    pub fn project(&mut self, node: &Node) -> Option<NodeFacts> {
        let meta = &node.metadata;
        let spec = node.spec.as_ref();
        let status = node.status.as_ref();
        let texts = &mut self.texts;
        let conditions = || status.iter().flat_map(|status| status.conditions.iter().flatten());
        let ready = conditions().find(|condition| condition.type_ == "Ready");
        let info = status.and_then(|status| status.node_info.as_ref());
        Some(NodeFacts {
            name: meta.name.as_deref()?.into(),
            uid: meta.uid.as_deref().unwrap_or_default().into(),
            labels: meta
                .labels
                .iter()
                .flatten()
                .map(|(key, value)| (texts.text(key), texts.text(value)))
                .collect(),
            taints: spec
                .iter()
                .flat_map(|spec| spec.taints.iter().flatten())
                .map(|taint| Taint {
                    key: taint.key.clone(),
                    value: taint.value.clone().unwrap_or_default(),
                    effect: taint.effect.clone(),
                    time_added: taint.time_added.as_ref().map(|time| time.0),
                })
                .collect(),
            unschedulable: spec.is_some_and(|spec| spec.unschedulable == Some(true)),
            ready: ready.is_some_and(|ready| ready.status == "True"),
            ready_since: ready
                .and_then(|ready| ready.last_transition_time.as_ref())
                .map(|time| time.0),
            boot_id: info.map_or_else(|| Arc::from(""), |info| Arc::from(info.boot_id.as_str())),
            machine_id: info.map_or_else(|| Arc::from(""), |info| Arc::from(info.machine_id.as_str())),
            allocatable: status
                .and_then(|status| status.allocatable.as_ref())
                .map(|list| amounts(list, texts))
                .unwrap_or_default(),
            cordoned_by: annotation_of(meta.annotations.as_ref(), annotation::CORDONED_BY),
            drain_conditions: conditions()
                .filter(|condition| DRAIN_CONDITIONS.contains(&condition.type_.as_str()))
                .map(|condition| {
                    let facts = ConditionFacts {
                        status: texts.text(&condition.status),
                        reason: texts.text(condition.reason.as_deref().unwrap_or_default()),
                        message: condition.message.as_deref().unwrap_or_default().into(),
                        last_transition: condition.last_transition_time.as_ref().map(|time| time.0),
                    };
                    (texts.text(&condition.type_), facts)
                })
                .collect(),
        })
    }
}

fn annotation_of(annotations: Option<&BTreeMap<String, String>>, key: &str) -> Option<Arc<str>> {
    annotations?.get(key).map(|value| value.as_str().into())
}

/// Which nodes a volume can be reached from, and which claim it is bound to; `None` for a volume that says neither.
/// Read from the volume alone: what binds it names its claim.
pub fn project_volume(volume: &PersistentVolume) -> Option<(NamespacedName, NodeSelector)> {
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
        node_selector(&required.node_selector_terms, &mut Pool::default()),
    ))
}

/// Projects a node lease.
pub fn project_lease(lease: &Lease) -> Option<LeaseFacts> {
    let spec = lease.spec.as_ref();
    Some(LeaseFacts {
        name: lease.metadata.name.as_deref()?.into(),
        resource_version: lease.metadata.resource_version.as_deref().unwrap_or_default().into(),
        holder: spec
            .and_then(|spec| spec.holder_identity.as_deref())
            .filter(|holder| !holder.is_empty())
            .map(Into::into),
        renewed: spec.and_then(|spec| spec.renew_time.as_ref()).map(|time| time.0),
        duration_seconds: spec.and_then(|spec| spec.lease_duration_seconds),
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
        units: hold.spec.units,
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
