//! Pods that are left alone: opted out, in ignored namespaces, without a controller, or on the node knowingly.

use nodeward_api::reason::BlockerReason;
use nodeward_core::hold::Holder;
use nodeward_core::signal::{KindObjects, KindState};
use nodeward_core::strategy::StrategyName;
use nodeward_core::verdict::Next;
use rstest::rstest;
use serde_json::{Value, json};

use super::world::{World, budget, claim_of, minute, objects, pod, terminating, with};

fn label(value: &str) -> Value {
    json!({ "metadata": { "labels": { "nodeward.dev/drain": value } } })
}

fn annotation(value: &str) -> Value {
    json!({ "metadata": { "annotations": { "nodeward.dev/drain": value } } })
}

#[rstest]
#[case::label(label("wait-completed"), Some(BlockerReason::WaitCompleted))]
#[case::annotation(annotation("wait-completed"), Some(BlockerReason::WaitCompleted))]
#[case::label_first(
    with(label("wait-completed"), annotation("skip")),
    Some(BlockerReason::WaitCompleted)
)]
#[case::label_first_too(with(label("skip"), annotation("wait-completed")), None)]
#[case::skipped(label("skip"), None)]
#[case::unknown(label("please"), Some(BlockerReason::UnknownOptOut))]
#[case::unknown_label_before_a_known_annotation(
    with(label("please"), annotation("skip")),
    Some(BlockerReason::UnknownOptOut)
)]
#[case::empty(label(""), Some(BlockerReason::UnknownOptOut))]
#[case::cluster_api(json!({ "metadata": { "labels": { "cluster.x-k8s.io/drain": "skip" } } }), None)]
#[case::cluster_api_waits(
    json!({ "metadata": { "labels": { "cluster.x-k8s.io/drain": "wait-completed" } } }),
    Some(BlockerReason::WaitCompleted)
)]
#[case::karpenter(
    json!({ "metadata": { "annotations": { "karpenter.sh/do-not-disrupt": "true" } } }),
    Some(BlockerReason::WaitCompleted)
)]
#[case::own_mark_before_those_of_others(
    with(label("wait-completed"), json!({ "metadata": { "labels": { "cluster.x-k8s.io/drain": "skip" } } })),
    Some(BlockerReason::WaitCompleted)
)]
fn a_pod_that_opted_out_is_never_touched(
    #[case] patch: Value,
    #[case] reason: Option<BlockerReason>,
    #[values(json!({}), terminating(30, 1))] state: Value,
) {
    let plan = World::draining().pod(with(with(pod("p"), patch), state)).at(10_000);
    assert_eq!((plan.strategy(), plan.reason("p")), (None, reason));
    assert_eq!(plan.has_failed(), reason.is_some(), "waited for, and not pending");
}

#[test]
fn finishing_pod_blocks_until_done() {
    let done = json!({ "status": { "phase": "Succeeded" } });
    let world = |patch| {
        World::draining()
            .pod(with(with(pod("p"), label("wait-completed")), patch))
            .at(10_000)
    };
    assert_eq!(world(json!({})).reason("p"), Some(BlockerReason::WaitCompleted));
    assert_eq!(world(done).reason("p"), None);
}

fn do_not_disrupt(value: &str, start: Option<i64>) -> Value {
    json!({
        "metadata": { "annotations": { "karpenter.sh/do-not-disrupt": value } },
        "status": { "startTime": start.map(|start| minute(start).to_string()) },
    })
}

/// What comes after its end is said from the start, and wakes us.
#[test]
fn karpenters_duration_protects_until_its_end() {
    let world = World::draining().pod(with(pod("p"), do_not_disrupt("4h", Some(-180))));
    let (strategy, end) = (StrategyName::Delete, minute(60));
    for minutes in [1, 45, 59] {
        let plan = world.at(minutes);
        let told = (plan.reason("p"), plan.strategy(), plan.next("p"));
        let next = Next::At { strategy, due: end };
        assert_eq!(told, (Some(BlockerReason::WaitCompleted), None, next));
        assert!(plan.requeue_at.is_some_and(|at| at <= end));
    }
    assert_eq!(world.at(59).requeue_at, Some(end));
    assert_eq!(world.at(60).strategy(), Some(strategy));
}

