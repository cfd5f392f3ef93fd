//! What is left of remediations blocks nobody.

use anyhow::{Context, Result, ensure};
use kube::ResourceExt;
use kube::api::{DeleteParams, DynamicObject, Patch, PatchParams};
use nodeward_api::annotation::REMEDIATION_TIMED_OUT;
use nodeward_api::label::EXCLUDE_FROM_REMEDIATION;
use nodeward_api::node_health_check::Phase;
use nodeward_testkit::fleet;
use nodeward_testkit::remediator::{Behavior, Family};
use nodeward_testkit::wait::{self, secs};
use serde_json::{Value, json};

use crate::environment::{Environment, OwnEnvironment, SOON};

/// A chain of these steps, as changes of a specification.
async fn chain(env: &Environment, families: &[Family], timeout: &str) -> Result<Value> {
    let mut chain = Vec::new();
    for (order, family) in families.iter().enumerate() {
        let template = env.add_template(*family, "reboot").await?;
        chain.push(json!({ "remediationTemplate": template, "order": order, "timeout": timeout }));
    }
    Ok(json!({ "remediationTemplate": null, "escalatingRemediations": chain }))
}

/// A template that allows a node one remediation of its kind, as most do: its name is the node's.
async fn single_template(env: &Environment, family: Family, name: &str) -> Result<Value> {
    let body = json!({ "spec": { "template": { "spec": { "strategy": name } } } });
    family.template().put(&env.client, Some(&env.name), name, body).await?;
    Ok(family.reference(&env.name, name))
}

async fn delete(env: &Environment, family: Family, remediation: &DynamicObject) -> Result<()> {
    let remediations = env.remediations(family);
    remediations
        .delete(&remediation.name_any(), &DeleteParams::default())
        .await?;
    Ok(())
}

/// Waits for another remediation of the node than this.
async fn another(env: &Environment, family: Family, node: &str, first: &DynamicObject) -> Result<DynamicObject> {
    wait::until("another remediation", SOON, || async {
        let found = env.remediations_of(family, node).await?;
        let mut others = found.into_iter().filter(|found| found.uid() != first.uid());
        others.next().context("none")
    })
    .await
}

/// A remediation of the node that a finalizer keeps.
async fn kept(env: &Environment, family: Family, node: &str) -> Result<DynamicObject> {
    wait::until("the finalizer", SOON, || async {
        let remediation = env.remediation(family, node).await?;
        ensure!(!remediation.finalizers().is_empty(), "none");
        Ok(remediation)
    })
    .await
}

#[tokio::test(flavor = "multi_thread")]
async fn failed_remediations_are_created_again_once_deleted() -> Result<()> {
    let env = Environment::new().await?;
    let [a, _b] = env.add_nodes(["a", "b"]).await?;
    let check = env.add_check("main", json!({})).await?;
    env.lose_heartbeats(&a).await?;
    let first = env.remediation(Family::SelfNode, &a).await?;
    env.say_failed(Family::SelfNode, &first).await?;
    env.event(&check, "NoTemplateLeft").await?;
    delete(&env, Family::SelfNode, &first).await?;
    another(&env, Family::SelfNode, &a, &first).await?;
    env.recover(&a).await?;
    env.until_at_rest(&check, 2).await?;
    env.end([check]).await
}

