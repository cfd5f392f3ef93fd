//! Starts a remediation: what it rests on is asked again past all caches, the leases are taken, and then it is created. Its
//! intent has been written to the status before. What fails for a reason that the next attempt would meet again withdraws the
//! intent.

use std::sync::Arc;

use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use kube::ResourceExt;
use kube::api::PostParams;
use kube::core::DynamicObject;
use nodeward_api::annotation;
use nodeward_api::label::EXCLUDE_FROM_REMEDIATION;
use nodeward_api::reason::HealthReason;
use nodeward_runtime::{ActionResult, ApiError, Permits};

use super::lease::Taken;
use super::quorum::Unmet;
use super::{Effect, Ended, PassContext, Written, control_plane, lease, quorum};
use crate::observe::{project, watched_template};
use crate::plan::{Condition, RemediationRef, Standing, StartRemediation, is_excluded};
use crate::snapshot::RemediationFacts;

/// What asking has come to.
#[derive(Default)]
struct Asked {
    node_created: Option<Time>,
    taken: Vec<Taken>,
}

/// Starts it.
pub(super) async fn start(pass: &PassContext, permits: &Permits, start: &StartRemediation) -> Ended {
    // One permit for all requests: of many nodes, those that begin first are also done first.
    let _permit = permits.next_act().await?;
    let mut asked = Asked::default();
    let (Ok(mut effect) | Err(mut effect)) = ask_and_create(pass, permits, start, &mut asked).await;
    let has_failed = match &effect.result {
        ActionResult::Failed(error) => !error.is_ambiguous(),
        result => matches!(result, ActionResult::Outdated(_)),
    };
    for taken in asked.taken {
        // A create whose answer was lost may have been carried out: its leases stay until that is known.
        if has_failed && taken.is_new && permits.check().is_ok() {
            effect.written.extend(lease::give_back_taken(pass, &taken).await);
        } else {
            effect.written.push(taken.written);
        }
    }
    Ok(effect)
}

async fn ask_and_create(pass: &PassContext, permits: &Permits, start: &StartRemediation, asked: &mut Asked) -> Ended {
    let remediations = pass
        .remediations(&start.kind, &start.key.namespace)
        .ok_or_else(|| ActionResult::Outdated(format!("{} is not served any more", start.kind)))?;
    for condition in &start.conditions {
        permits.check()?;
        if let Err(unmet) = ask(pass, start, condition, asked).await {
            return Err(match (unmet, condition.refuses_with()) {
                (Unmet::Refused(why), Some(reason)) => refused(reason, why),
                (Unmet::Refused(why), None) => ActionResult::Outdated(why).into(),
                (Unmet::Failed(error), _) => failed(error),
            });
        }
    }
    permits.check_act().await?;
    let object: DynamicObject = serde_json::from_value(start.object())
        .map_err(|error| refused(HealthReason::RemediationRejected, error.to_string()))?;
    let created = remediations.create(&PostParams::default(), &object).await;
    match created.map_err(ApiError::from) {
        Ok(created) => Ok(started(start, &created)),
        // Another leader of ours, or an earlier attempt whose answer was lost, has created it.
        Err(ApiError::Conflict) => match remediations.get(&start.key.name).await.map_err(ApiError::from) {
            Ok(found) if is_ours(start, asked.node_created.as_ref(), &found) => Ok(started(start, &found)),
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

/// Whether one condition still holds.
async fn ask(
    pass: &PassContext,
    start: &StartRemediation,
    condition: &Condition,
    asked: &mut Asked,
) -> Result<(), Unmet> {
    match condition {
        Condition::Node(evidence) => {
            let node = quorum::check(pass, evidence).await?;
            let labels = node.as_ref().and_then(|node| node.metadata.labels.as_ref());
            let label = labels.and_then(|labels| labels.get(EXCLUDE_FROM_REMEDIATION));
            if is_excluded(label.map(String::as_str)) {
                return Err(Unmet::Refused(format!(
                    "node {} is excluded by its label",
                    evidence.name
                )));
            }
            asked.node_created = node.and_then(|node| node.metadata.creation_timestamp.clone());
        }
        Condition::Intended(version) => quorum::check_intent(pass, start, version).await?,
        Condition::Template => template_is_unchanged(pass, start).await?,
        Condition::Gone(replaced) => replaced_is_gone(pass, replaced).await?,
        Condition::Lease(change) => asked.taken.push(lease::take(pass, change).await?),
        Condition::EtcdQuorum(recent) => control_plane::check_quorum(pass, &start.node, recent).await?,
    }
    Ok(())
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

fn started(start: &StartRemediation, created: &DynamicObject) -> Effect {
    let facts: Option<Arc<RemediationFacts>> = project::remediation(start.kind.clone(), created).map(Arc::new);
    Effect::acted(Written::Remediation {
        kind: start.kind.clone(),
        key: start.key.clone(),
        base: None,
        facts,
    })
}

/// The watch that shows the step's last remediation as gone may be behind: a node never gets two of a step.
async fn replaced_is_gone(pass: &PassContext, replaced: &RemediationRef) -> Result<(), Unmet> {
    let Some(remediations) = pass.remediations(&replaced.kind, &replaced.key.namespace) else {
        return Ok(());
    };
    match remediations.get_opt(&replaced.key.name).await? {
        Some(found) if found.metadata.uid.as_deref() == Some(&*replaced.uid) => {
            Err(Unmet::Refused(format!("{replaced} is still there")))
        }
        _ => Ok(()),
    }
}

/// A template that may not be watched was read up to a minute ago.
async fn template_is_unchanged(pass: &PassContext, start: &StartRemediation) -> Result<(), Unmet> {
    let Some(resource) = pass.polled_templates.get(&watched_template(&start.template)) else {
        return Ok(());
    };
    let templates = pass.objects(resource, &start.template.namespace);
    match templates.get_opt(&start.template.name).await? {
        Some(found) if project::template(&found).spec == start.made_from.spec => Ok(()),
        Some(_) => Err(Unmet::Refused(format!("{} has changed", start.template))),
        None => Err(Unmet::Refused(format!("{} is gone", start.template))),
    }
}

fn refused(reason: HealthReason, detail: String) -> Effect {
    Effect {
        refusal: Some(Standing::new(reason, detail.clone())),
        ..ActionResult::Outdated(detail).into()
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
        refusal: reason.map(|reason| Standing::new(reason, error.to_string())),
        ..ActionResult::Failed(error).into()
    }
}
