//! Surges with the real Deployment controller: a singleton moves by its own rollout, and where that does not get Ready, or somebody
//! else has a hand in it, the pod goes by its own clock.

use std::time::Duration;

use anyhow::{Context, Result, ensure};
use k8s_openapi::api::apps::v1::Deployment;
use k8s_openapi::api::autoscaling::v1::Scale;
use k8s_openapi::api::core::v1::Pod;
use kube::api::{Api, ListParams, Patch, PatchParams};
use kube::{Client, ResourceExt};
use nodeward_api::annotation::{RESTARTED_AT, SURGED};
use nodeward_api::surge_record::SurgeRecord;
use nodeward_testkit::proxy::{Fault, Proxy, Rule, Verb};
use nodeward_testkit::wait::{self, secs};
use nodeward_testkit::workload::{self, PodTemplate, Start};
use nodeward_testkit::{ControlPlane, bulk, fleet};
use rstest::rstest;
use serde_json::{Value, json};

use crate::environment::{ENVIRONMENT, Environment, Keeper, an_hour_ago, is_untouched};
use crate::explanations::event_that_names;

/// Where Deployments may be told to roll.
async fn with_surges() -> Result<Environment<'static>> {
    let surge = json!({ "config": { "surge": { "enabled": true } } });
    Environment::with(ControlPlane::shared().await, surge).await
}

/// Surges that begin at once, and are given up after so many seconds.
fn surge(timeout: u32) -> Value {
    json!({ "enabled": true, "after": "1s", "timeout": format!("{timeout}s") })
}

/// Pods of a Deployment of this environment.
fn template(env: &Environment<'_>) -> PodTemplate {
    let probe = json!({ "httpGet": { "port": 80 } });
    let container = json!({ "name": "main", "image": "registry.example/app:1", "readinessProbe": probe });
    PodTemplate::new()
        .node_selector(ENVIRONMENT, &env.name)
        .grace(1)
        .spec("containers", json!([container]))
}

fn deployments(env: &Environment<'_>) -> Api<Deployment> {
    Api::namespaced(env.client.clone(), &env.name)
}

/// Makes Deployments with one replica, each under a budget that demands it. Gives their pods, which are on the only node.
async fn add_singletons<const N: usize>(
    env: &Environment<'_>,
    apps: [&str; N],
    template: PodTemplate,
    patch: &Value,
) -> Result<Vec<Pod>> {
    let mut pods = Vec::new();
    for app in apps {
        let mut deployment = serde_json::to_value(template.deployment(&env.name, app, 1)?)?;
        for (key, value) in patch.as_object().into_iter().flatten() {
            deployment["spec"][key] = value.clone();
        }
        bulk::create(&env.client, [serde_json::from_value::<Deployment>(deployment)?]).await?;
    }
    for app in apps {
        pods.extend(workload::ready_pods(&env.client, &env.name, app, 1, secs(60)).await?);
        env.add_budget(env.tight(app, 1), 1).await?;
        env.counts_healthy(app, 1).await?;
        available(env, app).await?;
    }
    Ok(pods)
}

async fn available(env: &Environment<'_>, app: &str) -> Result<()> {
    wait::until(format!("Deployment {app} to be available"), secs(60), || async {
        let status = deployments(env).get(app).await?.status.context("no status")?;
        ensure!(status.available_replicas == Some(1), "{status:?}");
        Ok(())
    })
    .await
}

async fn restarted_at(env: &Environment<'_>, app: &str) -> Result<Option<String>> {
    let template = deployments(env).get(app).await?.spec.context("no spec")?.template;
    let annotations = template.metadata.and_then(|metadata| metadata.annotations);
    Ok(annotations.and_then(|annotations| annotations.get(RESTARTED_AT).cloned()))
}

/// How often drain-keeper has written to Deployments.
fn restarts(env: &Environment<'_>) -> Result<usize> {
    let writes = env.requests()?.writes();
    Ok(writes
        .only(|request| request.resource == "deployments" && request.code == 200)
        .count())
}

