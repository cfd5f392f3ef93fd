//! Pods and budgets: an idle cluster, and on the drained nodes one pod for each thing that keeps a drain from ending.

use serde_json::{Value, json};

use super::size::{self, PARTS, Size, node_name};

/// A finalizer that nobody removes.
const FINALIZER: &str = "bench.nodeward.dev/hold";

/// Pods of one idle namespace.
const PODS_PER_NAMESPACE: usize = 500;

/// Pods of one idle workload, which has a budget.
const PODS_PER_WORKLOAD: usize = 50;

/// Drained nodes whose pods share a namespace.
const NODES_PER_NAMESPACE: usize = 10;

/// What a pod does on a drained node. The drain's first minute leaves all but [`Part::Ordinary`], as it would of a
/// `kubectl drain` that has been waiting for a while.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Part {
    /// Nothing protects it, and nobody evicts it: the strategy `Delete`.
    Stray,
    /// Evicted, and kept by a finalizer: `Finalizer`.
    Finalizer,
    /// Evicted, and hangs: `StuckTerminating`.
    Stuck,
    /// Its budget has no room: `PdbDelete`.
    Tight,
    /// The same, and it hangs when it is deleted: `PdbDelete`, then `PdbStuckTerminating`.
    TightStuck,
    /// Its budget has no room and covers a pod of another drained node too: one of the two has to wait for its turn.
    Shared,
    /// Of a DaemonSet: no drain waits for it.
    DaemonSet,
    /// Goes when it is evicted.
    Ordinary,
}

/// What the first pods of a drained node do; the others are ordinary.
const PART_OF_SLOT: [Part; PARTS] = [
    Part::Stray,
    Part::Finalizer,
    Part::Stuck,
    Part::Tight,
    Part::TightStuck,
    Part::Shared,
    Part::DaemonSet,
    Part::DaemonSet,
];

impl Part {
    /// Whether whoever drains the node evicts it and succeeds.
    pub fn is_evicted_by_the_drain(self) -> bool {
        matches!(self, Self::Finalizer | Self::Stuck | Self::Ordinary)
    }
}

/// A pod of a drained node.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct PartPod {
    pub namespace: String,
    pub name: String,
    pub node: usize,
    pub part: Part,
}

/// The namespace of a drained node's pods.
pub fn namespace_of(node: usize) -> String {
    format!("drained-{:02}", node / NODES_PER_NAMESPACE)
}

/// The pods of a drained node.
pub fn parts(node: usize, size: Size) -> impl Iterator<Item = PartPod> {
    (0..size.pods_per_node()).map(move |slot| {
        let part = PART_OF_SLOT.get(slot).copied().unwrap_or(Part::Ordinary);
        PartPod {
            namespace: namespace_of(node),
            name: format!("{part:?}-{node:05}-{slot:02}").to_lowercase(),
            node,
            part,
        }
    })
}

pub fn namespaces(size: Size) -> impl Iterator<Item = String> {
    let drained = size::played().step_by(NODES_PER_NAMESPACE);
    let idle = idle_pods(size).div_ceil(PODS_PER_NAMESPACE);
    drained.map(namespace_of).chain((0..idle).map(idle_namespace))
}

fn idle_namespace(number: usize) -> String {
    format!("team-{number:03}")
}

/// Pods on nodes where nothing happens.
fn idle_pods(size: Size) -> usize {
    size.pods.saturating_sub(size::played().len() * size.pods_per_node())
}

/// All pods, as objects: (namespace, pod).
pub fn pods(size: Size) -> impl Iterator<Item = (String, Value)> {
    let played = size::played()
        .flat_map(move |node| parts(node, size))
        .map(|part| (part.namespace.clone(), part_pod(&part)));
    let first_idle = size::played().end;
    let idle = (0..idle_pods(size)).map(move |number| {
        let node = first_idle + number % (size.nodes - first_idle).max(1);
        let app = number / PODS_PER_WORKLOAD;
        let pod = pod(
            &format!("app-{app:05}-{:02}", number % PODS_PER_WORKLOAD),
            &format!("app-{app:05}"),
            node,
        );
        (idle_namespace(number / PODS_PER_NAMESPACE), pod)
    });
    played.chain(idle)
}

/// All budgets: (namespace, budget).
pub fn budgets(size: Size) -> impl Iterator<Item = (String, Value)> {
    let drained = size::played()
        .flat_map(move |node| parts(node, size))
        .filter_map(|pod| {
            let (name, least) = budget_of(&pod)?;
            Some((pod.namespace, name, least))
        });
    let drained: std::collections::BTreeSet<_> = drained.collect();
    let idle = (0..idle_pods(size).div_ceil(PODS_PER_WORKLOAD)).map(|app| {
        (
            idle_namespace(app * PODS_PER_WORKLOAD / PODS_PER_NAMESPACE),
            format!("app-{app:05}"),
            PODS_PER_WORKLOAD - 2,
        )
    });
    drained.into_iter().chain(idle).map(|(namespace, name, least)| {
        let budget = json!({
            "apiVersion": "policy/v1",
            "kind": "PodDisruptionBudget",
            "metadata": { "name": name, "namespace": namespace, "labels": { "app.kubernetes.io/name": name } },
            "spec": { "minAvailable": least, "selector": { "matchLabels": { "app.kubernetes.io/name": name } } },
        });
        (namespace, budget)
    })
}

