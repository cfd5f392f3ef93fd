//! Movable pods: they go by what is free, and under a grant by the disruption that the claim holds for them.

use super::super::NeedChange;
use super::*;

/// The same needs with one more disruption of this budget, for movable pods.
fn with_movable(needs: Vec<Disruptions>, budget: &str) -> Vec<Disruptions> {
    let mut movable = disruptions(&[&format!("{budget}-0")]);
    movable[0].pods.clear();
    movable[0].movable = true;
    crate::ledger::disruptions::normal(needs.into_iter().chain(movable))
}

fn ask_with_movable(ledger: &mut Ledger, node: &str, pods: &[&str], budget: &str) -> NeedChange {
    ledger.enqueue(node, node, false, NOW);
    ledger.set_needs(node, with_movable(disruptions(pods), budget), NOT_DOWN, NOW)
}

fn refusal(ledger: &Ledger, node: Option<&str>, budget: &BudgetFacts, facts: &Facts) -> Option<LockReason> {
    admits(ledger, node, budget, facts)
        .err()
        .map(|obstacle| obstacle.reason)
}

/// A budget of three pods, of which two may be missing.
fn wide(name: &str) -> BudgetFacts {
    BudgetFacts {
        disruptions_allowed: 2,
        desired_healthy: 1,
        ..budget(name)
    }
}

#[test]
fn movable_pod_waits_for_claims_reservations_owners_and_health() {
    let all = facts([budget("web"), budget("db")]);
    let (web, db) = (&all[&key("web")], &all[&key("db")]);
    let mut ledger = queue(&[("first", &["web-2"])]);
    ledger.enqueue("other", "other", false, NOW);
    assert_eq!(refusal(&ledger, Some("other"), db, &all), None);
    grant(&mut ledger, "first", &all);
    ask(&mut ledger, "oldest", &["web-0", "db-0"]);
    let waits = Some(LockReason::WaitsForDisruptions);
    assert_eq!(refusal(&ledger, Some("other"), web, &all), waits);
    ledger.enqueue("younger", "younger", false, NOW);
    for node in [None, Some("other"), Some("younger")] {
        assert_eq!(refusal(&ledger, node, db, &all), Some(LockReason::Reserved), "{node:?}");
    }
    assert_eq!(
        refusal(&ledger, Some("oldest"), db, &all),
        None,
        "its own claim reserves it"
    );
    let kept = BudgetFacts {
        owner_disruptions: Some(OwnerDisruptions::All),
        ..budget("db")
    };
    assert_eq!(refusal(&ledger, None, &kept, &all), Some(LockReason::OwnerHold));
    let unhealthy = without(budget("db"), "db-1");
    assert_eq!(
        refusal(&ledger, None, &unhealthy, &all),
        Some(LockReason::BudgetUnhealthy)
    );
}

#[test]
fn grant_has_a_disruption_for_movable_pods_which_nobody_else_gets() {
    let all = facts([wide("web")]);
    let mut ledger = Ledger::default();
    ask_with_movable(&mut ledger, "a", &["web-0"], "web");
    ledger.enqueue("b", "b", false, NOW);
    grant(&mut ledger, "a", &all);
    assert_eq!(ledger.free(&all[&key("web")]), 0);
    let waits = Some(LockReason::WaitsForDisruptions);
    assert_eq!(refusal(&ledger, Some("b"), &all[&key("web")], &all), waits);
    assert_eq!(refusal(&ledger, Some("a"), &all[&key("web")], &all), None);
    // While the first is down, the next waits for its successor.
    let one_is_down = facts([without(without(wide("web"), "web-0"), "web-1")]);
    let budget = &one_is_down[&key("web")];
    assert!(refusal(&ledger, Some("a"), budget, &one_is_down).is_some());
    assert!(claim(&ledger, "a").has_movable_disruption(&key("web")));
}

#[test]
fn unconfirmed_grant_lets_no_movable_pod_go() {
    let all = facts([budget("web")]);
    let mut ledger = Ledger::default();
    ask_with_movable(&mut ledger, "a", &[], "web");
    ledger.try_grant("a", "boot", &all, NOW).unwrap();
    assert!(refusal(&ledger, Some("a"), &all[&key("web")], &all).is_some());
}

