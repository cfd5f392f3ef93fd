//! What holds for any cluster, and where plan and cluster come to rest.

use std::collections::BTreeMap;

use jiff::{SignedDuration, Timestamp};
use nodeward_core::budget::DisruptionAllowance;
use nodeward_core::hold::Holder;
use nodeward_core::strategy::Remedy;
use nodeward_core::verdict::Next;
use proptest::prelude::*;
use proptest::sample::select;
use serde_json::{Value, json};

use super::world::{World, budget, minute, node, owner, pod, with};
use crate::clock::ClockWrite;
use crate::plan::{Action, Plan};

/// A pod as the generator and the model of the API server see it.
#[derive(Debug, Clone)]
struct SomePod {
    name: String,
    node: &'static str,
    namespace: &'static str,
    app: &'static str,
    owner: Option<(&'static str, &'static str)>,
    phase: &'static str,
    ready: bool,
    opt_out: Option<&'static str>,
    tolerates: bool,
    created: i64,
    finalizers: Vec<&'static str>,
    /// When its delete was asked for.
    deleted: Option<Timestamp>,
    grace: i64,
    /// It does not end when its grace does.
    stuck: bool,
    version: u32,
}

impl SomePod {
    fn deadline(&self) -> Option<Timestamp> {
        self.deleted.map(|asked| asked + SignedDuration::from_mins(self.grace))
    }

    fn is_healthy(&self) -> bool {
        self.ready && self.phase == "Running" && self.deleted.is_none()
    }

    fn object(&self) -> Value {
        let owners: Vec<Value> = self.owner.iter().map(|(version, kind)| owner(version, kind)).collect();
        let mut labels = json!({ "app": self.app });
        if let Some(opt_out) = self.opt_out {
            labels["nodeward.dev/drain"] = opt_out.into();
        }
        let tolerations = if self.tolerates {
            json!([{ "operator": "Exists" }])
        } else {
            json!([])
        };
        let mut object = with(
            pod(&self.name),
            json!({
                "metadata": {
                    "namespace": self.namespace, "labels": labels, "finalizers": self.finalizers,
                    "creationTimestamp": minute(self.created).to_string(), "ownerReferences": owners,
                    "resourceVersion": self.version.to_string(),
                },
                "spec": { "nodeName": self.node, "tolerations": tolerations },
                "status": {
                    "phase": self.phase,
                    "conditions": [{ "type": "Ready", "status": if self.ready { "True" } else { "False" } }],
                },
            }),
        );
        if let Some(deadline) = self.deadline() {
            object["metadata"]["deletionTimestamp"] = deadline.to_string().into();
            object["metadata"]["deletionGracePeriodSeconds"] = (self.grace * 60).into();
        }
        object
    }
}

/// A budget for one `app` of `shop`.
#[derive(Debug, Clone)]
struct SomeBudget {
    app: &'static str,
    desired: i32,
    /// Healthy pods on nodes that are not drained.
    elsewhere: i32,
    never: bool,
    held: bool,
    /// A pod that goes is replaced after so many minutes, or never.
    replaced_after: Option<i64>,
}

