//! What is there while nothing happens.

use anyhow::{Context, Result, ensure};
use k8s_openapi::apimachinery::pkg::util::intstr::IntOrString;
use kube::ResourceExt;
use nodeward_testkit::foreign::CephKind;
use nodeward_testkit::wait;
use serde_json::json;

use crate::environment::{DEADLINE, Environment, SEVERAL_PERIODS};

/// What a budget allows: its `maxUnavailable` or its `minAvailable`.
async fn limits(env: &Environment, name: &str) -> Result<Option<(Option<IntOrString>, Option<IntOrString>)>> {
    let budgets = env.budgets().await?;
    let Some(budget) = budgets.get(name) else {
        return Ok(None);
    };
    let spec = budget.spec.clone().context("no spec")?;
    Ok(Some((spec.max_unavailable, spec.min_available)))
}

async fn becomes(
    env: &Environment,
    name: &str,
    max_unavailable: Option<i32>,
    min_available: Option<i32>,
) -> Result<()> {
    let expected = Some((
        max_unavailable.map(IntOrString::Int),
        min_available.map(IntOrString::Int),
    ));
    let expected = expected.filter(|limits| *limits != (None, None));
    wait::until(format!("{name} to be {expected:?}"), DEADLINE, || async {
        let limits = limits(env, name).await?;
        ensure!(limits == expected, "{limits:?}");
        Ok(())
    })
    .await
}

#[tokio::test(flavor = "multi_thread")]
async fn budgets_follow_daemon_counts_and_rest() -> Result<()> {
    let env = Environment::new().await?;
    let operator = env.start(json!({})).await?;
    env.open().await?;
    let default = env.rook.budgets().get("rook-ceph-osd").await?;
    ensure!(
        default.labels().get("nodeward.dev/force-drain").map(String::as_str) == Some("never"),
        "{:?}",
        default.labels()
    );
    ensure!(
        default
            .owner_references()
            .iter()
            .any(|owner| owner.kind == "CephCluster"),
        "{:?}",
        default.owner_references()
    );

    let gateways = |instances: u32| json!({"spec": {"gateway": {"instances": instances}}});
    let servers = |active: u32, standby: bool| json!({"spec": {"metadataServer": {"activeCount": active, "activeStandby": standby}}});
    env.rook.put(CephKind::ObjectStore, "store", gateways(3)).await?;
    env.rook.put(CephKind::Filesystem, "fs", servers(1, true)).await?;
    let mirrors = json!({"spec": {"count": 2}});
    env.rook.put(CephKind::RBDMirror, "mirror", mirrors).await?;
    let nfs_servers = json!({"spec": {"server": {"active": 2}}});
    env.rook.put(CephKind::NFS, "exports", nfs_servers).await?;
    let daemons = json!({"mon": {"count": 3}, "mgr": {"count": 2}});
    env.rook.patch_cluster(daemons).await?;
    becomes(&env, "rook-ceph-mgr-pdb", Some(1), None).await?;
    becomes(&env, "rook-ceph-rbd-mirror-pdb", Some(1), None).await?;
    becomes(&env, "rook-ceph-nfs-exports", Some(1), None).await?;
    becomes(&env, "rook-ceph-rgw-store", None, Some(2)).await?;
    becomes(&env, "rook-ceph-mds-fs", None, Some(1)).await?;
    becomes(&env, "rook-ceph-mon-pdb", Some(1), None).await?;
    // They scale.
    env.rook.put(CephKind::ObjectStore, "store", gateways(5)).await?;
    env.rook.put(CephKind::Filesystem, "fs", servers(1, false)).await?;
    env.rook.patch_cluster(json!({"mon": {"count": 5}})).await?;
    becomes(&env, "rook-ceph-rgw-store", None, Some(4)).await?;
    becomes(&env, "rook-ceph-mds-fs", None, None).await?;
    becomes(&env, "rook-ceph-mon-pdb", Some(2), None).await?;
    env.rook
        .patch_cluster(json!({"mon": {"count": 1}, "mgr": {"count": 1}}))
        .await?;
    for name in ["rook-ceph-mon-pdb", "rook-ceph-mgr-pdb"] {
        becomes(&env, name, None, None).await?;
    }

    // After what it still tells of the last change.
    wait::until("rest", DEADLINE, || async {
        let mark = env.plane.audit().mark()?;
        wait::throughout("no request", SEVERAL_PERIODS, || async {
            let requests = env.requests_since(mark)?.without_leases().without_watches();
            ensure!(requests.count() == 0, "{:?}", requests.0);
            Ok(())
        })
        .await
    })
    .await?;
    env.is_open().await?;
    env.end([operator]).await
}
