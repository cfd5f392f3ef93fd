//! What drain-keeper says of a node that it cannot unblock.

use anyhow::{Context, Result, ensure};
use k8s_openapi::api::core::v1::Node;
use k8s_openapi::api::events::v1::Event;
use kube::api::{Api, ListParams};
use nodeward_testkit::fleet;
use nodeward_testkit::wait::{self, secs};
use nodeward_testkit::workload;
use serde_json::json;

use crate::environment::{Environment, Keeper, an_hour_ago, managed};

const SERIES: &str = "upgradeoperator_node_drain_timeout";

/// Reasons and notes of the Events on an object.
async fn events(env: &Environment<'_>, name: &str) -> Result<Vec<(String, String)>> {
    let events: Api<Event> = Api::all(env.client.clone());
    let about = ListParams::default().fields(&format!("regarding.name={name}"));
    let found = events.list(&about).await?.items.into_iter();
    Ok(found
        .map(|event| (event.reason.unwrap_or_default(), event.note.unwrap_or_default()))
        .collect())
}

pub async fn event_that_names(env: &Environment<'_>, object: &str, reason: &str, parts: &[&str]) -> Result<()> {
    wait::until(
        format!("an Event {reason} on {object} with {parts:?}"),
        secs(60),
        || async {
            let events = events(env, object).await?;
            let is_it = |(of, note): &(String, String)| of == reason && parts.iter().all(|part| note.contains(part));
            ensure!(events.iter().any(is_it), "{events:?}");
            Ok(())
        },
    )
    .await
}

async fn series_is(keeper: &Keeper, node: &str, value: Option<f64>) -> Result<()> {
    wait::until(format!("{SERIES} of {node} to be {value:?}"), secs(60), || async {
        let now = keeper.metrics().await?.value(SERIES, &[("node_name", node)]);
        ensure!(now == value, "{now:?}");
        Ok(())
    })
    .await
}

#[tokio::test(flavor = "multi_thread")]
async fn blocked_node_is_explained_until_uncordoned() -> Result<()> {
    let env = Environment::new().await?;
    let node = env.add_node("a").await?;
    env.add_pods([
        ("precious", managed(&node)),
        ("kept", managed(&node).grace(1).finalizer("example.com/protected")),
        ("evicted", managed(&node).empty_dir()),
        ("later", managed(&node)),
    ])
    .await?;
    env.add_budget(env.tight("precious", 1).label("nodeward.dev/force-drain", "never"), 1)
        .await?;
    env.add_budget(env.tight("later", 1), 1).await?;
    workload::delete(&env.client, &env.name, "kept").await?;
    let config = json!({
        "nodeDrain": { "timeOut": "1s", "expectedNodeDrainTime": "1s" },
        "pdbForceDrainTimeout": "1h",
        "protectedFinalizers": ["example.com/protected"],
        "flapTolerance": "1s",
    });
    let keeper = env.start(config).await?;
    series_is(&keeper, &node, None).await?;
    fleet::cordon_since(&env.client, &node, an_hour_ago()).await?;

    // One pod's time is still to come, so nothing has failed yet.
    series_is(&keeper, &node, Some(0.0)).await?;
    let blocked = wait::until("the condition", secs(60), || async {
        let condition = env.drain_blocked(&node).await?.context("none")?;
        ensure!(
            condition
                .message
                .as_deref()
                .is_some_and(|text| text.starts_with("3 pods")),
            "{condition:?}"
        );
        Ok(condition)
    })
    .await?;
    ensure!(blocked.status == "True", "{blocked:?}");
    let message = blocked.message.unwrap_or_default();
    let ns = &env.name;
    for part in [
        format!("{ns}/precious is covered by a budget that must never be overridden (PDB {ns}/precious)"),
        format!(
            "{ns}/kept is kept by finalizers that are never removed (finalizers example.com/protected; grace until "
        ),
        format!("{ns}/later is covered by a budget that allows no disruption (PDB {ns}/later); next: PdbDelete at "),
        "nothing by itself; to do: change the workload so that its budget allows a disruption".to_owned(),
    ] {
        ensure!(message.contains(&part), "{part} is not in {message}");
    }
    event_that_names(&env, &node, "BudgetNeverForced", &["precious", "PDB"]).await?;
    event_that_names(&env, &node, "ProtectedFinalizer", &["kept", "example.com/protected"]).await?;
    event_that_names(&env, &node, "BudgetExhausted", &["later", "next: PdbDelete at "]).await?;
    event_that_names(&env, "evicted", "Evicted", &[&node, "emptyDir"]).await?;

    // Without it nothing is left to wait for.
    workload::delete(&env.client, &env.name, "later").await?;
    series_is(&keeper, &node, Some(1.0)).await?;
    event_that_names(&env, &node, "DrainFailed", &["precious", "kept"]).await?;
    let metrics = keeper.metrics().await?;
    let of = |reason| metrics.value("nodeward_drain_keeper_blockers", &[("reason", reason)]);
    ensure!(
        of("BudgetNeverForced") == Some(1.0) && of("ProtectedFinalizer") == Some(1.0),
        "blockers by reason"
    );
    ensure!(
        metrics.value("nodeward_drain_keeper_draining_nodes", &[]) == Some(1.0),
        "draining nodes"
    );

    fleet::uncordon(&env.client, &node).await?;
    series_is(&keeper, &node, None).await?;
    wait::until("everything to be removed from the node", secs(60), || async {
        ensure!(env.drain_blocked(&node).await?.is_none(), "the condition is there");
        ensure!(env.clock(&node).await?.is_none(), "the clock is there");
        Ok(())
    })
    .await?;
    let nodes: Api<Node> = Api::all(env.client.clone());
    let conditions = nodes
        .get(&node)
        .await?
        .status
        .and_then(|status| status.conditions)
        .unwrap_or_default();
    ensure!(
        conditions.iter().any(|condition| condition.type_ == "Ready"),
        "the other conditions are gone"
    );
    env.end([keeper]).await
}

