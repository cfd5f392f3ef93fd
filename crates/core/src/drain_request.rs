//! Requests for a drain: what is written to a NodeDrain when somebody asks for it, and when they take that back.
//!
//! The functions are pure: they answer with a new NodeDrain, or with a merge patch that applies only to what was read. The
//! eviction webhook, FleetLock and the plugin carry them out, and read again when somebody else was faster.

use jiff::{SignedDuration, Timestamp};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use nodeward_api::annotation;
use nodeward_api::node_drain::{
    Consent, Deadlines, Evictor, Fallback, NodeDrain, NodeDrainSpec, REQUESTER_AT_MOST, REQUESTERS_AT_MOST, Requester,
};
use serde_json::{Map, Value, json};

use crate::consent::Consents;
use crate::deadline::to_the_second;
use crate::id::{NodeName, NodeUid};
use crate::text::cut;

/// Precision of what evictions write: a drain of hundreds of pods writes it once a minute.
const SIGN_PRECISION: SignedDuration = SignedDuration::from_mins(1);

/// The same where a drainer's silence of `quiet_period` ends its drain: by then it has had several signs noted.
pub fn sign_precision(quiet_period: SignedDuration) -> SignedDuration {
    (quiet_period / 4).min(SIGN_PRECISION)
}

/// With so many requesters an eviction adds no other: the rest is for those who ask by name.
const EVICTING_AT_MOST: usize = REQUESTERS_AT_MOST / 2;

/// Prefix of a requester that is known by its evictions alone; the user follows.
const EVICTION_PREFIX: &str = "eviction:";

/// Prefix of a machine that asked over FleetLock; its group and id follow.
const FLEET_LOCK_PREFIX: &str = "fleetlock:";

/// The requester for a user that is known by its evictions alone.
pub fn evicting_requester(user: &str) -> String {
    cut(format!("{EVICTION_PREFIX}{user}"), REQUESTER_AT_MOST)
}

/// The requester for a machine that asked over FleetLock.
pub fn machine_requester(group: &str, id: &str) -> String {
    format!("{FLEET_LOCK_PREFIX}{group}:{id}")
}

/// Whether this requester releases its request itself: a machine that is back, a person, a program that knows NodeDrains.
/// One that is known by its evictions alone does not; only its silence tells that it is done.
pub fn releases_by_itself(requester: &str) -> bool {
    !requester.starts_with(EVICTION_PREFIX)
}

/// What an eviction tells of its drainer.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum EvictionSign {
    /// That it lives: recorded in `nodeward.dev/last-eviction`.
    Seen,
    /// Also that a pod was refused again, while none of the node's went: recorded in `nodeward.dev/refused-again`.
    RefusedAgain,
}

/// A drain that somebody asks for.
#[derive(Debug, Clone, PartialEq, Eq)]
#[expect(
    clippy::struct_excessive_bools,
    reason = "all but the last are fields of a NodeDrain"
)]
pub struct DrainRequest {
    pub node: NodeName,
    /// Its UID, where the caller could read it.
    pub node_uid: Option<NodeUid>,
    /// Who asks.
    pub requester: String,
    /// What for.
    pub purpose: Option<String>,
    pub evict: Evictor,
    /// What the requester consents to. It is added to what others have consented to, and never taken back.
    pub consents: Consents,
    /// What happens when a deadline passes; `None`: the default.
    pub fallback: Option<Fallback>,
    /// The deadlines that differ from the configuration's.
    pub deadlines: Deadlines,
    /// Whether the drain is to begin outside maintenance windows, too. As consent it is added, and never taken back.
    pub ignore_windows: bool,
    /// Whether owners of pods that their budgets never let go are asked to move them. It is added, and never taken back.
    pub ask_owners: bool,
    /// Plan only.
    pub dry_run: bool,
    /// What an eviction tells of its drainer; `None` where the request is no eviction.
    pub eviction: Option<EvictionSign>,
    /// A sign that is younger than this is not written again.
    pub sign_precision: SignedDuration,
    /// Whether an existing drain is changed to these settings, and a preview becomes a drain. Otherwise the settings only
    /// serve to create one.
    pub changes_settings: bool,
}

impl DrainRequest {
    /// A drain by drain-lock, as its configuration has it.
    pub fn new(node: NodeName, node_uid: Option<NodeUid>, requester: String) -> Self {
        Self {
            node,
            node_uid,
            requester,
            purpose: None,
            evict: Evictor::Nodeward,
            consents: Consents::default(),
            fallback: None,
            deadlines: Deadlines::default(),
            ignore_windows: false,
            ask_owners: false,
            dry_run: false,
            eviction: None,
            sign_precision: SIGN_PRECISION,
            changes_settings: false,
        }
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, strum::IntoStaticStr)]
#[strum(serialize_all = "kebab-case")]
pub enum JoinOutcome {
    /// There was no drain, and now there is.
    Created,
    /// There was one, for others.
    Added,
    /// The requester had asked before; its sign of life or its settings were written anew.
    Noted,
    /// The requester had asked before.
    Known,
    /// The drain of that name has to go first.
    #[strum(serialize = "in-the-way")]
    Conflicting(Conflict),
    /// The drain of that name is a preview, and drains nothing.
    Preview,
}

