use std::collections::BTreeSet;
use std::sync::Arc;

use nodeward_api::reason::HealthReason;
use nodeward_core::drain::NodeDrains;
use rstest::rstest;
use serde_json::{Value, json};

use super::world::{World, at, chain, kind, name};
use crate::plan::{Condition, LeaseName, Plan, keeps_quorum};
use crate::snapshot::{EtcdGuards, KindFacts, Listed, Reading};

fn selects_control_plane() -> Value {
    json!({
        "selector": { "matchExpressions": [{ "key": "node-role.kubernetes.io/control-plane", "operator": "Exists" }] },
        "maxUnhealthy": "100%",
    })
}

fn masters(count: usize) -> World {
    World::workers(3)
        .control_plane(count)
        .check("masters", selects_control_plane())
}

#[rstest]
#[case::one(1, 1, false)]
#[case::two(2, 1, false)]
#[case::three(3, 1, true)]
#[case::three_and_two_down(3, 2, false)]
#[case::four(4, 1, true)]
#[case::four_and_two_down(4, 2, false)]
#[case::five_and_two_down(5, 2, true)]
#[case::five_and_three_down(5, 3, false)]
fn others_must_keep_a_majority(#[case] count: usize, #[case] down: usize, #[case] starts: bool) {
    let mut world = masters(count);
    for number in 1..=down {
        world.fail(&format!("m{number}"), 0);
    }
    let plan = world.settle(300);
    assert_eq!(world.remediations().len(), usize::from(starts));
    if !starts {
        let verdict = plan.node("m1");
        assert_eq!(verdict.reason, HealthReason::EtcdQuorumAtRisk);
        assert_eq!(verdict.detail.contains("never has"), count <= 2, "{}", verdict.detail);
    }
}

#[test]
fn one_control_plane_node_is_remediated_at_a_time() {
    let mut world = masters(5);
    world.fail_all(["m1", "m2"], 0);
    let plan = world.plan(300);
    assert_eq!(plan.intended("masters"), ["m1"]);
    let plan = world.settle(300);
    assert_eq!(plan.reason("m2"), HealthReason::ControlPlaneNodeAway);
    assert_eq!(world.remediations(), ["Reboot of m1"]);
    world.heal("m1", 400);
    world.settle(400);
    assert_eq!(world.remediations(), ["Reboot of m2"]);
}

#[test]
fn remediation_of_another_check_or_owner_counts() {
    let mut world = masters(5).check("others", json!({ "selector": { "matchLabels": { "no": "such" } } }));
    world.fail("m1", 0);
    for owner in ["uid-of-others", "somebody"] {
        let mut world = world.clone();
        let live = world.add_remediation("Fence", "m2", &[owner], 100);
        let plan = world.plan(300);
        assert_eq!(plan.reason("m1"), HealthReason::ControlPlaneNodeAway);
        assert!(!live.is_control_plane, "the node's role tells");
    }
    // The label tells where the node is gone.
    world.add_remediation("Fence", "m9", &["somebody"], 100);
    world.change_remediations(|live| live.is_control_plane = true);
    assert_eq!(world.settle(300).reason("m1"), HealthReason::ControlPlaneNodeAway);
}

#[test]
fn intents_of_two_checks_for_two_control_plane_nodes_leave_one() {
    let mut world = masters(5).check("again", selects_control_plane());
    world.fail_all(["m1", "m2"], 0);
    for (check, node) in [("masters", "m1"), ("again", "m2")] {
        let mut alone = world.clone();
        alone.snapshot.checks.retain(|name, _| **name == *check);
        let others: Vec<&str> = ["m1", "m2"].into_iter().filter(|other| *other != node).collect();
        alone.heal(others[0], 200);
        let plan = alone.plan(300);
        alone.apply(plan, 300);
        let facts = alone.snapshot.checks[check].clone();
        world.snapshot.checks.insert(check.into(), facts);
    }
    let plan = world.plan(301);
    assert_eq!(plan.started(), ["m1"]);
    assert_eq!(plan.intended("again"), [""; 0]);
    assert!(plan.written("again").is_some(), "the other intent is withdrawn");
}

