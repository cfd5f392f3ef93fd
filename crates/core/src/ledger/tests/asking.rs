//! What is granted, and what is not.

use rstest::rstest;

use super::super::{Lost, NeedChange, Unusable};
use super::*;

/// Both bounds count: the status lags behind the pods, and the pods behind an accepted eviction.
#[rstest]
#[case::all_there(1, &["web-0", "web-1", "web-2"], 1)]
#[case::an_eviction_was_accepted(0, &["web-0", "web-1", "web-2"], 0)]
#[case::a_pod_is_unready_and_the_status_does_not_say_so(1, &["web-0", "web-1"], 0)]
#[case::a_granted_pod_is_healthy_still(1, &["web-0", "web-1", "web-2", "web-held"], 0)]
#[case::a_granted_pod_is_down(1, &["web-0", "web-1", "web-2"], 1)]
#[case::something_else_took_what_was_granted(0, &["web-0", "web-1", "web-held"], -1)]
fn free_disruptions_subtract_granted_healthy_pods(#[case] allowed: i32, #[case] healthy: &[&str], #[case] free: i32) {
    let mut ledger = queue(&[("a", &["web-held"])]);
    let mut wide = budget("web");
    (wide.healthy, wide.disruptions_allowed) = (BTreeSet::from(["web-held".into()]), 9);
    (wide.desired_healthy, wide.expected_pods) = (0, 9);
    grant(&mut ledger, "a", &facts([wide]));
    let mut budget = budget("web");
    budget.disruptions_allowed = allowed;
    budget.healthy = healthy.iter().map(|pod| PodUid::from(*pod)).collect();
    assert_eq!(ledger.free(&budget), free);
}

#[test]
fn a_claim_gets_all_that_it_needs_or_nothing() {
    let facts = facts([budget("web"), without(budget("db"), "db-2")]);
    let mut ledger = queue(&[("a", &["web-0", "db-0"])]);
    let before = ledger.clone();
    let refused = ledger.try_grant("a", "boot", &facts, NOW).unwrap_err();
    assert_eq!(ledger, before, "a refusal leaves no trace");
    assert_eq!(refused.len(), 1);
    assert_eq!(
        (refused[0].reason, &refused[0].pdb),
        (LockReason::BudgetUnhealthy, &Some(key("db")))
    );

    let facts = super::facts([budget("web"), budget("db")]);
    grant(&mut ledger, "a", &facts);
    assert_eq!(held(&ledger, "a"), ["db-0", "web-0"]);
}

#[rstest]
#[case::nothing_is_known_of_the_budget(None, LockReason::NotPlanned)]
#[case::it_was_deleted_and_made_again(Some(BudgetFacts { uid: "another".into(), ..budget("web") }), LockReason::NotPlanned)]
#[case::its_status_is_of_an_older_spec(Some(BudgetFacts { current: false, ..budget("web") }), LockReason::StatusBehind)]
#[case::it_never_allows_any(
    Some(BudgetFacts { unusable: Some(Unusable::ZeroUnavailable), ..budget("web") }),
    LockReason::BudgetNeverAllows
)]
#[case::nobody_can_count_its_pods(
    Some(BudgetFacts { unusable: Some(Unusable::SyncFailed), disruptions_allowed: 0, ..budget("web") }),
    LockReason::SyncFailed
)]
#[case::it_demands_all(
    Some(BudgetFacts { unusable: Some(Unusable::AllDemanded), ..budget("web") }),
    LockReason::BudgetNeverAllows
)]
#[case::another_budget_has_the_pod_too(
    Some(BudgetFacts { several: BTreeSet::from(["web-0".into()]), ..budget("web") }),
    LockReason::SeveralPDBs
)]
#[case::its_owner_keeps_all(
    Some(BudgetFacts { owner_disruptions: Some(OwnerDisruptions::All), ..budget("web") }),
    LockReason::OwnerHold
)]
#[case::its_owner_keeps_some(
    Some(BudgetFacts { owner_disruptions: Some(OwnerDisruptions::Some(1)), ..budget("web") }),
    LockReason::OwnerHold
)]
#[case::a_pod_of_it_is_unready(Some(without(budget("web"), "web-1")), LockReason::BudgetUnhealthy)]
fn obstacle_is_named_and_reserves_nothing(#[case] budget: Option<BudgetFacts>, #[case] reason: LockReason) {
    let facts = facts(budget);
    let ledger = queue(&[("a", &["web-0"])]);
    assert_eq!(reasons(&ledger, "a", &facts), [reason]);
    assert_eq!(ledger.reserver(&facts), None);
}

