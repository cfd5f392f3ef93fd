//! The same on a simulated node and on a real one: where they differ, docs/compatibility.md says so.

use std::time::Duration;

use anyhow::{Context, Result, ensure};
use futures::future::try_join_all;
use jiff::Timestamp;
use k8s_openapi::api::core::v1::{Node, Pod};
use kube::api::{Api, DeleteParams, ListParams};
use kube::{Client, ResourceExt};
use nodeward_testkit::fleet::{self, NodeSpec};
use nodeward_testkit::kubectl::Kubectl;
use nodeward_testkit::real_nodes::{self, RealNode};
use nodeward_testkit::wait::{self, secs};
use nodeward_testkit::workload::{self, End, PodTemplate, container};
use nodeward_testkit::{ControlPlane, bulk, names, reboot};
use serde_json::json;

use super::{app, ready, ready_again};

/// A namespace, a simulated node and a real one.
struct Twins {
    plane: &'static ControlPlane,
    client: Client,
    namespace: String,
    simulated: String,
    real: RealNode,
}

impl Twins {
    /// None where this machine has no real nodes.
    async fn start() -> Result<Option<Self>> {
        if real_nodes::are_missing()? {
            return Ok(None);
        }
        let plane = ControlPlane::shared().await;
        let client = plane.client().await?;
        let (namespace, simulated) = (names::unique("twins"), names::unique("simulated"));
        plane.namespace(&namespace).await?;
        fleet::create(&client, [NodeSpec::worker(&simulated)]).await?;
        let real = real_nodes::start(plane, 1).await?.pop().context("a node")?;
        Ok(Some(Self {
            plane,
            client,
            namespace,
            simulated,
            real,
        }))
    }

    fn simulated(&self) -> PodTemplate {
        PodTemplate::new().on(&self.simulated)
    }

    fn real(&self) -> PodTemplate {
        app(&self.real)
    }

    fn pods(&self) -> Api<Pod> {
        Api::namespaced(self.client.clone(), &self.namespace)
    }

    async fn node(&self, name: &str) -> Result<Node> {
        Ok(Api::<Node>::all(self.client.clone()).get(name).await?)
    }

    /// Creates the pod of each, and waits until both are Ready.
    async fn ready(&self, simulated: &PodTemplate, real: &PodTemplate) -> Result<[Pod; 2]> {
        let pods = [
            simulated.pod(&self.namespace, "simulated")?,
            real.pod(&self.namespace, "real")?,
        ];
        let [simulated, real] = &pods;
        let both = tokio::try_join!(ready(&self.client, simulated), ready(&self.client, real))?;
        Ok(both.into())
    }

    /// The processes on the real node with these arguments.
    fn running(&self, arguments: &str) -> usize {
        let of = |pid| std::fs::read_to_string(format!("/proc/{pid}/cmdline")).unwrap_or_default();
        let processes = self.real.processes();
        let those = processes
            .iter()
            .filter(|id| of(id.pid).replace('\0', " ").trim_end() == arguments);
        those.count()
    }
}

/// The program of a container is given these arguments.
fn arguments(template: PodTemplate, arguments: &[&str]) -> PodTemplate {
    template.spec(
        "containers",
        json!([{"name": "main", "image": real_nodes::APP, "args": arguments}]),
    )
}

fn boot_id(node: &Node) -> Option<String> {
    Some(node.status.as_ref()?.node_info.as_ref()?.boot_id.clone())
}

/// A pod that takes no notice of SIGTERM, one whose hook takes two seconds, and one whose hook outlives the grace.
#[tokio::test(flavor = "multi_thread")]
async fn pods_end_within_their_grace() -> Result<()> {
    let Some(twins) = Twins::start().await? else {
        return Ok(());
    };
    let hook = |seconds: &str| {
        let hook = json!({"preStop": {"exec": {"command": ["/app", "sleep", seconds]}}});
        json!([{"name": "main", "image": real_nodes::APP, "lifecycle": hook}])
    };
    let (simulated, real) = (twins.simulated(), twins.real());
    // Grace, and the seconds after which it is gone at the earliest.
    let pods = [
        ("simulated-stubborn", simulated.clone().end(End::Slow(0)), 4, 4),
        ("real-stubborn", arguments(real.clone(), &["stubborn"]), 4, 4),
        (
            "simulated-hook",
            simulated.clone().end(End::Takes(Duration::from_secs(2))),
            300,
            2,
        ),
        ("real-hook", real.clone().spec("containers", hook("2")), 300, 2),
        ("simulated-long-hook", simulated.end(End::Slow(2)), 3, 5),
        // The kubelet lets a hook that outlives the grace, or its process, have two seconds more.
        ("real-long-hook", real.spec("containers", hook("600")), 3, 3),
    ];
    let twins = &twins;
    let timed = pods.into_iter().map(|(name, template, grace, seconds)| async move {
        let pod = ready(&twins.client, &template.grace(grace).pod(&twins.namespace, name)?).await?;
        let asked = Timestamp::now();
        workload::delete(&twins.client, &twins.namespace, name).await?;
        workload::gone(&twins.client, &pod, secs(90)).await?;
        let took = Timestamp::now().duration_since(asked);
        println!("{name} took {took:?}");
        // deletionTimestamp has whole seconds, so a simulated pod may go up to one second early.
        ensure!(took.as_secs() >= seconds - 1, "{name} took {took:?}");
        Ok(())
    });
    try_join_all(timed).await.map(drop)
}