#[test]
fn claim_for_movable_pods_alone_waits_like_any_other() {
    let all = facts([budget("web")]);
    let mut ledger = queue(&[("first", &["web-2"])]);
    grant(&mut ledger, "first", &all);
    ask_with_movable(&mut ledger, "a", &[], "web");
    assert_eq!(reasons(&ledger, "a", &all), [LockReason::WaitsForDisruptions]);
    assert_eq!(ledger.reserver(&all), Some(fence(&ledger, "a").ticket));
    ledger.count_needs(&all);
    let need = &claim(&ledger, "a").needs[0];
    assert_eq!((need.disruptions, need.healthy), (1, 1));
}

#[test]
fn disruption_of_movable_pods_that_are_gone_passes_to_a_held_one_or_returns() {
    let all = facts([wide("web"), budget("db")]);
    let mut ledger = Ledger::default();
    ask_with_movable(&mut ledger, "a", &["db-0"], "web");
    grant(&mut ledger, "a", &all);
    let before = fence(&ledger, "a");
    ledger.settle_movable("a", &with_movable(disruptions(&["db-0"]), "web"));
    assert!(
        claim(&ledger, "a").has_movable_disruption(&key("web")),
        "one is still here"
    );
    ledger.settle_movable("a", &disruptions(&["db-0", "web-0"]));
    assert_eq!(held(&ledger, "a"), ["db-0", "web-0"]);
    assert!(!claim(&ledger, "a").has_movable_disruption(&key("web")));
    assert_eq!(
        (state(&ledger, "a"), fence(&ledger, "a")),
        (ClaimState::Confirmed, before)
    );

    let mut ledger = Ledger::default();
    ask_with_movable(&mut ledger, "a", &["db-0"], "web");
    grant(&mut ledger, "a", &all);
    ledger.settle_movable("a", &disruptions(&["db-0"]));
    assert_eq!(held(&ledger, "a"), ["db-0"]);
    assert_eq!(ledger.free(&all[&key("web")]), 2);
}

#[test]
fn movable_pod_that_comes_late_has_the_whole_need_queued_again() {
    let all = facts([wide("web"), budget("db")]);
    let mut ledger = queue(&[("a", &["db-0"])]);
    grant(&mut ledger, "a", &all);
    let needs = with_movable(disruptions(&["db-0"]), "web");
    assert!(claim(&ledger, "a").lacks(&needs, |_| false));
    let change = ledger.set_needs("a", needs, NOT_DOWN, NOW);
    assert_eq!(change, NeedChange::Requeued { returned: 1, kept: 0 });
    assert!(claim(&ledger, "a").needs.iter().any(|need| need.movable.0));
}

type End = fn(&mut Ledger, &dyn Fn(&HeldPod) -> bool);

#[test]
fn whatever_ends_a_turn_returns_the_disruption_for_movable_pods() {
    let all = facts([wide("web")]);
    let granted = || {
        let mut ledger = Ledger::default();
        ask_with_movable(&mut ledger, "a", &["web-0"], "web");
        grant(&mut ledger, "a", &all);
        ledger
    };
    let is_down: &dyn Fn(&HeldPod) -> bool = &|pod| pod.uid == "web-0";
    let ends: [(&str, End); 3] = [
        ("released", |ledger, is_down| _ = ledger.release("a", is_down, NOW)),
        ("timed out", |ledger, is_down| _ = ledger.time_out("a", is_down, NOW)),
        ("suspect", |ledger, _| _ = ledger.suspect("a", NOW)),
    ];
    for (what, end) in ends {
        let mut ledger = granted();
        end(&mut ledger, is_down);
        assert_eq!(held(&ledger, "a"), ["web-0"], "{what}");
        assert!(!claim(&ledger, "a").has_movable_disruption(&key("web")), "{what}");
        assert_eq!(ledger.return_pods("a", &["web-0"]), 1, "{what}");
    }
}

#[test]
fn stored_ledger_keeps_the_disruption_for_movable_pods() {
    let all = facts([wide("web"), budget("db")]);
    let mut ledger = Ledger::default();
    ask_with_movable(&mut ledger, "a", &["db-0"], "web");
    grant(&mut ledger, "a", &all);
    let stored = nodeward_api::drain_ledger::DrainLedgerSpec::from(&ledger);
    assert_eq!(stored.claims[0].movable.len(), 1);
    assert_eq!(Ledger::try_from(&stored), Ok(ledger));
}
