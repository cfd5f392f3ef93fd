//! The emergency stop, as plain kubectl writes it.

use anyhow::Result;
use k8s_openapi::api::core::v1::ConfigMap;
use kube::Client;
use kube::api::{Api, Patch, PatchParams};
use serde_json::{Value, json};

/// Writes the data of the ConfigMap `nodeward-pause`: components and reasons; `null` ends all pauses.
pub async fn write(client: &Client, namespace: &str, data: Value) -> Result<()> {
    let config_maps: Api<ConfigMap> = Api::namespaced(client.clone(), namespace);
    let config_map = json!({
        "apiVersion": "v1", "kind": "ConfigMap", "metadata": { "name": "nodeward-pause" }, "data": data,
    });
    let params = PatchParams::apply("somebody").force();
    config_maps
        .patch("nodeward-pause", &params, &Patch::Apply(config_map))
        .await?;
    Ok(())
}
