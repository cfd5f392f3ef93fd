//! What becomes of each pod, which units that takes, and what a person has to see to.

use rstest::rstest;
use serde_json::{Value, json};

use super::*;
use crate::snapshot::fixture::{Cluster, at, budget, cordoned, merged, node, now, owner, pod, volume, waiting};

const RULES: NeedRules = NeedRules {
    expected_outage: SignedDuration::from_mins(15),
    unschedulable_after: SignedDuration::from_secs(30),
};

fn classified(cluster: &Cluster) -> NodeNeed {
    let snapshot = cluster.snapshot();
    classify(
        &snapshot.nodes["n1"],
        &snapshot,
        &mut Placement::new(&snapshot.floor),
        &RULES,
        now(),
    )
}

/// A cluster of `n1`, which drains, `n2`, which has room, and these pods, under the budget `web`.
fn draining(pods: impl IntoIterator<Item = Value>) -> Cluster {
    Cluster::new([cordoned("n1"), node("n2", json!({}))], pods).budgets([budget("web", json!({}))])
}

/// The needs, as `budget: pods`, retained ones in brackets.
fn shown(needs: &[Units]) -> Vec<String> {
    needs
        .iter()
        .map(|units| {
            let pods = units.pods.iter().map(|pod| {
                if pod.retained {
                    format!("({})", pod.name)
                } else {
                    pod.name.clone()
                }
            });
            format!("{}: {}", units.pdb, pods.collect::<Vec<_>>().join(" "))
        })
        .collect()
}

fn reasons(need: &NodeNeed) -> Vec<LockReason> {
    need.problems.iter().map(|problem| problem.reason).collect()
}

fn label(value: &str) -> Value {
    json!({ "metadata": { "labels": { "nodeward.dev/drain": value } } })
}

fn tied_to_n1() -> Value {
    json!({ "spec": { "nodeSelector": { "kubernetes.io/hostname": "n1" } } })
}

fn local_volume() -> Value {
    json!({ "spec": { "volumes": [{ "name": "v", "persistentVolumeClaim": { "claimName": "local" } }] } })
}

fn with_cpu(cpu: &str) -> Value {
    json!({ "spec": { "containers": [{ "name": "c", "resources": { "requests": { "cpu": cpu } } }] } })
}

#[rstest]
#[case::movable(json!({}), Class::Movable, "")]
#[case::daemon(
    json!({ "metadata": { "ownerReferences": [owner("apps/v1", "DaemonSet", "d")] } }), Class::Ignored(Ignored::DaemonSet), ""
)]
#[case::a_daemon_set_of_another_group_is_none_that_drains_know(
    merged(json!({ "metadata": { "ownerReferences": [owner("apps.kruise.io/v1", "DaemonSet", "d")] } }), tied_to_n1()),
    Class::Held(LockReason::Pinned), "shop/web: a"
)]
#[case::mirror(
    json!({ "metadata": { "annotations": { "kubernetes.io/config.mirror": "h" }, "ownerReferences": null } }),
    Class::Ignored(Ignored::Mirror), ""
)]
#[case::finished(json!({ "status": { "phase": "Succeeded" } }), Class::Finished, "")]
#[case::failed(json!({ "status": { "phase": "Failed" } }), Class::Finished, "")]
#[case::a_finished_pod_that_opted_out(
    merged(label("wait-completed"), json!({ "status": { "phase": "Succeeded" } })), Class::Finished, ""
)]
#[case::waits(label("wait-completed"), Class::WaitsCompleted, "")]
#[case::unknown_opt_outs_wait(label("never"), Class::WaitsCompleted, "")]
#[case::karpenters_word(
    json!({ "metadata": { "annotations": { "karpenter.sh/do-not-disrupt": "true" } } }), Class::WaitsCompleted, ""
)]
#[case::skips(label("skip"), Class::Retained, "shop/web: (a)")]
#[case::cluster_apis_word(
    json!({ "metadata": { "labels": { "cluster.x-k8s.io/drain": "skip" } } }), Class::Retained, "shop/web: (a)"
)]
#[case::skips_and_is_local(merged(label("skip"), local_volume()), Class::Retained, "shop/web: (a)")]
#[case::local(local_volume(), Class::Held(LockReason::LocalVolume), "shop/web: a")]
#[case::local_and_pinned(
    merged(local_volume(), tied_to_n1()),
    Class::Held(LockReason::LocalVolume),
    "shop/web: a"
)]
#[case::pinned(tied_to_n1(), Class::Held(LockReason::Pinned), "shop/web: a")]
#[case::no_room(with_cpu("5"), Class::Held(LockReason::NoRoom), "shop/web: a")]
#[case::unready_pods_are_claimed_as_if_ready(
    merged(with_cpu("5"), json!({ "status": { "conditions": [{ "type": "Ready", "status": "False" }] } })),
    Class::Held(LockReason::NoRoom), "shop/web: a"
)]
#[case::pods_that_start_are_claimed_as_if_ready(
    merged(with_cpu("5"), json!({ "status": { "phase": "Pending", "conditions": [] } })),
    Class::Held(LockReason::NoRoom), "shop/web: a"
)]
#[case::a_leaving_pod_needs_nothing_more(
    merged(tied_to_n1(), json!({ "metadata": { "deletionTimestamp": "2026-01-01T12:00:00Z" } })), Class::Movable, ""
)]
// Nobody makes it again: its unit never returns by waiting.
#[case::a_pod_without_controller_is_not_waited_for(
    merged(tied_to_n1(), json!({ "metadata": { "ownerReferences": null } })), Class::Movable, ""
)]
#[case::held_under_no_budget(
    merged(tied_to_n1(), json!({ "metadata": { "labels": { "app": "other" } } })), Class::Held(LockReason::Pinned), ""
)]
fn a_pod_is_of_one_class_and_only_pods_that_stay_down_need_units(
    #[case] patch: Value,
    #[case] class: Class,
    #[case] needs: &str,
) {
    let need = classified(&draining([pod("a", patch)]).volumes([volume("pv", "local", &["n1"])]));
    assert_eq!(need.pods.iter().map(|(_, class)| *class).collect::<Vec<_>>(), [class]);
    assert_eq!(shown(&need.needs).join(" "), needs);
}