#[derive(Debug, Clone)]
struct Cluster {
    pods: Vec<SomePod>,
    budgets: BTreeMap<String, SomeBudget>,
    records: BTreeMap<String, String>,
    /// When replacements become healthy, by `app`.
    replacements: Vec<(Timestamp, &'static str)>,
    clocks: BTreeMap<&'static str, Option<String>>,
    unready_nodes: bool,
}

const NODES: [&str; 2] = ["n1", "n2"];

fn some_pod() -> impl Strategy<Value = SomePod> {
    let identity = (
        select(&NODES[..]),
        prop_oneof![4 => Just("shop"), 1 => Just("ignored")],
        select(vec!["web", "db", "lone"]),
        prop_oneof![
            6 => Just(Some(("apps/v1", "ReplicaSet"))),
            2 => Just(Some(("apps/v1", "StatefulSet"))),
            1 => Just(Some(("apps/v1", "DaemonSet"))),
            1 => Just(None),
        ],
    );
    let state = (
        prop_oneof![6 => Just("Running"), 1 => Just("Pending"), 1 => Just("Succeeded")],
        prop::bool::weighted(0.8),
        prop_oneof![8 => Just(None), 1 => Just(Some("skip")), 1 => Just(Some("wait-completed")), 1 => Just(Some("what"))],
        prop::bool::weighted(0.2),
        -100_i64..120,
    );
    let end = (
        prop_oneof![
            4 => Just(vec![]),
            1 => Just(vec!["a.io/x"]),
            1 => Just(vec!["foregroundDeletion"]),
            1 => Just(vec!["a.io/x", "foregroundDeletion"]),
        ],
        prop_oneof![3 => Just(None), 1 => (-50_i64..120).prop_map(Some)],
        0_i64..30,
        prop::bool::weighted(0.3),
    );
    (identity, state, end).prop_map(|(identity, state, end)| SomePod {
        name: String::new(),
        node: identity.0,
        namespace: identity.1,
        app: identity.2,
        owner: identity.3,
        phase: state.0,
        ready: state.1,
        opt_out: state.2,
        tolerates: state.3,
        created: state.4,
        finalizers: end.0,
        deleted: end.1.map(minute),
        grace: end.2,
        stuck: end.3,
        version: 1,
    })
}

fn some_budget(app: &'static str) -> impl Strategy<Value = SomeBudget> {
    let replaced = prop_oneof![3 => (0_i64..30).prop_map(Some), 1 => Just(None)];
    (
        0_i32..6,
        0_i32..4,
        prop::bool::weighted(0.15),
        prop::bool::weighted(0.15),
        replaced,
    )
        .prop_map(move |(desired, elsewhere, never, held, replaced_after)| SomeBudget {
            app,
            desired,
            elsewhere,
            never,
            held,
            replaced_after,
        })
}

fn some_cluster() -> impl Strategy<Value = Cluster> {
    let budgets = (
        prop::option::weighted(0.8, some_budget("web")),
        prop::option::weighted(0.5, some_budget("db")),
        prop::option::weighted(0.15, some_budget("web")),
    );
    (
        prop::collection::vec(some_pod(), 0..10),
        budgets,
        prop::bool::weighted(0.2),
    )
        .prop_map(|(mut pods, budgets, unready)| {
            for (index, pod) in pods.iter_mut().enumerate() {
                pod.name = format!("p{index}");
            }
            let budgets = [("web", budgets.0), ("db", budgets.1), ("second", budgets.2)];
            Cluster {
                pods,
                budgets: budgets
                    .into_iter()
                    .filter_map(|(name, budget)| Some((name.to_owned(), budget?)))
                    .collect(),
                records: BTreeMap::new(),
                replacements: Vec::new(),
                clocks: NODES.map(|name| (name, Some(super::world::clock(0)))).into(),
                unready_nodes: unready,
            }
        })
}

impl Cluster {
    fn world(&self, now: Timestamp) -> World {
        let nodes = NODES.map(|name| {
            let annotations = json!({ "nodeward.dev/drain-clock": self.clocks[name] });
            let mut node = with(node(name), json!({ "metadata": { "annotations": annotations } }));
            if self.unready_nodes {
                node = with(node, super::world::not_ready());
            }
            node
        });
        let mut world =
            World::empty().also("nodeDrain: {ignoredNamespacePatterns: ['^ignored$']}, limits: {forcedPerNode: 2}");
        for node in nodes {
            world = world.node(node);
        }
        for (name, budget) in &self.budgets {
            world = world.budget(self.budget_object(name, budget, now));
            if budget.held {
                world = world.held(name, Holder::Owner("owner".to_owned()), None);
            }
        }
        world.pods(self.pods.iter().map(SomePod::object))
    }

    fn healthy(&self, budget: &SomeBudget, now: Timestamp) -> i32 {
        let here = self
            .pods
            .iter()
            .filter(|pod| pod.namespace == "shop" && pod.app == budget.app && pod.is_healthy())
            .count();
        let replaced = self
            .replacements
            .iter()
            .filter(|(at, app)| *app == budget.app && *at <= now)
            .count();
        budget.elsewhere + i32::try_from(here + replaced).unwrap()
    }

    fn budget_object(&self, name: &str, some: &SomeBudget, now: Timestamp) -> Value {
        let healthy = self.healthy(some, now);
        let mut annotations = json!({});
        if let Some(record) = self.records.get(name) {
            annotations["nodeward.dev/last-override"] = record.as_str().into();
        }
        let mut labels = json!({});
        if some.never {
            labels["nodeward.dev/force-drain"] = "never".into();
        }
        with(
            budget(name, (healthy - some.desired).max(0)),
            json!({
                "metadata": { "annotations": annotations, "labels": labels },
                "spec": { "selector": { "matchLabels": { "app": some.app } } },
                "status": { "currentHealthy": healthy, "desiredHealthy": some.desired },
            }),
        )
    }

