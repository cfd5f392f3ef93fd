//! Drains by programs that know nothing of drain-lock: they evict by themselves, under a claim.

use anyhow::{Result, ensure};
use kube::ResourceExt;
use kube::api::EvictParams;
use nodeward_api::node_drain::Phase;
use nodeward_testkit::fleet;
use nodeward_testkit::wait::{self, secs};
use serde_json::json;

use crate::place::Place;

const NODES: [&str; 3] = ["n1", "n2", "n3"];

#[tokio::test(flavor = "multi_thread")]
async fn another_drainer_evicts_by_itself_under_the_claim_and_ends_it_by_uncordoning() -> Result<()> {
    let place = Place::new(&NODES).await?;
    place.add_pinned("a", &NODES).await?;
    let lock = place.start(json!({})).await?;
    fleet::cordon(&place.client, "n1").await?;
    place.drain("n1", json!({ "evict": "Requester" })).await?;
    let granted = place.phase("n1", Phase::Draining, secs(30)).await?;
    ensure!(granted.held_units == Some(1), "{granted:?}");
    wait::throughout("nothing is evicted for it", secs(3), || async {
        ensure!(place.pods_on("n1").await?.len() == 1, "evicted");
        Ok(())
    })
    .await?;
    let pod = place.pods_on("n1").await?.remove(0);
    place.pods().evict(&pod.name_any(), &EvictParams::default()).await?;
    place.phase("n1", Phase::Drained, secs(30)).await?;
    place.uncordon("n1").await?;
    place.released("n1", secs(30)).await?;
    place.end([lock]).await
}

#[tokio::test(flavor = "multi_thread")]
async fn a_drainer_that_is_silent_ends_its_drain_while_nothing_is_down_and_is_suspect_otherwise() -> Result<()> {
    let place = Place::new(&NODES).await?;
    place.add_pinned("a", &NODES).await?;
    place.add_pinned("b", &NODES).await?;
    let lock = place.start(json!({ "auto": { "quietPeriod": "6s" } })).await?;
    fleet::cordon(&place.client, "n1").await?;
    let filed = json!({ "evict": "Requester", "requesters": [{ "name": "eviction:somebody" }] });
    place.drain("n1", filed.clone()).await?;
    place.phase("n1", Phase::Draining, secs(30)).await?;
    place.released("n1", secs(30)).await?;
    place.drain("n1", filed).await?;
    place.phase("n1", Phase::Draining, secs(30)).await?;
    let pod = place.pods_on("n1").await?.remove(0);
    place.pods().evict(&pod.name_any(), &EvictParams::default()).await?;
    place.phase("n1", Phase::Suspect, secs(30)).await?;
    ensure!(
        place.claim("n1").await?.is_some_and(|claim| !claim.holds.is_empty()),
        "freed by time"
    );
    place.uncordon("n1").await?;
    place.released("n1", secs(30)).await?;
    place.end([lock]).await
}
