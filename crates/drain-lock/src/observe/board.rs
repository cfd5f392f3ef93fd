//! Everything that the watches tell, in one place, so that a reader sees it at one moment.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::sync::Arc;

use jiff::Timestamp;
use nodeward_api::NodeDrain;
use nodeward_core::id::{BudgetKey, NamespacedName, NodeName, PodUid};
use nodeward_core::ledger::{BudgetFacts, Claim, Facts, Misconfigured, OwnerUnits};
use nodeward_scheduling::requirements::Namespaces;
use nodeward_scheduling::{NodeAffinity, NodeCapacity, SchedulingView};

use super::pods::Pods;
use super::table::Table;
use crate::snapshot::{
    Asked, BudgetEntry, DISRUPTED_FOR, HoldFacts, LeaseFacts, LedgerFacts, LedgerState, NodeFacts, PodFacts, Snapshot,
};

/// A volume that not all nodes can reach, and its claim.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct VolumeFacts {
    pub(super) claim: NamespacedName,
    pub(super) nodes: Arc<NodeAffinity>,
}

/// What the watches tell.
#[derive(Debug, Default)]
pub(super) struct Board {
    pub(super) pods: Pods,
    pub(super) nodes: Table<NodeName, NodeFacts>,
    pub(super) budgets: Table<BudgetKey, BudgetEntry>,
    pub(super) volumes: Table<Arc<str>, VolumeFacts>,
    volumes_by_claim: HashMap<NamespacedName, Arc<NodeAffinity>>,
    pub(super) drains: Table<NodeName, NodeDrain>,
    pub(super) ledgers: Table<Arc<str>, LedgerFacts>,
    pub(super) holds: Table<NamespacedName, HoldFacts>,
    pub(super) leases: Table<Arc<str>, LeaseFacts>,
}

impl Board {
    pub(super) fn put_budget(&mut self, key: BudgetKey, entry: BudgetEntry) -> bool {
        self.pods.put_budget(&key, &entry.view.selector);
        self.budgets.put(key, entry)
    }

    pub(super) fn remove_budget(&mut self, key: &BudgetKey) -> bool {
        self.pods.remove_budget(key);
        self.budgets.remove(key).is_some()
    }

    pub(super) fn put_volume(&mut self, name: Arc<str>, volume: VolumeFacts) -> bool {
        if let Some(known) = self.volumes.get(&name)
            && known.claim != volume.claim
        {
            let known = Arc::clone(known);
            self.forget_claim(&known);
        }
        self.volumes_by_claim
            .insert(volume.claim.clone(), Arc::clone(&volume.nodes));
        self.volumes.put(name, volume)
    }

    pub(super) fn remove_volume(&mut self, name: &str) -> bool {
        let known = self.volumes.remove(name);
        if let Some(known) = &known {
            self.forget_claim(known);
        }
        known.is_some()
    }

    pub(super) fn sweep_volumes(&mut self) -> bool {
        let gone = self.volumes.sweep();
        for (_, volume) in &gone {
            self.forget_claim(volume);
        }
        !gone.is_empty()
    }

    /// Forgets which volume a claim has, unless another volume has taken the claim over.
    fn forget_claim(&mut self, volume: &VolumeFacts) {
        let is_the_same = |nodes: &Arc<NodeAffinity>| Arc::ptr_eq(nodes, &volume.nodes);
        if self.volumes_by_claim.get(&volume.claim).is_some_and(is_the_same) {
            self.volumes_by_claim.remove(&volume.claim);
        }
    }

    pub(super) fn ledger(&self) -> LedgerState {
        self.ledgers
            .get(nodeward_api::drain_ledger::NAME)
            .map_or(LedgerState::Absent, |ledger| LedgerState::Present(Arc::clone(ledger)))
    }

    /// What a budget's owner keeps for himself at `now`.
    pub(super) fn owner_units(&self, budget: &BudgetEntry, now: Timestamp) -> Option<OwnerUnits> {
        owner_units(budget, self.holds.values().map(Arc::as_ref), now)
    }

    pub(super) fn budget_facts(&self, key: &BudgetKey, now: Timestamp) -> Option<BudgetFacts> {
        let budget = self.budgets.get(key)?;
        let covered = self.pods.of_budget(key).map(|pod| Covered {
            pod,
            twice: self.pods.is_covered_twice(&pod.key),
        });
        Some(facts_of(budget, covered, self.owner_units(budget, now), now))
    }

