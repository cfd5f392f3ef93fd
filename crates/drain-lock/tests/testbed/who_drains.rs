//! Whose evictions from a cordoned node are its drain.

use std::collections::BTreeSet;

use anyhow::{Context, Result, ensure};
use k8s_openapi::api::policy::v1::PodDisruptionBudget;
use kube::api::ListParams;
use kube::{Api, Client, ResourceExt};
use nodeward_api::node_drain::Phase;
use nodeward_api::reason::LockReason;
use nodeward_testkit::fleet;
use nodeward_testkit::kubectl::Kubectl;
use nodeward_testkit::proxy::{Fault, Proxy, Rule};
use nodeward_testkit::wait::{self, secs};
use nodeward_testkit::workload::{self, PodTemplate};
use serde_json::{Value, json};

use crate::drain_keeper::{OVERRIDES, cordon, counts, start_keeper};
use crate::environment::{APPS, Environment, Lock, RELEASE, SYSTEM};
use crate::reviewed::{Eviction, Reviewed};

/// What a tenant may do.
fn evicting() -> Value {
    json!({ "apiGroups": [""], "resources": ["pods/eviction"], "verbs": ["create"] })
}

fn changing_nodes(verb: &str) -> Value {
    json!({ "apiGroups": [""], "resources": ["nodes"], "verbs": [verb] })
}

/// An application of so many pods on one node, and a budget of one.
async fn add_on(env: &Environment, app: &str, node: &str, pods: usize) -> Result<()> {
    let template = PodTemplate::new().node_selector("kubernetes.io/hostname", node);
    env.add_deployment(app, pods, template).await
}

/// Evicts the pod of an application that has one.
async fn evict_only_pod(env: &Environment, app: &str, client: &Client) -> Result<crate::reviewed::Evicted> {
    let pod = workload::ready_pods(&env.client, APPS, app, 1, secs(60))
        .await?
        .remove(0);
    Eviction::of(&pod.name_any()).by(client).await
}

async fn reviewed_users(lock: &Lock, outcome: &str) -> Result<f64> {
    let metrics = lock.metrics().await?;
    Ok(metrics.sum("nodeward_drain_lock_drainer_reviews_total", &[("outcome", outcome)]))
}

async fn no_drain_is_filed(env: &Environment) -> Result<()> {
    let drains = env.drains().list(&ListParams::default()).await?.items;
    ensure!(drains.is_empty(), "a drain was asked for: {drains:?}");
    Ok(())
}

