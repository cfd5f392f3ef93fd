//! `uninstall --check`: what would stay, and what would block.

use anyhow::{Context, Result, ensure};
use k8s_openapi::api::admissionregistration::v1::ValidatingWebhookConfiguration;
use k8s_openapi::api::coordination::v1::Lease;
use k8s_openapi::api::policy::v1::PodDisruptionBudget;
use kube::api::{DeleteParams, ListParams, Patch, PatchParams, PostParams};
use kube::{Api, Client};
use nodeward_api::node_drain::Phase;
use nodeward_api::{NodeDrain, NodeHealthCheck};
use nodeward_testkit::helm::Release;
use nodeward_testkit::wait::{self, secs};
use nodeward_testkit::{ControlPlane, Options};
use serde_json::{Value, json};

use crate::environment::Environment;
use crate::person::{Answer, Person, says};

/// What of `blocks` or `stays` is of this object: `WHAT` of each.
fn of_object<'a>(check: &'a Value, part: &str, object: &str) -> Vec<&'a str> {
    let all = check[part].as_array().into_iter().flatten();
    let own = all.filter(|one| {
        one["objects"]
            .as_array()
            .is_some_and(|objects| objects.contains(&json!(object)))
    });
    own.filter_map(|one| one["what"].as_str()).collect()
}

async fn checked(person: &Person, code: i32) -> Result<(Value, Answer)> {
    let answer = person.nodeward(&["uninstall", "--check", "-o", "json"]).await?;
    ensure!(answer.code == code, "{answer:?}");
    Ok((
        serde_json::from_str(&answer.out).with_context(|| answer.out.clone())?,
        answer,
    ))
}

/// Drains of the tests beside this one may block, too: it looks for its own node.
#[tokio::test(flavor = "multi_thread")]
async fn a_running_drain_blocks_an_uninstall_until_it_has_ended() -> Result<()> {
    let env = Environment::new().await?;
    let [node, other] = env.workers().await?;
    env.add_pinned("web", &[node.clone(), other]).await?;
    env.admin.page(&["drain", &node, "--no-wait"]).await?;
    env.phase(&node, Phase::Drained).await?;
    // The budget has its annotation a moment after the grant.
    let budgets: Api<PodDisruptionBudget> = Api::namespaced(env.client.clone(), &env.name);
    wait::until("the budget to say who has it", secs(60), || async {
        let budget = budgets.get("web").await?;
        budget.metadata.annotations.context("no annotation").map(drop)
    })
    .await?;
    let (check, _) = checked(&env.admin, 1).await?;
    assert_eq!(
        of_object(&check, "blocks", &node),
        [
            "NodeDrain with the finalizer nodeward.dev/drain-lock",
            "claim in the DrainLedger",
            "cordon by drain-lock",
            "annotation nodeward.dev/do-not-disrupt-by, with karpenter.sh/do-not-disrupt",
        ]
    );
    let budget = format!("{}/web", env.name);
    assert_eq!(
        of_object(&check, "stays", &budget),
        ["annotation nodeward.dev/locked-by"]
    );
    let stays = [
        ("DrainLedger", "cluster"),
        ("Lease", "nodeward-system/drain-lock"),
        ("Lease", "nodeward-system/drain-keeper"),
        ("Secret", "nodeward-system/drain-lock-webhook-cert"),
        ("CustomResourceDefinition", "nodedrains.nodeward.dev"),
    ];
    for (what, object) in stays {
        let found = of_object(&check, "stays", object);
        ensure!(found.contains(&what), "{what} {object}: {check}");
    }
    let answer = env.admin.nodeward(&["uninstall", "--check"]).await?;
    says(
        &answer.out,
        &[
            "To be ended before an uninstall",
            "kubectl delete nodedrains --all --wait",
            "STAYS OF",
        ],
    )?;
    let names = env.admin.nodeward(&["uninstall", "--check", "-o", "name"]).await?;
    says(
        &names.out,
        &[&format!("nodedrain.nodeward.dev/{node}"), &format!("node/{node}")],
    )?;

    // Who may look at less is told so.
    let viewer = Person::named(env.plane, &format!("{}-none", env.name), "people", &env.name)?;
    let blind = viewer.nodeward(&["uninstall", "--check"]).await?;
    assert_eq!(blind.code, 4, "{blind:?}");
    let unseen = [
        "drains",
        "claims",
        "nodes",
        "budgets",
        "webhooks",
        "certificates",
        "CRDs",
    ];
    for unseen in unseen {
        says(&blind.out, &[&format!("Cannot tell: {unseen}: ")])?;
    }

    env.admin.page(&["release", &node]).await?;
    env.gone(&node).await?;
    let answer = env.admin.nodeward(&["uninstall", "--check", "-o", "json"]).await?;
    let check: Value = serde_json::from_str(&answer.out)?;
    assert_eq!(of_object(&check, "blocks", &node), Vec::<&str>::new(), "{check}");
    let usage = env.admin.nodeward(&["uninstall"]).await?;
    assert_eq!(usage.code, 2, "{usage:?}");
    Ok(())
}

