//! Beside drain-keeper: it overrides budgets that drain-lock's webhook refuses for, and forces nothing before its turn.

use std::time::Duration;

use anyhow::{Context, Result, ensure};
use jiff::{SignedDuration, Timestamp};
use k8s_openapi::api::core::v1::Pod;
use k8s_openapi::api::policy::v1::PodDisruptionBudget;
use kube::{Api, ResourceExt};
use nodeward_api::disruption_hold::HoldPhase;
use nodeward_api::drain_clock::DrainClock;
use nodeward_api::node_drain::Phase;
use nodeward_api::reason::LockReason;
use nodeward_core::deadline::to_the_second;
use nodeward_testkit::helm::Release;
use nodeward_testkit::kubectl::Kubectl;
use nodeward_testkit::operator::{Operator, OperatorSpec};
use nodeward_testkit::wait::{self, secs};
use nodeward_testkit::workload::{self, Budget, End, PodTemplate, Start};
use nodeward_testkit::{bulk, fleet, reboot};
use serde_json::{Value, json};

use crate::environment::{APPS, Environment, RELEASE, SYSTEM, pinned};
use crate::holds;
use crate::reviewed::Reviewed;

const NODES: [&str; 3] = ["n1", "n2", "n3"];

/// drain-keeper of the same release of the chart, for which everything on cordoned nodes is due at once; `changes` come on top.
pub async fn start_keeper(env: &Environment, changes: Value) -> Result<Operator> {
    let mut config = json!({
        "nodeDrain": { "timeOut": "2s", "expectedNodeDrainTime": "1s" },
        "pdbForceDrainTimeout": "1s",
        "forceAfter": "2s",
        "upgradeSignal": "always",
        "overrideBudgets": "all",
        "countsAsDrain": "all",
    });
    for (field, value) in changes.as_object().into_iter().flatten() {
        config[field] = value.clone();
    }
    start_keeper_with(env, config).await
}

/// The same, configured by this alone.
async fn start_keeper_with(env: &Environment, config: Value) -> Result<Operator> {
    let keeper = json!({ "enabled": true, "deployment": { "enabled": false }, "config": config });
    Release::new(RELEASE, SYSTEM)
        .values(json!({ "drainKeeper": keeper }))
        .install_more(&env.plane)
        .await?;
    let keeper = OperatorSpec::new("drain-keeper", SYSTEM, "nodeward-drain-keeper")
        .config(&serde_yaml::to_string(&config)?)
        .start(&env.plane)
        .await?;
    keeper.ready(secs(60)).await?;
    Ok(keeper)
}

pub async fn cordon(env: &Environment, node: &str) -> Result<()> {
    let an_hour_ago = Timestamp::now() - SignedDuration::from_hours(1);
    fleet::cordon_since(&env.client, node, an_hour_ago).await
}

/// The only Ready pod of an application, and its node.
async fn only_pod(env: &Environment, app: &str) -> Result<(Pod, String)> {
    let pod = workload::ready_pods(&env.client, APPS, app, 1, secs(60))
        .await?
        .remove(0);
    let node = pod.spec.as_ref().and_then(|spec| spec.node_name.clone());
    Ok((pod, node.context("no node")?))
}

/// The drain clock of a node, once it is so.
async fn clock_of(env: &Environment, node: &str, is_so: impl Fn(&DrainClock) -> bool) -> Result<DrainClock> {
    wait::until(format!("the drain clock of {node}"), secs(60), || async {
        let node = env.nodes().get(node).await?;
        let clock = DrainClock::of(node.annotations()).context("no clock")??;
        ensure!(is_so(&clock), "{clock}");
        Ok(clock)
    })
    .await
}

/// Waits until drain-keeper counts so much.
pub async fn counts(keeper: &Operator, metric: &str, labels: &[(&str, &str)], count: f64) -> Result<()> {
    wait::until(format!("{metric}{labels:?} to be {count}"), secs(60), || async {
        let counted = keeper.metrics().await?.sum(metric, labels);
        ensure!((counted - count).abs() < 0.5, "{counted}");
        Ok(())
    })
    .await
}

pub const OVERRIDES: &str = "nodeward_drain_keeper_budget_overrides_total";

/// So many pods went by drain-keeper, which counts each once the API server has answered: later than its pod is gone.
async fn has_overridden(keeper: &Operator, times: f64) -> Result<()> {
    wait::until(format!("{times} overrides"), secs(60), || async {
        let overrides = keeper.metrics().await?.sum(OVERRIDES, &[]);
        ensure!((overrides - times).abs() < 0.5, "there are {overrides}");
        Ok(())
    })
    .await
}

