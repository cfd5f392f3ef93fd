//! The six strategies, and what they must not touch beside.

use std::pin::pin;

use anyhow::{Context, Result, ensure};
use futures::TryStreamExt;
use jiff::{SignedDuration, Timestamp};
use k8s_openapi::api::batch::v1::Job;
use k8s_openapi::api::core::v1::{Node, Pod};
use k8s_openapi::api::policy::v1::PodDisruptionBudget;
use kube::ResourceExt;
use kube::api::{Api, ListParams, Patch, PatchParams, WatchEvent, WatchParams};
use nodeward_api::annotation::LAST_OVERRIDE;
use nodeward_api::last_override::LastOverride;
use nodeward_testkit::audit::AuditedRequest;
use nodeward_testkit::fleet;
use nodeward_testkit::proxy::{Fault, Proxy, Rule};
use nodeward_testkit::wait::{self, secs};
use nodeward_testkit::webhook::DenyingWebhook;
use nodeward_testkit::workload::{self, Budget, End, PodTemplate};
use nodeward_testkit::{bulk, names};
use serde_json::json;

use crate::environment::{Environment, Keeper, an_hour_ago, is_untouched, managed};

/// A finalizer that nobody removes.
const STUCK: &str = "example.com/stuck";

/// A finalizer that the configuration protects.
const PROTECTED: &str = "example.com/protected";

fn acts(keeper_metrics: &nodeward_testkit::operator::Metrics, strategy: &str, outcome: &str) -> f64 {
    keeper_metrics.sum(
        "nodeward_drain_keeper_actions_total",
        &[("strategy", strategy), ("outcome", outcome)],
    )
}

async fn acted(keeper: &Keeper, expected: &[(&str, &str)]) -> Result<()> {
    wait::until("the acts to be counted", secs(60), || async {
        let metrics = keeper.metrics().await?;
        for (strategy, outcome) in expected {
            let count = acts(&metrics, strategy, outcome);
            ensure!(count > 0.0, "{strategy} {outcome}: {count}");
        }
        Ok(())
    })
    .await
}

fn created(pod: &Pod) -> Result<Timestamp> {
    Ok(pod.creation_timestamp().context("no creation timestamp")?.0)
}