/// `m1` is Ready, and unhealthy for another reason.
#[test]
fn node_does_not_count_for_its_own_majority() {
    let world = masters(3).failed("m2", 0);
    let nodes = world.snapshot.nodes.values().map(|node| &node.view);
    let nodes: Vec<_> = nodes.filter(|view| view.is_control_plane()).collect();
    let keeps = |node| keeps_quorum(&name(node), &nodes, &BTreeSet::new(), None);
    assert!(keeps("m1").is_err());
    assert!(keeps("m2").is_ok());
}

/// Their Nodes were deleted at 100, and nobody knows whether their members were removed.
#[rstest]
#[case::two_of_five(5, &["m4", "m5"], 300, false)]
#[case::two_of_five_at_the_end_of_the_hour(5, &["m4", "m5"], 3699, false)]
#[case::two_of_five_long_ago(5, &["m4", "m5"], 3700, true)]
#[case::one_of_five(5, &["m5"], 300, true)]
#[case::two_of_seven(7, &["m6", "m7"], 300, true)]
#[case::two_of_four(4, &["m3", "m4"], 300, false)]
fn member_whose_node_is_gone_counts_as_away(
    #[case] count: usize,
    #[case] gone: &[&str],
    #[case] now: i64,
    #[case] starts: bool,
) {
    let mut world = masters(count);
    world.settle(100);
    for node in gone {
        world.remove_node(node);
    }
    world.fail("m1", 0);
    world.settle(200);
    world.change_check("masters", |check| check.spec.pauses = vec!["until now".into()]);
    world.settle(now - 1);
    world.change_check("masters", |check| check.spec.pauses.clear());
    let plan = world.settle(now);
    assert_eq!(!world.remediations().is_empty(), starts, "{:?}", plan.node("m1"));
    if !starts {
        assert_eq!(plan.reason("m1"), HealthReason::EtcdQuorumAtRisk);
        assert!(
            plan.node("m1").detail.ends_with(&gone.join(", ")),
            "{:?}",
            plan.node("m1")
        );
        // Three of which two are Ready are enough; of two none may be missing.
        let until = (count == 5).then(|| at(3700));
        assert_eq!(plan.node("m1").until, until);
    }
}

/// One that comes back is a member as before, and one that takes its place under another name is one more.
#[test]
fn member_whose_node_returns_is_no_more_away() {
    let mut world = masters(5);
    world.settle(100);
    for node in ["m4", "m5"] {
        world.remove_node(node);
    }
    world.fail("m1", 0);
    assert_eq!(world.settle(300).reason("m1"), HealthReason::EtcdQuorumAtRisk);
    world.add_node("m5", "control-plane", 310);
    world.settle(310);
    assert_eq!(world.remediations(), ["Reboot of m1"]);
}

/// Its lease may be all that is left of a remediation.
#[test]
fn lease_of_a_member_whose_node_is_gone_counts() {
    let mut world = masters(5).failed("m1", 0);
    world.settle(100);
    world.remove_node("m5");
    world.lease("node-m5", "NodeHealthCheck-unknown", 290, 10);
    let plan = world.settle(300);
    assert_eq!(plan.reason("m1"), HealthReason::ControlPlaneNodeAway);
    assert!(plan.node("m1").detail.contains("node m5"));
}

/// Three members of etcd on five control-plane nodes: a majority is one of three.
#[rstest]
#[case::member("m1", 290, false)]
#[case::member_while_the_others_are_up("m1", 1000, true)]
#[case::no_member("m4", 290, true)]
fn only_members_of_etcd_count(#[case] node: &str, #[case] second_fails: i64, #[case] starts: bool) {
    let mut world = masters(5).failed(node, 0);
    for member in ["m1", "m2", "m3"] {
        world.label(member, "node-role.kubernetes.io/etcd", Some(""));
    }
    if second_fails < 300 {
        world.fail("m2", second_fails);
    }
    let plan = world.settle(300);
    assert_eq!(!world.remediations().is_empty(), starts);
    if !starts {
        assert_eq!(plan.reason("m1"), HealthReason::EtcdQuorumAtRisk);
    }
}

