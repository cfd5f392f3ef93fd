//! Pages of what several components have to say.

use anyhow::{Context, Result, ensure};
use k8s_openapi::api::core::v1::{Node, Pod};
use kube::ResourceExt;
use kube::api::{Api, DeleteParams, ListParams, Patch, PatchParams, PostParams};
use nodeward_api::NodeHealthCheck;
use nodeward_api::node_drain::Phase;
use nodeward_testkit::fleet;
use nodeward_testkit::remediator::Family;
use nodeward_testkit::wait::{self, secs};
use nodeward_testkit::workload::{Budget, PodTemplate};
use nodeward_testkit::{bulk, workload};
use serde_json::{Value, json};
use tokio::sync::OnceCell;

use crate::environment::Environment;
use crate::person::{Person, says};
use crate::rights::bind;

#[tokio::test(flavor = "multi_thread")]
async fn why_tells_each_obstacle_of_a_queued_drain() -> Result<()> {
    let env = Environment::new().await?;
    let [node, other] = env.workers().await?;
    // A budget that can never allow a disruption, and one that its owner holds.
    let single = PodTemplate::new().node_selector("kubernetes.io/hostname", &node);
    bulk::create(&env.client, [single.deployment(&env.name, "single", 1)?]).await?;
    bulk::create(
        &env.client,
        [Budget::min_available(&env.name, "single", 1).of("single").build()?],
    )
    .await?;
    workload::ready_pods(&env.client, &env.name, "single", 1, secs(90)).await?;
    workload::counted_budget(&env.client, &env.name, "single", 1, secs(60)).await?;
    env.add_pinned("db", &[node.clone(), other]).await?;
    let admin = &env.admin;
    let hold = ["hold", "db", "-n", &env.name, "--reason", "reindexing", "--for", "1h"];
    admin.page(&hold).await?;

    fleet::cordon(&env.client, &node).await?;
    admin.page(&["drain", &node, "--no-wait", "--fallback", "wait"]).await?;
    env.phase(&node, Phase::Draining).await?;
    let why = wait::until("the verdict", secs(90), || async {
        let why = admin.page(&["why", &node]).await?;
        says(
            &why,
            &[
                "node Ready, cordoned since",
                "drain Draining, ticket",
                "[BudgetNeverAllows]",
                "[OwnerHold]",
                "next",
                "refused",
                "goes on when its owner's hold of",
                "add a replica to the workload",
                "told by drain-keeper: drain-keeper-1 leads",
                "under a claim that drain-lock has",
                "[AwaitsClaim",
                "asked the API server, about 2 evictions",
                "Budgets that matter here",
                "reindexing",
            ],
        )?;
        Ok(why)
    })
    .await?;
    // An obstacle is told once, whoever found it, and the answer names the one to act on.
    let (answer, below) = why.split_once("\nnode ").context("a line on the node")?;
    assert_eq!(answer.matches("[BudgetNeverAllows]").count(), 1, "{why}");
    assert_eq!(below.matches("[BudgetNeverAllows]").count(), 1, "{why}");

    let budget = admin.page(&["why", "pdb/db", "-n", &env.name]).await?;
    says(
        &budget,
        &[
            "PDB",
            "allows 1 disruption now",
            "goes on when its owner's hold of",
            "kubectl nodeward release hold/",
            "reindexing",
        ],
    )?;
    let pods = workload::ready_pods(&env.client, &env.name, "single", 1, secs(60)).await?;
    let single = format!("pod/{}/{}", env.name, pods[0].name_any());
    let pod = admin.page(&["why", &single]).await?;
    says(
        &pod,
        &[
            "the API server would refuse it now: Cannot evict pod",
            "down until its node is back",
            "[BudgetNeverAllows]",
        ],
    )?;
    let name = format!("{}-reader", env.name);
    let reader = Person::named(env.plane, &name, "people", &env.name)?;
    bind(&env, "view", &name, Some(&env.name)).await?;
    let unasked = reader.page(&["why", &single]).await?;
    says(
        &unasked,
        &[&format!(
            "the API server could not be asked: {name} may not create pods/eviction"
        )],
    )?;

    let json = admin.json(&["why", &node]).await?;
    assert_eq!(json["drain"]["fallback"], "Wait", "{json:#}");
    // What the claim is to release, and what has an obstacle of its own: drain-keeper tells both.
    assert!(!json["node"]["drainKeeper"]["blocked"].is_null(), "{json:#}");
    let status = admin.page(&["status"]).await?;
    says(&status, &["drain-keeper", "WAITS FOR", &node, "BudgetNeverAllows"])?;
    admin.page(&["release", &node]).await?;
    env.gone(&node).await
}

