//! One life for every drain: what stock Kubernetes ends, ends with drain-lock, too.

use anyhow::{Context, Result, ensure};
use k8s_openapi::api::core::v1::Node;
use kube::Api;
use kube::api::{Patch, PatchParams};
use nodeward_api::node_drain::{Evictor, GRANT_IDLE, NodeDrainStatus, Phase};
use nodeward_api::reason::LockReason;
use nodeward_testkit::foreign::Foreign;
use nodeward_testkit::kubectl::{Kubectl, Said};
use nodeward_testkit::wait::{self, secs};
use nodeward_testkit::workload::{self, Budget, PodTemplate, Start};
use nodeward_testkit::{bulk, fleet, reboot};
use serde_json::json;

use crate::drainers::all_end;
use crate::environment::{APPS, Environment, pinned};
use crate::reviewed::{Eviction, Reviewed};

/// A Deployment of one pod that only this node can run.
async fn add_held(env: &Environment, name: &str, node: &str) -> Result<()> {
    bulk::create(&env.client, [pinned(name, &[node]).deployment(APPS, name, 1)?]).await?;
    workload::ready_pods(&env.client, APPS, name, 1, secs(60)).await?;
    Ok(())
}

/// A Deployment of one pod that begins on this node and can run on `spare`, too.
async fn add_movable(env: &Environment, name: &str, node: &str, spare: &str) -> Result<()> {
    let template = PodTemplate::new().on_nodes(&[node, spare], &[node]);
    bulk::create(&env.client, [template.deployment(APPS, name, 1)?]).await?;
    workload::ready_pods(&env.client, APPS, name, 1, secs(60)).await?;
    Ok(())
}

/// A budget over several Deployments.
async fn cover(env: &Environment, name: &str, of: &[&str], most: i32) -> Result<()> {
    let selector = json!({ "matchExpressions": [{ "key": "app", "operator": "In", "values": of }] });
    let budget = Budget::max_unavailable(APPS, name, most).selector(selector);
    bulk::create(&env.client, [budget.build()?]).await?;
    env.counts_healthy(name, of.len()).await
}

/// Each budget has a pod that stays down with the one node, and one on the other that finds a place elsewhere.
#[tokio::test(flavor = "multi_thread")]
async fn budgets_over_held_and_movable_pods_wedge_no_plain_drains() -> Result<()> {
    let (reviewed, lock) = Reviewed::with(&["n1", "n2", "n3"], json!({})).await?;
    let env = &reviewed.env;
    for (budget, held, movable) in [("a", "n1", "n2"), ("b", "n2", "n1")] {
        let (down, moves) = (format!("{budget}-held"), format!("{budget}-movable"));
        add_held(env, &down, held).await?;
        add_movable(env, &moves, movable, "n3").await?;
        cover(env, budget, &[&down, &moves], 1).await?;
    }
    let kubectl = Kubectl::of(&env.plane)?;
    let budgets = env.watch_budgets();
    let drains: Result<Vec<_>> = ["n1", "n2"]
        .iter()
        .map(|node| Ok((*node, kubectl.start(["drain", node, "--ignore-daemonsets"])?)))
        .collect();
    all_end(env, drains?, secs(180)).await?;
    for node in ["n1", "n2"] {
        env.released(node, secs(60)).await?;
    }
    budgets.none_was_violated()?;
    reviewed.end([lock]).await
}

/// What no other drain's end lifts keeps its own pod, and no other.
#[tokio::test(flavor = "multi_thread")]
async fn pod_that_may_never_go_stays_alone() -> Result<()> {
    let (reviewed, lock) = Reviewed::with(&["n1", "n2"], json!({ "deadlines": { "obstacle": "3s" } })).await?;
    let env = &reviewed.env;
    for app in ["one", "two", "three", "never"] {
        add_held(env, app, "n1").await?;
        let most = i32::from(app != "never");
        bulk::create(&env.client, [Budget::max_unavailable(APPS, app, most).of(app).build()?]).await?;
    }
    let kubectl = Kubectl::of(&env.plane)?;
    let _drain = kubectl.start(["drain", "n1", "--ignore-daemonsets"])?;
    wait::until("three of four pods to go", secs(120), || async {
        let left = env.pods_on("n1").await?;
        ensure!(left.len() == 1, "{} are left", left.len());
        Ok(())
    })
    .await?;
    let status = env.status_that("n1", "to name what stays", secs(30), |status| {
        let mut blocked = status.blocked_by.iter();
        blocked.any(|blocked| blocked.reason == LockReason::BudgetNeverAllows)
    });
    ensure!(status.await?.phase == Some(Phase::Draining));
    reviewed.end([lock]).await
}

