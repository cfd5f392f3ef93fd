//! Two nodes that were drained while drain-lock was away: of each of two applications one pod is down, on the node that has
//! the last pod of the other.

use nodeward_api::reason::LockReason;
use nodeward_core::id::BudgetKey;
use rstest::rstest;
use serde_json::{Value, json};

use crate::config::Config;
use crate::plan::node_markers::Cordon;
use crate::plan::{Action, Plan, plan};
use crate::policy::Policy;
use crate::snapshot::Memory;
use crate::tests::fixture::{Cluster, budget, cordoned, merged, node, now, pod, waiting};

const NODES: [&str; 4] = ["n1", "n2", "n3", "n4"];

fn of_app(app: &str, at: &[&str]) -> Value {
    let affinity = json!({ "nodeAffinity": { "requiredDuringSchedulingIgnoredDuringExecution": { "nodeSelectorTerms": [
        { "matchExpressions": [{ "key": "kubernetes.io/hostname", "operator": "In", "values": at }] },
    ] } } });
    json!({ "metadata": { "labels": { "app": app } }, "spec": { "affinity": affinity } })
}

/// A pod of this application that runs on this node, and fits no other.
fn runs(app: &str, at: &str) -> Value {
    let bound = json!({ "spec": { "nodeName": at } });
    pod(&format!("{app}-{at}"), merged(of_app(app, &[at]), bound))
}

/// One that waits for one of these nodes.
fn waits(app: &str, at: &[&str]) -> Value {
    waiting(&format!("{app}-{}", at.join("-")), of_app(app, at))
}

/// The pod of `x` would fit a node that somebody has cordoned, and does not drain, too.
fn one_only_cordoned() -> Given {
    Given {
        nodes: ["n1", "n2", "n4"].map(cordoned).to_vec(),
        pods: vec![
            runs("y", "n1"),
            runs("x", "n2"),
            waits("x", &["n1", "n4"]),
            waits("y", &["n2"]),
        ],
        ..two_away()
    }
}

/// A budget of one over two pods of this application of which one is down.
fn short(app: &str) -> Value {
    let numbers = json!({ "disruptionsAllowed": 0, "currentHealthy": 1, "desiredHealthy": 1, "expectedPods": 2 });
    budget(
        app,
        json!({ "spec": { "selector": { "matchLabels": { "app": app } } }, "status": numbers }),
    )
}

fn drain(node: &str, evict: &str) -> Value {
    json!({
        "metadata": {
            "name": node, "uid": format!("uid-drain-{node}"), "resourceVersion": "7",
            "finalizers": [nodeward_api::finalizer::DRAIN_LOCK], "creationTimestamp": "2026-01-01T11:59:00Z",
        },
        "spec": { "nodeName": node, "nodeUID": format!("uid-{node}"), "requesters": [{ "name": "alice" }], "evict": evict },
    })
}

/// A node under the cordon of its drain.
fn ours(name: &str) -> Value {
    let by = json!({ nodeward_api::annotation::CORDONED_BY: format!("uid-drain-{name}") });
    merged(cordoned(name), json!({ "metadata": { "annotations": by } }))
}

fn claim(ticket: i64, node: &str) -> Value {
    json!({
        "ticket": ticket, "node": node, "nodeUID": format!("uid-{node}"), "state": "Waiting", "grant": 4,
        "since": "2026-01-01T11:59:00Z", "queuedAt": "2026-01-01T11:59:00Z",
    })
}

struct Given {
    nodes: Vec<Value>,
    pods: Vec<Value>,
    budgets: Vec<Value>,
    drains: Vec<Value>,
}

/// `n1` has the last pod of `y`, and `n2` the last one of `x`; the others of them are down.
fn two_away() -> Given {
    Given {
        nodes: vec![cordoned("n1"), cordoned("n2"), node("n3", json!({}))],
        pods: vec![
            runs("y", "n1"),
            runs("x", "n2"),
            waits("x", &["n1"]),
            waits("y", &["n2"]),
        ],
        budgets: vec![short("x"), short("y")],
        drains: vec![drain("n1", "Requester"), drain("n2", "Requester")],
    }
}