#[rstest]
#[case::over_before_the_deadline(do_not_disrupt("1h", Some(-30)), "", Some(45))]
#[case::not_started(do_not_disrupt("1m", None), "", None)]
#[case::cut_off_by_configuration(do_not_disrupt("4h", Some(0)), "maxDuration: 30", Some(75))]
#[case::over_before_configuration_ends_it(do_not_disrupt("1h", Some(0)), "maxDuration: 30", Some(60))]
#[case::read_by_no_source(do_not_disrupt("4h", Some(0)), "honour: [nodeward]", Some(45))]
#[case::beside_one_that_lasts(with(do_not_disrupt("1h", Some(0)), label("wait-completed")), "", None)]
fn forced_once_no_opt_out_counts(#[case] patch: Value, #[case] limits: &str, #[case] forced: Option<i64>) {
    let world = World::draining()
        .also(&format!("optOuts: {{{limits}}}"))
        .pod(with(pod("p"), patch));
    let minutes = forced.unwrap_or(10_000);
    assert_eq!(world.at(minutes - 1).strategy(), None);
    assert_eq!(world.at(minutes).strategy(), forced.map(|_| StrategyName::Delete));
}

/// Karpenter itself drops such a value. Its author meant something by it.
#[rstest]
#[case::no_unit("240")]
#[case::days("4d")]
#[case::nothing("0s")]
#[case::negative("-4h")]
#[case::empty("")]
fn karpenters_value_that_is_not_known_is_named(#[case] value: &str) {
    let world = World::draining().pod(with(pod("p"), do_not_disrupt(value, Some(0))));
    let plan = world.at(10_000);
    assert_eq!(
        (plan.reason("p"), plan.strategy()),
        (Some(BlockerReason::UnknownOptOut), None)
    );
    let detail = "karpenter.sh/do-not-disrupt takes true, or a duration such as 4h";
    assert_eq!(plan.blocker("p").unwrap().detail, detail);
}

#[rstest]
#[case(json!({ "annotations": { "karpenter.sh/do-not-disrupt": "true" } }), "karpenter.sh/do-not-disrupt")]
#[case(json!({ "labels": { "cluster.x-k8s.io/drain": "wait-completed" } }), "cluster.x-k8s.io/drain")]
fn foreign_opt_out_mark_is_named(#[case] metadata: Value, #[case] mark: &str) {
    let plan = World::draining()
        .pod(with(pod("p"), json!({ "metadata": metadata })))
        .at(1);
    assert_eq!(plan.blocker("p").unwrap().detail, mark);
}

#[rstest]
#[case::anchored("['^shop$']", "shop", true)]
#[case::unanchored_matches_anywhere("['hop']", "shop", true)]
#[case::unanchored_prefix("['sho']", "workshop", true)]
#[case::anchored_at_the_start("['^shop']", "workshop", false)]
#[case::second_pattern("['^a$', '^shop$']", "shop", true)]
#[case::none("[]", "shop", false)]
fn pods_in_ignored_namespaces_are_named_and_never_touched(
    #[case] patterns: &str,
    #[case] namespace: &str,
    #[case] ignored: bool,
) {
    let world = World::draining()
        .also(&format!("nodeDrain: {{ignoredNamespacePatterns: {patterns}}}"))
        .pod(with(pod("p"), json!({ "metadata": { "namespace": namespace } })));
    let plan = world.at(10_000);
    assert_eq!(plan.strategy().is_none(), ignored);
    assert_eq!(plan.reason("p") == Some(BlockerReason::NamespaceIgnored), ignored);
}

