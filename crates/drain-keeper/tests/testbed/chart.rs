//! The chart, with the operator that it is for.

use anyhow::{Result, ensure};
use k8s_openapi::api::core::v1::{ConfigMap, ServiceAccount};
use k8s_openapi::api::rbac::v1::{ClusterRole, ClusterRoleBinding, Role, RoleBinding};
use kube::Resource;
use kube::api::{Api, ListParams};
use nodeward_testkit::workload;
use serde::de::DeserializeOwned;
use serde_json::json;

use crate::environment::{Environment, managed};

async fn names<K>(api: Api<K>, release: &str) -> Result<Vec<String>>
where
    K: Resource<DynamicType = ()> + Clone + DeserializeOwned + std::fmt::Debug,
{
    let of_the_release = ListParams::default().labels(&format!("app.kubernetes.io/instance={release}"));
    let found = api.list_metadata(&of_the_release).await?.items.into_iter();
    Ok(found
        .filter_map(|object| object.metadata.name)
        .map(|name| format!("{} {name}", K::kind(&())))
        .collect())
}

/// Everything that carries the release's label.
async fn installed(env: &Environment<'_>) -> Result<Vec<String>> {
    let (client, release) = (env.client.clone(), env.release.name());
    Ok([
        names::<ClusterRole>(Api::all(client.clone()), release).await?,
        names::<ClusterRoleBinding>(Api::all(client.clone()), release).await?,
        names::<Role>(Api::all(client.clone()), release).await?,
        names::<RoleBinding>(Api::all(client.clone()), release).await?,
        names::<ServiceAccount>(Api::all(client.clone()), release).await?,
        names::<ConfigMap>(Api::all(client), release).await?,
    ]
    .concat())
}

#[tokio::test(flavor = "multi_thread")]
async fn uninstall_leaves_no_objects_and_no_lease() -> Result<()> {
    let env = Environment::new().await?;
    let node = env.add_cordoned_node("a").await?;
    let [pod] = env.add_pods([("web", managed(&node))]).await?;
    let keeper = env.start(json!({})).await?;
    workload::gone(&env.client, &pod, nodeward_testkit::wait::secs(60)).await?;
    let installed_now = installed(&env).await?;
    ensure!(installed_now.len() >= 6, "{installed_now:?}");
    keeper.stop(nodeward_testkit::wait::secs(60)).await?;
    env.release.uninstall(env.plane).await?;
    let left = installed(&env).await?;
    ensure!(left.is_empty(), "{left:?}");
    ensure!(env.lease_holder("drain-keeper").await?.is_none(), "the lease is held");
    env.end([]).await
}
