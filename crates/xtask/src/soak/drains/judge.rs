//! What must hold of budgets, overrides, holds and the ledger of drains, looked at with each event of the watches.
//!
//! Nodes fail meanwhile, so budgets fall short without anybody's fault. What counts is what was done on purpose: evictions,
//! reboots of drained nodes, and deletes that drain-keeper marks as its own. What was before what is told by the versions of
//! the objects, for each kind has a watch of its own: in one etcd they are revisions of the whole store.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use anyhow::{Result, ensure};
use k8s_openapi::api::core::v1::Pod;
use k8s_openapi::api::policy::v1::PodDisruptionBudget;
use kube::ResourceExt;
use kube::runtime::watcher::Event;
use nodeward_api::DisruptionHold;
use nodeward_api::annotation::LAST_OVERRIDE;
use nodeward_api::last_override::LastOverride;
use nodeward_core::ledger::Ledger;
use nodeward_testkit::workload;
use tokio::time::Instant;

use super::OVERRIDE_SPACING;
use super::applications::Application;
use crate::soak::view::Since;

/// The reason of the condition `DisruptionTarget` of a pod that was evicted.
const EVICTED: &str = "EvictionByEvictionAPI";

/// The same of one that drain-keeper has forced.
pub const FORCED: &str = "DeletionByDrainKeeper";

/// What was so for this long, an operator must have seen before it wrote: longer than any delay that is injected.
const SEEN_WITHIN: Duration = Duration::from_secs(6);

/// After so long all watches have told of a moment.
const SETTLED_AFTER: Duration = Duration::from_secs(3);

/// Follows the applications, and judges.
pub struct Judge {
    apps: BTreeMap<String, App>,
    /// By UID; those that are gone, too.
    pods: BTreeMap<String, PodView>,
    ledger: Ledger,
    /// Nodes that reboot because they were drained.
    rebooting: BTreeSet<String>,
    /// What is judged once all watches have told of it.
    forced: Vec<Forced>,
    broken: Vec<String>,
    counts: Counts,
}

#[derive(Default)]
struct Counts {
    changes: usize,
    evictions: usize,
    overrides: usize,
    grants: usize,
}

/// An application and its budget, which has its name.
struct App {
    is_pinned: bool,
    is_retained: bool,
    is_never: bool,
    max_unavailable: usize,
    /// Nodes whose pod was evicted, or went down with its node, and has not been replaced.
    away: BTreeSet<String>,
    held: Since<bool>,
    overrides: Vec<Override>,
}

/// An override that the budget records.
struct Override {
    record: LastOverride,
    version: u64,
    seen: Instant,
    is_judged: bool,
}

struct PodView {
    node: String,
    is_ready: bool,
    /// The version at which it was deleted, and the one at which it was gone.
    ends: Option<u64>,
    gone: Option<u64>,
}

/// A pod that drain-keeper has deleted.
struct Forced {
    app: String,
    uid: String,
    name: String,
    seen: Instant,
}

impl Judge {
    pub fn new(applications: &[Application]) -> Self {
        let app = |app: &Application| {
            let of_app = App {
                is_pinned: app.is_pinned,
                is_retained: app.is_retained,
                is_never: app.is_never,
                max_unavailable: app.max_unavailable,
                away: BTreeSet::new(),
                held: Since::new(false),
                overrides: Vec::new(),
            };
            (app.name.clone(), of_app)
        };
        Self {
            apps: applications.iter().map(app).collect(),
            pods: BTreeMap::new(),
            ledger: Ledger::default(),
            rebooting: BTreeSet::new(),
            forced: Vec::new(),
            broken: Vec::new(),
            counts: Counts::default(),
        }
    }

    /// Everything held so far.
    pub fn hold(&self) -> Result<()> {
        ensure!(self.broken.is_empty(), "{}", self.broken.join("\n"));
        Ok(())
    }

    pub fn text(&self) -> String {
        let Counts {
            changes,
            evictions,
            overrides,
            grants,
        } = self.counts;
        format!("{grants} grants, {evictions} pods evicted, {overrides} overrides, {changes} changes looked at")
    }

    /// How many pods have been seen and are Ready.
    pub fn ready_pods(&self) -> usize {
        self.pods.values().filter(|pod| pod.is_ready).count()
    }

