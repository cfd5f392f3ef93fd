//! Room: a node is cordoned once all that have to move find some together.

use proptest::prelude::*;

use super::*;
use crate::tests::fixture::cordoned;

const NODES: [&str; 5] = ["n1", "n2", "n3", "n4", "n5"];

/// A pod of no budget, on this node, that asks for one of its four CPUs.
fn on(node: &str, name: &str) -> Value {
    pod(name, merged(bare(), json!({ "spec": { "nodeName": node } })))
}

/// So many of them.
fn pods_on(node: &str, count: usize) -> Vec<Value> {
    (0..count).map(|number| on(node, &format!("{node}-{number}"))).collect()
}

fn drain_of(node: &str) -> Value {
    drain(json!({
        "metadata": { "name": node, "uid": format!("uid-drain-{node}") },
        "spec": { "nodeName": node, "nodeUID": format!("uid-{node}") },
    }))
}

fn claim_of(ticket: usize, node: &str, patch: Value) -> Value {
    let base = json!({ "ticket": ticket, "node": node, "nodeUID": format!("uid-{node}") });
    claim(merged(base, patch))
}

/// A node under the cordon of its drain.
fn drained(name: &str) -> Value {
    let cordon = json!({ nodeward_api::annotation::CORDONED_BY: format!("uid-drain-{name}") });
    node(
        name,
        json!({ "metadata": { "annotations": cordon }, "spec": { "unschedulable": true } }),
    )
}

/// Drains of ours, in the order of their tickets.
fn drains_on(nodes: impl IntoIterator<Item = Value>, pods: Vec<Value>, order: &[&str]) -> Cluster {
    let claims: Vec<Value> = order
        .iter()
        .enumerate()
        .map(|(index, name)| claim_of(index + 1, name, json!({})))
        .collect();
    Cluster::new(nodes, pods)
        .drains(order.iter().map(|name| drain_of(name)))
        .ledger(json!({ "nextTicket": 9, "claims": claims }))
}

fn plan_of(cluster: &Cluster) -> Plan {
    plan(&cluster.snapshot_of(&NODES), &Memory::default(), &policy(), now())
}

/// The nodes that are cordoned.
fn cordons(plan: &Plan) -> Vec<String> {
    let lines = shown(plan).into_iter();
    let cordons = lines.filter_map(|line| Some(line.strip_prefix("cordon ")?.to_owned()));
    cordons
        .map(|line| line.trim_end_matches(" queued").to_owned())
        .collect()
}

/// For want of room: pod, node, and what people read.
fn waits(plan: &Plan, node: &str) -> Option<(String, String, String)> {
    let verdict = plan.drains.iter().find(|verdict| verdict.node.as_str() == node)?;
    let blocked = verdict.blocked_by.iter().find(|one| one.reason == LockReason::NoRoom)?;
    assert_eq!(blocked.message, verdict.message);
    Some((
        blocked.pod.clone().unwrap(),
        blocked.node.clone().unwrap(),
        verdict.message.clone(),
    ))
}

/// A drain that only a person can go on with takes no room: its pods stay where they are.
#[rstest]
#[case::its_pods_leave(&["web"], json!({}), false)]
#[case::none_of_them_ever_may(&["web"], json!({ "spec": { "maxUnavailable": 0 }, "status": { "disruptionsAllowed": 0 } }), true)]
#[case::they_have_several_budgets(&["web", "again"], json!({}), true)]
fn stopped_drain_keeps_no_cordon_waiting(#[case] budgets: &[&str], #[case] patch: Value, #[case] is_cordoned: bool) {
    let nodes = [node("n1", json!({})), drained("n2")];
    let stuck = pod("a", json!({ "spec": { "nodeName": "n2" } }));
    let pods: Vec<Value> = pods_on("n1", 4).into_iter().chain([stuck]).collect();
    let budgets = budgets.iter().map(|name| budget(name, patch.clone()));
    let cluster = drains_on(nodes, pods, &["n2", "n1"]).budgets(budgets);
    assert_eq!(
        cordons(&plan_of(&cluster)),
        if is_cordoned { vec!["n1"] } else { vec![] }
    );
}

fn three_nodes() -> [Value; 3] {
    ["n1", "n2", "n3"].map(|name| node(name, json!({})))
}

