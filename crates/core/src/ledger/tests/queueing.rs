//! Who goes first.

use rstest::rstest;

use super::*;

#[test]
fn a_node_has_one_claim_and_keeps_its_ticket() {
    let mut ledger = Ledger::default();
    let first = ledger.enqueue("a", "a", false, NOW);
    let second = ledger.enqueue("b", "b", false, NOW);
    assert!(first < second);
    assert_eq!(ledger.enqueue("a", "a", true, NOW), first);
    assert_eq!(nodes(&ledger), ["a", "b"]);
    assert!(claim(&ledger, "a").foreign_cordon, "who cordoned it may change");
    // A node that was made again under its name is another one.
    assert!(ledger.enqueue("a", "another", false, NOW) > second);
}

#[test]
fn a_ticket_is_never_given_twice() {
    let mut ledger = queue(&[("a", &[]), ("b", &[])]);
    let last = fence(&ledger, "b").ticket;
    assert!(ledger.remove("b"));
    assert!(ledger.enqueue("b", "b", false, NOW) > last);
    // Not even if the counter was lost.
    ledger.next_ticket = 0;
    let last = ledger.claims().last().unwrap().ticket;
    assert!(ledger.enqueue("c", "c", false, NOW) > last);
}

#[test]
fn older_claim_gets_a_contested_disruption() {
    let facts = facts([budget("web")]);
    let mut ledger = queue(&[("a", &["web-0"]), ("b", &["web-1"])]);
    assert_eq!(reasons(&ledger, "b", &facts), [LockReason::Reserved]);
    assert_eq!(ledger.obstacles("b", &facts)[0].holder, Some("a".into()));
    grant(&mut ledger, "a", &facts);
    assert_eq!(reasons(&ledger, "b", &facts), [LockReason::WaitsForDisruptions]);
    assert_eq!(ledger.obstacles("b", &facts)[0].holder, Some("a".into()));
}

/// `first` holds a disruption of `web`; `oldest` needs one of `web` and one of `db`.
#[rstest]
#[case::it_waits_for_disruptions_of_another("web", None, true)]
#[case::its_other_budget_is_unhealthy("web", Some(without(budget("db"), "db-2")), false)]
#[case::an_owner_keeps_its_other_budget("web", Some(BudgetFacts { owner_disruptions: Some(OwnerDisruptions::All), ..budget("db") }), false)]
#[case::its_other_budget_is_not_current("web", Some(BudgetFacts { current: false, ..budget("db") }), false)]
#[case::it_waits_for_nobody("api", None, true)]
fn oldest_reserves_only_if_claims_alone_block_it(
    #[case] first_holds: &str,
    #[case] db: Option<BudgetFacts>,
    #[case] reserves: bool,
) {
    let disruption = format!("{first_holds}-2");
    let all = facts([budget("web"), budget("db"), budget("api")]);
    let mut ledger = queue(&[("first", &[&disruption])]);
    grant(&mut ledger, "first", &all);
    ask(&mut ledger, "oldest", &["web-0", "db-0"]);
    ask(&mut ledger, "younger", &["db-1"]);
    let mut now = all;
    now.extend(db.map(|db| (db.key.clone(), db)));
    let is_refused = reasons(&ledger, "younger", &now) == [LockReason::Reserved];
    assert_eq!(is_refused, reserves);
    // Anybody else's eviction is measured by the same.
    let is_admitted = admits(&ledger, None, &now[&key("db")], &now).is_ok();
    assert!(!reserves || !is_admitted);
}

#[test]
fn first_waiter_reserves_and_others_overtake() {
    let all = facts([budget("web"), budget("db"), budget("api")]);
    let mut ledger = queue(&[("first", &["web-2"])]);
    grant(&mut ledger, "first", &all);
    ask(&mut ledger, "oldest", &["web-0", "db-0"]);
    ask(&mut ledger, "second", &["web-1", "api-0"]);
    ask(&mut ledger, "third", &["api-1"]);
    assert_eq!(ledger.reserver(&all), Some(fence(&ledger, "oldest").ticket));
    grant(&mut ledger, "third", &all);
}

#[test]
fn claim_without_need_keeps_only_its_place() {
    let facts = facts([budget("web")]);
    let mut ledger = queue(&[("a", &["web-0"]), ("b", &["web-1"])]);
    assert_eq!(reasons(&ledger, "b", &facts), [LockReason::Reserved]);
    ledger.set_needs("a", Vec::new(), NOT_DOWN, NOW);
    assert!(reasons(&ledger, "b", &facts).is_empty());
    assert_eq!(nodes(&ledger), ["a", "b"]);
}

