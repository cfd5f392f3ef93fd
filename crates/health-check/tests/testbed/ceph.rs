//! What ceph-pdb publishes keeps a second failure domain up, for as long as ceph-pdb lives.

use anyhow::{Result, ensure};
use jiff::{SignedDuration, Timestamp};
use k8s_openapi::api::coordination::v1::Lease;
use k8s_openapi::api::core::v1::ConfigMap;
use k8s_openapi::api::events::v1::Event;
use kube::api::{Api, ListParams, Patch, PatchParams};
use nodeward_testkit::remediator::Family;
use nodeward_testkit::wait::{self, secs};
use nodeward_testkit::{ControlPlane, names};
use serde_json::{Value, json};

use crate::environment::{OwnEnvironment, SOON, micros};

#[tokio::test(flavor = "multi_thread")]
async fn second_ceph_domain_waits_for_the_first() -> Result<()> {
    let name = names::unique("own");
    let (rook, system) = (format!("{name}-rook"), format!("{name}-system"));
    ControlPlane::shared().await.namespace(&rook).await?;
    let own = OwnEnvironment::named(name, json!({ "ceph": { "namespaces": [rook] } })).await?;
    let [a, b, _c] = own.add_nodes(["a", "b", "c"]).await?;
    let check = own.add_check("main", json!({})).await?;
    // ceph-pdb has died.
    renew_lease(&own, &system, Timestamp::now() - SignedDuration::from_mins(2), 15).await?;
    let lease = json!({ "namespace": system, "name": "ceph-pdb" });
    let state = json!({
        "cluster": "rook", "leaderLease": lease, "disruptions": "Closed", "since": Timestamp::now().to_string(),
        "reason": "AwaitingStopCheck", "failureDomainType": "rack", "downOsds": { "x": [0] }, "nodes": { &a: ["x"], &b: ["y"] },
    });
    publish(&own, &rook, &state).await?;
    let operator = own.start(json!({ "ceph": { "namespaces": [rook] } })).await?;

    own.lose_heartbeats(&b).await?;
    let told = skipped(&own, &b, "CephStateUnknown").await?;
    ensure!(
        told.contains(&format!("nobody renews lease {system}/ceph-pdb")),
        "{told}"
    );
    own.gets_none(Family::SelfNode, &b).await?;

    // It runs again, and says what it said before. health-check begins anew, too, and so looks at once.
    renew_lease(&own, &system, Timestamp::now(), 3600).await?;
    operator.stop(SOON).await?;
    let operator = own.start(json!({ "ceph": { "namespaces": [rook] } })).await?;
    let told = skipped(&own, &b, "CephDomainDown").await?;
    ensure!(
        told.contains("the node has OSDs of rack y, and rack x is down"),
        "{told}"
    );
    own.lose_heartbeats(&a).await?;
    own.remediation(Family::SelfNode, &a).await?;
    own.gets_none(Family::SelfNode, &b).await?;

    own.recover(&a).await?;
    publish(
        &own,
        &rook,
        &json!({ "disruptions": "Open", "reason": "AllClean", "downOsds": null }),
    )
    .await?;
    own.remediation(Family::SelfNode, &b).await?;
    own.recover(&b).await?;
    own.until_at_rest(&check, 3).await?;
    let refused = own.requests()?.only(|request| request.code == 403);
    ensure!(refused.count() == 0, "the chart grants too little: {:?}", refused.0);
    own.end([operator]).await
}

/// Changes what is published, as a merge patch does.
async fn publish(own: &OwnEnvironment, namespace: &str, change: &Value) -> Result<()> {
    let maps: Api<ConfigMap> = Api::namespaced(own.client.clone(), namespace);
    let known = maps.get_opt("nodeward-ceph-pdb").await?.and_then(|map| map.data);
    let mut state: Value = match known.and_then(|data| data.get("state").cloned()) {
        Some(text) => serde_json::from_str(&text)?,
        None => json!({}),
    };
    for (field, value) in change.as_object().into_iter().flatten() {
        match value {
            Value::Null => drop(state.as_object_mut().and_then(|state| state.remove(field))),
            value => state[field] = value.clone(),
        }
    }
    let map = json!({ "apiVersion": "v1", "kind": "ConfigMap", "metadata": { "name": "nodeward-ceph-pdb" }, "data": { "state": state.to_string() } });
    let params = PatchParams::apply("ceph-pdb");
    maps.patch("nodeward-ceph-pdb", &params, &Patch::Apply(map)).await?;
    Ok(())
}

async fn renew_lease(own: &OwnEnvironment, namespace: &str, renewed: Timestamp, seconds: i64) -> Result<()> {
    let leases: Api<Lease> = Api::namespaced(own.client.clone(), namespace);
    let lease = json!({
        "apiVersion": "coordination.k8s.io/v1", "kind": "Lease", "metadata": { "name": "ceph-pdb" },
        "spec": { "holderIdentity": "ceph-pdb-0", "leaseDurationSeconds": seconds, "renewTime": micros(renewed) },
    });
    let params = PatchParams::apply("ceph-pdb");
    leases.patch("ceph-pdb", &params, &Patch::Apply(lease)).await?;
    Ok(())
}

/// Waits until an Event says that the node's remediation is skipped for this reason, and gives its note.
async fn skipped(own: &OwnEnvironment, node: &str, reason: &str) -> Result<String> {
    wait::until(format!("an Event with {reason} about {node}"), secs(60), || async {
        let events: Api<Event> = Api::all(own.client.clone());
        let events = events.list(&ListParams::default()).await?.items;
        let mut notes = events.into_iter().filter_map(|event| {
            let is_about = event.regarding.as_ref()?.name.as_deref()? == node;
            (is_about && event.action.as_deref()? == reason).then_some(event.note?)
        });
        notes.next().ok_or_else(|| anyhow::anyhow!("none"))
    })
    .await
}
