//! A pod moves by a rollout of its Deployment before it is forced, and is not kept from that for ever.

use std::sync::Arc;

use jiff::Timestamp;
use nodeward_api::reason::{BlockerReason, SurgeOutcome};
use nodeward_core::id::NamespacedName;
use nodeward_core::pod::PodView;
use nodeward_core::strategy::{Remedy, StrategyName};
use nodeward_core::surge::{ClaimView, Course, DeploymentView, End, ReplicaSetView, Workloads};
use nodeward_core::verdict::Next;
use rstest::rstest;
use serde_json::{Value, json};

use super::world::{World, budget, claim_of, minute, node, pod, reserved_for, second, terminating, with};
use crate::plan::Plan;
use crate::snapshot::Outcome;

const ON: &str = "surge: { enabled: true }";

/// One replica that is available, at generation 3.
fn deployment(name: &str) -> Value {
    json!({
        "metadata": { "namespace": "shop", "name": name, "uid": name, "resourceVersion": "9", "generation": 3 },
        "spec": {
            "replicas": 1, "selector": { "matchLabels": { "app": name } },
            "template": {
                "metadata": { "labels": { "app": name } },
                "spec": { "containers": [{ "name": "c", "readinessProbe": { "httpGet": { "port": 80 } } }] },
            },
        },
        "status": { "observedGeneration": 3, "replicas": 1, "updatedReplicas": 1, "availableReplicas": 1 },
    })
}

/// It was told to roll 2 minutes after the start; the new pod is not available yet.
fn restarted() -> Value {
    json!({
        "metadata": { "generation": 4 },
        "spec": { "template": { "metadata": { "annotations": { "kubectl.kubernetes.io/restartedAt": minute(2).to_string() } } } },
        "status": { "observedGeneration": 4, "replicas": 2 },
    })
}

fn owned_by(kind: &str, name: &str) -> Value {
    json!([{ "apiVersion": "apps/v1", "kind": kind, "name": name, "uid": name, "controller": true }])
}

/// The pod of the Deployment of the same name.
fn pod_of(name: &str) -> Value {
    let metadata = json!({ "labels": { "app": name }, "ownerReferences": owned_by("ReplicaSet", name) });
    with(pod(name), json!({ "metadata": metadata }))
}

/// The annotation of a surge that began 2 minutes after the start.
fn record(name: &str) -> Value {
    record_until(name, minute(12))
}

/// The same, given up then.
fn record_until(name: &str, until: Timestamp) -> Value {
    let record = format!(
        r#"{{"deployment":"{name}","generation":3,"at":"{}","until":"{until}"}}"#,
        minute(2)
    );
    json!({ "metadata": { "annotations": { "nodeward.dev/surged": record } } })
}

fn budget_of(name: &str, room: i32) -> Value {
    with(
        budget(name, room),
        json!({ "spec": { "selector": { "matchLabels": { "app": name } } } }),
    )
}

fn workloads(deployments: &[Value], pods: &[Value]) -> Workloads {
    let key = |object: &Value| NamespacedName::new("shop", object["metadata"]["name"].as_str().unwrap());
    let view = |object: &Value| DeploymentView::project(&serde_json::from_value(object.clone()).unwrap()).unwrap();
    let set = |object: &Value| {
        let name = object["metadata"]["name"].as_str().unwrap();
        let set = json!({ "metadata": { "name": name, "uid": name, "ownerReferences": owned_by("Deployment", name) } });
        ReplicaSetView::project(&serde_json::from_value(set).unwrap())
    };
    let summary = |object: &Value| {
        PodView::project(&serde_json::from_value(object.clone()).unwrap())
            .unwrap()
            .summary
    };
    let deployed = deployments.iter();
    Workloads {
        replica_sets: Arc::new(
            deployed
                .clone()
                .map(|object| (key(object), Arc::new(set(object))))
                .collect(),
        ),
        deployments: Arc::new(deployed.map(|object| (key(object), Arc::new(view(object)))).collect()),
        pods: Arc::new(
            pods.iter()
                .map(|object| (key(object), Arc::new(summary(object))))
                .collect(),
        ),
        claims: Arc::new(
            [(
                NamespacedName::new("shop", "data"),
                Arc::new(ClaimView { is_shared: true }),
            )]
            .into(),
        ),
    }
}