#[test]
fn nobody_reserves_while_waiting_for_suspect() {
    let all = facts([budget("web"), budget("db")]);
    let mut ledger = queue(&[("lost", &["web-2"])]);
    grant(&mut ledger, "lost", &all);
    ledger.suspect("lost", NOW);
    ask(&mut ledger, "oldest", &["web-0", "db-0"]);
    ask(&mut ledger, "younger", &["db-1"]);
    let down = facts([without(budget("web"), "web-2"), budget("db")]);
    assert_eq!(ledger.reserver(&down), None);
    grant(&mut ledger, "younger", &down);
}

/// Two nodes hold a disruption of a pod that is down, and each needs one of the other's budget.
fn circle(foreign: [bool; 2]) -> (Ledger, Facts) {
    let all = facts([budget("web"), budget("db")]);
    let down = facts([without(budget("web"), "web-0"), without(budget("db"), "db-0")]);
    let mut ledger = queue(&[("a", &["web-0"]), ("b", &["db-0"])]);
    for (node, foreign) in ["a", "b"].into_iter().zip(foreign) {
        ledger.enqueue(node, node, foreign, NOW);
        grant(&mut ledger, node, &all);
    }
    ledger.set_needs("a", disruptions(&["db-1"]), ALL_DOWN, NOW);
    ledger.set_needs("b", disruptions(&["web-1"]), ALL_DOWN, NOW);
    (ledger, down)
}

#[rstest]
#[case::both_ours([false, false], Some("b"))]
#[case::the_younger_is_anothers([false, true], Some("a"))]
#[case::the_older_is_anothers([true, false], Some("b"))]
#[case::both_anothers([true, true], None)]
fn youngest_claim_we_cordoned_yields_in_a_circle(#[case] foreign: [bool; 2], #[case] gives_way: Option<&str>) {
    let (mut ledger, down) = circle(foreign);
    assert_eq!(reasons(&ledger, "a", &down), [LockReason::CircularWait]);
    assert_eq!(reasons(&ledger, "b", &down), [LockReason::CircularWait]);
    assert_eq!(ledger.reserver(&down), None);
    assert_eq!(ledger.gives_way(&down), gives_way);
    let Some(node) = gives_way.map(str::to_owned) else {
        return;
    };
    ledger.time_out(&node, ALL_DOWN, NOW);
    assert_eq!(ledger.gives_way(&down), None);
    assert_eq!(reasons(&ledger, &node, &down), [LockReason::AwaitingReady]);
}

#[test]
fn drained_node_gives_way_to_nobody() {
    let (mut ledger, down) = circle([false, false]);
    ledger.claim_mut("b").unwrap().may_go_down = true;
    assert_eq!(ledger.gives_way(&down), Some("a"));
}

#[test]
fn holder_of_down_pods_precedes_those_waiting() {
    let all = facts([budget("web"), budget("db")]);
    let mut ledger = queue(&[("old", &[]), ("holder", &["web-0"])]);
    ledger.enqueue("holder", "holder", true, NOW);
    grant(&mut ledger, "holder", &all);
    ledger.set_needs("old", disruptions(&["web-1", "db-1"]), NOT_DOWN, NOW);
    ledger.set_needs("holder", disruptions(&["db-0"]), ALL_DOWN, NOW);
    let down = facts([without(budget("web"), "web-0"), budget("db")]);
    assert!(fence(&ledger, "old").ticket < fence(&ledger, "holder").ticket);
    assert!(reasons(&ledger, "holder", &down).is_empty());
}

#[rstest]
#[case::nobody(&[], &[])]
#[case::each_other(&[(1, 2), (2, 1)], &[1, 2])]
#[case::by_way_of_others(&[(1, 2), (2, 3), (3, 1)], &[1, 2, 3])]
#[case::one_of_two_ways(&[(1, 2), (1, 3), (2, 4), (3, 1)], &[1, 3])]
#[case::a_circle_of_others(&[(1, 2), (2, 3), (3, 2)], &[])]
#[case::himself(&[(1, 1)], &[])]
#[case::himself_and_another(&[(1, 1), (1, 2), (2, 1)], &[1, 2])]
fn circle_begins_and_ends_with_the_same(#[case] waits: &[(i64, i64)], #[case] expected: &[i64]) {
    let on = |at: i64| {
        waits
            .iter()
            .filter(|(waits, _)| *waits == at)
            .map(|(_, on)| *on)
            .collect()
    };
    assert_eq!(circle_of(1, on), expected);
}
