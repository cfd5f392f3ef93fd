//! The node's cordon, taint and conditions. Each write rests on the node as it was read just before.

use std::sync::Arc;

use jiff::Timestamp;
use k8s_openapi::api::core::v1::{Node, Taint};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{ObjectMeta, Time};
use kube::Api;
use kube::api::{Patch, PatchParams};
use nodeward_api::cordon_record::CordonRecord;
use nodeward_api::reason::LockReason;
use nodeward_api::{NodeDrain, annotation, taint};
use nodeward_core::deadline::{to_the_second, whole_second};
use nodeward_core::node::{UNSCHEDULABLE_TAINT, UNSCHEDULABLE_TAINT_EFFECT};
use serde_json::{Value, json};

use crate::observe::project_node;
use crate::plan::node_markers::{
    ChangedCondition, Cordon, NodeWrite, Progress, changed_conditions, changed_do_not_disrupt, taken,
};
use crate::plan::verdict::Announcement;

use super::{ActionResult, ExecutorContext, TaskOutcome, Written, fresh};

/// Cordons, uncordons, taints; then the conditions say how far the drain has come.
pub(super) async fn write(context: &ExecutorContext, write: &NodeWrite) -> TaskOutcome {
    let mut announcements = Vec::new();
    let done = write_both(context, write, &mut announcements).await;
    TaskOutcome {
        announcements,
        ..done.into()
    }
}

async fn write_both(context: &ExecutorContext, write: &NodeWrite, announcements: &mut Vec<Announcement>) -> Written {
    let (nodes, name): (Api<Node>, _) = (context.api(), write.node.name.as_str());
    let mut node = read(context, write).await?;
    let changed = patch(&node, write, whole_second(Timestamp::now()));
    let spec = changed.map_err(|contradiction| ActionResult::Outdated(contradiction.to_owned()))?;
    if let Some(patch) = &spec {
        let _permit = context.permits.next_act().await?;
        node = nodes.patch(name, &context.patch_params(), &Patch::Merge(patch)).await?;
        announcements.extend(taken_cordon(write));
    }
    let Some(patch) = condition_patch(&node, write.progress, Timestamp::now()) else {
        return spec.map(drop).ok_or(ActionResult::AlreadyDone);
    };
    let _permit = context.permits.next_write().await?;
    nodes
        .patch_status(name, &PatchParams::default(), &Patch::Strategic(patch))
        .await?;
    Ok(())
}

/// Whoever has cordoned a node of ours anew is told that it stays so.
fn taken_cordon(write: &NodeWrite) -> Option<Announcement> {
    write.leaves_taken_cordon().then(|| Announcement {
        node: write.node.name.clone(),
        node_uid: write.node.uid.clone(),
        reason: LockReason::CordonTaken,
        note: taken(&write.node.name),
    })
}

/// The node as it is now.
///
/// # Errors
/// When it is gone, or its cordon would be lifted under a drain that the plan did not see.
async fn read(context: &ExecutorContext, write: &NodeWrite) -> Result<Node, ActionResult> {
    let name = write.node.name.as_str();
    let seen = context.pass.snapshot.drains.get(name).map(Arc::as_ref);
    if lifts_unseen(write, seen) {
        let present = context.api::<NodeDrain>().get_metadata_opt(name).await?;
        if contradicts_lift(write, seen, present.as_ref().map(|drain| &drain.metadata)) {
            let unseen = "the node has a drain that was not seen";
            return Err(ActionResult::Outdated(unseen.to_owned()));
        }
    }
    let node = context.api::<Node>().get_opt(name).await?;
    let is_meant = |node: &Node| node.metadata.uid.as_deref() == Some(write.node.uid.as_str());
    node.filter(is_meant).ok_or(ActionResult::AlreadyDone)
}

/// Whether a drain that the plan did not see keeps this from lifting the cordon, by the node's drain as it was read just now.
/// Pure.
pub fn contradicts_lift(write: &NodeWrite, seen: Option<&NodeDrain>, present: Option<&ObjectMeta>) -> bool {
    lifts_unseen(write, seen) && is_news(present, seen)
}