    /// What the API server and the controllers make of a plan.
    fn apply(&mut self, plan: &Plan, now: Timestamp) {
        for action in &plan.actions {
            match action {
                Action::WriteClock(action) => {
                    let text = match &action.write {
                        ClockWrite::Set(clock) => Some(clock.to_string()),
                        ClockWrite::Remove => None,
                    };
                    let name = NODES
                        .into_iter()
                        .find(|name| *name == action.node.name.as_str())
                        .unwrap();
                    self.clocks.insert(name, text);
                }
                Action::Act(act) => {
                    let index = self.pods.iter().position(|pod| pod.name == *act.pod.key.name).unwrap();
                    match act.strategy.remedy {
                        Remedy::Restart | Remedy::UndoRestart => unreachable!("surges are off"),
                        Remedy::Evict => self.ask_to_go(index, now),
                        Remedy::EvictOrDelete => {
                            self.record_override(index, now);
                            self.ask_to_go(index, now);
                        }
                        Remedy::RemoveFinalizers => {
                            let pod = &mut self.pods[index];
                            pod.finalizers.retain(|name| *name == "foregroundDeletion");
                            pod.version += 1;
                        }
                        Remedy::DeleteNow => {
                            self.pods[index].stuck = false;
                            self.pods[index].grace = 0;
                            self.pods[index].deleted = Some(now);
                        }
                    }
                }
            }
        }
        self.settle(now);
    }

    fn ask_to_go(&mut self, index: usize, now: Timestamp) {
        self.pods[index].deleted = Some(now);
        self.pods[index].version += 1;
    }

    /// Where there is no room, the eviction is refused and the budget overridden.
    fn record_override(&mut self, index: usize, now: Timestamp) {
        let pod = &self.pods[index];
        let covering: Vec<(String, SomeBudget)> = self
            .budgets
            .iter()
            .filter(|(_, budget)| pod.namespace == "shop" && budget.app == pod.app)
            .map(|(name, budget)| (name.clone(), budget.clone()))
            .collect();
        for (name, budget) in &covering {
            if covering.len() > 1 || self.healthy(budget, now) <= budget.desired {
                let record = format!(r#"{{"at":"{now}","pod":"{}","uid":"{}"}}"#, pod.name, pod.name);
                self.records.insert(name.clone(), record);
            }
        }
    }

    /// Pods end when their grace does, unless they are stuck or kept, and are replaced elsewhere.
    fn settle(&mut self, now: Timestamp) {
        let (gone, here): (Vec<SomePod>, Vec<SomePod>) = self.pods.drain(..).partition(|pod| {
            let ended = pod.deadline().is_some_and(|deadline| deadline <= now);
            ended && !pod.stuck && pod.finalizers.is_empty()
        });
        self.pods = here;
        for pod in gone.iter().filter(|pod| pod.owner.is_some() && pod.namespace == "shop") {
            let after = self
                .budgets
                .values()
                .find(|budget| budget.app == pod.app)
                .and_then(|budget| budget.replaced_after);
            if let Some(minutes) = after {
                self.replacements
                    .push((now + SignedDuration::from_mins(minutes), pod.app));
            }
        }
    }

    /// When something happens in the cluster by itself.
    fn next_event(&self, now: Timestamp) -> Option<Timestamp> {
        let ends = self.pods.iter().filter_map(SomePod::deadline);
        let healthy = self.replacements.iter().map(|(at, _)| *at);
        ends.chain(healthy).filter(|at| now < *at).min()
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 128, ..ProptestConfig::default() })]

