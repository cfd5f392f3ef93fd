//! The controllers of Kubernetes around pods: the disruption controller, those that make pods again, the scheduler and the
//! kubelets.

use std::collections::BTreeMap;

use k8s_openapi::api::core::v1::Node;
use k8s_openapi::api::policy::v1::{PodDisruptionBudget, PodDisruptionBudgetStatus};
use k8s_openapi::apimachinery::pkg::util::intstr::IntOrString;

use crate::clock::{MINUTE, Millis, SECOND, millis};
use crate::objects::{budget_name, is_cordoned, is_ready, node_name, ready_condition};
use crate::pod::{Owner, SimPod};
use crate::world::{Event, World};

/// For so long an evicted pod that is still seen counts as gone (`DeletionTimeout` of the disruption controller).
const DISRUPTED_FOR: Millis = 2 * MINUTE;

/// After so long without its kubelet a node is not Ready (`node-monitor-grace-period`).
const SILENT_AFTER: Millis = 40 * SECOND;

impl World {
    /// Carries out what controllers and kubelets do.
    pub fn control(&mut self, event: Event) {
        match event {
            Event::Counts(app) => {
                if let Some(counted) = self.count(app) {
                    // It looks before it writes: what happens in between makes the write a conflict, or is counted next.
                    self.soon(5..150, Event::Counted(Box::new(counted)));
                }
            }
            Event::Counted(budget) => self.write_count(*budget),
            Event::Replaces(app) => self.replace(app),
            Event::Schedules(uid, attempt) => self.schedule(&uid, attempt),
            Event::Running(uid) => self.change_pod(&uid, |pod, _| pod.is_running = true),
            Event::Ready(uid) => self.become_ready(&uid),
            Event::Gone(uid) => {
                if let Some(name) = self
                    .pod_by_uid(&uid)
                    .filter(|pod| pod.deletion.is_some())
                    .map(|pod| pod.name.clone())
                {
                    self.remove_pod(&name);
                }
            }
            Event::Silent(node) => self.set_ready(&node, false, false),
            Event::Booted(node) => self.set_ready(&node, true, true),
            _ => {}
        }
    }

    /// What the disruption controller would write into the budget of an application; `None`: it is so already.
    pub fn count(&self, app: usize) -> Option<PodDisruptionBudget> {
        let mut budget = self.budgets.get(&budget_name(app))?.clone();
        let before = budget.status.clone().unwrap_or_default();
        let disrupted: BTreeMap<_, _> = before
            .disrupted_pods
            .iter()
            .flatten()
            .filter(|(name, at)| {
                let pod = self.pods.get(*name);
                pod.is_some_and(|pod| pod.deletion.is_none()) && self.now < millis(at.0) + DISRUPTED_FOR
            })
            .map(|(name, at)| (name.clone(), at.clone()))
            .collect();
        let healthy = self
            .pods_of(app)
            .filter(|pod| pod.is_healthy() && !disrupted.contains_key(&pod.name))
            .count();
        let (expected, desired) = (self.scale_by_present(app), self.desired_healthy(app));
        let (healthy, desired) = (i32::try_from(healthy).unwrap_or(i32::MAX), desired.min(expected));
        let allowed = if expected > 0 { (healthy - desired).max(0) } else { 0 };
        let status = PodDisruptionBudgetStatus {
            observed_generation: budget.metadata.generation,
            disruptions_allowed: allowed,
            current_healthy: healthy,
            desired_healthy: desired,
            expected_pods: expected,
            disrupted_pods: (!disrupted.is_empty()).then_some(disrupted),
            conditions: None,
        };
        (budget.status.as_ref() != Some(&status)).then(|| {
            budget.status = Some(status);
            budget
        })
    }

    /// How many pods there should be, by the owners of those that are there: an owner whose pods are all gone is not asked.
    fn scale_by_present(&self, app: usize) -> i32 {
        let owners = [Owner::StatefulSet, Owner::ReplicaSet];
        let is_present = |owner: &Owner| self.pods_of(app).any(|pod| pod.owner == *owner);
        let scale = owners
            .into_iter()
            .filter(is_present)
            .map(|owner| self.scale(app, owner).len())
            .sum::<usize>();
        i32::try_from(scale).unwrap_or(i32::MAX)
    }