/// The pod `web` on the draining node, whose only budget demands it, with these changes of it and of its Deployment.
fn singleton_with(pod: Value, changes: Value) -> World {
    let pod = with(pod_of("web"), pod);
    World::draining()
        .also(ON)
        .workloads(workloads(
            &[with(deployment("web"), changes)],
            std::slice::from_ref(&pod),
        ))
        .pod(pod)
        .budget(budget_of("web", 0))
}

fn singleton() -> World {
    singleton_with(json!({}), json!({}))
}

fn remedy(plan: &Plan) -> Option<Remedy> {
    plan.acts().first().map(|act| act.strategy.remedy)
}

fn detail(plan: &Plan) -> &str {
    &plan.blocker("web").unwrap().detail
}

const fn surge_at(due: Timestamp) -> Next {
    let strategy = StrategyName::Surge;
    Next::At { strategy, due }
}

const fn force_at(due: Timestamp) -> Next {
    let strategy = StrategyName::PdbDelete;
    Next::At { strategy, due }
}

#[test]
fn singleton_moves_by_its_own_rollout() {
    let before = singleton().at(1);
    assert_eq!((before.next("web"), before.strategy()), (surge_at(minute(2)), None));
    assert_eq!(before.requeue_at, Some(minute(2)));
    let plan = singleton().at(2);
    assert_eq!((remedy(&plan), plan.acted()), (Some(Remedy::Restart), vec!["web"]));
    assert!(plan.watch_workloads.contains("shop"));
}

#[test]
fn nothing_is_told_to_roll_by_default() {
    let plan = singleton().also("forceAfter: 5").at(10);
    assert_eq!((plan.next("web"), plan.acted().len()), (force_at(minute(68)), 0));
    assert!(plan.watch_workloads.is_empty() && plan.had_room.is_empty());
}

/// A rollout is begun like an eviction, and goes on like one.
#[test]
fn rollout_waits_for_a_window() {
    let world = singleton().also("surge: { enabled: true }, windows: [{ from: '02:00', to: '04:00' }]");
    let plan = world.at(1);
    assert_eq!((plan.next("web"), plan.has_failed()), (surge_at(minute(120)), false));
    let plan = world.at(100);
    let (strategy, due, until) = (StrategyName::Surge, minute(2), Some(minute(120)));
    assert_eq!(plan.next("web"), Next::HeldBack { strategy, due, until });
    assert_eq!(
        (plan.reason("web"), plan.acted().len()),
        (Some(BlockerReason::WaitsForWindow), 0)
    );
    assert_eq!(
        (world.at(119).has_failed(), remedy(&world.at(120))),
        (false, Some(Remedy::Restart))
    );
    let planned = json!({ "status": { "plan": { "movable": 1 } } });
    let of_ours = world.node_drain_with("Draining", planned);
    assert_eq!(remedy(&of_ours.at(2)), Some(Remedy::Restart));
    let begun = singleton_with(record("web"), json!({}))
        .also("surge: { enabled: true }, windows: [{ from: '02:00', to: '04:00' }]");
    assert_eq!(remedy(&begun.at(3)), Some(Remedy::Restart));
}

#[rstest]
#[case::later(r#"surge: { enabled: true, after: "5m" }"#, 4, None)]
#[case::then(r#"surge: { enabled: true, after: "5m" }"#, 5, Some(Remedy::Restart))]
#[case::whatever_may_be_overridden("surge: { enabled: true }, overrideBudgets: never", 2, Some(Remedy::Restart))]
#[case::disabled("surge: { enabled: true }, nodeDrain: { disableDrainStrategies: true }", 90, None)]
#[case::ignored_namespace(
    "surge: { enabled: true }, nodeDrain: { ignoredNamespacePatterns: [shop] }",
    90,
    None
)]
fn configuration_says_when(#[case] fields: &str, #[case] minutes: i64, #[case] expected: Option<Remedy>) {
    let fields = fields.replace(", overrideBudgets: never", "");
    assert_eq!(remedy(&singleton().also(&fields).at(minutes)), expected);
}

