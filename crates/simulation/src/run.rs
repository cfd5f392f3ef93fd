//! One run: a topology, who is installed, and what comes of it.

use std::sync::Arc;

use drain_lock::webhook::drain_request_queue::QueuedRequest;
use nodeward_api::node_drain::Fallback;
use nodeward_core::drain_request::{EvictionSign, JoinStep, join, sign_precision};

use crate::api::Request;
use crate::clock::{MINUTE, Millis, SECOND, timestamp};
use crate::drainer::NodeDrainer;
use crate::judge::Violation;
use crate::keeper::Keeper;
use crate::lock::Lock;
use crate::pod::SimPod;
use crate::topology::{Drainer, Order, Topology};
use crate::webhook::{self, OWN_USER, named};
use crate::world::{Event, Faults, Watcher, World};

/// Whoever has not ended by then does not end.
const LIMIT: Millis = 40 * MINUTE;

/// For so long what is left of drains may be there after the last has ended: the silence after which a drainer counts as gone,
/// and what follows.
const SETTLES: Millis = 25 * MINUTE;

/// Who is installed, and how.
#[derive(Debug, Clone)]
pub struct Setup {
    pub topology: Arc<Topology>,
    pub seed: u64,
    /// drain-lock's configuration, as JSON; `None`: it is not installed.
    pub lock: Option<&'static str>,
    /// drain-keeper's configuration; `None`: it is not installed.
    pub keeper: Option<&'static str>,
    pub faults: Faults,
    /// Whether a drainer begins only once the one before is done, and all pods run.
    pub one_by_one: bool,
    pub limit: Millis,
    /// Whether the story is kept.
    pub tells: bool,
}

/// What came of a run.
#[derive(Debug, Clone)]
pub struct Outcome {
    /// When the last drain had ended, and all pods ran.
    pub makespan: Option<Millis>,
    pub violations: Vec<Violation>,
    pub story: Vec<String>,
}

impl Setup {
    pub fn new(topology: Topology, seed: u64) -> Self {
        Self {
            topology: Arc::new(topology),
            seed,
            lock: Some("{}"),
            keeper: None,
            faults: Faults::default(),
            one_by_one: false,
            limit: LIMIT,
            tells: false,
        }
    }

    /// The same drainers on the same placements, one node after another, without drain-lock. What drain-lock drains is drained in
    /// its order.
    #[must_use]
    pub fn one_after_another(&self) -> Self {
        let mut topology = (*self.topology).clone();
        for drain in &mut topology.drains {
            if drain.drainer == Drainer::Own {
                drain.drainer = Drainer::Foreign(Order::MovableFirst);
            }
        }
        let nodes = Millis::try_from(topology.drains.len()).unwrap_or_default();
        Self {
            topology: Arc::new(topology),
            lock: None,
            faults: Faults::default(),
            one_by_one: true,
            limit: self.limit.max(nodes * 6 * MINUTE),
            ..self.clone()
        }
    }

    /// Runs it.
    ///
    /// # Errors
    /// When a configuration cannot be read.
    pub fn run(&self) -> anyhow::Result<Outcome> {
        // Backoffs draw their jitter from the thread's generator.
        fastrand::seed(self.seed);
        let mut world = World::new(&self.topology, self.seed);
        world.faults = self.faults;
        world.story = self.tells.then(Vec::new);
        let lock = match self.lock {
            Some(config) => {
                world.install_lock(&webhook::policy(config)?);
                Some(Lock::new(&mut world))
            }
            None => None,
        };
        let keeper = match self.keeper {
            Some(config) => {
                world.install_keeper();
                Some(Keeper::new(config, &mut world)?)
            }
            None => None,
        };
        let drains = self.topology.drains.iter().enumerate();
        let drainers: Vec<NodeDrainer> = drains.map(|(index, spec)| NodeDrainer::new(index, *spec)).collect();
        let run = Run {
            setup: self,
            world,
            lock,
            keeper,
            drainers,
        };
        Ok(run.finish())
    }
}

struct Run<'a> {
    setup: &'a Setup,
    world: World,
    lock: Option<Lock>,
    keeper: Option<Keeper>,
    drainers: Vec<NodeDrainer>,
}

