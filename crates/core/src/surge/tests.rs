//! A row a condition, and the courses of a surge.

use std::sync::Arc;

use jiff::{SignedDuration, Timestamp};
use k8s_openapi::api::apps::v1::{Deployment, ReplicaSet};
use nodeward_api::reason::{SurgeObstacle, SurgeOutcome};
use nodeward_api::surge_record::SurgeRecord;
use proptest::prelude::*;
use rstest::rstest;
use serde_json::{Value, json};

use super::*;
use crate::budget::BudgetView;
use crate::node::Taint;
use crate::pod::PodView;

const SPACING: SignedDuration = SignedDuration::from_mins(10);

fn minute(minutes: i64) -> Timestamp {
    Timestamp::from_second(1_767_225_600 + minutes * 60).unwrap()
}

/// Merges `patch` into `object` as a JSON merge patch does: null removes.
fn with(mut object: Value, patch: Value) -> Value {
    match (&mut object, patch) {
        (Value::Object(fields), Value::Object(patch)) => {
            for (key, change) in patch {
                if change.is_null() {
                    fields.remove(&key);
                } else {
                    let before = fields.remove(&key).unwrap_or(Value::Null);
                    fields.insert(key, with(before, change));
                }
            }
            object
        }
        (_, Value::Object(patch)) => with(json!({}), Value::Object(patch)),
        (_, patch) => patch,
    }
}

fn from<T: serde::de::DeserializeOwned>(value: Value) -> T {
    serde_json::from_value(value).unwrap()
}

fn owned_by(kind: &str, name: &str) -> Value {
    json!([{ "apiVersion": "apps/v1", "kind": kind, "name": name, "uid": name, "controller": true }])
}

/// One replica that is available, at generation 3.
fn deployment() -> Value {
    json!({
        "metadata": { "namespace": "shop", "name": "web", "uid": "web", "resourceVersion": "9", "generation": 3 },
        "spec": {
            "replicas": 1, "selector": { "matchLabels": { "app": "web" } },
            "template": {
                "metadata": { "labels": { "app": "web" } },
                "spec": { "containers": [{ "name": "c", "readinessProbe": { "httpGet": { "port": 80 } } }] },
            },
        },
        "status": { "observedGeneration": 3, "replicas": 1, "updatedReplicas": 1, "availableReplicas": 1 },
    })
}

fn replica_set(deployment: &str) -> Value {
    json!({ "metadata": {
        "namespace": "shop", "name": format!("{deployment}-1"), "uid": format!("{deployment}-1"),
        "ownerReferences": owned_by("Deployment", deployment),
    } })
}

fn pod(name: &str, deployment: &str) -> Value {
    json!({
        "metadata": {
            "namespace": "shop", "name": name, "uid": name, "labels": { "app": "web" },
            "ownerReferences": owned_by("ReplicaSet", &format!("{deployment}-1")),
        },
        "status": { "phase": "Running" },
    })
}

fn budget() -> Value {
    json!({
        "metadata": { "namespace": "shop", "name": "web" },
        "spec": { "minAvailable": 1, "selector": { "matchLabels": { "app": "web" } } },
    })
}

fn cordon() -> Taint {
    Taint {
        key: "node.kubernetes.io/unschedulable".to_owned(),
        value: String::new(),
        effect: "NoSchedule".to_owned(),
        time_added: None,
    }
}

/// What decides about the pod `p` of the Deployment `web`.
struct World {
    pod: Value,
    budgets: Vec<Value>,
    deployment: Value,
    others: Vec<Value>,
    sets: Vec<Value>,
    claims: Vec<Value>,
}

impl World {
    fn singleton() -> Self {
        Self {
            pod: pod("p", "web"),
            budgets: vec![budget()],
            deployment: deployment(),
            others: Vec::new(),
            sets: vec![replica_set("web"), replica_set("other")],
            claims: Vec::new(),
        }
    }

    fn deployment_with(patch: Value) -> Self {
        let world = Self::singleton();
        Self {
            deployment: with(world.deployment, patch),
            ..world
        }
    }

    fn pod_with(patch: Value) -> Self {
        let world = Self::singleton();
        Self {
            pod: with(world.pod, patch),
            ..world
        }
    }

