//! The one answer about a node: of all that is told of it what counts most, whether somebody has to act, and what comes next.
//! `status`, `why` and the page print it; none of them judges by itself. Pure.

use jiff::{SignedDuration, Timestamp};
use k8s_openapi::api::core::v1::Node;
use nodeward_api::NodeHealthCheck;
use nodeward_api::node_drain::{BlockedBy, Phase};
use nodeward_api::reason::{HealthReason, LockReason};
use nodeward_core::verdict::BlockedMessage;
use serde::Serialize;

use super::Unread;
use super::component::{Component, DRAIN_KEEPER, DRAIN_LOCK, HEALTH_CHECK, stopped};
use super::drain::Drain;
use super::health::{HealthSources, Judge, NodeHealth, Stop};
use super::node::{Blocked, NodeSummary};
use crate::commands::why::health::sentence;
use crate::describe;
use crate::text::Style;
use crate::text::table::Cell;
use crate::text::time::{ahead, moment};

/// A node that has been cordoned for so long while nobody drains it has been forgotten.
const FORGOTTEN_AFTER: SignedDuration = SignedDuration::from_hours(1);

/// What there is to say of a node.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Answer {
    pub state: NodeState,
    pub severity: Severity,
    pub since: Option<Timestamp>,
    /// When something happens by itself; a deadline that is only reported is none.
    pub until: Option<Timestamp>,
    /// What counts most; absent where the state says all.
    pub why: Option<String>,
}

/// From what counts most to what counts least.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
pub enum NodeState {
    /// A remediation of it runs.
    Remediating,
    /// Something keeps its drain from ending that does not pass with its turn.
    Blocked,
    /// A condition counts against it, or will.
    Unhealthy,
    Drained,
    /// Its drain is over, and its pods return.
    Recovering,
    Draining,
    /// Its drain waits for its turn.
    Waiting,
    NotReady,
    Cordoned,
    Ready,
}

impl NodeState {
    fn word(self) -> &'static str {
        match self {
            Self::Remediating => "being remediated",
            Self::Blocked => "blocked",
            Self::Unhealthy => "unhealthy",
            Self::Drained => "drained",
            Self::Recovering => "recovering",
            Self::Draining => "being drained",
            Self::Waiting => "waiting for its turn to drain",
            Self::NotReady => "not Ready",
            Self::Cordoned => "cordoned",
            Self::Ready => "Ready",
        }
    }
}

/// Whether a person has to act.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize)]
pub enum Severity {
    Fine,
    /// It waits for others, as designed: another drain, Ceph, an owner's hold, its requester.
    Waits,
    /// Something is being done, or will be at a time that is told.
    Acts,
    /// It goes on only when a person acts.
    NeedsPerson,
}

/// What may be read that bears on all nodes: what cannot be seen may be there.
#[derive(Debug, Clone, Copy)]
pub struct Sight {
    pub drains: bool,
    pub checks: bool,
}

impl Sight {
    /// Where these could not be read.
    pub fn without(unread: &[Unread]) -> Self {
        let is_seen = |what| !unread.iter().any(|unread| unread.hides(what));
        Self {
            drains: is_seen("drains"),
            checks: is_seen("health checks"),
        }
    }
}

/// What answers about nodes rest on, at one moment.
pub struct Answering<'a> {
    pub sight: Sight,
    pub checks: &'a [NodeHealthCheck],
    pub judges: Vec<Judge<'a>>,
    /// The components that were found.
    pub components: &'a [Component],
    pub now: Timestamp,
}

/// A node, and what was found out about it.
#[derive(Debug, Clone, PartialEq)]
pub struct AnsweredNode {
    pub summary: NodeSummary,
    pub health: Vec<NodeHealth>,
    pub answer: Answer,
}

impl<'a> Answering<'a> {
    pub fn new(checks: &'a [NodeHealthCheck], components: &'a [Component], sight: Sight, now: Timestamp) -> Self {
        Self {
            sight,
            checks,
            judges: checks.iter().map(Judge::of).collect(),
            components,
            now,
        }
    }

