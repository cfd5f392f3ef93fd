//! What drain-lock has planned for the pods of a node that it drains: which of them go down only under the node's claim.

use std::collections::BTreeSet;
use std::sync::Arc;

use nodeward_api::node_drain::{BlockedBy, DrainPlan, LISTED_AT_MOST, NodeDrain, PlannedPod};
use nodeward_api::reason::LockReason;
use nodeward_core::budget::BudgetView;
use nodeward_core::drain::NodeDrainView;
use nodeward_core::pod::PodView;

/// A NodeDrain as drain-keeper reads it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PlannedDrain {
    pub view: Arc<NodeDrainView>,
    pub pods: Arc<PlannedPods>,
}

impl PlannedDrain {
    /// Projects a NodeDrain as the API server sends it; `None` without a name.
    pub fn project(drain: &NodeDrain) -> Option<Self> {
        Some(Self {
            view: Arc::new(NodeDrainView::project(drain)?),
            pods: Arc::new(PlannedPods::project(drain)),
        })
    }
}

/// What the status of a NodeDrain says of the pods of its node; by default nothing.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct PlannedPods {
    /// Those that go down only under the claim, as `namespace/name`.
    under_claim: BTreeSet<Arc<str>>,
    /// Whether these are all.
    are_all: bool,
    /// Pods and, where no pod is named, budgets that no other drain's end lets go.
    stuck: BTreeSet<Stuck>,
}

#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
enum Stuck {
    Pod(Arc<str>),
    Budget(Arc<str>),
}

/// Why a pod waits for the claim of its node.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum UnderClaim {
    /// It stays down, or must not be counted on, until its node is back.
    Planned,
    /// The plan does not name all such pods.
    Unknown,
}

impl PlannedPods {
    fn project(drain: &NodeDrain) -> Self {
        let Some(status) = &drain.status else {
            return Self::default();
        };
        let Some(plan) = &status.plan else {
            return Self::default();
        };
        let named = plan.held.iter().chain(&plan.retained);
        let obstacles = plan.problems.iter().chain(&status.blocked_by);
        Self {
            under_claim: named.map(|planned| planned.pod.as_str().into()).collect(),
            are_all: names_all(plan),
            stuck: obstacles.filter_map(Stuck::of).collect(),
        }
    }

    /// Whether the pod goes down only under the claim of its node, or may be such a pod.
    pub fn under_claim(&self, pod: &PodView) -> Option<UnderClaim> {
        if self.under_claim.contains(&*pod.key.to_string()) {
            Some(UnderClaim::Planned)
        } else {
            (!self.are_all).then_some(UnderClaim::Unknown)
        }
    }

    /// Whether no claim will ever have what the pod needs, whatever other drains do.
    pub fn is_stuck(&self, pod: &PodView, budgets: &[Arc<BudgetView>]) -> bool {
        let named = budgets
            .iter()
            .map(|budget| Stuck::Budget(budget.key.to_string().into()));
        let mut named = named.chain([Stuck::Pod(pod.key.to_string().into())]);
        named.any(|named| self.stuck.contains(&named))
    }
}

/// Whether the plan names all pods that go down under the claim. What else it leaves out does not matter here.
fn names_all(plan: &DrainPlan) -> bool {
    let is_whole = |pods: &[PlannedPod]| pods.len() < LISTED_AT_MOST;
    plan.omitted == 0 || (is_whole(&plan.held) && is_whole(&plan.retained))
}

impl Stuck {
    fn of(blocked: &BlockedBy) -> Option<Self> {
        let is_lasting = matches!(
            blocked.reason,
            LockReason::BudgetNeverAllows | LockReason::SyncFailed | LockReason::NeedExceedsBudget
        );
        let pod = blocked.pod.as_deref().map(|pod| Self::Pod(pod.into()));
        let budget = || blocked.pdb.as_deref().map(|budget| Self::Budget(budget.into()));
        pod.or_else(budget).filter(|_| is_lasting)
    }
}

#[cfg(test)]
mod tests {
    use rstest::rstest;
    use serde_json::{Value, json};

    use super::*;
    use crate::plan::tests::world::{budget, pod};

