//! Nodes that others take out of service: those that are being remediated, and those of the control plane.

use nodeward_api::node_lease;

use super::*;

const RENEWED: &str = "2026-01-01T11:59:00.000000Z";

fn lease(name: &str, holder: &str, renewed: &str) -> Value {
    json!({
        "metadata": { "namespace": "medik8s-leases", "name": name, "resourceVersion": "3" },
        "spec": { "holderIdentity": holder, "renewTime": renewed, "leaseDurationSeconds": 600 },
    })
}

fn remediates(node: &str) -> Value {
    lease(&node_lease::name_of(node), "NodeHealthCheck-workers", RENEWED)
}

fn control_plane(holder: &str) -> Value {
    lease(node_lease::CONTROL_PLANE, holder, RENEWED)
}

/// The labels of a control-plane node.
fn member() -> Value {
    json!({ "metadata": { "labels": { "node-role.kubernetes.io/control-plane": "" } } })
}

fn leased_policy() -> Policy {
    Policy::from_config(Config::default()).unwrap()
}

/// What is done about leases and grants, and how the drains stand: the ledger's own lines and the node's markers are left out.
fn turns(plan: &Plan) -> Vec<String> {
    let mut lines = shown(plan);
    lines.retain(|line| !line.starts_with("ledger") && !line.starts_with("mark"));
    lines
}

#[rstest]
#[case::not_cordoned_yet(node("n1", json!({})), json!({}), held("a", json!({})), &["n1 is Scheduled: UnderRemediation"])]
#[case::pods_leave(ours(json!({})), json!({}), pod("a", json!({})), &["n1 is Draining: UnderRemediation"])]
#[case::asking(ours(json!({})), json!({ "state": "Waiting" }), held("a", json!({})), &["n1 is Draining: UnderRemediation"])]
#[case::granted_and_not_confirmed(
    ours(json!({})), granted("Granted", &["a"]), held("a", json!({})), &["n1 is Draining: AwaitsConfirmation"]
)]
#[case::pods_with_disruptions_leave(
    ours(json!({})), granted("Confirmed", &["a"]), held("a", json!({})), &["n1 is Draining: UnderRemediation"]
)]
fn drain_of_a_node_under_remediation_rests(
    #[case] node_1: Value,
    #[case] state: Value,
    #[case] pod: Value,
    #[case] expected: &[&str],
) {
    let turns_with = |remediated: &str| {
        let cluster = cluster(
            node_1.clone(),
            Some(drain(json!({}))),
            &[claim(state.clone())],
            std::slice::from_ref(&pod),
        );
        let snapshot = cluster.leases([remediates(remediated)]).snapshot();
        turns(&plan(&snapshot, &Memory::default(), &policy(), now()))
    };
    assert_eq!(turns_with("n1"), expected);
    assert_ne!(turns_with("n2"), expected, "another node's remediation changes nothing");
}

/// A remediation that deletes the machine has the node drained, and ends only then.
#[test]
fn drain_by_a_requester_goes_on_under_remediation() {
    let turns_with = |leases: Vec<Value>| {
        let drain = drain(json!({ "spec": { "evict": "Requester" } }));
        let claim = claim(json!({ "state": "Waiting", "foreignCordon": true }));
        let cluster = cluster(foreign(json!({})), Some(drain), &[claim], &[held("a", json!({}))]);
        turns(&plan(
            &cluster.leases(leases).snapshot(),
            &Memory::default(),
            &policy(),
            now(),
        ))
    };
    assert_eq!(turns_with(vec![remediates("n1")]), ["grant uid-n1", "n1 is Draining"]);
}

/// `n1` and `n2` are of the control plane, and `n1` has this claim.
fn members(evict: &str, state: Value, leases: Vec<Value>) -> Plan {
    let drain = drain(json!({ "spec": { "evict": evict } }));
    let pods = [held("a", json!({}))].into_iter().chain(siblings());
    let cluster = Cluster::new([ours(member()), node("n2", member())], pods)
        .budgets([budget("web", json!({}))])
        .drains([drain])
        .ledger(
            json!({ "nextTicket": 9, "claims": [claim(merged(json!({ "nodeGroups": ["control-plane"] }), state))] }),
        )
        .leases(leases);
    plan(&cluster.snapshot(), &Memory::default(), &leased_policy(), now())
}

const OURS: &str = "nodeward-drain-lock/n1";
const TAKES: &str = "take nodeward-control-plane for nodeward-drain-lock/n1";

#[rstest]
#[case::free(vec![], &[TAKES, "n1 is Draining"])]
#[case::expired(vec![lease(node_lease::CONTROL_PLANE, "NodeHealthCheck-workers/n2", YESTERDAY)], &[TAKES, "n1 is Draining"])]
#[case::ours(vec![control_plane(OURS)], &["grant uid-n1", "n1 is Draining"])]
#[case::of_a_remediation(vec![control_plane("NodeHealthCheck-workers/n2")], &["n1 is Draining: ControlPlaneBusy"])]
#[case::of_another_drain(vec![control_plane("nodeward-drain-lock/n2")], &[
    "release nodeward-control-plane for nodeward-drain-lock", "n1 is Draining: ControlPlaneBusy",
])]
#[case::another_member_is_remediated(vec![remediates("n2")], &["n1 is Draining: ControlPlaneBusy"])]
fn control_plane_grant_requires_the_lease(
    #[values("Nodeward", "Requester")] evict: &str,
    #[case] leases: Vec<Value>,
    #[case] expected: &[&str],
) {
    assert_eq!(turns(&members(evict, json!({ "state": "Waiting" }), leases)), expected);
}

