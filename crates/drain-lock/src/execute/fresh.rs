//! What a write of the ledger rests on, read by quorum: the budgets, the pods that they select and the holds of their
//! owners, and the pods and drains that were taken for gone.
//!
//! A read that fails, or is not over in time, speaks against the claims alone that rest on it.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Debug;
use std::time::Duration;

use futures::future::{join, join_all, join3};
use jiff::Timestamp;
use k8s_openapi::api::coordination::v1::Lease;
use k8s_openapi::api::core::v1::{Node, Pod};
use k8s_openapi::api::policy::v1::PodDisruptionBudget;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use kube::api::ListParams;
use kube::{Api, Client, Resource};
use nodeward_api::{BudgetRef, DisruptionHold, NodeDrain};
use nodeward_core::id::{BudgetKey, NodeName, NodeUid, PodUid};
use nodeward_core::ledger::{BudgetFacts, Claim, Disruptions, Facts, HeldPod, Ledger};
use nodeward_core::selector::Selector;
use nodeward_runtime::ApiError;
use serde::de::DeserializeOwned;
use tokio::time::timeout;

use crate::observe::{ClusterCache, Kept, budget_facts, owner_disruptions, project_budget, project_hold, project_node};
use crate::plan::need::Class;
use crate::plan::recovery::is_replaced;
use crate::plan::residents::{Resident, in_the_way};
use crate::plan::{CalledOff, DrainedAsk, GonePod, LedgerWrite};
use crate::snapshot::{BudgetEntry, HoldFacts, PodFacts};

use super::owner_scale::{self, OwnerScale};
use super::{ActionResult, ExecutorContext};

/// How long the reads for one claim may take: the others' grants wait for them.
const READ_WITHIN: Duration = Duration::from_secs(10);

/// Objects that are read at once. A budget may select thousands of pods, of which little is kept.
const PAGE: u32 = 500;

/// Where kubelets renew a lease each, by the name of its node.
const KUBELET_LEASES: &str = "kube-node-lease";

/// What was read, and the claims that it does not bear out.
pub struct Read {
    /// The budgets as they are now, put over what the watches say of the others.
    pub facts: Facts,
    /// By node: what could not be read, or is not so.
    pub doubted: BTreeMap<NodeUid, ActionResult>,
    /// How many pods there should be of budgets whose status does not tell.
    pub scales: Vec<(BudgetRef, OwnerScale)>,
}

/// A budget as it was read.
pub(crate) struct FreshBudget {
    pub(crate) facts: BudgetFacts,
    pdb: BudgetRef,
    /// Its pods that have neither ended nor are on their way out.
    running: BTreeSet<PodUid>,
    /// Where its own status does not tell how many pods there should be.
    scale: Option<OwnerScale>,
}

/// Whether the owners of pods are asked for their scale.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Scales {
    Read,
    Keep,
}

pub(crate) type ReadResult<T> = Result<T, ApiError>;