/// The budget of a singleton never lets it go; the printed command moves it all the same.
#[tokio::test(flavor = "multi_thread")]
async fn why_offers_the_rollout_that_moves_a_pod() -> Result<()> {
    let env = Environment::new().await?;
    let [node, other] = env.workers().await?;
    let probe = json!({ "httpGet": { "port": 80 } });
    let container = json!({ "name": "main", "image": "registry.example/app:1", "readinessProbe": probe });
    fleet::cordon(&env.client, &other).await?;
    let zone = format!("{}-zone", env.name);
    let nodes = Api::<Node>::all(env.client.clone());
    for name in [&node, &other] {
        let label = json!({ "metadata": { "labels": { "example.com/zone": zone } } });
        nodes
            .patch(name, &PatchParams::default(), &Patch::Merge(&label))
            .await?;
    }
    let template = PodTemplate::new().node_selector("example.com/zone", &zone);
    let template = template.grace(1).spec("containers", json!([container]));
    bulk::create(&env.client, [template.deployment(&env.name, "single", 1)?]).await?;
    let budget = Budget::min_available(&env.name, "single", 1).of("single").build()?;
    bulk::create(&env.client, [budget]).await?;
    let pod = workload::ready_pods(&env.client, &env.name, "single", 1, secs(90))
        .await?
        .remove(0);
    workload::counted_budget(&env.client, &env.name, "single", 1, secs(60)).await?;
    fleet::uncordon(&env.client, &other).await?;
    fleet::cordon(&env.client, &node).await?;
    let pod_name = format!("pod/{}/{}", env.name, pod.name_any());
    let command = wait::until("the advice", secs(60), || async {
        let page = env.admin.page(&["why", &pod_name]).await?;
        let mut lines = page.lines().map(str::trim);
        let command = lines.find(|line| line.starts_with("kubectl ") && line.contains(" rollout restart "));
        command.map(str::to_owned).context(page.clone())
    })
    .await?;
    let arguments: Vec<&str> = command.split_whitespace().skip(1).collect();
    env.admin.kubectl(&arguments).await?.page()?;
    workload::gone(&env.client, &pod, secs(90)).await
}

#[tokio::test(flavor = "multi_thread")]
async fn why_names_a_pending_pod_and_its_cordoned_node() -> Result<()> {
    let env = Environment::new().await?;
    let [node] = env.workers().await?;
    let template = PodTemplate::new().node_selector("kubernetes.io/hostname", &node);
    bulk::create(&env.client, [template.deployment(&env.name, "only", 1)?]).await?;
    let budget = Budget::max_unavailable(&env.name, "only", 1).of("only").build()?;
    bulk::create(&env.client, [budget]).await?;
    workload::ready_pods(&env.client, &env.name, "only", 1, secs(90)).await?;
    workload::counted_budget(&env.client, &env.name, "only", 1, secs(60)).await?;
    fleet::cordon(&env.client, &node).await?;
    // As kubectl drain --disable-eviction does.
    let pods = Api::<Pod>::namespaced(env.client.clone(), &env.name);
    pods.delete_collection(&DeleteParams::default(), &ListParams::default())
        .await?;
    let only = format!("it fits only {node}, which is cordoned");
    wait::until("the successor to be Pending", secs(60), || async {
        let page = env.admin.page(&["why", "pdb/only", "-n", &env.name]).await?;
        says(
            &page,
            &[
                "0 of 1 pods are healthy",
                "is Pending:",
                &only,
                "bring the budget's pods back to Ready",
            ],
        )
    })
    .await
}

