//! What a deletion around budgets rests on, read by quorum just before: the drain that asks for it, its node's cordon, what the
//! pod asks of drains, the budgets that select it, and what their owners keep.

use jiff::Timestamp;
use k8s_openapi::api::core::v1::{Node, Pod};
use k8s_openapi::api::policy::v1::PodDisruptionBudget;
use kube::Api;
use kube::api::ListParams;
use nodeward_api::DisruptionHold;
use nodeward_api::node_drain::{Fallback, NodeDrain};
use nodeward_api::reason::LockReason;
use nodeward_core::node::NodeView;
use nodeward_core::predicate::is_ceph_daemon;

use crate::observe::{owner_disruptions, project_budget, project_hold};
use crate::plan::PodEviction;
use crate::snapshot::{BudgetEntry, HoldFacts, PodFacts};

use super::ExecutorContext;

/// What speaks against deleting a pod that was refused because of so many budgets at least; `None`: nothing does.
pub(super) async fn objection(
    context: &ExecutorContext,
    eviction: &PodEviction,
    refusing: usize,
) -> Result<Option<String>, kube::Error> {
    let (pod, node) = (&eviction.pod, eviction.node.as_str());
    let (drains, nodes) = (context.api::<NodeDrain>(), context.api::<Node>());
    let namespace = &pod.key.namespace;
    let pods: Api<Pod> = context.api_in(namespace);
    let budgets: Api<PodDisruptionBudget> = context.api_in(namespace);
    let holds: Api<DisruptionHold> = context.api_in(namespace);
    // Without a resource version a list is a quorum read.
    let all = ListParams::default();
    let (present, budgets, holds, drain, node) = tokio::try_join!(
        pods.get_opt(&pod.key.name),
        budgets.list(&all),
        holds.list(&all),
        drains.get_opt(node),
        nodes.get_opt(node),
    )?;
    if let Some(ended) = ended(eviction, drain.as_ref(), node.as_ref()) {
        return Ok(Some(ended.to_owned()));
    }
    let Some(present) = present.as_ref().and_then(PodFacts::project) else {
        // It is gone, as its deletion will find.
        return Ok(None);
    };
    let budgets: Vec<BudgetEntry> = budgets.items.iter().filter_map(project_budget).collect();
    let holds: Vec<HoldFacts> = holds.items.iter().filter_map(project_hold).collect();
    Ok(judge(&present, &budgets, &holds, refusing, Timestamp::now()))
}

/// Why the drain that planned the deletion does not ask for it any more: the eviction may have waited for its slot.
fn ended(eviction: &PodEviction, drain: Option<&NodeDrain>, node: Option<&Node>) -> Option<&'static str> {
    let is_drain = |drain: &&NodeDrain| {
        let metadata = &drain.metadata;
        metadata.uid.as_deref() == Some(&*eviction.drain_uid) && metadata.deletion_timestamp.is_none()
    };
    let Some(drain) = drain.filter(is_drain) else {
        return Some("its drain was called off");
    };
    if drain.spec.dry_run || drain.spec.fallback != Fallback::Delete {
        return Some("its drain does not delete pods any more");
    }
    let node = node.and_then(NodeView::project);
    let is_cordoned = node.is_some_and(|node| node.uid == eviction.node_uid && node.is_cordoned());
    (!is_cordoned).then_some("its node is not cordoned any more")
}

fn judge(
    pod: &PodFacts,
    budgets: &[BudgetEntry],
    holds: &[HoldFacts],
    refusing: usize,
    now: Timestamp,
) -> Option<String> {
    if is_ceph_daemon(pod) {
        return Some(LockReason::CephDaemon.explanation().to_owned());
    }
    if pod.stays() {
        return Some(LockReason::OptedOut.explanation().to_owned());
    }
    let selects = |budget: &&BudgetEntry| budget.view.selector.matches(&pod.labels);
    let covering: Vec<&BudgetEntry> = budgets.iter().filter(selects).collect();
    if covering.len() < refusing {
        return Some("the budgets that refused it do not select it any more".to_owned());
    }
    covering.into_iter().find_map(|budget| {
        let key = &budget.view.key;
        if budget.view.forbids_force().is_some() {
            return Some(format!("budget {key} is never overridden"));
        }
        owner_disruptions(budget, holds, now).map(|_| format!("the owner of budget {key} holds disruptions of it"))
    })
}

#[cfg(test)]
mod tests {
    use rstest::rstest;
    use serde_json::{Value, json};

    use super::*;
    use crate::tests::fixture::{budget, merged, now, parse, pod};

    fn hold(patch: Value) -> Value {
        let base = json!({
            "metadata": { "namespace": "shop", "name": "h", "uid": "uid-h", "creationTimestamp": "2026-01-01T11:00:00Z" },
            "spec": { "pdbRef": "web", "reason": "rebalancing" },
        });
        merged(base, patch)
    }

    fn of_others(name: &str) -> Value {
        budget(
            name,
            json!({ "spec": { "selector": { "matchLabels": { "app": "web", "tier": "db" } } } }),
        )
    }

    const NEVER: &str = "budget shop/web is never overridden";
    const HELD: &str = "the owner of budget shop/web holds disruptions of it";
    const NONE: &str = "the budgets that refused it do not select it any more";

