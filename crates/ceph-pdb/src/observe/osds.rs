//! OSDs, as their Deployments and Pods show them.

use std::collections::BTreeMap;
use std::sync::Arc;

use jiff::{SignedDuration, Timestamp};
use k8s_openapi::api::apps::v1::Deployment;
use k8s_openapi::api::core::v1::Pod;
use kube::ResourceExt;
use nodeward_core::deadline::saturating_add;

use crate::ceph::OsdId;
use crate::ceph::topology::DomainType;
use crate::snapshot::{NodeName, NodeState, OsdObjects, OsdPod};

/// Selects the Deployments and Pods of OSDs.
pub(super) const SELECTOR: &str = "app=rook-ceph-osd";

/// Labels with an OSD's number.
const ID_LABELS: [&str; 2] = ["ceph-osd-id", "osd"];

/// Begins the name of whatever is of one OSD.
const NAME_PREFIX: &str = "rook-ceph-osd-";

/// Begins the labels that say where an OSD is.
const LOCATION_PREFIX: &str = "topology-location-";

/// On the Deployment of an OSD that Rook replaces.
const REPLACED_ANNOTATION: &str = "osd.rook.io/replace-in-progress";

/// What is read of an OSD's Deployment.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct DeploymentFacts {
    osd: OsdId,
    locations: BTreeMap<DomainType, Arc<str>>,
    is_being_replaced: bool,
}

impl DeploymentFacts {
    /// Reads one; `None` where it cannot be told of which OSD it is.
    pub(super) fn project(deployment: &Deployment) -> Option<Self> {
        let replaced = deployment.annotations().get(REPLACED_ANNOTATION);
        Some(Self {
            osd: osd_of(deployment)?,
            locations: locations_of(deployment),
            is_being_replaced: replaced.is_some_and(|replaced| replaced == "true"),
        })
    }
}

/// What is read of an OSD's Pod.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct PodFacts {
    osd: OsdId,
    state: OsdPod,
    node: Option<NodeName>,
    locations: BTreeMap<DomainType, Arc<str>>,
    created: Option<Timestamp>,
    is_ready: bool,
    /// When its grace ends.
    deleted: Option<Timestamp>,
    /// Its labels: what budgets select by.
    pub(super) labels: BTreeMap<String, String>,
}

impl PodFacts {
    /// Reads one; `None` where it cannot be told of which OSD it is.
    pub(super) fn project(pod: &Pod) -> Option<Self> {
        let phase = pod.status.as_ref().and_then(|status| status.phase.as_deref());
        let state = match phase {
            _ if pod.metadata.deletion_timestamp.is_some() => OsdPod::Terminating,
            Some("Succeeded" | "Failed") => OsdPod::Terminating,
            Some("Running") => OsdPod::Running,
            _ => OsdPod::Pending,
        };
        let conditions = pod.status.as_ref().and_then(|status| status.conditions.as_ref());
        let mut conditions = conditions.into_iter().flatten();
        let node = pod.spec.as_ref().and_then(|spec| spec.node_name.as_deref());
        Some(Self {
            osd: osd_of(pod)?,
            state,
            node: node.filter(|node| !node.is_empty()).map(Into::into),
            locations: locations_of(pod),
            created: pod.creation_timestamp().map(|created| created.0),
            is_ready: conditions.any(|condition| condition.type_ == "Ready" && condition.status == "True"),
            deleted: pod.metadata.deletion_timestamp.as_ref().map(|deleted| deleted.0),
            labels: pod.labels().clone(),
        })
    }

    /// Of several pods of one OSD, the one that runs, else the newest.
    fn precedence(&self) -> (bool, Option<Timestamp>) {
        (self.state == OsdPod::Running, self.created)
    }
}

/// How long a node is not Ready before its pods that are on their way out are abandoned.
const ABANDONED_AFTER: SignedDuration = SignedDuration::from_mins(10);