/// Beside drain-keeper as it is configured for EKS: a node with a NodeDrain is one that drain-keeper empties by force.
#[tokio::test(flavor = "multi_thread")]
async fn tenants_eviction_from_cordoned_node_takes_one_pod() -> Result<()> {
    let (reviewed, lock) = Reviewed::with(&["n1", "n2"], json!({})).await?;
    let env = &reviewed.env;
    add_on(env, "mine", "n1", 3).await?;
    add_on(env, "theirs", "n1", 3).await?;
    let budgets: Api<PodDisruptionBudget> = Api::namespaced(env.client.clone(), APPS);
    let theirs = budgets.get("theirs").await?;
    let keeper = start_keeper(env, json!({ "countsAsDrain": "nodeDrain" })).await?;
    cordon(env, "n1").await?;
    let tenant = "system:serviceaccount:apps:tenant";
    reviewed.permit(tenant, json!([evicting()])).await?;
    let client = reviewed.client_of(tenant).await?;

    let mut stay: BTreeSet<String> = BTreeSet::new();
    let mut evicted = None;
    for pod in env.pods_on("n1").await? {
        if evicted.is_none() && pod.name_any().starts_with("mine") {
            evicted = Some(pod);
        } else {
            stay.insert(pod.name_any());
        }
    }
    let evicted = evicted.context("no pod")?;
    wait::until("the tenant's eviction to be admitted", secs(60), || async {
        let told = Eviction::of(&evicted.name_any()).by(&client).await?;
        ensure!(told.is_admitted(), "{told:?}");
        Ok(())
    })
    .await?;
    workload::gone(&env.client, &evicted, secs(60)).await?;
    ensure!(reviewed_users(&lock, "no-drainer").await? > 0.5, "nobody was asked");
    let gates = [("gate", "NotDraining")];
    counts(&keeper, "nodeward_drain_keeper_nodes", &gates, 1.0).await?;
    wait::throughout("the others stay", secs(10), || async {
        let there: BTreeSet<String> = reviewed.pods_on("n1").await?.into_iter().collect();
        ensure!(stay.is_subset(&there), "{stay:?} of {there:?}");
        no_drain_is_filed(env).await?;
        let now = budgets.get("theirs").await?;
        let told = |budget: &PodDisruptionBudget| {
            let status = budget.status.as_ref();
            let status = status.map(|status| (status.disruptions_allowed, status.disrupted_pods.clone()));
            (budget.metadata.annotations.clone(), status)
        };
        ensure!(told(&now) == told(&theirs), "{now:?}");
        Ok(())
    })
    .await?;
    let overrides = keeper.metrics().await?.sum(OVERRIDES, &[]);
    ensure!(overrides < 0.5, "a budget was overridden");
    keeper.stop(secs(30)).await?;

    // An administrator's drain of the same node is one.
    let kubectl = Kubectl::of(&env.plane)?;
    let said = kubectl.start(["drain", "n1", "--ignore-daemonsets"])?;
    let event = env.event("n1", LockReason::DrainRequested, secs(60)).await?;
    ensure!(event.contains("kubectl uncordon n1"), "{event}");
    ensure!(event.contains("kubectl delete nodedrain n1"), "{event}");
    let requesters = env.drains().get("n1").await?.spec.requesters;
    ensure!(
        requesters.len() == 1 && requesters[0].name.starts_with("eviction:"),
        "{requesters:?}"
    );
    said.process().kill();
    env.uncordon("n1").await?;
    env.released("n1", secs(120)).await?;
    reviewed.end([lock]).await
}

/// The Machine Config Operator and kured may patch nodes and no more, the cluster autoscaler may update them and no more.
#[tokio::test(flavor = "multi_thread")]
async fn users_who_may_change_nodes_file_drains() -> Result<()> {
    let keeper = format!("system:serviceaccount:{SYSTEM}:{RELEASE}-drain-keeper");
    let users = [
        ("n1", "patcher", json!([evicting(), changing_nodes("patch")]), true),
        ("n2", "updater", json!([evicting(), changing_nodes("update")]), true),
        ("n3", "also", json!([evicting()]), true),
        ("n4", "reader", json!([evicting(), changing_nodes("get")]), false),
        ("n5", "never", json!([evicting(), changing_nodes("patch")]), false),
        ("n6", &keeper, json!([evicting(), changing_nodes("patch")]), false),
    ];
    let nodes: Vec<&str> = users.iter().map(|(node, ..)| *node).collect();
    let config = json!({ "auto": { "alsoDrainers": ["also"], "neverDrainers": ["never"] } });
    let (reviewed, lock) = Reviewed::with(&nodes, config).await?;
    let env = &reviewed.env;
    for (node, user, rules, _) in &users {
        add_on(env, &format!("on-{node}"), node, 1).await?;
        fleet::cordon(&env.client, node).await?;
        reviewed.permit(user, rules.clone()).await?;
    }
    for (node, user, _, is_drainer) in &users {
        let client = reviewed.client_of(user).await?;
        let app = format!("on-{node}");
        wait::until(format!("the eviction by {user} to be decided"), secs(60), || async {
            let told = evict_only_pod(env, &app, &client).await?;
            if *is_drainer {
                env.drains().get(node).await?;
                return Ok(());
            }
            ensure!(told.is_admitted(), "{told:?}");
            Ok(())
        })
        .await
        .with_context(|| lock.process().log_tail(20))?;
    }
    let filed: BTreeSet<String> = env
        .drains()
        .list(&ListParams::default())
        .await?
        .into_iter()
        .map(|drain| drain.name_any())
        .collect();
    let expected: BTreeSet<String> = ["n1", "n2", "n3"].map(str::to_owned).into();
    ensure!(filed == expected, "{filed:?}");
    for node in ["n1", "n2", "n3"] {
        env.uncordon(node).await?;
        env.released(node, secs(60)).await?;
    }
    reviewed.end([lock]).await
}