/// Its kind is not in the specification any more, and may not be listed.
#[test]
fn remediation_that_may_be_there_counts() {
    let fence = super::world::with(
        selects_control_plane(),
        json!({ "remediationTemplate": super::world::template("Fence") }),
    );
    let mut world = World::workers(1)
        .control_plane(5)
        .check("masters", fence)
        .failed("m1", 0);
    world.settle(300);
    world.set_check("masters", selects_control_plane());
    world.snapshot.remediations.clear();
    world.snapshot.leases.clear();
    world.snapshot.kinds.get_mut(&kind("Fence")).unwrap().listed = Listed::Forbidden("403".to_owned());
    world.fail("m2", 0);
    assert_eq!(world.plan(400).reason("m2"), HealthReason::ControlPlaneNodeAway);
}

/// Somebody may have one that nothing else tells of.
#[rstest]
#[case::of_a_kind_that_may_not_be_listed(Listed::Forbidden("403".to_owned()), false)]
#[case::of_a_kind_that_is_not_listed_yet(Listed::NotYet, false)]
#[case::of_a_kind_that_is_listed(Listed::Complete, true)]
#[case::of_a_kind_that_nobody_serves(Listed::NotServed, true)]
fn remediation_of_an_unlisted_kind_counts(#[case] listed: Listed, #[case] starts: bool) {
    let mut world = masters(3).check("workers", json!({})).failed("m1", 0).failed("w1", 0);
    world.snapshot.kinds.get_mut(&kind("Fence")).unwrap().listed = listed;
    let plan = world.settle(300);
    let expected: &[_] = if starts {
        &["Reboot of m1", "Reboot of w1"]
    } else {
        &["Reboot of w1"]
    };
    assert_eq!(world.remediations(), expected);
    if !starts {
        assert_eq!(plan.reason("m1"), HealthReason::ControlPlaneNodeAway);
        assert!(plan.node("m1").detail.contains("FenceRemediation"));
    }
}

/// One group, in two versions.
#[test]
fn kind_that_is_listed_in_another_version_is_known() {
    let mut world = masters(3).failed("m1", 0);
    let mut later = kind("Fence");
    later.api_version = "remediation.example.org/v1beta1".into();
    let unlisted = KindFacts {
        listed: Listed::NotYet,
        may_annotate: true,
    };
    world.snapshot.kinds.insert(later, unlisted);
    world.settle(300);
    assert_eq!(world.remediations(), ["Reboot of m1"]);
}

/// Whoever remediates `m2` does so by a kind that nobody names here.
#[rstest]
#[case::of_another_node("node-m2", "NodeHealthCheck-gone", 10, false)]
#[case::that_has_run_out("node-m2", "NodeHealthCheck-gone", 4, true)]
#[case::of_a_worker("node-w1", "NodeHealthCheck-gone", 10, true)]
#[case::for_a_drain("node-m2", "somebody", 10, true)]
fn remediation_that_only_a_lease_tells_of_counts(
    #[case] lease: &str,
    #[case] holder: &str,
    #[case] minutes: i64,
    #[case] starts: bool,
) {
    let mut world = masters(3).failed("m1", 0);
    world.lease(lease, holder, 0, minutes);
    let plan = world.settle(300);
    assert_eq!(!world.remediations().is_empty(), starts);
    if !starts {
        assert_eq!(plan.reason("m1"), HealthReason::ControlPlaneNodeAway);
        assert!(plan.node("m1").detail.contains("node m2"));
        world.live(301, 600);
        assert_eq!(world.remediations(), ["Reboot of m1"], "the lease has run out");
    }
}

/// As a MachineHealthCheck of Cluster API names its own after a Machine.
#[test]
fn remediation_that_tells_no_node_counts() {
    let mut world = masters(3).failed("m1", 0);
    world.add_remediation("Fence", "machine-m2", &["somebody"], 0);
    world.settle(300);
    assert!(
        world.remediations().contains(&"Reboot of m1".to_owned()),
        "of a node that is gone"
    );
    let mut world = masters(3).failed("m1", 0);
    world.add_remediation("Fence", "machine-m2", &["somebody"], 0);
    world.change_remediations(|live| live.tells_node = false);
    let plan = world.settle(300);
    assert_eq!(plan.reason("m1"), HealthReason::ControlPlaneNodeAway);
    assert_eq!(world.remediations(), ["Fence of machine-m2"]);
    world.add_node("machine-m2", "worker", 0);
    world.settle(301);
    assert_eq!(
        world.remediations(),
        ["Fence of machine-m2", "Reboot of m1"],
        "it is a worker's"
    );
}