/// Forced, a pod leaves the API at once; the container of a real one goes on, for the kubelet gives it two seconds.
#[tokio::test(flavor = "multi_thread")]
async fn grace_of_zero_ends_the_object_alone() -> Result<()> {
    let Some(twins) = Twins::start().await? else {
        return Ok(());
    };
    let stubborn = arguments(twins.real(), &["stubborn"]).grace(6);
    let [simulated, real] = &twins.ready(&twins.simulated().end(End::Stuck), &stubborn).await?;
    for pod in [simulated, real] {
        twins
            .pods()
            .delete(&pod.name_any(), &DeleteParams::default().grace_period(0))
            .await?;
        workload::gone(&twins.client, pod, secs(30)).await?;
    }
    ensure!(
        twins.running("/app stubborn") == 1,
        "its container ended with the object"
    );
    let asked = Timestamp::now();
    wait::until("the container to end", secs(60), || async {
        ensure!(twins.running("/app stubborn") == 0, "it runs");
        Ok(())
    })
    .await?;
    println!("the container went on for {:?}", Timestamp::now().duration_since(asked));
    Ok(())
}

/// Both stay through a drain; a static pod whose object is deleted comes back, for the kubelet runs it from its file.
#[tokio::test(flavor = "multi_thread")]
async fn static_pod_and_daemon_stay_through_a_drain() -> Result<()> {
    let Some(twins) = Twins::start().await? else {
        return Ok(());
    };
    let ns = twins.namespace.as_str();
    let file = PodTemplate::new().pod(ns, "static")?;
    std::fs::write(twins.real.manifests().join("static.json"), serde_json::to_vec(&file)?)?;
    let here = |node: &str| PodTemplate::new().node_selector("kubernetes.io/hostname", node);
    let daemons = [
        here(&twins.simulated).daemon_set(ns, "simulated-daemon")?,
        here(twins.real.name()).daemon_set(ns, "real-daemon")?,
    ];
    bulk::create(&twins.client, daemons).await?;
    let mirror = twins.simulated().mirror();
    let mirror = mirror.owned_by(
        "v1",
        "Node",
        &twins.simulated,
        &twins.node(&twins.simulated).await?.uid().unwrap_or_default(),
    );
    ready(&twins.client, &mirror.pod(ns, &format!("static-{}", twins.simulated))?).await?;
    twins.ready(&twins.simulated(), &twins.real()).await?;
    let static_name = format!("static-{}", twins.real.name());
    let first = ready_again(&twins.client, &PodTemplate::new().pod(ns, &static_name)?).await?;
    let kubectl = Kubectl::of(twins.plane)?;
    for node in [twins.simulated.as_str(), twins.real.name()] {
        kubectl
            .run(["drain", node, "--ignore-daemonsets", "--force"], secs(120))
            .await?;
    }
    for app in ["simulated-daemon", "real-daemon"] {
        workload::ready_pods(&twins.client, ns, app, 1, secs(30)).await?;
    }
    let mut left: Vec<String> = twins
        .pods()
        .list(&ListParams::default())
        .await?
        .iter()
        .map(ResourceExt::name_any)
        .collect();
    left.retain(|name| !name.contains("daemon"));
    left.sort();
    ensure!(
        left == [static_name.clone(), format!("static-{}", twins.simulated)],
        "{left:?}"
    );
    let undisturbed = twins.pods().get(&static_name).await?;
    ensure!(undisturbed.uid() == first.uid() && container(&undisturbed)?.restart_count == 0);

    workload::delete(&twins.client, ns, &static_name).await?;
    workload::gone(&twins.client, &first, secs(60)).await?;
    let again = ready_again(&twins.client, &first).await?;
    ensure!(
        container(&again)?.container_id == container(&first)?.container_id,
        "its container is another"
    );
    Ok(())
}