    #[test]
    fn nothing_is_forced_early_or_out_of_scope(cluster in some_cluster(), now in -10_i64..200) {
        let now = minute(now);
        let world = cluster.world(now);
        let budgets = world.snapshot().budgets;
        let plan = world.plan(now);
        for act in plan.acts() {
            let pod = cluster.pods.iter().find(|pod| pod.name == *act.pod.key.name).unwrap();
            let covering: Vec<&SomeBudget> = cluster
                .budgets
                .values()
                .filter(|budget| pod.namespace == "shop" && budget.app == pod.app)
                .collect();
            let wait = if covering.is_empty() { 45 } else { 68 };
            prop_assert!(minute(pod.created.max(0) + wait) <= now, "{pod:?}");
            prop_assert!(pod.deadline().is_none_or(|deadline| deadline <= now), "its own grace runs: {pod:?}");
            prop_assert!(pod.namespace != "ignored" && pod.opt_out.is_none(), "{pod:?}");
            prop_assert!(pod.owner != Some(("apps/v1", "DaemonSet")), "{pod:?}");
            prop_assert!(pod.owner.is_some() || pod.deleted.is_some(), "{pod:?}");
            prop_assert!(!(pod.tolerates && pod.created > 0), "{pod:?}");
            prop_assert!(covering.iter().all(|budget| !budget.never && !budget.held), "{covering:?}");
            prop_assert!(pod.phase != "Succeeded" || pod.deleted.is_some(), "{pod:?}");
            let is_stateful = pod.owner == Some(("apps/v1", "StatefulSet"));
            let may_run = pod.phase != "Succeeded";
            prop_assert!(act.strategy.remedy != Remedy::DeleteNow || !(cluster.unready_nodes && is_stateful && may_run), "{pod:?}");
        }
        for budget in budgets.in_namespace("shop") {
            let of_it = |act: &&&crate::plan::PodAction| {
                let asks = act.strategy.remedy == Remedy::EvictOrDelete && !act.pod.skips_budgets() && budget.selects(&act.pod);
                asks && (budget.allowance(&act.pod) != DisruptionAllowance::UnreadyMayGo || budgets.matching(&act.pod).len() > 1)
            };
            let room = usize::try_from(budget.status.disruptions_allowed).unwrap();
            let acts = plan.acts();
            let on_it = acts.iter().filter(of_it).count();
            prop_assert!(on_it <= room.max(1), "{on_it} of {}, room {room}", budget.key);
        }
    }

    #[test]
    fn next_plan_precedes_every_deadline(cluster in some_cluster(), now in -10_i64..200) {
        let now = minute(now);
        let plan = cluster.world(now).plan(now);
        for blocker in plan.verdicts.iter().flat_map(|verdict| &verdict.blockers) {
            let moments = match blocker.next {
                Next::At { due, .. } => [Some(due), blocker.grace_ends],
                Next::HeldBack { due, until, .. } => [Some(due), until],
                Next::Now { .. } | Next::Nothing => [None, blocker.grace_ends],
            };
            for moment in moments.into_iter().flatten().filter(|moment| now < *moment) {
                prop_assert!(plan.requeue_at.is_some_and(|at| at <= moment), "{blocker}: {:?}", plan.requeue_at);
            }
        }
        prop_assert!(plan.requeue_at.is_none_or(|at| now < at), "a plan for the past is a busy loop");
    }

    /// Plan, apply, and wait for the next moment, until nothing more comes: then all that may be done has been done, and
    /// every pod that is left has a reason that only somebody else can take away.
    #[test]
    fn plan_and_cluster_come_to_rest(mut cluster in some_cluster()) {
        let mut now = minute(0);
        let mut memory = World::empty().memory;
        let mut steps = 0;
        let last = loop {
            cluster.settle(now);
            let mut world = cluster.world(now);
            world.memory.clone_from(&memory);
            let plan = world.plan(now);
            memory.node_history.clone_from(&plan.node_history);
            let is_idle = plan.actions.is_empty();
            cluster.apply(&plan, now);
            let next = [plan.requeue_at, cluster.next_event(now)].into_iter().flatten().min();
            steps += 1;
            prop_assert!(steps < 300, "no end at {now}: {:?}", plan.verdicts);
            now = match next {
                _ if !is_idle => now,
                Some(next) => next,
                None => break plan,
            };
        };
        for blocker in last.verdicts.iter().flat_map(|verdict| &verdict.blockers) {
            let is_held = matches!(blocker.next, Next::HeldBack { until: None, .. });
            prop_assert!(is_held || blocker.next == Next::Nothing, "{blocker}");
        }
        for verdict in &last.verdicts {
            prop_assert_eq!(verdict.drain_failed, !verdict.blockers.is_empty());
        }
    }
}
