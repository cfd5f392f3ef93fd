//! Nodes that are being remediated, as NodeHealthChecks and leases tell it.

use anyhow::{Context, Result, ensure};
use jiff::Timestamp;
use k8s_openapi::api::coordination::v1::Lease;
use kube::ResourceExt;
use kube::api::{Api, DeleteParams, ListParams, Patch, PatchParams, PostParams};
use nodeward_api::{NodeHealthCheck, crd, node_lease};
use nodeward_testkit::remediator::{Family, NODE_NAME};
use nodeward_testkit::wait::{self, secs};
use nodeward_testkit::{ControlPlane, Options, bulk};
use serde_json::{Value, json};

use crate::environment::{Environment, is_untouched, managed};
use crate::explanations::event_that_names;

const CHECK: &str = "workers";

async fn serve_health_checks(env: &Environment<'_>) -> Result<Api<NodeHealthCheck>> {
    bulk::create(&env.client, crd::health_check()).await?;
    let checks: Api<NodeHealthCheck> = Api::all(env.client.clone());
    wait::until("NodeHealthChecks to be served", secs(60), || async {
        checks.list(&ListParams::default().limit(1)).await?;
        Ok(())
    })
    .await?;
    let template = json!({ "apiVersion": "a/v1", "kind": "FenceTemplate", "namespace": "fence", "name": "reboot" });
    let check = json!({
        "apiVersion": "remediation.medik8s.io/v1alpha1", "kind": "NodeHealthCheck", "metadata": { "name": CHECK },
        "spec": { "selector": {}, "minHealthy": "51%", "remediationTemplate": template },
    });
    checks
        .create(&PostParams::default(), &serde_json::from_value(check)?)
        .await?;
    Ok(checks)
}

async fn set_unhealthy(checks: &Api<NodeHealthCheck>, nodes: Value) -> Result<()> {
    let status = Patch::Merge(json!({ "status": { "unhealthyNodes": nodes } }));
    checks.patch_status(CHECK, &PatchParams::default(), &status).await?;
    Ok(())
}

/// The kind is not served yet when drain-keeper starts.
#[tokio::test]
async fn remediated_node_waits_for_its_remediation() -> Result<()> {
    let plane = ControlPlane::start(Options::patient()).await?;
    let namespace = node_lease::DEFAULT_NAMESPACE;
    plane.namespace(namespace).await?;
    let env = Environment::with(&plane, json!({})).await?;
    let keeper = env.start(json!({ "leaseNamespace": namespace })).await?;
    let checks = serve_health_checks(&env).await?;
    let remediated = env.add_cordoned_node("remediated").await?;
    let leased = env.add_cordoned_node("leased").await?;
    let other = env.add_cordoned_node("other").await?;
    let resource =
        json!({ "apiVersion": "a/v1", "kind": "Fence", "namespace": "fence", "name": remediated, "uid": "u" });
    set_unhealthy(
        &checks,
        json!([
            { "name": remediated, "remediations": [{ "resource": resource, "started": Timestamp::now() }] },
            { "name": other },
        ]),
    )
    .await?;
    let lease: Lease = serde_json::from_value(json!({
        "metadata": { "name": node_lease::name_of(&leased), "namespace": namespace },
        "spec": {
            "holderIdentity": node_lease::holder_of(CHECK), "leaseDurationSeconds": 3600,
            "renewTime": Timestamp::now().strftime("%Y-%m-%dT%H:%M:%S.%6fZ").to_string(),
        },
    }))?;
    let leases: Api<Lease> = Api::namespaced(env.client.clone(), namespace);
    leases.create(&PostParams::default(), &lease).await?;
    event_that_names(&env, &remediated, "UnderRemediation", &[CHECK, "Fence"]).await?;
    event_that_names(&env, &leased, "UnderRemediation", &["NodeHealthCheck-workers"]).await?;

    let pods = [
        ("a", managed(&remediated)),
        ("b", managed(&leased)),
        ("c", managed(&other)),
    ];
    let [a, b, _] = env.add_pods(pods).await?;
    is_gone(&env, "c").await?;
    for pod in [&a, &b] {
        is_untouched(&env.pods(), pod).await?;
    }
    ensure!(
        keeper.log().contains("the node is being remediated"),
        "the log does not say it"
    );

    set_unhealthy(&checks, json!([])).await?;
    is_gone(&env, "a").await?;
    is_untouched(&env.pods(), &b).await?;
    leases.delete(&lease.name_any(), &DeleteParams::default()).await?;
    is_gone(&env, "b").await?;
    env.end([keeper]).await
}

/// Somebody else than a NodeHealthCheck has created it.
#[tokio::test]
async fn remediation_of_a_named_kind_closes_the_gate() -> Result<()> {
    let plane = ControlPlane::start(Options::patient()).await?;
    let client = plane.client().await?;
    Family::SelfNode.install(&client).await?;
    plane.namespace("remediators").await?;
    let kind = Family::SelfNode.remediation().resource();
    let rules = json!([{ "apiGroups": [kind.group], "resources": [kind.plural] }]);
    let env = Environment::with(&plane, json!({ "extraReadRules": rules })).await?;
    // The second may not be read, and closes nothing.
    let kinds = json!([
        { "apiVersion": kind.api_version, "kind": kind.kind }, { "apiVersion": "apps/v1", "kind": "ControllerRevision" },
    ]);
    let keeper = env.start(json!({ "remediationKinds": kinds })).await?;
    let remediated = env.add_cordoned_node("remediated").await?;
    let other = env.add_cordoned_node("other").await?;
    let object = json!({
        "apiVersion": kind.api_version, "kind": kind.kind,
        "metadata": { "name": "fence", "annotations": { NODE_NAME: remediated } }, "spec": {},
    });
    let remediations = Family::SelfNode.remediation().api(&client, Some("remediators"));
    remediations
        .create(&PostParams::default(), &serde_json::from_value(object)?)
        .await?;
    event_that_names(
        &env,
        &remediated,
        "UnderRemediation",
        &[&kind.kind, "remediators/fence"],
    )
    .await?;
    let [a, _] = env
        .add_pods([("a", managed(&remediated)), ("b", managed(&other))])
        .await?;
    is_gone(&env, "b").await?;
    is_untouched(&env.pods(), &a).await?;
    let named = keeper.log().contains("ControllerRevision") || keeper.log().contains("controllerrevisions");
    ensure!(named, "the log does not name the kind that may not be read");
    remediations.delete("fence", &DeleteParams::default()).await?;
    is_gone(&env, "a").await?;
    env.end_whatever_was_refused([keeper]).await
}

async fn is_gone(env: &Environment<'_>, pod: &str) -> Result<()> {
    let pods = env.pods();
    wait::until(format!("pod {pod} to be asked to go"), secs(60), || async {
        let Some(left) = pods.get_opt(pod).await? else {
            return Ok(());
        };
        left.metadata.deletion_timestamp.context("it stands")?;
        Ok(())
    })
    .await
}