#[test]
fn a_volume_that_other_nodes_reach_holds_nobody() {
    let need = classified(&draining([pod("a", local_volume())]).volumes([volume("pv", "local", &["n1", "n2"])]));
    assert_eq!(need.pods[0].1, Class::Movable);
}

#[test]
fn two_movable_pods_do_not_share_the_last_place() {
    let pods = [
        pod("a", with_cpu("3")),
        pod("b", with_cpu("3")),
        pod("c", with_cpu("1")),
    ];
    let need = classified(&draining(pods));
    let classes: Vec<Class> = need.pods.iter().map(|(_, class)| *class).collect();
    assert_eq!(
        classes,
        [Class::Movable, Class::Held(LockReason::NoRoom), Class::Movable]
    );
    assert_eq!(shown(&need.needs), ["shop/web: b"]);
}

#[test]
fn the_units_of_a_budget_are_one_for_each_pod_that_stays_down() {
    let other = json!({ "metadata": { "labels": { "app": "db" } } });
    let db = budget(
        "db",
        json!({ "spec": { "selector": { "matchLabels": { "app": "db" } } } }),
    );
    let pods = [
        pod("a", tied_to_n1()),
        pod("b", label("skip")),
        pod("c", json!({})),
        pod("d", merged(other, tied_to_n1())),
    ];
    let need = classified(&draining(pods).budgets([budget("web", json!({})), db]));
    assert_eq!(shown(&need.needs), ["shop/db: d", "shop/web: a (b)"]);
    let uids: Vec<&str> = need.needs.iter().map(|units| units.pdb.uid.as_str()).collect();
    assert_eq!(uids, ["uid-db", "uid-web"]);
    assert_eq!(need.needs[1].pods[0].uid, "uid-a");
}

#[test]
fn a_held_pod_tells_why() {
    let need = classified(&draining([pod("a", with_cpu("5"))]));
    assert_eq!(
        need.why[need.pods[0].0.uid.as_str()],
        "of 1 other nodes 1 have too little cpu left"
    );
}

/// A pod of the same controller that waits for a node. It asks for so little that there is room for it: the scheduler
/// knows better.
fn stuck(patch: Value) -> Value {
    waiting("stuck", merged(with_cpu("1"), patch))
}

fn unschedulable_since(time: &str) -> Value {
    json!({ "status": { "conditions": [{
        "type": "PodScheduled", "status": "False", "reason": "Unschedulable", "lastTransitionTime": time,
    }] } })
}

