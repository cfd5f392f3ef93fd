//! What keeps a drain from its end whatever other drains do, or a pod from staying, unless a person sees to it. Pure.

use std::collections::BTreeMap;

use jiff::{SignedDuration, Timestamp};
use nodeward_api::node_drain::BlockedBy;
use nodeward_api::reason::LockReason;
use nodeward_core::id::BudgetKey;
use nodeward_core::ledger::{BudgetFacts, Obstacle, Unusable};
use nodeward_core::node::Taint;
use nodeward_core::opt_out::OptOut;

use crate::policy::Policy;
use crate::snapshot::{NodeFacts, PodFacts, Snapshot};

use super::disruptions::Excess;
use super::need::{Class, ClassifiedPod, NodeNeed, kept, opt_out};
use super::verdict::about_node;

/// Taints that a node without its kubelet gets, and that evict what does not tolerate them.
const OUTAGE_TAINTS: [&str; 2] = ["node.kubernetes.io/not-ready", "node.kubernetes.io/unreachable"];

/// What a person has to see to.
pub(super) fn problems(
    need: &NodeNeed,
    node: &NodeFacts,
    snapshot: &Snapshot,
    policy: &Policy,
    now: Timestamp,
) -> Vec<BlockedBy> {
    let mut problems = Vec::new();
    let mut unusable: BTreeMap<&BudgetKey, &BudgetFacts> = BTreeMap::new();
    for ClassifiedPod { pod, class, .. } in &need.pods {
        let budgets = snapshot.budgets_of(pod);
        let must_be_evicted = match class {
            Class::Ignored(_) | Class::Finished => continue,
            Class::WaitsCompleted => {
                if let Some((OptOut::Unknown, text)) = opt_out(pod, Some(node), now) {
                    problems.push(about_pod(LockReason::UnknownOptOut, pod, text));
                }
                continue;
            }
            Class::Retained(_) => {
                problems.extend(too_short_toleration(pod, policy.expected_outage));
                false
            }
            Class::Movable | Class::Held(_) => {
                let text = |reason: LockReason| format!("pod {} {}", pod.key, reason.explanation());
                problems.extend(kept(pod, need.consents).map(|reason| about_pod(reason, pod, text(reason))));
                !pod.skips_budgets()
            }
        };
        let is_closed = |key: &BudgetKey| {
            snapshot
                .budgets
                .get(key)
                .is_some_and(|budget| budget.is_closed_by_ceph())
        };
        // While Ceph's operator closes budgets, a pod may be in two for a moment.
        if must_be_evicted && budgets.len() > 1 && !budgets.iter().any(is_closed) {
            let names: Vec<String> = budgets.iter().map(ToString::to_string).collect();
            let text = format!(
                "pod {} is selected by several budgets, which the eviction API refuses: {}",
                pod.key,
                names.join(", ")
            );
            problems.push(about_pod(LockReason::SeveralPDBs, pod, text));
        }
        if must_be_evicted || matches!(class, Class::Retained(_)) {
            let facts = budgets.iter().filter_map(|key| snapshot.facts.get_key_value(key));
            // A budget that was never counted has no status of its spec.
            let is_known = |facts: &BudgetFacts| facts.current || facts.unusable == Some(Unusable::SyncFailed);
            unusable.extend(facts.filter(|(_, facts)| facts.unusable.is_some() && is_known(facts)));
        }
    }
    for (key, facts) in &unusable {
        let Some(why) = facts.unusable else { continue };
        let text = match why {
            Unusable::ClosedForNow => closed_by_ceph(key, snapshot),
            Unusable::SyncFailed => format!(
                "Kubernetes cannot count the pods of budget {key}, and allows no disruption of it; its condition DisruptionAllowed says why"
            ),
            Unusable::ZeroUnavailable | Unusable::AllDemanded => format!(
                "budget {key} can never allow a disruption: it demands {} healthy pods of {}",
                facts.desired_healthy, facts.expected_pods
            ),
        };
        problems.push(about_budget(why.reason(), key, text));
    }
    problems.extend(need.excesses.iter().map(about_excess));
    // A moment without enough healthy pods, or a hold, is nobody's to see to until it has lasted.
    let obstacles = &need.obstacles;
    let has_lasted = |one: &&Obstacle| {
        let mut left_out = need.pods.iter().filter(|one| obstacles.left_out.contains(&one.pod.uid));
        left_out.any(|pod| {
            snapshot
                .budgets_of(&pod.pod)
                .iter()
                .any(|key| one.pdb.as_ref() == Some(key))
        })
    };
    let lasting = obstacles.beyond_claims.iter().filter(has_lasted);
    problems.extend(lasting.map(|one| BlockedBy {
        pdb: one.pdb.as_ref().map(ToString::to_string),
        ..about_node(one.reason, one.to_string())
    }));
    problems
}

/// What ends the wait for a budget that Ceph's operator has closed.
fn closed_by_ceph(budget: &BudgetKey, snapshot: &Snapshot) -> String {
    let down = snapshot.down_osds.get(&budget.namespace);
    let hosts: Vec<&str> = down.into_iter().flatten().map(String::as_str).collect();
    let why = if hosts.is_empty() {
        "no OSD is down".to_owned()
    } else {
        format!("OSDs are down on {}", hosts.join(", "))
    };
    format!(
        "Ceph's operator has closed budget {budget}, and opens it again when Ceph's placement groups are clean ({why})"
    )
}

/// That more disruptions of a budget are needed than it can ever give.
fn about_excess(excess: &Excess) -> BlockedBy {
    let Excess {
        budget, needed, most, ..
    } = excess;
    let text = if excess.is_for_last {
        format!(
            "the drain needs {} disruptions of budget {budget} at once, one of them for the pod that leaves last, and the budget can spare {most} at most",
            needed.saturating_add(1)
        )
    } else {
        format!("{needed} pods of budget {budget} stay down with the node, and it can spare {most} at most")
    };
    about_budget(LockReason::NeedExceedsBudget, budget, text)
}

/// That a pod which is to stay would be evicted while its node is away. Of several tolerations of a taint the first
/// counts.
fn too_short_toleration(pod: &PodFacts, expected_outage: SignedDuration) -> Option<BlockedBy> {
    let tolerated = |key: &&str| {
        let taint = Taint {
            key: (*key).to_owned(),
            value: String::new(),
            effect: "NoExecute".to_owned(),
            time_added: None,
        };
        match taint.tolerated_by(&pod.requirements.tolerations) {
            None => Some(0),
            Some(toleration) => toleration.toleration_seconds.map(|seconds| seconds.max(0)),
        }
    };
    let (taint, seconds) = OUTAGE_TAINTS
        .iter()
        .filter_map(|taint| Some((taint, tolerated(taint)?)))
        .filter(|(_, seconds)| *seconds < expected_outage.as_secs())
        .min_by_key(|(_, seconds)| *seconds)?;
    let text = format!(
        "pod {} stays, but tolerates {taint} for {seconds} s only; the node is expected to be away for {} s",
        pod.key,
        expected_outage.as_secs()
    );
    Some(about_pod(LockReason::TolerationTooShort, pod, text))
}

fn about_pod(reason: LockReason, pod: &PodFacts, message: String) -> BlockedBy {
    BlockedBy {
        pod: Some(pod.key.to_string()),
        ..about_node(reason, message)
    }
}

fn about_budget(reason: LockReason, budget: &BudgetKey, message: String) -> BlockedBy {
    BlockedBy {
        pdb: Some(budget.to_string()),
        ..about_node(reason, message)
    }
}