/// The same where drain-lock drains `n1`, and has cordoned it or not.
fn one_of_ours(node_1: Value) -> Given {
    Given {
        nodes: vec![node_1, cordoned("n2"), node("n3", json!({}))],
        drains: vec![drain("n1", "Nodeward"), drain("n2", "Requester")],
        ..two_away()
    }
}

fn three_away() -> Given {
    Given {
        nodes: ["n1", "n2", "n3"].map(cordoned).to_vec(),
        pods: vec![
            runs("y", "n1"),
            runs("z", "n2"),
            runs("x", "n3"),
            waits("x", &["n1"]),
            waits("y", &["n2"]),
            waits("z", &["n3"]),
        ],
        budgets: ["x", "y", "z"].map(short).to_vec(),
        drains: ["n1", "n2", "n3"].map(|name| drain(name, "Requester")).to_vec(),
    }
}

fn planned(given: Given) -> Plan {
    let claims = [claim(1, "n1"), claim(2, "n2"), claim(3, "n3")];
    let claims: Vec<Value> = claims.into_iter().take(given.drains.len()).collect();
    plan_of(given, json!({ "nextTicket": 9, "claims": claims }))
}

fn plan_of(given: Given, ledger: Value) -> Plan {
    let cluster = Cluster::new(given.nodes, given.pods)
        .budgets(given.budgets)
        .drains(given.drains)
        .ledger(ledger);
    let policy = Policy {
        medik8s_leases: None,
        ..Policy::from_config(Config::default()).unwrap()
    };
    plan(&cluster.snapshot_of(&NODES), &Memory::default(), &policy, now())
}

/// Of each drain what it waits for, with the node that is named; and what becomes of cordons.
fn shown(plan: &Plan) -> Vec<String> {
    let drains = plan.drains.iter().map(|verdict| {
        let why = verdict.blocked_by.iter().map(|why| {
            let node = why.node.as_deref().unwrap_or_default();
            format!("{} {node}", why.reason).trim_end().to_owned()
        });
        format!("{}: {}", verdict.node, why.collect::<Vec<_>>().join(", "))
            .trim_end()
            .to_owned()
    });
    let cordons = plan.actions.iter().filter_map(|action| match action {
        Action::Node(write) => match write.cordon {
            Cordon::Keep | Cordon::Respect => None,
            Cordon::Set { .. } => Some(format!("cordon {}", write.node.name)),
            Cordon::Lift => Some(format!("uncordon {}", write.node.name)),
            Cordon::Forget => Some(format!("forget {}", write.node.name)),
        },
        _ => None,
    });
    drains.chain(cordons).collect()
}

#[rstest]
#[case::of_others(two_away(), &["n1: CircularWait n2", "n2: CircularWait n2"])]
#[case::beside_a_node_without_a_drain(one_only_cordoned(), &["n1: CircularWait n4", "n2: CircularWait n4"])]
#[case::that_the_own_node_would_end_too(
    Given {
        pods: vec![runs("y", "n1"), runs("x", "n2"), waits("x", &["n1"]), waits("y", &["n1", "n2"])],
        ..two_away()
    },
    &["n1: CircularWait n2", "n2: CircularWait n2"]
)]
#[case::of_three(three_away(), &["n1: CircularWait n3", "n2: CircularWait n3", "n3: CircularWait n3"])]
#[case::with_one_of_ours(one_of_ours(ours("n1")), &["n1: CircularWait", "n2: CircularWait n1", "uncordon n1"])]
#[case::that_our_cordon_would_close(one_of_ours(node("n1", json!({}))), &["n1: CircularWait", "n2: CircularWait n1"])]
fn circle_names_or_uncordons_a_node(#[case] given: Given, #[case] expected: &[&str]) {
    assert_eq!(shown(&planned(given)), expected);
}