#[tokio::test(flavor = "multi_thread")]
async fn pods_without_budget_are_forced_when_due() -> Result<()> {
    let env = Environment::new().await?;
    let node = env.add_cordoned_node("a").await?;
    let elsewhere = env.add_node("b").await?;
    let ignored = names::unique("ignored");
    let (other, stranger) = (names::unique("other"), "in-the-way");
    for namespace in [&ignored, &other] {
        env.plane.namespace(namespace).await?;
    }
    // Budgets of another namespace, one of them of everything there, and one without a selector.
    bulk::create(
        &env.client,
        [
            Budget::min_available(&other, "same-labels", 1).of("evicted").build()?,
            Budget::min_available(&other, "everything", 1)
                .selector(json!({}))
                .build()?,
            Budget::min_available(&env.name, "nothing", 1).build()?,
        ],
    )
    .await?;
    let expressions = json!({"matchExpressions": [{"key": "tier", "operator": "In", "values": ["gold", "silver"]}]});
    bulk::create(
        &env.client,
        [Budget::min_available(&env.name, "tiers", 1)
            .selector(expressions)
            .build()?],
    )
    .await?;

    let mark = env.plane.audit().mark()?;
    let [evicted, finalizer, stuck] = env
        .add_pods([
            ("evicted", managed(&node).grace(1)),
            (
                "finalizer",
                managed(&node).grace(1).finalizer(STUCK).finalizer(PROTECTED),
            ),
            ("stuck", managed(&node).grace(1).end(End::Stuck)),
        ])
        .await?;
    let untouched = env
        .add_pods([
            ("on-another-node", managed(&elsewhere)),
            ("mirror", PodTemplate::new().on(&node).mirror()),
            (
                "of-a-daemon-set",
                PodTemplate::new()
                    .on(&node)
                    .owned_by("apps/v1", "DaemonSet", "agent", &agent(&env).await?),
            ),
            ("skips", managed(&node).label("nodeward.dev/drain", "skip")),
            (
                "waits",
                managed(&node).annotation("nodeward.dev/drain", "wait-completed"),
            ),
            ("unknown-opt-out", managed(&node).label("nodeward.dev/drain", "perhaps")),
            ("unmanaged", PodTemplate::new().on(&node)),
            ("of-a-tier", managed(&node).label("tier", "gold")),
            ("protected", managed(&node).grace(1).finalizer(PROTECTED)),
        ])
        .await?;
    bulk::create(&env.client, [managed(&node).pod(&ignored, stranger)?]).await?;
    for name in ["finalizer", "stuck", "protected"] {
        workload::delete(&env.client, &env.name, name).await?;
    }
    let keeper = env
        .start(json!({
            "nodeDrain": {
                "timeOut": "3s",
                "expectedNodeDrainTime": "1s",
                "ignoredNamespacePatterns": ["^ignored-"],
            },
            "protectedFinalizers": [PROTECTED],
        }))
        .await?;

    let started = Timestamp::now();
    for pod in [&evicted, &stuck] {
        workload::gone(&env.client, pod, secs(60)).await?;
    }
    wait::until("the finalizer to be removed, and only it", secs(60), || async {
        let pod = env.pods().get("finalizer").await?;
        ensure!(pod.finalizers() == [PROTECTED], "{:?}", pod.finalizers());
        Ok(())
    })
    .await?;
    acted(
        &keeper,
        &[
            ("Delete", "evicted"),
            ("Finalizer", "finalizers-removed"),
            ("StuckTerminating", "deleted-without-grace"),
        ],
    )
    .await?;

    let requests = env.requests_since(mark)?;
    let eviction = requests.clone().only(|request| request.resource == "pods/eviction");
    ensure!(
        eviction.count() == 1 && eviction.0[0].name == "evicted",
        "{:?}",
        eviction.0
    );
    // What ends normally after its eviction is not deleted as well.
    let deletes = requests.clone().only(|request| request.verb == "delete");
    let is_stuck = |request: &AuditedRequest| request.resource == "pods" && request.name == "stuck";
    ensure!(
        !deletes.0.is_empty() && deletes.0.iter().all(is_stuck),
        "{:?}",
        deletes.0
    );
    for (name, pod) in [("evicted", &evicted), ("finalizer", &finalizer), ("stuck", &stuck)] {
        let first = requests
            .0
            .iter()
            .find(|request| request.is_write() && request.name == name)
            .context("no act")?;
        let due = created(pod)? + SignedDuration::from_secs(3);
        ensure!(
            due <= first.received,
            "{name} was due at {due}, and acted upon at {}",
            first.received
        );
        let late = first.received.duration_since(due.max(started));
        ensure!(late < SignedDuration::from_secs(30), "{name} came {late} late");
    }
    for pod in untouched.iter().filter(|pod| pod.name_any() != "protected") {
        is_untouched(&env.pods(), pod).await?;
    }
    let expected = ["evicted", "finalizer", "stuck"].map(str::to_owned);
    ensure!(
        env.pods_written()? == expected.into(),
        "it wrote to {:?}",
        env.pods_written()?
    );
    env.end([keeper]).await
}

/// The UID of a DaemonSet that makes no pods by itself.
async fn agent(env: &Environment<'_>) -> Result<String> {
    let nowhere = PodTemplate::new().node_selector("test.nodeward.dev/nowhere", "true");
    let made = bulk::create(&env.client, [nowhere.daemon_set(&env.name, "agent")?]).await?;
    made.first().and_then(ResourceExt::uid).context("no UID")
}

