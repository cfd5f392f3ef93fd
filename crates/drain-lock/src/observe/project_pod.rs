//! From a Pod as the API server sends it to what decisions read.

use std::collections::BTreeMap;
use std::sync::Arc;

use jiff::Timestamp;
use k8s_openapi::api::core::v1::{
    Container, NodeSelectorRequirement, NodeSelectorTerm, Pod, PodAffinityTerm, PodCondition, PodSpec, PodStatus,
    TopologySpreadConstraint,
};
use k8s_openapi::apimachinery::pkg::api::resource::Quantity;
use nodeward_api::opt_out::OptOut;
use nodeward_core::id::PodKey;
use nodeward_core::intern::Pool;
use nodeward_core::pod::Phase;
use nodeward_core::selector::Selector;

use super::quantity;
use crate::snapshot::scheduling::{
    HostPort, Namespaces, NodeOperator, NodeRequirement, NodeSelector, NodeTerm, PodTerm, Spread, Toleration,
    TolerationValue,
};
use crate::snapshot::{Labels, OwnerFacts, PodFacts, Resources, Scheduling};

/// Annotation that the kubelet puts on the API's copy of a static pod.
const MIRROR_ANNOTATION: &str = "kubernetes.io/config.mirror";

/// Projects pods, and lets them share what they have in common.
#[derive(Debug, Default)]
pub struct PodProjector {
    texts: Pool<str>,
    labels: Pool<Labels>,
    scheduling: Pool<Scheduling>,
    owners: Pool<OwnerFacts>,
}

/// Projects one pod alone, for one that was read by itself; `None` without namespace or name.
pub fn project_pod(pod: &Pod) -> Option<PodFacts> {
    PodProjector::default().project(pod)
}

impl PodProjector {
    /// Projects a pod; `None` without namespace or name.
    pub fn project(&mut self, pod: &Pod) -> Option<PodFacts> {
        let meta = &pod.metadata;
        let name: Arc<str> = meta.name.as_deref()?.into();
        let namespace = self.texts.text(meta.namespace.as_deref()?);
        let annotation = |key: &str| meta.annotations.as_ref()?.get(key).map(String::as_str);
        let label = |key: &str| meta.labels.as_ref()?.get(key).map(String::as_str);
        let spec = pod.spec.as_ref();
        let status = pod.status.as_ref();
        let owner = self.owner(pod);
        let ready = condition(status, "Ready");
        let belongs_to_its_node = owner.as_deref().is_some_and(OwnerFacts::is_daemon_set);
        let scheduling = spec.map_or_else(Scheduling::default, |spec| {
            if belongs_to_its_node {
                // Its affinity names its node, so that no two are alike, and nobody asks where else it could go.
                self.what_it_takes(spec)
            } else {
                self.scheduling(spec)
            }
        });
        Some(PodFacts {
            uid: meta.uid.as_deref().unwrap_or_default().into(),
            node: spec
                .and_then(|spec| spec.node_name.as_deref())
                .filter(|node| !node.is_empty())
                .map(|node| self.texts.text(node).into()),
            phase: phase(status),
            ready: ready.is_some_and(|ready| ready.status == "True"),
            ready_since: ready
                .and_then(|ready| ready.last_transition_time.as_ref())
                .map(|time| time.0),
            mirror: annotation(MIRROR_ANNOTATION).is_some(),
            gated: spec.is_some_and(|spec| spec.scheduling_gates.as_ref().is_some_and(|gates| !gates.is_empty())),
            opt_out: OptOut::read(label, annotation),
            deletion: meta.deletion_timestamp.as_ref().map(|time| time.0),
            created: meta
                .creation_timestamp
                .as_ref()
                .map_or(Timestamp::UNIX_EPOCH, |time| time.0),
            started_at: status.and_then(started_at),
            unschedulable_since: condition(status, "PodScheduled")
                .filter(|scheduled| scheduled.status == "False" && scheduled.reason.as_deref() == Some("Unschedulable"))
                .and_then(|condition| condition.last_transition_time.as_ref())
                .map(|time| time.0),
            owner,
            labels: self.labels(meta.labels.as_ref(), &name),
            scheduling: self.scheduling.value(scheduling),
            claims: spec.map(|spec| self.claims(spec, &name)).unwrap_or_default(),
            key: PodKey::new(namespace, name),
        })
    }

