//! What networks, loaded servers and missing rights do between the operator and the API server.

use anyhow::{Context, Result, ensure};
use jiff::SignedDuration;
use kube::ResourceExt;
use kube::api::DeleteParams;
use nodeward_api::annotation::REMEDIATIONS;
use nodeward_api::condition::PERMISSION_MISSING;
use nodeward_api::node_health_check::{NodeHealthCheckStatus, Phase};
use nodeward_testkit::proxy::{ApiRequest, Fault, Rule, Verb};
use nodeward_testkit::remediator::{Behavior, Family};
use nodeward_testkit::wait::{self, secs};
use nodeward_testkit::{fleet, names};
use serde_json::json;

use crate::control_plane::own_cluster;
use crate::environment::{OwnEnvironment, SOON, WHILE, ago};

#[tokio::test(flavor = "multi_thread")]
async fn failed_writes_are_repeated_without_a_second_remediation() -> Result<()> {
    let own = OwnEnvironment::new(json!({})).await?;
    let nodes = own.add_nodes(["a", "b", "c", "d", "e"]).await?;
    let check = own.add_check("main", json!({})).await?;
    let operator = own.start(json!({})).await?;
    own.until_at_rest(&check, 5).await?;
    let plural = Family::SelfNode.remediation().resource().plural;
    let faults = [
        Fault::Status(500, "InternalError"),
        Fault::LostReply,
        Fault::TooManyRequests { retry_after: Some(1) },
        Fault::BrokenConnection,
    ];
    for fault in faults {
        for resource in ["nodehealthchecks/status", "leases", &plural] {
            let resource = resource.to_owned();
            // Not the leader's lease.
            let is_meant =
                move |request: &ApiRequest| request.resource == resource && !request.namespace.ends_with("-system");
            own.proxy
                .inject(Rule::new(fault.clone()).writes().when(is_meant).times(1));
        }
    }
    let _remediator = own.remediate(Family::SelfNode, Behavior::POWER_CYCLE.after(secs(2)));
    for node in &nodes[..3] {
        fleet::stop_kubelet(&own.client, node).await?;
    }
    wait::until("three remediations", secs(120), || async {
        let created = own.created(Family::SelfNode)?;
        ensure!(created >= 3, "{created} were created");
        Ok(())
    })
    .await?;
    for node in &nodes[..3] {
        own.until_ready_is(node, "True").await?;
    }
    own.until_at_rest(&check, 5).await?;
    let created = own.created(Family::SelfNode)?;
    ensure!(created == 3, "{created} were created");
    own.end([operator]).await
}

/// An intent that nothing comes of does not keep the phase Remediating.
#[tokio::test(flavor = "multi_thread")]
async fn refused_creates_withdraw_their_intent() -> Result<()> {
    let own = OwnEnvironment::new(json!({})).await?;
    let [a, _b] = own.add_nodes(["a", "b"]).await?;
    let check = own.add_check("main", json!({})).await?;
    let operator = own.start(json!({})).await?;
    let plural = Family::SelfNode.remediation().resource().plural;
    let refused = Rule::new(Fault::Status(403, "Forbidden"))
        .verbs([Verb::Create])
        .when(move |request| request.resource == plural);
    own.proxy.inject(refused);
    own.lose_heartbeats(&a).await?;
    own.event(&check, "RemediationSkipped").await?;
    own.until_status(&check, "no intent", |status| {
        status.unhealthy_nodes.iter().all(|node| node.remediations.is_empty())
    })
    .await?;
    wait::until("the lease to be given back", SOON, || async {
        let holder = own.lease_holder(&a).await?;
        ensure!(holder.is_none(), "{holder:?}");
        Ok(())
    })
    .await?;
    own.proxy.heal();
    own.remediation(Family::SelfNode, &a).await?;
    own.recover(&a).await?;
    own.until_at_rest(&check, 2).await?;
    own.end([operator]).await
}

