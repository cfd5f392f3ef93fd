//! Taking away what the demo made on a user's cluster: everything with the label of the run, the chart's release, and
//! what the cluster itself made because of it.

use std::collections::BTreeSet;
use std::fmt::Debug;
use std::time::Duration;

use anyhow::{Result, ensure};
use k8s_openapi::api::coordination::v1::Lease;
use k8s_openapi::api::core::v1::{Event, Namespace, Node, Pod};
use kube::ResourceExt;
use kube::api::{Api, DeleteParams, ListParams, Patch, PatchParams};
use nodeward_testkit::progress::Progress;
use nodeward_testkit::{unless_gone, wait};
use serde::de::DeserializeOwned;
use serde_json::json;

use super::environment::Environment;

/// How long the cluster's controllers may take to empty a namespace.
const GONE_WITHIN: Duration = Duration::from_mins(2);

/// How often, and how far apart, Events are looked for.
const ROUNDS: usize = 5;
const LATE_EVENTS: Duration = Duration::from_secs(3);

/// Removes everything, and says what. Nothing stops at the first error: what can be removed is.
pub async fn remove(env: &Environment) -> Result<()> {
    let progress = Progress::begin("removing what the demo made");
    let mut failures = Vec::new();
    let mut removed = Vec::new();
    let mut note = |what: &str, outcome: Result<usize>| match outcome {
        Ok(0) => {}
        Ok(count) => removed.push(format!("{count} {what}")),
        Err(error) => failures.push(format!("{what}: {error:#}")),
    };
    progress.step("the chart's release");
    note("release", release(env).await);
    progress.step("namespaces and all that is in them");
    note("namespaces", namespaces(env).await);
    progress.step("nodes");
    env.stop_kubelets();
    let mut visitors = BTreeSet::new();
    note("nodes", nodes(env, &mut visitors).await);
    progress.step("Events about the nodes");
    note("Events", events(env, &visitors).await);
    if removed.is_empty() {
        removed.push("there was nothing".to_owned());
    }
    progress.done(&removed.join(", "));
    ensure!(
        failures.is_empty(),
        "not all could be removed:\n  {}\nTo try again: cargo xtask demo --kubeconfig {} --remove",
        failures.join("\n  "),
        env.cluster.kubeconfig().display(),
    );
    Ok(())
}

async fn release(env: &Environment) -> Result<usize> {
    let namespaces: Api<Namespace> = Api::all(env.client());
    let release = env.release();
    if namespaces.get_opt(release.namespace()).await?.is_none() {
        return Ok(0);
    }
    match release.uninstall(&env.cluster).await {
        Ok(()) => Ok(1),
        // The demo ended before it was installed.
        Err(error) if error.to_string().contains("not found") => Ok(0),
        Err(error) => Err(error),
    }
}

async fn namespaces(env: &Environment) -> Result<usize> {
    let namespaces: Api<Namespace> = Api::all(env.client());
    let ours = ListParams::default().labels(&env.ours());
    let all = names(&namespaces, &ours).await?;
    for name in &all {
        unless_gone(namespaces.delete(name, &DeleteParams::default()).await)?;
    }
    wait::until("the namespaces to be gone", GONE_WITHIN, || async {
        for name in &all {
            empty(&Api::namespaced(env.client(), name)).await?;
        }
        let left = names(&namespaces, &ours).await?;
        ensure!(left.is_empty(), "{left:?}");
        Ok(())
    })
    .await?;
    Ok(all.len())
}

async fn names<K>(api: &Api<K>, selected: &ListParams) -> Result<Vec<String>>
where
    K: kube::Resource + Clone + Debug + DeserializeOwned,
{
    let objects = api.list_metadata(selected).await?;
    Ok(objects.iter().map(ResourceExt::name_any).collect())
}

/// Deletes pods without grace, whatever keeps them: no process belongs to them.
async fn empty(pods: &Api<Pod>) -> Result<()> {
    let all = pods.list_metadata(&ListParams::default()).await?;
    for pod in all.iter().filter(|pod| !pod.finalizers().is_empty()) {
        let free = Patch::Merge(json!({ "metadata": { "finalizers": null } }));
        unless_gone(pods.patch(&pod.name_any(), &PatchParams::default(), &free).await)?;
    }
    let now = DeleteParams::default().grace_period(0);
    pods.delete_collection(&now, &ListParams::default()).await?;
    Ok(())
}

/// `visitors` gets the UIDs of pods that are not the demo's and were on its nodes.
async fn nodes(env: &Environment, visitors: &mut BTreeSet<String>) -> Result<usize> {
    let nodes: Api<Node> = Api::all(env.client());
    let leases: Api<Lease> = Api::namespaced(env.client(), "kube-node-lease");
    let pods: Api<Pod> = Api::all(env.client());
    let ours = ListParams::default().labels(&env.ours());
    let all = names(&nodes, &ours).await?;
    for name in &all {
        unless_gone(nodes.delete(name, &DeleteParams::default()).await)?;
        unless_gone(leases.delete(name, &DeleteParams::default()).await)?;
    }
    // The pods of the cluster's own DaemonSets, which came because the nodes did. Now no new ones come.
    let now = DeleteParams::default().grace_period(0);
    for name in &all {
        let on_node = ListParams::default().fields(&format!("spec.nodeName={name}"));
        for pod in pods.list_metadata(&on_node).await? {
            let namespaced: Api<Pod> = Api::namespaced(env.client(), &pod.namespace().unwrap_or_default());
            visitors.extend(pod.uid());
            unless_gone(namespaced.delete(&pod.name_any(), &now).await)?;
        }
    }
    Ok(all.len())
}

/// Events about the nodes, which are in `default`, and about visiting pods. The last are written when the nodes go.
async fn events(env: &Environment, visitors: &BTreeSet<String>) -> Result<usize> {
    let events: Api<Event> = Api::all(env.client());
    let mut removed = 0;
    // Bounded: nothing that is gone has anything to tell for long.
    for _ in 0..ROUNDS {
        let mut found = 0;
        for event in events.list(&ListParams::default()).await? {
            let about = &event.involved_object;
            let of_node = about.kind.as_deref() == Some("Node")
                && about.name.as_ref().is_some_and(|name| name.starts_with(&env.prefix));
            if of_node || about.uid.as_ref().is_some_and(|uid| visitors.contains(uid)) {
                let namespaced: Api<Event> = Api::namespaced(env.client(), &event.namespace().unwrap_or_default());
                unless_gone(namespaced.delete(&event.name_any(), &DeleteParams::default()).await)?;
                found += 1;
            }
        }
        removed += found;
        if found == 0 {
            break;
        }
        // Events are sent in the background, up to some seconds late.
        tokio::time::sleep(LATE_EVENTS).await;
    }
    Ok(removed)
}
