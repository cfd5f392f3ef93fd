//! From Rook's own manager and back, and clusters that are not ours.

use anyhow::{Context, Result, ensure};
use jiff::{Timestamp, Unit};
use k8s_openapi::api::core::v1::ConfigMap;
use k8s_openapi::api::policy::v1::PodDisruptionBudget;
use kube::ResourceExt;
use kube::api::{Api, DeleteParams, Patch, PatchParams, PostParams};
use nodeward_testkit::foreign::{CephKind, Foreign};
use nodeward_testkit::rook::CLUSTER;
use nodeward_testkit::wait;
use nodeward_testkit::workload::Budget;
use serde::de::DeserializeOwned;
use serde_json::{Value, json};

use crate::environment::{DEADLINE, DEFAULT, Environment, SEVERAL_PERIODS};

/// All budgets are as they are, and nothing of ours is written but what is published.
async fn keeps_away(env: &Environment) -> Result<()> {
    let mark = env.plane.audit().mark()?;
    wait::throughout("no write", SEVERAL_PERIODS, || async {
        let writes = env
            .writes_since(mark)?
            .only(|request| request.name != "nodeward-ceph-pdb");
        ensure!(writes.count() == 0, "{:?}", writes.0);
        Ok(())
    })
    .await
}

/// Objects as Rook 1.20 makes them, for a cluster with the failure domain `rack`. They are written after its source: Rook itself
/// does not run here.
macro_rules! rook {
    ($env:expr, $name:literal) => {
        of_rook($env, include_str!(concat!("../../recorded/rook-1.20/", $name, ".json")))
    };
}

async fn of_rook<K: DeserializeOwned>(env: &Environment, text: &str) -> Result<K> {
    let clusters = Foreign::Ceph(CephKind::Cluster).api(&env.client, Some(env.rook.namespace()));
    let uid = clusters.get(CLUSTER).await?.uid().context("no uid")?;
    let filled = text
        .replace("NAMESPACE", env.rook.namespace())
        .replace("UID", &uid)
        .replace("NOW", &Timestamp::now().round(Unit::Second)?.to_string());
    Ok(serde_json::from_str(&filled)?)
}

async fn set_managed_by_rook(env: &Environment, is_managed: bool) -> Result<()> {
    env.rook
        .patch_cluster(json!({"disruptionManagement": {"managePodBudgets": is_managed}}))
        .await
}

fn is_ours(budget: &PodDisruptionBudget) -> bool {
    budget.labels().contains_key("app.kubernetes.io/managed-by")
}

/// Rook's manager was switched off while it blocked around rack-0, whose OSD is away.
#[tokio::test(flavor = "multi_thread")]
async fn leftovers_of_rook_are_taken_over() -> Result<()> {
    let env = Environment::new().await?;
    let (namespace, budgets) = (env.rook.namespace(), env.rook.budgets());
    set_managed_by_rook(&env, true).await?;
    env.drain(0).await?;
    let foreign = Budget::max_unavailable(namespace, "rook-ceph-mon-pdb", 0)
        .of("somebody-else")
        .build()?;
    // The object store has one gateway less than when Rook wrote this.
    let gateway = json!({"spec": {"gateway": {"instances": 1}}});
    env.rook.put(CephKind::ObjectStore, "store", gateway).await?;
    let outgrown = serde_json::from_value(json!({
        "metadata": {"name": "rook-ceph-rgw-store", "namespace": namespace},
        "spec": {"minAvailable": 1, "selector": {"matchLabels": {"rgw": "store"}}},
    }))?;
    for budget in [
        rook!(&env, "pdb-rack-1").await?,
        rook!(&env, "pdb-rack-2").await?,
        foreign,
        outgrown,
    ] {
        budgets.create(&PostParams::default(), &budget).await?;
    }
    let maps: Api<ConfigMap> = Api::namespaced(env.client.clone(), namespace);
    let map: ConfigMap = rook!(&env, "pdbstatemap-draining").await?;
    maps.create(&PostParams::default(), &map).await?;
    env.ceph()
        .command(json!({"prefix": "osd set-group", "flags": "noout", "who": ["rack-0"]}))
        .await?;
    env.rook.patch_cluster(json!({"mon": {"count": 3}})).await?;
    let operator = env.start(json!({})).await?;
    wait::until("what it would do to be published", DEADLINE, || async {
        let state = env.state().await?;
        let preview = json!({"isClosed": true, "exempt": "rack rack-0", "reason": "DomainDown"});
        ensure!(state["preview"] == preview, "{state}");
        Ok(())
    })
    .await?;
    keeps_away(&env).await?;

    set_managed_by_rook(&env, false).await?;
    let closed = || env.is_closed_but_for("rack-0");
    wait::until("Rook's budgets to be ours", DEADLINE, || async {
        closed().await?;
        let budgets = env.osd_budgets().await?;
        let ours = budgets.values().filter(|budget| is_ours(budget)).count();
        ensure!(ours == 3 && budgets.len() == 3, "{:?}", budgets.keys());
        let all = env.budgets().await?;
        ensure!(!all.contains_key("rook-ceph-rgw-store"), "{:?}", all.keys());
        Ok(())
    })
    .await?;
    // Its flag was on the whole rack, and ours is on the host.
    env.noout_is([&env.rook.node_of(0)]).await?;
    wait::throughout("closed", SEVERAL_PERIODS, closed).await?;
    env.bring_back(0).await?;
    env.open().await?;
    env.noout_is([]).await?;
    env.no_records().await?;
    let left = maps.get("rook-ceph-pdbstatemap").await?.data.unwrap_or_default();
    let is_left = ["draining-failure-domain", "set-no-out", "rack-0-noout-last-set-at"]
        .iter()
        .any(|key| left.get(*key).is_some_and(|text| !text.is_empty()));
    ensure!(!is_left, "{left:?}");
    env.condition("ForeignBudget").await?;
    let foreign = budgets.get("rook-ceph-mon-pdb").await?;
    ensure!(
        foreign.owner_references().is_empty() && foreign.metadata.generation == Some(1),
        "{foreign:?}"
    );

    // And back, in the middle of a drain.
    env.drain(0).await?;
    wait::until("a budget of each other rack", DEADLINE, || async {
        let names: Vec<String> = env.osd_budgets().await?.into_keys().collect();
        ensure!(
            names == [DEFAULT, "rook-ceph-osd-rack-rack-1", "rook-ceph-osd-rack-rack-2"],
            "{names:?}"
        );
        Ok(())
    })
    .await?;
    env.noout_is([&env.rook.node_of(0)]).await?;
    set_managed_by_rook(&env, true).await?;
    env.condition("ManagedByRookAgain").await?;
    env.noout_is([]).await?;
    env.no_records().await?;
    closed().await?;
    keeps_away(&env).await?;
    closed().await?;
    // Rook finds all OSDs up, and writes its own budget over ours. It changes nothing but the spec.
    env.bring_back(0).await?;
    let rooks: PodDisruptionBudget = rook!(&env, "pdb-default").await?;
    let mut spec = serde_json::to_value(rooks.spec)?;
    spec["selector"]["matchLabels"] = Value::Null;
    let written = Patch::Merge(json!({ "spec": spec }));
    let written = budgets.patch(DEFAULT, &PatchParams::default(), &written).await?;
    wait::until("Rook's budget to be there alone", DEADLINE, || async {
        let found = env.osd_budgets().await?;
        let is_back = found.len() == 1 && found.values().all(|budget| !is_ours(budget));
        ensure!(is_back, "{found:?}");
        Ok(())
    })
    .await?;
    let left = budgets.get(DEFAULT).await?;
    ensure!(left.metadata.generation == written.metadata.generation, "{left:?}");
    env.is_open().await?;
    env.end([operator]).await
}

