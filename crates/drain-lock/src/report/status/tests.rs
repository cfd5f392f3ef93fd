use std::collections::BTreeSet;
use std::sync::Arc;

use nodeward_api::node_drain::PodCounts;
use nodeward_core::id::BudgetKey;
use nodeward_core::ledger::{BudgetFacts, BudgetPods, HeldPod};
use rstest::rstest;
use serde_json::json;

use super::*;
use crate::tests::fixture::{at, claims, now, parse};

const BEFORE: &str = "2026-01-01T11:50:00Z";

/// What became of the claim.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Left {
    /// There is none.
    Nothing,
    /// It is in force, and says that the node is drained.
    Drained,
    /// It asks for disruptions, and holds none.
    Asks,
    /// It waits for its own pods.
    ComesBack,
}

fn claim(left: Left) -> Option<Claim> {
    let disruptions = json!([{
        "pdb": { "namespace": "shop", "name": "web", "uid": "uid-web" }, "healthyAtGrant": 3,
        "pods": [{ "name": "a", "uid": "uid-a" }],
    }]);
    let (state, needs, holds) = match left {
        Left::Nothing => return None,
        Left::Drained => ("Confirmed", disruptions.clone(), disruptions),
        Left::Asks => ("Waiting", disruptions, json!([])),
        Left::ComesBack => ("Returning", json!([]), disruptions),
    };
    let described = json!([{
        "ticket": 4, "node": "n1", "nodeUID": "uid-n1", "state": state, "since": BEFORE, "queuedAt": BEFORE, "grant": 5,
        "mayGoDown": left == Left::Drained, "needs": needs, "holds": holds,
    }]);
    claims(&described).pop()
}

fn verdict(phase: Phase, claim: Option<Claim>, is_ending: bool) -> DrainVerdict {
    let drain: NodeDrain = parse(json!({
        "metadata": { "name": "n1", "uid": "uid-drain", "deletionTimestamp": is_ending.then_some(BEFORE) },
        "spec": { "nodeName": "n1", "nodeUID": "uid-n1" },
    }));
    DrainVerdict {
        drain: Some(Arc::new(drain)),
        node: "n1".into(),
        node_uid: Some("uid-n1".into()),
        phase,
        claim,
        blocked_by: Vec::new(),
        plan: None,
        counts: PodCounts::default(),
        deadline: None,
        leaves_out_at: None,
        gives_lease_up: false,
        message: String::new(),
        lease_lost: false,
    }
}

#[rstest]
#[case::drained_now(Phase::Drained, Left::Drained, false, None, Some(crate::tests::fixture::NOW))]
#[case::drained_since(Phase::Drained, Left::Drained, false, Some(BEFORE), Some(BEFORE))]
#[case::rebooted(Phase::Recovering, Left::Drained, false, Some(BEFORE), Some(BEFORE))]
#[case::rebooted_half_way(Phase::Recovering, Left::Drained, false, None, None)]
#[case::its_turn_ended(Phase::Recovering, Left::ComesBack, false, None, None)]
#[case::its_turn_ended_and_another_had_been_drained(Phase::Recovering, Left::ComesBack, false, Some(BEFORE), None)]
#[case::given_up_in_the_queue(Phase::Recovering, Left::Asks, false, None, None)]
#[case::ends_and_was_drained(Phase::Recovering, Left::ComesBack, true, Some(BEFORE), Some(BEFORE))]
#[case::ends_and_was_not(Phase::Recovering, Left::ComesBack, true, None, None)]
#[case::over_and_was_drained(Phase::Released, Left::Nothing, true, Some(BEFORE), Some(BEFORE))]
#[case::over_and_was_not(Phase::Released, Left::Nothing, true, None, None)]
#[case::nobody_goes_on(Phase::Suspect, Left::Drained, false, Some(BEFORE), Some(BEFORE))]
#[case::nobody_went_on_before(Phase::Suspect, Left::Drained, false, None, None)]
#[case::queued_again(Phase::Queued, Left::Asks, false, Some(BEFORE), None)]
#[case::pods_came_late(Phase::Draining, Left::Drained, false, Some(BEFORE), None)]
fn only_what_was_drained_has_a_time_of_it(
    #[case] phase: Phase,
    #[case] left: Left,
    #[case] is_ending: bool,
    #[case] before: Option<&str>,
    #[case] expected: Option<&str>,
) {
    let before = NodeDrainStatus {
        drained_at: before.map(at),
        ..NodeDrainStatus::default()
    };
    let after = status(&verdict(phase, claim(left), is_ending), &before, &Facts::new(), now());
    assert_eq!(after.drained_at, expected.map(at));
    let drained = after
        .conditions
        .iter()
        .find(|condition| condition.type_ == condition::DRAINED)
        .unwrap();
    assert_eq!(
        drained.status == "True",
        phase == Phase::Drained,
        "{phase}: {}",
        drained.reason
    );
}

