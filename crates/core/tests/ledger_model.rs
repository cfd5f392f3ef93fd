//! A model of drains that run at once: two leaders, three nodes, three budgets, and faults. It drives the real ledger; what
//! is modelled is the cluster around it and the order in which an executor takes its steps.
//!
//! Every reachable state is checked for what must never be. That every drain comes to its end is not asked of the model
//! checker's `eventually`, which is unsound where runs meet again, but of the graph of all states: without faults it must
//! have no cycle, and where it ends every drain must be done.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "a test")]

#[path = "ledger_model/act.rs"]
mod act;
#[path = "ledger_model/decide.rs"]
mod decide;
#[path = "ledger_model/graph.rs"]
mod graph;
#[path = "ledger_model/memo.rs"]
mod memo;
#[path = "ledger_model/names.rs"]
mod names;
#[path = "ledger_model/observed.rs"]
mod observed;
#[path = "ledger_model/rules.rs"]
mod rules;
#[path = "ledger_model/watch.rs"]
mod watch;
#[path = "ledger_model/world.rs"]
mod world;

use rstest::rstest;
use stateright::{Checker, HasDiscoveries, Model};

use graph::Graph;
use rules::Rule;
use world::Plan;

/// Explores all states; answers with what went wrong, if anything did.
fn explore(plan: &Plan) -> Result<String, String> {
    let checker = plan
        .clone()
        .checker()
        .threads(1)
        .finish_when(HasDiscoveries::AnyFailures)
        .spawn_bfs()
        .join();
    if let Some(path) = checker.discovery(watch::NO_BREACH) {
        let found = path.last_state().breach.unwrap_or_default();
        let actions: Vec<String> = path.into_actions().iter().map(|a| format!("{a:?}")).collect();
        return Err(format!("{found}:\n{}", actions.join("\n")));
    }
    let graph = Graph::of(plan);
    graph.check(plan)?;
    assert!(checker.discovery(world::DONE).is_some(), "no run ends");
    let states = checker.unique_state_count();
    assert_eq!(states, graph.states(), "both walked the same graph");
    Ok(format!(
        "{}: {states} states, {} steps, {} ends",
        plan.name,
        graph.steps(),
        graph.ends()
    ))
}

/// What holds of the ledger holds in every state of these.
#[rstest]
#[case::shared_budgets(Plan::ring())]
#[case::pods_that_stay(Plan::retained())]
#[case::a_status_that_lags(Plan::lagging())]
#[case::late_pods_under_a_foreign_cordon(Plan::foreign_circle())]
#[case::late_pods_under_our_cordon(Plan::own_circle())]
#[case::one_that_holds_and_waits(Plan::goes_ahead())]
#[case::hosts_of_osds(Plan::osds())]
#[case::movable_pods(Plan::movable())]
#[case::held_pods_first(Plan::held_first())]
#[case::need_grows(Plan::need_grows())]
#[case::budget_shrinks(Plan::budget_shrinks())]
#[case::drained_again(Plan::drained_again())]
fn no_fault_breaks_a_rule_and_every_drain_ends(#[case] plan: Plan) {
    match explore(&plan) {
        Ok(summary) => println!("{summary}"),
        Err(found) => panic!("{found}"),
    }
}

/// What else may go wrong, each in a small cluster of its own.
#[rstest]
#[case::called_off(Plan::called_off())]
#[case::not_ready(Plan::not_ready())]
#[case::quick_reboots(Plan::quick_reboots())]
#[case::unrelated(Plan::unrelated())]
#[case::silence(Plan::silence())]
#[case::selector(Plan::selector())]
#[case::one_at_a_time(Plan::one_at_a_time())]
#[case::control_plane(Plan::control_plane())]
fn no_adversary_breaks_a_rule(#[case] plan: Plan) {
    no_fault_breaks_a_rule_and_every_drain_ends(plan);
}

/// The same with a fault more, among them that a leader forgets what it was about to do. Two unrelated pods that fail leave a
/// budget that never allows a drain, which a person has to see to.
#[rstest]
#[case::called_off(Plan::called_off())]
#[case::not_ready(Plan::not_ready())]
#[case::quick_reboots(Plan::quick_reboots())]
#[case::silence(Plan::silence())]
#[case::selector(Plan::selector())]
#[case::one_at_a_time(Plan::one_at_a_time())]
#[case::control_plane(Plan::control_plane())]
fn no_adversary_breaks_a_rule_with_one_fault_more(#[case] plan: Plan) {
    no_fault_breaks_a_rule_and_every_drain_ends(plan.larger());
}