    fn obstacle(&self, now: Timestamp) -> Option<Obstacle> {
        let view = |pod: &Value| PodView::project(&from(pod.clone())).unwrap();
        let (pod, cordon) = (view(&self.pod), cordon());
        let budgets = self.budgets.iter();
        let budgets: Vec<_> = budgets
            .map(|budget| Arc::new(BudgetView::project(&from(budget.clone())).unwrap()))
            .collect();
        let key = |object: &Value| NamespacedName::new("shop", object["metadata"]["name"].as_str().unwrap());
        let pods = self.others.iter().chain([&self.pod]);
        let sets = self.sets.iter();
        let claims = self.claims.iter();
        let workloads = Workloads {
            deployments: Arc::new([(key(&self.deployment), Arc::new(view_of(&self.deployment)))].into()),
            replica_sets: Arc::new(
                sets.map(|set| {
                    (
                        key(set),
                        Arc::new(ReplicaSetView::project(&from::<ReplicaSet>(set.clone()))),
                    )
                })
                .collect(),
            ),
            pods: Arc::new(pods.map(|pod| (key(pod), Arc::new(view(pod).summary))).collect()),
            claims: Arc::new(
                claims
                    .map(|claim| (key(claim), Arc::new(ClaimView::project(&from(claim.clone())))))
                    .collect(),
            ),
        };
        let evidence = SurgeEvidence {
            pod: &pod,
            budgets: &budgets,
            cordon: Some(&cordon),
            workloads: &workloads,
            spacing: SPACING,
        };
        obstacle(&evidence, now).err()
    }

    fn reason(&self) -> Option<SurgeObstacle> {
        self.obstacle(minute(60)).map(|obstacle| obstacle.reason)
    }
}

fn view_of(deployment: &Value) -> DeploymentView {
    DeploymentView::project(&from::<Deployment>(deployment.clone())).unwrap()
}

fn rolling(surge: Value, unavailable: Value) -> Value {
    json!({ "spec": { "strategy": { "rollingUpdate": { "maxSurge": surge, "maxUnavailable": unavailable } } } })
}

fn template(spec: Value) -> Value {
    json!({ "spec": { "template": { "spec": spec } } })
}

#[test]
fn singleton_may_move() {
    assert_eq!(World::singleton().reason(), None);
}

