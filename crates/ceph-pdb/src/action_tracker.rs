//! What this process has written, kept until the watches show it. No I/O.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use jiff::Timestamp;
use nodeward_api::CephClusterState;
use nodeward_api::reason::{CephCondition, CephReason};
use nodeward_runtime::{ActionResult, Expectations};

use crate::execute::{Executed, Written};
use crate::plan::Verdicts;
use crate::plan::write::{PlannedWrite, Write, WriteKey};
use crate::snapshot::{BudgetFacts, ClusterSnapshot, Namespace, Published, Snapshot, StateMap};

type Version = Option<Arc<str>>;

/// What a process sees for itself of a cluster: reason, clean, fresh, conditions.
type OwnView = (CephReason, Option<bool>, bool, Vec<(CephCondition, String)>);

/// What is laid over what the watches show.
#[derive(Debug, Default)]
pub struct ActionTracker {
    budgets: Expectations<(Namespace, Arc<str>), Option<BudgetFacts>, Version>,
    state_maps: Expectations<Namespace, StateMap, Version>,
    published: Expectations<Namespace, Published, Version>,
    /// What could not be written last, each with the API server's words, or Ceph's.
    refused: BTreeMap<WriteKey, Arc<str>>,
    /// Changes of `noout` that Ceph has carried out, and when.
    noout: BTreeMap<(Namespace, bool, BTreeSet<Arc<str>>), Timestamp>,
    /// What this process has seen for itself when it published, or found it published.
    own_views: BTreeMap<Namespace, OwnView>,
}

impl ActionTracker {
    /// Lays what was written over what the watches show.
    pub fn overlay(&mut self, snapshot: &mut Snapshot, now: Timestamp) {
        self.budgets.forget_expired(now);
        self.state_maps.forget_expired(now);
        self.published.forget_expired(now);
        for (namespace, name) in self.budgets.keys().cloned().collect::<Vec<_>>() {
            let Some(cluster) = snapshot.clusters.get_mut(&namespace).map(Arc::make_mut) else {
                continue;
            };
            let cached = cluster
                .budgets
                .get(&name)
                .map(|budget| Arc::clone(&budget.resource_version));
            match self.budgets.effective(&(namespace, Arc::clone(&name)), &cached, now) {
                Some(Some(written)) => drop(cluster.budgets.insert(name, written.clone())),
                Some(None) => drop(cluster.budgets.remove(&name)),
                None => {}
            }
        }
        for (namespace, cluster) in &mut snapshot.clusters {
            let cluster = Arc::make_mut(cluster);
            let refused = self.refused.iter().filter(|(key, _)| key.namespace() == namespace);
            cluster.refused_writes = refused.map(|(key, why)| (key.clone(), Arc::clone(why))).collect();
            let cached = cluster.state_map.resource_version.clone();
            if let Some(written) = self.state_maps.effective(namespace, &cached, now) {
                cluster.state_map.clone_from(written);
            }
            let cached = cluster
                .published
                .as_ref()
                .map(|known| Arc::clone(&known.resource_version));
            if let Some(written) = self.published.effective(namespace, &cached, now) {
                cluster.published = Some(written.clone());
            }
        }
        self.noout.retain(|(namespace, ..), at| {
            !snapshot
                .clusters
                .get(namespace)
                .is_none_or(|known| was_asked_since(known, *at))
        });
    }

    /// How clusters stand.
    pub fn planned(&mut self, verdicts: &Verdicts) {
        self.own_views.retain(|namespace, _| verdicts.contains_key(namespace));
        for (namespace, verdict) in verdicts.iter().filter(|(_, verdict)| verdict.is_published) {
            self.own_views.insert(Arc::clone(namespace), own_view(&verdict.state));
        }
    }

    /// Whether a write need not be sent: Ceph has carried it out, and has not been asked since; or it would only say once more
    /// what another leader, who sees Ceph at other moments, has written over.
    pub fn is_futile(&self, planned: &PlannedWrite) -> bool {
        let namespace = &planned.owner.namespace;
        match &planned.write {
            Write::SetNoout { buckets, on, .. } => {
                let key = (Arc::clone(namespace), *on, buckets.clone());
                self.noout.contains_key(&key)
            }
            Write::Publish { state, is_own_view, .. } => {
                *is_own_view && self.own_views.get(namespace) == Some(&own_view(state))
            }
            _ => false,
        }
    }

    /// When a watch that does not show a write is believed again.
    pub fn next_expiry(&self) -> Option<Timestamp> {
        let expiries = [
            self.budgets.next_expiry(),
            self.state_maps.next_expiry(),
            self.published.next_expiry(),
        ];
        expiries.into_iter().flatten().min()
    }

    /// Writes have ended.
    pub fn completed(&mut self, executed: &Executed, now: Timestamp) {
        for (planned, result) in &executed.writes {
            match result {
                ActionResult::Failed(error) => drop(self.refused.insert(planned.key(), error.to_string().into())),
                _ => drop(self.refused.remove(&planned.key())),
            }
            if let ActionResult::Acted(written) = result {
                self.expect(planned, written.clone(), now);
            }
        }
    }

    fn expect(&mut self, planned: &PlannedWrite, written: Written, now: Timestamp) {
        let namespace = Arc::clone(&planned.owner.namespace);
        match written {
            Written::Budget { name, bases, facts } => {
                for base in bases {
                    let key = (Arc::clone(&namespace), Arc::clone(&name));
                    self.budgets.expect_onto(key, base, facts.clone(), now);
                }
            }
            Written::StateMap { base, map } => self.state_maps.expect_onto(namespace, base, map, now),
            Written::Published { base, published } => {
                if let Write::Publish { state, .. } = &planned.write {
                    self.own_views.insert(Arc::clone(&namespace), own_view(state));
                }
                self.published.expect_onto(namespace, base, *published, now);
            }
            Written::Noout => {
                if let Write::SetNoout { buckets, on, .. } = &planned.write {
                    self.noout.insert((namespace, *on, buckets.clone()), now);
                }
            }
        }
    }
}

fn own_view(state: &CephClusterState) -> OwnView {
    let conditions = state.conditions.iter();
    let conditions = conditions.map(|condition| (condition.kind, condition.message.clone()));
    let is_fresh = state.statistics_fresh_since.is_some();
    (state.reason, state.is_clean, is_fresh, conditions.collect())
}

fn was_asked_since(cluster: &ClusterSnapshot, at: Timestamp) -> bool {
    cluster.ceph.last_view().is_some_and(|view| at <= view.asked_at)
}

#[cfg(test)]
mod tests;
