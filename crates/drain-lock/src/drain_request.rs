//! Requesters of drains: asking for one, and taking that back. What the eviction webhook and FleetLock write.
//!
//! Every write is conditioned on what was read just before, so two replicas that ask for the same drain at once make one.

use jiff::{SignedDuration, Timestamp};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use kube::api::{Patch, PatchParams, PostParams};
use kube::{Api, Client};
use nodeward_api::annotation;
use nodeward_api::node_drain::{Evictor, Fallback, NodeDrain, NodeDrainSpec, REQUESTER_AT_MOST, Requester};
use nodeward_core::deadline::to_the_second;
use nodeward_core::id::{NodeName, NodeUid};
use nodeward_core::text::cut;
use nodeward_runtime::ApiError;
use serde_json::{Value, json};

/// How often a write is tried again because somebody else was faster.
const ATTEMPTS: u32 = 5;

/// How exact `nodeward.dev/last-eviction` is kept: a drain of hundreds of pods writes it once a minute.
const LAST_EVICTION_TO: SignedDuration = SignedDuration::from_mins(1);

/// What the name of a requester begins with who is known by evictions alone; the user follows.
const EVICTS: &str = "eviction:";

/// What the name of a machine that asked over FleetLock begins with; its group and id follow.
const FLEET_LOCK: &str = "fleetlock:";

/// The name, as a requester, of a user who is known by evictions alone.
pub fn evicting(user: &str) -> String {
    cut(format!("{EVICTS}{user}"), REQUESTER_AT_MOST)
}

/// The name, as a requester, of a machine that asked over FleetLock.
pub fn machine(group: &str, id: &str) -> String {
    format!("{FLEET_LOCK}{group}:{id}")
}

/// Whether this requester takes its wish back itself: a machine that is back, a person, any program that knows of
/// NodeDrains. One that is known by evictions alone does not, and only its silence tells that it is done.
pub fn releases_by_itself(requester: &str) -> bool {
    !requester.starts_with(EVICTS)
}

/// A drain that somebody wants.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Wish {
    /// The node.
    pub node: NodeName,
    /// That very node.
    pub node_uid: NodeUid,
    /// Who wants it.
    pub requester: String,
    /// What for, if the drain has yet to be made.
    pub purpose: String,
    /// Who evicts, if the drain has yet to be made.
    pub evict: Evictor,
    /// What becomes of it when a time of its is over, if it has yet to be made.
    pub fallback: Fallback,
    /// Whether this is the sign of life of a drainer that evicts by itself.
    pub evicts_now: bool,
}

/// What became of a wish.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Joined {
    /// There was no drain, and now there is.
    Created,
    /// There was one, for others.
    Added,
    /// It was asked for already; its sign of life was written anew.
    Noted,
    /// It was asked for already.
    Known,
    /// The drain of that name is ending, or is another node's: it has to go first.
    InTheWay,
    /// The drain of that name is a preview, and drains nothing.
    Preview,
}

impl Joined {
    /// Its label in metrics.
    pub fn as_label(self) -> &'static str {
        match self {
            Self::Created => "created",
            Self::Added => "added",
            Self::Noted => "noted",
            Self::Known => "known",
            Self::InTheWay => "in-the-way",
            Self::Preview => "preview",
        }
    }

    /// Whether the drain is under way for this requester too.
    pub fn is_in(self) -> bool {
        match self {
            Self::Created | Self::Added | Self::Noted | Self::Known => true,
            Self::InTheWay | Self::Preview => false,
        }
    }
}

/// What is to be written for a wish, given the drain that there is.
#[derive(Debug, Clone, PartialEq)]
enum Step {
    Nothing(Joined),
    Write(Joined, Value),
}

