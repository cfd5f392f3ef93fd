//! Pods start and end as they are told, and every kind of workload gets its pods.

use std::time::Duration;

use anyhow::{Context, Result, ensure};
use futures::future::try_join_all;
use jiff::Timestamp;
use k8s_openapi::api::core::v1::Pod;
use kube::Client;
use kube::api::{Api, DeleteParams};
use nodeward_testkit::fleet::{self, NodeSpec};
use nodeward_testkit::wait::{self, secs};
use nodeward_testkit::workload::{self, End, PodTemplate, Start};
use nodeward_testkit::{ControlPlane, bulk, names};

/// A namespace and a node of one's own.
async fn environment() -> Result<(Client, String, String)> {
    let plane = ControlPlane::shared().await;
    let client = plane.client().await?;
    let (namespace, node) = (names::unique("pods"), names::unique("node"));
    plane.namespace(&namespace).await?;
    fleet::create(&client, [NodeSpec::worker(&node)]).await?;
    Ok((client, namespace, node))
}

async fn is(pods: &Api<Pod>, name: &str, phase: &str, ready: bool) -> Result<Pod> {
    let pod = pods.get(name).await?;
    ensure!(
        workload::phase(&pod) == phase && workload::is_ready(&pod) == ready,
        "{:?}",
        pod.status
    );
    Ok(pod)
}

async fn becomes(pods: &Api<Pod>, name: &str, phase: &str, ready: bool) -> Result<Pod> {
    let what = format!("{name} to be {phase}, ready {ready}");
    wait::until(what, secs(60), || is(pods, name, phase, ready)).await
}

#[tokio::test(flavor = "multi_thread")]
async fn pods_start_as_told_and_stay_so() -> Result<()> {
    let second = Duration::from_secs(1);
    let starts = [
        ("at-once", Start::Ready(Duration::ZERO), "Running", true),
        ("slow", Start::SlowReady(second), "Running", true),
        ("delayed", Start::Ready(second), "Running", true),
        ("never-ready", Start::NeverReady, "Running", false),
        ("crash-loop", Start::CrashLoop, "Running", false),
        ("never-started", Start::NeverStarted, "Pending", false),
        ("finished", Start::Finished, "Succeeded", false),
        ("failed", Start::Failed, "Failed", false),
        ("finishes-later", Start::FinishesAfter(second), "Succeeded", false),
    ];
    let (client, namespace, node) = environment().await?;
    let pods: Api<Pod> = Api::namespaced(client.clone(), &namespace);
    let template = PodTemplate::new().on(&node);
    let built = starts.map(|(name, start, ..)| template.clone().start(start).pod(&namespace, name));
    bulk::create(&client, built.into_iter().collect::<Result<Vec<_>>>()?).await?;
    try_join_all(starts.map(|(name, _, phase, ready)| becomes(&pods, name, phase, ready))).await?;
    wait::throughout("all of it", secs(2), || async {
        try_join_all(starts.map(|(name, _, phase, ready)| is(&pods, name, phase, ready)))
            .await
            .map(drop)
    })
    .await
}

#[tokio::test(flavor = "multi_thread")]
async fn deleted_pods_end_as_told() -> Result<()> {
    // Grace, and the seconds after which it is gone at the earliest: not long after, so graces that are not used are long.
    let ends = [
        ("prompt", End::Prompt, 300, 0),
        ("uses-its-grace", End::Slow(0), 4, 4),
        ("takes-its-time", End::Takes(Duration::from_secs(3)), 300, 3),
        ("outlives-its-grace", End::Slow(3), 1, 4),
    ];
    let (client, namespace, node) = environment().await?;
    let pods: Api<Pod> = Api::namespaced(client.clone(), &namespace);
    let template = PodTemplate::new().on(&node);
    let make = |name: &str, end, grace| template.clone().end(end).grace(grace).pod(&namespace, name);
    let (client, pods, namespace, make) = (&client, &pods, namespace.as_str(), &make);
    let timed = ends.into_iter().map(|(name, end, grace, seconds)| async move {
        bulk::create(client, [make(name, end, grace)?]).await?;
        let pod = becomes(pods, name, "Running", true).await?;
        let asked = Timestamp::now();
        workload::delete(client, namespace, name).await?;
        workload::gone(client, &pod, secs(90)).await?;
        let took = Timestamp::now().duration_since(asked);
        // deletionTimestamp has whole seconds, so a pod may go up to one second early.
        ensure!(took.as_secs() >= seconds - 1, "{name} took {took:?}");
        Ok(())
    });
    let stuck = async {
        bulk::create(client, [make("stuck", End::Stuck, 1)?]).await?;
        let pod = becomes(pods, "stuck", "Running", true).await?;
        workload::delete(client, namespace, "stuck").await?;
        wait::throughout("the stuck pod to stay", secs(3), || async {
            Ok(pods.get("stuck").await.map(drop)?)
        })
        .await?;
        pods.delete("stuck", &DeleteParams::default().grace_period(0)).await?;
        workload::gone(client, &pod, secs(60)).await
    };
    tokio::try_join!(try_join_all(timed), stuck).map(drop)
}

#[tokio::test(flavor = "multi_thread")]
async fn every_kind_of_workload_gets_its_pods() -> Result<()> {
    let (client, namespace, node) = environment().await?;
    let here = PodTemplate::new().node_selector("kubernetes.io/hostname", &node);
    bulk::create(&client, [here.deployment(&namespace, "deployment", 3)?]).await?;
    bulk::create(&client, [here.stateful_set(&namespace, "stateful", 2)?]).await?;
    bulk::create(&client, [here.daemon_set(&namespace, "daemon")?]).await?;
    let finishes = here.clone().start(Start::FinishesAfter(secs(1)));
    bulk::create(&client, [finishes.job(&namespace, "job")?]).await?;
    for (app, count) in [("deployment", 3), ("stateful", 2), ("daemon", 1)] {
        workload::ready_pods(&client, &namespace, app, count, secs(60)).await?;
    }
    let jobs: Api<k8s_openapi::api::batch::v1::Job> = Api::namespaced(client.clone(), &namespace);
    wait::until("the job to complete", secs(60), || async {
        let status = jobs.get("job").await?.status.context("no status")?;
        ensure!(status.succeeded == Some(1), "{status:?}");
        Ok(())
    })
    .await
}
