//! One watch stands still while the others go on: what it does not show is read before anything rests on its absence.

use anyhow::{Context, Result, ensure};
use kube::ResourceExt;
use nodeward_api::node_drain::Phase;
use nodeward_testkit::fleet;
use nodeward_testkit::proxy::{Fault, Proxy, Rule, Verb};
use nodeward_testkit::wait::{self, secs};
use serde_json::json;

use crate::environment::{Environment, spec};

const NODES: [&str; 3] = ["n1", "n2", "n3"];

/// From now on these resources cannot be watched: what is known of them stands still.
fn hang(proxy: &Proxy, resources: &'static [&'static str]) {
    let rule = Rule::new(Fault::Status(500, "InternalError"))
        .verbs([Verb::Watch])
        .when(|request| resources.contains(&request.resource.as_str()));
    proxy.inject(rule);
    proxy.drop_watches();
}

/// Waits until the object was read by itself.
async fn read(proxy: &Proxy, resource: &str, name: &str) -> Result<()> {
    wait::until(format!("{resource}/{name} to be read"), secs(60), || async {
        let reads = proxy.count(|record| {
            let request = &record.request;
            request.verb == Verb::Get && request.resource == resource && request.name == name
        });
        ensure!(reads > 0, "never");
        Ok(())
    })
    .await
}

#[tokio::test(flavor = "multi_thread")]
async fn lagging_leader_leaves_unseen_drains_alone() -> Result<()> {
    let env = Environment::new(&NODES).await?;
    env.add_pinned("a", &NODES).await?;
    let proxy = Proxy::start(&env.plane).await?;
    let first = env.run(spec(&json!({})).identity("first")).await?;
    env.leads("first").await?;
    let second = env
        .run(spec(&json!({})).identity("second").through(&proxy.url()))
        .await?;
    hang(&proxy, &["nodedrains"]);
    env.drain("n1", json!({})).await?;
    env.phase("n1", Phase::Drained, secs(60)).await?;
    first.process().kill();
    read(&proxy, "nodedrains", "n1").await?;
    wait::throughout("the drain stands", secs(5), || async {
        ensure!(
            fleet::cordon_taint(&env.nodes().get("n1").await?).is_some(),
            "uncordoned"
        );
        let claim = env.claim("n1").await?.context("no claim")?;
        ensure!(!claim.holds.is_empty(), "its disruption is freed: {claim:?}");
        Ok(())
    })
    .await?;
    proxy.heal();
    env.uncordon("n1").await?;
    env.released("n1", secs(90)).await?;
    env.end([second]).await
}

#[tokio::test(flavor = "multi_thread")]
async fn unseen_cordon_does_not_cancel_the_drain() -> Result<()> {
    let env = Environment::new(&NODES).await?;
    env.add_pinned("a", &NODES).await?;
    let proxy = Proxy::start(&env.plane).await?;
    let lock = env.run(spec(&json!({})).through(&proxy.url())).await?;
    hang(&proxy, &["nodes"]);
    fleet::cordon(&env.client, "n1").await?;
    let drain = env.drain("n1", json!({ "evict": "Requester" })).await?;
    read(&proxy, "nodes", "n1").await?;
    wait::throughout("it stands", secs(5), || async {
        let present = env.drains().get("n1").await?;
        ensure!(
            present.uid() == drain.uid() && present.metadata.deletion_timestamp.is_none(),
            "called off"
        );
        Ok(())
    })
    .await?;
    proxy.heal();
    env.phase("n1", Phase::Draining, secs(60)).await?;
    env.uncordon("n1").await?;
    env.released("n1", secs(60)).await?;
    env.end([lock]).await
}
