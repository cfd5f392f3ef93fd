//! Watches every budget while the upgrade runs. A budget that falls short is a violation, unless drain-keeper's record on
//! it says that it was overridden by the user's policy, and then for one pod only.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use futures::StreamExt;
use jiff::Timestamp;
use k8s_openapi::api::policy::v1::PodDisruptionBudget;
use kube::api::Api;
use kube::runtime::{WatchStreamExt, watcher};
use kube::{Client, ResourceExt};
use nodeward_api::annotation::LAST_OVERRIDE;
use nodeward_api::drain_clock::LastOverride;
use tokio::task::JoinHandle;

/// How long after its override a budget may be short of one pod: a replacement has to start.
const REPLACED_WITHIN: Duration = Duration::from_mins(1);

/// Budgets under watch.
pub struct BudgetWatch {
    seen: Arc<Mutex<Seen>>,
    task: JoinHandle<()>,
}

#[derive(Default)]
struct Seen {
    was_healthy: BTreeMap<String, bool>,
    violations: Vec<String>,
}

impl BudgetWatch {
    /// Starts watching.
    pub fn start(client: &Client) -> Self {
        let seen: Arc<Mutex<Seen>> = Arc::default();
        let budgets: Api<PodDisruptionBudget> = Api::all(client.clone());
        let task = tokio::spawn({
            let seen = Arc::clone(&seen);
            async move {
                let mut changes =
                    watcher(budgets, watcher::Config::default()).default_backoff().applied_objects().boxed();
                while let Some(change) = changes.next().await {
                    if let Ok(budget) = change {
                        seen.lock().unwrap_or_else(PoisonError::into_inner).look(&budget);
                    }
                }
            }
        });
        Self { seen, task }
    }

    /// What was violated so far.
    pub fn violations(&self) -> Vec<String> {
        self.seen.lock().unwrap_or_else(PoisonError::into_inner).violations.clone()
    }
}

impl Drop for BudgetWatch {
    fn drop(&mut self) {
        self.task.abort();
    }
}

impl Seen {
    fn look(&mut self, budget: &PodDisruptionBudget) {
        let Some(status) = &budget.status else { return };
        let name = format!("{}/{}", budget.namespace().unwrap_or_default(), budget.name_any());
        let short = status.desired_healthy - status.current_healthy;
        let was_healthy = self.was_healthy.insert(name.clone(), short <= 0).unwrap_or(false);
        if was_healthy && short > i32::from(is_overridden(budget)) {
            let at = Timestamp::now();
            self.violations.push(format!(
                "{name}: {} healthy, {} wanted, at {at}",
                status.current_healthy, status.desired_healthy
            ));
        }
    }
}

fn is_overridden(budget: &PodDisruptionBudget) -> bool {
    budget
        .annotations()
        .get(LAST_OVERRIDE)
        .and_then(|text| LastOverride::parse(text).ok())
        .is_some_and(|record| Timestamp::now().duration_since(record.at).unsigned_abs() < REPLACED_WITHIN)
}
