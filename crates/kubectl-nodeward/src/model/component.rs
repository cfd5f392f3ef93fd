//! The components that are installed, and whether each works: by its Deployment, its lease and what pauses it. Pure.

use std::collections::BTreeMap;

use jiff::{SignedDuration, Timestamp};
use k8s_openapi::api::apps::v1::Deployment;
use k8s_openapi::api::coordination::v1::Lease;
use k8s_openapi::api::core::v1::ConfigMap;
use kube::ResourceExt;
use nodeward_api::COMPONENTS;
use nodeward_api::pause::{self, Paused};
use nodeward_api::planned_at::STALE_AFTER;
use nodeward_core::lease::{self, Planned};
use serde::Serialize;

use crate::describe::prefixed;
use crate::text::Style;
use crate::text::table::Cell;
use crate::text::time::{distance, moment};

/// The chart's label on all its objects.
pub const PART_OF: &str = "app.kubernetes.io/part-of=nodeward";

/// The chart's labels with the component and its version.
pub const COMPONENT: &str = "app.kubernetes.io/component";
const VERSION: &str = "app.kubernetes.io/version";

pub const DRAIN_KEEPER: &str = "drain-keeper";
pub const DRAIN_LOCK: &str = "drain-lock";
pub const HEALTH_CHECK: &str = "health-check";

#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Component {
    /// `drain-keeper`, `drain-lock`, `health-check` or `ceph-pdb`.
    pub name: String,
    pub state: ComponentState,
    /// Its version, where its Deployment says so.
    pub version: Option<String>,
    pub namespace: String,
    /// The name of its Deployment.
    #[serde(skip)]
    pub deployment: Option<String>,
    /// It has none, as far as Deployments may be read.
    #[serde(skip)]
    pub runs_elsewhere: bool,
    /// Replicas that are ready; absent without a Deployment.
    pub ready: Option<i32>,
    pub replicas: Option<i32>,
    pub leader: Option<String>,
    /// When the leader last renewed its lease.
    pub renewed: Option<Timestamp>,
    /// When a leader of drain-lock last said that it plans, by the API server's clock.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub planned: Option<Timestamp>,
    /// A person has stopped it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub paused: Option<Paused>,
}

/// The health of a component.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
pub enum ComponentState {
    /// A replica leads, and renews its lease; drain-lock's plans, too.
    Leading,
    /// A replica leads, and does nothing but renew its lease: drain-lock's, which says there when it plans.
    NotPlanning,
    /// Replicas are ready; which of them leads cannot be seen.
    Ready,
    /// It is installed, and none leads.
    NotLeading,
    /// It is installed, and no replica is ready.
    NotReady,
    /// Its Lease is left: it has no Deployment, and nobody renews it.
    NotInstalled,
}

/// A component's objects in the cluster.
#[derive(Default)]
struct Traces<'a> {
    deployment: Option<&'a Deployment>,
    lease: Option<&'a Lease>,
}

/// What tells of components.
#[derive(Debug, Clone, Default)]
pub struct ComponentObjects {
    pub deployments: Vec<Deployment>,
    pub leases: Vec<Lease>,
    /// ConfigMaps that pause components of their namespaces.
    pub pauses: Vec<ConfigMap>,
    /// Whether a Deployment that is absent is not there, and may not only not be read.
    pub sees_deployments: bool,
    /// The same of leases.
    pub sees_leases: bool,
}

/// Components by name and namespace.
pub fn components(objects: &ComponentObjects, now: Timestamp) -> Vec<Component> {
    let mut found: BTreeMap<(String, String), Traces<'_>> = BTreeMap::new();
    for deployment in &objects.deployments {
        let name = deployment.labels().get(COMPONENT);
        if let Some(name) = name.filter(|name| COMPONENTS.contains(&name.as_str())) {
            let key = (name.clone(), deployment.namespace().unwrap_or_default());
            found.entry(key).or_default().deployment = Some(deployment);
        }
    }
    for lease in &objects.leases {
        let key = (lease.name_any(), lease.namespace().unwrap_or_default());
        found.entry(key).or_default().lease = Some(lease);
    }
    let found = found.into_iter();
    found
        .map(|(key, traces)| component(key, &traces, objects, now))
        .collect()
}

