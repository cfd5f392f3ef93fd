//! Everything that the watches tell, in one place, so that a reader sees it at one moment.

use std::collections::{BTreeMap, BTreeSet, HashMap, VecDeque};
use std::sync::Arc;

use jiff::{SignedDuration, Timestamp};
use nodeward_core::budget::OSD_APP;
use nodeward_core::deadline::saturating_add;
use nodeward_core::id::{BudgetKey, NamespacedName, NodeName, PodUid};
use nodeward_core::lease::LeaseView;
use nodeward_core::ledger::{BudgetFacts, BudgetPods, Claim, Ledger, OwnerDisruptions, Unusable};
use nodeward_core::node::{UNSCHEDULABLE_TAINT, UNSCHEDULABLE_TAINT_EFFECT};
use nodeward_core::pod::{Deletion, Phase};
use nodeward_core::remediation::Remediations;
use nodeward_scheduling::requirements::Namespaces;
use nodeward_scheduling::{NodeAffinity, NodeCapacity, SchedulingView};

use super::audit::Audit;
use super::pod_index::PodIndex;
use super::table::Table;
use crate::snapshot::{
    BudgetEntry, DISRUPTED_FOR, HoldFacts, LedgerFacts, NodeFacts, PodFacts, ReadableDrain, Snapshot, SnapshotScope,
};

/// Label of an OSD's pod that names its CRUSH host.
const OSD_HOST: &str = "topology-location-host";

/// So many pods that were deleted last are kept.
const DELETED_AT_MOST: usize = 512;

/// A pod whose eviction was accepted is deleted by then: between the two the API server waits for webhooks at most. One that is
/// healthy after that is not on its way out.
const DELETED_WITHIN: SignedDuration = SignedDuration::from_secs(30);

/// How long after its grace a deleted pod is still told of: the budgets' counts follow its end.
const TOLD_FOR: SignedDuration = SignedDuration::from_mins(2);

/// A volume that not all nodes can reach, and its claim.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct VolumeFacts {
    pub(super) claim: NamespacedName,
    pub(super) nodes: Arc<NodeAffinity>,
}

/// What the watches tell.
#[derive(Debug, Default)]
pub(super) struct ClusterIndex {
    pub(super) pods: PodIndex,
    pub(super) nodes: Table<NodeName, NodeFacts>,
    pub(super) budgets: Table<BudgetKey, BudgetEntry>,
    pub(super) volumes: Table<Arc<str>, VolumeFacts>,
    /// By claim, the name of its volume.
    pub(super) volumes_by_claim: HashMap<NamespacedName, Arc<str>>,
    pub(super) drains: Table<NodeName, ReadableDrain>,
    pub(super) ledgers: Table<Arc<str>, LedgerFacts>,
    pub(super) holds: Table<NamespacedName, HoldFacts>,
    pub(super) leases: Table<Arc<str>, LeaseView>,
    /// What would have been written, where nothing is.
    pub(super) audit: Option<Audit>,
    /// Pods that were deleted last without an eviction, the newest at the end: most are gone before anybody looks.
    deleted: VecDeque<Arc<PodFacts>>,
}

impl ClusterIndex {
    pub(super) fn ledger(&self) -> Option<Arc<LedgerFacts>> {
        let kept = self.audit.as_ref().and_then(|audit| audit.ledger.as_ref());
        kept.or_else(|| self.ledgers.get(nodeward_api::drain_ledger::NAME))
            .cloned()
    }

    pub(super) fn drain(&self, node: &str) -> Option<&Arc<ReadableDrain>> {
        let kept = || self.audit.as_ref()?.drains.get(node);
        self.drains.get(node).or_else(kept)
    }

    /// All drains by their nodes' names; of two for one node the one that is stored.
    pub(super) fn all_drains(&self) -> impl Iterator<Item = (&NodeName, &Arc<ReadableDrain>)> {
        let kept = self.audit.iter().flat_map(|audit| &audit.drains);
        let kept = kept.filter(|(node, _)| self.drains.get(*node).is_none());
        self.drains.iter().chain(kept)
    }