/// Another drainer evicts from the node that is under our cordon: that is not lifted under it.
#[test]
fn circle_leaves_a_cordon_to_another_drainer() {
    let mut given = one_of_ours(ours("n1"));
    let evicted =
        json!({ "metadata": { "annotations": { nodeward_api::annotation::LAST_EVICTION: "2026-01-01T11:59:00Z" } } });
    given.drains[0] = merged(given.drains[0].clone(), evicted);
    assert_eq!(shown(&planned(given)), ["n1: CircularWait n2", "n2: CircularWait n2"]);
}

/// `n1` is drained, and its pod of `x` fits no other node; `n2` has the other one, and waits for it.
fn one_stays_cordoned(node_1: Value) -> Given {
    Given {
        nodes: vec![node_1, cordoned("n2"), node("n3", json!({}))],
        pods: vec![runs("x", "n2"), waits("x", &["n1"])],
        budgets: vec![short("x")],
        ..two_away()
    }
}

fn planned_behind_drained(given: Given) -> Plan {
    let drained = json!({
        "state": "Confirmed", "mayGoDown": true, "foreignCordon": true,
        "holds": [{
            "pdb": { "namespace": "shop", "name": "x", "uid": "uid-x" }, "healthyAtGrant": 2,
            "pods": [{ "name": "x-gone", "uid": "uid-gone" }],
        }],
    });
    let claims = [merged(claim(1, "n1"), drained), claim(2, "n2")];
    plan_of(given, json!({ "nextTicket": 9, "claims": claims }))
}

/// A person has to act once the work takes longer than is expected of it.
#[rstest]
#[case::that_is_worked_on("11:50:00", LockReason::AwaitsUncordon)]
#[case::that_stays_for_long("11:45:00", LockReason::CircularWait)]
fn drain_that_waits_for_a_drained_node_names_it(#[case] drained_at: &str, #[case] reason: LockReason) {
    let mut given = one_stays_cordoned(cordoned("n1"));
    let drained_at = json!({ "status": { "drainedAt": format!("2026-01-01T{drained_at}Z") } });
    given.drains[0] = merged(given.drains[0].clone(), drained_at);
    let plan = planned_behind_drained(given);
    let second = plan
        .drains
        .iter()
        .find(|verdict| verdict.node.as_str() == "n2")
        .unwrap();
    let [told] = &second.blocked_by[..] else {
        panic!("{:?}", second.blocked_by)
    };
    assert_eq!((told.reason, told.node.as_deref()), (reason, Some("n1")));
    let ends = "once the work on it is done: kubectl uncordon n1";
    assert!(told.message.ends_with(ends), "{}", told.message);
}

/// It goes on without the pod, for which nothing is claimed any more, and waits for it all the same.
#[test]
fn drain_that_left_its_pod_out_names_the_node_all_the_same() {
    let given = Given {
        drains: vec![drain("n2", "Requester")],
        ..one_stays_cordoned(cordoned("n1"))
    };
    let granted = json!({ "state": "Confirmed", "foreignCordon": true, "obstructedSince": "2026-01-01T11:50:00Z" });
    let plan = plan_of(
        given,
        json!({ "nextTicket": 9, "claims": [merged(claim(2, "n2"), granted)] }),
    );
    let lines = shown(&plan);
    assert!(lines.contains(&"n2: CircularWait n1".to_owned()), "{lines:?}");
    let left_out = &plan.drains[0].plan.as_ref().unwrap().left_out;
    assert_eq!(left_out.len(), 1, "{left_out:?}");
}

