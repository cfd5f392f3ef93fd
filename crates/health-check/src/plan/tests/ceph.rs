//! The first step of a node with OSDs, by what ceph-pdb tells.

use std::collections::BTreeMap;
use std::sync::Arc;

use nodeward_api::CephClusterState;
use nodeward_api::reason::HealthReason;

use nodeward_core::node_health_check::HealthyDelay;
use rstest::rstest;
use serde_json::{Value, json};

use super::gates::blind_signal;
use super::world::{World, at, chain, with};
use crate::snapshot::Reading;

const NAMESPACE: &str = "rook-ceph";

/// `w1` is of rack a, `w2` and `w3` of rack b, `w4` of both, `w5` has no OSD; budgets are open, and no OSD is down. The first
/// step of what fails at 0 is due at 300.
fn world(state: Value) -> World {
    let steps = with(
        chain(&[("Reboot", "5m"), ("Fence", "5m")]),
        json!({ "maxUnhealthy": "100%" }),
    );
    let mut world = World::workers(6).check("workers", steps);
    tell(&mut world, state);
    world
}

fn tell(world: &mut World, change: Value) {
    tell_reading(world, Reading::Known(Arc::new(state(change))));
}

fn state(change: Value) -> CephClusterState {
    let known = json!({
        "cluster": "rook", "disruptions": "Open", "since": at(0).to_string(), "reason": "AllClean", "failureDomainType": "rack",
        "nodes": { "w1": ["a"], "w2": ["b"], "w3": ["b"], "w4": ["a", "b"], "w6": [] },
    });
    serde_json::from_value(with(known, change)).unwrap()
}

fn tell_reading(world: &mut World, reading: Reading<Arc<CephClusterState>>) {
    world.snapshot.ceph = BTreeMap::from([(NAMESPACE.into(), reading)]);
}

fn closed(exempt: Option<&str>, down: Value) -> Value {
    json!({ "disruptions": "Closed", "reason": "DomainDown", "exemptDomain": exempt, "downOsds": down })
}

/// What a failed node's first step comes to at 300.
fn first_step(state: Value, node: &str) -> (HealthReason, String) {
    let mut world = world(state).failed(node, 0);
    let plan = world.settle(300);
    let verdict = plan.node(node);
    (verdict.reason, verdict.detail.clone())
}

#[rstest]
#[case::nothing_is_down(json!({}), "w1")]
#[case::its_own_domain_is_down(closed(None, json!({ "a": [0] })), "w1")]
#[case::its_own_domain_is_exempt(closed(Some("a"), json!({ "a": [0], "b": [2] })), "w1")]
#[case::its_own_domain_recovers(closed(Some("a"), json!({})), "w1")]
#[case::its_own_domain_is_down_first(closed(None, json!({ "a": [0], "b": [2] })), "w1")]
#[case::its_node_is_exempt_alone(with(closed(None, json!({ "a": [0] })), json!({ "exemptNodes": ["w4"] })), "w4")]
#[case::no_osds(closed(None, json!({ "a": [0] })), "w5")]
#[case::no_osds_any_more(closed(None, json!({ "a": [0] })), "w6")]
#[case::clean_without_what_is_down(json!({ "reason": "DownOsdsExcluded", "downOsds": { "a": [0] } }), "w2")]
#[case::ceph_that_runs_elsewhere(json!({ "disruptions": "Unmanaged", "reason": "ExternalCluster" }), "w2")]
fn osds_may_go(#[case] state: Value, #[case] node: &str) {
    assert_eq!(first_step(state, node).0, HealthReason::RemediationRunning);
}

#[rstest]
#[case::another_is_down(closed(None, json!({ "a": [0] })), "w2", "the node has OSDs of rack b, and rack a is down [DomainDown]")]
#[case::another_is_exempt(closed(Some("a"), json!({ "a": [0], "b": [2] })), "w2", "the node has OSDs of rack b, and only rack a may lose OSDs now [DomainDown]")]
#[case::another_recovers(closed(Some("a"), json!({})), "w2", "the node has OSDs of rack b, and only rack a may lose OSDs now [DomainDown]")]
#[case::another_is_down_first(closed(None, json!({ "a": [0], "b": [2] })), "w2", "the node has OSDs of rack b, and rack a is down [DomainDown]")]
#[case::not_closed_yet(with(closed(None, json!({ "a": [0] })), json!({ "disruptions": "Closing" })), "w2", "the node has OSDs of rack b, and rack a is down [DomainDown]")]
#[case::another_node_is_exempt_alone(with(closed(None, json!({ "b": [2] })), json!({ "exemptNodes": ["w3"] })), "w2", "the node has OSDs of rack b, and only node w3 may lose OSDs now [DomainDown]")]
#[case::unknown_one_is_down(closed(None, json!({ "": [0] })), "w1", "the node has OSDs of rack a, and OSDs of an unknown rack are down [DomainDown]")]
#[case::all_recover(with(closed(None, json!({})), json!({ "reason": "Recovering" })), "w1", "the node has OSDs of rack a, and placement groups have not recovered [Recovering]")]
#[case::of_two_domains(closed(None, json!({ "a": [0] })), "w4", "the node has OSDs of rack a, b, and rack a is down [DomainDown]")]
fn second_domain_does_not_go(#[case] state: Value, #[case] node: &str, #[case] detail: &str) {
    let detail = format!("CephCluster rook-ceph/rook: {detail}");
    assert_eq!(first_step(state, node), (HealthReason::CephDomainDown, detail));
}