    /// Of a drain whose node is not there.
    pub fn answer_without_node(&self, drain: &Drain) -> Option<Answer> {
        let is_wanted = !drain.dry_run && !drain.ending && drain.phase != Some(Phase::Released);
        let told = is_wanted.then(|| given_up(drain).or_else(|| of_drain(drain, None, self.now)))?;
        told.map(acts(self.components, DRAIN_LOCK))
    }

    /// Of one node, by what it says itself, and with its drain.
    pub fn answer(&self, node: &Node, drain: Option<&Drain>) -> AnsweredNode {
        let summary = NodeSummary::of(node);
        let sources = HealthSources {
            checks: self.checks,
            node: Some(node),
            drain,
            ..HealthSources::default()
        };
        let concerned = self
            .judges
            .iter()
            .filter(|judge| judge.concerns(&summary.name, node, self.now));
        let health = concerned.filter_map(|judge| judge.judge(&summary.name, &sources, self.now));
        let health: Vec<NodeHealth> = health.collect();
        AnsweredNode {
            answer: self.of(&summary, drain, &health),
            summary,
            health,
        }
    }

    /// Of a node whose health in the eyes of each NodeHealthCheck is known.
    pub fn of(&self, node: &NodeSummary, drain: Option<&Drain>, health: &[NodeHealth]) -> Answer {
        let now = self.now;
        let drain = drain.filter(|drain| !drain.dry_run && drain.phase != Some(Phase::Released));
        let is_blocked = node.drain_keeper.as_ref().and_then(|keeper| keeper.blocked.as_ref());
        let acts = |component| acts(self.components, component);
        let candidates = [
            health
                .iter()
                .find_map(|health| remediating(health, now))
                .map(acts(HEALTH_CHECK)),
            drain.and_then(given_up),
            is_blocked
                .filter(|blocked| drain.is_none() || tells_more_than_its_drain(blocked))
                .map(blocked)
                .map(acts(DRAIN_KEEPER)),
            health
                .iter()
                .find_map(|health| unhealthy(health, now))
                .map(acts(HEALTH_CHECK)),
            drain
                .and_then(|drain| of_drain(drain, Some(node), now))
                .map(acts(DRAIN_LOCK)),
        ];
        let told = candidates.into_iter().flatten().next();
        told.unwrap_or_else(|| by_itself(node, self.sight, now))
    }
}

impl Answer {
    fn new(state: NodeState, severity: Severity) -> Self {
        Self {
            state,
            severity,
            since: None,
            until: None,
            why: None,
        }
    }

    /// Whether somebody has to act.
    pub fn needs_person(&self) -> bool {
        self.severity == Severity::NeedsPerson
    }

    /// Whether somebody has to act, and what there is to say.
    pub fn line(&self, now: Timestamp) -> Cell {
        let (style, who) = match self.severity {
            Severity::NeedsPerson => (Style::Bad, "a person has to act"),
            Severity::Acts => (Style::Warning, "something acts by itself"),
            Severity::Waits => (Style::Warning, "waits, as designed"),
            Severity::Fine => (Style::Plain, "fine"),
        };
        let until = describe::prefixed(" at ", ahead(self.until, now));
        Cell::new(style, format!("{who}{until}: {}", self.words()))
    }

    /// Why, or else the state.
    pub fn words(&self) -> &str {
        self.why.as_deref().unwrap_or(self.state.word())
    }
}

/// What the node says, of which nothing else tells. That a person has to act follows only where what else might can be seen.
fn by_itself(node: &NodeSummary, sight: Sight, now: Timestamp) -> Answer {
    let timed = node.drain_keeper.as_ref().and_then(|keeper| keeper.drain_began);
    if !node.ready {
        let seen = (
            "it is not Ready, and no NodeHealthCheck counts that against it",
            Severity::NeedsPerson,
        );
        let unseen = ("it is not Ready, and NodeHealthChecks may not be read", Severity::Waits);
        let (why, severity) = if sight.checks { seen } else { unseen };
        return Answer {
            why: Some(why.to_owned()),
            ..Answer::new(NodeState::NotReady, severity)
        };
    }
    if !node.cordoned {
        return Answer::new(NodeState::Ready, Severity::Fine);
    }
    if timed.is_some() {
        return Answer {
            since: timed,
            ..Answer::new(NodeState::Draining, Severity::Acts)
        };
    }
    let since = node.cordoned_since;
    let forgotten = since.filter(|since| sight.drains && FORGOTTEN_AFTER <= now.duration_since(*since));
    Answer {
        since,
        why: forgotten.map(|since| format!("it is cordoned since {}, and nobody drains it", moment(since, now))),
        ..Answer::new(
            NodeState::Cordoned,
            forgotten.map_or(Severity::Fine, |_| Severity::NeedsPerson),
        )
    }
}