/// Reads what the grants, confirmations and returned disruptions of this write rest on.
pub(super) async fn read(context: &ExecutorContext, write: &LedgerWrite) -> Read {
    let granted = write.grants.iter().map(|ask| &ask.node_uid);
    let asked = granted.chain(write.confirms.iter().map(|ask| &ask.node_uid));
    let claims: Vec<(&NodeUid, &Claim)> = asked
        .filter_map(|uid| Some((uid, write.next.claim(uid.as_str())?)))
        .collect();
    let staying: Vec<(&NodeUid, &Claim)> = write
        .drained
        .iter()
        .filter_map(|ask| Some((&ask.node_uid, write.next.claim(ask.node_uid.as_str())?)))
        .collect();
    let of_claims = claims.iter().flat_map(|(_, claim)| claim.budgets());
    let kept: BTreeSet<BudgetKey> = of_claims
        .chain(staying.iter().flat_map(|(_, claim)| budgets_of_retained(claim)))
        .collect();
    let counted = write.gone.iter().filter_map(|gone| gone.by_number_of.as_ref());
    let keys: BTreeSet<BudgetKey> = kept
        .iter()
        .cloned()
        .chain(counted.map(BudgetKey::from))
        .chain(write.scales.iter().cloned())
        .chain(without_scale(context, write))
        .collect();
    let taken_for_granted = join3(
        join_all(gone_by_name(write).map(|gone| in_time(contradicts_gone(context, gone)))),
        join_all(
            write
                .called_off
                .iter()
                .map(|called_off| in_time(contradicts_called_off(context, called_off))),
        ),
        join_all(
            write
                .absent
                .iter()
                .map(|absent| in_time(contradicts_absent(context, absent))),
        ),
    );
    let residents = join_all(
        write
            .drained
            .iter()
            .map(|ask| in_time(contradicts_drained(context, write, ask))),
    );
    let (cache, client) = (&context.pass.cache, &context.pass.clients.requests);
    let ledger = write.base.as_ref().map(|facts| &facts.ledger);
    let budgets = budgets(client, cache, ledger, &keys, &kept, Scales::Read);
    let (budgets, residents, (gone, called_off, absent)) = join3(budgets, residents, taken_for_granted).await;
    let mut doubted = BTreeMap::new();
    for (uid, claim) in claims {
        let failures = claim.budgets().filter_map(|key| budgets.get(&key)?.as_ref().err());
        doubted.extend(failures.map(|error| (uid.clone(), ActionResult::Failed(error.clone()))));
    }
    for (uid, claim) in staying {
        let failures = budgets_of_retained(claim).filter_map(|key| budgets.get(&key)?.as_ref().err().cloned());
        doubted.extend(failures.map(|error| (uid.clone(), ActionResult::Failed(error))));
    }
    let drained = write.drained.iter().map(|ask| &ask.node_uid).zip(residents);
    let gone = gone_by_name(write).map(|gone| &gone.node_uid).zip(gone);
    let called_off = write
        .called_off
        .iter()
        .map(|called_off| &called_off.node_uid)
        .zip(called_off);
    let absent = write.absent.iter().map(|(_, uid)| uid).zip(absent);
    let numbers = write.gone.iter().map(|gone| {
        let answer = contradicts_number(context, write, gone, &budgets);
        (&gone.node_uid, answer)
    });
    for (uid, answer) in drained.chain(gone).chain(called_off).chain(absent).chain(numbers) {
        let doubt = match answer {
            Ok(None) => continue,
            Ok(Some(contradiction)) => ActionResult::Outdated(contradiction),
            Err(error) => ActionResult::Failed(error),
        };
        doubted.insert(uid.clone(), doubt);
    }
    let mut facts = context.pass.snapshot.facts.clone();
    let mut scales = Vec::new();
    for (key, fresh) in budgets {
        match fresh {
            Ok(Some(fresh)) => {
                scales.extend(fresh.scale.map(|scale| (fresh.pdb, scale)));
                facts.insert(key, fresh.facts);
            }
            Ok(None) => _ = facts.remove(&key),
            // Nothing is granted or confirmed by it.
            Err(_) => {}
        }
    }
    Read { facts, doubted, scales }
}

/// The budgets that claims need from now on, and that count their present pods alone: they enter the ledger with the scale of
/// their pods' owners.
fn without_scale<'a>(context: &'a ExecutorContext, write: &'a LedgerWrite) -> impl Iterator<Item = BudgetKey> + 'a {
    let needed = write.next.claims().iter().flat_map(|claim| &claim.needs);
    let is_unknown = |pdb: &&BudgetRef| {
        let entry = context.pass.snapshot.budgets.get(&BudgetKey::from(*pdb));
        let row = write.next.budget_row(pdb);
        entry.is_some_and(|entry| entry.counts_present_pods && *entry.view.uid == *pdb.uid)
            && row.is_none_or(|row| row.expected_pods.is_none())
    };
    needed.map(|need| &need.pdb).filter(is_unknown).map(BudgetKey::from)
}

/// The pods that were taken for gone of which the pods of no budget tell.
fn gone_by_name(write: &LedgerWrite) -> impl Iterator<Item = &GonePod> {
    write.gone.iter().filter(|gone| gone.by_number_of.is_none())
}

