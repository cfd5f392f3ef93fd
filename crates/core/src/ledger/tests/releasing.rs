//! How disruptions come back.

use jiff::SignedDuration;
use rstest::rstest;

use super::super::{Released, TimedOut};
use super::*;

fn granted(foreign: bool) -> Ledger {
    let facts = facts([budget("web"), budget("db")]);
    let mut ledger = queue(&[("a", &["web-0", "db-0"])]);
    ledger.enqueue("a", "a", foreign, NOW);
    grant(&mut ledger, "a", &facts);
    ask(&mut ledger, "b", &["web-1"]);
    ledger
}

/// A write returns the disruptions of running pods only; what becomes of the rest depends on whose the cordon is.
#[rstest]
#[case::all_run(&[], false, TimedOut::Requeued { ticket: 3 }, ClaimState::Waiting, &["db-0", "web-0"], &[], &["b", "a"])]
#[case::all_run_under_anothers_cordon(
    &[], true, TimedOut::Requeued { ticket: 3 }, ClaimState::Waiting, &["db-0", "web-0"], &[], &["b", "a"]
)]
#[case::one_is_down(
    &["web-0"], false, TimedOut::ComesBack { ticket: 3, kept: 1 }, ClaimState::Returning, &[], &["web-0"], &["b", "a"]
)]
#[case::one_is_down_under_anothers_cordon(
    &["web-0"], true, TimedOut::KeepsPlace { kept: 1 }, ClaimState::Waiting, &["db-0"], &["web-0"], &["a", "b"]
)]
fn time_that_runs_out_returns_what_runs(
    #[case] down: &[&str],
    #[case] foreign: bool,
    #[case] outcome: TimedOut,
    #[case] becomes: ClaimState,
    #[case] needs: &[&str],
    #[case] holds: &[&str],
    #[case] order: &[&str],
) {
    let mut ledger = granted(foreign);
    let before = fence(&ledger, "a");
    let is_down = |pod: &HeldPod| down.contains(&pod.uid.as_str());
    assert_eq!(ledger.time_out("a", &is_down, NOW), outcome);
    assert_eq!(needed(&ledger, "a"), needs);
    assert_eq!(held(&ledger, "a"), holds);
    assert_eq!(nodes(&ledger), order);
    assert_eq!(state(&ledger, "a"), becomes);
    assert!(
        !ledger.may_evict("a", before, "web-0"),
        "nothing may leave under it any more"
    );
}

#[test]
fn timeout_without_holds_keeps_place() {
    let mut ledger = granted(false);
    let ticket = fence(&ledger, "b").ticket;
    let later = NOW + SignedDuration::from_secs(9);
    assert_eq!(ledger.time_out("b", NOT_DOWN, later), TimedOut::KeepsWaiting);
    assert_eq!(
        (fence(&ledger, "b").ticket, claim(&ledger, "b").queued_at),
        (ticket, later)
    );
    assert_eq!(ledger.time_out("nobody", NOT_DOWN, NOW), TimedOut::Unchanged);
}

/// A suspect claim, one whose node may go down at any moment, and one that waits for its own pods are freed by what is
/// observed alone.
#[rstest]
#[case::suspect(|ledger: &mut Ledger| { ledger.suspect("a", NOW); })]
#[case::drained(|ledger: &mut Ledger| { let fence = fence(ledger, "a"); ledger.drained("a", fence, "boot"); })]
#[case::comes_back(|ledger: &mut Ledger| { ledger.time_out("a", ALL_DOWN, NOW); })]
fn time_alone_frees_nothing(#[case] happens: fn(&mut Ledger)) {
    let mut ledger = granted(false);
    happens(&mut ledger);
    let before = ledger.clone();
    assert_eq!(ledger.time_out("a", NOT_DOWN, NOW), TimedOut::Unchanged);
    assert_eq!(ledger, before);
    assert_eq!(held(&ledger, "a"), ["db-0", "web-0"]);
}