#[test]
fn retained_pod_may_have_several_budgets() {
    let both = BudgetFacts {
        several: BTreeSet::from(["web-0".into()]),
        ..budget("web")
    };
    let mut ledger = queue(&[("a", &[])]);
    ledger.set_needs("a", retained(&["web-0"]), NOT_DOWN, NOW);
    assert!(ledger.try_grant("a", "boot", &facts([both]), NOW).is_ok());
}

#[test]
fn need_above_the_budgets_maximum_is_named() {
    let ledger = queue(&[("a", &["web-0", "web-1"])]);
    let obstacles = ledger.obstacles("a", &facts([budget("web")]));
    assert_eq!(obstacles.len(), 1);
    assert_eq!(obstacles[0].reason, LockReason::NeedExceedsBudget);
    assert_eq!((obstacles[0].needed, obstacles[0].free), (2, 1));
}

#[test]
fn unready_pod_is_granted_without_free_disruption() {
    let facts = facts([without(budget("web"), "web-0")]);
    let mut ledger = queue(&[("a", &["web-0"]), ("b", &["web-1"])]);
    assert_eq!(reasons(&ledger, "b", &facts), [LockReason::BudgetUnhealthy]);
    grant(&mut ledger, "a", &facts);
    // Should it turn ready, it counts on both sides.
    let ready = super::facts([budget("web")]);
    assert_eq!(ledger.free(&ready[&key("web")]), 0);
}

#[test]
fn a_grant_asked_for_twice_is_one() {
    let facts = facts([budget("web")]);
    let mut ledger = queue(&[("a", &["web-0"])]);
    let first = ledger.try_grant("a", "boot", &facts, NOW).unwrap();
    let once = ledger.clone();
    assert_eq!(ledger.try_grant("a", "boot", &facts, NOW), Ok(first));
    assert_eq!(ledger, once);
    ledger.confirm("a", first, &facts, NOT_DOWN, NOW).unwrap();
    let once = ledger.clone();
    assert_eq!(ledger.confirm("a", first, &facts, NOT_DOWN, NOW), Ok(()));
    assert_eq!(ledger, once);
}

#[rstest]
#[case::a_disruption_was_taken(without(budget("web"), "web-1"), LockReason::BudgetUnhealthy)]
#[case::an_eviction_was_accepted(BudgetFacts { disruptions_allowed: 0, ..budget("web") }, LockReason::BudgetUnhealthy)]
#[case::its_owner_took_it(BudgetFacts { owner_disruptions: Some(OwnerDisruptions::All), ..budget("web") }, LockReason::OwnerHold)]
#[case::its_spec_changed(BudgetFacts { current: false, ..budget("web") }, LockReason::StatusBehind)]
#[case::it_is_another_budget(BudgetFacts { uid: "another".into(), ..budget("web") }, LockReason::NotPlanned)]
fn unconfirmed_grant_is_lost_with_its_disruption(#[case] later: BudgetFacts, #[case] reason: LockReason) {
    let mut ledger = queue(&[("a", &["web-0"])]);
    let ticket = fence(&ledger, "a").ticket;
    let number = ledger.try_grant("a", "boot", &facts([budget("web")]), NOW).unwrap();
    let lost = ledger.confirm("a", number, &facts([later]), NOT_DOWN, NOW);
    let Err(Lost::Returned { obstacles, kept: 0 }) = lost else {
        panic!("{lost:?}");
    };
    assert_eq!(obstacles[0].reason, reason);
    assert_eq!(state(&ledger, "a"), ClaimState::Waiting);
    assert_eq!((fence(&ledger, "a").ticket, held(&ledger, "a").len()), (ticket, 0));
    assert_eq!(needed(&ledger, "a"), ["web-0"], "it asks for the same again");
}

