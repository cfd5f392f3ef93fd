//! What keeps a drain from its end whatever other drains do, or a pod from staying, unless a person sees to it. Pure.

use std::collections::{BTreeMap, BTreeSet};

use jiff::{SignedDuration, Timestamp};
use nodeward_api::node_drain::BlockedBy;
use nodeward_api::reason::LockReason;
use nodeward_core::id::{BudgetKey, PodUid};
use nodeward_core::ledger::{BudgetFacts, Disruptions, HeldPod, Obstacle, Unusable};
use nodeward_core::node::Taint;
use nodeward_core::opt_out::OptOut;
use nodeward_core::text::counted;

use crate::policy::Policy;
use crate::snapshot::{NodeFacts, PodFacts, Snapshot};

use super::disruptions::{Asking, Excess, budget_ref, cost};
use super::need::{Class, ClassifiedPod, NodeNeed, kept, opt_out};
use super::verdict::about_node;

/// Taints that a node without its kubelet gets, and that evict what does not tolerate them.
const OUTAGE_TAINTS: [&str; 2] = ["node.kubernetes.io/not-ready", "node.kubernetes.io/unreachable"];

/// What no other drain's end lifts.
#[derive(Debug, Clone, Default)]
pub struct Obstacles {
    /// The pods that have one.
    pub pods: BTreeMap<PodUid, LockReason>,
    /// Those of them that the need leaves out.
    pub left_out: BTreeSet<PodUid>,
    /// Of budgets whose pods are not healthy by themselves, or that their owners hold: what they lack.
    pub beyond_claims: Vec<Obstacle>,
    /// Whether the drain waits for one to end, or has for as long as it does.
    pub is_waited_for: bool,
    /// Whether the status of a budget is behind, so that there may be more.
    pub is_behind: bool,
}

impl Obstacles {
    /// Why nothing is claimed for the pod any more.
    pub(super) fn left_out(&self, pod: &PodFacts) -> Option<LockReason> {
        let obstacle = self.pods.get(&pod.uid).copied();
        obstacle.filter(|_| self.left_out.contains(&pod.uid))
    }

    /// Whether the pod has one that has lasted, or lasts for good.
    pub(super) fn keep(&self, pod: &PodFacts) -> bool {
        let lasts = |reason: &LockReason| reason.is_misconfiguration() || self.left_out.contains(&pod.uid);
        self.pods.get(&pod.uid).is_some_and(lasts)
    }

    /// Notes those of the pods that have an obstacle, all of which stay down and are of the budget: one that never allows a disruption
    /// or cannot be counted, several budgets, more pods than it can ever spare, or too few disruptions even without other claims.
    /// Leaves them out, if that is asked for: where there are too few, all but what the budget spares.
    ///
    /// Those that are too many only for want of room are left out at once where that `makes_room`.
    pub(super) fn note_staying(
        &mut self,
        pods: &[HeldPod],
        budget: &BudgetFacts,
        makes_room: bool,
        asking: Asking<'_>,
        snapshot: &Snapshot,
    ) {
        let (claim, unusable) = (asking.claim, budget.unusable);
        if unusable == Some(Unusable::ClosedForNow) {
            return;
        }
        let mut spared = Vec::new();
        for pod in pods {
            if let Some(unusable) = unusable {
                self.note(pod, unusable.reason(), asking.leaves_out);
                self.is_waited_for = true;
            } else if !pod.retained && budget.several.contains(pod.uid.as_str()) {
                self.note(pod, LockReason::SeveralPDBs, asking.leaves_out);
                self.is_waited_for = true;
            } else {
                spared.push(pod.clone());
            }
        }
        let has = |pod: &HeldPod| claim.is_some_and(|claim| claim.has_disruption(&pod.uid));
        // What the claim has comes first, then what stays on the node.
        spared.sort_by_key(|pod| (!has(pod), !pod.retained));
        while budget.current && cost(budget, &spared, claim) > budget.ceiling() {
            let Some(pod) = spared.pop() else { break };
            self.note(&pod, LockReason::NeedExceedsBudget, asking.leaves_out || makes_room);
            self.is_waited_for |= !makes_room;
        }
        // What a claim has may be gone by the time when its pods are to go.
        let is_settled = |pod: &HeldPod| has(pod) && (pod.retained || !asking.evicts());
        let asked: Vec<HeldPod> = spared.into_iter().filter(|pod| !is_settled(pod)).collect();
        let lacking = |pods: &[HeldPod]| beyond_claims(&budget.key, pods.to_vec(), false, asking, snapshot);
        if asked.is_empty() {
            return;
        }
        let Some(obstacle) = lacking(&asked) else { return };
        // What it has for all of them but the last, it has for fewer, too.
        let counts: Vec<usize> = (1..=asked.len()).collect();
        let most = counts.partition_point(|count| asked.get(..*count).and_then(lacking).is_none());
        for pod in asked.iter().skip(most) {
            self.note(pod, obstacle.reason, asking.leaves_out);
        }
        self.note_beyond(obstacle);
    }

