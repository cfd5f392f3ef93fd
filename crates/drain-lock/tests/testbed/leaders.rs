//! Two of them at once, a killed one, and one that stood still.

use anyhow::{Result, ensure};
use kube::Api;
use kube::api::{Patch, PatchParams, PostParams};
use nodeward_api::DrainLedger;
use nodeward_api::drain_ledger::{self, DrainLedgerSpec, FORMAT_VERSION};
use nodeward_api::node_drain::Phase;
use nodeward_testkit::wait::{self, secs};
use serde_json::json;

use crate::place::{ACCOUNT, Lock, Place, SYSTEM, spec};

const NODES: [&str; 3] = ["n1", "n2", "n3"];

async fn drain_all(place: &Place) -> Result<()> {
    for node in NODES {
        place.drain(node, json!({})).await?;
    }
    finish_all(place).await
}

async fn finish_all(place: &Place) -> Result<()> {
    let all = NODES.map(async |node| {
        place.phase(node, Phase::Drained, secs(120)).await?;
        place.uncordon(node).await?;
        place.released(node, secs(90)).await
    });
    futures::future::try_join_all(all).await?;
    Ok(())
}

async fn place() -> Result<Place> {
    let place = Place::new(&NODES).await?;
    for app in ["a", "b"] {
        place.add_pinned(app, &NODES).await?;
    }
    Ok(place)
}

/// One node is drained, and the others' drains have just been asked for.
async fn ask(place: &Place) -> Result<()> {
    place.drain("n1", json!({})).await?;
    place.phase("n1", Phase::Drained, secs(60)).await?;
    for node in ["n2", "n3"] {
        place.drain(node, json!({})).await?;
    }
    Ok(())
}

async fn leaderless(place: &Place, name: &str) -> Result<Lock> {
    place
        .run(spec(&json!({})).identity(name).arg("--leader-elect=false"))
        .await
}

#[tokio::test(flavor = "multi_thread")]
async fn two_leaders_at_once_do_no_harm() -> Result<()> {
    let place = place().await?;
    let watch = place.watch_budgets();
    let locks = [leaderless(&place, "one").await?, leaderless(&place, "two").await?];
    drain_all(&place).await?;
    watch.none_was_violated()?;
    place.end(locks).await
}

#[tokio::test(flavor = "multi_thread")]
async fn a_leader_that_is_killed_in_the_middle_is_followed_by_its_standby() -> Result<()> {
    let place = place().await?;
    let watch = place.watch_budgets();
    let first = place.run(spec(&json!({})).identity("first")).await?;
    let second = place.run(spec(&json!({})).identity("second")).await?;
    ask(&place).await?;
    first.process().kill();
    finish_all(&place).await?;
    watch.none_was_violated()?;
    place.end([second]).await
}

#[tokio::test(flavor = "multi_thread")]
async fn a_leader_that_stood_still_does_no_harm_when_it_goes_on() -> Result<()> {
    let place = place().await?;
    let watch = place.watch_budgets();
    let paused = leaderless(&place, "paused").await?;
    ask(&place).await?;
    paused.process().pause()?;
    let other = leaderless(&place, "other").await?;
    place.uncordon("n1").await?;
    place.released("n1", secs(60)).await?;
    paused.process().resume()?;
    let rest = ["n2", "n3"].map(async |node| {
        place.phase(node, Phase::Drained, secs(120)).await?;
        place.uncordon(node).await?;
        place.released(node, secs(90)).await
    });
    futures::future::try_join_all(rest).await?;
    watch.none_was_violated()?;
    ensure!(
        place
            .ledger()
            .await?
            .is_some_and(|ledger| ledger.spec.claims.is_empty()),
        "claims are left"
    );
    place.end([paused, other]).await
}

#[tokio::test(flavor = "multi_thread")]
async fn later_ledger_format_stops_the_plan_with_one_warning() -> Result<()> {
    let place = place().await?;
    let ledgers: Api<DrainLedger> = Api::all(place.client.clone());
    let later = DrainLedgerSpec {
        format_version: FORMAT_VERSION + 1,
        ..DrainLedgerSpec::default()
    };
    let later = DrainLedger::new(drain_ledger::NAME, later);
    ledgers.create(&PostParams::default(), &later).await?;
    let mark = place.plane.audit().mark()?;
    let lock = place.start(json!({})).await?;
    place.drain("n1", json!({})).await?;
    let warnings = || lock.log().matches("upgrade this drain-lock").count();
    wait::until("it to say what to do", secs(30), || async {
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
    let all = place.plane.audit().since(mark)?;
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
    place.phase("n1", Phase::Drained, secs(60)).await?;
    place.end([lock]).await
}
