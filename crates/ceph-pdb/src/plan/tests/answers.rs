//! When Ceph's word counts.

use super::*;

#[test]
fn old_statistics_exempt_no_domain() {
    let mut world = World::settled();
    world.drain(2);
    world.view.fresh_since = None;
    world.run();
    assert_eq!(world.state().reason, CephReason::StatisticsStale);
    assert_eq!(world.state().exempt_domain, None);
}

#[test]
fn silent_ceph_leaves_open_budgets_and_opens_none() {
    let mut world = World::settled();
    world.silence();
    world.run();
    assert_eq!(world.default().0, 1);
    assert!(
        world
            .condition(CephCondition::CephUnavailable)
            .unwrap()
            .contains("Unreachable")
    );
    world.stop(2, false);
    world.run();
    world.start(2);
    world.silence();
    world.run();
    assert_eq!((world.state().reason, world.default().0), (CephReason::Recovering, 0));
}

#[test]
fn second_domain_down_closes_all() {
    let mut world = World::settled();
    world.drain(2);
    world.may_stop_all(false);
    world.run();
    assert_eq!(world.state().reason, CephReason::SecondDomainDown);
    assert_eq!(world.own(), ["a", "b", "c"]);
    assert!(
        world.plan().questions["ns"].may_stop.contains(&BTreeSet::from([2, 3])),
        "asked again"
    );
}

#[test]
fn unanswered_question_is_asked_and_closes() {
    let mut world = World::settled();
    world.drain(2);
    world.view.stop_answers.clear();
    world.run();
    assert_eq!(world.state().reason, CephReason::AwaitingStopCheck);
    let plan = world.plan();
    assert!(plan.questions["ns"].is_watchful);
    assert!(plan.questions["ns"].may_stop.contains(&BTreeSet::from([2, 3])));
}

#[test]
fn key_that_librados_does_not_know_is_named() {
    let mut world = World::settled();
    world.ceph = Some(CephState::Silent {
        problem: CephProblem::new(CephProblemKind::KeyTypeUnknown, "needs a newer librados"),
        since: world.now,
        last: None,
    });
    world.run();
    for kind in [CephCondition::KeyTypeUnknown, CephCondition::CephUnavailable] {
        assert!(world.condition(kind).unwrap().contains("newer librados"), "{kind:?}");
    }
}

#[test]
fn budget_that_cannot_be_written_is_named_until_it_is() {
    let mut world = World::settled();
    world.refused_writes.insert(
        WriteKey::Budget("ns".into(), OSD_BUDGET.into()),
        "a policy denies it".into(),
    );
    world.run();
    assert_eq!(
        world.condition(CephCondition::BudgetWriteRefused),
        None,
        "it need not be written"
    );
    world.drain(2);
    let conditions = world.verdict().state.conditions;
    let found = conditions
        .iter()
        .find(|found| found.kind == CephCondition::BudgetWriteRefused);
    assert_eq!(found.unwrap().message, "rook-ceph-osd: a policy denies it");
    world.run();
    assert_eq!(
        world.condition(CephCondition::BudgetWriteRefused),
        None,
        "it is written"
    );
}

#[test]
fn domain_type_that_crush_lacks_is_reported_and_not_taken() {
    let mut world = World::settled();
    world.policy.failure_domain_type = Some("zone".parse().unwrap());
    world.run();
    assert_eq!(world.state().failure_domain_type.as_deref(), Some("rack"));
    assert_eq!(world.default().0, 1);
    let said = world.condition(CephCondition::FailureDomainTypeUnknown).unwrap();
    assert!(said.contains("no zone") && said.contains("rack"), "{said}");
}

#[test]
fn osd_without_deployment_is_up_while_ceph_says_so() {
    let mut world = World::settled();
    world.osds.remove(&2);
    world.run();
    assert_eq!((world.state().reason, world.default().0), (CephReason::AllClean, 1));
    assert_eq!(world.verdict().osds["b"].up, 2);
}
