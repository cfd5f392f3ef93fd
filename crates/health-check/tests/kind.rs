//! The kind NodeHealthCheck on the real API server: what is accepted, what is refused and how, what is shown.

use anyhow::{Context, Result, ensure};
use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition;
use kube::api::{Api, DeleteParams, DynamicObject, Patch, PatchParams, PostParams};
use kube::discovery::ApiResource;
use kube::{Client, CustomResourceExt, ResourceExt};
use nodeward_api::NodeHealthCheck;
use nodeward_testkit::names::unique;
use nodeward_testkit::wait::{self, secs};
use nodeward_testkit::{ControlPlane, Options};
use serde_json::{Value, json};

/// In the form of the samples and the documentation of node-healthcheck-operator.
const PUBLISHED: &str = include_str!("published_samples.yaml");

async fn plane_with(definition: CustomResourceDefinition) -> Result<(ControlPlane, Client)> {
    let plane = ControlPlane::start(Options::default()).await?;
    let client = plane.client().await?;
    apply(&client, definition).await?;
    Ok((plane, client))
}

/// Applies the definition, and waits until it is what the API server goes by.
async fn apply(client: &Client, definition: CustomResourceDefinition) -> Result<()> {
    let definitions: Api<CustomResourceDefinition> = Api::all(client.clone());
    let name = definition.name_any();
    definitions
        .patch(&name, &PatchParams::apply("test").force(), &Patch::Apply(&definition))
        .await?;
    wait::until("the definition to be established", secs(60), || async {
        let status = definitions.get(&name).await?.status.context("no status")?;
        let conditions = status.conditions.unwrap_or_default();
        ensure!(
            conditions
                .iter()
                .any(|c| c.type_ == "Established" && c.status == "True"),
            "{conditions:?}"
        );
        Ok(())
    })
    .await
}

fn untyped(client: &Client) -> Api<DynamicObject> {
    Api::all_with(client.clone(), &ApiResource::erase::<NodeHealthCheck>(&()))
}

fn template(kind: &str) -> Value {
    json!({ "apiVersion": "a.io/v1", "kind": kind, "namespace": "n", "name": "t" })
}

fn step(order: i64, timeout: &str) -> Value {
    json!({ "order": order, "timeout": timeout, "remediationTemplate": template("FenceTemplate") })
}

/// A spec that is in order, with these fields changed; a null removes one.
fn spec(fields: &Value) -> Value {
    let mut spec = json!({ "remediationTemplate": template("FenceTemplate") });
    for (field, value) in fields.as_object().into_iter().flatten() {
        spec[field] = value.clone();
    }
    spec.as_object_mut()
        .into_iter()
        .for_each(|fields| fields.retain(|_, value| !value.is_null()));
    spec
}

fn check(name: &str, spec: &Value) -> DynamicObject {
    let resource = ApiResource::erase::<NodeHealthCheck>(&());
    DynamicObject::new(name, &resource).data(json!({ "spec": spec }))
}

/// What is refused: a spec, and what the refusal says.
fn refused() -> Vec<(Value, &'static str)> {
    let chain = |steps: Value| spec(&json!({ "remediationTemplate": null, "escalatingRemediations": steps }));
    vec![
        (
            spec(&json!({ "minHealthy": "51%", "maxUnhealthy": "49%" })),
            "minHealthy and maxUnhealthy exclude each other",
        ),
        (
            spec(&json!({ "escalatingRemediations": [step(1, "5m")] })),
            "remediationTemplate and escalatingRemediations exclude each other",
        ),
        (spec(&json!({ "remediationTemplate": null })), "a template is needed"),
        (
            spec(&json!({ "maxUnhealthy": 1, "remediationTemplate": template("MachineDeletionRemediationTemplate") })),
            "set minHealthy instead",
        ),
        (
            {
                let mut last = step(2, "5m");
                last["remediationTemplate"] = template("MachineDeletionRemediationTemplate");
                let mut chain = chain(json!([step(1, "5m"), last]));
                chain["maxUnhealthy"] = json!("49%");
                chain
            },
            "set minHealthy instead",
        ),
        (
            chain(json!([step(1, "5m"), step(1, "6m")])),
            "each step needs an order of its own",
        ),
        (chain(json!([step(1, "59s")])), "a step lasts at least 1m"),
        (chain(json!([step(1, "soon")])), "timeout"),
        (chain(json!([])), "a template is needed"),
        (
            spec(&json!({ "remediationTemplate": template("Fence") })),
            "ends with Template",
        ),
        (
            spec(&json!({ "remediationTemplate": { "kind": "FenceTemplate" } })),
            "must name a template",
        ),
        (
            spec(&json!({ "unhealthyConditions": [] })),
            "should have at least 1 items",
        ),
        (
            spec(&json!({ "unhealthyConditions": [{ "type": "Ready", "status": "False", "duration": "-5m" }] })),
            "duration",
        ),
        (
            spec(&json!({ "unhealthyConditions": [
                { "type": "Ready", "status": "False", "duration": "5m" }, { "type": "Ready", "status": "False", "duration": "6m" },
            ] })),
            "Duplicate value",
        ),
        (spec(&json!({ "minHealthy": -1 })), "must not be negative"),
        (spec(&json!({ "maxUnhealthy": "101%" })), "maxUnhealthy"),
        (spec(&json!({ "maxUnhealthy": "1.5" })), "maxUnhealthy"),
        (spec(&json!({ "healthyDelay": "--1s" })), "healthyDelay"),
        (
            spec(&json!({ "stormCooldownDuration": "-1s" })),
            "stormCooldownDuration",
        ),
        (spec(&json!({ "backoff": { "type": "linear" } })), "exponential"),
        (spec(&json!({ "backoff": { "limit": "soon" } })), "limit"),
        (
            spec(&json!({ "maxConcurrentRemediations": 0 })),
            "greater than or equal to 1",
        ),
    ]
}