#[rstest]
#[case::for_a_minute(json!({}), Class::Held(LockReason::Unschedulable), None)]
#[case::for_30_s(
    unschedulable_since("2026-01-01T11:59:30Z"),
    Class::Held(LockReason::Unschedulable),
    None
)]
#[case::for_29_s(
    unschedulable_since("2026-01-01T11:59:31Z"),
    Class::Movable,
    Some("2026-01-01T12:00:01Z")
)]
#[case::not_looked_at_yet(json!({ "status": { "conditions": [] } }), Class::Movable, None)]
#[case::gated(
    json!({ "status": { "conditions": [{
        "type": "PodScheduled", "status": "False", "reason": "SchedulingGated", "lastTransitionTime": "2026-01-01T11:00:00Z",
    }] } }), Class::Movable, None
)]
#[case::of_another_controller(
    json!({ "metadata": { "ownerReferences": [owner("apps/v1", "ReplicaSet", "other")] } }), Class::Movable, None
)]
#[case::that_asks_for_something_else(with_cpu("2"), Class::Movable, None)]
#[case::that_its_own_volume_ties(local_volume(), Class::Movable, None)]
#[case::that_is_being_deleted(
    json!({ "metadata": { "deletionTimestamp": "2026-01-01T12:00:00Z" } }), Class::Movable, None
)]
#[case::that_has_a_node(json!({ "spec": { "nodeName": "n2" } }), Class::Movable, None)]
fn a_replacement_that_finds_no_node_for_30_s_makes_its_siblings_held(
    #[case] patch: Value,
    #[case] class: Class,
    #[case] changes_at: Option<&str>,
) {
    let cluster = draining([pod("a", json!({})), stuck(patch)]).volumes([volume("pv", "local", &["n3"])]);
    let need = classified(&cluster);
    assert_eq!(need.pods[0].1, class);
    assert_eq!(need.changes_at, changes_at.map(at));
}

fn tolerations(list: Value) -> Value {
    merged(label("skip"), json!({ "spec": { "tolerations": list } }))
}

fn both(seconds: Value) -> Value {
    json!([
        { "key": "node.kubernetes.io/not-ready", "operator": "Exists", "effect": "NoExecute", "tolerationSeconds": seconds },
        { "key": "node.kubernetes.io/unreachable", "operator": "Exists", "effect": "NoExecute", "tolerationSeconds": seconds },
    ])
}

#[rstest]
#[case::none(json!([]), Some("node.kubernetes.io/not-ready for 0 s"))]
#[case::for_ever(both(Value::Null), None)]
#[case::as_long_as_expected(both(json!(900)), None)]
#[case::a_second_less(both(json!(899)), Some("node.kubernetes.io/not-ready for 899 s"))]
#[case::what_the_api_server_adds_to_everybody(both(json!(300)), Some("for 300 s"))]
#[case::negative_means_at_once(both(json!(-1)), Some("for 0 s"))]
#[case::only_one_of_the_two(
    json!([{ "key": "node.kubernetes.io/not-ready", "operator": "Exists", "effect": "NoExecute" }]),
    Some("node.kubernetes.io/unreachable for 0 s")
)]
#[case::of_everything(json!([{ "operator": "Exists" }]), None)]
#[case::of_another_effect(
    json!([{ "key": "node.kubernetes.io/not-ready", "operator": "Exists", "effect": "NoSchedule" },
           { "key": "node.kubernetes.io/unreachable", "operator": "Exists", "effect": "NoSchedule" }]),
    Some("for 0 s")
)]
#[case::the_first_that_matches_counts(
    json!([{ "operator": "Exists", "effect": "NoExecute", "tolerationSeconds": 60 }, { "operator": "Exists" }]), Some("for 60 s")
)]
fn a_pod_that_stays_must_tolerate_the_outage_of_its_node(#[case] list: Value, #[case] says: Option<&str>) {
    let need = classified(&draining([pod("a", tolerations(list))]));
    let problem = need
        .problems
        .iter()
        .find(|problem| problem.reason == LockReason::TolerationTooShort);
    assert_eq!(problem.is_some(), says.is_some());
    if let (Some(problem), Some(says)) = (problem, says) {
        assert!(problem.message.contains(says), "{}", problem.message);
        assert_eq!(problem.pod.as_deref(), Some("shop/a"));
    }
}

