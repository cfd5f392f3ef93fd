//! What a pod asks of the node that it is placed on, as the scheduler reads it.

use std::collections::BTreeSet;
use std::sync::Arc;

use nodeward_core::node::Taint;
use nodeward_core::selector::Selector;

use super::resources::Resources;
use nodeward_core::labels::Labels;

/// What a pod asks of its node. Equal ones are kept once: all pods of a ReplicaSet share theirs.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Default)]
pub struct Scheduling {
    /// What it requests.
    pub requests: Resources,
    /// Labels that the node must have.
    pub node_selector: Labels,
    /// Required node affinity.
    pub node_affinity: Option<NodeSelector>,
    /// Tolerations.
    pub tolerations: Box<[Toleration]>,
    /// Ports of the host that it listens on.
    pub host_ports: Box<[HostPort]>,
    /// Required pod affinity.
    pub affinity: Box<[PodTerm]>,
    /// Required pod anti-affinity.
    pub anti_affinity: Box<[PodTerm]>,
    /// Topology spread constraints that must hold (`DoNotSchedule`).
    pub spread: Box<[Spread]>,
}

impl Scheduling {
    /// Whether one of its tolerations matches the taint.
    pub fn tolerates(&self, taint: &Taint) -> bool {
        self.tolerations.iter().any(|toleration| toleration.matches(taint))
    }

    /// The first of its tolerations that matches the taint, which is the one whose seconds count.
    pub fn toleration_of(&self, key: &str, effect: &str) -> Option<&Toleration> {
        let taint = Taint {
            key: key.to_owned(),
            value: String::new(),
            effect: effect.to_owned(),
            time_added: None,
        };
        self.tolerations.iter().find(|toleration| toleration.matches(&taint))
    }
}

/// A toleration. An empty key or effect matches all.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Toleration {
    /// Key; empty for all.
    pub key: Arc<str>,
    /// What the taint's value must be.
    pub value: TolerationValue,
    /// Effect; empty for all.
    pub effect: Arc<str>,
    /// `tolerationSeconds`; `None`: for ever.
    pub seconds: Option<i64>,
}

/// What a toleration asks of a taint's value.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub enum TolerationValue {
    /// Nothing (`Exists`).
    Any,
    /// This value (`Equal`).
    Equal(Arc<str>),
    /// An operator that we do not know: it matches no taint.
    Unknown,
}

impl Toleration {
    /// Whether it matches the taint, as the scheduler matches them.
    pub fn matches(&self, taint: &Taint) -> bool {
        let value_matches = match &self.value {
            TolerationValue::Any => true,
            TolerationValue::Equal(value) => **value == *taint.value,
            TolerationValue::Unknown => false,
        };
        (self.effect.is_empty() || *self.effect == *taint.effect)
            && (self.key.is_empty() || *self.key == *taint.key)
            && value_matches
    }
}

/// A port of the host.
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
    /// Whether a pod with labels `other` is counted for a pod with labels `own`, both of one namespace.
    pub fn counts(&self, own: &Labels, other: &Labels) -> bool {
        let is_alike = |key: &Arc<str>| own.get(key).is_none_or(|value| other.get(key) == Some(value));
        self.selector.matches(other) && self.match_label_keys.iter().all(is_alike)
    }
}

/// Required node affinity, of a pod or of a volume: one of the terms must hold.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Default)]
pub struct NodeSelector(pub Box<[NodeTerm]>);

/// A term: all of it must hold. An empty one holds for no node.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Default)]
pub struct NodeTerm {
    /// About labels.
    pub labels: Box<[NodeRequirement]>,
    /// About the node's name, the only field that can be asked for.
    pub names: Box<[NodeRequirement]>,
}

/// One requirement of a node's label, or of its name.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct NodeRequirement {
    /// Label; of no meaning for a name.
    pub key: Arc<str>,
    /// What is asked of its value.
    pub operator: NodeOperator,
}

/// What is asked of a value.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub enum NodeOperator {
    /// It is one of these.
    In(Box<[Arc<str>]>),
    /// It is none of these, or absent.
    NotIn(Box<[Arc<str>]>),
    /// It is there.
    Exists,
    /// It is absent.
    DoesNotExist,
    /// It is a greater number.
    Gt(i64),
    /// It is a smaller number.
    Lt(i64),
    /// An operator or a value that cannot be read: it holds for no node.
    Unreadable,
}

impl NodeSelector {
    /// Whether it accepts a node.
    pub fn accepts(&self, name: &str, labels: &Labels) -> bool {
        self.0.iter().any(|term| term.accepts(name, labels))
    }
}

impl NodeTerm {
    fn accepts(&self, name: &str, labels: &Labels) -> bool {
        let is_empty = self.labels.is_empty() && self.names.is_empty();
        !is_empty
            && self.labels.iter().all(|r| r.operator.accepts(labels.get(&r.key)))
            && self.names.iter().all(|r| r.operator.accepts(Some(name)))
    }
}

impl NodeOperator {
    fn accepts(&self, value: Option<&str>) -> bool {
        let is_one_of = |values: &[Arc<str>]| value.is_some_and(|value| values.iter().any(|listed| **listed == *value));
        let number = || value.and_then(|value| value.parse::<i64>().ok());
        match self {
            Self::In(values) => is_one_of(values),
            Self::NotIn(values) => !is_one_of(values),
            Self::Exists => value.is_some(),
            Self::DoesNotExist => value.is_none(),
            Self::Gt(bound) => number().is_some_and(|number| number > *bound),
            Self::Lt(bound) => number().is_some_and(|number| number < *bound),
            Self::Unreadable => false,
        }
    }
}