/// Its budget has room all the while: only drain-lock refuses.
#[tokio::test(flavor = "multi_thread")]
async fn keeper_overrides_hold_that_it_does_not_honour() -> Result<()> {
    let (reviewed, lock) = Reviewed::with(&NODES, json!({})).await?;
    let env = &reviewed.env;
    bulk::create(&env.client, [PodTemplate::new().deployment(APPS, "a", 2)?]).await?;
    bulk::create(&env.client, [Budget::max_unavailable(APPS, "a", 1).of("a").build()?]).await?;
    let pods = workload::ready_pods(&env.client, APPS, "a", 2, secs(60)).await?;
    env.counts_healthy("a", 2).await?;
    holds::hold(env, "mine", "a", None).await?;
    holds::phase_of(env, "mine", HoldPhase::Capped).await?;
    let without_holds = json!({ "optOuts": { "honour": ["nodeward", "clusterApi", "karpenter"] } });
    let keeper = start_keeper(env, without_holds).await?;
    let node = pods[0].spec.as_ref().and_then(|spec| spec.node_name.as_deref());
    cordon(env, node.context("no node")?).await?;
    workload::gone(&env.client, &pods[0], secs(120)).await?;
    has_overridden(&keeper, 1.0).await?;
    keeper.stop(secs(30)).await?;
    reviewed.end([lock]).await
}

#[tokio::test(flavor = "multi_thread")]
async fn keeper_overrides_disruptions_of_drain_beyond_its_deadline() -> Result<()> {
    let (reviewed, lock) = Reviewed::with(&NODES, json!({})).await?;
    let env = &reviewed.env;
    // Two applications under one budget: the one goes down with its node, the other finds room elsewhere.
    let stays = PodTemplate::new().node_selector("kubernetes.io/hostname", "n2");
    let stays = stays.label("budget", "shared").deployment(APPS, "stays", 1)?;
    let moves = pinned("moves", &["n1", "n3"]).label("budget", "shared");
    bulk::create(&env.client, [stays, moves.deployment(APPS, "moves", 1)?]).await?;
    let shared = json!({ "matchLabels": { "budget": "shared" } });
    let budget = Budget::max_unavailable(APPS, "shared", 1).selector(shared);
    bulk::create(&env.client, [budget.build()?]).await?;
    let (moving, node) = only_pod(env, "moves").await?;
    env.counts_healthy("shared", 2).await?;
    let keeper = start_keeper(env, json!({})).await?;
    env.drain("n2", json!({ "deadlines": { "drain": "20s", "recover": "30s" } }))
        .await?;
    let drained = env.phase("n2", Phase::Drained, secs(60)).await?;
    let deadline = drained.deadline.context("no deadline")?;

    cordon(env, &node).await?;
    let blockers = "nodeward_drain_keeper_blockers";
    counts(&keeper, blockers, &[("reason", "BudgetHeld")], 1.0).await?;
    workload::gone(&env.client, &moving, secs(150)).await?;
    ensure!(deadline <= Timestamp::now(), "it was forced before {deadline}");
    has_overridden(&keeper, 1.0).await?;
    keeper.stop(secs(30)).await?;
    reviewed.end([lock]).await
}

#[tokio::test(flavor = "multi_thread")]
async fn keeper_forces_nothing_before_its_turn() -> Result<()> {
    let (reviewed, lock) = Reviewed::with(&NODES, json!({})).await?;
    let env = &reviewed.env;
    env.add_pinned("a", &NODES).await?;
    let keeper = start_keeper(env, json!({})).await?;
    env.drain("n2", json!({})).await?;
    env.phase("n2", Phase::Drained, secs(60)).await?;
    let waiting = env.pods_on("n1").await?.remove(0);

    let kubectl = Kubectl::of(&env.plane)?;
    let said = kubectl.start(["drain", "n1", "--ignore-daemonsets"])?;
    env.status_that("n1", "to wait for the other node", secs(60), |status| {
        let mut reasons = status.blocked_by.iter().map(|blocked| blocked.reason);
        reasons.any(|reason| reason == LockReason::WaitsForDisruptions)
    })
    .await?;
    counts(&keeper, "nodeward_drain_keeper_nodes", &[("gate", "WaitsForTurn")], 1.0).await?;
    let suspended = clock_of(env, "n1", |clock| clock.suspended_at.is_some()).await?;
    wait::throughout("its pod stays", secs(8), || async {
        let pod = env.pods_on("n1").await?.into_iter().next().context("it is gone")?;
        let has_ended = said.ended().is_some();
        ensure!(
            pod.metadata.deletion_timestamp.is_none() && !has_ended,
            "{}",
            said.text()
        );
        Ok(())
    })
    .await?;
    reboot::reboot(&env.client, "n2", secs(1)).await?;
    env.delete_drain("n2").await?;
    env.released("n2", secs(90)).await?;
    let moved = clock_of(env, "n1", |clock| clock.suspended_at.is_none()).await?;
    let waited = suspended
        .suspended_at
        .map(|since| Timestamp::now().duration_since(since));
    let later = moved.start.duration_since(suspended.start);
    ensure!(
        later.is_positive() && Some(later) <= waited,
        "{suspended} became {moved}"
    );
    workload::gone(&env.client, &waiting, secs(120)).await?;
    let overrides = keeper.metrics().await?.sum(OVERRIDES, &[]);
    ensure!(overrides < 0.5, "it was forced");
    keeper.stop(secs(30)).await?;
    reviewed.end([lock]).await
}