/// The same where the component that would act does not: then nothing happens at any time.
fn acts<'a>(components: &'a [Component], name: &'a str) -> impl Fn(Answer) -> Answer + 'a {
    move |answer| {
        let stopped = stopped(components, name).filter(|_| answer.severity > Severity::Fine);
        let Some((_, stopped)) = stopped else {
            return answer;
        };
        let before = describe::prefixed("; before that: ", answer.why.as_ref());
        Answer {
            severity: Severity::NeedsPerson,
            until: None,
            why: Some(format!("nothing acts here: {stopped}{before}")),
            ..answer
        }
    }
}

fn remediating(health: &NodeHealth, now: Timestamp) -> Option<Answer> {
    let step = health.step.as_ref()?;
    let is_overdue = step.ends.is_some_and(|ends| ends <= now);
    let stops = stops(health);
    // A stop matters once the time of the step is over.
    let is_stuck = is_overdue && !health.stopped_by.iter().all(|stop| stop.ends_by_itself(now));
    let needs_person = health.reason == HealthReason::ChainExhausted || is_stuck || step.kind_not_served;
    let severity = if needs_person {
        Severity::NeedsPerson
    } else {
        Severity::Acts
    };
    Some(Answer {
        since: step.timed_out.or(step.started),
        // The end of the last step is only reported.
        until: health
            .next
            .as_ref()
            .and_then(|next| next.at)
            .filter(|_| stops.is_none()),
        why: Some(format!(
            "{} (step {} of {}: {}{}, NodeHealthCheck {}){}",
            sentence(health),
            step.number,
            step.of,
            step.remediation,
            if step.kind_not_served {
                ", whose kind is not served any more"
            } else {
                ""
            },
            health.check,
            describe::prefixed(
                "; its next step is stopped by ",
                stops.filter(|_| health.next.is_some())
            )
        )),
        ..Answer::new(NodeState::Remediating, severity)
    })
}

/// What stops the next step, other than the maintenance that the node is down for.
fn stops(health: &NodeHealth) -> Option<String> {
    let stops = health.stopped_by.iter();
    let stops = stops.filter(|stop| stop.reason != HealthReason::UnderMaintenance);
    let details: Vec<&str> = stops.map(|stop| stop.detail.as_str()).collect();
    Some(details.join(", ")).filter(|stops| !stops.is_empty())
}

/// A drain that goes on only when an administrator acts.
fn given_up(drain: &Drain) -> Option<Answer> {
    matches!(drain.phase, Some(Phase::Suspect | Phase::Failed)).then(|| Answer {
        since: drain.since(),
        why: Some(describe::message(drain).to_owned()),
        ..Answer::new(NodeState::Blocked, Severity::NeedsPerson)
    })
}

/// Whether drain-keeper forces pods, or leaves them to a person. What it waits for, or evicts as drain-lock does, is told by the drain.
fn tells_more_than_its_drain(blocked: &Blocked) -> bool {
    let pods = blocked.pods.as_ref();
    pods.is_none_or(|pods| pods.needs_person() || pods.forces())
}

