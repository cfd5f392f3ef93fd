//! Drains from the wish to the release.

use anyhow::{Context, Result, ensure};
use k8s_openapi::api::policy::v1::PodDisruptionBudget;
use kube::ResourceExt;
use kube::api::{Api, Patch, PatchParams};
use nodeward_api::annotation::{CORDONED_BY, DO_NOT_DISRUPT_BY, KARPENTER_DO_NOT_DISRUPT, LOCKED_BY};
use nodeward_api::node_drain::{NodeDrainStatus, Phase};
use nodeward_api::reason::LockReason;
use nodeward_testkit::wait::{self, secs};
use nodeward_testkit::workload::{self, PodTemplate, Start};
use nodeward_testkit::{bulk, fleet, reboot};
use rstest::rstest;
use serde_json::json;

use crate::environment::{APPS, Environment, pinned};

#[tokio::test(flavor = "multi_thread")]
async fn drain_runs_from_grant_to_release() -> Result<()> {
    let env = Environment::new(&["n1", "n2", "n3"]).await?;
    env.add_pinned("a", &["n1", "n2", "n3"]).await?;
    let lock = env.start(json!({})).await?;
    env.drain("n1", json!({})).await?;
    let drained = env.phase("n1", Phase::Drained, secs(60)).await?;
    ensure!(drained.held_disruptions == Some(1), "{drained:?}");
    ensure!(env.pods_on("n1").await?.is_empty(), "pods are left");
    let node = env.nodes().get("n1").await?;
    ensure!(fleet::cordon_taint(&node).is_some(), "not cordoned");
    env.uncordon("n1").await?;
    env.released("n1", secs(60)).await?;
    ensure!(env.pods_on("n1").await?.len() == 1, "its pod is not back");
    env.end([lock]).await
}

const NODES: [&str; 3] = ["n1", "n2", "n3"];

/// An application whose pods stay on their nodes through reboots.
fn stays() -> PodTemplate {
    let stays = pinned("stays", &NODES);
    stays.label("nodeward.dev/drain", "skip").tolerates_all()
}

async fn add_stays(env: &Environment) -> Result<()> {
    env.add_app("stays", NODES.len(), stays()).await
}

#[tokio::test(flavor = "multi_thread")]
async fn three_full_nodes_drain_without_budget_violation() -> Result<()> {
    let env = Environment::new(&NODES).await?;
    for app in ["a", "b"] {
        env.add_pinned(app, &NODES).await?;
    }
    let lock = env.start(json!({})).await?;
    let watch = env.watch_budgets();
    for node in NODES {
        env.drain(node, json!({})).await?;
    }
    let one_after_another = NODES.map(async |node| {
        // The last one waits for both others.
        env.phase(node, Phase::Drained, secs(240)).await?;
        env.uncordon(node).await?;
        env.released(node, secs(120)).await
    });
    futures::future::try_join_all(one_after_another).await?;
    watch.none_was_violated()?;
    let metrics = lock.metrics().await?;
    let refused = metrics.sum(
        "nodeward_drain_lock_evictions_total",
        &[("outcome", "refused-by-budget")],
    );
    ensure!(refused < 0.5, "{refused} evictions were refused");
    let evicted = metrics.sum("nodeward_drain_lock_evictions_total", &[("outcome", "evicted")]);
    ensure!((evicted - 6.0).abs() < 0.5, "{evicted} pods were evicted");
    env.end([lock]).await
}

#[tokio::test(flavor = "multi_thread")]
async fn movable_pods_leave_first_within_their_budget() -> Result<()> {
    let env = Environment::new(&["n1", "n2"]).await?;
    env.add_app("web", 3, PodTemplate::new()).await?;
    let lock = env.start(json!({})).await?;
    let watch = env.watch_budgets();
    env.drain("n1", json!({ "fallback": "Wait" })).await?;
    wait::until("the movable pods to be elsewhere", secs(60), || async {
        let here = env.pods_on("n1").await?;
        ensure!(here.iter().all(|pod| !pod.name_any().starts_with("web")), "{here:?}");
        Ok(())
    })
    .await?;
    watch.none_was_violated()?;
    env.end([lock]).await
}