/// Puts the OSDs together. `state_of` judges a node, and says since when it is not Ready; `last_nodes` are those that Ceph says they
/// last ran on.
pub(super) fn assemble<'a>(
    deployments: impl Iterator<Item = &'a DeploymentFacts>,
    pods: impl Iterator<Item = &'a PodFacts>,
    last_nodes: &BTreeMap<OsdId, Arc<str>>,
    state_of: impl Fn(&str) -> (NodeState, Option<Timestamp>),
) -> BTreeMap<OsdId, OsdObjects> {
    let mut osds: BTreeMap<OsdId, OsdObjects> = BTreeMap::new();
    for deployment in deployments {
        let osd = osds.entry(deployment.osd).or_default();
        osd.locations.extend(deployment.locations.clone());
        osd.is_being_replaced |= deployment.is_being_replaced;
    }
    let mut chosen: BTreeMap<OsdId, &PodFacts> = BTreeMap::new();
    for pod in pods {
        // It has a replacement by then, which is pending.
        if let Some((deleted, node)) = pod.deleted.zip(pod.node.as_ref())
            && let (_, Some(not_ready_since)) = state_of(node)
        {
            let abandoned_at = saturating_add(not_ready_since, ABANDONED_AFTER).max(deleted);
            osds.entry(pod.osd).or_default().abandoned_at = Some(abandoned_at);
        }
        let known = chosen.entry(pod.osd).or_insert(pod);
        if known.precedence() < pod.precedence() {
            *known = pod;
        }
    }
    for (id, pod) in chosen {
        let osd = osds.entry(id).or_default();
        osd.abandoned_at.take_if(|_| pod.state == OsdPod::Running);
        osd.pod = pod.state;
        osd.is_unready = pod.state == OsdPod::Running && !pod.is_ready;
        osd.node.clone_from(&pod.node);
        osd.locations.extend(pod.locations.clone());
    }
    for (id, osd) in &mut osds {
        osd.last_node = osd.node.clone().or_else(|| last_nodes.get(id).cloned());
        osd.node_state = osd
            .last_node
            .as_ref()
            .map_or(NodeState::Unknown, |node| state_of(node).0);
    }
    osds
}

/// Since when the pods and nodes of a cluster's OSDs are as they are, as far as this process has seen it.
#[derive(Debug)]
pub(super) struct Changes {
    known: BTreeMap<OsdId, (OsdPod, Option<NodeName>, NodeState)>,
    pub(super) at: Timestamp,
}

impl Changes {
    /// Nobody knows what went before.
    pub(super) fn first(osds: &BTreeMap<OsdId, OsdObjects>, now: Timestamp) -> Self {
        let known = known(osds);
        Self { known, at: now }
    }

    /// Compares with what was there.
    pub(super) fn compare(&mut self, osds: &BTreeMap<OsdId, OsdObjects>, now: Timestamp) {
        if self.known != known(osds) {
            *self = Self::first(osds, now);
        }
    }
}

/// Where an OSD without a pod on a node last ran Ceph says: that it has said so is no change.
fn known(osds: &BTreeMap<OsdId, OsdObjects>) -> BTreeMap<OsdId, (OsdPod, Option<NodeName>, NodeState)> {
    let of = |osd: &OsdObjects| {
        let state = osd.node.as_ref().map(|_| osd.node_state.clone());
        (osd.pod, osd.node.clone(), state.unwrap_or_default())
    };
    osds.iter().map(|(id, osd)| (*id, of(osd))).collect()
}

/// By its label, or else by its name: a label that somebody broke costs nothing.
fn osd_of(object: &impl ResourceExt) -> Option<OsdId> {
    let labels = ID_LABELS.iter().filter_map(|label| object.labels().get(*label));
    let name = object.name_any();
    let name = name.strip_prefix(NAME_PREFIX).and_then(|rest| rest.split('-').next());
    let ids = labels.map(String::as_str).chain(name);
    ids.filter_map(|id| id.parse().ok()).find(|id| *id >= 0)
}

