//! Presets, each with the objects that its upgrader makes, in its order: nothing is forced on a cordoned node before the
//! upgrader drains it, and its waits count from then.

use anyhow::{Context, Result, ensure};
use jiff::{SignedDuration, Timestamp};
use k8s_openapi::api::apps::v1::DaemonSet;
use k8s_openapi::api::core::v1::{Node, Pod};
use kube::ResourceExt;
use kube::api::{Api, DeleteParams, ListParams, Patch, PatchParams};
use nodeward_testkit::foreign::{Foreign, machine_config_pool};
use nodeward_testkit::wait::{self, secs};
use nodeward_testkit::workload::{self, PodTemplate};
use nodeward_testkit::{ControlPlane, bulk, fleet};
use rstest::rstest;
use serde_json::{Value, json};

use crate::environment::{ENVIRONMENT, Environment, Keeper, an_hour_ago, is_untouched, managed};
use crate::openshift::KINDS;

/// A node that an upgrader is about to work on, and another one that a person has parked.
struct Scene {
    env: Environment<'static>,
    keeper: Keeper,
    node: String,
    /// Pods on the two, each of a controller.
    pod: Pod,
    beside: Pod,
}

impl Scene {
    /// With a drain-keeper that goes by this signal, of which the namespace is told; `changes` come on top.
    async fn new(kinds: &[Foreign], signal: impl FnOnce(&str) -> Value, changes: &Value) -> Result<Self> {
        Self::of(Environment::new().await?, kinds, signal, changes).await
    }

    async fn of(
        env: Environment<'static>,
        kinds: &[Foreign],
        signal: impl FnOnce(&str) -> Value,
        changes: &Value,
    ) -> Result<Self> {
        for kind in kinds {
            kind.install(&env.client).await?;
        }
        let node = env.add_node("a").await?;
        let parked = env.add_cordoned_node("b").await?;
        let [pod, beside] = env
            .add_pods([("under", managed(&node)), ("beside", managed(&parked))])
            .await?;
        let mut config = json!({
            "upgradeSignal": signal(&env.name), "countsAsDrain": null, "flapTolerance": "1s",
        });
        for (key, change) in changes.as_object().into_iter().flatten() {
            config[key] = change.clone();
        }
        let keeper = env.start(config).await?;
        Ok(Self {
            env,
            keeper,
            node,
            pod,
            beside,
        })
    }

    /// Nothing is forced on either node.
    async fn nothing_is_forced(&self) -> Result<()> {
        wait::throughout("nothing forced", secs(4), || async {
            is_untouched(&self.env.pods(), &self.pod).await?;
            is_untouched(&self.env.pods(), &self.beside).await
        })
        .await
    }

    /// The pod goes, by a clock that began no earlier than the drain; other pods of the node are its upgrader's, and stay.
    async fn is_drained(&self, began: Timestamp) -> Result<()> {
        let on_node = ListParams::default().fields(&format!("spec.nodeName={}", self.node));
        let pods = self.env.pods().list(&on_node).await?.items;
        let upgraders = || pods.iter().filter(|pod| pod.uid() != self.pod.uid());
        workload::gone(&self.env.client, &self.pod, secs(120))
            .await
            .with_context(|| self.keeper.process().log_tail(40))?;
        // Some of these times are told to the second.
        let earliest = began - SignedDuration::from_secs(1);
        self.env
            .clock_that(&self.node, "began with the drain", |clock| earliest <= clock.start)
            .await?;
        is_untouched(&self.env.pods(), &self.beside).await?;
        for pod in upgraders() {
            is_untouched(&self.env.pods(), pod).await?;
        }
        Ok(())
    }

    /// The upgrader gives the node back, and nothing is left there.
    async fn give_back(self) -> Result<()> {
        fleet::uncordon(&self.env.client, &self.node).await?;
        wait::until("the clock to go", secs(60), || async {
            ensure!(self.env.clock(&self.node).await?.is_none(), "still there");
            Ok(())
        })
        .await?;
        self.env.end([self.keeper]).await
    }