fn component(
    (name, namespace): (String, String),
    traces: &Traces<'_>,
    objects: &ComponentObjects,
    now: Timestamp,
) -> Component {
    let Traces {
        deployment,
        lease: stored,
    } = traces;
    let lease = stored.and_then(|lease| lease.spec.as_ref());
    let leader = lease.and_then(|lease| lease.holder_identity.clone());
    let leader = leader.filter(|leader| !leader.is_empty());
    let renewed = lease.and_then(|lease| lease.renew_time.as_ref()).map(|time| time.0);
    // Twice the lease's time, lest a clock that is off by seconds makes a leader look dead.
    let seconds = lease.and_then(|lease| lease.lease_duration_seconds).unwrap_or_default();
    let lasts = SignedDuration::from_secs(2 * i64::from(seconds));
    let renews = renewed.is_some_and(|renewed| now.duration_since(renewed) <= lasts);
    let ready = deployment.map(|deployment| {
        let status = deployment.status.as_ref();
        status.and_then(|status| status.ready_replicas).unwrap_or_default()
    });
    let planned = stored.and_then(lease::planned);
    // One that has just taken over says so with its first plan.
    let acquired = lease.and_then(|lease| lease.acquire_time.as_ref()).map(|time| time.0);
    let is_new = acquired.is_some_and(|acquired| now.duration_since(acquired).unsigned_abs() < STALE_AFTER);
    let plans = name != DRAIN_LOCK || is_new || planned.is_some_and(|planned| plans(&planned));
    // Without an election a lease is of an earlier installation.
    let is_led = (lease.is_some() || objects.sees_leases) && deployment.is_none_or(elects);
    let state = match (leader.is_some() && renews, ready) {
        (true, _) if plans => ComponentState::Leading,
        (true, _) => ComponentState::NotPlanning,
        (false, None) if objects.sees_deployments => ComponentState::NotInstalled,
        (false, Some(0)) => ComponentState::NotReady,
        (false, Some(_)) if !is_led => ComponentState::Ready,
        (false, _) => ComponentState::NotLeading,
    };
    let mut pauses = objects.pauses.iter();
    let pause = pauses.find(|pause| pause.namespace().as_ref() == Some(&namespace));
    Component {
        paused: pause.and_then(|pause| pause::paused(pause, &name)),
        name,
        state,
        version: deployment.and_then(|deployment| deployment.labels().get(VERSION).cloned()),
        namespace,
        deployment: deployment.map(ResourceExt::name_any),
        runs_elsewhere: deployment.is_none() && objects.sees_deployments,
        ready,
        replicas: deployment.and_then(|deployment| deployment.spec.as_ref()?.replicas),
        leader: leader.filter(|_| renews),
        renewed,
        planned: planned.and_then(|planned| planned.written),
    }
}

/// Whether its replicas elect a leader, as they do unless they are told otherwise.
fn elects(deployment: &Deployment) -> bool {
    let pod = deployment.spec.as_ref().and_then(|spec| spec.template.spec.as_ref());
    let containers = pod.iter().flat_map(|pod| &pod.containers);
    let mut args = containers.flat_map(|container| container.args.iter().flatten());
    !args.any(|arg| arg == "--leader-elect=false")
}

/// Whether the leader has said within two minutes that it plans, as the webhook has it. It says no time, and a look is but one:
/// so the two times that the API server has kept are compared, of that word and of the last renewal. Where it has kept none
/// the word counts that is of the present term.
fn plans(planned: &Planned) -> bool {
    match planned.silent_for() {
        Some(silent_for) => silent_for < STALE_AFTER,
        None => planned.is_of_present_term,
    }
}

/// The first component of this name, and why it does nothing; `None` where one of that name works, or none was found.
pub fn stopped<'a>(components: &'a [Component], name: &str) -> Option<(&'a Component, String)> {
    let found = components.iter().filter(|component| component.name == name);
    let all: Option<Vec<_>> = found
        .map(|component| Some((component, component.acts_not()?)))
        .collect();
    all?.into_iter().next()
}

impl Component {
    pub fn line(&self, now: Timestamp) -> Cell {
        let without = if self.runs_elsewhere {
            ", without a Deployment"
        } else {
            ""
        };
        let (style, state) = match (self.state, &self.paused) {
            (ComponentState::NotInstalled, _) => {
                let last = prefixed(", last renewed ", self.renewed.map(|renewed| distance(renewed, now)));
                (Style::Faint, format!("not installed; its Lease is left{last}"))
            }
            (ComponentState::Leading | ComponentState::NotPlanning | ComponentState::Ready, Some(paused)) => {
                let since = prefixed(" since ", paused.since.map(|since| moment(since, now)));
                (Style::Warning, format!("paused{since}: {}", paused.reason))
            }
            (ComponentState::Leading, None) => (Style::Good, format!("works{without}")),
            (ComponentState::NotPlanning, None) => {
                let last = self.planned.map(|planned| distance(planned, now));
                let last = prefixed(", the last time ", last);
                (Style::Bad, format!("leads and plans nothing{last}"))
            }
            (ComponentState::Ready, None) => (Style::Good, "ready".to_owned()),
            (ComponentState::NotLeading, _) => {
                let last = self.renewed.map(|renewed| distance(renewed, now));
                (Style::Bad, format!("no leader{}", prefixed(", last seen ", last)))
            }
            (ComponentState::NotReady, _) => (Style::Bad, "no ready replica".to_owned()),
        };
        let version = prefixed(" ", self.version.as_ref());
        let replicas = self.ready.zip(self.replicas);
        let replicas = prefixed(", ", replicas.map(|(ready, all)| format!("{ready} of {all} ready")));
        let leader = prefixed(", led by ", self.leader.as_ref());
        let Self { name, namespace, .. } = self;
        Cell::new(
            style,
            format!("{name}{version} in {namespace}: {state}{replicas}{leader}"),
        )
    }