    fn planned(status: Value) -> PlannedPods {
        let drain = json!({
            "apiVersion": "nodeward.dev/v1alpha1", "kind": "NodeDrain", "metadata": { "name": "n1" },
            "spec": { "nodeName": "n1" }, "status": status,
        });
        PlannedPods::project(&serde_json::from_value(drain).unwrap())
    }

    fn listed(names: impl IntoIterator<Item = String>) -> Value {
        names
            .into_iter()
            .map(|name| json!({ "pod": format!("shop/{name}"), "reason": "Pinned" }))
            .collect()
    }

    fn many(count: usize) -> Value {
        listed((0..count).map(|number| format!("other-{number}")))
    }

    #[rstest]
    #[case::held(json!({ "plan": { "held": listed(["p".to_owned()]) } }), Some(UnderClaim::Planned))]
    #[case::retained(json!({ "plan": { "retained": listed(["p".to_owned()]) } }), Some(UnderClaim::Planned))]
    #[case::movable(json!({ "plan": { "held": many(2), "movable": 1 } }), None)]
    #[case::waited_for(json!({ "plan": { "waitsFor": listed(["p".to_owned()]) } }), None)]
    #[case::held_among_many(json!({ "plan": { "held": listed((0..99).map(|number| format!("other-{number}")).chain(["p".to_owned()])), "omitted": 7 } }), Some(UnderClaim::Planned))]
    #[case::perhaps_held(json!({ "plan": { "held": many(100), "omitted": 1 } }), Some(UnderClaim::Unknown))]
    #[case::perhaps_retained(json!({ "plan": { "retained": many(100), "omitted": 1 } }), Some(UnderClaim::Unknown))]
    #[case::just_as_many_as_are_listed(json!({ "plan": { "held": many(100) } }), None)]
    #[case::left_out_of_another_list(json!({ "plan": { "held": many(99), "omitted": 1 } }), None)]
    #[case::without_a_plan(json!({ "phase": "Draining" }), Some(UnderClaim::Unknown))]
    #[case::without_a_status(Value::Null, Some(UnderClaim::Unknown))]
    fn pods_that_stay_down_go_under_the_claim(#[case] status: Value, #[case] expected: Option<UnderClaim>) {
        let pod = PodView::project(&serde_json::from_value(pod("p")).unwrap()).unwrap();
        assert_eq!(planned(status).under_claim(&pod), expected);
    }

    #[rstest]
    #[case::budget_never_allows(json!({ "reason": "BudgetNeverAllows", "pdb": "shop/web" }), true)]
    #[case::budget_is_not_counted(json!({ "reason": "SyncFailed", "pdb": "shop/web" }), true)]
    #[case::too_many_pods(json!({ "reason": "NeedExceedsBudget", "pdb": "shop/web" }), true)]
    #[case::this_pod(json!({ "reason": "NeedExceedsBudget", "pdb": "shop/web", "pod": "shop/p" }), true)]
    #[case::another_pod_of_the_budget(json!({ "reason": "NeedExceedsBudget", "pdb": "shop/web", "pod": "shop/q" }), false)]
    #[case::another_budget(json!({ "reason": "BudgetNeverAllows", "pdb": "shop/db" }), false)]
    #[case::waits_for_others(json!({ "reason": "WaitsForDisruptions", "pdb": "shop/web" }), false)]
    #[case::unhealthy_by_itself(json!({ "reason": "BudgetUnhealthy", "pdb": "shop/web" }), false)]
    #[case::of_a_later_version(json!({ "reason": "NeverMind", "pdb": "shop/web" }), false)]
    fn lasting_obstacles_let_no_claim_have_it(
        #[case] obstacle: Value,
        #[case] is_stuck: bool,
        #[values("problems", "blockedBy")] list: &str,
    ) {
        let pod = PodView::project(&serde_json::from_value(pod("p")).unwrap()).unwrap();
        let budgets = [Arc::new(
            BudgetView::project(&serde_json::from_value(budget("web", 0)).unwrap()).unwrap(),
        )];
        let status = match list {
            "problems" => json!({ "plan": { "problems": [obstacle] } }),
            _ => json!({ "plan": {}, "blockedBy": [obstacle] }),
        };
        assert_eq!(planned(status).is_stuck(&pod, &budgets), is_stuck);
    }
}
