//! Those who drain: programs that know nothing of drain-lock, and those that ask it for a drain.

use std::collections::BTreeMap;

use k8s_openapi::api::core::v1::{Node, Taint};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use nodeward_api::node_drain::Phase;
use nodeward_core::drain_request::{DrainRequest, new_drain};
use nodeward_core::node::{UNSCHEDULABLE_TAINT, UNSCHEDULABLE_TAINT_EFFECT};
use nodeward_runtime::ApiError;
use serde_json::json;

use crate::api::{Eviction, Request, Response};
use crate::clock::{MINUTE, Millis, SECOND, stored, timestamp};
use crate::objects::{is_cordoned, is_ready, node_name};
use crate::topology::{Drain, Drainer, Order};
use crate::webhook::DRAINER;
use crate::world::{Event, World};

/// How long kubectl waits after a 429.
const AGAIN: Millis = 5 * SECOND;

/// Whoever drains one node.
pub struct NodeDrainer {
    index: usize,
    spec: Drain,
    node: String,
    user: String,
    stage: Stage,
    rounds: u32,
    /// The pods that it has listed, once, by UID: when it asks for each again, and whether the webhook has waited.
    pods: BTreeMap<String, (Millis, bool)>,
    began: Millis,
}

#[derive(Debug, Clone, PartialEq, Eq)]
enum Stage {
    Starting,
    Emptying,
    /// The node reboots; it was in this boot.
    Away(String),
    /// What it asked drain-lock for is being let go.
    Releasing,
    Done,
}

impl NodeDrainer {
    pub fn new(index: usize, spec: Drain) -> Self {
        let node = node_name(spec.node);
        Self {
            index,
            spec,
            user: format!("{DRAINER}{node}"),
            node,
            stage: Stage::Starting,
            rounds: spec.rounds,
            pods: BTreeMap::new(),
            began: 0,
        }
    }

    pub fn is_done(&self) -> bool {
        self.stage == Stage::Done
    }

    /// When it wants to go on.
    pub fn begin(&self, world: &mut World, wait: Millis) {
        world.after(wait, Event::Drainer(self.index));
    }

    /// Goes on.
    pub fn act(&mut self, world: &mut World) {
        let wait = match (&self.stage, self.spec.drainer) {
            (Stage::Done, _) => return,
            (_, Drainer::Nobody) => self.tenant(world),
            (Stage::Starting, Drainer::Foreign(_)) => self.cordon_and_list(world),
            (Stage::Emptying, Drainer::Foreign(order)) => self.evict(world, order),
            (Stage::Starting, Drainer::Own) => self.ask(world),
            (Stage::Emptying, Drainer::Own) => self.await_drained(world),
            (Stage::Away(boot), _) => {
                let is_back = world
                    .nodes
                    .get(&self.node)
                    .is_some_and(|node| is_ready(node) && boot_of(node) != *boot);
                if is_back { self.take_back(world) } else { SECOND }
            }
            (Stage::Releasing, _) => self.await_release(world),
        };
        self.begin(world, wait);
    }

    fn cordon_and_list(&mut self, world: &mut World) -> Millis {
        if self.began == 0 {
            self.began = world.now;
        }
        if !cordon(world, &self.node, &self.user, true) {
            return SECOND;
        }
        let leave = world.pods_on(&self.node).filter(|pod| !pod.stays);
        let uids: Vec<String> = leave.map(|pod| pod.uid.clone()).collect();
        self.pods = uids.into_iter().map(|uid| (uid, (0, false))).collect();
        self.stage = Stage::Emptying;
        world.rng.i64(5..150)
    }

    fn evict(&mut self, world: &mut World, order: Order) -> Millis {
        self.pods.retain(|uid, _| world.pod_by_uid(uid).is_some());
        if self.pods.is_empty() {
            return self.reboot(world);
        }
        if self.spec.gives_up.is_some_and(|limit| world.now > self.began + limit) {
            world.tell(|| format!("{} gives up, and begins anew later", self.user));
            (self.stage, self.began) = (Stage::Starting, 0);
            return MINUTE;
        }
        let is_pinned = |uid: &String| world.pod_by_uid(uid).is_some_and(|pod| pod.home.is_some());
        let (held, movable): (Vec<String>, Vec<String>) = self.pods.keys().cloned().partition(is_pinned);
        let asked = match order {
            Order::Parallel => [movable, held].concat(),
            Order::HeldFirst => {
                if held.is_empty() {
                    movable
                } else {
                    held
                }
            }
            Order::MovableFirst => {
                if movable.is_empty() {
                    held
                } else {
                    movable
                }
            }
        };
        for uid in asked {
            let Some(&(not_before, has_waited)) = self.pods.get(&uid) else {
                continue;
            };
            let Some(pod) = world
                .pod_by_uid(&uid)
                .filter(|pod| not_before <= world.now && pod.deletion.is_none())
            else {
                continue;
            };
            // kubectl insists on no UID.
            let eviction = Eviction {
                pod: pod.name.clone(),
                has_waited,
                ..Eviction::default()
            };
            let next = match world.submit(&self.user, Request::Evict(eviction)) {
                Response::Later(wait) => (world.now + wait, true),
                Response::Failed(ApiError::Forbidden { .. } | ApiError::Server { .. }) => (world.now + MINUTE, false),
                Response::Done | Response::RefusedByLock(_) | Response::Failed(_) => (world.now + AGAIN, false),
            };
            self.pods.insert(uid, next);
        }
        let next = self.pods.values().map(|(at, _)| *at).filter(|at| *at > world.now).min();
        next.map_or(SECOND, |at| (at - world.now).min(SECOND)) + world.rng.i64(1..40)
    }