/// The node is away for too long, and its pod is evicted; only when it is back does the pod go.
#[tokio::test(flavor = "multi_thread")]
async fn dead_node_ends_its_pods_when_it_comes_back() -> Result<()> {
    let Some(mut twins) = Twins::start().await? else {
        return Ok(());
    };
    // Of a zone without a Ready node nobody is evicted.
    fleet::create(&twins.client, [NodeSpec::worker(names::unique("lives"))]).await?;
    let evicted = json!([{"key": "node.kubernetes.io/unreachable", "effect": "NoExecute", "tolerationSeconds": 1}]);
    let soon = |template: PodTemplate| template.spec("tolerations", evicted.clone());
    let pods = twins.ready(&soon(twins.simulated()), &soon(twins.real())).await?;
    let old = boot_id(&twins.node(twins.real.name()).await?);
    fleet::stop_kubelet(&twins.client, &twins.simulated).await?;
    twins.real.power_off()?;
    for (pod, node) in pods.iter().zip([twins.simulated.as_str(), twins.real.name()]) {
        let name = pod.name_any();
        let evicted = wait::until(format!("{name} to be evicted"), secs(120), || async {
            let pod = twins.pods().get(&name).await?;
            ensure!(pod.metadata.deletion_timestamp.is_some(), "nobody has deleted it");
            Ok(pod)
        });
        let evicted = evicted.await?;
        ensure!(!workload::is_ready(&evicted), "{name} is Ready");
        ensure!(fleet::ready_status(&twins.node(node).await?) == Some("Unknown"));
    }
    wait::throughout("both pods to stay", secs(5), || async {
        for pod in &pods {
            twins.pods().get(&pod.name_any()).await?;
        }
        Ok(())
    })
    .await?;
    fleet::start_kubelet(&twins.client, &twins.simulated).await?;
    let new = twins.real.power_on().await?;
    ensure!(old.is_some_and(|old| old != new));
    for pod in &pods {
        workload::gone(&twins.client, pod, secs(90)).await?;
    }
    Ok(())
}

/// The machine stands still, is given up, and goes on as if nothing had been.
#[tokio::test(flavor = "multi_thread")]
async fn frozen_node_goes_on_where_it_was() -> Result<()> {
    let Some(twins) = Twins::start().await? else {
        return Ok(());
    };
    let before = ready(
        &twins.client,
        &twins.real().tolerates_all().pod(&twins.namespace, "app")?,
    )
    .await?;
    let node_before = twins.node(twins.real.name()).await?;
    twins.real.freeze()?;
    wait::until("the node to be Unknown", secs(90), || async {
        let node = twins.node(twins.real.name()).await?;
        ensure!(
            fleet::ready_status(&node) == Some("Unknown"),
            "{:?}",
            fleet::ready_status(&node)
        );
        Ok(())
    })
    .await?;
    twins.real.thaw()?;
    let after = ready_again(&twins.client, &before).await?;
    ensure!(after.uid() == before.uid() && container(&after)?.container_id == container(&before)?.container_id);
    let node = wait::until("the node to be Ready", secs(90), || async {
        let node = twins.node(twins.real.name()).await?;
        ensure!(fleet::is_ready(&node), "not yet");
        Ok(node)
    })
    .await?;
    ensure!(boot_id(&node) == boot_id(&node_before));
    Ok(())
}

/// A pod that stays through a reboot is the same, in other containers.
#[tokio::test(flavor = "multi_thread")]
async fn retained_pod_restarts_with_its_node() -> Result<()> {
    let Some(mut twins) = Twins::start().await? else {
        return Ok(());
    };
    let before = twins.ready(&twins.simulated(), &twins.real()).await?;
    let names = [twins.simulated.clone(), twins.real.name().to_owned()];
    let boots_before = [
        boot_id(&twins.node(&names[0]).await?),
        boot_id(&twins.node(&names[1]).await?),
    ];
    for name in &names {
        fleet::cordon(&twins.client, name).await?;
    }
    twins.real.power_off()?;
    // Nobody has missed it yet.
    ensure!(fleet::is_ready(&twins.node(&names[1]).await?) && workload::is_ready(&twins.pods().get("real").await?));
    let new = twins.real.power_on().await?;
    let now = twins.pods().get("real").await?;
    println!(
        "the node is back; its pod is Ready: {}, restarts: {}",
        workload::is_ready(&now),
        container(&now)?.restart_count
    );
    let boots = [reboot::reboot(&twins.client, &names[0], secs(3)).await?, new];
    for ((before, old), new) in before.iter().zip(boots_before).zip(boots) {
        let name = before.name_any();
        ensure!(old.is_some_and(|old| old != new), "{name}");
        let after = wait::until(format!("{name} to run again"), secs(90), || async {
            let after = twins.pods().get(&name).await?;
            ensure!(
                container(&after)?.restart_count > container(before)?.restart_count,
                "{:?}",
                after.status
            );
            ensure!(workload::is_ready(&after), "not Ready");
            Ok(after)
        })
        .await?;
        ensure!(after.uid() == before.uid() && container(&after)?.container_id != container(before)?.container_id);
    }
    Ok(())
}
