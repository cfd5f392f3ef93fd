//! Opt-outs that the administrator limits, and where it says who was forced in spite of them.

use anyhow::{Context, Result, ensure};
use k8s_openapi::api::core::v1::Namespace;
use k8s_openapi::api::events::v1::Event;
use k8s_openapi::api::policy::v1::PodDisruptionBudget;
use kube::ResourceExt;
use kube::api::{Api, ListParams, Patch, PatchParams};
use nodeward_api::annotation::LAST_OVERRIDE;
use nodeward_api::last_override::LastOverride;
use nodeward_core::hold;
use nodeward_testkit::drainers::{ClusterApi, node_of};
use nodeward_testkit::proxy::{Proxy, Record, Verb};
use nodeward_testkit::wait::{self, secs};
use nodeward_testkit::{ControlPlane, Options, bulk, fleet, names, workload};
use serde_json::json;

use crate::environment::{ENVIRONMENT, Environment, an_hour_ago, is_untouched, managed};
use crate::explanations::event_that_names;

/// Kinds of the objects about which there is an Event with this reason that names the pod, or is about it.
async fn told_of(env: &Environment<'_>, pod: &str, reason: &str) -> Result<Vec<String>> {
    let events: Api<Event> = Api::all(env.client.clone());
    let pod = format!("{}/{pod}", env.name);
    let about = |event: Event| {
        let regarding = event.regarding?;
        let own = format!("{}/{}", regarding.namespace.unwrap_or_default(), regarding.name?);
        let is_about = own == pod || event.note?.contains(&format!("pod {pod} "));
        (event.reason.as_deref() == Some(reason) && is_about).then_some(regarding.kind?)
    };
    let all = events.list(&ListParams::default()).await?;
    let mut kinds: Vec<String> = all.items.into_iter().filter_map(about).collect();
    kinds.sort();
    kinds.dedup();
    Ok(kinds)
}

#[tokio::test(flavor = "multi_thread")]
async fn unhonoured_opt_outs_are_overridden_and_told() -> Result<()> {
    let limits = json!({ "optOuts": { "namespaces": { "selector": { "opt-outs": "honoured" } } } });
    let env = Environment::with(ControlPlane::shared().await, json!({ "config": limits })).await?;
    let node = env.add_node("a").await?;
    let opted_out = |name: &str| {
        managed(&node)
            .label("app", name)
            .label("nodeward.dev/drain", "wait-completed")
    };
    // In a namespace whose opt-outs count.
    let honoured = names::unique("honoured");
    env.plane.namespace(&honoured).await?;
    let namespaces: Api<Namespace> = Api::all(env.client.clone());
    let labels = json!({ "metadata": { "labels": { "opt-outs": "honoured" } } });
    namespaces
        .patch(&honoured, &PatchParams::default(), &Patch::Merge(labels))
        .await?;
    let waits = bulk::create_one(env.client.clone(), opted_out("waits").pod(&honoured, "waits")?).await?;
    let [forced] = env.add_pods([("forced", opted_out("forced"))]).await?;
    env.add_budget(env.tight("forced", 1), 1).await?;
    let budgets: Api<PodDisruptionBudget> = Api::namespaced(env.client.clone(), &env.name);
    let hold = json!({ "metadata": { "annotations": { nodeward_api::annotation::HOLD: "audit" } } });
    budgets
        .patch("forced", &PatchParams::default(), &Patch::Merge(hold))
        .await?;
    ensure!(
        nodeward_core::budget::BudgetView::project(&budgets.get("forced").await?)
            .as_ref()
            .and_then(hold::of_annotation)
            .is_some(),
        "its owner holds it"
    );

    let mut config = limits.clone();
    config["pdbForceDrainTimeout"] = json!("1s");
    let keeper = env.start(config).await?;
    fleet::cordon_since(&env.client, &node, an_hour_ago()).await?;
    workload::gone(&env.client, &forced, secs(60)).await?;
    wait::until("Events on the pod, its budget and its node", secs(60), || async {
        let ignored = told_of(&env, "forced", "OptOutIgnored").await?;
        ensure!(ignored == ["Pod"], "{ignored:?}");
        let overridden = told_of(&env, "forced", "BudgetOverridden").await?;
        ensure!(overridden == ["Node", "Pod", "PodDisruptionBudget"], "{overridden:?}");
        Ok(())
    })
    .await?;
    let mut budget = budgets.get("forced").await?;
    let record = budget.annotations().get(LAST_OVERRIDE).context("no record")?;
    let record = LastOverride::parse(record)?;
    ensure!(
        (record.strategy.as_str(), record.signal.as_str()) == ("PdbDelete", "always"),
        "{record:?}"
    );
    ensure!(record.replica == keeper.process().name(), "{record:?}");
    // Of a replica whose clock is wrong it would count from the same moment: the server tells when it took the record in.
    let wrong = LastOverride {
        at: jiff::Timestamp::UNIX_EPOCH,
        ..record.clone()
    };
    budget
        .annotations_mut()
        .insert(LAST_OVERRIDE.to_owned(), wrong.to_string());
    let counts = nodeward_core::budget::BudgetView::project(&budget)
        .and_then(|view| view.last_override)
        .context("no record")?
        .at;
    let apart = counts.duration_since(record.at).abs();
    ensure!(
        apart < jiff::SignedDuration::from_mins(1),
        "{counts} is not {}",
        record.at
    );
    let pods: Api<k8s_openapi::api::core::v1::Pod> = Api::namespaced(env.client.clone(), &honoured);
    wait::throughout("the pod whose opt-out counts", secs(3), || async {
        is_untouched(&pods, &waits).await
    })
    .await?;
    env.end([keeper]).await
}

