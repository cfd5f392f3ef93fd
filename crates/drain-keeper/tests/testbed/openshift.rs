//! OpenShift's kinds: absent, installed later, holding nonsense, removed and installed again.

use anyhow::{Result, ensure};
use jiff::Timestamp;
use k8s_openapi::api::core::v1::{Node, Pod};
use k8s_openapi::api::events::v1::Event;
use kube::ResourceExt;
use kube::api::{Api, ListParams};
use nodeward_api::drain_clock::ClockSource;
use nodeward_testkit::fleet;
use nodeward_testkit::foreign::{Foreign, machine_config_pool, upgrade_config};
use nodeward_testkit::wait::{self, secs};
use nodeward_testkit::workload;
use serde_json::{Value, json};
use tokio::sync::Mutex;

use crate::environment::{Environment, Keeper, an_hour_ago, is_untouched, managed};

const DESIRED: &str = "machineconfiguration.openshift.io/desiredDrain";
const APPLIED: &str = "machineconfiguration.openshift.io/lastAppliedDrain";
const VERSION: &str = "4.99.1";

/// Held by whoever installs OpenShift's kinds, which belong to the whole cluster, and counts on what is there of them.
pub static KINDS: Mutex<()> = Mutex::const_new(());

/// A node that the machine-config-operator has drained for an hour, and a pod on it.
async fn draining(env: &Environment<'_>, name: &str) -> Result<(String, Pod)> {
    let node = env
        .worker(name)
        .annotation(DESIRED, "drain-rendered-worker-2")
        .annotation(APPLIED, "uncordon-rendered-worker-1")
        .cordoned_since(an_hour_ago());
    fleet::create(&env.client, [node]).await?;
    let node = env.node_name(name);
    let [pod] = env.add_pods([(name, managed(&node))]).await?;
    Ok((node, pod))
}

async fn put(env: &Environment<'_>, config: Value, pool: Value) -> Result<()> {
    Foreign::UpgradeConfig
        .put(&env.client, Some(&env.name), "managed-upgrade-config", config)
        .await?;
    Foreign::MachineConfigPool
        .put(&env.client, None, "worker", pool)
        .await?;
    Ok(())
}

fn upgrading() -> Value {
    upgrade_config(VERSION, "Upgrading", an_hour_ago(), 0)
}

/// Nothing is forced, nothing is begun, and drain-keeper is well.
async fn nothing_happens(env: &Environment<'_>, keeper: &Keeper, pods: &[&Pod]) -> Result<()> {
    wait::throughout("nothing forced", secs(3), || async {
        for pod in pods {
            is_untouched(&env.pods(), pod).await?;
        }
        keeper.ready(secs(5)).await
    })
    .await
}

async fn is_said_to_be_unreadable(env: &Environment<'_>, node: &str, parts: &[&str]) -> Result<()> {
    let events: Api<Event> = Api::all(env.client.clone());
    let about = ListParams::default().fields(&format!("regarding.name={node},reason=Unreadable"));
    wait::until(
        format!("an Event on {parts:?}, which cannot be read"),
        secs(60),
        || async {
            let notes: Vec<String> = events
                .list(&about)
                .await?
                .items
                .into_iter()
                .filter_map(|event| event.note)
                .collect();
            ensure!(
                notes.iter().any(|note| parts.iter().all(|part| note.contains(part))),
                "{notes:?}"
            );
            Ok(())
        },
    )
    .await
}

/// One test for all that happens to the kinds.
#[tokio::test(flavor = "multi_thread")]
async fn late_and_malformed_kinds_need_no_restart() -> Result<()> {
    let _kinds = KINDS.lock().await;
    let env = Environment::new().await?;
    let (node, pod) = draining(&env, "first").await?;
    let config = json!({
        "nodeDrain": { "timeOut": "1s", "expectedNodeDrainTime": "1s" },
        "upgradeSignal": "openshift",
        "countsAsDrain": null,
        "flapTolerance": "1s",
    });
    let keeper = env.start(config).await?;
    let pid = keeper.process().pid();
    nothing_happens(&env, &keeper, &[&pod]).await?;
    for kind in ["UpgradeConfig", "MachineConfigPool"] {
        let log = keeper.log();
        let lines = log.lines().filter(|line| line.contains("the kind is absent"));
        let count = lines.filter(|line| line.contains(&format!("/{kind}"))).count();
        ensure!(count == 1, "{count} lines say that {kind} is absent: {log}");
    }
    ensure!(
        env.clock(&node).await?.is_none(),
        "a drain is timed although nothing says that an upgrade is on"
    );

    // Installed, and empty; then nonsense of several kinds.
    for kind in [Foreign::UpgradeConfig, Foreign::MachineConfigPool] {
        kind.install(&env.client).await?;
    }
    nothing_happens(&env, &keeper, &[&pod]).await?;
    let good_pool = || machine_config_pool("worker", 3, 1);
    for (config, pool) in [
        (
            json!({ "spec": { "desired": 7 }, "status": { "history": "none" } }),
            good_pool(),
        ),
        (
            json!({ "spec": { "desired": { "version": VERSION } }, "status": { "history": [7, null] } }),
            good_pool(),
        ),
        (
            upgrading(),
            json!({ "spec": { "nodeSelector": "worker" }, "status": { "machineCount": "three" } }),
        ),
        (upgrade_config(VERSION, "Pending", an_hour_ago(), 0), good_pool()),
        (upgrading(), machine_config_pool("worker", 3, 3)),
    ] {
        put(&env, config, pool).await?;
        nothing_happens(&env, &keeper, &[&pod]).await?;
    }

    // An upgrade, whose PDBForceDrainTimeout is nonsense: said, and ours counts instead.
    let began = Timestamp::now();
    put(
        &env,
        upgrade_config(VERSION, "Upgrading", an_hour_ago(), "soon"),
        good_pool(),
    )
    .await?;
    workload::gone(&env.client, &pod, secs(60)).await?;
    is_said_to_be_unreadable(&env, &node, &["spec.desired.version is not a string"]).await?;
    is_said_to_be_unreadable(&env, &node, &["PDBForceDrainTimeout", "soon"]).await?;
    let clock = env.clock_that(&node, "runs", |_| true).await?;
    // It was cordoned before the upgrade that concerns it was known of.
    ensure!(clock.from == ClockSource::Gate && began <= clock.start, "{clock}");

    // Removed in the middle of it: nothing more is forced, and the drain is over for drain-keeper.
    Foreign::MachineConfigPool.remove(&env.client).await?;
    wait::until("the clock to go", secs(60), || async {
        ensure!(env.clock(&node).await?.is_none(), "still there");
        Ok(())
    })
    .await?;
    let (_, second) = draining(&env, "second").await?;
    nothing_happens(&env, &keeper, &[&second]).await?;

    // And back.
    Foreign::MachineConfigPool.install(&env.client).await?;
    put(&env, upgrading(), good_pool()).await?;
    workload::gone(&env.client, &second, secs(60)).await?;
    ensure!(keeper.process().pid() == pid, "it was restarted");
    let nodes: Api<Node> = Api::all(env.client.clone());
    ensure!(
        nodes.get(&node).await?.annotations().contains_key(DESIRED),
        "their annotation is theirs"
    );
    for kind in [Foreign::UpgradeConfig, Foreign::MachineConfigPool] {
        kind.remove(&env.client).await?;
    }
    env.end([keeper]).await
}
