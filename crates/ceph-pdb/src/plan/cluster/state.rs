//! What is published of a cluster.

use std::collections::{BTreeMap, BTreeSet};

use jiff::Timestamp;
use nodeward_api::CephClusterState;
use nodeward_api::ceph_state::{DisruptionsPreview, PublishedCondition, PublishedDisruptions};
use nodeward_api::reason::CephReason;

use super::super::facts::current_view;
use super::super::noout::NooutPhase;
use super::super::osd_disruptions::{Decision, Disruptions};
use super::super::write::Write;
use super::Case;
use crate::snapshot::CephState;

impl Case<'_> {
    /// Since when statistics are fresh. Each process knows of its own time only: two that lead at once would write in turns.
    fn fresh_since(&self) -> Option<Timestamp> {
        let own = current_view(self.cluster)?.fresh_since?;
        let before = self.published.and_then(|state| state.statistics_fresh_since);
        Some(before.map_or(own, |before| before.min(own)))
    }

    /// What they were of when they were last fresh.
    fn statistics_of(&self) -> Option<String> {
        let fresh = current_view(self.cluster).filter(|view| view.fresh_since.is_some());
        let own = fresh.map(|view| view.basis.to_string());
        own.or_else(|| self.published.and_then(|state| state.statistics_of.clone()))
    }

    pub(super) fn state(
        &self,
        decision: &Decision,
        current: &Disruptions,
        is_clean: Option<bool>,
        recovering_since: Option<Timestamp>,
        conditions: Vec<PublishedCondition>,
    ) -> CephClusterState {
        let none = BTreeSet::new();
        let (disruptions, exempt, excluded) = match &decision.disruptions {
            Disruptions::Open { excluded } => (PublishedDisruptions::Open, &none, excluded),
            Disruptions::Closed { exempt } if current.allows_no_more_than(exempt) => {
                (PublishedDisruptions::Closed, exempt, &none)
            }
            Disruptions::Closed { exempt } => (PublishedDisruptions::Closing, exempt, &none),
        };
        let mut down_osds: BTreeMap<String, BTreeSet<i64>> = BTreeMap::new();
        for (id, osd) in self.osds.down() {
            let domain = osd.domain.as_deref().unwrap_or_default();
            down_osds.entry(domain.to_owned()).or_default().insert(id);
        }
        let is_type_known = self.policy.failure_domain_type.is_some() || self.last_view().is_some();
        CephClusterState {
            exempt_domain: self.osds.domain_of(exempt).map(ToString::to_string),
            exempt_nodes: self.osds.nodes_of(exempt),
            failure_domain_type: if is_type_known {
                Some(self.osds.domain_type.to_string())
            } else {
                self.published.and_then(|state| state.failure_domain_type.clone())
            },
            // Until the budgets are open, not only decided to be: the steps between rest on the same time.
            recovering_since,
            is_clean,
            statistics_fresh_since: self.fresh_since(),
            down_osds,
            nodes: self.osds.domains_of_nodes(excluded),
            noout: self.noout(),
            conditions,
            ..self.state_since(disruptions, decision.reason)
        }
    }

    /// A state without details, since it was published first.
    pub(super) fn state_since(&self, disruptions: PublishedDisruptions, reason: CephReason) -> CephClusterState {
        let before = self.published.filter(|before| before.disruptions == disruptions);
        CephClusterState {
            cluster: self.cluster.cluster.name.to_string(),
            leader_lease: self.cluster.leader_lease.clone(),
            disruptions,
            exempt_domain: None,
            exempt_nodes: BTreeSet::new(),
            since: before.map_or(self.now, |before| before.since),
            reason,
            failure_domain_type: None,
            recovering_since: None,
            is_clean: None,
            statistics_fresh_since: None,
            statistics_of: self.statistics_of(),
            down_osds: BTreeMap::new(),
            nodes: BTreeMap::new(),
            noout: BTreeMap::new(),
            conditions: Vec::new(),
            preview: None,
        }
    }

    /// Flags that are ours, from the first record to the last.
    pub(super) fn noout(&self) -> BTreeMap<String, Timestamp> {
        let records = self.cluster.state_map.noout.iter();
        let ours = records.filter(|(_, record)| record.phase != NooutPhase::Over);
        ours.map(|(bucket, record)| (bucket.to_string(), record.since))
            .collect()
    }

    /// Only a transition is written.
    pub(super) fn publish(&self, state: &CephClusterState) -> Option<Write> {
        let published = self.cluster.published.as_ref();
        (self.published != Some(state)).then(|| Write::Publish {
            resource_version: published.map(|published| published.resource_version.clone()),
            state: Box::new(state.clone()),
            is_own_view: self
                .published
                .is_some_and(|published| differ_in_own_view(published, state)),
        })
    }

    /// A process that has just begun to ask knows less than what is published, unless budgets or OSDs have changed.
    pub(super) fn is_too_early(&self, state: &CephClusterState) -> bool {
        let has_just_begun = match &self.cluster.ceph {
            CephState::Connecting => true,
            CephState::Answering(view) => !view.is_freshness_known,
            CephState::Silent { .. } => false,
        };
        let is_known = |published: &CephClusterState| {
            let known: BTreeSet<_> = published.down_osds.values().flatten().collect();
            let mut down = state.down_osds.values().flatten();
            let is_same = published.disruptions == state.disruptions
                || (published.disruptions.is_closed() && state.disruptions.is_closed());
            is_same && down.all(|osd| known.contains(osd))
        };
        has_just_begun && self.published.is_some_and(is_known)
    }
}

/// What is told of a state that would be published if the budgets were ours.
pub(super) fn preview(would: &CephClusterState) -> DisruptionsPreview {
    DisruptionsPreview {
        is_closed: would.disruptions.is_closed(),
        exempt: would.exempt(),
        reason: would.reason,
    }
}

/// Whether two states differ only in how far Ceph has answered the process that tells: what two that lead at once see at
/// different moments.
fn differ_in_own_view(published: &CephClusterState, state: &CephClusterState) -> bool {
    let shared = CephClusterState {
        reason: state.reason,
        is_clean: state.is_clean,
        statistics_fresh_since: state.statistics_fresh_since,
        statistics_of: state.statistics_of.clone(),
        recovering_since: state.recovering_since,
        conditions: state.conditions.clone(),
        ..published.clone()
    };
    shared == *state
}