/// No other drain's end lets them go, so drain-lock's order keeps them only until that has lasted; and no other pod with them.
#[tokio::test(flavor = "multi_thread")]
async fn keeper_forces_pods_that_no_other_drain_helps() -> Result<()> {
    let config = json!({ "deadlines": { "obstacle": "3s" } });
    let (reviewed, lock) = Reviewed::with(&NODES, config).await?;
    let env = &reviewed.env;
    let of = |budget: &str| pinned(budget, &["n1"]).label("budget", budget);
    let crashing = pinned("crashing", &["n2"])
        .label("budget", "sick")
        .start(Start::CrashLoop);
    bulk::create(&env.client, [crashing.deployment(APPS, "crashing", 1)?]).await?;
    let mut pods = Vec::new();
    for (app, most) in [("never", 0), ("sick", 1), ("twice", 1), ("fine", 1)] {
        bulk::create(&env.client, [of(app).deployment(APPS, app, 1)?]).await?;
        let budget = Budget::max_unavailable(APPS, app, most).selector(json!({ "matchLabels": { "budget": app } }));
        bulk::create(&env.client, [budget.build()?]).await?;
        pods.push(only_pod(env, app).await?.0);
    }
    let again = Budget::max_unavailable(APPS, "again", 1).of("twice");
    bulk::create(&env.client, [again.build()?]).await?;
    env.counts_healthy("sick", 1).await?;
    let keeper = start_keeper(env, json!({})).await?;
    let kubectl = Kubectl::of(&env.plane)?;
    let drain = kubectl.start(["drain", "n1", "--ignore-daemonsets"])?;
    for pod in &pods {
        workload::gone(&env.client, pod, secs(120)).await?;
    }
    // The fourth one's budget lets it go: that pod goes under the claim.
    has_overridden(&keeper, 3.0).await.with_context(|| drain.text())?;
    keeper.stop(secs(30)).await?;
    reviewed.end([lock]).await
}

/// Two pods of a node are more than their budget spares, so drain-keeper forces the second. The third, of another node, waits for this
/// drain: it is not left out in its turn, and forced, while both are down.
#[tokio::test(flavor = "multi_thread")]
async fn what_keeper_forces_is_of_the_claim_of_its_node() -> Result<()> {
    let (reviewed, lock) = Reviewed::with(&NODES, json!({ "deadlines": { "obstacle": "3s" } })).await?;
    let env = &reviewed.env;
    let mut pods = Vec::new();
    for (app, node) in [("a", "n1"), ("b", "n1"), ("c", "n2")] {
        let template = pinned(app, &[node]).label("budget", "db");
        bulk::create(&env.client, [template.deployment(APPS, app, 1)?]).await?;
        pods.push(only_pod(env, app).await?.0);
    }
    let budget = Budget::max_unavailable(APPS, "db", 1).selector(json!({ "matchLabels": { "budget": "db" } }));
    bulk::create(&env.client, [budget.build()?]).await?;
    env.counts_healthy("db", 3).await?;
    let keeper = start_keeper(env, json!({ "overrideSpacing": "5s" })).await?;
    let kubectl = Kubectl::of(&env.plane)?;
    let first = kubectl.start(["drain", "n1", "--ignore-daemonsets"])?;
    for pod in &pods[..2] {
        workload::gone(&env.client, pod, secs(120)).await?;
    }
    has_overridden(&keeper, 1.0).await.with_context(|| first.text())?;

    let second = kubectl.start(["drain", "n2", "--ignore-daemonsets"])?;
    env.status_that("n2", "to wait for n1", secs(60), |status| {
        status
            .blocked_by
            .iter()
            .any(|one| one.reason == LockReason::WaitsForDisruptions && one.node.as_deref() == Some("n1"))
    })
    .await?;
    let running = Api::<Pod>::namespaced(env.client.clone(), APPS);
    wait::throughout("the last pod of the budget", secs(25), || async {
        let last = running.get(&pods[2].name_any()).await?;
        ensure!(last.metadata.deletion_timestamp.is_none(), "it goes: {}", second.text());
        Ok(())
    })
    .await?;
    env.uncordon("n1").await?;
    workload::gone(&env.client, &pods[2], secs(120)).await?;
    keeper.stop(secs(30)).await?;
    reviewed.end([lock]).await
}