    /// How many of an application's pods must be healthy: what may be unavailable is rounded up.
    pub fn desired_healthy(&self, app: usize) -> i32 {
        let expected = self.scale_by_present(app);
        let spec = self
            .budgets
            .get(&budget_name(app))
            .and_then(|budget| budget.spec.as_ref());
        let most = match spec.and_then(|spec| spec.max_unavailable.as_ref()) {
            Some(IntOrString::Int(pods)) => *pods,
            Some(IntOrString::String(share)) => {
                let share: i32 = share.trim_end_matches('%').parse().unwrap_or_default();
                (expected * share + 99) / 100
            }
            None => expected,
        };
        (expected - most).max(0)
    }

    /// The ordinals of the pods that an owner keeps up.
    fn scale(&self, app: usize, owner: Owner) -> Vec<usize> {
        let app = &self.topology.apps[app];
        let is_of = |member: &crate::topology::Member| {
            let is_replica = app.replica_set && !member.is_pinned;
            is_replica == (owner == Owner::ReplicaSet)
        };
        app.members
            .iter()
            .enumerate()
            .filter(|(_, member)| is_of(member))
            .map(|(ordinal, _)| ordinal)
            .collect()
    }

    fn write_count(&mut self, counted: PodDisruptionBudget) {
        let Some(name) = counted.metadata.name.clone() else {
            return;
        };
        let stored = self
            .budgets
            .get(&name)
            .and_then(|budget| budget.metadata.resource_version.clone());
        if stored == counted.metadata.resource_version {
            self.put_budget(counted);
        } else if let Some(app) = name.strip_prefix('a').and_then(|number| number.parse().ok()) {
            self.soon(5..100, Event::Counts(app));
        }
    }

    /// Makes pods again: a ReplicaSet beside those that terminate, a StatefulSet once the one of that name is gone.
    fn replace(&mut self, app: usize) {
        let pinned = |world: &Self, ordinal: usize| {
            let member = world.topology.apps[app].members[ordinal];
            member.is_pinned.then(|| node_name(member.node))
        };
        for ordinal in self.scale(app, Owner::StatefulSet) {
            let name = format!("a{app}-{ordinal}");
            if !self.pods.contains_key(&name) {
                let home = pinned(self, ordinal);
                self.create_pod(name, app, Owner::StatefulSet, home);
            }
        }
        let wanted = self.scale(app, Owner::ReplicaSet).len();
        let active = self
            .pods_of(app)
            .filter(|pod| pod.owner == Owner::ReplicaSet && pod.deletion.is_none())
            .count();
        for _ in active..wanted {
            let name = format!("a{app}-r{}", self.next_version());
            self.create_pod(name, app, Owner::ReplicaSet, None);
        }
    }

    fn create_pod(&mut self, name: String, app: usize, owner: Owner, home: Option<String>) {
        let pod = self.new_pod(name, app, owner, home);
        self.tell(|| format!("pod {} is made again", pod.name));
        let uid = pod.uid.clone();
        self.put_pod(pod);
        self.soon(20..200, Event::Schedules(uid, 0));
    }

    /// Binds a pod to a node that takes it, or notes that there is none.
    fn schedule(&mut self, uid: &str, attempt: u32) {
        let Some(pod) = self.pod_by_uid(uid).filter(|pod| pod.node.is_none()).cloned() else {
            return;
        };
        let mut best: Vec<(usize, String)> = self
            .nodes
            .iter()
            .filter_map(|(name, node)| Some((self.room(&pod, name, node)?, name.clone())))
            .collect();
        // The emptier half of the nodes: its scoring knows more than the number of pods.
        best.sort_by(|a, b| b.cmp(a));
        best.truncate(best.len().div_ceil(2));
        if best.is_empty() {
            if pod.unschedulable_since.is_none() {
                self.tell(|| format!("pod {} finds no node", pod.name));
                let since = Some(self.now);
                self.put_pod(SimPod {
                    unschedulable_since: since,
                    ..pod
                });
            }
            // What may have changed wakes it before; without that it is tried again in five minutes.
            self.after(5 * MINUTE, Event::Schedules(uid.to_owned(), attempt + 1));
            return;
        }
        let (_, node) = best.swap_remove(self.rng.usize(0..best.len()));
        let starts = self.topology.apps[pod.app].starts_within;
        let starts = starts + self.rng.i64(0..=starts / 4);
        self.tell(|| format!("pod {} is bound to {node}", pod.name));
        self.put_pod(SimPod {
            node: Some(node),
            unschedulable_since: None,
            ..pod
        });
        self.after(starts / 2, Event::Running(uid.to_owned()));
        self.after(starts, Event::Ready(uid.to_owned()));
    }

