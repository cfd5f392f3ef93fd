//! The status of a NodeHealthCheck: one write a pass at most, and none where nothing has changed.

use std::collections::BTreeSet;
use std::sync::Arc;

use jiff::{SignedDuration, Timestamp};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{Condition, Time};
use nodeward_api::condition::{
    DISABLED, HEALTHY_NODE_THRESHOLD_CHANGE, PERMISSION_MISSING, STORM_ACTIVE, STORM_COOLDOWN_ACTIVE,
};
use nodeward_api::node_health_check::{NodeHealthCheckStatus, Phase, Remediation, UnhealthyNode};
use nodeward_api::reason::{DisabledReason, HealthEvent, HealthReason};
use nodeward_core::deadline::{saturating_add, to_the_second};
use nodeward_core::text::{cut_visibly, json_length};

use super::Planner;
use super::action::{Action, Announcement, StatusWrite};
use super::case::{Case, Check};
use super::enablement::Enablement;
use super::expiry::Health;
use super::record::Record;
use super::storm::Storm;
use crate::snapshot::Listed;
use nodeward_core::node_health_check::ThresholdState;

/// What the API server takes, with room for the rest of the object, and for what says that steps were dropped.
const LARGEST: usize = 1_000_000 - 128;

/// What the status may say of itself: of pause requests, a person may write any number.
const LONGEST_REASON: usize = 4096;

/// What the status may say of what stops a node: an API server's words may be long.
const LONGEST_MESSAGE: usize = 512;

/// A write may take as long, and an intent that is due meanwhile has to wait for its end.
const SHORTLY: SignedDuration = SignedDuration::from_millis(250);

