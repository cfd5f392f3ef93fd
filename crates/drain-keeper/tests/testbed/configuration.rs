//! Configuration that is broken and mended, in the file and in managed-upgrade-operator's ConfigMap.

use anyhow::{Context, Result, ensure};
use k8s_openapi::api::core::v1::ConfigMap;
use kube::api::{Api, Patch, PatchParams};
use nodeward_testkit::wait::{self, secs};
use nodeward_testkit::{ControlPlane, bulk, names, workload};
use rstest::rstest;
use serde_json::{Value, json};

use crate::environment::{Environment, Keeper, is_untouched, managed};

const REJECTED: &str = "nodeward_drain_keeper_config_rejected";
const RELOADS: &str = "nodeward_drain_keeper_config_reloads_total";

async fn rejected_is(keeper: &Keeper, value: f64) -> Result<()> {
    wait::until(format!("{REJECTED} to be {value}"), secs(60), || async {
        let now = keeper.metrics().await?.value(REJECTED, &[]);
        ensure!(now == Some(value), "{now:?}");
        Ok(())
    })
    .await
}

#[tokio::test(flavor = "multi_thread")]
async fn broken_file_keeps_last_good_configuration() -> Result<()> {
    let env = Environment::new().await?;
    let node = env.add_cordoned_node("a").await?;
    let [pod] = env.add_pods([("web", managed(&node))]).await?;
    let keeper = env.start(json!({ "nodeDrain": { "timeOut": "1h" } })).await?;
    env.clock_that(&node, "runs", |_| true).await?;
    rejected_is(&keeper, 0.0).await?;
    // In force, it would evict the pod at once: were any part of a broken file taken over, this one would.
    let broken = json!({ "nodeDrain": { "timeOut": "1s", "expectedNodeDrainTime": -1 } });
    keeper.write_config(&env.config(&broken))?;
    rejected_is(&keeper, 1.0).await?;
    ensure!(
        keeper.log().contains("nodeDrain.expectedNodeDrainTime"),
        "{}",
        keeper.process().log_tail(5)
    );
    wait::throughout("the last good configuration", secs(3), || async {
        is_untouched(&env.pods(), &pod).await?;
        keeper.ready(secs(5)).await
    })
    .await?;
    keeper.write_config(&env.config(&json!({ "nodeDrain": { "timeOut": "1s" } })))?;
    rejected_is(&keeper, 0.0).await?;
    workload::gone(&env.client, &pod, secs(60)).await?;
    env.end([keeper]).await
}

#[rstest]
#[case::unknown_field("upgradeSignal: openshift\nnodeDrain:\n  timeout: 45\n", 3, "timeout")]
#[case::negative_time("nodeDrain:\n  timeOut: -1\n", 2, "nodeDrain.timeOut")]
#[case::zero_time("# a comment\npdbForceDrainTimeout: 0\n", 2, "pdbForceDrainTimeout")]
#[case::no_time("forceAfter: soon\n", 1, "forceAfter")]
#[case::bad_pattern(
    "nodeDrain:\n  ignoredNamespacePatterns:\n    - ^fine$\n    - \"(open\"\n",
    4,
    "nodeDrain.ignoredNamespacePatterns[1]"
)]
#[case::bad_cel(
    "countsAsDrain: all\nupgradeSignal:\n  resource:\n    apiVersion: v1\n    kind: Thing\n    when: \"object.status ==\"\n",
    3,
    "upgradeSignal"
)]
#[case::no_mark("upgradeSignal: always\ncountsAsDrain: everyDrain\n", 2, "countsAsDrain")]
#[case::no_mapping("- 1\n", 1, "")]
#[case::no_yaml("nodeDrain: {timeOut: 1\n", 2, "")]
#[tokio::test(flavor = "multi_thread")]
async fn bad_first_configuration_exits_2_with_position(
    #[case] text: &str,
    #[case] line: usize,
    #[case] field: &str,
) -> Result<()> {
    let env = unprivileged().await?;
    let operator = env.keeper().config(text).start(env.plane).await?;
    let status = operator.process().wait_for_exit(secs(60)).await?;
    let log = operator.log();
    ensure!(status.code() == Some(2), "{status}: {log}");
    ensure!(!log.contains("panicked"), "{log}");
    let named = log
        .lines()
        .find(|said| said.contains(&format!("config.yaml:{line}")))
        .with_context(|| log.clone())?;
    ensure!(named.contains(field), "no field {field} in: {named}");
    Ok(())
}

/// One environment for all that never get as far as asking for anything.
async fn unprivileged() -> Result<&'static Environment<'static>> {
    static ENVIRONMENT: tokio::sync::OnceCell<Environment<'static>> = tokio::sync::OnceCell::const_new();
    ENVIRONMENT.get_or_try_init(Environment::new).await
}

#[tokio::test(flavor = "multi_thread")]
async fn missing_first_file_exits_2_with_name() -> Result<()> {
    let env = unprivileged().await?;
    let operator = env
        .keeper()
        .arg("--config=/nonexistent/nodeward.yaml")
        .start(env.plane)
        .await?;
    let status = operator.process().wait_for_exit(secs(60)).await?;
    let log = operator.log();
    ensure!(
        status.code() == Some(2) && log.contains("/nonexistent/nodeward.yaml"),
        "{status}: {log}"
    );
    Ok(())
}