/// Their OSDs may still run: nothing is down yet, and it would be by both remediations.
#[test]
fn domains_are_remediated_one_after_another() {
    let mut world = world(json!({})).failed("w1", 0).failed("w2", 1).failed("w3", 2);
    let plan = world.settle(302);
    assert_eq!(plan.reason("w1"), HealthReason::RemediationRunning);
    let detail = "CephCluster rook-ceph/rook: the node has OSDs of rack b, and node w1, with OSDs of rack a, is being remediated";
    assert_eq!(plan.node("w2").detail, detail);
    assert_eq!(plan.reason("w3"), HealthReason::CephDomainDown);
    assert_eq!(world.remediations(), ["Reboot of w1"]);
    // Nodes of one domain may go together.
    world.heal("w1", 310);
    world.settle(310);
    assert_eq!(world.remediations(), ["Reboot of w2", "Reboot of w3"]);
}

/// Whoever owns it: the node may be away.
#[test]
fn foreign_remediation_keeps_other_domains_up() {
    let mut world = world(json!({})).failed("w2", 0);
    world.add_remediation("Replace", "w1", &["somebody"], 100);
    assert_eq!(world.settle(300).reason("w2"), HealthReason::CephDomainDown);
}

#[test]
fn node_back_within_its_healthy_delay_stops_none() {
    let mut world = world(json!({})).failed("w1", 0);
    world.change_check("workers", |check| {
        check.spec.healthy_delay = HealthyDelay::UntilConfirmed;
    });
    world.settle(300);
    world.heal("w1", 310);
    world.fail("w2", 10);
    let plan = world.settle(310);
    assert_eq!(plan.reason("w1"), HealthReason::HealthyDelayed);
    assert_eq!(plan.reason("w2"), HealthReason::RemediationRunning);
}

#[test]
fn escalation_goes_on_whatever_ceph_says() {
    for told in [
        Reading::Unknown("403".to_owned()),
        Reading::Known(Arc::new(state(closed(None, json!({ "b": [2] }))))),
    ] {
        let mut world = world(json!({})).failed("w1", 0);
        world.settle(300);
        tell_reading(&mut world, told);
        world.settle(600);
        assert_eq!(world.remediations(), ["Fence of w1", "Reboot of w1"]);
        world.heal("w1", 700);
        world.settle(700);
        assert_eq!(world.remediations(), [""; 0]);
    }
}

/// Nobody knows which nodes have OSDs.
#[rstest]
#[case::unreadable(Reading::Unknown("403".to_owned()), "namespace rook-ceph: 403")]
#[case::handed_back(
    Reading::Known(Arc::new(state(json!({ "disruptions": "Unmanaged", "reason": "ManagedByRook", "nodes": null })))),
    "namespace rook-ceph: CephCluster rook has its budgets managed by Rook (managePodBudgets: true)"
)]
fn unknown_state_postpones_for_ten_minutes(#[case] told: Reading<Arc<CephClusterState>>, #[case] detail: &str) {
    let mut world = world(json!({})).failed("w5", 0);
    tell_reading(&mut world, told.clone());
    let plan = world.settle(300);
    let verdict = plan.node("w5");
    assert_eq!(
        (verdict.reason, verdict.detail.as_str()),
        (HealthReason::CephStateUnknown, detail)
    );
    assert_eq!((verdict.until, plan.requeue_at), (Some(at(900)), Some(at(360))));
    world.live(301, 899);
    assert_eq!(world.remediations(), [""; 0]);
    world.settle(900);
    assert_eq!(world.remediations(), ["Reboot of w5"]);
}

#[test]
fn known_state_ends_the_wait_and_begins_it_anew() {
    let mut world = world(json!({})).failed("w2", 0);
    tell_reading(&mut world, Reading::Unknown("403".to_owned()));
    world.settle(300);
    tell(&mut world, closed(None, json!({ "a": [0] })));
    world.settle(400);
    assert!(world.snapshot.memory.found.unknown_since.is_empty());
    tell_reading(&mut world, Reading::Unknown("403".to_owned()));
    assert_eq!(world.settle(1000).node("w2").until, Some(at(1600)));
}

#[test]
fn waits_for_ceph_and_upgrade_do_not_add_up() {
    let mut world = world(json!({})).failed("w1", 0);
    blind_signal(&mut world);
    tell_reading(&mut world, Reading::Unknown("403".to_owned()));
    world.settle(300);
    world.settle(900);
    assert_eq!(world.remediations(), ["Reboot of w1"]);
}

/// One cluster that forbids it is enough, whatever is not known of others.
#[test]
fn every_ceph_cluster_has_a_say() {
    let mut world = world(json!({})).failed("w2", 0);
    let down = Reading::Known(Arc::new(state(closed(None, json!({ "a": [0] })))));
    world.snapshot.ceph.insert("another".into(), down);
    world
        .snapshot
        .ceph
        .insert("unreadable".into(), Reading::Unknown("403".to_owned()));
    let plan = world.settle(300);
    let detail = "CephCluster another/rook: the node has OSDs of rack b, and rack a is down [DomainDown]";
    assert_eq!(plan.node("w2").detail, detail);
}
