//! What networks, loaded servers and crashes do between drain-keeper and the API server.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use jiff::Timestamp;
use k8s_openapi::api::coordination::v1::Lease;
use k8s_openapi::api::core::v1::Pod;
use k8s_openapi::api::policy::v1::PodDisruptionBudget;
use kube::ResourceExt;
use kube::api::{Api, Patch, PatchParams};
use nodeward_api::annotation::LAST_OVERRIDE;
use nodeward_testkit::proxy::{Fault, Proxy, Record, Rule, Verb};
use nodeward_testkit::wait::{self, secs};
use nodeward_testkit::workload::{self, Budget, End};
use nodeward_testkit::{ControlPlane, Options, fleet, pause};
use rstest::rstest;
use serde_json::json;

use crate::environment::{Environment, Keeper, an_hour_ago, is_untouched, managed};

/// Pods for each kind of write: an eviction, an override, finalizers, a delete without grace.
async fn blockers(env: &Environment<'_>, node: &str) -> Result<[Pod; 4]> {
    let pods = env
        .add_pods([
            ("free", managed(node)),
            ("covered", managed(node)),
            ("kept", managed(node).grace(1).finalizer("example.com/stuck")),
            ("hangs", managed(node).grace(1).end(End::Stuck)),
        ])
        .await?;
    env.add_budget(env.tight("covered", 1), 1).await?;
    for name in ["kept", "hangs"] {
        workload::delete(&env.client, &env.name, name).await?;
    }
    Ok(pods)
}

async fn all_gone(env: &Environment<'_>, keeper: &Keeper, pods: &[Pod]) -> Result<()> {
    for pod in pods {
        workload::gone(&env.client, pod, secs(60))
            .await
            .with_context(|| log_of(env, keeper))?;
    }
    Ok(())
}

/// What the keeper has said, but of nodes of other places.
fn log_of(env: &Environment<'_>, keeper: &Keeper) -> String {
    let is_elsewhere = |line: &&str| line.contains("node=env-") && !line.contains(&env.name);
    keeper
        .log()
        .lines()
        .filter(|line| !is_elsewhere(line))
        .collect::<Vec<_>>()
        .join("\n")
}

