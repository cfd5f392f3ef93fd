//! Taking over and handing back.

use super::*;

#[test]
fn leftovers_of_rook_are_adopted_in_a_drain() {
    let mut world = World::new();
    for domain in ["a", "c"] {
        world
            .budgets
            .insert(format!("rook-ceph-osd-rack-{domain}").into(), leftover(of_rack(domain)));
    }
    world.flag("b");
    world.state_map.rook = RookState {
        draining_domain: Some("b".into()),
        set_noout: true,
        noout_set_at: [("b".into(), world.now)].into(),
    };
    world.drain(2);
    world.run();
    assert_eq!(world.state().exempt_domain.as_deref(), Some("b"));
    assert_eq!(world.default(), (0, vec!["a", "b", "c"], vec![]));
    assert!(world.budgets.values().all(|budget| budget.is_ours && budget.is_exact));
    assert_eq!(world.flags(), ["host-2"], "the flag of the whole rack was Rook's");
    assert_eq!(world.state_map.rook, RookState::default());
}

#[test]
fn wide_default_of_rook_is_narrowed_to_one() {
    let mut world = World::new();
    let form = BudgetForm::Osds(DefaultBudget {
        max_unavailable: 3,
        except_domains: [].into(),
        except_osds: [].into(),
    });
    world.budgets.insert(OSD_BUDGET.into(), leftover(form));
    world.run();
    assert_eq!(world.default(), (1, vec![], vec![]));
    assert!(world.budgets[OSD_BUDGET].is_ours);
}

#[test]
fn osds_are_protected_beside_a_foreign_budget() {
    let mut world = World::settled();
    let mut foreign = leftover(of_rack("a"));
    foreign.form = None;
    world.budgets.insert(OSD_BUDGET.into(), foreign.clone());
    world.run();
    assert_eq!(world.budgets[OSD_BUDGET], foreign);
    assert!(world.condition(CephCondition::ForeignBudget).unwrap().contains("app=x"));
    let count = |world: &World, osd| world.selected(osd).into_iter().collect::<Vec<_>>();
    assert_eq!(count(&world, 0), [(true, 1)], "one OSD at a time");
    world.drain(2);
    world.run();
    assert_eq!(world.budgets[OSD_BUDGET], foreign);
    assert_eq!((count(&world, 0), count(&world, 3)), (vec![(false, 1)], vec![]));
    // Once it is gone the usual one takes over.
    world.budgets.remove(OSD_BUDGET);
    world.run();
    assert_eq!((count(&world, 0), count(&world, 3)), (vec![(false, 1)], vec![]));
    world.start(2);
    world.clean();
    world.run();
    assert_eq!((world.default(), world.budgets.len()), ((1, vec![], vec![]), 1));
}

#[test]
fn foreign_budget_of_osds_is_reported_under_any_name() {
    let mut world = World::settled();
    world.budgets.insert("my-osds".into(), leftover(of_rack("a")));
    world.run();
    assert!(
        world
            .condition(CephCondition::ForeignBudget)
            .unwrap()
            .contains("my-osds")
    );
    assert!(!world.budgets["my-osds"].is_ours);
    assert_eq!(world.default(), (1, vec![], vec![]));
}

/// Whatever its form: the eviction API answers 500 for a pod that two budgets select.
#[rstest]
#[case::no_form_of_rooks(None)]
#[case::form_of_a_daemon(Some(BudgetForm::Daemon(DaemonBudget { name: "any".to_owned(), selector: ("app", OSD_BUDGET.to_owned()), limit: Limit::MinAvailable(1), evicts_unready: false })))]
fn foreign_budget_is_known_by_what_it_selects(#[case] form: Option<BudgetForm>) {
    let mut world = World::settled();
    let foreign = BudgetFacts {
        form,
        selects_osds: true,
        ..leftover(of_rack("a"))
    };
    world.budgets.insert("any".into(), foreign.clone());
    world.run();
    assert!(world.condition(CephCondition::ForeignBudget).unwrap().contains("any"));
    assert_eq!(world.budgets["any"], foreign, "it is not touched");
}

#[test]
fn budget_somebody_changed_is_mended() {
    let mut world = World::settled();
    let default = world.budgets.get_mut(OSD_BUDGET).unwrap();
    default.form = None;
    world.run();
    assert_eq!(world.default(), (1, vec![], vec![]));
    world.budgets.get_mut(OSD_BUDGET).unwrap().is_exact = false;
    world.run();
    assert!(world.budgets[OSD_BUDGET].is_exact);
}

#[test]
fn domain_is_left_to_the_default_where_its_name_is_taken() {
    let mut world = World::settled();
    let mut foreign = leftover(of_rack("x"));
    foreign.form = None;
    world.budgets.insert("rook-ceph-osd-rack-a".into(), foreign);
    world.drain(2);
    world.run();
    assert_eq!(world.default(), (0, vec!["b", "c"], vec![]));
}

