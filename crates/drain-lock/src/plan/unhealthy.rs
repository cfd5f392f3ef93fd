//! Which pods of a budget are not healthy, and why, for a person.

use nodeward_core::id::{BudgetKey, NodeName};
use nodeward_core::pod::Phase;

use crate::snapshot::{PodFacts, Snapshot};

/// So many pods are named.
const NAMED: usize = 5;

const HOSTNAME: &str = "kubernetes.io/hostname";

/// The pods of a budget that are not healthy; `None` where all that there are, are.
pub fn unhealthy_pods(snapshot: &Snapshot, budget: &BudgetKey) -> Option<String> {
    let pods = snapshot.unhealthy.get(budget)?;
    let named = pods.iter().take(NAMED);
    let mut told: Vec<String> = named
        .map(|pod| format!("{} {}", pod.key, cause(pod, snapshot)))
        .collect();
    if let Some(more) = pods.len().checked_sub(NAMED).filter(|more| *more > 0) {
        told.push(format!("{more} more"));
    }
    (!told.is_empty()).then(|| told.join(", "))
}

/// Completes "the pod …".
fn cause(pod: &PodFacts, snapshot: &Snapshot) -> String {
    let Some(node) = &pod.node else {
        return format!("is Pending{}", why_unbound(pod, snapshot));
    };
    let on = format!("on {node}{}", state_of(node, snapshot));
    if pod.deletion.is_some() {
        format!("terminates {on}")
    } else if pod.phase == Phase::Failed {
        format!("has failed {on}")
    } else if pod.phase == Phase::Pending {
        format!("is starting {on}")
    } else {
        format!("is not Ready {on}")
    }
}

fn why_unbound(pod: &PodFacts, snapshot: &Snapshot) -> String {
    if pod.gated {
        return ": its scheduling gates hold it back".to_owned();
    }
    if let Some(only) = pod.requirements.node_selector.get(HOSTNAME) {
        let state = state_of(&NodeName::from(only.as_str()), snapshot);
        return format!(": it fits only {only}{state}");
    }
    match pod.unschedulable_since {
        Some(_) => ": it fits no node now".to_owned(),
        None => String::new(),
    }
}

/// What is wrong with a node, if anything.
fn state_of(node: &NodeName, snapshot: &Snapshot) -> &'static str {
    match snapshot.nodes.get(node) {
        None => ", which is gone",
        Some(node) if !node.ready => ", which is not Ready",
        Some(node) if node.unschedulable => ", which is cordoned",
        Some(_) => "",
    }
}

#[cfg(test)]
mod tests {
    use rstest::rstest;
    use serde_json::{Value, json};

    use super::unhealthy_pods;
    use nodeward_core::id::BudgetKey;

    use crate::tests::fixture::{Cluster, budget, cordoned, merged, node, pod, waiting};

    const UNREADY: &str = r#"{ "status": { "conditions": [{ "type": "Ready", "status": "False" }] } }"#;

    fn told(status: &Value, pods: Vec<Value>) -> Option<String> {
        let down = node(
            "down",
            json!({ "status": { "conditions": [{ "type": "Ready", "status": "Unknown" }] } }),
        );
        let nodes = [node("n1", json!({})), cordoned("n2"), down];
        let cluster = Cluster::new(nodes, pods).budgets([budget("web", json!({ "status": status }))]);
        unhealthy_pods(&cluster.snapshot(), &BudgetKey::new("shop", "web"))
    }

    fn unready(name: &str, patch: Value) -> Value {
        let unready: Value = serde_json::from_str(UNREADY).unwrap();
        merged(pod(name, unready), patch)
    }

    #[rstest]
    #[case::unready(unready("a", json!({})), "shop/a is not Ready on n1")]
    #[case::cordoned(unready("a", json!({ "spec": { "nodeName": "n2" } })), "shop/a is not Ready on n2, which is cordoned")]
    #[case::node_is_down(unready("a", json!({ "spec": { "nodeName": "down" } })), "shop/a is not Ready on down, which is not Ready")]
    #[case::node_is_gone(unready("a", json!({ "spec": { "nodeName": "n9" } })), "shop/a is not Ready on n9, which is gone")]
    #[case::starting(unready("a", json!({ "status": { "phase": "Pending" } })), "shop/a is starting on n1")]
    #[case::failed(unready("a", json!({ "status": { "phase": "Failed" } })), "shop/a has failed on n1")]
    #[case::terminates(
        pod("a", json!({ "metadata": { "deletionTimestamp": "2026-01-01T12:00:00Z", "deletionGracePeriodSeconds": 30 } })),
        "shop/a terminates on n1",
    )]
    #[case::fits_nowhere(waiting("a", json!({})), "shop/a is Pending: it fits no node now")]
    #[case::pinned(
        waiting("a", json!({ "spec": { "nodeSelector": { "kubernetes.io/hostname": "n2" } } })),
        "shop/a is Pending: it fits only n2, which is cordoned",
    )]
    #[case::gated(
        waiting("a", json!({ "spec": { "schedulingGates": [{ "name": "example.com/quota" }] } })),
        "shop/a is Pending: its scheduling gates hold it back",
    )]
    fn unhealthy_pod_is_named_with_its_cause(#[case] unhealthy: Value, #[case] expected: &str) {
        let status = json!({ "disruptionsAllowed": 0, "currentHealthy": 2 });
        let pods = vec![unhealthy, pod("b", json!({})), pod("c", json!({}))];
        assert_eq!(told(&status, pods).as_deref(), Some(expected));
    }

    #[test]
    fn five_unhealthy_pods_are_named() {
        let pods = ["g", "f", "e", "d", "c", "b", "a"].map(|name| unready(name, json!({})));
        let status = json!({ "disruptionsAllowed": 0, "currentHealthy": 0, "expectedPods": 7 });
        let told = told(&status, pods.to_vec()).unwrap();
        assert!(told.starts_with("shop/a is not Ready on n1, shop/b "), "{told}");
        assert!(told.ends_with("shop/e is not Ready on n1, 2 more"), "{told}");
    }

    #[test]
    fn budget_that_counts_all_as_healthy_names_none() {
        assert_eq!(told(&json!({}), vec![unready("a", json!({}))]), None);
    }
}
