//! What nobody has written: the selector, and the whole NodeHealthCheck.

use anyhow::{Context, Result, ensure};
use k8s_openapi::api::core::v1::ConfigMap;
use kube::api::{Api, DeleteParams};
use nodeward_testkit::fleet::{self, NodeSpec};
use nodeward_testkit::remediator::Family;
use nodeward_testkit::wait::{self, secs};
use nodeward_testkit::{ControlPlane, Options, names};
use serde_json::json;
use tokio::sync::OnceCell;

use crate::environment::{OwnEnvironment, SOON, prepare};

/// Resolved once, and written down: what the cluster looks like later changes nothing.
#[tokio::test(flavor = "multi_thread")]
async fn absent_selectors_are_resolved_to_the_workers() -> Result<()> {
    let own = OwnEnvironment::new(json!({})).await?;
    let [a, _b] = own.add_nodes(["a", "b"]).await?;
    let other = own.labelled(NodeSpec::new(own.node_name("other")));
    fleet::create(&own.client, [other]).await?;
    let check = own.add_check("main", json!({ "selector": null })).await?;
    let operator = own.start(json!({})).await?;
    own.until_counted(&check, 2, 2).await?;
    let selector = own.checks().get(&check).await?.spec.selector.context("no selector")?;
    let selector = serde_json::to_value(selector)?;
    let workers = json!({ "matchExpressions": [{ "key": "node-role.kubernetes.io/worker", "operator": "Exists" }] });
    ensure!(selector == workers, "{selector}");
    own.lose_heartbeats(&a).await?;
    own.remediation(Family::SelfNode, &a).await?;
    own.recover(&a).await?;
    own.until_at_rest(&check, 2).await?;
    // Every kubelet renews a lease each ten seconds: those of all namespaces are none of its business.
    let everywhere = own.requests()?;
    let everywhere = everywhere.only(|request| request.resource == "leases" && request.namespace.is_empty());
    ensure!(everywhere.count() == 0, "{:?}", everywhere.0);
    own.end([operator]).await
}

/// A control plane without any NodeHealthCheck. Its operator sees all of it, for what it creates has no label of a test.
async fn empty_cluster() -> Result<&'static ControlPlane> {
    static PLANE: OnceCell<ControlPlane> = OnceCell::const_new();
    let start = || async {
        let plane = ControlPlane::start(Options::default()).await?;
        prepare(&plane).await?;
        anyhow::Ok(plane)
    };
    PLANE.get_or_try_init(start).await
}

#[tokio::test(flavor = "multi_thread")]
async fn default_check_is_created_once() -> Result<()> {
    let plane = empty_cluster().await?;
    let name = names::unique("own");
    let default = json!({
        "enabled": true,
        "remediationTemplate": Family::SelfNode.reference(&name, "reboot"),
    });
    let own = OwnEnvironment::on(plane, name.clone(), json!({ "default": default })).await?;
    own.add_template(Family::SelfNode, "reboot").await?;
    own.add_nodes(["a", "b", "c"]).await?;
    let start = || OwnEnvironment::spec_of(&name, &json!({ "default": default })).start(plane);
    let operator = start().await?;
    operator.ready(secs(60)).await?;
    let check = "nodeward-default";
    own.until_counted(check, 3, 3).await?;
    let spec = own.checks().get(check).await?.spec;
    ensure!(spec.selector.is_some() && spec.min_healthy.is_none(), "{spec:?}");
    let records: Api<ConfigMap> = Api::namespaced(own.client.clone(), &own.system);
    wait::until("the record", SOON, || async {
        let record = records
            .get("nodeward-health-check-default")
            .await?
            .data
            .unwrap_or_default();
        ensure!(record.get("state").is_some_and(|state| state == "Done"), "{record:?}");
        Ok(())
    })
    .await?;

    // Whoever deletes it does not want it, and a restart does not bring it back.
    own.checks().delete(check, &DeleteParams::default()).await?;
    operator.process().restart()?;
    operator.ready(secs(60)).await?;
    wait::throughout("no NodeHealthCheck", secs(6), || async {
        ensure!(own.checks().get_opt(check).await?.is_none(), "it is back");
        Ok(())
    })
    .await?;
    own.end([operator]).await
}
