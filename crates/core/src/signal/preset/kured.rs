//! kured's lock: an annotation of its DaemonSet, for one node or for several at once (`--concurrency`).
//!
//! Written as `pkg/daemonsetlock` of kured does: times in RFC 3339, `TTL` in nanoseconds, 0 for none.

use std::fmt;

use jiff::{SignedDuration, Timestamp};
use serde::Deserialize;
use serde_json::Value;

use super::super::answer::{Answer, SignalNote};
use super::super::inputs::{SignalInputs, WatchedResource};
use crate::deadline::saturating_add;
use crate::node::NodeView;

/// Where kured keeps its lock.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct KuredLock {
    pub(super) namespace: String,
    pub(super) name: String,
    pub(super) annotation: String,
}

impl Default for KuredLock {
    fn default() -> Self {
        Self {
            namespace: "kube-system".to_owned(),
            name: "kured".to_owned(),
            annotation: "weave.works/kured-node-lock".to_owned(),
        }
    }
}

/// The lock of one node.
#[derive(Deserialize)]
struct Held {
    #[serde(rename = "nodeID")]
    node: String,
    created: Timestamp,
    #[serde(default, rename = "TTL")]
    nanoseconds: i64,
}

#[derive(Deserialize)]
struct SeveralHeld {
    /// Go writes an empty list as null.
    locks: Option<Vec<Held>>,
}

impl Held {
    fn is_live(&self, now: Timestamp) -> bool {
        let lasts = SignedDuration::from_nanos(self.nanoseconds);
        !lasts.is_positive() || now < saturating_add(self.created, lasts)
    }
}

impl KuredLock {
    pub(super) fn kind(&self) -> WatchedResource {
        WatchedResource {
            namespace: Some(self.namespace.clone()),
            ..WatchedResource::all("apps/v1", "DaemonSet").named(&self.name)
        }
    }

    /// Whether kured holds a live lock for the node, since it took it: a node that was cordoned before counts from then.
    pub(super) fn is_held_for(&self, inputs: &SignalInputs, node: &NodeView) -> Answer {
        let daemon_sets = match inputs.objects(&self.kind()) {
            Ok(daemon_sets) => daemon_sets,
            Err(answer) => return answer,
        };
        let Some(daemon_set) = daemon_sets.first() else {
            return Answer::no().with_note(SignalNote::info(
                format!("no-kured/{}/{}", self.namespace, self.name),
                format!(
                    "There is no DaemonSet {}/{}: kured is not installed there.",
                    self.namespace, self.name
                ),
            ));
        };
        let text = daemon_set
            .pointer("/metadata/annotations")
            .and_then(|all| all.get(&self.annotation));
        let Some(text) = text.and_then(Value::as_str) else {
            return Answer::no();
        };
        match locks(text) {
            Ok(locks) => locks
                .iter()
                .find(|lock| lock.node == node.name.as_str() && lock.is_live(inputs.now()))
                .map_or_else(Answer::no, |lock| Answer::yes(Some(lock.created))),
            Err(error) => Answer::unknown(SignalNote::warning(
                format!("malformed/{self}"),
                format!("kured's lock cannot be read ({self}): {error}."),
            )),
        }
    }
}

fn locks(text: &str) -> Result<Vec<Held>, serde_json::Error> {
    let value: Value = serde_json::from_str(text)?;
    if value.get("locks").is_some() {
        return Ok(SeveralHeld::deserialize(value)?.locks.unwrap_or_default());
    }
    Ok(vec![Held::deserialize(value)?])
}

impl fmt::Display for KuredLock {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "annotation {} of DaemonSet {}/{}",
            self.annotation, self.namespace, self.name
        )
    }
}
