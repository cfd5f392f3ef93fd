//! What is true of a cluster's OSDs, from Kubernetes and Ceph together.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use jiff::Timestamp;
use nodeward_api::CephClusterState;
use nodeward_core::deadline::is_due;

use super::osd_disruptions::{CephFacts, Domain, OsdFacts, PgHealth, members};
use crate::ceph::OsdId;
use crate::ceph::freshness::Doubt;
use crate::ceph::pg_health::lacks_redundancy;
use crate::ceph::stop_check::PoolId;
use crate::ceph::topology::{DomainType, places};
use crate::policy::Policy;
use crate::snapshot::{
    BudgetForm, CephState, CephView, ClusterSnapshot, DomainKey, NodeName, NodeState, OsdObjects, OsdPod,
};

/// What is true of a cluster's OSDs.
#[derive(Debug)]
pub(super) struct OsdView {
    /// Type of the failure domains.
    pub domain_type: DomainType,
    /// All OSDs, but for those that are no longer part of the cluster.
    pub osds: BTreeMap<OsdId, OsdFacts>,
    /// Failure domain by label, where there are Kubernetes objects: what budgets select by.
    pub labels: BTreeMap<OsdId, Option<Domain>>,
    /// Failure domains of the OSDs of each node, as they were published, where they have to be added: where an OSD without a pod
    /// last ran only Ceph can tell.
    published_nodes: BTreeMap<String, BTreeSet<String>>,
}

impl OsdView {
    pub(super) fn new(
        cluster: &ClusterSnapshot,
        policy: &Policy,
        published: Option<&CephClusterState>,
        now: Timestamp,
    ) -> Self {
        let view = cluster.ceph.last_view();
        let domain_type = domain_type(cluster, policy, published);
        let places = view.map(|view| places(&view.map.tree, domain_type)).unwrap_or_default();
        let in_ceph: BTreeMap<OsdId, _> = view
            .iter()
            .flat_map(|view| view.map.dump.osds.iter().map(|osd| (osd.id, osd)))
            .collect();
        let current = current_view(cluster);
        let pattern = &cluster.cluster.clean_pattern;
        let is_well =
            current.is_some_and(|view| view.fresh_since.is_some() && pattern.unclean(&view.status.pgmap).is_empty());
        let labels = cluster.osds.iter();
        let mut this = Self {
            domain_type,
            osds: BTreeMap::new(),
            labels: labels
                .map(|(id, objects)| (*id, objects.locations.get(&domain_type).cloned()))
                .collect(),
            published_nodes: published
                .filter(|_| view.is_none())
                .map(|published| published.nodes.clone())
                .unwrap_or_default(),
        };
        let ids: BTreeSet<OsdId> = in_ceph.keys().chain(cluster.osds.keys()).copied().collect();
        for id in ids {
            let (objects, osd) = (cluster.osds.get(&id), in_ceph.get(&id).copied());
            let is_gone = match (objects, osd) {
                // Purged from Ceph, and its Deployment is still there: it has no data.
                (Some(_), None) => current.is_some(),
                // Taken out of service, and Rook has removed its Deployment.
                (None, Some(osd)) => !osd.up && !osd.is_in,
                _ => false,
            };
            if is_gone {
                continue;
            }
            let place = places.get(&id).cloned().unwrap_or_default();
            let domain = place.domain.or_else(|| this.labels.get(&id).cloned().flatten());
            let node = objects.and_then(|objects| objects.last_node.as_ref());
            let is = |wanted: fn(&OsdObjects) -> bool| objects.is_some_and(wanted);
            let (is_replaced, is_running) = (is(|osd| osd.is_being_replaced), is(|osd| osd.pod == OsdPod::Running));
            let is_up = osd.map(|osd| osd.up);
            let abandoned_at = objects.and_then(|osd| osd.abandoned_at);
            let is_abandoned = is_well && is_up == Some(true) && abandoned_at.is_some_and(|at| is_due(at, now));
            let facts = OsdFacts {
                domain,
                host: place.host,
                node: node.cloned(),
                // Without a Deployment it is Ceph's word alone.
                is_abandoned,
                is_down: !is_replaced && !is_abandoned && (is_up == Some(false) || (objects.is_some() && !is_running)),
                is_up_in_ceph: is_up == Some(true),
                is_in: osd.is_none_or(|osd| osd.is_in),
                is_draining: is(|osd| matches!(osd.node_state, NodeState::Draining(_) | NodeState::Gone)),
            };
            this.osds.insert(id, facts);
        }
        this
    }