#[test]
fn budget_that_may_not_be_overridden_is_no_obstacle() {
    let config = "{upgradeSignal: always, countsAsDrain: all, surge: { enabled: true }}";
    assert_eq!(remedy(&singleton().config(config).at(2)), Some(Remedy::Restart));
    let never = json!({ "metadata": { "labels": { "nodeward.dev/force-drain": "never" } } });
    let world = World::draining()
        .also(ON)
        .workloads(workloads(&[deployment("web")], &[pod_of("web")]))
        .pod(pod_of("web"))
        .budget(with(budget_of("web", 0), never));
    assert_eq!(world.at(1).next("web"), surge_at(minute(2)));
    assert_eq!(remedy(&world.at(2)), Some(Remedy::Restart));
}

#[rstest]
#[case::room(json!({}), json!({}), 1)]
#[case::opted_out(json!({ "metadata": { "labels": { "nodeward.dev/drain": "wait-completed" } } }), json!({}), 0)]
#[case::skipped(json!({ "metadata": { "labels": { "nodeward.dev/drain": "skip" } } }), json!({}), 0)]
#[case::never(json!({ "metadata": { "annotations": { "nodeward.dev/surge": "never" } } }), json!({}), 0)]
#[case::terminating(terminating(1, 1), json!({}), 0)]
#[case::of_a_stateful_set(json!({ "metadata": { "ownerReferences": owned_by("StatefulSet", "web") } }), json!({}), 0)]
#[case::paused(json!({}), json!({ "spec": { "paused": true } }), 0)]
#[case::scaled(json!({}), json!({ "spec": { "replicas": 2 } }), 0)]
fn others_go_by_their_own_clock(#[case] pod: Value, #[case] changes: Value, #[case] room: i32) {
    let world = singleton_with(pod, changes);
    let world = if room > 0 {
        World::draining()
            .also(ON)
            .pod(pod_of("web"))
            .budget(budget_of("web", room))
    } else {
        world
    };
    assert_eq!(remedy(&world.at(3)), None);
    assert!(
        world
            .at(68)
            .acts()
            .iter()
            .all(|act| !act.strategy.remedy.is_about_deployment())
    );
}

#[test]
fn obstacle_is_told() {
    let plan = singleton_with(json!({}), json!({ "spec": { "replicas": 2 } })).at(3);
    let text = "no rollout moves it: NotOneReplica: it is of a Deployment that does not have one replica (2)";
    assert_eq!((plan.next("web"), detail(&plan)), (force_at(minute(68)), text));
}

#[test]
fn held_budget_is_left_alone() {
    for holder in [claim_of("n2", &[]), reserved_for("n2")] {
        let plan = singleton().held("web", holder, None).at(5);
        assert_eq!(
            (plan.reason("web"), plan.acted().len()),
            (Some(BlockerReason::BudgetHeld), 0)
        );
    }
}

#[test]
fn nothing_is_promised_before_workloads_are_known() {
    let world = World::draining()
        .also(ON)
        .pod(pod_of("web"))
        .budget(budget_of("web", 0));
    let plan = world.at(5);
    assert_eq!((plan.next("web"), plan.acted().len()), (force_at(minute(68)), 0));
    assert!(plan.watch_workloads.contains("shop"));
}

#[test]
fn other_namespaces_are_left_alone() {
    let mut world = singleton();
    world.surge_namespaces = Some(["other".into()].into());
    assert_eq!(remedy(&world.at(5)), None);
    assert_eq!(
        detail(&world.at(5)),
        "no rollout moves it: surge.namespaces leaves its namespace out"
    );
    world.surge_namespaces = Some(["shop".into()].into());
    assert_eq!(remedy(&world.at(5)), Some(Remedy::Restart));
}

#[test]
fn refusal_counts_without_a_break() {
    let open = World::draining()
        .also(ON)
        .pod(pod_of("web"))
        .budget(budget_of("web", 1));
    let mut world = singleton();
    world.memory.had_room = open.at(4).had_room;
    assert_eq!(world.memory.had_room.values().copied().collect::<Vec<_>>(), [minute(4)]);
    assert_eq!(world.at(5).next("web"), surge_at(minute(6)));
    assert_eq!(world.at(5).had_room, world.memory.had_room);
    assert_eq!(remedy(&world.at(6)), Some(Remedy::Restart));
}