#[tokio::test(flavor = "multi_thread")]
async fn disabled_strategies_force_nothing_and_alert() -> Result<()> {
    let env = Environment::new().await?;
    let node = env.add_node("a").await?;
    let [pod] = env.add_pods([("web", managed(&node))]).await?;
    let config = json!({
        "nodeDrain": { "timeOut": "2s", "expectedNodeDrainTime": "1s", "disableDrainStrategies": true },
    });
    let keeper = env.start(config).await?;
    fleet::cordon_since(&env.client, &node, an_hour_ago()).await?;
    series_is(&keeper, &node, Some(1.0)).await?;
    wait::until("the condition", secs(60), || async {
        let message = env.drain_blocked(&node).await?.and_then(|condition| condition.message);
        ensure!(
            message
                .as_deref()
                .is_some_and(|text| text.contains("drain strategies are disabled")),
            "{message:?}"
        );
        Ok(())
    })
    .await?;
    crate::environment::is_untouched(&env.pods(), &pod).await?;
    ensure!(env.pods_written()?.is_empty(), "{:?}", env.pods_written()?);
    // The node goes, and its series with it.
    fleet::uncordon(&env.client, &node).await?;
    series_is(&keeper, &node, None).await?;
    env.end([keeper]).await
}

#[tokio::test(flavor = "multi_thread")]
async fn condition_names_the_gate_of_a_parked_node() -> Result<()> {
    let env = Environment::new().await?;
    let node = env.add_node("a").await?;
    let mark = json!({ "countsAsDrain": { "annotation": "example.com/drained-by" } });
    let keeper = env.start(mark).await?;
    fleet::cordon_since(&env.client, &node, an_hour_ago()).await?;
    wait::until("the gate to be told", secs(60), || async {
        let condition = env.drain_blocked(&node).await?.context("no condition")?;
        let message = condition.message.unwrap_or_default();
        ensure!(
            condition.status == "False" && condition.reason.as_deref() == Some("NotDraining"),
            "{message}"
        );
        ensure!(
            message.contains("example.com/drained-by") && message.contains("; to do: "),
            "{message}"
        );
        Ok(())
    })
    .await?;
    fleet::uncordon(&env.client, &node).await?;
    wait::until("the condition to be removed", secs(60), || async {
        ensure!(env.drain_blocked(&node).await?.is_none(), "it is there");
        Ok(())
    })
    .await?;
    env.end([keeper]).await
}