async fn is_recorded_once(env: &Environment<'_>) -> Result<()> {
    let budgets: Api<PodDisruptionBudget> = Api::namespaced(env.client.clone(), &env.name);
    let requests = env.requests()?.only(|request| request.name == "covered");
    ensure!(
        budgets.get("covered").await?.annotations().contains_key(LAST_OVERRIDE),
        "no record: {:#?}",
        requests.0
    );
    let deletes = requests.only(|request| request.verb == "delete");
    ensure!(
        deletes.clone().only(|request| request.code == 200).count() == 1,
        "{:?}",
        deletes.0
    );
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn failed_writes_are_retried_and_isolated() -> Result<()> {
    let env = Environment::new().await?;
    let proxy = Proxy::start(env.plane).await?;
    let node = env.add_node("a").await?;
    let pods = blockers(&env, &node).await?;
    let internal = || Rule::new(Fault::Status(500, "InternalError"));
    let throttled = || Rule::new(Fault::TooManyRequests { retry_after: Some(1) });
    for rule in [
        internal()
            .verbs([Verb::Patch])
            .resource("nodes")
            .name(node.clone())
            .times(1),
        throttled().resource("pods/eviction").name("free").times(2),
        internal().resource("pods/eviction").name("free").times(1),
        internal().resource("pods/eviction").name("covered").times(1),
        throttled().resource("poddisruptionbudgets/status").times(1),
        internal().verbs([Verb::Delete]).name("covered").times(1),
        Rule::new(Fault::Status(409, "Conflict"))
            .verbs([Verb::Patch])
            .name("kept")
            .times(1),
        throttled().verbs([Verb::Delete]).name("hangs").times(1),
        internal().verbs([Verb::Get]).resource("nodes").times(1),
        internal()
            .verbs([Verb::List])
            .uri_contains(format!("namespaces/{}/poddisruptionbudgets", env.name))
            .times(1),
    ] {
        proxy.inject(rule);
    }
    let spec = env.spec(&json!({ "pdbForceDrainTimeout": "1s" })).through(&proxy.url());
    let keeper = env.run(spec).await?;
    fleet::cordon_since(&env.client, &node, an_hour_ago()).await?;
    all_gone(&env, &keeper, &pods).await?;
    is_recorded_once(&env).await?;
    let injected = proxy.count(|record| matches!(record.outcome, nodeward_testkit::proxy::Outcome::Injected(_)));
    ensure!(injected >= 9, "{injected} faults were met: {:?}", proxy.journal());
    env.end([keeper]).await
}

#[tokio::test(flavor = "multi_thread")]
async fn lost_reply_repeats_no_write() -> Result<()> {
    let env = Environment::new().await?;
    let proxy = Proxy::start(env.plane).await?;
    let node = env.add_node("a").await?;
    let pods = blockers(&env, &node).await?;
    let lost = || Rule::new(Fault::LostReply);
    for rule in [
        lost().verbs([Verb::Patch]).resource("nodes").times(1),
        lost().resource("pods/eviction").name("free").times(1),
        lost().resource("poddisruptionbudgets/status").times(1),
        lost().verbs([Verb::Delete]).name("covered").times(1),
        lost().verbs([Verb::Patch]).name("kept").times(1),
        lost().verbs([Verb::Delete]).name("hangs").times(1),
    ] {
        proxy.inject(rule);
    }
    let spec = env
        .spec(&json!({ "pdbForceDrainTimeout": "1s", "overrideSpacing": "5s" }))
        .through(&proxy.url());
    let keeper = env.run(spec).await?;
    fleet::cordon_since(&env.client, &node, an_hour_ago()).await?;
    all_gone(&env, &keeper, &pods).await?;
    is_recorded_once(&env).await?;
    let evicted = env
        .requests()?
        .only(|request| request.resource == "pods/eviction" && request.name == "free");
    ensure!(
        evicted.only(|request| request.code == 201).count() == 1,
        "evicted twice"
    );
    env.end([keeper]).await
}

#[tokio::test(flavor = "multi_thread")]
async fn broken_watches_do_not_stop_the_drain() -> Result<()> {
    let env = Environment::new().await?;
    let proxy = Proxy::start(env.plane).await?;
    let node = env.add_node("a").await?;
    let pods = blockers(&env, &node).await?;
    for fault in [Fault::Gone, Fault::GoneEvent, Fault::Status(500, "InternalError")] {
        proxy.inject(Rule::new(fault).verbs([Verb::Watch]).times(3));
    }
    let spec = env.spec(&json!({ "pdbForceDrainTimeout": "3s" })).through(&proxy.url());
    let keeper = env.run(spec).await?;
    fleet::cordon_since(&env.client, &node, an_hour_ago()).await?;
    env.clock_that(&node, "runs", |_| true).await?;
    proxy.drop_watches();
    workload::gone(&env.client, &pods[0], secs(60)).await?;
    proxy.thaw_to_present().await?;
    all_gone(&env, &keeper, &pods).await?;
    // An object that went while no watch was open is not kept in mind for ever.
    wait::until("no blocker to be left", secs(60), || async {
        let blockers = keeper.metrics().await?.sum("nodeward_drain_keeper_blockers", &[]);
        ensure!(blockers < 0.5, "{blockers} blockers");
        Ok(())
    })
    .await?;
    env.end([keeper]).await
}

/// On a control plane of its own, for the others must not lose theirs.
#[tokio::test(flavor = "multi_thread")]
async fn api_server_restart_only_delays_a_drain() -> Result<()> {
    // Pods of a node without heartbeats are unready, and the server evicts them in spite of their budget.
    let plane = ControlPlane::start(Options::patient()).await?;
    let env = Environment::with(&plane, json!({})).await?;
    let node = env.add_node("a").await?;
    let pods = blockers(&env, &node).await?;
    let config = json!({
        "nodeDrain": { "timeOut": "6s", "expectedNodeDrainTime": "1s" },
        "pdbForceDrainTimeout": "7s",
    });
    let keeper = env.start(config).await?;
    fleet::cordon_since(&env.client, &node, an_hour_ago()).await?;
    let clock = env.clock_that(&node, "runs", |_| true).await?;
    plane.apiserver().kill();
    plane.apiserver().start()?;
    plane.ready().await?;
    all_gone(&env, &keeper, &pods).await?;
    is_recorded_once(&env).await?;
    ensure!(
        env.clock(&node).await?.is_some_and(|now| now.start == clock.start),
        "another clock"
    );
    keeper.ready(secs(60)).await?;
    // An API server that has just started has not read its roles yet, and refuses what it will grant.
    env.end_whatever_was_refused([keeper]).await
}

/// The eviction handler takes a disruption off the budget before it compares the UID.
#[rstest]
#[case::overridden("all")]
#[case::left_to_its_budget("never")]
#[tokio::test(flavor = "multi_thread")]
async fn namesake_of_a_forced_pod_costs_no_disruption(#[case] overrides: &str) -> Result<()> {
    let env = Environment::new().await?;
    let node = env.add_node("a").await?;
    let elsewhere = env.add_node("b").await?;
    // Of a kind whose pods may have the same name again.
    let covered = |node: &str| {
        let owned = managed(node).owned_by(
            "example.com/v1",
            "Widget",
            "widget",
            "5a8e1c5e-0f0e-4f5c-9a53-d53a41de5a02",
        );
        owned.grace(1).label("app", "covered")
    };
    let [first, _] = env
        .add_pods([("first", covered(&node)), ("second", covered(&elsewhere))])
        .await?;
    env.add_budget(Budget::min_available(&env.name, "covered", 1).of("covered"), 2)
        .await?;
    let proxy = Proxy::start(env.plane).await?;
    let spec = env.spec(&json!({ "pdbForceDrainTimeout": "25s", "overrideBudgets": overrides }));
    let keeper = env.run(spec.through(&proxy.url())).await?;
    fleet::cordon(&env.client, &node).await?;
    env.clock_that(&node, "runs", |_| true).await?;
    wait::until("its pods to be watched", secs(60), || async {
        let blockers = keeper.metrics().await?.sum("nodeward_drain_keeper_blockers", &[]);
        ensure!(blockers >= 1.0, "{blockers} blockers are known");
        Ok(())
    })
    .await?;
    proxy.freeze().await?;
    let mark = proxy.mark();
    workload::delete(&env.client, &env.name, "first").await?;
    workload::gone(&env.client, &first, secs(60)).await?;
    let [namesake] = env.add_pods([("first", covered(&node).tolerates_all())]).await?;
    env.counts_healthy("covered", 2).await?;
    wait::until("the pod to be asked for", secs(120), || async {
        let seen = proxy.since(mark);
        let asks = |Record { request, .. }: &Record| {
            request.verb == Verb::Get && request.resource == "pods" && request.name == "first"
        };
        ensure!(seen.iter().any(asks), "{seen:?}");
        Ok(())
    })
    .await?;
    let budgets: Api<PodDisruptionBudget> = Api::namespaced(env.client.clone(), &env.name);
    wait::throughout("the budget whole", secs(3), || async {
        let status = budgets.get("covered").await?.status.context("no status")?;
        ensure!(status.disruptions_allowed == 1 && status.disrupted_pods.is_none_or(|pods| pods.is_empty()));
        is_untouched(&env.pods(), &namesake).await
    })
    .await?;
    env.end([keeper]).await
}

#[tokio::test(flavor = "multi_thread")]
async fn refused_delete_is_recorded_once() -> Result<()> {
    let env = Environment::new().await?;
    let node = env.add_node("a").await?;
    let [covered] = env.add_pods([("covered", managed(&node))]).await?;
    env.add_budget(env.tight("covered", 1), 1).await?;
    let proxy = Proxy::start(env.plane).await?;
    let failing = Rule::new(Fault::Status(500, "InternalError"));
    proxy.inject(failing.verbs([Verb::Delete]).name("covered").times(3));
    let spec = env.spec(&json!({ "pdbForceDrainTimeout": "1s" })).through(&proxy.url());
    let keeper = env.run(spec).await?;
    fleet::cordon_since(&env.client, &node, an_hour_ago()).await?;
    workload::gone(&env.client, &covered, secs(60))
        .await
        .with_context(|| log_of(&env, &keeper))?;
    is_recorded_once(&env).await?;
    let records = env
        .requests()?
        .only(|request| request.resource == "poddisruptionbudgets/status" && request.code == 200);
    ensure!(records.count() == 1, "{:?}", records.0);
    env.end([keeper]).await
}

/// What permits an act, and ends while its record is being written.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Revoked {
    Strategies,
    Lease,
    Pause,
}