    /// Keeps a pod that is being deleted, unless it is evicted.
    pub(super) fn note_deleted(&mut self, pod: &PodFacts) {
        let is_plain = pod.deletion.as_ref().is_some_and(|deletion| !deletion.is_disruption);
        if !is_plain || pod.node.is_none() || pod.is_finished() || pod.is_daemon() || pod.mirror {
            return;
        }
        if self.deleted.iter().any(|known| known.uid == pod.uid) {
            return;
        }
        if self.deleted.len() == DELETED_AT_MOST {
            self.deleted.pop_front();
        }
        self.deleted.push_back(Arc::new(pod.clone()));
    }

    /// Pods that were deleted a moment ago without an eviction, on nodes that were cordoned by then.
    fn deleted_on_cordoned_nodes(&self, now: Timestamp) -> Vec<Arc<PodFacts>> {
        let is_recent = |pod: &&Arc<PodFacts>| {
            let deletion = pod.deletion.as_ref();
            deletion.is_some_and(|deletion| now < saturating_add(deletion.deadline, TOLD_FOR))
        };
        let is_cordoned = |pod: &&Arc<PodFacts>| {
            let node = pod.node.as_ref().and_then(|node| self.nodes.get(node));
            let deleted = pod.deletion.as_deref().map(Deletion::requested_at);
            let cordoned = |node: &NodeFacts| {
                let taint = node.taint(UNSCHEDULABLE_TAINT, Some(UNSCHEDULABLE_TAINT_EFFECT));
                taint.and_then(|taint| taint.time_added)
            };
            node.is_some_and(|node| node.is_cordoned() && cordoned(node) <= deleted)
        };
        self.deleted
            .iter()
            .filter(is_recent)
            .filter(is_cordoned)
            .cloned()
            .collect()
    }

    /// What a budget's owner keeps for himself at `now`.
    pub(super) fn owner_disruptions(&self, budget: &BudgetEntry, now: Timestamp) -> Option<OwnerDisruptions> {
        owner_disruptions(budget, self.holds.values().map(Arc::as_ref), now)
    }

    /// The pod of the same budget, this one or another, that moves by a rollout.
    pub(super) fn surging(&self, pod: &PodFacts, now: Timestamp) -> Option<Arc<PodFacts>> {
        let is_surging = |pod: &&Arc<PodFacts>| {
            let record = pod.surge.as_ref().filter(|_| pod.deletion.is_none());
            record.is_some_and(|record| !record.is_given_up(now))
        };
        let mut budgets = self.pods.budgets_of(pod);
        budgets.find_map(|key| self.pods.of_budget(&key).find(is_surging).cloned())
    }

    pub(super) fn budget_facts(&self, key: &BudgetKey, now: Timestamp) -> Option<BudgetFacts> {
        let budget = self.budgets.get(key)?;
        let pods = self.pods.of_budget(key);
        let pods = pods.map(|pod| (&**pod, self.is_refused_for_several_budgets(pod)));
        let ledger = self.ledger();
        let kept = Kept::of(budget, ledger.as_ref().map(|facts| &facts.ledger));
        Some(budget_facts(
            budget,
            pods,
            kept,
            self.owner_disruptions(budget, now),
            now,
        ))
    }

    /// Whether the eviction API refuses the pod for its several budgets. While Ceph's operator closes budgets, a pod may be in
    /// two for a moment, and a closed one refuses it anyway.
    fn is_refused_for_several_budgets(&self, pod: &PodFacts) -> bool {
        let is_closed = |key: BudgetKey| self.budgets.get(&key).is_some_and(|budget| budget.is_closed_by_ceph());
        self.pods.has_several_budgets(&pod.key) && !self.pods.budgets_of(pod).any(is_closed)
    }

    /// Hosts with OSDs that are down, by namespace, where one of these budgets is closed by Ceph's operator.
    fn down_osds(&self, budgets: &BTreeSet<BudgetKey>) -> BTreeMap<Arc<str>, BTreeSet<String>> {
        let is_closed = |key: &&BudgetKey| self.budgets.get(key).is_some_and(|budget| budget.is_closed_by_ceph());
        let namespaces: BTreeSet<&Arc<str>> = budgets.iter().filter(is_closed).map(|key| &key.namespace).collect();
        let down_in = |namespace: &&Arc<str>| {
            let pods = self.pods.of_namespace(namespace);
            let down = pods.filter(|pod| pod.labels.get("app") == Some(OSD_APP) && !pod.is_healthy());
            let host = |pod: &Arc<PodFacts>| {
                let label = pod.labels.get(OSD_HOST);
                let node = || pod.node.as_ref().map(NodeName::as_str);
                label.or_else(node).unwrap_or(&pod.key.name).to_owned()
            };
            (Arc::clone(namespace), down.map(host).collect())
        };
        namespaces.iter().map(down_in).collect()
    }