#[tokio::test(flavor = "multi_thread")]
async fn pods_with_budget_are_forced_unless_protected() -> Result<()> {
    let env = Environment::new().await?;
    let node = env.add_cordoned_node("a").await?;
    let pods = env
        .add_pods([
            ("refused", managed(&node)),
            ("roomy", managed(&node)),
            ("finalizer", managed(&node).grace(1).finalizer(STUCK)),
            ("stuck", managed(&node).grace(1).end(End::Stuck)),
            ("never", managed(&node)),
            ("ceph-labelled", managed(&node)),
            ("ceph-owned", managed(&node)),
        ])
        .await?;
    let [refused, roomy, finalizer, stuck, never, ceph_labelled, ceph_owned] = &pods;
    for app in ["refused", "finalizer", "stuck", "ceph-owned"] {
        let budget = env.tight(app, 1);
        if app != "ceph-owned" {
            env.add_budget(budget, 1).await?;
        }
    }
    env.add_budget(Budget::min_available(&env.name, "roomy", 0).of("roomy"), 1)
        .await?;
    env.add_budget(env.tight("never", 1).label("nodeward.dev/force-drain", "never"), 1)
        .await?;
    env.add_budget(env.tight("ceph-labelled", 1).label("rook_cluster", "rook-ceph"), 1)
        .await?;
    let mut owned: PodDisruptionBudget = env.tight("ceph-owned", 1).build()?;
    owned.metadata.owner_references = Some(vec![serde_json::from_value(json!({
        "apiVersion": "ceph.rook.io/v1", "kind": "CephCluster", "name": "ceph", "uid": "5a8e1c5e-0f0e-4f5c-9a53-d53a41de5a02",
    }))?]);
    bulk::create(&env.client, [owned]).await?;
    workload::counted_budget(&env.client, &env.name, "ceph-owned", 1, secs(60)).await?;
    for name in ["finalizer", "stuck"] {
        workload::delete(&env.client, &env.name, name).await?;
    }

    let keeper = env
        .start(json!({ "pdbForceDrainTimeout": "3s", "unmanagedPods": "keep" }))
        .await?;
    for pod in [refused, roomy, finalizer, stuck] {
        workload::gone(&env.client, pod, secs(60)).await?;
    }
    acted(
        &keeper,
        &[
            ("PdbDelete", "budget-overridden"),
            ("PdbDelete", "evicted"),
            ("PdbFinalizer", "finalizers-removed"),
            ("PdbStuckTerminating", "deleted-without-grace"),
        ],
    )
    .await?;

    let budgets: Api<PodDisruptionBudget> = Api::namespaced(env.client.clone(), &env.name);
    let overridden = budgets.get("refused").await?;
    let record = LastOverride::parse(
        overridden
            .annotations()
            .get(LAST_OVERRIDE)
            .context("no record of the override")?,
    )?;
    ensure!(
        record.pod == "refused" && Some(record.uid) == refused.uid(),
        "{:?}",
        overridden.annotations()
    );
    for kept in ["roomy", "never", "ceph-labelled", "ceph-owned"] {
        let budget = budgets.get(kept).await?;
        ensure!(
            !budget.annotations().contains_key(LAST_OVERRIDE),
            "{kept} was overridden"
        );
    }
    for pod in [never, ceph_labelled, ceph_owned] {
        is_untouched(&env.pods(), pod).await?;
    }
    let expected = ["refused", "roomy", "finalizer", "stuck"].map(str::to_owned);
    ensure!(
        env.pods_written()? == expected.into(),
        "it wrote to {:?}",
        env.pods_written()?
    );

    // First the eviction, which the server refuses, then the record, then the delete; the budget's spec is never written.
    let requests = env.requests()?;
    let steps: Vec<(&str, &str, u16)> = requests
        .0
        .iter()
        .filter(|request| request.name == "refused" && request.is_write() && request.namespace == env.name)
        .map(step)
        .collect();
    let expected = [
        ("create", "pods/eviction", 429),
        ("patch", "poddisruptionbudgets/status", 200),
        ("delete", "pods", 200),
    ];
    ensure!(steps == expected, "{steps:?}");
    let due = created(refused)? + SignedDuration::from_secs(4);
    let first = requests
        .0
        .iter()
        .find(|request| request.resource == "pods/eviction" && request.name == "refused");
    ensure!(
        first.is_some_and(|first| due <= first.received),
        "before it was due, at {due}: {first:?}"
    );
    env.end([keeper]).await
}

/// What the administrator does not let it override it evicts once the budget allows that.
#[tokio::test(flavor = "multi_thread")]
async fn configuration_says_which_budgets_are_overridden() -> Result<()> {
    let env = Environment::new().await?;
    let node = env.add_cordoned_node("a").await?;
    let [allowed, plain] = env
        .add_pods([("allowed", managed(&node)), ("plain", managed(&node))])
        .await?;
    env.add_budget(env.tight("allowed", 1).label("nodeward.dev/force-drain", "allowed"), 1)
        .await?;
    env.add_budget(env.tight("plain", 1), 1).await?;
    let keeper = env
        .start(json!({ "pdbForceDrainTimeout": "1s", "overrideBudgets": "labelled" }))
        .await?;
    workload::gone(&env.client, &allowed, secs(60)).await?;
    acted(&keeper, &[("PdbDelete", "budget-overridden")]).await?;
    wait::until("the node's condition to name the choice", secs(60), || async {
        let nodes: Api<Node> = Api::all(env.client.clone());
        let node = nodes.get(&node).await?;
        let conditions = node.status.and_then(|status| status.conditions).unwrap_or_default();
        let told = conditions.iter().any(|condition| {
            let message = condition.message.as_deref().unwrap_or_default();
            message.contains("overrideBudgets is labelled") && message.contains("next: Delete when that ends")
        });
        ensure!(told, "{conditions:?}");
        Ok(())
    })
    .await?;
    is_untouched(&env.pods(), &plain).await?;
    let budgets: Api<PodDisruptionBudget> = Api::namespaced(env.client.clone(), &env.name);
    let open = json!({ "spec": { "minAvailable": 0 } });
    budgets
        .patch("plain", &PatchParams::default(), &Patch::Merge(open))
        .await?;
    workload::gone(&env.client, &plain, secs(60)).await?;
    acted(&keeper, &[("PdbDelete", "budget-overridden"), ("Delete", "evicted")]).await?;
    env.end([keeper]).await
}

