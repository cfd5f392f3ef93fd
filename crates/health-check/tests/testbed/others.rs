//! What others have made: another NodeHealthCheck, foreign remediations, leases that nobody needs, the peer.

use anyhow::{Context, Result, ensure};
use jiff::{SignedDuration, Timestamp};
use k8s_openapi::api::coordination::v1::Lease;
use kube::ResourceExt;
use kube::api::{Api, DeleteParams, Patch, PatchParams, PostParams};
use nodeward_testkit::remediator::{Behavior, Family};
use nodeward_testkit::wait::{self, secs};
use serde_json::json;

use crate::environment::{Environment, OwnEnvironment, SOON, micros};

#[tokio::test(flavor = "multi_thread")]
async fn two_checks_remediate_a_node_once() -> Result<()> {
    let env = Environment::new().await?;
    let [a, _b] = env.add_nodes(["a", "b"]).await?;
    let first = env.add_check("first", json!({})).await?;
    let other = env.add_template(Family::FenceAgents, "power-off").await?;
    let second = env.add_check("second", json!({ "remediationTemplate": other })).await?;
    env.lose_heartbeats(&a).await?;
    wait::until("a remediation", SOON, || async {
        let created = env.created(Family::SelfNode)? + env.created(Family::FenceAgents)?;
        ensure!(created > 0, "none");
        Ok(())
    })
    .await?;
    wait::throughout("one remediation", secs(5), || async {
        let created = env.created(Family::SelfNode)? + env.created(Family::FenceAgents)?;
        ensure!(created == 1, "{created} were created");
        Ok(())
    })
    .await?;
    env.recover(&a).await?;
    env.until_at_rest(&first, 2).await?;
    env.until_at_rest(&second, 2).await?;
    env.end([first, second]).await
}

/// Without the annotation for several templates a remediation has the node's name, which another owner may have taken.
#[tokio::test(flavor = "multi_thread")]
async fn foreign_remediations_are_left_alone() -> Result<()> {
    let env = Environment::new().await?;
    let [a, _b] = env.add_nodes(["a", "b"]).await?;
    let kind = Family::SelfNode.template();
    let body = json!({ "spec": { "template": { "spec": { "strategy": "only" } } } });
    kind.put(&env.client, Some(&env.name), "only", body).await?;
    let foreign = json!({ "spec": { "strategy": "by hand" } });
    let remediation = Family::SelfNode.remediation();
    remediation.put(&env.client, Some(&env.name), &a, foreign).await?;
    let changes = json!({ "remediationTemplate": Family::SelfNode.reference(&env.name, "only") });
    let check = env.add_check("main", changes).await?;
    env.lose_heartbeats(&a).await?;
    for about in [&check, &a] {
        let skipped = env.event(about, "RemediationSkipped").await?;
        ensure!(skipped.action.as_deref() == Some("ForeignRemediation"), "{skipped:?}");
    }
    wait::throughout("the foreign remediation", secs(3), || async {
        let now = env.remediations(Family::SelfNode).get(&a).await?;
        ensure!(
            now.data["spec"]["strategy"] == "by hand" && now.owner_references().is_empty(),
            "{now:?}"
        );
        Ok(())
    })
    .await?;
    remediation.delete(&env.client, Some(&env.name), &a).await?;
    wait::until("a remediation of the check's own", SOON, || async {
        let now = env.remediations(Family::SelfNode).get(&a).await?;
        ensure!(now.data["spec"]["strategy"] == "only", "{now:?}");
        Ok(())
    })
    .await?;
    env.recover(&a).await?;
    env.until_at_rest(&check, 2).await?;
    env.end([check]).await
}

#[tokio::test(flavor = "multi_thread")]
async fn expired_leases_of_unknown_checks_are_removed() -> Result<()> {
    let env = Environment::new().await?;
    let [a, b] = env.add_nodes(["a", "b"]).await?;
    env.hold_lease_for(&a, "NodeHealthCheck-of-long-ago", 5).await?;
    env.hold_lease(&b, "somebody-else").await?;
    wait::until("the lease to be gone", SOON, || async {
        let holder = env.lease_holder(&a).await?;
        ensure!(holder.is_none(), "{holder:?}");
        Ok(())
    })
    .await?;
    ensure!(
        env.lease_holder(&b).await?.is_some(),
        "that of another holder is gone, too"
    );
    env.leases()
        .delete(&format!("node-{b}"), &DeleteParams::default())
        .await?;
    env.end([]).await
}

