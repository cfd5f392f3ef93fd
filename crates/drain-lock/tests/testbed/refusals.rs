//! What no wait can mend: it is named, it holds nothing, and it stops no other drain.

use anyhow::{Context, Result, ensure};
use k8s_openapi::api::admissionregistration::v1::{ValidatingAdmissionPolicy, ValidatingAdmissionPolicyBinding};
use k8s_openapi::api::policy::v1::PodDisruptionBudget;
use kube::api::{Api, DeleteParams, Patch, PatchParams, PostParams};
use nodeward_api::node_drain::Phase;
use nodeward_api::reason::LockReason;
use nodeward_testkit::bulk;
use nodeward_testkit::fleet::NodeSpec;
use nodeward_testkit::wait::{self, secs};
use nodeward_testkit::workload::{self, Budget, PodTemplate};
use serde_json::{Value, json};

use crate::environment::{APPS, Environment, create_drain, pinned};

fn budgets(env: &Environment) -> Api<PodDisruptionBudget> {
    Api::namespaced(env.client.clone(), APPS)
}

async fn change(env: &Environment, budget: &str, spec: Value) -> Result<()> {
    let patch = Patch::Merge(json!({ "spec": spec }));
    budgets(env).patch(budget, &PatchParams::default(), &patch).await?;
    Ok(())
}

/// An application of this template and as many pods, under these budgets.
async fn add(env: &Environment, app: &str, template: &PodTemplate, pods: u32, under: &[Budget]) -> Result<()> {
    bulk::create(&env.client, [template.stateful_set(APPS, app, pods)?]).await?;
    let built = under.iter().map(Budget::build).collect::<Result<Vec<_>>>()?;
    let names: Vec<String> = built.iter().filter_map(|budget| budget.metadata.name.clone()).collect();
    // Of two budgets of one pod the disruption controller looks at one alone when the pod changes.
    workload::ready_pods(&env.client, APPS, app, usize::try_from(pods)?, secs(60)).await?;
    bulk::create(&env.client, built).await?;
    for name in names {
        workload::counted_budget(&env.client, APPS, &name, i32::try_from(pods)?, secs(60)).await?;
    }
    Ok(())
}