fn step(request: &AuditedRequest) -> (&str, &str, u16) {
    (&request.verb, &request.resource, request.code)
}

/// As Strimzi's drain cleaner does it: its operator moves the pod, and the eviction API says 500 until then. So it would for
/// several budgets, and these would be overridden.
#[tokio::test(flavor = "multi_thread")]
async fn webhooks_denial_is_no_refusal_of_budgets() -> Result<()> {
    let env = Environment::new().await?;
    let node = env.add_cordoned_node("a").await?;
    let [kafka] = env.add_pods([("kafka", managed(&node))]).await?;
    for budget in ["kafka", "everything"] {
        let budget = Budget::min_available(&env.name, budget, 1).of("kafka").build()?;
        bulk::create_one(env.client.clone(), budget).await?;
    }
    let says = "The pod will be rolled by the Strimzi Cluster Operator";
    let webhook = DenyingWebhook::of_evictions(env.plane, &env.name, 500, says).await?;
    let keeper = env.start(json!({ "pdbForceDrainTimeout": "1s" })).await?;
    acted(&keeper, &[("PdbDelete", "denied")]).await?;
    ensure!(keeper.log().contains(says), "the denial is not quoted");
    let pods = env.pods();
    wait::throughout("the pod stays", secs(5), || is_untouched(&pods, &kafka)).await?;
    webhook.remove().await?;
    env.end_whatever_was_refused([keeper]).await
}

/// Its pod's controller has no scale, so that the disruption controller never counts it, and every eviction is refused.
#[tokio::test(flavor = "multi_thread")]
async fn budget_that_kubernetes_cannot_count_is_overridden() -> Result<()> {
    let env = Environment::new().await?;
    let node = env.add_cordoned_node("a").await?;
    let uid = "5a8e1c5e-0f0e-4f5c-9a53-d53a41de5a02";
    let of_a_thing = PodTemplate::new()
        .on(&node)
        .owned_by("example.com/v1", "Thing", "thing", uid);
    let [uncounted] = env.add_pods([("uncounted", of_a_thing)]).await?;
    let budget = Budget::max_unavailable(&env.name, "uncounted", 1).of("uncounted");
    bulk::create_one(env.client.clone(), budget.build()?).await?;
    let budgets: Api<PodDisruptionBudget> = Api::namespaced(env.client.clone(), &env.name);
    wait::until("the budget not to be counted", secs(60), || async {
        let status = budgets.get("uncounted").await?.status.unwrap_or_default();
        let conditions = status.conditions.unwrap_or_default();
        ensure!(
            conditions.iter().any(|one| one.reason == "SyncFailed"),
            "{conditions:?}"
        );
        Ok(())
    })
    .await?;
    let keeper = env.start(json!({ "pdbForceDrainTimeout": "3s" })).await?;
    workload::gone(&env.client, &uncounted, secs(60)).await?;
    acted(&keeper, &[("PdbDelete", "budget-overridden")]).await?;
    env.end([keeper]).await
}

