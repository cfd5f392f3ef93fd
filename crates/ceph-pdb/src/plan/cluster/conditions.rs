//! What somebody should look at in a CephCluster.

use std::collections::BTreeSet;

use nodeward_api::ceph_state::{PublishedCondition, PublishedDisruptions};
use nodeward_api::reason::{CephCondition, CephReason};
use nodeward_core::deadline::{is_due, saturating_add};

use super::super::budget_writes::BudgetView;
use super::super::noout::NooutPhase;
use super::super::osd_disruptions::{Decision, Disruptions};
use super::super::pools::obstacles_to_healing;
use super::super::write::{Write, WriteKey};
use super::Case;
use crate::ceph::OsdId;
use crate::ceph::answers::Pool;
use crate::ceph::stop_check::PoolId;
use crate::snapshot::{CephProblemKind, CephState, CephView};

/// What conditions are told from, beside the cluster.
pub(super) struct Findings<'a> {
    pub(super) decision: &'a Decision,
    pub(super) budgets: &'a BudgetView<'a>,
    pub(super) unsurvivable: &'a [&'a Pool],
    /// Pools that no judgement counts.
    pub(super) left_out: &'a BTreeSet<PoolId>,
    /// What is written now.
    pub(super) writes: &'a [Write],
    /// `pgHealthCheckTimeout` has passed, all is answered, and the budgets stay closed.
    pub(super) is_timeout_ignored: bool,
}