/// drain-keeper finds pods that keep the drain from ending.
fn blocked(blocked: &Blocked) -> Answer {
    let needs_person = blocked.pods.as_ref().is_some_and(BlockedMessage::needs_person);
    let waits = blocked.pods.as_ref().is_some_and(BlockedMessage::waits_for_others);
    let severity = match (needs_person, waits) {
        (true, _) => Severity::NeedsPerson,
        (false, true) => Severity::Waits,
        (false, false) => Severity::Acts,
    };
    let chief = blocked.pods.as_ref().and_then(|pods| Some((pods.chief()?, pods.pods)));
    let why = chief.map_or_else(
        || blocked.message.clone(),
        |(chief, pods)| chief.to_owned() + &describe::more(pods.saturating_sub(1)),
    );
    Answer {
        since: blocked.since,
        until: blocked
            .pods
            .as_ref()
            .and_then(|pods| Some(pods.chief_act()?.at))
            .filter(|_| !needs_person),
        why: Some(why),
        ..Answer::new(NodeState::Blocked, severity)
    }
}

/// A condition counts against the node, and it is not down for its drain.
fn unhealthy(health: &NodeHealth, now: Timestamp) -> Option<Answer> {
    let condition = health.condition.as_ref()?;
    let is_maintained = |stop: &Stop| stop.reason == HealthReason::UnderMaintenance;
    if health.stopped_by.iter().any(is_maintained) {
        return None;
    }
    let is_counting = condition.expires > now;
    let severity = if is_counting || health.stopped_by.is_empty() {
        Severity::Acts
    } else if health.stopped_by.iter().all(|stop| stop.ends_by_itself(now)) {
        Severity::Waits
    } else {
        Severity::NeedsPerson
    };
    let stops = describe::prefixed("; stopped by ", stops(health));
    Some(Answer {
        since: Some(condition.since),
        until: Some(condition.expires).filter(|_| is_counting && health.stopped_by.is_empty()),
        why: Some(format!(
            "{} is {}: {} (NodeHealthCheck {}){stops}",
            condition.type_,
            condition.status,
            sentence(health),
            health.check
        )),
        ..Answer::new(NodeState::Unhealthy, severity)
    })
}

/// Where a drain of drain-lock stands.
fn of_drain(drain: &Drain, node: Option<&NodeSummary>, now: Timestamp) -> Option<Answer> {
    // drain-lock lifts a cordon of its own as soon as the drain ends.
    if drain.ending && node.is_some_and(|node| node.cordoned) {
        let why = "its drain ends when its disruptions have returned, and pods that fit no other node come back only once it is \
                   uncordoned";
        return Some(Answer {
            since: drain.since(),
            why: Some(why.to_owned()),
            ..Answer::new(NodeState::Recovering, Severity::Waits)
        });
    }
    let obstacles = describe::obstacles(&drain.blocked_by);
    let of = |severity| move |blocked: &&&BlockedBy| of_obstacle(blocked.reason) == severity;
    let needs_person = obstacles.iter().find(of(Severity::NeedsPerson));
    let ends_by_itself =
        |blocked: &BlockedBy| blocked.reason.waits_for_a_drain() || blocked.reason == LockReason::WaitsForWindow;
    let stuck = needs_person.or_else(|| obstacles.iter().find(|blocked| !ends_by_itself(blocked)));
    let first = stuck.or(obstacles.first());
    let why = first.map(|blocked| describe::obstacle(blocked) + &describe::more(obstacles.len() - 1));
    let is_overdue = drain.deadline.is_some_and(|deadline| deadline <= now);
    let (state, severity) = match drain.phase {
        _ if drain.ending => (NodeState::Recovering, Severity::Acts),
        // Its requester does the work, and ends the drain.
        Some(Phase::Drained) => (NodeState::Drained, Severity::Waits),
        Some(Phase::Recovering) => (NodeState::Recovering, Severity::Acts),
        None | Some(Phase::Scheduled | Phase::Queued | Phase::Granted | Phase::Draining)
            if needs_person.is_some() || is_overdue =>
        {
            (NodeState::Blocked, Severity::NeedsPerson)
        }
        None | Some(Phase::Scheduled | Phase::Queued | Phase::Granted | Phase::Draining) if stuck.is_some() => {
            (NodeState::Blocked, Severity::Waits)
        }
        Some(Phase::Granted | Phase::Draining) => (NodeState::Draining, Severity::Acts),
        None | Some(Phase::Scheduled | Phase::Queued) => (NodeState::Waiting, Severity::Waits),
        // The first is filtered out before, the others are told by `given_up`.
        Some(Phase::Released | Phase::Suspect | Phase::Failed) => return None,
    };
    Some(Answer {
        since: drain.in_phase_since(),
        why: why.or_else(|| {
            let looks_again = "what it waited for is over, and drain-lock looks again";
            let told = if drain.outdated.is_empty() {
                describe::message(drain)
            } else {
                looks_again
            };
            Some(told.to_owned())
        }),
        ..Answer::new(state, severity)
    })
}

