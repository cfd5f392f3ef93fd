//! Forces a pod: evicts it, so that the server decides; where that is not enough, overrides its budgets, removes its
//! finalizers, or deletes it without grace, once all that this rests on was read anew.
//!
//! An override is recorded before the delete, by one patch of each budget's status with its resource version: it names the
//! pod in `disruptedPods`, as the eviction handler does, and sets the annotation of the last override. Two leaders at once,
//! or one that was restarted, therefore never override one budget for two pods: the second patch is a conflict. The
//! disruption controller takes the pod out of `disruptedPods` once it has counted its going, so a controller that stands
//! still is noticed too.

use jiff::{SignedDuration, Timestamp};
use k8s_openapi::api::core::v1::Pod;
use k8s_openapi::api::policy::v1::PodDisruptionBudget;
use kube::Api;
use kube::api::{DeleteParams, EvictParams, Patch, PatchParams, PostParams, Preconditions};
use nodeward_api::annotation;
use nodeward_api::last_override::LastOverride;
use nodeward_core::budget::BudgetView;
use nodeward_core::deadline::to_the_second;
use nodeward_core::id::{BudgetKey, PodUid};
use nodeward_core::pod::{Owner, PodView};
use nodeward_core::strategy::{Remedy, Wait, removable_finalizers};
use nodeward_runtime::control::Permit;
use nodeward_runtime::{ActionResult, ApiError, Permits};
use serde_json::{Value, json};

use crate::plan::PodAction;
use crate::plan::budget_turn::{OverrideEvidence, may_override};

use super::preconditions::{VerifiedState, check_preconditions};
use super::{Forced, PassContext, PodResult};

/// The reason of the condition `DisruptionTarget`, beside Kubernetes' own (`EvictionByEvictionAPI`, `DeletionByPodGC`).
const DISRUPTION_REASON: &str = "DeletionByDrainKeeper";

/// How long the disruption controller waits for a pod in `disruptedPods` to go.
const DISRUPTED_FOR: SignedDuration = SignedDuration::from_mins(2);

/// A pod that is to be forced.
pub(super) struct Forcing<'a> {
    pub(super) context: &'a PassContext,
    pub(super) permits: &'a Permits,
    pub(super) action: &'a PodAction,
}

