//! The cluster: its API server with a queue of what happens next. [`World::submit`] asks the server for something,
//! [`World::advance`] moves time on to the next event. A seed makes everything: the same seed tells the same story.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use drain_lock::observe::{ClusterCache, Objects};
use drain_lock::policy::Policy;
use fastrand::Rng;
use k8s_openapi::api::core::v1::Node;
use k8s_openapi::api::policy::v1::PodDisruptionBudget;
use nodeward_api::{DrainLedger, NodeDrain};
use nodeward_core::ledger::Ledger;

pub use crate::event::{Change, Event, Faults, Watcher};

use crate::clock::{MINUTE, Millis, SECOND};
use crate::judge::Violation;
use crate::keeper::View;
use crate::objects::{budget, budget_name, local_volume, node, node_name};
use crate::pod::{Owner, SimPod};
use crate::topology::Topology;
use crate::webhook::Replica;

/// Processes of drain-lock. One of them leads, all of them answer reviews.
pub const REPLICAS: usize = 2;

/// The cluster.
pub struct World {
    pub now: Millis,
    pub rng: Rng,
    pub topology: Arc<Topology>,
    pub faults: Faults,
    pub nodes: BTreeMap<String, Node>,
    pub pods: BTreeMap<String, SimPod>,
    pub budgets: BTreeMap<String, PodDisruptionBudget>,
    pub drains: BTreeMap<String, NodeDrain>,
    pub ledger: Option<DrainLedger>,
    /// The same as quorum reads show it.
    pub truth: Arc<ClusterCache>,
    /// The processes of drain-lock; none where it is not installed.
    pub replicas: Vec<Replica>,
    /// What drain-keeper's watches show, where it is installed.
    pub keeper: Option<View>,
    /// Pods, by UID, that nothing but a failure made unready: their own, or of their node, which went down without a disruption for them.
    pub failed: BTreeSet<String>,
    pub violations: Vec<Violation>,
    /// What has happened, if anybody wants to read it.
    pub story: Option<Vec<String>>,
    queue: BTreeMap<(Millis, u64), Event>,
    queued: u64,
    version: u64,
    /// When each watch of each process told of something last: each keeps its order.
    told: BTreeMap<(usize, usize), Millis>,
}

impl World {
    /// A cluster in which every pod runs, and every budget is counted.
    pub fn new(topology: &Arc<Topology>, seed: u64) -> Self {
        let mut world = Self {
            now: 0,
            rng: Rng::with_seed(seed),
            topology: Arc::clone(topology),
            faults: Faults::default(),
            nodes: BTreeMap::new(),
            pods: BTreeMap::new(),
            budgets: BTreeMap::new(),
            drains: BTreeMap::new(),
            ledger: None,
            truth: ClusterCache::fixed(&Objects::default()),
            replicas: Vec::new(),
            keeper: None,
            failed: BTreeSet::new(),
            violations: Vec::new(),
            story: None,
            queue: BTreeMap::new(),
            queued: 0,
            version: 0,
            told: BTreeMap::new(),
        };
        for (index, slots) in topology.slots.iter().enumerate() {
            let node = node(index, *slots);
            world.nodes.insert(node_name(index), node);
        }
        for (index, app) in topology.apps.iter().enumerate() {
            for (ordinal, member) in app.members.iter().enumerate() {
                let owner = if app.replica_set && !member.is_pinned {
                    Owner::ReplicaSet
                } else {
                    Owner::StatefulSet
                };
                let name = format!("a{index}-{ordinal}");
                let home = member.is_pinned.then(|| node_name(member.node));
                let pod = world.new_pod(name, index, owner, home);
                let pod = SimPod {
                    node: Some(node_name(member.node)),
                    stays: member.stays,
                    created: -MINUTE * 60,
                    is_running: true,
                    ready_since: Some(-MINUTE * 59),
                    ..pod
                };
                world.pods.insert(pod.name.clone(), pod);
            }
            if let Some(most) = app.budget {
                world.budgets.insert(budget_name(index), budget(index, most));
                let counted = world.count(index);
                world
                    .budgets
                    .extend(counted.map(|counted| (budget_name(index), counted)));
            }
        }
        world.truth.insert(&world.objects());
        world
    }

