//! The decision for one CephCluster: facts, decision, writes, report, in this order.

use std::collections::{BTreeMap, BTreeSet};

use jiff::{SignedDuration, Timestamp};
use nodeward_api::CephClusterState;
use nodeward_api::ceph_state::{PublishedCondition, PublishedDisruptions, UnsurvivablePools};
use nodeward_api::reason::{CephCondition, CephReason};
use nodeward_core::deadline::{RequeueAt, is_due, saturating_add};

use super::budget_writes::BudgetView;
use super::facts::{OsdView, ceph_facts, current_view};
use super::noout::NooutPhase;
use super::noout_writes::Flags;
use super::osd_disruptions::{CurrentDisruptions, Decision, Disruptions, PgHealth, decide};
use super::pools::{judge, obstacles_to_healing, still_unsurvivable};
use super::verdict::{ClusterVerdict, OsdCounts};
use super::write::{Owner, Write};
use crate::ceph::pg_health::CleanPattern;
use crate::policy::Policy;
use crate::snapshot::{CephClusterFacts, CephQuestions, CephState, CephView, ClusterSnapshot};

/// What follows for one CephCluster.
pub(super) struct PlannedCluster {
    pub writes: Vec<Write>,
    pub questions: CephQuestions,
    pub verdict: ClusterVerdict,
}