/// Its remediator is told that its time is over, others go on, and so does the node when it returns.
#[tokio::test(flavor = "multi_thread")]
async fn remediations_of_deleted_nodes_that_stay_block_nobody() -> Result<()> {
    let env = Environment::new().await?;
    let [a, b, _c] = env.add_nodes(["a", "b", "c"]).await?;
    let check = env.add_check("main", json!({ "maxConcurrentRemediations": 1 })).await?;
    let keeps = env.remediate(Family::SelfNode, Behavior::NOTHING.keeps_finalizer());
    env.lose_heartbeats(&a).await?;
    let first = kept(&env, Family::SelfNode, &a).await?;
    env.nodes().delete(&a, &DeleteParams::default()).await?;
    wait::until("its remediation to be told and deleted", SOON, || async {
        let now = env.remediations(Family::SelfNode).get(&first.name_any()).await?;
        ensure!(now.metadata.deletion_timestamp.is_some(), "it is not deleted");
        ensure!(now.annotations().contains_key(REMEDIATION_TIMED_OUT), "it is not told");
        Ok(())
    })
    .await?;
    env.until_status(&check, "nothing of it", |status| {
        status.phase == Some(Phase::Enabled) && status.unhealthy_nodes.is_empty()
    })
    .await?;
    env.lose_heartbeats(&b).await?;
    env.remediation(Family::SelfNode, &b).await?;
    env.recover(&b).await?;
    env.add_nodes(["a"]).await?;
    env.lose_heartbeats(&a).await?;
    another(&env, Family::SelfNode, &a, &first).await?;
    env.recover(&a).await?;
    keeps.release();
    env.until_at_rest(&check, 3).await?;
    env.end([check]).await
}

#[tokio::test(flavor = "multi_thread")]
async fn exhausted_chains_begin_anew_once_deleted() -> Result<()> {
    let env = Environment::new().await?;
    let [a, _b] = env.add_nodes(["a", "b"]).await?;
    let families = [Family::SelfNode, Family::FenceAgents];
    let check = env.add_check("main", chain(&env, &families, "5m").await?).await?;
    env.lose_heartbeats(&a).await?;
    let first = env.remediation(Family::SelfNode, &a).await?;
    env.say_failed(Family::SelfNode, &first).await?;
    let second = env.remediation(Family::FenceAgents, &a).await?;
    env.say_failed(Family::FenceAgents, &second).await?;
    env.event(&check, "NoTemplateLeft").await?;
    delete(&env, Family::SelfNode, &first).await?;
    delete(&env, Family::FenceAgents, &second).await?;
    another(&env, Family::SelfNode, &a, &first).await?;
    env.gets_none(Family::FenceAgents, &a).await?;
    env.recover(&a).await?;
    env.until_at_rest(&check, 2).await?;
    env.end([check]).await
}

#[tokio::test(flavor = "multi_thread")]
async fn steps_that_are_stuck_in_deletion_time_out() -> Result<()> {
    let env = Environment::new().await?;
    let [a, _b] = env.add_nodes(["a", "b"]).await?;
    let families = [Family::SelfNode, Family::FenceAgents];
    let check = env.add_check("main", chain(&env, &families, "1m").await?).await?;
    let keeps = env.remediate(Family::SelfNode, Behavior::NOTHING.keeps_finalizer());
    env.lose_heartbeats(&a).await?;
    let first = kept(&env, Family::SelfNode, &a).await?;
    delete(&env, Family::SelfNode, &first).await?;
    wait::until("the second step", secs(150), || async {
        let found = env.remediations_of(Family::FenceAgents, &a).await?;
        ensure!(found.len() == 1, "{} of them", found.len());
        Ok(())
    })
    .await?;
    let first = env.remediations(Family::SelfNode).get(&first.name_any()).await?;
    ensure!(
        first.annotations().contains_key(REMEDIATION_TIMED_OUT),
        "it is not told"
    );
    env.recover(&a).await?;
    keeps.release();
    env.until_at_rest(&check, 2).await?;
    env.end([check]).await
}

/// What is left of the template has the name of the step in its place.
#[tokio::test(flavor = "multi_thread")]
async fn replaced_templates_begin_once_their_rest_is_deleted() -> Result<()> {
    let env = Environment::new().await?;
    let [a, _b] = env.add_nodes(["a", "b"]).await?;
    let check = env.check("main", json!({})).await?;
    single_template(&env, Family::SelfNode, "reboot").await?;
    let check = env.create_check(check).await?;
    env.lose_heartbeats(&a).await?;
    let first = env.remediation(Family::SelfNode, &a).await?;
    env.say_failed(Family::SelfNode, &first).await?;
    env.event(&check, "NoTemplateLeft").await?;
    let template = single_template(&env, Family::SelfNode, "another").await?;
    env.change_check(&check, json!({ "remediationTemplate": template }))
        .await?;
    let second = another(&env, Family::SelfNode, &a, &first).await?;
    ensure!(second.name_any() == first.name_any(), "{second:?}");
    ensure!(second.data["spec"]["strategy"] == "another", "{second:?}");
    env.recover(&a).await?;
    env.until_at_rest(&check, 2).await?;
    env.end([check]).await
}