    pub(super) fn snapshot(&self, asked: &Asked, leases_are_used: bool, now: Timestamp) -> Snapshot {
        let ledger = self.ledger();
        let claims = match &ledger {
            LedgerState::Present(ledger) => ledger.ledger.claims(),
            LedgerState::Absent => &[],
        };
        let mut nodes: BTreeSet<NodeName> = asked.nodes.clone();
        nodes.extend(self.drains.iter().map(|(node, _)| node.clone()));
        nodes.extend(claims.iter().map(|claim| NodeName::from(claim.node.as_str())));
        let pods: BTreeMap<NodeName, Vec<Arc<PodFacts>>> = nodes
            .into_iter()
            .map(|node| {
                let pods = sorted(self.pods.of_node(node.as_str()));
                (node, pods)
            })
            .collect();
        let covering: BTreeMap<PodUid, Vec<BudgetKey>> = pods
            .values()
            .flatten()
            .chain(self.pods.awaiting())
            .map(|pod| (pod.uid.clone(), self.pods.budgets_of(pod).collect::<Vec<_>>()))
            .filter(|(_, budgets)| !budgets.is_empty())
            .collect();
        let mut wanted: BTreeSet<BudgetKey> = asked.budgets.clone();
        wanted.extend(covering.values().flatten().cloned());
        wanted.extend(claims.iter().flat_map(Claim::budgets));
        let mut held = BTreeMap::new();
        for units in claims.iter().flat_map(|claim| &claim.holds) {
            let namespace: Arc<str> = units.pdb.namespace.as_str().into();
            for pod in units.pods.iter().filter_map(|pod| self.pods.get(&namespace, &pod.name)) {
                held.insert(pod.key.clone(), Arc::clone(pod));
            }
        }
        let facts: Facts = wanted
            .iter()
            .filter_map(|key| Some((key.clone(), self.budget_facts(key, now)?)))
            .collect();
        Snapshot {
            nodes: self
                .nodes
                .iter()
                .map(|(name, node)| (name.clone(), Arc::clone(node)))
                .collect(),
            drains: self
                .drains
                .iter()
                .map(|(name, drain)| (name.clone(), Arc::clone(drain)))
                .collect(),
            held,
            covering,
            budgets: wanted
                .iter()
                .filter_map(|key| Some((key.clone(), Arc::clone(self.budgets.get(key)?))))
                .collect(),
            facts,
            scheduling: self.scheduling_view(&pods.values().flatten().collect::<Vec<_>>()),
            pods,
            ledger,
            leases: leases_are_used.then(|| {
                self.leases
                    .iter()
                    .map(|(name, lease)| (Arc::clone(name), Arc::clone(lease)))
                    .collect()
            }),
            holds: self.holds.values().cloned().collect(),
        }
    }

    /// All that decides where these pods, and those that wait for a node, can go.
    fn scheduling_view(&self, leaving: &[&Arc<PodFacts>]) -> SchedulingView {
        let nodes = self.nodes.values().map(|node| NodeCapacity {
            node: Arc::clone(node),
            usage: self.pods.usage_of(node.name.as_str()),
        });
        let mut pending: Vec<Arc<PodFacts>> = self.pods.awaiting().cloned().collect();
        pending.sort_by(|a, b| (a.created, &a.key).cmp(&(b.created, &b.key)));
        let placed: Vec<&Arc<PodFacts>> = leaving
            .iter()
            .copied()
            .chain(&pending)
            .filter(|pod| !pod.is_daemon() && !pod.mirror)
            .collect();
        let mut volumes = HashMap::new();
        for pod in &placed {
            for claim in &pod.claims {
                let key = NamespacedName::new(Arc::clone(&pod.key.namespace), Arc::clone(claim));
                if let Some(nodes) = self.volumes_by_claim.get(&key) {
                    volumes.insert(key, Arc::clone(nodes));
                }
            }
        }
        let neighbours = self.neighbours(&placed);
        SchedulingView {
            nodes: nodes.collect(),
            neighbours,
            volumes,
            pending,
        }
    }

