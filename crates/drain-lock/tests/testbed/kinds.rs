//! The kinds that drain-lock serves, where they are not there yet.

use anyhow::{Result, ensure};
use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition;
use kube::ResourceExt;
use kube::api::{Api, DeleteParams};
use nodeward_api::node_drain::Phase;
use nodeward_testkit::bulk;
use nodeward_testkit::wait::{self, secs};
use serde_json::json;

use crate::environment::{Environment, Lock, spec};

#[tokio::test(flavor = "multi_thread")]
async fn missing_kinds_keep_it_unready_until_they_appear() -> Result<()> {
    let nodes = ["n1", "n2"];
    let env = Environment::new(&nodes).await?;
    env.add_pinned("a", &nodes).await?;
    let kinds: Api<CustomResourceDefinition> = Api::all(env.client.clone());
    let ours = nodeward_api::crd::drain_lock();
    for kind in &ours {
        kinds.delete(&kind.name_any(), &DeleteParams::default()).await?;
    }
    wait::until("the kinds to be gone", secs(60), || async {
        for kind in &ours {
            ensure!(kinds.get_opt(&kind.name_any()).await?.is_none(), "{}", kind.name_any());
        }
        Ok(())
    })
    .await?;
    let lock = Lock::of(spec(&json!({})).start(&env.plane).await?);
    wait::throughout("it waits", secs(3), || async {
        ensure!(lock.process().is_running(), "it has ended");
        ensure!(lock.ready(secs(0)).await.is_err(), "it is ready");
        Ok(())
    })
    .await?;
    bulk::create(&env.client, ours).await?;
    lock.ready(secs(90)).await?;
    env.drain("n1", json!({})).await?;
    env.phase("n1", Phase::Drained, secs(60)).await?;
    env.uncordon("n1").await?;
    env.released("n1", secs(60)).await?;
    env.end([lock]).await
}
