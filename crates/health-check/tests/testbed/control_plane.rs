//! Nodes of the control plane, which are remediated one by one, and only while etcd keeps its quorum.

use anyhow::{Result, ensure};
use jiff::Timestamp;
use kube::ResourceExt;
use kube::api::{DeleteParams, PostParams};
use nodeward_api::label::{EXCLUDE_FROM_REMEDIATION, IS_CONTROL_PLANE_NODE};
use nodeward_api::node_lease;
use nodeward_testkit::fleet::{self, NodeSpec};
use nodeward_testkit::remediator::Family;
use nodeward_testkit::wait;
use nodeward_testkit::{ControlPlane, Options, names};
use serde_json::json;
use tokio::sync::{Mutex, MutexGuard, OnceCell};

use crate::environment::{OwnEnvironment, SOON, micros, prepare};

/// A control plane on which the nodes of these tests are the only ones of the control plane, one test at a time.
pub async fn own_cluster() -> Result<(&'static ControlPlane, MutexGuard<'static, ()>)> {
    static PLANE: OnceCell<ControlPlane> = OnceCell::const_new();
    static TURN: Mutex<()> = Mutex::const_new(());
    let turn = TURN.lock().await;
    let start = || async {
        let plane = ControlPlane::start(Options::default()).await?;
        prepare(&plane).await?;
        anyhow::Ok(plane)
    };
    Ok((PLANE.get_or_try_init(start).await?, turn))
}

/// Nodes of the control plane, each with a label of its own.
pub async fn add_members<const N: usize>(own: &OwnEnvironment, members: [&str; N]) -> Result<[String; N]> {
    let specs = members.map(|member| {
        own.labelled(NodeSpec::control_plane(own.node_name(member)))
            .label("member", member)
    });
    fleet::create(&own.client, specs).await?;
    Ok(members.map(|member| own.node_name(member)))
}

