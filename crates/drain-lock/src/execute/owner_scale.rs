//! How many pods there should be of a budget whose `minAvailable` is a number: its own status counts those that exist, and
//! one that is down no longer does. Their owners are asked, as the disruption controller asks them for other budgets.

use std::collections::BTreeMap;

use futures::future::try_join_all;
use k8s_openapi::api::apps::v1::ReplicaSet;
use kube::core::{ApiResource, DynamicObject, GroupVersionKind};
use kube::{Api, Client, ResourceExt};
use nodeward_core::ledger::BudgetRow;
use nodeward_core::pod::OwnerView;

use crate::snapshot::PodFacts;

/// How many pods there should be, and who owns them.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct OwnerScale {
    pub expected_pods: i32,
    /// As the ledger keeps them.
    pub owners: Vec<String>,
}

/// How Jobs are written. They have no scale, and end: there should be as many pods of one as there are.
const JOBS: &str = "batch/v1/Job/";

/// What an owner has answered.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Answer {
    Pods(i32),
    /// It exists no more.
    Gone,
    /// It has no scale, may not be read, or is another one of that name.
    Unknown,
}

/// Asks the owners of these pods, and those that the ledger has named, each once. If one of them does not tell, there should
/// be as many pods as were ever seen: those that are there, and the `down` ones that claims hold.
pub(super) async fn read(
    client: &Client,
    namespace: &str,
    row: Option<&BudgetRow>,
    pods: &[PodFacts],
    down: usize,
) -> Result<OwnerScale, kube::Error> {
    let kept_up = || pods.iter().filter(|pod| pod.is_kept_up());
    let controllers: BTreeMap<&str, &OwnerView> = kept_up()
        .filter_map(|pod| pod.owner.as_deref())
        .map(|owner| (&*owner.uid, owner))
        .collect();
    let tops = try_join_all(
        controllers
            .into_values()
            .map(|owner| top_owner(client, namespace, owner)),
    )
    .await?;
    let mut owners: BTreeMap<String, Option<String>> = BTreeMap::new();
    owners.extend(
        row.iter()
            .flat_map(|row| &row.owners)
            .map(|owner| (owner.clone(), None)),
    );
    owners.extend(tops.into_iter().map(|(owner, uid)| (owner, Some(uid))));
    let pods_of = |uid: &str| {
        let is_its = |pod: &&PodFacts| pod.owner.as_deref().is_some_and(|owner| *owner.uid == *uid);
        i32::try_from(kept_up().filter(is_its).count()).unwrap_or(i32::MAX)
    };
    let answers = owners.iter().map(async |(owner, uid)| {
        let uid = uid.as_deref();
        if owner.starts_with(JOBS) {
            return Ok(uid.map_or(Answer::Gone, |uid| Answer::Pods(pods_of(uid))));
        }
        ask(client, namespace, owner, uid).await
    });
    let answers = try_join_all(answers).await?;
    let total = answers.iter().try_fold(0_i32, |sum, answer| match answer {
        Answer::Pods(pods) => Some(sum.saturating_add(*pods)),
        Answer::Gone => Some(sum),
        Answer::Unknown => None,
    });
    let seen = || {
        let present = i32::try_from(kept_up().count() + down).unwrap_or(i32::MAX);
        present.max(row.and_then(|row| row.expected_pods).unwrap_or_default())
    };
    let stays = |answer: Answer| answer != Answer::Gone && answer != Answer::Pods(0);
    let owners = owners.into_keys().zip(answers);
    Ok(OwnerScale {
        expected_pods: total.unwrap_or_else(seen),
        owners: owners
            .filter(|(_, answer)| stays(*answer))
            .map(|(owner, _)| owner)
            .collect(),
    })
}

/// Whoever scales the pods of this controller, with its UID: of a ReplicaSet its own controller, if it has one.
async fn top_owner(client: &Client, namespace: &str, owner: &OwnerView) -> Result<(String, String), kube::Error> {
    let own = || {
        (
            written(&owner.api_version, &owner.kind, &owner.name),
            owner.uid.to_string(),
        )
    };
    if (&*owner.api_version, &*owner.kind) != ("apps/v1", "ReplicaSet") {
        return Ok(own());
    }
    let sets: Api<ReplicaSet> = Api::namespaced(client.clone(), namespace);
    let set = match sets.get_metadata_opt(&owner.name).await {
        Err(kube::Error::Api(status)) if status.code == 403 => None,
        read => read?,
    };
    let set = set.filter(|set| set.metadata.uid.as_deref() == Some(&*owner.uid));
    let references = set.iter().flat_map(ResourceExt::owner_references);
    let mut controllers = references.filter(|reference| reference.controller == Some(true));
    let top = controllers
        .next()
        .map(|top| (written(&top.api_version, &top.kind, &top.name), top.uid.clone()));
    Ok(top.unwrap_or_else(own))
}

/// Kinds of Kubernetes itself that have a scale, so that one that is not found is gone.
fn own_kind(kind: &str) -> Option<GroupVersionKind> {
    match kind {
        "Deployment" | "StatefulSet" | "ReplicaSet" => Some(GroupVersionKind::gvk("apps", "v1", kind)),
        "ReplicationController" => Some(GroupVersionKind::gvk("", "v1", kind)),
        _ => None,
    }
}

/// An owner as the ledger names it.
fn written(api_version: &str, kind: &str, name: &str) -> String {
    let is_own = own_kind(kind).is_some_and(|own| own.api_version() == api_version);
    if is_own {
        format!("{kind}/{name}")
    } else {
        format!("{api_version}/{kind}/{name}")
    }
}

/// Reads what [`written`] wrote.
fn parse(owner: &str) -> Option<(GroupVersionKind, &str)> {
    let parts: Vec<&str> = owner.split('/').collect();
    match *parts.as_slice() {
        [kind, name] => Some((own_kind(kind)?, name)),
        [version, kind, name] => Some((GroupVersionKind::gvk("", version, kind), name)),
        [group, version, kind, name] => Some((GroupVersionKind::gvk(group, version, kind), name)),
        _ => None,
    }
}

/// The scale of one owner. One that only the ledger names is known by its name alone.
async fn ask(client: &Client, namespace: &str, owner: &str, uid: Option<&str>) -> Result<Answer, kube::Error> {
    let Some((kind, name)) = parse(owner) else {
        return Ok(Answer::Unknown);
    };
    let owners: Api<DynamicObject> = Api::namespaced_with(client.clone(), namespace, &ApiResource::from_gvk(&kind));
    let scale = match owners.get_scale(name).await {
        Ok(scale) => scale,
        Err(kube::Error::Api(status)) if status.code == 404 && own_kind(&kind.kind).as_ref() == Some(&kind) => {
            // Its pods are yet to follow it.
            return Ok(if uid.is_some() { Answer::Unknown } else { Answer::Gone });
        }
        Err(kube::Error::Api(status)) if matches!(status.code, 403..=405) => return Ok(Answer::Unknown),
        Err(error) => return Err(error),
    };
    if uid.is_some() && scale.metadata.uid.as_deref() != uid {
        return Ok(Answer::Unknown);
    }
    // No replicas are not written.
    let replicas = scale.spec.and_then(|spec| spec.replicas).unwrap_or_default();
    Ok(Answer::Pods(replicas.max(0)))
}

#[cfg(test)]
mod tests;
