//! What frees a slot, a name or a step must not free too much: two events, one after the other, in every order and at moments
//! that matter, and longer stories at random. Whatever happens, no more nodes are remediated at once than the limit says, no
//! machine has two remediators at work, no second step comes without the first one of the same outage, and what a stop has held
//! does not fall due in the instant in which it ends.

use std::collections::BTreeMap;
use std::sync::Arc;

use jiff::Timestamp;
use proptest::prelude::*;
use proptest::sample::select;
use serde_json::{Value, json};

use super::world::{World, at, chain, kind, second_of, template, two_steps};
use crate::plan::{Action, NodeEvidence, Plan, RemediationChange, RestsOn, StartRemediation, longest_run};
use crate::snapshot::{CheckName, Listed, RemediationFacts, RemediationKind};
use nodeward_api::node_health_check::UnhealthyNode;
use nodeward_core::id::NodeUid;
use nodeward_core::node_health_check::{Quantity, Threshold};
use nodeward_core::selector::Selector;

const EXCLUDED: &str = "remediation.medik8s.io/exclude-from-remediation";
const SETTLE: i64 = 60;
const LEAST_HEALTHY: usize = 3;

/// What happens to `w1`, its remediations, or all of them.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Event {
    Fails,
    Succeeds,
    Deleted,
    DeletedAndKept,
    Released,
    NodeDeleted,
    NodeReturns,
    NodeHeals,
    /// Its remediations are kept.
    NodeHealsInVain,
    NodeFails,
    NodeFailsAgainUndone,
    NodeFailsAgainUnseen,
    NodeFailsOtherwise,
    /// Two of its nodes, and the workers are back.
    ControlPlaneFails,
    NextOfControlPlaneFails,
    SecondStepIsEdited,
    FirstStepIsRemoved,
    ChainIsRestored,
    Paused,
    Resumed,
    PausedForAWhile,
    Excluded,
    Included,
    ThresholdBreaks,
    ThresholdHolds,
    KindIsRemoved,
    KindIsBack,
    MayNotBeAnnotated,
    MayBeAnnotated,
    ForeignRemediation,
    LosesOwner,
    LeaderRestarts,
    /// Between intent and create.
    LeaderDies,
    /// Another one acts on what it saw before the last event.
    OldLeader,
    ClockStepsForward,
    ClockStepsBack,
}

use Event as E;

#[rustfmt::skip]
const EVENTS: [Event; 36] = [
    E::Fails, E::Succeeds, E::Deleted, E::DeletedAndKept, E::Released, E::NodeDeleted, E::NodeReturns, E::NodeHeals, E::NodeHealsInVain,
    E::NodeFails, E::NodeFailsAgainUndone, E::NodeFailsAgainUnseen, E::NodeFailsOtherwise, E::ControlPlaneFails, E::NextOfControlPlaneFails, E::SecondStepIsEdited,
    E::FirstStepIsRemoved, E::ChainIsRestored, E::Paused, E::Resumed, E::PausedForAWhile, E::Excluded, E::Included, E::ThresholdBreaks,
    E::ThresholdHolds, E::KindIsRemoved, E::KindIsBack, E::MayNotBeAnnotated, E::MayBeAnnotated, E::ForeignRemediation, E::LosesOwner,
    E::LeaderRestarts, E::LeaderDies, E::OldLeader, E::ClockStepsForward, E::ClockStepsBack,
];

fn watch_all(world: &mut World, name: &str, patch: Value) {
    world.set_check(name, patch);
    world.change_check(name, |check| {
        check.spec.selector = Some(Selector::everything());
        check.spec.max_concurrent = Some(1);
        check.spec.threshold = Threshold::MinHealthy(Quantity::Nodes(LEAST_HEALTHY));
    });
}

/// One remediation at a time. `w1` fails at 0, `w2` a little later, and the first step of `w1` runs since 300.
#[derive(Clone)]
struct Story {
    world: World,
    before: World,
    now: i64,
    events: Vec<(i64, Event)>,
    /// Whoever is told to delete a remediation finds a finalizer.
    keeps: bool,
    /// Kinds that each node has had in this outage, and since when, by NodeHealthCheck.
    steps: BTreeMap<(CheckName, NodeUid), BTreeMap<RemediationKind, Timestamp>>,
    /// When remediations said that they had failed.
    failed: BTreeMap<Arc<str>, Timestamp>,
    /// Nodes that something stopped when the leader last looked, and when that had ended before.
    stopped: BTreeMap<String, bool>,
    released: BTreeMap<String, i64>,
}

