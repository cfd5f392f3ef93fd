//! Two of them at once, a killed one, and one that stood still.

use anyhow::{Result, ensure};
use kube::Api;
use kube::api::{Patch, PatchParams, PostParams};
use nodeward_api::DrainLedger;
use nodeward_api::drain_ledger::{self, DrainLedgerSpec, FORMAT_VERSION};
use nodeward_api::node_drain::Phase;
use nodeward_testkit::wait::{self, secs};
use serde_json::json;

use crate::environment::{ACCOUNT, Environment, Lock, SYSTEM, spec};

const NODES: [&str; 3] = ["n1", "n2", "n3"];

async fn drain_all(env: &Environment) -> Result<()> {
    for node in NODES {
        env.drain(node, json!({})).await?;
    }
    finish_all(env).await
}

async fn finish_all(env: &Environment) -> Result<()> {
    let all = NODES.map(async |node| {
        env.phase(node, Phase::Drained, secs(120)).await?;
        env.uncordon(node).await?;
        env.released(node, secs(90)).await
    });
    futures::future::try_join_all(all).await?;
    Ok(())
}

async fn env() -> Result<Environment> {
    let env = Environment::new(&NODES).await?;
    for app in ["a", "b"] {
        env.add_pinned(app, &NODES).await?;
    }
    Ok(env)
}

/// One node is drained, and the others' drains have just been asked for.
async fn ask(env: &Environment) -> Result<()> {
    env.drain("n1", json!({})).await?;
    env.phase("n1", Phase::Drained, secs(60)).await?;
    for node in ["n2", "n3"] {
        env.drain(node, json!({})).await?;
    }
    Ok(())
}

async fn leaderless(env: &Environment, name: &str) -> Result<Lock> {
    env.run(spec(&json!({})).identity(name).arg("--leader-elect=false"))
        .await
}

#[tokio::test(flavor = "multi_thread")]
async fn two_leaders_at_once_do_no_harm() -> Result<()> {
    let env = env().await?;
    let watch = env.watch_budgets();
    let locks = [leaderless(&env, "one").await?, leaderless(&env, "two").await?];
    drain_all(&env).await?;
    watch.none_was_violated()?;
    env.end(locks).await
}

#[tokio::test(flavor = "multi_thread")]
async fn standby_follows_a_killed_leader() -> Result<()> {
    let env = env().await?;
    let watch = env.watch_budgets();
    let first = env.run(spec(&json!({})).identity("first")).await?;
    env.leads("first").await?;
    let second = env.run(spec(&json!({})).identity("second")).await?;
    ask(&env).await?;
    first.process().kill();
    finish_all(&env).await?;
    watch.none_was_violated()?;
    env.end([second]).await
}

#[tokio::test(flavor = "multi_thread")]
async fn resumed_leader_does_no_harm() -> Result<()> {
    let env = env().await?;
    let watch = env.watch_budgets();
    let paused = leaderless(&env, "paused").await?;
    ask(&env).await?;
    paused.process().pause()?;
    let other = leaderless(&env, "other").await?;
    env.uncordon("n1").await?;
    env.released("n1", secs(60)).await?;
    paused.process().resume()?;
    let rest = ["n2", "n3"].map(async |node| {
        env.phase(node, Phase::Drained, secs(120)).await?;
        env.uncordon(node).await?;
        env.released(node, secs(90)).await
    });
    futures::future::try_join_all(rest).await?;
    watch.none_was_violated()?;
    ensure!(
        env.ledger().await?.is_some_and(|ledger| ledger.spec.claims.is_empty()),
        "claims are left"
    );
    env.end([paused, other]).await
}

#[tokio::test(flavor = "multi_thread")]
async fn later_ledger_format_stops_the_plan_with_one_warning() -> Result<()> {
    let env = env().await?;
    let ledgers: Api<DrainLedger> = Api::all(env.client.clone());
    let later = DrainLedgerSpec {
        format_version: FORMAT_VERSION + 1,
        ..DrainLedgerSpec::default()
    };
    let later = DrainLedger::new(drain_ledger::NAME, later);
    ledgers.create(&PostParams::default(), &later).await?;
    let mark = env.plane.audit().mark()?;
    let lock = env.start(json!({})).await?;
    env.drain("n1", json!({})).await?;
    let warnings = || {
        lock.log()
            .matches("run the version of drain-lock that wrote it")
            .count()
    };
    wait::until("it to say what to do", secs(60), || async {
        ensure!(warnings() == 1, "{}", lock.process().log_tail(10));
        Ok(())
    })
    .await?;
    // Longer than the loop waits before it looks at such a ledger again.
    wait::throughout("one warning", secs(7), || async {
        ensure!(warnings() == 1, "{} warnings", warnings());
        Ok(())
    })
    .await?;
    let all = env.plane.audit().since(mark)?;
    // The webhook's certificate is no part of a plan.
    let writes = all
        .of_service_account(SYSTEM, ACCOUNT)
        .writes()
        .without_leases()
        .only(|request| !request.resource.starts_with("selfsubjectreviews") && request.resource != "secrets");
    ensure!(writes.count() == 0, "{:?}", writes.0);
    let known = Patch::Merge(json!({ "spec": { "formatVersion": FORMAT_VERSION } }));
    ledgers
        .patch(drain_ledger::NAME, &PatchParams::default(), &known)
        .await?;
    env.phase("n1", Phase::Drained, secs(60)).await?;
    env.end([lock]).await
}
