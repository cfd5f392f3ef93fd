//! Dry runs write nothing, and show what drains would meet.

use anyhow::{Result, ensure};
use k8s_openapi::api::admissionregistration::v1::ValidatingWebhookConfiguration;
use k8s_openapi::api::core::v1::Secret;
use k8s_openapi::api::events::v1::Event;
use kube::Api;
use kube::api::ListParams;
use nodeward_api::reason::LockReason;
use nodeward_testkit::helm::Release;
use nodeward_testkit::kubectl::Kubectl;
use nodeward_testkit::wait::{self, secs};
use nodeward_testkit::workload::{self, Budget, PodTemplate};
use nodeward_testkit::{bulk, fleet};
use serde_json::json;

use crate::environment::{ACCOUNT, APPS, Environment, RELEASE, SYSTEM, spec};
use crate::reviewed::{Eviction, NAME, Reviewed};

const NODES: [&str; 3] = ["n1", "n2", "n3"];

#[tokio::test(flavor = "multi_thread")]
async fn process_dry_run_writes_only_its_lease() -> Result<()> {
    let env = Environment::new(&NODES).await?;
    env.add_pinned("a", &NODES).await?;
    let mark = env.plane.audit().mark()?;
    let lock = env.run(spec(&json!({})).arg("--dry-run")).await?;
    env.drain("n1", json!({})).await?;
    wait::until("it to say what it would do", secs(60), || async {
        ensure!(
            lock.log().contains("dry run: not done"),
            "{}",
            lock.process().log_tail(10)
        );
        Ok(())
    })
    .await?;
    let status = lock.stop(secs(30)).await?;
    ensure!(status.success(), "{status}");
    let all = env.plane.audit().since(mark)?;
    let writes = all
        .of_service_account(SYSTEM, ACCOUNT)
        .writes()
        .without_leases()
        .only(|request| !request.resource.starts_with("selfsubjectreviews"));
    ensure!(writes.count() == 0, "{:?}", writes.0);
    env.end([]).await
}

#[tokio::test(flavor = "multi_thread")]
async fn dry_run_drain_reports_and_does_nothing() -> Result<()> {
    let env = Environment::new(&NODES).await?;
    env.add_pinned("a", &NODES).await?;
    let lock = env.start(json!({})).await?;
    env.drain("n1", json!({ "dryRun": true })).await?;
    let status = env
        .status_that("n1", "to be planned", secs(60), |status| status.plan.is_some())
        .await?;
    let held = status.plan.map(|plan| plan.held).unwrap_or_default();
    ensure!(held.len() == 1 && held[0].pdbs == ["apps/a"], "{held:?}");
    ensure!(
        matches!(held[0].reason, LockReason::Pinned | LockReason::NoRoom),
        "{held:?}"
    );
    ensure!(env.claim("n1").await?.is_none(), "it has a claim");
    let node = env.nodes().get("n1").await?;
    ensure!(
        node.spec.and_then(|spec| spec.unschedulable).is_none(),
        "it was cordoned"
    );
    env.patch_drain("n1", json!({ "spec": { "dryRun": false } })).await?;
    let refused = env.patch_drain("n1", json!({ "spec": { "dryRun": true } })).await;
    let refused = refused.err().map(|error| format!("{error:#}")).unwrap_or_default();
    ensure!(refused.contains("dryRun cannot be set on a drain"), "{refused}");
    env.delete_drain("n1").await?;
    env.released("n1", secs(60)).await?;
    env.end([lock]).await
}

