//! What signals read besides the node itself.

use std::collections::HashMap;
use std::fmt;
use std::sync::{Arc, OnceLock};

use jiff::Timestamp;
use kube_core::Resource;
use parking_lot::Mutex;
use serde_json::Value;

use super::answer::{Answer, SignalNote};
use super::evaluations::Evaluations;
use super::machine_config::{Pool, Pools};
use super::preset::AllRules;
use crate::id::NodeName;

/// A kind that may be absent, or some objects of it: what is watched.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct WatchedResource {
    /// Group and version, or `v1`.
    pub api_version: String,
    pub kind: String,
    /// In this namespace only; `None`: in all, or cluster-scoped.
    pub namespace: Option<String>,
    /// Only the object of this name.
    pub name: Option<String>,
    /// Only objects that this label selector matches, as the API takes it in a query.
    pub selector: Option<String>,
}

impl WatchedResource {
    /// All objects of a kind.
    pub fn all(api_version: &str, kind: &str) -> Self {
        Self {
            api_version: api_version.into(),
            kind: kind.into(),
            namespace: None,
            name: None,
            selector: None,
        }
    }

    /// All objects of a kind that is known as a type.
    pub fn of<K: Resource<DynamicType = ()>>() -> Self {
        Self::all(&K::api_version(&()), &K::kind(&()))
    }

    /// Only the object of this name.
    #[must_use]
    pub fn named(mut self, name: &str) -> Self {
        self.name = Some(name.to_owned());
        self
    }

    /// Its API group; empty for the core group.
    pub fn group(&self) -> &str {
        self.api_version.split_once('/').map_or("", |(group, _)| group)
    }

    pub fn version(&self) -> &str {
        self.api_version
            .split_once('/')
            .map_or(self.api_version.as_str(), |(_, version)| version)
    }

    /// The usual plural of the kind, for messages; a CRD may choose another.
    pub fn likely_plural(&self) -> String {
        let lower = self.kind.to_lowercase();
        let vowel_before_y = lower.len() > 1 && lower[..lower.len() - 1].ends_with(['a', 'e', 'i', 'o', 'u']);
        if lower.ends_with('y') && !vowel_before_y {
            format!("{}ies", &lower[..lower.len() - 1])
        } else if ["s", "x", "z", "ch", "sh"].iter().any(|end| lower.ends_with(end)) {
            format!("{lower}es")
        } else {
            format!("{lower}s")
        }
    }
}

/// `apiVersion/Kind`, and what narrows it.
impl fmt::Display for WatchedResource {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.api_version, self.kind)?;
        match (&self.namespace, &self.name) {
            (Some(namespace), Some(name)) => write!(f, " {namespace}/{name}")?,
            (Some(namespace), None) => write!(f, " in {namespace}")?,
            (None, Some(name)) => write!(f, " {name}")?,
            (None, None) => {}
        }
        self.selector
            .as_ref()
            .map_or(Ok(()), |selector| write!(f, " ({selector})"))
    }
}

/// How far a watch on a kind can be trusted, and with it what was read.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum KindState<T = ()> {
    /// The API server does not serve the kind.
    Absent,
    /// Its first list is not complete: what is absent may exist.
    Syncing,
    /// The API server answers 403, with this message. What was read before, if anything, is kept.
    Forbidden(Arc<str>),
    /// Complete once, and not heard of for minutes: what was read may have changed since.
    Stale,
    /// Complete, and as recent as the watch.
    Synced(T),
}

impl<T> KindState<T> {
    /// The same, with what was read.
    pub fn map<U>(self, read: impl FnOnce(T) -> U) -> KindState<U> {
        match self {
            Self::Absent => KindState::Absent,
            Self::Syncing => KindState::Syncing,
            Self::Forbidden(message) => KindState::Forbidden(message),
            Self::Stale => KindState::Stale,
            Self::Synced(known) => KindState::Synced(read(known)),
        }
    }
}

pub type KindObjects = KindState<Vec<Arc<Value>>>;

/// The state of every kind that a signal reads, at one moment.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct SignalInputs {
    kinds: HashMap<WatchedResource, KindObjects>,
    now: Timestamp,
    memo: Memo,
}

/// What follows from the objects for all nodes alike, worked out when the first node asks: hundreds of nodes are judged by the
/// same thousands of objects many times a second.
#[derive(Debug, Default)]
struct Memo {
    by_node: Mutex<HashMap<WatchedResource, ObjectsByNode>>,
    evaluations: Arc<Evaluations>,
    pools: OnceLock<Pools>,
    drain_rules: OnceLock<AllRules>,
}

/// Objects by the node that one of their fields names.
type ObjectsByNode = HashMap<String, Vec<Arc<Value>>>;

/// It is worked out again.
impl Clone for Memo {
    fn clone(&self) -> Self {
        Self::default()
    }
}

/// It adds nothing to what it follows from.
impl PartialEq for Memo {
    fn eq(&self, _: &Self) -> bool {
        true
    }
}