    /// A drained node reboots from now on, or is back.
    pub fn reboots(&mut self, node: &str, begins: bool) {
        if begins {
            self.rebooting.insert(node.to_owned());
        } else {
            self.rebooting.remove(node);
        }
    }

    /// Whoever reboots a node from now on does it for another reason.
    pub fn nothing_reboots(&mut self) {
        self.rebooting.clear();
    }

    pub fn take_pod(&mut self, event: Event<Pod>) {
        match event {
            Event::Apply(pod) | Event::InitApply(pod) => self.see_pod(&pod, false),
            Event::Delete(pod) => self.see_pod(&pod, true),
            Event::Init | Event::InitDone => {}
        }
    }

    fn see_pod(&mut self, pod: &Pod, is_gone: bool) {
        let name = pod.labels().get("app").cloned().unwrap_or_default();
        let Some(app) = self.apps.get_mut(&name) else { return };
        self.counts.changes += 1;
        let (uid, version) = (pod.uid().unwrap_or_default(), version_of(pod));
        let node = pod
            .spec
            .as_ref()
            .and_then(|spec| spec.node_name.clone())
            .unwrap_or_default();
        let ends = is_gone || pod.metadata.deletion_timestamp.is_some();
        let is_ready = !ends && workload::is_ready(pod);
        let known = self.pods.get(&uid);
        let was_ready = known.is_some_and(|known| known.is_ready);
        let ended = known.and_then(|known| known.ends);
        let begins_to_end = ends && known.is_some() && ended.is_none();
        self.pods.insert(
            uid.clone(),
            PodView {
                node: node.clone(),
                is_ready,
                ends: ended.or(ends.then_some(version)),
                gone: is_gone.then_some(version),
            },
        );
        if is_ready {
            app.away.remove(&node);
        }
        let is_forced = begins_to_end && disruption(pod) == Some(FORCED);
        let was_evicted = begins_to_end && was_ready && is_evicted(pod);
        let went_with_node = app.is_retained && was_ready && !is_ready && !ends && self.rebooting.contains(&node);
        self.counts.evictions += usize::from(was_evicted);
        if app.is_pinned && (was_evicted || went_with_node) {
            app.away.insert(node);
            if app.away.len() > app.max_unavailable {
                let (away, most) = (&app.away, app.max_unavailable);
                self.broken.push(format!(
                    "{name}: its pods on {away:?} are away by evictions and reboots, and its budget allows {most}"
                ));
            }
        }
        if is_forced {
            let text = format!("pod {} was forced", pod.name_any());
            if app.is_never {
                self.broken.push(format!("{text}, and its budget forbids it for ever"));
            }
            if app.held.has_been(&true, SEEN_WITHIN) {
                self.broken.push(format!("{text} while its owner holds its budget"));
            }
            self.forced.push(Forced {
                app: name,
                uid,
                name: pod.name_any(),
                seen: Instant::now(),
            });
        }
    }

    pub fn take_budget(&mut self, budget: &PodDisruptionBudget) {
        let Some(app) = self.apps.get_mut(&budget.name_any()) else {
            return;
        };
        self.counts.changes += 1;
        let record = budget.annotations().get(LAST_OVERRIDE);
        let Some(record) = record.and_then(|text| LastOverride::parse(text).ok()) else {
            return;
        };
        if app.overrides.last().is_some_and(|last| last.record.uid == record.uid) {
            return;
        }
        self.counts.overrides += 1;
        app.overrides.push(Override {
            record,
            version: version_of(budget),
            seen: Instant::now(),
            is_judged: false,
        });
    }

    pub fn take_hold(&mut self, event: Event<DisruptionHold>) {
        self.counts.changes += 1;
        let (hold, is_held) = match event {
            Event::Apply(hold) | Event::InitApply(hold) => (hold, true),
            Event::Delete(hold) => (hold, false),
            Event::Init | Event::InitDone => return,
        };
        if let Some(app) = self.apps.get_mut(&hold.spec.pdb_ref) {
            app.held.set(is_held);
        }
    }