impl Run<'_> {
    fn finish(mut self) -> Outcome {
        let first = if self.setup.one_by_one { 1 } else { self.drainers.len() };
        for (drainer, spec) in self.drainers.iter().zip(&self.setup.topology.drains).take(first) {
            drainer.begin(&mut self.world, spec.starts);
        }
        let (mut begun, mut makespan) = (first, None);
        let mut looks_at = 0;
        while let Some(event) = self.world.advance() {
            let now = self.world.now;
            self.happens(event);
            if now < looks_at {
                continue;
            }
            looks_at = now + SECOND / 4;
            let all_run = || self.world.pods.values().all(SimPod::is_healthy);
            match makespan {
                None if self.drainers.iter().take(begun).all(NodeDrainer::is_done) && all_run() => {
                    if let Some(next) = self.drainers.get(begun) {
                        next.begin(&mut self.world, 0);
                        begun += 1;
                    } else {
                        makespan = Some(now);
                    }
                }
                None if now > self.setup.limit => {
                    self.world.tell_state();
                    self.world.object_to(Violation::NoEnd);
                    break;
                }
                None => {}
                Some(ended) => {
                    let left = self.world.leftovers();
                    if left.is_empty() {
                        break;
                    }
                    if now > ended + SETTLES {
                        for what in left {
                            self.world.object_to(Violation::Leaked(what));
                        }
                        break;
                    }
                }
            }
        }
        Outcome {
            makespan,
            violations: self.world.violations,
            story: self.world.story.unwrap_or_default(),
        }
    }

    fn happens(&mut self, event: Event) {
        let world = &mut self.world;
        match event {
            Event::Told(Watcher::Lock(replica), change) => {
                let cache = &world.replicas[replica].cache;
                if change.is_gone {
                    cache.remove(&change.object);
                } else {
                    cache.insert(&change.object);
                }
                if let Some(lock) = &mut self.lock {
                    lock.told(world, replica);
                }
            }
            Event::Told(Watcher::Keeper, change) => {
                if let (Some(view), Some(keeper)) = (&mut world.keeper, &mut self.keeper) {
                    view.tell(&change.object, change.is_gone);
                    keeper.wake(world, world.now);
                }
            }
            Event::LockPlans(term) => {
                if let Some(lock) = &mut self.lock {
                    lock.plan(world, term);
                }
            }
            Event::LockTask(id) => {
                if let Some(lock) = &mut self.lock {
                    lock.step(world, id);
                }
            }
            Event::LockLeads => {
                if let Some(lock) = &mut self.lock {
                    lock.lead(world);
                }
            }
            Event::DrainRequested { node, user, eviction } => request_drain(world, &node, &user, eviction),
            Event::KeeperPlans => {
                if let Some(keeper) = &mut self.keeper {
                    keeper.plan(world);
                }
            }
            Event::KeeperTask(id) => {
                if let Some(keeper) = &mut self.keeper {
                    keeper.step(world, id);
                }
            }
            Event::Drainer(index) => {
                if let Some(drainer) = self.drainers.get_mut(index) {
                    drainer.act(world);
                }
            }
            event => world.control(event),
        }
    }
}

/// What the webhook writes for an eviction from a cordoned node.
fn request_drain(world: &mut World, node: &str, user: &str, eviction: EvictionSign) {
    let Some(lock) = world.replicas.first() else { return };
    let request = QueuedRequest {
        node: node.into(),
        node_uid: format!("uid-{node}").into(),
        user: named(user),
        fallback: Fallback::default(),
        eviction,
        sign_precision: sign_precision(lock.policy.auto.quiet_period),
        only_reviews: false,
    };
    let request = match join(world.drains.get(node), &request.request(), timestamp(world.now)) {
        JoinStep::Create(drain) => Request::CreateDrain(drain),
        JoinStep::Patch(_, patch) => Request::PatchDrain {
            name: node.to_owned(),
            patch,
        },
        JoinStep::Done(_) => return,
    };
    world.submit(OWN_USER, request);
}