#[tokio::test(flavor = "multi_thread")]
async fn deleted_and_external_clusters_get_no_budgets() -> Result<()> {
    let env = Environment::new().await?;
    env.rook.patch_cluster(json!({"external": {"enable": true}})).await?;
    let operator = env.start(json!({})).await?;
    keeps_away(&env).await?;
    ensure!(env.budgets().await?.is_empty(), "{:?}", env.budgets().await?.keys());
    env.rook.patch_cluster(json!({"external": null})).await?;
    env.open().await?;

    // Rook keeps its finalizer until all is gone.
    let clusters = Foreign::Ceph(CephKind::Cluster).api(&env.client, Some(env.rook.namespace()));
    let finalizers = |finalizers: &[&str]| Patch::Merge(json!({"metadata": {"finalizers": finalizers}}));
    let params = PatchParams::default();
    clusters
        .patch(CLUSTER, &params, &finalizers(&["cephcluster.ceph.rook.io"]))
        .await?;
    env.drain(0).await?;
    env.noout_is([&env.rook.node_of(0)]).await?;
    clusters.delete(CLUSTER, &DeleteParams::default()).await?;
    env.noout_is([]).await?;
    env.no_records().await?;
    keeps_away(&env).await?;
    clusters.patch(CLUSTER, &params, &finalizers(&[])).await?;
    wait::until("our budgets to go with the cluster", DEADLINE, || async {
        let budgets = env.budgets().await?;
        ensure!(budgets.is_empty(), "{:?}", budgets.keys());
        Ok(())
    })
    .await?;
    env.end([operator]).await
}

/// Whose the budgets and the OSDs are cannot be told.
#[tokio::test(flavor = "multi_thread")]
async fn two_clusters_of_a_namespace_are_left_alone() -> Result<()> {
    let env = Environment::new().await?;
    let operator = env.start(json!({})).await?;
    env.open().await?;
    env.rook.put(CephKind::Cluster, "second", json!({"spec": {}})).await?;
    wait::until("that to be told", DEADLINE, || async {
        ensure!(operator.log().contains("there are 2 CephClusters"));
        Ok(())
    })
    .await?;
    env.drain(0).await?;
    keeps_away(&env).await?;
    env.is_closed_but_for("rack-0").await?;

    let clusters = Foreign::Ceph(CephKind::Cluster).api(&env.client, Some(env.rook.namespace()));
    clusters.delete("second", &DeleteParams::default()).await?;
    env.noout_is([&env.rook.node_of(0)]).await?;
    env.bring_back(0).await?;
    env.open().await?;
    env.end([operator]).await
}