/// To return nothing, and to be granted the same again, would go on for ever.
#[rstest]
#[case::another_pod_is_unready(Some(BudgetFacts { desired_healthy: 3, ..without(budget("web"), "web-0") }))]
#[case::its_budget_is_gone(None)]
#[case::its_owner_keeps_all(Some(BudgetFacts { owner_disruptions: Some(OwnerDisruptions::All), ..without(budget("web"), "web-0") }))]
fn a_grant_that_nothing_can_be_returned_of_stands(
    #[case] later: Option<BudgetFacts>,
    #[values(true, false)] stays: bool,
) {
    let mut ledger = queue(&[("a", &[])]);
    let need = if stays {
        retained(&["web-0"])
    } else {
        disruptions(&["web-0"])
    };
    ledger.set_needs("a", need, NOT_DOWN, NOW);
    let fence = grant(&mut ledger, "a", &facts([budget("web")]));
    ledger.drained("a", fence, "boot");
    ledger.suspect("a", NOW);
    ledger.resume("a", NOW);
    let is_down = |_: &HeldPod| !stays;
    assert_eq!(ledger.confirm("a", fence.grant, &facts(later), &is_down, NOW), Ok(()));
}

/// A pod that stays is evicted by nobody, so that no budget is asked when its node goes.
#[rstest]
#[case::nothing_has_changed(Some(budget("web")), true)]
#[case::another_pod_has_gone(Some(without(budget("web"), "web-1")), false)]
#[case::the_pod_itself_is_not_ready(Some(without(budget("web"), "web-0")), true)]
#[case::its_spec_has_changed(Some(BudgetFacts { current: false, ..budget("web") }), false)]
#[case::its_owner_keeps_all(Some(BudgetFacts { owner_disruptions: Some(OwnerDisruptions::All), ..budget("web") }), false)]
#[case::its_budget_is_gone(None, false)]
fn node_is_drained_while_retained_pods_have_disruptions(#[case] read: Option<BudgetFacts>, #[case] drained: bool) {
    let read = facts(read);
    let mut ledger = queue(&[("a", &[])]);
    let needs = retained(&["web-0"]).into_iter().chain(disruptions(&["db-0"])).collect();
    ledger.set_needs("a", needs, NOT_DOWN, NOW);
    let fence = grant(&mut ledger, "a", &facts([budget("web"), budget("db")]));
    // The budget of the pod that went is not read: it has given its disruption.
    let is_down = |pod: &HeldPod| pod.uid == "db-0";
    let mut once = ledger.clone();
    let told = once.confirm_drained("a", fence, "boot", &read, &is_down, NOW);
    assert_eq!(told.is_ok(), drained, "{told:?}");
    if drained {
        assert!(may_go_down(&once, "a"));
    } else {
        assert!(matches!(told, Err(Lost::Returned { kept: 1, .. })), "{told:?}");
        assert_eq!(
            (needed(&once, "a"), held(&once, "a")),
            (vec!["web-0".to_owned()], vec!["db-0".to_owned()])
        );
    }
    // From then on it keeps what it has; whoever asks is told.
    ledger.drained("a", fence, "boot");
    let before = ledger.clone();
    let is_lost = !ledger.lost_by_retained("a", &read).is_empty();
    assert_eq!(is_lost, !drained && !read.is_empty());
    assert_eq!(ledger.confirm_drained("a", fence, "boot", &read, &is_down, NOW), Ok(()));
    assert_eq!(ledger, before);
}

#[test]
fn a_grant_of_the_past_is_not_confirmed() {
    let facts = facts([budget("web")]);
    let mut ledger = queue(&[("a", &["web-0"])]);
    let past = ledger.try_grant("a", "boot", &facts, NOW).unwrap();
    ledger.time_out("a", NOT_DOWN, NOW);
    let present = ledger.try_grant("a", "boot", &facts, NOW).unwrap();
    assert_ne!(past, present);
    assert_eq!(ledger.confirm("a", past, &facts, NOT_DOWN, NOW), Err(Lost::NotGranted));
    assert_eq!(state(&ledger, "a"), ClaimState::Granted);
}

