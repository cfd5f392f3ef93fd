//! What a grant rests on, read by quorum: the budgets, and the pods that they select.

use std::collections::BTreeSet;

use futures::future::try_join_all;
use jiff::Timestamp;
use k8s_openapi::api::core::v1::Pod;
use k8s_openapi::api::policy::v1::PodDisruptionBudget;
use kube::Api;
use kube::api::ListParams;
use nodeward_api::drain_ledger::Claim;
use nodeward_core::id::{BudgetKey, PodKey};
use nodeward_core::ledger::{BudgetFacts, Facts};
use nodeward_core::selector::Selector;

use crate::observe::{Covered, facts_of, project_budget, project_pod};
use crate::snapshot::PodFacts;

use super::Means;

/// The budgets that a claim needs or holds units of.
pub(super) fn budgets_of(claim: &Claim) -> impl Iterator<Item = BudgetKey> {
    let units = claim.needs.iter().chain(&claim.holds);
    units.map(|units| BudgetKey::new(units.pdb.namespace.as_str(), units.pdb.name.as_str()))
}

/// These budgets as they are now, put over what the watches say of the others.
pub(super) async fn facts(means: &Means, seen: &Facts, keys: &BTreeSet<BudgetKey>) -> Result<Facts, kube::Error> {
    let read = try_join_all(keys.iter().map(|key| budget(means, key))).await?;
    let mut facts = seen.clone();
    for (key, fresh) in keys.iter().zip(read) {
        match fresh {
            Some(fresh) => facts.insert(key.clone(), fresh),
            None => facts.remove(key),
        };
    }
    Ok(facts)
}

async fn budget(means: &Means, key: &BudgetKey) -> Result<Option<BudgetFacts>, kube::Error> {
    let client = &means.clients.requests;
    let budgets: Api<PodDisruptionBudget> = Api::namespaced(client.clone(), &key.namespace);
    let Some(budget) = budgets.get_opt(&key.name).await? else {
        return Ok(None);
    };
    let Some(entry) = project_budget(&budget) else {
        return Ok(None);
    };
    let selected: Vec<PodFacts> = if entry.view.selector == Selector::NOTHING {
        Vec::new()
    } else {
        // Without a resource version a list is a quorum read.
        let pods: Api<Pod> = Api::namespaced(client.clone(), &key.namespace);
        let selected = ListParams::default().labels(&entry.view.selector.to_string());
        pods.list(&selected)
            .await?
            .items
            .iter()
            .filter_map(project_pod)
            .collect()
    };
    let now = Timestamp::now();
    let covered = selected.iter().map(|pod| Covered {
        pod,
        twice: means.world.budgets_of(pod).len() > 1,
    });
    let owner_units = means.world.owner_units(&entry, now);
    Ok(Some(facts_of(&entry, covered, owner_units, now)))
}

/// One of these pods that is there after all, and not on its way out.
pub(super) async fn still_there(means: &Means, gone: &[(PodKey, String)]) -> Result<Option<PodKey>, kube::Error> {
    let looks = gone.iter().map(async |(key, uid)| {
        let pods: Api<Pod> = Api::namespaced(means.clients.requests.clone(), &key.namespace);
        let pod = pods.get_metadata_opt(&key.name).await?;
        let is_there = pod.is_some_and(|pod| {
            pod.metadata.uid.as_deref() == Some(uid.as_str()) && pod.metadata.deletion_timestamp.is_none()
        });
        Ok::<_, kube::Error>(is_there.then(|| key.clone()))
    });
    Ok(try_join_all(looks).await?.into_iter().flatten().next())
}
