//! PodDisruptionBudgets: created, changed, deleted and given back, on top of nothing but what was planned from.
//!
//! The disruption controller writes a budget's status whenever one of its pods comes or goes, and that is when budgets are
//! changed. So a version that differs from the planned one in its status alone is as good.

use std::sync::Arc;

use k8s_openapi::api::policy::v1::PodDisruptionBudget;
use kube::Api;
use kube::api::{DeleteParams, Patch, PatchParams, PostParams, Preconditions};
use nodeward_runtime::{ActionResult, ApiError};
use serde_json::Value;

use super::{Ended, Scope, Written};
use crate::budgets;
use crate::snapshot::{BudgetFacts, BudgetForm};

/// How often a write is sent again because the status has changed meanwhile.
const ATTEMPTS: u32 = 5;

/// One budget, as it was planned from.
pub(super) struct Target<'a> {
    budgets: Api<PodDisruptionBudget>,
    scope: &'a Scope<'a>,
    name: &'a Arc<str>,
}

impl<'a> Target<'a> {
    pub(super) fn new(scope: &'a Scope<'a>, name: &'a Arc<str>) -> Self {
        let budgets = scope.api();
        Self { budgets, scope, name }
    }

    /// Creates it, or makes it ours with this spec, by one merge patch. A selector that somebody has added a label to keeps it,
    /// so then the whole spec is replaced.
    pub(super) async fn write(&self, version: Option<&Arc<str>>, form: &BudgetForm) -> Result<Written, Ended> {
        let _permit = self.scope.permit(self.opens(form)).await?;
        let wanted = budgets::object(self.scope.owner, self.name, form);
        let Some(version) = version else {
            let created = self.budgets.create(&PostParams::default(), &wanted).await?;
            return Ok(self.written(vec![None], Some(&created)));
        };
        let patch = |version: &str| budgets::patch(self.scope.owner, version, form);
        let (mut patched, mut bases) = self.patch(version, patch).await?;
        if self.facts(&patched).form.as_ref() != Some(form) {
            bases.push(patched.metadata.resource_version.as_deref().map(Arc::from));
            patched.spec = wanted.spec;
            self.scope.permits.check()?;
            patched = self
                .budgets
                .replace(self.name, &PostParams::default(), &patched)
                .await?;
        }
        Ok(self.written(bases, Some(&patched)))
    }

    /// Deletes it, once the one that takes its place is seen to stand.
    pub(super) async fn delete(
        &self,
        uid: &str,
        version: &Arc<str>,
        rests_on: Option<&Arc<str>>,
    ) -> Result<Written, Ended> {
        let _permit = self.scope.permit(true).await?;
        if let Some(other) = rests_on {
            self.unchanged(other).await?;
        }
        let delete = |version: Arc<str>| async move {
            let params = DeleteParams::default().preconditions(Preconditions {
                uid: Some(uid.to_owned()),
                resource_version: Some(version.to_string()),
            });
            match self.budgets.delete(self.name, &params).await.map_err(ApiError::from) {
                Ok(_) | Err(ApiError::NotFound) => Ok(()),
                Err(error) => Err(error),
            }
        };
        let ((), bases) = self.on_same_spec(version, delete).await?;
        Ok(self.written(bases, None))
    }

    /// Takes our label off, and changes nothing else.
    pub(super) async fn release(&self, version: &Arc<str>) -> Result<Written, Ended> {
        let _permit = self.scope.permits.next_write().await?;
        let (released, bases) = self.patch(version, budgets::release_patch).await?;
        Ok(self.written(bases, Some(&released)))
    }

    /// Whether the spec may let more pods be evicted than the budget does now.
    fn opens(&self, form: &BudgetForm) -> bool {
        let seen = self.scope.cluster().and_then(|cluster| cluster.budgets.get(self.name));
        seen.is_some_and(|seen| seen.form.as_ref().is_none_or(|before| opens(before, form)))
    }

    async fn patch(
        &self,
        version: &Arc<str>,
        patch: impl Fn(&str) -> Value,
    ) -> Result<(PodDisruptionBudget, Vec<Option<Arc<str>>>), Ended> {
        let send = |version: Arc<str>| {
            let sent = Patch::Merge(patch(&version));
            async move {
                let patched = self.budgets.patch(self.name, &PatchParams::default(), &sent).await;
                patched.map_err(ApiError::from)
            }
        };
        self.on_same_spec(version, send).await
    }

    /// Sends a write on top of this version, or of a later one with the same spec: what came of it, and the versions that it may
    /// have replaced.
    async fn on_same_spec<T, F>(
        &self,
        version: &Arc<str>,
        send: impl Fn(Arc<str>) -> F,
    ) -> Result<(T, Vec<Option<Arc<str>>>), Ended>
    where
        F: Future<Output = Result<T, ApiError>>,
    {
        let mut version = Arc::clone(version);
        let mut bases = Vec::new();
        for _ in 0..ATTEMPTS {
            self.scope.permits.check()?;
            bases.push(Some(Arc::clone(&version)));
            match send(Arc::clone(&version)).await {
                Ok(sent) => return Ok((sent, bases)),
                Err(ApiError::Conflict) => version = self.unchanged(self.name).await?,
                Err(error) => return Err(error.into()),
            }
        }
        Err(ApiError::Conflict.into())
    }

    /// The version of a budget that is as it was planned from, but for its status.
    async fn unchanged(&self, name: &Arc<str>) -> Result<Arc<str>, Ended> {
        let live = self.budgets.get_opt(name).await?.map(|live| self.facts(&live));
        let seen = self.scope.cluster().and_then(|cluster| cluster.budgets.get(name));
        match (live, seen) {
            (Some(live), Some(seen)) if is_same(&live, seen) => Ok(live.resource_version),
            _ => Err(ActionResult::Outdated(format!(
                "budget {}/{name} has changed",
                self.scope.owner.namespace
            ))),
        }
    }

    fn written(&self, bases: Vec<Option<Arc<str>>>, budget: Option<&PodDisruptionBudget>) -> Written {
        Written::Budget {
            name: Arc::clone(self.name),
            bases,
            facts: budget.map(|budget| self.facts(budget)),
        }
    }

    fn facts(&self, budget: &PodDisruptionBudget) -> BudgetFacts {
        budgets::facts(budget, &self.scope.owner.uid)
    }
}

/// Whether a pod that this form keeps from eviction may be evicted by the next. What cannot be compared is taken to open.
fn opens(before: &BudgetForm, next: &BudgetForm) -> bool {
    match (before, next) {
        (BudgetForm::Osds(before), BudgetForm::Osds(next)) => {
            before.max_unavailable < next.max_unavailable
                || !next.except_domains.is_subset(&before.except_domains)
                || !next.except_osds.is_subset(&before.except_osds)
        }
        (before, next) => before != next,
    }
}

fn is_same(live: &BudgetFacts, seen: &BudgetFacts) -> bool {
    let resource_version = Arc::clone(&live.resource_version);
    *live
        == BudgetFacts {
            resource_version,
            ..seen.clone()
        }
}