pub async fn remove(own: &OwnEnvironment, members: &[String]) -> Result<()> {
    for member in members {
        own.nodes().delete(member, &DeleteParams::default()).await?;
    }
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn control_plane_nodes_are_remediated_one_by_one() -> Result<()> {
    let (plane, _turn) = own_cluster().await?;
    let own = OwnEnvironment::on(plane, names::unique("own"), json!({})).await?;
    let members = add_members(&own, ["a", "b", "c"]).await?;
    let [a, b, _c] = &members;
    let check = own.add_check("main", json!({})).await?;
    let operator = own.start(json!({})).await?;
    own.lose_heartbeats(a).await?;
    let remediation = own.remediation(Family::SelfNode, a).await?;
    let label = remediation.labels().get(IS_CONTROL_PLANE_NODE).map(String::as_str);
    ensure!(label == Some(""), "{label:?}");
    let lease = own.leases().get(node_lease::CONTROL_PLANE).await?;
    let holder = lease.spec.and_then(|spec| spec.holder_identity);
    ensure!(holder == Some(format!("NodeHealthCheck-{check}/{a}")), "{holder:?}");
    own.not_ready(b).await?;
    own.until_counted(&check, 1, 3).await?;
    own.gets_none(Family::SelfNode, b).await?;
    own.recover(a).await?;
    own.remediation(Family::SelfNode, b).await?;
    own.recover(b).await?;
    own.until_at_rest(&check, 3).await?;
    wait::until("the control plane's lease to be gone", SOON, || async {
        let left = own.leases().get_opt(node_lease::CONTROL_PLANE).await?;
        ensure!(left.is_none(), "{left:?}");
        Ok(())
    })
    .await?;
    remove(&own, &members).await?;
    own.end([operator]).await
}

/// Whichever NodeHealthCheck it is.
#[tokio::test(flavor = "multi_thread")]
async fn control_plane_nodes_of_two_checks_take_turns() -> Result<()> {
    let (plane, _turn) = own_cluster().await?;
    let own = OwnEnvironment::on(plane, names::unique("own"), json!({})).await?;
    let members = add_members(&own, ["a", "b", "c", "d", "e"]).await?;
    let [a, b, ..] = &members;
    let of = |member: &str| json!({ "selector": { "matchLabels": { "member": member } } });
    let other = own.add_template(Family::FenceAgents, "power-off").await?;
    let first = own.add_check("first", of("a")).await?;
    let mut changes = of("b");
    changes["remediationTemplate"] = other;
    let second = own.add_check("second", changes).await?;
    let operator = own.start(json!({})).await?;
    own.lose_heartbeats(a).await?;
    own.remediation(Family::SelfNode, a).await?;
    own.lose_heartbeats(b).await?;
    own.until_counted(&second, 0, 1).await?;
    own.gets_none(Family::FenceAgents, b).await?;
    own.recover(a).await?;
    own.remediation(Family::FenceAgents, b).await?;
    own.recover(b).await?;
    own.until_at_rest(&first, 1).await?;
    own.until_at_rest(&second, 1).await?;
    remove(&own, &members).await?;
    own.end([operator]).await
}

#[tokio::test(flavor = "multi_thread")]
async fn etcd_keeps_its_quorum() -> Result<()> {
    let (plane, _turn) = own_cluster().await?;
    let own = OwnEnvironment::on(plane, names::unique("own"), json!({})).await?;
    let members = add_members(&own, ["a", "b", "c"]).await?;
    let [a, b, c] = &members;
    let check = own.add_check("main", json!({})).await?;
    let operator = own.start(json!({})).await?;
    // It is down, and not remediated.
    fleet::label(&own.client, c, EXCLUDE_FROM_REMEDIATION, Some("true")).await?;
    own.lose_heartbeats(c).await?;
    own.lose_heartbeats(a).await?;
    own.until_counted(&check, 1, 3).await?;
    own.gets_none(Family::SelfNode, a).await?;
    // Of two members none can be spared.
    remove(&own, std::slice::from_ref(c)).await?;
    own.until_counted(&check, 1, 2).await?;
    own.gets_none(Family::SelfNode, a).await?;
    add_members(&own, ["c"]).await?;
    own.remediation(Family::SelfNode, a).await?;
    own.recover(a).await?;
    own.until_at_rest(&check, 3).await?;
    remove(&own, &[a.clone(), b.clone(), c.clone()]).await?;
    own.end([operator]).await
}

/// Whoever has deleted the Nodes need not have removed their members: the two that are left beside `a` are no majority of five.
#[tokio::test(flavor = "multi_thread")]
async fn members_whose_nodes_are_gone_count_as_away() -> Result<()> {
    let (plane, _turn) = own_cluster().await?;
    let own = OwnEnvironment::on(plane, names::unique("own"), json!({})).await?;
    let members = add_members(&own, ["a", "b", "c", "d", "e"]).await?;
    let (a, gone) = (&members[0], &members[3..]);
    let check = own.add_check("main", json!({})).await?;
    let operator = own.start(json!({})).await?;
    own.until_counted(&check, 5, 5).await?;
    remove(&own, gone).await?;
    own.lose_heartbeats(a).await?;
    own.until_counted(&check, 2, 3).await?;
    own.gets_none(Family::SelfNode, a).await?;
    let skipped = own.event(a, "RemediationSkipped").await?;
    ensure!(skipped.action.as_deref() == Some("EtcdQuorumAtRisk"), "{skipped:?}");
    add_members(&own, ["d"]).await?;
    own.remediation(Family::SelfNode, a).await?;
    own.recover(a).await?;
    own.until_at_rest(&check, 4).await?;
    remove(&own, &members[..4]).await?;
    own.end([operator]).await
}

/// drain-lock takes the same lease for a node that it drains.
#[tokio::test(flavor = "multi_thread")]
async fn lease_of_another_holder_keeps_the_control_plane() -> Result<()> {
    let (plane, _turn) = own_cluster().await?;
    let own = OwnEnvironment::on(plane, names::unique("own"), json!({})).await?;
    let members = add_members(&own, ["a", "b", "c"]).await?;
    let [a, b, _c] = &members;
    let check = own.add_check("main", json!({})).await?;
    let operator = own.start(json!({})).await?;
    let now = micros(Timestamp::now());
    let lease = json!({
        "metadata": { "name": node_lease::CONTROL_PLANE },
        "spec": {
            "holderIdentity": format!("NodeDrain-{b}"), "leaseDurationSeconds": 600, "acquireTime": now, "renewTime": now,
        },
    });
    own.leases()
        .create(&PostParams::default(), &serde_json::from_value(lease)?)
        .await?;
    own.lose_heartbeats(a).await?;
    own.until_counted(&check, 2, 3).await?;
    own.gets_none(Family::SelfNode, a).await?;
    let skipped = own.event(a, "RemediationSkipped").await?;
    ensure!(skipped.action.as_deref() == Some("ControlPlaneNodeAway"), "{skipped:?}");
    let lease = own.leases().get(node_lease::CONTROL_PLANE).await?;
    let holder = lease.spec.and_then(|spec| spec.holder_identity);
    ensure!(holder == Some(format!("NodeDrain-{b}")), "{holder:?}");
    own.leases()
        .delete(node_lease::CONTROL_PLANE, &DeleteParams::default())
        .await?;
    own.remediation(Family::SelfNode, a).await?;
    own.recover(a).await?;
    own.until_at_rest(&check, 3).await?;
    remove(&own, &members).await?;
    own.end([operator]).await
}

/// The view stands still while another node of the control plane goes down: what counts is what is read.
#[tokio::test(flavor = "multi_thread")]
async fn stale_views_do_not_tell_the_quorum() -> Result<()> {
    let (plane, _turn) = own_cluster().await?;
    let own = OwnEnvironment::on(plane, names::unique("own"), json!({})).await?;
    let members = add_members(&own, ["a", "b", "c"]).await?;
    let [a, b, _c] = &members;
    // Longer than it takes until the other one is down.
    let lasting = json!([{ "type": "Ready", "status": "Unknown", "duration": "20s" }]);
    let check = own.add_check("main", json!({ "unhealthyConditions": lasting })).await?;
    let operator = own.start(json!({})).await?;
    own.lose_heartbeats(a).await?;
    own.until_counted(&check, 2, 3).await?;
    own.proxy.freeze().await?;
    own.not_ready(b).await?;
    own.until_status(&check, "an etcd at risk", |status| {
        status.reason.contains("etcd may lose its quorum")
    })
    .await?;
    let created = own.created(Family::SelfNode)?;
    ensure!(created == 0, "{created} were created");
    own.recover(b).await?;
    own.remediation(Family::SelfNode, a).await?;
    own.proxy.thaw();
    own.recover(a).await?;
    own.until_at_rest(&check, 3).await?;
    remove(&own, &members).await?;
    own.end([operator]).await
}
