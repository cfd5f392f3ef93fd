//! A topology on the cluster: put there, put back as it was between runs, taken away.

use std::time::Duration;

use anyhow::{Context, Result, ensure};
use k8s_openapi::api::apps::v1::{Deployment, StatefulSet};
use k8s_openapi::api::coordination::v1::Lease;
use k8s_openapi::api::core::v1::{Node, Pod};
use k8s_openapi::api::policy::v1::PodDisruptionBudget;
use kube::api::{Api, DeleteParams, ListParams, PostParams};
use kube::core::Request;
use kube::{Client, ResourceExt};
use nodeward_testkit::fleet::{self, NodeSpec};
use nodeward_testkit::workload::{self, Budget, PodTemplate, Start, TERMINATES};
use nodeward_testkit::{bulk, unless_gone, wait};
use serde_json::{Value, json};

use super::topology::{App, Topology};
use crate::maintenance::POD_INDEX;

/// Where all pods are.
pub const NAMESPACE: &str = "bench";

const WITHIN: Duration = Duration::from_mins(2);

/// A topology that stands on the cluster.
pub struct Stage<'a> {
    client: Client,
    pub topology: &'a Topology,
}

impl<'a> Stage<'a> {
    /// Creates the nodes; they have no pods yet.
    pub async fn set(client: &Client, topology: &'a Topology) -> Result<Self> {
        let nodes = topology.nodes.iter();
        fleet::create(client, nodes.map(|node| NodeSpec::worker(&node.name).cpus(node.room))).await?;
        Ok(Self {
            client: client.clone(),
            topology,
        })
    }

    /// All apps as at first: each pod where the topology has it, Ready, and known to its budget.
    pub async fn put_back(&self) -> Result<()> {
        self.clear().await?;
        // While all are cordoned the scheduler leaves the pods alone, and each can be bound to its own node.
        bulk::each(self.nodes(), |node| fleet::cordon(&self.client, node)).await?;
        for app in &self.topology.apps {
            self.create(app).await?;
        }
        for app in &self.topology.apps {
            self.bind(app).await?;
        }
        bulk::each(self.nodes(), |node| fleet::uncordon(&self.client, node)).await?;
        for app in &self.topology.apps {
            workload::ready_pods(&self.client, NAMESPACE, &app.name, app.nodes.len(), WITHIN).await?;
            workload::disruptions_allowed(&self.client, NAMESPACE, &app.name, app.max_unavailable, WITHIN).await?;
        }
        Ok(())
    }

    /// Takes the nodes away, and all that is on them.
    pub async fn strike(self) -> Result<()> {
        self.clear().await?;
        let nodes: Api<Node> = Api::all(self.client.clone());
        let leases: Api<Lease> = Api::namespaced(self.client.clone(), "kube-node-lease");
        let (nodes, leases, params) = (&nodes, &leases, &DeleteParams::default());
        bulk::each(self.nodes(), |node| async move {
            nodes.delete(node, params).await?;
            unless_gone(leases.delete(node, params).await)
        })
        .await
        .map(drop)
    }

    fn nodes(&self) -> impl Iterator<Item = &str> {
        self.topology.nodes.iter().map(|node| node.name.as_str())
    }

    async fn create(&self, app: &App) -> Result<()> {
        let pods = PodTemplate::new()
            .start(Start::Ready(app.time_to_ready))
            .end(TERMINATES)
            .spec("containers", containers());
        let (held, movable) = app.nodes.split_at(app.pinned);
        if !held.is_empty() {
            let pods = pods.clone().pinned(&app.name, held);
            let set = pods.stateful_set(NAMESPACE, &app.name, u32::try_from(held.len())?)?;
            bulk::create_one(self.client.clone(), set).await?;
        }
        if !movable.is_empty() {
            let deployment = pods.deployment(NAMESPACE, &app.name, u32::try_from(movable.len())?)?;
            bulk::create_one(self.client.clone(), deployment).await?;
        }
        let budget = Budget::max_unavailable(NAMESPACE, &app.name, app.max_unavailable).of(&app.name);
        bulk::create_one(self.client.clone(), budget.build()?).await.map(drop)
    }

    /// Binds each pod of the app to a node, as a scheduler does. A controller that has yet to learn that the app before was
    /// deleted may still make a pod of it, which is deleted again: only pods that stay are bound.
    async fn bind(&self, app: &App) -> Result<()> {
        let pods: Api<Pod> = Api::namespaced(self.client.clone(), NAMESPACE);
        let of_app = ListParams::default().labels(&format!("app={}", app.name));
        wait::until(format!("the pods of {} to be bound", app.name), WITHIN, || async {
            let made = pods.list(&of_app).await?.items;
            ensure!(made.len() == app.nodes.len(), "{} of {}", made.len(), app.nodes.len());
            let is_going = made.iter().any(|pod| pod.metadata.deletion_timestamp.is_some());
            ensure!(!is_going, "one is being deleted");
            let node_of = |pod: &Pod| pod.spec.as_ref().and_then(|spec| spec.node_name.clone());
            let taken: Vec<String> = made.iter().filter_map(node_of).collect();
            let (held, movable) = app.nodes.split_at(app.pinned);
            for (nodes, is_pinned) in [(held, true), (movable, false)] {
                let free = nodes.iter().filter(|node| !taken.contains(node));
                let unbound = made
                    .iter()
                    .filter(|pod| node_of(pod).is_none() && pod.labels().contains_key(POD_INDEX) == is_pinned);
                for (pod, node) in unbound.zip(free) {
                    self.bind_to(&pod.name_any(), node).await?;
                }
            }
            Ok(())
        })
        .await
    }

    async fn bind_to(&self, pod: &str, node: &str) -> Result<()> {
        let binding = json!({
            "apiVersion": "v1", "kind": "Binding",
            "metadata": { "name": pod },
            "target": { "apiVersion": "v1", "kind": "Node", "name": node },
        });
        let path = format!("/api/v1/namespaces/{NAMESPACE}/pods/{pod}/binding");
        let request = Request::new(path).create(&PostParams::default(), serde_json::to_vec(&binding)?)?;
        let bound = self.client.request_text(request).await;
        bound.map(drop).with_context(|| format!("bind {pod} to {node}"))
    }

    /// No workload, budget or pod is left.
    async fn clear(&self) -> Result<()> {
        let (all, now) = (ListParams::default(), DeleteParams::default().grace_period(0));
        let client = || self.client.clone();
        let deployments: Api<Deployment> = Api::namespaced(client(), NAMESPACE);
        deployments.delete_collection(&DeleteParams::background(), &all).await?;
        let sets: Api<StatefulSet> = Api::namespaced(client(), NAMESPACE);
        sets.delete_collection(&DeleteParams::background(), &all).await?;
        let budgets: Api<PodDisruptionBudget> = Api::namespaced(client(), NAMESPACE);
        budgets.delete_collection(&DeleteParams::default(), &all).await?;
        let pods: Api<Pod> = Api::namespaced(self.client.clone(), NAMESPACE);
        // A controller may have made one more before it knew.
        wait::until("all pods to be gone", WITHIN, || async {
            pods.delete_collection(&now, &all).await?;
            let left = pods.list_metadata(&all).await?.items.len();
            ensure!(left == 0, "{left} are left");
            Ok(())
        })
        .await
    }
}

/// One CPU each: a node with `room` for so many pods has as many.
fn containers() -> Value {
    json!([{
        "name": "main",
        "image": "registry.example/app:1",
        "resources": { "requests": { "cpu": "1" } },
    }])
}