/// Why a drain cannot be joined.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Conflict {
    /// It is being deleted.
    Ending,
    /// It is for another node, which had the name before.
    OtherNode,
}

impl JoinOutcome {
    /// Its label in metrics.
    pub fn as_label(self) -> &'static str {
        self.into()
    }

    /// Whether the drain proceeds for this requester too.
    pub fn has_joined(self) -> bool {
        match self {
            Self::Created | Self::Added | Self::Noted | Self::Known => true,
            Self::Conflicting(_) | Self::Preview => false,
        }
    }
}

/// The write that a request takes, if any, given the drain that exists.
#[derive(Debug, Clone, PartialEq)]
pub enum JoinStep {
    Create(Box<NodeDrain>),
    /// Apply this merge patch.
    Patch(JoinOutcome, Value),
    /// Nothing has to be written.
    Done(JoinOutcome),
}

/// Asks for a drain: creates it, or joins the one that exists. Asking again changes nothing.
pub fn join(present: Option<&NodeDrain>, request: &DrainRequest, now: Timestamp) -> JoinStep {
    let Some(present) = present else {
        return JoinStep::Create(Box::new(new_drain(request, now)));
    };
    if let (Some(theirs), Some(ours)) = (&present.spec.node_uid, &request.node_uid)
        && theirs != ours.as_str()
    {
        return JoinStep::Done(JoinOutcome::Conflicting(Conflict::OtherNode));
    }
    let is_ours = present.spec.evict == Evictor::Nodeward && !present.spec.dry_run;
    let signs = [
        (annotation::LAST_EVICTION, request.eviction.is_some()),
        (
            annotation::REFUSED_AGAIN,
            request.eviction == Some(EvictionSign::RefusedAgain),
        ),
    ];
    let is_due =
        |(sign, is_meant): &(&str, bool)| *is_meant && !has_fresh_sign(present, sign, request.sign_precision, now);
    let signs = signs.into_iter().filter(is_due);
    let signs: Map<String, Value> = signs
        .map(|(sign, _)| (sign.to_owned(), json!(to_the_second(now))))
        .collect();
    let signed = || {
        let mut patch = conditional_patch(present);
        if !signs.is_empty() {
            patch["metadata"]["annotations"] = Value::Object(signs.clone());
        }
        patch
    };
    if present.metadata.deletion_timestamp.is_some() {
        let ending = JoinOutcome::Conflicting(Conflict::Ending);
        // The cordon of a drain of ours stays while others evict, and a NodeDrain whose node is drained again goes.
        return if signs.is_empty() {
            JoinStep::Done(ending)
        } else {
            JoinStep::Patch(ending, signed())
        };
    }
    let mut spec = match request.eviction {
        _ if request.changes_settings => changed_settings(&present.spec, request),
        // Somebody drains the node in earnest, whoever had it planned.
        Some(_) if present.spec.dry_run => Map::from_iter([
            ("dryRun".to_owned(), json!(false)),
            ("evict".to_owned(), json!(request.evict)),
        ]),
        None if present.spec.dry_run => return JoinStep::Done(JoinOutcome::Preview),
        _ => Map::new(),
    };
    spec.extend(added_consents(&present.spec, request.consents));
    let is_known = has_requester(present, &request.requester);
    // An eviction from a node that drain-lock empties is noted: whoever evicts never says that he is done, and the drain
    // would wait for him for ever.
    // Nor do evictions by many users take the last places of those who ask by name.
    let is_crowded = present.spec.requesters.len() >= EVICTING_AT_MOST;
    let is_bystander = request.eviction.is_some() && (is_ours || is_crowded);
    if !is_known && !is_bystander {
        let mut requesters = present.spec.requesters.clone();
        requesters.push(requester(request, now));
        spec.insert("requesters".to_owned(), json!(requesters));
    }
    if spec.is_empty() && signs.is_empty() {
        return JoinStep::Done(JoinOutcome::Known);
    }
    let mut patch = signed();
    if !spec.is_empty() {
        patch["spec"] = Value::Object(spec);
    }
    let outcome = if is_known || is_bystander {
        JoinOutcome::Noted
    } else {
        JoinOutcome::Added
    };
    JoinStep::Patch(outcome, patch)
}