#[test]
fn timed_out_claim_asks_nothing_while_pods_down() {
    let facts = facts([budget("web"), budget("db")]);
    let mut ledger = granted(false);
    ledger.time_out("a", ALL_DOWN, NOW);
    assert_eq!(state(&ledger, "a"), ClaimState::Returning);
    assert_eq!(reasons(&ledger, "a", &facts), [LockReason::AwaitingReady]);
    assert!(ledger.try_grant("a", "boot", &facts, NOW).is_err());
    let before = ledger.clone();
    ledger.set_needs("a", disruptions(&["web-0"]), NOT_DOWN, NOW);
    assert_eq!(ledger, before, "a new need waits as well");
    assert!(!ledger.remove("a"), "nor can it be removed");
    assert_eq!(ledger.return_pods("a", &["web-0", "db-0"]), 2);
    ledger.set_needs("a", disruptions(&["web-0"]), NOT_DOWN, NOW);
    assert_eq!(needed(&ledger, "a"), ["web-0"]);
}

#[test]
fn disruption_returns_once_to_its_own_claim() {
    let mut ledger = granted(false);
    assert_eq!(
        ledger.return_pods("b", &["web-0"]),
        0,
        "only the owner's disruptions are its to return"
    );
    assert_eq!(ledger.return_pods("a", &["web-0", "api-0"]), 1);
    assert_eq!(ledger.return_pods("a", &["web-0"]), 0);
    assert_eq!(held(&ledger, "a"), ["db-0"]);
    assert!(needed(&ledger, "a").is_empty(), "it does not ask for it again");
    assert_eq!(ledger.return_pods("nobody", &["web-0"]), 0);
}

#[rstest]
#[case::nothing_is_down(&[], Released::Gone)]
#[case::a_pod_is_down(&["web-0"], Released::ComesBack { kept: 1 })]
fn released_claim_keeps_down_pods_only(#[case] down: &[&str], #[case] outcome: Released) {
    let mut ledger = granted(true);
    let before = fence(&ledger, "a");
    let is_down = |pod: &HeldPod| down.contains(&pod.uid.as_str());
    assert_eq!(ledger.release("a", &is_down, NOW), outcome);
    assert!(!ledger.may_evict("a", before, "web-0"));
    assert_eq!(ledger.is_held("web-0"), !down.is_empty());
    assert!(!ledger.is_held("db-0"));
    let once = ledger.clone();
    let again = ledger.release("a", &is_down, NOW);
    assert!(again == outcome || again == Released::NoClaim);
    assert_eq!(ledger, once, "let go twice is let go once");
}

#[test]
fn emptied_claim_gets_its_time_anew() {
    let mut ledger = granted(false);
    let fence = fence(&ledger, "a");
    ledger.drained("a", fence, "boot-2");
    assert_eq!(claim(&ledger, "a").boot_id, "boot-2", "the boot that is to end");
    ledger.drained("a", fence, "boot-3");
    assert_eq!(claim(&ledger, "a").boot_id, "boot-2", "said twice is once");
    ledger.set_needs("a", disruptions(&["api-0"]), NOT_DOWN, NOW);
    assert!(held(&ledger, "a").is_empty());
    assert_eq!(ledger.time_out("a", NOT_DOWN, NOW), TimedOut::KeepsWaiting);
}

/// A machine that was told so by FleetLock may be away for long, whatever a foreign drainer beside it says.
#[rstest]
#[case::needs_more(&["api-0"])]
#[case::needs_nothing_any_more(&[])]
fn drained_node_stays_so_until_the_next_grant(#[case] needs: &[&str]) {
    let all = facts([budget("web"), budget("db"), budget("api")]);
    let mut ledger = queue(&[("a", &["web-0"])]);
    let fence = grant(&mut ledger, "a", &all);
    assert!(ledger.drained("a", fence, "boot"));
    ledger.set_needs("a", disruptions(&["web-0", "api-0"]), ALL_DOWN, NOW);
    assert_eq!(held(&ledger, "a"), ["web-0"]);
    assert_eq!(ledger.return_pods("a", &["web-0"]), 1);
    ledger.set_needs("a", disruptions(needs), NOT_DOWN, NOW);
    assert_eq!(
        (state(&ledger, "a"), may_go_down(&ledger, "a")),
        (ClaimState::Waiting, true)
    );
    ledger.try_grant("a", "boot", &all, NOW).unwrap();
    assert_eq!(
        (state(&ledger, "a"), may_go_down(&ledger, "a")),
        (ClaimState::Granted, false)
    );
}

