//! A configuration that changes while a node is unhealthy.

use anyhow::{Context, Result, ensure};
use jiff::Timestamp;
use k8s_openapi::api::coordination::v1::Lease;
use kube::api::{Api, PostParams};
use nodeward_testkit::fleet;
use nodeward_testkit::remediator::Family;
use nodeward_testkit::wait;
use serde_json::json;

use crate::environment::{OwnEnvironment, SOON, WHILE, micros};

/// Whoever drains looks in the new namespace, and finds the node taken there.
#[tokio::test(flavor = "multi_thread")]
async fn leases_follow_a_changed_namespace() -> Result<()> {
    let own = OwnEnvironment::new(json!({})).await?;
    let [a, _b] = own.add_nodes(["a", "b"]).await?;
    let check = own.add_check("main", json!({})).await?;
    let operator = own.start(json!({})).await?;
    own.lose_heartbeats(&a).await?;
    own.remediation(Family::SelfNode, &a).await?;
    let held = own.lease_holder(&a).await?;
    ensure!(held == Some(format!("NodeHealthCheck-{check}")), "{held:?}");

    let other = format!("{}-other", own.name);
    own.add_lease_namespace(&other).await?;
    own.reload(&operator, &json!({ "leaseNamespace": other }))?;
    let leases: Api<Lease> = Api::namespaced(own.client.clone(), &other);
    let name = format!("node-{a}");
    wait::until("the lease in the other namespace", SOON, || async {
        let lease = leases.get_opt(&name).await?.context("none")?;
        let holder = lease.spec.and_then(|spec| spec.holder_identity);
        ensure!(holder == held, "{holder:?}");
        Ok(())
    })
    .await?;
    ensure!(own.created(Family::SelfNode)? == 1, "a second remediation");
    own.recover(&a).await?;
    own.until_none(Family::SelfNode).await?;
    wait::until("the lease to be given back", SOON, || async {
        ensure!(leases.get_opt(&name).await?.is_none());
        Ok(())
    })
    .await?;
    own.end([operator]).await
}

#[tokio::test(flavor = "multi_thread")]
async fn nodes_are_remediated_by_the_upgrade_signal_of_now() -> Result<()> {
    let own = OwnEnvironment::new(json!({})).await?;
    let [a, _b] = own.add_nodes(["a", "b"]).await?;
    let check = own.add_check("main", json!({})).await?;
    let upgrading = "example.com/upgrading";
    fleet::label(&own.client, &a, upgrading, Some("true")).await?;
    let signal = json!({ "upgradeSignal": { "node": { "label": { "key": upgrading, "value": "true" } } } });
    let operator = own.start(signal).await?;
    own.lose_heartbeats(&a).await?;
    own.until_counted(&check, 1, 2).await?;
    own.gets_none(Family::SelfNode, &a).await?;
    let skipped = own.event(&a, "RemediationSkipped").await?;
    ensure!(skipped.action.as_deref() == Some("ClusterUpgrading"), "{skipped:?}");
    own.reload(&operator, &json!({}))?;
    own.remediation(Family::SelfNode, &a).await?;
    own.recover(&a).await?;
    own.until_at_rest(&check, 2).await?;
    own.end([operator]).await
}

#[tokio::test(flavor = "multi_thread")]
async fn unreadable_upgrade_signal_is_told() -> Result<()> {
    let own = OwnEnvironment::new(json!({})).await?;
    let [a, _b] = own.add_nodes(["a", "b"]).await?;
    let check = own.add_check("main", json!({})).await?;
    let forbidden = json!({ "resource": { "apiVersion": "v1", "kind": "Secret", "when": "true" } });
    let operator = own.start(json!({ "upgradeSignal": forbidden })).await?;
    own.lose_heartbeats(&a).await?;
    let skipped = own.event(&a, "RemediationSkipped").await?;
    ensure!(skipped.action.as_deref() == Some("UpgradeSignalUnknown"), "{skipped:?}");
    ensure!(
        skipped.note.as_deref().is_some_and(|note| note.contains("forbidden")),
        "{skipped:?}"
    );
    own.gets_none(Family::SelfNode, &a).await?;
    own.recover(&a).await?;
    own.until_at_rest(&check, 2).await?;
    own.end([operator]).await
}

/// The peer begins to lead while a remediation runs: what it began is the peer's from then on, and comes back afterwards.
#[tokio::test(flavor = "multi_thread")]
async fn peer_that_takes_over_stops_every_write() -> Result<()> {
    let own = OwnEnvironment::new(json!({})).await?;
    let peer = format!("{}-peer", own.name);
    own.plane.namespace(&peer).await?;
    let [a, _b] = own.add_nodes(["a", "b"]).await?;
    let check = own.add_check("main", json!({})).await?;
    let operator = own.start(json!({ "peer": { "namespaces": [] } })).await?;
    own.lose_heartbeats(&a).await?;
    own.remediation(Family::SelfNode, &a).await?;
    let leases: Api<Lease> = Api::namespaced(own.client.clone(), &peer);
    let lease = json!({
        "metadata": { "name": "e1f13584.medik8s.io" },
        "spec": {
            "holderIdentity": "node-healthcheck-controller-manager-0", "leaseDurationSeconds": 3600,
            "renewTime": micros(Timestamp::now()),
        },
    });
    leases
        .create(&PostParams::default(), &serde_json::from_value(lease)?)
        .await?;
    own.reload(&operator, &json!({ "peer": { "namespaces": [peer] } }))?;
    wait::until("it to see the peer", SOON, || async {
        ensure!(operator.log().contains("nothing is written beside it"));
        Ok(())
    })
    .await?;
    own.recover(&a).await?;
    wait::throughout("the remediation", WHILE, || async {
        let left = own.remediations_of(Family::SelfNode, &a).await?;
        ensure!(
            left.iter().any(|left| left.metadata.deletion_timestamp.is_none()),
            "it is deleted beside the peer"
        );
        Ok(())
    })
    .await?;
    own.reload(&operator, &json!({ "peer": { "namespaces": [] } }))?;
    own.until_at_rest(&check, 2).await?;
    own.end([operator]).await
}

/// Nothing is started without leases, and the log says what is missing.
#[tokio::test(flavor = "multi_thread")]
async fn missing_lease_namespace_is_named_until_it_exists() -> Result<()> {
    let own = OwnEnvironment::new(json!({})).await?;
    let [a, _b] = own.add_nodes(["a", "b"]).await?;
    let check = own.add_check("main", json!({})).await?;
    own.lose_heartbeats(&a).await?;
    let missing = format!("{}-missing", own.name);
    let operator = own.spec(&json!({ "leaseNamespace": missing })).start(own.plane).await?;
    wait::until("the missing namespace in the log", SOON, || async {
        ensure!(
            operator
                .log()
                .contains(&format!("if {missing} does not exist, create it"))
        );
        Ok(())
    })
    .await?;
    own.gets_none(Family::SelfNode, &a).await?;
    own.add_lease_namespace(&missing).await?;
    own.remediation(Family::SelfNode, &a).await?;
    own.recover(&a).await?;
    own.until_counted(&check, 2, 2).await?;
    own.end([operator]).await
}
