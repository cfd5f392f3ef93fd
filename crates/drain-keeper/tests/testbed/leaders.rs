//! Two leaders at once, and none for a while.

use std::collections::BTreeMap;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use jiff::{SignedDuration, Timestamp};
use k8s_openapi::api::policy::v1::PodDisruptionBudget;
use kube::ResourceExt;
use kube::api::Api;
use nodeward_testkit::audit::AuditedRequest;
use nodeward_testkit::fleet;
use nodeward_testkit::wait::{self, secs};
use nodeward_testkit::workload::{self, Budget};
use serde_json::json;

use crate::environment::{Environment, an_hour_ago, managed};

const LEASE: &str = "drain-keeper";

/// Both lead, for neither asks for a lease: what keeps them from overriding a budget twice are preconditions.
#[tokio::test(flavor = "multi_thread")]
async fn two_leaders_override_one_pod_at_a_time() -> Result<()> {
    const SPACING: SignedDuration = SignedDuration::from_secs(12);
    let env = Environment::new().await?;
    let nodes = [env.add_node("a").await?, env.add_node("b").await?];
    let app = |node: &str| managed(node).label("app", "db");
    let pods = env
        .add_pods([
            ("db-0", app(&nodes[0])),
            ("db-1", app(&nodes[0])),
            ("db-2", app(&nodes[1])),
        ])
        .await?;
    env.add_budget(env.tight("db", 3), 3).await?;
    let spec = || {
        env.spec(&json!({ "pdbForceDrainTimeout": "1s", "overrideSpacing": format!("{}s", SPACING.as_secs()) }))
            .arg("--leader-elect=false")
    };
    let keepers = [
        env.run(spec().identity("one")).await?,
        env.run(spec().identity("another")).await?,
    ];
    for node in &nodes {
        fleet::cordon_since(&env.client, node, an_hour_ago()).await?;
    }
    for pod in &pods {
        workload::gone(&env.client, pod, secs(120)).await?;
    }

    let budgets: Api<PodDisruptionBudget> = Api::namespaced(env.client.clone(), &env.name);
    let requests = env.requests()?;
    let mut deleted: BTreeMap<String, Timestamp> = BTreeMap::new();
    for request in requests
        .0
        .iter()
        .filter(|request| request.verb == "delete" && request.code == 200)
    {
        deleted.entry(request.name.clone()).or_insert(request.received);
    }
    ensure!(deleted.len() == 3, "{deleted:?}");
    let mut moments: Vec<Timestamp> = deleted.values().copied().collect();
    moments.sort();
    // On a busy machine a delete may come long after the record that it rests on.
    let tolerance = SignedDuration::from_secs(3);
    for pair in moments.windows(2) {
        let between = pair[1].duration_since(pair[0]);
        ensure!(
            SPACING - tolerance <= between,
            "two pods of one budget within {between}: {deleted:?}"
        );
    }
    let recorded = requests.only(|request| request.resource == "poddisruptionbudgets/status" && request.code == 200);
    // Where both turn to the same pod the second may record it once more, which allows no other pod.
    let goes_with_a_delete = |record: &AuditedRequest| {
        let distance = |deleted: &Timestamp| deleted.duration_since(record.received).abs();
        moments.iter().any(|deleted| distance(deleted) <= tolerance)
    };
    ensure!(
        recorded.count() >= 3 && recorded.0.iter().all(goes_with_a_delete),
        "each override is recorded, and nothing else: {:?}",
        recorded.0
    );
    ensure!(
        budgets
            .get("db")
            .await?
            .annotations()
            .contains_key(nodeward_api::annotation::LAST_OVERRIDE)
    );
    let mut overrides = 0.0;
    for keeper in &keepers {
        overrides += keeper
            .metrics()
            .await?
            .sum("nodeward_drain_keeper_budget_overrides_total", &[]);
    }
    ensure!((overrides - 3.0).abs() < 0.5, "{overrides} overrides are counted");
    env.end(keepers).await
}

