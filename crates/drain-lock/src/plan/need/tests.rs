//! What becomes of each pod, which disruptions that takes, and what a person has to see to.

use std::collections::BTreeSet;

use nodeward_core::ledger::Ledger;
use nodeward_core::signal::{KindState, Preset, SignalInputs, UpgradeSignal, WatchedResource};
use proptest::prelude::*;
use rstest::rstest;
use serde_json::{Value, json};

use super::*;
use crate::config::Config;
use crate::tests::fixture::{Cluster, NOW, at, budget, cordoned, merged, node, now, owner, pod, volume, waiting};

/// Nodes are expected to be away for 15 minutes; replacements count as without a node after 30 seconds.
fn policy() -> Policy {
    Policy::from_config(Config::default()).unwrap()
}

fn classified(cluster: &Cluster) -> NodeNeed {
    let snapshot = cluster.snapshot();
    classified_in(&snapshot)
}

fn classified_in(snapshot: &Snapshot) -> NodeNeed {
    let mut placement = Placement::new(&snapshot.scheduling);
    classify(&snapshot.nodes["n1"], snapshot, None, &mut placement, &policy(), now())
}

/// A cluster of `n1`, which drains, `n2`, which has room, and these pods, under the budget `web`.
fn draining(pods: impl IntoIterator<Item = Value>) -> Cluster {
    Cluster::new([cordoned("n1"), node("n2", json!({}))], pods).budgets([budget("web", json!({}))])
}

/// The needs, as `budget: pods`, retained ones in brackets.
fn shown(needs: &[Disruptions]) -> Vec<String> {
    needs
        .iter()
        .map(|disruptions| {
            let pods = disruptions.pods.iter().map(|pod| {
                if pod.retained {
                    format!("({})", pod.name)
                } else {
                    pod.name.clone()
                }
            });
            let movable = disruptions.movable.then(|| "+1".to_owned());
            let pods: Vec<String> = pods.chain(movable).collect();
            format!("{}: {}", disruptions.pdb, pods.join(" "))
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
#[case::movable(json!({}), Class::Movable, "shop/web: +1")]
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
#[case::skips(label("skip"), Class::Retained(LockReason::OptedOut), "shop/web: (a)")]
#[case::cluster_apis_word(
    json!({ "metadata": { "labels": { "cluster.x-k8s.io/drain": "skip" } } }), Class::Retained(LockReason::OptedOut), "shop/web: (a)"
)]
#[case::skips_and_is_local(
    merged(label("skip"), local_volume()),
    Class::Retained(LockReason::OptedOut),
    "shop/web: (a)"
)]
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
// Nobody makes it again: it is not waited for.
#[case::a_pod_without_controller_is_not_waited_for(
    merged(tied_to_n1(), json!({ "metadata": { "ownerReferences": null } })), Class::Movable, "shop/web: +1"
)]
#[case::held_under_no_budget(
    merged(tied_to_n1(), json!({ "metadata": { "labels": { "app": "other" } } })), Class::Held(LockReason::Pinned), ""
)]
fn pods_that_stay_down_need_a_disruption_each_and_movable_ones_one_together(
    #[case] patch: Value,
    #[case] class: Class,
    #[case] needs: &str,
) {
    let need = classified(&draining([pod("a", patch)]).volumes([volume("pv", "local", &["n1"])]));
    assert_eq!(need.pods.iter().map(|pod| pod.class).collect::<Vec<_>>(), [class]);
    assert_eq!(shown(&need.needs).join(" "), needs);
}

