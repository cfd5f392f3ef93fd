//! Pods that are left alone: opted out, in ignored namespaces, without a controller, or on the node knowingly.

use nodeward_api::reason::BlockerReason;
use nodeward_core::strategy::StrategyName;
use nodeward_core::verdict::Next;
use rstest::rstest;
use serde_json::{Value, json};

use super::world::{World, minute, pod, terminating, with};

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
#[case::of_hypershift(json!({ "metadata": { "namespace": "openshift-machine-config-operator", "name": "machine-config-daemon-n1" } }), false)]
#[case::named_for_another_node(json!({ "metadata": { "namespace": "openshift-machine-config-operator", "name": "machine-config-daemon-n2" } }), true)]
#[case::of_its_name_elsewhere(json!({ "metadata": { "name": "machine-config-daemon-n1" } }), true)]
fn pod_of_an_upgrader_is_no_blocker(#[case] patch: Value, #[case] forced: bool) {
    let plan = World::draining().pod(with(pod("p"), patch)).at(45);
    assert_eq!(plan.acts().len(), usize::from(forced));
    assert_eq!(plan.verdict("n1").blockers.is_empty(), !forced);
}
