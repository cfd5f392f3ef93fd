//! Asks for a drain: creates the NodeDrain, or joins the one that there is.

use jiff::Timestamp;
use kube::Api;
use kube::api::{Patch, PatchParams, PostParams};
use kube::runtime::wait::{await_condition, conditions};
use nodeward_api::NodeDrain;
use nodeward_api::node_drain::{Deadlines, Evictor, Fallback, NodeDrainSpec, Phase, Requester};
use serde_json::{Value, json};

use super::{ATTEMPTS, ActError};
use crate::cluster::Cluster;
use crate::failure::Failure;

/// What is asked for.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Wish {
    /// The node.
    pub node: String,
    /// Its UID, if it could be read.
    pub node_uid: Option<String>,
    /// Who asks.
    pub requester: String,
    /// What for.
    pub purpose: Option<String>,
    /// What happens when a deadline passes, if that is said.
    pub fallback: Option<Fallback>,
    /// The deadlines that are said.
    pub deadlines: Deadlines,
    /// Plan only.
    pub dry_run: bool,
}

/// What became of it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Asked {
    /// There was no drain, and now there is.
    Created,
    /// There was one, for these.
    Joined(Vec<String>),
    /// The caller had asked for it before.
    Known,
}

/// Asks for a drain. A drain that is ending is waited for, and a new one is asked for then; `waits` is called before.
///
/// # Errors
/// A request fails, or the drain of that name is another node's.
pub async fn ask(cluster: &Cluster, wish: &Wish, waits: &dyn Fn(&str)) -> Result<(NodeDrain, Asked), ActError> {
    let drains: Api<NodeDrain> = Api::all(cluster.client.clone());
    for _ in 0..ATTEMPTS {
        let Some(found) = cluster.ask(drains.get_opt(&wish.node)).await? else {
            match cluster.ask(drains.create(&PostParams::default(), &new(wish))).await {
                Ok(created) => return Ok((created, Asked::Created)),
                // Somebody else was faster.
                Err(Failure::Conflict { .. }) => continue,
                Err(failure) => return Err(failure.into()),
            }
        };
        if is_over(&found) {
            waits(&wish.node);
            let uid = found.metadata.uid.clone().unwrap_or_default();
            let gone = await_condition(drains.clone(), &wish.node, conditions::is_deleted(&uid)).await;
            gone.map_err(|error| ActError::Refused(format!("the end of the drain before cannot be watched: {error}")))?;
            continue;
        }
        if let (Some(there), Some(here)) = (&found.spec.node_uid, &wish.node_uid)
            && there != here
        {
            return Err(ActError::Refused(format!(
                "there is a drain of an earlier node {0}: end it with kubectl nodeward release {0}",
                wish.node
            )));
        }
        let Some(patch) = joining(&found, wish) else {
            return Ok((found, Asked::Known));
        };
        match cluster
            .ask(drains.patch(&wish.node, &PatchParams::default(), &Patch::Merge(&patch)))
            .await
        {
            Ok(joined) => {
                let before: Vec<String> = found.spec.requesters.iter().map(|one| one.name.clone()).collect();
                let asked = if before.contains(&wish.requester) {
                    Asked::Known
                } else {
                    Asked::Joined(before)
                };
                return Ok((joined, asked));
            }
            Err(Failure::Conflict { .. } | Failure::NotFound { .. }) => (),
            Err(failure) => return Err(failure.into()),
        }
    }
    Err(ActError::Refused(format!(
        "the drain of {} changes too fast: try again",
        wish.node
    )))
}

/// Asks for a plan: creates a preview unless there is a drain, which is left as it is.
///
/// # Errors
/// A request fails.
pub async fn preview(cluster: &Cluster, wish: &Wish) -> Result<(NodeDrain, Asked), ActError> {
    let drains: Api<NodeDrain> = Api::all(cluster.client.clone());
    for _ in 0..ATTEMPTS {
        match cluster.ask(drains.create(&PostParams::default(), &new(wish))).await {
            Ok(created) => return Ok((created, Asked::Created)),
            Err(Failure::Conflict { .. }) => (),
            Err(failure) => return Err(failure.into()),
        }
        if let Some(found) = cluster.ask(drains.get_opt(&wish.node)).await? {
            return Ok((found, Asked::Known));
        }
    }
    Err(ActError::Refused(format!(
        "the drain of {} changes too fast: try again",
        wish.node
    )))
}

/// A new drain.
fn new(wish: &Wish) -> NodeDrain {
    NodeDrain::new(
        &wish.node,
        NodeDrainSpec {
            node_name: wish.node.clone(),
            node_uid: wish.node_uid.clone(),
            requesters: vec![Requester {
                name: wish.requester.clone(),
                since: Some(Timestamp::now()),
            }],
            purpose: wish.purpose.clone(),
            evict: Evictor::Nodeward,
            deadlines: wish.deadlines.clone(),
            fallback: wish.fallback.unwrap_or_default(),
            dry_run: wish.dry_run,
        },
    )
}

/// Whether the drain ends, and another has to be asked for.
fn is_over(drain: &NodeDrain) -> bool {
    let phase = drain.status.as_ref().and_then(|status| status.phase);
    drain.metadata.deletion_timestamp.is_some() || phase == Some(Phase::Released)
}

