//! Pods start and end as they are told.

use std::collections::BTreeSet;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use jiff::Timestamp;
use k8s_openapi::api::core::v1::{ConfigMap, Pod};
use kube::api::{Api, DeleteParams, ListParams, ObjectMeta};
use kube::{Client, ResourceExt};
use nodeward_testkit::fleet::{self, NodeSpec};
use nodeward_testkit::wait::{self, secs};
use nodeward_testkit::workload::{self, End, PodTemplate, Start};
use nodeward_testkit::{ControlPlane, bulk, names};
use rstest::rstest;
use serde_json::json;

/// A namespace and a node of one's own.
async fn place() -> Result<(Client, String, String)> {
    let plane = ControlPlane::shared().await;
    let client = plane.client().await?;
    let (namespace, node) = (names::unique("pods"), names::unique("node"));
    plane.namespace(&namespace).await?;
    fleet::create(&client, [NodeSpec::worker(&node)]).await?;
    Ok((client, namespace, node))
}

async fn becomes(pods: &Api<Pod>, name: &str, phase: &str, ready: bool) -> Result<Pod> {
    wait::until(format!("{name} to be {phase}, ready {ready}"), secs(15), || async {
        let pod = pods.get(name).await?;
        ensure!(
            workload::phase(&pod) == phase && workload::is_ready(&pod) == ready,
            "{:?}",
            pod.status
        );
        Ok(pod)
    })
    .await
}

#[rstest]
#[case::at_once(Start::Ready(Duration::ZERO), "Running", true)]
#[case::slow(Start::SlowReady(Duration::from_secs(1)), "Running", true)]
#[case::delayed(Start::Ready(Duration::from_secs(1)), "Running", true)]
#[case::never_ready(Start::NeverReady, "Running", false)]
#[case::crash_loop(Start::CrashLoop, "Running", false)]
#[case::never_started(Start::NeverStarted, "Pending", false)]
#[case::finished(Start::Finished, "Succeeded", false)]
#[case::failed(Start::Failed, "Failed", false)]
#[case::finishes_later(Start::FinishesAfter(Duration::from_secs(1)), "Succeeded", false)]
#[tokio::test(flavor = "multi_thread")]
async fn a_pod_starts_as_it_is_told_and_stays_so(
    #[case] start: Start,
    #[case] phase: &str,
    #[case] ready: bool,
) -> Result<()> {
    let (client, namespace, node) = place().await?;
    let pods: Api<Pod> = Api::namespaced(client.clone(), &namespace);
    bulk::create_one(client, PodTemplate::new().start(start).on(&node).pod(&namespace, "p")?).await?;
    becomes(&pods, "p", phase, ready).await?;
    wait::throughout(format!("{phase}, ready {ready}"), secs(2), || async {
        let pod = pods.get("p").await?;
        ensure!(
            workload::phase(&pod) == phase && workload::is_ready(&pod) == ready,
            "{:?}",
            pod.status
        );
        Ok(())
    })
    .await
}

#[tokio::test(flavor = "multi_thread")]
async fn a_slow_pod_runs_before_it_is_ready() -> Result<()> {
    let (client, namespace, node) = place().await?;
    let pods: Api<Pod> = Api::namespaced(client.clone(), &namespace);
    bulk::create_one(
        client,
        PodTemplate::new()
            .start(Start::SlowReady(Duration::from_secs(3)))
            .on(&node)
            .pod(&namespace, "p")?,
    )
    .await?;
    becomes(&pods, "p", "Running", false).await?;
    becomes(&pods, "p", "Running", true).await.map(drop)
}