    /// The upgrader deletes the node, and lets go of the object that stands for it.
    async fn replace(self, object: Option<(Foreign, Option<&str>)>) -> Result<()> {
        let nodes: Api<Node> = Api::all(self.env.client.clone());
        nodes.delete(&self.node, &DeleteParams::default()).await?;
        if let Some((kind, namespace)) = object {
            let released = json!({ "metadata": { "finalizers": null } });
            let api = kind.api(&self.env.client, namespace);
            api.patch(&self.node, &PatchParams::default(), &Patch::Merge(released))
                .await?;
        }
        self.env.end([self.keeper]).await
    }

    async fn patch_node(&self, patch: Value) -> Result<()> {
        let nodes: Api<Node> = Api::all(self.env.client.clone());
        let patch = Patch::Strategic(patch);
        nodes.patch(&self.node, &PatchParams::default(), &patch).await?;
        Ok(())
    }

    /// A person cordons the node, long before its upgrader comes to it.
    async fn park(&self) -> Result<()> {
        fleet::cordon_since(&self.env.client, &self.node, an_hour_ago()).await
    }
}

/// It takes its lock, remembers that the node was cordoned before, drains, reboots, and gives the lock back.
#[tokio::test(flavor = "multi_thread")]
async fn kured_drains_under_its_lock() -> Result<()> {
    let signal =
        |namespace: &str| json!({ "preset": { "name": "kured", "namespace": namespace, "daemonSet": "kured" } });
    let scene = Scene::new(&[], signal, &json!({})).await?;
    let env = &scene.env;
    let kured = PodTemplate::new().node_selector(ENVIRONMENT, &env.name);
    bulk::create_one(env.client.clone(), kured.daemon_set(&env.name, "kured")?).await?;
    wait::until("kured on both nodes", secs(60), || async {
        let pods = env.pods().list(&ListParams::default()).await?.items;
        let ready = pods.iter().filter(|pod| workload::is_ready(pod)).count();
        ensure!(ready == 4, "{ready} pods are Ready");
        Ok(())
    })
    .await?;
    let daemon_sets: Api<DaemonSet> = Api::namespaced(env.client.clone(), &env.name);
    let lock = async |text: Option<String>| {
        let annotation = json!({ "metadata": { "annotations": { "weave.works/kured-node-lock": text } } });
        let patch = Patch::Merge(annotation);
        daemon_sets.patch("kured", &PatchParams::default(), &patch).await
    };
    let of = |node: &str| {
        let lock =
            json!({ "nodeID": node, "metadata": { "unschedulable": true }, "created": Timestamp::now(), "TTL": 0 });
        Some(lock.to_string())
    };
    scene.park().await?;
    // Said by kured before its turn has come.
    fleet::annotate(
        &env.client,
        &scene.node,
        "weave.works/kured-reboot-in-progress",
        Some("2026-01-01T00:00:00Z"),
    )
    .await?;
    lock(of("another-node")).await?;
    scene.nothing_is_forced().await?;
    let began = Timestamp::now();
    lock(of(&scene.node)).await?;
    scene.is_drained(began).await?;
    fleet::reboot(&env.client, &scene.node).await?;
    lock(None).await?;
    scene.give_back().await
}

/// Annotations of the Machine Config Operator, without their prefix.
async fn annotate(scene: &Scene, annotations: &[(&str, &str)]) -> Result<()> {
    for (key, value) in annotations {
        let key = format!("machineconfiguration.openshift.io/{key}");
        fleet::annotate(&scene.env.client, &scene.node, &key, Some(value)).await?;
    }
    Ok(())
}