impl Forcing<'_> {
    /// Carries out the action's remedy.
    pub(super) async fn force(&self) -> Result<Forced, PodResult> {
        self.permits.check()?;
        match self.action.strategy.remedy {
            Remedy::Restart => Box::pin(self.restart()).await,
            Remedy::UndoRestart => Box::pin(self.undo_restart()).await,
            Remedy::Evict => self.evict_the_very_pod().await,
            Remedy::EvictOrDelete => match self.evict_the_very_pod().await {
                Err(ActionResult::Failed(refusal @ ApiError::RefusedByBudget { .. })) => {
                    Box::pin(self.override_budgets(refusal)).await
                }
                other => other,
            },
            Remedy::RemoveFinalizers => Box::pin(self.remove_finalizers()).await,
            Remedy::DeleteNow => Box::pin(self.delete_now()).await,
        }
    }

    /// Evicts the pod if its name is still its own: the eviction handler takes a disruption off the budget before it compares
    /// the UID, so that an eviction meant for an earlier pod would cost the budget one for nothing. Where there is no budget the
    /// server decides, and nothing is read before.
    async fn evict_the_very_pod(&self) -> Result<Forced, PodResult> {
        let is_covered = self.action.strategy.wait == Wait::of(true);
        let pod = &self.action.pod;
        if is_covered && pod.owner().reuses_names() {
            let named = self.pods().get_metadata_opt(&pod.key.name).await?;
            if named.and_then(|named| named.metadata.uid).as_deref() != Some(pod.uid.as_str()) {
                return Err(ActionResult::Outdated(
                    "it is gone, or another pod has its name now".to_owned(),
                ));
            }
        }
        self.evict().await
    }

    /// Asks the eviction API, which deletes the pod with its own grace unless a budget stands in the way.
    async fn evict(&self) -> Result<Forced, PodResult> {
        let pod = &self.action.pod;
        let params = EvictParams {
            delete_options: Some(DeleteParams::default().preconditions(Preconditions {
                uid: Some(pod.uid.as_str().to_owned()),
                resource_version: None,
            })),
            post_options: PostParams::default(),
        };
        let _permit = self.permits.next_act().await?;
        let Err(error) = self.pods().evict(&pod.key.name, &params).await else {
            return Ok(Forced::Evicted);
        };
        Err(match ApiError::from(&error) {
            // So the API answers every eviction of a pod that several budgets select.
            ApiError::Server { code: 500, reason, .. }
                if reason.is_empty() && self.context.snapshot.budgets.matching(pod).len() > 1 =>
            {
                ActionResult::Failed(ApiError::RefusedByBudget { retry_after: None })
            }
            ApiError::Conflict => ActionResult::Outdated("another pod has its name now".to_owned()),
            error => error.into(),
        })
    }

    /// Overrides all budgets that select the pod, and deletes it with its own grace. The permit comes before the reads, so that
    /// they are not as old as the wait for it; what it stands for is asked again before each write.
    async fn override_budgets(&self, refusal: ApiError) -> Result<Forced, PodResult> {
        let Self { context, action, .. } = *self;
        let _permit = self.permits.next_write().await?;
        let state = Box::pin(check_preconditions(action, context)).await?;
        if state.budgets.is_empty() {
            // Then the next eviction passes, and needs no override.
            return Err(ActionResult::Outdated("no budget selects the pod any more".to_owned()));
        }
        let now = Timestamp::now();
        if waits_for_eviction(action, &state, now) {
            return Err(ActionResult::Failed(refusal));
        }
        let VerifiedState { budgets, .. } = state;
        for budget in &budgets {
            let mut evidence = OverrideEvidence::of(budget, &context.snapshot);
            evidence.alive.extend(self.last_overridden(budget).await?);
            if let Err(wait) = may_override(budget, &action.pod, &evidence, context.policy.override_spacing, now) {
                tracing::info!(pod = %action.pod.key, until = ?wait.until, "not overridden: {}", wait.detail);
                return Err(ActionResult::Failed(refusal));
            }
        }
        // Recorded before the delete: a leader that comes after a crash between the two overrides no second pod.
        for budget in budgets.iter().filter(|budget| !is_recorded(budget, &action.pod, now)) {
            self.record(budget, now).await?;
        }
        let overridden: Vec<BudgetKey> = budgets.iter().map(|budget| budget.key.clone()).collect();
        let version = match self.mark_disrupted(None).await {
            // It then counts as a failure of its Job, which is less than a drain that never ends.
            Err(ActionResult::Failed(ApiError::Forbidden { message })) => {
                tracing::warn!(pod = %self.action.pod.key, "the Job is not told that this is a disruption: {message}");
                None
            }
            marked => marked?,
        };
        self.delete(None, version, Forced::BudgetOverridden(overridden)).await
    }

    /// The pod that the budget was overridden for last, if it is another one and still exists: its node may have been uncordoned
    /// before it was gone, and is then in nobody's view.
    async fn last_overridden(&self, budget: &BudgetView) -> Result<Option<PodUid>, PodResult> {
        let is_other = |last: &&LastOverride| last.uid != self.action.pod.uid.as_str();
        let Some(last) = budget.last_override.as_ref().filter(is_other) else {
            return Ok(None);
        };
        let named = self.pods().get_metadata_opt(&last.pod).await?;
        let uid = named.and_then(|named| named.metadata.uid);
        Ok(uid.filter(|uid| *uid == last.uid).map(PodUid::from))
    }

    /// Tells a pod's Job that a disruption ends the pod, and no failure of its own: a delete that is no eviction leaves the
    /// condition out. A pod that is deleted without grace gets the phase too, as from the pod garbage collector: without it
    /// the Job never counts the pod. Returns the pod's version after that, if anything was written.
    async fn mark_disrupted(&self, phase: Option<&str>) -> Result<Option<String>, PodResult> {
        let pod = &self.action.pod;
        if pod.owner() != Owner::Job {
            return Ok(None);
        }
        let mut patch = json!({
            "metadata": { "uid": pod.uid, "resourceVersion": pod.resource_version },
            "status": {
                "conditions": [{
                    "type": "DisruptionTarget",
                    "status": "True",
                    "reason": DISRUPTION_REASON,
                    "message": format!("drain-keeper: {} of the drain of node {}", self.action.strategy.name, self.action.node),
                    "lastTransitionTime": to_the_second(Timestamp::now()),
                }],
            },
        });
        if let Some(phase) = phase.filter(|_| !pod.is_finished()) {
            patch["status"]["phase"] = phase.into();
        }
        self.permits.check_act().await?;
        let marked = self
            .pods()
            .patch_status(&pod.key.name, &PatchParams::default(), &Patch::Strategic(&patch))
            .await?;
        Ok(marked.metadata.resource_version)
    }

    async fn record(&self, budget: &BudgetView, now: Timestamp) -> Result<(), PodResult> {
        let pod = &self.action.pod;
        let record = LastOverride {
            at: now,
            pod: pod.key.name.to_string(),
            uid: pod.uid.as_str().to_owned(),
            strategy: self.action.strategy.name.to_string(),
            replica: self.context.replica.to_string(),
            signal: self.action.signal.to_string(),
        };
        let patch = record_patch(budget, &record);
        self.permits.check_act().await?;
        let budgets: Api<PodDisruptionBudget> =
            Api::namespaced(self.context.clients.requests.clone(), &budget.key.namespace);
        let patched = budgets
            .patch_status(&budget.key.name, &PatchParams::default(), &Patch::Merge(&patch))
            .await;
        match patched.map_err(ApiError::from) {
            Ok(_) => Ok(()),
            Err(ApiError::Conflict | ApiError::NotFound) => {
                Err(ActionResult::Outdated(format!("budget {} has changed", budget.key)))
            }
            Err(error) => Err(ActionResult::Failed(error)),
        }
    }

    /// Removes the finalizers that keep a terminating pod, but the protected ones. Any change of the pod since makes this a
    /// conflict.
    async fn remove_finalizers(&self) -> Result<Forced, PodResult> {
        let (context, pod) = (self.context, &self.action.pod);
        let (_permit, _) = self.permit_after_a_look().await?;
        let removed = removable_finalizers(pod, &context.policy.protected_finalizers);
        let kept: Vec<&String> = pod.finalizers.iter().filter(|kept| !removed.contains(kept)).collect();
        let patch = json!({
            "metadata": {
                "uid": pod.uid,
                "resourceVersion": pod.resource_version,
                "finalizers": kept,
            },
        });
        self.permits.check_act().await?;
        self.pods()
            .patch_metadata(&pod.key.name, &PatchParams::default(), &Patch::Merge(&patch))
            .await?;
        Ok(Forced::FinalizersRemoved(removed))
    }

    /// Deletes without grace a pod that should long be gone.
    async fn delete_now(&self) -> Result<Forced, PodResult> {
        let (_permit, _) = self.permit_after_a_look().await?;
        let version = self.mark_disrupted(Some("Failed")).await?;
        self.delete(Some(0), version, Forced::DeletedNow).await
    }

    /// The permit of a write that no eviction comes before, once what it rests on has been read. It is looked at ahead, too:
    /// where hundreds of deadlines coincide the last action must not wait for its first request until all others are done.
    /// The reads are shared for a second, so where the permit comes soon nothing is asked twice.
    pub(super) async fn permit_after_a_look(&self) -> Result<(Permit, VerifiedState), PodResult> {
        let look = async || Box::pin(check_preconditions(self.action, self.context)).await;
        self.permits.read_ahead(look()).await??;
        let permit = self.permits.next_write().await?;
        let state = look().await?;
        Ok((permit, state))
    }

    /// Deletes only the very version that was judged, or `version`, which our own patch made of it: one that has been labelled
    /// since, to opt out or to come under another budget, is judged anew. The caller holds the permit.
    async fn delete(&self, grace: Option<u32>, version: Option<String>, forced: Forced) -> Result<Forced, PodResult> {
        let pod = &self.action.pod;
        let params = DeleteParams {
            preconditions: Some(Preconditions {
                uid: Some(pod.uid.as_str().to_owned()),
                resource_version: version.or_else(|| Some(pod.resource_version.as_str().to_owned())),
            }),
            grace_period_seconds: grace,
            ..DeleteParams::default()
        };
        self.permits.check_act().await?;
        self.pods().delete(&pod.key.name, &params).await?;
        Ok(forced)
    }

    fn pods(&self) -> Api<Pod> {
        Api::namespaced(self.context.clients.requests.clone(), &self.action.pod.key.namespace)
    }
}

