//! OSDs of Ceph: two on `n1`, two on `n2`, under the budget that Ceph's operator keeps.

use nodeward_api::label::{MANAGED_BY, MANAGED_BY_CEPH_PDB};

use super::*;

/// An OSD of a host, which fits no other.
fn osd(name: &str, host: &str, patch: Value) -> Value {
    let osd = json!({
        "metadata": { "labels": { "app": "rook-ceph-osd", "topology-location-host": host } },
        "spec": { "nodeName": host, "nodeSelector": { "kubernetes.io/hostname": host } },
    });
    pod(name, merged(osd, patch))
}

/// The budget `web` over these OSDs, of which so many are healthy, as Ceph's operator keeps it.
fn osds(operators: Value, max_unavailable: i32, selector: Value, healthy: i32) -> Value {
    let (expected, desired) = (healthy.max(4), healthy.max(4) - max_unavailable);
    let patch = json!({
        "metadata": operators,
        "spec": { "maxUnavailable": max_unavailable, "selector": { "matchLabels": null, "matchExpressions": selector } },
        "status": {
            "disruptionsAllowed": (healthy - desired).max(0), "currentHealthy": healthy, "desiredHealthy": desired,
            "expectedPods": expected,
        },
    });
    budget("web", patch)
}

fn ceph_pdbs() -> Value {
    json!({ "labels": { MANAGED_BY: MANAGED_BY_CEPH_PDB }, "annotations": { nodeward_api::annotation::COUNTS: "node" } })
}

fn all_osds() -> Value {
    json!([{ "key": "app", "operator": "In", "values": ["rook-ceph-osd"] }])
}

fn all_but(host: &str) -> Value {
    json!([
        { "key": "app", "operator": "In", "values": ["rook-ceph-osd"] },
        { "key": "topology-location-host", "operator": "NotIn", "values": [host] },
    ])
}

/// The OSDs `a` and `d` of `n1`, and `b` and `c` of `n2`, in the drain of `n1`.
fn hosts(claim: &Value, first: Value, second: Value, budget: Value) -> Cluster {
    let there = ["b", "c"].map(|name| osd(name, "n2", json!({})));
    let here = [osd("a", "n1", first), osd("d", "n1", second)];
    hosts_with(claim, here.into_iter().chain(there), with_fallback("Wait"), budget)
}

fn hosts_with(claim: &Value, pods: impl IntoIterator<Item = Value>, drain: Value, budget: Value) -> Cluster {
    Cluster::new([ours(json!({})), node("n2", json!({}))], pods)
        .budgets([budget])
        .drains([drain])
        .ledger(json!({ "nextTicket": 9, "claims": [claim] }))
}

#[rstest]
#[case::it_asks_for_one(
    hosts(&claim(json!({})), json!({}), json!({}), osds(ceph_pdbs(), 1, all_osds(), 4)),
    &["ledger: n1#1 Waiting needs [a+d] holds []", "grant uid-n1", "n1 is Draining"]
)]
#[case::of_a_persons_own_budget_it_needs_two(
    hosts(&claim(json!({})), json!({}), json!({}), osds(json!({}), 1, all_osds(), 4)),
    &["ledger: n1#1 Waiting needs [a+d] holds []", "n1 is Draining: NeedExceedsBudget, NeedExceedsBudget"]
)]
#[case::the_first_goes_and_the_second_waits_to_be_left_out(
    hosts(&granted("Confirmed", &["a", "d"]), json!({}), json!({}), osds(ceph_pdbs(), 1, all_osds(), 4)),
    &["evict a under 1/5", "n1 is Draining: CephClosed"]
)]
#[case::while_the_first_goes_the_second_waits(
    hosts(&granted("Confirmed", &["a", "d"]), leaving(json!({})), json!({}), osds(ceph_pdbs(), 1, all_osds(), 3)),
    &["n1 is Draining: CephClosed"]
)]
#[case::left_out_of_the_budget_the_second_goes(
    hosts(&granted("Confirmed", &["a", "d"]), leaving(json!({})), json!({}), osds(ceph_pdbs(), 0, all_but("n1"), 2)),
    &["evict d under 1/5", "n1 is Draining"]
)]
#[case::an_unready_one_takes_nothing(
    hosts(
        &granted("Confirmed", &["a", "d"]), json!({ "status": { "conditions": [{ "type": "Ready", "status": "False" }] } }),
        json!({}), osds(ceph_pdbs(), 1, all_osds(), 3),
    ),
    &["evict a under 1/5", "n1 is Draining: CephClosed"]
)]
#[case::a_closed_budget_is_waited_for(
    hosts(&claim(json!({})), json!({}), json!({}), osds(ceph_pdbs(), 0, all_but("n3"), 4)),
    &["ledger: n1#1 Waiting needs [a+d] holds []", "n1 is Draining: CephClosed, CephClosed"]
)]
#[case::closed_by_a_person_it_never_allows(
    hosts(&claim(json!({})), json!({}), json!({}), osds(json!({}), 0, all_osds(), 4)),
    &[
        "ledger: n1#1 Waiting needs [a+d] holds []", "ask for a", "ask for d",
        "n1 is Draining: BudgetNeverAllows, BudgetNeverAllows",
    ]
)]
fn osds_of_a_host_drain_by_one_disruption(#[case] cluster: Cluster, #[case] expected: &[&str]) {
    assert_eq!(shown(&planned(&cluster)), expected);
}

