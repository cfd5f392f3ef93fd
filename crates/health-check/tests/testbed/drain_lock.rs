//! Beside drain-lock: both take control-plane nodes out of service, by turns.

use std::collections::BTreeSet;

use anyhow::{Context, Result, ensure};
use kube::ResourceExt;
use kube::api::{Api, DeleteParams, ListParams, PostParams};
use nodeward_api::NodeDrain;
use nodeward_api::node_drain::Phase;
use nodeward_api::node_lease;
use nodeward_api::reason::LockReason;
use nodeward_testkit::operator::{Operator, OperatorSpec};
use nodeward_testkit::remediator::Family;
use nodeward_testkit::wait::{self, secs};
use nodeward_testkit::{fleet, names};
use serde_json::json;

use crate::control_plane::{add_members, own_cluster, remove};
use crate::environment::{OwnEnvironment, SOON};

/// The drain-lock of the same release of the chart.
async fn start_drain_lock(own: &OwnEnvironment) -> Result<Operator> {
    let config = json!({ "medik8sLease": { "enabled": true, "namespace": format!("{}-leases", own.name) } });
    let operator = OperatorSpec::new("drain-lock", &own.system, &format!("{}-nodeward-drain-lock", own.name))
        .config(&config.to_string())
        .arg("--webhook-bind=127.0.0.1:0")
        .start(own.plane)
        .await?;
    operator.ready(secs(60)).await?;
    Ok(operator)
}

fn drains(own: &OwnEnvironment) -> Api<NodeDrain> {
    Api::all(own.client.clone())
}

async fn ask_for_drain(own: &OwnEnvironment, node: &str) -> Result<()> {
    let drain = json!({
        "apiVersion": "nodeward.dev/v1alpha1", "kind": "NodeDrain", "metadata": { "name": node },
        "spec": { "nodeName": node, "requesters": [{ "name": "test" }] },
    });
    drains(own)
        .create(&PostParams::default(), &serde_json::from_value(drain)?)
        .await?;
    Ok(())
}

async fn until_blocked_by(own: &OwnEnvironment, node: &str, reason: LockReason) -> Result<()> {
    wait::until(format!("the drain of {node} to wait: {reason}"), SOON, || async {
        let status = drains(own).get(node).await?.status.context("no status")?;
        ensure!(status.phase == Some(Phase::Scheduled), "{:?}", status.phase);
        let mut reasons = status.blocked_by.iter().map(|blocked| blocked.reason);
        ensure!(reasons.any(|known| known == reason), "{:?}", status.blocked_by);
        Ok(())
    })
    .await
}

async fn until_drained(own: &OwnEnvironment, node: &str) -> Result<()> {
    wait::until(format!("{node} to be drained"), SOON, || async {
        let status = drains(own).get(node).await?.status.context("no status")?;
        ensure!(
            status.phase == Some(Phase::Drained),
            "{:?}: {}",
            status.phase,
            status.message.unwrap_or_default()
        );
        Ok(())
    })
    .await
}

async fn until_the_lease_is_held_by(own: &OwnEnvironment, expected: Option<&str>) -> Result<()> {
    wait::until("the control plane's lease to change hands", SOON, || async {
        let lease = own.leases().get_opt(node_lease::CONTROL_PLANE).await?;
        let holder = lease.and_then(|lease| lease.spec?.holder_identity);
        ensure!(holder.as_deref() == expected, "{holder:?}");
        Ok(())
    })
    .await
}

/// The nodes that are away: those with disruptions or without a pod left to evict, and those with a remediation.
async fn away(own: &OwnEnvironment) -> Result<BTreeSet<String>> {
    let mut away = BTreeSet::new();
    for remediation in own.remediations(Family::SelfNode).list(&ListParams::default()).await? {
        away.insert(nodeward_testkit::remediator::node_of(&remediation));
    }
    for drain in drains(own).list(&ListParams::default()).await? {
        let phase = drain.status.as_ref().and_then(|status| status.phase);
        if matches!(phase, Some(Phase::Granted | Phase::Draining | Phase::Drained)) {
            away.insert(drain.name_any());
        }
    }
    Ok(away)
}

#[tokio::test(flavor = "multi_thread")]
async fn a_drain_and_a_remediation_never_take_two_control_plane_nodes() -> Result<()> {
    let (plane, _turn) = own_cluster().await?;
    let own = OwnEnvironment::on(plane, names::unique("own"), json!({})).await?;
    let members = add_members(&own, ["a", "b", "c"]).await?;
    let [a, b, _] = &members;
    let check = own.add_check("main", json!({})).await?;
    let operator = own.start(json!({})).await?;
    let lock = start_drain_lock(&own).await?;

    // The drain comes first: the failed node waits for it.
    ask_for_drain(&own, a).await?;
    until_drained(&own, a).await?;
    until_the_lease_is_held_by(&own, Some(&format!("nodeward-drain-lock/{a}"))).await?;
    own.lose_heartbeats(b).await?;
    own.until_counted(&check, 2, 3).await?;
    own.gets_none(Family::SelfNode, b).await?;
    ensure!(
        away(&own).await? == BTreeSet::from([a.clone()]),
        "{:?}",
        away(&own).await?
    );

    // The remediation comes first: the drain waits for it.
    drains(&own).delete(a, &DeleteParams::default()).await?;
    own.remediation(Family::SelfNode, b).await?;
    until_the_lease_is_held_by(&own, Some(&format!("NodeHealthCheck-{check}/{b}"))).await?;
    wait::until("the first drain to be gone", SOON, || async {
        ensure!(drains(&own).get_opt(a).await?.is_none(), "it is there");
        Ok(())
    })
    .await?;
    ask_for_drain(&own, a).await?;
    until_blocked_by(&own, a, LockReason::ControlPlaneBusy).await?;
    ask_for_drain(&own, b).await?;
    until_blocked_by(&own, b, LockReason::UnderRemediation).await?;
    ensure!(
        away(&own).await? == BTreeSet::from([b.clone()]),
        "{:?}",
        away(&own).await?
    );

    // Of two drains one goes on when it has ended, and the other when that has been released.
    own.recover(b).await?;
    own.until_none(Family::SelfNode).await?;
    let first = wait::until("one drain to be drained", SOON, || async {
        let away = away(&own).await?;
        ensure!(away.len() < 2, "both are away: {away:?}");
        let first = away.first().context("none is")?.clone();
        let status = drains(&own).get(&first).await?.status.context("no status")?;
        ensure!(status.phase == Some(Phase::Drained), "{:?}", status.phase);
        Ok(first)
    })
    .await?;
    let second = if first == *a { b } else { a };
    until_blocked_by(&own, second, LockReason::ControlPlaneBusy).await?;
    drains(&own).delete(&first, &DeleteParams::default()).await?;
    until_drained(&own, second).await?;
    drains(&own).delete(second, &DeleteParams::default()).await?;
    until_the_lease_is_held_by(&own, None).await?;
    for member in [a, b] {
        fleet::uncordon(&own.client, member).await?;
    }
    remove(&own, &members).await?;
    own.end([operator, lock]).await
}