/// A pod of a drain that was asked for at 11 o'clock; the node was cordoned five minutes later.
#[rstest]
#[case::was_there_before("2026-01-01T10:00:00Z", true, None, Class::Movable)]
#[case::came_before_the_cordon("2026-01-01T11:05:00Z", true, None, Class::Movable)]
#[case::returned("2026-01-01T11:05:01Z", true, None, Class::Retained(LockReason::ToleratesCordon))]
#[case::does_not_tolerate_the_cordon("2026-01-01T11:05:01Z", false, None, Class::Movable)]
#[case::is_on_its_way_out("2026-01-01T11:05:01Z", true, Some(NOW), Class::Movable)]
fn pod_that_returned_in_the_drain_stays(
    #[case] created: &str,
    #[case] tolerates: bool,
    #[case] deleted: Option<&str>,
    #[case] class: Class,
) {
    let cordon = json!([{
        "key": UNSCHEDULABLE_TAINT, "effect": UNSCHEDULABLE_TAINT_EFFECT, "timeAdded": "2026-01-01T11:05:00Z",
    }]);
    let node_1 = merged(cordoned("n1"), json!({ "spec": { "taints": cordon } }));
    let tolerations = tolerates.then(|| json!([{ "operator": "Exists" }]));
    let there = json!({
        "metadata": { "creationTimestamp": created, "deletionTimestamp": deleted }, "spec": { "tolerations": tolerations },
    });
    let drain = json!({
        "metadata": { "name": "n1", "uid": "uid-drain-n1", "creationTimestamp": "2026-01-01T11:00:00Z" },
        "spec": { "nodeName": "n1", "requesters": [{ "name": "test" }] },
    });
    let cluster = || Cluster::new([node_1.clone(), node("n2", json!({}))], [pod("a", there.clone())]);
    let of_drain = classified(&cluster().budgets([budget("web", json!({}))]).drains([drain]));
    assert_eq!(of_drain.pods[0].class, class);
    let needs = match class {
        Class::Retained(_) => "shop/web: (a)",
        _ if deleted.is_some() => "",
        _ => "shop/web: +1",
    };
    assert_eq!(shown(&of_drain.needs).join(" "), needs);
    // Without a drain nobody would evict it for good.
    assert_eq!(classified(&cluster()).pods[0].class, Class::Movable);
}

/// The API lets such a pod go whatever its budget counts: it takes nothing from anybody, and must not wait for others.
#[rstest]
#[case::unready("False", "AlwaysAllow", "")]
#[case::ready("True", "AlwaysAllow", "shop/web: a")]
#[case::unready_of_a_healthy_budget("False", "IfHealthyBudget", "shop/web: a")]
fn unready_pod_that_may_always_go_needs_nothing(
    #[case] ready: &str,
    #[case] eviction_policy: &str,
    #[case] needs: &str,
) {
    let state = json!({ "status": { "conditions": [{ "type": "Ready", "status": ready }] } });
    let budget = budget(
        "web",
        json!({ "spec": { "unhealthyPodEvictionPolicy": eviction_policy } }),
    );
    let need = classified(&draining([pod("a", merged(tied_to_n1(), state))]).budgets([budget]));
    assert_eq!(need.pods[0].class, Class::Held(LockReason::Pinned));
    assert_eq!(shown(&need.needs).join(" "), needs);
}

/// A movable one goes beside a budget that has its other pods; it takes nothing from anybody either.
#[rstest]
#[case::ready("True", 3, "shop/web: +1")]
#[case::unready("False", 2, "")]
#[case::unready_beside_another("False", 1, "shop/web: +1")]
fn unready_movable_pod_needs_nothing_of_a_healthy_budget(
    #[case] ready: &str,
    #[case] healthy: i32,
    #[case] needs: &str,
) {
    let state = json!({ "status": { "conditions": [{ "type": "Ready", "status": ready }] } });
    let budget = budget(
        "web",
        json!({ "status": { "currentHealthy": healthy, "disruptionsAllowed": (healthy - 2).max(0) } }),
    );
    let need = classified(&draining([pod("a", state)]).budgets([budget]));
    assert_eq!(shown(&need.needs).join(" "), needs);
}

#[test]
fn a_volume_that_other_nodes_reach_holds_nobody() {
    let need = classified(&draining([pod("a", local_volume())]).volumes([volume("pv", "local", &["n1", "n2"])]));
    assert_eq!(need.pods[0].class, Class::Movable);
}

#[test]
fn two_movable_pods_do_not_share_the_last_place() {
    let pods = [
        pod("a", with_cpu("3")),
        pod("b", with_cpu("3")),
        pod("c", with_cpu("1")),
    ];
    let need = classified(&draining(pods));
    let classes: Vec<Class> = need.pods.iter().map(|pod| pod.class).collect();
    assert_eq!(
        classes,
        [Class::Movable, Class::Held(LockReason::NoRoom), Class::Movable]
    );
    assert_eq!(
        shown(&need.needs),
        ["shop/web: +1"],
        "of one disruption, the held pod goes last"
    );
}