impl Story {
    fn new(check: Value, is_single: bool) -> Self {
        let disks = json!({
            "remediationTemplate": template("Replace"),
            "unhealthyConditions": [{ "type": "DiskPressure", "status": "True", "duration": "1m" }],
        });
        let mut world = World::workers(3).control_plane(5);
        if is_single {
            world = world.single();
        }
        watch_all(&mut world, "workers", check);
        watch_all(&mut world, "disks", disks);
        world.policy.safety_pass = jiff::SignedDuration::from_hours(1000);
        world.fail("w1", 0);
        world.fail("w2", 10);
        let mut story = Self {
            before: world.clone(),
            world,
            now: 0,
            events: Vec::new(),
            keeps: false,
            steps: BTreeMap::new(),
            failed: BTreeMap::new(),
            stopped: BTreeMap::new(),
            released: BTreeMap::new(),
        };
        story.live(300);
        assert_eq!(story.world.remediations(), ["Reboot of w1"]);
        story
    }

    fn happen(&mut self, event: Event) {
        let now = self.now;
        self.events.push((now, event));
        let seen_before = self.world.clone();
        let world = &mut self.world;
        let of_w1 = |live: &RemediationFacts| live.node.as_str() == "w1";
        let has_w1 = world.snapshot.nodes.contains_key("w1");
        match event {
            E::Fails | E::Succeeds => {
                world.succeeded(if event == E::Fails { "False" } else { "True" });
                let failed = world.snapshot.remediations.iter().map(|live| Arc::clone(&live.uid));
                for uid in failed.filter(|_| event == E::Fails) {
                    self.failed.entry(uid).or_insert(at(now));
                }
            }
            E::Deleted => world.snapshot.remediations.retain(|live| !of_w1(live)),
            E::DeletedAndKept => {
                self.keeps = true;
                world.change_remediations(|live| live.deleting = live.deleting.or(Some(at(now))));
            }
            E::Released => {
                self.keeps = false;
                world.snapshot.remediations.retain(|live| live.deleting.is_none());
                world.change_remediations(|live| live.finalizers = [].into());
            }
            E::NodeDeleted => world.remove_node("w1"),
            E::NodeReturns => {
                world.add_node("w1", "worker", now);
                world.fail("w1", now);
            }
            E::NodeHeals | E::NodeHealsInVain if has_w1 => {
                self.keeps |= event == E::NodeHealsInVain;
                world.heal("w1", now);
            }
            E::NodeFails if has_w1 => self.fail("w1", now),
            // The emergency stop, or a leader that is away: nothing is done while it heals and fails again.
            E::NodeFailsAgainUndone | E::NodeFailsAgainUnseen if has_w1 => {
                world.heal("w1", now);
                if event == E::NodeFailsAgainUndone {
                    self.look();
                } else {
                    self.world.restart_leader();
                }
                self.now += 1;
                self.fail("w1", self.now);
            }
            E::NodeFailsOtherwise if has_w1 => world.set_condition("w1", "DiskPressure", Some("True"), now),
            E::ControlPlaneFails => {
                for node in world.snapshot.nodes.keys().map(ToString::to_string).collect::<Vec<_>>() {
                    match node.as_str() {
                        "m1" | "m2" => self.fail(&node, now - 300),
                        _ => self.world.heal(&node, now),
                    }
                }
            }
            E::NextOfControlPlaneFails => self.fail("m3", now - 300),
            E::SecondStepIsEdited => self.edit(chain(&[("Reboot", "5m"), ("Replace", "5m")])),
            E::FirstStepIsRemoved => self.edit(chain(&[("Fence", "5m")])),
            E::ChainIsRestored => self.edit(two_steps()),
            E::PausedForAWhile => {
                self.happen(E::Paused);
                self.live(self.now + 350);
                return self.happen(E::Resumed);
            }
            E::Paused | E::Resumed => world.change_check("workers", |check| {
                check.spec.pauses = (event == E::Paused).then(|| "me".to_owned()).into_iter().collect();
            }),
            E::Excluded if has_w1 => world.label("w1", EXCLUDED, Some("true")),
            E::Included if has_w1 => world.label("w1", EXCLUDED, None),
            E::ThresholdBreaks | E::ThresholdHolds => {
                for node in ["w3", "m3", "m4", "m5"] {
                    let status = if event == E::ThresholdBreaks { "False" } else { "True" };
                    world.set_condition(node, "Ready", Some(status), now);
                }
            }
            E::KindIsRemoved => {
                let is_reboot = |live: &RemediationFacts| live.kind == kind("Reboot");
                world.snapshot.remediations.retain(|live| !is_reboot(live));
                world.snapshot.kinds.get_mut(&kind("Reboot")).unwrap().listed = Listed::NotServed;
            }
            E::KindIsBack => world.snapshot.kinds.get_mut(&kind("Reboot")).unwrap().listed = Listed::Complete,
            E::MayNotBeAnnotated | E::MayBeAnnotated => {
                for facts in world.snapshot.kinds.values_mut() {
                    facts.may_annotate = event == E::MayBeAnnotated;
                }
            }
            E::ForeignRemediation => drop(world.add_remediation("Fence", "w2", &["somebody"], now)),
            E::LosesOwner => world.change_remediations(|live| {
                if live.node.as_str() == "w1" && *live.owners[0] == *"uid-of-workers" {
                    live.owners = ["nobody".into()].into();
                }
            }),
            E::LeaderRestarts => world.restart_leader(),
            E::LeaderDies => {
                let mut plan = world.plan(now);
                plan.actions.retain(|action| matches!(action, Action::WriteStatus(_)));
                self.act(plan);
                self.world.restart_leader();
            }
            E::OldLeader => {
                // Each process sees its clock step.
                let (seen, before) = (&self.world.snapshot, &mut self.before.snapshot);
                (before.clock_stepped_by, before.settle_until) = (seen.clock_stepped_by, seen.settle_until);
                let plan = self.before.plan(now);
                self.act(plan);
            }
            E::ClockStepsForward => self.step_clock(3600),
            E::ClockStepsBack => self.step_clock(-120),
            E::NodeHeals
            | E::NodeHealsInVain
            | E::NodeFails
            | E::NodeFailsOtherwise
            | E::NodeFailsAgainUndone
            | E::NodeFailsAgainUnseen
            | E::Excluded
            | E::Included => {}
        }
        self.keep();
        self.before = seen_before;
        self.live(self.now);
    }

