//! Owners' holds.

use anyhow::{Context, Result, bail, ensure};
use jiff::{SignedDuration, Timestamp};
use k8s_openapi::api::events::v1::Event;
use k8s_openapi::api::policy::v1::PodDisruptionBudget;
use kube::ResourceExt;
use kube::api::{Api, DeleteParams, ListParams, Patch, PatchParams, PostParams};
use nodeward_api::DisruptionHold;
use nodeward_api::annotation::{HOLD, HOLD_UNTIL};
use nodeward_api::disruption_hold::{DisruptionHoldSpec, HoldPhase};
use nodeward_api::node_drain::Phase;
use nodeward_api::reason::LockReason;
use nodeward_testkit::wait::{self, secs};
use serde_json::json;

use crate::environment::{APPS, Environment};

const NODES: [&str; 3] = ["n1", "n2", "n3"];

pub fn holds(env: &Environment) -> Api<DisruptionHold> {
    Api::namespaced(env.client.clone(), APPS)
}

pub async fn hold(env: &Environment, name: &str, budget: &str, expires_at: Option<Timestamp>) -> Result<()> {
    let spec = DisruptionHoldSpec {
        pdb_ref: budget.to_owned(),
        disruptions: None,
        reason: "rebalancing".to_owned(),
        expires_at,
    };
    holds(env)
        .create(&PostParams::default(), &DisruptionHold::new(name, spec))
        .await?;
    Ok(())
}

pub async fn phase_of(env: &Environment, name: &str, phase: HoldPhase) -> Result<()> {
    wait::until(format!("hold {name} to be {phase:?}"), secs(60), || async {
        let status = holds(env).get(name).await?.status.context("no status")?;
        ensure!(status.phase == Some(phase), "{status:?}");
        Ok(())
    })
    .await
}

async fn is_blocked_by_owner(env: &Environment, node: &str) -> Result<()> {
    env.status_that(node, "to wait for the owner", secs(60), |status| {
        status
            .blocked_by
            .iter()
            .any(|blocked| blocked.reason == LockReason::OwnerHold)
    })
    .await?;
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn hold_blocks_drains_until_deleted() -> Result<()> {
    let env = Environment::new(&NODES).await?;
    env.add_pinned("a", &NODES).await?;
    let lock = env.start(json!({})).await?;
    hold(
        &env,
        "mine",
        "a",
        Some(Timestamp::now() + SignedDuration::from_mins(10)),
    )
    .await?;
    phase_of(&env, "mine", HoldPhase::Active).await?;
    hold(&env, "other", "no-such", None).await?;
    phase_of(&env, "other", HoldPhase::NoSuchBudget).await?;
    env.drain("n1", json!({})).await?;
    is_blocked_by_owner(&env, "n1").await?;
    ensure!(env.pods_on("n1").await?.len() == 1, "its pod was evicted");
    holds(&env).delete("mine", &DeleteParams::default()).await?;
    env.phase("n1", Phase::Drained, secs(60)).await?;
    env.end([lock]).await
}

#[tokio::test(flavor = "multi_thread")]
async fn a_hold_lasts_no_longer_than_the_configuration_allows() -> Result<()> {
    let env = Environment::new(&NODES).await?;
    env.add_pinned("a", &NODES).await?;
    let lock = env.start(json!({ "holds": { "maxDuration": "25s" } })).await?;
    hold(&env, "mine", "a", None).await?;
    phase_of(&env, "mine", HoldPhase::Capped).await?;
    env.drain("n1", json!({})).await?;
    is_blocked_by_owner(&env, "n1").await?;
    phase_of(&env, "mine", HoldPhase::Expired).await?;
    env.phase("n1", Phase::Drained, secs(60)).await?;
    env.end([lock]).await
}

/// From when it was written, as the API server tells.
#[tokio::test(flavor = "multi_thread")]
async fn forgotten_annotation_holds_for_limited_time() -> Result<()> {
    let env = Environment::new(&NODES).await?;
    env.add_pinned("a", &NODES).await?;
    let lock = env.start(json!({ "holds": { "maxDuration": "25s" } })).await?;
    let budgets: Api<PodDisruptionBudget> = Api::namespaced(env.client.clone(), APPS);
    let annotate = async |value: serde_json::Value| {
        let patch = json!({ "metadata": { "annotations": { HOLD: value } } });
        budgets.patch("a", &PatchParams::default(), &Patch::Merge(&patch)).await
    };
    annotate(json!("defragmenting")).await?;
    let said = async |is_there: bool| {
        wait::until(
            format!("the end of the hold to be said: {is_there}"),
            secs(60),
            || async {
                let budget = budgets.get("a").await?;
                let until = budget
                    .annotations()
                    .get(HOLD_UNTIL)
                    .map(|time| time.parse::<Timestamp>());
                ensure!(until.transpose()?.is_some() == is_there, "{:?}", budget.annotations());
                Ok(())
            },
        )
        .await
    };
    said(true).await?;
    env.drain("n1", json!({})).await?;
    is_blocked_by_owner(&env, "n1").await?;
    env.event("a", LockReason::HoldExpired, secs(60)).await?;
    env.phase("n1", Phase::Drained, secs(60)).await?;
    annotate(json!(null)).await?;
    said(false).await?;
    env.end([lock]).await
}

#[tokio::test(flavor = "multi_thread")]
async fn budget_annotation_holds_until_administrator_frees() -> Result<()> {
    let env = Environment::new(&NODES).await?;
    env.add_pinned("a", &NODES).await?;
    env.add_pinned("b", &NODES).await?;
    let lock = env.start(json!({})).await?;
    let budgets: Api<PodDisruptionBudget> = Api::namespaced(env.client.clone(), APPS);
    let annotate = async |value: serde_json::Value| {
        let patch = json!({ "metadata": { "annotations": { "nodeward.dev/hold": value } } });
        budgets.patch("a", &PatchParams::default(), &Patch::Merge(&patch)).await
    };
    annotate(json!("defragmenting")).await?;
    hold(&env, "theirs", "b", None).await?;
    env.drain("n1", json!({})).await?;
    is_blocked_by_owner(&env, "n1").await?;
    annotate(json!(null)).await?;
    is_blocked_by_owner(&env, "n1").await?;
    let release = json!({ "metadata": { "annotations": { "nodeward.dev/release": "bob: urgent" } } });
    holds(&env)
        .patch("theirs", &PatchParams::default(), &Patch::Merge(&release))
        .await?;
    phase_of(&env, "theirs", HoldPhase::Overridden).await?;
    let events: Api<Event> = Api::namespaced(env.client.clone(), APPS);
    wait::until("its owner to be told", secs(60), || async {
        let told = events
            .list(&ListParams::default().fields("reason=HoldOverridden"))
            .await?;
        let [event] = &told.items[..] else {
            bail!("{} Events", told.items.len())
        };
        let regarding = event.regarding.clone().unwrap_or_default();
        ensure!(regarding.name.as_deref() == Some("theirs"), "{event:?}");
        ensure!(
            event.note.as_deref().is_some_and(|note| note.contains("bob: urgent")),
            "{event:?}"
        );
        Ok(())
    })
    .await?;
    env.phase("n1", Phase::Drained, secs(60)).await?;
    env.end([lock]).await
}
