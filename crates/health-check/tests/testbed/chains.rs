//! Remediations that are tried one after another.

use anyhow::{Context, Result, ensure};
use jiff::Timestamp;
use kube::ResourceExt;
use kube::api::DeleteParams;
use nodeward_api::annotation::REMEDIATION_TIMED_OUT;
use nodeward_testkit::remediator::{Behavior, Family};
use nodeward_testkit::wait::{self, secs};
use serde_json::{Value, json};

use crate::environment::{Environment, SOON};

/// The chain of these steps as changes of a specification, written last step first: `order` decides.
async fn chain(env: &Environment, steps: &[(Family, &str)], timeout: &str) -> Result<Value> {
    let mut chain = Vec::new();
    for (order, (family, name)) in steps.iter().enumerate() {
        let template = env.add_template(*family, name).await?;
        chain.push(json!({ "remediationTemplate": template, "order": order, "timeout": timeout }));
    }
    chain.reverse();
    Ok(json!({ "remediationTemplate": null, "escalatingRemediations": chain }))
}

/// With two templates of one kind, which the peer stumbles over.
#[tokio::test(flavor = "multi_thread")]
async fn chains_escalate_through_four_steps() -> Result<()> {
    let env = Environment::new().await?;
    let [a, _b] = env.add_nodes(["a", "b"]).await?;
    let steps = [
        (Family::SelfNode, "gentle"),
        (Family::SelfNode, "forceful"),
        (Family::FenceAgents, "power-off"),
        (Family::FenceAgents, "power-cut"),
    ];
    let check = env.add_check("main", chain(&env, &steps, "5m").await?).await?;
    env.lose_heartbeats(&a).await?;
    let mut before: Vec<(Family, String)> = Vec::new();
    for (number, (family, template)) in steps.into_iter().enumerate() {
        let remediation = wait::until(format!("the step {template}"), SOON, || async {
            let found = env.remediations_of(family, &a).await?;
            let of_template = found.into_iter().find(|one| one.data["spec"]["strategy"] == template);
            of_template.context("none")
        })
        .await?;
        for (family, name) in &before {
            let over = env.remediations(*family).get(name).await?;
            let since = over.annotations().get(REMEDIATION_TIMED_OUT).context("not annotated")?;
            since.parse::<Timestamp>().context("no RFC 3339")?;
        }
        let entry = env.entry(&check, &a).await?.context("no entry")?;
        ensure!(entry.remediations.len() == number + 1, "{entry:?}");
        env.say_failed(family, &remediation).await?;
        before.push((family, remediation.name_any()));
    }
    env.event(&check, "NoTemplateLeft").await?;
    env.recover(&a).await?;
    env.until_at_rest(&check, 2).await?;
    let created = (env.created(Family::SelfNode)?, env.created(Family::FenceAgents)?);
    ensure!(created == (2, 2), "{created:?}");
    env.end([check]).await
}

/// A remediator that never answers.
#[tokio::test(flavor = "multi_thread")]
async fn unanswered_steps_time_out_after_their_minute() -> Result<()> {
    let env = Environment::new().await?;
    let [a, _b] = env.add_nodes(["a", "b"]).await?;
    let steps = [(Family::SelfNode, "gentle"), (Family::FenceAgents, "power-off")];
    let check = env.add_check("main", chain(&env, &steps, "1m").await?).await?;
    env.lose_heartbeats(&a).await?;
    let first = env.remediation(Family::SelfNode, &a).await?;
    let second = wait::until("the second step", secs(150), || async {
        let found = env.remediations_of(Family::FenceAgents, &a).await?;
        found.into_iter().next().context("none")
    })
    .await?;
    let created = |object: &kube::api::DynamicObject| object.creation_timestamp().map(|time| time.0);
    let (first_at, second_at) = (
        created(&first).context("no time")?,
        created(&second).context("no time")?,
    );
    let between = second_at.duration_since(first_at);
    ensure!(between.as_secs() >= 59, "only {between:#} between the steps");
    let _remediator = env.remediate(Family::FenceAgents, Behavior::POWER_CYCLE);
    env.until_at_rest(&check, 2).await?;
    env.end([check]).await
}

#[tokio::test(flavor = "multi_thread")]
async fn vanished_remediations_are_created_again() -> Result<()> {
    let env = Environment::new().await?;
    let [a, _b] = env.add_nodes(["a", "b"]).await?;
    let check = env.add_check("main", json!({})).await?;
    env.lose_heartbeats(&a).await?;
    let first = env.remediation(Family::SelfNode, &a).await?;
    env.remediations(Family::SelfNode)
        .delete(&first.name_any(), &DeleteParams::default())
        .await?;
    wait::until("another remediation", SOON, || async {
        let now = env.remediation(Family::SelfNode, &a).await?;
        ensure!(now.uid() != first.uid(), "the same one");
        Ok(())
    })
    .await?;
    env.recover(&a).await?;
    env.until_at_rest(&check, 2).await?;
    env.end([check]).await
}

#[tokio::test(flavor = "multi_thread")]
async fn exhausted_chains_begin_anew_after_their_backoff() -> Result<()> {
    let env = Environment::new().await?;
    let [a, _b] = env.add_nodes(["a", "b"]).await?;
    let steps = [(Family::SelfNode, "gentle"), (Family::FenceAgents, "power-off")];
    let mut changes = chain(&env, &steps, "5m").await?;
    changes["backoff"] = json!({ "type": "exponential", "initial": "3s", "limit": "10s" });
    let check = env.add_check("main", changes).await?;
    let keeps = env.remediate(Family::FenceAgents, Behavior::NOTHING.keeps_finalizer());
    env.lose_heartbeats(&a).await?;
    let first = env.remediation(Family::SelfNode, &a).await?;
    env.say_failed(Family::SelfNode, &first).await?;
    let second = wait::until("the finalizer", SOON, || async {
        let second = env.remediation(Family::FenceAgents, &a).await?;
        ensure!(!second.finalizers().is_empty(), "none");
        Ok(second)
    })
    .await?;
    env.say_failed(Family::FenceAgents, &second).await?;
    wait::until("the last step to be deleted", SOON, || async {
        let now = env.remediations(Family::FenceAgents).get(&second.name_any()).await?;
        ensure!(now.metadata.deletion_timestamp.is_some(), "it is there");
        Ok(())
    })
    .await?;
    // Nothing begins while one of the old chain is still there.
    env.until_none(Family::SelfNode).await?;
    env.gets_none(Family::SelfNode, &a).await?;
    keeps.release();
    let again = env.remediation(Family::SelfNode, &a).await?;
    ensure!(again.uid() != first.uid());
    env.recover(&a).await?;
    env.until_at_rest(&check, 2).await?;
    env.end([check]).await
}