impl Planner<'_> {
    /// Plans the write of a NodeHealthCheck's status, if it has changed.
    pub(super) fn write_status(&mut self, check: &Check<'_>) {
        // That changes the resourceVersion that this would be written by.
        if check.writes_selector() {
            return;
        }
        let before = &*check.facts.status;
        let (mut status, announcements) = self.status(check);
        status.last_update_time = before.last_update_time;
        if status == *before {
            return;
        }
        // Measuring it costs as much as sending it; what was too large before has been cut.
        fit(&mut status, check);
        if status == *before || (tells_only_counts(&status, before) && self.expires_shortly(check)) {
            return;
        }
        status.last_update_time = Some(self.now_to_the_second());
        self.act(Action::WriteStatus(Box::new(StatusWrite {
            check: check.facts.reference(),
            base: check.facts.resource_version.clone(),
            status: Arc::new(status),
            announcements,
        })));
    }

    fn status(&self, check: &Check<'_>) -> (NodeHealthCheckStatus, Vec<Announcement>) {
        let before = &check.facts.status;
        let unhealthy_nodes: Vec<UnhealthyNode> = check.cases.values().filter_map(entry).collect();
        let mut announcements = announce_unhealthy(check);
        let (phase, reason) = phase(check, self.now);
        let mut status = NodeHealthCheckStatus {
            observed_nodes: Some(count(check.observed)),
            healthy_nodes: Some(count(check.healthy)),
            in_flight_remediations: [].into(),
            unhealthy_nodes,
            conditions: before.conditions.clone(),
            phase: Some(phase),
            reason,
            last_update_time: None,
            observed_generation: Some(check.facts.generation),
        };
        announcements.extend(self.set_disabled(check, &mut status));
        announcements.extend(self.set_storm(check, &mut status));
        self.set_permission_missing(check, &mut status);
        (status, announcements)
    }

    fn expires_shortly(&self, check: &Check<'_>) -> bool {
        let shortly = saturating_add(self.now, SHORTLY);
        check.cases.values().any(|case| match &case.health {
            Health::NotExpired(unhealthy) => unhealthy.expires < shortly,
            _ => false,
        })
    }

    fn set_disabled(&self, check: &Check<'_>, status: &mut NodeHealthCheckStatus) -> Option<Announcement> {
        let (reason, message, note, event) = match &check.enablement {
            Enablement::Disabled(reason, why) => (*reason, why.as_str(), why.as_str(), HealthEvent::Disabled),
            Enablement::Enabled => {
                let reason = DisabledReason::NodeHealthCheckEnabled;
                (reason, "", "remediation goes on", HealthEvent::Enabled)
            }
            Enablement::NotKnown(_) => return None,
        };
        let is_disabled = event == HealthEvent::Disabled;
        let was_disabled = is_true(&status.conditions, DISABLED);
        self.set_condition(status, (DISABLED, is_disabled), reason.as_str(), message);
        (was_disabled != is_disabled).then(|| announcement(event, note))
    }

    /// The server's words name verb and resource.
    fn set_permission_missing(&self, check: &Check<'_>, status: &mut NodeHealthCheckStatus) {
        let forbidden = self.snapshot.memory.forbidden.iter();
        let refused = forbidden.filter(|((name, ..), _)| *name == check.facts.name);
        let refused = refused.map(|(_, (why, _))| why.as_str());
        let kinds = check.spec.steps.iter().map(|step| step.template.remediation_kind());
        let unlisted = kinds.filter_map(|kind| match &self.index.kind(&kind)?.listed {
            Listed::Forbidden(why) => Some(why.as_str()),
            Listed::Complete | Listed::NotYet | Listed::NotServed => None,
        });
        let missing: BTreeSet<&str> = refused.chain(unlisted).collect();
        if missing.is_empty() {
            status.conditions.retain(|known| known.type_ != PERMISSION_MISSING);
            return;
        }
        let message = missing.into_iter().collect::<Vec<_>>().join("; ");
        let reason = HealthReason::PermissionMissing.as_str();
        self.set_condition(status, (PERMISSION_MISSING, true), reason, &message);
    }

    fn set_storm(&self, check: &Check<'_>, status: &mut NodeHealthCheckStatus) -> Option<Announcement> {
        if check.spec.storm_cooldown.is_none() {
            let is_storms = |condition: &Condition| [STORM_ACTIVE, STORM_COOLDOWN_ACTIVE].contains(&&*condition.type_);
            status.conditions.retain(|condition| !is_storms(condition));
            return None;
        }
        let before = Storm::read(check.spec, &check.facts.status, self.now);
        let is_active = !matches!(check.storm, Storm::Calm);
        let is_cooling_down = matches!(check.storm, Storm::CoolingDown { .. });
        let message = match &check.threshold {
            ThresholdState::TooFewHealthy(text) | ThresholdState::Unusable(text) => text.as_str(),
            ThresholdState::Holds => "enough nodes are healthy",
        };
        for (type_, is_on) in [(STORM_ACTIVE, is_active), (STORM_COOLDOWN_ACTIVE, is_cooling_down)] {
            self.set_condition(status, (type_, is_on), HEALTHY_NODE_THRESHOLD_CHANGE, message);
        }
        let event = match (before, check.storm) {
            (Storm::Calm, Storm::Active) => HealthEvent::StormRecoveryStarted,
            (Storm::Calm | Storm::Active, Storm::CoolingDown { .. }) => HealthEvent::StormRecoveryCooldownStarted,
            (Storm::Active | Storm::CoolingDown { .. }, Storm::Calm) => HealthEvent::StormRecoveryEnded,
            _ => return None,
        };
        Some(announcement(event, message))
    }

    /// Sets a condition; its time changes with its status alone, unless that is still to come.
    fn set_condition(
        &self,
        status: &mut NodeHealthCheckStatus,
        (type_, is_on): (&str, bool),
        reason: &str,
        message: &str,
    ) {
        let wanted = if is_on { "True" } else { "False" };
        let position = status.conditions.iter().position(|condition| condition.type_ == type_);
        let same = position
            .map(|at| &status.conditions[at])
            .filter(|known| known.status == wanted && known.last_transition_time.0 <= self.now);
        // The message of an unchanged storm stays, too: it would change with every node.
        let keeps_message = same.is_some() && [STORM_ACTIVE, STORM_COOLDOWN_ACTIVE].contains(&type_);
        let condition = Condition {
            type_: type_.to_owned(),
            status: wanted.to_owned(),
            reason: reason.to_owned(),
            message: match same {
                Some(known) if keeps_message => known.message.clone(),
                _ => message.to_owned(),
            },
            last_transition_time: same.map_or_else(
                || Time(self.now_to_the_second()),
                |known| known.last_transition_time.clone(),
            ),
            observed_generation: status.observed_generation,
        };
        match position {
            Some(at) => status.conditions[at] = condition,
            None => status.conditions.push(condition),
        }
    }
}

/// Whether nothing but numbers has changed, in what stops nodes, too. The next expiry takes them along: a write under way would
/// hold up its intent.
fn tells_only_counts(status: &NodeHealthCheckStatus, before: &NodeHealthCheckStatus) -> bool {
    let unstopped = |node: &UnhealthyNode| UnhealthyNode {
        stopped_by: None,
        ..node.clone()
    };
    let nodes = |status: &NodeHealthCheckStatus| status.unhealthy_nodes.iter().map(unstopped).collect::<Vec<_>>();
    nodes(status) == nodes(before) && status.conditions == before.conditions && status.phase == before.phase
}

/// What the status says of a node; nothing of one that is neither unhealthy for long enough nor remediated.
fn entry(case: &Case<'_>) -> Option<UnhealthyNode> {
    let chain = &case.chain;
    // As in the peer, those that are only to go are not listed.
    let of_the_node = chain.records.iter().chain(&chain.awaited);
    let remediations: Vec<Remediation> = of_the_node.map(Record::to_status).collect();
    // One that has lost its owner would be nobody's, and its remediator is at work.
    let earlier_remediations: Vec<Remediation> = chain.earlier.iter().map(Record::to_status).collect();
    let is_unhealthy = case.is_selected && case.expired().is_some();
    if remediations.is_empty() && earlier_remediations.is_empty() && !is_unhealthy {
        return None;
    }
    // What has been so since before the first step needs no word.
    let changed = case.unhealthy_period.as_ref().and_then(|period| period.last_transition);
    let is_later = |changed: &Timestamp| remediations.iter().any(|step| step.started < Some(*changed));
    Some(UnhealthyNode {
        name: case.name.to_string(),
        last_transition_time: changed.filter(is_later),
        remediations,
        earlier_remediations,
        conditions_healthy_timestamp: case.healthy_since,
        healthy_delayed: case.is_delayed().then_some(true),
        stopped_by: case.stopped_by(),
    })
}