    /// Another outage begins, whoever has seen the end of the last one: its steps begin anew. By a clock that was stepped back what
    /// is there was created in it.
    fn fail(&mut self, node: &str, since: i64) {
        let before = self.world.snapshot.nodes[node].conditions.clone();
        self.world.fail(node, since);
        if self.world.snapshot.nodes[node].conditions == before {
            return;
        }
        let uid = &self.world.snapshot.nodes[node].view.uid;
        let live = self.world.snapshot.remediations.iter();
        let created_since = live.filter(|live| live.node_uid.as_ref() == Some(uid) && at(since) <= live.created);
        let kinds: Vec<_> = created_since.map(|live| (live.kind.clone(), live.created)).collect();
        let steps = self.steps.entry(("workers".into(), uid.clone())).or_default();
        // One may have gone with its kind.
        steps.retain(|_, started| at(since) <= *started);
        steps.extend(kinds);
    }

    fn keep(&mut self) {
        if self.keeps {
            let kept: Box<[Box<str>]> = ["example.org/remediator".into()].into();
            self.world.change_remediations(|live| live.finalizers.clone_from(&kept));
        }
    }

    /// Its timeouts are others.
    fn edit(&mut self, steps: Value) {
        self.released.clear();
        let pauses = self.world.snapshot.checks["workers"].spec.pauses.clone();
        watch_all(&mut self.world, "workers", steps);
        self.world.change_check("workers", |check| check.spec.pauses = pauses);
    }

    fn step_clock(&mut self, seconds: i64) {
        self.now += seconds;
        self.released.values_mut().for_each(|released| *released += seconds);
        let step = jiff::SignedDuration::from_secs(seconds);
        self.world.snapshot.clock_stepped_by += step;
        self.world.snapshot.settle_until = Some(at(self.now + SETTLE));
    }

