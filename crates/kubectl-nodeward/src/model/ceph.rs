//! CephClusters, as ceph-pdb publishes them, and as they concern a node.

use std::collections::BTreeSet;

use k8s_openapi::api::core::v1::{ConfigMap, Pod};
use kube::ResourceExt;
use nodeward_api::CephClusterState;
use nodeward_api::ceph_state::{PublishedDisruptions, STATE_KEY};
use serde::Serialize;

/// Where the chart writes a component's configuration.
const CONFIGURATION_KEY: &str = "config.yaml";

/// A CephCluster, or what is left of its record.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct CephCluster {
    pub namespace: String,
    #[serde(flatten)]
    pub published: Published,
}

/// What ceph-pdb publishes.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub enum Published {
    State(Box<CephClusterState>),
    /// Why it cannot be read.
    Unreadable(String),
}

/// A CephCluster with OSDs on a node.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct NodeCeph {
    pub cluster: CephCluster,
    /// The OSDs whose pods are on the node: `osd.3`.
    pub osds: Vec<String>,
    /// The failure domains of the node's OSDs, as ceph-pdb knows them.
    pub domains: BTreeSet<String>,
    /// Absent where ceph-pdb's word cannot be read.
    pub evictions: Option<OsdEvictions>,
}

/// Which of a node's OSDs may be evicted.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
pub enum OsdEvictions {
    /// Any, one OSD of the cluster at a time.
    OneAtATime,
    /// All: they are of the exempt domain.
    AllExempt,
    /// Those that are of the exempt domain.
    SomeExempt,
    /// None.
    Refused,
    /// ceph-pdb does not manage the budgets.
    Unmanaged,
}

impl CephCluster {
    /// `None` for ceph-pdb's own configuration: the chart's ConfigMap for it may have the same name.
    pub fn of(map: &ConfigMap) -> Option<Self> {
        let has = |key: &str| map.data.as_ref().is_some_and(|data| data.contains_key(key));
        if has(CONFIGURATION_KEY) && !has(STATE_KEY) {
            return None;
        }
        Some(Self {
            namespace: map.namespace().unwrap_or_default(),
            published: match CephClusterState::read(map) {
                Ok(state) => Published::State(Box::new(state)),
                Err(problem) => Published::Unreadable(problem),
            },
        })
    }

    pub fn state(&self) -> Option<&CephClusterState> {
        match &self.published {
            Published::State(state) => Some(state),
            Published::Unreadable(_) => None,
        }
    }

    /// `rook-ceph/rook`; the namespace where the name is not known.
    pub fn name(&self) -> String {
        let namespace = &self.namespace;
        self.state()
            .map_or_else(|| namespace.clone(), |state| format!("{namespace}/{}", state.cluster))
    }
}

impl NodeCeph {
    /// The CephClusters that concern a node with these pods.
    pub fn of_node(name: &str, clusters: Vec<CephCluster>, pods: &[Pod]) -> Vec<Self> {
        let concern = clusters.into_iter().filter_map(|cluster| {
            let osds: Vec<String> = pods
                .iter()
                .filter(|pod| pod.namespace().as_ref() == Some(&cluster.namespace))
                .filter_map(osd)
                .collect();
            let known = cluster.state().and_then(|state| state.nodes.get(name));
            let domains = known.cloned().unwrap_or_default();
            let is_concerned = !osds.is_empty() || !domains.is_empty();
            is_concerned.then(|| Self {
                evictions: cluster.state().map(|state| evictions(state, name, &domains)),
                cluster,
                osds,
                domains,
            })
        });
        concern.collect()
    }
}

fn evictions(state: &CephClusterState, node: &str, domains: &BTreeSet<String>) -> OsdEvictions {
    match (state.disruptions, &state.exempt_domain) {
        (PublishedDisruptions::Open, _) => OsdEvictions::OneAtATime,
        (PublishedDisruptions::Unmanaged, _) => OsdEvictions::Unmanaged,
        (disruptions, _) if disruptions.is_closed() && state.exempt_nodes.contains(node) => OsdEvictions::AllExempt,
        (PublishedDisruptions::Closed | PublishedDisruptions::Closing, None) => OsdEvictions::Refused,
        (PublishedDisruptions::Closed | PublishedDisruptions::Closing, Some(exempt)) => match domains.len() {
            1 if domains.contains(exempt) => OsdEvictions::AllExempt,
            // Of which domain its OSDs are is not known.
            0 => OsdEvictions::SomeExempt,
            _ if domains.contains(exempt) => OsdEvictions::SomeExempt,
            _ => OsdEvictions::Refused,
        },
    }
}

/// The OSD of a pod, as Rook labels it: `osd.3`.
fn osd(pod: &Pod) -> Option<String> {
    let labels = pod.labels();
    if labels.get("app").is_none_or(|app| app != "rook-ceph-osd") {
        return None;
    }
    let id = labels.get("ceph-osd-id");
    Some(id.map_or_else(|| pod.name_any(), |id| format!("osd.{id}")))
}