/// A Job counts a pod that is deleted as failed, unless the pod carries the condition that an eviction sets.
#[tokio::test(flavor = "multi_thread")]
async fn job_does_not_fail_by_an_override() -> Result<()> {
    let env = Environment::new().await?;
    let node = env.add_node("a").await?;
    let template = PodTemplate::new().node_selector(crate::environment::ENVIRONMENT, &env.name);
    let mut job = template
        .spec("restartPolicy", json!("Never"))
        .job(&env.name, "backup")?;
    let spec = job.spec.as_mut().context("no spec")?;
    spec.pod_replacement_policy = Some("Failed".to_owned());
    spec.pod_failure_policy = Some(serde_json::from_value(json!({"rules": [
        {"action": "Ignore", "onPodConditions": [{"type": "DisruptionTarget", "status": "True"}]},
    ]}))?);
    bulk::create(&env.client, [job]).await?;
    let [pod] = &workload::ready_pods(&env.client, &env.name, "backup", 1, secs(60)).await?[..] else {
        anyhow::bail!("not one pod")
    };
    env.add_budget(Budget::min_available(&env.name, "backup", 1).of("backup"), 1)
        .await?;
    let keeper = env.start(json!({ "pdbForceDrainTimeout": "1s" })).await?;
    fleet::cordon_since(&env.client, &node, an_hour_ago()).await?;
    let marked = wait::until("the pod to be on its way out", secs(60), || async {
        let now = env.pods().get(&pod.name_any()).await?;
        ensure!(now.metadata.deletion_timestamp.is_some());
        Ok(now)
    })
    .await?;
    let conditions = marked.status.as_ref().and_then(|status| status.conditions.as_ref());
    let target = conditions.and_then(|conditions| {
        conditions
            .iter()
            .find(|condition| condition.type_ == "DisruptionTarget")
    });
    let target = target.context("no condition DisruptionTarget")?;
    ensure!(
        target.status == "True" && target.reason.as_deref() == Some("DeletionByDrainKeeper"),
        "{target:?}"
    );
    // As the kubelet does once the containers have ended.
    let ended = json!({"status": {"phase": "Failed"}});
    env.pods()
        .patch_status(&pod.name_any(), &PatchParams::default(), &Patch::Merge(&ended))
        .await?;
    workload::gone(&env.client, pod, secs(60)).await?;
    let jobs: Api<Job> = Api::namespaced(env.client.clone(), &env.name);
    wait::until("the Job to start another pod", secs(60), || async {
        let status = jobs.get("backup").await?.status.context("no status")?;
        ensure!(
            status.failed.unwrap_or_default() == 0 && status.active == Some(1),
            "{status:?}"
        );
        let pods = env.pods().list(&ListParams::default()).await?;
        ensure!(pods.items.iter().any(|other| other.uid() != pod.uid()), "no other pod");
        Ok(())
    })
    .await?;
    env.end([keeper]).await
}

#[tokio::test(flavor = "multi_thread")]
async fn overridden_budget_waits_for_the_replacement() -> Result<()> {
    let env = Environment::new().await?;
    let node = env.add_node("a").await?;
    let app = PodTemplate::new().node_selector(crate::environment::ENVIRONMENT, &env.name);
    bulk::create(&env.client, [app.deployment(&env.name, "web", 3)?]).await?;
    let pods = workload::ready_pods(&env.client, &env.name, "web", 3, secs(60)).await?;
    env.add_budget(Budget::min_available(&env.name, "web", 3).of("web"), 3)
        .await?;
    env.counts_healthy("web", 3).await?;
    // Where the replacements go.
    env.add_node("b").await?;
    let keeper = env.start(json!({ "pdbForceDrainTimeout": "1s" })).await?;
    fleet::cordon_since(&env.client, &node, an_hour_ago()).await?;
    let budgets: Api<PodDisruptionBudget> = Api::namespaced(env.client.clone(), &env.name);
    let drained = async {
        for pod in &pods {
            workload::gone(&env.client, pod, secs(120)).await?;
        }
        anyhow::Ok(())
    };
    let never_two_short = wait::throughout("at most one pod missing", secs(600), || async {
        let status = budgets.get("web").await?.status.context("no status")?;
        ensure!(status.desired_healthy - status.current_healthy <= 1, "{status:?}");
        Ok(())
    });
    tokio::select! {
        done = drained => done?,
        broken = never_two_short => broken?,
    }
    workload::ready_pods(&env.client, &env.name, "web", 3, secs(60)).await?;
    env.end([keeper]).await
}