/// The record of an override is answered late, and meanwhile the act loses its permit: the delete that was to follow is not
/// sent.
#[rstest]
#[case::disabled_strategies(Revoked::Strategies, "outdated")]
#[case::lost_lease(Revoked::Lease, "not-leading")]
#[case::paused(Revoked::Pause, "paused")]
#[tokio::test(flavor = "multi_thread")]
async fn act_without_permit_stops_after_its_record(#[case] revoked: Revoked, #[case] outcome: &str) -> Result<()> {
    let env = Environment::new().await?;
    let node = env.add_node("a").await?;
    let [covered] = env.add_pods([("covered", managed(&node))]).await?;
    env.add_budget(env.tight("covered", 1), 1).await?;
    let proxy = Proxy::start(env.plane).await?;
    let is_recording = Arc::new(AtomicBool::new(false));
    let seen = Arc::clone(&is_recording);
    let late = Rule::new(Fault::Delay(secs(25)))
        .verbs([Verb::Patch])
        .resource("poddisruptionbudgets/status")
        .name("covered")
        .when(move |_| {
            seen.store(true, Ordering::Release);
            true
        });
    proxy.inject(late);
    let config = json!({ "pdbForceDrainTimeout": "1s" });
    let keeper = env.run(env.spec(&config).through(&proxy.url())).await?;
    fleet::cordon_since(&env.client, &node, an_hour_ago()).await?;
    wait::until("the record to be on its way", secs(60), || async {
        ensure!(is_recording.load(Ordering::Acquire));
        Ok(())
    })
    .await?;
    let leases: Api<Lease> = Api::namespaced(env.client.clone(), &env.system);
    let revoke = async || {
        if revoked == Revoked::Lease {
            // Renewed again and again, as by one that leads.
            let now = format!("{:.6}", Timestamp::now());
            let taken = json!({ "spec": { "holderIdentity": "another", "renewTime": now } });
            leases
                .patch("drain-keeper", &PatchParams::default(), &Patch::Merge(taken))
                .await?;
        }
        anyhow::Ok(())
    };
    if revoked == Revoked::Strategies {
        let disabled = json!({ "timeOut": "2s", "expectedNodeDrainTime": "1s", "disableDrainStrategies": true });
        keeper.write_config(&env.config(&json!({ "pdbForceDrainTimeout": "1s", "nodeDrain": disabled })))?;
    }
    if revoked == Revoked::Pause {
        pause::write(&env.client, &env.system, json!({ "all": "INC-1" })).await?;
    }
    let budgets: Api<PodDisruptionBudget> = Api::namespaced(env.client.clone(), &env.name);
    wait::until("the act to end without its delete", secs(90), || async {
        revoke().await?;
        let recorded = budgets.get("covered").await?.annotations().contains_key(LAST_OVERRIDE);
        ensure!(recorded, "no record yet");
        let actions = "nodeward_drain_keeper_actions_total";
        let stopped = keeper.metrics().await?.sum(actions, &[("outcome", outcome)]);
        ensure!(stopped > 0.5, "{stopped} acts are {outcome}");
        Ok(())
    })
    .await
    .with_context(|| log_of(&env, &keeper))?;
    wait::throughout("the pod", Duration::from_secs(3), || async {
        revoke().await?;
        is_untouched(&env.pods(), &covered).await
    })
    .await?;
    let deletes = env.requests()?.only(|request| request.verb == "delete");
    ensure!(deletes.count() == 0, "{:?}", deletes.0);
    env.end([keeper]).await
}
