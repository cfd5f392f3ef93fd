//! What must hold at every step, and at the end.

use std::fmt;

use nodeward_api::{NodeDrain, annotation, taint};
use nodeward_core::drain::NodeDrainView;
use nodeward_core::hold::{Held, of_claim};
use nodeward_core::id::BudgetKey;

use crate::clock::timestamp;
use crate::objects::{budget_name, is_cordoned};
use crate::pod::{NAMESPACE, SimPod};
use crate::webhook::DRAINER;
use crate::world::World;

/// Something that must not be.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Violation {
    /// An eviction left fewer pods than the budget demands.
    BudgetBroken { pod: String, healthy: i32, desired: i32 },
    /// A node went down over a pod.
    WentDownOver { node: String, pod: String },
    /// drain-keeper forced a pod whose budget another drain has.
    ForcedProtected { pod: String, holder: String },
    /// A drain was asked for by somebody who drains nothing.
    DrainOfNobody { node: String, requester: String },
    /// Something was left behind.
    Leaked(String),
    /// Not all drains came to an end.
    NoEnd,
}

impl fmt::Display for Violation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::BudgetBroken { pod, healthy, desired } => {
                write!(f, "with {pod} its budget has {healthy} healthy pods left of {desired}")
            }
            Self::WentDownOver { node, pod } => write!(f, "node {node} goes down over {pod}"),
            Self::ForcedProtected { pod, holder } => {
                write!(f, "{pod} is forced though the claim of {holder} has its budget")
            }
            Self::DrainOfNobody { node, requester } => {
                write!(f, "{requester} drains nothing, and has a drain of {node} begun")
            }
            Self::Leaked(what) => write!(f, "left behind: {what}"),
            Self::NoEnd => f.write_str("not all drains come to an end"),
        }
    }
}

impl World {
    /// No eviction takes a budget below what it demands, but for pods that fail by themselves, or with a node that nobody drains. What it demands is what the disruption
    /// controller makes of it: an owner without any pod is none that it asks.
    pub fn judge_eviction(&mut self, pod: &SimPod) {
        let budget = self.budgets.get(&budget_name(pod.app)).filter(|_| pod.is_healthy());
        let Some(counted) = budget
            .and_then(|budget| budget.status.as_ref())
            .map(|status| status.desired_healthy)
        else {
            return;
        };
        let stays = |other: &&SimPod| other.uid != pod.uid && (other.is_healthy() || self.failed.contains(&other.uid));
        let healthy = i32::try_from(self.pods_of(pod.app).filter(stays).count()).unwrap_or(i32::MAX);
        let desired = self.desired_healthy(pod.app).min(counted);
        if healthy < desired {
            let pod = pod.name.clone();
            self.object_to(Violation::BudgetBroken { pod, healthy, desired });
        }
    }

    /// No pod is forced while a claim of another node has its budget.
    pub fn judge_force(&mut self, pod: &SimPod) {
        let node = pod.node.as_deref().unwrap_or_default();
        let held = Held::Budget(BudgetKey::new(NAMESPACE, budget_name(pod.app)));
        let (ledger, now) = (self.ledger(), timestamp(self.now));
        let holder = ledger.claims().iter().filter(|claim| claim.node != node).find(|claim| {
            let drain = self.drains.get(&claim.node).and_then(NodeDrainView::project);
            let mut holds = of_claim(claim, drain.as_ref());
            holds.any(|hold| hold.held == held && hold.until.is_none_or(|until| now < until))
        });
        if let Some(holder) = holder.map(|claim| claim.node.clone()) {
            let pod = pod.name.clone();
            self.object_to(Violation::ForcedProtected { pod, holder });
        }
    }

    /// Only who drains asks for drains.
    pub fn judge_request(&mut self, drain: &NodeDrain) {
        let strangers = drain
            .spec
            .requesters
            .iter()
            .filter(|requester| !requester.name.contains(DRAINER));
        for requester in strangers.map(|requester| requester.name.clone()).collect::<Vec<_>>() {
            let node = drain.spec.node_name.clone();
            self.object_to(Violation::DrainOfNobody { node, requester });
        }
    }

    /// No node goes down while pods of it have yet to leave. Of one that drain-lock has drained the claim has a disruption for
    /// each pod that stays; others reboot by themselves.
    pub fn judge_reboot(&mut self, node: &str, is_ours: bool) {
        let ledger = self.ledger();
        let claim = ledger.claims().iter().find(|claim| claim.node == node);
        let is_claimed = |pod: &SimPod| {
            let is_guarded = self.budgets.contains_key(&budget_name(pod.app));
            !is_ours || !is_guarded || claim.is_some_and(|claim| claim.has_disruption(&pod.uid))
        };
        let pods: Vec<String> = self
            .pods_on(node)
            .filter(|pod| pod.deletion.is_none() && !(pod.stays && is_claimed(pod)))
            .map(|pod| pod.name.clone())
            .collect();
        for pod in pods {
            let node = node.to_owned();
            self.object_to(Violation::WentDownOver { node, pod });
        }
    }

    /// Tells what the drains say of themselves, where they do not end.
    pub fn tell_state(&mut self) {
        let said = |drain: &NodeDrain| {
            let status = drain.status.clone().unwrap_or_default();
            let blocked = status.blocked_by.iter().map(|blocked| blocked.message.as_str());
            let blocked = blocked.collect::<Vec<_>>().join("; ");
            let message = status.message.unwrap_or_default();
            format!("the drain of {}: {message}: {blocked}", drain.spec.node_name)
        };
        for line in self.drains.values().map(said).collect::<Vec<_>>() {
            self.tell(|| line);
        }
    }

    /// What is left of drains: nothing, once all have ended.
    pub fn leftovers(&self) -> Vec<String> {
        let mut left = Vec::new();
        left.extend(self.drains.keys().map(|name| format!("the NodeDrain of {name}")));
        left.extend(
            self.ledger()
                .claims()
                .iter()
                .map(|claim| format!("the claim of {} ({:?})", claim.node, claim.state)),
        );
        for (name, node) in &self.nodes {
            let annotations = node.metadata.annotations.iter().flatten();
            let ours = [
                annotation::CORDONED_BY,
                annotation::DO_NOT_DISRUPT_BY,
                annotation::DRAIN_CLOCK,
            ];
            left.extend(
                annotations
                    .filter(|(key, _)| ours.contains(&key.as_str()))
                    .map(|(key, _)| format!("{key} on {name}")),
            );
            let taints = node.spec.iter().flat_map(|spec| spec.taints.iter().flatten());
            left.extend(
                taints
                    .filter(|on| on.key == taint::QUEUED)
                    .map(|on| format!("the taint {} on {name}", on.key)),
            );
            left.extend(is_cordoned(node).then(|| format!("the cordon of {name}")));
        }
        for (name, budget) in &self.budgets {
            let disrupted = budget
                .status
                .iter()
                .flat_map(|status| status.disrupted_pods.iter().flatten());
            left.extend(disrupted.map(|(pod, _)| format!("{pod} among the disrupted pods of {name}")));
        }
        left
    }
}

#[cfg(test)]
mod tests;