/// Asks for a drain: makes it, or joins the one that there is. Asking again changes nothing.
///
/// # Errors
/// The API server's refusal. `Conflict` after several attempts: ask again.
pub async fn join(client: &Client, wish: &Wish, now: Timestamp) -> Result<Joined, ApiError> {
    let drains: Api<NodeDrain> = Api::all(client.clone());
    for _ in 0..ATTEMPTS {
        let Some(present) = drains.get_opt(wish.node.as_str()).await? else {
            match drains.create(&PostParams::default(), &new_drain(wish, now)).await {
                Ok(_) => return Ok(Joined::Created),
                Err(error) => match ApiError::from(&error) {
                    ApiError::Conflict => continue,
                    refusal => return Err(refusal),
                },
            }
        };
        match step(&present, wish, now) {
            Step::Nothing(joined) => return Ok(joined),
            Step::Write(joined, patch) => match write(&drains, wish.node.as_str(), &patch).await {
                Ok(()) => return Ok(joined),
                Err(ApiError::Conflict | ApiError::NotFound) => {}
                Err(refusal) => return Err(refusal),
            },
        }
    }
    Err(ApiError::Conflict)
}

/// Takes a wish back; answers whether there was one. What is gone is taken back already.
///
/// # Errors
/// The API server's refusal. `Conflict` after several attempts: ask again.
pub async fn leave(client: &Client, node: &str, requester: &str) -> Result<bool, ApiError> {
    let drains: Api<NodeDrain> = Api::all(client.clone());
    for _ in 0..ATTEMPTS {
        let Some(present) = drains.get_opt(node).await? else {
            return Ok(false);
        };
        let Some(patch) = without(&present, requester) else {
            return Ok(false);
        };
        match write(&drains, node, &patch).await {
            Ok(()) => return Ok(true),
            Err(ApiError::Conflict | ApiError::NotFound) => {}
            Err(refusal) => return Err(refusal),
        }
    }
    Err(ApiError::Conflict)
}

async fn write(drains: &Api<NodeDrain>, name: &str, patch: &Value) -> Result<(), ApiError> {
    drains
        .patch(name, &PatchParams::default(), &Patch::Merge(patch))
        .await
        .map(drop)
        .map_err(|error| ApiError::from(&error))
}

/// Whether the drain has this requester.
pub fn has(drain: &NodeDrain, requester: &str) -> bool {
    drain.spec.requesters.iter().any(|known| known.name == requester)
}

/// Whether a drain is, as far as it is known, what the wish asks for already.
pub fn is_fulfilled_by(wish: &Wish, drain: &NodeDrain) -> bool {
    let is_alive = drain.metadata.deletion_timestamp.is_none() && !drain.spec.dry_run;
    is_alive && drain.spec.node_uid.as_deref() == Some(wish.node_uid.as_str()) && has(drain, &wish.requester)
}

fn new_drain(wish: &Wish, now: Timestamp) -> NodeDrain {
    let annotations = wish
        .evicts_now
        .then(|| [(annotation::LAST_EVICTION.to_owned(), to_the_second(now))].into());
    NodeDrain {
        metadata: ObjectMeta {
            name: Some(wish.node.to_string()),
            annotations,
            ..ObjectMeta::default()
        },
        spec: NodeDrainSpec {
            node_name: wish.node.to_string(),
            node_uid: Some(wish.node_uid.to_string()),
            requesters: vec![requester(wish, now)],
            purpose: Some(wish.purpose.clone()),
            evict: wish.evict,
            fallback: wish.fallback,
            ..NodeDrainSpec::default()
        },
        status: None,
    }
}

fn requester(wish: &Wish, now: Timestamp) -> Requester {
    Requester {
        name: wish.requester.clone(),
        since: to_the_second(now).parse().ok(),
    }
}

fn step(present: &NodeDrain, wish: &Wish, now: Timestamp) -> Step {
    let is_anothers = present
        .spec
        .node_uid
        .as_deref()
        .is_some_and(|uid| uid != wish.node_uid.as_str());
    if is_anothers || present.metadata.deletion_timestamp.is_some() {
        return Step::Nothing(Joined::InTheWay);
    }
    if present.spec.dry_run {
        return Step::Nothing(Joined::Preview);
    }
    let is_known = has(present, &wish.requester);
    let is_sign_due = wish.evicts_now && !has_fresh_sign(present, now);
    if is_known && !is_sign_due {
        return Step::Nothing(Joined::Known);
    }
    let mut patch = on_top_of(present);
    if is_sign_due {
        patch["metadata"]["annotations"] = json!({ annotation::LAST_EVICTION: to_the_second(now) });
    }
    if is_known {
        return Step::Write(Joined::Noted, patch);
    }
    let mut requesters = present.spec.requesters.clone();
    requesters.push(requester(wish, now));
    patch["spec"] = json!({ "requesters": requesters });
    Step::Write(Joined::Added, patch)
}