    /// Until then, from deadline to deadline.
    fn live(&mut self, until: i64) {
        let mut passes = 0;
        loop {
            let plan = self.look();
            let next = plan.requeue_at.map_or(i64::MAX, second_of);
            let is_at_rest = plan.actions.is_empty();
            passes = if is_at_rest { 0 } else { passes + 1 };
            assert!(passes < 20, "never at rest: {:#?}", plan.actions);
            self.act(plan);
            if is_at_rest {
                if next > until {
                    break;
                }
                self.now = next.max(self.now + 1);
            }
        }
        self.now = self.now.max(until);
        self.look();
    }

    /// What the leader sees: what it stops by its own words it stops.
    fn look(&mut self) -> Plan {
        let plan = self.world.plan(self.now);
        let check = &self.world.snapshot.checks["workers"];
        let all = !check.spec.pauses.is_empty() || plan.check("workers").healthy < LEAST_HEALTHY;
        for node in self.world.snapshot.nodes.values() {
            let name = node.view.name.to_string();
            let is_stopped = all || node.view.labels.get(EXCLUDED) == Some("true");
            if self.stopped.insert(name.clone(), is_stopped) == Some(true) && !is_stopped {
                self.released.insert(name, self.now);
            }
        }
        self.world.remember(&plan);
        plan
    }

    fn act(&mut self, plan: Plan) {
        for action in plan.actions {
            let told = format!("{action:?}");
            if !self.world.try_act(action.clone(), self.now) {
                continue;
            }
            match action {
                Action::StartRemediation(start) => self.judge_start(&start),
                Action::AnnotateRemediation(write, RemediationChange::TimedOut(_)) => {
                    let (seen, evidence) = (write.seen.unwrap(), write.evidence.unwrap());
                    if *seen.owners[0] == *"uid-of-workers" {
                        self.judge_timeout(&seen, &evidence, &told);
                    }
                }
                Action::DeleteRemediation(write) => {
                    if let RestsOn::Healthy { uid, .. } = write.evidence.unwrap().rests_on {
                        self.steps.remove(&(write.check.name, uid));
                    }
                }
                _ => {}
            }
            self.keep();
        }
    }

    fn judge_start(&mut self, start: &StartRemediation) {
        let world = &self.world;
        let is_new = |live: &RemediationFacts| live.key == start.key && live.kind == start.kind;
        let told = format!(
            "at {}, after {:?}: step {} of {}",
            self.now, self.events, start.step, start.node
        );
        let others = || world.snapshot.remediations.iter().filter(|live| !is_new(live));

        let had = self
            .steps
            .entry((Arc::clone(&start.check.name), start.node_uid.clone()));
        let had = had.or_default();

        // One remediator at work on a machine. Somebody else's that came later does not end the chain.
        let came_later = |live: &RemediationFacts| *live.owners[0] == *"somebody" && !had.is_empty();
        let cannot_be_told = |live: &RemediationFacts| !world.snapshot.kinds[&live.kind].may_annotate;
        let at_work = |live: &&Arc<RemediationFacts>| {
            live.node == start.node && live.runs() && !came_later(live) && !cannot_be_told(live)
        };
        let second = others().find(at_work);
        assert!(second.is_none(), "{told} beside {second:#?}");

        // No more than one node at once, of the control plane whatever its remediation has come to.
        if *start.check.name == *"workers" {
            let running = others().find(|live| live.node != start.node && counts(world, live));
            assert!(running.is_none(), "{told} is beyond the limit, with {running:#?}");
        }
        let is_control_plane = |name: &nodeward_core::id::NodeName| name.as_str().starts_with('m');
        let other = others().find(|live| live.node != start.node && is_control_plane(&live.node));
        assert!(
            !is_control_plane(&start.node) || other.is_none(),
            "{told} and {other:#?}"
        );

        // No step without the one before it in this outage, unless a leftover has its name.
        let spec = &world.snapshot.checks[&start.check.name].spec;
        if let Some(before) = start.step.checked_sub(1) {
            let before = spec.steps[before].template.remediation_kind();
            let is_taken = others().any(|live| live.kind == before && *live.key.name == *start.node.as_str());
            assert!(is_taken || had.contains_key(&before), "{told}: there was no {before}");
        }
        had.insert(start.kind.clone(), at(self.now));
    }