/// A drain is under way: budgets of OSDs stay as they are until Rook has written its own.
#[test]
fn managing_rook_gets_its_budgets_back() {
    let mut world = World::settled();
    several_of_each(&mut world.daemons);
    world.drain(2);
    world.run();
    let of_osds = |world: &World| -> Vec<_> {
        let budgets = world.budgets.iter().filter(|(name, _)| name.starts_with(OSD_BUDGET));
        budgets
            .map(|(name, budget)| (Arc::clone(name), budget.form.clone(), budget.is_ours))
            .collect()
    };
    let before = of_osds(&world);
    world.cluster.is_managed_by_rook = true;
    // It is quicker than we are.
    let rooks = RookState {
        draining_domain: Some("b".into()),
        set_noout: true,
        ..RookState::default()
    };
    world.state_map.rook.clone_from(&rooks);
    world.run();
    assert_eq!(world.state_map.rook, rooks);
    assert_eq!(of_osds(&world), before);
    assert!(!world.budgets[MON_BUDGET].is_ours);
    assert!(world.flags().is_empty() && world.state_map.noout.is_empty());
    assert_eq!(world.state().reason, CephReason::ManagedByRook);
    let asked = &world.plan().questions["ns"].may_stop;
    assert!(
        asked.contains(&[0, 1].into()),
        "it is checked before the next switch: {asked:?}"
    );
    // In the drain it deletes this one, and keeps those of domains that have its names.
    let default = world.budgets.remove(OSD_BUDGET).unwrap();
    world.run();
    assert_eq!(of_osds(&world).len(), before.len() - 1, "no domain is left without one");
    world.start(2);
    let opened = BudgetFacts {
        form: Some(BudgetForm::Osds(DefaultBudget {
            max_unavailable: 1,
            except_domains: [].into(),
            except_osds: [].into(),
        })),
        ..default
    };
    world.budgets.insert(OSD_BUDGET.into(), opened);
    world.run();
    assert_eq!(world.own(), [""; 0]);
    assert_eq!(world.default(), (1, vec![], vec![]), "Rook's, as it has written it");
    assert!(world.budgets.values().all(|budget| !budget.is_ours));
}

/// While Rook manages, what would keep us from taking over is told; nothing is: ready.
#[rstest]
#[case::ready(|_: &mut World| (), None)]
#[case::not_answered(|world: &mut World| world.view.stop_answers.clear(), Some(CephCondition::NotCheckedYet))]
#[case::silent(World::silence, Some(CephCondition::CephUnavailable))]
#[case::unknown_key(|world: &mut World| {
    let problem = CephProblem::new(CephProblemKind::KeyTypeUnknown, "needs a newer librados");
    world.ceph = Some(CephState::Silent { problem, since: world.now, last: None });
}, Some(CephCondition::CephUnavailable))]
#[case::no_manager(|world: &mut World| world.view.status.mgrmap.available = false, Some(CephCondition::NoManager))]
#[case::wrong_label(|world: &mut World| world.osds.get_mut(&3).unwrap().locations.clear(), Some(CephCondition::OsdLabelWrong))]
fn cluster_is_checked_before_rook_hands_over(#[case] change: fn(&mut World), #[case] found: Option<CephCondition>) {
    let mut world = World::new();
    world.cluster.is_managed_by_rook = true;
    world.may_stop_all(true);
    change(&mut world);
    world.run();
    assert!(world.budgets.is_empty());
    let conditions: Vec<CephCondition> = world
        .state()
        .conditions
        .iter()
        .map(|condition| condition.kind)
        .collect();
    assert_eq!(conditions.first().copied(), found, "{conditions:?}");
}

/// What ceph-pdb would do is published before the switch, and only that is written.
#[rstest]
#[case::well(|_: &mut World| (), false, None, CephReason::AllClean)]
#[case::drained(|world: &mut World| world.drain(2), true, Some("rack b"), CephReason::DomainDown)]
#[case::failed_elsewhere(|world: &mut World| { world.drain(2); world.may_stop_all(false); }, true, None, CephReason::SecondDomainDown)]
#[case::silent(|world: &mut World| { world.drain(2); world.silence(); }, true, None, CephReason::CephNotAsked)]
fn decision_is_published_before_rook_hands_over(
    #[case] change: fn(&mut World),
    #[case] is_closed: bool,
    #[case] exempt: Option<&str>,
    #[case] reason: CephReason,
) {
    let mut world = World::settled();
    world.budgets = world
        .budgets
        .into_iter()
        .map(|(name, budget)| (name, leftover(budget.form.unwrap())))
        .collect();
    let rooks = world.budgets.clone();
    world.cluster.is_managed_by_rook = true;
    change(&mut world);
    world.run();
    assert_eq!(world.budgets, rooks);
    assert!(world.state_map.noout.is_empty());
    let state = world.state();
    assert_eq!(
        (state.disruptions, state.exempt()),
        (PublishedDisruptions::Unmanaged, None)
    );
    let expected = DisruptionsPreview {
        is_closed,
        exempt: exempt.map(str::to_owned),
        reason,
    };
    assert_eq!(state.preview, Some(expected));
    world.cluster.is_managed_by_rook = false;
    world.run();
    assert_eq!(
        (world.state().reason, world.state().preview),
        (reason, None),
        "and so it does"
    );
}

