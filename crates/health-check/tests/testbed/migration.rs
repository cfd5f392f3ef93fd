//! Taking over from the peer: its objects as it leaves them, in the middle of an escalation.

use anyhow::{Context, Result, ensure};
use jiff::{SignedDuration, Timestamp};
use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition;
use kube::api::{Api, DeleteParams, Patch, PatchParams, PostParams};
use kube::{CustomResourceExt, ResourceExt};
use nodeward_api::NodeHealthCheck;
use nodeward_api::annotation::{OLD_REMEDIATION_FLAG, OLD_REMEDIATION_FLAG_ON};
use nodeward_testkit::fleet;
use nodeward_testkit::remediator::Family;
use nodeward_testkit::store::{self, Stored};
use nodeward_testkit::wait::{self, secs};
use nodeward_testkit::{ControlPlane, Options, names};
use serde_json::{Value, json};
use tokio::sync::OnceCell;

use crate::environment::{OwnEnvironment, SOON, ago, prepare};

/// A remediation as the peer creates it: with a random suffix, and without the node's UID.
async fn peers_remediation(
    own: &OwnEnvironment,
    family: Family,
    check: (&str, &str),
    node: &str,
    annotations: Value,
) -> Result<Value> {
    let kind = family.remediation().resource();
    let name = format!("{node}-x7k2p");
    let mut all = json!({
        "remediation.medik8s.io/node-name": node,
        "remediation.medik8s.io/template-name": "reboot",
    });
    for (key, value) in annotations.as_object().into_iter().flatten() {
        all[key] = value.clone();
    }
    let body = json!({
        "metadata": {
            "annotations": all,
            "labels": { "app.kubernetes.io/part-of": "node-healthcheck-controller" },
            "ownerReferences": [{
                "apiVersion": "remediation.medik8s.io/v1alpha1", "kind": "NodeHealthCheck", "name": check.0, "uid": check.1,
                "controller": false,
            }],
        },
        "spec": { "strategy": "reboot" },
    });
    let stored = family
        .remediation()
        .put(&own.client, Some(&own.name), &name, body)
        .await?;
    Ok(json!({
        "apiVersion": kind.api_version, "kind": kind.kind, "namespace": own.name, "name": name, "uid": stored.uid(),
    }))
}

#[tokio::test(flavor = "multi_thread")]
async fn escalations_of_the_peer_are_continued() -> Result<()> {
    let own = OwnEnvironment::new(json!({})).await?;
    let [a, _b] = own.add_nodes(["a", "b"]).await?;
    let mut chain = Vec::new();
    let families = [Family::SelfNode, Family::FenceAgents, Family::MachineDeletion];
    for (order, family) in families.into_iter().enumerate() {
        let template = own.add_template(family, "reboot").await?;
        chain.push(json!({ "remediationTemplate": template, "order": order, "timeout": "5m" }));
    }
    let changes = json!({
        "remediationTemplate": null, "escalatingRemediations": chain, "maxUnhealthy": null, "minHealthy": 1,
    });
    let check = own.add_check("main", changes).await?;
    let uid = own.checks().get(&check).await?.uid().context("a uid")?;
    own.lose_heartbeats(&a).await?;
    let timed_out = ago(SignedDuration::from_secs(30));
    let over = json!({ "remediation.medik8s.io/nhc-timed-out": timed_out });
    let first = peers_remediation(&own, Family::SelfNode, (&check, &uid), &a, over).await?;
    let second = peers_remediation(&own, Family::FenceAgents, (&check, &uid), &a, json!({})).await?;
    own.hold_lease(&a, &format!("NodeHealthCheck-{check}")).await?;
    let status = json!({
        "observedNodes": 2, "healthyNodes": 1, "phase": "Remediating",
        "inFlightRemediations": { &a: timed_out },
        "unhealthyNodes": [{ "name": a, "remediations": [
            { "resource": first, "started": ago(SignedDuration::from_secs(330)), "timedOut": timed_out, "templateName": "reboot" },
            { "resource": second, "started": timed_out, "templateName": "reboot" },
        ] }],
    });
    let patch = Patch::Merge(json!({ "status": status }));
    own.checks()
        .patch_status(&check, &PatchParams::default(), &patch)
        .await?;

    let operator = own.start(json!({})).await?;
    own.until_status(&check, "no inFlightRemediations", |status| {
        status.in_flight_remediations.is_empty()
    })
    .await?;
    wait::throughout("the peer's remediations", secs(5), || async {
        for family in families {
            let created = own.created(family)?;
            ensure!(created == 0, "{created} of {family:?} were created");
        }
        let kept = own
            .remediation(Family::SelfNode, &a)
            .await?
            .metadata
            .deletion_timestamp
            .is_none();
        ensure!(kept, "the first step is being deleted");
        Ok(())
    })
    .await?;
    let running = own.remediation(Family::FenceAgents, &a).await?;
    own.say_failed(Family::FenceAgents, &running).await?;
    own.remediation(Family::MachineDeletion, &a).await?;
    own.recover(&a).await?;
    own.until_at_rest(&check, 2).await?;
    own.end([operator]).await
}