/// Without managed-upgrade-operator the Machine Config Operator's annotations tell of a new configuration, with its pools or
/// without.
#[rstest]
#[case::its_preset(json!({ "preset": "machineConfig" }))]
#[case::on_openshift(json!("machineConfigPool"))]
#[tokio::test(flavor = "multi_thread")]
async fn machine_config_drains_as_its_annotations_say(#[case] signal: Value) -> Result<()> {
    let scene = Scene::new(&[], |_| signal, &json!({})).await?;
    let set = async |annotations: &[(&str, &str)]| annotate(&scene, annotations).await;
    set(&[
        ("currentConfig", "rendered-worker-1"),
        ("desiredConfig", "rendered-worker-1"),
        ("state", "Done"),
        ("desiredDrain", "uncordon-rendered-worker-1"),
        ("lastAppliedDrain", "uncordon-rendered-worker-1"),
    ])
    .await?;
    scene.park().await?;
    scene.nothing_is_forced().await?;
    // Its turn has come, and its daemon has not asked for the drain yet.
    set(&[("desiredConfig", "rendered-worker-2")]).await?;
    scene.nothing_is_forced().await?;
    let began = Timestamp::now();
    set(&[("state", "Working"), ("desiredDrain", "drain-rendered-worker-2")]).await?;
    scene.is_drained(began).await?;
    set(&[("lastAppliedDrain", "drain-rendered-worker-2")]).await?;
    fleet::reboot(&scene.env.client, &scene.node).await?;
    set(&[
        ("currentConfig", "rendered-worker-2"),
        ("desiredDrain", "uncordon-rendered-worker-2"),
        ("lastAppliedDrain", "uncordon-rendered-worker-2"),
        ("state", "Done"),
    ])
    .await?;
    scene.give_back().await
}

/// A new image of its pool leaves the node's configuration as it is: only the pool says that it is being updated.
#[tokio::test(flavor = "multi_thread")]
async fn updating_pool_drains_its_nodes_unless_paused() -> Result<()> {
    let _kinds = KINDS.lock().await;
    let kind = Foreign::MachineConfigPool;
    let scene = Scene::new(&[kind], |_| json!("machineConfigPool"), &json!({})).await?;
    let put = async |updated: u32, paused: bool| {
        let mut pool = machine_config_pool("worker", 3, updated);
        pool["spec"]["paused"] = json!(paused);
        kind.put(&scene.env.client, None, "worker", pool).await
    };
    let set = async |annotations: &[(&str, &str)]| annotate(&scene, annotations).await;
    put(3, false).await?;
    set(&[
        ("currentConfig", "rendered-worker-1"),
        ("desiredConfig", "rendered-worker-1"),
        ("state", "Done"),
        ("desiredDrain", "uncordon-rendered-worker-1"),
        ("lastAppliedDrain", "uncordon-rendered-worker-1"),
    ])
    .await?;
    scene.park().await?;
    // Other nodes of the pool come first.
    put(1, false).await?;
    scene.nothing_is_forced().await?;
    put(1, true).await?;
    set(&[("state", "Working"), ("desiredDrain", "drain-rendered-worker-1")]).await?;
    scene.nothing_is_forced().await?;
    let began = Timestamp::now();
    put(1, false).await?;
    scene.is_drained(began).await?;
    set(&[("lastAppliedDrain", "drain-rendered-worker-1")]).await?;
    fleet::reboot(&scene.env.client, &scene.node).await?;
    set(&[
        ("desiredDrain", "uncordon-rendered-worker-1"),
        ("lastAppliedDrain", "uncordon-rendered-worker-1"),
        ("state", "Done"),
    ])
    .await?;
    put(3, false).await?;
    let client = scene.env.client.clone();
    scene.give_back().await?;
    kind.remove(&client).await
}