#[rstest]
#[case::replicas(json!({ "spec": { "replicas": 2 } }), SurgeObstacle::NotOneReplica)]
#[case::no_replica(json!({ "spec": { "replicas": 0 } }), SurgeObstacle::NotOneReplica)]
#[case::recreate(json!({ "spec": { "strategy": { "type": "Recreate" } } }), SurgeObstacle::NotNewFirst)]
#[case::without_surge(rolling(json!(0), json!(1)), SurgeObstacle::NotNewFirst)]
// The controller makes one of two noughts a 1.
#[case::without_either(rolling(json!(0), json!("25%")), SurgeObstacle::NotNewFirst)]
#[case::one_unavailable(rolling(json!(1), json!(1)), SurgeObstacle::NotNewFirst)]
#[case::all_unavailable(rolling(json!("25%"), json!("100%")), SurgeObstacle::NotNewFirst)]
#[case::of_an_operator(
    json!({ "metadata": { "ownerReferences": [{ "apiVersion": "a/v1", "kind": "A", "name": "a", "uid": "a", "controller": true }] } }),
    SurgeObstacle::ManagedDeployment
)]
#[case::of_olm(json!({ "metadata": { "labels": { "olm.managed": "true" } } }), SurgeObstacle::ManagedDeployment)]
#[case::paused(json!({ "spec": { "paused": true } }), SurgeObstacle::RolloutPaused)]
#[case::being_deleted(json!({ "metadata": { "deletionTimestamp": "2026-01-01T00:00:00Z" } }), SurgeObstacle::DeploymentDeleting)]
#[case::not_observed(json!({ "metadata": { "generation": 4 } }), SurgeObstacle::RolloutIncomplete)]
#[case::not_updated(json!({ "status": { "updatedReplicas": 0 } }), SurgeObstacle::RolloutIncomplete)]
#[case::old_pod_left(json!({ "status": { "replicas": 2 } }), SurgeObstacle::RolloutIncomplete)]
#[case::not_available(json!({ "status": { "availableReplicas": 0 } }), SurgeObstacle::RolloutIncomplete)]
#[case::timed_out(
    json!({ "status": { "conditions": [{ "type": "Progressing", "status": "False", "reason": "ProgressDeadlineExceeded" }] } }),
    SurgeObstacle::RolloutIncomplete
)]
#[case::no_status(json!({ "status": null }), SurgeObstacle::RolloutIncomplete)]
#[case::no_probe(template(json!({ "containers": [{ "name": "c" }] })), SurgeObstacle::NoReadiness)]
#[case::tolerates_cordon(
    template(json!({ "tolerations": [{ "key": "node.kubernetes.io/unschedulable", "operator": "Exists" }] })),
    SurgeObstacle::ToleratesCordon
)]
#[case::node_name(template(json!({ "nodeName": "n1" })), SurgeObstacle::NamesNode)]
#[case::hostname(template(json!({ "nodeSelector": { "kubernetes.io/hostname": "n1" } })), SurgeObstacle::NamesNode)]
#[case::hostname_by_affinity(
    template(json!({ "affinity": { "nodeAffinity": { "requiredDuringSchedulingIgnoredDuringExecution": { "nodeSelectorTerms": [
        { "matchExpressions": [{ "key": "kubernetes.io/hostname", "operator": "In", "values": ["n1"] }] },
    ] } } } })),
    SurgeObstacle::NamesNode
)]
#[case::disk(template(json!({ "volumes": [{ "name": "v", "iscsi": { "iqn": "i", "lun": 0, "targetPortal": "t" } }] })), SurgeObstacle::UnsharedVolume)]
#[case::unknown_claim(
    template(json!({ "volumes": [{ "name": "v", "persistentVolumeClaim": { "claimName": "unknown" } }] })),
    SurgeObstacle::UnsharedVolume
)]
#[case::opted_out(json!({ "metadata": { "annotations": { "nodeward.dev/surge": "never" } } }), SurgeObstacle::SurgeOptedOut)]
#[case::opted_out_by_label(json!({ "metadata": { "labels": { "nodeward.dev/surge": "never" } } }), SurgeObstacle::SurgeOptedOut)]
#[case::made_again(json!({ "metadata": { "uid": "another" } }), SurgeObstacle::NoDeployment)]
fn deployment_may_not_be_told_to_roll(#[case] patch: Value, #[case] reason: SurgeObstacle) {
    assert_eq!(World::deployment_with(patch).reason(), Some(reason));
}

#[rstest]
#[case::defaults(json!({}))]
#[case::percent(rolling(json!("25%"), json!("25%")))]
#[case::one_and_none(rolling(json!(1), json!(0)))]
#[case::all(rolling(json!("100%"), json!(0)))]
#[case::min_ready_seconds(with(template(json!({ "containers": [{ "name": "c" }] })), json!({ "spec": { "minReadySeconds": 5 } })))]
#[case::owner_that_controls_not(
    json!({ "metadata": { "ownerReferences": [{ "apiVersion": "a/v1", "kind": "A", "name": "a", "uid": "a" }] } })
)]
#[case::harmless_volumes(template(json!({ "volumes": [
    { "name": "a", "emptyDir": {} }, { "name": "b", "configMap": { "name": "c" } }, { "name": "c", "projected": {} },
] })))]
#[case::other_toleration(template(json!({ "tolerations": [{ "key": "a", "operator": "Exists" }] })))]
#[case::not_that_host(
    template(json!({ "affinity": { "nodeAffinity": { "requiredDuringSchedulingIgnoredDuringExecution": { "nodeSelectorTerms": [
        { "matchExpressions": [{ "key": "kubernetes.io/hostname", "operator": "NotIn", "values": ["n1"] }] },
    ] } } } }))
)]
fn deployment_may_be_told_to_roll(#[case] patch: Value) {
    assert_eq!(World::deployment_with(patch).reason(), None);
}

#[rstest]
#[case::of_a_stateful_set(json!({ "metadata": { "ownerReferences": owned_by("StatefulSet", "web") } }), SurgeObstacle::NoDeployment)]
#[case::unmanaged(json!({ "metadata": { "ownerReferences": null } }), SurgeObstacle::NoDeployment)]
#[case::of_a_rollout(
    json!({ "metadata": { "ownerReferences": [
        { "apiVersion": "argoproj.io/v1alpha1", "kind": "ReplicaSet", "name": "web-1", "uid": "web-1", "controller": true },
    ] } }),
    SurgeObstacle::NoDeployment
)]
#[case::of_an_earlier_replica_set(
    json!({ "metadata": { "ownerReferences": [
        { "apiVersion": "apps/v1", "kind": "ReplicaSet", "name": "web-1", "uid": "earlier", "controller": true },
    ] } }),
    SurgeObstacle::NoDeployment
)]
#[case::opted_out(json!({ "metadata": { "annotations": { "nodeward.dev/surge": "never" } } }), SurgeObstacle::SurgeOptedOut)]
fn pod_may_not_move(#[case] patch: Value, #[case] reason: SurgeObstacle) {
    assert_eq!(World::pod_with(patch).reason(), Some(reason));
}