/// `n0` was cordoned long ago, and would take the pod, too: who waits is told of the node that comes back.
#[test]
fn node_that_is_expected_back_is_named_before_others() {
    let mut given = one_stays_cordoned(cordoned("n1"));
    given.nodes.push(cordoned("n0"));
    given.pods = vec![runs("x", "n2"), waits("x", &["n0", "n1"])];
    let drained_at = json!({ "status": { "drainedAt": "2026-01-01T11:50:00Z" } });
    given.drains[0] = merged(given.drains[0].clone(), drained_at);
    assert_eq!(
        shown(&planned_behind_drained(given)).last().unwrap(),
        "n2: AwaitsUncordon n1"
    );
}

/// A node that somebody has just cordoned, without a drain, is being worked on, too.
#[rstest]
#[case::a_moment_ago("11:50:00", "AwaitsUncordon")]
#[case::long_ago("11:45:00", "CircularWait")]
fn node_without_a_drain_is_expected_back(#[case] cordoned_at: &str, #[case] reason: &str) {
    let taint = json!([{
        "key": "node.kubernetes.io/unschedulable", "effect": "NoSchedule", "timeAdded": format!("2026-01-01T{cordoned_at}Z"),
    }]);
    let node_1 = merged(cordoned("n1"), json!({ "spec": { "taints": taint } }));
    let given = Given {
        drains: vec![drain("n2", "Requester")],
        ..one_stays_cordoned(node_1)
    };
    let plan = plan_of(given, json!({ "nextTicket": 9, "claims": [claim(2, "n2")] }));
    assert_eq!(shown(&plan), [format!("n2: {reason} n1")]);
}

/// `n2` is about to be removed, by whomever: it holds nothing, and waits for the pod of `n1` like any other.
#[rstest]
#[case::as_its_own_object(json!({ "metadata": { "deletionTimestamp": "2026-01-01T11:59:00Z" } }))]
#[case::by_karpenter(json!({ "spec": { "taints": [{ "key": "karpenter.sh/disrupted", "effect": "NoSchedule" }] } }))]
fn node_that_is_removed_names_the_node_that_it_waits_for(#[case] removal: Value) {
    let mut given = one_stays_cordoned(cordoned("n1"));
    given.nodes[1] = merged(given.nodes[1].clone(), removal);
    let drained_at = json!({ "status": { "drainedAt": "2026-01-01T11:50:00Z" } });
    given.drains[0] = merged(given.drains[0].clone(), drained_at);
    assert_eq!(
        shown(&planned_behind_drained(given)).last().unwrap(),
        "n2: AwaitsUncordon n1"
    );
}

/// It never comes back.
#[test]
fn drain_that_waits_for_a_removed_node_keeps_its_reason() {
    let removed = json!({ "metadata": { "deletionTimestamp": "2026-01-01T11:59:00Z" } });
    let lines = shown(&planned_behind_drained(one_stays_cordoned(merged(
        cordoned("n1"),
        removed,
    ))));
    assert!(lines.iter().all(|line| !line.contains("CircularWait")), "{lines:?}");
}

/// It is expected back, and one that is down for longer comes back by no `uncordon`.
#[rstest]
#[case::for_a_while("11:50:00", "n2: AwaitsUncordon n1")]
#[case::for_long("11:40:00", "n2: WaitsForDisruptions n1")]
fn drained_node_that_reboots_is_waited_for(#[case] drained_at: &str, #[case] told: &str) {
    let reboots = json!({ "status": { "conditions": [{
        "type": "Ready", "status": "Unknown", "lastTransitionTime": "2026-01-01T11:51:00Z",
    }] } });
    let mut given = one_stays_cordoned(merged(cordoned("n1"), reboots));
    let drained_at = json!({ "status": { "drainedAt": format!("2026-01-01T{drained_at}Z") } });
    given.drains[0] = merged(given.drains[0].clone(), drained_at);
    assert_eq!(shown(&planned_behind_drained(given)).last().unwrap(), told);
}