/// Whoever adds nodes does that for a pod that waits for one: as many are without a node at a time as their budget spares.
#[tokio::test(flavor = "multi_thread")]
async fn full_node_is_emptied_as_room_is_made() -> Result<()> {
    let (reviewed, lock) = Reviewed::with(&["n1", "n2"], json!({})).await?;
    let env = &reviewed.env;
    fleet::cordon(&env.client, "n2").await?;
    bulk::create(&env.client, [PodTemplate::new().deployment(APPS, "web", 3)?]).await?;
    workload::ready_pods(&env.client, APPS, "web", 3, secs(60)).await?;
    bulk::create(
        &env.client,
        [Budget::max_unavailable(APPS, "web", 1).of("web").build()?],
    )
    .await?;
    env.counts_healthy("web", 3).await?;
    let budgets = env.watch_budgets();
    let kubectl = Kubectl::of(&env.plane)?;
    let drain = kubectl.start(["drain", "n1", "--ignore-daemonsets"])?;
    wait::until("one pod to wait for a node", secs(60), || async {
        let left = env.pods_on("n1").await?;
        ensure!(left.len() == 2, "{} are left: {}", left.len(), drain.text());
        Ok(())
    })
    .await?;
    fleet::uncordon(&env.client, "n2").await?;
    all_end(env, vec![("n1", drain)], secs(120)).await?;
    budgets.none_was_violated()?;
    reviewed.end([lock]).await
}

/// Nothing waits for a node that Karpenter takes away: each pod goes as its budget allows.
#[tokio::test(flavor = "multi_thread")]
async fn node_that_is_taken_away_keeps_no_pod() -> Result<()> {
    let (reviewed, lock) = Reviewed::with(&["n1", "n2"], json!({})).await?;
    let env = &reviewed.env;
    for app in ["a", "b"] {
        add_held(env, app, "n1").await?;
        bulk::create(&env.client, [Budget::max_unavailable(APPS, app, 1).of(app).build()?]).await?;
        env.counts_healthy(app, 1).await?;
    }
    let client = reviewed
        .client_as("system:serviceaccount:kube-system:karpenter")
        .await?;
    let nodes: Api<Node> = Api::all(client.clone());
    let taint = json!({ "spec": { "taints": [{ "key": "karpenter.sh/disrupted", "effect": "NoSchedule" }] } });
    nodes
        .patch("n1", &PatchParams::default(), &Patch::Merge(&taint))
        .await?;
    wait::until("both pods to go", secs(60), || async {
        for pod in env.pods_on("n1").await? {
            let name = pod.metadata.name.as_deref().unwrap_or_default();
            let evicted = Eviction::of(name).by(&client).await?;
            ensure!(matches!(evicted.status, 201 | 404 | 429), "{evicted:?}");
        }
        ensure!(env.pods_on("n1").await?.is_empty(), "pods are left");
        Ok(())
    })
    .await?;
    reviewed.end([lock]).await
}

