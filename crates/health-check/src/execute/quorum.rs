//! Whether what an action rests on still holds: the Node is read by quorum, and "gone" means a 404 there.

use std::sync::Arc;

use k8s_openapi::api::core::v1::{Node, NodeSpec, NodeStatus};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use kube::Api;
use nodeward_api::NodeHealthCheck;
use nodeward_core::id::{NodeName, ResourceVersion};
use nodeward_runtime::{ActionResult, ApiError, QuorumReads};

use super::PassContext;
use crate::plan::{NodeEvidence, StartRemediation};
use crate::snapshot::CheckName;

/// Nodes as they were read by quorum a moment ago; `None`: there is none of the name.
pub type NodeReads = QuorumReads<NodeName, Option<Arc<Node>>>;

/// NodeHealthChecks as they were read by quorum a moment ago; `None`: there is none of the name.
pub type CheckReads = QuorumReads<CheckName, Option<Arc<NodeHealthCheck>>>;

/// What an action rests on was asked, and is not known to hold.
#[derive(Debug)]
pub(super) enum Unmet {
    /// It does not hold, for this reason.
    Refused(String),
    /// There was no answer.
    Failed(ApiError),
}

impl From<ApiError> for Unmet {
    fn from(error: ApiError) -> Self {
        Self::Failed(error)
    }
}

impl From<kube::Error> for Unmet {
    fn from(error: kube::Error) -> Self {
        Self::Failed(error.into())
    }
}

impl From<Unmet> for ActionResult {
    fn from(unmet: Unmet) -> Self {
        match unmet {
            Unmet::Refused(why) => Self::Outdated(why),
            Unmet::Failed(error) => Self::Failed(error),
        }
    }
}

/// Reads the Node, and checks that the evidence holds.
pub(super) async fn check(pass: &PassContext, evidence: &NodeEvidence) -> Result<Option<Arc<Node>>, Unmet> {
    let name = evidence.name.clone();
    let read = pass.reads.get(name.clone(), pass.planned_at, async {
        let nodes: Api<Node> = Api::all(pass.clients.requests.clone());
        let node = nodes.get_opt(name.as_str()).await?;
        Ok(node.map(|node| Arc::new(reduced(node))))
    });
    let node = read.await?;
    evidence.check(node.as_deref()).map_err(Unmet::Refused)?;
    Ok(node)
}

/// Checks that a start is still intended. A standby that takes over may hold a version of the status whose intent has been
/// withdrawn since: it writes none before it starts, so no resource version tells. What this process wrote itself it knows.
pub(super) async fn check_intent(
    pass: &PassContext,
    start: &StartRemediation,
    version: &ResourceVersion,
) -> Result<(), Unmet> {
    let name = &start.check.name;
    if pass.own_versions.with(|own| own.get(name) == Some(version)) {
        return Ok(());
    }
    let read = pass.check_reads.get(Arc::clone(name), pass.planned_at, async {
        let checks: Api<NodeHealthCheck> = Api::all(pass.clients.requests.clone());
        Ok(checks.get_opt(name).await?.map(Arc::new))
    });
    let check = read.await?;
    let status = check.as_ref().and_then(|check| check.status.as_ref());
    if status.is_some_and(|status| start.is_intended_in(status)) {
        Ok(())
    } else {
        Err(Unmet::Refused("its intent has been withdrawn".to_owned()))
    }
}

/// The answer is kept for a second, and hundreds may be asked for at once: of the many kilobytes of a Node, what is read.
fn reduced(node: Node) -> Node {
    let (spec, status) = (node.spec.unwrap_or_default(), node.status.unwrap_or_default());
    Node {
        metadata: ObjectMeta {
            name: node.metadata.name,
            uid: node.metadata.uid,
            creation_timestamp: node.metadata.creation_timestamp,
            labels: node.metadata.labels,
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