/// In place it sets the configuration, starts its daemon's pod on the node, and drains around that pod when the daemon asks.
#[tokio::test(flavor = "multi_thread")]
async fn hypershift_in_place_keeps_its_own_pod() -> Result<()> {
    let every_pod = json!({ "unmanagedPods": "delete" });
    let scene = Scene::new(&[], |_| json!({ "preset": "machineConfig" }), &every_pod).await?;
    let set = async |annotations: &[(&str, &str)]| annotate(&scene, annotations).await;
    set(&[("currentConfig", "1"), ("desiredConfig", "1"), ("state", "Done")]).await?;
    scene.nothing_is_forced().await?;
    set(&[("desiredConfig", "2")]).await?;
    let pool = format!("{}-upgrade", scene.env.name);
    scene.env.plane.namespace(&pool).await?;
    let daemon = PodTemplate::new().on(&scene.node);
    let daemon = daemon.pod(&pool, &format!("machine-config-daemon-{}", scene.node))?;
    let daemon = bulk::create_one(scene.env.client.clone(), daemon).await?;
    scene.nothing_is_forced().await?;
    let began = Timestamp::now();
    set(&[("state", "Working"), ("desiredDrain", "drain-2")]).await?;
    fleet::cordon(&scene.env.client, &scene.node).await?;
    scene.is_drained(began).await?;
    let pods: Api<Pod> = Api::namespaced(scene.env.client.clone(), &pool);
    wait::throughout("its own pod", secs(4), || is_untouched(&pods, &daemon)).await?;
    set(&[("lastAppliedDrain", "drain-2")]).await?;
    fleet::reboot(&scene.env.client, &scene.node).await?;
    set(&[
        ("currentConfig", "2"),
        ("desiredDrain", "uncordon-2"),
        ("lastAppliedDrain", "uncordon-2"),
        ("state", "Done"),
    ])
    .await?;
    pods.delete(&daemon.name_any(), &DeleteParams::default()).await?;
    scene.give_back().await
}

/// Before 1.13 it cordons and says so in one write; a node that it finds cordoned it leaves unmarked.
#[tokio::test(flavor = "multi_thread")]
async fn talos_marks_what_it_cordons() -> Result<()> {
    let scene = Scene::new(&[], |_| json!({ "preset": "talos" }), &json!({})).await?;
    scene.nothing_is_forced().await?;
    let began = Timestamp::now();
    let marked = |mark: Option<&str>, cordoned: bool| {
        json!({
            "metadata": { "annotations": { "talos.dev/cordoned": mark } },
            "spec": { "unschedulable": cordoned },
        })
    };
    scene.patch_node(marked(Some("true"), true)).await?;
    scene.is_drained(began).await?;
    fleet::reboot(&scene.env.client, &scene.node).await?;
    scene.patch_node(marked(None, false)).await?;
    scene.give_back().await
}

/// It taints all nodes of a roll-out at its start, and cordons and drains them later, one by one.
#[tokio::test(flavor = "multi_thread")]
async fn kops_taint_opens_the_upgrade() -> Result<()> {
    let every_cordon = json!({ "countsAsDrain": "all" });
    let scene = Scene::new(&[], |_| json!({ "preset": "kops" }), &every_cordon).await?;
    let taint = json!({ "key": "kops.k8s.io/scheduled-for-update", "effect": "PreferNoSchedule" });
    scene.patch_node(json!({ "spec": { "taints": [taint] } })).await?;
    scene.nothing_is_forced().await?;
    let began = Timestamp::now();
    fleet::cordon(&scene.env.client, &scene.node).await?;
    scene.is_drained(began).await?;
    scene.replace(None).await
}

/// It taints, says why, waits for a replacement, and drains once the NodeClaim is deleted.
#[tokio::test(flavor = "multi_thread")]
async fn karpenter_drains_with_its_node_claim() -> Result<()> {
    let kind = Foreign::NodeClaim;
    let scene = Scene::new(&[kind], |_| json!({ "preset": "karpenter" }), &json!({})).await?;
    let claim = |disrupted: bool| {
        let since = Timestamp::now();
        let condition = |kind: &str, reason: &str| json!({ "type": kind, "status": "True", "reason": reason, "lastTransitionTime": since });
        let mut conditions = vec![condition("Ready", "Ready")];
        conditions.extend(disrupted.then(|| condition("DisruptionReason", "Drifted")));
        json!({
            "metadata": { "finalizers": ["karpenter.sh/termination"] },
            "spec": { "nodeClassRef": { "group": "karpenter.k8s.aws", "kind": "EC2NodeClass", "name": "default" } },
            "status": { "nodeName": scene.node, "conditions": conditions },
        })
    };
    let (client, name) = (&scene.env.client, scene.node.as_str());
    kind.put(client, None, name, claim(false)).await?;
    let taint = json!({ "key": "karpenter.sh/disrupted", "effect": "NoSchedule" });
    scene.patch_node(json!({ "spec": { "taints": [taint] } })).await?;
    scene.nothing_is_forced().await?;
    kind.put(client, None, name, claim(true)).await?;
    scene.nothing_is_forced().await?;
    let began = Timestamp::now();
    kind.delete(client, None, name).await?;
    scene.is_drained(began).await?;
    scene.replace(Some((kind, None))).await
}

