//! Two of them at once, a killed one, and one that stood still.

use anyhow::{Result, ensure};
use nodeward_api::node_drain::Phase;
use nodeward_testkit::wait::secs;
use serde_json::json;

use crate::place::{Lock, Place, spec};

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