/// Whether this lifts a cordon of ours whose drain the plan did not see. With the drain in sight it is lifted in full
/// knowledge: the drain is over, or its turn is.
fn lifts_unseen(write: &NodeWrite, seen: Option<&NodeDrain>) -> bool {
    let is_seen = |by: &str| uid_of(seen.map(|drain| &drain.metadata)) == Some(by);
    let lifts = matches!(write.cordon, Cordon::Lift | Cordon::Forget);
    let record = write.node.cordon_record().filter(|_| lifts);
    record.is_some_and(|record| !is_seen(&record.drain_uid))
}

/// Whether the node's drain as it was read just now goes on, and is not the one that the plan saw.
fn is_news(present: Option<&ObjectMeta>, seen: Option<&NodeDrain>) -> bool {
    present.is_some_and(fresh::goes_on) && uid_of(present) != uid_of(seen.map(|drain| &drain.metadata))
}

fn uid_of(metadata: Option<&ObjectMeta>) -> Option<&str> {
    metadata.and_then(|metadata| metadata.uid.as_deref())
}

/// The change of a node as it is now, as a merge patch; `None` if it is so already. Pure.
///
/// # Errors
/// When the node is not as the plan saw it.
pub fn patch(node: &Node, write: &NodeWrite, now: Timestamp) -> Result<Option<Value>, &'static str> {
    let present = project_node(node).ok_or("the node has no name")?;
    let record = present.cordon_record();
    let mut patch = json!({ "metadata": {
        "uid": node.metadata.uid,
        "resourceVersion": node.metadata.resource_version,
    } });
    let taints = node
        .spec
        .as_ref()
        .and_then(|spec| spec.taints.clone())
        .unwrap_or_default();
    let mut wanted = taints.clone();
    let mut is_changed = true;
    match &write.cordon {
        Cordon::Keep | Cordon::Respect => is_changed = false,
        Cordon::Set { by } => {
            if present.unschedulable && !present.is_cordoned_by_us() {
                return Err("somebody else has cordoned the node");
            }
            let is_for = record.as_ref().is_some_and(|record| record.drain_uid == *by);
            if is_for && !present.unschedulable {
                return Err("somebody else has uncordoned the node");
            }
            let taint_added = if present.unschedulable {
                record.and_then(|record| record.taint_added)
            } else {
                // By its time this cordon is known from a later one. Kubernetes' node-lifecycle controller leaves it as it is.
                wanted.retain(|taint| !is_of_cordon(taint));
                wanted.push(taint_of_cordon(now));
                Some(now)
            };
            let record = CordonRecord {
                drain_uid: by.clone(),
                taint_added,
            };
            patch["metadata"]["annotations"][annotation::CORDONED_BY] = json!(record.to_string());
            patch["spec"] = json!({ "unschedulable": true });
        }
        Cordon::Lift | Cordon::Forget => {
            if record != write.node.cordon_record() {
                return Err("the node's cordon is another one now");
            }
            patch["metadata"]["annotations"][annotation::CORDONED_BY] = Value::Null;
            if write.cordon == Cordon::Lift {
                if !present.is_cordoned_by_us() {
                    return Err("the node is not under our cordon any more");
                }
                wanted.retain(|taint| !is_of_cordon(taint));
                patch["spec"] = json!({ "unschedulable": null });
            } else if present.is_cordoned_by_us() {
                return Err("the node is cordoned again");
            }
        }
    }
    for (key, value) in changed_do_not_disrupt(&present, write.do_not_disrupt) {
        is_changed = true;
        patch["metadata"]["annotations"][key] = json!(value);
    }
    let is_queued = wanted.iter().any(|taint| taint.key == taint::QUEUED);
    if is_queued != write.queued {
        wanted.retain(|taint| taint.key != taint::QUEUED);
        if write.queued {
            wanted.push(Taint {
                key: taint::QUEUED.to_owned(),
                effect: taint::QUEUED_EFFECT.to_owned(),
                ..Taint::default()
            });
        }
    }
    if wanted != taints {
        is_changed = true;
        // The list is replaced as a whole: the resource version sees to it that nobody else's taint is lost.
        patch["spec"]["taints"] = json!(wanted);
    }
    Ok(is_changed.then_some(patch))
}