/// The drain as it is created for a request.
pub fn new_drain(request: &DrainRequest, now: Timestamp) -> NodeDrain {
    let annotations = request
        .eviction
        .map(|_| [(annotation::LAST_EVICTION.to_owned(), to_the_second(now))].into());
    NodeDrain {
        metadata: ObjectMeta {
            name: Some(request.node.to_string()),
            annotations,
            ..ObjectMeta::default()
        },
        spec: NodeDrainSpec {
            node_name: request.node.to_string(),
            node_uid: request.node_uid.as_ref().map(ToString::to_string),
            requesters: vec![requester(request, now)],
            purpose: request.purpose.clone(),
            evict: request.evict,
            unmanaged_pods: request.consents.unmanaged_pods,
            empty_dir_data: request.consents.empty_dir_data,
            deadlines: request.deadlines.clone(),
            fallback: request.fallback.unwrap_or_default(),
            ignore_windows: request.ignore_windows,
            ask_owners: request.ask_owners,
            dry_run: request.dry_run,
        },
        status: None,
    }
}

/// Releases a request: the patch that takes the requester off the list, which may be empty then. `None`: it never asked.
pub fn leave(present: &NodeDrain, requester: &str) -> Option<Value> {
    if !has_requester(present, requester) {
        return None;
    }
    let mut patch = conditional_patch(present);
    patch["spec"] = json!({ "requesters": other_requesters(present, requester).collect::<Vec<_>>() });
    Some(patch)
}

/// Whether the drain has this requester.
pub fn has_requester(drain: &NodeDrain, requester: &str) -> bool {
    drain.spec.requesters.iter().any(|known| known.name == requester)
}

/// The requesters of the drain besides this one.
pub fn other_requesters<'a>(drain: &'a NodeDrain, requester: &'a str) -> impl Iterator<Item = &'a Requester> {
    drain
        .spec
        .requesters
        .iter()
        .filter(move |known| known.name != requester)
}

/// Whether the drain as a watch shows it is what the request asks for already.
pub fn is_fulfilled_by(request: &DrainRequest, drain: &NodeDrain) -> bool {
    let is_alive = drain.metadata.deletion_timestamp.is_none() && !drain.spec.dry_run;
    is_alive
        && drain.spec.node_uid.as_deref() == request.node_uid.as_ref().map(NodeUid::as_str)
        && has_requester(drain, &request.requester)
        && added_consents(&drain.spec, request.consents).next().is_none()
}

fn requester(request: &DrainRequest, now: Timestamp) -> Requester {
    Requester {
        name: request.requester.clone(),
        since: to_the_second(now).parse().ok(),
    }
}

/// The consents that the drain does not have yet. Each requester's counts: nothing is evicted that none of them consented to.
fn added_consents(spec: &NodeDrainSpec, given: Consents) -> impl Iterator<Item = (String, Value)> {
    let fields = [
        ("unmanagedPods", spec.unmanaged_pods, given.unmanaged_pods),
        ("emptyDirData", spec.empty_dir_data, given.empty_dir_data),
    ];
    let added = fields
        .into_iter()
        .filter(|(_, present, given)| (*present, *given) == (Consent::Keep, Consent::Evict));
    added.map(|(field, _, given)| (field.to_owned(), json!(given)))
}

/// The fields of the spec that the request sets to another value. Fields that it leaves open stay as they are.
fn changed_settings(spec: &NodeDrainSpec, request: &DrainRequest) -> Map<String, Value> {
    let mut changed = Map::new();
    let mut set = |field: &str, value: Value| changed.insert(field.to_owned(), value);
    if request.purpose.is_some() && request.purpose != spec.purpose {
        set("purpose", json!(request.purpose));
    }
    if request.fallback.is_some_and(|fallback| fallback != spec.fallback) {
        set("fallback", json!(request.fallback));
    }
    if request.evict != spec.evict {
        set("evict", json!(request.evict));
    }
    if request.ignore_windows && !spec.ignore_windows {
        set("ignoreWindows", json!(true));
    }
    if request.ask_owners && !spec.ask_owners {
        set("askOwners", json!(true));
    }
    if spec.dry_run {
        set("dryRun", json!(false));
    }
    let (asked, present) = (&request.deadlines, &spec.deadlines);
    let is_changed = |asked: &Option<String>, present: &Option<String>| asked.is_some() && asked != present;
    if is_changed(&asked.queue, &present.queue)
        || is_changed(&asked.drain, &present.drain)
        || is_changed(&asked.recover, &present.recover)
    {
        set("deadlines", json!(asked));
    }
    changed
}

/// A merge patch that only applies to what was read.
fn conditional_patch(present: &NodeDrain) -> Value {
    let meta = &present.metadata;
    json!({ "metadata": { "uid": meta.uid, "resourceVersion": meta.resource_version } })
}

fn has_fresh_sign(present: &NodeDrain, sign: &str, precision: SignedDuration, now: Timestamp) -> bool {
    let sign = present
        .metadata
        .annotations
        .as_ref()
        .and_then(|annotations| annotations.get(sign))
        .and_then(|text| text.parse::<Timestamp>().ok());
    // One of before the drain's end does not tell that its node is drained again.
    let ended = present.metadata.deletion_timestamp.as_ref().map(|ended| ended.0);
    // A sign from the future comes from a wrong clock, and is corrected.
    sign.is_some_and(|sign| ended < Some(sign) && sign <= now && now.duration_since(sign) < precision)
}

#[cfg(test)]
mod tests;
