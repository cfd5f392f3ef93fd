//! What becomes of each pod of a draining node, and which disruptions of which budgets the drain needs for it. Pure.
//!
//! A claim covers the *held* pods alone: those that stay down, or must not be counted on, until their node is back. The
//! disruption of a movable pod returns by itself, so waiting for it wedges nobody.

#[cfg(test)]
mod tests;

use std::collections::BTreeMap;
use std::sync::Arc;

use jiff::{SignedDuration, Timestamp};
use nodeward_api::BudgetRef;
use nodeward_api::node_drain::{BlockedBy, NodeDrain};
use nodeward_api::opt_out::OptOut;
use nodeward_api::reason::LockReason;
use nodeward_core::consent::Consents;
use nodeward_core::deadline::saturating_add;
use nodeward_core::id::BudgetKey;
use nodeward_core::ledger::{BudgetFacts, Disruptions, HeldPod, Unusable};
use nodeward_core::node::{Taint, UNSCHEDULABLE_TAINT, UNSCHEDULABLE_TAINT_EFFECT};
use nodeward_scheduling::{Placement, PlacementError};

use crate::policy::Policy;
use crate::snapshot::{NodeFacts, PodFacts, Snapshot};

use super::verdict::about_node;

/// Taints that a node without its kubelet gets, and that evict what does not tolerate them.
const OUTAGE_TAINTS: [&str; 2] = ["node.kubernetes.io/not-ready", "node.kubernetes.io/unreachable"];

/// What becomes of a pod.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Class {
    /// No drain concerns it.
    Ignored(Ignored),
    /// It has ended.
    Finished,
    WaitsCompleted,
    /// It leaves under the stock budget, and comes back elsewhere.
    Movable,
    /// It leaves under the claim, and stays down until the node is back; for this reason.
    Held(LockReason),
    /// It stays on the node, and is down while that is; for this reason.
    Retained(LockReason),
}

/// Why no drain concerns a pod.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Ignored {
    /// A DaemonSet would make it again on the same node.
    DaemonSet,
    /// It is a static pod of the kubelet.
    Mirror,
}

impl Class {
    /// What becomes of a pod by what it says itself; `None`: it leaves, and the room that there is decides how.
    pub fn by_itself(pod: &PodFacts) -> Option<Self> {
        if pod.mirror {
            return Some(Self::Ignored(Ignored::Mirror));
        }
        if pod.is_daemon() {
            return Some(Self::Ignored(Ignored::DaemonSet));
        }
        if pod.is_finished() {
            return Some(Self::Finished);
        }
        if pod.deletion.is_some() {
            // It is leaving, whatever it asked for.
            return Some(Self::Movable);
        }
        match pod.opt_out() {
            Some((OptOut::Skip, _)) => Some(Self::Retained(LockReason::OptedOut)),
            Some((OptOut::WaitCompleted | OptOut::Unknown, _)) => Some(Self::WaitsCompleted),
            // Nobody makes it again, here or elsewhere: waiting for it would have no end.
            None => pod.owner.is_none().then_some(Self::Movable),
        }
    }

    /// The same on a node with this drain, which may have put it there.
    pub fn in_drain(pod: &PodFacts, node: &NodeFacts, drain: Option<&NodeDrain>) -> Option<Self> {
        let returned = || has_returned(pod, node, drain).then_some(Self::Retained(LockReason::ToleratesCordon));
        Self::by_itself(pod).or_else(returned)
    }
}

/// Whether it was made in the drain of its node, after the cordon, and put there by its toleration of that: so would be each
/// that its controller makes in its place, and to evict them all would never end.
fn has_returned(pod: &PodFacts, node: &NodeFacts, drain: Option<&NodeDrain>) -> bool {
    let asked = drain.and_then(|drain| drain.metadata.creation_timestamp.as_ref());
    let cordon = node.taint(UNSCHEDULABLE_TAINT, Some(UNSCHEDULABLE_TAINT_EFFECT));
    cordon.zip(asked).is_some_and(|(cordon, asked)| {
        let began = cordon.time_added.map_or(asked.0, |added| added.max(asked.0));
        began < pod.created && cordon.tolerated_by(&pod.requirements.tolerations).is_some()
    })
}