fn locations_of(object: &impl ResourceExt) -> BTreeMap<DomainType, Arc<str>> {
    let labels = object.labels().iter();
    let locations = labels.filter_map(|(label, value)| {
        let domain_type = label.strip_prefix(LOCATION_PREFIX)?.parse().ok()?;
        Some((domain_type, value.as_str().into()))
    });
    locations.collect()
}

#[cfg(test)]
mod tests {
    use rstest::rstest;
    use serde_json::{Value, json};

    use super::*;

    fn pod(mut object: Value) -> Option<PodFacts> {
        object["metadata"]["name"] = "rook-ceph-osd-3-7c9f-x".into();
        PodFacts::project(&serde_json::from_value(object).unwrap())
    }

    fn running(node: &str, created: &str) -> PodFacts {
        pod(json!({
            "metadata": { "creationTimestamp": created },
            "spec": { "nodeName": node, "containers": [] },
            "status": { "phase": "Running" },
        }))
        .unwrap()
    }

    fn one(pods: &[PodFacts], last_nodes: &[(OsdId, &str)], state: &NodeState) -> OsdObjects {
        let last_nodes = last_nodes.iter().map(|(id, node)| (*id, Arc::from(*node))).collect();
        let osds = assemble([].iter(), pods.iter(), &last_nodes, |_| (state.clone(), None));
        osds[&3].clone()
    }

    #[rstest]
    #[case::running(json!({ "phase": "Running" }), json!({}), OsdPod::Running)]
    #[case::not_started(json!({ "phase": "Pending" }), json!({}), OsdPod::Pending)]
    #[case::no_status(json!({}), json!({}), OsdPod::Pending)]
    #[case::ended(json!({ "phase": "Failed" }), json!({}), OsdPod::Terminating)]
    #[case::deleted(json!({ "phase": "Running" }), json!({ "deletionTimestamp": "2026-01-01T00:00:00Z" }), OsdPod::Terminating)]
    fn pods_phase_and_deletion_tell_its_state(
        #[case] status: Value,
        #[case] metadata: Value,
        #[case] expected: OsdPod,
    ) {
        let facts = pod(json!({ "metadata": metadata, "status": status })).unwrap();
        assert_eq!(facts.state, expected);
    }

    #[rstest]
    #[case::label(json!({ "ceph-osd-id": "7" }), "anything", Some(7))]
    #[case::broken_label(json!({ "ceph-osd-id": "seven", "osd": "7" }), "anything", Some(7))]
    #[case::name_alone(json!({}), "rook-ceph-osd-7-5d4f-x", Some(7))]
    #[case::deployment(json!({}), "rook-ceph-osd-7", Some(7))]
    #[case::negative(json!({ "ceph-osd-id": "-1" }), "anything", None)]
    #[case::nothing(json!({}), "rook-ceph-osd-prepare-n1", None)]
    fn osd_is_known_by_labels_or_name(#[case] labels: Value, #[case] name: &str, #[case] expected: Option<OsdId>) {
        let object = json!({ "metadata": { "name": name, "labels": labels } });
        let deployment: Deployment = serde_json::from_value(object).unwrap();
        assert_eq!(DeploymentFacts::project(&deployment).map(|facts| facts.osd), expected);
    }

    #[test]
    fn pods_location_counts_where_two_differ() {
        let labels = |host: &str| json!({ "topology-location-host": host, "topology-location-rack": "r1", "topology-location-root": "default" });
        let deployment = json!({ "metadata": {
            "name": "rook-ceph-osd-3", "labels": labels("old"), "annotations": { "osd.rook.io/replace-in-progress": "true" },
        } });
        let deployment = DeploymentFacts::project(&serde_json::from_value(deployment).unwrap()).unwrap();
        let pod = pod(json!({ "metadata": { "labels": { "topology-location-host": "new" } } })).unwrap();
        let osds = assemble([deployment].iter(), [pod].iter(), &BTreeMap::new(), |_| {
            (NodeState::Gone, None)
        });
        let expected = [("host", "new"), ("rack", "r1")];
        let expected = expected.map(|(kind, name)| (kind.parse::<DomainType>().unwrap(), Arc::from(name)));
        assert_eq!(osds[&3].locations, BTreeMap::from(expected));
        assert!(osds[&3].is_being_replaced);
    }