/// The node was replaced while nobody looked: the peer's remediation is older than the Node.
#[tokio::test(flavor = "multi_thread")]
async fn remediations_older_than_their_node_are_removed() -> Result<()> {
    let own = OwnEnvironment::new(json!({})).await?;
    let check = own.add_check("main", json!({})).await?;
    let uid = own.checks().get(&check).await?.uid().context("a uid")?;
    let node = own.node_name("a");
    peers_remediation(&own, Family::SelfNode, (&check, &uid), &node, json!({})).await?;
    // Times are whole seconds.
    let created = Timestamp::now();
    wait::until("another second", SOON, || async {
        ensure!(Timestamp::now().duration_since(created).as_secs() >= 2);
        Ok(())
    })
    .await?;
    fleet::create(&own.client, [own.worker("a")]).await?;
    own.not_ready(&node).await?;
    let operator = own.start(json!({})).await?;
    wait::until("a remediation for this node", SOON, || async {
        let now = own.remediation(Family::SelfNode, &node).await?;
        ensure!(!now.name_any().ends_with("-x7k2p"), "still the old one");
        Ok(())
    })
    .await?;
    own.recover(&node).await?;
    own.until_at_rest(&check, 1).await?;
    own.end([operator]).await
}

/// After 48 hours a remediation is flagged and counted.
#[tokio::test(flavor = "multi_thread")]
async fn old_remediations_are_flagged_and_counted() -> Result<()> {
    let own = OwnEnvironment::new(json!({})).await?;
    let [a, _b] = own.add_nodes(["a", "b"]).await?;
    let check = own.add_check("main", json!({})).await?;
    let uid = own.checks().get(&check).await?.uid().context("a uid")?;
    own.lose_heartbeats(&a).await?;
    // The remediation is of this outage, and not left of an earlier one: that would be deleted.
    let four_days_ago = Timestamp::now() - SignedDuration::from_hours(96);
    fleet::not_ready_since(&own.client, &a, four_days_ago).await?;
    let kind = Family::SelfNode.remediation().resource();
    let name = format!("{a}-x7k2p");
    let three_days_ago = ago(SignedDuration::from_hours(72));
    let old = json!({
        "apiVersion": kind.api_version, "kind": kind.kind,
        "metadata": {
            "name": name, "namespace": own.name, "uid": format!("{a}-uid"), "creationTimestamp": three_days_ago, "generation": 1,
            "annotations": { "remediation.medik8s.io/node-name": a, "remediation.medik8s.io/template-name": "reboot" },
            "labels": { "app.kubernetes.io/part-of": "node-healthcheck-controller" },
            "ownerReferences": [{
                "apiVersion": "remediation.medik8s.io/v1alpha1", "kind": "NodeHealthCheck", "name": check, "uid": uid,
            }],
        },
        "spec": {},
    });
    // The API server would not take a time of creation; the node is younger, so it is said to be older.
    let node_uid = own.nodes().get(&a).await?.uid();
    let mut old = old;
    old["metadata"]["annotations"]["nodeward.dev/node-uid"] = json!(node_uid);
    let key = Stored::namespaced(&format!("{}/{}", kind.group, kind.plural), &own.name, &name, old);
    store::put(own.plane, std::iter::once(key), |_| {}).await?;
    let operator = own.start(json!({})).await?;
    wait::until("the flag", SOON, || async {
        let now = own.remediation(Family::SelfNode, &a).await?;
        let flag = now.annotations().get(OLD_REMEDIATION_FLAG).map(String::as_str);
        ensure!(flag == Some(OLD_REMEDIATION_FLAG_ON), "{flag:?}");
        let counted = operator.metrics().await?.sum("nodehealthcheck_old_remediation_cr", &[]);
        ensure!(counted >= 1.0, "nodehealthcheck_old_remediation_cr is {counted}");
        Ok(())
    })
    .await?;
    own.recover(&a).await?;
    own.until_at_rest(&check, 2).await?;
    own.end([operator]).await
}