    /// Notes those of the movable pods of a budget that no claim helps. Answers whether the need leaves them out.
    pub(super) fn note_movable(
        &mut self,
        key: &BudgetKey,
        pods: &[ClassifiedPod],
        asking: Asking<'_>,
        snapshot: &Snapshot,
    ) -> bool {
        let has_one = !asking.evicts() && asking.claim.is_some_and(|claim| claim.has_movable_disruption(key));
        let obstacle = || beyond_claims(key, Vec::new(), true, asking, snapshot);
        let Some(obstacle) = (!has_one).then(obstacle).flatten() else {
            return false;
        };
        let movable = pods.iter().filter(|classified| classified.class == Class::Movable);
        for ClassifiedPod { pod, .. } in movable.filter(|one| snapshot.budgets_of(&one.pod).contains(key)) {
            let pod = HeldPod::new(&pod.key, &pod.uid, false);
            self.note(&pod, obstacle.reason, asking.leaves_out);
        }
        self.note_beyond(obstacle);
        asking.leaves_out
    }

    pub(super) fn note(&mut self, pod: &HeldPod, reason: LockReason, is_left_out: bool) {
        let uid = PodUid::from(pod.uid.as_str());
        // One of another budget comes before.
        self.pods.entry(uid.clone()).or_insert(reason);
        if is_left_out {
            self.left_out.insert(uid);
        }
    }

    fn note_beyond(&mut self, obstacle: Obstacle) {
        self.is_waited_for = true;
        let is_known = |known: &Obstacle| known.pdb == obstacle.pdb;
        if !self.beyond_claims.iter().any(is_known) {
            self.beyond_claims.push(obstacle);
        }
    }
}

/// What the budget lacks for these of the claim's pods, and for its movable ones, even without the claims of others.
fn beyond_claims(
    budget: &BudgetKey,
    pods: Vec<HeldPod>,
    movable: bool,
    asking: Asking<'_>,
    snapshot: &Snapshot,
) -> Option<Obstacle> {
    let needed = Disruptions {
        pdb: budget_ref(budget, snapshot),
        healthy_at_grant: 0,
        movable,
        pods,
    };
    let ledger = &snapshot.ledger.as_ref()?.ledger;
    ledger.beyond_claims(&asking.claim?.node_uid, needed, &snapshot.facts)
}

/// The budget that never lets the pod go, where whoever runs the pod may move it.
pub(super) fn never_allowing<'a>(pod: &PodFacts, snapshot: &'a Snapshot) -> Option<&'a BudgetKey> {
    let [key] = snapshot.budgets_of(pod) else { return None };
    let facts = snapshot.facts.get(key).filter(|facts| facts.current)?;
    let never_allows = facts.unusable.is_some_and(Unusable::never_allows);
    (never_allows && !pod.skips_budgets()).then_some(key)
}

/// Whether the eviction API never lets the pod go, as it stands.
pub(super) fn is_refused(pod: &PodFacts, snapshot: &Snapshot) -> bool {
    let is_for_good = |key: &BudgetKey| {
        let unusable = snapshot.facts.get(key).and_then(|facts| facts.unusable);
        unusable.is_some_and(Unusable::is_for_good)
    };
    let is_refused = match snapshot.budgets_of(pod) {
        [budget] => is_for_good(budget),
        _ => has_several_budgets(pod, snapshot),
    };
    is_refused && !pod.skips_budgets()
}

/// Whether several budgets select the pod for good. While Ceph's operator closes budgets, it may be in two for a moment.
fn has_several_budgets(pod: &PodFacts, snapshot: &Snapshot) -> bool {
    let budgets = snapshot.budgets_of(pod);
    let is_closed = |key: &BudgetKey| {
        let budget = snapshot.budgets.get(key);
        budget.is_some_and(|budget| budget.is_closed_by_ceph())
    };
    budgets.len() > 1 && !budgets.iter().any(is_closed)
}

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
            Class::Movable | Class::Held(_) | Class::LeftToOwner => {
                let text = |reason: LockReason| format!("pod {} {}", pod.key, reason.explanation());
                problems.extend(kept(pod, need.consents).map(|reason| about_pod(reason, pod, text(reason))));
                !pod.skips_budgets() && *class != Class::LeftToOwner
            }
        };
        if must_be_evicted && has_several_budgets(pod, snapshot) {
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
    problems.extend(need.excesses.iter().map(|excess| about_excess(excess, node)));
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
fn about_excess(excess: &Excess, node: &NodeFacts) -> BlockedBy {
    let Excess {
        budget, needed, most, ..
    } = excess;
    let pods = counted(needed, "pod");
    let text = if excess.is_for_last {
        format!(
            "the drain needs {} disruptions of budget {budget} at once, one of them for the pod that leaves last, and the budget can spare {most} at most",
            needed.saturating_add(1)
        )
    } else if excess.is_of_room && !node.unschedulable {
        // Whoever cordons it knows of room that comes only for a pod that waits.
        format!(
            "{pods} of budget {budget} find no room on other nodes, and it can spare {most} at most; if nodes are added for pods that wait for one, kubectl cordon {} begins the drain",
            node.name
        )
    } else {
        format!("{pods} of budget {budget} must stay down with the node, and it can spare {most} at most")
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
