//! Drains from the wish to the release.

use anyhow::{Result, ensure};
use nodeward_api::node_drain::Phase;
use nodeward_testkit::fleet;
use nodeward_testkit::wait::secs;
use serde_json::json;

use crate::place::Place;

#[tokio::test(flavor = "multi_thread")]
async fn a_drain_is_granted_evicts_its_pods_and_is_released_when_its_node_is_uncordoned() -> Result<()> {
    let place = Place::new(&["n1", "n2", "n3"]).await?;
    place.add_pinned("a", &["n1", "n2", "n3"]).await?;
    let lock = place.start(json!({})).await?;
    place.drain("n1", json!({})).await?;
    let drained = place.phase("n1", Phase::Drained, secs(30)).await?;
    ensure!(drained.held_units == Some(1), "{drained:?}");
    ensure!(place.pods_on("n1").await?.is_empty(), "pods are left");
    let node = place.nodes().get("n1").await?;
    ensure!(fleet::cordon_taint(&node).is_some(), "not cordoned");
    place.uncordon("n1").await?;
    place.released("n1", secs(30)).await?;
    ensure!(place.pods_on("n1").await?.len() == 1, "its pod is not back");
    place.end([lock]).await
}