    #[test]
    fn running_pod_counts_before_a_newer_one() {
        let mut leaving = running("n1", "2026-01-01T00:00:00Z");
        leaving.state = OsdPod::Terminating;
        let on_n2 = running("n2", "2026-01-01T00:00:01Z");
        let mut pending = running("n3", "2026-01-01T00:00:02Z");
        pending.state = OsdPod::Pending;
        for pods in [
            [leaving.clone(), on_n2.clone(), pending.clone()],
            [pending, on_n2, leaving],
        ] {
            let osd = one(&pods, &[], &NodeState::Schedulable);
            assert_eq!((osd.pod, osd.node.as_deref()), (OsdPod::Running, Some("n2")));
        }
    }

    /// Its kubelet is dead: its ReplicaSet has made a replacement, and nobody ends it.
    #[rstest]
    #[case::node_is_ready(None, true, None)]
    #[case::node_is_not_ready(Some("2026-01-01T00:00:00Z"), true, Some("2026-01-01T00:10:00Z"))]
    #[case::grace_is_not_over(Some("2025-12-31T00:00:00Z"), true, Some("2026-01-01T00:01:00Z"))]
    #[case::not_deleted(Some("2026-01-01T00:00:00Z"), false, None)]
    fn pod_of_a_dead_kubelet_is_abandoned(
        #[case] not_ready_since: Option<&str>,
        #[case] is_deleted: bool,
        #[case] expected: Option<&str>,
    ) {
        let time = |text: &str| text.parse::<Timestamp>().unwrap();
        let mut leaving = running("n1", "2025-01-01T00:00:00Z");
        if is_deleted {
            (leaving.state, leaving.deleted) = (OsdPod::Terminating, Some(time("2026-01-01T00:01:00Z")));
        }
        let pending = pod(json!({ "metadata": { "creationTimestamp": "2026-01-01T00:00:00Z" } })).unwrap();
        let state_of = |_: &str| (NodeState::Schedulable, not_ready_since.map(time));
        let pods = [leaving, pending];
        let osds = assemble([].iter(), pods.iter(), &BTreeMap::new(), state_of);
        assert_eq!(osds[&3].abandoned_at, expected.map(time));
    }

    #[test]
    fn node_of_an_osd_without_one_is_where_it_last_ran() {
        let pending = pod(json!({ "metadata": {} })).unwrap();
        let osd = one(std::slice::from_ref(&pending), &[(3, "n1")], &NodeState::Gone);
        assert_eq!((osd.node, osd.node_state), (None, NodeState::Gone));
        assert_eq!(osd.last_node.as_deref(), Some("n1"));
        assert_eq!(one(&[pending], &[], &NodeState::Gone).node_state, NodeState::Unknown);
    }

    #[test]
    fn pods_and_their_nodes_change_and_hearsay_does_not() {
        let second = |second| Timestamp::UNIX_EPOCH + SignedDuration::from_secs(second);
        let osds = |osd: OsdObjects| BTreeMap::from([(3, osd)]);
        let pending = pod(json!({ "metadata": {} })).unwrap();
        let unheard = osds(one(std::slice::from_ref(&pending), &[], &NodeState::Gone));
        let mut changes = Changes::first(&unheard, second(0));
        changes.compare(&osds(one(&[pending], &[(3, "n1")], &NodeState::Gone)), second(1));
        assert_eq!(changes.at, second(0));
        let up = [running("n1", "2026-01-01T00:00:00Z")];
        changes.compare(&osds(one(&up, &[], &NodeState::Schedulable)), second(2));
        assert_eq!(changes.at, second(2));
        changes.compare(&osds(one(&up, &[], &NodeState::Schedulable)), second(3));
        assert_eq!(changes.at, second(2));
        changes.compare(
            &osds(one(&up, &[], &NodeState::Draining("unschedulable".into()))),
            second(4),
        );
        assert_eq!(changes.at, second(4));
    }
}
