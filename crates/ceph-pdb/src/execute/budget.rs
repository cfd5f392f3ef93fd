//! PodDisruptionBudgets: created, changed, deleted and given back, on top of nothing but what was planned from.
//!
//! The disruption controller writes a budget's status whenever one of its pods comes or goes, and that is when budgets are
//! changed. So a version that differs from the planned one in its status alone is as good.

use std::sync::Arc;

use k8s_openapi::api::policy::v1::PodDisruptionBudget;
use kube::Api;
use kube::api::{DeleteParams, Patch, PatchParams, PostParams, Preconditions};
use nodeward_runtime::{ActionResult, ApiError, Permits};
use serde_json::Value;

use super::{ExecutorContext, Written};
use crate::budgets;
use crate::plan::write::{Owner, PlannedWrite, Write};
use crate::snapshot::{BudgetFacts, BudgetForm};

type Ended = ActionResult<Written>;

/// How often a write is sent again because the status has changed meanwhile.
const ATTEMPTS: u32 = 5;

/// One budget, as it was planned from.
struct Target<'a> {
    budgets: Api<PodDisruptionBudget>,
    context: &'a ExecutorContext,
    permits: &'a Permits,
    owner: &'a Owner,
    name: &'a Arc<str>,
}

/// Creates a budget, or makes it ours with this spec.
pub(super) async fn write(
    context: &ExecutorContext,
    permits: &Permits,
    planned: &PlannedWrite,
) -> Result<Written, Ended> {
    let (name, form, base) = match &planned.write {
        Write::CreateBudget { name, form } => (name, form, None),
        Write::PatchBudget {
            name,
            form,
            resource_version,
        } => (name, form, Some(resource_version)),
        _ => return Err(ActionResult::AlreadyDone),
    };
    let target = Target::new(context, permits, planned, name);
    let _permit = permits.next_write().await?;
    let Some(version) = base else {
        let wanted = budgets::object(&planned.owner, name, form);
        let created = target.budgets.create(&PostParams::default(), &wanted).await?;
        return Ok(target.written(vec![None], Some(&created)));
    };
    target.change(version, form).await
}

/// Deletes a budget, once the one that takes its place is seen to stand.
pub(super) async fn delete(
    context: &ExecutorContext,
    permits: &Permits,
    planned: &PlannedWrite,
) -> Result<Written, Ended> {
    let Write::DeleteBudget {
        name,
        uid,
        resource_version,
        rests_on,
    } = &planned.write
    else {
        return Err(ActionResult::AlreadyDone);
    };
    let target = Target::new(context, permits, planned, name);
    let _permit = permits.next_write().await?;
    if let Some((other, _)) = rests_on {
        target.unchanged(other).await?;
    }
    let mut version = Arc::clone(resource_version);
    let mut bases = Vec::new();
    for _ in 0..ATTEMPTS {
        permits.check()?;
        bases.push(Some(Arc::clone(&version)));
        let params = DeleteParams {
            preconditions: Some(Preconditions {
                uid: Some(uid.to_string()),
                resource_version: Some(version.to_string()),
            }),
            ..DeleteParams::default()
        };
        match target.budgets.delete(name, &params).await.map_err(ApiError::from) {
            Ok(_) | Err(ApiError::NotFound) => return Ok(target.written(bases, None)),
            Err(ApiError::Conflict) => version = target.unchanged(name).await?,
            Err(error) => return Err(error.into()),
        }
    }
    Err(ApiError::Conflict.into())
}

/// Takes our label off, and changes nothing else.
pub(super) async fn release(
    context: &ExecutorContext,
    permits: &Permits,
    planned: &PlannedWrite,
) -> Result<Written, Ended> {
    let Write::ReleaseBudget { name, resource_version } = &planned.write else {
        return Err(ActionResult::AlreadyDone);
    };
    let target = Target::new(context, permits, planned, name);
    let _permit = permits.next_write().await?;
    let patch = |version: &str| budgets::release_patch(version);
    let (released, bases) = target.patch(resource_version, patch).await?;
    Ok(target.written(bases, Some(&released)))
}

impl<'a> Target<'a> {
    fn new(context: &'a ExecutorContext, permits: &'a Permits, planned: &'a PlannedWrite, name: &'a Arc<str>) -> Self {
        let owner = &planned.owner;
        Self {
            budgets: Api::namespaced(context.clients.requests.clone(), &owner.namespace),
            context,
            permits,
            owner,
            name,
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
        budgets::facts(budget, &self.owner.uid)
    }

    /// One merge patch. A selector that somebody has added a label to keeps it, so then the whole spec is replaced.
    async fn change(&self, version: &Arc<str>, form: &BudgetForm) -> Result<Written, Ended> {
        let patch = |version: &str| budgets::patch(self.owner, version, form);
        let (mut patched, mut bases) = self.patch(version, patch).await?;
        if self.facts(&patched).form.as_ref() != Some(form) {
            bases.push(patched.metadata.resource_version.as_deref().map(Arc::from));
            patched.spec = budgets::object(self.owner, self.name, form).spec;
            self.permits.check()?;
            patched = self
                .budgets
                .replace(self.name, &PostParams::default(), &patched)
                .await?;
        }
        Ok(self.written(bases, Some(&patched)))
    }

    /// What came of it, and the versions that it may have replaced.
    async fn patch(
        &self,
        version: &Arc<str>,
        patch: impl Fn(&str) -> Value,
    ) -> Result<(PodDisruptionBudget, Vec<Option<Arc<str>>>), Ended> {
        let mut version = Arc::clone(version);
        let mut bases = Vec::new();
        for _ in 0..ATTEMPTS {
            self.permits.check()?;
            let sent = Patch::Merge(patch(&version));
            bases.push(Some(Arc::clone(&version)));
            let patched = self.budgets.patch(self.name, &PatchParams::default(), &sent).await;
            match patched.map_err(ApiError::from) {
                Ok(patched) => return Ok((patched, bases)),
                Err(ApiError::Conflict) => version = self.unchanged(self.name).await?,
                Err(error) => return Err(error.into()),
            }
        }
        Err(ApiError::Conflict.into())
    }

    /// The version of a budget that is as it was planned from, but for its status.
    async fn unchanged(&self, name: &Arc<str>) -> Result<Arc<str>, Ended> {
        let live = self.budgets.get_opt(name).await?.map(|live| self.facts(&live));
        let cluster = self.context.cluster(&self.owner.namespace);
        let seen = cluster.and_then(|cluster| cluster.budgets.get(name));
        match (live, seen) {
            (Some(live), Some(seen)) if is_same(&live, seen) => Ok(live.resource_version),
            _ => Err(ActionResult::Outdated(format!(
                "budget {}/{name} has changed",
                self.owner.namespace
            ))),
        }
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
