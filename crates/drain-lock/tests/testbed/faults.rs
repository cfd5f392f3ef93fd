//! What networks, loaded servers and crashes do between drain-lock and the API server.

use std::convert::Infallible;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use futures::{Stream, StreamExt};
use kube::runtime::{WatchStreamExt, watcher};
use kube::{Api, ResourceExt};
use nodeward_api::DrainLedger;
use nodeward_api::drain_ledger::ClaimState;
use nodeward_api::node_drain::Phase;
use nodeward_api::reason::LockReason;
use nodeward_testkit::proxy::{Fault, Proxy, Rule, Verb};
use nodeward_testkit::wait::{self, secs};
use nodeward_testkit::workload::{self, Start};
use serde_json::json;

use tokio::time::{Instant, timeout};

use crate::environment::{APPS, Environment, Lock, pinned, spec};

const NODES: [&str; 3] = ["n1", "n2", "n3"];

async fn drain_two(env: &Environment) -> Result<()> {
    for node in ["n1", "n2"] {
        env.drain(node, json!({})).await?;
    }
    both_end(env).await
}

async fn both_end(env: &Environment) -> Result<()> {
    let both = ["n1", "n2"].map(async |node| {
        env.phase(node, Phase::Drained, secs(120)).await?;
        env.uncordon(node).await?;
        env.released(node, secs(90)).await
    });
    futures::future::try_join_all(both).await?;
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn failed_and_lost_writes_happen_once() -> Result<()> {
    let env = Environment::new(&NODES).await?;
    env.add_pinned("a", &NODES).await?;
    let proxy = Proxy::start(&env.plane).await?;
    let watch = env.watch_budgets();
    let lost = || Rule::new(Fault::LostReply);
    let internal = || Rule::new(Fault::Status(500, "InternalError"));
    for rule in [
        lost()
            .verbs([Verb::Create, Verb::Patch])
            .resource("drainledgers")
            .times(3),
        Rule::new(Fault::Status(409, "Conflict"))
            .verbs([Verb::Patch])
            .resource("drainledgers")
            .times(2),
        internal().verbs([Verb::Patch]).resource("drainledgers").times(1),
        lost().resource("pods/eviction").times(1),
        internal().resource("pods/eviction").times(1),
        lost().verbs([Verb::Patch]).resource("nodes").times(2),
        internal().verbs([Verb::Get]).resource("poddisruptionbudgets").times(1),
        internal().verbs([Verb::Get]).resource("drainledgers").times(1),
        lost().verbs([Verb::Patch]).resource("nodedrains").times(2),
        lost().verbs([Verb::Delete]).resource("nodedrains").times(1),
    ] {
        proxy.inject(rule);
    }
    let lock = env.run(spec(&json!({})).through(&proxy.url())).await?;
    drain_two(&env).await?;
    watch.none_was_violated()?;
    env.end([lock]).await
}

#[tokio::test(flavor = "multi_thread")]
async fn failing_reads_of_one_budget_stop_nobody_else() -> Result<()> {
    let env = Environment::new(&NODES).await?;
    env.add_pinned("a", &["n1", "n3"]).await?;
    env.add_pinned("b", &["n2", "n3"]).await?;
    let proxy = Proxy::start(&env.plane).await?;
    let pods_of_a = Rule::new(Fault::Status(500, "InternalError"))
        .resource("pods")
        .verbs([Verb::List])
        .uri_contains("labelSelector=app%3Da");
    let failing = proxy.inject(pods_of_a);
    let lock = env.run(spec(&json!({})).through(&proxy.url())).await?;
    env.drain("n1", json!({})).await?;
    env.status_that("n1", "waits for a read", secs(60), |status| {
        status.blocked_by.iter().any(|why| why.reason == LockReason::ReadFailed)
    })
    .await?;
    env.drain("n2", json!({})).await?;
    env.phase("n2", Phase::Drained, secs(60)).await?;
    let claim = env.claim("n1").await?.context("no claim")?;
    ensure!(
        claim.state == ClaimState::Waiting && claim.holds.is_empty(),
        "{claim:?}"
    );
    proxy.remove(failing);
    env.phase("n1", Phase::Drained, secs(90)).await?;
    env.end([lock]).await
}

#[tokio::test(flavor = "multi_thread")]
async fn broken_or_frozen_watches_only_delay_drains() -> Result<()> {
    let env = Environment::new(&NODES).await?;
    env.add_pinned("a", &NODES).await?;
    let proxy = Proxy::start(&env.plane).await?;
    let watch = env.watch_budgets();
    for fault in [Fault::Gone, Fault::GoneEvent, Fault::Status(500, "InternalError")] {
        proxy.inject(Rule::new(fault).verbs([Verb::Watch]).times(3));
    }
    let lock = env.run(spec(&json!({})).through(&proxy.url())).await?;
    env.drain("n1", json!({})).await?;
    env.phase("n1", Phase::Drained, secs(60)).await?;
    proxy.freeze().await?;
    env.drain("n2", json!({})).await?;
    env.uncordon("n1").await?;
    // It goes on with the old view: its lease is renewed by requests, which need no watch.
    let renewals = || proxy.count(|record| record.request.resource == "leases" && record.request.verb == Verb::Patch);
    let before = renewals();
    wait::until("a renewal of the lease", secs(60), || async {
        ensure!(before < renewals(), "still {before}");
        Ok(())
    })
    .await?;
    proxy.drop_watches();
    proxy.thaw_to_present().await?;
    env.released("n1", secs(90)).await?;
    env.phase("n2", Phase::Drained, secs(90)).await?;
    watch.none_was_violated()?;
    ensure!(env.pods_on("n2").await?.is_empty(), "pods are left");
    env.end([lock]).await
}

#[tokio::test(flavor = "multi_thread")]
async fn api_server_restart_only_delays_a_drain() -> Result<()> {
    let env = Environment::new(&NODES).await?;
    env.add_pinned("a", &NODES).await?;
    let lock = env.start(json!({})).await?;
    env.drain("n1", json!({})).await?;
    env.drain("n2", json!({})).await?;
    env.plane.apiserver().kill();
    env.plane.apiserver().start()?;
    env.plane.ready().await?;
    both_end(&env).await?;
    // While it starts, an API server forbids whatever its own caches do not know yet: the log says so.
    let status = lock.stop(secs(30)).await?;
    ensure!(status.success(), "it ended with {status}");
    env.end([]).await
}

#[tokio::test(flavor = "multi_thread")]
async fn grant_without_disruption_is_returned_unused() -> Result<()> {
    let env = Environment::new(&NODES).await?;
    // Long enough for the return of the grant to be seen before the pod that is deleted counts again.
    let slow = pinned("a", &NODES).start(Start::SlowReady(secs(30)));
    env.add_app("a", NODES.len(), slow).await?;
    let proxy = Proxy::start(&env.plane).await?;
    // Between the grant and the eviction: time for the budget to show that a pod is missing.
    let reads = Rule::new(Fault::Delay(secs(5)))
        .verbs([Verb::Get])
        .resource("poddisruptionbudgets");
    proxy.inject(reads);
    let lock = env.run(spec(&json!({})).through(&proxy.url())).await?;
    let watch = env.watch_budgets();
    let (covered, other) = (env.pods_on("n1").await?.remove(0), env.pods_on("n3").await?.remove(0));
    env.drain("n1", json!({})).await?;
    let granted = wait::until("the grant", secs(60), || async {
        let claim = env.claim("n1").await?.context("no claim")?;
        ensure!(claim.state == ClaimState::Granted, "{claim:?}");
        Ok(claim)
    })
    .await?;
    workload::delete(&env.client, APPS, &other.name_any()).await?;
    wait::until("the grant to be returned", secs(60), || async {
        let claim = env.claim("n1").await?.context("no claim")?;
        ensure!(
            claim.state == ClaimState::Waiting && claim.holds.is_empty(),
            "{claim:?}"
        );
        ensure!(claim.ticket == granted.ticket, "another ticket: {claim:?}");
        Ok(())
    })
    .await?;
    ensure!(
        env.pods_on("n1").await?.remove(0).uid() == covered.uid(),
        "its pod was evicted"
    );
    proxy.heal();
    env.phase("n1", Phase::Drained, secs(120)).await?;
    watch.none_was_violated()?;
    env.end([lock]).await
}

/// How long the ledger may stay as it is after each start. A kill in the middle of an eviction can leave the pod running and
/// its entry in `disruptedPods`: the API server then refuses the next one until the entry expires, after two minutes.
const RESUMES_WITHIN: Duration = secs(150);

/// drain-lock is killed after its first, second, third and fifth write to the ledger since its start: enqueued, asked, granted,
/// confirmed, drained and returned are each one, so that all of them are hit. The figures of docs/drain-lock-internals.md are those
/// that it prints.
#[tokio::test(flavor = "multi_thread")]
async fn drains_resume_after_every_kill() -> Result<()> {
    let nodes = ["n1", "n2", "n3", "n4", "n5"];
    let env = Environment::new(&nodes).await?;
    env.add_pinned("a", &nodes).await?;
    let lock = env.start(json!({})).await?;
    let watch = env.watch_budgets();
    let (began, mut waits) = (Instant::now(), Vec::new());
    let drains = async {
        for node in nodes {
            env.drain(node, json!({})).await?;
        }
        let all = nodes.map(async |node| {
            env.phase(node, Phase::Drained, secs(400)).await?;
            env.uncordon(node).await?;
            env.released(node, secs(200)).await
        });
        futures::future::try_join_all(all).await.map(drop)
    };
    tokio::select! {
        ended = drains => ended?,
        failed = kill_repeatedly(&env, &lock, &mut waits) => match failed? {},
    }
    lock.ready(secs(60)).await?;
    waits.sort();
    let (least, most) = (waits.first().context("it was never killed")?, waits[waits.len() - 1]);
    println!(
        "killed {} times; all drains ended in {:.1?}; the ledger changed {least:.2?} to {most:.2?} after each start, in the \
         middle {:.2?}",
        waits.len(),
        began.elapsed(),
        waits[waits.len() / 2]
    );
    ensure!(waits.len() >= 4, "it was killed {} times only", waits.len());
    watch.none_was_violated()?;
    env.end([lock]).await
}

async fn kill_repeatedly(env: &Environment, lock: &Lock, waits: &mut Vec<Duration>) -> Result<Infallible> {
    let ledgers: Api<DrainLedger> = Api::all(env.client.clone());
    let changes = watcher(ledgers, watcher::Config::default()).default_backoff();
    let mut changes = std::pin::pin!(changes.applied_objects());
    for writes in [1, 2, 3, 5].into_iter().cycle().take(16) {
        for _ in 0..writes {
            next_after(&mut changes, 0).await?;
        }
        // At once, for nothing is left in the middle when the drains are over.
        lock.process().kill();
        lock.process().start()?;
        let started = Instant::now();
        // It has not come to writing anything yet.
        let last = env.ledger().await?.as_ref().map_or(0, version);
        let resumed = timeout(RESUMES_WITHIN, next_after(&mut changes, last)).await;
        resumed.context("the ledger does not change after a start")??;
        waits.push(started.elapsed());
    }
    std::future::pending().await
}

/// Waits until the ledger has a later version.
async fn next_after(
    changes: &mut (impl Stream<Item = Result<DrainLedger, watcher::Error>> + Unpin),
    last: u64,
) -> Result<()> {
    loop {
        // The watch goes on by itself after an error.
        let change = changes.next().await.context("the watch has ended")?;
        if change.is_ok_and(|ledger| version(&ledger) > last) {
            return Ok(());
        }
    }
}

/// Versions of one kind's objects are numbers that grow (KEP-5504).
fn version(ledger: &DrainLedger) -> u64 {
    let version = ledger.resource_version().unwrap_or_default();
    version.parse().unwrap_or_default()
}