/// By name `a` would take the only place, and the two of `web`, which spares one, could never both stay down.
#[test]
fn pods_that_their_budget_cannot_spare_take_places_first() {
    let db = json!({ "metadata": { "labels": { "app": "db" } } });
    let budgets = [
        budget("web", json!({})),
        budget(
            "db",
            json!({ "spec": { "selector": { "matchLabels": { "app": "db" } } } }),
        ),
    ];
    let pods = [
        pod("a", merged(db, with_cpu("3"))),
        pod("b", with_cpu("3")),
        pod("c", with_cpu("3")),
    ];
    let need = classified(&draining(pods).budgets(budgets));
    let classes = need
        .pods
        .iter()
        .map(|classified| (&*classified.pod.key.name, classified.class));
    let held = Class::Held(LockReason::NoRoom);
    assert!(classes.eq([("a", held), ("b", Class::Movable), ("c", held)]));
    assert!(!need.obstacles.is_waited_for);
    assert_eq!(
        shown(&need.needs),
        ["shop/db: a", "shop/web: +1"],
        "of one disruption, the held pod goes last"
    );
}

#[test]
fn budget_need_counts_pods_that_stay_down() {
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
    assert_eq!(shown(&need.needs), ["shop/db: d", "shop/web: a (b) +1"]);
    let uids: Vec<&str> = need
        .needs
        .iter()
        .map(|disruptions| disruptions.pdb.uid.as_str())
        .collect();
    assert_eq!(uids, ["uid-db", "uid-web"]);
    assert_eq!(need.needs[1].pods[0].uid, "uid-a");
}

#[test]
fn a_held_pod_tells_why() {
    let need = classified(&draining([pod("a", with_cpu("5"))]));
    let why = need.pods[0].why.as_deref();
    assert_eq!(why, Some("of 1 other nodes 1 have too little cpu left"));
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
fn unschedulable_replacement_holds_siblings(
    #[case] patch: Value,
    #[case] class: Class,
    #[case] changes_at: Option<&str>,
) {
    let cluster = draining([pod("a", json!({})), stuck(patch)]).volumes([volume("pv", "local", &["n3"])]);
    let need = classified(&cluster);
    assert_eq!(need.pods[0].class, class);
    assert_eq!(need.changes_at, changes_at.map(at));
}

#[rstest]
#[case::lasts(
    "4h",
    Some("2026-01-01T11:00:00Z"),
    Class::WaitsCompleted,
    Some("2026-01-01T15:00:00Z")
)]
#[case::last_second(
    "1h",
    Some("2026-01-01T11:00:01Z"),
    Class::WaitsCompleted,
    Some("2026-01-01T12:00:01Z")
)]
#[case::has_ended("1h", Some("2026-01-01T11:00:00Z"), Class::Movable, None)]
#[case::has_not_begun("1h", None, Class::WaitsCompleted, None)]
fn karpenters_duration_is_waited_for(
    #[case] value: &str,
    #[case] start: Option<&str>,
    #[case] class: Class,
    #[case] changes_at: Option<&str>,
) {
    let patch = json!({
        "metadata": { "annotations": { "karpenter.sh/do-not-disrupt": value } }, "status": { "startTime": start },
    });
    let need = classified(&draining([pod("a", patch)]));
    assert_eq!((need.pods[0].class, need.changes_at), (class, changes_at.map(at)));
}

/// Under a rule of Cluster API for the node's pods; without a behaviour it may not be read.
fn under_drain_rule(pods: impl IntoIterator<Item = Value>, behavior: Option<&str>) -> NodeNeed {
    let mut snapshot = draining(pods).snapshot();
    let node = Arc::make_mut(snapshot.nodes.get_mut("n1").unwrap());
    let machine =
        json!({ "metadata": { "namespace": "fleet", "name": "m" }, "status": { "nodeRef": { "name": "n1" } } });
    let rule = |behavior| json!({ "metadata": { "namespace": "fleet", "name": "r" }, "spec": { "drain": { "behavior": behavior } } });
    let rules = match behavior {
        Some(behavior) => KindState::Synced(vec![Arc::new(rule(behavior))]),
        None => KindState::Forbidden("no".into()),
    };
    let mut inputs = SignalInputs::default();
    let mut insert = |kind, state| inputs.insert(WatchedResource::all("cluster.x-k8s.io/v1beta2", kind), state);
    insert("Machine", KindState::Synced(vec![Arc::new(machine)]));
    insert("MachineDrainRule", rules);
    let rules = UpgradeSignal::preset(Preset::ClusterApi).drain_rules(&inputs, node);
    node.view.drain_rules = Some(Arc::new(rules));
    classified_in(&snapshot)
}

