//! What drain-lock has planned for the pods of a node that it drains: which of them go down only under the node's claim.

use std::collections::BTreeSet;
use std::sync::Arc;

use nodeward_api::node_drain::{DrainPlan, Evictor, LISTED_AT_MOST, NodeDrain, PlannedPod};
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
    /// Those that the drain does not claim for any more.
    left_out: BTreeSet<Arc<str>>,
    /// Whether maintenance windows do not concern them: drain-lock has begun the drain itself, or the NodeDrain says so.
    pub ignores_windows: bool,
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
        let ignores_windows = drain.spec.ignore_windows || drain.spec.evict == Evictor::Nodeward;
        let Some(plan) = drain.status.as_ref().and_then(|status| status.plan.as_ref()) else {
            return Self {
                ignores_windows,
                ..Self::default()
            };
        };
        let name_of = |planned: &PlannedPod| planned.pod.as_str().into();
        Self {
            under_claim: plan.held.iter().chain(&plan.retained).map(name_of).collect(),
            are_all: names_all(plan),
            left_out: plan.left_out.iter().map(name_of).collect(),
            ignores_windows,
        }
    }

    /// Whether the pod goes down only under the claim of its node, or may be such a pod.
    pub fn under_claim(&self, pod: &PodView) -> Option<UnderClaim> {
        let key = &*pod.key.to_string();
        if self.under_claim.contains(key) {
            Some(UnderClaim::Planned)
        } else {
            let may_be = !self.are_all && !self.left_out.contains(key);
            may_be.then_some(UnderClaim::Unknown)
        }
    }
}

/// Whether the plan names all pods that go down under the claim. What else it leaves out does not matter here.
fn names_all(plan: &DrainPlan) -> bool {
    let is_whole = |pods: &[PlannedPod]| pods.len() < LISTED_AT_MOST;
    plan.omitted == 0 || (is_whole(&plan.held) && is_whole(&plan.retained))
}

#[cfg(test)]
mod tests {
    use rstest::rstest;
    use serde_json::{Value, json};

    use super::*;
    use crate::plan::tests::world::pod;

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
    #[case::left_out_of_the_need(json!({ "plan": { "held": many(100), "omitted": 1, "leftOut": listed(["p".to_owned()]) } }), None)]
    #[case::another_is_left_out(json!({ "plan": { "held": listed(["p".to_owned()]), "leftOut": many(2) } }), Some(UnderClaim::Planned))]
    #[case::of_an_earlier_version(json!({ "plan": { "held": listed(["p".to_owned()]), "problems": [{ "reason": "BudgetNeverAllows", "pdb": "shop/web" }] } }), Some(UnderClaim::Planned))]
    #[case::without_a_plan(json!({ "phase": "Draining" }), Some(UnderClaim::Unknown))]
    #[case::without_a_status(Value::Null, Some(UnderClaim::Unknown))]
    fn pods_that_stay_down_go_under_the_claim(#[case] status: Value, #[case] expected: Option<UnderClaim>) {
        let pod = PodView::project(&serde_json::from_value(pod("p")).unwrap()).unwrap();
        assert_eq!(planned(status).under_claim(&pod), expected);
    }
}