    pub(super) fn snapshot(&self, scope: &SnapshotScope, leases_are_used: bool, now: Timestamp) -> Snapshot {
        let ledger = self.ledger();
        let claims = ledger.as_ref().map(|facts| facts.ledger.claims()).unwrap_or_default();
        let mut nodes: BTreeSet<NodeName> = scope.nodes.clone();
        nodes.extend(self.all_drains().map(|(node, _)| node.clone()));
        nodes.extend(claims.iter().map(|claim| NodeName::from(claim.node.as_str())));
        let pods = nodes.into_iter().map(|node| {
            let mut pods: Vec<_> = self.pods.of_node(node.as_str()).cloned().collect();
            pods.sort_by(|a: &Arc<PodFacts>, b| a.key.cmp(&b.key));
            (node, pods)
        });
        let pods: BTreeMap<NodeName, Vec<Arc<PodFacts>>> = pods.collect();
        let deleted = self.deleted_on_cordoned_nodes(now);
        let covered = pods.values().flatten().chain(self.pods.awaiting()).chain(&deleted);
        let covering: HashMap<PodUid, Vec<BudgetKey>> = covered
            .map(|pod| (pod.uid.clone(), self.pods.budgets_of(pod).collect::<Vec<_>>()))
            .filter(|(_, budgets)| !budgets.is_empty())
            .collect();
        let mut wanted: BTreeSet<BudgetKey> = scope.budgets.clone();
        wanted.extend(covering.values().flatten().cloned());
        wanted.extend(claims.iter().flat_map(Claim::budgets));
        wanted.extend(claims.iter().flat_map(Claim::budgets_of_moving));
        let mut held = BTreeMap::new();
        for disruptions in claims.iter().flat_map(|claim| &claim.holds) {
            for pod in disruptions
                .pods
                .iter()
                .filter_map(|pod| self.pods.get(&disruptions.pdb.namespace, &pod.name))
            {
                held.insert(pod.key.clone(), Arc::clone(pod));
            }
        }
        let (mut drains, mut unreadable_drains) = (BTreeMap::new(), BTreeMap::new());
        for (node, drain) in self.all_drains() {
            match &**drain {
                Ok(drain) => _ = drains.insert(node.clone(), Arc::clone(drain)),
                Err(why) => _ = unreadable_drains.insert(node.clone(), Arc::clone(why)),
            }
        }
        let stale_entries = wanted
            .iter()
            .filter_map(|key| Some((key.clone(), self.stale_entries(key)?)));
        let stale_entries = stale_entries.collect();
        let unhealthy = |key: &BudgetKey| Some((key.clone(), self.unhealthy(key)?));
        let facts = |key: &BudgetKey| Some((key.clone(), self.budget_facts(key, now)?));
        let budget = |key: &BudgetKey| Some((key.clone(), Arc::clone(self.budgets.get(key)?)));
        Snapshot {
            nodes: self.nodes.to_map(),
            drains,
            unreadable_drains,
            stale_entries,
            held,
            covering,
            budgets: wanted.iter().filter_map(budget).collect(),
            unhealthy: wanted.iter().filter_map(unhealthy).collect(),
            facts: wanted.iter().filter_map(facts).collect(),
            down_osds: self.down_osds(&wanted),
            scheduling: self.scheduling_view(&pods.values().flatten().collect::<Vec<_>>()),
            pods,
            deleted,
            ledger,
            remediations: Remediations::default(),
            leases: leases_are_used.then(|| self.leases.to_map()),
            holds: self.holds.values().cloned().collect(),
        }
    }

