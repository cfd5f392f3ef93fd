//! What a write of the ledger rests on, read by quorum: the budgets and the pods that they select, and the pods and
//! drains that were taken for gone.

use std::collections::BTreeSet;

use futures::future::try_join_all;
use jiff::Timestamp;
use k8s_openapi::api::core::v1::Pod;
use k8s_openapi::api::policy::v1::PodDisruptionBudget;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use kube::Api;
use kube::api::ListParams;
use nodeward_api::NodeDrain;
use nodeward_core::id::{BudgetKey, NodeName, NodeUid, PodKey};
use nodeward_core::ledger::{BudgetFacts, Facts};
use nodeward_core::selector::Selector;

use crate::observe::{budget_facts, project_budget};
use crate::snapshot::PodFacts;

use super::ExecutorContext;

/// These budgets as they are now, put over what the watches say of the others.
pub(super) async fn facts(context: &ExecutorContext, keys: &BTreeSet<BudgetKey>) -> Result<Facts, kube::Error> {
    let read = try_join_all(keys.iter().map(|key| budget(context, key))).await?;
    let mut facts = context.pass.snapshot.facts.clone();
    for (key, fresh) in keys.iter().zip(read) {
        match fresh {
            Some(fresh) => facts.insert(key.clone(), fresh),
            None => facts.remove(key),
        };
    }
    Ok(facts)
}

async fn budget(context: &ExecutorContext, key: &BudgetKey) -> Result<Option<BudgetFacts>, kube::Error> {
    let budgets: Api<PodDisruptionBudget> = context.api_in(&key.namespace);
    let budget = budgets.get_opt(&key.name).await?;
    let Some(entry) = budget.as_ref().and_then(project_budget) else {
        return Ok(None);
    };
    let mut selected = Vec::new();
    if entry.view.selector != Selector::NOTHING {
        // Without a resource version a list is a quorum read.
        let labels = ListParams::default().labels(&entry.view.selector.to_string());
        selected = context.api_in::<Pod>(&key.namespace).list(&labels).await?.items;
    }
    let selected: Vec<PodFacts> = selected.iter().filter_map(PodFacts::project).collect();
    let (now, cache) = (Timestamp::now(), &context.pass.cache);
    let pods = selected.iter().map(|pod| {
        let budgets = cache.budgets_of(pod);
        let is_closed = budgets.iter().any(|budget| budget.is_closed_by_ceph());
        (pod, budgets.len() > 1 && !is_closed)
    });
    let owner_disruptions = cache.owner_disruptions(&entry, now);
    Ok(Some(budget_facts(
        &entry,
        pods,
        context.pass.snapshot.claims(),
        owner_disruptions,
        now,
    )))
}

/// A drain of one of these nodes that is there after all, and goes on. What the plan saw and did not take for theirs is no
/// news.
pub(super) async fn still_drained(
    context: &ExecutorContext,
    absent: &[(NodeName, NodeUid)],
) -> Result<Option<NodeName>, kube::Error> {
    let (drains, seen) = (context.api::<NodeDrain>(), &context.pass.snapshot);
    let looks = absent.iter().map(async |(node, uid)| {
        let drain = drains.get_opt(node.as_str()).await?;
        let known = seen.drains.get(node).and_then(|drain| drain.metadata.uid.as_deref());
        let is_there = drain.is_some_and(|drain| drains_on(&drain, uid, known));
        Ok::<_, kube::Error>(is_there.then(|| node.clone()))
    });
    Ok(try_join_all(looks).await?.into_iter().flatten().next())
}

/// Whether it is for this node, and goes on. One that nobody has adopted yet names no node: it means the one of its name,
/// unless it is the one of this UID, which was seen and not taken for the claim's.
fn drains_on(drain: &NodeDrain, uid: &NodeUid, known: Option<&str>) -> bool {
    let is_meant = match drain.spec.node_uid.as_deref() {
        Some(meant) => meant == uid.as_str(),
        None => drain.metadata.uid.as_deref() != known,
    };
    is_meant && goes_on(&drain.metadata)
}

/// Whether it is not being deleted.
pub(super) fn goes_on(metadata: &ObjectMeta) -> bool {
    metadata.deletion_timestamp.is_none()
}

/// One of these pods that is there after all, and not on its way out.
pub(super) async fn still_there(
    context: &ExecutorContext,
    gone: &[(PodKey, String)],
) -> Result<Option<PodKey>, kube::Error> {
    let looks = gone.iter().map(async |(key, uid)| {
        let pods: Api<Pod> = context.api_in(&key.namespace);
        let pod = pods.get_metadata_opt(&key.name).await?;
        let is_there = pod.is_some_and(|pod| {
            pod.metadata.uid.as_deref() == Some(uid.as_str()) && pod.metadata.deletion_timestamp.is_none()
        });
        Ok::<_, kube::Error>(is_there.then(|| key.clone()))
    });
    Ok(try_join_all(looks).await?.into_iter().flatten().next())
}

#[cfg(test)]
mod tests {
    use rstest::rstest;
    use serde_json::{Value, json};

    use super::*;
    use crate::tests::fixture::{merged, parse};

    #[rstest]
    #[case::it_is(json!({}), None, true)]
    #[case::nobody_has_adopted_it_yet(json!({ "spec": { "nodeUID": null } }), None, true)]
    #[case::another_was_seen(json!({}), Some("uid-before"), true)]
    #[case::it_was_seen_before_it_was_adopted(json!({}), Some("uid-drain"), true)]
    #[case::it_was_seen_and_not_taken_for_the_claims(json!({ "spec": { "nodeUID": null } }), Some("uid-drain"), false)]
    #[case::it_is_for_a_node_that_had_the_name_before(json!({ "spec": { "nodeUID": "uid-before" } }), None, false)]
    #[case::it_is_over(json!({ "metadata": { "deletionTimestamp": "2026-01-01T12:00:00Z" } }), None, false)]
    fn a_drain_that_is_there_is_not_gone(#[case] patch: Value, #[case] known: Option<&str>, #[case] expected: bool) {
        let drain = json!({ "metadata": { "name": "n1", "uid": "uid-drain" }, "spec": { "nodeName": "n1", "nodeUID": "uid-n1" } });
        let drain = parse(merged(drain, patch));
        assert_eq!(drains_on(&drain, &NodeUid::from("uid-n1"), known), expected);
    }
}
