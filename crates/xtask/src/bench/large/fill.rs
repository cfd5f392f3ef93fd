//! Fills a control plane with the objects of a large cluster.

use anyhow::Result;
use kube::Client;
use nodeward_testkit::Options;
use nodeward_testkit::progress::Progress;
use serde_json::json;

use super::size::{self, Size};
use super::{load, nodes, pods};

/// Pods get no ServiceAccount and nodes no taint for being new, so the controllers for those can stay off.
const ADMISSION_OFF: &str = "--disable-admission-plugins=ServiceAccount,TaintNodesByCondition,LimitRanger,ResourceQuota,PodSecurity,RuntimeClass";

/// A control plane for so many objects: budgets are counted, nodes are never found silent, nothing else runs.
pub fn options() -> Options {
    let needed = ["disruption-controller", "serviceaccount-controller"];
    Options {
        controllers: needed.map(String::from).to_vec(),
        apiserver_flags: vec![ADMISSION_OFF.to_owned()],
        ..Options::scale()
    }
}

/// How many objects were made.
pub struct Made {
    pub pods: usize,
    pub budgets: usize,
}

/// Creates namespaces, nodes, leases, budgets and pods.
pub async fn fill(client: &Client, size: Size, progress: &Progress) -> Result<Made> {
    let namespaces = pods::namespaces(size).map(|name| {
        (
            "/api/v1/namespaces".to_owned(),
            json!({ "apiVersion": "v1", "kind": "Namespace", "metadata": { "name": name } }),
        )
    });
    load::create(client, progress, "namespaces", namespaces).await?;
    let nodes = (0..size.nodes).map(|node| ("/api/v1/nodes".to_owned(), nodes::node(node)));
    load::create(client, progress, "nodes", nodes).await?;
    let leases = (size::played().end..size.nodes).map(|node| {
        (
            "/apis/coordination.k8s.io/v1/namespaces/kube-node-lease/leases".to_owned(),
            nodes::lease(node),
        )
    });
    load::create(client, progress, "leases", leases).await?;
    let budgets = pods::budgets(size).map(|(namespace, budget)| {
        (
            format!("/apis/policy/v1/namespaces/{namespace}/poddisruptionbudgets"),
            budget,
        )
    });
    let budgets = load::create(client, progress, "budgets", budgets).await?;
    let pods = pods::pods(size).map(|(namespace, pod)| (format!("/api/v1/namespaces/{namespace}/pods"), pod));
    let pods = load::create(client, progress, "pods", pods).await?;
    Ok(Made { pods, budgets })
}