    fn labels(&mut self, labels: Option<&BTreeMap<String, String>>, name: &Arc<str>) -> Arc<Labels> {
        let texts = &mut self.texts;
        let labels = labels
            .into_iter()
            .flatten()
            .map(|(key, value)| {
                // A StatefulSet labels each of its pods with its own name.
                let value = if **name == **value {
                    Arc::clone(name)
                } else {
                    texts.text(value)
                };
                (texts.text(key), value)
            })
            .collect();
        self.labels.value(labels)
    }

    fn owner(&mut self, pod: &Pod) -> Option<Arc<OwnerFacts>> {
        let mut owners = pod.metadata.owner_references.iter().flatten();
        let controller = owners.find(|owner| owner.controller == Some(true))?;
        Some(self.owners.value(OwnerFacts {
            api_version: self.texts.text(&controller.api_version),
            kind: self.texts.text(&controller.kind),
            name: self.texts.text(&controller.name),
            uid: self.texts.text(&controller.uid),
        }))
    }

    fn claims(&mut self, spec: &PodSpec, name: &str) -> Box<[Arc<str>]> {
        let volumes = spec.volumes.iter().flatten();
        volumes
            .filter_map(|volume| match (&volume.persistent_volume_claim, &volume.ephemeral) {
                (Some(claim), _) => Some(self.texts.text(&claim.claim_name)),
                // The claim of an ephemeral volume is named after pod and volume.
                (None, Some(_)) => Some(Arc::from(format!("{name}-{}", volume.name))),
                (None, None) => None,
            })
            .collect()
    }

    fn scheduling(&mut self, spec: &PodSpec) -> Scheduling {
        let affinity = spec.affinity.as_ref();
        let node_affinity = affinity.and_then(|affinity| affinity.node_affinity.as_ref());
        let pods = affinity.and_then(|affinity| affinity.pod_affinity.as_ref());
        let not_pods = affinity.and_then(|affinity| affinity.pod_anti_affinity.as_ref());
        let texts = &mut self.texts;
        Scheduling {
            node_selector: spec
                .node_selector
                .iter()
                .flatten()
                .map(|(key, value)| (texts.text(key), texts.text(value)))
                .collect(),
            node_affinity: node_affinity
                .and_then(|affinity| affinity.required_during_scheduling_ignored_during_execution.as_ref())
                .map(|selector| node_selector(&selector.node_selector_terms, texts)),
            affinity: pods
                .and_then(|affinity| affinity.required_during_scheduling_ignored_during_execution.as_ref())
                .into_iter()
                .flatten()
                .map(|term| pod_term(term, texts))
                .collect(),
            anti_affinity: not_pods
                .and_then(|affinity| affinity.required_during_scheduling_ignored_during_execution.as_ref())
                .into_iter()
                .flatten()
                .map(|term| pod_term(term, texts))
                .collect(),
            spread: spec
                .topology_spread_constraints
                .iter()
                .flatten()
                .filter(|constraint| constraint.when_unsatisfiable == "DoNotSchedule")
                .map(|constraint| spread(constraint, texts))
                .collect(),
            ..self.what_it_takes(spec)
        }
    }

    /// What it takes of a node, and which taints it tolerates, but not where it may go.
    fn what_it_takes(&mut self, spec: &PodSpec) -> Scheduling {
        let texts = &mut self.texts;
        Scheduling {
            requests: requests(spec, texts),
            tolerations: spec
                .tolerations
                .iter()
                .flatten()
                .map(|toleration| Toleration {
                    key: texts.text(toleration.key.as_deref().unwrap_or_default()),
                    value: match toleration.operator.as_deref().unwrap_or_default() {
                        "Exists" => TolerationValue::Any,
                        "Equal" | "" => {
                            TolerationValue::Equal(texts.text(toleration.value.as_deref().unwrap_or_default()))
                        }
                        _ => TolerationValue::Unknown,
                    },
                    effect: texts.text(toleration.effect.as_deref().unwrap_or_default()),
                    seconds: toleration.toleration_seconds,
                })
                .collect(),
            host_ports: spec
                .containers
                .iter()
                .flat_map(|container| host_ports(container, texts))
                .collect(),
            ..Scheduling::default()
        }
    }
}

