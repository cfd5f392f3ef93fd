//! What drain-keeper asks of the API server.

use anyhow::{Context, Result, ensure};
use nodeward_testkit::audit::AuditedRequest;
use nodeward_testkit::fleet;
use nodeward_testkit::wait::{self, secs};
use nodeward_testkit::workload;
use serde_json::json;

use crate::environment::{Environment, an_hour_ago, managed};

#[tokio::test(flavor = "multi_thread")]
async fn idle_requests_are_lease_and_watches_only() -> Result<()> {
    let env = Environment::new().await?;
    let workers: Vec<String> = (0..12).map(|n| format!("n{n}")).collect();
    fleet::create(&env.client, workers.iter().map(|node| env.worker(node))).await?;
    let cordoned: Vec<String> = workers.iter().take(3).map(|node| env.node_name(node)).collect();
    let config = json!({ "nodeDrain": { "timeOut": "1s", "expectedNodeDrainTime": "1s" } });
    let keeper = env.start(config).await?;
    for (number, node) in cordoned.iter().enumerate() {
        let name = format!("vault-{number}");
        env.add_pods([(name.as_str(), managed(node))]).await?;
        env.add_budget(env.tight(&name, 1).label("nodeward.dev/force-drain", "never"), 1)
            .await?;
        fleet::cordon_since(&env.client, node, an_hour_ago()).await?;
    }
    for node in &cordoned {
        wait::until(format!("{node} to be explained"), secs(60), || async {
            let message = env
                .drain_blocked(node)
                .await?
                .and_then(|condition| condition.message)
                .context("no condition")?;
            ensure!(message.contains("The drain has failed"), "{message}");
            Ok(())
        })
        .await?;
    }
    // What is said goes out a moment after it is decided.
    wait::until("the Events to be out", secs(60), || async {
        let events = env.requests()?.only(|request| request.resource == "events").count();
        ensure!(events >= 6, "{events} of them");
        Ok(())
    })
    .await?;
    // Each of them, and what follows from it, comes when the machine gets to it.
    wait::until("quiet", secs(120), || async {
        let before = env.plane.audit().mark()?;
        tokio::time::sleep(secs(5)).await;
        let asked = env.requests_since(before)?.without_leases().without_watches();
        ensure!(asked.count() == 0, "{:?}", asked.0);
        Ok(())
    })
    .await?;
    let mark = env.plane.audit().mark()?;
    wait::throughout("no request", secs(21), || async {
        let asked = env.requests_since(mark)?.without_leases().without_watches();
        ensure!(asked.count() == 0, "{:?}", asked.0);
        Ok(())
    })
    .await?;
    let leases = env
        .requests_since(mark)?
        .only(|request| request.resource == "leases")
        .count();
    ensure!((1..=15).contains(&leases), "{leases} requests for the lease in 21 s");
    env.end([keeper]).await
}

#[tokio::test(flavor = "multi_thread")]
async fn override_reads_node_and_budgets_once() -> Result<()> {
    let env = Environment::new().await?;
    let node = env.add_node("a").await?;
    let [pod] = env.add_pods([("covered", managed(&node))]).await?;
    env.add_budget(env.tight("covered", 1), 1).await?;
    let keeper = env.start(json!({ "pdbForceDrainTimeout": "2s" })).await?;
    wait::until("drain-lock's kinds to be known to be absent", secs(60), || async {
        let log = keeper.log();
        for cache in ["nodedrains", "drainledgers", "disruptionholds"] {
            let is_it = |line: &str| line.contains("the kind is absent") && line.contains(cache);
            ensure!(log.lines().any(is_it), "{cache} is looked for");
        }
        Ok(())
    })
    .await?;
    let mark = env.plane.audit().mark()?;
    fleet::cordon_since(&env.client, &node, an_hour_ago()).await?;
    workload::gone(&env.client, &pod, secs(60)).await?;
    let asked = env.requests_since(mark)?.without_leases().without_watches();
    let pods = format!("fieldSelector=spec.nodeName%3D{node}");
    // Which kinds there are is asked now and then, whatever drains.
    let is_read = |request: &AuditedRequest| !request.is_write() && !request.resource.is_empty();
    let reads = asked.only(|request| is_read(request) && !request.uri.contains(&pods));
    let is_of_pause = |request: &AuditedRequest| request.resource == "configmaps" && request.name == "nodeward-pause";
    let pause = reads.clone().only(is_of_pause);
    // The eviction, the record and the delete share it, unless they take longer than a second.
    ensure!((1..=3).contains(&pause.count()), "{:?}", pause.0);
    let reads = reads.only(|request| !is_of_pause(request));
    let expected = ["get nodes", "list poddisruptionbudgets"].map(|read| (read.to_owned(), 1));
    ensure!(reads.by_verb_and_resource() == expected.into(), "{:?}", reads.0);
    let budgets = reads
        .0
        .iter()
        .find(|request| request.verb == "list")
        .context("no list")?;
    ensure!(budgets.namespace == env.name, "{budgets:?}");
    env.end([keeper]).await
}