pub(super) fn plan_cluster(
    cluster: &ClusterSnapshot,
    policy: &Policy,
    now: Timestamp,
    requeue_at: &mut RequeueAt,
) -> PlannedCluster {
    let published: Option<CephClusterState> = cluster
        .published
        .as_ref()
        .and_then(|published| serde_json::from_str(published.state.as_deref()?).ok());
    let osds = OsdView::new(cluster, policy, published.as_ref());
    let (pattern, bad_pattern) = clean_pattern(&cluster.cluster);
    let case = Case {
        cluster,
        policy,
        now,
        published,
        osds,
        pattern,
        bad_pattern,
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

/// The cluster's own pattern, or else the usual one and what is wrong with its own.
fn clean_pattern(cluster: &CephClusterFacts) -> (Option<CleanPattern>, Option<String>) {
    match CleanPattern::new(cluster.pg_healthy_regex.as_deref()) {
        Ok(pattern) => (Some(pattern), None),
        Err(error) => (CleanPattern::new(None).ok(), Some(format!("pgHealthyRegex: {error}"))),
    }
}

/// Whether two states differ only in how far Ceph has answered the process that tells: what two that lead at once see at
/// different moments.
fn differ_in_own_view(published: &CephClusterState, state: &CephClusterState) -> bool {
    let mut shared = published.clone();
    shared.reason = state.reason;
    shared.is_clean = state.is_clean;
    shared.statistics_fresh_since = state.statistics_fresh_since;
    shared.recovering_since = state.recovering_since;
    shared.conditions.clone_from(&state.conditions);
    shared == *state
}

/// A cluster, and what is known of it.
struct Case<'a> {
    cluster: &'a ClusterSnapshot,
    policy: &'a Policy,
    now: Timestamp,
    published: Option<CephClusterState>,
    osds: OsdView,
    pattern: Option<CleanPattern>,
    bad_pattern: Option<String>,
}

impl Case<'_> {
    fn manage(self, requeue_at: &mut RequeueAt) -> PlannedCluster {
        let cluster = self.cluster;
        let view = current_view(cluster);
        let mut budgets = BudgetView::new(&cluster.budgets);
        let current = budgets.current(&self.osds);

        // 1. What Ceph says, pools aside that cannot lose a domain even when all is well.
        let judged = self.published.as_ref().map(|published| published.unsurvivable.clone());
        let judged = judged.unwrap_or_default();
        let unsurvivable: Vec<_> = still_unsurvivable(&judged, cluster.ceph.last_view().map(|view| &**view)).collect();
        let is_blocked = self.policy.blocks_on_unsurvivable_pools && !unsurvivable.is_empty();
        let left_out = if self.policy.blocks_on_unsurvivable_pools {
            BTreeSet::new()
        } else {
            unsurvivable.iter().map(|pool| pool.id).collect()
        };
        let ceph = view
            .zip(self.pattern.as_ref())
            .map(|(view, pattern)| ceph_facts(view, pattern, &left_out));

        // 2. The decision.
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
        let mut decision = decide(&self.osds.osds, ceph.as_ref(), &current, timeout_is_over);
        if is_blocked {
            decision.disruptions = Disruptions::Closed { exempt: None };
            decision.reason = CephReason::UnsurvivablePool;
        }
        let is_settled = ceph
            .as_ref()
            .is_some_and(|ceph| ceph.is_fresh && ceph.pgs == PgHealth::Clean)
            && self.osds.down().next().is_none();
        let mut unsurvivable_pools = judged.clone();
        if let Some((questions, judgement)) = view
            .filter(|_| is_settled)
            .and_then(|view| judge(&self.osds, view, &judged))
        {
            decision.questions.extend(questions);
            unsurvivable_pools = judgement.unwrap_or(judged.clone());
        }

        // 3. The writes.
        let mut daemons = cluster.daemons.clone();
        if let Some(view) = cluster.ceph.last_view() {
            let out = i32::try_from(view.mons_out_of_quorum.len()).unwrap_or(i32::MAX);
            daemons.mons_out_of_quorum = daemons.mons_out_of_quorum.max(out);
        }
        let is_answering = matches!(cluster.ceph, CephState::Answering(_));
        let mut writes = budgets.osd_writes(&decision.disruptions, &self.osds, self.policy.layout);
        let is_moving = !writes.is_empty();
        writes.extend(budgets.daemon_writes(&daemons, is_answering));
        writes.extend(self.flags(Some(&decision)).write(self.now, requeue_at));

        // 4. What is reported.
        let mut conditions = self.conditions(&decision, &budgets);
        if !unsurvivable.is_empty() {
            let pools: Vec<&str> = unsurvivable.iter().map(|pool| pool.name.as_str()).collect();
            let meaning = if is_blocked {
                "no OSD may be evicted"
            } else {
                "they are left out of each judgement"
            };
            conditions.push((
                CephCondition::UnsurvivablePools,
                format!(
                    "pools that cannot lose a {}: {}; {meaning}",
                    self.osds.domain_type,
                    pools.join(", ")
                ),
            ));
        }
        let is_closed = matches!(decision.disruptions, Disruptions::Closed { .. });
        // The questions begin with the end of the time: until they are answered nothing is ignored.
        let is_answered = decision
            .questions
            .iter()
            .all(|osds| ceph.as_ref().is_some_and(|ceph| ceph.safe_together.contains_key(osds)));
        if timeout_is_over && is_closed && is_answered {
            let message = "pgHealthCheckTimeout has passed; a placement group is inactive, the statistics are old, or a \
                           failure domain could not be lost";
            conditions.push((CephCondition::HealthCheckTimeoutIgnored, message.to_owned()));
        }
        let is_clean = ceph.as_ref().map(|ceph| ceph.pgs == PgHealth::Clean);
        let state = self.state(&decision, is_clean, recovering_since, unsurvivable_pools, conditions);
        writes.extend(self.publish(&state).filter(|_| !self.is_too_early(&state)));
        let questions = CephQuestions {
            is_watchful: !is_settled || is_closed || is_moving || !cluster.state_map.noout.is_empty(),
            may_stop: decision.questions,
        };
        PlannedCluster {
            writes,
            questions,
            verdict: self.verdict(state),
        }
    }

    /// Clears our `noout`, gives our budgets to Rook where it manages them again, and writes nothing else.
    fn hand_back(self, reason: CephReason, requeue_at: &mut RequeueAt) -> PlannedCluster {
        let mut writes: Vec<Write> = self.flags(None).write(self.now, requeue_at).into_iter().collect();
        if reason == CephReason::ManagedByRook {
            writes.extend(BudgetView::new(&self.cluster.budgets).release_all());
        }
        let mut state = self.state_since(PublishedDisruptions::Unmanaged, reason);
        state.noout = self.noout();
        // While it is deleted, so is what it owns.
        if reason != CephReason::ClusterDeleting {
            writes.extend(self.publish(&state));
        }
        let questions = CephQuestions {
            is_watchful: !self.cluster.state_map.noout.is_empty(),
            ..CephQuestions::default()
        };
        PlannedCluster {
            writes,
            questions,
            verdict: self.verdict(state),
        }
    }

    fn flags<'a>(&'a self, decision: Option<&'a Decision>) -> Flags<'a> {
        let view = match &self.cluster.ceph {
            CephState::Answering(view) => Some(&**view),
            CephState::Connecting | CephState::Silent { .. } => None,
        };
        Flags {
            map: &self.cluster.state_map,
            view,
            osds: &self.osds,
            wanted: decision.map(|decision| &decision.noout_hosts),
            timeout: self.maintenance_timeout(),
        }
    }

    fn maintenance_timeout(&self) -> SignedDuration {
        let own = self.cluster.cluster.osd_maintenance_timeout;
        own.unwrap_or(self.policy.osd_maintenance_timeout)
    }

    /// Since when all OSDs are up again behind closed budgets. A restart does not begin it anew.
    fn recovering_since(&self, current: &CurrentDisruptions) -> Option<Timestamp> {
        let is_closed = matches!(current, CurrentDisruptions::Closed { .. });
        let is_recovering = is_closed && self.osds.down().next().is_none();
        let before = self.published.as_ref().and_then(|published| published.recovering_since);
        is_recovering.then(|| before.unwrap_or(self.now))
    }

    /// Since when statistics are fresh. Each process knows of its own time only: two that lead at once would write in turns.
    fn fresh_since(&self) -> Option<Timestamp> {
        let own = current_view(self.cluster)?.fresh_since?;
        let before = self.published.as_ref().and_then(|state| state.statistics_fresh_since);
        Some(before.map_or(own, |before| before.min(own)))
    }

    fn state(
        &self,
        decision: &Decision,
        is_clean: Option<bool>,
        recovering_since: Option<Timestamp>,
        unsurvivable: UnsurvivablePools,
        conditions: Vec<(CephCondition, String)>,
    ) -> CephClusterState {
        let (disruptions, exempt) = match &decision.disruptions {
            Disruptions::Open { .. } => (PublishedDisruptions::Open, None),
            Disruptions::Closed { exempt } => (PublishedDisruptions::Closed, exempt.as_ref()),
        };
        let mut down_osds: BTreeMap<String, BTreeSet<i64>> = BTreeMap::new();
        for (id, osd) in self.osds.down() {
            let domain = osd.domain.as_deref().unwrap_or_default();
            down_osds.entry(domain.to_owned()).or_default().insert(id);
        }
        let is_type_known = self.policy.failure_domain_type.is_some() || self.cluster.ceph.last_view().is_some();
        let published_type = self
            .published
            .as_ref()
            .and_then(|state| state.failure_domain_type.clone());
        CephClusterState {
            exempt_domain: exempt.map(ToString::to_string),
            failure_domain_type: if is_type_known {
                Some(self.osds.domain_type.to_string())
            } else {
                published_type
            },
            // Until the budgets are open, not only decided to be: the steps between rest on the same time.
            recovering_since,
            is_clean,
            statistics_fresh_since: self.fresh_since(),
            down_osds,
            nodes: self.osds.nodes.clone(),
            noout: self.noout(),
            unsurvivable,
            conditions: self.dated(conditions),
            ..self.state_since(disruptions, decision.reason)
        }
    }

    /// A state without details, since it was published first.
    fn state_since(&self, disruptions: PublishedDisruptions, reason: CephReason) -> CephClusterState {
        let before = self
            .published
            .as_ref()
            .filter(|before| before.disruptions == disruptions);
        CephClusterState {
            cluster: self.cluster.cluster.name.to_string(),
            disruptions,
            exempt_domain: None,
            since: before.map_or(self.now, |before| before.since),
            reason,
            failure_domain_type: None,
            recovering_since: None,
            is_clean: None,
            statistics_fresh_since: None,
            down_osds: BTreeMap::new(),
            nodes: BTreeMap::new(),
            noout: BTreeMap::new(),
            unsurvivable: UnsurvivablePools::default(),
            conditions: Vec::new(),
        }
    }

    /// Flags that are ours, from the first record to the last.
    fn noout(&self) -> BTreeMap<String, Timestamp> {
        let records = self.cluster.state_map.noout.iter();
        let ours = records.filter(|(_, record)| record.phase != NooutPhase::Over);
        ours.map(|(bucket, record)| (bucket.to_string(), record.since))
            .collect()
    }

    fn conditions(&self, decision: &Decision, budgets: &BudgetView<'_>) -> Vec<(CephCondition, String)> {
        let (cluster, mut found) = (self.cluster, Vec::new());
        if let CephState::Silent { problem, .. } = &cluster.ceph {
            found.push((
                CephCondition::CephUnavailable,
                format!("{:?}: {}", problem.kind, problem.message),
            ));
        }
        let view: Option<&CephView> = cluster.ceph.last_view().map(|view| &**view);
        let stop_problem = view.and_then(|view| view.stop_problem.as_ref());
        if let Some(problem) = stop_problem.filter(|_| !decision.questions.is_empty()) {
            found.push((CephCondition::StopCheckFailed, problem.message.to_string()));
        }
        let down: Vec<String> = self.osds.down().map(|(id, _)| format!("osd.{id}")).collect();
        let is_closed = matches!(decision.disruptions, Disruptions::Closed { .. });
        if let Some(view) = view.filter(|_| is_closed && !down.is_empty()) {
            let obstacles = obstacles_to_healing(&self.osds, view);
            if !obstacles.is_empty() {
                let message = format!("without {}: {}", down.join(", "), obstacles.join("; "));
                found.push((CephCondition::CannotHeal, message));
            }
        }
        let records = cluster.state_map.noout.iter();
        let expired = records.filter(|(bucket, record)| {
            let is_late = is_due(saturating_add(record.since, self.maintenance_timeout()), self.now);
            record.phase == NooutPhase::Over && is_late && !self.osds.is_up(bucket)
        });
        let expired: Vec<&str> = expired.map(|(bucket, _)| &**bucket).collect();
        if !expired.is_empty() {
            found.push((CephCondition::NooutExpired, format!("on {}", expired.join(", "))));
        }
        let foreign = budgets.foreign.iter().map(|name| {
            let selector = cluster.budgets.get(*name).map(|budget| &*budget.selector);
            format!("{name} selects {}", selector.unwrap_or_default())
        });
        let foreign: Vec<String> = foreign.collect();
        if !foreign.is_empty() {
            found.push((CephCondition::ForeignBudget, foreign.join("; ")));
        }
        let mislabelled = self.osds.mislabelled();
        if !mislabelled.is_empty() {
            let osds: Vec<String> = mislabelled.iter().map(|id| format!("osd.{id}")).collect();
            let message = format!("{}: label topology-location-{}", osds.join(", "), self.osds.domain_type);
            found.push((CephCondition::OsdLabelWrong, message));
        }
        let mut unreadable: Vec<String> = cluster.cluster.unreadable.clone();
        unreadable.extend(self.bad_pattern.clone());
        unreadable.extend(cluster.state_map.unreadable.iter().cloned());
        unreadable.extend(cluster.daemons.unknown.iter().cloned());
        if !unreadable.is_empty() {
            found.push((CephCondition::Unreadable, unreadable.join("; ")));
        }
        found
    }

    fn dated(&self, conditions: Vec<(CephCondition, String)>) -> Vec<PublishedCondition> {
        let before = |kind| {
            let mut known = self.published.iter().flat_map(|published| &published.conditions);
            known
                .find(|condition| condition.kind == kind)
                .map(|condition| condition.since)
        };
        let dated = conditions.into_iter().map(|(kind, message)| PublishedCondition {
            kind,
            message,
            since: before(kind).unwrap_or(self.now),
        });
        dated.collect()
    }

    /// Only a transition is written.
    fn publish(&self, state: &CephClusterState) -> Option<Write> {
        let published = self.cluster.published.as_ref();
        (self.published.as_ref() != Some(state)).then(|| Write::Publish {
            resource_version: published.map(|published| published.resource_version.clone()),
            state: Box::new(state.clone()),
            is_own_view: self
                .published
                .as_ref()
                .is_some_and(|published| differ_in_own_view(published, state)),
        })
    }

    /// A process that has just begun to ask knows less than what is published, unless budgets or OSDs have changed.
    fn is_too_early(&self, state: &CephClusterState) -> bool {
        let has_just_begun = match &self.cluster.ceph {
            CephState::Connecting => true,
            CephState::Answering(view) => !view.is_freshness_known,
            CephState::Silent { .. } => false,
        };
        let is_known = |published: &CephClusterState| {
            let known: BTreeSet<_> = published.down_osds.values().flatten().collect();
            let mut down = state.down_osds.values().flatten();
            published.disruptions == state.disruptions && down.all(|osd| known.contains(osd))
        };
        has_just_begun && self.published.as_ref().is_some_and(is_known)
    }

    fn verdict(&self, state: CephClusterState) -> ClusterVerdict {
        let view = self.cluster.ceph.last_view();
        let pgs = view.iter().flat_map(|view| &view.status.pgmap.pgs_by_state);
        let unclean = view.zip(self.pattern.as_ref()).map(|(view, pattern)| {
            let unclean = pattern.unclean(&view.status.pgmap).into_iter();
            unclean.map(|(state, count)| (state.to_owned(), count)).collect()
        });
        let mut osds: BTreeMap<String, OsdCounts> = BTreeMap::new();
        for osd in self.osds.osds.values() {
            let domain = osd.domain.as_deref().unwrap_or_default();
            let counts = osds.entry(domain.to_owned()).or_default();
            counts.up += i64::from(!osd.is_down);
            counts.down += i64::from(osd.is_down);
            counts.draining += i64::from(osd.is_draining);
        }
        let facts = &self.cluster.cluster;
        ClusterVerdict {
            is_published: self.published.as_ref() == Some(&state),
            owner: Owner {
                namespace: facts.namespace.clone(),
                name: facts.name.clone(),
                uid: facts.uid.clone(),
            },
            state,
            placement_groups: pgs.map(|state| (state.state_name.clone(), state.count)).collect(),
            unclean: unclean.unwrap_or_default(),
            osds,
            asked_at: view.map(|view| view.asked_at),
        }
    }
}