    /// Failure domains of the OSDs of each node, without those that are `excluded` from budgets or down and out: nobody misses
    /// them.
    pub(super) fn domains_of_nodes(&self, excluded: &BTreeSet<OsdId>) -> BTreeMap<String, BTreeSet<String>> {
        let mut nodes = self.published_nodes.clone();
        for (id, osd) in &self.osds {
            let is_lost = osd.is_down && !osd.is_in;
            let place = osd.node.as_ref().zip(osd.domain.as_ref());
            if let Some((node, domain)) = place.filter(|_| !is_lost && !excluded.contains(id)) {
                nodes.entry(node.to_string()).or_default().insert(domain.to_string());
            }
        }
        nodes
    }

    /// OSDs that are down.
    pub(super) fn down(&self) -> impl Iterator<Item = (OsdId, &OsdFacts)> {
        let down = self.osds.iter().filter(|(_, osd)| osd.is_down);
        down.map(|(id, osd)| (*id, osd))
    }

    /// OSDs whose label is not the failure domain that CRUSH has them in.
    pub(super) fn mislabelled(&self) -> BTreeSet<OsdId> {
        let known = self.osds.iter().filter(|(_, osd)| osd.domain.is_some());
        known
            .filter(|(id, osd)| self.labels.get(id).is_some_and(|label| *label != osd.domain))
            .map(|(id, _)| *id)
            .collect()
    }

    /// The OSDs that budgets can select, each with the failure domain of its label.
    pub(super) fn labelled(&self) -> impl Iterator<Item = (OsdId, Option<DomainKey>)> {
        let labels = self.labels.iter().filter(|(id, _)| self.osds.contains_key(id));
        labels.map(|(id, label)| {
            let domain = label.as_ref().map(|domain| (self.domain_type, Arc::clone(domain)));
            (*id, domain)
        })
    }

    /// The failure domains that budgets can select.
    pub(super) fn labelled_domains(&self) -> BTreeSet<DomainKey> {
        let labels = self.labels.values().flatten();
        labels.map(|domain| (self.domain_type, Arc::clone(domain))).collect()
    }

    /// The failure domain that has exactly these OSDs.
    pub(super) fn domain_of(&self, osds: &BTreeSet<OsdId>) -> Option<&Domain> {
        let domain = self.osds.get(osds.first()?)?.domain.as_ref()?;
        (members(&self.osds, domain) == *osds).then_some(domain)
    }

    /// The nodes that have OSDs, and none but these.
    pub(super) fn nodes_of(&self, osds: &BTreeSet<OsdId>) -> BTreeSet<String> {
        let mut nodes: BTreeMap<&NodeName, bool> = BTreeMap::new();
        for (id, osd) in &self.osds {
            if let Some(node) = &osd.node {
                *nodes.entry(node).or_insert(true) &= osds.contains(id);
            }
        }
        let nodes = nodes.into_iter().filter(|(_, has_no_other)| *has_no_other);
        nodes.map(|(node, _)| node.to_string()).collect()
    }

    /// Whether no OSD of a bucket is away by a drain any more; true of one without OSDs. One that is down for good, which Ceph has
    /// marked out, does not come back.
    pub(super) fn is_back(&self, bucket: &str) -> bool {
        let mut away = self.down().filter(|(_, osd)| osd.is_in || osd.is_draining);
        !away.any(|(_, osd)| {
            [&osd.host, &osd.domain]
                .into_iter()
                .flatten()
                .any(|name| **name == *bucket)
        })
    }
}