#[tokio::test(flavor = "multi_thread")]
async fn nothing_is_written_while_the_peer_leads() -> Result<()> {
    let name = nodeward_testkit::names::unique("own");
    let peer = format!("{name}-peer");
    let own = OwnEnvironment::named(name, json!({ "peerNamespaces": [peer] })).await?;
    own.plane.namespace(&peer).await?;
    let leases: Api<Lease> = Api::namespaced(own.client.clone(), &peer);
    let lease = json!({
        "metadata": { "name": "e1f13584.medik8s.io" },
        "spec": { "holderIdentity": "node-healthcheck-controller-manager-0", "leaseDurationSeconds": 3600, "renewTime": micros(Timestamp::now()) },
    });
    leases
        .create(&PostParams::default(), &serde_json::from_value(lease)?)
        .await?;
    let [a, _b] = own.add_nodes(["a", "b"]).await?;
    let check = own.add_check("main", json!({})).await?;
    let operator = own.start(json!({ "peer": { "namespaces": [peer] } })).await?;
    own.lose_heartbeats(&a).await?;
    own.gets_none(Family::SelfNode, &a).await?;
    let writes = own
        .requests()?
        .writes()
        .without_leases()
        .only(|request| !matches!(request.resource.as_str(), "events" | "secrets"));
    ensure!(writes.count() == 0, "{:?}", writes.0);
    ensure!(
        operator.log().contains("e1f13584.medik8s.io") || operator.log().contains("peer"),
        "it says nothing of it"
    );
    // It has given its lease back.
    let ended = Patch::Merge(json!({ "spec": { "holderIdentity": null } }));
    leases
        .patch("e1f13584.medik8s.io", &PatchParams::default(), &ended)
        .await?;
    // It looks once a minute, and when it starts.
    operator.process().restart()?;
    own.remediation(Family::SelfNode, &a).await?;
    own.recover(&a).await?;
    own.until_at_rest(&check, 2).await?;
    own.end([operator]).await
}

/// The leader lease went unrenewed: the API server, or all replicas, were away, and what nodes reported meanwhile is unknown.
#[tokio::test(flavor = "multi_thread")]
async fn absence_is_followed_by_a_settling_time() -> Result<()> {
    let own = OwnEnvironment::new(json!({})).await?;
    let [a, _b] = own.add_nodes(["a", "b"]).await?;
    let check = own.add_check("main", json!({})).await?;
    own.not_ready(&a).await?;
    let leases: Api<Lease> = Api::namespaced(own.client.clone(), &own.system);
    let long_ago = micros(Timestamp::now() - SignedDuration::from_mins(10));
    let lease = json!({
        "metadata": { "name": "health-check" },
        "spec": { "holderIdentity": "before", "leaseDurationSeconds": 15, "leaseTransitions": 1, "acquireTime": long_ago, "renewTime": long_ago },
    });
    leases
        .create(&PostParams::default(), &serde_json::from_value(lease)?)
        .await?;
    let began = Timestamp::now();
    let operator = own.start(json!({ "settle": "12s" })).await?;
    own.until_counted(&check, 1, 2).await?;
    let remediation = own.remediation(Family::SelfNode, &a).await?;
    // Times of creation are whole seconds.
    let settled = remediation
        .creation_timestamp()
        .context("no time")?
        .0
        .duration_since(began);
    ensure!(settled.as_secs() >= 11, "only {settled:#} after its start");
    own.recover(&a).await?;
    own.until_at_rest(&check, 2).await?;
    own.end([operator]).await
}

/// Its remediator is not done with the node, whoever has deleted the NodeHealthCheck.
#[tokio::test(flavor = "multi_thread")]
async fn leases_last_while_finalizers_keep_remediations() -> Result<()> {
    let own = OwnEnvironment::new(json!({})).await?;
    let [a, _b] = own.add_nodes(["a", "b"]).await?;
    let check = own.add_check("main", json!({})).await?;
    let operator = own.start(json!({})).await?;
    let remediator = own.remediate(Family::SelfNode, Behavior::NOTHING.keeps_finalizer());
    own.lose_heartbeats(&a).await?;
    own.remediation(Family::SelfNode, &a).await?;
    wait::until("the finalizer", SOON, || async {
        let now = own.remediation(Family::SelfNode, &a).await?;
        ensure!(!now.finalizers().is_empty());
        Ok(())
    })
    .await?;
    own.checks().delete(&check, &DeleteParams::default()).await?;
    wait::until("the remediation to be deleted", SOON, || async {
        let now = own.remediation(Family::SelfNode, &a).await?;
        ensure!(now.metadata.deletion_timestamp.is_some());
        Ok(())
    })
    .await?;
    wait::throughout("the lease", secs(6), || async {
        let holder = own.lease_holder(&a).await?;
        ensure!(holder == Some(format!("NodeHealthCheck-{check}")), "{holder:?}");
        Ok(())
    })
    .await?;
    remediator.release();
    own.until_none(Family::SelfNode).await?;
    wait::until("the lease to be gone", SOON, || async {
        let holder = own.lease_holder(&a).await?;
        ensure!(holder.is_none(), "{holder:?}");
        Ok(())
    })
    .await?;
    own.end([operator]).await
}