#[test]
fn lost_control_plane_lease_is_taken_again() {
    let mut world = masters(3).failed("m1", 0);
    world.settle(300);
    world.snapshot.leases.remove("nodeward-control-plane");
    world.settle(310);
    assert_eq!(
        world.holder("nodeward-control-plane"),
        Some("NodeHealthCheck-masters/m1")
    );
}

#[test]
fn drain_of_an_earlier_control_plane_node_does_not_count() {
    let mut world = masters(3).failed("m1", 0);
    world.drain("m2", "Granted", 9999);
    let NodeDrains::Known(drains) = &mut world.snapshot.drains else {
        panic!();
    };
    let drain = drains.get_mut("m2").unwrap().as_mut().unwrap();
    Arc::make_mut(drain).node_uid = Some("earlier".into());
    world.settle(300);
    assert_eq!(world.remediations(), ["Reboot of m1"]);
}

#[test]
fn unreadable_drain_of_a_control_plane_node_counts() {
    for (node, starts) in [("m2", false), ("w1", true)] {
        let mut world = masters(3).failed("m1", 0);
        let unreadable = Err("its phase is of a later version".to_owned());
        world.snapshot.drains = NodeDrains::Known([(node.into(), unreadable)].into());
        let plan = world.settle(300);
        assert_eq!(!world.remediations().is_empty(), starts, "{node}");
        assert!(starts || plan.reason("m1") == HealthReason::ControlPlaneNodeAway);
    }
}

#[test]
fn drained_control_plane_node_counts_as_away() {
    for (phase, deadline, is_away) in [
        ("Granted", 9999, true),
        ("Recovering", 9999, true),
        ("Queued", 9999, false),
        ("Granted", 300, false),
    ] {
        let mut world = masters(3);
        world.fail("m1", 0);
        world.drain("m2", phase, deadline);
        let plan = world.settle(300);
        let expected = if is_away {
            HealthReason::ControlPlaneNodeAway
        } else {
            HealthReason::RemediationRunning
        };
        assert_eq!(plan.reason("m1"), expected, "{phase}");
    }
}

#[rstest]
#[case::room(vec![1], Some(true), true)]
#[case::no_room_and_member_up(vec![0], Some(true), false)]
#[case::no_room_and_member_down(vec![0], Some(false), true)]
#[case::no_room_and_no_guard(vec![0], None, true)]
#[case::no_budget(vec![], Some(false), false)]
#[case::two_budgets(vec![1, 1], Some(false), false)]
fn etcds_own_budget_tells_on_openshift(#[case] allowed: Vec<i32>, #[case] guard: Option<bool>, #[case] starts: bool) {
    // Off OpenShift two of three down would be too many.
    let mut world = masters(3).failed("m1", 0).failed("m2", 290);
    world.snapshot.etcd = Reading::Known(Some(EtcdGuards {
        disruptions_allowed: allowed,
        guards: guard.map(|ready| (name("m1"), ready)).into_iter().collect(),
    }));
    let plan = world.settle(300);
    assert_eq!(!world.remediations().is_empty(), starts);
    if !starts {
        assert_eq!(plan.reason("m1"), HealthReason::EtcdQuorumAtRisk);
    }
}

#[test]
fn unreadable_etcd_stops_the_control_plane_alone() {
    let mut world = masters(3).check("workers", json!({})).failed("m1", 0).failed("w1", 0);
    world.snapshot.etcd = Reading::Unknown("403".to_owned());
    let plan = world.settle(300);
    assert_eq!(plan.reason("m1"), HealthReason::EtcdQuorumAtRisk);
    assert_eq!(world.remediations(), ["Reboot of w1"]);
    world.snapshot.etcd = Reading::Known(None);
    world.settle(301);
    assert_eq!(world.remediations(), ["Reboot of m1", "Reboot of w1"]);
}

fn asks_etcd(plan: &Plan) -> bool {
    let mut conditions = plan.starts()[0].conditions.iter();
    conditions.any(|condition| matches!(condition, Condition::EtcdQuorum(_)))
}

