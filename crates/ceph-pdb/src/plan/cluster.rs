//! The decision for one CephCluster: facts, decision, writes, report, in this order.

mod conditions;
mod state;

use std::collections::{BTreeMap, BTreeSet};

use jiff::{SignedDuration, Timestamp};
use nodeward_api::CephClusterState;
use nodeward_api::ceph_state::PublishedDisruptions;
use nodeward_api::reason::CephReason;
use nodeward_core::deadline::{RequeueAt, is_due, saturating_add};

use self::conditions::Findings;
use self::state::preview;
use super::budget_writes::BudgetView;
use super::facts::{OsdView, ceph_facts, current_view};
use super::noout::Flags;
use super::osd_disruptions::{CephFacts, Decision, Disruptions, PgHealth, decide, domains, members};
use super::pools::unsurvivable;
use super::verdict::{ClusterVerdict, OsdCounts};
use super::write::{Owner, Write};
use crate::ceph::answers::Pool;
use crate::ceph::stop_check::PoolId;
use crate::policy::Policy;
use crate::snapshot::{CephClusterFacts, CephQuestions, CephState, CephView, ClusterSnapshot};

/// What follows for one CephCluster.
pub(super) struct PlannedCluster {
    pub writes: Vec<Write>,
    /// `None` where there is no need for a connection to its Ceph.
    pub questions: Option<CephQuestions>,
    pub verdict: ClusterVerdict,
}

pub(super) fn plan_cluster(
    cluster: &ClusterSnapshot,
    policy: &Policy,
    now: Timestamp,
    requeue_at: &mut RequeueAt,
) -> PlannedCluster {
    for osd in cluster.osds.values() {
        requeue_at.note(osd.abandoned_at);
    }
    let published = cluster.published.as_ref().and_then(|known| known.state.as_ref());
    let case = Case {
        cluster,
        policy,
        now,
        published,
        osds: OsdView::new(cluster, policy, published, now),
    };
    match unmanaged(&cluster.cluster) {
        Some(reason) => case.hand_back(reason, requeue_at),
        None => case.manage(requeue_at),
    }
}

/// Why this cluster's budgets are not ours to write.
fn unmanaged(cluster: &CephClusterFacts) -> Option<CephReason> {
    if cluster.is_external {
        Some(CephReason::ExternalCluster)
    } else if cluster.is_deleting {
        Some(CephReason::ClusterDeleting)
    } else if cluster.is_managed_by_rook {
        Some(CephReason::ManagedByRook)
    } else {
        None
    }
}

/// A cluster, and what is known of it.
struct Case<'a> {
    cluster: &'a ClusterSnapshot,
    policy: &'a Policy,
    now: Timestamp,
    published: Option<&'a CephClusterState>,
    osds: OsdView,
}

/// How a cluster's OSDs stand.
struct Judgement<'a> {
    unsurvivable: Vec<&'a Pool>,
    /// Pools that no judgement counts.
    left_out: BTreeSet<PoolId>,
    ceph: Option<CephFacts>,
    decision: Decision,
}