/// It deletes the Machine, which its finalizer keeps, and then cordons and drains the node.
#[tokio::test(flavor = "multi_thread")]
async fn cluster_api_drains_with_its_machine() -> Result<()> {
    let kind = Foreign::ClusterApiMachine;
    let signal = json!({ "preset": "clusterApi" });
    // With it the chart grants more.
    let values = json!({ "config": { "upgradeSignal": signal } });
    let env = Environment::with(ControlPlane::shared().await, values).await?;
    let scene = Scene::of(env, &[kind], |_| signal, &json!({})).await?;
    let namespace = scene.env.name.clone();
    let machine = json!({
        "metadata": { "finalizers": ["machine.cluster.x-k8s.io"] },
        "spec": { "clusterName": "c", "version": "v1.35.0" },
        "status": { "nodeRef": { "name": scene.node }, "phase": "Running" },
    });
    let (client, name) = (&scene.env.client, scene.node.as_str());
    kind.put(client, Some(&namespace), name, machine).await?;
    scene.park().await?;
    // On all nodes of an earlier MachineSet.
    let outdated = json!({ "key": "node.cluster.x-k8s.io/outdated-revision", "effect": "PreferNoSchedule" });
    scene.patch_node(json!({ "spec": { "taints": [outdated] } })).await?;
    scene.nothing_is_forced().await?;
    let began = Timestamp::now();
    kind.delete(client, Some(&namespace), name).await?;
    scene.is_drained(began).await?;
    scene.replace(Some((kind, Some(&namespace)))).await
}

/// Its Job's pod cordons and drains the node that it runs on; a Plan without a drain only cordons.
#[tokio::test(flavor = "multi_thread")]
async fn system_upgrade_controller_keeps_its_own_pod() -> Result<()> {
    let kind = Foreign::Plan;
    let scene = Scene::new(&[kind], |_| json!({ "preset": "systemUpgradeController" }), &json!({})).await?;
    let namespace = scene.env.name.clone();
    let plan = |drain: Option<Value>, applying: &[&str]| {
        json!({
            "spec": { "concurrency": 1, "cordon": true, "drain": drain, "version": "v1.35.0+k3s1" },
            "status": { "applying": applying, "latestVersion": "v1.35.0-k3s1" },
        })
    };
    let (client, name) = (&scene.env.client, scene.node.as_str());
    let put = async |plan_name: &str, body: Value| kind.put(client, Some(&namespace), plan_name, body).await;
    let job = managed(name).label("upgrade.cattle.io/controller", "system-upgrade-controller");
    scene.env.add_pods([("apply-k3s-on-a", job)]).await?;
    put("cordons", plan(None, &[name])).await?;
    scene.park().await?;
    scene.nothing_is_forced().await?;
    put("cordons", plan(None, &[])).await?;
    let drains = || Some(json!({ "force": true, "skipWaitForDeleteTimeout": 60 }));
    put("drains", plan(drains(), &[])).await?;
    scene.nothing_is_forced().await?;
    let began = Timestamp::now();
    put("drains", plan(drains(), &[name])).await?;
    scene.is_drained(began).await?;
    put("drains", plan(drains(), &[])).await?;
    scene.give_back().await
}