/// The pods of a node, and what their drain needs.
#[derive(Debug, Clone, Default)]
pub struct NodeNeed {
    /// By name.
    pub pods: Vec<ClassifiedPod>,
    /// What its requesters have consented to.
    pub consents: Consents,
    /// The disruptions that it takes, by budget: one for each held and each retained pod, ready or not.
    pub needs: Vec<Disruptions>,
    /// What keeps the drain from ever ending, or a pod from staying, unless a person sees to it.
    pub problems: Vec<BlockedBy>,
    /// When a class changes by the passing of time alone.
    pub changes_at: Option<Timestamp>,
}

/// A pod, and what becomes of it.
#[derive(Debug, Clone)]
pub struct ClassifiedPod {
    pub pod: Arc<PodFacts>,
    pub class: Class,
    /// Why it is held, in words, where there is more to say than the reason.
    pub why: Option<String>,
}

/// Works out what becomes of the pods of `node`. Movable pods take the places that they find from `placement`: called for
/// one node after another, the oldest drain first, no two of them share the last place.
pub fn classify(
    node: &NodeFacts,
    snapshot: &Snapshot,
    placement: &mut Placement<'_>,
    policy: &Policy,
    now: Timestamp,
) -> NodeNeed {
    let drain = snapshot.drains.get(&node.name).map(Arc::as_ref);
    let mut need = NodeNeed {
        consents: consents(drain, policy),
        ..NodeNeed::default()
    };
    for pod in snapshot.pods_of(&node.name) {
        let (class, why) = match Class::in_drain(pod, node, drain) {
            Some(class) => {
                // A StatefulSet makes the successor of a pod that leaves only when it has gone, and that will need room.
                if class == Class::Movable && pod.owner.as_ref().is_some_and(|owner| &*owner.kind == "StatefulSet") {
                    let _ = placement.place(pod, Some(&node.name));
                }
                (class, None)
            }
            None => match placement.place(pod, Some(&node.name)) {
                Err(error) => (Class::Held(held_reason(&error)), Some(error.to_string())),
                Ok(_) => match unschedulable_sibling(pod, snapshot, policy) {
                    Some((sibling, counts_from)) if counts_from <= now => {
                        let why = format!("pod {} has found no node", sibling.key);
                        (Class::Held(LockReason::Unschedulable), Some(why))
                    }
                    Some((_, counts_from)) => {
                        need.changes_at = need.changes_at.into_iter().chain([counts_from]).min();
                        (Class::Movable, None)
                    }
                    None => (Class::Movable, None),
                },
            },
        };
        let pod = Arc::clone(pod);
        need.pods.push(ClassifiedPod { pod, class, why });
    }
    need.needs = disruptions(&need.pods, snapshot);
    need.problems = problems(&need, snapshot, policy);
    need
}

/// What the requesters of a drain have consented to. Without a drain it is a machine that would ask for one.
fn consents(drain: Option<&NodeDrain>, policy: &Policy) -> Consents {
    let machine = || policy.fleet_lock.as_ref().map(|fleet_lock| fleet_lock.consents);
    drain
        .map(|drain| Consents::of(&drain.spec))
        .or_else(machine)
        .unwrap_or_default()
}

/// Why a pod that would have to leave is kept; nothing: it may be evicted, or leaves already.
pub fn kept(pod: &PodFacts, consents: Consents) -> impl Iterator<Item = LockReason> {
    let reasons = consents.lacking(pod.owner.is_none(), pod.has_empty_dir);
    reasons.filter(|_| pod.deletion.is_none())
}

fn held_reason(error: &PlacementError) -> LockReason {
    match error {
        PlacementError::LocalVolume => LockReason::LocalVolume,
        PlacementError::Pinned => LockReason::Pinned,
        PlacementError::NoRoom(_) => LockReason::NoRoom,
    }
}