#[test]
fn only_pods_that_stay_must_tolerate_an_outage() {
    assert_eq!(
        reasons(&classified(&draining([pod("a", json!({})), pod("b", tied_to_n1())]))),
        []
    );
}

#[test]
fn an_opt_out_that_is_not_known_is_named() {
    assert_eq!(
        reasons(&classified(&draining([pod("a", label("never"))]))),
        [LockReason::UnknownOptOut]
    );
}

#[rstest]
#[case::movable(json!({}), &[LockReason::SeveralPDBs], &[])]
#[case::held(tied_to_n1(), &[LockReason::SeveralPDBs], &["shop/more: a", "shop/web: a"])]
// It is not evicted, so nothing refuses it; it is down all the same.
#[case::retained(tolerations(both(Value::Null)), &[], &["shop/more: (a)", "shop/web: (a)"])]
#[case::waited_for(label("wait-completed"), &[], &[])]
#[case::finished(json!({ "status": { "phase": "Succeeded" } }), &[], &[])]
// The eviction API asks no budget.
#[case::pending(json!({ "status": { "phase": "Pending" } }), &[], &[])]
fn a_pod_of_several_budgets_is_named_if_it_must_be_evicted(
    #[case] patch: Value,
    #[case] expected: &[LockReason],
    #[case] needs: &[&str],
) {
    let cluster = draining([pod("a", patch)]).budgets([budget("web", json!({})), budget("more", json!({}))]);
    let need = classified(&cluster);
    assert_eq!(reasons(&need), expected);
    assert_eq!(shown(&need.needs), needs);
}

fn never(max_unavailable: Value) -> Value {
    json!({ "spec": { "maxUnavailable": max_unavailable }, "status": { "desiredHealthy": 3, "disruptionsAllowed": 0 } })
}

#[rstest]
#[case::none_may_be_unavailable(json!({}), never(json!(0)), true)]
#[case::none_in_per_cent(json!({}), never(json!("0%")), true)]
#[case::held(tied_to_n1(), never(json!(0)), true)]
#[case::retained(tolerations(both(Value::Null)), never(json!(0)), true)]
#[case::a_single_replica_that_must_be_there(
    json!({}), json!({ "spec": { "maxUnavailable": null, "minAvailable": 1 }, "status": { "expectedPods": 1, "desiredHealthy": 1, "disruptionsAllowed": 0 } }), true
)]
#[case::exhausted_for_now(json!({}), json!({ "status": { "disruptionsAllowed": 0, "currentHealthy": 2 } }), false)]
#[case::the_status_is_behind(
    json!({}), json!({ "metadata": { "generation": 2 }, "spec": { "maxUnavailable": 0 } }), false
)]
#[case::no_pod_has_to_leave(label("wait-completed"), never(json!(0)), false)]
fn a_budget_that_can_never_allow_a_disruption_is_named(
    #[case] patch: Value,
    #[case] budget_patch: Value,
    #[case] named: bool,
) {
    let need = classified(&draining([pod("a", patch)]).budgets([budget("web", budget_patch)]));
    assert_eq!(
        reasons(&need) == [LockReason::MisconfiguredPDB],
        named,
        "{:?}",
        need.problems
    );
    if named {
        assert_eq!(need.problems[0].pdb.as_deref(), Some("shop/web"));
    }
}

#[rstest]
#[case::as_much_as_it_can_spare(1, 1, false)]
#[case::more_than_it_can_ever_spare(2, 1, true)]
#[case::a_greater_budget(2, 2, false)]
// What is exhausted now comes back.
#[case::more_than_it_can_spare_now(1, 0, false)]
fn a_need_above_what_the_budget_can_ever_give_is_named(
    #[case] held: usize,
    #[case] allowed: i32,
    #[case] exceeds: bool,
) {
    let pods = (0..held).map(|index| pod(&format!("p{index}"), tied_to_n1()));
    let status =
        json!({ "status": { "expectedPods": 5, "desiredHealthy": 5 - allowed.max(1), "disruptionsAllowed": allowed } });
    let need = classified(&draining(pods).budgets([budget("web", status)]));
    assert_eq!(
        reasons(&need) == [LockReason::NeedExceedsBudget],
        exceeds,
        "{:?}",
        need.problems
    );
}

#[test]
fn a_node_without_pods_needs_nothing() {
    let need = classified(&draining([]));
    assert!(need.pods.is_empty() && need.needs.is_empty() && need.problems.is_empty());
}