#[tokio::test(flavor = "multi_thread")]
async fn standby_finishes_a_killed_leaders_drain() -> Result<()> {
    let env = Environment::new().await?;
    let node = env.add_node("a").await?;
    let [free, covered] = env
        .add_pods([("free", managed(&node)), ("covered", managed(&node))])
        .await?;
    env.add_budget(env.tight("covered", 1), 1).await?;
    let config = json!({
        "nodeDrain": { "timeOut": "20s", "expectedNodeDrainTime": "1s" },
        "pdbForceDrainTimeout": "21s",
    });
    let first = env.run(env.spec(&config).identity("first")).await?;
    holder_is(&env, "first").await?;
    let second = env.run(env.spec(&config).identity("second")).await?;
    // From now on, not for an hour: the pods would be due before the kill.
    fleet::cordon(&env.client, &node).await?;
    let clock = env.clock_that(&node, "runs", |_| true).await?;
    first.process().kill();
    let killed_at = Timestamp::now();

    for pod in [&free, &covered] {
        workload::gone(&env.client, pod, secs(120)).await?;
    }
    holder_is(&env, "second").await?;
    ensure!(
        env.clock(&node).await?.as_ref() == Some(&clock),
        "another clock: {:?}",
        env.clock(&node).await?
    );
    let acts = env
        .requests()?
        .writes()
        .only(|request| request.resource.starts_with("pods"));
    let first_act = acts.0.first().context("no act")?;
    ensure!(
        killed_at < first_act.received,
        "the killed one had acted: {first_act:?}"
    );
    env.end([second]).await
}

async fn holder_is(env: &Environment<'_>, name: &str) -> Result<()> {
    wait::until(format!("{name} to lead"), Duration::from_secs(90), || async {
        let holder = env.lease_holder(LEASE).await?;
        ensure!(holder.as_deref() == Some(name), "{holder:?}");
        Ok(())
    })
    .await
}

#[tokio::test(flavor = "multi_thread")]
async fn stopped_leader_hands_over_at_once() -> Result<()> {
    let env = Environment::new().await?;
    let spec = |name: &str| env.spec(&json!({})).identity(name);
    let first = env.run(spec("first")).await?;
    holder_is(&env, "first").await?;
    let second = env.run(spec("second")).await?;
    let node = env.add_cordoned_node("a").await?;
    env.clock_that(&node, "runs", |_| true).await?;
    let status = first.stop(secs(30)).await?;
    ensure!(status.success(), "{status}: {}", first.process().log_tail(20));
    ensure!(
        env.lease_holder(LEASE).await?.as_deref() != Some("first"),
        "it still holds its lease"
    );
    // Far less than the lease's duration.
    wait::until("the standby to lead", secs(10), || async {
        let holder = env.lease_holder(LEASE).await?;
        ensure!(holder.as_deref() == Some("second"), "{holder:?}");
        Ok(())
    })
    .await?;
    second.stop(secs(30)).await?;
    ensure!(env.lease_holder(LEASE).await?.is_none(), "the lease is held");
    env.end([]).await
}

/// A leader that stood still while another led must not go on where it was.
#[tokio::test(flavor = "multi_thread")]
async fn frozen_leader_does_nothing_on_waking() -> Result<()> {
    let env = Environment::new().await?;
    let node = env.add_node("a").await?;
    let config = json!({ "pdbForceDrainTimeout": "1s", "overrideSpacing": "10m" });
    let frozen = env.run(env.spec(&config).identity("frozen")).await?;
    holder_is(&env, "frozen").await?;
    let other = env.run(env.spec(&config).identity("other")).await?;
    let pods = env
        .add_pods([
            ("db-0", managed(&node).label("app", "db")),
            ("db-1", managed(&node).label("app", "db")),
        ])
        .await?;
    env.add_budget(Budget::min_available(&env.name, "db", 2).of("db"), 2)
        .await?;
    frozen.process().pause()?;
    fleet::cordon_since(&env.client, &node, an_hour_ago()).await?;
    holder_is(&env, "other").await?;
    wait::until("one pod to go", secs(60), || async {
        let mut gone = 0;
        for pod in &pods {
            gone += u32::from(env.pods().get_opt(&pod.name_any()).await?.is_none());
        }
        ensure!(gone == 1, "{gone} are gone");
        Ok(())
    })
    .await?;
    let mark = env.plane.audit().mark()?;
    frozen.process().resume()?;
    frozen.ready(secs(60)).await?;
    wait::throughout("no second override", secs(3), || async {
        let writes = env.requests_since(mark)?.writes().without_leases();
        let deletes = writes.only(|request| request.verb == "delete");
        ensure!(deletes.count() == 0, "{:?}", deletes.0);
        Ok(())
    })
    .await?;
    env.end([frozen, other]).await
}