/// managed-upgrade-operator's ConfigMap.
pub struct ManagedUpgradeConfig {
    namespace: String,
    maps: Api<ConfigMap>,
}

impl ManagedUpgradeConfig {
    const NAME: &'static str = "managed-upgrade-operator-config";

    /// It, and an environment whose drain-keeper may read it.
    pub async fn with(text: &str) -> Result<(Self, Environment<'static>)> {
        let namespace = names::unique("managed-upgrade");
        let plane = ControlPlane::shared().await;
        plane.namespace(&namespace).await?;
        let values = json!({ "enabled": true, "namespace": namespace, "name": Self::NAME });
        let env = Environment::with(plane, json!({ "readManagedUpgradeConfigMap": values })).await?;
        let map = json!({
            "metadata": { "namespace": namespace, "name": Self::NAME }, "data": { "config.yaml": text },
        });
        bulk::create(&env.client, [serde_json::from_value::<ConfigMap>(map)?]).await?;
        let maps = Api::namespaced(env.client.clone(), &namespace);
        Ok((Self { namespace, maps }, env))
    }

    fn reference(&self) -> Value {
        json!({ "namespace": self.namespace, "name": Self::NAME })
    }

    pub async fn write(&self, text: &str) -> Result<()> {
        let patch = Patch::Merge(json!({ "data": { "config.yaml": text } }));
        self.maps.patch(Self::NAME, &PatchParams::default(), &patch).await?;
        Ok(())
    }
}

/// Its text, with nodekeeper's strategies or without.
pub fn nodekeepers(disabled: bool) -> String {
    format!(
        "maintenance:\n  controlPlaneTime: 90\nnodeDrain:\n  timeOut: \"1s\"\n  expectedNodeDrainTime: \"1s\"\n  \
         disableDrainStrategies: {disabled}\n"
    )
}

/// The steps of the page on the migration from nodekeeper.
#[tokio::test(flavor = "multi_thread")]
async fn migration_forces_pods_at_its_last_step() -> Result<()> {
    let (theirs, env) = ManagedUpgradeConfig::with(&nodekeepers(false)).await?;
    let node = env.add_cordoned_node("a").await?;
    let [pod] = env.add_pods([("web", managed(&node))]).await?;
    let beside = json!({ "nodeDrain": null, "managedUpgradeConfigMap": theirs.reference() });
    let dry_run = env.run(env.spec(&beside).arg("--dry-run")).await?;
    wait::until("the dry run to tell what it would do", secs(60), || async {
        let actions = "nodeward_drain_keeper_actions_total";
        let told = dry_run.metrics().await?.sum(actions, &[("outcome", "dry-run")]);
        ensure!(told > 0.5, "{told}");
        Ok(())
    })
    .await?;
    let pods = env.pods();
    is_untouched(&pods, &pod).await?;
    ensure!(dry_run.stop(secs(20)).await?.success());

    // What disables nodekeeper disables drain-keeper as long as it reads the same ConfigMap.
    theirs.write(&nodekeepers(true)).await?;
    let keeper = env.start(beside).await?;
    env.clock_that(&node, "runs", |_| true).await?;
    wait::throughout("disabled strategies", secs(4), || is_untouched(&pods, &pod)).await?;
    keeper.write_config(&env.config(&json!({})))?;
    workload::gone(&env.client, &pod, secs(60)).await?;
    env.end([keeper]).await
}

#[tokio::test(flavor = "multi_thread")]
async fn managed_upgrade_config_keeps_last_good_text() -> Result<()> {
    // As it is deployed there: other blocks beside, times in minutes.
    let deployed = "maintenance:\n  controlPlaneTime: 90\nscale:\n  timeOut: 30\nnodeDrain:\n  timeOut: 45\n  expectedNodeDrainTime: 8\n";
    let (theirs, env) = ManagedUpgradeConfig::with(deployed).await?;
    let node = env.add_cordoned_node("a").await?;
    let [pod] = env.add_pods([("web", managed(&node))]).await?;
    // The file's own block says: at once.
    let config = json!({
        "nodeDrain": { "timeOut": "1s", "expectedNodeDrainTime": "1s" },
        "managedUpgradeConfigMap": theirs.reference(),
    });
    let keeper = env.start(config).await?;
    env.clock_that(&node, "runs", |_| true).await?;
    let pods = env.pods();
    wait::throughout("their 45 minutes", secs(3), || is_untouched(&pods, &pod)).await?;
    theirs.write("nodeDrain:\n  timeOut: -5\n").await?;
    rejected_is(&keeper, 1.0).await?;
    wait::throughout("their last good text", secs(2), || is_untouched(&pods, &pod)).await?;
    let before = keeper.metrics().await?.value(RELOADS, &[]).unwrap_or_default();
    theirs.write("nodeDrain:\n  timeOut: \"1s\"\n").await?;
    rejected_is(&keeper, 0.0).await?;
    workload::gone(&env.client, &pod, secs(60)).await?;
    let reloads = keeper.metrics().await?.value(RELOADS, &[]);
    ensure!(reloads == Some(before + 1.0), "{reloads:?} after {before}");
    ensure!(
        keeper.log().contains("a new configuration is in force"),
        "{}",
        keeper.process().log_tail(5)
    );
    env.end([keeper]).await
}