    /// The pods that a budget's status counts as evicted though they are not, each with when that is certain. `None`: there
    /// are none.
    fn stale_entries(&self, key: &BudgetKey) -> Option<BTreeMap<String, Timestamp>> {
        let evicted = self.budgets.get(key)?.view.status.disrupted_pods.iter();
        let stale = evicted.filter_map(|(name, evicted)| {
            let pod = self.pods.get(&key.namespace, name.as_str())?;
            let certain = stale_from(pod, *evicted, || self.is_successor(pod, key))?;
            Some((name.clone(), certain))
        });
        let stale: BTreeMap<String, Timestamp> = stale.collect();
        (!stale.is_empty()).then_some(stale)
    }

    /// Whether claims hold disruptions of the budget for pods of this name, and none for this very pod.
    fn is_successor(&self, pod: &PodFacts, budget: &BudgetKey) -> bool {
        let ledger = self.ledger();
        let claims = ledger.iter().flat_map(|facts| facts.ledger.claims());
        let holds = claims.flat_map(|claim| &claim.holds);
        let held = holds.filter(|disruptions| BudgetKey::from(&disruptions.pdb) == *budget);
        let pods = held.flat_map(|disruptions| &disruptions.pods);
        let mut namesakes = pods.filter(|held| *held.name == *pod.key.name).peekable();
        namesakes.peek().is_some() && namesakes.all(|held| held.uid != pod.uid.as_str())
    }

    /// The pods of a budget that are not healthy; `None` where its status counts all of them as healthy.
    fn unhealthy(&self, key: &BudgetKey) -> Option<Vec<Arc<PodFacts>>> {
        let status = &self.budgets.get(key)?.view.status;
        if status.expected_pods.max(status.desired_healthy) <= status.current_healthy {
            return None;
        }
        let pods = self.pods.of_budget(key).filter(|pod| !pod.is_healthy());
        let mut pods: Vec<_> = pods.filter(|pod| pod.phase != Phase::Succeeded).cloned().collect();
        pods.sort_by(|a, b| a.key.cmp(&b.key));
        Some(pods)
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
                let volume = self.volumes_by_claim.get(&key).and_then(|name| self.volumes.get(name));
                volumes.extend(volume.map(|volume| (key, Arc::clone(&volume.nodes))));
            }
        }
        let neighbours = self.neighbours(&placed);
        SchedulingView {
            nodes: nodes.collect(),
            neighbours: neighbours.into_iter().collect(),
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

/// What a budget's owner keeps for himself at `now`, by all the holds that there are, whether they come from the watches
/// or were read just now.
pub fn owner_disruptions<'a>(
    budget: &BudgetEntry,
    holds: impl IntoIterator<Item = &'a HoldFacts>,
    now: Timestamp,
) -> Option<OwnerDisruptions> {
    if budget.view.hold.as_ref().is_some_and(|hold| hold.is_in_force(now)) {
        return Some(OwnerDisruptions::All);
    }
    let in_force = holds
        .into_iter()
        .filter(|hold| hold.budget == budget.view.key && hold.is_in_force(now));
    let disruptions: Option<Vec<i32>> = in_force.map(|hold| hold.disruptions).collect();
    let Some(disruptions) = disruptions else {
        return Some(OwnerDisruptions::All);
    };
    let sum = disruptions
        .iter()
        .fold(0_i32, |sum, disruptions| sum.saturating_add((*disruptions).max(0)));
    (!disruptions.is_empty()).then_some(OwnerDisruptions::Some(sum))
}

/// What the ledger says of a budget, and the API server's clock.
#[derive(Debug, Clone, Copy, Default)]
pub struct Kept {
    /// How many pods there should be, where the budget's status does not tell.
    pub expected_pods: Option<i32>,
    /// When the newest pod of the first grant in force was created.
    pub newest_pod: Option<Timestamp>,
    /// A time that the API server's clock has reached.
    pub server_time: Option<Timestamp>,
    /// How many healthy pods it had at the grants in force, those that were down under a claim included.
    healthy_at_grants: i32,
}

impl Kept {
    pub fn of(budget: &BudgetEntry, ledger: Option<&Ledger>) -> Self {
        let Some(ledger) = ledger else {
            return Self::default();
        };
        let view = &budget.view;
        let has_rows = !ledger.budgets.is_empty();
        let row = has_rows.then(|| ledger.budget_row(&budget.reference())).flatten();
        let expected_pods = row.and_then(|row| row.expected_pods);
        let healthy_at_grants = || {
            let holds = ledger.claims().iter().flat_map(|claim| &claim.holds);
            let of_budget = holds.filter(|held| BudgetKey::from(&held.pdb) == view.key && *held.pdb.uid == *view.uid);
            of_budget.map(|held| held.healthy_at_grant).max().unwrap_or_default()
        };
        Self {
            expected_pods,
            newest_pod: row.and_then(|row| row.first_grant).map(|first| first.newest_pod),
            server_time: None,
            healthy_at_grants: if budget.counts_present_pods && expected_pods.is_none() {
                healthy_at_grants()
            } else {
                0
            },
        }
    }
}

