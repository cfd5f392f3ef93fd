//! Movable pods on their way: others wait for their drain, and nobody for what is down by itself.

use super::*;

/// The pods that have left a node and are not replaced.
fn moving(ledger: &Ledger, node: &str) -> Vec<String> {
    names(&claim(ledger, node).moving)
}

/// `a` drains and `web-0` has left it; `b` asks for `web-1`.
fn queue_behind_moving_pod() -> Ledger {
    let mut ledger = Ledger::default();
    ledger.enqueue("a", "a", false, NOW);
    ledger.note_moving("a", disruptions(&["web-0"]));
    ask(&mut ledger, "b", &["web-1"]);
    ledger
}

#[test]
fn others_wait_for_the_drain_that_a_pod_has_left() {
    let one_is_down = facts([without(budget("web"), "web-0")]);
    let ledger = queue_behind_moving_pod();
    let obstacles = ledger.obstacles("b", &one_is_down);
    assert_eq!(obstacles[0].reason, LockReason::WaitsForDisruptions);
    assert_eq!(obstacles[0].holder, Some("a".into()));
    let refused = admits(&ledger, None, &one_is_down[&key("web")], &one_is_down).unwrap_err();
    assert_eq!(
        (refused.reason, refused.holder),
        (LockReason::WaitsForDisruptions, Some("a".into()))
    );
    assert_eq!(
        ledger.reserver(&one_is_down),
        Some(fence(&ledger, "b").ticket),
        "it is next"
    );
}

#[test]
fn a_claim_waits_for_its_own_pods_by_another_reason() {
    let one_is_down = facts([without(budget("web"), "web-0")]);
    let mut ledger = queue_behind_moving_pod();
    ledger.set_needs("a", disruptions(&["web-2"]), NOT_DOWN, NOW);
    assert_eq!(reasons(&ledger, "a", &one_is_down), [LockReason::AwaitingPods]);
}

/// It has the disruption that its claim holds for movable pods: neither counts twice, and what waits is told who has it. The next
/// movable pod has it once the first is replaced.
#[test]
fn moving_pod_has_the_disruption_of_its_claim() {
    let all = facts([budget("web")]);
    let mut ledger = Ledger::default();
    ledger.enqueue("a", "a", false, NOW);
    let movable = Disruptions {
        movable: true,
        pods: Vec::new(),
        ..disruptions(&["web-0"]).remove(0)
    };
    ledger.set_needs("a", vec![movable], NOT_DOWN, NOW);
    grant(&mut ledger, "a", &all);
    ask(&mut ledger, "b", &["web-1"]);
    assert!(admits(&ledger, Some("a"), &all[&key("web")], &all).is_ok());

    let mut one_is_down = without(budget("web"), "web-0");
    one_is_down.disruptions_allowed = 0;
    let one_is_down = facts([one_is_down]);
    ledger.note_moving("a", disruptions(&["web-0"]));
    let is_told = |ledger: &Ledger| {
        let obstacle = ledger.obstacles("b", &one_is_down).remove(0);
        assert_eq!(
            (obstacle.reason, obstacle.holder),
            (LockReason::WaitsForDisruptions, Some("a".into()))
        );
    };
    is_told(&ledger);
    let next = admits(&ledger, Some("a"), &one_is_down[&key("web")], &one_is_down);
    assert_eq!(next.unwrap_err().reason, LockReason::AwaitingReady);
    // No movable pod is left, and nothing replaces the one that has gone yet.
    ledger.settle_movable("a", &[]);
    is_told(&ledger);
}

#[test]
fn pod_that_is_unhealthy_by_itself_is_nobodys() {
    let mut two_are_down = without(without(budget("web"), "web-0"), "web-2");
    two_are_down.disruptions_allowed = 0;
    let two_are_down = facts([two_are_down]);
    assert_eq!(
        reasons(&queue_behind_moving_pod(), "b", &two_are_down),
        [LockReason::BudgetUnhealthy]
    );
}

#[test]
fn moving_pod_takes_nothing_once_the_budget_has_its_pods_again() {
    let (all, one_is_down) = (facts([budget("web")]), facts([without(budget("web"), "web-0")]));
    let mut ledger = queue_behind_moving_pod();
    ledger.settle_moving(&one_is_down, &BTreeMap::new());
    assert_eq!(moving(&ledger, "a"), ["web-0"]);
    // The successor is Ready under another name.
    let mut replaced = without(budget("web"), "web-0");
    replaced.healthy.insert("web-9".into());
    replaced.disruptions_allowed = 1;
    let replaced = facts([replaced]);
    assert_eq!(reasons(&ledger, "b", &all), []);
    ledger.settle_moving(&replaced, &BTreeMap::new());
    assert_eq!(moving(&ledger, "a"), [""; 0]);
}

