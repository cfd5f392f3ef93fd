//! Consent to what a drain destroys, asked for as `kubectl drain` asks: pods that nothing makes again, and data in emptyDir
//! volumes.

use k8s_openapi::api::core::v1::Pod;
use kube::Api;
use nodeward_api::NodeDrain;
use nodeward_core::drain_request::has_requester;
use nodeward_core::pod::PodView;

use crate::args::DrainArgs;
use crate::cluster::Cluster;
use crate::describe;
use crate::failure::Failure;
use crate::fetch::Reader;

/// Pods that are named.
const NAMED: usize = 5;

/// What would be lost with the pods of one node.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
struct Losses {
    /// Pods that no controller makes again.
    unmanaged: Vec<String>,
    /// Pods with emptyDir volumes.
    empty_dir: Vec<String>,
}

impl Losses {
    /// Of the pods that a drain evicts: one that stays, is waited for, has ended or terminates already loses nothing by it.
    fn of(pods: &[Pod]) -> Self {
        let mut losses = Self::default();
        for pod in pods.iter().filter_map(PodView::project) {
            let is_evicted = !pod.mirror
                && !pod.is_daemon()
                && !pod.is_finished()
                && pod.deletion.is_none()
                && pod.opt_out().is_none();
            if !is_evicted {
                continue;
            }
            if pod.owner.is_none() {
                losses.unmanaged.push(pod.key.to_string());
            }
            if pod.has_empty_dir {
                losses.empty_dir.push(pod.key.to_string());
            }
        }
        losses
    }

    /// Why the drain is not requested; `None` with consent to all that would be lost.
    fn refusal(&self, node: &str, args: &DrainArgs) -> Option<String> {
        let mut why = Vec::new();
        if !args.force && !self.unmanaged.is_empty() {
            let pods = describe::first(&self.unmanaged, NAMED);
            why.push(format!(
                "no controller makes these pods again: {pods} (--force evicts them)"
            ));
        }
        if !args.delete_emptydir_data && !self.empty_dir.is_empty() {
            let pods = describe::first(&self.empty_dir, NAMED);
            why.push(format!(
                "these pods lose the data of their emptyDir volumes: {pods} (--delete-emptydir-data evicts them)"
            ));
        }
        (!why.is_empty()).then(|| format!("node {node}: {}; nothing was requested", why.join("; ")))
    }
}

/// Fails where the drain would evict what the caller has not consented to. A drain that they have requested before goes on.
pub async fn require(cluster: &Cluster, node: &str, requester: &str, args: &DrainArgs) -> Result<(), Failure> {
    if args.force && args.delete_emptydir_data {
        return Ok(());
    }
    let drains: Api<NodeDrain> = Api::all(cluster.client.clone());
    let drain = cluster.ask(drains.get_opt(node)).await?;
    if drain.is_some_and(|drain| has_requester(&drain, requester)) {
        return Ok(());
    }
    let mut reader = Reader::new(cluster);
    let pods = reader.all_pods_on(node).await?;
    match Losses::of(&pods).refusal(node, args) {
        Some(refusal) => Err(Failure::Other(refusal)),
        None => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use clap::Parser;
    use rstest::rstest;
    use serde_json::{Value, json};

    use super::*;
    use crate::args::{Command, CommandLine};

    fn pod(metadata: &Value, empty_dir: bool) -> Pod {
        let mut pod = json!({
            "metadata": { "namespace": "shop", "name": "p" },
            "spec": { "containers": [], "nodeName": "node-1", "volumes": [] },
            "status": { "phase": "Running" },
        });
        for (key, value) in metadata.as_object().unwrap() {
            pod["metadata"][key] = value.clone();
        }
        if empty_dir {
            pod["spec"]["volumes"] = json!([{ "name": "v", "emptyDir": {} }]);
        }
        serde_json::from_value(pod).unwrap()
    }

    fn owned_by(kind: &str) -> Value {
        json!({ "ownerReferences": [{ "apiVersion": "apps/v1", "kind": kind, "name": "o", "uid": "u", "controller": true }] })
    }

    fn args(flags: &str) -> DrainArgs {
        let words = ["kubectl-nodeward", "drain", "node-1"].into_iter();
        match CommandLine::parse_from(words.chain(flags.split_whitespace())).command {
            Command::Drain(args) => args,
            other => panic!("{other:?}"),
        }
    }

    #[rstest]
    #[case::bare(json!({}), false, "", Some("--force"))]
    #[case::bare_with_consent(json!({}), false, "--force", None)]
    #[case::empty_dir(owned_by("ReplicaSet"), true, "", Some("--delete-emptydir-data"))]
    #[case::empty_dir_with_consent(owned_by("ReplicaSet"), true, "--delete-emptydir-data", None)]
    #[case::force_is_no_consent_to_data(json!({}), true, "--force", Some("--delete-emptydir-data"))]
    #[case::managed_without_data(owned_by("ReplicaSet"), false, "", None)]
    #[case::daemon(owned_by("DaemonSet"), true, "", None)]
    #[case::mirror(json!({ "annotations": { "kubernetes.io/config.mirror": "m" } }), true, "", None)]
    #[case::stays(json!({ "labels": { "nodeward.dev/drain": "skip" } }), true, "", None)]
    #[case::terminating(json!({ "deletionTimestamp": "2026-01-01T00:00:00Z" }), true, "", None)]
    fn evictions_that_destroy_need_consent(
        #[case] metadata: Value,
        #[case] empty_dir: bool,
        #[case] flags: &str,
        #[case] missing: Option<&str>,
    ) {
        let refusal = Losses::of(&[pod(&metadata, empty_dir)]).refusal("node-1", &args(flags));
        match (&refusal, missing) {
            (None, None) => (),
            (Some(refusal), Some(flag)) => assert!(refusal.contains(flag) && refusal.contains("shop/p"), "{refusal}"),
            _ => panic!("{refusal:?}"),
        }
    }

    #[test]
    fn finished_pod_needs_no_consent() {
        let mut finished = pod(&json!({}), true);
        finished.status.as_mut().unwrap().phase = Some("Succeeded".to_owned());
        assert_eq!(Losses::of(&[finished]), Losses::default());
    }
}
