//! Deletes and annotates remediations, by UID.

use std::sync::Arc;

use kube::Api;
use kube::api::{DeleteParams, Patch, PatchParams, Preconditions};
use kube::core::DynamicObject;
use nodeward_runtime::{ActionResult, ApiError, Permits};
use serde_json::json;

use super::{Effect, Ended, PassContext, Written, quorum};
use crate::observe::project;
use crate::plan::{NodeEvidence, RemediationChange, RemediationRef};
use crate::snapshot::RemediationFacts;

/// A remediation, and what was seen of it.
#[derive(Clone, Copy)]
pub(super) struct Known<'a> {
    pub(super) remediation: &'a RemediationRef,
    pub(super) seen: Option<&'a Arc<RemediationFacts>>,
}

/// Deletes it, if what that rests on still holds.
pub(super) async fn delete(pass: &PassContext, permits: &Permits, known: Known<'_>, evidence: &NodeEvidence) -> Ended {
    let remediation = known.remediation;
    let _permit = permits.next_write().await?;
    let node = quorum::check(pass, evidence).await?;
    permits.check_act().await?;
    let remediations = remediations(pass, remediation).ok_or(ActionResult::AlreadyDone)?;
    let params = DeleteParams::default().preconditions(Preconditions {
        uid: Some(remediation.uid.to_string()),
        resource_version: None,
    });
    let deleted = remediations.delete(&remediation.key.name, &params).await;
    let left = match deleted.map_err(ApiError::from) {
        // What is left of it stays until its finalizers are gone.
        Ok(answer) => answer.left(),
        Err(ApiError::NotFound) => return Ok(found(known, None, ActionResult::AlreadyDone)),
        Err(error) => return Err(error.into()),
    };
    Ok(Effect {
        created: known.seen.map(|seen| seen.created),
        provider_id: node.and_then(|node| node.spec.as_ref()?.provider_id.clone()),
        ..found(known, left.as_ref(), ActionResult::Acted(()))
    })
}

/// Annotates it, if what that rests on still holds.
pub(super) async fn annotate(
    pass: &PassContext,
    permits: &Permits,
    known: Known<'_>,
    change: RemediationChange,
    evidence: Option<&NodeEvidence>,
) -> Ended {
    let remediation = known.remediation;
    let _permit = permits.next_write().await?;
    if let Some(evidence) = evidence {
        quorum::check(pass, evidence).await?;
    }
    permits.check_act().await?;
    let remediations = remediations(pass, remediation).ok_or(ActionResult::AlreadyDone)?;
    // Another UID is a conflict.
    let patch = json!({
        "metadata": { "uid": &*remediation.uid, "annotations": { change.annotation(): change.value() } },
    });
    let patched = remediations
        .patch(&remediation.key.name, &PatchParams::default(), &Patch::Merge(patch))
        .await;
    match patched.map_err(ApiError::from) {
        Ok(patched) => Ok(found(known, Some(&patched), ActionResult::Acted(()))),
        Err(ApiError::NotFound) => Ok(found(known, None, ActionResult::AlreadyDone)),
        Err(error) => Err(error.into()),
    }
}

fn remediations(pass: &PassContext, remediation: &RemediationRef) -> Option<Api<DynamicObject>> {
    pass.remediations(&remediation.kind, &remediation.key.namespace)
}

/// What is left of it; `None`: it is gone.
fn found(known: Known<'_>, now: Option<&DynamicObject>, result: ActionResult) -> Effect {
    let kind = &known.remediation.kind;
    let written = Written::Remediation {
        kind: kind.clone(),
        key: known.remediation.key.clone(),
        base: known.seen.map(|seen| seen.resource_version.clone()),
        facts: now
            .and_then(|now| project::remediation(kind.clone(), now))
            .map(Arc::new),
    };
    Effect {
        result,
        ..Effect::acted(written)
    }
}