fn accepted() -> Vec<Value> {
    vec![
        spec(&json!({})),
        spec(&json!({ "selector": {}, "minHealthy": 0 })),
        spec(&json!({ "minHealthy": "100%", "remediationTemplate": template("MachineDeletionRemediationTemplate") })),
        spec(&json!({ "maxUnhealthy": "2" })),
        spec(&json!({ "escalatingRemediations": [] })),
        spec(&json!({ "remediationTemplate": null, "escalatingRemediations": [step(2, "1m"), step(-1, "1h30m")] })),
        spec(&json!({ "unhealthyConditions": [
            { "type": "Ready", "status": "Missing", "duration": "0s" }, { "type": "Ready", "status": "False", "duration": "300µs" },
        ] })),
        spec(&json!({ "healthyDelay": "-1s", "stormCooldownDuration": "1.5h" })),
        spec(&json!({ "backoff": {}, "maxConcurrentRemediations": 1, "dryRun": true, "pauseRequests": ["a", "a"] })),
    ]
}

#[tokio::test(flavor = "multi_thread")]
async fn api_server_keeps_what_is_valid_and_refuses_the_rest() -> Result<()> {
    let (plane, client) = plane_with(NodeHealthCheck::crd()).await?;
    let checks = untyped(&client);
    let post = PostParams::default();
    for spec in accepted() {
        let made = checks.create(&post, &check(&unique("c"), &spec)).await;
        made.with_context(|| format!("refused: {spec}"))?;
    }
    for (spec, expected) in refused() {
        let Err(kube::Error::Api(status)) = checks.create(&post, &check(&unique("c"), &spec)).await else {
            anyhow::bail!("accepted: {spec}");
        };
        ensure!(status.message.contains(expected), "{expected}: {}", status.message);
    }

    let mut kubectl = plane.kubectl();
    let file = tempfile::NamedTempFile::new()?;
    std::fs::write(file.path(), PUBLISHED)?;
    kubectl
        .args(["apply", "--validate=strict", "--filename"])
        .arg(file.path());
    let output = kubectl.output()?;
    ensure!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));

    // Defaults: as medik8s has them, and no threshold, which depends on the template.
    let made = checks.create(&post, &check("bare", &spec(&json!({})))).await?;
    let ready = |status: &str| json!({ "type": "Ready", "status": status, "duration": "300s" });
    assert_eq!(
        made.data["spec"]["unhealthyConditions"],
        json!([ready("False"), ready("Unknown")])
    );
    assert!(made.data["spec"].get("maxUnhealthy").is_none() && made.data["spec"].get("minHealthy").is_none());

    shows_its_status(&plane, &client).await
}