/// On a control plane of its own, for a whole cluster is looked at.
#[tokio::test(flavor = "multi_thread")]
async fn what_was_named_is_what_an_uninstall_leaves() -> Result<()> {
    let plane = ControlPlane::start(Options::patient()).await?;
    let admin = Person::admin(&plane)?;
    let bare = admin.page(&["uninstall", "--check"]).await?;
    says(&bare, &["Nothing would block after an uninstall."])?;
    let outside = json!({ "enabled": false });
    let release = Release::new("nodeward", "nodeward-system").values(json!({
        "drainLock": { "enabled": true, "deployment": outside, "webhook": { "url": "https://127.0.0.1:1" } },
        "healthCheck": { "enabled": true, "deployment": outside },
    }));
    release.install(&plane).await?;
    let client = plane.client().await?;
    let drains: Api<NodeDrain> = Api::all(client.clone());
    wait::until("the kinds to be served", secs(60), || async {
        Ok(drains.list(&ListParams::default()).await?)
    })
    .await?;
    // The webhook fails open, and is of the release.
    let (check, _) = checked(&admin, 0).await?;
    assert_eq!(of_object(&check, "stays", "medik8s-leases"), ["Namespace"]);
    only_own_remediations_count(&client, &admin).await?;
    admin.page(&["pause", "--reason", "r", "-n", "nodeward-system"]).await?;
    let finalizers = ["nodeward.dev/drain-lock"];
    let drain = json!({ "metadata": { "name": "n1", "finalizers": finalizers }, "spec": { "nodeName": "n1" } });
    drains
        .create(&PostParams::default(), &serde_json::from_value(drain)?)
        .await?;
    let (before, _) = checked(&admin, 1).await?;
    release.uninstall(&plane).await?;

    // All that was named is there, and it blocks.
    let (after, _) = checked(&admin, 1).await?;
    assert_eq!(
        (&before["blocks"], &before["stays"]),
        (&after["blocks"], &after["stays"])
    );
    assert_eq!(
        of_object(&after, "stays", "nodeward-system/nodeward-pause"),
        ["ConfigMap nodeward-pause"]
    );
    let of_nobody = json!({
        "apiVersion": "admissionregistration.k8s.io/v1", "kind": "ValidatingWebhookConfiguration",
        "metadata": { "name": "left", "labels": { "app.kubernetes.io/part-of": "nodeward" } },
        "webhooks": [{
            "name": "a.nodeward.dev", "sideEffects": "None", "admissionReviewVersions": ["v1"], "failurePolicy": "Ignore",
            "clientConfig": { "service": { "namespace": "gone", "name": "left" } },
        }],
    });
    let webhooks: Api<ValidatingWebhookConfiguration> = Api::all(client.clone());
    webhooks
        .create(&PostParams::default(), &serde_json::from_value(of_nobody)?)
        .await?;
    let (left, _) = checked(&admin, 1).await?;
    assert_eq!(of_object(&left, "stays", "left"), ["webhook whose Service is gone"]);
    drains.delete("n1", &DeleteParams::default()).await?;
    ensure!(drains.get_opt("n1").await?.is_some(), "nothing has kept it");
    let none = Patch::Merge(json!({ "metadata": { "finalizers": null } }));
    drains.patch("n1", &PatchParams::default(), &none).await?;
    checked(&admin, 0).await.map(drop)
}

/// medik8s' operator serves the same kind: until health-check has run, remediations are another's.
async fn only_own_remediations_count(client: &Client, admin: &Person) -> Result<()> {
    let template = json!({ "apiVersion": "a.io/v1", "kind": "FenceTemplate", "namespace": "fence", "name": "t" });
    let check = json!({
        "metadata": { "name": "workers" },
        "spec": {
            "selector": { "matchExpressions": [{ "key": "a", "operator": "Exists" }] }, "remediationTemplate": template,
        },
    });
    let checks: Api<NodeHealthCheck> = Api::all(client.clone());
    checks
        .create(&PostParams::default(), &serde_json::from_value(check)?)
        .await?;
    let resource = json!({ "apiVersion": "a.io/v1", "kind": "Fence", "namespace": "fence", "name": "n1" });
    let remediation = json!({ "resource": resource, "started": "2026-01-01T10:00:00Z" });
    let unhealthy = json!([{ "name": "n1", "remediations": [remediation] }]);
    let status = Patch::Merge(json!({ "status": { "unhealthyNodes": unhealthy } }));
    checks.patch_status("workers", &PatchParams::default(), &status).await?;
    checked(admin, 0).await?;
    let patch = |generation: Value| Patch::Merge(json!({ "status": { "observedGeneration": generation } }));
    let params = PatchParams::default();
    checks.patch_status("workers", &params, &patch(json!(1))).await?;
    let (check, _) = checked(admin, 1).await?;
    assert_eq!(of_object(&check, "blocks", "n1"), ["running remediation"]);
    checks.patch_status("workers", &params, &patch(json!(null))).await?;
    let leases: Api<Lease> = Api::namespaced(client.clone(), "nodeward-system");
    let lease = json!({ "metadata": { "name": "health-check" } });
    leases
        .create(&PostParams::default(), &serde_json::from_value(lease)?)
        .await?;
    let (check, _) = checked(admin, 1).await?;
    assert_eq!(of_object(&check, "blocks", "n1"), ["running remediation"]);
    checks.delete("workers", &DeleteParams::default()).await?;
    Ok(())
}