#[cfg(test)]
mod tests {
    use rstest::rstest;
    use serde_json::{Value, json};

    use super::*;

    fn map(data: &Value) -> ConfigMap {
        serde_json::from_value(json!({
            "metadata": { "namespace": "rook-ceph", "name": "nodeward-ceph-pdb" }, "data": data,
        }))
        .unwrap()
    }

    fn cluster(disruptions: &str, exempt: Option<&str>) -> CephCluster {
        let state = json!({
            "cluster": "rook", "disruptions": disruptions, "exemptDomain": exempt, "since": "2026-01-01T00:00:00Z",
            "reason": "AllClean", "nodes": { "one": ["a"], "two": ["a", "b"], "none": [] },
            "exemptNodes": if exempt.is_none() && disruptions == "Closed" { json!(["two"]) } else { json!([]) },
        });
        CephCluster::of(&map(&json!({ "state": state.to_string() }))).unwrap()
    }

    fn pod(namespace: &str, labels: &Value) -> Pod {
        let metadata = json!({ "namespace": namespace, "name": "p", "labels": labels });
        serde_json::from_value(json!({ "metadata": metadata })).unwrap()
    }

    #[test]
    fn configuration_of_ceph_pdb_is_no_cluster() {
        assert_eq!(CephCluster::of(&map(&json!({ "config.yaml": "{}" }))), None);
    }

    #[rstest]
    #[case::no_data(Value::Null, "ConfigMap nodeward-ceph-pdb has no key state")]
    #[case::no_key(json!({ "other": "{}" }), "ConfigMap nodeward-ceph-pdb has no key state")]
    #[case::no_json(json!({ "state": "{" }), "key state of ConfigMap nodeward-ceph-pdb cannot be read: ")]
    #[case::field_missing(json!({ "state": "{}" }), "key state of ConfigMap nodeward-ceph-pdb cannot be read: missing field")]
    fn unreadable_state_says_why(#[case] data: Value, #[case] told: &str) {
        let found = CephCluster::of(&map(&data)).unwrap();
        let Published::Unreadable(problem) = &found.published else {
            panic!("{found:?}");
        };
        assert!(problem.starts_with(told), "{problem}");
        assert_eq!(found.name(), "rook-ceph");
        // A node with an OSD of it is told so; another is not.
        let osd = pod("rook-ceph", &json!({ "app": "rook-ceph-osd", "ceph-osd-id": "3" }));
        let concerned = NodeCeph::of_node("one", vec![found.clone()], &[osd]);
        assert_eq!(
            (concerned[0].evictions, concerned[0].osds.as_slice()),
            (None, &["osd.3".to_owned()][..])
        );
        assert_eq!(NodeCeph::of_node("one", vec![found], &[]), []);
    }

    #[rstest]
    #[case("one", "Open", None, OsdEvictions::OneAtATime)]
    #[case("one", "Unmanaged", None, OsdEvictions::Unmanaged)]
    #[case("one", "Closed", None, OsdEvictions::Refused)]
    #[case::not_written_yet("one", "Closing", None, OsdEvictions::Refused)]
    #[case("one", "Closed", Some("a"), OsdEvictions::AllExempt)]
    #[case("one", "Closed", Some("b"), OsdEvictions::Refused)]
    #[case("two", "Closed", Some("b"), OsdEvictions::SomeExempt)]
    #[case("two", "Closed", Some("c"), OsdEvictions::Refused)]
    #[case::node_alone("two", "Closed", None, OsdEvictions::AllExempt)]
    #[case::domain_is_unknown("other", "Closed", Some("a"), OsdEvictions::SomeExempt)]
    fn evictions_follow_the_exempt_domain(
        #[case] node: &str,
        #[case] disruptions: &str,
        #[case] exempt: Option<&str>,
        #[case] evictions: OsdEvictions,
    ) {
        let osd = pod("rook-ceph", &json!({ "app": "rook-ceph-osd" }));
        let found = NodeCeph::of_node(node, vec![cluster(disruptions, exempt)], &[osd]);
        assert_eq!(found[0].evictions, Some(evictions));
        // Without a label of its number, the pod's name says which it is.
        assert_eq!(found[0].osds, ["p"]);
    }

    #[rstest]
    #[case::no_pod(vec![])]
    #[case::no_osd(vec![pod("rook-ceph", &json!({ "app": "rook-ceph-osd-prepare" })), pod("rook-ceph", &Value::Null)])]
    #[case::osd_of_another_cluster(vec![pod("other", &json!({ "app": "rook-ceph-osd" }))])]
    fn node_without_osds_is_not_concerned(#[case] pods: Vec<Pod>) {
        for node in ["none", "other"] {
            assert_eq!(NodeCeph::of_node(node, vec![cluster("Closed", None)], &pods), []);
        }
        // ceph-pdb remembers the OSDs of a node whose pods are gone.
        assert_eq!(NodeCeph::of_node("one", vec![cluster("Closed", None)], &pods).len(), 1);
    }
}