impl<'a> Case<'a> {
    fn manage(self, requeue_at: &mut RequeueAt) -> PlannedCluster {
        let cluster = self.cluster;
        let mut budgets = BudgetView::new(&cluster.budgets);
        let current = budgets.current(&self.osds);

        // 1. The decision.
        let recovering_since = self.recovering_since(&current);
        let timeout = cluster
            .cluster
            .pg_health_check_timeout
            .filter(|timeout| !timeout.is_zero());
        let timeout_ends = recovering_since
            .zip(timeout)
            .map(|(since, timeout)| saturating_add(since, timeout));
        requeue_at.note(timeout_ends);
        let timeout_is_over = timeout_ends.is_some_and(|ends| is_due(ends, self.now));
        let Judgement {
            unsurvivable,
            left_out,
            ceph,
            decision,
        } = self.judge(&current, timeout_is_over);
        let ceph = ceph.filter(|ceph| ceph.is_current);
        let is_clean = |ceph: &CephFacts| ceph.is_fresh && ceph.pgs == PgHealth::Clean;
        let is_settled = ceph.as_ref().is_some_and(is_clean) && self.osds.down().next().is_none();
        // 2. The writes.
        let mut daemons = cluster.daemons.clone();
        if let Some(view) = self.last_view() {
            let out = i32::try_from(view.mons_out_of_quorum.len()).unwrap_or(i32::MAX);
            daemons.mons_out_of_quorum = daemons.mons_out_of_quorum.max(out);
        }
        let is_answering = matches!(cluster.ceph, CephState::Answering(_));
        let mut writes = budgets.osd_writes(&decision.disruptions, &self.osds, self.policy.layout);
        let is_moving = !writes.is_empty();
        writes.extend(budgets.daemon_writes(&daemons, is_answering));
        writes.extend(self.flags(Some(&decision)).write(self.now, requeue_at));

        // 3. What is reported.
        let is_closed = matches!(decision.disruptions, Disruptions::Closed { .. });
        // The questions begin with the end of the time: until they are answered nothing is ignored.
        let answers = ceph.as_ref().map(|ceph| &ceph.safe_together);
        let is_answered = |osds| answers.is_some_and(|answers| answers.contains_key(osds));
        let conditions = self.conditions(&Findings {
            decision: &decision,
            budgets: &budgets,
            unsurvivable: &unsurvivable,
            left_out: &left_out,
            writes: &writes,
            is_timeout_ignored: timeout_is_over && is_closed && decision.questions.iter().all(is_answered),
        });
        let is_clean = ceph.map(|ceph| ceph.pgs == PgHealth::Clean);
        let state = self.state(&decision, &current, is_clean, recovering_since, conditions);
        writes.extend(self.publish(&state).filter(|_| !self.is_too_early(&state)));
        let questions = CephQuestions {
            is_watchful: !is_settled || is_closed || is_moving || !cluster.state_map.noout.is_empty(),
            wants_pool_states: self.wants_pool_states(&left_out),
            may_stop: decision.questions,
        };
        PlannedCluster {
            writes,
            questions: Some(questions),
            verdict: self.verdict(state),
        }
    }

    /// Clears our `noout`, gives our budgets back to Rook where it manages them again, and writes nothing else.
    fn hand_back(self, reason: CephReason, requeue_at: &mut RequeueAt) -> PlannedCluster {
        let mut writes: Vec<Write> = self.flags(None).write(self.now, requeue_at).into_iter().collect();
        if reason == CephReason::ManagedByRook {
            writes.extend(BudgetView::new(&self.cluster.budgets).hand_back());
        }
        let mut state = self.state_since(PublishedDisruptions::Unmanaged, reason);
        state.noout = self.noout();
        let mut questions = CephQuestions {
            is_watchful: !self.cluster.state_map.noout.is_empty(),
            ..CephQuestions::default()
        };
        if reason == CephReason::ManagedByRook {
            self.check(&mut state, &mut questions, &writes);
        }
        // While it is deleted, so is what it owns.
        if reason != CephReason::ClusterDeleting {
            writes.extend(self.publish(&state));
        }
        PlannedCluster {
            writes,
            questions: (!self.cluster.cluster.is_external).then_some(questions),
            verdict: self.verdict(state),
        }
    }

    /// While Rook manages the budgets, what we would do and what would keep us from it are told: Ceph is asked as it will be, of one
    /// failure domain at least.
    fn check(&self, state: &mut CephClusterState, questions: &mut CephQuestions, writes: &[Write]) {
        let budgets = BudgetView::new(&self.cluster.budgets);
        let current = budgets.current(&self.osds);
        let mut judgement = self.judge(&current, false);
        let domain = domains(&self.osds.osds).into_iter().next();
        let asked = domain.map(|domain| members(&self.osds.osds, &domain));
        judgement.decision.questions.extend(asked);
        let conditions = self.conditions(&Findings {
            decision: &judgement.decision,
            budgets: &budgets,
            unsurvivable: &judgement.unsurvivable,
            left_out: &judgement.left_out,
            writes,
            is_timeout_ignored: false,
        });
        let ceph = judgement.ceph.filter(|ceph| ceph.is_current);
        let is_clean = ceph.map(|ceph| ceph.pgs == PgHealth::Clean);
        let would = self.state(&judgement.decision, &current, is_clean, None, conditions);
        state.preview = Some(preview(&would));
        state.failure_domain_type = self.last_view().map(|_| self.osds.domain_type.to_string());
        (state.is_clean, state.statistics_fresh_since) = (would.is_clean, would.statistics_fresh_since);
        (state.down_osds, state.conditions) = (would.down_osds, would.conditions);
        questions.wants_pool_states = self.wants_pool_states(&judgement.left_out);
        questions.may_stop = judgement.decision.questions;
    }