/// Whether the pod's eviction may pass yet, or its budgets have not counted yet: none of them is overridden then. Pure.
pub fn waits_for_eviction(action: &PodAction, state: &VerifiedState, now: Timestamp) -> bool {
    // A refusal also says "not counted yet", and room may have come since: then the next eviction passes. But not where
    // drain-lock refuses it for a claim, which is beyond its limit by now, or for an owner's hold that the configuration does
    // not honour: any other hold had stopped the action.
    let may_pass = |budget: &BudgetView| {
        let (key, node) = (&budget.key, &action.node_uid);
        let is_held = state.holds.against(key, node, &action.pod.uid, now).next().is_some();
        budget.allowance(&action.pod).is_available() && !is_held && !state.holds.is_outlasted(key, node, now)
    };
    let is_worth_another = matches!(state.budgets.as_slice(), [budget] if may_pass(budget));
    // One that Kubernetes cannot count answers so for ever.
    let is_being_counted = |budget: &BudgetView| !budget.is_status_current() && !budget.cannot_be_counted(now);
    is_worth_another || state.budgets.iter().any(|budget| is_being_counted(budget))
}

/// The record on the budget. As from the eviction handler, a disruption that the budget allowed is taken off it: until the
/// disruption controller has counted the pod's going, no other eviction may have it.
pub fn record_patch(budget: &BudgetView, record: &LastOverride) -> Value {
    let allowed = budget.status.disruptions_allowed;
    json!({
        "metadata": {
            "uid": budget.uid,
            "resourceVersion": budget.resource_version,
            "annotations": { annotation::LAST_OVERRIDE: record.to_string() },
        },
        "status": {
            "disruptedPods": { &record.pod: to_the_second(record.at) },
            "disruptionsAllowed": allowed - i32::from(allowed > 0),
        },
    })
}