fn without(present: &NodeDrain, requester: &str) -> Option<Value> {
    if !has(present, requester) {
        return None;
    }
    let others = present.spec.requesters.iter().filter(|known| known.name != requester);
    let mut patch = on_top_of(present);
    patch["spec"] = json!({ "requesters": others.collect::<Vec<_>>() });
    Some(patch)
}

/// A merge patch that only applies to what was read.
fn on_top_of(present: &NodeDrain) -> Value {
    let meta = &present.metadata;
    json!({ "metadata": { "uid": meta.uid, "resourceVersion": meta.resource_version } })
}

fn has_fresh_sign(present: &NodeDrain, now: Timestamp) -> bool {
    let sign = present
        .metadata
        .annotations
        .as_ref()
        .and_then(|annotations| annotations.get(annotation::LAST_EVICTION))
        .and_then(|text| text.parse::<Timestamp>().ok());
    // One from the future is of a clock that is wrong: it is put right.
    sign.is_some_and(|sign| sign <= now && now.duration_since(sign) < LAST_EVICTION_TO)
}

#[cfg(test)]
mod tests {
    use rstest::rstest;

    use super::*;

    fn at(text: &str) -> Timestamp {
        text.parse().unwrap()
    }

    fn wish() -> Wish {
        Wish {
            node: "n1".into(),
            node_uid: "u1".into(),
            requester: "eviction:alice".to_owned(),
            purpose: "evictions by alice".to_owned(),
            evict: Evictor::Requester,
            fallback: Fallback::Wait,
            evicts_now: true,
        }
    }

    fn drain(fields: Value) -> NodeDrain {
        let mut drain = json!({
            "apiVersion": "nodeward.dev/v1alpha1", "kind": "NodeDrain",
            "metadata": { "name": "n1", "uid": "d1", "resourceVersion": "7", "annotations": { "nodeward.dev/last-eviction": "2026-01-01T00:00:00Z" } },
            "spec": { "nodeName": "n1", "nodeUID": "u1", "requesters": [{ "name": "eviction:alice", "since": "2026-01-01T00:00:00Z" }] },
        });
        for (section, fields) in fields.as_object().unwrap() {
            for (key, value) in fields.as_object().unwrap() {
                drain[section][key] = value.clone();
            }
        }
        serde_json::from_value(drain).unwrap()
    }

    #[test]
    fn a_drain_that_is_made_says_who_wants_it_and_of_which_node() {
        let made = serde_json::to_value(new_drain(&wish(), at("2026-01-01T00:00:00.5Z"))).unwrap();
        assert_eq!(
            made["metadata"],
            json!({ "name": "n1", "annotations": { "nodeward.dev/last-eviction": "2026-01-01T00:00:00Z" } })
        );
        assert_eq!(made["spec"]["nodeUID"], "u1");
        assert_eq!(made["spec"]["evict"], "Requester");
        assert_eq!(made["spec"]["fallback"], "Wait");
        assert_eq!(
            made["spec"]["requesters"],
            json!([{ "name": "eviction:alice", "since": "2026-01-01T00:00:00Z" }])
        );
    }