#[rstest]
#[case::none(Vec::new(), SurgeObstacle::NotOneBudget)]
#[case::two(vec![budget(), budget()], SurgeObstacle::NotOneBudget)]
#[case::of_ceph(vec![with(budget(), json!({ "metadata": { "labels": { "app": "rook-ceph-osd" } } }))], SurgeObstacle::CephBudget)]
fn budgets_must_be_one(#[case] budgets: Vec<Value>, #[case] reason: SurgeObstacle) {
    let world = World {
        budgets,
        ..World::singleton()
    };
    assert_eq!(world.reason(), Some(reason));
}

#[rstest]
#[case::of_another_deployment(pod("q", "other"), Some("shop/q"))]
#[case::without_owner(with(pod("q", "web"), json!({ "metadata": { "ownerReferences": null } })), Some("shop/q"))]
#[case::of_the_same(pod("q", "web"), None)]
#[case::that_has_ended(with(pod("q", "other"), json!({ "status": { "phase": "Succeeded" } })), None)]
#[case::that_is_not_selected(with(pod("q", "other"), json!({ "metadata": { "labels": { "app": "db" } } })), None)]
fn budget_must_select_pods_of_the_deployment_alone(#[case] other: Value, #[case] named: Option<&str>) {
    let world = World {
        others: vec![other],
        ..World::singleton()
    };
    let obstacle = world.obstacle(minute(60));
    let expected = named.map(|_| SurgeObstacle::SharedBudget);
    assert_eq!(obstacle.as_ref().map(|obstacle| obstacle.reason), expected);
    assert_eq!(obstacle.map(|obstacle| obstacle.detail).as_deref(), named);
}

#[rstest]
#[case::many("ReadWriteMany", None)]
#[case::many_readers("ReadOnlyMany", None)]
#[case::one_node("ReadWriteOnce", Some(SurgeObstacle::UnsharedVolume))]
#[case::one_pod("ReadWriteOncePod", Some(SurgeObstacle::UnsharedVolume))]
fn claim_must_be_one_of_many_nodes(#[case] mode: &str, #[case] reason: Option<SurgeObstacle>) {
    let volumes = json!({ "volumes": [{ "name": "v", "persistentVolumeClaim": { "claimName": "data" } }] });
    let world = World {
        claims: vec![json!({ "metadata": { "name": "data" }, "status": { "accessModes": [mode] } })],
        ..World::deployment_with(template(volumes))
    };
    assert_eq!(world.reason(), reason);
}

#[rstest]
#[case::lately("2026-01-01T00:51:00Z", Some(minute(61)))]
#[case::long_ago("2026-01-01T00:50:00Z", None)]
#[case::in_words("yesterday", None)]
fn deployment_is_left_alone_after_a_restart(#[case] restarted: &str, #[case] until: Option<Timestamp>) {
    let annotations = json!({ "kubectl.kubernetes.io/restartedAt": restarted });
    let patch = json!({ "spec": { "template": { "metadata": { "annotations": annotations } } } });
    let obstacle = World::deployment_with(patch).obstacle(minute(60));
    assert_eq!(obstacle.as_ref().and_then(|obstacle| obstacle.until), until);
    assert_eq!(obstacle.is_some(), until.is_some());
}

fn record() -> SurgeRecord {
    SurgeRecord {
        deployment: "web".to_owned(),
        generation: 3,
        at: minute(2),
        until: minute(12),
    }
}

/// The Deployment once it was told to roll: the new pod is still to come.
fn restarted() -> Value {
    let patch = json!({
        "metadata": { "generation": 4 },
        "spec": { "template": { "metadata": { "annotations": { "kubectl.kubernetes.io/restartedAt": "2026-01-01T00:02:00Z" } } } },
        "status": { "observedGeneration": 4, "replicas": 2, "updatedReplicas": 1, "availableReplicas": 1 },
    });
    with(deployment(), patch)
}