/// Where a NodeHealthCheck stands, and why.
pub(super) fn phase(check: &Check<'_>, now: Timestamp) -> (Phase, String) {
    let remediated: Vec<&str> = remediated(check, now).map(|case| case.name.as_str()).collect();
    if let Enablement::Disabled(_, why) = &check.enablement {
        return (Phase::Disabled, why.clone());
    }
    if !check.spec.pauses.is_empty() {
        return (Phase::Paused, format!("paused by: {}", check.spec.pauses.join("; ")));
    }
    if let [first, others @ ..] = remediated.as_slice() {
        let others = match others.len() {
            0 => String::new(),
            more => format!(" and {more} more"),
        };
        return (Phase::Remediating, format!("remediating {first}{others}"));
    }
    let stopped = check.cases.values().find(|case| case.expired().is_some());
    let reason = match (&check.enablement, stopped) {
        (Enablement::NotKnown(why), _) => why.clone(),
        (_, Some(case)) => {
            let detail = match case.standing.detail.as_str() {
                "" => String::new(),
                detail => format!(" ({detail})"),
            };
            format!("node {} {}{detail}", case.name, case.standing.reason.explanation())
        }
        (_, None) => "no remediation is under way".to_owned(),
    };
    (Phase::Enabled, reason)
}

/// Nodes that are being remediated.
pub(super) fn remediated<'c, 'a>(check: &'c Check<'a>, now: Timestamp) -> impl Iterator<Item = &'c Case<'a>> {
    check.cases.values().filter(move |case| case.runs(check, now))
}

fn announce_unhealthy(check: &Check<'_>) -> Vec<Announcement> {
    let new = check
        .cases
        .values()
        .filter(|case| case.is_selected && case.entry.is_none());
    let announced = new.filter_map(|case| {
        let (condition, node) = (case.expired()?, case.node?);
        let status = condition.status.as_deref().unwrap_or("missing");
        let since = to_the_second(condition.since);
        Some(Announcement {
            event: HealthEvent::DetectedUnhealthy,
            node: Some((case.name.clone(), node.view.uid.clone())),
            note: format!("condition {} is {status} since {since}", condition.type_),
        })
    });
    announced.collect()
}

fn announcement(event: HealthEvent, note: &str) -> Announcement {
    Announcement {
        event,
        node: None,
        note: note.to_owned(),
    }
}

fn is_true(conditions: &[Condition], type_: &str) -> bool {
    let mut conditions = conditions.iter();
    conditions.any(|condition| condition.type_ == type_ && condition.status == "True")
}

/// Drops what stops nodes, and then the oldest steps whose remediations are there to tell of them, where the status
/// would be too large for the API server.
fn fit(status: &mut NodeHealthCheckStatus, check: &Check<'_>) {
    let shorten = |text: &mut String, longest| *text = cut_visibly(std::mem::take(text), longest);
    shorten(&mut status.reason, LONGEST_REASON);
    let nodes = &mut status.unhealthy_nodes;
    for stop in nodes.iter_mut().filter_map(|node| node.stopped_by.as_mut()) {
        shorten(&mut stop.message, LONGEST_MESSAGE);
    }
    let mut size = json_length(status);
    if size > LARGEST {
        for node in &mut status.unhealthy_nodes {
            node.stopped_by = None;
        }
        size = json_length(status);
    }
    if size <= LARGEST {
        return;
    }
    let cases = check.cases.values();
    let live: BTreeSet<&str> = cases
        .flat_map(|case| case.chain.live().map(|live| &*live.uid))
        .collect();
    let is_there = |uid: &&str| live.contains(uid);
    let known = status.unhealthy_nodes.iter().flat_map(|entry| &entry.remediations);
    let mut oldest: Vec<(Option<Timestamp>, String, usize)> = known
        .filter_map(|step| {
            let uid = step.resource.uid.as_deref().filter(is_there)?;
            Some((step.started, uid.to_owned(), json_length(step)))
        })
        .collect();
    oldest.sort();
    let mut dropped = BTreeSet::new();
    for (_, uid, length) in oldest {
        if size <= LARGEST {
            break;
        }
        size -= length.min(size);
        dropped.insert(uid);
    }
    let is_dropped = |step: &Remediation| step.resource.uid.as_ref().is_some_and(|uid| dropped.contains(uid));
    for node in &mut status.unhealthy_nodes {
        node.remediations.retain(|step| !is_dropped(step));
    }
    let dropped = dropped.len();
    status.reason = format!(
        "{}; {dropped} remediations are not listed, for the status would be too large",
        status.reason
    );
}

fn count(nodes: usize) -> i32 {
    i32::try_from(nodes).unwrap_or(i32::MAX)
}