#[test]
fn guard_lets_an_escalation_pass() {
    let check = super::world::with(chain(&[("Reboot", "5m"), ("Fence", "5m")]), selects_control_plane());
    let mut world = World::workers(1)
        .control_plane(3)
        .check("masters", check)
        .failed("m1", 0);
    let plan = world.plan(300);
    world.apply(plan, 300);
    assert!(asks_etcd(&world.plan(300)));
    world.settle(300);
    world.fail("m2", 500);
    let plan = world.plan(600);
    world.apply(plan, 600);
    let plan = world.plan(600);
    world.apply(plan, 600);
    assert!(!asks_etcd(&world.plan(600)));
    world.settle(600);
    assert_eq!(world.remediations(), ["Fence of m1", "Reboot of m1"]);
}

#[test]
fn guard_is_not_for_workers() {
    let mut world = World::watched(5).control_plane(1).failed("w1", 0);
    world.add_remediation("Fence", "m1", &["somebody"], 0);
    world.settle(300);
    assert_eq!(world.remediations(), ["Fence of m1", "Reboot of w1"]);
}

#[test]
fn control_plane_lease_is_taken_first_and_kept_until_the_end() {
    let mut world = masters(3);
    world.fail("m1", 0);
    let plan = world.plan(300);
    world.apply(plan, 300);
    let plan = world.plan(300);
    let leases: Vec<_> = plan.starts()[0].leases().map(|change| change.name.clone()).collect();
    assert_eq!(leases, [LeaseName::ControlPlane, LeaseName::Node(name("m1"))]);
    world.settle(300);
    assert_eq!(
        world.holder("nodeward-control-plane"),
        Some("NodeHealthCheck-masters/m1")
    );
    world.live(301, 5000);
    let lease = Arc::clone(&world.snapshot.leases["nodeward-control-plane"]);
    assert!(lease.until().unwrap() > at(5000), "it is renewed");
    world.heal("m1", 5001);
    world.settle(5001);
    assert!(world.snapshot.leases.is_empty());
}

#[test]
fn control_plane_lease_of_another_is_waited_for() {
    let mut world = masters(3);
    world.fail("m1", 0);
    world.lease("nodeward-control-plane", "nodeward-drain-lock/m2", 299, 10);
    let plan = world.settle(300);
    assert_eq!(plan.reason("m1"), HealthReason::ControlPlaneNodeAway);
    assert!(plan.node("m1").detail.contains("nodeward-drain-lock/m2"));
    world.settle(899);
    assert_eq!(world.remediations(), ["Reboot of m1"]);
}

#[test]
fn leftover_control_plane_lease_is_given_back() {
    let mut world = masters(3);
    world.lease("nodeward-control-plane", "NodeHealthCheck-masters/m2", 0, 60);
    world.settle(10);
    assert!(world.snapshot.leases.is_empty());
}

#[test]
fn control_plane_node_carries_the_label_on_its_remediation() {
    let mut world = masters(3);
    world.fail("m1", 0);
    let plan = world.plan(300);
    world.apply(plan, 300);
    let object = world.plan(300).starts()[0].object();
    assert_eq!(
        object["metadata"]["labels"]["remediation.medik8s.io/isControlPlaneNode"], "",
        "as the peer writes it"
    );
}

/// A kubelet may not give its Node the role.
#[test]
fn member_that_registers_again_without_its_role_is_no_worker() {
    let workers = json!({
        "selector": { "matchExpressions": [{ "key": "node-role.kubernetes.io/control-plane", "operator": "DoesNotExist" }] },
        "maxUnhealthy": "100%",
    });
    let mut world = masters(3).check("workers", workers).failed("m2", 0);
    world.settle(300);
    assert_eq!(world.remediations(), ["Reboot of m2"]);
    world.remove_node("m1");
    world.add_node("m1", "worker", 310);
    world.fail("m1", 315);
    let plan = world.settle(620);
    assert_eq!(world.remediations(), ["Reboot of m2"]);
    assert_eq!(plan.reason("m1"), HealthReason::ControlPlaneNodeAway);
    // By then its member may have been removed.
    world.heal("m2", 630);
    world.live(630, 310 + 3600 + 400);
    assert_eq!(world.remediations(), ["Reboot of m1"]);
}