/// When it is certain that an entry of `disruptedPods` does not stand for an eviction of the pod that bears its name now. Both
/// times are whole seconds: of one second, it takes the UID to tell the pod from its successor.
fn stale_from(pod: &PodFacts, evicted: Timestamp, is_successor: impl FnOnce() -> bool) -> Option<Timestamp> {
    if pod.created > evicted || (pod.created == evicted && is_successor()) {
        return Some(evicted);
    }
    pod.is_healthy().then(|| saturating_add(evicted, DELETED_WITHIN))
}

/// What the ledger reads of a budget and the pods that it selects, each with whether another budget selects it too. They
/// come from the watches or were read just now, and `kept` from the ledger.
pub fn budget_facts<'a>(
    budget: &BudgetEntry,
    pods: impl IntoIterator<Item = (&'a PodFacts, bool)>,
    kept: Kept,
    owner_disruptions: Option<OwnerDisruptions>,
    now: Timestamp,
) -> BudgetFacts {
    let (view, status) = (&budget.view, &budget.view.status);
    let is_disrupted = |pod: &PodFacts| {
        let evicted = status.disrupted_pods.get(&*pod.key.name);
        evicted.is_some_and(|evicted| now < saturating_add(*evicted, DISRUPTED_FOR))
    };
    let mut healthy = BTreeSet::new();
    let mut several = BTreeSet::new();
    let mut has_foreign_owner = false;
    let mut counts = BudgetPods::default();
    let (mut newest, mut come_back_by_name) = (None, true);
    for (pod, has_several_budgets) in pods {
        let is_healthy = pod.is_healthy() && !is_disrupted(pod);
        if is_healthy {
            healthy.insert(pod.uid.clone());
        }
        if pod.is_kept_up() {
            counts.all += 1;
            let is_of_first_grant = kept.newest_pod.is_none_or(|newest| pod.created <= newest);
            counts.standing += i32::from(is_healthy || is_of_first_grant);
            newest = newest.max(Some(pod.created));
            come_back_by_name &= pod.owner().keeps_names();
        }
        has_foreign_owner |= pod.owner().is_foreign();
        if has_several_budgets {
            several.insert(pod.uid.clone());
        }
    }
    counts.newest = newest.filter(|_| !come_back_by_name).map(|newest| {
        // Whoever is created in that second from now on must not pass for one of those that are there.
        let is_over = kept.server_time.is_some_and(|reached| newest < reached);
        saturating_add(newest, -SignedDuration::from_secs(i64::from(!is_over)))
    });
    counts.expected = status.expected_pods;
    let mut expected_pods = status.expected_pods;
    if budget.counts_present_pods {
        // A pod that was evicted no longer exists, and an owner of another kind than Kubernetes' own may not make it again
        // before its node is back: its disruption would seem to be returned.
        let seen = if has_foreign_owner { kept.healthy_at_grants } else { 0 };
        let known = kept.expected_pods.unwrap_or(seen);
        counts.expected = counts.all.max(known);
        expected_pods = expected_pods.max(known);
    }
    let unusable = if status.sync_failed && !budget.zero_unavailable {
        // Its numbers are those of before.
        Some(Unusable::SyncFailed)
    } else {
        Unusable::of(
            budget.zero_unavailable,
            view.kept_by_ceph_operator,
            expected_pods,
            status.desired_healthy,
        )
    };
    BudgetFacts {
        key: view.key.clone(),
        uid: Arc::clone(&view.uid),
        current: view.is_status_current(),
        disruptions_allowed: status.disruptions_allowed,
        desired_healthy: status.desired_healthy,
        expected_pods,
        unusable,
        is_by_node: view.counts_nodes,
        healthy,
        several,
        owner_disruptions,
        pods: counts,
    }
}
