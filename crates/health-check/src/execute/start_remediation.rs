//! Starts a remediation: the Node is read by quorum, the leases are taken, and then the remediation is created. Its intent has
//! been written to the status before. What fails for a reason that the next attempt would meet again withdraws the intent.

use std::sync::Arc;

use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use kube::api::PostParams;
use kube::core::DynamicObject;
use kube::{Api, ResourceExt};
use nodeward_api::annotation;
use nodeward_api::reason::HealthReason;
use nodeward_runtime::{ActionResult, ApiError, Permits};

use super::lease::{TakeError, Taken};
use super::quorum::EvidenceError;
use super::{Effect, Ended, PassContext, Written, control_plane, lease, quorum};
use crate::observe::project;
use crate::plan::StartRemediation;
use crate::snapshot::RemediationFacts;

/// Starts it.
pub(super) async fn start(pass: &PassContext, permits: &Permits, start: &StartRemediation) -> Ended {
    // One permit for all three requests: of many nodes, those that begin first are also done first.
    let _permit = permits.next_act().await?;
    let evidence = quorum::check(pass, &start.evidence).await;
    let node = evidence.map_err(|error| not_met(error, HealthReason::NodeChanged))?;
    let node_created = node.and_then(|node| node.metadata.creation_timestamp.clone());
    let intent = quorum::check_intent(pass, start).await;
    intent.map_err(|error| not_started(error.into()))?;
    template_is_unchanged(pass, start).await.map_err(not_started)?;
    replaced_is_gone(pass, start).await.map_err(not_started)?;
    let remediations = pass
        .remediations(&start.kind, &start.key.namespace)
        .ok_or_else(|| ActionResult::Outdated(format!("{} is not served any more", start.kind)))?;
    let mut taken = Vec::new();
    let created = take_leases_and_create(pass, permits, start, &remediations, &mut taken, node_created).await;
    let (Ok(mut effect) | Err(mut effect)) = created;
    let has_failed = match &effect.result {
        ActionResult::Failed(error) => !error.is_ambiguous(),
        result => matches!(result, ActionResult::Outdated(_)),
    };
    for taken in taken {
        // A create whose answer was lost may have been carried out: its leases stay until that is known.
        if has_failed && taken.is_new && permits.check().is_ok() {
            effect.written.extend(lease::give_back_taken(pass, &taken).await);
        } else {
            effect.written.push(taken.written);
        }
    }
    Ok(effect)
}

async fn take_leases_and_create(
    pass: &PassContext,
    permits: &Permits,
    start: &StartRemediation,
    remediations: &Api<DynamicObject>,
    taken: &mut Vec<Taken>,
    node_created: Option<Time>,
) -> Ended {
    for change in &start.leases {
        permits.check()?;
        match lease::take(pass, change).await {
            Ok(lease) => taken.push(lease),
            Err(TakeError::HeldBy(holder)) => {
                let held = format!("lease {} is held by {holder}", change.name);
                return Err(refused(HealthReason::LeaseTaken, held));
            }
            Err(TakeError::Api(error)) => return Err(failed(error)),
        }
    }
    if start.reads_quorum {
        let quorum = control_plane::check_quorum(pass, &start.node).await;
        quorum.map_err(|error| not_met(error, HealthReason::EtcdQuorumAtRisk))?;
    }
    permits.check_act().await?;
    let object: DynamicObject = serde_json::from_value(start.object())
        .map_err(|error| refused(HealthReason::RemediationRejected, error.to_string()))?;
    let created = remediations.create(&PostParams::default(), &object).await;
    match created.map_err(ApiError::from) {
        Ok(created) => Ok(started(pass, start, &created)),
        // Another leader of ours, or an earlier attempt whose answer was lost, has created it.
        Err(ApiError::Conflict) => match remediations.get(&start.key.name).await.map_err(ApiError::from) {
            Ok(found) if is_ours(start, node_created.as_ref(), &found) => Ok(started(pass, start, &found)),
            Ok(_) => {
                let (kind, key) = (&start.kind.kind, &start.key);
                let text = format!("{kind} {key} is somebody else's, or an earlier node's");
                Err(refused(HealthReason::ForeignRemediation, text))
            }
            Err(error) => Err(failed(error)),
        },
        Err(error) => Err(failed(error)),
    }
}

