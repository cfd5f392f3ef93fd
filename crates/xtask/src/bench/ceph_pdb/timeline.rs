//! What the watches of budgets and pods tell, with the moment of the last change.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use anyhow::Result;
use k8s_openapi::api::core::v1::Pod;
use k8s_openapi::api::policy::v1::PodDisruptionBudget;
use k8s_openapi::apimachinery::pkg::util::intstr::IntOrString;
use kube::ResourceExt;
use kube::api::Api;
use kube::runtime::watcher::{Config, Event};
use nodeward_testkit::rook::OSD_ID;
use nodeward_testkit::workload;
use tokio::time::Instant;

use crate::watch::Watched;

/// The budget of all OSDs; those of failure domains have this before their names.
const DEFAULT: &str = "rook-ceph-osd";

/// The label that names an OSD's host.
const HOST: &str = "topology-location-host";

/// How long anything may take.
const DEADLINE: Duration = Duration::from_mins(3);

/// The budgets and pods of a namespace, followed.
pub struct Timeline {
    budgets: Watched<Budgets>,
    pods: Watched<OsdPods>,
}

/// The budgets of OSDs.
pub struct Budgets {
    by_name: BTreeMap<String, Budget>,
    changed: Instant,
}

#[derive(Debug, PartialEq)]
struct Budget {
    max_unavailable: Option<IntOrString>,
    /// The disruption controller has seen its last change: until then the API allows no eviction.
    is_in_force: bool,
    /// The host that it selects; without one it is the budget of all.
    host: Option<String>,
    /// Hosts that it does not select.
    except: BTreeSet<String>,
}

/// The pods of OSDs.
#[derive(Default)]
pub struct OsdPods {
    /// Ready, and not on their way out: name by OSD.
    pub live: BTreeMap<usize, String>,
    /// When the last pod of an OSD was seen to be on its way out.
    ending: BTreeMap<usize, Instant>,
}

impl Budgets {
    fn take(&mut self, event: Event<PodDisruptionBudget>) {
        self.changed = Instant::now();
        match event {
            Event::Apply(budget) | Event::InitApply(budget) if budget.name_any().starts_with(DEFAULT) => {
                self.by_name.insert(budget.name_any(), Budget::read(&budget));
            }
            Event::Delete(budget) => drop(self.by_name.remove(&budget.name_any())),
            Event::Init => self.by_name.clear(),
            Event::Apply(_) | Event::InitApply(_) | Event::InitDone => {}
        }
    }

    fn default_budget(&self) -> Option<&Budget> {
        self.by_name.get(DEFAULT).filter(|budget| budget.is_in_force)
    }

    /// No OSD may be evicted, or none but those of one host.
    pub fn is_closed(&self) -> bool {
        self.default_budget().is_some_and(Budget::allows_nothing)
    }

    /// So many hosts have a budget that allows nothing, and the one of all selects none of their OSDs.
    pub fn are_spelled_out(&self, hosts: usize) -> bool {
        let all = self.by_name.values();
        let own = all.filter(|budget| budget.is_in_force && budget.allows_nothing());
        let spelled: BTreeSet<&String> = own.filter_map(|budget| budget.host.as_ref()).collect();
        let default = self.default_budget();
        spelled.len() >= hosts
            && default.is_some_and(|default| spelled.iter().all(|host| default.except.contains(*host)))
    }

    /// One OSD may be evicted, whichever it is.
    pub fn is_open(&self) -> bool {
        let allows_one =
            |default: &Budget| default.max_unavailable == Some(IntOrString::Int(1)) && default.except.is_empty();
        self.by_name.len() == 1 && self.default_budget().is_some_and(allows_one)
    }
}

impl Budget {
    fn read(budget: &PodDisruptionBudget) -> Self {
        let (spec, status) = (budget.spec.clone().unwrap_or_default(), budget.status.as_ref());
        let selector = spec.selector.unwrap_or_default();
        let requirements = selector.match_expressions.into_iter().flatten();
        let except = requirements.filter(|requirement| requirement.key == HOST && requirement.operator == "NotIn");
        Self {
            max_unavailable: spec.max_unavailable,
            is_in_force: status.and_then(|status| status.observed_generation) == budget.metadata.generation,
            host: selector.match_labels.unwrap_or_default().remove(HOST),
            except: except
                .flat_map(|requirement| requirement.values.unwrap_or_default())
                .collect(),
        }
    }

    fn allows_nothing(&self) -> bool {
        self.max_unavailable == Some(IntOrString::Int(0))
    }
}

impl OsdPods {
    /// OSDs without a live pod.
    pub fn away(&self, osds: usize) -> impl Iterator<Item = usize> {
        (0..osds).filter(|osd| !self.live.contains_key(osd))
    }

    fn take(&mut self, event: Event<Pod>) {
        let (pod, is_deleted) = match event {
            Event::Apply(pod) | Event::InitApply(pod) => (pod, false),
            Event::Delete(pod) => (pod, true),
            Event::Init | Event::InitDone => return,
        };
        let Some(osd) = pod.labels().get(OSD_ID).and_then(|id| id.parse().ok()) else {
            return;
        };
        let is_ending = pod.metadata.deletion_timestamp.is_some();
        if !is_ending && !is_deleted && workload::is_ready(&pod) {
            self.live.insert(osd, pod.name_any());
        } else if self.live.get(&osd) == Some(&pod.name_any()) {
            self.live.remove(&osd);
            self.ending.insert(osd, Instant::now());
        }
    }
}

impl Timeline {
    pub fn start(budgets: Api<PodDisruptionBudget>, pods: Api<Pod>) -> Self {
        let none = Budgets {
            by_name: BTreeMap::new(),
            changed: Instant::now(),
        };
        let osds = Config::default().labels("app=rook-ceph-osd");
        Self {
            budgets: Watched::new(none).follow_events(budgets, Config::default(), Budgets::take),
            pods: Watched::new(OsdPods::default()).follow_events(pods, osds, OsdPods::take),
        }
    }

    /// Waits until the budgets are so; gives since when.
    pub async fn budgets_are(&self, what: &str, are_so: impl Fn(&Budgets) -> bool) -> Result<Instant> {
        let since = |budgets: &Budgets| are_so(budgets).then_some(budgets.changed);
        let what = format_args!("the budgets to be {what}");
        self.budgets.until(what, DEADLINE, since).await
    }

    /// Waits until an OSD's pod is on its way out; gives since when.
    pub async fn pod_ends(&self, osd: usize, after: Instant) -> Result<Instant> {
        let ended = |pods: &OsdPods| pods.ending.get(&osd).copied().filter(|at| *at >= after);
        let what = format_args!("the pod of OSD {osd} to end");
        self.pods.until(what, DEADLINE, ended).await
    }

    /// Reads the pods as they are.
    pub fn pods<T>(&self, read: impl FnOnce(&OsdPods) -> T) -> T {
        read(&self.pods.read())
    }
}