/// OpenShift Data Foundation does so, and a GitOps tool whose manifest has not been changed.
#[rstest]
#[case::by_itself(World::settled(), true)]
#[case::before_the_first_hand_over(World::new(), false)]
fn rook_that_manages_again_is_reported(#[case] mut world: World, #[case] is_told: bool) {
    for _ in 0..2 {
        world.cluster.is_managed_by_rook = true;
        world.run();
        world.pass(minutes(1));
        world.run();
        let said = world.condition(CephCondition::ManagedByRookAgain);
        assert_eq!(said.is_some(), is_told);
    }
    world.cluster.is_managed_by_rook = false;
    world.run();
    assert_eq!(world.condition(CephCondition::ManagedByRookAgain), None);
}

#[test]
fn osd_outside_of_any_domain_is_reported() {
    let mut world = World::settled();
    let tree = &mut Arc::make_mut(&mut world.view.map).tree;
    for bucket in &mut tree.nodes {
        bucket.children.retain(|child| *child != 5);
    }
    world.osds.get_mut(&5).unwrap().locations.clear();
    world.run();
    assert_eq!(world.default().0, 1, "the rest works");
    assert_eq!(
        world.condition(CephCondition::OsdOutsideDomains).as_deref(),
        Some("no rack in CRUSH has osd.5")
    );
    world.unclean("active+undersized+degraded");
    assert!(
        world.plan().questions["ns"].may_stop.contains(&BTreeSet::from([5])),
        "it is judged, too"
    );
}

#[test]
fn unready_pod_that_uses_up_the_open_budget_is_reported() {
    let mut world = World::settled();
    world.osds.get_mut(&2).unwrap().is_unready = true;
    world.run();
    assert_eq!(world.condition(CephCondition::OsdNotReady).as_deref(), Some("osd.2"));
    world.drain(0);
    world.run();
    assert_eq!(world.condition(CephCondition::OsdNotReady), None, "nothing is open");
}

/// Names that Rook would not give, and so would never delete: the eviction API would answer 500 for ever.
#[rstest]
#[case::of_another_type("rook-ceph-osd-host-host-0", BudgetForm::OsdsOfDomain { max_unavailable: 0, domain: (DomainType::HOST, "host-0".into()) })]
#[case::hashed("rook-ceph-osd-rack-0123456789abcdef", of_rack("a"))]
#[case::beside_a_foreign_one("rook-ceph-osd-nodeward", BudgetForm::Osds(DefaultBudget { max_unavailable: 1, except_domains: [].into(), except_osds: [].into() }))]
fn budget_that_rook_does_not_know_is_deleted(#[case] name: &str, #[case] form: BudgetForm) {
    let mut world = World::settled();
    let ours = BudgetFacts {
        is_ours: true,
        ..leftover(form)
    };
    world.budgets.insert(name.into(), ours);
    world.cluster.is_managed_by_rook = true;
    world.run();
    assert!(world.budgets.keys().map(|name| &**name).eq([OSD_BUDGET]));
    assert!(!world.budgets[OSD_BUDGET].is_ours);
}

#[test]
fn external_cluster_gets_no_budget() {
    let mut world = World::new();
    world.cluster.is_external = true;
    world.run();
    assert!(world.budgets.is_empty());
    assert_eq!(world.state().reason, CephReason::ExternalCluster);
}

#[test]
fn deleted_cluster_loses_its_flags_and_nothing_else() {
    let mut world = World::settled();
    world.drain(2);
    world.run();
    let before = (world.budgets.clone(), world.published.clone());
    world.cluster.is_deleting = true;
    world.run();
    assert!(world.flags().is_empty() && world.state_map.noout.is_empty());
    assert_eq!((world.budgets, world.published), before);
}

#[test]
fn unknown_namespace_is_left_alone() {
    let world = World::new();
    let mut snapshot = world.snapshot();
    snapshot.unknown.insert("ns".into(), "not listed".into());
    let plan = super::super::plan(&snapshot, &world.policy, world.now);
    assert!(plan.actions.is_empty() && plan.questions.is_empty() && plan.verdicts.is_empty());
}