/// More pods would stay down with the node than their budget can ever allow, until its Machine is deleted: then none stays down.
#[tokio::test(flavor = "multi_thread")]
async fn node_whose_machine_is_deleted_holds_no_pod() -> Result<()> {
    let env = Environment::new(&["n1", "n2"]).await?;
    for app in ["a", "b"] {
        add_held(&env, app, "n1").await?;
    }
    cover(&env, "both", &["a", "b"], 1).await?;
    let machine = Foreign::ClusterApiMachine;
    machine.install(&env.client).await?;
    let kept = json!({ "metadata": { "finalizers": ["machine.cluster.x-k8s.io"] } });
    machine.put(&env.client, Some(APPS), "m1", kept).await?;
    for (key, value) in [("machine", "m1"), ("cluster-namespace", APPS)] {
        fleet::annotate(&env.client, "n1", &format!("cluster.x-k8s.io/{key}"), Some(value)).await?;
    }
    let lock = env.start(json!({})).await?;
    env.drain("n1", json!({})).await?;
    let counts = |status: &NodeDrainStatus| {
        let plan = status.plan.as_ref();
        plan.map(|plan| (plan.held.len(), plan.movable))
    };
    let is_blocked = |status: &NodeDrainStatus| {
        let mut obstacles = status.blocked_by.iter();
        obstacles.any(|one| one.reason == LockReason::NeedExceedsBudget) && counts(status) == Some((2, 0))
    };
    env.status_that("n1", "not to begin", secs(60), is_blocked).await?;
    machine.delete(&env.client, Some(APPS), "m1").await?;
    env.status_that("n1", "to hold nothing", secs(60), |status| {
        counts(status).is_some_and(|(held, _)| held == 0)
            && status
                .blocked_by
                .iter()
                .all(|one| one.reason != LockReason::NeedExceedsBudget)
    })
    .await?;
    wait::until("a pod to go as its budget allows", secs(60), || async {
        ensure!(env.pods_on("n1").await?.len() < 2, "both run");
        Ok(())
    })
    .await?;
    let claim = env.claim("n1").await?.context("no claim")?;
    ensure!(claim.holds.is_empty() && claim.needs.is_empty(), "{claim:?}");
    env.end([lock]).await
}

/// Its last drain's pod cannot come back before this drain ends: the claim is taken over, and nobody waits for a deadline.
#[tokio::test(flavor = "multi_thread")]
async fn node_that_is_drained_again_before_its_pods_are_back_is_drained() -> Result<()> {
    let (reviewed, lock) = Reviewed::with(&["n1", "n2"], json!({})).await?;
    let env = &reviewed.env;
    for app in ["a", "b"] {
        add_held(env, app, "n1").await?;
    }
    cover(env, "both", &["a", "b"], 2).await?;
    let kubectl = Kubectl::of(&env.plane)?;
    let drain = || kubectl.start(["drain", "n1", "--ignore-daemonsets"]);
    let first = drain()?;
    let ends = async |said: &Said| {
        wait::until("a drain to end", secs(180), || async {
            said.ended().context("it runs")
        })
        .await
    };
    ensure!(ends(&first).await?, "{}", first.text());
    reboot::reboot(&env.client, "n1", secs(1)).await?;
    // It serves for a moment, and is drained before what was down is back.
    fleet::uncordon(&env.client, "n1").await?;
    let second = drain()?;
    ensure!(ends(&second).await?, "{}", second.text());
    reviewed.end([lock]).await
}

/// Firmware after an image, say: nobody uncordons the node between two drains and reboots. A pod that tolerates the cordon comes back
/// in between, and the others do not.
#[tokio::test(flavor = "multi_thread")]
async fn node_is_drained_twice_under_one_cordon() -> Result<()> {
    let (reviewed, lock) = Reviewed::with(&["n1", "n2"], json!({})).await?;
    let env = &reviewed.env;
    let tolerant = pinned("tolerant", &["n1"]).tolerates_all();
    bulk::create(&env.client, [tolerant.deployment(APPS, "tolerant", 1)?]).await?;
    workload::ready_pods(&env.client, APPS, "tolerant", 1, secs(60)).await?;
    add_held(env, "a", "n1").await?;
    cover(env, "tolerant", &["tolerant"], 1).await?;
    cover(env, "a", &["a"], 1).await?;
    let kubectl = Kubectl::of(&env.plane)?;
    for turn in ["first", "second", "third"] {
        let drain = kubectl.start(["drain", "n1", "--ignore-daemonsets"])?;
        wait::until(format!("the {turn} drain to end"), secs(60), || async {
            ensure!(drain.ended() == Some(true), "{}", drain.text());
            Ok(())
        })
        .await?;
        reboot::reboot(&env.client, "n1", secs(1)).await?;
        workload::ready_pods(&env.client, APPS, "tolerant", 1, secs(60)).await?;
    }
    fleet::uncordon(&env.client, "n1").await?;
    reviewed.end([lock]).await
}

