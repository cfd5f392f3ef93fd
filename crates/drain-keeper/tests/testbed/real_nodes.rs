//! Nodes with a real kubelet, containerd and runc. Skipped with a line where they cannot run.

use std::time::Duration;

use anyhow::{Context, Result, ensure};
use k8s_openapi::api::core::v1::{Node, Pod};
use kube::api::{Api, ListParams, Patch, PatchParams};
use nodeward_testkit::real_nodes::{self, RealNode};
use nodeward_testkit::wait::{self, secs};
use nodeward_testkit::workload::{self, PodTemplate};
use nodeward_testkit::{ControlPlane, bulk, fleet};
use serde_json::{Value, json};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::sync::oneshot;

use crate::environment::{ENVIRONMENT, Environment, an_hour_ago, is_untouched, managed};

/// A finalizer that nobody removes.
const STUCK: &str = "example.com/stuck";

/// Starts real nodes that the environment's drain-keeper looks after; none where this machine cannot run them.
async fn add_nodes<const N: usize>(env: &Environment<'_>) -> Result<Option<[RealNode; N]>> {
    if real_nodes::are_missing()? {
        return Ok(None);
    }
    let nodes = real_nodes::start(env.plane, N).await?;
    let patch = json!({ "metadata": { "labels": { ENVIRONMENT: env.name } } });
    for node in &nodes {
        let nodes: Api<Node> = Api::all(env.client.clone());
        nodes
            .patch(node.name(), &PatchParams::default(), &Patch::Merge(&patch))
            .await?;
    }
    Ok(Some(nodes.try_into().ok().context("as many as were asked for")?))
}

/// The container of a server that goes on for a while once it is asked to end.
fn server() -> Value {
    let stop = json!({ "preStop": { "exec": { "command": ["/app", "sleep", "3"] } } });
    json!([{
        "name": "main",
        "image": real_nodes::APP,
        "args": ["serve"],
        "readinessProbe": { "httpGet": { "port": 8080 }, "periodSeconds": 1 },
        "lifecycle": stop,
    }])
}

/// One that ignores SIGTERM, one with a finalizer, and what stays on a drained node.
#[tokio::test(flavor = "multi_thread")]
async fn pods_of_a_real_node_are_forced_when_due() -> Result<()> {
    let env = Environment::new().await?;
    let Some([node]) = add_nodes(&env).await? else {
        return Ok(());
    };
    let file = PodTemplate::new().pod(&env.name, "static")?;
    std::fs::write(node.manifests().join("static.json"), serde_json::to_vec(&file)?)?;
    let here = managed(node.name());
    let stubborn = here.clone().grace(4).spec(
        "containers",
        json!([{"name": "main", "image": real_nodes::APP, "args": ["stubborn"]}]),
    );
    let [stubborn, held] = env
        .add_pods([("stubborn", stubborn), ("held", here.grace(1).finalizer(STUCK))])
        .await?;
    workload::delete(&env.client, &env.name, "held").await?;
    let name = format!("static-{}", node.name());
    let mirror = wait::until("the static pod to be Ready", secs(60), || async {
        let pod = env.pods().get(&name).await?;
        ensure!(workload::is_ready(&pod), "{:?}", pod.status);
        Ok(pod)
    })
    .await?;
    fleet::cordon_since(&env.client, node.name(), an_hour_ago()).await?;
    let keeper = env
        .start(json!({ "nodeDrain": { "timeOut": "3s", "expectedNodeDrainTime": "1s" } }))
        .await?;
    for pod in [&stubborn, &held] {
        workload::gone(&env.client, pod, secs(120)).await?;
    }
    is_untouched(&env.pods(), &mirror).await?;
    env.end([keeper]).await
}

/// Asks a Ready pod of the app once in a quarter of a second, as its Service does, until it is told to end. Gives how many
/// answered, and why others did not.
async fn ask(pods: Api<Pod>, app: &str, mut enough: oneshot::Receiver<()>) -> Result<(usize, Vec<String>)> {
    let of_app = ListParams::default().labels(&format!("app={app}"));
    let (mut answered, mut failed) = (0, Vec::new());
    while enough.try_recv().is_err() {
        let found = pods.list(&of_app).await?.items;
        let address = found
            .iter()
            .find(|pod| workload::is_up(pod))
            .and_then(|pod| pod.status.as_ref()?.pod_ip.clone());
        let answer = async { get(&address.context("no pod is Ready")?).await };
        match answer.await {
            Ok(()) => answered += 1,
            Err(error) => failed.push(format!("{error:#}")),
        }
        tokio::time::sleep(Duration::from_millis(250)).await;
    }
    Ok((answered, failed))
}

async fn get(address: &str) -> Result<()> {
    let exchange = async {
        let mut connection = TcpStream::connect((address, 8080)).await?;
        connection.write_all(b"GET / HTTP/1.0\r\n\r\n").await?;
        let mut answer = String::new();
        connection.read_to_string(&mut answer).await?;
        ensure!(answer.ends_with("ok\n"), "{answer}");
        Ok(())
    };
    tokio::time::timeout(secs(5), exchange).await.context("no answer")?
}

/// The old pod serves until the new one does, over sockets of their own.
#[tokio::test(flavor = "multi_thread")]
async fn surging_singleton_answers_every_request() -> Result<()> {
    let surge = json!({ "config": { "surge": { "enabled": true } } });
    let env = Environment::with(ControlPlane::shared().await, surge).await?;
    let Some(nodes) = add_nodes::<2>(&env).await? else {
        return Ok(());
    };
    let template = PodTemplate::new()
        .node_selector(ENVIRONMENT, &env.name)
        .grace(10)
        .spec("containers", server());
    bulk::create(&env.client, [template.deployment(&env.name, "web", 1)?]).await?;
    let [old] = <[Pod; 1]>::try_from(workload::ready_pods(&env.client, &env.name, "web", 1, secs(60)).await?)
        .ok()
        .context("one")?;
    env.add_budget(env.tight("web", 1), 1).await?;
    env.counts_healthy("web", 1).await?;
    let on = |pod: &Pod| pod.spec.as_ref().and_then(|spec| spec.node_name.clone());
    let drained = on(&old).context("no node")?;
    let surge = json!({ "enabled": true, "after": "1s", "timeout": "2m" });
    let keeper = env.start(json!({ "surge": surge, "overrideBudgets": "never" })).await?;
    let (enough, told) = oneshot::channel();
    let asking = tokio::spawn(ask(env.pods(), "web", told));
    fleet::cordon_since(&env.client, &drained, an_hour_ago()).await?;
    workload::gone(&env.client, &old, secs(120)).await?;
    let new = workload::ready_pods(&env.client, &env.name, "web", 1, secs(30))
        .await?
        .remove(0);
    ensure!(on(&new).is_some_and(|node| node != drained), "{:?}", new.spec);
    let _ = enough.send(());
    let (answered, failed) = asking.await??;
    println!("{answered} requests were answered");
    ensure!(
        failed.is_empty() && answered > 10,
        "{answered} were answered, and not: {failed:?}"
    );
    drop(nodes);
    env.end([keeper]).await
}
