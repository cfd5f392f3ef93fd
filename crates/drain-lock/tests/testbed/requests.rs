//! What drains ask of the API server.

use anyhow::{Result, ensure};
use nodeward_api::node_drain::Phase;
use nodeward_testkit::wait::secs;
use nodeward_testkit::workload::PodTemplate;
use serde_json::json;

use crate::environment::{ACCOUNT, Environment, SYSTEM};

const NODES: [&str; 6] = ["n1", "n2", "n3", "n4", "n5", "n6"];

/// Requests of one drain, on average: without leases and watches, Events included. The target in `docs/drain-lock-internals.md` is
/// 50. Where many processes wait for a CPU there are more: what takes longer is reported in more steps.
const AT_MOST: usize = 95;

#[tokio::test(flavor = "multi_thread")]
async fn drains_at_once_cost_few_requests_each() -> Result<()> {
    let env = Environment::new(&NODES).await?;
    for app in ["a", "b"] {
        env.add_pinned(app, &NODES).await?;
    }
    env.add_app("web", NODES.len(), PodTemplate::new()).await?;
    let lock = env.start(json!({})).await?;
    let mark = env.plane.audit().mark()?;
    for node in NODES {
        env.drain(node, json!({})).await?;
    }
    let ends = NODES.map(async |node| {
        env.phase(node, Phase::Drained, secs(240)).await?;
        env.uncordon(node).await?;
        env.released(node, secs(120)).await
    });
    futures::future::try_join_all(ends).await?;
    let asked = env.plane.audit().since(mark)?.of_service_account(SYSTEM, ACCOUNT);
    let asked = asked.without_leases().without_watches();
    let counts = asked.by_verb_and_resource();
    println!("{} requests for {} drains: {counts:#?}", asked.count(), NODES.len());
    ensure!(asked.count() <= AT_MOST * NODES.len(), "{counts:#?}");
    env.end([lock]).await
}