#[rstest]
#[case::for_the_pods_of_one(3, &["n1"])]
#[case::for_the_pods_of_both(2, &["n1", "n2"])]
fn drains_begin_together_while_there_is_room(#[case] pods: usize, #[case] cordoned: &[&str]) {
    let pods = [pods_on("n1", pods), pods_on("n2", pods)].concat();
    let plan = plan_of(&drains_on(three_nodes(), pods, &["n1", "n2"]));
    assert_eq!(cordons(&plan), cordoned, "{:?}", shown(&plan));
    if cordoned.len() == 1 {
        let says = "pod shop/n2-1 finds no room on another node; it waits for the drain of n1";
        assert_eq!(
            waits(&plan, "n2"),
            Some(("shop/n2-1".to_owned(), "n1".to_owned(), says.to_owned()))
        );
        assert!(plan.requeue_at.is_some());
    }
}

/// `n1` and `n2` drain, and pods of `n3` fit `n2` alone.
#[test]
fn drain_that_could_not_make_room_is_not_waited_for() {
    let to_n2 = json!({ "spec": { "nodeName": "n3", "nodeSelector": { "kubernetes.io/hostname": "n2" } } });
    let pods = vec![on("n1", "a"), pod("b", merged(bare(), to_n2))];
    let nodes = [drained("n1"), drained("n2"), node("n3", json!({}))];
    let plan = plan_of(&drains_on(nodes, pods, &["n1", "n2", "n3"]));
    assert_eq!(
        waits(&plan, "n3").map(|(_, node, _)| node).as_deref(),
        Some("n2"),
        "{:?}",
        shown(&plan)
    );
}

/// The pod that leaves `n1` could go to `n2` alone.
#[test]
fn cordon_that_takes_the_last_room_names_the_drain_it_waits_for() {
    let pods = [pods_on("n1", 1), pods_on("n3", 4)].concat();
    let nodes = [drained("n1"), node("n2", json!({})), node("n3", json!({}))];
    let plan = plan_of(&drains_on(nodes, pods, &["n1", "n2"]));
    let says =
        "its cordon would take the last room of pod shop/n1-0, which leaves node n1; it waits for the drain of n1";
    assert_eq!(
        waits(&plan, "n2"),
        Some(("shop/n1-0".to_owned(), "n1".to_owned(), says.to_owned()))
    );
}

#[rstest]
#[case::that_finds_none_anyway(json!({ "example.com/gpu": "1" }), true)]
#[case::that_finds_some(json!({ "cpu": "4" }), false)]
fn waiting_pod_counts_where_it_would_find_room(#[case] requests: Value, #[case] is_cordoned: bool) {
    let asks = json!({ "spec": { "containers": [{ "name": "c", "resources": { "requests": requests } }] } });
    let batch = newly_waiting("batch", merged(bare(), asks));
    let pods = [pods_on("n1", 1), pods_on("n3", 1), vec![batch]].concat();
    let nodes = [drained("n1"), node("n2", json!({})), node("n3", json!({}))];
    let plan = plan_of(&drains_on(nodes, pods, &["n1", "n2"]));
    assert_eq!(!cordons(&plan).is_empty(), is_cordoned, "{:?}", shown(&plan));
}

#[test]
fn drain_begins_without_room_where_no_other_is_open() {
    let pods = [pods_on("n1", 3), pods_on("n2", 4), pods_on("n3", 4)].concat();
    let plan = plan_of(&drains_on(three_nodes(), pods, &["n1"]));
    assert_eq!(cordons(&plan), ["n1"]);
}

/// The drain of `n2` has an obstacle, so that it is not begun.
#[test]
fn drain_that_an_obstacle_stops_is_not_waited_for() {
    let pods = [
        pods_on("n1", 3),
        pods_on("n2", 3),
        pods_on("n3", 4),
        vec![pod("never", json!({ "spec": { "nodeName": "n2" } }))],
    ];
    let never = json!({ "spec": { "maxUnavailable": 0 }, "status": { "disruptionsAllowed": 0, "desiredHealthy": 3 } });
    let cluster = drains_on(three_nodes(), pods.concat(), &["n2", "n1"]).budgets([budget("web", never)]);
    assert_eq!(cordons(&plan_of(&cluster)), ["n1"]);
}

