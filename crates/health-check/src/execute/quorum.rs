//! Whether what an action rests on still holds: the Node is read by quorum, and "gone" means a 404 there.

use std::sync::Arc;

use k8s_openapi::api::core::v1::{Node, NodeSpec, NodeStatus};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use kube::Api;
use nodeward_core::id::NodeName;
use nodeward_runtime::{ActionResult, ApiError, QuorumReads};

use super::PassContext;
use crate::plan::NodeEvidence;

/// Nodes as they were read by quorum a moment ago; `None`: there is none of the name.
pub type NodeReads = QuorumReads<NodeName, Option<Arc<Node>>>;

/// Why an action is not carried out.
#[derive(Debug)]
pub(super) enum EvidenceError {
    /// What it rests on has changed.
    Changed(String),
    /// It could not be read.
    Unread(ApiError),
}

impl From<EvidenceError> for ActionResult {
    fn from(error: EvidenceError) -> Self {
        match error {
            EvidenceError::Changed(what) => Self::Outdated(what),
            EvidenceError::Unread(error) => Self::Failed(error),
        }
    }
}

/// Reads the Node, and checks that the evidence holds.
pub(super) async fn check(pass: &PassContext, evidence: &NodeEvidence) -> Result<Option<Arc<Node>>, EvidenceError> {
    let name = evidence.name.clone();
    let read = pass.reads.get(name.clone(), pass.planned_at, async {
        let nodes: Api<Node> = Api::all(pass.clients.requests.clone());
        let node = nodes.get_opt(name.as_str()).await?;
        Ok(node.map(|node| Arc::new(reduced(node))))
    });
    let node = read.await.map_err(EvidenceError::Unread)?;
    evidence.check(node.as_deref()).map_err(EvidenceError::Changed)?;
    Ok(node)
}

/// The answer is kept for a second, and hundreds may be asked for at once: of the many kilobytes of a Node, what is read.
fn reduced(node: Node) -> Node {
    let (spec, status) = (node.spec.unwrap_or_default(), node.status.unwrap_or_default());
    Node {
        metadata: ObjectMeta {
            name: node.metadata.name,
            uid: node.metadata.uid,
            ..ObjectMeta::default()
        },
        spec: Some(NodeSpec {
            provider_id: spec.provider_id,
            ..NodeSpec::default()
        }),
        status: Some(NodeStatus {
            conditions: status.conditions,
            ..NodeStatus::default()
        }),
    }
}
