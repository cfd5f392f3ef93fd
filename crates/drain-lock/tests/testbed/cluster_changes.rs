//! What others do to budgets, applications and pods in the middle of a drain.

use anyhow::{Context, Result, ensure};
use jiff::SignedDuration;
use k8s_openapi::api::apps::v1::StatefulSet;
use k8s_openapi::api::policy::v1::PodDisruptionBudget;
use kube::ResourceExt;
use kube::api::{Api, DeleteParams, Patch, PatchParams};
use nodeward_api::drain_ledger::{self, DrainLedger};
use nodeward_api::node_drain::Phase;
use nodeward_api::reason::LockReason;
use nodeward_testkit::bulk;
use nodeward_testkit::proxy::{Fault, Outcome, Proxy, Rule};
use nodeward_testkit::wait::{self, secs};
use nodeward_testkit::workload::{self, Budget, End, Start};
use serde_json::json;

use crate::environment::{APPS, Environment, fixed_budget, pinned, spec};

const NODES: [&str; 3] = ["n1", "n2", "n3"];

fn budgets(env: &Environment) -> Api<PodDisruptionBudget> {
    Api::namespaced(env.client.clone(), APPS)
}

async fn is_blocked(env: &Environment, node: &str, reasons: &[LockReason]) -> Result<()> {
    env.status_that(node, &format!("to be blocked: {reasons:?}"), secs(60), |status| {
        status
            .blocked_by
            .iter()
            .any(|blocked| reasons.contains(&blocked.reason))
    })
    .await?;
    ensure!(!env.pods_on(node).await?.is_empty(), "a pod of {node} was evicted");
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn changed_budgets_count_as_they_are_now() -> Result<()> {
    let env = Environment::new(&NODES).await?;
    env.add_fixed("a", &NODES).await?;
    let lock = env.start(json!({})).await?;
    env.drain("n1", json!({})).await?;
    env.phase("n1", Phase::Drained, secs(60)).await?;
    env.drain("n2", json!({})).await?;
    is_blocked(
        &env,
        "n2",
        &[LockReason::WaitsForDisruptions, LockReason::BudgetUnhealthy],
    )
    .await?;
    budgets(&env).delete("a", &DeleteParams::default()).await?;
    env.phase("n2", Phase::Drained, secs(60)).await?;
    // The same name, another budget: two pods are down, one more than it allows.
    bulk::create(&env.client, [fixed_budget("a")?]).await?;
    workload::counted_budget(&env.client, APPS, "a", 3, secs(60)).await?;
    env.drain("n3", json!({})).await?;
    is_blocked(&env, "n3", &[LockReason::BudgetUnhealthy]).await?;
    env.uncordon("n1").await?;
    env.released("n1", secs(60)).await?;
    is_blocked(&env, "n3", &[LockReason::BudgetUnhealthy]).await?;
    // Its selector is edited, and no pod of the node is under it any more.
    let elsewhere = json!({ "spec": { "selector": { "matchLabels": { "app": "none" } } } });
    budgets(&env)
        .patch("a", &PatchParams::default(), &Patch::Merge(&elsewhere))
        .await?;
    env.phase("n3", Phase::Drained, secs(60)).await?;
    env.end([lock]).await
}

#[tokio::test(flavor = "multi_thread")]
async fn foreign_deletions_and_scale_down_adjust_the_claim() -> Result<()> {
    let env = Environment::new(&NODES).await?;
    let slow = pinned("a", &NODES).start(Start::SlowReady(secs(30)));
    env.add_app("a", NODES.len(), slow).await?;
    let lock = env.start(json!({})).await?;
    let deleted = env.pods_on("n3").await?.remove(0);
    workload::delete(&env.client, APPS, &deleted.name_any()).await?;
    env.counts_healthy("a", 2).await?;
    env.drain("n1", json!({})).await?;
    is_blocked(&env, "n1", &[LockReason::BudgetUnhealthy]).await?;
    let watch = env.watch_budgets();
    env.phase("n1", Phase::Drained, secs(120)).await?;
    watch.none_was_violated()?;
    // Nobody waits any more for pods that are not wanted any more.
    let applications: Api<StatefulSet> = Api::namespaced(env.client.clone(), APPS);
    let none = Patch::Merge(json!({ "spec": { "replicas": 0 } }));
    applications.patch("a", &PatchParams::default(), &none).await?;
    env.delete_drain("n1").await?;
    env.released("n1", secs(60)).await?;
    env.end([lock]).await
}

#[tokio::test(flavor = "multi_thread")]
async fn growing_need_is_regranted_under_its_ticket() -> Result<()> {
    let env = Environment::new(&NODES).await?;
    env.add_pinned("a", &NODES).await?;
    let hangs = pinned("hangs", &NODES).grace(1).end(End::Stuck);
    env.add_app("hangs", NODES.len(), hangs).await?;
    let others = pinned("late", &["n2", "n3"]).stateful_set(APPS, "late", 2)?;
    bulk::create(&env.client, [others]).await?;
    workload::ready_pods(&env.client, APPS, "late", 2, secs(60)).await?;
    bulk::create(
        &env.client,
        [Budget::min_available(APPS, "late", 2).of("late").build()?],
    )
    .await?;
    let lock = env.start(json!({})).await?;
    env.drain("n1", json!({})).await?;
    let first = env
        .status_that("n1", "to wait for the pod that hangs", secs(60), |status| {
            status.phase == Some(Phase::Draining) && status.pods.is_some_and(|pods| pods.gone == 1)
        })
        .await?;
    let before = env.claim("n1").await?.context("no claim")?;
    ensure!(before.holds.len() == 2, "{before:?}");
    // Somebody binds a pod by hand. It does not tolerate the cordon, or it would stay.
    let late = pinned("late", &["n1"]).on("n1").label("app", "late");
    let late = late.owned_by("example.com/v1", "Load", "load", "5a8e1c5e-0f0e-4f5c-9a53-d53a41de5a01");
    bulk::create(&env.client, [late.pod(APPS, "late-x")?]).await?;
    workload::ready_pods(&env.client, APPS, "late", 3, secs(60)).await?;
    let after = wait::until("a grant of the whole need", secs(60), || async {
        let claim = env.claim("n1").await?.context("no claim")?;
        ensure!(claim.grant > before.grant, "{claim:?}");
        ensure!(
            claim.holds.iter().any(|disruptions| disruptions.pdb.name == "late"),
            "{claim:?}"
        );
        Ok(claim)
    })
    .await?;
    ensure!(Some(after.ticket) == first.ticket, "another ticket: {after:?}");
    wait::until("the late pod to be gone", secs(60), || async {
        let here = env.pods_on("n1").await?;
        ensure!(here.iter().all(|pod| pod.name_any() != "late-x"), "it is there");
        Ok(())
    })
    .await?;
    ensure!(
        env.claim("n1").await?.is_some_and(|claim| claim.holds.len() >= 2),
        "disruptions of pods that are down were given back"
    );
    env.end([lock]).await
}

#[tokio::test(flavor = "multi_thread")]
async fn late_eviction_spares_the_pods_successor() -> Result<()> {
    let env = Environment::new(&NODES).await?;
    env.add_app("a", NODES.len(), pinned("a", &NODES)).await?;
    let proxy = Proxy::start(&env.plane).await?;
    let delay = Rule::new(Fault::Delay(secs(5))).resource("pods/eviction").times(1);
    proxy.inject(delay);
    let lock = env.run(spec(&json!({})).through(&proxy.url())).await?;
    let first = env.pods_on("n1").await?.remove(0);
    let name = first.name_any();
    let mark = env.plane.audit().mark()?;
    env.drain("n1", json!({})).await?;
    let evictions = |is_counted: fn(&Outcome) -> bool| {
        proxy.count(|record| record.request.resource == "pods/eviction" && is_counted(&record.outcome))
    };
    // Only an eviction that is on its way can come late.
    wait::until("the eviction to be sent", secs(60), || async {
        ensure!(evictions(|_| true) > 0, "none");
        Ok(())
    })
    .await?;
    workload::delete(&env.client, APPS, &name).await?;
    let successor = wait::until("its successor", secs(60), || async {
        let pod = env.pods().get(&name).await?;
        ensure!(pod.uid() != first.uid(), "the old one");
        Ok(pod)
    })
    .await?;
    // The simulated kubelet deletes pods by their name alone, so it may take the successor: no eviction may.
    let accepted = |outcome: &Outcome| matches!(outcome, Outcome::Answered(200..300) | Outcome::Lost(200..300));
    let before = evictions(accepted);
    env.phase("n1", Phase::Drained, secs(60)).await?;
    wait::until("the eviction's answer", secs(60), || async {
        ensure!(evictions(|outcome| *outcome != Outcome::Pending) > 0, "none");
        Ok(())
    })
    .await?;
    wait::throughout("the successor stays", secs(3), || async {
        let named = env.pods().get_opt(&name).await?;
        let stays = named.and_then(|pod| pod.uid()) == successor.uid();
        let writes =
            || Ok::<_, anyhow::Error>(env.plane.audit().since(mark)?.writes().only(|write| write.name == name));
        ensure!(
            stays || evictions(accepted) == before,
            "it was evicted: {:?}",
            writes()?
        );
        Ok(())
    })
    .await?;
    env.uncordon("n1").await?;
    env.released("n1", secs(60)).await?;
    env.end([lock]).await
}

#[tokio::test(flavor = "multi_thread")]
async fn ledger_of_wrong_clocks_delays_nobody() -> Result<()> {
    let env = Environment::new(&NODES).await?;
    env.add_pinned("a", &NODES).await?;
    let lock = env.start(json!({})).await?;
    env.drain("n1", json!({})).await?;
    env.phase("n1", Phase::Drained, secs(60)).await?;
    env.drain("n2", json!({})).await?;
    env.drain("n3", json!({})).await?;
    for node in ["n2", "n3"] {
        is_blocked(
            &env,
            node,
            &[
                LockReason::WaitsForDisruptions,
                LockReason::Reserved,
                LockReason::NoRoom,
                LockReason::BudgetUnhealthy,
            ],
        )
        .await?;
    }
    let status = lock.stop(secs(30)).await?;
    ensure!(status.success(), "{status}");
    let ledgers: Api<DrainLedger> = Api::all(env.client.clone());
    let mut ledger = ledgers.get(drain_ledger::NAME).await?;
    for (claim, minutes) in ledger.spec.claims.iter_mut().zip([5, 5, -5]) {
        claim.since += SignedDuration::from_mins(minutes);
        claim.queued_at += SignedDuration::from_mins(minutes);
    }
    ledgers
        .replace(drain_ledger::NAME, &kube::api::PostParams::default(), &ledger)
        .await?;
    let watch = env.watch_budgets();
    let lock = env.start(json!({})).await?;
    let all = NODES.map(async |node| {
        env.phase(node, Phase::Drained, secs(120)).await?;
        env.uncordon(node).await?;
        env.released(node, secs(60)).await
    });
    futures::future::try_join_all(all).await?;
    watch.none_was_violated()?;
    env.end([lock]).await
}