/// A control plane whose definition of NodeHealthChecks knows none of our own fields, as medik8s' does not.
async fn plane_with_peers_definition() -> Result<&'static ControlPlane> {
    static PLANE: OnceCell<ControlPlane> = OnceCell::const_new();
    let start = || async {
        let plane = ControlPlane::start(Options::default()).await?;
        prepare(&plane).await?;
        let mut definition = serde_json::to_value(NodeHealthCheck::crd())?;
        let schema = &mut definition["spec"]["versions"][0]["schema"]["openAPIV3Schema"]["properties"];
        for (part, fields) in [
            ("spec", &["backoff", "maxConcurrentRemediations", "dryRun"] as &[&str]),
            ("status", &["observedGeneration"]),
        ] {
            let properties = schema[part]["properties"].as_object_mut().context("no properties")?;
            properties.retain(|field, _| !fields.contains(&field.as_str()));
        }
        let definitions: Api<CustomResourceDefinition> = Api::all(plane.client().await?);
        let definition: CustomResourceDefinition = serde_json::from_value(definition)?;
        // The API server writes its status meanwhile.
        wait::until("the definition to be replaced", SOON, || async {
            let mut definition = definition.clone();
            definition.metadata.resource_version =
                definitions.get(NodeHealthCheck::crd_name()).await?.resource_version();
            let params = PostParams::default();
            let replaced = definitions.replace(NodeHealthCheck::crd_name(), &params, &definition);
            Ok(replaced.await.map(drop)?)
        })
        .await?;
        anyhow::Ok(plane)
    };
    PLANE.get_or_try_init(start).await
}

/// Under medik8s' definition the API server drops `dryRun`, which somebody must learn before a node is rebooted.
#[tokio::test(flavor = "multi_thread")]
async fn fields_that_the_definition_drops_are_reported() -> Result<()> {
    let plane = plane_with_peers_definition().await?;
    let own = OwnEnvironment::on(plane, names::unique("own"), json!({})).await?;
    let [a, _b] = own.add_nodes(["a", "b"]).await?;
    let check = wait::until("the definition in force", SOON, || async {
        let check = own
            .add_check(&names::unique("check"), json!({ "dryRun": true }))
            .await?;
        let is_dropped = !own.checks().get(&check).await?.spec.dry_run;
        if !is_dropped {
            own.checks().delete(&check, &DeleteParams::default()).await?;
        }
        ensure!(is_dropped, "dryRun is stored");
        Ok(check)
    })
    .await?;
    let operator = own.start(json!({})).await?;
    let told = own.event(&check, "FieldsDropped").await?;
    ensure!(
        told.note.as_ref().is_some_and(|note| note.contains("spec.dryRun")),
        "{told:?}"
    );
    let dropped = [
        "spec.dryRun",
        "spec.backoff",
        "spec.maxConcurrentRemediations",
        "status.observedGeneration",
    ];
    wait::until("log and metrics to tell, too", SOON, || async {
        ensure!(operator.log().contains("spec.dryRun"), "the log does not tell");
        let metrics = operator.metrics().await?;
        for field in dropped {
            let told = metrics.value("nodeward_health_check_dropped_fields", &[("field", field)]);
            ensure!(told == Some(1.0), "{field}: {told:?}");
        }
        Ok(())
    })
    .await?;
    own.until_counted(&check, 2, 2).await?;

    // The status is not written again for the field that the API server does not store.
    let status_writes = || async {
        let writes = own.requests()?.writes();
        anyhow::Ok(
            writes
                .only(|request| request.resource == "nodehealthchecks" && request.verb == "update")
                .count(),
        )
    };
    // After the last one of those that the counts took.
    wait::until("rest", SOON, || async {
        let before = status_writes().await?;
        wait::throughout("no status write", secs(8), || async {
            let now = status_writes().await?;
            ensure!(now == before, "{now} writes, {before} before");
            Ok(())
        })
        .await
    })
    .await?;
    own.not_ready(&a).await?;
    own.remediation(Family::SelfNode, &a).await?;
    own.recover(&a).await?;
    own.until_at_rest(&check, 2).await?;

    // Our definition stores them: nothing is told any more.
    let definitions: Api<CustomResourceDefinition> = Api::all(own.client.clone());
    let definition = NodeHealthCheck::crd();
    definitions
        .patch(
            &definition.name_any(),
            &PatchParams::apply("test").force(),
            &Patch::Apply(&definition),
        )
        .await?;
    wait::until("no dropped fields", SOON, || async {
        let dropped = operator
            .metrics()
            .await?
            .sum("nodeward_health_check_dropped_fields", &[]);
        ensure!(dropped == 0.0, "{dropped}");
        Ok(())
    })
    .await?;
    own.until_status(&check, "observedGeneration", |status| {
        status.observed_generation.is_some()
    })
    .await?;
    own.end([operator]).await
}