/// Neither an API server that says nothing nor one that refuses to say anything keeps an eviction waiting, and a claim's
/// disruptions stay with it.
#[tokio::test(flavor = "multi_thread")]
async fn evictions_are_answered_without_word_on_their_user() -> Result<()> {
    let nodes = ["n1", "n2", "n3"];
    let reviewed = Reviewed::new(&nodes, json!({})).await?;
    let env = &reviewed.env;
    env.add_pinned("shared", &nodes).await?;
    add_on(env, "slow", "n2", 1).await?;
    add_on(env, "refused", "n2", 1).await?;
    let proxy = Proxy::start(&env.plane).await?;
    let lock = env.run(reviewed.spec(&json!({}))?.through(&proxy.url())).await?;
    reviewed.is_asked().await?;
    env.drain("n1", json!({})).await?;
    env.phase("n1", Phase::Drained, secs(90)).await?;
    let held = env.pods_on("n2").await?;
    let held = held
        .iter()
        .map(ResourceExt::name_any)
        .find(|name| name.starts_with("shared"));
    let held = held.context("no pod")?;
    fleet::cordon(&env.client, "n2").await?;
    for (app, fault, outcome) in [
        ("refused", Fault::Status(403, "Forbidden"), "forbidden"),
        ("slow", Fault::Delay(secs(3600)), "failed"),
    ] {
        proxy.inject(Rule::new(fault).resource("subjectaccessreviews"));
        let client = reviewed.client_as(&format!("admin-{app}")).await?;
        // It is drain-lock that answers, in time: without its answer the API server would have admitted the eviction. What is
        // refused at once is known by then.
        if outcome == "failed" {
            wait::until("the first answer", secs(60), || async {
                evict_only_pod(env, app, &client).await?.is_to_wait("NotPlanned")
            })
            .await?;
        }
        wait::until(
            format!("the eviction to be judged like any other ({outcome})"),
            secs(90),
            || async {
                let protected = Eviction::of(&held).by(&client).await?;
                ensure!(
                    protected.status == 429,
                    "another drain's disruption was taken: {protected:?}"
                );
                let told = evict_only_pod(env, app, &client).await?;
                ensure!(told.is_admitted(), "{told:?}");
                Ok(())
            },
        )
        .await?;
        let protected = Eviction::of(&held).by(&client).await?;
        protected.is_to_wait("WaitsForDisruptions")?;
        ensure!(reviewed_users(&lock, outcome).await? > 0.5, "{outcome} is not counted");
        proxy.heal();
    }
    let admitted = lock.metrics().await?;
    let unknown = [("decision", "admitted"), ("reason", "unknown-user")];
    let admitted = admitted.sum("nodeward_drain_lock_eviction_reviews_total", &unknown);
    ensure!(admitted > 1.5, "{admitted} evictions by unknown users");
    ensure!(env.drains().get_opt("n2").await?.is_none(), "a drain was asked for");
    // Once the API server says it, the same user drains the node.
    let client = reviewed.client_as("admin-slow").await?;
    wait::until("the drain to be asked for", secs(60), || async {
        Eviction::of(&held).by(&client).await?;
        Ok(env.drains().get("n2").await?)
    })
    .await?;
    reviewed.end([lock]).await
}