/// Its node may be uncordoned before it has gone: it stays out of view then, and its budget can have recovered without it.
#[tokio::test(flavor = "multi_thread")]
async fn overridden_pod_is_waited_for_on_an_uncordoned_node() -> Result<()> {
    let env = Environment::new().await?;
    let (first, second, third) = (
        env.add_node("a").await?,
        env.add_node("b").await?,
        env.add_node("c").await?,
    );
    let app = |node: &str| managed(node).label("app", "db");
    let [slow, next] = env
        .add_pods([("db-0", app(&first).finalizer(STUCK)), ("db-1", app(&second))])
        .await?;
    env.add_budget(env.tight("db", 2), 2).await?;
    env.counts_healthy("db", 2).await?;
    let keeper = env.start(json!({ "pdbForceDrainTimeout": "1s" })).await?;
    fleet::cordon_since(&env.client, &first, an_hour_ago()).await?;
    wait::until("the first pod to terminate", secs(60), || async {
        let pod = env.pods().get(&slow.name_any()).await?;
        ensure!(pod.metadata.deletion_timestamp.is_some(), "not asked to go");
        Ok(())
    })
    .await?;
    fleet::uncordon(&env.client, &first).await?;
    env.add_pods([("db-2", app(&third))]).await?;
    let budgets: Api<PodDisruptionBudget> = Api::namespaced(env.client.clone(), &env.name);
    wait::until("the budget to recover", secs(60), || async {
        let status = budgets.get("db").await?.status.context("no status")?;
        let counted = status.current_healthy == 2 && status.disrupted_pods.unwrap_or_default().is_empty();
        ensure!(counted, "the budget has not recovered");
        Ok(())
    })
    .await?;

    fleet::cordon_since(&env.client, &second, an_hour_ago()).await?;
    // Whoever overrides does so right after the first refusal.
    wait::until("two refusals of the second pod", secs(60), || async {
        let refusals = env.requests()?.only(|request| {
            request.resource == "pods/eviction" && request.name == next.name_any() && request.code == 429
        });
        ensure!(refusals.count() >= 2, "{}", refusals.count());
        Ok(())
    })
    .await?;
    is_untouched(&env.pods(), &next).await?;
    workload::patch_metadata(&env.client, &env.name, &slow.name_any(), json!({ "finalizers": null })).await?;
    workload::gone(&env.client, &next, secs(60)).await?;
    env.end([keeper]).await
}

/// Without the phase its Job would never count it. Where drain-keeper may not write that, it does not delete the pod without
/// grace; an override, which then counts as a failure, goes on.
#[tokio::test(flavor = "multi_thread")]
async fn jobs_stuck_pod_is_failed_before_its_delete() -> Result<()> {
    let env = Environment::new().await?;
    let node = env.add_cordoned_node("a").await?;
    // Nobody serves this version, so the garbage collector leaves the pods alone.
    let uid = "5a8e1c5e-0f0e-4f5c-9a53-d53a41de5a03";
    let of_job = || PodTemplate::new().on(&node).owned_by("batch/v9", "Job", "backup", uid);
    let [stuck, refused] = env
        .add_pods([("stuck", of_job().grace(1).end(End::Stuck)), ("refused", of_job())])
        .await?;
    env.add_budget(env.tight("refused", 1), 1).await?;
    workload::delete(&env.client, &env.name, "stuck").await?;
    let proxy = Proxy::start(env.plane).await?;
    proxy.inject(Rule::new(Fault::Status(403, "Forbidden")).resource("pods/status"));
    // The pod of a Job keeps its grace while its node's kubelet may still confirm its end.
    let config = json!({ "pdbForceDrainTimeout": "1s", "forceOnUnreachable": true });
    let keeper = env.run(env.spec(&config).through(&proxy.url())).await?;
    workload::gone(&env.client, &refused, secs(60)).await?;
    fleet::stop_kubelet(&env.client, &node).await?;
    fleet::set_ready(&env.client, &node, false).await?;
    acted(
        &keeper,
        &[("PdbDelete", "budget-overridden"), ("StuckTerminating", "denied")],
    )
    .await?;
    ensure!(keeper.log().contains("the Job is not told that this is a disruption"));
    let version = env
        .pods()
        .get("stuck")
        .await?
        .resource_version()
        .context("no version")?;
    ensure!(keeper.stop(secs(30)).await?.success());

    let of_pod = WatchParams::default().fields("metadata.name=stuck");
    let pods = env.pods();
    let mut events = pin!(pods.watch(&of_pod, &version).await?);
    let keeper = env.start(config).await?;
    workload::gone(&env.client, &stuck, secs(60)).await?;
    let last = loop {
        if let WatchEvent::Deleted(pod) = events.try_next().await?.context("the watch has ended")? {
            break pod;
        }
    };
    ensure!(workload::phase(&last) == "Failed", "{}", workload::phase(&last));
    let conditions = last.status.and_then(|status| status.conditions).unwrap_or_default();
    let told = conditions
        .iter()
        .find(|condition| condition.type_ == "DisruptionTarget");
    ensure!(told.is_some_and(|told| told.status == "True"), "{conditions:?}");
    env.end_whatever_was_refused([keeper]).await
}
