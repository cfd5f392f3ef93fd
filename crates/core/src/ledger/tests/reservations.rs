//! What is worked out once for many questions answers them as if it were worked out for each.

use proptest::prelude::*;

use super::super::{Obstacle, Reservations};
use super::*;

const BUDGETS: usize = 6;
const CLAIMS: usize = 14;

/// One claim: the budgets of which it holds and needs a pod, and whether it is granted, if it holds anything.
type AClaim = ([bool; BUDGETS], [bool; BUDGETS], bool);

fn any_claims() -> impl Strategy<Value = Vec<AClaim>> {
    let some = || prop::array::uniform6(prop::bool::weighted(0.25));
    let none = || Just([false; BUDGETS]);
    let holds = prop_oneof![2 => none(), 1 => some()];
    prop::collection::vec((holds, some(), any::<bool>()), CLAIMS)
}

fn pods_of(claim: usize, chosen: [bool; BUDGETS]) -> Vec<String> {
    let chosen = chosen.iter().enumerate().filter(|(_, chosen)| **chosen);
    chosen.map(|(budget, _)| format!("b{budget}-{claim}")).collect()
}

fn asked(pods: &[String]) -> Vec<Disruptions> {
    disruptions(&pods.iter().map(String::as_str).collect::<Vec<_>>())
}

/// A budget with a pod for each claim, of which so many may be missing.
fn shared_budget(number: usize, allowed: i32) -> BudgetFacts {
    let names: Vec<String> = (0..CLAIMS).map(|claim| format!("b{number}-{claim}")).collect();
    let count = i32::try_from(CLAIMS).unwrap();
    BudgetFacts {
        disruptions_allowed: allowed,
        desired_healthy: count - allowed,
        expected_pods: count,
        healthy: pods(&names),
        ..budget(&format!("b{number}"))
    }
}

fn ledger(claims: &[AClaim]) -> Ledger {
    let mut ledger = Ledger::default();
    let all_free = facts((0..BUDGETS).map(|number| shared_budget(number, i32::try_from(CLAIMS).unwrap())));
    for (number, (holds, _, is_granted)) in claims.iter().enumerate() {
        let node = format!("n{number}");
        ledger.enqueue(&node, &node, false, NOW);
        let held = pods_of(number, *holds);
        if held.is_empty() {
            continue;
        }
        ledger.set_needs(&node, asked(&held), NOT_DOWN, NOW);
        grant(&mut ledger, &node, &all_free);
        if !is_granted {
            ledger.time_out(&node, ALL_DOWN, NOW);
        }
    }
    ledger
}

/// As it is defined, claim by claim.
fn plain_free(ledger: &Ledger, budget: &BudgetFacts) -> i32 {
    let taken: i32 = ledger.claims().iter().map(|claim| claim.outstanding(budget, &[])).sum();
    budget.unbroken() - taken
}

proptest! {
    #[test]
    fn free_disruptions_are_those_of_all_claims(claims in any_claims(), allowed in 0..6_i32, down in 0..CLAIMS) {
        let ledger = ledger(&claims);
        for number in 0..BUDGETS {
            let mut budget = shared_budget(number, allowed);
            budget.healthy.remove(format!("b{number}-{down}").as_str());
            // A pod of another budget is one of its healthy ones, too.
            budget.healthy.insert(PodUid::from(format!("b{}-{down}", (number + 1) % BUDGETS)));
            prop_assert_eq!(ledger.free(&budget), plain_free(&ledger, &budget));
            let is_held = |uid: &PodUid| ledger.claims().iter().any(|claim| claim.has_disruption(uid.as_str()));
            for uid in &budget.healthy {
                prop_assert_eq!(ledger.is_held(uid.as_str()), is_held(uid));
            }
        }
    }

    #[test]
    fn reservations_follow_needs_and_grants(claims in any_claims(), allowed in 0..6_i32) {
        let facts = facts((0..BUDGETS).map(|number| shared_budget(number, allowed)));
        let mut ledger = ledger(&claims);
        let mut reservations = Reservations::new(&ledger, &facts);
        for (number, (_, needs, _)) in claims.iter().enumerate() {
            let node = format!("n{number}");
            let needs = asked(&pods_of(number, *needs));
            ledger.set_needs_before(&mut reservations, &node, needs, ALL_DOWN, NOW);
            reservations.look_ahead_of(&node, &ledger, &facts);
            let known = ledger.obstacles_by(&node, &facts, &reservations);
            prop_assert_eq!(&known, &anew(&ledger, &node, &facts), "{}", node);
            // Some are granted while the others ask.
            if known.is_empty() && number % 3 == 0 {
                let _ = ledger.try_grant(&node, "boot", &facts, NOW);
            }
        }
        let all = Reservations::of_all(&ledger, &facts);
        for claim in ledger.claims() {
            let (node, known) = (&claim.node, ledger.obstacles_by(&claim.node, &facts, &all));
            prop_assert_eq!(known, anew(&ledger, node, &facts), "{} of all", node);
        }
    }
}

/// By a copy of the ledger that nothing is known of.
fn anew(ledger: &Ledger, node: &str, facts: &Facts) -> Vec<Obstacle> {
    let mut copy = Ledger::of(ledger.next_ticket, ledger.claims().to_vec());
    copy.leaderless.clone_from(&ledger.leaderless);
    copy.obstacles(node, facts)
}

/// Claims that each need a budget of their own, and one that all share.
fn counted_by(claims: usize) -> usize {
    let mut shared = shared_budget(0, 1);
    shared.healthy = pods(&(0..claims).map(|claim| format!("b0-{claim}")).collect::<Vec<_>>());
    shared.expected_pods = i32::try_from(claims).unwrap();
    shared.desired_healthy = shared.expected_pods - 1;
    let facts = facts([shared]);
    let mut ledger = Ledger::default();
    let mut reservations = Reservations::new(&ledger, &facts);
    for number in 0..claims {
        let node = format!("n{number:04}");
        ledger.enqueue(&node, &node, false, NOW);
    }
    for number in 0..claims {
        let node = format!("n{number:04}");
        ledger.set_needs_before(
            &mut reservations,
            &node,
            asked(&[format!("b0-{number}")]),
            NOT_DOWN,
            NOW,
        );
        reservations.look_ahead_of(&node, &ledger, &facts);
        ledger.obstacles_by(&node, &facts, &reservations);
    }
    reservations.made
}

#[test]
fn reservations_are_made_once_for_all_that_ask() {
    for claims in [20, 40, 80] {
        assert!(
            counted_by(claims) <= 2,
            "made {} times for {claims} claims",
            counted_by(claims)
        );
    }
}