/// The disruptions come back when as many pods are healthy as if none had been down at the grant: a pod that was down already,
/// and comes back, must not pass for one that went down since.
#[test]
fn down_pods_of_claims_count_healthy_at_grant() {
    let wide = |budget: BudgetFacts| BudgetFacts {
        disruptions_allowed: budget.disruptions_allowed + 1,
        desired_healthy: 1,
        ..budget
    };
    let mut ledger = queue(&[("a", &["web-0"]), ("b", &["web-1"])]);
    grant(&mut ledger, "a", &facts([wide(budget("web"))]));
    assert_eq!(claim(&ledger, "a").holds[0].healthy_at_grant, 3);
    grant(&mut ledger, "b", &facts([wide(without(budget("web"), "web-0"))]));
    assert_eq!(claim(&ledger, "b").holds[0].healthy_at_grant, 3);

    // A pod that nobody holds, and that was unready at the grant, is not awaited back.
    let mut ledger = queue(&[("b", &["web-1"])]);
    grant(&mut ledger, "b", &facts([wide(without(budget("web"), "web-0"))]));
    assert_eq!(claim(&ledger, "b").holds[0].healthy_at_grant, 2);
}

/// What a claim lacks of its need.
#[rstest]
#[case::nothing(disruptions(&["web-0"]), disruptions(&["web-0"]), "web-0", false)]
#[case::a_pod(disruptions(&["web-0"]), disruptions(&["web-0", "db-0"]), "db-0", true)]
#[case::a_pod_that_does_not_count(disruptions(&["web-0"]), disruptions(&["web-0", "db-0"]), "web-0", false)]
#[case::the_pods_disruption_of_another_budget(disruptions(&["web-0"]), by("db", disruptions(&["web-0"])), "web-0", true)]
#[case::that_the_pod_stays(disruptions(&["web-0"]), retained(&["web-0"]), "web-0", true)]
#[case::that_the_pod_leaves_after_all(retained(&["web-0"]), disruptions(&["web-0"]), "web-0", false)]
fn a_claim_lacks_disruptions_by_budget_and_pod(
    #[case] holds: Vec<Disruptions>,
    #[case] needs: Vec<Disruptions>,
    #[case] counts: &str,
    #[case] lacks: bool,
) {
    let mut ledger = queue(&[("a", &[])]);
    ledger.set_needs("a", holds, NOT_DOWN, NOW);
    grant(&mut ledger, "a", &facts([budget("web")]));
    assert_eq!(claim(&ledger, "a").lacks(&needs, |pod| pod == counts), lacks);
}

fn by(budget: &str, mut disruptions: Vec<Disruptions>) -> Vec<Disruptions> {
    for disruption in &mut disruptions {
        budget.clone_into(&mut disruption.pdb.name);
        disruption.pdb.uid = format!("uid of {budget}");
    }
    disruptions
}

#[test]
fn pod_retained_after_grant_keeps_disruption() {
    let facts = facts([budget("web")]);
    let mut ledger = queue(&[("a", &["web-0"])]);
    let before = grant(&mut ledger, "a", &facts);
    ledger.set_needs("a", retained(&["web-0"]), NOT_DOWN, NOW);
    assert_eq!(fence(&ledger, "a"), before, "no turn is lost");
    assert!(claim(&ledger, "a").holds[0].pods[0].retained);
}

#[rstest]
#[case::in_force(0, 0, "web-0", true)]
#[case::another_grant(0, 1, "web-0", false)]
#[case::another_ticket(1, 0, "web-0", false)]
#[case::another_pod(0, 0, "web-1", false)]
fn eviction_passes_only_under_the_current_grant(
    #[case] tickets_off: i64,
    #[case] grants_off: i64,
    #[case] pod: &str,
    #[case] may: bool,
) {
    let facts = facts([budget("web")]);
    let mut ledger = queue(&[("a", &["web-0"])]);
    let number = ledger.try_grant("a", "boot", &facts, NOW).unwrap();
    let fence = fence(&ledger, "a");
    assert!(!ledger.may_evict("a", fence, "web-0"), "not before it was made sure of");
    assert!(!ledger.admits_requester("a", "web-0"));
    ledger.confirm("a", number, &facts, NOT_DOWN, NOW).unwrap();
    let asked = Fence {
        ticket: fence.ticket + tickets_off,
        grant: fence.grant + grants_off,
    };
    assert_eq!(ledger.may_evict("a", asked, pod), may);
    assert_eq!(ledger.drained("a", asked, "boot"), tickets_off == 0 && grants_off == 0);
    assert_eq!(ledger.admits_requester("a", pod), pod == "web-0");
    ledger.suspect("a", NOW);
    assert!(!ledger.may_evict("a", fence, "web-0") && !ledger.admits_requester("a", "web-0"));
}