fn phase(status: Option<&PodStatus>) -> Phase {
    match status.and_then(|status| status.phase.as_deref()) {
        Some("Pending") => Phase::Pending,
        Some("Running") => Phase::Running,
        Some("Succeeded") => Phase::Succeeded,
        Some("Failed") => Phase::Failed,
        _ => Phase::Unknown,
    }
}

fn condition<'a>(status: Option<&'a PodStatus>, type_: &str) -> Option<&'a PodCondition> {
    let mut conditions = status?.conditions.iter().flatten();
    conditions.find(|condition| condition.type_ == type_)
}

/// When the first of the running containers was started, so that nothing in the pod is older; sidecars count, for they run
/// as long as the pod does.
fn started_at(status: &PodStatus) -> Option<Timestamp> {
    let containers = status.container_statuses.iter().flatten();
    let init_containers = status.init_container_statuses.iter().flatten();
    containers
        .chain(init_containers)
        .filter_map(|container| container.state.as_ref()?.running.as_ref()?.started_at.as_ref())
        .map(|time| time.0)
        .min()
}

/// What the scheduler reserves for a pod: the greater of what its containers need together and what its init containers
/// need one after another, sidecars beside both; or what the pod as a whole asks for; and the overhead.
fn requests(spec: &PodSpec, texts: &mut Pool<str>) -> Resources {
    let of = |container: &Container, texts: &mut Pool<str>| {
        let requests = container
            .resources
            .as_ref()
            .and_then(|resources| resources.requests.as_ref());
        requests.map(|requests| amounts(requests, texts)).unwrap_or_default()
    };
    let mut together = Resources::default();
    for container in &spec.containers {
        together += &of(container, texts);
    }
    let mut sidecars = Resources::default();
    let mut starting = Resources::default();
    for container in spec.init_containers.iter().flatten() {
        let mut needed = of(container, texts);
        if container.restart_policy.as_deref() == Some("Always") {
            sidecars += &needed;
            starting = starting.max(&sidecars);
        } else {
            needed += &sidecars;
            starting = starting.max(&needed);
        }
    }
    together += &sidecars;
    let mut requests = together.max(&starting);
    let whole = spec
        .resources
        .as_ref()
        .and_then(|resources| resources.requests.as_ref());
    if let Some(whole) = whole {
        let asked = amounts(whole, texts);
        if whole.contains_key("cpu") {
            requests.cpu = asked.cpu;
        }
        if whole.contains_key("memory") {
            requests.memory = asked.memory;
        }
        requests.extended.extend(asked.extended);
    }
    if let Some(overhead) = &spec.overhead {
        requests += &amounts(overhead, texts);
    }
    requests.pods = 1;
    requests
}

/// Reads a list of resources, as of a container's requests or of what a node can allocate.
pub(super) fn amounts(list: &BTreeMap<String, Quantity>, texts: &mut Pool<str>) -> Resources {
    let mut amounts = Resources::default();
    for (name, quantity) in list {
        match name.as_str() {
            "cpu" => amounts.cpu = quantity::thousandths(quantity),
            "memory" => amounts.memory = quantity::units(quantity),
            "ephemeral-storage" => amounts.ephemeral = quantity::units(quantity),
            "pods" => amounts.pods = quantity::units(quantity),
            _ => {
                let amount = quantity::units(quantity);
                if amount != 0 {
                    amounts.extended.insert(texts.text(name), amount);
                }
            }
        }
    }
    amounts
}