#[rstest]
#[case::not_told_yet(json!({}), 3, Some(Remedy::Restart), Course::Recorded(minute(12)))]
#[case::rolls(restarted(), 11, None, Course::Rolls(minute(12)))]
#[case::stuck(
    restarted(), 12, Some(Remedy::UndoRestart), Course::Ended(End { outcome: SurgeOutcome::SurgeStuck, is_ours_to_undo: true })
)]
fn surge_goes_on_from_its_record(
    #[case] changes: Value,
    #[case] minutes: i64,
    #[case] expected: Option<Remedy>,
    #[case] course: Course,
) {
    // Once both pods are ready, the budget has room.
    for room in [0, 1] {
        let pod = with(pod_of("web"), record("web"));
        let world = World::draining()
            .also(ON)
            .workloads(workloads(
                &[with(deployment("web"), changes.clone())],
                std::slice::from_ref(&pod),
            ))
            .pod(pod)
            .budget(budget_of("web", room));
        let plan = world.at(minutes);
        assert_eq!(
            (remedy(&plan), plan.reason("web")),
            (expected, Some(BlockerReason::Surging))
        );
        assert_eq!(plan.surges.values().next().unwrap().course, course);
    }
}

#[test]
fn nothing_is_forced_while_it_rolls() {
    let world = singleton_with(record("web"), restarted())
        .also("surge: { enabled: true }, nodeDrain: { timeOut: 1, expectedNodeDrainTime: 1 }, pdbForceDrainTimeout: 1");
    let world_at = |minutes| {
        let plan = world.at(minutes);
        (plan.acted().len(), plan.reason("web"), plan.has_failed())
    };
    for minutes in [3, 11] {
        assert_eq!(world_at(minutes), (0, Some(BlockerReason::Surging), false));
    }
    let plan = world.at(11);
    assert_eq!(detail(&plan), "given up at 2026-01-01T00:12:00Z");
    assert_eq!((plan.requeue_at, plan.held_back.len()), (Some(minute(12)), 1));
}

#[rstest]
#[case::put_back(json!({ "metadata": { "generation": 5 } }), 13, SurgeOutcome::SurgeStuck)]
#[case::reverted(json!({ "metadata": { "generation": 5 } }), 3, SurgeOutcome::SurgeReverted)]
#[case::overtaken(with(restarted(), json!({ "metadata": { "generation": 5 } })), 3, SurgeOutcome::SurgeOvertaken)]
fn pod_goes_by_its_own_clock_after_its_surge(
    #[case] changes: Value,
    #[case] minutes: i64,
    #[case] outcome: SurgeOutcome,
) {
    let world = singleton_with(record("web"), changes);
    let plan = world.at(minutes);
    assert_eq!((plan.next("web"), plan.acted().len()), (force_at(minute(68)), 0));
    assert_eq!(detail(&plan), format!("{outcome}: it {}", outcome.explanation()));
    let late = world.at(68);
    assert_eq!(
        late.strategy(),
        Some(StrategyName::PdbDelete),
        "never told to roll again"
    );
}

#[test]
fn surge_without_workloads_is_given_up_in_time() {
    let world = World::draining()
        .also("surge: { enabled: true }")
        .pod(with(pod_of("web"), record_until("web", minute(82))))
        .budget(budget_of("web", 0));
    assert_eq!(
        (world.at(70).acted().len(), world.at(70).reason("web")),
        (0, Some(BlockerReason::Surging))
    );
    assert_eq!(world.at(82).strategy(), Some(StrategyName::PdbDelete));
}

#[test]
fn unreadable_record_forbids_another() {
    let nonsense = json!({ "metadata": { "annotations": { "nodeward.dev/surged": "{}" } } });
    let world = singleton_with(nonsense, json!({}));
    assert_eq!(remedy(&world.at(5)), None);
    assert!(detail(&world.at(5)).starts_with("no rollout moves it: annotation nodeward.dev/surged: missing field"));
    assert_eq!(world.at(68).strategy(), Some(StrategyName::PdbDelete));
}

#[rstest]
#[case::denied(Outcome::Denied("no".to_owned()))]
#[case::failed(Outcome::Failed("no".to_owned()))]
fn pod_is_forced_in_time_where_no_deployment_can_be_told(#[case] outcome: Outcome) {
    let mut world = singleton().attempted("web", outcome, second(0));
    world.memory.attempts.get_mut("web").unwrap().failures = 3;
    assert_eq!(remedy(&world.at(5)), Some(Remedy::Restart));
    assert_eq!(world.at(68).strategy(), Some(StrategyName::PdbDelete));
}