#[tokio::test(flavor = "multi_thread")]
async fn why_shows_what_stops_a_remediation() -> Result<()> {
    let env = Environment::new().await?;
    let [node] = env.workers().await?;
    let checks = health_checks(&env).await?;
    let check = json!({
        "apiVersion": "remediation.medik8s.io/v1alpha1",
        "kind": "NodeHealthCheck",
        "metadata": { "name": env.name },
        "spec": {
            "selector": { "matchLabels": { "kubernetes.io/hostname": node } },
            "unhealthyConditions": [{ "type": "Ready", "status": "False", "duration": "1s" }],
            "remediationTemplate": { "apiVersion": "a.example.com/v1", "kind": "SomeTemplate", "namespace": "n", "name": "t" },
            "pauseRequests": ["an upgrade"],
        },
    });
    bulk::create(&env.client, [serde_json::from_value::<NodeHealthCheck>(check)?]).await?;
    let status = json!({ "status": { "phase": "Paused", "healthyNodes": 0, "observedNodes": 1 } });
    checks
        .patch_status(&env.name, &PatchParams::default(), &Patch::Merge(status))
        .await?;
    let admin = &env.admin;
    let healthy = format!("health is healthy (NodeHealthCheck {})", env.name);
    says(&admin.page(&["why", &node]).await?, &[&healthy])?;

    fleet::set_ready(&env.client, &node, false).await?;
    wait::until("the condition to count", secs(60), || async {
        let heading = format!("Health, by NodeHealthCheck {}", env.name);
        let why = admin.page(&["why", &node]).await?;
        says(
            &why,
            &[
                &heading,
                "[CheckPaused]",
                "Ready is False since",
                "has counted as unhealthy",
                "an upgrade",
                "step 1, SomeTemplate n/t",
            ],
        )
    })
    .await?;
    let status = admin.page(&["status"]).await?;
    says(&status, &["HEALTH CHECK", "Paused", "0/1"])?;
    checks.delete(&env.name, &DeleteParams::default()).await?;
    Ok(())
}

async fn health_checks(env: &Environment) -> Result<Api<NodeHealthCheck>> {
    static CREATED: OnceCell<()> = OnceCell::const_new();
    let create = || async {
        bulk::create(&env.client, nodeward_api::crd::health_check())
            .await
            .map(drop)
    };
    CREATED.get_or_try_init(create).await?;
    let checks: Api<NodeHealthCheck> = Api::all(env.client.clone());
    wait::until("NodeHealthChecks to be served", secs(60), || async {
        Ok(checks.list(&ListParams::default()).await.map(drop)?)
    })
    .await?;
    Ok(checks)
}

