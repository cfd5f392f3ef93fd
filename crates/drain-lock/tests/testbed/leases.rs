//! The node lease of medik8s.

use anyhow::{Result, ensure};
use jiff::Timestamp;
use k8s_openapi::api::coordination::v1::Lease;
use kube::api::{Api, DeleteParams, PostParams};
use nodeward_api::node_drain::Phase;
use nodeward_api::reason::LockReason;
use nodeward_testkit::proxy::{Fault, Proxy, Rule, Verb};
use nodeward_testkit::wait::{self, secs};
use serde_json::json;

use crate::environment::{Environment, grant, spec};

const NODES: [&str; 3] = ["n1", "n2", "n3"];
const NAMESPACE: &str = "medik8s-leases";

/// A lease that another program has.
fn theirs(name: &str) -> Result<Lease> {
    let lease = json!({
        "metadata": { "name": name },
        "spec": { "holderIdentity": "self-node-remediation", "leaseDurationSeconds": 600,
            "renewTime": Timestamp::now().strftime("%Y-%m-%dT%H:%M:%S.%6fZ").to_string() },
    });
    Ok(serde_json::from_value(lease)?)
}

#[tokio::test(flavor = "multi_thread")]
async fn foreign_lease_is_awaited_taken_and_released() -> Result<()> {
    let env = Environment::new(&NODES).await?;
    env.plane.namespace(NAMESPACE).await?;
    // The right to its leases is granted where the namespace exists.
    grant(&env.plane, json!({})).await?;
    env.add_pinned("a", &NODES).await?;
    let leases: Api<Lease> = Api::namespaced(env.client.clone(), NAMESPACE);
    leases.create(&PostParams::default(), &theirs("node-n1")?).await?;
    let lock = env.start(json!({ "medik8sLease": { "enabled": true } })).await?;
    env.drain("n1", json!({})).await?;
    env.status_that("n1", "to wait for the lease", secs(60), |status| {
        status
            .blocked_by
            .iter()
            .any(|blocked| blocked.reason == LockReason::LeaseHeldByOther)
    })
    .await?;
    ensure!(env.pods_on("n1").await?.len() == 1, "its pod was evicted");
    leases.delete("node-n1", &DeleteParams::default()).await?;
    env.phase("n1", Phase::Drained, secs(60)).await?;
    let ours = leases.get("node-n1").await?.spec.and_then(|spec| spec.holder_identity);
    ensure!(ours.as_deref() == Some("nodeward-drain-lock"), "{ours:?}");
    env.delete_drain("n1").await?;
    env.released("n1", secs(60)).await?;
    ensure!(leases.get_opt("node-n1").await?.is_none(), "the lease is held");
    env.end([lock]).await
}

#[tokio::test(flavor = "multi_thread")]
async fn a_drain_that_is_overdue_gives_its_lease_back() -> Result<()> {
    let env = Environment::new(&NODES).await?;
    env.plane.namespace(NAMESPACE).await?;
    // The right to its leases is granted where the namespace exists.
    grant(&env.plane, json!({})).await?;
    env.add_pinned("a", &NODES).await?;
    let leases: Api<Lease> = Api::namespaced(env.client.clone(), NAMESPACE);
    let lock = env.start(json!({ "medik8sLease": { "enabled": true } })).await?;
    env.drain("n1", json!({ "deadlines": { "drain": "20s", "recover": "3s" } }))
        .await?;
    env.phase("n1", Phase::Drained, secs(60)).await?;
    ensure!(leases.get_opt("node-n1").await?.is_some(), "no lease");
    env.phase("n1", Phase::Suspect, secs(90)).await?;
    wait::until("the lease to be given back", secs(60), || async {
        ensure!(leases.get_opt("node-n1").await?.is_none(), "held");
        Ok(())
    })
    .await?;
    env.end([lock]).await
}

#[tokio::test(flavor = "multi_thread")]
async fn brief_forbidden_answers_keep_leases_in_use() -> Result<()> {
    let env = Environment::new(&NODES).await?;
    env.plane.namespace(NAMESPACE).await?;
    // The right to its leases is granted where the namespace exists.
    grant(&env.plane, json!({})).await?;
    env.add_pinned("a", &NODES).await?;
    let leases: Api<Lease> = Api::namespaced(env.client.clone(), NAMESPACE);
    leases.create(&PostParams::default(), &theirs("node-n2")?).await?;
    let proxy = Proxy::start(&env.plane).await?;
    let config = json!({ "medik8sLease": { "enabled": true } });
    let lock = env.run(spec(&config).through(&proxy.url())).await?;
    let forbidden = || Rule::new(Fault::Status(403, "Forbidden")).uri_contains(NAMESPACE);
    proxy.inject(forbidden().verbs([Verb::Create]).times(2));
    proxy.inject(forbidden().verbs([Verb::Watch]).times(6));
    proxy.drop_watches();
    env.drain("n1", json!({})).await?;
    env.phase("n1", Phase::Drained, secs(60)).await?;
    let ours = leases.get("node-n1").await?.spec.and_then(|spec| spec.holder_identity);
    ensure!(ours.as_deref() == Some("nodeward-drain-lock"), "{ours:?}");
    env.uncordon("n1").await?;
    env.released("n1", secs(60)).await?;
    env.drain("n2", json!({})).await?;
    env.status_that("n2", "to wait for the lease", secs(60), |status| {
        status
            .blocked_by
            .iter()
            .any(|blocked| blocked.reason == LockReason::LeaseHeldByOther)
    })
    .await?;
    ensure!(env.pods_on("n2").await?.len() == 1, "its pod was evicted");
    env.end([lock]).await
}