/// What Ceph says, if it was asked after the last change of pods and nodes.
pub(super) fn current_view(cluster: &ClusterSnapshot) -> Option<&CephView> {
    match &cluster.ceph {
        CephState::Answering(view) if cluster.osds_changed_at <= view.asked_at => Some(view),
        _ => None,
    }
}

/// What Ceph's last answers mean for a decision, pools `left_out` aside; `None` while it does not answer.
pub(super) fn ceph_facts(cluster: &ClusterSnapshot, left_out: &BTreeSet<PoolId>) -> Option<CephFacts> {
    let CephState::Answering(view) = &cluster.ceph else {
        return None;
    };
    let pattern = &cluster.cluster.clean_pattern;
    let mut unclean = pattern.unclean(&view.status.pgmap);
    let are_all_clean = unclean.is_empty();
    unclean.retain(|(state, count)| {
        let states = left_out.iter().filter_map(|pool| view.pool_states.get(pool));
        states.filter_map(|states| states.get(*state)).sum::<i64>() < *count
    });
    // The report of the pools is of another moment: what is in a state now need not be what was. What it says of the pools that count
    // counts, too.
    if !are_all_clean {
        let counted = view.pool_states.iter().filter(|(pool, _)| !left_out.contains(pool));
        let states = counted.flat_map(|(_, states)| states);
        unclean
            .extend(states.filter_map(|(state, count)| (!pattern.matches(state)).then_some((state.as_str(), *count))));
    }
    let health = |state: &str| {
        if !state.split('+').any(|flag| flag == "active") {
            PgHealth::Inactive
        } else if lacks_redundancy(state) {
            PgHealth::Degraded
        } else {
            PgHealth::Moving
        }
    };
    // Another process has seen fresh statistics of the same.
    let published = cluster.published.as_ref().and_then(|known| known.state.as_ref());
    let is_known = published.is_some_and(|state| state.statistics_of.as_deref() == Some(&*view.basis));
    let answers = view.stop_answers.iter();
    Some(CephFacts {
        is_current: current_view(cluster).is_some(),
        is_fresh: view.fresh_since.is_some(),
        doubt: if view.doubt == Doubt::Unwatched && is_known {
            Doubt::None
        } else {
            view.doubt
        },
        pgs: unclean
            .iter()
            .map(|(state, _)| health(state))
            .max()
            .unwrap_or(PgHealth::Clean),
        safe_together: answers
            .filter_map(|(osds, answer)| Some((osds.clone(), answer.may_stop(left_out)?)))
            .collect(),
    })
}

/// Type of the failure domains: as configured where CRUSH has it, else as CRUSH has it, else what was known last.
fn domain_type(cluster: &ClusterSnapshot, policy: &Policy, published: Option<&CephClusterState>) -> DomainType {
    let of_ceph = || {
        let view = cluster.ceph.last_view()?;
        Some(DomainType::of_pools(&view.map.dump.pools, &view.map.rules))
    };
    let of_published = || published?.failure_domain_type.as_ref()?.parse().ok();
    let of_budgets = || {
        let mut forms = cluster.budgets.values().filter_map(|budget| budget.form.as_ref());
        forms.find_map(|form| match form {
            BudgetForm::OsdsOfDomain { domain, .. } => Some(domain.0),
            BudgetForm::Osds(default) => default.except_domains.first().map(|domain| domain.0),
            BudgetForm::Daemon(_) => None,
        })
    };
    let has_any = |wanted: &DomainType| {
        let view = cluster.ceph.last_view();
        view.is_none_or(|view| view.map.tree.nodes.iter().any(|node| node.kind == wanted.name()))
    };
    let configured = policy.failure_domain_type.filter(has_any);
    let found = configured.or_else(of_ceph).or_else(of_published).or_else(of_budgets);
    found.unwrap_or(DomainType::HOST)
}