/// One that is on its way out, or of an earlier node of the name, does not count; where it does not tell its node, as the peer's
/// do not, it is of the node if it is younger.
fn is_ours(start: &StartRemediation, node_created: Option<&Time>, found: &DynamicObject) -> bool {
    let is_of_the_node = match found.annotations().get(annotation::REMEDIATION_NODE_UID) {
        Some(uid) => uid == start.node_uid.as_str(),
        None => node_created <= found.metadata.creation_timestamp.as_ref(),
    };
    let mut owners = found.metadata.owner_references.iter().flatten();
    is_of_the_node && found.metadata.deletion_timestamp.is_none() && owners.any(|owner| owner.uid == *start.check.uid)
}

fn started(pass: &PassContext, start: &StartRemediation, created: &DynamicObject) -> Effect {
    let facts: Option<Arc<RemediationFacts>> = project::remediation(start.kind.clone(), created).map(Arc::new);
    Effect::acted(Written::Remediation {
        kind: start.kind.clone(),
        key: start.key.clone(),
        base: None,
        facts,
        shown_within: pass.shown_within(&start.kind),
    })
}

/// The watch that shows the step's last remediation as gone may be behind: a node never gets two of a step.
async fn replaced_is_gone(pass: &PassContext, start: &StartRemediation) -> Result<(), ActionResult> {
    let Some(replaced) = &start.replaces else {
        return Ok(());
    };
    let Some(remediations) = pass.remediations(&replaced.kind, &replaced.key.namespace) else {
        return Err(ActionResult::Outdated(format!(
            "{} is not served any more",
            replaced.kind
        )));
    };
    match remediations.get_opt(&replaced.key.name).await.map_err(ApiError::from) {
        Ok(Some(found)) if found.metadata.uid.as_deref() == Some(&*replaced.uid) => {
            Err(ActionResult::Outdated(format!("{replaced} is still there")))
        }
        Ok(_) => Ok(()),
        Err(error) => Err(ActionResult::Failed(error)),
    }
}

/// A template that may not be watched was read up to a minute ago.
async fn template_is_unchanged(pass: &PassContext, start: &StartRemediation) -> Result<(), ActionResult> {
    let Some(resource) = pass.polled_templates.get(&start.template) else {
        return Ok(());
    };
    let client = pass.clients.requests.clone();
    let templates: Api<DynamicObject> = Api::namespaced_with(client, &start.template.namespace, resource);
    let found = templates.get(&start.template.name).await.map_err(ApiError::from);
    match found {
        Ok(found) if project::template(&found).spec == start.made_from.spec => Ok(()),
        Ok(_) => Err(ActionResult::Outdated(format!("{} has changed", start.template))),
        Err(ApiError::NotFound) => Err(ActionResult::Outdated(format!("{} is gone", start.template))),
        Err(error) => Err(ActionResult::Failed(error)),
    }
}

fn refused(reason: HealthReason, detail: String) -> Effect {
    Effect {
        refusal: Some((reason, detail.clone())),
        ..ActionResult::Outdated(detail).into()
    }
}

/// What has changed is a refusal for this reason.
fn not_met(error: EvidenceError, reason: HealthReason) -> Effect {
    match error {
        EvidenceError::Changed(what) => refused(reason, what),
        EvidenceError::Unread(error) => failed(error),
    }
}

fn not_started(result: ActionResult) -> Effect {
    match result {
        ActionResult::Failed(error) => failed(error),
        result => result.into(),
    }
}

/// What the next attempt would meet again is a refusal; what passes by itself is tried again.
fn failed(error: ApiError) -> Effect {
    let reason = match &error {
        ApiError::Forbidden { .. } | ApiError::Unauthorized { .. } => Some(HealthReason::PermissionMissing),
        ApiError::Denied { .. } | ApiError::Invalid { .. } | ApiError::NotFound | ApiError::NamespaceTerminating => {
            Some(HealthReason::RemediationRejected)
        }
        _ => None,
    };
    Effect {
        refusal: reason.map(|reason| (reason, error.to_string())),
        ..ActionResult::Failed(error).into()
    }
}
