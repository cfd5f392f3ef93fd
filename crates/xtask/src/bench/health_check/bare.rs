//! The requests of remediations without an operator: as fast as this API server answers them here.

use anyhow::{Context, Result};
use jiff::Timestamp;
use k8s_openapi::api::coordination::v1::Lease;
use k8s_openapi::api::core::v1::Node;
use kube::Client;
use kube::api::{Api, DeleteParams, DynamicObject, ListParams, Patch, PatchParams, PostParams};
use nodeward_testkit::bulk;
use nodeward_testkit::remediator::{Family, NODE_NAME};
use serde_json::{Value, json};
use tokio::time::Instant;

use super::meter::{health_checks, millis};
use super::{NAME, NAMESPACE};
use crate::bench::figures::Distribution;
use crate::bench::fleet::nodes::micros;
use crate::bench::fleet::size::node_name;

/// The namespace of the leases, which the operator has made.
const LEASES: &str = "medik8s-leases";

struct Requests {
    client: Client,
    template: Value,
}

/// How long it takes from the first request to the remediation of each node, in milliseconds: of each alone, and of so many
/// at once.
pub async fn measure(
    client: &Client,
    template: &Value,
    singles: usize,
    at_once: &[usize],
) -> Result<Vec<Distribution>> {
    let requests = Requests {
        client: client.clone(),
        template: template.clone(),
    };
    // What the operator had no time to give back.
    let all = ListParams::default();
    requests
        .leases()
        .delete_collection(&DeleteParams::default(), &all)
        .await?;
    let mut alone = Vec::new();
    for node in 0..singles {
        alone.extend(requests.remediate(node..node + 1).await?);
    }
    let mut measured = vec![Distribution::of(&alone)];
    for count in at_once {
        measured.push(Distribution::of(&requests.remediate(0..*count).await?));
    }
    Ok(measured)
}

impl Requests {
    /// One status write, and for each node GET, lease and remediation; cleaned up afterwards.
    async fn remediate(&self, nodes: std::ops::Range<usize>) -> Result<Vec<f64>> {
        let began = Instant::now();
        let entries: Vec<Value> = nodes.clone().map(|node| self.status_entry(&node_name(node))).collect();
        self.write_status(entries).await?;
        let created = bulk::each(nodes.clone(), |node| self.create(node_name(node))).await?;
        bulk::each(nodes, |node| self.delete(node_name(node))).await?;
        self.write_status(Vec::new()).await?;
        Ok(created.into_iter().map(|moment| millis(began, moment)).collect())
    }

    async fn write_status(&self, entries: Vec<Value>) -> Result<()> {
        let patch = Patch::Merge(json!({ "status": { "phase": "Remediating", "unhealthyNodes": entries } }));
        health_checks(&self.client)
            .patch_status(NAME, &PatchParams::default(), &patch)
            .await
            .context("write the status")?;
        Ok(())
    }

    fn status_entry(&self, node: &str) -> Value {
        let kind = Family::SelfNode.remediation().resource();
        json!({
            "name": node,
            "remediations": [{
                "resource": { "apiVersion": kind.api_version, "kind": kind.kind, "name": node, "namespace": NAMESPACE },
                "started": Timestamp::now().strftime("%Y-%m-%dT%H:%M:%SZ").to_string(),
                "templateName": self.template["name"],
            }],
        })
    }

    async fn create(&self, node: String) -> Result<Instant> {
        let nodes: Api<Node> = Api::all(self.client.clone());
        let read = nodes.get(&node).await?;
        let lease = json!({
            "metadata": {
                "name": format!("node-{node}"),
                "ownerReferences": [{ "apiVersion": "v1", "kind": "Node", "name": node, "uid": read.metadata.uid }],
            },
            "spec": {
                "holderIdentity": format!("NodeHealthCheck-{NAME}"), "leaseDurationSeconds": 660, "leaseTransitions": 0,
                "acquireTime": micros(Timestamp::now()), "renewTime": micros(Timestamp::now()),
            },
        });
        self.leases()
            .create(&PostParams::default(), &serde_json::from_value(lease)?)
            .await?;
        let kind = Family::SelfNode.remediation().resource();
        let remediation = json!({
            "apiVersion": kind.api_version, "kind": kind.kind,
            "metadata": {
                "name": node,
                "labels": { "app.kubernetes.io/part-of": "node-healthcheck-controller" },
                "annotations": { NODE_NAME: node, "remediation.medik8s.io/template-name": self.template["name"] },
            },
            "spec": { "strategy": "reboot" },
        });
        self.remediations()
            .create(&PostParams::default(), &serde_json::from_value(remediation)?)
            .await?;
        Ok(Instant::now())
    }

    async fn delete(&self, node: String) -> Result<()> {
        let now = DeleteParams::default();
        self.remediations().delete(&node, &now).await?;
        self.leases().delete(&format!("node-{node}"), &now).await?;
        Ok(())
    }

    fn leases(&self) -> Api<Lease> {
        Api::namespaced(self.client.clone(), LEASES)
    }

    fn remediations(&self) -> Api<DynamicObject> {
        Family::SelfNode.remediation().api(&self.client, Some(NAMESPACE))
    }
}