/// `n2` is back, and one of its pods is not: that finds room on `n1` alone.
#[rstest]
#[case::last_room(4, 3, Some("n2"))]
#[case::with_room(3, 3, None)]
#[case::that_there_never_is(4, 4, None)]
fn cordon_waits_for_pods_that_a_claim_is_owed(
    #[case] taken: usize,
    #[case] taken_here: usize,
    #[case] waits_for: Option<&str>,
) {
    let owed = json!({ "state": "Returning", "holds": [disruptions(&["gone"])] });
    let successor = newly_waiting("successor", json!({}));
    let pods = [
        pods_on("n1", taken_here),
        pods_on("n2", taken),
        pods_on("n3", 4),
        vec![successor],
    ];
    let cluster = Cluster::new(three_nodes(), pods.concat())
        .budgets([budget("web", json!({ "status": { "currentHealthy": 0 } }))])
        .drains([drain_of("n1")])
        .ledger(json!({ "nextTicket": 9, "claims": [claim_of(1, "n2", owed), claim_of(2, "n1", json!({}))] }));
    let plan = plan_of(&cluster);
    assert_eq!(
        waits(&plan, "n1").map(|(_, node, _)| node).as_deref(),
        waits_for,
        "{:?}",
        shown(&plan)
    );
    assert_eq!(cordons(&plan).is_empty(), waits_for.is_some(), "{:?}", shown(&plan));
}

/// Two pods of a budget that spares one: they would stay down, for `n2` alone has room for them.
#[rstest]
#[case::for_another_drain(drained("n2"), &["n2"], json!({}), "Queued: NoRoom")]
#[case::for_good(cordoned("n2"), &[], json!({}), "Scheduled: NeedExceedsBudget")]
#[case::and_two_are_pinned(drained("n2"), &["n2"], json!({ "spec": { "nodeSelector": { "kubernetes.io/hostname": "n1" } } }), "Scheduled: NeedExceedsBudget")]
fn what_has_no_room_for_other_drains_is_no_obstacle(
    #[case] node_2: Value,
    #[case] others: &[&str],
    #[case] patch: Value,
    #[case] stands: &str,
) {
    let pods = ["a", "b"].map(|name| pod(name, patch.clone()));
    let pods = [
        pods.to_vec(),
        pods_on("n3", 4),
        vec![pod("c", json!({ "spec": { "nodeName": "n3" } }))],
    ];
    let order = [&["n1"], others].concat();
    let nodes = [node("n1", json!({})), node_2, node("n3", json!({}))];
    let cluster = drains_on(nodes, pods.concat(), &order).budgets([budget("web", json!({}))]);
    let plan = plan_of(&cluster);
    assert_eq!(cordons(&plan), Vec::<String>::new());
    let lines = shown(&plan);
    assert!(lines.iter().any(|line| *line == format!("n1 is {stands}")), "{lines:?}");
}

/// `n1` is older and waits; there is room for one pod.
#[test]
fn open_drain_takes_room_before_an_older_one_that_waits() {
    let pods = [pods_on("n1", 2), pods_on("n2", 1), pods_on("n3", 3)].concat();
    let nodes = [node("n1", json!({})), drained("n2"), node("n3", json!({}))];
    let plan = plan_of(&drains_on(nodes, pods, &["n1", "n2"]));
    assert_eq!(waits(&plan, "n1").map(|(_, node, _)| node).as_deref(), Some("n2"));
    let second = plan
        .drains
        .iter()
        .find(|verdict| verdict.node.as_str() == "n2")
        .unwrap();
    assert_eq!(second.plan.as_ref().unwrap().movable, 1, "{:?}", shown(&plan));
}

#[rstest]
#[case::it_has(json!({ "nodeGroups": ["workers"] }))]
#[case::it_would_take(json!({}))]
fn drain_that_waits_for_room_keeps_no_place(#[case] state: Value) {
    let config = json!({ "nodeGroups": [{ "name": "workers", "selector": {}, "maxUnavailable": 2 }] });
    let policy = Policy {
        medik8s_leases: None,
        ..Policy::from_config(serde_json::from_value(config).unwrap()).unwrap()
    };
    let pods = [pods_on("n1", 3), pods_on("n2", 3), pods_on("n3", 4)].concat();
    let nodes = [drained("n1"), node("n2", json!({})), node("n3", json!({}))];
    let first = claim_of(1, "n1", json!({ "nodeGroups": ["workers"] }));
    let cluster = Cluster::new(nodes, pods)
        .drains(["n1", "n2"].map(drain_of))
        .ledger(json!({ "nextTicket": 9, "claims": [first, claim_of(2, "n2", state.clone())] }));
    let plan = plan(&cluster.snapshot_of(&NODES), &Memory::default(), &policy, now());
    assert!(waits(&plan, "n2").is_some(), "{:?}", shown(&plan));
    let after = plan.ledger.unwrap().next;
    assert_eq!(after.claim("uid-n2").unwrap().node_groups, Vec::<String>::new());
}

