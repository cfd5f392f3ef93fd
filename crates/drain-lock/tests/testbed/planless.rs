//! A leader that leads and cannot plan, and a ledger that nobody can read.

use anyhow::{Context, Result, ensure};
use kube::api::{ApiResource, DynamicObject, Patch, PatchParams, PostParams};
use kube::{Api, Client, ResourceExt};
use nodeward_api::node_drain::Phase;
use nodeward_api::{DrainLedger, drain_ledger};
use nodeward_testkit::fleet;
use nodeward_testkit::proxy::{Fault, Proxy, Rule, Verb};
use nodeward_testkit::wait::{self, secs};
use serde_json::{Value, json};

use crate::environment::{Lock, pinned};
use crate::reviewed::Reviewed;

const NODES: [&str; 3] = ["n1", "n2", "n3"];

/// For how long the replica has heard of no leader that plans.
async fn leaderless_seconds(lock: &Lock) -> Result<f64> {
    let metrics = lock.metrics().await?;
    let seconds = metrics.value("nodeward_drain_lock_leaderless_seconds", &[]);
    seconds.context("no nodeward_drain_lock_leaderless_seconds")
}

/// It renews its lease all the while.
#[tokio::test(flavor = "multi_thread")]
async fn leader_that_cannot_write_its_ledger_is_none() -> Result<()> {
    let reviewed = Reviewed::new(&NODES, json!({})).await?;
    let env = &reviewed.env;
    env.add_app("a", NODES.len(), pinned("a", &NODES)).await?;
    let proxy = Proxy::start(&env.plane).await?;
    let leads = Reviewed::spec_on(0, &json!({}))?
        .identity("leads")
        .through(&proxy.url());
    let leader = env.run(leads).await?;
    env.leads("leads").await?;
    let answers = env.run(reviewed.spec(&json!({}))?.identity("answers")).await?;
    reviewed.is_asked().await?;
    env.drain("n1", json!({})).await?;
    env.phase("n1", Phase::Drained, secs(90)).await?;

    let fault = Rule::new(Fault::Status(503, "ServiceUnavailable"))
        .verbs([Verb::Patch])
        .resource("drainledgers");
    let rule = proxy.inject(fault);
    fleet::cordon(&env.client, "n2").await?;
    let pod = reviewed.pods_on("n2").await?.remove(0);
    wait::until("the cordon to be known", secs(60), || async {
        ensure!(reviewed.evict(&pod).await?.status == 429, "it is not refused");
        Ok(())
    })
    .await?;
    wait::until("both to hear of no leader", secs(240), || async {
        for replica in [&leader, &answers] {
            let seconds = leaderless_seconds(replica).await?;
            ensure!(seconds >= 120.0, "{seconds} s");
        }
        Ok(())
    })
    .await?;
    env.leads("leads").await?;
    // The budget has its one disruption out under the drain of n1: what answers now is the eviction API.
    let answered = reviewed.evict(&pod).await?;
    answered.is_to_wait("DisruptionBudget")?;
    let warnings: Vec<&str> = answered
        .headers
        .get_all("warning")
        .iter()
        .filter_map(|text| text.to_str().ok())
        .collect();
    ensure!(
        warnings.iter().any(|text| text.contains("no leader that plans")),
        "{warnings:?}"
    );
    let metrics = answers.metrics().await?;
    let admitted = metrics.sum("nodeward_drain_lock_eviction_reviews_total", &[("reason", "no-leader")]);
    ensure!(admitted > 0.5, "{admitted} admitted");

    proxy.remove(rule);
    wait::until("both to hear of a leader", secs(120), || async {
        for replica in [&leader, &answers] {
            let seconds = leaderless_seconds(replica).await?;
            ensure!(seconds < 60.0, "{seconds} s");
        }
        Ok(())
    })
    .await?;
    let ledger = env.ledger().await?.context("no ledger")?;
    let stood_still = ledger.spec.leaderless.iter();
    let longest = stood_still
        .map(|time| time.to.duration_since(time.from).as_secs())
        .max();
    ensure!(longest >= Some(120), "{:?}", ledger.spec.leaderless);
    wait::until("the pod to wait for its turn", secs(60), || async {
        reviewed.evict(&pod).await?.is_to_wait("WaitsForDisruptions")
    })
    .await?;
    for node in ["n1", "n2"] {
        env.uncordon(node).await?;
        env.released(node, secs(90)).await?;
    }
    reviewed.end([answers, leader]).await
}

