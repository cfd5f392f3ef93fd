//! What is true of a cluster's OSDs, from Kubernetes and Ceph together.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use nodeward_api::CephClusterState;

use super::osd_disruptions::{CephFacts, Domain, OsdFacts, PgHealth};
use crate::ceph::OsdId;
use crate::ceph::pg_health::{CleanPattern, lacks_redundancy};
use crate::ceph::stop_check::PoolId;
use crate::ceph::topology::{DomainType, places};
use crate::policy::Policy;
use crate::snapshot::{BudgetForm, CephState, CephView, ClusterSnapshot, DomainKey, NodeState, OsdObjects, OsdPod};

/// What is true of a cluster's OSDs.
#[derive(Debug)]
pub(super) struct OsdView {
    /// Type of the failure domains.
    pub domain_type: DomainType,
    /// All OSDs, but for those that are no longer part of the cluster.
    pub osds: BTreeMap<OsdId, OsdFacts>,
    /// Failure domain by label, where there are Kubernetes objects: what budgets select by.
    pub labels: BTreeMap<OsdId, Option<Domain>>,
    /// The node of each OSD, and its failure domain; also of those whose pods are gone.
    nodes: Vec<(OsdId, String, String)>,
    /// Failure domains of the OSDs of each node, as they were published, where they have to be added: where an OSD without a pod
    /// last ran only Ceph can tell.
    published_nodes: BTreeMap<String, BTreeSet<String>>,
}

impl OsdView {
    pub(super) fn new(cluster: &ClusterSnapshot, policy: &Policy, published: Option<&CephClusterState>) -> Self {
        let view = cluster.ceph.last_view();
        let domain_type = domain_type(cluster, policy, published);
        let places = view.map(|view| places(&view.map.tree, domain_type)).unwrap_or_default();
        let in_ceph: BTreeMap<OsdId, _> = view
            .iter()
            .flat_map(|view| view.map.dump.osds.iter().map(|osd| (osd.id, osd)))
            .collect();
        let is_current = current_view(cluster).is_some();
        let labels = cluster.osds.iter();
        let mut this = Self {
            domain_type,
            osds: BTreeMap::new(),
            labels: labels
                .map(|(id, objects)| (*id, objects.locations.get(&domain_type).cloned()))
                .collect(),
            nodes: Vec::new(),
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
                (Some(_), None) => is_current,
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
            if let Some((node, domain)) = node.zip(domain.as_ref()) {
                this.nodes.push((id, node.to_string(), domain.to_string()));
            }
            let is = |wanted: fn(&OsdObjects) -> bool| objects.is_some_and(wanted);
            let (is_replaced, is_running) = (is(|osd| osd.is_being_replaced), is(|osd| osd.pod == OsdPod::Running));
            let is_up = osd.map(|osd| osd.up);
            let facts = OsdFacts {
                domain,
                host: place.host,
                // Without a Deployment it is Ceph's word alone.
                is_down: !is_replaced && (is_up == Some(false) || (objects.is_some() && !is_running)),
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
        let is_lost = |id| self.osds.get(id).is_some_and(|osd| osd.is_down && !osd.is_in);
        let mut nodes = self.published_nodes.clone();
        for (id, node, domain) in &self.nodes {
            if !excluded.contains(id) && !is_lost(id) {
                nodes.entry(node.clone()).or_default().insert(domain.clone());
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

    /// The failure domains that budgets can select.
    pub(super) fn labelled_domains(&self) -> BTreeSet<DomainKey> {
        let labels = self.labels.values().flatten();
        labels.map(|domain| (self.domain_type, Arc::clone(domain))).collect()
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

/// What Ceph's answers mean for a decision, pools `left_out` aside.
pub(super) fn ceph_facts(view: &CephView, pattern: &CleanPattern, left_out: &BTreeSet<PoolId>) -> CephFacts {
    let unclean = pattern.unclean(&view.status.pgmap);
    let health = |state: &str| {
        if !state.split('+').any(|flag| flag == "active") {
            PgHealth::Inactive
        } else if lacks_redundancy(state) {
            PgHealth::Degraded
        } else {
            PgHealth::Moving
        }
    };
    let answers = view.stop_answers.iter();
    CephFacts {
        is_fresh: view.fresh_since.is_some(),
        doubt: view.doubt,
        pgs: unclean
            .iter()
            .map(|(state, _)| health(state))
            .max()
            .unwrap_or(PgHealth::Clean),
        safe_together: answers
            .filter_map(|(osds, answer)| Some((osds.clone(), answer.may_stop(left_out)?)))
            .collect(),
    }
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