#[rstest]
#[case::drains(json!({}), Some("Drain"), Class::Movable, None)]
#[case::skips(json!({}), Some("Skip"), Class::Retained(LockReason::OptedOut), None)]
#[case::waits(json!({}), Some("WaitCompleted"), Class::WaitsCompleted, None)]
#[case::pods_own_word_first(label("skip"), Some("WaitCompleted"), Class::Retained(LockReason::OptedOut), None)]
#[case::daemon(
    json!({ "metadata": { "ownerReferences": [owner("apps/v1", "DaemonSet", "d")] } }),
    Some("WaitCompleted"), Class::Ignored(Ignored::DaemonSet), None
)]
#[case::leaving(
    json!({ "metadata": { "deletionTimestamp": "2026-01-01T12:00:00Z" } }), Some("Skip"), Class::Movable, None
)]
#[case::unreadable(json!({}), None, Class::WaitsCompleted, Some("resources: [\"machinedrainrules\"]"))]
fn machine_drain_rules_are_opt_outs(
    #[case] patch: Value,
    #[case] behavior: Option<&str>,
    #[case] class: Class,
    #[case] says: Option<&str>,
) {
    let need = under_drain_rule([pod("a", patch)], behavior);
    assert_eq!(need.pods[0].class, class);
    let told = need
        .problems
        .iter()
        .find(|problem| problem.reason == LockReason::UnknownOptOut);
    assert_eq!(told.is_some(), says.is_some());
    assert!(
        told.zip(says).is_none_or(|(told, says)| told.message.contains(says)),
        "{told:?}"
    );
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
fn retained_pod_must_tolerate_its_nodes_outage(#[case] list: Value, #[case] says: Option<&str>) {
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

#[rstest]
#[case::own(label("never"), "nodeward.dev/drain of pod shop/a takes skip or wait-completed")]
#[case::karpenters(
    json!({ "metadata": { "annotations": { "karpenter.sh/do-not-disrupt": "4d" } } }),
    "karpenter.sh/do-not-disrupt of pod shop/a takes true, or a duration such as 4h"
)]
fn an_opt_out_that_is_not_known_is_named(#[case] patch: Value, #[case] says: &str) {
    let need = classified(&draining([pod("a", patch)]));
    assert_eq!(reasons(&need), [LockReason::UnknownOptOut]);
    assert_eq!(need.problems[0].message, says);
}

fn unmanaged() -> Value {
    json!({ "metadata": { "ownerReferences": null } })
}

fn empty_dir() -> Value {
    json!({ "spec": { "volumes": [{ "name": "v", "emptyDir": {} }] } })
}

const UNMANAGED: LockReason = LockReason::UnmanagedPodKept;
const EMPTY_DIR: LockReason = LockReason::EmptyDirDataKept;