    /// Whether more than its Lease is there.
    pub fn is_installed(&self) -> bool {
        self.state != ComponentState::NotInstalled
    }

    /// Why it does nothing; `None` for one that works, as far as can be seen.
    pub fn acts_not(&self) -> Option<String> {
        let Self { name, paused, .. } = self;
        match (self.state, paused) {
            (ComponentState::NotInstalled, _) => Some(format!(
                "nobody runs {name}: it has no Deployment, and nobody renews its Lease"
            )),
            (_, Some(paused)) => Some(format!("{name} is paused: {}", paused.reason)),
            (ComponentState::Leading | ComponentState::Ready, None) => None,
            (ComponentState::NotPlanning, None) => Some(format!("{name} leads and plans nothing")),
            (ComponentState::NotLeading, None) => Some(format!("no replica of {name} leads")),
            (ComponentState::NotReady, None) => Some(format!("no replica of {name} is ready")),
        }
    }

    /// Who leads it, or since when what it wrote has been left as it was; `None` where leases cannot be seen.
    pub fn leads(&self, now: Timestamp) -> Option<Cell> {
        let Self { name, leader, .. } = self;
        let silent = prefixed(" since ", self.renewed.map(|renewed| moment(renewed, now)));
        match self.state {
            _ if self.paused.is_some() && self.is_installed() => Some(self.line(now)),
            ComponentState::Leading => {
                let leader = leader.as_deref().unwrap_or("a replica");
                Some(Cell::new(Style::Faint, format!("{name}: {leader} leads")))
            }
            ComponentState::NotPlanning => Some(Cell::new(
                Style::Bad,
                format!(
                    "{name}: {} leads and plans nothing",
                    leader.as_deref().unwrap_or("a replica")
                ),
            )),
            ComponentState::Ready => None,
            ComponentState::NotLeading | ComponentState::NotReady | ComponentState::NotInstalled => Some(Cell::new(
                Style::Bad,
                format!("{name}: nobody leads{silent}, and what it says is no newer"),
            )),
        }
    }
}

#[cfg(test)]
mod tests {
    use rstest::rstest;
    use serde_json::{Value, json};

    use super::*;

    fn deployment(ready: Option<i32>) -> Deployment {
        serde_json::from_value(json!({
            "metadata": {
                "name": "nodeward-drain-lock", "namespace": "nodeward-system",
                "labels": { "app.kubernetes.io/component": "drain-lock", "app.kubernetes.io/version": "1.2.3" },
            },
            "spec": { "replicas": 2, "selector": {}, "template": {} },
            "status": { "readyReplicas": ready },
        }))
        .unwrap()
    }

    fn lease(holder: &str, renewed: &str) -> Lease {
        serde_json::from_value(json!({
            "metadata": { "name": "drain-lock", "namespace": "nodeward-system" },
            "spec": { "holderIdentity": holder, "renewTime": renewed, "leaseDurationSeconds": 15 },
        }))
        .unwrap()
    }

    /// Of a minute ago.
    fn new_leader() -> Lease {
        let mut lease = lease("a", FRESH);
        lease.spec.as_mut().unwrap().acquire_time =
            serde_json::from_value(json!("2026-01-01T09:59:00.000000Z")).unwrap();
        lease
    }

    /// drain-lock's leader has renewed, and has said then that it plans.
    fn planning(renewed: &str, mark: &str, planned: Option<&str>) -> Lease {
        let mut lease = lease("a", renewed);
        lease.spec.as_mut().unwrap().lease_transitions = Some(3);
        let writes = planned.map(|planned| {
            json!([
                { "manager": "a", "time": renewed }, { "manager": "nodeward-planned-at", "time": planned },
            ])
        });
        lease.metadata.annotations = Some([("nodeward.dev/planned-at".to_owned(), mark.to_owned())].into());
        lease.metadata.managed_fields = serde_json::from_value(json!(writes)).unwrap();
        lease
    }

