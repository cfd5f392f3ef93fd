//! From Rook's own manager and back, and clusters that are not ours.

use anyhow::{Result, ensure};
use k8s_openapi::api::core::v1::ConfigMap;
use kube::api::{Api, DeleteParams, Patch, PatchParams};
use kube::{ResourceExt, api::PostParams};
use nodeward_testkit::foreign::{CephKind, Foreign};
use nodeward_testkit::rook::CLUSTER;
use nodeward_testkit::wait;
use nodeward_testkit::workload::Budget;
use serde_json::json;

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

#[tokio::test(flavor = "multi_thread")]
async fn leftovers_of_rook_are_taken_over() -> Result<()> {
    let env = Environment::new().await?;
    let namespace = env.rook.namespace();
    let managed_by_rook = |managed: bool| json!({"disruptionManagement": {"managePodBudgets": managed}});
    env.rook.patch_cluster(managed_by_rook(true)).await?;
    // Its manager was switched off while it blocked around rack-0, after that rack was back.
    let blocking = |rack: &str| {
        Budget::max_unavailable(namespace, &format!("{DEFAULT}-rack-{rack}"), 0)
            .selector(json!({"matchLabels": {"topology-location-rack": rack}}))
            .build()
    };
    let foreign = Budget::max_unavailable(namespace, "rook-ceph-mon-pdb", 0)
        .of("somebody-else")
        .build()?;
    for budget in [blocking("rack-1")?, blocking("rack-2")?, foreign] {
        env.rook.budgets().create(&PostParams::default(), &budget).await?;
    }
    let maps: Api<ConfigMap> = Api::namespaced(env.client.clone(), namespace);
    let state = json!({
        "metadata": {"name": "rook-ceph-pdbstatemap"},
        "data": {
            "draining-failure-domain": "rack-0", "set-no-out": "true",
            "rack-0-noout-last-set-at": jiff::Timestamp::now().to_string(),
        },
    });
    maps.create(&PostParams::default(), &serde_json::from_value(state)?)
        .await?;
    env.ceph()
        .command(json!({"prefix": "osd set-group", "flags": "noout", "who": ["rack-0"]}))
        .await?;
    env.rook.patch_cluster(json!({"mon": {"count": 3}})).await?;
    let operator = env.start(json!({})).await?;
    keeps_away(&env).await?;

    env.rook.patch_cluster(managed_by_rook(false)).await?;
    env.open().await?;
    env.noout_is([]).await?;
    env.condition("ForeignBudget").await?;
    let foreign = env.rook.budgets().get("rook-ceph-mon-pdb").await?;
    ensure!(
        foreign.owner_references().is_empty() && foreign.metadata.generation == Some(1),
        "{foreign:?}"
    );

    // And back.
    env.rook.patch_cluster(managed_by_rook(true)).await?;
    wait::until("our label to be gone", DEADLINE, || async {
        let default = env.rook.budgets().get(DEFAULT).await?;
        let label = default.labels().get("app.kubernetes.io/managed-by");
        ensure!(label.is_none(), "{label:?}");
        Ok(())
    })
    .await?;
    keeps_away(&env).await?;
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
