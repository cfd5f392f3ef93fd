//! What a pod asks of the node that it is placed on, as the scheduler reads it.

use std::collections::{BTreeMap, BTreeSet};
use std::hash::{Hash, Hasher};
use std::sync::Arc;

use k8s_openapi::api::core::v1::{
    Container, NodeSelector, NodeSelectorRequirement, NodeSelectorTerm, PodAffinityTerm, PodSpec, Toleration,
    TopologySpreadConstraint,
};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::LabelSelector;
use nodeward_core::intern::Pool;
use nodeward_core::labels::Labels;
use nodeward_core::node::NodeView;
use nodeward_core::selector::Selector;

use crate::resources::Resources;

/// What a pod asks of its node. Equal ones are kept once: all pods of a ReplicaSet share theirs.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct Requirements {
    pub requests: Resources,
    /// Labels that the node must have.
    pub node_selector: BTreeMap<String, String>,
    /// Required node affinity.
    pub node_affinity: Option<NodeAffinity>,
    pub tolerations: Vec<Toleration>,
    /// Ports of the host that it listens on.
    pub host_ports: Vec<HostPort>,
    /// Required pod affinity.
    pub affinity: Vec<PodTerm>,
    /// Required pod anti-affinity.
    pub anti_affinity: Vec<PodTerm>,
    /// Topology spread constraints that must hold (`DoNotSchedule`).
    pub spread: Vec<Spread>,
}

impl Eq for Requirements {}

/// The API's type of a toleration has no hash, and pods differ by the rest.
impl Hash for Requirements {
    fn hash<H: Hasher>(&self, state: &mut H) {
        (
            &self.requests,
            &self.node_selector,
            &self.node_affinity,
            &self.host_ports,
        )
            .hash(state);
        (&self.affinity, &self.anti_affinity, &self.spread).hash(state);
    }
}

impl Requirements {
    /// What a pod's spec asks.
    pub(crate) fn parse(spec: &PodSpec, texts: &mut Pool<str>) -> Self {
        let affinity = spec.affinity.as_ref();
        let node = affinity.and_then(|affinity| affinity.node_affinity.as_ref());
        let with = affinity.and_then(|affinity| affinity.pod_affinity.as_ref());
        let apart = affinity.and_then(|affinity| affinity.pod_anti_affinity.as_ref());
        let with = with.and_then(|with| with.required_during_scheduling_ignored_during_execution.as_deref());
        let apart = apart.and_then(|apart| apart.required_during_scheduling_ignored_during_execution.as_deref());
        let mut terms = |terms: Option<&[PodAffinityTerm]>| -> Vec<PodTerm> {
            let terms = terms.unwrap_or_default().iter();
            terms.map(|term| PodTerm::parse(term, texts)).collect()
        };
        let (affinity, anti_affinity) = (terms(with), terms(apart));
        let spread = spec.topology_spread_constraints.iter().flatten();
        Self {
            node_selector: spec.node_selector.clone().unwrap_or_default(),
            node_affinity: node
                .and_then(|node| node.required_during_scheduling_ignored_during_execution.clone())
                .map(NodeAffinity),
            affinity,
            anti_affinity,
            spread: spread
                .filter(|constraint| constraint.when_unsatisfiable == "DoNotSchedule")
                .map(|constraint| Spread::parse(constraint, texts))
                .collect(),
            ..Self::of_bound(spec, texts)
        }
    }

    /// What a pod takes of the node that it is bound to, and which taints it tolerates, but not where it may go.
    pub(crate) fn of_bound(spec: &PodSpec, texts: &mut Pool<str>) -> Self {
        Self {
            requests: requests(spec, texts),
            tolerations: spec.tolerations.clone().unwrap_or_default(),
            host_ports: spec
                .containers
                .iter()
                .flat_map(|container| host_ports(container, texts))
                .collect(),
            ..Self::default()
        }
    }

    /// Whether its selectors and affinity accept every node.
    pub(crate) fn select_all(&self) -> bool {
        self.node_selector.is_empty() && self.node_affinity.is_none()
    }

    /// Whether its selectors and affinity accept a node.
    pub(crate) fn select(&self, node: &NodeView) -> bool {
        let mut labels = self.node_selector.iter();
        labels.all(|(key, value)| node.labels.get(key) == Some(value))
            && self
                .node_affinity
                .as_ref()
                .is_none_or(|affinity| affinity.accepts(node))
    }