async fn surges_ended(keeper: &Keeper, outcome: &str, count: f64) -> Result<()> {
    wait::until(format!("{count} surges {outcome}"), secs(60), || async {
        let metrics = keeper.metrics().await?;
        let now = metrics.sum("nodeward_drain_keeper_surges_total", &[("outcome", outcome)]);
        ensure!((now - count).abs() < 0.1, "{now}");
        Ok(())
    })
    .await
}

async fn is_recorded(env: &Environment<'_>, pod: &Pod) -> Result<SurgeRecord> {
    wait::until("the surge to be recorded", secs(60), || async {
        let pod = env.pods().get(&pod.name_any()).await?;
        let record = pod.annotations().get(SURGED).context("no record")?;
        Ok(SurgeRecord::parse(record)?)
    })
    .await
}

async fn says(env: &Environment<'_>, node: &str, text: &str) -> Result<()> {
    wait::until(format!("the condition to say {text:?}"), secs(60), || async {
        let condition = env.drain_blocked(node).await?.context("no condition")?;
        let message = condition.message.unwrap_or_default();
        ensure!(message.contains(text), "{message}");
        Ok(())
    })
    .await
}

/// Counts the moments at which no pod of the app is Ready, until it is dropped.
fn gaps(client: Client, namespace: String, app: &'static str) -> tokio::task::JoinHandle<usize> {
    tokio::spawn(async move {
        let pods: Api<Pod> = Api::namespaced(client, &namespace);
        let (of_app, mut gaps) = (ListParams::default().labels(&format!("app={app}")), 0);
        loop {
            let Ok(found) = pods.list(&of_app).await else { continue };
            if !found.iter().any(workload::is_ready) {
                gaps += 1;
            }
            if found
                .iter()
                .any(|pod| pod.annotations().contains_key("test.nodeward.dev/enough"))
            {
                return gaps;
            }
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
    })
}

#[tokio::test(flavor = "multi_thread")]
async fn singleton_moves_without_a_gap() -> Result<()> {
    let env = with_surges().await?;
    let node = env.add_node("a").await?;
    let slow = template(&env).start(Start::SlowReady(Duration::from_secs(2)));
    let [old] = <[Pod; 1]>::try_from(add_singletons(&env, ["web"], slow, &json!({})).await?)
        .ok()
        .context("one")?;
    let elsewhere = env.add_node("b").await?;
    let before = deployments(&env).get("web").await?;
    // A budget that is never to be overridden does not stand in its way.
    let keeper = env
        .start(json!({ "surge": surge(60), "overrideBudgets": "never" }))
        .await?;
    let gaps = gaps(env.client.clone(), env.name.clone(), "web");
    fleet::cordon_since(&env.client, &node, an_hour_ago()).await?;
    let record = is_recorded(&env, &old).await?;
    ensure!(
        Some(record.deployment.as_str()) == before.metadata.uid.as_deref(),
        "{record}"
    );
    ensure!(Some(record.generation) == before.metadata.generation, "{record}");
    event_that_names(
        &env,
        &old.name_any(),
        "SurgeBegun",
        &["Deployment", "revision 2 restarts 1; to roll back, name the revision"],
    )
    .await?;
    workload::gone(&env.client, &old, secs(60)).await?;
    let new = workload::ready_pods(&env.client, &env.name, "web", 1, secs(10))
        .await?
        .remove(0);
    let on = new.spec.as_ref().and_then(|spec| spec.node_name.as_deref());
    ensure!(on == Some(elsewhere.as_str()), "the new pod is on {on:?}");
    surges_ended(&keeper, "SurgeComplete", 1.0).await?;
    event_that_names(&env, &old.name_any(), "SurgeComplete", &[&node]).await?;
    workload::patch_metadata(
        &env.client,
        &env.name,
        &new.name_any(),
        json!({ "annotations": { "test.nodeward.dev/enough": "" } }),
    )
    .await?;
    ensure!(gaps.await? == 0, "no pod was Ready at some time");
    let after = deployments(&env).get("web").await?;
    ensure!(
        after.metadata.generation == before.metadata.generation.map(|generation| generation + 1),
        "{after:?}"
    );
    let managers = after.metadata.managed_fields.unwrap_or_default();
    ensure!(
        managers
            .iter()
            .any(|entry| entry.manager.as_deref() == Some("nodeward-drain-keeper")),
        "{managers:?}"
    );
    ensure!(restarts(&env)? == 1, "told to roll more than once");
    let evictions = env
        .requests()?
        .writes()
        .only(|request| request.resource == "pods/eviction" || request.verb == "delete");
    ensure!(evictions.count() == 0, "{:?}", evictions.0);
    env.end([keeper]).await
}

/// Where there is no node for the new pod, it stays Pending: the restart is taken back, the old pod stays until its own time.
#[tokio::test(flavor = "multi_thread")]
async fn rollout_that_gets_stuck_is_taken_back() -> Result<()> {
    let env = with_surges().await?;
    let node = env.add_node("a").await?;
    let pods = add_singletons(&env, ["web"], template(&env), &json!({})).await?;
    let keeper = env
        .start(json!({ "surge": surge(8), "pdbForceDrainTimeout": "60s" }))
        .await?;
    fleet::cordon(&env.client, &node).await?;
    says(&env, &node, "is being replaced by a rollout of its Deployment").await?;
    ensure!(restarted_at(&env, "web").await?.is_some(), "not told to roll");
    event_that_names(&env, &pods[0].name_any(), "SurgeStuck", &["got stuck"]).await?;
    wait::until("the restart to be taken back", secs(30), || async {
        ensure!(restarted_at(&env, "web").await?.is_none(), "still there");
        let listed = env.pods().list(&ListParams::default().labels("app=web")).await?;
        ensure!(listed.items.len() == 1, "{} pods", listed.items.len());
        Ok(())
    })
    .await?;
    is_untouched(&env.pods(), &pods[0]).await?;
    surges_ended(&keeper, "SurgeStuck", 1.0).await?;
    workload::gone(&env.client, &pods[0], secs(120)).await?;
    ensure!(restarts(&env)? == 2, "{} writes", restarts(&env)?);
    event_that_names(&env, &pods[0].name_any(), "BudgetOverridden", &[&node]).await?;
    env.end([keeper]).await
}

/// Something that somebody else does to a Deployment whose new pod is still to come.
#[derive(Clone, Copy, Debug)]
enum Foreign {
    Rollout,
    Undo,
    Scale,
}

#[rstest]
#[case::rollout(Foreign::Rollout, "SurgeOvertaken")]
#[case::undo(Foreign::Undo, "SurgeReverted")]
#[case::autoscaler(Foreign::Scale, "SurgeOvertaken")]
#[tokio::test(flavor = "multi_thread")]
async fn change_by_somebody_else_ends_the_surge(#[case] foreign: Foreign, #[case] outcome: &str) -> Result<()> {
    let env = with_surges().await?;
    let node = env.add_node("a").await?;
    let pods = add_singletons(&env, ["web"], template(&env), &json!({})).await?;
    let keeper = env.start(json!({ "surge": surge(60) })).await?;
    fleet::cordon(&env.client, &node).await?;
    says(&env, &node, "given up at").await?;
    let annotated = |value: Value| json!({ "spec": { "template": { "metadata": { "annotations": value } } } });
    let params = PatchParams::default();
    match foreign {
        Foreign::Rollout => {
            let patch = annotated(json!({ "example.com/release": "2" }));
            deployments(&env).patch("web", &params, &Patch::Merge(patch)).await?;
        }
        Foreign::Undo => {
            let patch = annotated(json!({ RESTARTED_AT: null }));
            deployments(&env).patch("web", &params, &Patch::Merge(patch)).await?;
        }
        Foreign::Scale => {
            let patch = json!({ "spec": { "replicas": 2 } });
            let _: Scale = deployments(&env)
                .patch_scale("web", &params, &Patch::Merge(patch))
                .await?;
        }
    }
    event_that_names(&env, &pods[0].name_any(), outcome, &["has not moved"]).await?;
    surges_ended(&keeper, outcome, 1.0).await?;
    says(&env, &node, outcome).await?;
    ensure!(restarts(&env)? == 1, "told to roll again");
    is_untouched_but_recorded(&env, &pods[0]).await?;
    env.end([keeper]).await
}

async fn is_untouched_but_recorded(env: &Environment<'_>, pod: &Pod) -> Result<()> {
    is_recorded(env, pod).await?;
    is_untouched(&env.pods(), pod).await
}

#[rstest]
#[case::paused(json!({ "paused": true }), "RolloutPaused")]
#[case::recreated(json!({ "strategy": { "type": "Recreate" } }), "NotNewFirst")]
#[tokio::test(flavor = "multi_thread")]
async fn deployment_that_may_not_roll_is_left_alone(#[case] patch: Value, #[case] obstacle: &str) -> Result<()> {
    let env = with_surges().await?;
    let node = env.add_node("a").await?;
    let mut later = json!({});
    let at_first = if obstacle == "RolloutPaused" {
        later["spec"] = patch;
        json!({})
    } else {
        patch
    };
    let pods = add_singletons(&env, ["web"], template(&env), &at_first).await?;
    env.add_node("b").await?;
    deployments(&env)
        .patch("web", &PatchParams::default(), &Patch::Merge(later))
        .await?;
    let keeper = env
        .start(json!({ "surge": surge(60), "pdbForceDrainTimeout": "30s" }))
        .await?;
    fleet::cordon(&env.client, &node).await?;
    says(&env, &node, obstacle).await?;
    is_untouched(&env.pods(), &pods[0]).await?;
    workload::gone(&env.client, &pods[0], secs(120)).await?;
    ensure!(restarts(&env)? == 0, "told to roll");
    env.end([keeper]).await
}

#[tokio::test(flavor = "multi_thread")]
async fn singletons_of_one_node_move_in_turn() -> Result<()> {
    let env = with_surges().await?;
    let node = env.add_node("a").await?;
    let pods = add_singletons(&env, ["a", "b", "c"], template(&env), &json!({})).await?;
    env.add_node("b").await?;
    let one_at_a_time = json!({ "enabled": true, "after": "1s", "timeout": "60s", "parallel": 1 });
    let keeper = env.start(json!({ "surge": one_at_a_time })).await?;
    fleet::cordon(&env.client, &node).await?;
    for pod in &pods {
        workload::gone(&env.client, pod, secs(90)).await?;
    }
    surges_ended(&keeper, "SurgeComplete", 3.0).await?;
    ensure!(restarts(&env)? == 3, "{} restarts", restarts(&env)?);
    env.end([keeper]).await
}

/// It ends between the record and the restart, and the next one goes on from the record.
#[tokio::test(flavor = "multi_thread")]
async fn restart_follows_its_record_once() -> Result<()> {
    let env = with_surges().await?;
    let proxy = Proxy::start(env.plane).await?;
    let node = env.add_node("a").await?;
    let pods = add_singletons(&env, ["web"], template(&env), &json!({})).await?;
    env.add_node("b").await?;
    let generation = deployments(&env).get("web").await?.metadata.generation;
    proxy.inject(
        Rule::new(Fault::Status(500, "InternalError"))
            .verbs([Verb::Patch])
            .resource("deployments"),
    );
    let first = env
        .run(env.spec(&json!({ "surge": surge(60) })).through(&proxy.url()))
        .await?;
    fleet::cordon(&env.client, &node).await?;
    let record = is_recorded(&env, &pods[0]).await?;
    ensure!(
        Some(record.generation) == generation && restarted_at(&env, "web").await?.is_none(),
        "{record}"
    );
    first.process().kill();
    let second = env.start(json!({ "surge": surge(60) })).await?;
    workload::gone(&env.client, &pods[0], secs(90)).await?;
    let now = deployments(&env).get("web").await?.metadata.generation;
    ensure!(now == generation.map(|before| before + 1), "{now:?}");
    ensure!(
        restarted_at(&env, "web").await?.as_deref() == Some(&*nodeward_core::deadline::to_the_second(record.at)),
        "{record}"
    );
    env.end([second]).await
}

#[tokio::test(flavor = "multi_thread")]
async fn nothing_is_told_to_roll_by_default() -> Result<()> {
    let env = Environment::new().await?;
    let node = env.add_node("a").await?;
    let pods = add_singletons(&env, ["web"], template(&env), &json!({})).await?;
    env.add_node("b").await?;
    let keeper = env.start(json!({})).await?;
    fleet::cordon(&env.client, &node).await?;
    says(&env, &node, "is covered by a budget that allows no disruption").await?;
    let pod_api = env.pods();
    let stays = || is_untouched(&pod_api, &pods[0]);
    wait::throughout("the pod to stay", secs(5), stays).await?;
    let read = env
        .requests()?
        .only(|request| request.group == "apps" && request.resource != "daemonsets");
    ensure!(read.count() == 0, "{:?}", read.0);
    env.end([keeper]).await
}

/// Whoever has its account can tell a Deployment to roll, and change nothing else of it.
#[tokio::test(flavor = "multi_thread")]
async fn account_may_change_the_annotation_alone() -> Result<()> {
    let env = with_surges().await?;
    env.add_node("a").await?;
    let annotated = template(&env).annotation("example.com/team", "shop");
    add_singletons(&env, ["web"], annotated, &json!({})).await?;
    let mut config = env.plane.config().await?;
    config.auth_info.impersonate = Some(format!(
        "system:serviceaccount:{}:{}-nodeward-drain-keeper",
        env.system, env.name
    ));
    config.default_retry = false;
    let as_keeper: Api<Deployment> = Api::namespaced(Client::try_from(config)?, &env.name);
    let template = |patch: Value| json!({ "spec": { "template": patch } });
    let annotations = |patch: Value| template(json!({ "metadata": { "annotations": patch } }));
    let refused = [
        template(json!({ "spec": { "containers": [{ "name": "main", "image": "registry.example/evil:1" }] } })),
        template(json!({ "spec": { "serviceAccountName": "admin" } })),
        template(json!({ "metadata": { "labels": { "a": "b" } } })),
        annotations(json!({ "example.com/team": "others" })),
        annotations(json!({ "example.com/team": null })),
        annotations(json!({ "example.com/new": "" })),
        annotations(json!({ RESTARTED_AT: "2026-01-01T00:00:00Z", "example.com/new": "" })),
        json!({ "spec": { "replicas": 2 } }),
        json!({ "spec": { "paused": true } }),
        json!({ "spec": { "minReadySeconds": 5 } }),
        json!({ "metadata": { "labels": { "a": "b" } } }),
        json!({ "metadata": { "annotations": { "a": "b" } } }),
        json!({ "metadata": { "finalizers": ["a.io/b"] } }),
    ];
    let patch_with =
        async |patch: &Value, params: PatchParams| as_keeper.patch("web", &params, &Patch::Merge(patch)).await;
    let patch = async |patch: &Value| patch_with(patch, PatchParams::default()).await;
    wait::until("the policy to be in force", secs(60), || async {
        // A change that came through before would be none when it is tried again.
        let params = PatchParams {
            dry_run: true,
            ..PatchParams::default()
        };
        let answer = patch_with(&refused[0], params).await;
        ensure!(
            answer
                .as_ref()
                .is_err_and(|error| error.to_string().contains("drain-keeper may")),
            "{answer:?}"
        );
        Ok(())
    })
    .await?;
    for change in &refused {
        let answer = patch(change).await;
        let is_refused = answer
            .as_ref()
            .is_err_and(|error| error.to_string().contains("drain-keeper may change"));
        ensure!(is_refused, "{change}: {answer:?}");
    }
    for change in [
        json!({ RESTARTED_AT: "2026-01-01T00:00:00Z" }),
        json!({ RESTARTED_AT: null }),
    ] {
        patch(&annotations(change.clone()))
            .await
            .with_context(|| change.to_string())?;
    }
    Ok(())
}
