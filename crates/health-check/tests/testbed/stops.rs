//! What stops a remediation, and what goes on meanwhile.

use anyhow::{Context, Result, ensure};
use jiff::Timestamp;
use kube::ResourceExt;
use kube::api::{Api, DeleteParams, Patch, PatchParams, PostParams};
use nodeward_api::label::EXCLUDE_FROM_REMEDIATION;
use nodeward_api::node_drain::NodeDrain;
use nodeward_api::node_health_check::{NodeHealthCheckStatus, Phase};
use nodeward_api::reason::HealthReason;
use nodeward_testkit::foreign::Foreign;
use nodeward_testkit::pause::CutOff;
use nodeward_testkit::remediator::Family;
use nodeward_testkit::wait;
use nodeward_testkit::{fleet, pause};
use serde_json::{Value, json};

use crate::environment::{Environment, OwnEnvironment, SOON};

/// Pausing freezes neither the counts nor the clean-up.
#[tokio::test(flavor = "multi_thread")]
async fn paused_checks_still_count_and_clean_up() -> Result<()> {
    let env = Environment::new().await?;
    let [a, b, _c] = env.add_nodes(["a", "b", "c"]).await?;
    let check = env.add_check("main", json!({})).await?;
    env.lose_heartbeats(&a).await?;
    env.remediation(Family::SelfNode, &a).await?;
    env.change_check(&check, json!({ "pauseRequests": ["storage upgrade"] }))
        .await?;
    env.until_status(&check, "phase Paused", |status| status.phase == Some(Phase::Paused))
        .await?;
    env.not_ready(&b).await?;
    env.until_counted(&check, 1, 3).await?;
    env.recover(&a).await?;
    env.until_none(Family::SelfNode).await?;
    env.until_counted(&check, 2, 3).await?;
    env.gets_none(Family::SelfNode, &b).await?;
    env.change_check(&check, json!({ "pauseRequests": [] })).await?;
    env.remediation(Family::SelfNode, &b).await?;
    env.recover(&b).await?;
    env.until_at_rest(&check, 3).await?;
    env.end([check]).await
}

#[tokio::test(flavor = "multi_thread")]
async fn paused_chains_escalate_when_resumed() -> Result<()> {
    let env = Environment::new().await?;
    let [a, _b] = env.add_nodes(["a", "b"]).await?;
    let mut chain = Vec::new();
    for (order, family) in [Family::SelfNode, Family::FenceAgents].into_iter().enumerate() {
        let template = env.add_template(family, "reboot").await?;
        chain.push(json!({ "remediationTemplate": template, "order": order, "timeout": "5m" }));
    }
    let changes = json!({ "remediationTemplate": null, "escalatingRemediations": chain });
    let check = env.add_check("main", changes).await?;
    env.lose_heartbeats(&a).await?;
    let first = env.remediation(Family::SelfNode, &a).await?;
    env.change_check(&check, json!({ "pauseRequests": ["wait"] })).await?;
    env.until_status(&check, "phase Paused", |status| status.phase == Some(Phase::Paused))
        .await?;
    env.say_failed(Family::SelfNode, &first).await?;
    env.gets_none(Family::FenceAgents, &a).await?;
    env.change_check(&check, json!({ "pauseRequests": [] })).await?;
    env.remediation(Family::FenceAgents, &a).await?;
    env.recover(&a).await?;
    env.until_at_rest(&check, 2).await?;
    env.end([check]).await
}

/// Of each, and not of the first one alone.
#[tokio::test(flavor = "multi_thread")]
async fn status_says_what_stops_each_node() -> Result<()> {
    let env = Environment::new().await?;
    let [a, b, c, _d] = env.add_nodes(["a", "b", "c", "d"]).await?;
    let changes = json!({ "maxConcurrentRemediations": 1, "maxUnhealthy": "100%" });
    let check = env.add_check("main", changes).await?;
    fleet::label(&env.client, &c, EXCLUDE_FROM_REMEDIATION, Some("true")).await?;
    env.lose_heartbeats(&a).await?;
    env.remediation(Family::SelfNode, &a).await?;
    for node in [&b, &c] {
        env.lose_heartbeats(node).await?;
    }
    let told = |status: &NodeHealthCheckStatus, node: &str| {
        let mut nodes = status.unhealthy_nodes.iter();
        let stop = nodes.find(|entry| entry.name == node)?.stopped_by.as_ref()?;
        Some((stop.reason, stop.message.contains(&a)))
    };
    let is_told = |status: &NodeHealthCheckStatus| {
        told(status, &a).is_none()
            && told(status, &b) == Some((HealthReason::ConcurrencyLimitReached, true))
            && told(status, &c) == Some((HealthReason::ExcludedByLabel, false))
    };
    env.until_status(&check, "what stops each", is_told).await?;
    fleet::label(&env.client, &c, EXCLUDE_FROM_REMEDIATION, None).await?;
    for node in [&a, &b, &c] {
        env.recover(node).await?;
    }
    env.until_at_rest(&check, 4).await?;
    env.end([check]).await
}