/// What is named without any consent; what somebody has consented to is not.
#[rstest]
#[case::bare(unmanaged(), &[UNMANAGED])]
#[case::empty_dir(empty_dir(), &[EMPTY_DIR])]
#[case::bare_with_empty_dir(merged(unmanaged(), empty_dir()), &[UNMANAGED, EMPTY_DIR])]
#[case::held_with_empty_dir(merged(tied_to_n1(), empty_dir()), &[EMPTY_DIR])]
#[case::neither(json!({}), &[])]
#[case::daemon(
    merged(empty_dir(), json!({ "metadata": { "ownerReferences": [owner("apps/v1", "DaemonSet", "d")] } })), &[]
)]
#[case::mirror(
    merged(merged(unmanaged(), empty_dir()), json!({ "metadata": { "annotations": { "kubernetes.io/config.mirror": "h" } } })),
    &[]
)]
#[case::finished(merged(merged(unmanaged(), empty_dir()), json!({ "status": { "phase": "Failed" } })), &[])]
#[case::terminating(
    merged(merged(unmanaged(), empty_dir()), json!({ "metadata": { "deletionTimestamp": "2026-01-01T12:00:00Z" } })),
    &[]
)]
#[case::stays(merged(merged(empty_dir(), label("skip")), tolerations(both(Value::Null))), &[])]
#[case::waited_for(merged(unmanaged(), label("wait-completed")), &[])]
fn our_evictions_that_destroy_need_consent(#[case] patch: Value, #[case] expected: &[LockReason]) {
    let cluster = |spec: Value| {
        let drain = json!({ "metadata": { "name": "n1" }, "spec": merged(json!({ "nodeName": "n1" }), spec) });
        draining([pod("a", patch.clone())]).drains([drain])
    };
    let consents: [(Value, &[LockReason]); 4] = [
        (json!({}), &[]),
        (
            json!({ "unmanagedPods": "Evict", "emptyDirData": "Keep" }),
            &[UNMANAGED],
        ),
        (json!({ "emptyDirData": "Evict" }), &[EMPTY_DIR]),
        (
            json!({ "unmanagedPods": "Evict", "emptyDirData": "Evict" }),
            &[UNMANAGED, EMPTY_DIR],
        ),
    ];
    for (spec, consented) in consents {
        let named = expected.iter().filter(|reason| !consented.contains(reason));
        let named: Vec<LockReason> = named.copied().collect();
        assert_eq!(reasons(&classified(&cluster(spec.clone()))), named, "{spec}");
    }
    let by_requester = classified(&cluster(json!({ "evict": "Requester" })));
    assert_eq!(reasons(&by_requester), [], "an eviction is its own consent");
    for problem in &classified(&cluster(json!({}))).problems {
        assert_eq!(problem.pod.as_deref(), Some("shop/a"));
    }
}

