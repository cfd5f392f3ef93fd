//! Deletes and annotates remediations, by UID.

use std::sync::Arc;

use k8s_openapi::api::core::v1::Node;
use kube::Api;
use kube::api::{DeleteParams, Patch, PatchParams, Preconditions};
use kube::core::DynamicObject;
use nodeward_runtime::{ActionResult, ApiError, Permits};
use serde_json::json;

use super::quorum::Unmet;
use super::{Effect, Ended, PassContext, Written, quorum};
use crate::observe::project;
use crate::plan::{RemediationChange, RemediationRef, RemediationWrite};

/// Deletes it, if what that rests on still holds.
pub(super) async fn delete(pass: &PassContext, permits: &Permits, write: &RemediationWrite) -> Ended {
    let _permit = permits.next_write().await?;
    let node = check(pass, write).await?;
    permits.check_act().await?;
    let remediation = &write.remediation;
    let remediations = remediations(pass, remediation).ok_or(ActionResult::AlreadyDone)?;
    let params = DeleteParams::default().preconditions(Preconditions {
        uid: Some(remediation.uid.to_string()),
        resource_version: None,
    });
    let deleted = remediations.delete(&remediation.key.name, &params).await;
    let left = match deleted.map_err(ApiError::from) {
        // What is left of it stays until its finalizers are gone.
        Ok(answer) => answer.left(),
        Err(ApiError::NotFound) => return Ok(found(write, None, ActionResult::AlreadyDone)),
        Err(error) => return Err(error.into()),
    };
    Ok(Effect {
        created: write.seen.as_ref().map(|seen| seen.created),
        provider_id: node.and_then(|node| node.spec.as_ref()?.provider_id.clone()),
        ..found(write, left.as_ref(), ActionResult::Acted(()))
    })
}

/// Annotates it, if what that rests on still holds.
pub(super) async fn annotate(
    pass: &PassContext,
    permits: &Permits,
    write: &RemediationWrite,
    change: RemediationChange,
) -> Ended {
    let _permit = permits.next_write().await?;
    check(pass, write).await?;
    permits.check_act().await?;
    let remediation = &write.remediation;
    let remediations = remediations(pass, remediation).ok_or(ActionResult::AlreadyDone)?;
    // Another UID is a conflict.
    let patch = json!({
        "metadata": { "uid": &*remediation.uid, "annotations": { change.annotation(): change.value() } },
    });
    let patched = remediations
        .patch(&remediation.key.name, &PatchParams::default(), &Patch::Merge(patch))
        .await;
    match patched.map_err(ApiError::from) {
        Ok(patched) => Ok(found(write, Some(&patched), ActionResult::Acted(()))),
        Err(ApiError::NotFound) => Ok(found(write, None, ActionResult::AlreadyDone)),
        Err(error) => Err(error.into()),
    }
}

async fn check(pass: &PassContext, write: &RemediationWrite) -> Result<Option<Arc<Node>>, Unmet> {
    match &write.evidence {
        Some(evidence) => quorum::check(pass, evidence).await,
        None => Ok(None),
    }
}

fn remediations(pass: &PassContext, remediation: &RemediationRef) -> Option<Api<DynamicObject>> {
    pass.remediations(&remediation.kind, &remediation.key.namespace)
}

/// What is left of it; `None`: it is gone.
fn found(write: &RemediationWrite, now: Option<&DynamicObject>, result: ActionResult) -> Effect {
    let kind = &write.remediation.kind;
    let written = Written::Remediation {
        kind: kind.clone(),
        key: write.remediation.key.clone(),
        base: write.seen.as_ref().map(|seen| seen.resource_version.clone()),
        facts: now
            .and_then(|now| project::remediation(kind.clone(), now))
            .map(Arc::new),
    };
    Effect {
        result,
        ..Effect::acted(written)
    }
}