async fn is_refused(env: &Environment, node: &str, reason: LockReason, budget: &str) -> Result<()> {
    let name = format!("{APPS}/{budget}");
    env.status_that(
        node,
        &format!("to be refused by {name}: {reason}"),
        secs(60),
        |status| {
            let mut told = status.blocked_by.iter().filter(|blocked| blocked.reason == reason);
            told.any(|told| told.pdb.as_ref() == Some(&name) || told.message.contains(&name))
                && status
                    .conditions
                    .iter()
                    .any(|condition| condition.type_ == "MisconfiguredPDB" && condition.status == "True")
        },
    )
    .await?;
    ensure!(!env.pods_on(node).await?.is_empty(), "a pod of {node} was evicted");
    let unschedulable = env.nodes().get(node).await?.spec.and_then(|spec| spec.unschedulable);
    ensure!(unschedulable != Some(true), "{node} was cordoned in vain");
    ensure!(
        env.claim(node).await?.is_none_or(|claim| claim.holds.is_empty()),
        "{node} holds disruptions"
    );
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn impossible_budgets_are_named_and_block_only_their_drain() -> Result<()> {
    let nodes = ["n1", "n2", "n3", "n4", "n5"];
    let env = Environment::new(&nodes).await?;
    let on = |node: &str| PodTemplate::new().node_selector("kubernetes.io/hostname", node);
    let max = |name: &str, disruptions: i32| Budget::max_unavailable(APPS, name, disruptions);
    add(&env, "zero", &on("n1"), 1, &[max("zero", 0).of("zero")]).await?;
    add(
        &env,
        "single",
        &on("n2"),
        1,
        &[Budget::min_available(APPS, "single", 1).of("single")],
    )
    .await?;
    let two = [max("also", 1).of("twice"), max("twice", 1).of("twice")];
    add(&env, "twice", &on("n3"), 1, &two).await?;
    add(&env, "pair", &on("n4"), 2, &[max("pair", 1).of("pair")]).await?;
    env.add_app("fine", 1, pinned("fine", &["n5"])).await?;
    let lock = env.start(json!({})).await?;
    for node in nodes {
        env.drain(node, json!({})).await?;
    }
    env.phase("n5", Phase::Drained, secs(60)).await?;
    is_refused(&env, "n1", LockReason::BudgetNeverAllows, "zero").await?;
    is_refused(&env, "n2", LockReason::BudgetNeverAllows, "single").await?;
    is_refused(&env, "n3", LockReason::SeveralPDBs, "also").await?;
    is_refused(&env, "n4", LockReason::NeedExceedsBudget, "pair").await?;
    change(&env, "zero", json!({ "maxUnavailable": 1 })).await?;
    change(&env, "single", json!({ "minAvailable": 0 })).await?;
    budgets(&env).delete("also", &DeleteParams::default()).await?;
    change(&env, "pair", json!({ "maxUnavailable": 2 })).await?;
    for node in nodes {
        env.phase(node, Phase::Drained, secs(60)).await?;
    }
    env.end([lock]).await
}

#[tokio::test(flavor = "multi_thread")]
async fn invalid_drains_say_why_and_stop_no_other() -> Result<()> {
    let nodes = ["n1", "n2", "n3"];
    let env = Environment::new(&nodes).await?;
    env.add_pinned("a", &nodes).await?;
    let unreadable = pinned("odd", &["n2"]).label("nodeward.dev/drain", "perhaps");
    env.add_app("odd", 1, unreadable).await?;
    let lock = env.start(json!({})).await?;
    // What can be known to be wrong is refused at the door.
    for nonsense in [
        json!({ "nodeName": "another" }),
        json!({ "deadlines": { "queue": "soon" } }),
    ] {
        let made = create_drain(&env.client, "n3", nonsense.clone()).await;
        ensure!(made.is_err(), "{nonsense} was taken");
    }
    for gone in ["EvictAnyway", "Delete"] {
        let made = create_drain(&env.client, "n3", json!({ "fallback": gone })).await;
        let refusal = made.err().context("it was taken")?;
        ensure!(
            format!("{refusal:#}").contains("drain-keeper overrides budgets"),
            "{refusal:#}"
        );
    }
    env.drain("nowhere", json!({})).await?;
    let other = json!({ "nodeUID": "5a8e1c5e-0f0e-4f5c-9a53-d53a41de5a01" });
    env.drain("n1", other).await?;
    env.drain("n2", json!({})).await?;
    let blocked = async |node: &str, reason: LockReason| {
        let is_so = |status: &nodeward_api::node_drain::NodeDrainStatus| {
            status.blocked_by.iter().any(|blocked| blocked.reason == reason)
        };
        env.status_that(node, &format!("to say {reason}"), secs(60), is_so)
            .await
    };
    blocked("nowhere", LockReason::NodeGone).await?;
    blocked("n1", LockReason::NodeReplaced).await?;
    blocked("n2", LockReason::UnknownOptOut).await?;
    // What a status says decides nothing.
    env.drain("n3", json!({})).await?;
    env.phase("n3", Phase::Drained, secs(60)).await?;
    let lie = Patch::Merge(json!({ "status": { "phase": "Drained", "ticket": 99, "blockedBy": [] } }));
    env.drains().patch_status("n1", &PatchParams::default(), &lie).await?;
    blocked("n1", LockReason::NodeReplaced).await?;
    wait::throughout("the node that is not meant is left alone", secs(2), || async {
        let node = env.nodes().get("n1").await?;
        ensure!(node.spec.and_then(|spec| spec.unschedulable).is_none(), "cordoned");
        ensure!(env.pods_on("n1").await?.len() == 1, "evicted");
        Ok(())
    })
    .await?;
    for node in ["nowhere", "n1"] {
        env.delete_drain(node).await?;
        env.released(node, secs(60)).await?;
    }
    env.end([lock]).await
}

/// An admission policy lets nobody cordon: the drain says who refuses what, and goes on once that is over.
#[tokio::test(flavor = "multi_thread")]
async fn refused_cordon_is_named_until_it_is_written() -> Result<()> {
    let env = Environment::new(&["n1", "n2"]).await?;
    let policies: Api<ValidatingAdmissionPolicy> = Api::all(env.client.clone());
    let bindings: Api<ValidatingAdmissionPolicyBinding> = Api::all(env.client.clone());
    let nodes =
        json!({ "apiGroups": [""], "apiVersions": ["v1"], "resources": ["nodes"], "operations": ["CREATE", "UPDATE"] });
    let policy = json!({ "metadata": { "name": "no-cordons" }, "spec": {
        "matchConstraints": { "resourceRules": [nodes] },
        "validations": [{
            "expression": "!has(object.spec.unschedulable) || !object.spec.unschedulable",
            "message": "nodes stay in use",
        }],
    } });
    let binding = json!({ "metadata": { "name": "no-cordons" }, "spec": {
        "policyName": "no-cordons", "validationActions": ["Deny"],
    } });
    let params = PostParams::default();
    policies.create(&params, &serde_json::from_value(policy)?).await?;
    bindings.create(&params, &serde_json::from_value(binding)?).await?;
    let mut cordoned = NodeSpec::worker("probe").build()?;
    cordoned.spec.get_or_insert_default().unschedulable = Some(true);
    let dry_run = PostParams {
        dry_run: true,
        ..PostParams::default()
    };
    wait::until("the policy to be in force", secs(60), || async {
        ensure!(
            env.nodes().create(&dry_run, &cordoned).await.is_err(),
            "a cordon is taken"
        );
        Ok(())
    })
    .await?;
    let lock = env.start(json!({})).await?;
    env.drain("n1", json!({})).await?;
    let status = env.status_that("n1", "to name the refusal", secs(60), |status| {
        let mut blocked = status.blocked_by.iter();
        blocked.any(|one| one.reason == LockReason::WriteRefused && one.message.contains("nodes stay in use"))
    });
    status.await?;
    env.event("n1", LockReason::WriteRefused, secs(60)).await?;
    bindings.delete("no-cordons", &DeleteParams::default()).await?;
    let status = env.phase("n1", Phase::Drained, secs(90)).await?;
    ensure!(
        status
            .blocked_by
            .iter()
            .all(|one| one.reason != LockReason::WriteRefused),
        "{:?}",
        status.blocked_by
    );
    env.end([lock]).await
}