fn course(deployment: &Value, minutes: i64) -> Course {
    Course::of(&record(), Some(&view_of(deployment)), minute(minutes))
}

fn ended(outcome: SurgeOutcome, is_ours_to_undo: bool) -> Course {
    Course::Ended(End {
        outcome,
        is_ours_to_undo,
    })
}

const COMPLETE: &str = r#"{ "status": { "replicas": 1, "updatedReplicas": 1, "availableReplicas": 1 } }"#;
const REVERTED: &str =
    r#"{ "metadata": { "generation": 5 }, "spec": { "template": { "metadata": { "annotations": null } } } }"#;
const OVERTAKEN: &str = r#"{ "metadata": { "generation": 5 }, "spec": { "replicas": 2 } }"#;
const QUOTA: &str =
    r#"{ "status": { "conditions": [{ "type": "ReplicaFailure", "status": "True", "reason": "FailedCreate" }] } }"#;

#[rstest]
#[case::rolls("{}", 11, Course::Rolls(minute(12)))]
#[case::late("{}", 12, ended(SurgeOutcome::SurgeStuck, true))]
#[case::no_pod_can_be_made(QUOTA, 3, ended(SurgeOutcome::SurgeStuck, true))]
#[case::complete(COMPLETE, 3, ended(SurgeOutcome::SurgeComplete, false))]
#[case::complete_at_last(COMPLETE, 60, ended(SurgeOutcome::SurgeComplete, false))]
#[case::reverted(REVERTED, 3, ended(SurgeOutcome::SurgeReverted, false))]
#[case::put_back(REVERTED, 13, ended(SurgeOutcome::SurgeStuck, false))]
#[case::overtaken(OVERTAKEN, 3, ended(SurgeOutcome::SurgeOvertaken, false))]
#[case::overtaken_and_late(OVERTAKEN, 13, ended(SurgeOutcome::SurgeOvertaken, false))]
#[case::made_again(
    r#"{ "metadata": { "uid": "another" } }"#,
    3,
    ended(SurgeOutcome::SurgeOvertaken, false)
)]
fn surge_ends_by_its_deployment(#[case] patch: &str, #[case] minutes: i64, #[case] expected: Course) {
    let deployment = with(restarted(), serde_json::from_str(patch).unwrap());
    assert_eq!(course(&deployment, minutes), expected);
}

#[rstest]
#[case::in_time(json!({}), 3, Course::Recorded(minute(12)))]
#[case::too_late(json!({}), 12, ended(SurgeOutcome::SurgeStuck, false))]
#[case::at_another_generation(json!({ "metadata": { "generation": 4 } }), 3, ended(SurgeOutcome::SurgeOvertaken, false))]
#[case::and_late(json!({ "metadata": { "generation": 4 } }), 13, ended(SurgeOutcome::SurgeOvertaken, false))]
fn restart_follows_the_record_at_its_generation_alone(
    #[case] patch: Value,
    #[case] minutes: i64,
    #[case] expected: Course,
) {
    assert_eq!(course(&with(deployment(), patch), minutes), expected);
}

#[test]
fn surge_ends_with_its_deployment() {
    let course = Course::of(&record(), None, minute(3));
    assert_eq!(course, ended(SurgeOutcome::SurgeOvertaken, false));
}

proptest! {
    /// Whatever becomes of the Deployment, the pod is not kept from force for longer than its record says.
    #[test]
    fn nothing_is_parked(
        generation in 1..7_i64, observed in 1..7_i64, counts in prop::array::uniform3(0..3_i32),
        is_restarted in any::<bool>(), minutes in 0..100_i64,
    ) {
        let base = if is_restarted { restarted() } else { deployment() };
        let [replicas, updated, available] = counts;
        let deployment = with(base, json!({
            "metadata": { "generation": generation },
            "status": { "observedGeneration": observed, "replicas": replicas, "updatedReplicas": updated, "availableReplicas": available },
        }));
        let course = course(&deployment, minutes);
        prop_assert!(!course.is_under_way() || minutes < 12);
        // Nobody else's change is ever undone.
        if let Course::Ended(End { is_ours_to_undo: true, .. }) = course {
            prop_assert!(is_restarted && generation == 4);
        }
    }
}