/// The pod of the last drain came back to its node and never gets Ready. As without drain-lock the node is drained again: what its
/// budget misses is one pod, and not two.
#[tokio::test(flavor = "multi_thread")]
async fn node_is_drained_again_while_its_pod_is_back_and_not_ready() -> Result<()> {
    let (reviewed, lock) = Reviewed::with(&["n1", "n2", "n3"], json!({})).await?;
    let env = &reviewed.env;
    let on = |app: &str, node: &str| pinned(app, &[node]).label("budget", "db");
    for (app, node) in [("b", "n2"), ("c", "n3")] {
        bulk::create(&env.client, [on(app, node).deployment(APPS, app, 1)?]).await?;
    }
    let bad = on("bad", "n1").start(Start::CrashLoop);
    bulk::create(&env.client, [bad.deployment(APPS, "bad", 1)?]).await?;
    let budget = Budget::max_unavailable(APPS, "db", 1).selector(json!({ "matchLabels": { "budget": "db" } }));
    bulk::create(&env.client, [budget.build()?]).await?;
    env.counts_healthy("db", 2).await?;
    let kubectl = Kubectl::of(&env.plane)?;
    for turn in ["first", "second", "third"] {
        wait::until("its pod to be on n1", secs(60), || async {
            let pods = env.pods_on("n1").await?;
            ensure!(pods.len() == 1, "{} pods", pods.len());
            Ok(())
        })
        .await?;
        let drain = kubectl.start(["drain", "n1", "--ignore-daemonsets"])?;
        wait::until(format!("the {turn} drain to end"), secs(60), || async {
            ensure!(drain.ended() == Some(true), "{}", drain.text());
            Ok(())
        })
        .await?;
        fleet::uncordon(&env.client, "n1").await?;
    }
    reviewed.end([lock]).await
}

/// Somebody planned the drain of the node and left the plan there: who drains it in earnest does not wait for that.
#[tokio::test(flavor = "multi_thread")]
async fn kubectl_drain_makes_a_drain_of_a_plan() -> Result<()> {
    let (reviewed, lock) = Reviewed::with(&["n1", "n2"], json!({})).await?;
    let env = &reviewed.env;
    add_held(env, "a", "n1").await?;
    cover(env, "a", &["a"], 1).await?;
    env.drain("n1", json!({ "dryRun": true })).await?;
    env.phase("n1", Phase::Scheduled, secs(60)).await?;
    let drain = Kubectl::of(&env.plane)?.start(["drain", "n1", "--ignore-daemonsets"])?;
    wait::until("the drain to end", secs(60), || async {
        ensure!(drain.ended() == Some(true), "{}", drain.text());
        Ok(())
    })
    .await?;
    let spec = env.drains().get("n1").await?.spec;
    ensure!(!spec.dry_run && spec.evict == Evictor::Requester, "{spec:?}");
    let claim = env.claim("n1").await?.context("no claim")?;
    ensure!(claim.holds.len() == 1, "it went without a claim: {claim:?}");
    reviewed.end([lock]).await
}

/// Without drain-lock a drainer that stops keeps nothing. With it the next drain waits for as long as a drainer may pause, and not
/// until the first one counts as over.
#[tokio::test(flavor = "multi_thread")]
async fn drainer_that_stopped_keeps_its_grant_for_a_moment() -> Result<()> {
    let (reviewed, lock) = Reviewed::with(&["n1", "n2"], json!({})).await?;
    let env = &reviewed.env;
    for (app, node) in [("a", "n1"), ("b", "n2"), ("unguarded", "n1")] {
        add_held(env, app, node).await?;
    }
    cover(env, "both", &["a", "b"], 1).await?;
    let kubectl = Kubectl::of(&env.plane)?;
    let some = ["drain", "n1", "--ignore-daemonsets", "--pod-selector=app=unguarded"];
    kubectl.run(some, secs(60)).await?;
    env.status_that("n1", "to have its grant", secs(60), NodeDrainStatus::is_granted)
        .await?;
    let drain = kubectl.start(["drain", "n2", "--ignore-daemonsets"])?;
    let waits = env.status_that("n2", "to wait for the first drain", secs(60), |status| {
        let mut blocked = status.blocked_by.iter();
        blocked.any(|blocked| blocked.node.as_deref() == Some("n1"))
    });
    waits.await?;
    all_end(env, vec![("n2", drain)], GRANT_IDLE.unsigned_abs() + secs(60)).await?;
    ensure!(env.pods_on("n1").await?.len() == 1, "the first drain's pod went");
    reviewed.end([lock]).await
}