/// However long the node has been unhealthy, its first step waits for a name from when that was taken.
#[tokio::test(flavor = "multi_thread")]
async fn checks_made_anew_leave_out_no_step() -> Result<()> {
    let env = Environment::new().await?;
    let [a, _b] = env.add_nodes(["a", "b"]).await?;
    let check = env
        .check(
            "main",
            chain(&env, &[Family::SelfNode, Family::FenceAgents], "1m").await?,
        )
        .await?;
    single_template(&env, Family::SelfNode, "reboot").await?;
    let keeps = env.remediate(Family::SelfNode, Behavior::NOTHING.keeps_finalizer());
    let name = env.create_check(check.clone()).await?;
    env.lose_heartbeats(&a).await?;
    let first = kept(&env, Family::SelfNode, &a).await?;
    env.checks().delete(&name, &DeleteParams::orphan()).await?;
    wait::until("the remediation to have no owner", SOON, || async {
        let now = env.remediations(Family::SelfNode).get(&first.name_any()).await?;
        ensure!(now.owner_references().is_empty(), "{now:?}");
        Ok(())
    })
    .await?;
    // The node has been unhealthy for longer than the first step may take.
    tokio::time::sleep(secs(60)).await;
    delete(&env, Family::SelfNode, &first).await?;
    env.create_check(check).await?;
    env.until_status(&name, "the node", |status| !status.unhealthy_nodes.is_empty())
        .await?;
    env.gets_none(Family::FenceAgents, &a).await?;
    keeps.release();
    another(&env, Family::SelfNode, &a, &first).await?;
    env.recover(&a).await?;
    env.until_at_rest(&name, 2).await?;
    env.end([name]).await
}

#[tokio::test(flavor = "multi_thread")]
async fn exhausted_chains_take_no_slot() -> Result<()> {
    let env = Environment::new().await?;
    let [a, b, _c] = env.add_nodes(["a", "b", "c"]).await?;
    let mut changes = chain(&env, &[Family::SelfNode], "5m").await?;
    changes["maxConcurrentRemediations"] = json!(1);
    let check = env.add_check("main", changes).await?;
    env.lose_heartbeats(&a).await?;
    let first = env.remediation(Family::SelfNode, &a).await?;
    env.lose_heartbeats(&b).await?;
    env.gets_none(Family::SelfNode, &b).await?;
    env.say_failed(Family::SelfNode, &first).await?;
    env.remediation(Family::SelfNode, &b).await?;
    ensure!(env.lease_holder(&a).await?.is_none(), "its lease is held");
    for node in [&a, &b] {
        env.recover(node).await?;
    }
    env.until_at_rest(&check, 3).await?;
    env.end([check]).await
}

/// Somebody has taken its owner away: it is not gone, and its remediator is at work.
#[tokio::test(flavor = "multi_thread")]
async fn remediations_without_their_owner_keep_their_slot() -> Result<()> {
    let env = Environment::new().await?;
    let [a, b, _c] = env.add_nodes(["a", "b", "c"]).await?;
    let mut changes = chain(&env, &[Family::SelfNode, Family::FenceAgents], "5m").await?;
    changes["maxConcurrentRemediations"] = json!(1);
    let check = env.add_check("main", changes).await?;
    env.lose_heartbeats(&a).await?;
    let first = env.remediation(Family::SelfNode, &a).await?;
    env.until_status(&check, "the remediation's uid", |status| {
        let mut known = status.unhealthy_nodes.iter().flat_map(|node| &node.remediations);
        known.any(|remediation| remediation.resource.uid == first.uid())
    })
    .await?;
    let disowned = Patch::Merge(json!({ "metadata": { "ownerReferences": null } }));
    let remediations = env.remediations(Family::SelfNode);
    remediations
        .patch(&first.name_any(), &PatchParams::default(), &disowned)
        .await?;
    env.lose_heartbeats(&b).await?;
    env.gets_none(Family::SelfNode, &b).await?;
    env.say_failed(Family::SelfNode, &first).await?;
    env.remediation(Family::FenceAgents, &a).await?;
    for node in [&a, &b] {
        env.recover(node).await?;
    }
    env.until_at_rest(&check, 3).await?;
    env.end([check]).await
}