#[test]
fn drained_node_keeps_disruptions_of_retained_pods() {
    let facts = facts([budget("web"), budget("db")]);
    let mut ledger = queue(&[("a", &[])]);
    let needs = || retained(&["web-0"]).into_iter().chain(disruptions(&["db-0"])).collect();
    ledger.set_needs("a", needs(), NOT_DOWN, NOW);
    let fence = grant(&mut ledger, "a", &facts);
    assert!(ledger.drained("a", fence, "boot"));
    // A pod that is bound late makes the need grow.
    ledger.set_needs("a", disruptions(&["db-0", "api-0"]), NOT_DOWN, NOW);
    assert_eq!(held(&ledger, "a"), ["web-0"]);
    for _ in 0..3 {
        assert_eq!(ledger.release("a", NOT_DOWN, NOW), Released::ComesBack { kept: 1 });
    }
    assert_eq!(
        (state(&ledger, "a"), may_go_down(&ledger, "a")),
        (ClaimState::Returning, true)
    );
    assert_eq!(reasons(&ledger, "a", &facts), [LockReason::AwaitingReady]);
    ledger.set_needs("a", disruptions(&["api-0"]), NOT_DOWN, NOW);
    assert!(
        needed(&ledger, "a").is_empty(),
        "it asks for nothing until its pods are back"
    );
    assert_eq!(ledger.return_pods("a", &["web-0"]), 1);
    assert_eq!(ledger.release("a", NOT_DOWN, NOW), Released::Gone);
}

/// Let go again and again, as each pass does, it is not taken for one whose pods are on their way back.
#[rstest]
#[case::evicted(false)]
#[case::stays_on_a_drained_node(true)]
fn overdue_recovery_is_suspect_for_good(#[case] stays: bool) {
    let all = facts([without(budget("web"), "web-0")]);
    let mut ledger = queue(&[("a", &[])]);
    let need = if stays { retained } else { disruptions };
    ledger.set_needs("a", need(&["web-0"]), NOT_DOWN, NOW);
    let granted = grant(&mut ledger, "a", &facts([budget("web")]));
    if stays {
        ledger.drained("a", granted, "boot");
    }
    assert!(!ledger.suspect_overdue("a", NOW), "it does not come back yet");
    ledger.release("a", ALL_DOWN, NOW);
    ask(&mut ledger, "b", &["web-1"]);
    assert_eq!(ledger.reserver(&all), Some(fence(&ledger, "b").ticket));
    assert!(ledger.suspect_overdue("a", NOW));
    let once = ledger.clone();
    assert_eq!(ledger.release("a", ALL_DOWN, NOW), Released::ComesBack { kept: 1 });
    assert!(!ledger.suspect_overdue("a", NOW));
    assert_eq!(ledger, once);
    assert_eq!(
        (state(&ledger, "a"), may_go_down(&ledger, "a")),
        (ClaimState::Suspect, stays)
    );
    assert_eq!(ledger.reserver(&all), None, "nobody waits for it in particular");
    assert_eq!(ledger.return_pods("a", &["web-0"]), 1);
    assert_eq!(ledger.release("a", NOT_DOWN, NOW), Released::Gone);
}

#[rstest]
#[case::its_drainer_is_back(&["web-0"], ClaimState::Granted)]
#[case::and_it_needs_more(&["web-0", "db-1"], ClaimState::Waiting)]
fn resumed_suspect_claim_is_confirmed_anew(#[case] needs: &[&str], #[case] becomes: ClaimState) {
    let facts = facts([budget("web"), budget("db")]);
    let mut ledger = queue(&[("a", &["web-0"])]);
    assert!(!ledger.suspect("a", NOW), "what holds nothing is never suspect");
    let old = grant(&mut ledger, "a", &facts);
    assert!(ledger.suspect("a", NOW));
    assert!(
        ledger.suspect("a", NOW + SignedDuration::from_secs(9)),
        "it is so still"
    );
    assert_eq!(claim(&ledger, "a").since, NOW);
    assert_eq!(reasons(&ledger, "a", &facts), [LockReason::Suspect]);
    assert!(ledger.try_grant("a", "boot", &facts, NOW).is_err());
    ledger.set_needs("a", disruptions(needs), NOT_DOWN, NOW);
    assert!(ledger.resume("a", NOW));
    assert!(!ledger.resume("a", NOW));
    assert_eq!(state(&ledger, "a"), becomes);
    assert_eq!(held(&ledger, "a"), ["web-0"]);
    assert!(!ledger.may_evict("a", old, "web-0"));
}