/// Pods, whether the node's drain is wanted, and whether it is cordoned for that.
type ANode = (usize, bool, bool);

proptest! {
    #![proptest_config(ProptestConfig { cases: 256, ..ProptestConfig::default() })]

    /// All pods are alike, so that counting tells. Whatever is cordoned together, all that move find room together; and what
    /// could be cordoned so is.
    #[test]
    fn all_that_move_find_room_together(nodes in prop::collection::vec((0..5_usize, any::<bool>(), any::<bool>()), 2..=5)) {
        let is_open = |(_, wanted, cordoned): &ANode| *wanted && *cordoned;
        let written = nodes.iter().zip(NODES).map(|(given, name)| if is_open(given) { drained(name) } else { node(name, json!({})) });
        let pods = nodes.iter().zip(NODES).flat_map(|((pods, ..), name)| pods_on(name, *pods)).collect();
        let order: Vec<&str> = nodes.iter().zip(NODES).filter(|((_, wanted, _), _)| *wanted).map(|(_, name)| name).collect();
        let plan = plan_of(&drains_on(written, pods, &order));

        let mut closed: Vec<bool> = nodes.iter().map(is_open).collect();
        let free = |closed: &[bool], but: Option<usize>| -> usize {
            let counts = |index: &usize| !closed[*index] && Some(*index) != but;
            (0..nodes.len()).filter(counts).map(|index| 4 - nodes[index].0).sum()
        };
        let leaving: usize = nodes.iter().filter(|given| is_open(given)).map(|(pods, ..)| pods).sum();
        let mut moving = leaving.min(free(&closed, None));
        let mut expected = Vec::new();
        let asking = (0..nodes.len()).filter(|index| nodes[*index].1 && !nodes[*index].2);
        for index in asking {
            // What finds no room with every other node in service stays down in any case.
            let own = nodes[index].0.min(free(&vec![false; nodes.len()], Some(index)));
            let all_find_room = moving + own <= free(&closed, Some(index));
            if all_find_room || !closed.contains(&true) {
                closed[index] = true;
                moving = (moving + own).min(free(&closed, None));
                expected.push(NODES[index].to_owned());
            }
        }
        prop_assert_eq!(cordons(&plan).into_iter().filter(|name| !is_open(&nodes[NODES.iter().position(|node| node == name).unwrap()])).collect::<Vec<_>>(), expected, "{:?}", shown(&plan));
    }
}

/// A member of a quorum, which runs on this node, or waits for it.
fn member(node: &str, is_down: bool) -> Value {
    let apart = json!({ "spec": { "affinity": { "podAntiAffinity": { "requiredDuringSchedulingIgnoredDuringExecution": [
        { "labelSelector": { "matchLabels": { "app": "web" } }, "topologyKey": "kubernetes.io/hostname" },
    ] } } } });
    if is_down {
        waiting("successor", apart)
    } else {
        pod(
            &format!("web-{node}"),
            merged(apart, json!({ "spec": { "nodeName": node } })),
        )
    }
}

/// The node of the member that is down would take another one, but it is that one's. Where no drain took that one down, somebody has
/// to see to it before another may go.
#[rstest]
#[case::none_is_down(three_nodes(), false, json!({}), &["n1", "n2", "n3"])]
#[case::one_is_down_by_its_drain(
    [drained("n1"), node("n2", json!({})), node("n3", json!({}))],
    true,
    json!({ "state": "Confirmed", "grant": 1, "mayGoDown": true, "holds": [disruptions(&["web-n1"])] }),
    &["n2", "n3"],
)]
#[case::one_is_down_by_itself([drained("n1"), node("n2", json!({})), node("n3", json!({}))], true, json!({}), &[])]
fn members_of_a_quorum_wait_for_their_budget_and_not_for_room(
    #[case] nodes: [Value; 3],
    #[case] is_down: bool,
    #[case] first: Value,
    #[case] cordoned: &[&str],
) {
    let members = vec![member("n1", is_down), member("n2", false), member("n3", false)];
    let names = ["n1", "n2", "n3"];
    let claims = [
        claim_of(1, "n1", first),
        claim_of(2, "n2", json!({})),
        claim_of(3, "n3", json!({})),
    ];
    let cluster = Cluster::new(nodes, members)
        .drains(names.map(drain_of))
        .ledger(json!({ "nextTicket": 9, "claims": claims }))
        .budgets([budget("web", json!({}))]);
    let plan = plan_of(&cluster);
    assert_eq!(cordons(&plan), cordoned, "{:?}", shown(&plan));
}