    /// Whether one of its ports of the host is among those in use.
    pub(crate) fn conflicts_with_ports(&self, used: &[HostPort]) -> bool {
        let is_used = |port: &HostPort| used.iter().any(|used| port.conflicts_with(used));
        self.host_ports.iter().any(is_used)
    }

    /// Whether no taint of a node that forbids scheduling goes untolerated.
    pub(crate) fn tolerate(&self, node: &NodeView) -> bool {
        let mut taints = node.taints.iter().filter(|taint| taint.effect != "PreferNoSchedule");
        taints.all(|taint| taint.tolerated_by(&self.tolerations).is_some())
    }
}

#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct HostPort {
    /// Address; `0.0.0.0` for all.
    pub address: Arc<str>,
    /// `TCP`, `UDP` or `SCTP`.
    pub protocol: Arc<str>,
    /// Number.
    pub port: i32,
}

impl HostPort {
    /// The address that stands for all.
    pub const ANY: &'static str = "0.0.0.0";

    /// Whether two pods cannot listen on these two on one node.
    pub fn conflicts_with(&self, other: &Self) -> bool {
        let addresses_meet =
            self.address == other.address || &*self.address == Self::ANY || &*other.address == Self::ANY;
        self.port == other.port && self.protocol == other.protocol && addresses_meet
    }
}

/// A term of pod affinity or anti-affinity.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct PodTerm {
    /// The pods it speaks of.
    pub selector: Selector,
    /// Where they are looked for.
    pub namespaces: Namespaces,
    /// Label of nodes whose value makes the domain.
    pub topology_key: Arc<str>,
}

/// Namespaces of a [`PodTerm`].
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub enum Namespaces {
    /// The pod's own.
    Own,
    /// These.
    Listed(BTreeSet<Arc<str>>),
    /// All (an empty `namespaceSelector`).
    All,
    /// Those that a `namespaceSelector` chooses by labels, which are not watched. The pessimistic reading counts: as if
    /// it chose all for anti-affinity, and none for affinity.
    Unknown,
}

impl PodTerm {
    fn parse(term: &PodAffinityTerm, texts: &mut Pool<str>) -> Self {
        let listed = term.namespaces.iter().flatten();
        let listed: BTreeSet<Arc<str>> = listed.map(|name| texts.text(name)).collect();
        let is_empty = |selector: &LabelSelector| {
            let labels = selector.match_labels.as_ref().is_none_or(BTreeMap::is_empty);
            labels && selector.match_expressions.as_ref().is_none_or(Vec::is_empty)
        };
        let namespaces = match &term.namespace_selector {
            Some(selector) if is_empty(selector) => Namespaces::All,
            Some(_) => Namespaces::Unknown,
            None if listed.is_empty() => Namespaces::Own,
            None => Namespaces::Listed(listed),
        };
        Self {
            selector: Selector::parse(term.label_selector.as_ref()).unwrap_or(Selector::NOTHING),
            namespaces,
            topology_key: texts.text(&term.topology_key),
        }
    }

    /// Whether a pod in `namespace` with these labels could be one that a pod in `own` repels by this term.
    pub fn may_speak_of(&self, own: &str, namespace: &str, labels: &Labels) -> bool {
        let namespace_matches = match &self.namespaces {
            Namespaces::Own => own == namespace,
            Namespaces::Listed(names) => names.contains(namespace),
            Namespaces::All | Namespaces::Unknown => true,
        };
        namespace_matches && self.selector.matches(labels)
    }

    /// Whether a pod in `namespace` with these labels is certainly one that a pod in `own` seeks by this term.
    pub fn surely_speaks_of(&self, own: &str, namespace: &str, labels: &Labels) -> bool {
        self.namespaces != Namespaces::Unknown && self.may_speak_of(own, namespace, labels)
    }
}

/// A topology spread constraint that must hold.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Spread {
    /// By how many pods a domain may exceed the least filled one.
    pub max_skew: i32,
    /// Label of nodes whose value makes the domain.
    pub topology_key: Arc<str>,
    /// The pods that are counted.
    pub selector: Selector,
    /// Labels in which counted pods must be as the pod itself.
    pub match_label_keys: Box<[Arc<str>]>,
    /// With fewer domains than this the least filled one counts as empty.
    pub min_domains: i32,
    /// Whether only nodes count that the pod's selector and affinity accept (`nodeAffinityPolicy: Honor`).
    pub honors_affinity: bool,
    /// Whether only nodes count whose taints the pod tolerates (`nodeTaintsPolicy: Honor`).
    pub honors_taints: bool,
}