    #[rstest]
    #[case::asked_again_soon(json!({}), "2026-01-01T00:00:59Z", Joined::Known)]
    #[case::asked_again_later(json!({}), "2026-01-01T00:01:00Z", Joined::Noted)]
    #[case::a_sign_from_the_future(json!({}), "2025-12-31T23:59:00Z", Joined::Noted)]
    #[case::a_sign_that_is_none(json!({ "metadata": { "annotations": { "nodeward.dev/last-eviction": "now" } } }), "2026-01-01T00:00:00Z", Joined::Noted)]
    #[case::wanted_by_another(json!({ "spec": { "requesters": [{ "name": "nodedrain" }] } }), "2026-01-01T00:00:00Z", Joined::Added)]
    #[case::wanted_by_nobody(json!({ "spec": { "requesters": [] } }), "2026-01-01T00:00:00Z", Joined::Added)]
    #[case::of_another_node(json!({ "spec": { "nodeUID": "u0" } }), "2026-01-01T00:00:00Z", Joined::InTheWay)]
    #[case::of_a_node_yet_unknown(json!({ "spec": { "nodeUID": null } }), "2026-01-01T00:00:00Z", Joined::Known)]
    #[case::ending(json!({ "metadata": { "deletionTimestamp": "2026-01-01T00:00:00Z" } }), "2026-01-01T00:00:00Z", Joined::InTheWay)]
    #[case::a_preview(json!({ "spec": { "dryRun": true } }), "2026-01-01T00:00:00Z", Joined::Preview)]
    fn a_drain_is_joined_once_and_its_sign_of_life_kept_to_a_minute(
        #[case] present: Value,
        #[case] now: &str,
        #[case] expected: Joined,
    ) {
        let (joined, patch) = match step(&drain(present), &wish(), at(now)) {
            Step::Nothing(joined) => (joined, None),
            Step::Write(joined, patch) => (joined, Some(patch)),
        };
        assert_eq!(joined, expected);
        let Some(patch) = patch else { return };
        assert_eq!(patch["metadata"]["resourceVersion"], "7");
        assert_eq!(patch["metadata"]["uid"], "d1");
        if expected == Joined::Added {
            let names: Vec<&str> = patch["spec"]["requesters"]
                .as_array()
                .unwrap()
                .iter()
                .map(|requester| requester["name"].as_str().unwrap())
                .collect();
            assert_eq!(names.last(), Some(&"eviction:alice"));
        } else {
            assert_eq!(patch["metadata"]["annotations"]["nodeward.dev/last-eviction"], now);
        }
    }

    #[test]
    fn a_drainer_that_does_not_evict_by_itself_leaves_no_sign() {
        let reboot = Wish {
            evicts_now: false,
            ..wish()
        };
        assert_eq!(
            step(&drain(json!({})), &reboot, at("2026-06-01T00:00:00Z")),
            Step::Nothing(Joined::Known)
        );
        assert_eq!(
            new_drain(&reboot, at("2026-06-01T00:00:00Z")).metadata.annotations,
            None
        );
    }

    #[rstest]
    #[case::of_the_webhook(&evicting("system:serviceaccount:kube-system:karpenter"), false)]
    #[case::with_a_name_that_is_cut(&evicting(&"u".repeat(REQUESTER_AT_MOST)), false)]
    #[case::of_fleet_lock(&machine("workers", "n1"), true)]
    #[case::of_the_plugin("kubectl-nodeward:alice", true)]
    #[case::by_hand("alice", true)]
    fn only_who_is_known_by_evictions_alone_does_not_take_its_wish_back(#[case] name: &str, #[case] expected: bool) {
        assert_eq!(releases_by_itself(name), expected);
        assert!(name.len() <= REQUESTER_AT_MOST);
    }

    #[test]
    fn only_the_own_wish_is_taken_back() {
        let both = drain(
            json!({ "spec": { "requesters": [{ "name": "eviction:alice" }, { "name": "kubectl-nodeward:bob" }] } }),
        );
        let patch = without(&both, "eviction:alice").unwrap();
        assert_eq!(patch["spec"]["requesters"], json!([{ "name": "kubectl-nodeward:bob" }]));
        assert_eq!(patch["metadata"]["resourceVersion"], "7");
        assert_eq!(without(&both, "eviction:carol"), None);
    }

    #[test]
    fn the_last_wish_leaves_an_empty_list() {
        let patch = without(&drain(json!({})), "eviction:alice").unwrap();
        assert_eq!(patch["spec"]["requesters"], json!([]));
    }
}