/// A moment in the middle of the closing: the OSDs of `n1` are under a budget of their domain, too.
#[test]
fn osds_in_two_closing_budgets_are_no_mistake() {
    let of_domain = merged(
        osds(
            ceph_pdbs(),
            0,
            json!([{ "key": "topology-location-host", "operator": "In", "values": ["n1"] }]),
            2,
        ),
        json!({ "metadata": { "name": "rook-ceph-osd-host-n1", "uid": "uid-n1" } }),
    );
    let open = osds(ceph_pdbs(), 1, all_osds(), 4);
    let cluster = hosts(&claim(json!({})), json!({}), json!({}), open.clone()).budgets([open, of_domain]);
    let plan = planned(&cluster);
    assert_eq!(
        shown(&plan).last().map(String::as_str),
        Some("n1 is Draining: CephClosed, CephClosed"),
        "{:?}",
        plan.drains
    );
}

/// With no drain to wait for: the host goes on serving until Ceph has opened the budget.
#[rstest]
#[case::open(1, all_osds(), &["cordon n1", "n1 is Scheduled"])]
#[case::closed(0, all_but("n3"), &["mark n1 queued", "n1 is Scheduled: CephClosed, CephClosed"])]
fn host_is_not_cordoned_while_its_budget_is_closed(
    #[case] max_unavailable: i32,
    #[case] selector: Value,
    #[case] expected: &[&str],
) {
    let osds_of = |host: &'static str, names: [&'static str; 2]| names.map(|name| osd(name, host, json!({})));
    let pods = osds_of("n1", ["a", "d"]).into_iter().chain(osds_of("n2", ["b", "c"]));
    let cluster = Cluster::new([node("n1", json!({})), node("n2", json!({}))], pods)
        .budgets([osds(ceph_pdbs(), max_unavailable, selector, 4)])
        .drains([drain(json!({}))])
        .ledger(json!({ "nextTicket": 9, "claims": [claim(json!({}))] }));
    assert_eq!(shown(&planned(&cluster)), expected);
}

#[rstest]
#[case::host_that_is_down(leaving(json!({})), "OSDs are down on n2")]
#[case::none(json!({}), "no OSD is down")]
fn closed_budget_names_what_opens_it(#[case] state: Value, #[case] why: &str) {
    let there = ["b", "c"].map(|name| osd(name, "n2", state.clone()));
    let here = ["a", "d"].map(|name| osd(name, "n1", json!({})));
    let budget = osds(ceph_pdbs(), 0, all_but("n2"), 2);
    let cluster = hosts_with(
        &claim(json!({})),
        here.into_iter().chain(there),
        drain(json!({})),
        budget,
    );
    let plan = planned(&cluster);
    let told = &plan.drains[0].blocked_by[0];
    assert_eq!(told.reason, LockReason::CephClosed);
    let message = &told.message;
    assert!(
        message.contains("placement groups are clean") && message.contains(why),
        "{message}"
    );
}