#[test]
fn without_drain_a_machines_consent_counts() {
    let cluster = draining([pod("a", empty_dir()), pod("b", unmanaged())]);
    let snapshot = cluster.snapshot();
    let config = "fleetLock: { enabled: true }";
    let policy = Policy::from_config(nodeward_runtime::config::from_yaml(config).unwrap()).unwrap();
    let mut placement = Placement::new(&snapshot.scheduling);
    let need = classify(&snapshot.nodes["n1"], &snapshot, None, &mut placement, &policy, now());
    assert_eq!(reasons(&need), [LockReason::UnmanagedPodKept]);
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
fn evicted_pod_of_several_budgets_is_named(
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
fn never_allowing_budget_is_named(#[case] patch: Value, #[case] budget_patch: Value, #[case] named: bool) {
    let need = classified(&draining([pod("a", patch)]).budgets([budget("web", budget_patch)]));
    assert_eq!(
        reasons(&need) == [LockReason::BudgetNeverAllows],
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
fn need_above_maximum_is_named(#[case] held: usize, #[case] allowed: i32, #[case] exceeds: bool) {
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

/// What the plan does not name as a problem the ledger does not refuse, and the other way round.
#[rstest]
#[case::held(tied_to_n1(), true)]
#[case::retained(tolerations(both(Value::Null)), false)]
fn several_budgets_block_only_pods_to_evict(#[case] patch: Value, #[case] refused: bool) {
    let cluster = draining([pod("a", patch)]).budgets([budget("web", json!({})), budget("more", json!({}))]);
    let facts = cluster.snapshot().facts;
    let mut ledger = Ledger::default();
    ledger.enqueue("n1", "uid-n1", true, now());
    ledger.set_needs("uid-n1", classified(&cluster).needs, &|_| false, now());
    let obstacles = ledger.obstacles("uid-n1", &facts);
    let names_it = obstacles
        .iter()
        .any(|obstacle| obstacle.reason == LockReason::SeveralPDBs);
    assert_eq!(names_it, refused, "{obstacles:?}");
}

/// `n2` has room for one of the two pods, of which the first is on its way.
#[rstest]
#[case::made_again_when_it_has_gone("apps/v1", "StatefulSet", Class::Held(LockReason::NoRoom))]
#[case::volcano_does_so_too("batch.volcano.sh/v1alpha1", "Job", Class::Held(LockReason::NoRoom))]
#[case::its_successor_is_there_already("batch/v1", "Job", Class::Movable)]
fn leaving_pod_keeps_room_for_its_successor(#[case] api_version: &str, #[case] kind: &str, #[case] class: Class) {
    let leaving = json!({ "metadata": {
        "deletionTimestamp": "2026-01-01T12:00:00Z", "ownerReferences": [owner(api_version, kind, "o")],
    } });
    let pods = [pod("a", merged(with_cpu("3"), leaving)), pod("b", with_cpu("3"))];
    let need = classified(&draining(pods));
    assert_eq!(
        need.pods.iter().map(|pod| pod.class).collect::<Vec<_>>(),
        [Class::Movable, class]
    );
}

/// What a pod may be, over which other pods differ in their requests alone.
fn any_kind() -> impl Strategy<Value = Value> {
    let port =
        json!({ "spec": { "containers": [{ "name": "c", "ports": [{ "containerPort": 1, "hostPort": 80 }] }] } });
    let apart = json!({ "spec": { "affinity": { "podAntiAffinity": { "requiredDuringSchedulingIgnoredDuringExecution": [
        { "topologyKey": "kubernetes.io/hostname", "labelSelector": { "matchLabels": { "app": "web" } } },
    ] } } } });
    let terminating = json!({ "metadata": { "deletionTimestamp": "2026-01-01T12:00:00Z" } });
    let of_a_set = json!({ "metadata": { "ownerReferences": [owner("apps/v1", "StatefulSet", "set")] } });
    let of_volcano = json!({ "metadata": { "ownerReferences": [owner("batch.volcano.sh/v1alpha1", "Job", "job")] } });
    prop::sample::select(vec![
        json!({}),
        json!({}),
        port,
        apart,
        json!({ "metadata": { "ownerReferences": [owner("apps/v1", "DaemonSet", "d")] } }),
        json!({ "metadata": { "annotations": { "kubernetes.io/config.mirror": "h" } } }),
        json!({ "metadata": { "ownerReferences": null } }),
        json!({ "status": { "phase": "Succeeded" } }),
        json!({ "status": { "phase": "Pending", "conditions": [] } }),
        json!({ "status": { "conditions": [{ "type": "Ready", "status": "False" }] } }),
        terminating.clone(),
        merged(terminating.clone(), of_a_set.clone()),
        merged(terminating, of_volcano),
        of_a_set,
        label("skip"),
        label("wait-completed"),
        label("anything"),
        tied_to_n1(),
        local_volume(),
    ])
}

/// A pod on one of two draining nodes, on another one, or waiting for a node.
fn any_pod(index: usize) -> impl Strategy<Value = Value> {
    let on = prop::sample::select(vec![Some("n1"), Some("n1"), Some("n2"), Some("m0"), None]);
    let app = prop::sample::select(vec!["web", "db", "none"]);
    (any_kind(), on, app, 1..2000_i64).prop_map(move |(kind, on, app, milli)| {
        let name = format!("p{index:02}");
        let plain = json!({
            "metadata": { "labels": { "app": app } },
            "spec": { "containers": [{ "name": "c", "resources": { "requests": { "cpu": format!("{milli}m") } } }] },
        });
        let mut object = merged(plain, kind);
        object["spec"]["containers"][0]["resources"] = json!({ "requests": { "cpu": format!("{milli}m") } });
        match on {
            Some(on) => pod(&name, merged(object, json!({ "spec": { "nodeName": on } }))),
            None => waiting(&name, object),
        }
    })
}

fn any_cluster() -> impl Strategy<Value = Cluster> {
    let pods = (0..14_usize).map(any_pod).collect::<Vec<_>>();
    let spare = prop::collection::vec((0..4000_i64, 0..6_i64, any::<bool>()), 1..4);
    let selectors = prop::sample::subsequence(vec!["web", "db", "all"], 0..=3);
    (pods, 0..14_usize, spare, selectors).prop_map(|(mut pods, count, spare, selectors)| {
        pods.truncate(count);
        let mut nodes = vec![cordoned("n1"), node("n2", json!({}))];
        nodes.extend(spare.into_iter().enumerate().map(|(index, (milli, pods, ready))| {
            let status = if ready { "True" } else { "False" };
            let patch = json!({ "status": {
                "allocatable": { "cpu": format!("{milli}m"), "pods": pods.to_string() },
                "conditions": [{ "type": "Ready", "status": status }],
            } });
            node(&format!("m{index}"), patch)
        }));
        let budgets = selectors.into_iter().map(|app| {
            let mut budget = budget(app, json!({}));
            budget["spec"]["selector"] = if app == "all" {
                json!({})
            } else {
                json!({ "matchLabels": { "app": app } })
            };
            budget
        });
        Cluster::new(nodes, pods)
            .budgets(budgets.collect::<Vec<_>>())
            .volumes([volume("pv", "local", &["n1"])])
    })
}

proptest! {
    #[test]
    fn each_held_pod_needs_each_budget_and_room_once(
        cluster in any_cluster()
    ) {
        let snapshot = cluster.snapshot_of(&["n1", "n2"]);
        let mut placement = Placement::new(&snapshot.scheduling);
        for name in ["n1", "n2"] {
            let node = &snapshot.nodes[name];
            let need = classify(node, &snapshot, None, &mut placement, &policy(), now());
            let there: Vec<&str> = snapshot.pods_of(&node.name).iter().map(|pod| pod.uid.as_str()).collect();
            let classed: Vec<&str> = need.pods.iter().map(|classified| classified.pod.uid.as_str()).collect();
            prop_assert_eq!(there, classed);
            for ClassifiedPod { pod, class, .. } in &need.pods {
                prop_assert!(*class != Class::Movable || pod.opt_out(now()).is_none() || pod.deletion.is_some());
                let expected: BTreeSet<(String, bool)> = match class {
                    Class::Held(_) | Class::Retained(_) => {
                        let retained = matches!(class, Class::Retained(_));
                        snapshot.budgets_of(pod).iter().map(|key| (key.to_string(), retained)).collect()
                    }
                    Class::Ignored(_) | Class::Finished | Class::WaitsCompleted | Class::Movable | Class::LeftToOwner => {
                        BTreeSet::new()
                    }
                };
                let disruptions: Vec<(String, bool)> = need
                    .needs
                    .iter()
                    .flat_map(|disruptions| disruptions.pods.iter().map(move |held| (disruptions.pdb.to_string(), held)))
                    .filter(|(_, held)| held.uid == pod.uid.as_str())
                    .map(|(key, held)| (key, held.retained))
                    .collect();
                // A budget that has no more goes to the movable pods first.
                let goes_later = |key: &String| {
                    let mut movable = need.needs.iter().filter(|needed| needed.movable);
                    *class != Class::Retained(LockReason::OptedOut) && movable.any(|needed| needed.pdb.to_string() == *key)
                };
                let found: BTreeSet<(String, bool)> = disruptions.iter().cloned().collect();
                prop_assert_eq!(found.len(), disruptions.len(), "one disruption of each budget");
                prop_assert!(found.is_subset(&expected));
                let is_left_out = need.obstacles.left_out.contains(&pod.uid);
                prop_assert!(expected.difference(&found).all(|(key, retained)| is_left_out || !retained && goes_later(key)));
            }
        }
        let promised: Vec<&str> = placement.promises().map(|(pod, _)| pod.uid.as_str()).collect();
        prop_assert_eq!(promised.iter().collect::<BTreeSet<_>>().len(), promised.len());
        for (pod, node) in placement.promises() {
            prop_assert!(node.ready && !node.is_cordoned() && pod.node.as_ref() != Some(&node.name));
        }
        for room in &snapshot.scheduling.nodes {
            let here: Vec<_> = placement.promises().filter(|(_, node)| node.name == room.node.name).collect();
            let cpu: i64 = here.iter().map(|(pod, _)| pod.requirements.requests.cpu).sum();
            let count = i64::try_from(here.len()).unwrap();
            let listening = here.iter().filter(|(pod, _)| !pod.requirements.host_ports.is_empty()).count();
            if count > 0 {
                prop_assert!(room.usage.requests.cpu + cpu <= room.node.allocatable.cpu);
                prop_assert!(room.usage.requests.pods + count <= room.node.allocatable.pods);
                prop_assert!(listening + room.usage.host_ports.len() <= 1 || listening == 0);
            }
        }
    }
}

#[rstest]
#[case::counted("SufficientPods", "True", &[])]
#[case::not_counted("SyncFailed", "False", &[LockReason::SyncFailed])]
fn budget_that_nobody_can_count_is_named(#[case] reason: &str, #[case] status: &str, #[case] named: &[LockReason]) {
    let condition = json!({
        "type": "DisruptionAllowed", "status": status, "reason": reason, "message": "", "lastTransitionTime": "2026-01-01T00:00:00Z",
    });
    let cluster =
        draining([pod("a", tied_to_n1())]).budgets([budget("web", json!({ "status": { "conditions": [condition] } }))]);
    assert_eq!(reasons(&classified(&cluster)), named);
}