impl Case<'_> {
    /// What somebody should look at.
    pub(super) fn conditions(&self, findings: &Findings<'_>) -> Vec<PublishedCondition> {
        let (cluster, decision) = (self.cluster, findings.decision);
        let is_closed = matches!(decision.disruptions, Disruptions::Closed { .. });
        let mut found = Vec::new();
        // An empty message: there is nothing to look at.
        let mut note = |kind, message: String| {
            if !message.is_empty() {
                found.push(self.dated(kind, message));
            }
        };
        if let CephState::Silent { problem, .. } = &cluster.ceph {
            note(
                CephCondition::CephUnavailable,
                format!("{:?}: {}", problem.kind, problem.message),
            );
        }
        if let CephState::Silent { problem, .. } = &cluster.ceph
            && problem.kind == CephProblemKind::KeyTypeUnknown
        {
            note(CephCondition::KeyTypeUnknown, problem.message.to_string());
        }
        let (mut budgets, mut flags) = (Vec::new(), "");
        for write in findings.writes {
            let key = write.key(&cluster.cluster.namespace);
            match (&key, cluster.refused_writes.get(&key)) {
                (WriteKey::Budget(_, name), Some(why)) => budgets.push(format!("{name}: {why}")),
                (WriteKey::Noout(_), Some(why)) => flags = why,
                _ => {}
            }
        }
        note(CephCondition::BudgetWriteRefused, budgets.join("; "));
        note(CephCondition::NooutRefused, flags.to_owned());
        if let Some(configured) = self
            .policy
            .failure_domain_type
            .filter(|it| *it != self.osds.domain_type)
        {
            let message = format!("CRUSH has no {configured}; {} is taken", self.osds.domain_type);
            note(CephCondition::FailureDomainTypeUnknown, message);
        }
        if cluster.cluster.is_managed_by_rook && self.was_managed() {
            note(
                CephCondition::ManagedByRookAgain,
                "managePodBudgets is true again".to_owned(),
            );
        }
        let is_answered = |osds| {
            self.last_view()
                .is_some_and(|view| view.stop_answers.contains_key(osds))
        };
        let is_checked = !decision.questions.is_empty() && decision.questions.iter().all(is_answered);
        if cluster.cluster.is_managed_by_rook && !is_checked {
            let message = "whether an OSD may stop has not been answered: it is asked once the statistics are fresh";
            note(CephCondition::NotCheckedYet, message.to_owned());
        }
        let stop_problem = self.last_view().and_then(|view| view.stop_problem.as_ref());
        if let Some(problem) = stop_problem.filter(|_| !decision.questions.is_empty()) {
            note(CephCondition::StopCheckFailed, problem.message.to_string());
        }
        if let Some(view) = self.last_view() {
            if !view.status.mgrmap.available {
                let message = "statistics of placement groups stand still: nothing is exempted or opened";
                note(CephCondition::NoManager, message.to_owned());
            }
            note(CephCondition::StopCheckDisagrees, disputed(view, findings.left_out));
            if decision.reason == CephReason::SecondDomainDown {
                note(
                    CephCondition::StopCheckRefused,
                    would_stop(view, decision, findings.left_out),
                );
            }
        }
        let down = osd_names(self.osds.down().map(|(id, _)| id));
        if let Some(view) = self.last_view().filter(|_| is_closed && !down.is_empty()) {
            let obstacles = obstacles_to_healing(&self.osds, view).join("; ");
            note(
                CephCondition::CannotHeal,
                behind(&format!("without {down}: "), &obstacles),
            );
        }
        let records = cluster.state_map.noout.iter();
        let expired = records.filter(|(bucket, record)| {
            let is_late = is_due(saturating_add(record.since, self.maintenance_timeout()), self.now);
            record.phase == NooutPhase::Over && is_late && !self.osds.is_back(bucket)
        });
        let expired: Vec<&str> = expired.map(|(bucket, _)| &**bucket).collect();
        note(CephCondition::NooutExpired, behind("on ", &expired.join(", ")));
        let foreign = findings.budgets.foreign.iter().map(|name| {
            let selector = cluster.budgets.get(*name).map(|budget| &*budget.selector);
            format!("{name} selects {}", selector.unwrap_or_default())
        });
        note(CephCondition::ForeignBudget, foreign.collect::<Vec<_>>().join("; "));
        let mislabelled = osd_names(self.osds.mislabelled());
        if !mislabelled.is_empty() {
            let message = format!("{mislabelled}: label topology-location-{}", self.osds.domain_type);
            note(CephCondition::OsdLabelWrong, message);
        }
        if self.last_view().is_some() {
            let outside = self.osds.osds.iter().filter(|(_, osd)| osd.domain.is_none());
            let outside = osd_names(outside.map(|(id, _)| *id));
            note(
                CephCondition::OsdOutsideDomains,
                behind(&format!("no {} in CRUSH has ", self.osds.domain_type), &outside),
            );
        }
        let unready = cluster.osds.iter().filter(|(id, objects)| {
            let is_left_out = |excluded: &BTreeSet<OsdId>| excluded.contains(id);
            let is_counted = matches!(&decision.disruptions, Disruptions::Open { excluded } if !is_left_out(excluded));
            objects.is_unready && is_counted && self.osds.osds.get(id).is_some_and(|osd| osd.is_up_in_ceph)
        });
        note(CephCondition::OsdNotReady, osd_names(unready.map(|(id, _)| *id)));
        let nodes = self.osds.domains_of_nodes(&BTreeSet::new()).into_iter();
        let several = nodes.filter(|(_, domains)| 1 < domains.len()).map(|(node, domains)| {
            let domains: Vec<String> = domains.into_iter().collect();
            format!("{node}: {}", domains.join(", "))
        });
        note(
            CephCondition::NodeInSeveralDomains,
            several.collect::<Vec<_>>().join("; "),
        );
        let abandoned = self.osds.osds.iter().filter(|(_, osd)| osd.is_abandoned);
        let abandoned = abandoned.map(|(id, osd)| {
            let node = osd.node.as_deref().unwrap_or_default();
            format!("osd.{id} runs on node {node}, and ends once its kubelet starts")
        });
        note(CephCondition::OsdPodAbandoned, abandoned.collect::<Vec<_>>().join("; "));
        let (facts, map, daemons) = (&cluster.cluster, &cluster.state_map, &cluster.daemons);
        let unreadable = [&*facts.unreadable, &*map.unreadable, &*daemons.unknown].concat();
        note(CephCondition::Unreadable, unreadable.join("; "));
        let pools: Vec<&str> = findings.unsurvivable.iter().map(|pool| pool.name.as_str()).collect();
        if !pools.is_empty() {
            let meaning = if self.policy.blocks_on_unsurvivable_pools {
                "no OSD may be evicted"
            } else {
                "they are left out of each judgement"
            };
            let message = format!("pools that cannot lose a host: {}; {meaning}", pools.join(", "));
            note(CephCondition::UnsurvivablePools, message);
        }
        if findings.is_timeout_ignored {
            let message = "pgHealthCheckTimeout has passed; a placement group is inactive, the statistics are old, or a \
                           failure domain could not be lost";
            note(CephCondition::HealthCheckTimeoutIgnored, message.to_owned());
        }
        found
    }

    /// The budgets were ours before.
    fn was_managed(&self) -> bool {
        self.published.is_some_and(|before| {
            let mut known = before.conditions.iter();
            before.disruptions != PublishedDisruptions::Unmanaged
                || known.any(|condition| condition.kind == CephCondition::ManagedByRookAgain)
        })
    }

    /// A condition, since it was published first.
    fn dated(&self, kind: CephCondition, message: String) -> PublishedCondition {
        let mut known = self.published.iter().flat_map(|published| &published.conditions);
        let before = known.find(|condition| condition.kind == kind);
        PublishedCondition {
            kind,
            message,
            since: before.map_or(self.now, |before| before.since),
        }
    }
}