/// The same with a fault more; minutes, and gigabytes.
#[rstest]
#[case::shared_budgets(Plan::ring())]
#[case::pods_that_stay(Plan::retained())]
#[case::a_status_that_lags(Plan::lagging())]
#[case::late_pods_under_a_foreign_cordon(Plan::foreign_circle())]
#[case::late_pods_under_our_cordon(Plan::own_circle())]
#[case::one_that_holds_and_waits(Plan::goes_ahead())]
#[case::hosts_of_osds(Plan::osds())]
#[ignore = "takes minutes"]
fn one_fault_more_breaks_no_rule(#[case] plan: Plan) {
    no_fault_breaks_a_rule_and_every_drain_ends(plan.larger());
}

/// Every rule is there for something: without it, the same check finds a run that goes wrong.
#[rstest]
#[case(Rule::ConfirmAfterGrant, Plan::retained(), "I1")]
#[case(Rule::CountHealthyPods, Plan::lagging(), "I1")]
#[case(Rule::CompareAndSwap, Plan::ring(), "I1")]
#[case(Rule::WholeGrants, Plan::ring(), "I2")]
#[case(Rule::AllOrNothing, Plan::ring(), "I3")]
#[case(Rule::NeverGrow, Plan::own_circle(), "I3")]
#[case(Rule::FenceEvictions, Plan::ring(), "I4")]
#[case(Rule::OneClaimANode, Plan::ring(), "I5")]
#[case(Rule::NeverFreeByTime, Plan::retained(), "I6")]
#[case(Rule::KeepDisruptionsOfDownPods, Plan::ring(), "I6")]
#[case(Rule::NoteBeforeTheNodeIsTold, Plan::retained(), "I14")]
#[case(Rule::BackOnlyAfterTheReboot, Plan::retained(), "I14")]
#[case(Rule::OwnerReleases, Plan::ring(), "I7")]
#[case(Rule::HoldersGoAhead, Plan::goes_ahead().without_pauses(), "I8")]
#[case(Rule::GiveWayInACircle, Plan::own_circle().without_pauses(), "I8")]
#[case(Rule::ReserveNothingInACircle, Plan::foreign_circle().with_faults(3).without_pauses(), "I8")]
#[case(Rule::Reserve, Plan::reserved(), "I9")]
#[case(Rule::OneDisruptionANode, Plan::osds(), "I8")]
#[case(Rule::UncordonOnlyOurs, Plan::foreign_circle(), "I10")]
#[case(Rule::DrainedStaysDrained, Plan::called_off(), "I13")]
#[case(Rule::WaitAfterCallOff, Plan::called_off(), "I4")]
#[case(Rule::CompareContainers, Plan::quick_reboots(), "I6")]
#[case(Rule::ReturnRunningWhileRecovering, Plan::not_ready(), "I8")]
#[case(Rule::CountFailedPods, Plan::unrelated(), "I8")]
#[case(Rule::RequesterMayReboot, Plan::selector(), "I6")]
#[case(Rule::HoldEvictionsAroundRetained, Plan::selector(), "I14")]
#[case(Rule::MovablePodsFirst, Plan::movable(), "I15")]
#[case(Rule::TakeOver, Plan::drained_again(), "I8")]
#[case(Rule::PlaceInGroups, Plan::one_at_a_time(), "I1")]
#[case(Rule::KeepPlaceUntilBack, Plan::one_at_a_time(), "I1")]
#[case(Rule::PlaceWithTheGrant, Plan::control_plane(), "I8")]
#[case(Rule::TakeOver, Plan::control_plane(), "I8")]
fn each_rule_is_needed(#[case] rule: Rule, #[case] plan: Plan, #[case] invariant: &str) {
    let found = explore(&plan.without(rule)).expect_err("the rule could be left out");
    println!("without {rule:?}: {found}");
    assert!(found.starts_with(&format!("{invariant}:")), "{found}");
}
