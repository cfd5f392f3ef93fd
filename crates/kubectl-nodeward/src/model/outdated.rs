//! Causes that a stored status names, and that are over: it is of its writer's last look. Pure.

use std::collections::{BTreeMap, HashSet};
use std::sync::Arc;

use k8s_openapi::api::core::v1::Pod;
use k8s_openapi::api::policy::v1::PodDisruptionBudget;
use nodeward_api::node_drain::BlockedBy;
use nodeward_api::reason::LockReason;
use nodeward_core::ledger::Ledger;
use nodeward_core::pod::PodView;
use nodeward_runtime::cache::Content;

use super::drain::Drain;
use super::qualified;

/// A pod that a cause names, as it is now.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum PodNow {
    Gone,
    Ready,
    Other,
}

impl PodNow {
    pub fn of(pod: Option<&Pod>) -> Self {
        match pod.map(PodView::project) {
            None => Self::Gone,
            Some(Some(pod)) if pod.ready => Self::Ready,
            Some(_) => Self::Other,
        }
    }
}

/// What there is now. What is absent was not read, and nothing follows from that.
#[derive(Debug, Default)]
pub struct Present<'a> {
    /// The nodes with a drain or a claim.
    pub drained: Option<HashSet<String>>,
    /// All budgets.
    pub budgets: Option<BTreeMap<String, &'a PodDisruptionBudget>>,
    /// Of the pods that causes name.
    pub pods: BTreeMap<String, PodNow>,
}

impl<'a> Present<'a> {
    pub fn of<'d>(drains: Option<impl IntoIterator<Item = &'d Drain>>, ledger: Option<&Ledger>) -> Self {
        let drained = drains.zip(ledger).map(|(drains, ledger)| {
            let drains = drains.into_iter().map(|drain| drain.node.clone());
            let claims = ledger.claims().iter().map(|claim| claim.node.clone());
            drains.chain(claims).collect()
        });
        Self {
            drained,
            ..Self::default()
        }
    }

    pub fn with_budgets(self, budgets: impl IntoIterator<Item = &'a PodDisruptionBudget>) -> Self {
        let budgets = budgets.into_iter().map(|budget| (qualified(budget), budget));
        Self {
            budgets: Some(budgets.collect()),
            ..self
        }
    }

    /// Takes out of what the drain is blocked by what is over, and the sentence that told of it.
    pub fn sort_out(&self, drain: &mut Drain) {
        drain
            .outdated
            .extend(drain.blocked_by.extract_if(.., |blocked| self.is_over(blocked)));
        if !drain.outdated.is_empty() {
            drain.message = None;
        }
    }

    /// The same of many, of which few have something that is over.
    pub fn sort_out_all(&self, drains: &mut Content<Drain>) {
        let has_outdated = |drain: &Drain| drain.blocked_by.iter().any(|blocked| self.is_over(blocked));
        if drains.values().any(|drain| has_outdated(drain)) {
            for drain in Arc::make_mut(drains).values_mut().filter(|drain| has_outdated(drain)) {
                self.sort_out(Arc::make_mut(drain));
            }
        }
    }

    fn is_over(&self, blocked: &BlockedBy) -> bool {
        let BlockedBy {
            reason, pod, pdb, node, ..
        } = blocked;
        let is_for_health = matches!(reason, LockReason::BudgetUnhealthy | LockReason::AwaitingReady);
        let pod = pod.as_ref().and_then(|pod| self.pods.get(pod));
        let pod_is_over = match pod {
            Some(PodNow::Gone) => true,
            Some(PodNow::Ready) => is_for_health,
            Some(PodNow::Other) | None => false,
        };
        let budget_is_over = pdb.as_ref().zip(self.budgets.as_ref()).is_some_and(|(pdb, budgets)| {
            let found = budgets.get(pdb);
            found.is_none_or(|budget| *reason == LockReason::BudgetUnhealthy && is_healthy(budget))
        });
        let is_for_a_drain = matches!(reason, LockReason::WaitsForDisruptions | LockReason::Reserved);
        let drain_is_over = node
            .as_ref()
            .zip(self.drained.as_ref())
            .is_some_and(|(node, drained)| is_for_a_drain && !drained.contains(node));
        pod_is_over || budget_is_over || drain_is_over
    }
}