#[tokio::test(flavor = "multi_thread")]
async fn excluded_nodes_are_observed_only() -> Result<()> {
    let env = Environment::new().await?;
    let [a, b, _c] = env.add_nodes(["a", "b", "c"]).await?;
    fleet::label(&env.client, &a, EXCLUDE_FROM_REMEDIATION, Some("true")).await?;
    // Without a value it excludes nothing.
    fleet::label(&env.client, &b, EXCLUDE_FROM_REMEDIATION, Some("")).await?;
    let check = env.add_check("main", json!({})).await?;
    for node in [&a, &b] {
        env.lose_heartbeats(node).await?;
    }
    env.remediation(Family::SelfNode, &b).await?;
    env.event(&b, "InvalidNodeLabel").await?;
    env.until_counted(&check, 1, 3).await?;
    env.gets_none(Family::SelfNode, &a).await?;
    fleet::label(&env.client, &a, EXCLUDE_FROM_REMEDIATION, None).await?;
    env.remediation(Family::SelfNode, &a).await?;
    for node in [&a, &b] {
        env.recover(node).await?;
    }
    env.until_at_rest(&check, 3).await?;
    env.end([check]).await
}

/// Each node is maintained in another way, and remediated once that has ended.
#[tokio::test(flavor = "multi_thread")]
async fn maintained_nodes_are_left_alone() -> Result<()> {
    let env = Environment::new().await?;
    let [a, b, c, d, _e] = env.add_nodes(["a", "b", "c", "d", "e"]).await?;
    let check = env.add_check("main", json!({})).await?;
    Foreign::NodeMaintenance
        .put(
            &env.client,
            None,
            &a,
            json!({ "spec": { "nodeName": a, "reason": "memory" } }),
        )
        .await?;
    let drains: Api<NodeDrain> = Api::all(env.client.clone());
    let drain = json!({
        "apiVersion": "nodeward.dev/v1alpha1", "kind": "NodeDrain", "metadata": { "name": b }, "spec": { "nodeName": b },
    });
    drains
        .create(&PostParams::default(), &serde_json::from_value(drain)?)
        .await?;
    let granted = json!({
        "type": "Granted", "status": "True", "reason": "Granted", "message": "", "lastTransitionTime": "2026-01-01T00:00:00Z",
    });
    let phase = |phase: &str| Patch::Merge(json!({ "status": { "phase": phase, "conditions": [granted] } }));
    drains
        .patch_status(&b, &PatchParams::default(), &phase("Draining"))
        .await?;
    env.hold_lease(&c, "node-maintenance").await?;
    let in_progress = |status: &str| {
        let now = Timestamp::now().to_string();
        let condition = json!({ "type": "MaintenanceInProgress", "status": status, "lastTransitionTime": now });
        Patch::Strategic(json!({ "status": { "conditions": [condition] } }))
    };
    let params = PatchParams::default();
    env.nodes().patch_status(&d, &params, &in_progress("True")).await?;

    for node in [&a, &b, &c, &d] {
        env.lose_heartbeats(node).await?;
    }
    env.until_counted(&check, 1, 5).await?;
    for node in [&a, &b, &c, &d] {
        env.gets_none(Family::SelfNode, node).await?;
    }
    Foreign::NodeMaintenance.delete(&env.client, None, &a).await?;
    // A drain that has failed protects nothing.
    drains
        .patch_status(&b, &PatchParams::default(), &phase("Failed"))
        .await?;
    env.leases()
        .delete(&format!("node-{c}"), &DeleteParams::default())
        .await?;
    env.nodes().patch_status(&d, &params, &in_progress("False")).await?;
    for node in [&a, &b, &c, &d] {
        env.remediation(Family::SelfNode, node).await?;
        env.recover(node).await?;
    }
    drains.delete(&b, &DeleteParams::default()).await?;
    env.until_at_rest(&check, 5).await?;
    env.end([check]).await
}