#[test]
fn a_ledger_that_was_made_again_repeats_no_fence() {
    let facts = facts([budget("web")]);
    let mut ledger = queue(&[("a", &["web-0"])]);
    let old = grant(&mut ledger, "a", &facts);
    let mut anew = Ledger::default();
    let later = NOW + jiff::SignedDuration::from_secs(60);
    anew.enqueue("a", "a", false, later);
    anew.set_needs("a", disruptions(&["web-0"]), NOT_DOWN, later);
    assert_ne!(grant(&mut anew, "a", &facts), old);
    assert!(!anew.may_evict("a", old, "web-0"));
}

/// A claim never grows while it holds.
#[rstest]
#[case::the_same(&["web-0", "db-0"], NeedChange::Unchanged, ClaimState::Confirmed, &["db-0", "web-0"])]
#[case::less(&["web-0"], NeedChange::Shrunk { returned: 1 }, ClaimState::Confirmed, &["web-0"])]
#[case::more(&["web-0", "db-0", "api-0"], NeedChange::Requeued { returned: 2, kept: 0 }, ClaimState::Waiting, &[])]
#[case::something_else(&["api-0"], NeedChange::Requeued { returned: 2, kept: 0 }, ClaimState::Waiting, &[])]
fn grown_need_requeues_whole_under_same_ticket(
    #[case] need: &[&str],
    #[case] change: NeedChange,
    #[case] becomes: ClaimState,
    #[case] holds: &[&str],
) {
    let facts = facts([budget("web"), budget("db"), budget("api")]);
    let mut ledger = queue(&[("a", &["web-0", "db-0"]), ("b", &["api-1"])]);
    let before = grant(&mut ledger, "a", &facts);
    assert_eq!(ledger.set_needs("a", disruptions(need), NOT_DOWN, NOW), change);
    assert_eq!(state(&ledger, "a"), becomes);
    assert_eq!(held(&ledger, "a"), holds);
    assert_eq!(fence(&ledger, "a").ticket, before.ticket);
    assert_eq!(ledger.may_evict("a", before, "web-0"), becomes == ClaimState::Confirmed);
    let once = ledger.clone();
    ledger.set_needs("a", disruptions(need), NOT_DOWN, NOW);
    assert_eq!(ledger, once, "said twice is said once");
}

#[test]
fn growing_need_keeps_disruptions_of_down_pods() {
    let all = facts([budget("web"), budget("db")]);
    let mut ledger = queue(&[("a", &["web-0"])]);
    grant(&mut ledger, "a", &all);
    let down = |pod: &HeldPod| pod.uid == "web-0";
    let change = ledger.set_needs("a", disruptions(&["db-0"]), &down, NOW);
    assert_eq!(change, NeedChange::Requeued { returned: 0, kept: 1 });
    assert_eq!(held(&ledger, "a"), ["web-0"]);
    assert_eq!(needed(&ledger, "a"), ["db-0"]);
    let later = facts([without(budget("web"), "web-0"), budget("db")]);
    let number = ledger.try_grant("a", "boot", &later, NOW).unwrap();
    ledger.confirm("a", number, &later, &down, NOW).unwrap();
    assert_eq!(held(&ledger, "a"), ["db-0", "web-0"]);
}

#[test]
fn a_claim_without_a_need_is_granted_at_once() {
    let mut ledger = queue(&[("a", &[])]);
    assert!(ledger.try_grant("a", "boot", &Facts::new(), NOW).is_ok());
    assert_eq!(reasons(&ledger, "nobody", &Facts::new()), [LockReason::NotPlanned]);
}