#[tokio::test(flavor = "multi_thread")]
async fn opted_out_pods_stay_or_finish() -> Result<()> {
    let env = Environment::new(&NODES).await?;
    env.add_app(
        "stays",
        NODES.len(),
        pinned("stays", &NODES).label("nodeward.dev/drain", "skip"),
    )
    .await?;
    let job = PodTemplate::new()
        .on("n1")
        .label("nodeward.dev/drain", "wait-completed")
        .start(Start::FinishesAfter(secs(30)))
        .owned_by("example.com/v1", "Load", "load", "5a8e1c5e-0f0e-4f5c-9a53-d53a41de5a01");
    env.add_pinned("leaves", &NODES).await?;
    let lock = env.start(json!({})).await?;
    // Last, for it finishes by itself.
    bulk::create(&env.client, [job.pod(APPS, "job")?]).await?;
    env.drain("n1", json!({})).await?;
    let waiting = env
        .status_that("n1", "to wait for the job", secs(60), |status| {
            status
                .blocked_by
                .iter()
                .any(|blocked| blocked.reason == LockReason::WaitCompleted)
        })
        .await?;
    ensure!(waiting.phase == Some(Phase::Draining), "{waiting:?}");
    env.phase("n1", Phase::Drained, secs(120)).await?;
    let left = env.pods_on("n1").await?;
    let names: Vec<String> = left.iter().map(ResourceExt::name_any).collect();
    ensure!(names.iter().any(|name| name.starts_with("stays")), "{names:?}");
    ensure!(!names.iter().any(|name| name.starts_with("leaves")), "{names:?}");
    env.end([lock]).await
}

/// Nothing else changes meanwhile: the end of the protection wakes drain-lock.
#[tokio::test(flavor = "multi_thread")]
async fn drain_goes_on_once_karpenters_duration_has_passed() -> Result<()> {
    let env = Environment::new(&["n1"]).await?;
    let protected = PodTemplate::new()
        .on("n1")
        .annotation("karpenter.sh/do-not-disrupt", "40s")
        .owned_by("example.com/v1", "Load", "load", "5a8e1c5e-0f0e-4f5c-9a53-d53a41de5a01");
    let lock = env.start(json!({})).await?;
    bulk::create(&env.client, [protected.pod(APPS, "protected")?]).await?;
    env.drain("n1", json!({})).await?;
    env.status_that("n1", "to wait for the pod", secs(30), |status| {
        let mut blocked = status.blocked_by.iter();
        blocked.any(|blocked| blocked.reason == LockReason::WaitCompleted)
    })
    .await?;
    env.phase("n1", Phase::Drained, secs(120)).await?;
    env.end([lock]).await
}

#[tokio::test(flavor = "multi_thread")]
async fn retained_pods_disruption_lasts_through_reboot() -> Result<()> {
    let env = Environment::new(&NODES).await?;
    add_stays(&env).await?;
    let lock = env.start(json!({})).await?;
    env.drain("n1", json!({})).await?;
    let drained = env.phase("n1", Phase::Drained, secs(60)).await?;
    ensure!(drained.held_disruptions == Some(1), "{drained:?}");
    // Another node's drain waits as long as the disruption is held.
    env.drain("n2", json!({})).await?;
    env.status_that("n2", "to wait for disruptions", secs(60), |status| {
        status
            .blocked_by
            .iter()
            .any(|blocked| blocked.reason == LockReason::WaitsForDisruptions)
    })
    .await?;
    reboot::reboot(&env.client, "n1", secs(3)).await?;
    env.status_that("n1", "to hold nothing", secs(60), |status| {
        status.held_disruptions == Some(0)
    })
    .await?;
    env.phase("n2", Phase::Drained, secs(60)).await?;
    env.delete_drain("n1").await?;
    env.released("n1", secs(60)).await?;
    env.end([lock]).await
}

/// The node's Ready condition shows nothing of a reboot within the node monitor's grace, and until the kubelet reports its
/// pods again they look as before.
#[tokio::test(flavor = "multi_thread")]
async fn unnoticed_reboot_returns_disruption_with_new_containers() -> Result<()> {
    let env = Environment::new(&NODES).await?;
    add_stays(&env).await?;
    let lock = env.start(json!({})).await?;
    env.drain("n1", json!({})).await?;
    env.phase("n1", Phase::Drained, secs(60)).await?;
    wait::until("the ledger to keep the pod's containers", secs(60), || async {
        let claim = env.claim("n1").await?.context("no claim")?;
        let kept = claim.held_pods().all(|pod| !pod.containers.is_empty());
        ensure!(kept, "{claim:?}");
        Ok(())
    })
    .await?;
    fleet::reboot(&env.client, "n1").await?;
    let recovering = env.phase("n1", Phase::Recovering, secs(60)).await?;
    ensure!(recovering.held_disruptions == Some(1), "{recovering:?}");
    wait::throughout("the disruption stays", secs(3), || async {
        let status = env.drains().get("n1").await?.status.context("no status")?;
        ensure!(status.held_disruptions == Some(1), "{status:?}");
        Ok(())
    })
    .await?;
    reboot::restart_pods(&env.client, "n1").await?;
    env.status_that("n1", "to hold nothing", secs(60), |status| {
        status.held_disruptions == Some(0)
    })
    .await?;
    env.delete_drain("n1").await?;
    env.released("n1", secs(60)).await?;
    env.end([lock]).await
}