/// That the budget's pods, as they were read just now, do not tell that this one is gone, and that there is another in its place.
fn contradicts_number(
    context: &ExecutorContext,
    write: &LedgerWrite,
    gone: &GonePod,
    budgets: &BTreeMap<BudgetKey, ReadResult<Option<FreshBudget>>>,
) -> ReadResult<Option<String>> {
    let Some(pdb) = &gone.by_number_of else {
        return Ok(None);
    };
    let fresh = match budgets.get(&BudgetKey::from(pdb)) {
        Some(Ok(fresh)) => fresh.as_ref(),
        Some(Err(error)) => return Err(error.clone()),
        None => return Ok(None),
    };
    if fresh.is_some_and(|fresh| fresh.running.contains(gone.uid.as_str())) {
        return Ok(Some(is_there(gone)));
    }
    let ledger = write.base.as_deref();
    let claim = ledger.and_then(|facts| facts.ledger.claim(gone.node_uid.as_str()));
    let mut holds = claim
        .iter()
        .flat_map(|claim| &claim.holds)
        .filter(|held| held.pdb == *pdb);
    let is_replaced = holds.any(|held| {
        let mut pods = held.pods.iter().filter(|pod| pod.uid == gone.uid);
        let facts = fresh.map(|fresh| &fresh.facts);
        pods.any(|pod| is_replaced(held, pod, ledger, facts, &context.pass.snapshot.held))
    });
    Ok((!is_replaced).then(|| {
        format!(
            "no pod of budget {} is in the place of {}",
            BudgetKey::from(pdb),
            gone.key
        )
    }))
}

async fn in_time<T>(read: impl Future<Output = Result<T, kube::Error>>) -> ReadResult<T> {
    let answer = timeout(READ_WITHIN, read).await;
    answer.map_or(Err(ApiError::Timeout), |answer| answer.map_err(ApiError::from))
}

/// The budgets of which the claim holds disruptions for pods that stay on their node.
pub(crate) fn budgets_of_retained(claim: &Claim) -> impl Iterator<Item = BudgetKey> {
    let stays = |held: &&Disruptions| held.pods.iter().any(|pod| pod.retained);
    claim.holds.iter().filter(stays).map(|held| BudgetKey::from(&held.pdb))
}

/// These budgets with the pods that they select, as far as the ledger has them. Of those that are `kept` for a claim the holds of
/// their owners are read, too; of the others they are as the watch tells.
pub(crate) async fn budgets(
    client: &Client,
    cache: &ClusterCache,
    ledger: Option<&Ledger>,
    keys: &BTreeSet<BudgetKey>,
    kept: &BTreeSet<BudgetKey>,
    scales: Scales,
) -> BTreeMap<BudgetKey, ReadResult<Option<FreshBudget>>> {
    let namespaces: BTreeSet<&str> = keys.iter().map(|key| &*key.namespace).collect();
    let of_namespaces = namespaces.into_iter().map(async |namespace| {
        let of_namespace: Vec<&BudgetKey> = keys.iter().filter(|key| &*key.namespace == namespace).collect();
        let is_kept = of_namespace.iter().any(|key| kept.contains(*key));
        let holds = async {
            if is_kept {
                return in_time(holds(client, namespace)).await;
            }
            let watched = cache.owner_holds().into_iter();
            Ok(watched.map(|hold| HoldFacts::clone(&hold)).collect())
        };
        let budgets = in_time(entries(client, namespace, &of_namespace));
        let (holds, entries) = join(holds, budgets).await;
        join_all(of_namespace.into_iter().map(async |key| {
            let selected = match entries.as_ref().map(|entries| entries.get(key)) {
                Ok(Some(entry)) => in_time(selected(client, ledger, key, entry.clone(), scales))
                    .await
                    .map(Some),
                Ok(None) => Ok(None),
                Err(error) => Err(error.clone()),
            };
            (key, selected, holds.clone())
        }))
        .await
    });
    let read = join_all(of_namespaces).await.into_iter().flatten();
    let (now, server_time) = (Timestamp::now(), cache.server_time());
    let facts = read.map(|(key, selected, holds)| {
        let fresh = selected.and_then(|selected| {
            let holds = holds?;
            Ok(selected.map(|(entry, pods, scale)| {
                let running = pods.iter().filter(|pod| pod.deletion.is_none() && !pod.is_finished());
                let running = running.map(|pod| pod.uid.clone()).collect();
                let pods = pods.iter().map(|pod| {
                    let budgets = cache.budgets_of(pod);
                    let is_closed = budgets.iter().any(|budget| budget.is_closed_by_ceph());
                    (pod, budgets.len() > 1 && !is_closed)
                });
                let mut kept = Kept::of(&entry, ledger);
                kept.server_time = server_time;
                kept.expected_pods = scale.as_ref().map(|scale| scale.expected_pods).or(kept.expected_pods);
                FreshBudget {
                    facts: budget_facts(&entry, pods, kept, owner_disruptions(&entry, &holds, now), now),
                    pdb: entry.reference(),
                    running,
                    scale,
                }
            }))
        });
        (key.clone(), fresh)
    });
    facts.collect()
}