fn unmanaged() -> Value {
    json!({ "metadata": { "ownerReferences": null } })
}

#[rstest]
#[case::by_default(World::draining(), false)]
#[case::kept(World::draining().also("unmanagedPods: keep"), false)]
#[case::deleted(World::draining().also("unmanagedPods: delete"), true)]
// OpenShift's own drain forces them, too.
#[case::by_default_on_openshift(World::openshift(), true)]
#[case::kept_on_openshift(World::openshift().config("unmanagedPods: keep"), false)]
#[case::by_default_with_another_signal_beside_it(
    World::openshift().config("upgradeSignal: {anyOf: [openshift, {preset: kured}]}"), false
)]
#[case::by_default_with_all_of_openshift(
    World::openshift().config("upgradeSignal: {allOf: [openshift]}"), true
)]
fn uncontrolled_pods_are_named_unless_deletion_allowed(#[case] world: World, #[case] deleted: bool) {
    let plan = world.pod(with(pod("p"), unmanaged())).at(45);
    assert_eq!(plan.strategy(), deleted.then_some(StrategyName::Delete));
    if !deleted {
        assert_eq!(
            (plan.reason("p"), plan.next("p")),
            (Some(BlockerReason::Unmanaged), Next::Nothing)
        );
    }
}

/// An owner reference without `controller` is nobody who would make the pod again.
#[test]
fn an_owner_that_is_no_controller_manages_nothing() {
    let owner = json!({ "metadata": { "ownerReferences": [{ "apiVersion": "v1", "kind": "ConfigMap", "name": "c", "uid": "c" }] } });
    assert_eq!(
        World::draining().pod(with(pod("p"), owner)).at(45).reason("p"),
        Some(BlockerReason::Unmanaged)
    );
}

/// Whoever deleted it has decided.
#[test]
fn stuck_uncontrolled_pod_is_deleted() {
    let stuck = with(with(pod("p"), unmanaged()), terminating(30, 1));
    assert_eq!(
        World::draining().pod(stuck).at(45).strategy(),
        Some(StrategyName::StuckTerminating)
    );
}

#[rstest]
#[case::created_before_and_tolerates(-1, json!([{ "operator": "Exists" }]), false)]
#[case::created_after_and_tolerates(10, json!([{ "operator": "Exists" }]), true)]
#[case::tolerates_by_key(10, json!([{ "key": "node.kubernetes.io/unschedulable", "operator": "Exists", "effect": "NoSchedule" }]), true)]
#[case::tolerates_another_taint(10, json!([{ "key": "dedicated", "operator": "Exists" }]), false)]
#[case::created_after(10, json!([]), false)]
fn a_pod_that_came_knowingly_is_named_not_forced(
    #[case] created: i64,
    #[case] tolerations: Value,
    #[case] named: bool,
) {
    let patch = json!({
        "metadata": { "creationTimestamp": minute(created).to_string() },
        "spec": { "tolerations": tolerations },
    });
    let plan = World::draining().pod(with(pod("p"), patch)).at(10_000);
    assert_eq!(plan.strategy().is_none(), named);
    assert_eq!(plan.reason("p") == Some(BlockerReason::ToleratesCordon), named);
}

/// emptyDir spares no pod.
#[test]
fn empty_dir_pod_is_evicted_normally() {
    let patch = json!({ "spec": { "volumes": [{ "name": "scratch", "emptyDir": {} }] } });
    assert_eq!(
        World::draining().pod(with(pod("p"), patch)).at(45).strategy(),
        Some(StrategyName::Delete)
    );
}