/// What has to change in a drain for the wish to be part of it; `None`: nothing. What the wish does not say stays.
fn joining(found: &NodeDrain, wish: &Wish) -> Option<Value> {
    let spec = &found.spec;
    let mut wanted = spec.clone();
    if !spec.requesters.iter().any(|requester| requester.name == wish.requester) {
        wanted.requesters.push(Requester {
            name: wish.requester.clone(),
            since: Some(Timestamp::now()),
        });
    }
    if wish.purpose.is_some() {
        wanted.purpose.clone_from(&wish.purpose);
    }
    wanted.fallback = wish.fallback.unwrap_or(spec.fallback);
    let asked = &wish.deadlines;
    for (deadline, asked) in [
        (&mut wanted.deadlines.queue, &asked.queue),
        (&mut wanted.deadlines.drain, &asked.drain),
        (&mut wanted.deadlines.recover, &asked.recover),
    ] {
        if asked.is_some() {
            deadline.clone_from(asked);
        }
    }
    wanted.evict = Evictor::Nodeward;
    // A preview becomes a drain.
    wanted.dry_run = false;
    if wanted == *spec {
        return None;
    }
    Some(json!({
        "metadata": { "uid": found.metadata.uid, "resourceVersion": found.metadata.resource_version },
        "spec": {
            "requesters": wanted.requesters,
            "purpose": wanted.purpose,
            "fallback": wanted.fallback,
            "deadlines": wanted.deadlines,
            "evict": wanted.evict,
            "dryRun": wanted.dry_run,
        },
    }))
}

#[cfg(test)]
mod tests {
    use rstest::rstest;

    use super::*;

    fn found(spec: &Value) -> NodeDrain {
        serde_json::from_value(json!({
            "apiVersion": "nodeward.dev/v1alpha1", "kind": "NodeDrain",
            "metadata": { "name": "node-1", "uid": "u", "resourceVersion": "7" },
            "spec": spec,
        }))
        .unwrap()
    }

    fn wish() -> Wish {
        Wish {
            node: "node-1".to_owned(),
            node_uid: None,
            requester: "kubectl-nodeward:alice".to_owned(),
            purpose: None,
            fallback: None,
            deadlines: Deadlines::default(),
            dry_run: false,
        }
    }

    const BOBS: &str = "kubectl-nodeward:bob";

    fn of_bob() -> NodeDrain {
        found(&json!({
            "nodeName": "node-1", "requesters": [{ "name": BOBS }], "purpose": "kernel", "fallback": "Wait",
            "deadlines": { "queue": "5m", "drain": "6m" }, "evict": "Requester",
        }))
    }

    #[test]
    fn who_joins_changes_only_what_they_say() {
        let wish = Wish {
            deadlines: Deadlines {
                drain: Some("1h".to_owned()),
                ..Deadlines::default()
            },
            ..wish()
        };
        let patch = joining(&of_bob(), &wish).unwrap();
        let names: Vec<&str> = patch["spec"]["requesters"]
            .as_array()
            .unwrap()
            .iter()
            .filter_map(|r| r["name"].as_str())
            .collect();
        assert_eq!(names, [BOBS, "kubectl-nodeward:alice"]);
        assert_eq!(patch["spec"]["purpose"], "kernel");
        assert_eq!(patch["spec"]["fallback"], "Wait");
        assert_eq!(patch["spec"]["deadlines"], json!({ "queue": "5m", "drain": "1h" }));
        assert_eq!(patch["spec"]["evict"], "Nodeward");
        assert_eq!(patch["metadata"], json!({ "uid": "u", "resourceVersion": "7" }));
    }

    #[test]
    fn who_has_asked_before_changes_nothing() {
        let mine = found(&json!({ "nodeName": "node-1", "requesters": [{ "name": "kubectl-nodeward:alice" }] }));
        assert_eq!(joining(&mine, &wish()), None);
        let now_says_why = Wish {
            purpose: Some("kernel".to_owned()),
            ..wish()
        };
        assert_eq!(joining(&mine, &now_says_why).unwrap()["spec"]["purpose"], "kernel");
    }

    #[test]
    fn a_preview_becomes_a_drain_when_somebody_wants_it() {
        let mut preview = of_bob();
        preview.spec.dry_run = true;
        assert_eq!(joining(&preview, &wish()).unwrap()["spec"]["dryRun"], false);
    }

    #[rstest]
    #[case(None, None, false)]
    #[case(None, Some(Phase::Drained), false)]
    #[case(None, Some(Phase::Released), true)]
    #[case(Some("2026-01-01T00:00:00Z"), Some(Phase::Recovering), true)]
    fn a_drain_that_ends_cannot_be_joined(
        #[case] deleted: Option<&str>,
        #[case] phase: Option<Phase>,
        #[case] over: bool,
    ) {
        let mut drain = of_bob();
        drain.metadata.deletion_timestamp = deleted.map(|text| serde_json::from_value(json!(text)).unwrap());
        drain.status = Some(nodeward_api::node_drain::NodeDrainStatus {
            phase,
            ..Default::default()
        });
        assert_eq!(is_over(&drain), over);
    }
}