    /// All that there is.
    fn objects(&self) -> Objects {
        let pods = self.pods.values().filter_map(|pod| Some((pod, pod.home.as_deref()?)));
        Objects {
            volumes: pods.map(|(pod, home)| local_volume(&pod.name, home)).collect(),
            nodes: self.nodes.values().cloned().collect(),
            pods: self.pods.values().map(SimPod::object).collect(),
            budgets: self.budgets.values().cloned().collect(),
            drains: self.drains.values().cloned().collect(),
            ledger: self.ledger.clone(),
            ..Objects::default()
        }
    }

    /// Installs drain-lock.
    pub fn install_lock(&mut self, policy: &Policy) {
        let objects = self.objects();
        self.replicas = (0..REPLICAS).map(|_| Replica::new(&objects, policy)).collect();
    }

    /// Installs drain-keeper.
    pub fn install_keeper(&mut self) {
        let mut view = View::default();
        view.tell(&self.objects(), false);
        self.keeper = Some(view);
    }

    /// Has something happen after so long.
    pub fn after(&mut self, wait: Millis, event: Event) {
        self.queued += 1;
        self.queue.insert((self.now + wait.max(0), self.queued), event);
    }

    /// The same after a time that is drawn.
    pub fn soon(&mut self, wait: std::ops::Range<Millis>, event: Event) {
        let wait = self.rng.i64(wait);
        self.after(wait, event);
    }

    /// Moves time on to what happens next; `None`: nothing does.
    pub fn advance(&mut self) -> Option<Event> {
        let ((at, _), event) = self.queue.pop_first()?;
        self.now = at;
        Some(event)
    }

    /// Whether this happens in one of a thousand cases so often.
    pub fn happens(&mut self, thousandths: u32) -> bool {
        thousandths > 0 && self.rng.u32(0..1000) < thousandths
    }

    /// Tells the story on.
    pub fn tell(&mut self, line: impl FnOnce() -> String) {
        if let Some(story) = &mut self.story {
            let (seconds, rest) = (self.now / 1000, self.now % 1000 / 100);
            story.push(format!("{seconds:>5}.{rest}s  {}", line()));
        }
    }

    pub fn object_to(&mut self, violation: Violation) {
        self.tell(|| format!("VIOLATION: {violation}"));
        self.violations.push(violation);
    }

    /// Gives an object that is written its next version.
    pub fn next_version(&mut self) -> String {
        self.version += 1;
        self.version.to_string()
    }

    pub fn new_pod(&mut self, name: String, app: usize, owner: Owner, home: Option<String>) -> SimPod {
        self.version += 1;
        SimPod {
            uid: format!("{name}#{}", self.version),
            name,
            version: self.version,
            app,
            owner,
            home,
            stays: false,
            node: None,
            created: self.now,
            is_running: false,
            ready_since: None,
            unschedulable_since: None,
            deletion: None,
            grace: self.rng.i64(1..6) * SECOND,
            is_disruption: false,
        }
    }

    /// Stores a pod, and tells all who watch.
    pub fn put_pod(&mut self, mut pod: SimPod) {
        self.version += 1;
        pod.version = self.version;
        let objects = Objects {
            pods: vec![pod.object()],
            ..Objects::default()
        };
        self.changed(objects, 1, false);
        self.notify_controllers(pod.app);
        self.pods.insert(pod.name.clone(), pod);
    }

    pub fn remove_pod(&mut self, name: &str) {
        let Some(pod) = self.pods.remove(name) else { return };
        self.tell(|| format!("pod {name} is gone"));
        let objects = Objects {
            pods: vec![pod.object()],
            ..Objects::default()
        };
        self.changed(objects, 1, true);
        self.notify_controllers(pod.app);
        self.retry_unschedulable();
    }