/// No remediation is created that the status would not have, and Events say why.
#[tokio::test(flavor = "multi_thread")]
async fn unwritable_statuses_start_nothing_and_are_told() -> Result<()> {
    let own = OwnEnvironment::new(json!({})).await?;
    let [a, _b] = own.add_nodes(["a", "b"]).await?;
    let check = own.add_check("main", json!({})).await?;
    let operator = own.start(json!({})).await?;
    own.until_at_rest(&check, 2).await?;
    let refused = Rule::new(Fault::Status(500, "InternalError"))
        .writes()
        .when(|request| request.resource == "nodehealthchecks/status");
    own.proxy.inject(refused);
    own.lose_heartbeats(&a).await?;
    let told = own.event(&a, "RemediationSkipped").await?;
    let why = told.note.as_deref().unwrap_or_default();
    ensure!(told.action.as_deref() == Some("RemediationRejected"), "{told:?}");
    ensure!(
        why.contains("the status of the NodeHealthCheck cannot be written"),
        "{why}"
    );
    own.gets_none(Family::SelfNode, &a).await?;
    own.proxy.heal();
    own.remediation(Family::SelfNode, &a).await?;
    own.recover(&a).await?;
    own.until_at_rest(&check, 2).await?;
    own.end([operator]).await
}