/// Whether the override for this very pod stands in the budget as it was just read: then the delete after it was refused, and
/// is tried again. One that is older than the disruption controller waits, or of a clock that is wrong, is made anew: the
/// spacing counts from the record.
fn is_recorded(budget: &BudgetView, pod: &PodView, now: Timestamp) -> bool {
    let is_of_pod =
        |record: &LastOverride| record.uid == pod.uid.as_str() && now.duration_since(record.at).abs() < DISRUPTED_FOR;
    budget.last_override.as_ref().is_some_and(is_of_pod) && budget.status.disrupted_pods.contains_key(&*pod.key.name)
}

#[cfg(test)]
mod tests {
    use rstest::rstest;

    use super::*;
    use crate::plan::tests::world::{budget, minute, pod, with};

    fn view(patch: Value) -> BudgetView {
        let budget = with(budget("web", 0), patch);
        BudgetView::project(&serde_json::from_value(budget).unwrap()).unwrap()
    }

    /// What an override leaves on the budget, so many minutes after the start.
    fn recorded(minutes: i64, uid: &str) -> Value {
        let record = json!({ "at": minute(minutes), "pod": "p", "uid": uid }).to_string();
        json!({
            "metadata": { "annotations": { annotation::LAST_OVERRIDE: record } },
            "status": { "disruptedPods": { "p": minute(minutes) } },
        })
    }

    #[rstest]
    #[case::just_now(recorded(69, "p"), true)]
    #[case::from_long_ago(recorded(30, "p"), false)]
    #[case::from_the_future(recorded(99, "p"), false)]
    #[case::of_its_namesake(recorded(69, "earlier"), false)]
    #[case::counted(with(recorded(69, "p"), json!({ "status": { "disruptedPods": null } })), false)]
    #[case::evicted_by_others(with(recorded(69, "p"), json!({ "metadata": { "annotations": null } })), false)]
    fn only_a_fresh_record_saves_another(#[case] patch: Value, #[case] is_saved: bool) {
        let pod = PodView::project(&serde_json::from_value(pod("p")).unwrap()).unwrap();
        assert_eq!(is_recorded(&view(patch), &pod, minute(70)), is_saved);
    }

    #[rstest]
    #[case(2, 1)]
    #[case(1, 0)]
    #[case(0, 0)]
    #[case(-1, -1)]
    fn an_override_takes_what_the_budget_allows(#[case] allowed: i32, #[case] left: i32) {
        let budget = view(json!({ "status": { "disruptionsAllowed": allowed } }));
        let record = LastOverride::parse(r#"{"at":"2026-01-01T01:09:00Z","pod":"p","uid":"p"}"#).unwrap();
        let status = json!({ "disruptedPods": { "p": "2026-01-01T01:09:00Z" }, "disruptionsAllowed": left });
        assert_eq!(record_patch(&budget, &record)["status"], status);
    }
}
