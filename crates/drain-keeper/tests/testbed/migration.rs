//! What the page on the migration from nodekeeper promises beyond its steps: the way back, and who may scrape drain-keeper.

use anyhow::{Result, ensure};
use k8s_openapi::api::core::v1::{Pod, Secret, Service};
use k8s_openapi::api::discovery::v1::EndpointSlice;
use k8s_openapi::api::policy::v1::PodDisruptionBudget;
use kube::api::{Api, ListParams, Patch, PatchParams};
use kube::{Client, ResourceExt};
use nodeward_api::annotation::LAST_OVERRIDE;
use nodeward_testkit::control_plane::client_from;
use nodeward_testkit::helm::Release;
use nodeward_testkit::wait::{self, secs};
use nodeward_testkit::{names, workload};
use serde_json::{Value, json};

use crate::configuration::{ManagedUpgradeConfig, nodekeepers};
use crate::environment::{Environment, is_untouched, managed};

/// Upgrades the environment's release to these values.
async fn upgrade(env: &Environment<'_>, monitoring: Value, dry_run: bool) -> Result<()> {
    let keeper = json!({ "enabled": true, "deployment": { "enabled": false }, "dryRun": dry_run });
    let values = json!({ "monitoring": monitoring, "drainKeeper": keeper });
    Release::new(env.release.name(), env.release.namespace())
        .values(values)
        .install(env.plane)
        .await
}

#[tokio::test(flavor = "multi_thread")]
async fn rolled_back_migration_writes_nothing() -> Result<()> {
    // nodekeeper's strategies are disabled, and drain-keeper acts.
    let (theirs, env) = ManagedUpgradeConfig::with(&nodekeepers(true)).await?;
    let node = env.add_cordoned_node("a").await?;
    let [forced, later] = env
        .add_pods([("forced", managed(&node)), ("later", managed(&node))])
        .await?;
    env.add_budget(env.tight("forced", 1), 1).await?;
    env.add_budget(env.tight("later", 1).label("nodeward.dev/force-drain", "never"), 1)
        .await?;
    let config = json!({ "pdbForceDrainTimeout": "1s" });
    let keeper = env.start(config.clone()).await?;
    workload::gone(&env.client, &forced, secs(60)).await?;
    let clock = env.clock_that(&node, "runs", |_| true).await?;
    ensure!(keeper.stop(secs(30)).await?.success());

    // Back again: first drain-keeper writes nothing any more, for which the chart takes its rights, then theirs is enabled.
    upgrade(&env, json!({}), true).await?;
    let mark = env.plane.audit().mark()?;
    let dry_run = env.run(env.spec(&config).arg("--dry-run")).await?;
    theirs.write(&nodekeepers(false)).await?;
    let budgets: Api<PodDisruptionBudget> = Api::namespaced(env.client.clone(), &env.name);
    let may_be_forced = json!({ "metadata": { "labels": { "nodeward.dev/force-drain": null } } });
    budgets
        .patch("later", &PatchParams::default(), &Patch::Merge(may_be_forced))
        .await?;
    wait::until("the dry run to tell what it would do", secs(60), || async {
        let actions = "nodeward_drain_keeper_actions_total";
        let told = dry_run.metrics().await?.sum(actions, &[("outcome", "dry-run")]);
        ensure!(told > 0.5, "{told}");
        Ok(())
    })
    .await?;
    wait::throughout("nothing forced", secs(4), || async {
        is_untouched(&env.pods(), &later).await
    })
    .await?;
    ensure!(dry_run.stop(secs(30)).await?.success());
    let written = env.requests_since(mark)?.writes().without_leases();
    ensure!(written.count() == 0, "{:?}", written.0);

    // What an uninstall leaves keeps nobody from anything: the drain that follows takes the pod.
    env.release.uninstall(env.plane).await?;
    ensure!(env.clock(&node).await?.as_ref() == Some(&clock), "its clock is gone");
    let record = budgets.get("forced").await?;
    ensure!(record.annotations().contains_key(LAST_OVERRIDE), "its record is gone");
    let roomy = json!({ "spec": { "minAvailable": 0 } });
    budgets
        .patch("later", &PatchParams::default(), &Patch::Merge(roomy))
        .await?;
    wait::until("an eviction by somebody else to be accepted", secs(60), || async {
        env.pods().evict("later", &kube::api::EvictParams::default()).await?;
        Ok(())
    })
    .await?;
    workload::gone(&env.client, &later, secs(60)).await?;
    env.end_whatever_was_refused([]).await
}

/// Whether these can be listed, as who finds targets does.
async fn finds_targets(client: &Client, namespace: &str) -> Result<()> {
    let all = ListParams::default();
    Api::<Service>::namespaced(client.clone(), namespace).list(&all).await?;
    Api::<EndpointSlice>::namespaced(client.clone(), namespace)
        .list(&all)
        .await?;
    Api::<Pod>::namespaced(client.clone(), namespace).list(&all).await?;
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn platform_prometheus_finds_only_its_targets() -> Result<()> {
    let env = Environment::new().await?;
    let monitoring = names::unique("monitoring");
    env.plane.namespace(&monitoring).await?;
    let user = format!("system:serviceaccount:{monitoring}:prometheus-k8s");
    let prometheus = client_from(env.plane.kubeconfig_of(&user, "system:serviceaccounts")?).await?;
    ensure!(
        finds_targets(&prometheus, &env.system).await.is_err(),
        "granted unasked"
    );
    let account = json!({ "name": "prometheus-k8s", "namespace": monitoring });
    upgrade(&env, json!({ "prometheusServiceAccount": account }), false).await?;
    wait::until("its rights to be in force", secs(60), || async {
        finds_targets(&prometheus, &env.system).await
    })
    .await?;
    ensure!(
        finds_targets(&prometheus, &env.name).await.is_err(),
        "in every namespace"
    );
    let secrets: Api<Secret> = Api::namespaced(prometheus, &env.system);
    ensure!(
        secrets.list(&ListParams::default()).await.is_err(),
        "it may read secrets"
    );

    // The series that it scrapes has no label but the node's: those of the target tell it from nodekeeper's.
    let node = env.add_cordoned_node("a").await?;
    env.add_pods([("vault", managed(&node))]).await?;
    env.add_budget(env.tight("vault", 1).label("nodeward.dev/force-drain", "never"), 1)
        .await?;
    let config = json!({ "nodeDrain": { "timeOut": "1s", "expectedNodeDrainTime": "1s" } });
    let keeper = env.start(config).await?;
    wait::until("the drain to have failed", secs(60), || async {
        let metrics = keeper.metrics().await?;
        let labels = [("node_name", node.as_str())];
        let series: Vec<_> = metrics.series("upgradeoperator_node_drain_timeout", &labels).collect();
        let [one] = series.as_slice() else {
            anyhow::bail!("{series:?}");
        };
        ensure!(one.value > 0.5 && one.labels.len() == 1, "{one:?}");
        Ok(())
    })
    .await?;
    env.end([keeper]).await
}