/// A hold that was made a moment ago counts before any watch tells of it.
async fn holds(client: &Client, namespace: &str) -> Result<Vec<HoldFacts>, kube::Error> {
    let holds: Api<DisruptionHold> = Api::namespaced(client.clone(), namespace);
    list(&holds, ListParams::default(), project_hold).await
}

/// Those of these budgets that there are, all of one namespace, in one request.
async fn entries(
    client: &Client,
    namespace: &str,
    keys: &[&BudgetKey],
) -> Result<BTreeMap<BudgetKey, BudgetEntry>, kube::Error> {
    let budgets: Api<PodDisruptionBudget> = Api::namespaced(client.clone(), namespace);
    let entries = match keys {
        [key] => {
            let budget = budgets.get_opt(&key.name).await?;
            budget.as_ref().and_then(project_budget).into_iter().collect()
        }
        _ => list(&budgets, ListParams::default(), project_budget).await?,
    };
    let by_key = entries.into_iter().map(|entry| (entry.view.key.clone(), entry));
    Ok(by_key.filter(|(key, _)| keys.contains(&key)).collect())
}

type ReadBudget = (BudgetEntry, Vec<PodFacts>, Option<OwnerScale>);

/// A budget with the pods that it selects.
async fn selected(
    client: &Client,
    ledger: Option<&Ledger>,
    key: &BudgetKey,
    entry: BudgetEntry,
    scales: Scales,
) -> Result<ReadBudget, kube::Error> {
    if entry.view.selector == Selector::NOTHING {
        return Ok((entry, Vec::new(), None));
    }
    let params = ListParams::default().labels(&entry.view.selector.to_string());
    let pods: Api<Pod> = Api::namespaced(client.clone(), &key.namespace);
    let selected = list(&pods, params, PodFacts::project).await?;
    if scales == Scales::Keep || !entry.counts_present_pods {
        return Ok((entry, selected, None));
    }
    let pdb = entry.reference();
    let claims = ledger.map(Ledger::claims).unwrap_or_default();
    let held = claims
        .iter()
        .flat_map(|claim| &claim.holds)
        .filter(|held| held.pdb == pdb);
    let is_down = |held: &&HeldPod| {
        !selected
            .iter()
            .any(|pod| pod.is_kept_up() && *pod.key.name == *held.name)
    };
    let down = held.flat_map(|held| &held.pods).filter(is_down).count();
    let row = ledger.and_then(|ledger| ledger.budget_row(&pdb));
    let scale = owner_scale::read(client, &key.namespace, row, &selected, down).await?;
    Ok((entry, selected, Some(scale)))
}

/// The pods of a node, but for those that have ended.
pub(crate) async fn residents(
    client: &Client,
    cache: &ClusterCache,
    node: &NodeName,
) -> Result<Vec<Resident>, kube::Error> {
    let on_node = format!("spec.nodeName={node},status.phase!=Succeeded,status.phase!=Failed");
    let pods: Api<Pod> = Api::all(client.clone());
    let pods = list(&pods, ListParams::default().fields(&on_node), PodFacts::project).await?;
    let (node, drain) = (cache.node(node.as_str()), cache.drain(node.as_str()));
    let now = Timestamp::now();
    let residents = pods.into_iter().map(|pod| {
        let budgets = cache.budgets_of(&pod);
        let class = Class::in_drain(&pod, node.as_deref(), drain.as_deref(), now);
        Resident {
            class,
            budgets: budgets.iter().map(|budget| budget.reference()).collect(),
            pod,
        }
    });
    Ok(residents.collect())
}