    /// What a stop has held falls due a while after its end.
    fn judge_timeout(&self, seen: &RemediationFacts, evidence: &NodeEvidence, told: &str) {
        let RestsOn::Unhealthy {
            type_, last_transition, ..
        } = &evidence.rests_on
        else {
            return;
        };
        let is_of_earlier_outage = **type_ == *"Ready" && Some(seen.created) < *last_transition;
        if is_of_earlier_outage || is_over_by_status(&self.world, seen) {
            return;
        }
        let Some(released) = self.released.get(seen.node.as_str()) else {
            return;
        };
        let spec = &self.world.snapshot.checks["workers"].spec;
        let step = spec.step_of(&seen.kind, &seen.key.namespace, seen.template.as_deref());
        let due = second_of(seen.created + longest_run(step, spec));
        let due = self
            .failed
            .get(&seen.uid)
            .map_or(due, |failed| due.min(second_of(*failed)));
        assert!(
            due >= *released || self.now >= released + SETTLE,
            "at {}, after {:?}: due at {due}, released at {released}: {told}",
            self.now,
            self.events
        );
    }
}

fn is_over_by_status(world: &World, live: &RemediationFacts) -> bool {
    let entries = world.status("workers").unhealthy_nodes.iter();
    let mut records = entries.flat_map(UnhealthyNode::all_remediations);
    records.any(|record| record.resource.uid.as_deref() == Some(&*live.uid) && record.timed_out.is_some())
}

/// Whether a remediation of `workers` takes its place: its remediator is at work on a node that is there, or may go on.
fn counts(world: &World, live: &RemediationFacts) -> bool {
    let node = world.snapshot.nodes.get(&live.node);
    let Some(node) = node.filter(|node| live.node_uid.as_ref() == Some(&node.view.uid)) else {
        return false;
    };
    let ready = node.condition("Ready").unwrap();
    let is_on_its_way_out = live
        .deleting
        .is_some_and(|deleted| *ready.status == *"True" || Some(deleted) < ready.last_transition);
    // One that has lost its owner is remembered.
    ["uid-of-workers", "nobody"].contains(&&*live.owners[0])
        && live.timed_out.is_none()
        && live.succeeded.as_deref() != Some("False")
        && !is_over_by_status(world, live)
        && !is_on_its_way_out
}

fn shapes() -> [(Value, bool); 4] {
    [true, false]
        .map(|is_single| [(two_steps(), is_single), (json!({}), is_single)])
        .concat()
        .try_into()
        .unwrap()
}

/// Soon after the step has begun, around its timeout, and when the chain is over; and what lies between the two.
const MOMENTS: [(i64, i64); 5] = [(310, 5), (310, 400), (598, 4), (620, 30), (950, 10)];

#[test]
fn no_pair_of_events_buys_liveness_with_safety() {
    let shapes = shapes();
    let moments = shapes.iter().flat_map(|shape| MOMENTS.map(|moment| (shape, moment)));
    for (at, (shape, (moment, between))) in moments.enumerate() {
        let mut begun = Story::new(shape.0.clone(), shape.1);
        begun.live(moment);
        for (number, first) in EVENTS.into_iter().enumerate() {
            let mut happened = begun.clone();
            happened.happen(first);
            happened.live(happened.now + between);
            // Each pair has its turn in each shape, at one of the moments.
            for second in EVENTS
                .into_iter()
                .skip((at + number) % MOMENTS.len())
                .step_by(MOMENTS.len())
            {
                let mut story = happened.clone();
                story.happen(second);
                story.live(story.now + 700);
            }
        }
    }
}

proptest! {
    #[test]
    fn no_story_buys_liveness_with_safety(
        events in prop::collection::vec((select(&EVENTS[..]), select(&[0_i64, 1, 10, 61, 290, 700][..])), 3..12),
        shape in 0_usize..4,
    ) {
        let (check, is_single) = shapes()[shape].clone();
        let mut story = Story::new(check, is_single);
        for (event, wait) in events {
            story.happen(event);
            story.live(story.now + wait);
        }
    }
}