/// A count that is not written is not forgotten, and no repeat comes without it: the reason says what refuses it.
#[tokio::test(flavor = "multi_thread")]
async fn repeats_wait_until_what_ended_is_counted() -> Result<()> {
    let own = OwnEnvironment::new(json!({})).await?;
    let [a, _b] = own.add_nodes(["a", "b"]).await?;
    let check = own.add_check("main", json!({})).await?;
    let operator = own.start(json!({})).await?;
    own.lose_heartbeats(&a).await?;
    let first = own.remediation(Family::SelfNode, &a).await?;
    let denied = Fault::Status(403, "Forbidden");
    own.proxy
        .inject(Rule::new(denied).verbs([Verb::Patch]).resource("nodes"));
    let remediations = own.remediations(Family::SelfNode);
    remediations.delete(&first.name_any(), &DeleteParams::default()).await?;
    let skipped = own.event(&check, "RemediationSkipped").await?;
    ensure!(skipped.action.as_deref() == Some("RemediationRejected"), "{skipped:?}");
    own.gets_none(Family::SelfNode, &a).await?;
    own.proxy.heal();
    own.remediation(Family::SelfNode, &a).await?;
    let counted = |count: u32| {
        let (own, a) = (&own, &a);
        wait::until("the count", SOON, move || async move {
            let node = own.nodes().get(a).await?;
            let history = node.annotations().get(REMEDIATIONS).context("none")?;
            ensure!(history.contains(&format!(r#""count":{count},"#)), "{history}");
            Ok(())
        })
    };
    counted(1).await?;
    let failing = Fault::Status(500, "InternalError");
    own.proxy
        .inject(Rule::new(failing).verbs([Verb::Patch]).resource("nodes").times(2));
    own.recover(&a).await?;
    own.until_at_rest(&check, 2).await?;
    counted(2).await?;
    own.end([operator]).await
}

/// Between the plan and the write the node has recovered: what counts is the quorum read.
#[tokio::test(flavor = "multi_thread")]
async fn stale_views_remediate_no_healthy_node() -> Result<()> {
    let own = OwnEnvironment::new(json!({})).await?;
    let [a, _b] = own.add_nodes(["a", "b"]).await?;
    // Longer than it takes until the node has recovered.
    let lasting = json!([{ "type": "Ready", "status": "Unknown", "duration": "20s" }]);
    let check = own.add_check("main", json!({ "unhealthyConditions": lasting })).await?;
    let operator = own.start(json!({})).await?;
    own.lose_heartbeats(&a).await?;
    own.until_counted(&check, 1, 2).await?;
    own.proxy.freeze().await?;
    own.recover(&a).await?;
    // It expires in the view that stands still.
    wait::until("the node to be read", SOON, || async {
        let read = own
            .requests()?
            .only(|request| request.verb == "get" && request.resource == "nodes" && request.name == a);
        ensure!(read.count() > 0, "it was not");
        Ok(())
    })
    .await?;
    wait::throughout("no remediation", WHILE, || async {
        let created = own.created(Family::SelfNode)?;
        ensure!(created == 0, "{created} were created");
        Ok(())
    })
    .await?;
    own.proxy.thaw();
    own.until_at_rest(&check, 2).await?;
    own.end([operator]).await
}

/// The watch of remediations is dead, which nobody says: the one that was just created is not shown, and is there all the same.
#[tokio::test(flavor = "multi_thread")]
async fn remediations_that_no_watch_shows_keep_their_slot() -> Result<()> {
    let own = OwnEnvironment::new(json!({})).await?;
    let [a, b, _c] = own.add_nodes(["a", "b", "c"]).await?;
    let check = own.add_check("main", json!({ "maxConcurrentRemediations": 1 })).await?;
    let operator = own.start(json!({})).await?;
    own.until_at_rest(&check, 3).await?;
    let plural = Family::SelfNode.remediation().resource().plural;
    // It would not come again soon, were it gone: the place would be free.
    let history = format!(r#"{{"count":3,"lastEnd":"{}"}}"#, ago(SignedDuration::from_hours(1)));
    fleet::annotate(&own.client, &a, REMEDIATIONS, Some(&history)).await?;
    own.proxy.mute_watches(|request| request.resource == plural);
    own.lose_heartbeats(&a).await?;
    own.remediation(Family::SelfNode, &a).await?;
    own.not_ready(&b).await?;
    wait::throughout("one remediation", secs(20), || async {
        let created = own.created(Family::SelfNode)?;
        ensure!(created == 1, "{created} were created");
        Ok(())
    })
    .await?;
    own.proxy.drop_watches();
    for node in [&a, &b] {
        own.recover(node).await?;
    }
    own.until_at_rest(&check, 3).await?;
    own.end([operator]).await
}

/// A remediator that is installed while the operator runs, and grants only what is required.
#[tokio::test(flavor = "multi_thread")]
async fn remediators_without_watch_are_asked_instead() -> Result<()> {
    let own = OwnEnvironment::new(json!({})).await?;
    let [a, _b] = own.add_nodes(["a", "b"]).await?;
    let family = Family::Custom;
    let changes = json!({ "remediationTemplate": family.reference(&own.name, "reboot") });
    let check = own.add_check("main", changes).await?;
    let operator = own.start(json!({})).await?;
    own.lose_heartbeats(&a).await?;
    own.until_status(&check, "no template", |status| status.phase == Some(Phase::Disabled))
        .await?;
    family
        .install_with(&own.client, &["get", "list", "create", "delete"])
        .await?;
    own.add_template(family, "reboot").await?;
    own.remediation(family, &a).await?;
    own.recover(&a).await?;
    own.until_none(family).await?;
    own.until_at_rest(&check, 2).await?;
    let created = own.created(family)?;
    ensure!(created == 1, "{created} were created");
    own.end([operator]).await
}

/// Remediations have no namespace where their template has none. The peer ignores a namespace that is named nevertheless.
#[tokio::test(flavor = "multi_thread")]
async fn kinds_without_namespaces_are_served() -> Result<()> {
    let own = OwnEnvironment::new(json!({})).await?;
    let [a, _b] = own.add_nodes(["a", "b"]).await?;
    let family = Family::ClusterScoped;
    family.install(&own.client).await?;
    let mut template = own.add_template(family, "reboot").await?;
    template["namespace"] = json!(own.name);
    let check = own
        .add_check("main", json!({ "remediationTemplate": template }))
        .await?;
    let operator = own.start(json!({})).await?;
    let is_disabled = |status: &NodeHealthCheckStatus| status.phase == Some(Phase::Disabled);
    own.until_status(&check, "no template in a namespace", is_disabled)
        .await?;
    own.change_check(
        &check,
        json!({ "remediationTemplate": family.reference(&own.name, "reboot") }),
    )
    .await?;
    own.until_at_rest(&check, 2).await?;
    own.lose_heartbeats(&a).await?;
    let remediation = own.remediation(family, &a).await?;
    ensure!(remediation.namespace().is_none(), "{remediation:?}");
    let entry = own.entry(&check, &a).await?.context("no entry")?;
    let namespaces: Vec<_> = entry
        .remediations
        .iter()
        .map(|known| &known.resource.namespace)
        .collect();
    ensure!(namespaces == [&None], "{entry:?}");
    own.recover(&a).await?;
    own.until_none(family).await?;
    own.until_at_rest(&check, 2).await?;
    let created = own.created(family)?;
    ensure!(created == 1, "{created} were created");
    own.end([operator]).await
}

/// The role of one remediator lacks a verb: the condition names it, and the nodes of others are remediated.
#[tokio::test(flavor = "multi_thread")]
async fn missing_verb_is_named_and_stops_no_other_node() -> Result<()> {
    // A kind that no other test on this control plane grants.
    let (plane, _turn) = own_cluster().await?;
    let own = OwnEnvironment::on(plane, names::unique("own"), json!({})).await?;
    let [a, b] = own.add_nodes(["a", "b"]).await?;
    fleet::label(&own.client, &b, "remediator", Some("other")).await?;
    let family = Family::Custom;
    family
        .install_with(&own.client, &["get", "list", "watch", "delete"])
        .await?;
    let lacking = json!({
        "selector": { "matchLabels": { "kubernetes.io/hostname": a } },
        "remediationTemplate": own.add_template(family, "reboot").await?,
    });
    let check = own.add_check("main", lacking).await?;
    let other = own
        .add_check(
            "other",
            json!({ "selector": { "matchLabels": { "remediator": "other" } } }),
        )
        .await?;
    let operator = own.start(json!({})).await?;
    own.until_at_rest(&other, 1).await?;
    own.lose_heartbeats(&a).await?;
    let plural = family.remediation().resource().plural;
    own.until_status(&check, "the missing verb", |status| {
        let mut conditions = status.conditions.iter();
        let named = format!("cannot create resource \"{plural}\"");
        conditions.any(|condition| condition.type_ == PERMISSION_MISSING && condition.message.contains(&named))
    })
    .await?;
    own.lose_heartbeats(&b).await?;
    own.remediation(Family::SelfNode, &b).await?;
    own.recover(&b).await?;
    family.install(&own.client).await?;
    own.remediation(family, &a).await?;
    own.until_status(&check, "no missing verb", |status| {
        status
            .conditions
            .iter()
            .all(|condition| condition.type_ != PERMISSION_MISSING)
    })
    .await?;
    own.recover(&a).await?;
    own.until_at_rest(&check, 1).await?;
    own.until_at_rest(&other, 1).await?;
    own.end([operator]).await
}

/// What the operator asks for at rest, and for one remediation.
#[tokio::test(flavor = "multi_thread")]
async fn remediations_cost_three_requests_and_status_writes() -> Result<()> {
    let own = OwnEnvironment::new(json!({})).await?;
    let [a, _b] = own.add_nodes(["a", "b"]).await?;
    let check = own.add_check("main", json!({})).await?;
    let operator = own.start(json!({ "safetyPass": "60s" })).await?;
    own.until_at_rest(&check, 2).await?;
    own.lose_heartbeats(&a).await?;
    own.remediation(Family::SelfNode, &a).await?;
    own.until_status(&check, "the remediation's uid", |status| {
        let mut entries = status.unhealthy_nodes.iter().flat_map(|node| &node.remediations);
        entries.any(|remediation| remediation.resource.uid.is_some())
    })
    .await?;
    let requests = own.requests()?.without_watches();
    let (leases, a_ref) = (format!("{}-leases", own.name), &a);
    let of_node = requests.clone().only(|request| {
        let is_node = request.resource == "nodes" && request.name == *a_ref;
        let is_remediation = request.namespace == own.name && request.verb == "create";
        let is_lease = request.namespace == leases && request.is_write();
        is_node || is_remediation || is_lease
    });
    ensure!(of_node.count() == 3, "{:?}", of_node.0);
    let lists = requests.only(|request| request.verb == "list" && request.received > of_node.0[0].received);
    ensure!(lists.count() == 0, "{:?}", lists.0);
    own.recover(&a).await?;
    own.until_at_rest(&check, 2).await?;
    own.end([operator]).await
}

/// NodeDrains cannot be read from the start: what has begun ends, and nothing begins.
#[tokio::test(flavor = "multi_thread")]
async fn unreadable_drains_leave_clean_up_alone() -> Result<()> {
    let own = OwnEnvironment::new(json!({})).await?;
    let [a, b, _c, _d] = own.add_nodes(["a", "b", "c", "d"]).await?;
    let check = own.add_check("main", json!({ "maxUnhealthy": "100%" })).await?;
    let first = own.start(json!({})).await?;
    own.lose_heartbeats(&a).await?;
    own.remediation(Family::SelfNode, &a).await?;
    first.stop(SOON).await?;
    let forbidden = Rule::new(Fault::Status(403, "Forbidden")).when(|request| request.resource == "nodedrains");
    own.proxy.inject(forbidden);
    let operator = own.start(json!({})).await?;
    own.lose_heartbeats(&b).await?;
    let told = own.event(&check, "RemediationSkipped").await?;
    let note = told.note.unwrap_or_default();
    ensure!(note.contains("nodedrains may not be read"), "{note}");
    own.recover(&a).await?;
    own.until_none(Family::SelfNode).await?;
    own.until_counted(&check, 3, 4).await?;
    own.proxy.heal();
    own.remediation(Family::SelfNode, &b).await?;
    own.recover(&b).await?;
    own.until_at_rest(&check, 4).await?;
    own.end([operator]).await
}