#[rstest]
#[case::granted(granted("Granted", &["a"]), vec![], &[TAKES, "n1 is Draining: AwaitsConfirmation"])]
#[case::granted_while_another_has_it(
    granted("Granted", &["a"]), vec![control_plane("NodeHealthCheck-workers/n2")], &["n1 is Draining: AwaitsConfirmation"]
)]
#[case::drained(merged(granted("Confirmed", &["a"]), json!({ "mayGoDown": true })), vec![lease(node_lease::CONTROL_PLANE, OURS, YESTERDAY)], &[TAKES])]
fn control_plane_lease_stays_while_node_is_away(
    #[case] state: Value,
    #[case] leases: Vec<Value>,
    #[case] expected: &[&str],
) {
    let plan = members("Requester", state, leases);
    assert!(plan.ledger.iter().all(|write| write.confirms.is_empty()));
    let turns = turns(&plan);
    assert!(
        expected.iter().all(|line| turns.iter().any(|turn| turn == line)),
        "{turns:?}"
    );
}

/// Of so many other nodes of the control plane these are Ready.
#[rstest]
#[case::alone(&[], true)]
#[case::one_of_two(&[true], true)]
#[case::one_of_three(&[true, true], false)]
#[case::another_of_three_failed(&[true, false], true)]
#[case::another_of_five_failed(&[true, true, true, false], false)]
fn lost_quorum_is_told_before_evictions(#[case] others: &[bool], #[case] is_told: bool) {
    let others = others.iter().enumerate().map(|(index, is_ready)| {
        let status = if *is_ready { "True" } else { "Unknown" };
        let ready = json!({ "status": { "conditions": [{ "type": "Ready", "status": status, "lastTransitionTime": YESTERDAY }] } });
        node(&format!("n{}", index + 2), merged(member(), ready))
    });
    let nodes = [ours(member()), node("worker", json!({}))].into_iter().chain(others);
    let pods = [held("a", json!({}))].into_iter().chain(siblings());
    let granted = merged(json!({ "nodeGroups": ["control-plane"] }), granted("Granted", &["a"]));
    let cluster = Cluster::new(nodes, pods)
        .budgets([budget("web", json!({}))])
        .drains([drain(json!({}))])
        .ledger(json!({ "nextTicket": 9, "claims": [claim(granted)] }));
    let plan = plan(&cluster.snapshot(), &Memory::default(), &policy(), now());
    let write = plan.ledger.unwrap();
    assert_eq!(write.confirms.len(), 1);
    let told: Vec<LockReason> = write.announcements.iter().map(|told| told.reason).collect();
    assert_eq!(told, if is_told { vec![LockReason::QuorumLost] } else { vec![] });
}

#[test]
fn control_plane_lease_is_released_once_unused() {
    let release = "release nodeward-control-plane for nodeward-drain-lock";
    let goes_back =
        |state: Value| turns(&members("Requester", state, vec![control_plane(OURS)])).contains(&release.to_owned());
    // Its budget has no room, so it has no use of the lease yet.
    let waits = json!({ "state": "Waiting", "needs": [] });
    assert!(!goes_back(granted("Confirmed", &["a"])));
    assert!(!goes_back(granted("Suspect", &["a"])));
    let cluster = Cluster::new([node("n1", member())], []).leases([control_plane(OURS)]);
    let plan = plan(&cluster.snapshot(), &Memory::default(), &leased_policy(), now());
    assert_eq!(turns(&plan), [release]);
    let blocked = Cluster::new([ours(member())], [held("a", json!({}))])
        .budgets([budget("web", json!({ "status": { "disruptionsAllowed": 0 } }))])
        .drains([drain(json!({}))])
        .ledger(json!({ "nextTicket": 9, "claims": [claim(waits)] }))
        .leases([control_plane(OURS)]);
    let plan = super::plan(&blocked.snapshot(), &Memory::default(), &leased_policy(), now());
    assert_eq!(turns(&plan)[0], release);
}

#[test]
fn a_worker_needs_no_lease_of_the_control_plane() {
    let cluster = cluster(
        ours(json!({})),
        Some(drain(json!({}))),
        &[claim(json!({ "state": "Waiting" }))],
        &[held("a", json!({}))],
    );
    let leases = [control_plane("NodeHealthCheck-workers/n2")];
    let plan = plan(
        &cluster.leases(leases).snapshot(),
        &Memory::default(),
        &leased_policy(),
        now(),
    );
    assert_eq!(turns(&plan), ["grant uid-n1", "n1 is Draining"]);
}

#[test]
fn a_preview_names_what_others_do_with_the_node() {
    let drain = drain(json!({ "spec": { "dryRun": true } }));
    let cluster = Cluster::new([node("n1", member()), node("n2", member())], [])
        .drains([drain])
        .leases([remediates("n1"), control_plane("NodeHealthCheck-workers/n1")]);
    let plan = plan(&cluster.snapshot(), &Memory::default(), &leased_policy(), now());
    assert_eq!(turns(&plan), ["n1 is Scheduled: UnderRemediation, ControlPlaneBusy"]);
}