/// Others rest on it: drain-keeper forces what goes down with the node, health-check leaves the node alone.
#[rstest]
#[case::has_its_grant(Phase::Draining, Left::Drained, true)]
#[case::waits_beside_an_obstacle(Phase::Draining, Left::Asks, false)]
#[case::waits_for_others(Phase::Queued, Left::Asks, false)]
#[case::is_down(Phase::Drained, Left::Drained, true)]
#[case::comes_back(Phase::Recovering, Left::ComesBack, false)]
#[case::has_no_drainer(Phase::Suspect, Left::Drained, false)]
#[case::was_given_up(Phase::Failed, Left::Drained, false)]
#[case::has_no_claim(Phase::Scheduled, Left::Nothing, false)]
fn granted_follows_from_the_claim(#[case] phase: Phase, #[case] left: Left, #[case] expected: bool) {
    let before = NodeDrainStatus::default();
    let after = status(&verdict(phase, claim(left), false), &before, &Facts::new(), now());
    assert_eq!(after.is_granted(), expected);
}

/// The budget `web` lets so many go together as `is_by_node` says.
fn facts(is_by_node: bool) -> Facts {
    let key = BudgetKey::new("shop", "web");
    let budget = BudgetFacts {
        key: key.clone(),
        uid: "uid-web".into(),
        current: true,
        disruptions_allowed: 0,
        desired_healthy: 5,
        expected_pods: 6,
        unusable: None,
        is_by_node,
        healthy: BTreeSet::new(),
        several: BTreeSet::new(),
        owner_disruptions: None,
        pods: BudgetPods::default(),
    };
    [(key, budget)].into()
}

#[rstest]
#[case::osds_that_leave(facts(true), false, 1)]
#[case::osds_of_which_one_stays(facts(true), true, 2)]
#[case::other_pods(facts(false), false, 2)]
#[case::of_a_budget_that_is_gone(Facts::new(), false, 2)]
fn host_of_two_osds_holds_one_disruption(#[case] facts: Facts, #[case] one_stays: bool, #[case] expected: i32) {
    let mut claim = claim(Left::Drained).unwrap();
    let second = HeldPod {
        name: "d".to_owned(),
        uid: "uid-d".to_owned(),
        retained: one_stays,
        ..HeldPod::default()
    };
    claim.holds[0].pods.push(second);
    assert_eq!(claim.disruptions(&facts), expected);
    let verdict = verdict(Phase::Draining, Some(claim), false);
    let after = status(&verdict, &NodeDrainStatus::default(), &facts, now());
    assert_eq!(after.held_disruptions, Some(expected));
    assert_eq!((after.holds[0].disruptions, after.holds[0].pods.len()), (expected, 2));
}

#[rstest]
#[case::nothing(json!({}), false)]
#[case::words(json!({ "message": "3 of 5" }), false)]
#[case::deadline(json!({ "deadline": "2026-01-01T13:00:00Z" }), true)]
#[case::time_from_which_it_goes_on(json!({ "leavesOutAt": "2026-01-01T12:05:00Z" }), true)]
#[case::words_of_a_reason(json!({ "blockedBy": [{ "reason": "Queued", "message": "3 s" }] }), false)]
#[case::another_reason(json!({ "blockedBy": [{ "reason": "Reserved" }] }), true)]
#[case::phase(json!({ "phase": "Granted" }), true)]
#[case::counts(json!({ "pods": { "total": 3, "gone": 1, "evicting": 0, "retained": 0, "waiting": 2 } }), true)]
fn status_is_written_for_more_than_words(#[case] change: Value, #[case] expected: bool) {
    let before = json!({
        "phase": "Queued", "message": "2 of 5", "deadline": "2026-01-01T12:30:00Z",
        "blockedBy": [{ "reason": "Queued", "message": "2 s" }],
        "pods": { "total": 3, "gone": 0, "evicting": 0, "retained": 0, "waiting": 3 },
    });
    let read = |status: Value| -> NodeDrainStatus { parse(status) };
    let after = crate::tests::fixture::merged(before.clone(), change);
    assert_eq!(essence(&read(before)) != essence(&read(after)), expected);
}

/// Whoever reads the cause goes and looks at that pod.
#[test]
fn status_is_written_for_another_cause() {
    let blocked_by = |pod: &str| -> NodeDrainStatus {
        parse(json!({ "blockedBy": [{ "reason": "BudgetUnhealthy", "message": format!("{pod} is not Ready") }] }))
    };
    assert_ne!(essence(&blocked_by("a")), essence(&blocked_by("b")));
}