/// The ledger as another program would write it.
fn ledgers(client: &Client) -> Api<DynamicObject> {
    Api::all_with(client.clone(), &ApiResource::erase::<DrainLedger>(&()))
}

fn claim(part: &Value) -> Value {
    let mut claim = json!({
        "ticket": 1, "node": "n1", "nodeUID": "u1", "state": "Confirmed", "since": "2026-01-01T00:00:00Z",
        "queuedAt": "2026-01-01T00:00:00Z", "grant": 1, "holds": ["0/a-0/u0"],
    });
    for (field, value) in part.as_object().into_iter().flatten() {
        claim[field] = value.clone();
    }
    json!({ "claims": [claim], "budgets": [{ "namespace": "apps", "name": "a", "uid": "b" }] })
}

#[tokio::test(flavor = "multi_thread")]
async fn unreadable_ledger_refuses_on_cordoned_nodes_alone() -> Result<()> {
    let (reviewed, lock) = Reviewed::with(&NODES, json!({})).await?;
    let env = &reviewed.env;
    env.add_pinned("a", &NODES).await?;
    let ledgers = ledgers(&env.client);
    let resource = ApiResource::erase::<DrainLedger>(&());
    let mut empty = DynamicObject::new(drain_ledger::NAME, &resource);
    empty.data = json!({ "spec": { "claims": [] } });
    ledgers.create(&PostParams::default(), &empty).await?;
    for (garbage, field) in [
        (claim(&json!({ "lane": "fast" })), "claims[0].lane: unknown field"),
        (claim(&json!({ "state": "Parked" })), "claims[0].state: unknown variant"),
        (
            claim(&json!({ "holds": ["0//u0"] })),
            "claims[0].holds[0]: a held pod is written",
        ),
        (
            claim(&json!({ "holds": ["7/a-0/u0"] })),
            "claims[0].holds[0]: there is no budget 7",
        ),
    ] {
        let written = ledgers
            .patch(
                drain_ledger::NAME,
                &PatchParams::default(),
                &Patch::Merge(json!({ "spec": garbage })),
            )
            .await?;
        wait::until(format!("{field} to be named"), secs(60), || async {
            ensure!(lock.log().contains(field), "{}", lock.process().log_tail(10));
            Ok(())
        })
        .await?;
        env.counts_healthy("a", NODES.len()).await?;
        let pod = reviewed.pods_on("n2").await?.remove(0);
        let evicted = reviewed.evict(&pod).await?;
        ensure!(evicted.is_admitted(), "{field}: {evicted:?}");
        let present = ledgers.get(drain_ledger::NAME).await?;
        ensure!(present.resource_version() == written.resource_version(), "{present:?}");
        ensure!(present.data == written.data, "{present:?}");
    }
    fleet::cordon(&env.client, "n1").await?;
    let pod = reviewed.pods_on("n1").await?.remove(0);
    wait::until("the cordon to be known", secs(60), || async {
        env.counts_healthy("a", NODES.len()).await?;
        reviewed.evict(&pod).await?.is_to_wait("LedgerUnreadable")
    })
    .await?;
    let repaired = json!({ "spec": { "claims": [], "budgets": [] } });
    ledgers
        .patch(drain_ledger::NAME, &PatchParams::default(), &Patch::Merge(repaired))
        .await?;
    wait::until("the eviction to be admitted", secs(60), || async {
        let evicted = reviewed.evict(&pod).await?;
        ensure!(evicted.is_admitted(), "{evicted:?}");
        Ok(())
    })
    .await?;
    env.uncordon("n1").await?;
    env.released("n1", secs(90)).await?;
    reviewed.end([lock]).await
}