    pub fn take_ledger(&mut self, ledger: Result<Ledger, String>) {
        self.counts.changes += 1;
        let ledger = match ledger {
            Ok(ledger) => ledger,
            Err(why) => return self.broken.push(format!("the ledger cannot be decoded: {why}")),
        };
        let claims = ledger.claims();
        let nodes: BTreeSet<&str> = claims.iter().map(|claim| claim.node_uid.as_str()).collect();
        if nodes.len() != claims.len() {
            self.broken.push("the ledger has two claims of one node".to_owned());
        }
        if claims.windows(2).any(|pair| pair[0].ticket >= pair[1].ticket) {
            self.broken
                .push("the tickets of the ledger are out of order".to_owned());
        }
        for claim in claims.iter().filter(|claim| claim.state.has_grant()) {
            let node = &claim.node;
            if !claim.needs.is_empty() {
                self.broken
                    .push(format!("{node} was granted less than it needs: {:?}", claim.needs));
            }
            let before = self.ledger.claim(&claim.node_uid);
            let gained = |uid: &str| before.is_none_or(|before| !before.has_disruption(uid));
            self.counts.grants += usize::from(before.is_none_or(|before| !before.state.has_grant()));
            for disruptions in &claim.holds {
                let held = self.apps.get(&disruptions.pdb.name);
                if !held.is_some_and(|app| app.held.has_been(&true, SEEN_WITHIN)) {
                    continue;
                }
                let runs = |uid: &str| self.pods.get(uid).is_some_and(|pod| pod.is_ready);
                let taken = disruptions.pods.iter().find(|pod| gained(&pod.uid) && runs(&pod.uid));
                if let Some(pod) = taken {
                    self.broken
                        .push(format!("{node} was granted {}, whose owner holds its budget", pod.name));
                }
            }
        }
        self.ledger = ledger;
    }

    /// Judges what rests on several watches, and is old enough for all of them to have told of it.
    pub fn settle(&mut self) {
        let is_settled = |seen: &Instant| seen.elapsed() >= SETTLED_AFTER;
        for (name, app) in &mut self.apps {
            for second in 1..app.overrides.len() {
                let (earlier, later) = app.overrides.split_at_mut(second);
                let (first, second) = (&earlier[earlier.len() - 1], &mut later[0]);
                if second.is_judged || !is_settled(&second.seen) {
                    continue;
                }
                second.is_judged = true;
                let pod = self.pods.get(&first.record.uid);
                let is_on_its_way = pod.is_some_and(|pod| {
                    let ends = pod.ends.is_some_and(|ends| ends < second.version);
                    ends && pod.gone.is_none_or(|gone| gone > second.version)
                });
                let since = second.record.at.duration_since(first.record.at).unsigned_abs();
                if is_on_its_way && since < OVERRIDE_SPACING {
                    self.broken.push(format!(
                        "{name}: {} was overridden {since:?} after {} on {}, which was still on its way",
                        second.record.pod,
                        first.record.pod,
                        pod.map(|pod| pod.node.as_str()).unwrap_or_default()
                    ));
                }
            }
        }
        let (settled, rest) = std::mem::take(&mut self.forced)
            .into_iter()
            .partition(|forced: &Forced| is_settled(&forced.seen));
        self.forced = rest;
        for forced in settled {
            let overrides = self.apps.get(&forced.app).map(|app| app.overrides.as_slice());
            let is_recorded = |one: &Override| one.record.uid == forced.uid;
            if !overrides.unwrap_or_default().iter().any(is_recorded) {
                self.broken.push(format!(
                    "pod {} was forced, and its budget does not record it",
                    forced.name
                ));
            }
        }
    }
}

/// Whether the pod was evicted, and not deleted by others.
pub fn is_evicted(pod: &Pod) -> bool {
    disruption(pod) == Some(EVICTED)
}

/// Who disrupts the pod, as its condition `DisruptionTarget` says.
fn disruption(pod: &Pod) -> Option<&str> {
    let mut conditions = pod.status.iter().flat_map(|status| status.conditions.iter().flatten());
    let target = conditions.find(|condition| condition.type_ == "DisruptionTarget" && condition.status == "True");
    target?.reason.as_deref()
}

fn version_of(object: &impl ResourceExt) -> u64 {
    let version = object.resource_version().unwrap_or_default();
    version.parse().unwrap_or_default()
}

#[cfg(test)]
mod tests;