/// Nobody knows for how long: when its step has had its time, its remediator is told to stop, and the next node has its turn.
#[tokio::test(flavor = "multi_thread")]
async fn excluded_nodes_take_no_slot_beyond_their_step() -> Result<()> {
    let env = Environment::new().await?;
    let [a, b, _c] = env.add_nodes(["a", "b", "c"]).await?;
    let mut changes = chain(&env, &[Family::SelfNode, Family::FenceAgents], "60s").await?;
    changes["maxConcurrentRemediations"] = json!(1);
    let check = env.add_check("main", changes).await?;
    env.lose_heartbeats(&a).await?;
    let first = env.remediation(Family::SelfNode, &a).await?;
    fleet::label(&env.client, &a, EXCLUDE_FROM_REMEDIATION, Some("true")).await?;
    env.lose_heartbeats(&b).await?;
    env.gets_none(Family::SelfNode, &b).await?;
    wait::until("the next node's turn", secs(150), || async {
        let found = env.remediations_of(Family::SelfNode, &b).await?;
        ensure!(found.len() == 1, "{} of them", found.len());
        Ok(())
    })
    .await?;
    let remediations = env.remediations(Family::SelfNode);
    let told = remediations.get(&first.name_any()).await?;
    ensure!(
        told.annotations().contains_key(REMEDIATION_TIMED_OUT),
        "it was not told"
    );
    env.gets_none(Family::FenceAgents, &a).await?;
    for node in [&a, &b] {
        env.recover(node).await?;
    }
    env.until_at_rest(&check, 3).await?;
    env.end([check]).await
}

/// As the refusal says: pause, delete the remediations, and delete again.
#[tokio::test(flavor = "multi_thread")]
async fn checks_are_deleted_once_their_remediations_are() -> Result<()> {
    let (own, operator) = OwnEnvironment::reviewed().await?;
    let [a, _b] = own.add_nodes(["a", "b"]).await?;
    let check = own.add_check("main", json!({})).await?;
    own.lose_heartbeats(&a).await?;
    let remediation = own.remediation(Family::SelfNode, &a).await?;
    own.until_status(&check, "phase Remediating", |status| {
        status.phase == Some(Phase::Remediating)
    })
    .await?;
    let checks = own.checks();
    let refused = || async {
        let answer = checks
            .delete(
                &check,
                &DeleteParams {
                    dry_run: true,
                    ..DeleteParams::default()
                },
            )
            .await;
        anyhow::Ok(answer.err().map(|error| error.to_string()))
    };
    wait::until("the refusal", SOON, || async {
        let told = refused().await?.context("it is admitted")?;
        ensure!(told.contains("delete the remediations"), "{told}");
        Ok(())
    })
    .await?;
    own.change_check(&check, json!({ "pauseRequests": ["it goes"] }))
        .await?;
    own.until_status(&check, "phase Paused", |status| status.phase == Some(Phase::Paused))
        .await?;
    ensure!(refused().await?.is_some(), "a pause alone ends nothing");
    delete(&own, Family::SelfNode, &remediation).await?;
    own.until_none(Family::SelfNode).await?;
    checks.delete(&check, &DeleteParams::default()).await?;
    own.unregister_webhook().await?;
    own.end([operator]).await
}

/// Stored objects have both.
#[tokio::test(flavor = "multi_thread")]
async fn single_templates_may_stand_beside_an_empty_chain() -> Result<()> {
    let env = Environment::new().await?;
    let [a, _b] = env.add_nodes(["a", "b"]).await?;
    let check = env.add_check("main", json!({ "escalatingRemediations": [] })).await?;
    env.lose_heartbeats(&a).await?;
    env.remediation(Family::SelfNode, &a).await?;
    env.recover(&a).await?;
    env.until_at_rest(&check, 2).await?;
    env.end([check]).await
}