#[test]
fn of_pods_that_are_missing_claims_have_theirs_first_and_the_oldest_drain_is_replaced_first() {
    let mut ledger = queue(&[("held", &["web-2"])]);
    grant(&mut ledger, "held", &facts([budget("web")]));
    for (node, pod) in [("a", "web-0"), ("b", "web-1")] {
        ledger.enqueue(node, node, false, NOW);
        ledger.note_moving(node, disruptions(&[pod]));
    }
    let healthy = |pods: &[&str]| {
        let healthy = pods.iter().map(|pod| PodUid::from(*pod)).collect();
        facts([BudgetFacts {
            healthy,
            ..budget("web")
        }])
    };
    ledger.settle_moving(&healthy(&[]), &BTreeMap::new());
    assert_eq!(
        (moving(&ledger, "a"), moving(&ledger, "b")),
        (vec!["web-0".to_owned()], vec!["web-1".to_owned()])
    );
    ledger.settle_moving(&healthy(&["web-9"]), &BTreeMap::new());
    assert_eq!(
        (moving(&ledger, "a"), moving(&ledger, "b")),
        (vec![], vec!["web-1".to_owned()])
    );
}

#[test]
fn nobody_waits_for_what_is_down_by_itself_nor_for_a_budget_that_is_gone() {
    let one_is_down = facts([without(budget("web"), "web-0")]);
    let mut ledger = queue_behind_moving_pod();
    ledger.settle_moving(&one_is_down, &BTreeMap::from([(key("web"), 1)]));
    assert_eq!(moving(&ledger, "a"), [""; 0]);
    assert_eq!(reasons(&ledger, "b", &one_is_down), [LockReason::BudgetUnhealthy]);
    assert_eq!(ledger.reserver(&one_is_down), None);

    let mut made_again = without(budget("web"), "web-0");
    made_again.uid = "another".into();
    for facts in [facts([made_again]), Facts::new()] {
        let mut ledger = queue_behind_moving_pod();
        ledger.settle_moving(&facts, &BTreeMap::new());
        assert_eq!(moving(&ledger, "a"), [""; 0]);
    }
}

#[test]
fn pod_that_the_claim_has_a_disruption_for_does_not_move() {
    let mut ledger = queue(&[("a", &["web-0"])]);
    grant(&mut ledger, "a", &facts([budget("web")]));
    ledger.note_moving("a", disruptions(&["web-0"]));
    assert_eq!(moving(&ledger, "a"), [""; 0]);
}

#[test]
fn stored_ledger_keeps_moving_pods() {
    let ledger = queue_behind_moving_pod();
    let stored = nodeward_api::drain_ledger::DrainLedgerSpec::from(&ledger);
    assert_eq!(stored.claims[0].moving.len(), 1);
    assert_eq!(Ledger::try_from(&stored), Ok(ledger));
}

/// A pod that somebody deletes though it comes back with its node alone: the next drain waits for this one, until it is back.
#[test]
fn others_wait_for_the_drain_of_a_pod_that_was_deleted_beside_the_claim() {
    let mut leaving = without(budget("web"), "web-0");
    leaving.disruptions_allowed = 0;
    leaving.pods.all -= 1;
    let leaving = facts([leaving]);
    let mut ledger = Ledger::default();
    ledger.enqueue("a", "a", false, NOW);
    ledger.note_forced("a", disruptions(&["web-0"]), &leaving);
    ask(&mut ledger, "b", &["web-1"]);
    let obstacle = ledger.obstacles("b", &leaving).remove(0);
    assert_eq!(
        (obstacle.reason, obstacle.holder),
        (LockReason::WaitsForDisruptions, Some("a".into()))
    );
    let needed = disruptions(&["web-1"]).remove(0);
    assert_eq!(
        ledger.beyond_claims("b", needed, &leaving),
        None,
        "nothing is left out for it"
    );
    let held = claim(&ledger, "a").holds[0].clone();
    assert_eq!(
        (names(std::slice::from_ref(&held)), held.healthy_at_grant),
        (vec!["web-0".to_owned()], 3)
    );
    let row = ledger.budget_row(&held.pdb).and_then(|row| row.first_grant);
    assert_eq!(row.map_or(0, |first| first.missing_pods), 0);

    ledger.release("a", ALL_DOWN, NOW);
    assert_eq!(
        claim(&ledger, "a").state,
        ClaimState::Returning,
        "it is down until it is back"
    );
}
