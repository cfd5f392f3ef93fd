//! Budgets that somebody went around: a pod of a cordoned node was deleted, not evicted, and its budget is below its minimum.
//! `kubectl drain --disable-eviction` does so; no webhook hears of it, and no budget is asked. Pure.

use std::sync::Arc;

use nodeward_core::id::{NodeName, NodeUid};

use crate::snapshot::{BudgetEntry, Memory, PodFacts, Snapshot};

/// A pod that was deleted around a budget.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Bypassed {
    pub pod: Arc<PodFacts>,
    pub node: NodeName,
    pub node_uid: NodeUid,
    pub budget: Arc<BudgetEntry>,
}

/// What was deleted around budgets, less what drain-keeper deleted by right and has told of itself, and what owners
/// moved who were asked to.
pub fn bypassed(snapshot: &Snapshot, memory: &Memory) -> Vec<Bypassed> {
    let mut bypassed = Vec::new();
    for pod in &snapshot.deleted {
        let uid = pod.uid.as_str();
        let is_claimed = snapshot.claims().iter().any(|claim| claim.has_disruption(uid));
        let node = pod.node.as_ref().filter(|_| !is_claimed);
        let Some((name, node)) = node.and_then(|name| snapshot.nodes.get_key_value(name)) else {
            continue;
        };
        if memory.was_owner_asked(uid) {
            continue;
        }
        let budgets = snapshot.budgets_of(pod).iter();
        let short = budgets.filter_map(|key| snapshot.budgets.get(key)).filter(|budget| {
            let (view, status) = (&budget.view, &budget.view.status);
            let is_overridden = view.last_override.as_ref().is_some_and(|last| last.uid == uid);
            view.is_status_current() && status.current_healthy < status.desired_healthy && !is_overridden
        });
        bypassed.extend(short.map(|budget| Bypassed {
            pod: Arc::clone(pod),
            node: name.clone(),
            node_uid: node.uid.clone(),
            budget: Arc::clone(budget),
        }));
    }
    bypassed
}

#[cfg(test)]
mod tests {
    use nodeward_api::annotation;
    use rstest::rstest;
    use serde_json::{Value, json};

    use super::*;
    use crate::tests::fixture::{Cluster, budget, cordoned, merged, node, now, pod};

    /// A pod of `n1` that was deleted at noon, by an eviction or not.
    fn deleted(reason: Option<&str>, patch: Value) -> Value {
        let ready = json!({ "type": "Ready", "status": "True" });
        let target = reason.map(|reason| json!({ "type": "DisruptionTarget", "status": "True", "reason": reason }));
        let conditions: Vec<Value> = [Some(ready), target].into_iter().flatten().collect();
        let terminates = json!({
            "metadata": { "deletionTimestamp": "2026-01-01T12:00:30Z", "deletionGracePeriodSeconds": 30 },
            "status": { "conditions": conditions },
        });
        pod("a", merged(terminates, patch))
    }

    fn of_numbers(healthy: i32) -> Value {
        let numbers = json!({ "disruptionsAllowed": 0, "currentHealthy": healthy, "desiredHealthy": 2 });
        budget("web", json!({ "status": numbers }))
    }

    fn told(node: Value, pod: Value, budget: Value) -> Vec<String> {
        told_with(&Memory::default(), node, pod, budget)
    }

    fn told_with(memory: &Memory, node: Value, pod: Value, budget: Value) -> Vec<String> {
        let cluster = Cluster::new([node], [pod]).budgets([budget]);
        let bypassed = bypassed(&cluster.snapshot(), memory);
        bypassed
            .iter()
            .map(|one| format!("{} of {}", one.pod.key, one.budget.view.key))
            .collect()
    }

    #[rstest]
    #[case::deleted(deleted(None, json!({})), of_numbers(1), &["shop/a of shop/web"])]
    #[case::evicted(deleted(Some("EvictionByEvictionAPI"), json!({})), of_numbers(1), &[])]
    #[case::deleted_for_a_taint(deleted(Some("DeletionByTaintManager"), json!({})), of_numbers(1), &[])]
    #[case::budget_that_bears_it(deleted(None, json!({})), of_numbers(2), &[])]
    #[case::pod_of_no_budget(deleted(None, json!({ "metadata": { "labels": { "app": "other" } } })), of_numbers(1), &[])]
    #[case::pod_that_runs(pod("a", json!({})), of_numbers(1), &[])]
    #[case::long_ago(deleted(None, json!({ "metadata": { "deletionTimestamp": "2026-01-01T11:50:00Z" } })), of_numbers(1), &[])]
    #[case::overridden_by_drain_keeper(
        deleted(None, json!({})),
        merged(of_numbers(1), json!({ "metadata": { "annotations": {
            annotation::LAST_OVERRIDE: r#"{"at":"2026-01-01T12:00:00Z","pod":"a","uid":"uid-a"}"#,
        } } })),
        &[],
    )]
    fn deleted_pod_of_short_budget_is_told(#[case] pod: Value, #[case] budget: Value, #[case] expected: &[&str]) {
        assert_eq!(told(cordoned("n1"), pod, budget), expected);
    }

    /// Karpenter does so once a node's `terminationGracePeriod` is nearly over, and never sets `spec.unschedulable`.
    #[rstest]
    #[case("karpenter.sh/disrupted")]
    #[case("ToBeDeletedByClusterAutoscaler")]
    fn deletion_from_node_that_is_removed_is_told(#[case] taint: &str) {
        let removed = json!({ "spec": { "taints": [{ "key": taint, "effect": "NoSchedule" }] } });
        assert_eq!(
            told(node("n1", removed), deleted(None, json!({})), of_numbers(1)),
            ["shop/a of shop/web"]
        );
    }

    /// Whoever runs it was asked to move it.
    #[rstest]
    #[case::of_this_pod("uid-a", &[])]
    #[case::of_another("uid-b", &["shop/a of shop/web"])]
    fn owner_that_was_asked_bypasses_nothing(#[case] asked: &str, #[case] expected: &[&str]) {
        let mut memory = Memory::default();
        memory.note_owner_asked(asked.into(), now());
        let told = told_with(&memory, cordoned("n1"), deleted(None, json!({})), of_numbers(1));
        assert_eq!(told, expected);
    }

    /// A rollout deletes pods, too.
    #[test]
    fn delete_on_schedulable_node_is_nobodys_drain() {
        let none: Vec<String> = Vec::new();
        assert_eq!(
            told(node("n1", json!({})), deleted(None, json!({})), of_numbers(1)),
            none
        );
    }

    #[test]
    fn pod_with_a_disruption_bypasses_nothing() {
        let claim = json!({
            "ticket": 1, "node": "n1", "nodeUID": "uid-n1", "state": "Confirmed", "grant": 5, "bootID": "boot-1",
            "since": "2026-01-01T11:59:00Z", "queuedAt": "2026-01-01T11:59:00Z",
            "holds": [{
                "pdb": { "namespace": "shop", "name": "web", "uid": "uid-web" }, "healthyAtGrant": 3,
                "pods": [{ "name": "a", "uid": "uid-a", "retained": false }],
            }],
        });
        let cluster = Cluster::new([cordoned("n1")], [deleted(None, json!({}))])
            .budgets([of_numbers(1)])
            .ledger(json!({ "nextTicket": 2, "claims": [claim] }));
        assert_eq!(bypassed(&cluster.snapshot(), &Memory::default()), []);
    }
}