/// A graceful shutdown of the node leaves the pod behind as Failed. A StatefulSet deletes it and makes it anew; a ReplicaSet
/// makes another beside it.
#[rstest]
#[case::stateful_set(true)]
#[case::deployment(false)]
#[tokio::test(flavor = "multi_thread")]
async fn pod_failed_by_shutdown_counts_as_evicted(#[case] keeps_names: bool) -> Result<()> {
    let env = Environment::new(&NODES).await?;
    if keeps_names {
        env.add_app("stays", NODES.len(), stays()).await?;
    } else {
        env.add_deployment("stays", NODES.len(), stays()).await?;
    }
    let lock = env.start(json!({})).await?;
    env.drain("n1", json!({})).await?;
    env.phase("n1", Phase::Drained, secs(60)).await?;
    let left = env.pods_on("n1").await?.pop().context("no pod stays")?;
    let failed = json!({ "status": {
        "phase": "Failed", "reason": "Terminated", "message": "Pod was terminated in response to imminent node shutdown.",
        "conditions": [{ "type": "Ready", "status": "False", "reason": "PodFailed" }], "containerStatuses": null,
    } });
    let (name, params) = (left.name_any(), PatchParams::default());
    // A kubelet that shuts down starts nothing any more. Its node is away for longer than the whole seconds that pods are told in.
    fleet::stop_kubelet(&env.client, "n1").await?;
    env.pods()
        .patch_status(&name, &params, &Patch::Strategic(failed))
        .await?;
    tokio::time::sleep(secs(2)).await;
    fleet::reboot(&env.client, "n1").await?;
    fleet::start_kubelet(&env.client, "n1").await?;
    env.phase("n1", Phase::Recovering, secs(60)).await?;
    env.delete_drain("n1").await?;
    env.released("n1", secs(60)).await?;
    env.end([lock]).await
}

#[tokio::test(flavor = "multi_thread")]
async fn foreign_cordon_is_never_lifted() -> Result<()> {
    let env = Environment::new(&NODES).await?;
    let theirs = json!({ "metadata": { "annotations": { KARPENTER_DO_NOT_DISRUPT: "true" } } });
    env.nodes()
        .patch("n1", &PatchParams::default(), &Patch::Merge(theirs))
        .await?;
    env.add_pinned("a", &NODES).await?;
    let lock = env.start(json!({})).await?;
    fleet::cordon(&env.client, "n1").await?;
    env.drain("n1", json!({})).await?;
    env.phase("n1", Phase::Drained, secs(60)).await?;
    env.delete_drain("n1").await?;
    wait::throughout("the cordon stays", secs(4), || async {
        let node = env.nodes().get("n1").await?;
        ensure!(
            node.annotations().contains_key(KARPENTER_DO_NOT_DISRUPT),
            "another's annotation is taken away"
        );
        let spec = node.spec.context("no spec")?;
        ensure!(spec.unschedulable == Some(true), "uncordoned");
        Ok(())
    })
    .await?;
    env.uncordon("n1").await?;
    env.released("n1", secs(60)).await?;
    env.end([lock]).await
}