/// How many pods an idle workload, `app-NUMBER`, has: all the same, but for the last. `None` of any other name.
pub fn of_workload(size: Size, name: &str) -> Option<usize> {
    let number: usize = name.strip_prefix("app-")?.parse().ok()?;
    let others = number * PODS_PER_WORKLOAD;
    Some(idle_pods(size).saturating_sub(others).min(PODS_PER_WORKLOAD))
}

/// Name and `minAvailable` of the budget that covers a drained node's pod: exactly as many as there are.
fn budget_of(pod: &PartPod) -> Option<(String, usize)> {
    match pod.part {
        Part::Tight | Part::TightStuck => Some((pod.name.clone(), 1)),
        Part::Shared => Some((shared_app(pod), 2)),
        Part::Stray | Part::Finalizer | Part::Stuck | Part::DaemonSet | Part::Ordinary => None,
    }
}

/// Two nodes next to each other share an app.
fn shared_app(pod: &PartPod) -> String {
    format!("shared-{:05}", pod.node / 2)
}

fn part_pod(part: &PartPod) -> Value {
    let app = budget_of(part).map_or_else(|| part.name.clone(), |(app, _)| app);
    let mut object = pod(&part.name, &app, part.node);
    match part.part {
        Part::Finalizer => object["metadata"]["finalizers"] = json!([FINALIZER]),
        Part::Stuck | Part::TightStuck => {
            object["metadata"]["annotations"]["testbed.nodeward.dev/end"] = json!("stuck");
        }
        Part::DaemonSet => object["metadata"]["ownerReferences"][0]["kind"] = json!("DaemonSet"),
        Part::Stray | Part::Tight | Part::Shared | Part::Ordinary => {}
    }
    object
}

fn pod(name: &str, app: &str, node: usize) -> Value {
    let text = include_str!("../../../objects/pod.json")
        .replace("{name}", name)
        .replace("{app}", app)
        .replace("{node}", &node_name(node));
    serde_json::from_str(&text).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use std::collections::{BTreeMap, BTreeSet};

    use super::*;

    #[test]
    fn nodes_share_the_pods_evenly() {
        let size = Size::new(200, 6_000).unwrap();
        let all: Vec<_> = pods(size).collect();
        assert_eq!(all.len(), 6_000);
        let keys: BTreeSet<_> = all
            .iter()
            .map(|(namespace, pod)| (namespace, pod["metadata"]["name"].to_string()))
            .collect();
        assert_eq!(keys.len(), 6_000);
        let mut by_node: BTreeMap<String, usize> = BTreeMap::new();
        for (_, pod) in &all {
            *by_node.entry(pod["spec"]["nodeName"].to_string()).or_default() += 1;
        }
        assert!(
            by_node.len() == 200 && by_node.values().all(|count| *count == 30),
            "{by_node:?}"
        );
        let known: BTreeSet<String> = namespaces(size).collect();
        assert!(all.iter().all(|(namespace, _)| known.contains(namespace)));
    }

    #[test]
    fn drained_nodes_have_every_part() {
        let size = Size::new(200, 6_000).unwrap();
        let parts: BTreeSet<Part> = parts(0, size).take(PARTS + 1).map(|pod| pod.part).collect();
        assert_eq!(parts.len(), 8);
    }

    #[test]
    fn workload_sizes_match_the_pods() {
        // The last workload is not a full one.
        let size = Size::new(200, 6_010).unwrap();
        let mut counted: BTreeMap<String, usize> = BTreeMap::new();
        for (_, pod) in pods(size).filter(|(namespace, _)| namespace.starts_with("team-")) {
            let app = pod["metadata"]["labels"]["app.kubernetes.io/name"].as_str().unwrap();
            *counted.entry(app.to_owned()).or_default() += 1;
        }
        assert!(
            counted.len() > 1
                && counted
                    .iter()
                    .all(|(app, count)| of_workload(size, app) == Some(*count)),
            "{counted:?}"
        );
    }

    #[test]
    fn budgets_of_drained_pods_allow_nothing() {
        let size = Size::new(200, 6_000).unwrap();
        let mut covered: BTreeMap<(String, String), u64> = BTreeMap::new();
        for (namespace, pod) in pods(size) {
            let app = pod["metadata"]["labels"]["app.kubernetes.io/name"]
                .as_str()
                .unwrap()
                .to_owned();
            *covered.entry((namespace, app)).or_default() += 1;
        }
        let drained = budgets(size).filter(|(namespace, _)| namespace.starts_with("drained-"));
        for (namespace, budget) in drained {
            let app = budget["metadata"]["name"].as_str().unwrap().to_owned();
            let covered = covered[&(namespace, app.clone())];
            // The last resting node has no neighbour: its budget has even less room.
            assert!(budget["spec"]["minAvailable"].as_u64().unwrap() >= covered, "{app}");
        }
    }
}