#[test]
fn rollout_whose_begin_was_not_answered_is_waited_for() {
    let mut world = singleton_with(record("web"), restarted())
        .also("surge: { enabled: true }, nodeDrain: { timeOut: 1, expectedNodeDrainTime: 1 }, pdbForceDrainTimeout: 1");
    world = world.attempted("web", Outcome::Failed("timeout".to_owned()), second(0));
    world.memory.attempts.get_mut("web").unwrap().failures = 1;
    let plan = world.at(5);
    assert_eq!(
        (plan.acted().len(), plan.reason("web")),
        (0, Some(BlockerReason::Surging))
    );
}

#[test]
fn restart_is_not_sent_twice_while_the_watch_is_behind() {
    let world = singleton().attempted("web", Outcome::Restarted, minute(2));
    let plan = world.plan(second(125));
    assert_eq!(plan.acted().len(), 0);
    assert_eq!(plan.requeue_at, Some(second(130)));
}

/// Each with a Deployment and a budget of its own.
fn singletons(count: usize) -> World {
    let names: Vec<String> = (0..count).map(|index| format!("web-{index}")).collect();
    let deployments: Vec<Value> = names.iter().map(|name| deployment(name)).collect();
    let pods: Vec<Value> = names.iter().map(|name| pod_of(name)).collect();
    World::draining()
        .workloads(workloads(&deployments, &pods))
        .pods(pods)
        .budgets(names.iter().map(|name| budget_of(name, 0)))
}

#[test]
fn few_roll_at_once_and_the_others_queue() {
    let world = singletons(7).also(ON);
    let plan = world.at(3);
    assert_eq!(plan.acted().len(), 5);
    let queued = plan.blocker("web-6").unwrap();
    assert_eq!(
        (queued.next, &*queued.detail),
        (force_at(minute(68)), "no rollout moves it: surge.parallel is reached")
    );
    let more = singletons(7).also("surge: { enabled: true, parallel: 7 }");
    assert_eq!(more.at(3).acted().len(), 7);
    // Whoever queues is forced by his own clock.
    let late = world.at(68);
    let forced = late
        .acts()
        .iter()
        .filter(|act| act.strategy.name == StrategyName::PdbDelete)
        .count();
    assert_eq!(forced, 2);
}

#[test]
fn rollouts_under_way_take_places() {
    let pods = ["a", "b"].map(|name| with(pod_of(name), record(name)));
    let deployments = ["a", "b", "web"].map(|name| match name {
        "web" => deployment(name),
        _ => with(deployment(name), restarted()),
    });
    let world = World::draining()
        .also("surge: { enabled: true, parallel: 2 }")
        .workloads(workloads(&deployments, &[pod_of("web")]))
        .pods(pods)
        .pod(pod_of("web"))
        .budgets(["a", "b", "web"].map(|name| budget_of(name, 0)));
    assert_eq!(world.at(5).acted().len(), 0);
    let plan = world.at(12);
    let remedies: Vec<Remedy> = plan.acts().iter().map(|act| act.strategy.remedy).collect();
    assert_eq!(
        remedies,
        [Remedy::Restart, Remedy::UndoRestart, Remedy::UndoRestart],
        "their places are free"
    );
}

#[test]
fn limits_of_forced_pods_do_not_hold_it_back() {
    let mut world = singleton();
    world.memory.acts_left = 0;
    assert_eq!(remedy(&world.at(2)), Some(Remedy::Restart));
}

#[test]
fn toleration_of_the_cordon_brings_the_new_pod_back() {
    let tolerations = json!([{ "key": "node.kubernetes.io/unschedulable", "operator": "Exists" }]);
    let world = singleton_with(
        json!({}),
        json!({ "spec": { "template": { "spec": { "tolerations": tolerations } } } }),
    );
    assert!(detail(&world.at(5)).contains("ToleratesCordon"));
    let plan = World::empty().node(node("n1")).also(ON).pod(pod_of("web")).at(5);
    assert!(plan.watch_workloads.is_empty(), "no budget refuses it");
}