fn disabled_because(reason: &'static str) -> impl Fn(&NodeHealthCheckStatus) -> bool {
    move |status| {
        let mut conditions = status.conditions.iter();
        let is_told = conditions.any(|told| told.type_ == "Disabled" && told.status == "True" && told.reason == reason);
        is_told && status.phase == Some(Phase::Disabled)
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn missing_templates_disable_until_they_appear() -> Result<()> {
    let env = Environment::new().await?;
    let [a, _b] = env.add_nodes(["a", "b"]).await?;
    let family = Family::FenceAgents;
    let changes = json!({ "remediationTemplate": family.reference(&env.name, "later") });
    let check = env.add_check("main", changes).await?;
    env.until_status(&check, "no template", disabled_because("RemediationTemplateNotFound"))
        .await?;
    env.lose_heartbeats(&a).await?;
    env.until_counted(&check, 1, 2).await?;
    let malformed = json!({ "spec": { "template": {} } });
    family
        .template()
        .put(&env.client, Some(&env.name), "later", malformed)
        .await?;
    env.until_status(&check, "a bad template", disabled_because("RemediationTemplateInvalid"))
        .await?;
    env.gets_none(family, &a).await?;
    env.add_template(family, "later").await?;
    env.remediation(family, &a).await?;
    env.until_status(&check, "an end of Disabled", |status| {
        let disabled = status.conditions.iter().find(|told| told.type_ == "Disabled");
        disabled.is_some_and(|told| told.status == "False" && told.reason == "NodeHealthCheckEnabled")
    })
    .await?;
    env.recover(&a).await?;
    env.until_at_rest(&check, 2).await?;
    env.end([check]).await
}

/// What was stored before a rule of the schema existed, or past it, stops remediation and nothing else.
#[tokio::test(flavor = "multi_thread")]
async fn unknown_kinds_disable_their_check_alone() -> Result<()> {
    let env = Environment::new().await?;
    let [a, _b] = env.add_nodes(["a", "b"]).await?;
    let template =
        json!({ "apiVersion": "absent.example.com/v1", "kind": "NobodyTemplate", "namespace": env.name, "name": "x" });
    let bad = env.add_check("bad", json!({ "remediationTemplate": template })).await?;
    let good = env.add_check("good", json!({})).await?;
    env.until_status(&bad, "no template", disabled_because("RemediationTemplateNotFound"))
        .await?;
    env.lose_heartbeats(&a).await?;
    env.remediation(Family::SelfNode, &a).await?;
    env.recover(&a).await?;
    env.until_at_rest(&good, 2).await?;
    env.end([bad, good]).await
}

#[tokio::test(flavor = "multi_thread")]
async fn dry_runs_write_only_their_status() -> Result<()> {
    let env = Environment::new().await?;
    let [a, _b] = env.add_nodes(["a", "b"]).await?;
    let check = env.add_check("main", json!({ "dryRun": true })).await?;
    env.lose_heartbeats(&a).await?;
    env.until_counted(&check, 1, 2).await?;
    env.gets_none(Family::SelfNode, &a).await?;
    ensure!(env.lease_holder(&a).await?.is_none(), "a lease was taken");
    let node = env.nodes().get(&a).await.context("the node")?;
    ensure!(
        node.annotations().keys().all(|key| !key.contains("remediation")),
        "{:?}",
        node.annotations()
    );
    env.recover(&a).await?;
    env.until_at_rest(&check, 2).await?;
    env.end([check]).await
}

/// The watch of the emergency stop is cut off before somebody pauses health-check, and for a while its reads fail, too.
#[tokio::test(flavor = "multi_thread")]
async fn pause_that_no_watch_tells_of_starts_no_remediation() -> Result<()> {
    let own = OwnEnvironment::new(json!({})).await?;
    let [a, _b] = own.add_nodes(["a", "b"]).await?;
    let check = own.add_check("main", json!({})).await?;
    let operator = own.start(json!({})).await?;
    own.until_at_rest(&check, 2).await?;
    let stopped = async |outcome: &str| {
        wait::until(format!("a remediation that is {outcome}"), SOON, || async {
            let labels = [("action", "start-remediation"), ("outcome", outcome)];
            let metrics = operator.metrics().await?;
            let stopped = metrics.sum("nodeward_health_check_actions_total", &labels);
            ensure!(stopped > 0.5, "{stopped}\n{}", operator.process().log_tail(20));
            Ok(())
        })
        .await
    };
    CutOff::Silent.watch(&own.proxy);
    let unread = CutOff::Silent.reads(&own.proxy);
    own.lose_heartbeats(&a).await?;
    stopped("pause-unknown").await?;
    own.gets_none(Family::SelfNode, &a).await?;

    pause::write(&own.client, &own.system, json!({ "health-check": "INC-1" })).await?;
    own.proxy.remove(unread);
    wait::until("the pause to be read", SOON, || async {
        let paused = operator.metrics().await?.value("nodeward_health_check_paused", &[]);
        ensure!(paused.is_some_and(|paused| paused > 0.5), "{paused:?}");
        Ok(())
    })
    .await?;
    own.gets_none(Family::SelfNode, &a).await?;

    pause::write(&own.client, &own.system, Value::Null).await?;
    own.remediation(Family::SelfNode, &a).await?;
    own.recover(&a).await?;
    own.until_at_rest(&check, 2).await?;
    own.end([operator]).await
}