#[rstest]
#[case::prompt(End::Prompt, 30, 0..5)]
#[case::uses_its_grace(End::Slow(0), 4, 4..9)]
#[case::takes_its_time(End::Takes(Duration::from_secs(3)), 30, 3..9)]
#[case::outlives_its_grace(End::Slow(3), 1, 4..9)]
#[tokio::test(flavor = "multi_thread")]
async fn a_deleted_pod_ends_as_it_is_told(
    #[case] end: End,
    #[case] grace: i64,
    #[case] seconds: std::ops::Range<i64>,
) -> Result<()> {
    let (client, namespace, node) = place().await?;
    let pods: Api<Pod> = Api::namespaced(client.clone(), &namespace);
    bulk::create_one(
        client.clone(),
        PodTemplate::new()
            .end(end)
            .grace(grace)
            .on(&node)
            .pod(&namespace, "p")?,
    )
    .await?;
    let pod = becomes(&pods, "p", "Running", true).await?;
    let asked = Timestamp::now();
    workload::delete(&client, &namespace, "p").await?;
    workload::gone(&client, &pod, secs(40)).await?;
    let took = Timestamp::now().duration_since(asked);
    // deletionTimestamp has whole seconds, so a pod may go up to one second early.
    ensure!(
        took.as_millis() >= i128::from((seconds.start - 1) * 1000) && took.as_secs() < seconds.end,
        "it took {took:?}"
    );
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn a_stuck_pod_stays_beyond_its_grace_until_it_is_deleted_with_grace_0() -> Result<()> {
    let (client, namespace, node) = place().await?;
    let pods: Api<Pod> = Api::namespaced(client.clone(), &namespace);
    bulk::create_one(
        client.clone(),
        PodTemplate::new()
            .end(End::Stuck)
            .grace(1)
            .on(&node)
            .pod(&namespace, "p")?,
    )
    .await?;
    let pod = becomes(&pods, "p", "Running", true).await?;
    workload::delete(&client, &namespace, "p").await?;
    wait::throughout("the pod to stay", secs(3), || async {
        pods.get("p").await.map(drop).map_err(Into::into)
    })
    .await?;
    let deletion = pods
        .get("p")
        .await?
        .metadata
        .deletion_timestamp
        .context("deletionTimestamp")?;
    ensure!(deletion.0 <= Timestamp::now(), "{deletion:?} is still to come");
    pods.delete("p", &DeleteParams::default().grace_period(0)).await?;
    workload::gone(&client, &pod, secs(5)).await
}

#[tokio::test(flavor = "multi_thread")]
async fn a_pod_with_a_finalizer_stays_terminating_until_the_finalizer_goes() -> Result<()> {
    let (client, namespace, node) = place().await?;
    let pods: Api<Pod> = Api::namespaced(client.clone(), &namespace);
    let template = PodTemplate::new().finalizer("example.com/held").grace(1).on(&node);
    bulk::create_one(client.clone(), template.pod(&namespace, "p")?).await?;
    let pod = becomes(&pods, "p", "Running", true).await?;
    workload::delete(&client, &namespace, "p").await?;
    wait::throughout("the pod to stay", secs(3), || async {
        pods.get("p").await.map(drop).map_err(Into::into)
    })
    .await?;
    workload::patch_metadata(&client, &namespace, "p", json!({"finalizers": null})).await?;
    workload::gone(&client, &pod, secs(5)).await
}

#[tokio::test(flavor = "multi_thread")]
async fn every_kind_of_workload_gets_its_pods_each_with_an_address_of_its_own() -> Result<()> {
    let (client, namespace, node) = place().await?;
    let here = PodTemplate::new().node_selector("kubernetes.io/hostname", &node);
    bulk::create_one(client.clone(), here.deployment(&namespace, "deployment", 3)?).await?;
    bulk::create_one(client.clone(), here.stateful_set(&namespace, "stateful", 2)?).await?;
    bulk::create_one(client.clone(), here.daemon_set(&namespace, "daemon")?).await?;
    bulk::create_one(
        client.clone(),
        here.clone()
            .start(Start::FinishesAfter(secs(1)))
            .job(&namespace, "job")?,
    )
    .await?;
    for (app, count) in [("deployment", 3), ("stateful", 2), ("daemon", 1)] {
        workload::ready_pods(&client, &namespace, app, count, secs(30)).await?;
    }
    let jobs: Api<k8s_openapi::api::batch::v1::Job> = Api::namespaced(client.clone(), &namespace);
    wait::until("the job to complete", secs(20), || async {
        let status = jobs.get("job").await?.status.context("no status")?;
        ensure!(status.succeeded == Some(1), "{status:?}");
        Ok(())
    })
    .await?;
    let pods = Api::<Pod>::namespaced(client, &namespace)
        .list(&ListParams::default())
        .await?;
    let running: Vec<_> = pods.iter().filter(|pod| workload::phase(pod) == "Running").collect();
    let addresses: BTreeSet<_> = running
        .iter()
        .filter_map(|pod| pod.status.as_ref()?.pod_ip.clone())
        .collect();
    ensure!(
        addresses.len() == running.len() && running.len() == 6,
        "{addresses:?} for {:?}",
        running.iter().map(|pod| pod.name_any()).collect::<Vec<_>>()
    );
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn many_objects_are_created_over_several_connections() -> Result<()> {
    let plane = ControlPlane::shared().await;
    let client = plane.client().await?;
    let namespace = names::unique("bulk");
    plane.namespace(&namespace).await?;
    let object = |n: usize| ConfigMap {
        metadata: ObjectMeta {
            name: Some(format!("c-{n}")),
            namespace: Some(namespace.clone()),
            ..ObjectMeta::default()
        },
        ..ConfigMap::default()
    };
    let began = std::time::Instant::now();
    let created = bulk::create(&client, (0..2000).map(object)).await?;
    println!("{:.0} objects/s", 2000.0 / began.elapsed().as_secs_f64());
    ensure!(created.len() == 2000);
    let stored = Api::<ConfigMap>::namespaced(client, &namespace)
        .list_metadata(&ListParams::default())
        .await?;
    // kube-root-ca.crt is the one that every namespace has.
    let ours = stored
        .iter()
        .filter(|object| object.name_any().starts_with("c-"))
        .count();
    ensure!(ours == 2000, "{ours} stored");
    Ok(())
}