/// What it would have written decides all the same: one of two drains holds what the other waits for.
#[tokio::test(flavor = "multi_thread")]
async fn dry_run_admits_waiting_drains_with_a_warning() -> Result<()> {
    let reviewed = Reviewed::new(&NODES, json!({ "dryRun": true })).await?;
    let env = &reviewed.env;
    for app in ["a", "b"] {
        env.add_pinned(app, &NODES).await?;
    }
    let mark = env.plane.audit().mark()?;
    let lock = env.run(reviewed.spec(&json!({}))?.arg("--dry-run")).await?;
    wait::until("the API server to ask the leader", secs(60), || async {
        let forged = Eviction::of("nobody").ticket("1/1").by(&env.client).await?;
        ensure!(forged.status == 404, "{forged:?}");
        ensure!(
            format!("{forged:?}").contains("would have refused this eviction"),
            "{forged:?}"
        );
        Ok(())
    })
    .await?;

    let kubectl = Kubectl::of(&env.plane)?;
    let first = kubectl.start(["drain", "n1", "--ignore-daemonsets"])?;
    let second = kubectl.start(["drain", "n2", "--ignore-daemonsets"])?;
    let is_told = |text: &str, node: &str, holder: &str| {
        let waits = format!("(WaitsForDisruptions): node {node} waits for its turn to drain");
        let mut warnings = text.lines().filter(|line| line.contains("only audits"));
        warnings.any(|line| line.contains(&waits) && line.contains(&format!("node {holder} holds")))
    };
    wait::until("one of them to be told of the other", secs(60), || async {
        let (first, second) = (first.text(), second.text());
        ensure!(
            is_told(&first, "n1", "n2") || is_told(&second, "n2", "n1"),
            "{first}\n{second}"
        );
        Ok(())
    })
    .await?;
    let metrics = lock.metrics().await?;
    let reviews = |decision| metrics.sum("nodeward_drain_lock_eviction_reviews_total", &[("decision", decision)]);
    ensure!(reviews("would-refuse") > 0.5, "nothing was counted");
    ensure!(
        reviews("refused") < 0.5 && reviews("forbidden") < 0.5,
        "something was refused"
    );

    ensure!(env.ledger().await?.is_none(), "there is a ledger");
    let drains = env.drains().list(&ListParams::default()).await?.items;
    ensure!(drains.is_empty(), "{drains:?}");
    let status = lock.stop(secs(30)).await?;
    ensure!(status.success(), "{status}");
    let all = env.plane.audit().since(mark)?;
    let writes = all.of_service_account(SYSTEM, ACCOUNT).writes().without_leases();
    let writes = writes.only(|request| {
        let own = [
            "selfsubjectreviews",
            "subjectaccessreviews",
            "secrets",
            "validatingwebhookconfigurations",
        ];
        !own.iter().any(|resource| request.resource.starts_with(resource))
    });
    ensure!(writes.count() == 0, "{:?}", writes.0);
    let secrets: Api<Secret> = Api::namespaced(env.client.clone(), SYSTEM);
    secrets.get("drain-lock-webhook-cert-dry-run").await?;
    ensure!(
        secrets.get_opt("drain-lock-webhook-cert").await?.is_none(),
        "the real one's"
    );
    let hooks: Api<ValidatingWebhookConfiguration> = Api::all(env.client.clone());
    hooks.get(&format!("{NAME}-dry-run")).await?;
    ensure!(hooks.get_opt(NAME).await?.is_none(), "the real one's");
    Release::new(RELEASE, SYSTEM).uninstall(&env.plane).await?;
    wait::until("the Secret to go with the registration", secs(60), || async {
        let left = secrets.get_opt("drain-lock-webhook-cert-dry-run").await?;
        ensure!(left.is_none(), "it is left");
        Ok(())
    })
    .await?;
    reviewed.end([]).await
}

/// The same by configuration, under the names of the real operator, and until the configuration says otherwise.
#[tokio::test(flavor = "multi_thread")]
async fn audit_mode_admits_until_it_ends() -> Result<()> {
    let reviewed = Reviewed::new(&NODES, json!({})).await?;
    let env = &reviewed.env;
    env.add_pinned("a", &NODES).await?;
    let lock = env.run(reviewed.spec(&json!({ "mode": "audit" }))?).await?;
    let forged = || async { Eviction::of("nobody").ticket("1/1").by(&env.client).await };
    wait::until("an audit", secs(60), || async {
        let answer = forged().await?;
        ensure!(
            format!("{answer:?}").contains("would have refused this eviction"),
            "{answer:?}"
        );
        Ok(())
    })
    .await?;
    env.drain("n1", json!({})).await?;
    wait::until("it to say what it would do", secs(60), || async {
        ensure!(
            lock.log().contains("dry run: not done"),
            "{}",
            lock.process().log_tail(10)
        );
        Ok(())
    })
    .await?;
    ensure!(env.claim("n1").await?.is_none(), "it has a claim");
    // What a person has to see to is logged, and no Event before the audit is over.
    let here = PodTemplate::new().node_selector("kubernetes.io/hostname", "n2");
    bulk::create(&env.client, [here.stateful_set(APPS, "never", 1)?]).await?;
    bulk::create(
        &env.client,
        [Budget::max_unavailable(APPS, "never", 0).of("never").build()?],
    )
    .await?;
    workload::ready_pods(&env.client, APPS, "never", 1, secs(60)).await?;
    fleet::cordon(&env.client, "n2").await?;
    let reason = LockReason::BudgetNeverAllows;
    let logged = format!("reason=\"{reason}\" object=\"Node n2\"");
    wait::until("it to log what is wrong", secs(60), || async {
        let evicted = reviewed.evict("never-0").await?;
        ensure!(lock.log().contains(&logged), "{evicted:?}");
        Ok(())
    })
    .await?;
    let events: Api<Event> = Api::all(env.client.clone());
    let of_reason = ListParams::default().fields(&format!("reason={reason}"));
    wait::throughout("no Event", secs(3), || async {
        let sent = events.list(&of_reason).await?.items;
        ensure!(sent.is_empty(), "{sent:?}");
        Ok(())
    })
    .await?;
    lock.write_config(&serde_yaml::to_string(
        &json!({ "medik8sLease": { "enabled": false } }),
    )?)?;
    wait::until("the end of the audit", secs(60), || async {
        let answer = forged().await?;
        ensure!(answer.status == 403, "{answer:?}");
        Ok(())
    })
    .await?;
    env.phase("n1", nodeward_api::node_drain::Phase::Drained, secs(60))
        .await?;
    reviewed.evict("never-0").await?;
    env.event("n2", reason, secs(60)).await?;
    reviewed.end([lock]).await
}