/// Nothing else changes meanwhile: the end of the protection wakes drain-keeper.
#[tokio::test(flavor = "multi_thread")]
async fn pod_is_forced_once_karpenters_duration_has_passed() -> Result<()> {
    let env = Environment::new().await?;
    let node = env.add_node("a").await?;
    let protected = managed(&node).annotation("karpenter.sh/do-not-disrupt", "40s");
    let [pod] = env.add_pods([("protected", protected)]).await?;
    let start = pod.status.as_ref().and_then(|status| status.start_time.as_ref());
    let start = start.context("it has not started")?.0;
    let keeper = env.start(json!({})).await?;
    fleet::cordon_since(&env.client, &node, an_hour_ago()).await?;
    event_that_names(&env, &node, "WaitCompleted", &["karpenter.sh/do-not-disrupt"]).await?;
    workload::gone(&env.client, &pod, secs(120)).await?;
    let evictions = env.requests()?.only(|request| request.resource == "pods/eviction");
    let first = evictions.0.iter().map(|request| request.received).min();
    let first = first.context("it was not evicted")?;
    ensure!(
        start + jiff::SignedDuration::from_secs(40) <= first,
        "started {start}, evicted {first}"
    );
    env.end([keeper]).await
}

/// Cluster API itself drains the node of a Machine that is deleted. It leaves the pod of its rule alone, and so does drain-keeper,
/// which forces another that a budget keeps.
#[tokio::test(flavor = "multi_thread")]
async fn machine_drain_rule_keeps_pod_until_it_goes() -> Result<()> {
    let plane = ControlPlane::start(Options::patient()).await?;
    let cluster = ClusterApi::start(&plane).await?;
    let values = json!({ "config": { "upgradeSignal": { "preset": "clusterApi" } } });
    let env = Environment::with(&plane, values).await?;
    cluster
        .add_machines("workers", 1, json!({ "nodeDrainTimeoutSeconds": 0 }))
        .await?;
    let machines = cluster.machines("pool=workers").await?;
    let machine = machines.first().context("no Machine")?;
    let node = node_of(machine).context("it has no node")?;
    fleet::label(&env.client, node, ENVIRONMENT, Some(&env.name)).await?;
    let rule = |behavior: &str| {
        json!({
            "drain": { "behavior": behavior },
            "machines": [{ "selector": { "matchLabels": { "pool": "workers" } } }],
            "pods": [{
                "selector": { "matchLabels": { "app": "job" } },
                "namespaceSelector": { "matchLabels": { "kubernetes.io/metadata.name": env.name } },
            }],
        })
    };
    cluster.drain_rule("jobs", rule("WaitCompleted")).await?;
    let labelled = |app: &str| managed(node).label("app", app);
    let [job, web] = env
        .add_pods([("job", labelled("job")), ("web", labelled("web"))])
        .await?;
    env.add_budget(env.tight("web", 1), 1).await?;
    let keeper = env
        .start(json!({
            "upgradeSignal": { "preset": "clusterApi" }, "countsAsDrain": null,
            "pdbForceDrainTimeout": "1s",
        }))
        .await?;
    cluster.delete_machine(&machine.name_any()).await?;
    workload::gone(&env.client, &web, secs(120))
        .await
        .with_context(|| keeper.process().log_tail(40))?;
    event_that_names(&env, node, "WaitCompleted", &["MachineDrainRule machines/jobs"]).await?;
    is_untouched(&env.pods(), &job).await?;
    // The rule goes: Cluster API evicts the pod, and deletes the node.
    cluster.drain_rule("jobs", rule("Drain")).await?;
    workload::gone(&env.client, &job, secs(120)).await?;
    env.end([keeper]).await
}

