//! What must hold whatever happens: nodes fail, recover, are relabelled, deleted and made again; remediations succeed, fail and
//! vanish; actions are lost; and another leader acts on an old view of all that.

use std::collections::{BTreeMap, BTreeSet};

use proptest::prelude::*;
use proptest::sample::select;
use serde_json::json;

use super::world::{World, at, chain, intents, second_of, with};
use crate::plan::RemediationWrite;
use crate::plan::{Action, Plan, RemediationChange, RemediationRef};
use nodeward_api::reason::HealthReason;
use nodeward_core::node_health_check::{CheckSpec, Threshold};

const NODES: [&str; 8] = ["w1", "w2", "w3", "w4", "w5", "m1", "m2", "m3"];
const EXCLUDED: &str = "remediation.medik8s.io/exclude-from-remediation";
const CONCURRENT: usize = 2;

#[derive(Debug, Clone)]
enum Event {
    Condition(&'static str, &'static str),
    Label(&'static str, &'static str, bool),
    Remove(&'static str),
    Recreate(&'static str),
    Succeeded(&'static str),
    Vanish(usize),
    Pause(bool),
    ForeignLease(&'static str),
    LoseLeases,
    Pass(i64),
    /// A pass of which only these actions come through.
    Broken(i64, u32),
    /// This leader's view is kept, for another to act on later.
    Keep,
    OtherLeader,
    /// Another leader sees the statuses, and its watch of remediations is behind.
    LaggingLeader,
}

fn event() -> impl Strategy<Value = Event> {
    let node = || select(&NODES[..]);
    let status = select(&["Unknown", "False", "True"][..]);
    let label = select(&[EXCLUDED, "node-role.kubernetes.io/worker"][..]);
    let wait = || select(&[1_i64, 30, 60, 120, 300, 700][..]);
    prop_oneof![
        8 => (node(), status).prop_map(|(node, status)| Event::Condition(node, status)),
        2 => (node(), label, any::<bool>()).prop_map(|(node, label, on)| Event::Label(node, label, on)),
        1 => node().prop_map(Event::Remove),
        2 => node().prop_map(Event::Recreate),
        1 => select(&["True", "False"][..]).prop_map(Event::Succeeded),
        1 => (0_usize..6).prop_map(Event::Vanish),
        1 => any::<bool>().prop_map(Event::Pause),
        1 => node().prop_map(Event::ForeignLease),
        1 => Just(Event::LoseLeases),
        8 => wait().prop_map(Event::Pass),
        8 => (wait(), any::<u32>()).prop_map(|(wait, mask)| Event::Broken(wait, mask)),
        3 => Just(Event::Keep),
        4 => Just(Event::OtherLeader),
        4 => Just(Event::LaggingLeader),
    ]
}

struct Run {
    world: World,
    other: World,
    now: i64,
    before: BTreeMap<String, CheckSpec>,
}

impl Run {
    fn new(backoff: bool, cooldown: bool) -> Self {
        let mut patch = with(
            chain(&[("Reboot", "2m"), ("Fence", "3m")]),
            json!({ "maxConcurrentRemediations": CONCURRENT, "maxUnhealthy": 2 }),
        );
        if backoff {
            patch["backoff"] = json!({ "type": "exponential", "initial": "1m", "limit": "4m" });
        }
        if cooldown {
            patch["stormCooldownDuration"] = "2m".into();
        }
        let short = json!({ "unhealthyConditions": [
            { "type": "Ready", "status": "Unknown", "duration": "1m" },
            { "type": "Ready", "status": "False", "duration": "2m" },
        ] });
        let everything = with(
            short.clone(),
            json!({ "selector": null, "healthyDelay": "1m", "maxUnhealthy": "60%" }),
        );
        let mut world = World::workers(5)
            .control_plane(3)
            .check("workers", with(patch, short))
            .check("all", everything);
        world.change_check("all", |check| {
            check.spec.selector = Some(nodeward_core::selector::Selector::everything());
        });
        let specs = world.snapshot.checks.values();
        let before = specs
            .map(|check| (check.name.to_string(), check.spec.clone()))
            .collect();
        Self {
            other: world.clone(),
            world,
            now: 0,
            before,
        }
    }

    fn happen(&mut self, event: &Event) {
        let now = self.now;
        let world = &mut self.world;
        let exists = |world: &World, node: &str| world.snapshot.nodes.contains_key(node);
        match *event {
            Event::Condition(node, status) if exists(world, node) => {
                world.set_condition(node, "Ready", Some(status), now);
            }
            Event::Label(node, label, on) if exists(world, node) => {
                let value = if label == EXCLUDED { "true" } else { "" };
                world.label(node, label, on.then_some(value));
            }
            Event::Remove(node) => world.remove_node(node),
            Event::Recreate(node) => {
                let role = if node.starts_with('m') {
                    "control-plane"
                } else {
                    "worker"
                };
                world.add_node(node, role, now);
            }
            Event::Succeeded(status) => world.succeeded(status),
            Event::Vanish(position) if position < world.snapshot.remediations.len() => {
                world.snapshot.remediations.remove(position);
            }
            Event::Pause(on) => world.change_check("workers", |check| {
                check.spec.pauses = on.then(|| "me".to_owned()).into_iter().collect();
            }),
            Event::ForeignLease(node) if world.holder(&format!("node-{node}")).is_none() => {
                world.lease(&format!("node-{node}"), "somebody", now, 3);
            }
            Event::LoseLeases => world
                .snapshot
                .leases
                .retain(|_, lease| lease.holder.as_deref() == Some("somebody")),
            Event::Keep => self.other = world.clone(),
            Event::Pass(wait) => {
                self.now += wait;
                for _ in 0..6 {
                    self.pass(u32::MAX);
                }
            }
            Event::Broken(wait, mask) => {
                self.now += wait;
                self.pass(mask);
            }
            Event::OtherLeader | Event::LaggingLeader => {
                if matches!(event, Event::LaggingLeader) {
                    self.other.snapshot.checks.clone_from(&world.snapshot.checks);
                }
                let plan = self.other.plan(now);
                judge(&self.other, &plan, &self.before);
                for action in plan.actions {
                    self.act(action);
                }
            }
            Event::Condition(..) | Event::Label(..) | Event::Vanish(_) | Event::ForeignLease(_) => {}
        }
    }

    fn pass(&mut self, mask: u32) {
        let plan = self.world.plan(self.now);
        judge(&self.world, &plan, &self.before);
        let mut fresh = self.world.clone();
        fresh.snapshot.nodes.change(|_| ());
        let looked_anew = fresh.plan(self.now);
        assert_eq!(format!("{plan:?}"), format!("{looked_anew:?}"), "all nodes looked at");
        self.world.remember(&plan);
        for (position, action) in plan.actions.into_iter().enumerate() {
            if mask & (1 << (position % 32)) != 0 {
                self.act(action);
            }
        }
    }

    /// Carries out an action if its preconditions hold, and looks at what became of the cluster.
    fn act(&mut self, action: Action) {
        self.world.try_act(action, self.now);
        let live = || self.world.snapshot.remediations.iter();
        let mut steps = BTreeSet::new();
        for remediation in live().filter(|remediation| remediation.timed_out.is_none()) {
            let step = (&remediation.owners, &remediation.node_uid, &remediation.kind);
            assert!(
                steps.insert(step),
                "two remediations of one node and step: {remediation:?}"
            );
        }
        // One whose last step is over takes no place any more, though that is there until the node is healthy.
        let at_work = live().filter(|remediation| remediation.timed_out.is_none());
        let of_workers = at_work.filter(|remediation| *remediation.owners[0] == *"uid-of-workers");
        let nodes: BTreeSet<_> = of_workers.map(|remediation| &remediation.node).collect();
        assert!(nodes.len() <= CONCURRENT, "{nodes:?}");
    }

    /// All is healthy, and time passes: nothing may be left behind.
    fn end(mut self) {
        for node in NODES {
            self.now += 1;
            let role = if node.starts_with('m') {
                "control-plane"
            } else {
                "worker"
            };
            if self.world.snapshot.nodes.contains_key(node) {
                self.world.heal(node, self.now);
                self.world.label(node, EXCLUDED, None);
            } else {
                self.world.add_node(node, role, self.now);
            }
        }
        self.world.policy.safety_pass = jiff::SignedDuration::from_hours(1000);
        self.world.live(self.now, self.now + 7200);
        assert_eq!(self.world.remediations(), [""; 0]);
        assert_eq!(
            self.world
                .snapshot
                .leases
                .values()
                .filter(|lease| lease.holder.as_deref() != Some("somebody"))
                .count(),
            0
        );
        for check in self.world.snapshot.checks.values() {
            assert_eq!(check.status.unhealthy_nodes, []);
        }
        assert!(self.world.plan(self.now + 7200).actions.is_empty());
    }
}

/// What must hold of every plan.
fn judge(world: &World, plan: &Plan, specs: &BTreeMap<String, CheckSpec>) {
    let left_alone = plan
        .verdicts
        .nodes
        .iter()
        .filter(|verdict| verdict.reason == HealthReason::NotExpired);
    let left_alone: BTreeSet<_> = left_alone
        .map(|verdict| (verdict.check.name.clone(), verdict.node.clone()))
        .collect();
    let is_of_the_node = |remediation: &RemediationRef| {
        let mut remediations = world.snapshot.remediations.iter();
        let live = remediations.find(|live| live.uid == remediation.uid).unwrap();
        let uid = world.snapshot.nodes.get(&remediation.node).map(|node| &node.view.uid);
        uid.is_some() && live.node_uid.as_ref() == uid
    };
    for action in &plan.actions {
        match action {
            Action::DeleteRemediation(write) | Action::AnnotateRemediation(write, RemediationChange::TimedOut(_)) => {
                let RemediationWrite { check, remediation, .. } = write;
                let key = (check.name.clone(), remediation.node.clone());
                assert!(!is_of_the_node(remediation) || !left_alone.contains(&key), "{action:?}");
            }
            Action::StartRemediation(start) => {
                let status = &world.snapshot.checks[&start.check.name].status;
                assert!(intents(status).contains(&start.node.to_string()), "{start:?}");
                let key = (start.check.name.clone(), start.node.clone());
                assert!(!left_alone.contains(&key), "{start:?}");
                if start.step == 0 {
                    let verdict = plan.check(&start.check.name);
                    let others = verdict.observed - verdict.healthy;
                    match specs[&*start.check.name].threshold {
                        Threshold::MinHealthy(least) => assert!(verdict.healthy >= least.of(verdict.observed)),
                        Threshold::MaxUnhealthy(most) => assert!(others <= most.of(verdict.observed), "{verdict:?}"),
                    }
                }
            }
            _ => {}
        }
    }
}

/// A quarter of the usual number, for each is a long story.
fn cases() -> ProptestConfig {
    let usual = ProptestConfig::default();
    ProptestConfig {
        cases: usual.cases / 4,
        max_shrink_iters: 2000,
        ..usual
    }
}

/// Two NodeHealthChecks have a remediation of a node whose statuses and lease are lost.
#[test]
fn lost_lease_is_taken_for_one_of_two_checks() {
    let mut run = Run::new(false, false);
    for event in [
        Event::Condition("w2", "Unknown"),
        Event::Pass(60),
        Event::Condition("w3", "Unknown"),
        Event::Succeeded("False"),
        Event::Pass(1),
        Event::Condition("w1", "Unknown"),
        Event::LaggingLeader,
        Event::Pass(1),
        Event::Pass(300),
        Event::Broken(60, 1_069_994_357),
    ] {
        run.happen(&event);
    }
    run.end();
}

proptest! {
    #![proptest_config(cases())]

    #[test]
    fn invariants_hold_whatever_happens(
        events in prop::collection::vec(event(), 1..80),
        backoff in any::<bool>(),
        cooldown in any::<bool>(),
    ) {
        let mut run = Run::new(backoff, cooldown);
        for event in &events {
            run.happen(event);
        }
        run.end();
    }

    #[test]
    fn nothing_falls_due_before_the_next_pass(
        events in prop::collection::vec(event(), 1..60),
        backoff in any::<bool>(),
        cooldown in any::<bool>(),
        part in 0.0_f64..1.0,
    ) {
        let mut run = Run::new(backoff, cooldown);
        run.world.policy.safety_pass = jiff::SignedDuration::from_hours(1000);
        for event in &events {
            run.happen(event);
        }
        let plan = run.world.settle(run.now);
        for check in run.world.snapshot.checks.values() {
            prop_assert_eq!(intents(&check.status), Vec::<String>::new(), "an intent is followed or withdrawn");
        }
        let next = second_of(plan.requeue_at.unwrap());
        #[allow(clippy::cast_possible_truncation, clippy::cast_precision_loss, reason = "some moment between the two")]
        let between = run.now + ((next - run.now - 1) as f64 * part) as i64;
        let actions = run.world.plan(between).actions;
        prop_assert!(actions.is_empty(), "at {} of {} to {next}: {actions:#?}", between, run.now);
        prop_assert!(at(between) < plan.requeue_at.unwrap());
    }
}