/// It is at work on the node: nobody waits for it, and it is not forced.
#[rstest]
#[case::of_system_upgrade_controller(json!({ "metadata": { "labels": { "upgrade.cattle.io/controller": "system-upgrade-controller" } } }), false)]
#[case::of_hypershift(json!({ "metadata": { "namespace": "pool-1-upgrade", "name": "machine-config-daemon-n1", "ownerReferences": null } }), false)]
#[case::named_for_another_node(json!({ "metadata": { "namespace": "pool-1-upgrade", "name": "machine-config-daemon-n2" } }), true)]
#[case::of_its_name_elsewhere(json!({ "metadata": { "name": "machine-config-daemon-n1" } }), true)]
#[case::of_a_controller(json!({ "metadata": { "namespace": "pool-1-upgrade", "name": "machine-config-daemon-n1" } }), true)]
fn pod_of_an_upgrader_is_no_blocker(#[case] patch: Value, #[case] forced: bool) {
    let plan = World::draining().pod(with(pod("p"), patch)).at(45);
    assert_eq!(plan.acts().len(), usize::from(forced));
    assert_eq!(plan.verdict("n1").blockers.is_empty(), !forced);
}

fn cluster_api() -> Value {
    json!({ "metadata": { "labels": { "cluster.x-k8s.io/drain": "skip" } } })
}

fn karpenter() -> Value {
    json!({ "metadata": { "annotations": { "karpenter.sh/do-not-disrupt": "true" } } })
}

/// Why an opt-out does not count is said in an Event on the pod, once.
fn told(world: &World, minutes: i64) -> Option<String> {
    let plan = world.at(minutes);
    let mut told = plan.warnings.iter().filter(|warning| warning.reason == "OptOutIgnored");
    let first = told.next()?;
    assert_eq!(told.next(), None);
    let (key, uid) = first.pod.clone().unwrap();
    assert_eq!((key.to_string().as_str(), uid.as_str()), ("shop/p", "p"));
    Some(first.text.clone())
}

#[rstest]
#[case::all_by_default(label("wait-completed"), "", None)]
#[case::own_left_out(
    label("wait-completed"),
    "honour: [clusterApi, karpenter, holds]",
    Some("nodeward.dev/drain")
)]
#[case::own_skip_left_out(annotation("skip"), "honour: []", Some("nodeward.dev/drain"))]
#[case::own_unknown_left_out(label("please"), "honour: []", Some("nodeward.dev/drain"))]
#[case::own_alone(label("skip"), "honour: [nodeward]", None)]
#[case::cluster_api_left_out(cluster_api(), "honour: [nodeward]", Some("cluster.x-k8s.io/drain"))]
#[case::cluster_api_alone(cluster_api(), "honour: [clusterApi]", None)]
#[case::karpenter_left_out(karpenter(), "honour: [nodeward]", Some("karpenter.sh/do-not-disrupt"))]
#[case::karpenter_alone(karpenter(), "honour: [karpenter]", None)]
#[case::another_mark_counts(with(label("skip"), karpenter()), "honour: [karpenter]", None)]
fn only_honoured_opt_outs_keep_pods(#[case] patch: Value, #[case] fields: &str, #[case] ignored: Option<&str>) {
    let world = World::draining()
        .also(&format!("optOuts: {{{fields}}}"))
        .pod(with(pod("p"), patch));
    assert_eq!(world.at(44).strategy(), None);
    assert_eq!(world.at(45).strategy(), ignored.map(|_| StrategyName::Delete));
    let text = ignored.map(|key| format!("{key} does not count: optOuts.honour leaves it out"));
    assert_eq!(told(&world, 1), text);
}

#[test]
fn opt_outs_count_in_selected_namespaces_only() {
    let limits = "optOuts: {namespaces: {selector: {tier: production}}}";
    let mut world = World::draining()
        .also(limits)
        .pod(with(pod("p"), label("wait-completed")));
    assert_eq!((world.at(45).strategy(), told(&world, 45)), (None, None));
    world.without_opt_outs.insert("shop".into());
    assert_eq!(world.at(45).strategy(), Some(StrategyName::Delete));
    assert!(told(&world, 1).unwrap().ends_with("optOuts.namespaces leaves shop out"));
    let disabled = world.also(&format!("{limits}, nodeDrain: {{disableDrainStrategies: true}}"));
    assert_eq!(told(&disabled, 45), None, "nothing is forced, so nothing is ignored");
}