    fn reboot(&mut self, world: &mut World) -> Millis {
        world.judge_reboot(&self.node, self.spec.drainer == Drainer::Own);
        self.stage = Stage::Away(world.nodes.get(&self.node).map(boot_of).unwrap_or_default());
        // Now and then it is back before anybody has missed it.
        let away = if world.rng.u32(0..8) == 0 {
            world.rng.i64(8 * SECOND..30 * SECOND)
        } else {
            MINUTE
        };
        world.reboot(&self.node, away);
        SECOND
    }

    fn take_back(&mut self, world: &mut World) -> Millis {
        if self.spec.drainer == Drainer::Own {
            let name = self.node.clone();
            let request = Request::DeleteDrain {
                name,
                uid: None,
                version: None,
            };
            world.submit(&self.user, request);
            self.stage = Stage::Releasing;
            return SECOND;
        }
        if !cordon(world, &self.node, &self.user, false) {
            return SECOND;
        }
        self.end_round(world)
    }

    fn end_round(&mut self, world: &mut World) -> Millis {
        self.rounds -= 1;
        self.began = 0;
        self.stage = if self.rounds > 0 { Stage::Starting } else { Stage::Done };
        world.rng.i64(SECOND / 10..5 * SECOND)
    }

    fn ask(&mut self, world: &mut World) -> Millis {
        let request = DrainRequest::new(self.node.as_str().into(), None, self.user.clone());
        let drain = new_drain(&request, timestamp(world.now));
        if world.submit(&self.user, Request::CreateDrain(Box::new(drain))) == Response::Done {
            self.stage = Stage::Emptying;
        }
        2 * SECOND
    }

    fn await_drained(&mut self, world: &mut World) -> Millis {
        let status = world.drains.get(&self.node).and_then(|drain| drain.status.as_ref());
        if status.and_then(|status| status.phase) == Some(Phase::Drained) {
            return self.reboot(world);
        }
        2 * SECOND
    }

    fn await_release(&mut self, world: &mut World) -> Millis {
        if world.drains.contains_key(&self.node) {
            return 2 * SECOND;
        }
        self.end_round(world)
    }

    /// An administrator cordons the node, a tenant evicts a pod of his from it, and that is all.
    fn tenant(&mut self, world: &mut World) -> Millis {
        match self.stage {
            Stage::Starting => {
                cordon(world, &self.node, "admin", true);
                self.stage = Stage::Emptying;
                20 * SECOND
            }
            Stage::Emptying => {
                let pod = world.pods_on(&self.node).next().map(|pod| pod.name.clone());
                if let Some(pod) = pod {
                    let eviction = Eviction {
                        pod,
                        has_waited: true,
                        ..Eviction::default()
                    };
                    world.submit("tenant", Request::Evict(eviction));
                }
                self.stage = Stage::Releasing;
                MINUTE
            }
            _ => {
                cordon(world, &self.node, "admin", false);
                self.stage = Stage::Done;
                0
            }
        }
    }
}

fn boot_of(node: &Node) -> String {
    let info = node.status.as_ref().and_then(|status| status.node_info.as_ref());
    info.map(|info| info.boot_id.clone()).unwrap_or_default()
}

/// Cordons or uncordons a node, with the taint that Kubernetes adds; answers whether it is so.
fn cordon(world: &mut World, name: &str, user: &str, wanted: bool) -> bool {
    let Some(node) = world.nodes.get(name) else {
        return false;
    };
    if is_cordoned(node) == wanted {
        return true;
    }
    let taints = node.spec.iter().flat_map(|spec| spec.taints.iter().flatten());
    let mut taints: Vec<Taint> = taints
        .filter(|taint| taint.key != UNSCHEDULABLE_TAINT)
        .cloned()
        .collect();
    taints.extend(wanted.then(|| Taint {
        key: UNSCHEDULABLE_TAINT.to_owned(),
        effect: UNSCHEDULABLE_TAINT_EFFECT.to_owned(),
        time_added: Some(Time(stored(world.now))),
        ..Taint::default()
    }));
    let patch = json!({
        "metadata": { "resourceVersion": node.metadata.resource_version },
        "spec": { "unschedulable": wanted.then_some(true), "taints": taints },
    });
    world.submit(
        user,
        Request::PatchNode {
            name: name.to_owned(),
            patch,
        },
    ) == Response::Done
}