/// Remediations that are over, late, or of others; and none of their kinds is served.
#[tokio::test(flavor = "multi_thread")]
async fn why_and_status_tell_of_remediations_that_run_alone() -> Result<()> {
    let env = Environment::new().await?;
    let [node] = env.workers().await?;
    let checks = health_checks(&env).await?;
    let named = |what: &str| format!("{}-{what}", env.name);
    let step = |order: i32| {
        let template = json!({
            "apiVersion": "a.example.com/v1", "kind": format!("Some{order}Template"), "namespace": "n", "name": "t",
        });
        json!({ "remediationTemplate": template, "order": order, "timeout": "1m" })
    };
    let record = |changes: Value| {
        let mut record = json!({
            "resource": { "apiVersion": "a.example.com/v1", "kind": "Some1", "namespace": "n", "name": node, "uid": "u" },
            "started": "2026-01-01T00:00:00Z", "templateName": "t",
        });
        for (key, value) in changes.as_object().into_iter().flatten() {
            record[key] = value.clone();
        }
        record
    };
    let over = record(json!({ "timedOut": "2026-01-01T00:01:00Z" }));
    let entry = |node: &str, record: Value| json!({ "name": node, "remediations": [record] });
    let stop = json!({ "reason": "ConcurrencyLimitReached", "message": "1 of 1: another" });
    for (what, steps, entries) in [
        ("over", vec![step(1)], json!([entry(&node, over)])),
        ("late", vec![step(1), step(2)], json!([entry(&node, record(json!({})))])),
        (
            "limited",
            vec![step(1)],
            json!([entry("another", record(json!({}))), { "name": node, "stoppedBy": stop }]),
        ),
    ] {
        let check = json!({
            "apiVersion": "remediation.medik8s.io/v1alpha1", "kind": "NodeHealthCheck", "metadata": { "name": named(what) },
            "spec": {
                "selector": { "matchLabels": { "kubernetes.io/hostname": node } },
                "unhealthyConditions": [{ "type": "Ready", "status": "False", "duration": "1s" }],
                "escalatingRemediations": steps, "maxConcurrentRemediations": 1, "maxUnhealthy": "100%",
            },
        });
        bulk::create(&env.client, [serde_json::from_value::<NodeHealthCheck>(check)?]).await?;
        let status = json!({ "status": { "healthyNodes": 0, "observedNodes": 1, "unhealthyNodes": entries } });
        checks
            .patch_status(&named(what), &PatchParams::default(), &Patch::Merge(status))
            .await?;
    }
    fleet::set_ready(&env.client, &node, false).await?;
    let admin = &env.admin;
    wait::until("the condition to count", secs(60), || async {
        let why = admin.page(&["why", &node]).await?;
        says(
            &why,
            &[
                "[ChainExhausted]",
                "its kind is not served",
                "[ConcurrencyLimitReached]",
                "another",
                "step 2, Some2Template n/t",
            ],
        )?;
        let next = why
            .lines()
            .find(|line| line.contains("step 2, "))
            .context("no next step")?;
        ensure!(!next.contains(" at "), "its time has passed: {next}");
        Ok(())
    })
    .await?;
    let status = admin.nodeward(&["status", "-o", "json"]).await?;
    let status: Value = serde_json::from_str(&status.out)?;
    for (what, remediating) in [
        ("over", json!(null)),
        ("late", json!([node])),
        ("limited", json!(["another"])),
    ] {
        let told = status["healthChecks"].as_array().context("none")?;
        let told = told
            .iter()
            .find(|told| told["name"] == named(what))
            .context("not told")?;
        ensure!(told["remediating"] == remediating, "{what}: {told}");
        let stopped = if what == "limited" { json!([node]) } else { json!(null) };
        ensure!(told["stopped"][0]["nodes"] == stopped, "{what}: {told}");
    }
    for what in ["over", "late", "limited"] {
        checks.delete(&named(what), &DeleteParams::default()).await?;
    }
    Ok(())
}

/// Also of a node that is gone: nothing else tells of it.
#[tokio::test(flavor = "multi_thread")]
async fn why_names_a_remediation_that_a_finalizer_keeps() -> Result<()> {
    let env = Environment::new().await?;
    let [node] = env.workers().await?;
    let gone = format!("{}-gone", env.name);
    let checks = health_checks(&env).await?;
    let family = Family::Custom;
    family.install(&env.client).await?;
    let template = family.create_template(&env.client, &env.name, "t").await?;
    let check = json!({
        "apiVersion": "remediation.medik8s.io/v1alpha1", "kind": "NodeHealthCheck", "metadata": { "name": env.name },
        "spec": {
            "selector": { "matchLabels": { "kubernetes.io/hostname": node } },
            "remediationTemplate": template, "pauseRequests": ["a test"],
        },
    });
    let check = checks
        .create(&PostParams::default(), &serde_json::from_value(check)?)
        .await?;
    let remediations = family.remediation().api(&env.client, Some(&env.name));
    let finalizer = "example.com/remediator";
    for node in [&node, &gone] {
        let remediation = json!({
            "apiVersion": "remediators.example.com/v1", "kind": "CustomRemediation",
            "metadata": {
                "name": node, "finalizers": [finalizer],
                "ownerReferences": [{
                    "apiVersion": "remediation.medik8s.io/v1alpha1", "kind": "NodeHealthCheck", "name": env.name,
                    "uid": check.uid(),
                }],
            },
        });
        remediations
            .create(&PostParams::default(), &serde_json::from_value(remediation)?)
            .await?;
        remediations.delete(node, &DeleteParams::default()).await?;
        let why = env.admin.page(&["why", node]).await?;
        let kept = format!("CustomRemediation {}/{node} is being deleted since", env.name);
        says(&why, &[&kept, &format!("its finalizers keep it: {finalizer}")])?;
    }
    let patch = Patch::Merge(json!({ "metadata": { "finalizers": null } }));
    for node in [&node, &gone] {
        remediations.patch(node, &PatchParams::default(), &patch).await?;
    }
    let error = env.admin.nodeward(&["why", &gone]).await?.error()?;
    says(&error, &["there is no node"])?;
    checks.delete(&env.name, &DeleteParams::default()).await?;
    Ok(())
}