/// The labels by which opt-outs count in a namespace are read before a budget is overridden: no watch shows them yet.
#[tokio::test(flavor = "multi_thread")]
async fn unseen_opt_out_forces_nothing() -> Result<()> {
    let limits = json!({ "optOuts": { "namespaces": { "selector": { "opt-outs": "honoured" } } } });
    let env = Environment::with(ControlPlane::shared().await, json!({ "config": limits })).await?;
    let node = env.add_node("a").await?;
    let asked = managed(&node).label("nodeward.dev/drain", "wait-completed");
    let [asked] = env.add_pods([("asked", asked)]).await?;
    env.add_budget(env.tight("asked", 1), 1).await?;
    let proxy = Proxy::start(env.plane).await?;
    let mut config = limits.clone();
    config["pdbForceDrainTimeout"] = json!("25s");
    let keeper = env.run(env.spec(&config).through(&proxy.url())).await?;
    fleet::cordon(&env.client, &node).await?;
    env.clock_that(&node, "runs", |_| true).await?;
    wait::until("its opt-out to be ignored", secs(60), || async {
        let ignored = told_of(&env, "asked", "OptOutIgnored").await?;
        ensure!(ignored == ["Pod"], "{ignored:?}");
        Ok(())
    })
    .await?;
    proxy.freeze().await?;
    let mark = proxy.mark();
    let namespaces: Api<Namespace> = Api::all(env.client.clone());
    let labels = json!({ "metadata": { "labels": { "opt-outs": "honoured" } } });
    namespaces
        .patch(&env.name, &PatchParams::default(), &Patch::Merge(labels))
        .await?;
    wait::until("its namespace to be asked for", secs(120), || async {
        let seen = proxy.since(mark);
        let asks = |Record { request, .. }: &Record| {
            request.verb == Verb::Get && request.resource == "namespaces" && request.name == env.name
        };
        ensure!(seen.iter().any(asks), "{seen:?}");
        Ok(())
    })
    .await?;
    wait::throughout("the pod whose opt-out counts now", secs(5), || async {
        is_untouched(&env.pods(), &asked).await
    })
    .await?;
    let written = env.requests()?.only(|request| request.name == "asked").writes();
    let forced = written.only(|request| request.resource != "pods/eviction");
    ensure!(forced.count() == 0, "{:?}", forced.0);
    env.end([keeper]).await
}
