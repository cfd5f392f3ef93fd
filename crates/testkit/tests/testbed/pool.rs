//! A control plane that another test has used is as it was before that one.

use anyhow::{Result, bail, ensure};
use k8s_openapi::api::core::v1::{ConfigMap, Namespace};
use kube::api::{Api, Patch, PatchParams};
use nodeward_testkit::{ControlPlane, Options, Pool, bulk};
use serde_json::json;

static PLANES: Pool = Pool::new(1);

fn config_map(name: &str, finalizers: &[&str]) -> Result<ConfigMap> {
    let metadata = json!({ "name": name, "namespace": "default", "finalizers": finalizers });
    Ok(serde_json::from_value(
        json!({ "metadata": metadata, "data": { "is": "as before" } }),
    )?)
}

#[tokio::test(flavor = "multi_thread")]
async fn used_control_plane_is_as_it_was_prepared() -> Result<()> {
    let prepare = async |plane: &ControlPlane| {
        bulk::create(&plane.client().await?, [config_map("kept", &[])?])
            .await
            .map(drop)
    };
    let used = PLANES.get(Options::default(), prepare).await?;
    let (url, client) = (used.url(), used.client().await?);
    let config_maps: Api<ConfigMap> = Api::namespaced(client.clone(), "default");
    let change = Patch::Merge(json!({ "data": { "is": "changed" } }));
    config_maps.patch("kept", &PatchParams::default(), &change).await?;
    bulk::create(&client, [config_map("stuck", &["example.com/stuck"])?]).await?;
    used.namespace("left").await?;
    drop(used);

    let again = async |_: &ControlPlane| bail!("it is prepared twice");
    let used = PLANES.get(Options::default(), again).await?;
    ensure!(used.url() == url, "it is another one");
    let kept = config_maps.get("kept").await?;
    ensure!(kept.data == config_map("kept", &[])?.data, "{kept:?}");
    ensure!(config_maps.get_opt("stuck").await?.is_none(), "its finalizer keeps it");
    let namespaces: Api<Namespace> = Api::all(client);
    ensure!(namespaces.get_opt("left").await?.is_none(), "the namespace is there");
    Ok(())
}