fn host_ports(container: &Container, texts: &mut Pool<str>) -> Vec<HostPort> {
    let ports = container.ports.iter().flatten();
    ports
        .filter_map(|port| {
            let number = port.host_port.filter(|number| *number > 0)?;
            let address = port.host_ip.as_deref().filter(|address| !address.is_empty());
            let protocol = port.protocol.as_deref().filter(|protocol| !protocol.is_empty());
            Some(HostPort {
                address: texts.text(address.unwrap_or(HostPort::ANY)),
                protocol: texts.text(protocol.unwrap_or("TCP")),
                port: number,
            })
        })
        .collect()
}

/// Required node affinity, of a pod or of a volume.
pub(super) fn node_selector(terms: &[NodeSelectorTerm], texts: &mut Pool<str>) -> NodeSelector {
    let terms = terms.iter().map(|term| {
        let labels = term.match_expressions.iter().flatten();
        let labels = labels.map(|requirement| node_requirement(requirement, texts)).collect();
        let names = term.match_fields.iter().flatten();
        let names = names
            .map(|requirement| {
                let mut read = node_requirement(requirement, texts);
                if requirement.key != "metadata.name" {
                    read.operator = NodeOperator::Unreadable;
                }
                read
            })
            .collect();
        NodeTerm { labels, names }
    });
    NodeSelector(terms.collect())
}

fn node_requirement(requirement: &NodeSelectorRequirement, texts: &mut Pool<str>) -> NodeRequirement {
    let values = requirement.values.as_deref().unwrap_or_default();
    let mut all = || values.iter().map(|value| texts.text(value)).collect();
    let number = || match values {
        [value] => value.parse().ok(),
        _ => None,
    };
    let operator = match requirement.operator.as_str() {
        "In" => NodeOperator::In(all()),
        "NotIn" => NodeOperator::NotIn(all()),
        "Exists" => NodeOperator::Exists,
        "DoesNotExist" => NodeOperator::DoesNotExist,
        "Gt" => number().map_or(NodeOperator::Unreadable, NodeOperator::Gt),
        "Lt" => number().map_or(NodeOperator::Unreadable, NodeOperator::Lt),
        _ => NodeOperator::Unreadable,
    };
    NodeRequirement {
        key: texts.text(&requirement.key),
        operator,
    }
}

fn pod_term(term: &PodAffinityTerm, texts: &mut Pool<str>) -> PodTerm {
    let listed = term.namespaces.iter().flatten();
    let listed: std::collections::BTreeSet<Arc<str>> = listed.map(|name| texts.text(name)).collect();
    let is_empty = |selector: &k8s_openapi::apimachinery::pkg::apis::meta::v1::LabelSelector| {
        let labels = selector.match_labels.as_ref().is_none_or(BTreeMap::is_empty);
        labels && selector.match_expressions.as_ref().is_none_or(Vec::is_empty)
    };
    let namespaces = match &term.namespace_selector {
        Some(selector) if is_empty(selector) => Namespaces::All,
        Some(_) => Namespaces::Unknown,
        None if listed.is_empty() => Namespaces::Own,
        None => Namespaces::Listed(listed),
    };
    PodTerm {
        selector: Selector::parse(term.label_selector.as_ref()).unwrap_or(Selector::NOTHING),
        namespaces,
        topology_key: texts.text(&term.topology_key),
    }
}

fn spread(constraint: &TopologySpreadConstraint, texts: &mut Pool<str>) -> Spread {
    let keys = constraint.match_label_keys.iter().flatten();
    Spread {
        max_skew: constraint.max_skew,
        topology_key: texts.text(&constraint.topology_key),
        selector: Selector::parse(constraint.label_selector.as_ref()).unwrap_or(Selector::NOTHING),
        match_label_keys: keys.map(|key| texts.text(key)).collect(),
        min_domains: constraint.min_domains.unwrap_or(1),
        honors_affinity: constraint.node_affinity_policy.as_deref() != Some("Ignore"),
        honors_taints: constraint.node_taints_policy.as_deref() == Some("Honor"),
    }
}