    /// What Ceph says, pools aside that cannot lose a host even when all is well, and what follows for the budgets.
    fn judge(&self, current: &Disruptions, timeout_is_over: bool) -> Judgement<'a> {
        let unsurvivable: Vec<&Pool> = self.last_view().into_iter().flat_map(unsurvivable).collect();
        let left_out = unsurvivable.iter().map(|pool| pool.id);
        let left_out = left_out.filter(|_| !self.policy.blocks_on_unsurvivable_pools).collect();
        let ceph = ceph_facts(self.cluster, &left_out);
        let mut decision = decide(&self.osds.osds, ceph.as_ref(), current, timeout_is_over);
        if self.policy.blocks_on_unsurvivable_pools && !unsurvivable.is_empty() {
            decision.disruptions = Disruptions::Closed {
                exempt: BTreeSet::new(),
            };
            decision.reason = CephReason::UnsurvivablePool;
        }
        Judgement {
            unsurvivable,
            left_out,
            ceph,
            decision,
        }
    }

    fn wants_pool_states(&self, left_out: &BTreeSet<PoolId>) -> bool {
        !left_out.is_empty() && current_view(self.cluster).is_some_and(|view| self.is_unclean(view))
    }

    fn is_unclean(&self, view: &CephView) -> bool {
        !self
            .cluster
            .cluster
            .clean_pattern
            .unclean(&view.status.pgmap)
            .is_empty()
    }

    /// What Ceph said last, however old that is.
    fn last_view(&self) -> Option<&'a CephView> {
        self.cluster.ceph.last_view().map(|view| &**view)
    }

    fn flags<'b>(&'b self, decision: Option<&'b Decision>) -> Flags<'b> {
        Flags {
            map: &self.cluster.state_map,
            view: self
                .last_view()
                .filter(|_| matches!(self.cluster.ceph, CephState::Answering(_))),
            osds: &self.osds,
            decision,
            timeout: self.maintenance_timeout(),
        }
    }

    fn maintenance_timeout(&self) -> SignedDuration {
        let own = self.cluster.cluster.osd_maintenance_timeout;
        own.unwrap_or(self.policy.osd_maintenance_timeout)
    }

    /// Since when all OSDs are up again behind closed budgets. A restart does not begin it anew.
    fn recovering_since(&self, current: &Disruptions) -> Option<Timestamp> {
        let is_closed = matches!(current, Disruptions::Closed { .. });
        let is_recovering = is_closed && self.osds.down().next().is_none();
        let before = self.published.and_then(|published| published.recovering_since);
        is_recovering.then(|| before.unwrap_or(self.now))
    }

    fn verdict(&self, state: CephClusterState) -> ClusterVerdict {
        let (facts, view) = (&self.cluster.cluster, self.last_view());
        let mut osds: BTreeMap<String, OsdCounts> = BTreeMap::new();
        for osd in self.osds.osds.values() {
            let domain = osd.domain.as_deref().unwrap_or_default();
            let counts = osds.entry(domain.to_owned()).or_default();
            counts.up += i64::from(!osd.is_down);
            counts.down += i64::from(osd.is_down);
            counts.draining += i64::from(osd.is_draining);
        }
        let pgs = view.iter().flat_map(|view| &view.status.pgmap.pgs_by_state);
        let unclean = view
            .iter()
            .flat_map(|view| facts.clean_pattern.unclean(&view.status.pgmap));
        ClusterVerdict {
            owner: Owner {
                namespace: facts.namespace.clone(),
                name: facts.name.clone(),
                uid: facts.uid.clone(),
            },
            is_published: self.published == Some(&state),
            state,
            placement_groups: pgs.map(|state| (state.state_name.clone(), state.count)).collect(),
            unclean: unclean.map(|(state, count)| (state.to_owned(), count)).collect(),
            osds,
            asked_at: view.map(|view| view.asked_at),
        }
    }
}