#[test]
fn an_administrator_can_free_what_nothing_else_does() {
    let mut ledger = granted(false);
    ledger.suspect("a", NOW);
    let freed = ledger.release_by_override("a").unwrap();
    assert_eq!(names(&freed.holds), ["db-0", "web-0"]);
    assert_eq!(nodes(&ledger), ["b"]);
    assert_eq!(ledger.release_by_override("a"), None);
    assert!(ledger.remove("a"), "there is none, which is what was asked for");
}

fn in_group(ledger: &mut Ledger, node: &str) {
    assert!(ledger.take_node_groups(node, &["workers".to_owned()]));
}

/// The node is still cordoned by us, or down: it counts as away until it is back, though all pods are.
#[test]
fn claim_stays_until_its_node_is_back() {
    let mut ledger = granted(false);
    in_group(&mut ledger, "a");
    assert_eq!(ledger.release("a", NOT_DOWN, NOW), Released::ComesBack { kept: 0 });
    assert!(!ledger.remove("a"), "nor is it removed by anything else");
    ledger.return_pods("a", &["web-0"]);
    assert_eq!(state(&ledger, "a"), ClaimState::Returning);
    ledger.return_node_groups("a", |_| false);
    assert_eq!(ledger.release("a", NOT_DOWN, NOW), Released::Gone);
}

#[rstest]
#[case::waits(false, "b", ClaimState::Returning)]
#[case::waits_under_anothers_cordon(true, "b", ClaimState::Waiting)]
#[case::granted(false, "a", ClaimState::Returning)]
fn turn_that_ends_brings_the_node_back_first(#[case] foreign: bool, #[case] node: &str, #[case] becomes: ClaimState) {
    let mut ledger = granted(false);
    ledger.enqueue(node, node, foreign, NOW);
    in_group(&mut ledger, node);
    ledger.time_out(node, NOT_DOWN, NOW);
    assert_eq!(state(&ledger, node), becomes);
    assert_eq!(claim(&ledger, node).node_groups, ["workers"]);
    assert!(held(&ledger, node).is_empty());
    if !foreign {
        ledger.return_node_groups(node, |_| false);
        assert_eq!(state(&ledger, node), ClaimState::Waiting, "it queues again");
    }
}

#[test]
fn claim_that_comes_back_takes_no_place() {
    let mut ledger = granted(false);
    ledger.release("a", &|_| true, NOW);
    assert!(!ledger.take_node_groups("a", &["workers".to_owned()]));
    assert!(claim(&ledger, "a").node_groups.is_empty());
}

/// Another drainer has evicted its last pod, perhaps, and takes the node down without a word.
#[rstest]
#[case::anothers_cordon(true, &["web-0"])]
#[case::our_cordon(false, &[])]
fn retained_pod_of_requester_stays_held_once_confirmed(#[case] foreign: bool, #[case] kept: &[&str]) {
    let stands = |ledger: &Ledger| (state(ledger, "a"), may_go_down(ledger, "a"));
    let facts = facts([budget("web"), budget("db")]);
    let mut ledger = Ledger::default();
    ledger.enqueue("a", "a", foreign, NOW);
    let needs = [retained(&["web-0"]), disruptions(&["db-0"])].concat();
    ledger.set_needs("a", needs, NOT_DOWN, NOW);
    let number = ledger.try_grant("a", "boot", &facts, NOW).unwrap();
    let mut unconfirmed = ledger.clone();
    unconfirmed.time_out("a", NOT_DOWN, NOW);
    assert_eq!(held(&unconfirmed, "a"), [""; 0], "nobody may evict yet");
    ledger.confirm("a", number, &facts, NOT_DOWN, NOW).unwrap();

    let mut late = ledger.clone();
    late.time_out("a", NOT_DOWN, NOW);
    assert_eq!(
        (held(&late, "a"), stands(&late)),
        (strings(kept), (ClaimState::Waiting, foreign))
    );
    let mut silent = ledger.clone();
    silent.suspect("a", NOW);
    assert_eq!(stands(&silent), (ClaimState::Suspect, foreign));
    let is_down = |pod: &HeldPod| pod.uid == "db-0";
    for _ in 0..2 {
        ledger.release("a", &is_down, NOW);
        let stay = [&["db-0"], kept].concat();
        assert_eq!(
            (held(&ledger, "a"), stands(&ledger)),
            (strings(&stay), (ClaimState::Returning, foreign))
        );
    }
}

