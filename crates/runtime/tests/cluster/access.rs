//! Users without rights, and objects to look at.

use anyhow::Result;
use k8s_openapi::api::core::v1::ConfigMap;
use k8s_openapi::api::rbac::v1::{ClusterRole, ClusterRoleBinding};
use kube::api::{DeleteParams, Patch, PatchParams};
use kube::{Api, Client, Resource};
use nodeward_testkit::kubernetes::Kubernetes;
use nodeward_testkit::{ControlPlane, bulk};
use serde::Serialize;
use serde::de::DeserializeOwned;
use serde_json::{Value, json};

/// A client that acts as `user`, who has only the rights of every authenticated user.
pub async fn client_as(plane: &ControlPlane, user: &str) -> Result<Client> {
    let mut config = plane.config().await?;
    config.auth_info.impersonate = Some(user.to_owned());
    config.auth_info.impersonate_groups = Some(vec!["system:authenticated".to_owned()]);
    Ok(Client::try_from(config)?)
}

/// Lets `user` read the resource everywhere.
pub async fn allow_reading(admin: &Client, user: &str, group: &str, resource: &str) -> Result<()> {
    let role: ClusterRole = serde_json::from_value(json!({
        "metadata": {"name": user},
        "rules": [{"apiGroups": [group], "resources": [resource], "verbs": ["get", "list", "watch"]}],
    }))?;
    let binding: ClusterRoleBinding = serde_json::from_value(json!({
        "metadata": {"name": user},
        "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": user},
        "subjects": [{"apiGroup": "rbac.authorization.k8s.io", "kind": "User", "name": user}],
    }))?;
    bulk::create_one(admin.clone(), role).await?;
    bulk::create_one(admin.clone(), binding).await?;
    Ok(())
}

/// Creates or changes a ConfigMap.
pub async fn put(client: &Client, namespace: &str, name: &str, data: Value) -> Result<()> {
    let config_map = json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": name}, "data": data});
    apply::<ConfigMap>(&Api::namespaced(client.clone(), namespace), name, &config_map).await
}

/// Deletes a ConfigMap.
pub async fn remove(client: &Client, namespace: &str, name: &str) -> Result<()> {
    let config_maps: Api<ConfigMap> = Api::namespaced(client.clone(), namespace);
    config_maps.delete(name, &DeleteParams::default()).await?;
    Ok(())
}

async fn apply<K>(api: &Api<K>, name: &str, object: &Value) -> Result<()>
where
    K: Resource + Clone + DeserializeOwned + Serialize + std::fmt::Debug,
{
    api.patch(name, &PatchParams::apply("test").force(), &Patch::Apply(object))
        .await?;
    Ok(())
}

/// The requests that a cache needs beyond its watch before it is full: Kubernetes 1.33 does not stream lists unless its API
/// server is told to. It refuses the watch that asks for one, and is then asked for the list.
pub fn requests_to_list() -> Result<usize> {
    Ok(match Kubernetes::from_environment()?.minor() {
        "1.33" => 2,
        _ => 0,
    })
}
