//! The chart rendered without access to the cluster and applied again and again, as Argo CD and Flux do.

use std::collections::BTreeMap;
use std::fs;

use anyhow::{Context, Result, ensure};
use k8s_openapi::api::admissionregistration::v1::ValidatingWebhookConfiguration;
use kube::api::{Api, Patch, PatchParams};
use nodeward_testkit::ControlPlane;
use nodeward_testkit::names::unique;
use serde_json::{Value, json};

use crate::{CEPH_NAMESPACE, CHART, LEASES_NAMESPACE, helm, shared, values_file};

/// What operators and controllers of the cluster write into the objects (the webhook's certificate, replicas, rules of an
/// aggregated role) is neither taken away nor reported as a difference.
#[tokio::test]
async fn applying_twice_changes_nothing() -> Result<()> {
    let (plane, namespace) = shared("gitops").await?;
    plane.namespace(&namespace).await?;
    let release = unique("gitops");
    let file = values_file(&json!({
        // The kinds belong to another test's release.
        "crds": { "enabled": false },
        "commonLabels": { "team": "nodes" },
        "networkPolicy": { "enabled": true },
        "monitoring": { "dashboards": { "enabled": true } },
        "drainKeeper": { "enabled": true, "leases": { "rbac": "create" } },
        "drainLock": { "enabled": true, "medik8sLease": { "rbac": "create" }, "fleetLock": { "enabled": true } },
        "healthCheck": { "enabled": true, "leases": { "create": "never" } },
        "cephPdb": { "enabled": true, "namespaceRoles": "create" },
    }));
    let values = file.path().to_str().context("no UTF-8")?;
    let text = helm(&[
        "template",
        &release,
        CHART,
        "--namespace",
        &namespace,
        "--values",
        values,
    ])?;
    for needed in [CEPH_NAMESPACE, LEASES_NAMESPACE] {
        ensure!(text.contains(&format!("namespace: {needed}")), "nothing in {needed}");
    }
    let directory = tempfile::tempdir()?;
    let manifest = directory.path().join("all.yaml");
    fs::write(&manifest, text)?;
    let manifest = manifest.to_str().context("no UTF-8")?;

    apply(plane, manifest)?;
    let webhooks: Api<ValidatingWebhookConfiguration> = Api::all(plane.client().await?);
    let name = format!("{release}-nodeward-drain-lock");
    let published = json!([{ "op": "add", "path": "/webhooks/0/clientConfig/caBundle", "value": "bm9uZQ==" }]);
    let published = Patch::Json::<()>(serde_json::from_value(published)?);
    webhooks.patch(&name, &PatchParams::default(), &published).await?;

    let before = versions(plane, manifest)?;
    ensure!(before.len() > 40, "only {} objects", before.len());
    apply(plane, manifest)?;
    let after = versions(plane, manifest)?;
    for (object, spec) in &before {
        ensure!(
            after.get(object) == Some(spec),
            "{object} has changed:\n{spec}\n{:?}",
            after.get(object)
        );
    }
    let webhook = webhooks.get(&name).await?.webhooks.unwrap_or_default();
    ensure!(
        webhook[0].client_config.ca_bundle.is_some(),
        "the certificate to trust is gone"
    );
    let mut difference = plane.kubectl();
    difference.args(["diff", "--server-side", "--filename", manifest]);
    let difference = difference.output()?;
    ensure!(
        difference.status.success(),
        "{}",
        String::from_utf8_lossy(&difference.stdout)
    );
    let mut delete = plane.kubectl();
    delete.args(["delete", "--wait=false", "--filename", manifest]);
    ensure!(delete.output()?.status.success(), "the objects cannot be deleted");
    Ok(())
}

fn apply(plane: &ControlPlane, manifest: &str) -> Result<()> {
    let mut kubectl = plane.kubectl();
    kubectl.args(["apply", "--server-side", "--filename", manifest]);
    let output = kubectl.output()?;
    ensure!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    Ok(())
}

/// Each object without what its controller reports and without who wrote it when.
fn versions(plane: &ControlPlane, manifest: &str) -> Result<BTreeMap<String, Value>> {
    let mut kubectl = plane.kubectl();
    kubectl.args(["get", "--output=json", "--filename", manifest]);
    let output = kubectl.output()?;
    ensure!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let list: Value = serde_json::from_slice(&output.stdout)?;
    let objects = list["items"].as_array().context("no list")?;
    let without_reports = objects.iter().map(|object| {
        let mut object = object.clone();
        let metadata = &mut object["metadata"];
        let name = format!("{} {} {}", metadata["uid"], metadata["namespace"], metadata["name"]);
        for field in ["resourceVersion", "managedFields"] {
            metadata[field] = Value::Null;
        }
        object["status"] = Value::Null;
        (name, object)
    });
    Ok(without_reports.collect())
}