/// A budget breaks after the grant, while another pod of the node ends slowly. Neither operator waits for the other: the drain goes
/// on without the pod, and drain-keeper forces it.
#[tokio::test(flavor = "multi_thread")]
async fn keeper_forces_pods_whose_budget_broke_after_the_grant() -> Result<()> {
    let config = json!({ "deadlines": { "obstacle": "3s" }, "eviction": { "maxParallel": 1 } });
    let (reviewed, lock) = Reviewed::with(&NODES, config).await?;
    let env = &reviewed.env;
    let slow = pinned("a-slow", &["n1"]).grace(30).end(End::Stuck);
    for (app, template) in [
        ("a-slow", slow),
        ("z1", pinned("z1", &["n1"])),
        ("z2", pinned("z2", &["n2"])),
    ] {
        let template = template.label("budget", &app[..1]);
        bulk::create(&env.client, [template.deployment(APPS, app, 1)?]).await?;
    }
    for name in ["a", "z"] {
        let budget = Budget::max_unavailable(APPS, name, 1).selector(json!({ "matchLabels": { "budget": name } }));
        bulk::create(&env.client, [budget.build()?]).await?;
    }
    let (last, _) = only_pod(env, "z1").await?;
    env.counts_healthy("a", 1).await?;
    env.counts_healthy("z", 2).await?;
    let keeper = start_keeper(env, json!({})).await?;
    env.drain("n1", json!({})).await?;
    env.status_that("n1", "to evict", secs(60), |status| {
        status.pods.is_some_and(|pods| pods.evicting == 1)
    })
    .await?;
    let crashing = pinned("crashing", &["n3"]).label("budget", "z").start(Start::CrashLoop);
    bulk::create(&env.client, [crashing.deployment(APPS, "crashing", 1)?]).await?;
    workload::gone(&env.client, &last, secs(120)).await?;
    let overridden = has_overridden(&keeper, 1.0).await;
    overridden.with_context(|| keeper.process().log_tail(30))?;
    keeper.stop(secs(30)).await?;
    reviewed.end([lock]).await
}

/// Both operators by their defaults: after the time that the drain names it goes on without the pods that cannot go, and nobody
/// forces these.
#[tokio::test(flavor = "multi_thread")]
async fn drain_goes_on_when_it_says_by_default() -> Result<()> {
    let (reviewed, lock) = Reviewed::with(&NODES, json!({})).await?;
    let env = &reviewed.env;
    let of = |app: &str, node: &str, budget: &str| pinned(app, &[node]).label("budget", budget);
    let crashing = of("crashing", "n2", "sick").start(Start::CrashLoop);
    bulk::create(&env.client, [crashing.deployment(APPS, "crashing", 1)?]).await?;
    let mut pods = Vec::new();
    for (app, most) in [("never", 0), ("sick", 1), ("fine", 1)] {
        bulk::create(&env.client, [of(app, "n1", app).deployment(APPS, app, 1)?]).await?;
        let budget = Budget::max_unavailable(APPS, app, most).selector(json!({ "matchLabels": { "budget": app } }));
        bulk::create(&env.client, [budget.build()?]).await?;
        pods.push(only_pod(env, app).await?.0);
    }
    env.counts_healthy("sick", 1).await?;
    let keeper = start_keeper_with(env, json!({})).await?;
    let drain = Kubectl::of(&env.plane)?.start(["drain", "n1", "--ignore-daemonsets"])?;
    let waiting = env
        .status_that("n1", "to say until when it waits", secs(60), |status| {
            status.leaves_out_at.is_some()
        })
        .await?;
    let named = waiting.leaves_out_at.context("no time")?;
    let said = format!("from {} on it goes on without", to_the_second(named));
    ensure!(
        waiting.message.is_some_and(|message| message.contains(&said)),
        "no {said}"
    );
    let until_then = Duration::try_from(named.duration_since(Timestamp::now()))?;
    env.status_that("n1", "to go on", until_then + secs(60), |status| {
        let left_out = status.plan.as_ref().map_or(0, |plan| plan.left_out.len());
        left_out == 2 && named <= Timestamp::now()
    })
    .await?;
    workload::gone(&env.client, &pods[2], secs(60)).await?;
    ensure!(named <= Timestamp::now(), "it went on before {named}");
    ensure!(drain.ended().is_none(), "kubectl has ended: {}", drain.text());
    let overrides = keeper.metrics().await?.sum(OVERRIDES, &[]);
    ensure!(overrides < 0.5, "{overrides} budgets were overridden");
    keeper.stop(secs(30)).await?;
    reviewed.end([lock]).await
}

