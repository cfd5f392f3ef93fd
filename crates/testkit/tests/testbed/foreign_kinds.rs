//! Kinds of other systems come, change and go while the cluster runs.

use anyhow::{Result, ensure};
use jiff::Timestamp;
use nodeward_testkit::ControlPlane;
use nodeward_testkit::foreign::{self, Foreign};
use serde_json::json;

/// One test for all: the kinds belong to the whole cluster.
#[tokio::test(flavor = "multi_thread")]
async fn foreign_kinds_accept_nonsense_and_removal() -> Result<()> {
    let client = ControlPlane::shared().await.client().await?;
    // Other tests use the other kinds meanwhile.
    let kinds = [
        Foreign::UpgradeConfig,
        Foreign::MachineConfigPool,
        Foreign::ClusterVersion,
    ];
    for kind in kinds {
        kind.install(&client).await?;
        kind.install(&client).await?;
    }
    let now = Timestamp::now();
    let configs = Foreign::UpgradeConfig;
    let stored = configs
        .put(
            &client,
            Some("default"),
            "upgrade",
            foreign::upgrade_config("4.20.1", "Upgrading", now, 60),
        )
        .await?;
    ensure!(
        stored.data["status"]["history"][0]["phase"] == "Upgrading",
        "{:?}",
        stored.data
    );
    let nonsense = json!({"spec": {"PDBForceDrainTimeout": "soon", "desired": 7}, "status": {"history": "none"}});
    let stored = configs.put(&client, Some("default"), "upgrade", nonsense).await?;
    ensure!(
        stored.data["status"] == json!({"history": "none"}) && stored.data["spec"]["desired"] == 7,
        "{:?}",
        stored.data
    );
    ensure!(
        stored.data["spec"].get("upgradeAt").is_none(),
        "what is put replaces what was: {:?}",
        stored.data
    );
    configs.delete(&client, Some("default"), "upgrade").await?;

    let pool = Foreign::MachineConfigPool
        .put(&client, None, "worker", foreign::machine_config_pool("worker", 3, 1))
        .await?;
    ensure!(pool.data["status"]["updatedMachineCount"] == 1, "{:?}", pool.data);
    let version = Foreign::ClusterVersion
        .put(&client, None, "version", foreign::cluster_version(true, now))
        .await?;
    ensure!(
        version.data["status"]["conditions"][0]["status"] == "True",
        "{:?}",
        version.data
    );
    for kind in kinds {
        kind.remove(&client).await?;
    }
    Ok(())
}