/// Who ends the wait for an obstacle: a person, or others by themselves.
fn of_obstacle(reason: LockReason) -> Severity {
    let needs_person = reason.is_misconfiguration()
        || reason.lacks_consent()
        || matches!(
            reason,
            LockReason::CircularWait
                | LockReason::BudgetUnhealthy
                | LockReason::GroupUnhealthy
                | LockReason::WriteRefused
                | LockReason::LedgerUnreadable
                | LockReason::LedgerFull
                | LockReason::UnknownOptOut
                | LockReason::TolerationTooShort
                | LockReason::InvalidDrain
                | LockReason::NodeGone
                | LockReason::NodeReplaced
                | LockReason::StuckTerminating
                | LockReason::FinalizerStuck
                | LockReason::Suspect
                | LockReason::DeadlinePassed
                | LockReason::AwaitsDrainer
        );
    if needs_person {
        Severity::NeedsPerson
    } else {
        Severity::Waits
    }
}

#[cfg(test)]
mod tests {
    use rstest::rstest;
    use serde_json::{Value, json};

    use k8s_openapi::api::core::v1::ObjectReference;

    use super::*;
    use crate::model::component::{ComponentObjects, components};
    use crate::model::health::{NextStep, Step};

    fn now() -> Timestamp {
        "2026-01-01T10:00:00Z".parse().unwrap()
    }

    fn node() -> NodeSummary {
        let node = json!({
            "metadata": { "name": "n1" },
            "spec": { "unschedulable": true },
            "status": { "conditions": [{ "type": "Ready", "status": "True" }] },
        });
        NodeSummary::of(&serde_json::from_value(node).unwrap())
    }

    fn drain(phase: &str, reason: &str) -> Drain {
        let drain = json!({
            "apiVersion": "nodeward.dev/v1alpha1", "kind": "NodeDrain", "metadata": { "name": "n1" },
            "spec": { "nodeName": "n1" },
            "status": {
                "phase": phase, "deadline": "2026-01-01T10:30:00Z", "blockedBy": [{ "reason": reason, "message": "m" }],
            },
        });
        Drain::of(&serde_json::from_value(drain).unwrap())
    }

    /// drain-lock, whose leader renewed its lease at this time.
    fn led(renewed: &str) -> Vec<Component> {
        let lease: Value = json!({
            "metadata": {
                "name": "drain-lock", "namespace": "nodeward-system", "annotations": { "nodeward.dev/planned-at": "0@7" },
            },
            "spec": { "holderIdentity": "a", "renewTime": renewed, "leaseDurationSeconds": 15 },
        });
        let objects = ComponentObjects {
            leases: vec![serde_json::from_value(lease).unwrap()],
            ..ComponentObjects::default()
        };
        components(&objects, now())
    }

    /// What may not be read may be what takes care of the node.
    #[rstest]
    #[case::forgotten("True", "drains", NodeState::Cordoned, Severity::Fine)]
    #[case::forgotten_and_seen("True", "pauses", NodeState::Cordoned, Severity::NeedsPerson)]
    #[case::watched_by_nobody("False", "health checks", NodeState::NotReady, Severity::Waits)]
    #[case::watched_by_nobody_and_seen("False", "pauses", NodeState::NotReady, Severity::NeedsPerson)]
    fn nothing_is_concluded_from_what_may_not_be_read(
        #[case] ready: &str,
        #[case] what: &'static str,
        #[case] state: NodeState,
        #[case] severity: Severity,
    ) {
        let message = "m".to_owned();
        let sight = Sight::without(&[Unread::Undecodable { what, message }]);
        let cordon = json!([
            { "key": "node.kubernetes.io/unschedulable", "effect": "NoSchedule", "timeAdded": "2026-01-01T08:00:00Z" },
        ]);
        let node = json!({
            "metadata": { "name": "n1" }, "spec": { "taints": cordon },
            "status": { "conditions": [{ "type": "Ready", "status": ready }] },
        });
        let node = serde_json::from_value(node).unwrap();
        let answer = Answering::new(&[], &[], sight, now()).answer(&node, None).answer;
        assert_eq!((answer.state, answer.severity), (state, severity), "{answer:?}");
    }