    fn notify_controllers(&mut self, app: usize) {
        self.soon(10..200, Event::Replaces(app));
        if self.topology.apps[app].budget.is_some() {
            self.soon(20..300, Event::Counts(app));
        }
    }

    pub fn put_node(&mut self, mut node: Node) {
        node.metadata.resource_version = Some(self.next_version());
        let objects = Objects {
            nodes: vec![node.clone()],
            ..Objects::default()
        };
        self.changed(objects, 0, false);
        self.nodes.insert(node.metadata.name.clone().unwrap_or_default(), node);
        self.retry_unschedulable();
    }

    pub fn put_budget(&mut self, mut budget: PodDisruptionBudget) {
        budget.metadata.resource_version = Some(self.next_version());
        let objects = Objects {
            budgets: vec![budget.clone()],
            ..Objects::default()
        };
        self.changed(objects, 2, false);
        self.budgets
            .insert(budget.metadata.name.clone().unwrap_or_default(), budget);
    }

    /// Stores a NodeDrain; one that is being deleted and has no finalizer goes.
    pub fn put_drain(&mut self, mut drain: NodeDrain) {
        drain.metadata.resource_version = Some(self.next_version());
        let finalizers = drain.metadata.finalizers.iter().flatten().count();
        let is_gone = drain.metadata.deletion_timestamp.is_some() && finalizers == 0;
        let (name, objects) = (
            drain.spec.node_name.clone(),
            Objects {
                drains: vec![drain.clone()],
                ..Objects::default()
            },
        );
        self.changed(objects, 3, is_gone);
        if is_gone {
            self.tell(|| format!("the NodeDrain of {name} is gone"));
            self.drains.remove(&name);
        } else {
            self.drains.insert(name, drain);
        }
    }

    pub fn put_ledger(&mut self, mut ledger: DrainLedger) {
        ledger.metadata.resource_version = Some(self.next_version());
        let objects = Objects {
            ledger: Some(ledger.clone()),
            ..Objects::default()
        };
        self.changed(objects, 4, false);
        self.ledger = Some(ledger);
    }

    /// What the ledger says now.
    pub fn ledger(&self) -> Ledger {
        self.ledger
            .as_ref()
            .map(|ledger| Ledger::try_from(&ledger.spec).unwrap_or_default())
            .unwrap_or_default()
    }

    /// Quorum reads show a change at once, each watch of each process after a lag of its own.
    fn changed(&mut self, objects: Objects, kind: usize, is_gone: bool) {
        if is_gone {
            self.truth.remove(&objects);
        } else {
            self.truth.insert(&objects);
        }
        let object = Arc::new(objects);
        let watchers = (0..self.replicas.len())
            .map(Watcher::Lock)
            .chain(self.keeper.is_some().then_some(Watcher::Keeper));
        for watcher in watchers.collect::<Vec<_>>() {
            let process = match watcher {
                Watcher::Lock(replica) => replica,
                Watcher::Keeper => REPLICAS,
            };
            // Now and then a watch stalls for a moment.
            let lag = if self.rng.u32(0..50) == 0 {
                self.rng.i64(200..1500)
            } else {
                self.rng.i64(5..80)
            };
            let last = self.told.entry((process, kind)).or_default();
            *last = (*last).max(self.now + lag);
            let wait = *last - self.now;
            let change = Change {
                object: Arc::clone(&object),
                is_gone,
            };
            self.after(wait, Event::Told(watcher, change));
        }
    }

    /// The pods that an application's budget covers.
    pub fn pods_of(&self, app: usize) -> impl Iterator<Item = &SimPod> {
        self.pods.values().filter(move |pod| pod.app == app)
    }

    pub fn pods_on<'a>(&'a self, node: &'a str) -> impl Iterator<Item = &'a SimPod> {
        self.pods.values().filter(move |pod| pod.node.as_deref() == Some(node))
    }

    pub fn pod_by_uid(&self, uid: &str) -> Option<&SimPod> {
        let (name, _) = uid.split_once('#')?;
        self.pods.get(name).filter(|pod| pod.uid == uid)
    }
}
