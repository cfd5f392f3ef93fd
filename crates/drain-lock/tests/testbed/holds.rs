//! Owners' holds.

use anyhow::{Context, Result, ensure};
use jiff::{SignedDuration, Timestamp};
use k8s_openapi::api::policy::v1::PodDisruptionBudget;
use kube::api::{Api, DeleteParams, Patch, PatchParams, PostParams};
use nodeward_api::DisruptionHold;
use nodeward_api::disruption_hold::{DisruptionHoldSpec, HoldPhase};
use nodeward_api::node_drain::Phase;
use nodeward_api::reason::LockReason;
use nodeward_testkit::wait::{self, secs};
use serde_json::json;

use crate::place::{APPS, Place};

const NODES: [&str; 3] = ["n1", "n2", "n3"];

fn holds(place: &Place) -> Api<DisruptionHold> {
    Api::namespaced(place.client.clone(), APPS)
}

async fn hold(place: &Place, name: &str, budget: &str, expires_at: Option<Timestamp>) -> Result<()> {
    let spec = DisruptionHoldSpec {
        pdb_ref: budget.to_owned(),
        units: None,
        reason: "rebalancing".to_owned(),
        expires_at,
    };
    holds(place)
        .create(&PostParams::default(), &DisruptionHold::new(name, spec))
        .await?;
    Ok(())
}

async fn phase_of(place: &Place, name: &str, phase: HoldPhase) -> Result<()> {
    wait::until(format!("hold {name} to be {phase:?}"), secs(20), || async {
        let status = holds(place).get(name).await?.status.context("no status")?;
        ensure!(status.phase == Some(phase), "{status:?}");
        Ok(())
    })
    .await
}

async fn is_blocked_by_owner(place: &Place, node: &str) -> Result<()> {
    place
        .status_that(node, "to wait for the owner", secs(20), |status| {
            status
                .blocked_by
                .iter()
                .any(|blocked| blocked.reason == LockReason::OwnerHold)
        })
        .await?;
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn a_hold_keeps_drains_from_its_budget_until_it_is_deleted() -> Result<()> {
    let place = Place::new(&NODES).await?;
    place.add_pinned("a", &NODES).await?;
    let lock = place.start(json!({})).await?;
    hold(
        &place,
        "mine",
        "a",
        Some(Timestamp::now() + SignedDuration::from_mins(10)),
    )
    .await?;
    phase_of(&place, "mine", HoldPhase::Active).await?;
    hold(&place, "other", "no-such", None).await?;
    phase_of(&place, "other", HoldPhase::NoSuchBudget).await?;
    place.drain("n1", json!({})).await?;
    is_blocked_by_owner(&place, "n1").await?;
    ensure!(place.pods_on("n1").await?.len() == 1, "its pod was evicted");
    holds(&place).delete("mine", &DeleteParams::default()).await?;
    place.phase("n1", Phase::Drained, secs(30)).await?;
    place.end([lock]).await
}

#[tokio::test(flavor = "multi_thread")]
async fn a_hold_lasts_no_longer_than_the_configuration_allows() -> Result<()> {
    let place = Place::new(&NODES).await?;
    place.add_pinned("a", &NODES).await?;
    let lock = place.start(json!({ "holds": { "maxDuration": "6s" } })).await?;
    hold(&place, "mine", "a", None).await?;
    phase_of(&place, "mine", HoldPhase::Capped).await?;
    place.drain("n1", json!({})).await?;
    is_blocked_by_owner(&place, "n1").await?;
    phase_of(&place, "mine", HoldPhase::Expired).await?;
    place.phase("n1", Phase::Drained, secs(30)).await?;
    place.end([lock]).await
}

#[tokio::test(flavor = "multi_thread")]
async fn the_annotation_of_a_budget_holds_it_too_and_an_administrator_frees_a_hold() -> Result<()> {
    let place = Place::new(&NODES).await?;
    place.add_pinned("a", &NODES).await?;
    place.add_pinned("b", &NODES).await?;
    let lock = place.start(json!({})).await?;
    let budgets: Api<PodDisruptionBudget> = Api::namespaced(place.client.clone(), APPS);
    let annotate = async |value: serde_json::Value| {
        let patch = json!({ "metadata": { "annotations": { "nodeward.dev/hold": value } } });
        budgets.patch("a", &PatchParams::default(), &Patch::Merge(&patch)).await
    };
    annotate(json!("defragmenting")).await?;
    hold(&place, "theirs", "b", None).await?;
    place.drain("n1", json!({})).await?;
    is_blocked_by_owner(&place, "n1").await?;
    annotate(json!(null)).await?;
    is_blocked_by_owner(&place, "n1").await?;
    let release = json!({ "metadata": { "annotations": { "nodeward.dev/release": "bob: urgent" } } });
    holds(&place)
        .patch("theirs", &PatchParams::default(), &Patch::Merge(&release))
        .await?;
    phase_of(&place, "theirs", HoldPhase::Expired).await?;
    place.phase("n1", Phase::Drained, secs(30)).await?;
    place.end([lock]).await
}