fn strings(texts: &[&str]) -> Vec<String> {
    texts.iter().map(ToString::to_string).collect()
}

#[test]
fn drain_of_a_node_whose_pods_are_not_back_takes_their_claim_over() {
    let mut ledger = granted(false);
    let is_down = |pod: &HeldPod| pod.uid == "web-0";
    ledger.release("a", &is_down, NOW);
    let before = claim(&ledger, "a").clone();
    let later = NOW + SignedDuration::from_secs(9);
    ledger.take_over("a", later);
    let after = claim(&ledger, "a");
    assert_eq!(
        (after.state, &after.holds),
        (ClaimState::Waiting, &before.holds),
        "they stay owed"
    );
    assert!(after.ticket > before.ticket);
    assert_eq!((after.since, after.queued_at), (later, later));
    let once = ledger.clone();
    ledger.take_over("a", later);
    assert_eq!(ledger, once);
}

/// A graceful shutdown leaves the pod behind as Failed, and its ReplicaSet makes another one on the node, before that has rebooted: the
/// reboot is the one that the requester was told to begin.
#[test]
fn pod_that_follows_one_that_stayed_asks_for_no_second_reboot() {
    let facts = facts([budget("web")]);
    let mut ledger = queue(&[("a", &[])]);
    ledger.set_needs("a", retained(&["web-0"]), NOT_DOWN, NOW);
    let fence = grant(&mut ledger, "a", &facts);
    assert!(ledger.drained("a", fence, "before"));
    ledger.set_needs("a", retained(&["web-0", "web-1"]), ALL_DOWN, NOW);
    assert_eq!(ledger.return_pods("a", &["web-0"]), 1);
    ledger.set_needs("a", retained(&["web-1"]), NOT_DOWN, NOW);
    ledger.try_grant("a", "after", &facts, NOW).unwrap();
    let claim = claim(&ledger, "a");
    assert_eq!((claim.may_go_down, &*claim.boot_id), (true, "before"));
    assert!(claim.has_disruption("web-1"));
}

/// What its requester waits for is the reboot that follows its first grant, however often it is granted more. Of a node that is
/// drained again it is the next one.
#[rstest]
#[case::more_pods_came(false, "before")]
#[case::it_is_drained_again(true, "after")]
fn boot_of_a_node_that_may_have_gone_down_stays_noted(#[case] again: bool, #[case] boot: &str) {
    let facts = facts([BudgetFacts {
        desired_healthy: 0,
        disruptions_allowed: 3,
        ..budget("web")
    }]);
    let mut ledger = queue(&[("a", &[])]);
    ledger.set_needs("a", retained(&["web-0"]), NOT_DOWN, NOW);
    let fence = grant(&mut ledger, "a", &facts);
    assert!(ledger.drained("a", fence, "before"));
    if again {
        ledger.release("a", NOT_DOWN, NOW);
        ledger.enqueue("a", "a", true, NOW);
        ledger.take_over("a", NOW);
    }
    ledger.set_needs("a", retained(&["web-0", "web-1"]), NOT_DOWN, NOW);
    assert_eq!(
        (state(&ledger, "a"), may_go_down(&ledger, "a")),
        (ClaimState::Waiting, true)
    );
    ledger.try_grant("a", "after", &facts, NOW).unwrap();
    assert_eq!(claim(&ledger, "a").boot_id, boot);
}

/// Its pods are back, and under the cordon of whoever drains it again the node never counts as back.
#[test]
fn claim_that_is_taken_over_keeps_its_places() {
    let mut ledger = granted(true);
    in_group(&mut ledger, "a");
    ledger.release("a", &|_| false, NOW);
    assert_eq!(state(&ledger, "a"), ClaimState::Returning);
    ledger.take_over("a", NOW);
    assert_eq!(state(&ledger, "a"), ClaimState::Waiting);
    assert_eq!(claim(&ledger, "a").node_groups, ["workers"]);
}