#[tokio::test(flavor = "multi_thread")]
async fn node_markers_go_with_their_drain() -> Result<()> {
    let env = Environment::new(&NODES).await?;
    env.add_pinned("a", &NODES).await?;
    let lock = env.start(json!({})).await?;
    env.drain("n1", json!({})).await?;
    env.phase("n1", Phase::Drained, secs(60)).await?;
    wait::until("the node to say that it is drained", secs(60), || async {
        let node = env.nodes().get("n1").await?;
        let conditions = node.status.and_then(|status| status.conditions).unwrap_or_default();
        let is_so = conditions
            .iter()
            .any(|condition| condition.type_ == "Drained" && condition.status == "True");
        ensure!(is_so, "{conditions:?}");
        Ok(())
    })
    .await?;
    let node = env.nodes().get("n1").await?;
    let do_not_disrupt = node.annotations().get(KARPENTER_DO_NOT_DISRUPT);
    ensure!(
        do_not_disrupt.is_some_and(|value| value == "true"),
        "Karpenter may remove it"
    );
    env.delete_drain("n1").await?;
    env.released("n1", secs(60)).await?;
    let node = env.nodes().get("n1").await?;
    for key in [CORDONED_BY, KARPENTER_DO_NOT_DISRUPT, DO_NOT_DISRUPT_BY] {
        ensure!(!node.annotations().contains_key(key), "the annotation {key} is left");
    }
    let spec = node.spec.clone().context("no spec")?;
    ensure!(spec.unschedulable.is_none(), "it is not uncordoned");
    ensure!(
        spec.taints
            .iter()
            .flatten()
            .all(|taint| taint.key != nodeward_api::taint::QUEUED),
        "{:?}",
        spec.taints
    );
    let conditions = node.status.and_then(|status| status.conditions).unwrap_or_default();
    ensure!(
        conditions.iter().all(|condition| !condition.type_.contains("Drain")),
        "{conditions:?}"
    );
    let budgets: Api<PodDisruptionBudget> = Api::namespaced(env.client.clone(), APPS);
    wait::until("the budget to be free", secs(60), || async {
        let budget = budgets.get("a").await?;
        ensure!(!budget.annotations().contains_key(LOCKED_BY), "still locked");
        Ok(())
    })
    .await?;
    env.end([lock]).await
}

/// A pod that nothing makes again, and one with emptyDir data.
#[tokio::test(flavor = "multi_thread")]
async fn drain_waits_until_its_requesters_have_consented() -> Result<()> {
    let env = Environment::new(&["n1"]).await?;
    let bare = PodTemplate::new().on("n1").pod(APPS, "bare")?;
    let scratch = PodTemplate::new().empty_dir().deployment(APPS, "scratch", 1)?;
    bulk::create(&env.client, [bare]).await?;
    bulk::create(&env.client, [scratch]).await?;
    wait::until("both pods to run", secs(60), || async {
        let pods = env.pods_on("n1").await?;
        ensure!(
            pods.iter().filter(|pod| workload::is_ready(pod)).count() == 2,
            "{}",
            pods.len()
        );
        Ok(())
    })
    .await?;
    let lock = env.start(json!({})).await?;
    env.drain("n1", json!({ "emptyDirData": "Evict" })).await?;
    let names_it = |status: &NodeDrainStatus| {
        let mut kept = status.blocked_by.iter();
        kept.any(|blocked| {
            blocked.reason == LockReason::UnmanagedPodKept && blocked.pod.as_deref() == Some("apps/bare")
        })
    };
    env.status_that("n1", "to name the pod", secs(60), names_it).await?;
    let node = env.nodes().get("n1").await?;
    ensure!(fleet::cordon_taint(&node).is_none(), "it was cordoned");
    ensure!(env.pods_on("n1").await?.len() == 2, "something was evicted");

    env.patch_drain("n1", json!({ "spec": { "unmanagedPods": "Evict" } }))
        .await?;
    env.phase("n1", Phase::Drained, secs(60)).await?;
    ensure!(env.pods_on("n1").await?.is_empty(), "pods are left");
    env.end([lock]).await
}

/// It tolerates the cordon, and no other node has a place for it: evicted, its successor is there again at once.
#[tokio::test(flavor = "multi_thread")]
async fn pod_that_comes_back_to_cordoned_node_is_evicted_once() -> Result<()> {
    let env = Environment::new(&NODES).await?;
    env.add_deployment("returns", NODES.len(), pinned("returns", &NODES).tolerates_all())
        .await?;
    let before = env.pods_on("n1").await?.pop().context("no pod")?;
    let lock = env.start(json!({})).await?;
    env.drain("n1", json!({})).await?;
    env.phase("n1", Phase::Drained, secs(60)).await?;
    let back = env.pods_on("n1").await?;
    ensure!(back.len() == 1 && back[0].uid() != before.uid(), "{}", back.len());
    wait::throughout("its successor stays", secs(6), || async {
        let now = env.pods_on("n1").await?;
        ensure!(now.iter().all(|pod| pod.uid() == back[0].uid()), "evicted again");
        Ok(())
    })
    .await?;
    let claim = env.claim("n1").await?.context("no claim")?;
    ensure!(claim.has_disruption(&back[0].uid().unwrap_or_default()), "{claim:?}");
    reboot::reboot(&env.client, "n1", secs(1)).await?;
    env.delete_drain("n1").await?;
    env.released("n1", secs(60)).await?;
    env.end([lock]).await
}