    /// The bound pods that pods to be placed look at, or that would repel them.
    fn neighbours(&self, placed: &[&Arc<PodFacts>]) -> Vec<Arc<PodFacts>> {
        let mut looked_at: BTreeSet<&str> = BTreeSet::new();
        let mut own: BTreeSet<&str> = BTreeSet::new();
        let mut everywhere = false;
        for pod in placed {
            own.insert(&pod.key.namespace);
            let requirements = &pod.requirements;
            if !requirements.spread.is_empty() {
                looked_at.insert(&pod.key.namespace);
            }
            for term in requirements.affinity.iter().chain(&requirements.anti_affinity) {
                match &term.namespaces {
                    Namespaces::Own => _ = looked_at.insert(&pod.key.namespace),
                    Namespaces::Listed(names) => looked_at.extend(names.iter().map(|name| &**name)),
                    Namespaces::All | Namespaces::Unknown => everywhere = true,
                }
            }
        }
        let counts = |pod: &&Arc<PodFacts>| pod.node.is_some() && !pod.is_finished();
        if everywhere {
            return self.pods.all().filter(counts).cloned().collect();
        }
        let mut neighbours: Vec<Arc<PodFacts>> = Vec::new();
        for namespace in &looked_at {
            neighbours.extend(self.pods.of_namespace(namespace).filter(counts).cloned());
        }
        for namespace in own.difference(&looked_at) {
            neighbours.extend(self.pods.repelling_in(namespace).filter(counts).cloned());
        }
        let is_in = |pod: &&Arc<PodFacts>| looked_at.contains(&*pod.key.namespace) || own.contains(&*pod.key.namespace);
        let far = self.pods.repelling_far().filter(counts).filter(|pod| !is_in(pod));
        neighbours.extend(far.cloned());
        neighbours
    }
}

fn sorted<'a>(pods: impl Iterator<Item = &'a Arc<PodFacts>>) -> Vec<Arc<PodFacts>> {
    let mut pods: Vec<Arc<PodFacts>> = pods.cloned().collect();
    pods.sort_by(|a, b| a.key.cmp(&b.key));
    pods
}

/// What a budget's owner keeps for himself at `now`, by all the holds that there are, whether they come from the watches
/// or were read just now.
pub fn owner_units<'a>(
    budget: &BudgetEntry,
    holds: impl IntoIterator<Item = &'a HoldFacts>,
    now: Timestamp,
) -> Option<OwnerUnits> {
    if budget.view.hold.is_some() {
        return Some(OwnerUnits::All);
    }
    let mut kept = None;
    for hold in holds {
        if hold.budget != budget.view.key || !hold.is_in_force(now) {
            continue;
        }
        let Some(units) = hold.units else {
            return Some(OwnerUnits::All);
        };
        kept = Some(kept.unwrap_or(0_i32).saturating_add(units.max(0)));
    }
    kept.map(OwnerUnits::Some)
}

/// A pod of a budget.
#[derive(Debug, Clone, Copy)]
pub struct Covered<'a> {
    /// The pod.
    pub pod: &'a PodFacts,
    /// Whether another budget selects it, too.
    pub twice: bool,
}

/// What the ledger reads of a budget and the pods that it selects, whether they come from the watches or were read just
/// now.
pub fn facts_of<'a>(
    budget: &BudgetEntry,
    pods: impl IntoIterator<Item = Covered<'a>>,
    owner_units: Option<OwnerUnits>,
    now: Timestamp,
) -> BudgetFacts {
    let view = &budget.view;
    let status = &view.status;
    let is_disrupted = |pod: &PodFacts| {
        let evicted = status.disrupted_pods.get(&*pod.key.name);
        evicted.is_some_and(|evicted| now < evicted.checked_add(DISRUPTED_FOR).unwrap_or(Timestamp::MAX))
    };
    let mut healthy = BTreeSet::new();
    let mut several = BTreeSet::new();
    for covered in pods {
        if covered.pod.is_healthy() && !is_disrupted(covered.pod) {
            healthy.insert(covered.pod.uid.clone());
        }
        if covered.twice {
            several.insert(covered.pod.uid.clone());
        }
    }
    BudgetFacts {
        key: view.key.clone(),
        uid: Arc::clone(&view.uid),
        current: view.is_status_current(),
        disruptions_allowed: status.disruptions_allowed,
        desired_healthy: status.desired_healthy,
        expected_pods: status.expected_pods,
        misconfigured: Misconfigured::of(budget.zero_unavailable, status.expected_pods, status.desired_healthy),
        healthy,
        several,
        owner_units,
    }
}