/// The pod of the same controller, asking for the same, that has found no node for the longest, and from when this one's
/// replacement is taken to find none either. What its own volume ties to a place says nothing about others.
fn unschedulable_sibling<'a>(
    pod: &PodFacts,
    snapshot: &'a Snapshot,
    policy: &Policy,
) -> Option<(&'a PodFacts, Timestamp)> {
    let view = &snapshot.scheduling;
    let unschedulable = view
        .pending
        .iter()
        .filter_map(|other| Some((&**other, other.unschedulable_since?)));
    let siblings = unschedulable.filter(|(other, _)| other.is_sibling_of(pod));
    let unschedulable =
        siblings.filter(|(other, _)| other.requirements == pod.requirements && view.volumes_of(other).next().is_none());
    let (sibling, since) = unschedulable.min_by_key(|(_, since)| *since)?;
    Some((sibling, saturating_add(since, policy.unschedulable_after)))
}

/// One disruption of each budget for each pod that stays down with its node. An unready pod counts as if it were ready, but
/// for one that must leave and that its budget lets go while it is not (`AlwaysAllow`): that takes nothing from anybody.
fn disruptions(pods: &[ClassifiedPod], snapshot: &Snapshot) -> Vec<Disruptions> {
    let mut needs: BTreeMap<&BudgetKey, Disruptions> = BTreeMap::new();
    for ClassifiedPod { pod, class, .. } in pods {
        let retained = match class {
            Class::Held(_) => false,
            Class::Retained(_) => true,
            Class::Ignored(_) | Class::Finished | Class::WaitsCompleted | Class::Movable => continue,
        };
        for key in snapshot.budgets_of(pod) {
            let budget = snapshot.budgets.get(key);
            if !retained && !pod.ready && budget.is_some_and(|budget| budget.view.always_lets_unready_go()) {
                continue;
            }
            let uid = snapshot.facts.get(key).map(|budget| budget.uid.to_string());
            let disruptions = needs.entry(key).or_insert_with(|| Disruptions {
                pdb: BudgetRef {
                    namespace: key.namespace.to_string(),
                    name: key.name.to_string(),
                    uid: uid.unwrap_or_default(),
                },
                ..Disruptions::default()
            });
            disruptions.pods.push(HeldPod::new(&pod.key, &pod.uid, retained));
        }
    }
    needs.into_values().collect()
}

/// What a person has to see to.
fn problems(need: &NodeNeed, snapshot: &Snapshot, policy: &Policy) -> Vec<BlockedBy> {
    let mut problems = Vec::new();
    let mut unusable: BTreeMap<&BudgetKey, &BudgetFacts> = BTreeMap::new();
    for ClassifiedPod { pod, class, .. } in &need.pods {
        let budgets = snapshot.budgets_of(pod);
        let must_be_evicted = match class {
            Class::Ignored(_) | Class::Finished => continue,
            Class::WaitsCompleted => {
                if let Some((OptOut::Unknown, source)) = pod.opt_out() {
                    let text = format!("{} of pod {} has a value that is not known", source.key(), pod.key);
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
            Unusable::ClosedByCeph => closed_by_ceph(key, snapshot),
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
    problems.extend(
        need.needs
            .iter()
            .filter_map(|disruptions| excess(disruptions, snapshot)),
    );
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
fn excess(disruptions: &Disruptions, snapshot: &Snapshot) -> Option<BlockedBy> {
    let key = BudgetKey::from(&disruptions.pdb);
    let facts = snapshot.facts.get(&key)?;
    let most = facts.ceiling();
    let needed = facts.cost(&disruptions.pods);
    let is_excess = facts.current && facts.unusable.is_none() && needed > most;
    is_excess.then(|| {
        let text = format!("{needed} pods of budget {key} stay down with the node, and it can spare {most} at most");
        about_budget(LockReason::NeedExceedsBudget, &key, text)
    })
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