impl Spread {
    fn parse(constraint: &TopologySpreadConstraint, texts: &mut Pool<str>) -> Self {
        let keys = constraint.match_label_keys.iter().flatten();
        Self {
            max_skew: constraint.max_skew,
            topology_key: texts.text(&constraint.topology_key),
            selector: Selector::parse(constraint.label_selector.as_ref()).unwrap_or(Selector::NOTHING),
            match_label_keys: keys.map(|key| texts.text(key)).collect(),
            min_domains: constraint.min_domains.unwrap_or(1),
            honors_affinity: constraint.node_affinity_policy.as_deref() != Some("Ignore"),
            honors_taints: constraint.node_taints_policy.as_deref() == Some("Honor"),
        }
    }

    /// Whether a pod with labels `other` is counted for a pod with labels `own`, both of one namespace.
    pub fn counts(&self, own: &Labels, other: &Labels) -> bool {
        let is_alike = |key: &Arc<str>| own.get(key).is_none_or(|value| other.get(key) == Some(value));
        self.selector.matches(other) && self.match_label_keys.iter().all(is_alike)
    }
}

/// Required node affinity, of a pod or of a volume: one of the terms must hold.
#[derive(Debug, Clone, PartialEq)]
pub struct NodeAffinity(pub NodeSelector);

impl Eq for NodeAffinity {}

impl Hash for NodeAffinity {
    fn hash<H: Hasher>(&self, state: &mut H) {
        for term in &self.0.node_selector_terms {
            for requirement in term.match_expressions.iter().chain(&term.match_fields).flatten() {
                (&requirement.key, &requirement.operator, &requirement.values).hash(state);
            }
        }
    }
}

impl NodeAffinity {
    /// Whether it accepts a node.
    pub fn accepts(&self, node: &NodeView) -> bool {
        self.0.node_selector_terms.iter().any(|term| holds(term, node))
    }
}

/// Whether all of a term holds. An empty one holds for no node.
fn holds(term: &NodeSelectorTerm, node: &NodeView) -> bool {
    let labels = term.match_expressions.as_deref().unwrap_or_default();
    let fields = term.match_fields.as_deref().unwrap_or_default();
    let is_empty = labels.is_empty() && fields.is_empty();
    !is_empty
        && labels.iter().all(|label| accepts(label, node.labels.get(&label.key)))
        // The name is the only field that can be asked for.
        && fields.iter().all(|field| field.key == "metadata.name" && accepts(field, Some(node.name.as_str())))
}

/// Whether a requirement accepts a value; one that cannot be read accepts none.
fn accepts(requirement: &NodeSelectorRequirement, value: Option<&str>) -> bool {
    let values = requirement.values.as_deref().unwrap_or_default();
    let is_listed = value.is_some_and(|value| values.iter().any(|listed| listed == value));
    let numbers = || match values {
        [bound] => Some((value?.parse::<i64>().ok()?, bound.parse::<i64>().ok()?)),
        _ => None,
    };
    match requirement.operator.as_str() {
        "In" => is_listed,
        "NotIn" => !is_listed,
        "Exists" => value.is_some(),
        "DoesNotExist" => value.is_none(),
        "Gt" => numbers().is_some_and(|(number, bound)| number > bound),
        "Lt" => numbers().is_some_and(|(number, bound)| number < bound),
        _ => false,
    }
}

/// What the scheduler reserves for a pod: the greater of what its containers need together and what its init containers
/// need one after another, sidecars beside both; or what the pod as a whole asks for; and the overhead.
fn requests(spec: &PodSpec, texts: &mut Pool<str>) -> Resources {
    let of = |container: &Container, texts: &mut Pool<str>| {
        let requests = container
            .resources
            .as_ref()
            .and_then(|resources| resources.requests.as_ref());
        requests
            .map(|requests| Resources::parse(requests, texts))
            .unwrap_or_default()
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
        let asked = Resources::parse(whole, texts);
        if whole.contains_key("cpu") {
            requests.cpu = asked.cpu;
        }
        if whole.contains_key("memory") {
            requests.memory = asked.memory;
        }
        requests.extended.extend(asked.extended);
    }
    if let Some(overhead) = &spec.overhead {
        requests += &Resources::parse(overhead, texts);
    }
    requests.pods = 1;
    requests
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