/// All of its pods are healthy, by its newest spec.
fn is_healthy(budget: &PodDisruptionBudget) -> bool {
    budget.status.as_ref().is_some_and(|status| {
        let is_current = status.observed_generation >= budget.metadata.generation;
        is_current && status.expected_pods > 0 && status.current_healthy >= status.expected_pods
    })
}

#[cfg(test)]
mod tests {
    use rstest::rstest;
    use serde_json::{Value, json};

    use super::*;

    fn drain(node: &str, blocked_by: &Value) -> Drain {
        let drain = json!({
            "metadata": { "name": node }, "spec": { "nodeName": node },
            "status": { "phase": "Queued", "blockedBy": [blocked_by], "message": "told then" },
        });
        Drain::of(&serde_json::from_value(drain).unwrap())
    }

    fn budget(healthy: i32) -> PodDisruptionBudget {
        let budget = json!({
            "metadata": { "name": "web", "namespace": "shop", "generation": 2 },
            "status": {
                "observedGeneration": 2, "currentHealthy": healthy, "expectedPods": 3, "desiredHealthy": 2,
                "disruptionsAllowed": 0,
            },
        });
        serde_json::from_value(budget).unwrap()
    }

    #[rstest]
    #[case::pod_is_gone(json!({ "reason": "StuckTerminating", "pod": "shop/gone" }), true)]
    #[case::pod_is_ready(json!({ "reason": "BudgetUnhealthy", "pod": "shop/ready" }), true)]
    #[case::ready_pod_still_waits_to_finish(json!({ "reason": "WaitCompleted", "pod": "shop/ready" }), false)]
    #[case::pod_is_unready(json!({ "reason": "BudgetUnhealthy", "pod": "shop/unready" }), false)]
    #[case::pod_was_not_read(json!({ "reason": "BudgetUnhealthy", "pod": "shop/hidden" }), false)]
    #[case::budget_is_gone(json!({ "reason": "BudgetNeverAllows", "pdb": "shop/gone" }), true)]
    #[case::budget_is_there(json!({ "reason": "BudgetNeverAllows", "pdb": "shop/web" }), false)]
    #[case::budget_is_unhealthy(json!({ "reason": "BudgetUnhealthy", "pdb": "shop/web" }), false)]
    #[case::drain_is_there(json!({ "reason": "WaitsForDisruptions", "pdb": "shop/web", "node": "n2" }), false)]
    #[case::claim_is_there(json!({ "reason": "WaitsForDisruptions", "pdb": "shop/web", "node": "n3" }), false)]
    #[case::drain_is_gone(json!({ "reason": "WaitsForDisruptions", "pdb": "shop/web", "node": "n4" }), true)]
    #[case::node_needs_no_drain(json!({ "reason": "GroupUnhealthy", "node": "n4" }), false)]
    fn cause_that_is_over_is_not_told_as_one_of_now(#[case] blocked_by: Value, #[case] is_over: bool) {
        let budget = budget(2);
        let mut present = Present::default().with_budgets([&budget]);
        present.drained = Some(["n1", "n2", "n3"].map(str::to_owned).into());
        let named = [
            ("gone", PodNow::Gone),
            ("ready", PodNow::Ready),
            ("unready", PodNow::Other),
        ];
        present.pods = named.map(|(name, now)| (format!("shop/{name}"), now)).into();
        let mut drain = drain("n1", &blocked_by);
        present.sort_out(&mut drain);
        assert_eq!(
            (drain.blocked_by.len(), drain.outdated.len()),
            if is_over { (0, 1) } else { (1, 0) }
        );
        assert_eq!(drain.message.is_none(), is_over);
    }

    #[test]
    fn budget_with_all_its_pods_healthy_is_not_unhealthy() {
        let healthy = budget(3);
        let mut drain = drain("n1", &json!({ "reason": "BudgetUnhealthy", "pdb": "shop/web" }));
        Present::default().with_budgets([&healthy]).sort_out(&mut drain);
        assert_eq!(drain.outdated.len(), 1);
    }

    #[test]
    fn nothing_follows_from_what_was_not_read() {
        let all = json!({ "reason": "WaitsForDisruptions", "pod": "shop/a", "pdb": "shop/b", "node": "n4" });
        let mut drain = drain("n1", &all);
        Present::of(None::<&[Drain]>, None).sort_out(&mut drain);
        assert_eq!(drain.blocked_by.len(), 1);
    }
}
