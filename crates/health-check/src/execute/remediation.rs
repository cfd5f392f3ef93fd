//! Deletes and annotates remediations, by UID.

use std::sync::Arc;

use kube::Api;
use kube::api::{DeleteParams, Patch, PatchParams, Preconditions};
use kube::core::DynamicObject;
use nodeward_runtime::{ActionResult, ApiError, Permits};
use serde_json::json;

use super::{Effect, PassContext, Written, quorum};
use crate::observe::project;
use crate::plan::{NodeEvidence, RemediationChange, RemediationRef};
use crate::snapshot::RemediationFacts;

/// Deletes it, if what that rests on still holds.
pub(super) async fn delete(
    pass: &PassContext,
    permits: &Permits,
    remediation: &RemediationRef,
    evidence: &NodeEvidence,
) -> Effect {
    let _permit = match permits.next_write().await {
        Ok(permit) => permit,
        Err(stop) => return stop.into(),
    };
    let node = match quorum::check(pass, evidence).await {
        Ok(node) => node,
        Err(error) => return ActionResult::from(error).into(),
    };
    if let Err(stop) = permits.check() {
        return stop.into();
    }
    let Some(remediations) = remediations(pass, remediation) else {
        return ActionResult::AlreadyDone.into();
    };
    let params = DeleteParams {
        preconditions: Some(Preconditions {
            uid: Some(remediation.uid.to_string()),
            resource_version: None,
        }),
        ..DeleteParams::default()
    };
    let deleted = remediations.delete(&remediation.key.name, &params).await;
    let left = match deleted.map_err(ApiError::from) {
        // What is left of it stays until its finalizers are gone.
        Ok(answer) => answer.left(),
        Err(ApiError::NotFound) => return gone(pass, remediation, ActionResult::AlreadyDone),
        Err(error) => return ActionResult::from(error).into(),
    };
    let mut effect = match left {
        Some(left) => Effect::acted(written(pass, remediation, &left)),
        None => gone(pass, remediation, ActionResult::Acted(())),
    };
    effect.created = known(pass, remediation).map(|known| known.created);
    effect.provider_id = node.and_then(|node| node.spec.as_ref()?.provider_id.clone());
    effect
}

/// Annotates it, if what that rests on still holds.
pub(super) async fn annotate(
    pass: &PassContext,
    permits: &Permits,
    remediation: &RemediationRef,
    change: RemediationChange,
    evidence: Option<&NodeEvidence>,
) -> Effect {
    let _permit = match permits.next_write().await {
        Ok(permit) => permit,
        Err(stop) => return stop.into(),
    };
    if let Some(evidence) = evidence {
        if let Err(error) = quorum::check(pass, evidence).await {
            return ActionResult::from(error).into();
        }
        if let Err(stop) = permits.check() {
            return stop.into();
        }
    }
    let Some(remediations) = remediations(pass, remediation) else {
        return ActionResult::AlreadyDone.into();
    };
    // Another UID is a conflict.
    let patch = json!({
        "metadata": { "uid": &*remediation.uid, "annotations": { change.annotation(): change.value() } },
    });
    let patched = remediations
        .patch(&remediation.key.name, &PatchParams::default(), &Patch::Merge(patch))
        .await;
    match patched.map_err(ApiError::from) {
        Ok(patched) => Effect::acted(written(pass, remediation, &patched)),
        Err(ApiError::NotFound) => gone(pass, remediation, ActionResult::AlreadyDone),
        Err(error) => ActionResult::from(error).into(),
    }
}

fn remediations(pass: &PassContext, remediation: &RemediationRef) -> Option<Api<DynamicObject>> {
    pass.remediations(&remediation.kind, &remediation.key.namespace)
}

fn written(pass: &PassContext, remediation: &RemediationRef, now: &DynamicObject) -> Written {
    Written::Remediation {
        kind: remediation.kind.clone(),
        key: remediation.key.clone(),
        base: known(pass, remediation).map(|known| known.resource_version.clone()),
        facts: project::remediation(remediation.kind.clone(), now).map(Arc::new),
        shown_within: pass.shown_within(&remediation.kind),
    }
}

fn gone(pass: &PassContext, remediation: &RemediationRef, result: ActionResult) -> Effect {
    let written = Written::Remediation {
        kind: remediation.kind.clone(),
        key: remediation.key.clone(),
        base: known(pass, remediation).map(|known| known.resource_version.clone()),
        facts: None,
        shown_within: pass.shown_within(&remediation.kind),
    };
    Effect {
        result,
        ..Effect::acted(written)
    }
}

/// What was planned with.
fn known<'a>(pass: &'a PassContext, remediation: &RemediationRef) -> Option<&'a Arc<RemediationFacts>> {
    let mut known = pass.snapshot.remediations.iter();
    known.find(|known| known.uid == remediation.uid)
}