#[rstest]
#[case::pod_that_waits_for_a_moment(
    Given {
        pods: vec![
            runs("y", "n1"), runs("x", "n2"), waits("y", &["n2"]),
            merged(waits("x", &["n1"]), json!({ "status": { "conditions": [{
                "type": "PodScheduled", "status": "False", "reason": "Unschedulable", "lastTransitionTime": "2026-01-01T11:59:45Z",
            }] } })),
        ],
        ..two_away()
    },
)]
#[case::pod_that_starts(
    Given {
        pods: vec![
            runs("y", "n1"), runs("x", "n2"), waits("y", &["n2"]),
            merged(runs("x", "n1"), json!({ "status": { "phase": "Pending", "conditions": null } })),
        ],
        ..two_away()
    },
)]
fn what_may_come_back_closes_no_circle(#[case] given: Given) {
    let lines = shown(&planned(given));
    assert!(lines.iter().all(|line| !line.contains("CircularWait")), "{lines:?}");
    assert!(lines.iter().any(|line| line.contains("BudgetUnhealthy")), "{lines:?}");
}

/// `x` can spare another pod.
#[test]
fn budget_with_another_disruption_closes_no_circle() {
    let numbers = json!({ "disruptionsAllowed": 1, "currentHealthy": 2, "expectedPods": 3 });
    let mut given = two_away();
    given.budgets = vec![merged(short("x"), json!({ "status": numbers })), short("y")];
    given.pods.push(runs("x", "n3"));
    assert_eq!(shown(&planned(given)), ["n1: BudgetUnhealthy", "n2:"]);
}

/// Its pod went down before the drain was planned, or for another one, and keeps the other one on the node.
#[rstest]
#[case::of_others(cordoned("n1"), "Requester", json!({}), &["n1: CircularWait n1"])]
#[case::of_ours(ours("n1"), "Nodeward", json!({}), &["n1: CircularWait", "uncordon n1"])]
#[case::of_ours_that_has_moved_it(ours("n1"), "Nodeward", moving_x(), &["n1: AwaitingReady"])]
fn drain_that_waits_for_its_own_node_opens_or_names_it(
    #[case] node_1: Value,
    #[case] evict: &str,
    #[case] own: Value,
    #[case] expected: &[&str],
) {
    let runs = merged(of_app("x", &["n1", "n3"]), json!({ "spec": { "nodeName": "n1" } }));
    let given = Given {
        nodes: vec![node_1, node("n3", json!({}))],
        pods: vec![pod("x-1", runs), waits("x", &["n1"])],
        budgets: vec![short("x")],
        drains: vec![drain("n1", evict)],
    };
    let claims = [merged(claim(1, "n1"), own)];
    let plan = plan_of(given, json!({ "nextTicket": 9, "claims": claims }));
    assert_eq!(shown(&plan), expected);
}

fn moving_x() -> Value {
    json!({ "moving": [{
        "pdb": { "namespace": "shop", "name": "x", "uid": "uid-x" }, "movable": true, "pods": [{ "name": "x-0", "uid": "uid-x-0" }],
    }] })
}

/// A drain that waits for a circle is in none: its node's pods help nobody.
#[test]
fn drain_behind_a_circle_keeps_its_reason() {
    let mut given = two_away();
    given.nodes = ["n1", "n2", "n3"].map(cordoned).to_vec();
    given.drains.push(drain("n3", "Requester"));
    let numbers = json!({ "currentHealthy": 2, "desiredHealthy": 2, "expectedPods": 3 });
    given.budgets = vec![merged(short("x"), json!({ "status": numbers })), short("y")];
    given.pods.push(runs("x", "n3"));
    assert_eq!(
        shown(&planned(given)),
        ["n1: CircularWait n2", "n2: CircularWait n2", "n3: BudgetUnhealthy"]
    );
}

#[test]
fn circle_of_others_says_the_command() {
    let plan = planned(two_away());
    let first = plan.drains.first().unwrap();
    let told = first.blocked_by.first().unwrap();
    assert!(told.message.contains("kubectl uncordon n2"), "{}", told.message);
    assert_eq!(told.pdb, Some(BudgetKey::new("shop", "y").to_string()));
}