impl SignalInputs {
    /// Nothing read yet, at this moment.
    pub fn at(now: Timestamp) -> Self {
        Self { now, ..Self::default() }
    }

    /// With what expressions came to a moment before.
    #[must_use]
    pub fn after(mut self, before: &Evaluations) -> Self {
        self.memo.evaluations = Arc::new(before.carried_on());
        self
    }

    /// What expressions come to.
    pub fn evaluations(&self) -> &Arc<Evaluations> {
        &self.memo.evaluations
    }

    /// What follows from the objects is worked out again.
    fn forget(&mut self) {
        let evaluations = std::mem::take(&mut self.memo.evaluations);
        evaluations.outdate();
        self.memo = Memo {
            evaluations,
            ..Memo::default()
        };
    }

    /// The moment.
    pub(super) fn now(&self) -> Timestamp {
        self.now
    }

    /// Sets the state of a kind.
    pub fn insert(&mut self, kind: WatchedResource, state: KindObjects) {
        self.kinds.insert(kind, state);
        self.forget();
    }

    /// The state of a kind; one that nobody has set is syncing.
    pub fn get(&self, kind: &WatchedResource) -> &KindObjects {
        self.kinds.get(kind).unwrap_or(&KindState::Syncing)
    }

    /// Forgets a kind.
    pub fn remove(&mut self, kind: &WatchedResource) {
        self.kinds.remove(kind);
        self.forget();
    }

    /// The objects of a kind whose field at `pointer`, which is the same for all who ask for the kind, names the node.
    pub(super) fn objects_of(
        &self,
        kind: &WatchedResource,
        pointer: &str,
        node: &NodeName,
    ) -> Result<Vec<Arc<Value>>, Answer> {
        let objects = self.objects(kind)?;
        let mut by_node = self.memo.by_node.lock();
        let by_node = by_node.entry(kind.clone()).or_insert_with(|| {
            let mut by_node = ObjectsByNode::new();
            for object in objects {
                if let Some(node) = object.pointer(pointer).and_then(Value::as_str) {
                    by_node.entry(node.to_owned()).or_default().push(Arc::clone(object));
                }
            }
            by_node
        });
        Ok(by_node.get(node.as_str()).cloned().unwrap_or_default())
    }

    /// The MachineConfigPools, which are `objects` here.
    pub(super) fn pools(&self, objects: &[Arc<Value>]) -> &Pools {
        self.memo.pools.get_or_init(|| Pool::read_all(objects))
    }

    /// Cluster API's MachineDrainRules, which `read` reads.
    pub(super) fn drain_rules(&self, read: impl FnOnce() -> AllRules) -> &AllRules {
        self.memo.drain_rules.get_or_init(read)
    }

    /// The objects of a kind, or the answer of whoever needs them.
    pub(super) fn objects(&self, kind: &WatchedResource) -> Result<&[Arc<Value>], Answer> {
        match self.get(kind) {
            KindState::Synced(objects) => Ok(objects),
            KindState::Absent => Err(Answer::no().with_note(SignalNote::info(
                format!("absent/{kind}"),
                format!(
                    "The API server does not serve {} {}: this signal counts as absent until it does.",
                    kind.api_version, kind.kind
                ),
            ))),
            KindState::Syncing => Err(Answer::unknown(SignalNote::info(
                format!("syncing/{kind}"),
                format!("{} {} is still being listed.", kind.api_version, kind.kind),
            ))),
            // A watch that has failed for long says yes for ever.
            KindState::Stale => Err(Answer::unknown(SignalNote::warning(
                format!("stale/{kind}"),
                format!(
                    "{} {} has not been heard of for minutes: what was read of it does not count until it can be watched again.",
                    kind.api_version, kind.kind
                ),
            ))),
            KindState::Forbidden(message) => Err(Answer::unknown(SignalNote::warning(
                format!("forbidden/{kind}"),
                format!(
                    "{} {} may not be read. Add this rule to the component's role (in the chart: extraReadRules): \
                     apiGroups: [\"{}\"], resources: [\"{}\"], verbs: [\"get\", \"list\", \"watch\"]. The API server said: {}",
                    kind.api_version,
                    kind.kind,
                    kind.group(),
                    resource_named_in(message).map_or_else(|| kind.likely_plural(), str::to_owned),
                    message.trim(),
                ),
            ))),
        }
    }
}

/// A 403 names the resource as the API server's role check saw it: `… cannot list resource "plans" in API group …`.
fn resource_named_in(message: &str) -> Option<&str> {
    let (_, rest) = message.split_once("resource \"")?;
    let (resource, _) = rest.split_once('"')?;
    (!resource.is_empty()).then_some(resource)
}

pub(super) fn full_name(object: &Value) -> String {
    let field = |pointer| object.pointer(pointer).and_then(Value::as_str);
    let name = field("/metadata/name").unwrap_or("without a name");
    field("/metadata/namespace").map_or_else(|| name.to_owned(), |namespace| format!("{namespace}/{name}"))
}