/// Both pods of the rollout are Ready for 20 s before the old one goes, and the budget would let either go.
#[tokio::test(flavor = "multi_thread")]
async fn rollout_that_moves_a_pod_is_not_cut_short() -> Result<()> {
    let (reviewed, lock) = Reviewed::with(&NODES, json!({})).await?;
    let env = &reviewed.env;
    let probe = json!({ "httpGet": { "port": 80 } });
    let container = json!({ "name": "main", "image": "registry.example/app:1", "readinessProbe": probe });
    let template = PodTemplate::new().grace(1).spec("containers", json!([container]));
    let mut deployment = template.deployment(APPS, "a", 1)?;
    deployment.spec.as_mut().context("no spec")?.min_ready_seconds = Some(20);
    bulk::create(&env.client, [deployment]).await?;
    bulk::create(&env.client, [Budget::min_available(APPS, "a", 1).of("a").build()?]).await?;
    let (pod, node) = only_pod(env, "a").await?;
    env.counts_healthy("a", 1).await?;
    let surge = json!({ "enabled": true, "after": "1s" });
    let keeper = start_keeper(env, json!({ "surge": surge, "pdbForceDrainTimeout": "10m" })).await?;
    let drain = Kubectl::of(&env.plane)?.start(["drain", node.as_str(), "--ignore-daemonsets"])?;
    workload::gone(&env.client, &pod, secs(120)).await?;
    counts(
        &keeper,
        "nodeward_drain_keeper_surges_total",
        &[("outcome", "SurgeComplete")],
        1.0,
    )
    .await?;
    let reviews = lock.metrics().await?;
    let reviewed_as = |label| reviews.sum("nodeward_drain_lock_eviction_reviews_total", &[label]);
    let refused = reviewed_as(("reason", "Surging"));
    ensure!(refused > 0.5, "kubectl was never kept waiting: {}", drain.text());
    let budgets = Api::<PodDisruptionBudget>::namespaced(env.client.clone(), APPS);
    let evicted = budgets.get("a").await?.status.and_then(|status| status.disrupted_pods);
    ensure!(evicted.unwrap_or_default().is_empty(), "{}", drain.text());
    wait::until("kubectl to end", secs(60), || async {
        ensure!(drain.ended() == Some(true), "{}", drain.text());
        Ok(())
    })
    .await?;
    keeper.stop(secs(30)).await?;
    reviewed.end([lock]).await
}

/// A drain of our own waits for the pod to end, and drain-keeper for nobody: the pods that go down with the node go after it.
#[tokio::test(flavor = "multi_thread")]
async fn keeper_removes_finalizer_in_drain_of_drain_lock() -> Result<()> {
    let (reviewed, lock) = Reviewed::with(&NODES, json!({})).await?;
    let env = &reviewed.env;
    env.add_pinned("a", &NODES).await?;
    let stuck = pinned("stuck", &["n1", "n2"]).grace(1).finalizer("example.com/stuck");
    bulk::create(&env.client, [stuck.deployment(APPS, "stuck", 1)?]).await?;
    let (pod, node) = only_pod(env, "stuck").await?;
    let keeper = start_keeper(env, json!({})).await?;
    env.drain(&node, json!({})).await?;
    workload::gone(&env.client, &pod, secs(120)).await?;
    env.phase(&node, Phase::Drained, secs(60)).await?;
    let overrides = keeper.metrics().await?.sum(OVERRIDES, &[]);
    ensure!(overrides < 0.5, "a budget was overridden");
    keeper.stop(secs(30)).await?;
    reviewed.end([lock]).await
}