/// That a pod is there which the node may not go down over.
async fn contradicts_drained(
    context: &ExecutorContext,
    write: &LedgerWrite,
    ask: &DrainedAsk,
) -> Result<Option<String>, kube::Error> {
    let residents = residents(&context.pass.clients.requests, &context.pass.cache, &ask.node).await?;
    let claim = write.next.claim(ask.node_uid.as_str());
    Ok(claim.and_then(|claim| in_the_way(claim, &residents, &ask.unclaimed)))
}

/// All objects, page by page, of each of which only the projection is kept. Without a resource version it is a quorum read,
/// and all pages are of the moment of the first.
async fn list<K, V>(api: &Api<K>, params: ListParams, project: impl Fn(&K) -> Option<V>) -> Result<Vec<V>, kube::Error>
where
    K: Resource + Clone + DeserializeOwned + Debug,
{
    let mut params = params.limit(PAGE);
    let mut listed = Vec::new();
    loop {
        let page = api.list(&params).await?;
        listed.extend(page.items.iter().filter_map(&project));
        match page.metadata.continue_.filter(|token| !token.is_empty()) {
            Some(token) => params = params.continue_token(&token),
            None => return Ok(listed),
        }
    }
}

/// That a drain of this node is there after all, and goes on. What the plan saw and did not take for the claim's is no news.
async fn contradicts_absent(
    context: &ExecutorContext,
    (node, uid): &(NodeName, NodeUid),
) -> Result<Option<String>, kube::Error> {
    let drain = context.api::<NodeDrain>().get_opt(node.as_str()).await?;
    let seen = context.pass.snapshot.drains.get(node);
    let known = seen.and_then(|drain| drain.metadata.uid.as_deref());
    let is_there = drain.is_some_and(|drain| drains_on(&drain, uid, known));
    Ok(is_there.then(|| format!("the drain of node {node} was taken for gone and is there")))
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

/// That the node may yet go down, or has: its kubelet has not been heard of since, or the node has booted anew.
async fn contradicts_called_off(
    context: &ExecutorContext,
    called_off: &CalledOff,
) -> Result<Option<String>, kube::Error> {
    let CalledOff {
        node,
        node_uid,
        boot_id,
        since,
    } = called_off;
    let leases: Api<Lease> = context.api_in(KUBELET_LEASES);
    let lease = leases.get_opt(node.as_str()).await?;
    let renewed = lease.and_then(|lease| Some(lease.spec?.renew_time?.0));
    if renewed.is_none_or(|renewed| renewed <= *since) {
        return Ok(Some(format!(
            "the kubelet of node {node} has not renewed its lease since {since}"
        )));
    }
    let present = context.api::<Node>().get_opt(node.as_str()).await?;
    let present = present.as_ref().and_then(project_node);
    let is_same = present.is_some_and(|present| present.uid == *node_uid && present.boot_id == *boot_id);
    Ok((!is_same).then(|| format!("node {node} has booted anew, or is another one")))
}

/// That this pod is there after all, and neither on its way out nor ended: one that has ended starts no more, and may stay for
/// good where its controller makes another beside it.
async fn contradicts_gone(context: &ExecutorContext, gone: &GonePod) -> Result<Option<String>, kube::Error> {
    let pods: Api<Pod> = context.api_in(&gone.key.namespace);
    let pod = pods.get_opt(&gone.key.name).await?;
    let pod = pod.as_ref().and_then(PodFacts::project);
    let runs = pod.is_some_and(|pod| pod.uid.as_str() == gone.uid && pod.deletion.is_none() && !pod.is_finished());
    Ok(runs.then(|| is_there(gone)))
}

fn is_there(gone: &GonePod) -> String {
    format!("pod {} was taken for gone and is there", gone.key)
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