    /// At ten there is one component, in this state; whether what is absent is not there is seen, or not.
    fn assert_state(deployments: Vec<Deployment>, leases: Vec<Lease>, is_seen: bool, state: ComponentState) {
        let objects = ComponentObjects {
            deployments,
            leases,
            pauses: Vec::new(),
            sees_deployments: is_seen,
            sees_leases: is_seen,
        };
        let found = components(&objects, "2026-01-01T10:00:00Z".parse().unwrap());
        assert_eq!(found.iter().map(|found| found.state).collect::<Vec<_>>(), [state]);
    }

    const FRESH: &str = "2026-01-01T09:59:50.000000Z";
    const OLD: &str = "2026-01-01T09:59:00.000000Z";
    const SECONDS_AGO: &str = "2026-01-01T09:59:00Z";
    const MINUTES_AGO: &str = "2026-01-01T09:57:00Z";

    #[rstest]
    #[case::leads(vec![deployment(Some(2))], vec![planning(FRESH, "3@7", Some(SECONDS_AGO))], ComponentState::Leading)]
    #[case::leads_without_a_deployment(vec![], vec![planning(FRESH, "3@7", Some(SECONDS_AGO))], ComponentState::Leading)]
    #[case::leads_a_new_term(vec![], vec![planning(FRESH, "2@7", Some(SECONDS_AGO))], ComponentState::Leading)]
    #[case::has_just_taken_over(vec![], vec![new_leader()], ComponentState::Leading)]
    #[case::has_planned_nothing_yet(vec![], vec![lease("a", FRESH)], ComponentState::NotPlanning)]
    #[case::cannot_plan_any_more(vec![], vec![planning(FRESH, "3@7", Some(MINUTES_AGO))], ComponentState::NotPlanning)]
    #[case::has_stopped_after_planning(vec![], vec![planning(OLD, "3@7", Some(OLD))], ComponentState::NotLeading)]
    #[case::the_server_keeps_no_times(vec![], vec![planning(FRESH, "3@7", None)], ComponentState::Leading)]
    #[case::the_server_keeps_no_times_of_an_earlier_term(vec![], vec![planning(FRESH, "2@7", None)], ComponentState::NotPlanning)]
    #[case::has_stopped(vec![], vec![lease("a", OLD)], ComponentState::NotLeading)]
    #[case::has_given_up_its_lease(vec![deployment(Some(1))], vec![lease("", FRESH)], ComponentState::NotLeading)]
    #[case::leases_cannot_be_read(vec![deployment(Some(1))], vec![], ComponentState::Ready)]
    #[case::no_replica(vec![deployment(None)], vec![lease("a", OLD)], ComponentState::NotReady)]
    fn component_state_follows_lease_and_replicas(
        #[case] deployments: Vec<Deployment>,
        #[case] leases: Vec<Lease>,
        #[case] state: ComponentState,
    ) {
        assert_state(deployments, leases, false, state);
    }

    fn unelected() -> Deployment {
        let mut deployment = deployment(Some(1));
        let container = json!({ "name": "operator", "args": ["--leader-elect=false"] });
        let pod = json!({ "containers": [container] });
        deployment.spec.as_mut().unwrap().template.spec = serde_json::from_value(pod).unwrap();
        deployment
    }

    /// Of what may be read, its absence tells.
    #[rstest]
    #[case::never_led(vec![deployment(Some(1))], vec![], ComponentState::NotLeading)]
    #[case::elects_nobody(vec![unelected()], vec![], ComponentState::Ready)]
    #[case::elects_nobody_any_more(vec![unelected()], vec![lease("a", OLD)], ComponentState::Ready)]
    #[case::uninstalled(vec![], vec![lease("a", OLD)], ComponentState::NotInstalled)]
    #[case::uninstalled_in_order(vec![], vec![lease("", FRESH)], ComponentState::NotInstalled)]
    #[case::runs_elsewhere(vec![], vec![planning(FRESH, "3@7", Some(SECONDS_AGO))], ComponentState::Leading)]
    fn what_is_not_there_tells_of_a_component(
        #[case] deployments: Vec<Deployment>,
        #[case] leases: Vec<Lease>,
        #[case] state: ComponentState,
    ) {
        assert_state(deployments, leases, true, state);
    }

    #[rstest]
    #[case(json!({ "app.kubernetes.io/component": "grafana" }))]
    #[case(json!({}))]
    fn other_deployment_is_no_component(#[case] labels: Value) {
        let mut other = deployment(Some(1));
        other.metadata.labels = serde_json::from_value(labels).unwrap();
        let objects = ComponentObjects {
            deployments: vec![other],
            ..ComponentObjects::default()
        };
        assert_eq!(components(&objects, Timestamp::UNIX_EPOCH), []);
    }
}
