//! Stale entries of budgets' `disruptedPods`: the pod of that name is not the one that was evicted, or was never deleted. The disruption
//! controller forgets an entry two minutes after its time; until then it does not count that pod, and every eviction is
//! refused. The write of the status makes it count anew, too.

use std::collections::BTreeSet;
use std::sync::Arc;

use nodeward_core::deadline::is_due;
use nodeward_core::id::{BudgetKey, ResourceVersion};

use super::{Action, Planner};

/// One write of a budget's status.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct StaleEntries {
    pub budget: BudgetKey,
    pub uid: Arc<str>,
    /// The status that this is written on top of.
    pub resource_version: ResourceVersion,
    /// Pods that count again.
    pub pods: BTreeSet<String>,
}

impl Planner<'_> {
    /// Plans the removal of stale entries from budgets' statuses.
    pub(super) fn remove_stale_entries(&mut self) {
        let (now, requeue_at) = (self.now, &mut self.requeue_at);
        let stale = self.snapshot.stale_entries.iter().filter_map(|(key, pods)| {
            let budget = &self.snapshot.budgets.get(key)?.view;
            let certain = pods.iter().filter(|(_, certain)| {
                requeue_at.note((now < **certain).then_some(**certain));
                is_due(**certain, now)
            });
            let pods: BTreeSet<String> = certain.map(|(pod, _)| pod.clone()).collect();
            (!pods.is_empty()).then(|| StaleEntries {
                budget: key.clone(),
                uid: Arc::clone(&budget.uid),
                resource_version: budget.resource_version.clone(),
                pods,
            })
        });
        self.plan.actions.extend(stale.map(Action::RemoveStaleEntries));
    }
}

#[cfg(test)]
mod tests {
    use rstest::rstest;
    use serde_json::{Value, json};

    use super::*;
    use crate::config::Config;
    use crate::plan::plan;
    use crate::policy::Policy;
    use crate::snapshot::Memory;
    use crate::tests::fixture::{Cluster, budget, now, pod};

    /// `shop/web-0` was created at midnight.
    #[rstest]
    #[case::of_the_pod_before(json!({ "web-0": "2025-12-31T23:59:30Z" }), &["web-0"])]
    #[case::of_this_pod(json!({ "web-0": "2026-01-01T11:59:40Z" }), &[])]
    #[case::of_this_pod_which_was_never_deleted(json!({ "web-0": "2026-01-01T11:59:30Z" }), &["web-0"])]
    #[case::of_a_pod_that_is_gone(json!({ "web-1": "2025-12-31T23:59:30Z" }), &[])]
    fn entry_of_an_earlier_namesake_is_removed(#[case] disrupted: Value, #[case] removed: &[&str]) {
        let status = json!({ "metadata": { "resourceVersion": "7" }, "status": { "disruptedPods": disrupted } });
        let cluster = Cluster::new([], [pod("web-0", json!({}))]).budgets([budget("web", status)]);
        let policy = Policy::from_config(Config::default()).unwrap();
        let plan = plan(&cluster.snapshot(), &Memory::default(), &policy, now());
        let written: Vec<_> = plan
            .actions
            .iter()
            .filter_map(|action| match action {
                Action::RemoveStaleEntries(stale) => Some(stale),
                _ => None,
            })
            .collect();
        let pods: Vec<&String> = written.iter().flat_map(|stale| &stale.pods).collect();
        assert_eq!(pods, removed);
        assert!(written.iter().all(|stale| stale.resource_version.as_str() == "7"));
    }
}