    #[rstest]
    #[case::override_to_come(
        "shop/a waits; next: PdbDelete at 2026-01-01T10:00:02Z: evict it, or delete it if the budget refuses",
        Severity::Acts,
        Some("2026-01-01T10:00:02Z")
    )]
    #[case::when_something_ends("shop/a waits; next: Delete when that ends: evict it", Severity::Waits, None)]
    #[case::nothing(
        "shop/a is bare; next: nothing by itself; to do: delete it",
        Severity::NeedsPerson,
        None
    )]
    fn pod_that_keeps_a_drain_from_ending_says_who_acts(
        #[case] pod: &str,
        #[case] severity: Severity,
        #[case] until: Option<&str>,
    ) {
        let message = format!("1 pod keeps the drain from ending: {pod}");
        let blocked = blocked(&Blocked {
            reason: "BudgetNeverAllows".to_owned(),
            since: None,
            pods: BlockedMessage::parse(&message),
            message,
        });
        assert_eq!((blocked.severity, blocked.why.as_deref()), (severity, Some(pod)));
        assert_eq!(blocked.until, until.map(|until| until.parse().unwrap()));
    }

    /// Within the time of a step nothing is stopped yet.
    #[rstest]
    #[case::runs("2026-01-01T10:05:00Z", None, Severity::Acts, true)]
    #[case::next_one_is_stopped("2026-01-01T10:05:00Z", Some(HealthReason::CheckDisabled), Severity::Acts, false)]
    #[case::is_overdue_and_stopped(
        "2026-01-01T09:55:00Z",
        Some(HealthReason::CheckDisabled),
        Severity::NeedsPerson,
        false
    )]
    #[case::stop_ends_by_itself("2026-01-01T09:55:00Z", Some(HealthReason::Settling), Severity::Acts, false)]
    #[case::stop_ends_with_others("2026-01-01T09:55:00Z", Some(HealthReason::StormCooldown), Severity::Acts, false)]
    #[case::stop_ends_with_others_work(
        "2026-01-01T09:55:00Z",
        Some(HealthReason::ClusterUpgrading),
        Severity::Acts,
        false
    )]
    #[case::its_time_has_passed(
        "2026-01-01T09:55:00Z",
        Some(HealthReason::EtcdQuorumAtRisk),
        Severity::NeedsPerson,
        false
    )]
    #[case::is_down_for_its_drain("2026-01-01T09:55:00Z", Some(HealthReason::UnderMaintenance), Severity::Acts, true)]
    fn stopped_step_that_is_over_needs_a_person(
        #[case] ends: &str,
        #[case] stop: Option<HealthReason>,
        #[case] severity: Severity,
        #[case] has_time: bool,
    ) {
        let ends: Timestamp = ends.parse().unwrap();
        let health = NodeHealth {
            check: "workers".to_owned(),
            reason: HealthReason::RemediationRunning,
            until: None,
            condition: None,
            stopped_by: stop
                .into_iter()
                .map(|reason| Stop {
                    reason,
                    detail: "it".to_owned(),
                    until: (reason != HealthReason::StormCooldown).then_some(now()),
                })
                .collect(),
            step: Some(Step {
                number: 1,
                of: 2,
                remediation: "Reboot ns/n1".to_owned(),
                started: None,
                ends: Some(ends),
                timed_out: None,
                kind_not_served: false,
                conditions: Vec::new(),
                resource: ObjectReference::default(),
            }),
            next: Some(NextStep {
                number: 2,
                template: "fence".to_owned(),
                at: Some(ends),
            }),
        };
        let answer = remediating(&health, now()).unwrap();
        assert_eq!(
            (answer.severity, answer.until.is_some()),
            (severity, has_time),
            "{answer:?}"
        );
    }

    /// A step that is over is told from its end on: it may have been at work for long.
    #[rstest]
    #[case::runs(None, "2026-01-01T09:00:00Z")]
    #[case::is_over(Some("2026-01-01T09:50:00Z"), "2026-01-01T09:50:00Z")]
    fn remediation_is_told_since_its_last_change(#[case] timed_out: Option<&str>, #[case] since: &str) {
        let step = json!({
            "resource": { "apiVersion": "v1", "kind": "Reboot", "namespace": "ns", "name": "n1", "uid": "r1" },
            "started": "2026-01-01T09:00:00Z", "timedOut": timed_out,
        });
        let check = json!({
            "metadata": { "name": "workers" }, "spec": { "selector": {} },
            "status": { "unhealthyNodes": [{ "name": "n1", "remediations": [step] }] },
        });
        let checks = [serde_json::from_value(check).unwrap()];
        let ready = json!({ "type": "Ready", "status": "False", "lastTransitionTime": "2026-01-01T08:00:00Z" });
        let node = json!({ "metadata": { "name": "n1" }, "status": { "conditions": [ready] } });
        let answering = Answering::new(&checks, &[], Sight::without(&[]), now());
        let answer = answering.answer(&serde_json::from_value(node).unwrap(), None).answer;
        assert_eq!(answer.state, NodeState::Remediating, "{answer:?}");
        assert_eq!(answer.since, Some(since.parse().unwrap()), "{answer:?}");
    }

    /// Of many nodes no lease and no Event is read: health-check's word in the status tells.
    #[rstest]
    #[case::nothing(json!(null), Severity::Acts)]
    #[case::a_person(json!({ "reason": "PermissionMissing", "message": "m" }), Severity::NeedsPerson)]
    #[case::others_work(json!({ "reason": "ClusterUpgrading", "message": "m" }), Severity::Waits)]
    #[case::somebodys_lease(json!({ "reason": "LeaseTaken", "message": "m" }), Severity::Waits)]
    #[case::its_end(json!({ "reason": "EtcdQuorumAtRisk", "until": "2026-01-01T10:05:00Z" }), Severity::Waits)]
    #[case::tried_again(json!({ "reason": "RemediationRejected", "message": "m", "until": "2026-01-01T10:05:00Z" }), Severity::NeedsPerson)]
    #[case::its_end_has_passed(json!({ "reason": "EtcdQuorumAtRisk", "until": "2026-01-01T09:55:00Z" }), Severity::NeedsPerson)]
    fn what_stops_each_node_tells_who_acts(#[case] stop: Value, #[case] severity: Severity) {
        let check = json!({
            "metadata": { "name": "workers" }, "spec": { "selector": {} },
            "status": { "healthyNodes": 5, "observedNodes": 6, "unhealthyNodes": [{ "name": "n1", "stoppedBy": stop }] },
        });
        let checks = [serde_json::from_value(check).unwrap()];
        let ready = json!({ "type": "Ready", "status": "False", "lastTransitionTime": "2026-01-01T09:00:00Z" });
        let node = json!({ "metadata": { "name": "n1" }, "status": { "conditions": [ready] } });
        let answering = Answering::new(&checks, &[], Sight::without(&[]), now());
        let answer = answering.answer(&serde_json::from_value(node).unwrap(), None).answer;
        assert_eq!(
            (answer.state, answer.severity),
            (NodeState::Unhealthy, severity),
            "{answer:?}"
        );
    }

    /// drain-keeper waits for the claim, and does nothing by itself before.
    #[rstest]
    #[case::for_the_claim_alone(
        "AwaitsClaim",
        "shop/a waits; next: PdbDelete when that ends: evict it",
        "BudgetUnhealthy",
        Severity::NeedsPerson
    )]
    #[case::for_another_drain(
        "AwaitsClaim",
        "shop/a waits; next: PdbDelete when that ends: evict it",
        "WaitsForDisruptions",
        Severity::Waits
    )]
    #[case::act_to_come(
        "AwaitsClaim",
        "shop/a waits; next: PdbDelete at 2026-01-01T10:00:02Z: evict it, or delete it if the budget refuses",
        "BudgetUnhealthy",
        Severity::Acts
    )]
    #[case::for_something_else(
        "BudgetExhausted",
        "shop/a waits; next: PdbDelete when that ends: evict it, or delete it if the budget refuses",
        "BudgetUnhealthy",
        Severity::NeedsPerson
    )]
    #[case::eviction_to_come(
        "BudgetExhausted",
        "shop/a waits; next: Delete at 2026-01-01T10:00:02Z: evict it",
        "CircularWait",
        Severity::NeedsPerson
    )]
    #[case::nobody_else(
        "ProtectedFinalizer",
        "shop/a is kept; next: nothing by itself; to do: repair it",
        "AwaitingPods",
        Severity::NeedsPerson
    )]
    fn what_waits_for_a_claim_is_told_by_its_drain(
        #[case] reason: &str,
        #[case] pod: &str,
        #[case] obstacle: &str,
        #[case] severity: Severity,
    ) {
        let blocked = json!({
            "type": "nodeward.dev/DrainBlocked", "status": "True", "reason": reason,
            "message": format!("1 pod keeps the drain from ending: {pod}"),
        });
        let node = json!({
            "metadata": { "name": "n1" }, "spec": { "unschedulable": true },
            "status": { "conditions": [{ "type": "Ready", "status": "True" }, blocked] },
        });
        let answering = Answering::new(&[], &[], Sight::without(&[]), now());
        let drain = drain("Queued", obstacle);
        let answer = answering
            .answer(&serde_json::from_value(node).unwrap(), Some(&drain))
            .answer;
        assert_eq!(answer.severity, severity);
    }

    #[test]
    fn drain_of_a_node_that_is_not_there_needs_a_person() {
        let answering = Answering::new(&[], &[], Sight::without(&[]), now());
        let answer = answering.answer_without_node(&drain("Queued", "NodeGone"));
        assert!(answer.is_some_and(|answer| answer.needs_person()));
        assert_eq!(answering.answer_without_node(&drain("Released", "NodeGone")), None);
    }

    /// Its deadline is only reported, so that nothing happens then.
    #[rstest]
    #[case::another_drain("Queued", "WaitsForDisruptions", NodeState::Waiting, Severity::Waits)]
    #[case::a_window("Scheduled", "WaitsForWindow", NodeState::Waiting, Severity::Waits)]
    #[case::ceph("Draining", "CephClosed", NodeState::Blocked, Severity::Waits)]
    #[case::its_pods("Draining", "AwaitingPods", NodeState::Draining, Severity::Acts)]
    #[case::a_person("Scheduled", "BudgetNeverAllows", NodeState::Blocked, Severity::NeedsPerson)]
    fn drain_says_who_ends_its_wait(
        #[case] phase: &str,
        #[case] reason: &str,
        #[case] state: NodeState,
        #[case] severity: Severity,
    ) {
        let drain = drain(phase, reason);
        let answer = |components: &[Component]| {
            Answering::new(&[], components, Sight::without(&[]), now()).of(&node(), Some(&drain), &[])
        };
        for components in [&[][..], &led("2026-01-01T09:59:55.000000Z")] {
            let answer = answer(components);
            let found = (answer.state, answer.severity, answer.until);
            assert_eq!(found, (state, severity, None), "{answer:?}");
        }
        // A lease of that name that nobody renews says nothing beside one that is renewed.
        let mut both = led("2026-01-01T09:50:00.000000Z");
        both.extend(led("2026-01-01T09:59:55.000000Z"));
        assert_eq!(answer(&both).severity, severity);
        // Nobody leads any more, so nothing that is told comes true by itself.
        let answer = answer(&led("2026-01-01T09:50:00.000000Z"));
        assert_eq!(answer.severity, Severity::NeedsPerson);
        assert!(
            answer
                .words()
                .starts_with("nothing acts here: no replica of drain-lock leads"),
            "{answer:?}"
        );
    }
}