#[rstest]
#[case::waits("wait-completed", Some(BlockerReason::WaitCompleted))]
#[case::unknown("please", Some(BlockerReason::UnknownOptOut))]
#[case::stays("skip", None)]
fn opt_out_ends_after_its_longest_duration(#[case] value: &str, #[case] reason: Option<BlockerReason>) {
    let world = World::draining()
        .also("optOuts: {maxDuration: 30}")
        .pod(with(pod("p"), label(value)));
    let end = minute(75);
    for minutes in [1, 50, 74] {
        let plan = world.at(minutes);
        assert_eq!(
            (plan.reason("p"), plan.strategy(), plan.has_failed()),
            (reason, None, false)
        );
        assert!(plan.requeue_at.is_some_and(|at| at <= end));
        if reason.is_some() {
            let strategy = StrategyName::Delete;
            assert_eq!(plan.next("p"), Next::At { strategy, due: end });
        }
    }
    assert_eq!(world.at(74).requeue_at, Some(end));
    assert_eq!(
        (told(&world, 74), world.at(75).strategy()),
        (None, Some(StrategyName::Delete))
    );
    let text = told(&world, 75).unwrap();
    assert!(
        text.ends_with("optOuts.maxDuration ended at 2026-01-01T01:15:00Z"),
        "{text}"
    );
}

/// What comes after it is said as it will be: nothing, where another rule stands in the way.
#[test]
fn ending_opt_out_promises_nothing_forbidden() {
    let never = with(
        budget("web", 0),
        json!({ "metadata": { "labels": { "nodeward.dev/force-drain": "never" } } }),
    );
    let world = World::draining()
        .also("optOuts: {maxDuration: 30}")
        .pod(with(pod("p"), label("wait-completed")))
        .budget(never);
    let plan = world.at(50);
    assert_eq!(
        (plan.reason("p"), plan.next("p")),
        (Some(BlockerReason::WaitCompleted), Next::Nothing)
    );
    assert_eq!(plan.requeue_at, Some(minute(98)), "its reason is another one then");
    assert_eq!(world.at(98).reason("p"), Some(BlockerReason::BudgetNeverForced));
}

#[rstest]
#[case::by_default(Holder::Owner("audit".to_owned()), "", None)]
#[case::left_out(Holder::Owner("audit".to_owned()), "honour: [nodeward]", Some(68))]
#[case::limited(Holder::Owner("audit".to_owned()), "maxDuration: 30", Some(98))]
// Neither is an opt-out.
#[case::claim_of_a_node(claim_of("n2", &[]), "honour: [], maxDuration: 30", None)]
#[case::unknown(Holder::Unknown("not listed".to_owned()), "honour: [], maxDuration: 30", None)]
fn owners_hold_counts_as_far_as_honoured(#[case] holder: Holder, #[case] fields: &str, #[case] forced: Option<i64>) {
    let held = World::draining()
        .pod(pod("p"))
        .budget(budget("web", 0))
        .held("web", holder, None);
    let world = held.also(&format!("optOuts: {{{fields}}}"));
    let minutes = forced.unwrap_or(10_000);
    assert_eq!(world.at(minutes - 1).strategy(), None);
    assert_eq!(world.at(minutes).strategy(), forced.map(|_| StrategyName::PdbDelete));
    assert_eq!(told(&world, minutes).is_some(), forced.is_some());
    if forced == Some(98) {
        let strategy = StrategyName::PdbDelete;
        let until = Some(minute(98));
        assert_eq!(
            world.at(80).next("p"),
            Next::HeldBack {
                strategy,
                due: minute(68),
                until
            }
        );
        assert_eq!(told(&world, 80), None);
    }
}