    /// How many more pods the node takes, if it takes this one.
    fn room(&self, pod: &SimPod, name: &str, node: &Node) -> Option<usize> {
        let fits = pod.home.as_deref().is_none_or(|home| home == name) && !is_cordoned(node) && is_ready(node);
        let index: usize = name.trim_start_matches('n').parse().ok()?;
        let free = self
            .topology
            .slots
            .get(index)?
            .checked_sub(self.pods_on(name).count())?;
        (fits && free > 0).then_some(free)
    }

    /// What has no node is tried again after a backoff: pods that only one node can run first.
    pub fn retry_unschedulable(&mut self) {
        let waiting = self
            .pods
            .values()
            .filter(|pod| pod.node.is_none() && pod.unschedulable_since.is_some());
        let waiting: Vec<(String, bool)> = waiting.map(|pod| (pod.uid.clone(), pod.home.is_some())).collect();
        for (uid, is_pinned) in waiting {
            let wait = if is_pinned { 10..50 } else { 60..2_000 };
            self.soon(wait, Event::Schedules(uid, 1));
        }
    }

    fn change_pod(&mut self, uid: &str, change: impl FnOnce(&mut SimPod, Millis)) {
        if let Some(mut pod) = self.pod_by_uid(uid).filter(|pod| pod.deletion.is_none()).cloned() {
            change(&mut pod, self.now);
            self.put_pod(pod);
        }
    }

    fn become_ready(&mut self, uid: &str) {
        self.failed.remove(uid);
        self.change_pod(uid, |pod, now| (pod.is_running, pod.ready_since) = (true, Some(now)));
        if self.happens(self.faults.failing_pod) && self.pod_by_uid(uid).is_some() {
            self.failed.insert(uid.to_owned());
            self.tell(|| format!("pod {uid} fails"));
            self.change_pod(uid, |pod, _| pod.ready_since = None);
            self.soon(20 * SECOND..60 * SECOND, Event::Ready(uid.to_owned()));
        }
    }

    /// The machine reboots: it is back after so long.
    pub fn reboot(&mut self, node: &str, away_for: Millis) {
        self.tell(|| format!("node {node} goes down"));
        if away_for > SILENT_AFTER {
            self.after(SILENT_AFTER, Event::Silent(node.to_owned()));
        }
        self.after(away_for, Event::Booted(node.to_owned()));
    }

    pub(crate) fn set_ready(&mut self, name: &str, is_ready: bool, has_booted: bool) {
        let Some(mut node) = self.nodes.get(name).cloned() else {
            return;
        };
        let status = node.status.get_or_insert_default();
        let was_ready = status
            .conditions
            .iter()
            .flatten()
            .any(|condition| condition.type_ == "Ready" && condition.status == "True");
        if was_ready != is_ready {
            let others = status
                .conditions
                .take()
                .unwrap_or_default()
                .into_iter()
                .filter(|condition| condition.type_ != "Ready");
            let mut conditions: Vec<_> = others.collect();
            conditions.push(ready_condition(is_ready, self.now));
            status.conditions = Some(conditions);
        }
        if has_booted {
            self.tell(|| format!("node {name} is back"));
            status.node_info.get_or_insert_default().boot_id = format!("boot-{}", self.now);
        }
        self.put_node(node);
        self.restart_pods(name, has_booted);
    }

    /// What is still on a node that goes down is not Ready until it has started again there. Without a disruption for it that is a
    /// failure of its node, of which nobody knew before.
    fn restart_pods(&mut self, node: &str, has_booted: bool) {
        let here = self.pods_on(node).filter(|pod| has_booted || pod.ready_since.is_some());
        let here: Vec<(String, usize)> = here.map(|pod| (pod.uid.clone(), pod.app)).collect();
        let ledger = self.ledger();
        let claim = ledger.claims().iter().find(|claim| claim.node == node);
        for (uid, app) in here {
            if !claim.is_some_and(|claim| claim.has_disruption(&uid)) {
                self.failed.insert(uid.clone());
            }
            self.change_pod(&uid, |pod, _| pod.ready_since = None);
            if has_booted {
                let starts = self.topology.apps[app].starts_within;
                self.after(starts, Event::Ready(uid));
            }
        }
    }
}