/// The questions to which Ceph and our own reckoning give different answers, with the placement groups that one of them would lose.
fn disputed(view: &CephView, left_out: &BTreeSet<PoolId>) -> String {
    let answers = view.stop_answers.iter();
    let disputed = answers.filter(|(_, answer)| answer.is_disputed(left_out));
    let told = disputed.map(|(osds, answer)| {
        let (by, lost) = if answer.ceph.lost.is_empty() {
            ("only our own reckoning", &answer.own.lost)
        } else {
            ("only ok-to-stop", &answer.ceph.lost)
        };
        let lost: Vec<&str> = lost.iter().map(String::as_str).collect();
        format!(
            "{by} loses {} without {}",
            lost.join(", "),
            osd_names(osds.iter().copied())
        )
    });
    told.collect::<Vec<_>>().join("; ")
}

/// What may not be down together, each with the pools that would lose placement groups.
fn would_stop(view: &CephView, decision: &Decision, left_out: &BTreeSet<PoolId>) -> String {
    let answers = decision
        .questions
        .iter()
        .filter_map(|osds| Some((osds, view.stop_answers.get(osds)?)));
    let refused = answers.filter(|(_, answer)| answer.may_stop(left_out) == Some(false));
    let told = refused.map(|(osds, answer)| {
        let stopped: BTreeSet<PoolId> = answer
            .pools_that_stop()
            .filter(|pool| !left_out.contains(pool))
            .collect();
        let pools = view.map.dump.pools.iter().filter(|pool| stopped.contains(&pool.id));
        let pools: Vec<&str> = pools.map(|pool| pool.name.as_str()).collect();
        format!("pools {} without {}", pools.join(", "), osd_names(osds.iter().copied()))
    });
    told.collect::<Vec<_>>().join("; ")
}

fn osd_names(ids: impl IntoIterator<Item = OsdId>) -> String {
    let names: Vec<String> = ids.into_iter().map(|id| format!("osd.{id}")).collect();
    names.join(", ")
}

/// A list behind what introduces it; nothing without one.
fn behind(introduction: &str, list: &str) -> String {
    if list.is_empty() {
        String::new()
    } else {
        format!("{introduction}{list}")
    }
}