/// A world in which Cluster API deletes the Machine of `n1`, under these rules.
fn under_rules(rules: KindObjects, fields: &str, patch: Value) -> World {
    let machine = json!({
        "metadata": { "namespace": "fleet", "name": "m", "deletionTimestamp": minute(0).to_string() },
        "spec": { "clusterName": "c" },
        "status": { "nodeRef": { "name": "n1" } },
    });
    let mut world = World::draining()
        .config(&format!("{{upgradeSignal: {{preset: clusterApi}}, {fields}}}"))
        .signal("cluster.x-k8s.io/v1beta2", "Machine", objects([machine]))
        .signal("cluster.x-k8s.io/v1beta2", "MachineDrainRule", rules)
        .pod(with(pod("p"), patch));
    for kind in ["Machine", "MachineDrainRule"] {
        world = world.signal("cluster.x-k8s.io/v1beta1", kind, KindState::Absent);
    }
    world
}

fn drain_rule(behavior: &str) -> KindObjects {
    objects([json!({
        "metadata": { "namespace": "fleet", "name": "jobs" },
        "spec": { "drain": { "behavior": behavior }, "pods": [{ "selector": { "matchLabels": { "app": "web" } } }] },
    })])
}

#[rstest]
#[case::drains("Drain", None, Some(StrategyName::Delete))]
#[case::waits("WaitCompleted", Some(BlockerReason::WaitCompleted), None)]
#[case::skips("Skip", None, None)]
fn machine_drain_rule_keeps_pods(
    #[case] behavior: &str,
    #[case] reason: Option<BlockerReason>,
    #[case] strategy: Option<StrategyName>,
) {
    let plan = under_rules(drain_rule(behavior), "", json!({})).at(10_000);
    assert_eq!(plan.strategy(), strategy);
    if strategy.is_none() {
        assert_eq!(plan.reason("p"), reason);
        assert_eq!(plan.has_failed(), reason.is_some());
    }
    if reason.is_some() {
        assert_eq!(plan.blocker("p").unwrap().detail, "MachineDrainRule fleet/jobs");
    }
}

#[test]
fn machine_drain_rules_that_may_not_be_read_force_nothing() {
    let plan = under_rules(KindState::Forbidden("no".into()), "", json!({})).at(10_000);
    assert_eq!(
        (plan.reason("p"), plan.strategy()),
        (Some(BlockerReason::UnknownOptOut), None)
    );
    let detail = &plan.blocker("p").unwrap().detail;
    assert!(detail.contains("resources: [\"machinedrainrules\"]"), "{detail}");
}

/// They are limited as Cluster API's label is, and come after what the pod itself says.
#[rstest]
#[case::left_out(json!({}), "optOuts: {honour: [nodeward]}", Some(45), true)]
#[case::limited(json!({}), "optOuts: {maxDuration: 30}", Some(75), true)]
#[case::pods_own_word(label("skip"), "", None, false)]
fn machine_drain_rule_counts_as_far_as_honoured(
    #[case] patch: Value,
    #[case] fields: &str,
    #[case] forced: Option<i64>,
    #[case] is_told: bool,
) {
    let world = under_rules(drain_rule("WaitCompleted"), fields, patch);
    let minutes = forced.unwrap_or(10_000);
    assert_eq!(world.at(minutes - 1).strategy(), None);
    assert_eq!(world.at(minutes).strategy(), forced.map(|_| StrategyName::Delete));
    let text = told(&world, minutes);
    assert_eq!(text.is_some(), is_told);
    assert!(text.is_none_or(|text| text.starts_with("MachineDrainRule fleet/jobs does not count")));
    assert_eq!(
        forced.is_none(),
        world.at(1).reason("p").is_none(),
        "the pod's own word is the one that counts"
    );
}