/// The taint that Kubernetes' node-lifecycle controller adds to a cordoned node.
fn taint_of_cordon(added: Timestamp) -> Taint {
    Taint {
        key: UNSCHEDULABLE_TAINT.to_owned(),
        effect: UNSCHEDULABLE_TAINT_EFFECT.to_owned(),
        time_added: Some(Time(added)),
        ..Taint::default()
    }
}

fn is_of_cordon(taint: &Taint) -> bool {
    taint.key == UNSCHEDULABLE_TAINT && taint.effect == UNSCHEDULABLE_TAINT_EFFECT
}

/// The change of a node's conditions as they are now, as a strategic merge, so that the others stay; `None` if they are so already.
fn condition_patch(node: &Node, progress: Option<Progress>, now: Timestamp) -> Option<Value> {
    let conditions: Vec<Value> = changed_conditions(&project_node(node)?, progress)
        .into_iter()
        .map(|change| match change {
            ChangedCondition::Set {
                kind,
                status,
                reason,
                since,
            } => {
                let since = to_the_second(since.unwrap_or(now));
                json!({ "type": kind, "status": status, "reason": reason, "lastTransitionTime": since })
            }
            ChangedCondition::Removed(kind) => json!({ "type": kind, "$patch": "delete" }),
        })
        .collect();
    let metadata = json!({ "uid": node.metadata.uid, "resourceVersion": node.metadata.resource_version });
    (!conditions.is_empty()).then(|| json!({ "metadata": metadata, "status": { "conditions": conditions } }))
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use rstest::rstest;

    use super::*;
    use crate::plan::node_markers::change;
    use crate::tests::fixture::{self, merged, node, now};

    const OURS: &str = "uid-1@2026-01-01T12:00:00Z";
    const NOON: &str = fixture::NOW;

    /// `n1`, cordoned or not, with this record of ours and a taint of this time.
    fn under(unschedulable: bool, record: Option<&str>, taint_added: Option<&str>) -> Value {
        let dedicated = json!({ "key": "dedicated", "effect": "NoSchedule" });
        let taint = taint_added
            .map(|time| json!({ "key": UNSCHEDULABLE_TAINT, "effect": UNSCHEDULABLE_TAINT_EFFECT, "timeAdded": time }));
        let taints: Vec<Value> = [Some(dedicated), taint].into_iter().flatten().collect();
        node(
            "n1",
            json!({
                "metadata": { "annotations": record.map(|record| json!({ annotation::CORDONED_BY: record })) },
                "spec": { "unschedulable": unschedulable.then_some(true), "taints": taints },
            }),
        )
    }

    fn set(by: &str) -> Cordon {
        Cordon::Set { by: by.to_owned() }
    }

    /// What a node that the plan saw as `seen` becomes, if it is as `present` now.
    fn written(seen: Value, present: Value, cordon: Cordon) -> Result<Value, &'static str> {
        let write = NodeWrite {
            node: Arc::new(project_node(&fixture::parse(seen)).unwrap()),
            cordon,
            queued: false,
            do_not_disrupt: false,
            progress: None,
        };
        let patch = patch(&fixture::parse(present.clone()), &write, now())?;
        Ok(merged(present, patch.unwrap_or_default()))
    }

    #[rstest]
    #[case::first_cordon(under(false, None, None), set("uid-1"), under(true, Some(OURS), Some(NOON)))]
    #[case::taint_of_a_cordon_before(
        under(false, None, Some("2026-01-01T11:00:00Z")),
        set("uid-1"),
        under(true, Some(OURS), Some(NOON))
    )]
    #[case::handed_on(
        under(true, Some(OURS), Some(NOON)),
        set("uid-2"),
        under(true, Some("uid-2@2026-01-01T12:00:00Z"), Some(NOON))
    )]
    #[case::handed_on_from_an_earlier_version(
        under(true, Some("uid-1"), Some(NOON)),
        set("uid-2"),
        under(true, Some("uid-2"), Some(NOON))
    )]
    #[case::lifted(under(true, Some(OURS), Some(NOON)), Cordon::Lift, under(false, None, None))]
    #[case::taken(
        under(true, Some(OURS), Some("2026-01-01T12:00:09Z")),
        Cordon::Forget,
        under(true, None, Some("2026-01-01T12:00:09Z"))
    )]
    fn cordon_is_written_with_its_time(#[case] before: Value, #[case] cordon: Cordon, #[case] after: Value) {
        let after = merged(after, json!({ "metadata": { "resourceVersion": null } }));
        let mut written = written(before.clone(), before, cordon).unwrap();
        for empty in ["unschedulable", "annotations"] {
            let fields = if empty == "annotations" {
                &mut written["metadata"]
            } else {
                &mut written["spec"]
            };
            if fields[empty].is_null() || fields[empty] == json!({}) {
                fields.as_object_mut().unwrap().remove(empty);
            }
        }
        assert_eq!(written, after);
    }

    /// `n1` with Karpenter's annotation of this value, and drain-lock's record of it.
    fn annotated(value: Option<&str>, is_recorded: bool) -> Value {
        let record = is_recorded.then_some("drain-lock");
        let annotations = json!({ annotation::KARPENTER_DO_NOT_DISRUPT: value, annotation::DO_NOT_DISRUPT_BY: record });
        let none = node("n1", json!({ "metadata": { "annotations": {} } }));
        merged(none, json!({ "metadata": { "annotations": annotations } }))
    }

    #[rstest]
    #[case::given(annotated(None, false), Cordon::Respect, Some(annotated(Some("true"), true)))]
    #[case::there_before(annotated(Some("true"), false), Cordon::Respect, None)]
    #[case::refused_before(annotated(Some("false"), false), Cordon::Respect, None)]
    #[case::given_already(annotated(Some("true"), true), Cordon::Respect, None)]
    #[case::taken_away_by_another(annotated(None, true), Cordon::Respect, None)]
    #[case::kept(annotated(Some("true"), true), Cordon::Keep, None)]
    #[case::taken_back(annotated(Some("true"), true), Cordon::Lift, Some(annotated(None, false)))]
    #[case::not_ours_to_take_back(annotated(Some("true"), false), Cordon::Lift, None)]
    #[case::changed_by_another(annotated(Some("1h"), true), Cordon::Lift, Some(annotated(Some("1h"), false)))]
    #[case::only_the_record_is_left(annotated(None, true), Cordon::Lift, Some(annotated(None, false)))]
    fn karpenters_annotation_is_given_and_taken_back(
        #[case] before: Value,
        #[case] cordon: Cordon,
        #[case] after: Option<Value>,
    ) {
        let seen = Arc::new(project_node(&fixture::parse(before.clone())).unwrap());
        let written = change(&seen, cordon, false, None).map(|write| {
            let patch = patch(&fixture::parse(before.clone()), &write, now()).unwrap();
            merged(before, patch.unwrap())
        });
        let annotations = |node: Value| node["metadata"]["annotations"].clone();
        assert_eq!(written.map(annotations), after.map(annotations));
    }

    #[rstest]
    #[case::cordoned_meanwhile(under(false, None, None), under(true, None, Some(NOON)), set("uid-1"))]
    #[case::taken_meanwhile(
        under(true, Some(OURS), Some(NOON)),
        under(true, Some(OURS), Some("2026-01-01T12:00:09Z")),
        set("uid-2")
    )]
    #[case::uncordoned_meanwhile(under(true, Some(OURS), Some(NOON)), under(false, Some(OURS), None), set("uid-1"))]
    #[case::taken_before_it_is_lifted(
        under(true, Some(OURS), Some(NOON)),
        under(true, Some(OURS), Some("2026-01-01T12:00:09Z")),
        Cordon::Lift
    )]
    #[case::uncordoned_before_it_is_lifted(
        under(true, Some(OURS), Some(NOON)),
        under(false, Some(OURS), None),
        Cordon::Lift
    )]
    #[case::handed_on_before_it_is_lifted(
        under(true, Some(OURS), Some(NOON)),
        under(true, Some("uid-2@2026-01-01T12:00:00Z"), Some(NOON)),
        Cordon::Lift
    )]
    fn cordon_that_changed_meanwhile_is_left(#[case] seen: Value, #[case] present: Value, #[case] cordon: Cordon) {
        assert!(written(seen, present, cordon).is_err());
    }

    /// A drain of this UID, and whether it is being deleted.
    fn drain((uid, is_over): (&str, bool)) -> NodeDrain {
        let end = is_over.then_some("2026-01-01T12:00:00Z");
        fixture::parse(json!({
            "metadata": { "name": "n1", "uid": uid, "deletionTimestamp": end }, "spec": { "nodeName": "n1" },
        }))
    }

    const ONE: (&str, bool) = ("uid-1", false);
    const TWO: (&str, bool) = ("uid-2", false);

    fn handed_on() -> Cordon {
        Cordon::Set { by: "uid-2".to_owned() }
    }

    #[rstest]
    #[case::its_drain_was_seen(Some("uid-1"), Cordon::Lift, Some(ONE), false)]
    #[case::no_drain_was_seen(Some("uid-1"), Cordon::Lift, None, true)]
    #[case::another_drain_was_seen(Some("uid-1"), Cordon::Lift, Some(TWO), true)]
    #[case::only_its_annotation_goes(Some("uid-1"), Cordon::Forget, None, true)]
    #[case::it_stays(Some("uid-1"), Cordon::Keep, None, false)]
    #[case::it_is_handed_on(Some("uid-1"), handed_on(), Some(TWO), false)]
    #[case::there_is_none_of_ours(None, Cordon::Keep, None, false)]
    fn a_cordon_whose_drain_nobody_saw_is_doubted(
        #[case] cordoned_by: Option<&str>,
        #[case] cordon: Cordon,
        #[case] seen: Option<(&str, bool)>,
        #[case] expected: bool,
    ) {
        let by = cordoned_by.map_or(
            json!({}),
            |by| json!({ "metadata": { "annotations": { annotation::CORDONED_BY: by } } }),
        );
        let node = merged(fixture::cordoned("n1"), by);
        let write = NodeWrite {
            node: Arc::new(project_node(&fixture::parse(node)).unwrap()),
            cordon,
            queued: false,
            do_not_disrupt: false,
            progress: None,
        };
        assert_eq!(lifts_unseen(&write, seen.map(drain).as_ref()), expected);
    }

    #[rstest]
    #[case::there_is_none(None, None, false)]
    #[case::it_goes_on(None, Some(ONE), true)]
    #[case::it_is_over(None, Some(("uid-1", true)), false)]
    #[case::it_was_seen(Some(TWO), Some(TWO), false)]
    #[case::another_was_seen(Some(TWO), Some(ONE), true)]
    #[case::what_was_seen_is_gone(Some(TWO), None, false)]
    fn unseen_running_drain_is_news(
        #[case] seen: Option<(&str, bool)>,
        #[case] present: Option<(&str, bool)>,
        #[case] expected: bool,
    ) {
        let (seen, present) = (seen.map(drain), present.map(drain));
        let present = present.as_ref().map(|drain| &drain.metadata);
        assert_eq!(is_news(present, seen.as_ref()), expected);
    }

    /// Somebody else has set one of them.
    #[test]
    fn conditions_rest_on_the_node_as_it_is_now() {
        let foreign = json!({ "type": "DrainInProgress", "status": "True", "reason": "KubectlDrain" });
        let present = node(
            "n1",
            json!({ "metadata": { "resourceVersion": "7" }, "status": { "conditions": [foreign] } }),
        );
        let patch = condition_patch(&fixture::parse(present), Some(Progress::InProgress), now()).unwrap();
        let drained =
            json!({ "type": "Drained", "status": "False", "reason": "DrainLockDraining", "lastTransitionTime": NOON });
        assert_eq!(patch["status"], json!({ "conditions": [drained] }));
        assert_eq!(patch["metadata"]["resourceVersion"], "7");
    }
}