    #[rstest]
    #[case::as_planned(json!({}), json!({}), None)]
    #[case::another_drain(json!({ "metadata": { "uid": "uid-2" } }), json!({}), Some("its drain was called off"))]
    #[case::ending(json!({ "metadata": { "deletionTimestamp": "2026-01-01T11:59:00Z" } }), json!({}), Some("its drain was called off"))]
    #[case::only_planned(json!({ "spec": { "dryRun": true } }), json!({}), Some("its drain does not delete pods any more"))]
    #[case::waits_now(json!({ "spec": { "fallback": "Wait" } }), json!({}), Some("its drain does not delete pods any more"))]
    #[case::uncordoned(json!({}), json!({ "spec": { "unschedulable": false } }), Some("its node is not cordoned any more"))]
    #[case::another_node(json!({}), json!({ "metadata": { "uid": "uid-2" } }), Some("its node is not cordoned any more"))]
    fn drain_still_asks_for_the_deletion(#[case] drain: Value, #[case] node: Value, #[case] expected: Option<&str>) {
        let asks = json!({
            "apiVersion": "nodeward.dev/v1alpha1", "kind": "NodeDrain", "metadata": { "name": "n1", "uid": "uid-drain" },
            "spec": { "nodeName": "n1", "fallback": "Delete" },
        });
        let cordoned = json!({ "metadata": { "name": "n1", "uid": "uid-n1" }, "spec": { "unschedulable": true } });
        let eviction = PodEviction {
            pod: PodFacts::project(&parse(pod("a", json!({})))).unwrap().into(),
            node: "n1".into(),
            node_uid: "uid-n1".into(),
            drain_uid: "uid-drain".to_owned(),
            force: crate::plan::Force::Delete,
        };
        let (drain, node) = (parse(merged(asks, drain)), parse(merged(cordoned, node)));
        assert_eq!(ended(&eviction, Some(&drain), Some(&node)), expected);
        assert_eq!(ended(&eviction, None, Some(&node)), Some("its drain was called off"));
        assert!(ended(&eviction, Some(&drain), None).is_some());
    }

    #[rstest]
    #[case::daemon_of_ceph("app", "rook-ceph-osd", Some("is a daemon of Ceph, which no fallback deletes"))]
    #[case::asks_to_stay_by_now("nodeward.dev/drain", "skip", Some("asked to stay on the node through its reboot"))]
    #[case::asks_to_finish("nodeward.dev/drain", "wait-completed", None)]
    fn pod_that_no_fallback_touches_is_not_deleted(
        #[case] label: &str,
        #[case] value: &str,
        #[case] expected: Option<&str>,
    ) {
        let present = pod("a", json!({ "metadata": { "labels": { label: value } } }));
        let present = PodFacts::project(&parse(present)).unwrap();
        assert_eq!(judge(&present, &[], &[], 0, now()).as_deref(), expected);
    }

    #[rstest]
    #[case::its_budget_does_not_say(vec![budget("web", json!({}))], vec![], 1, None)]
    #[case::its_budget_is_gone(vec![], vec![], 1, Some(NONE))]
    #[case::its_budget_selects_others(vec![of_others("web")], vec![], 1, Some(NONE))]
    #[case::one_of_two_is_gone(vec![budget("web", json!({}))], vec![], 2, Some(NONE))]
    #[case::two_do_not_say(vec![budget("also", json!({})), budget("web", json!({}))], vec![], 2, None)]
    #[case::its_budget_forbids_it(
        vec![budget("web", json!({ "metadata": { "labels": { nodeward_api::label::FORCE_DRAIN: "never" } } }))], vec![], 1, Some(NEVER)
    )]
    #[case::one_of_two_forbids_it(vec![
        budget("also", json!({})), budget("web", json!({ "metadata": { "labels": { nodeward_api::label::FORCE_DRAIN: "never" } } })),
    ], vec![], 2, Some(NEVER))]
    #[case::its_owner_holds_it_by_annotation(
        vec![budget("web", json!({ "metadata": { "annotations": { nodeward_api::annotation::HOLD: "rebalancing" } } }))], vec![], 1, Some(HELD)
    )]
    #[case::its_owner_holds_it(vec![budget("web", json!({}))], vec![hold(json!({}))], 1, Some(HELD))]
    #[case::its_owner_holds_a_disruption(vec![budget("web", json!({}))], vec![hold(json!({ "spec": { "disruptions": 1 } }))], 1, Some(HELD))]
    #[case::its_owner_held_it(
        vec![budget("web", json!({}))], vec![hold(json!({ "spec": { "expiresAt": "2026-01-01T11:59:00Z" } }))], 1, None
    )]
    #[case::another_is_held(vec![budget("web", json!({}))], vec![hold(json!({ "spec": { "pdbRef": "other" } }))], 1, None)]
    fn kept_budget_is_never_bypassed(
        #[case] budgets: Vec<Value>,
        #[case] holds: Vec<Value>,
        #[case] refusing: usize,
        #[case] expected: Option<&str>,
    ) {
        let pod = PodFacts::project(&parse(pod("a", json!({})))).unwrap();
        let budgets: Vec<BudgetEntry> = budgets
            .into_iter()
            .filter_map(|budget| project_budget(&parse(budget)))
            .collect();
        let holds: Vec<HoldFacts> = holds
            .into_iter()
            .filter_map(|hold| project_hold(&parse(hold)))
            .collect();
        assert_eq!(judge(&pod, &budgets, &holds, refusing, now()).as_deref(), expected);
    }
}
