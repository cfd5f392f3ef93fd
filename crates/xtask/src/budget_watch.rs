//! Watches budgets while nodes are drained. A budget that falls short is a violation, unless drain-keeper's record on
//! it says that it was overridden by the user's policy, and then for one pod only.

use std::collections::BTreeMap;
use std::time::Duration;

use jiff::Timestamp;
use k8s_openapi::api::policy::v1::PodDisruptionBudget;
use kube::api::Api;
use kube::runtime::watcher;
use kube::{Client, ResourceExt};
use nodeward_api::annotation::LAST_OVERRIDE;
use nodeward_api::last_override::LastOverride;

use crate::watch::Watched;

/// How long after its override a budget may be short of one pod: a replacement has to start.
const REPLACED_WITHIN: Duration = Duration::from_mins(1);

/// Budgets under watch.
pub struct BudgetWatch(Watched<Seen>);

#[derive(Default)]
struct Seen {
    was_healthy: BTreeMap<String, bool>,
    violations: Vec<String>,
}

impl BudgetWatch {
    /// Starts watching the budgets of these namespaces.
    pub fn start(client: Client, is_watched: impl Fn(&str) -> bool + Send + 'static) -> Self {
        let look = move |seen: &mut Seen, budget: PodDisruptionBudget| {
            if is_watched(&budget.namespace().unwrap_or_default()) {
                seen.look(&budget, Timestamp::now());
            }
        };
        Self(Watched::new(Seen::default()).follow(Api::all(client), watcher::Config::default(), look))
    }

    /// What was violated so far.
    pub fn violations(&self) -> Vec<String> {
        self.0.read().violations.clone()
    }
}

impl Seen {
    fn look(&mut self, budget: &PodDisruptionBudget, now: Timestamp) {
        let Some(status) = &budget.status else { return };
        let name = format!("{}/{}", budget.namespace().unwrap_or_default(), budget.name_any());
        let short = status.desired_healthy - status.current_healthy;
        let was_healthy = self.was_healthy.insert(name.clone(), short <= 0).unwrap_or(false);
        if was_healthy && short > i32::from(is_overridden(budget, now)) {
            self.violations.push(format!(
                "{name}: {} healthy, {} wanted, at {now}",
                status.current_healthy, status.desired_healthy
            ));
        }
    }
}

fn is_overridden(budget: &PodDisruptionBudget, now: Timestamp) -> bool {
    budget
        .annotations()
        .get(LAST_OVERRIDE)
        .and_then(|text| LastOverride::parse(text).ok())
        .is_some_and(|record| now.duration_since(record.at).unsigned_abs() < REPLACED_WITHIN)
}

#[cfg(test)]
mod tests {
    use super::*;

    const NOW: &str = "2026-11-21T11:00:00Z";

    fn budget(healthy: i32, wanted: i32, overridden: Option<&str>) -> PodDisruptionBudget {
        let annotations: BTreeMap<_, _> = overridden
            .map(|at| (LAST_OVERRIDE, format!(r#"{{"at":"{at}","pod":"ledger-1","uid":"u"}}"#)))
            .into_iter()
            .collect();
        serde_json::from_value(serde_json::json!({
            "metadata": { "namespace": "finance", "name": "ledger", "annotations": annotations },
            "status": {
                "currentHealthy": healthy, "desiredHealthy": wanted, "disruptionsAllowed": 0, "expectedPods": wanted,
            },
        }))
        .unwrap()
    }

    #[rstest::rstest]
    #[case::kept(&[budget(3, 3, None), budget(3, 3, None)], 0)]
    #[case::short_of_one(&[budget(3, 3, None), budget(2, 3, None)], 1)]
    #[case::a_recorded_override(&[budget(3, 3, None), budget(2, 3, Some("2026-11-21T10:59:55Z"))], 0)]
    #[case::two_pods_for_one_override(&[budget(3, 3, None), budget(1, 3, Some("2026-11-21T10:59:55Z"))], 1)]
    #[case::an_override_long_ago(&[budget(3, 3, None), budget(2, 3, Some("2026-11-21T10:50:00Z"))], 1)]
    #[case::not_yet_started(&[budget(0, 3, None), budget(2, 3, None)], 0)]
    #[case::counted_once(&[budget(3, 3, None), budget(2, 3, None), budget(1, 3, None)], 1)]
    fn recorded_overrides_are_no_violations(#[case] statuses: &[PodDisruptionBudget], #[case] violations: usize) {
        let mut seen = Seen::default();
        for status in statuses {
            seen.look(status, NOW.parse().unwrap());
        }
        assert_eq!(seen.violations.len(), violations, "{:?}", seen.violations);
    }
}