/// The keys of the status are the published ones, and `kubectl get` shows the columns.
async fn shows_its_status(plane: &ControlPlane, client: &Client) -> Result<()> {
    let checks: Api<NodeHealthCheck> = Api::all(client.clone());
    let at = "2026-01-01T00:00:00Z";
    let remediation = json!({
        "resource": { "apiVersion": "a.io/v1", "kind": "Fence", "namespace": "n", "name": "n2", "uid": "u" },
        "started": at, "timedOut": at, "templateName": "t",
    });
    let status = json!({
        "observedNodes": 3, "healthyNodes": 1, "inFlightRemediations": { "n2": at },
        "unhealthyNodes": [
            { "name": "n1" },
            { "name": "n2", "remediations": [remediation], "conditionsHealthyTimestamp": at, "healthyDelayed": true },
        ],
        "conditions": [{ "type": "Disabled", "status": "False", "reason": "NodeHealthCheckEnabled", "message": "", "lastTransitionTime": at }],
        "phase": "Remediating", "reason": "1 node is being remediated", "lastUpdateTime": at, "observedGeneration": 1,
    });
    let mut bare = checks.get("bare").await?;
    bare.status = Some(serde_json::from_value(status.clone())?);
    checks.replace_status("bare", &PostParams::default(), &bare).await?;

    let output = plane.kubectl().args(["get", "nhc", "bare", "--output=json"]).output()?;
    let shown: Value = serde_json::from_slice(&output.stdout)?;
    assert_eq!(shown["status"], status, "nothing is pruned, nothing renamed");

    let output = plane.kubectl().args(["get", "remediation", "--output=wide"]).output()?;
    let table = String::from_utf8(output.stdout)?;
    let header = table.lines().next().unwrap_or_default();
    let columns: Vec<&str> = header.split_whitespace().collect();
    assert_eq!(
        columns,
        ["NAME", "PHASE", "HEALTHY", "OBSERVED", "REMEDIATING", "AGE", "REASON"]
    );
    let row = table.lines().find(|line| line.starts_with("bare ")).context("no row")?;
    let cells: Vec<&str> = row.split_whitespace().take(5).collect();
    assert_eq!(cells, ["bare", "Remediating", "1", "3", "n2"]);
    Ok(())
}

/// The definition as an earlier or another version has it: without any rule.
fn without_rules() -> Result<CustomResourceDefinition> {
    fn strip(value: &mut Value) {
        match value {
            Value::Object(fields) => {
                let is_list = fields.get("type").is_some_and(|of| of == "array");
                let mut rules = vec!["x-kubernetes-validations", "pattern", "enum", "maxItems", "minimum"];
                rules.extend(is_list.then_some("minItems"));
                fields.retain(|field, _| !rules.contains(&field.as_str()));
                fields.values_mut().for_each(strip);
            }
            Value::Array(items) => items.iter_mut().for_each(strip),
            _ => {}
        }
    }
    let mut definition = serde_json::to_value(NodeHealthCheck::crd())?;
    strip(&mut definition["spec"]["versions"][0]["schema"]);
    Ok(serde_json::from_value(definition)?)
}

#[tokio::test(flavor = "multi_thread")]
async fn what_was_stored_before_a_rule_stays_updatable() -> Result<()> {
    let (_plane, client) = plane_with(without_rules()?).await?;
    let checks = untyped(&client);
    let mut stored = Vec::new();
    for (spec, expected) in refused() {
        // Keys of a list are the list's own rule, which both versions have.
        if expected == "Duplicate value" {
            continue;
        }
        let name = unique("c");
        let made = checks.create(&PostParams::default(), &check(&name, &spec)).await;
        made.with_context(|| format!("refused without rules: {spec}"))?;
        stored.push((name, expected));
    }
    apply(&client, NodeHealthCheck::crd()).await?;
    let probe = spec(&json!({ "remediationTemplate": null }));
    wait::until("the rules to be in force", secs(60), || async {
        let probe = check(&unique("probe"), &probe);
        let dry_run = PostParams {
            dry_run: true,
            ..PostParams::default()
        };
        ensure!(checks.create(&dry_run, &probe).await.is_err(), "accepted");
        Ok(())
    })
    .await?;

    let typed: Api<NodeHealthCheck> = Api::all(client.clone());
    for (name, expected) in stored {
        let pause = json!({ "spec": { "pauseRequests": ["an upgrade"] } });
        let paused = checks.patch(&name, &PatchParams::default(), &Patch::Merge(pause)).await;
        paused.with_context(|| format!("not paused, which breaks: {expected}"))?;
        let status = json!({ "status": { "observedNodes": 1 } });
        let told = checks
            .patch_status(&name, &PatchParams::default(), &Patch::Merge(status))
            .await;
        told.with_context(|| format!("no status, beside: {expected}"))?;
        let read = typed
            .get(&name)
            .await
            .with_context(|| format!("not decoded: {expected}"))?;
        assert_eq!(read.spec.pause_requests, ["an upgrade"]);
        checks.delete(&name, &DeleteParams::default()).await?;
    }
    Ok(())
}
