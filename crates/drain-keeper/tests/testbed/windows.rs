//! Maintenance windows: what is due waits for one.

use anyhow::{Context, Result, ensure};
use jiff::{SignedDuration, Timestamp};
use nodeward_testkit::wait::{self, secs};
use nodeward_testkit::{bulk, fleet, workload};
use serde_json::{Value, json};

use crate::environment::{Environment, an_hour_ago, is_untouched, managed};

/// Midnight in three days.
fn opens() -> Result<Timestamp> {
    let then = Timestamp::now() + SignedDuration::from_hours(72);
    Ok(Timestamp::from_second(then.as_second() / 86_400 * 86_400)?)
}

/// Budgets are overridden at once, in these windows.
fn windows(windows: &Value) -> Value {
    json!({ "pdbForceDrainTimeout": "1s", "windows": windows })
}

#[tokio::test(flavor = "multi_thread")]
async fn due_override_waits_for_the_window() -> Result<()> {
    let env = Environment::new().await?;
    let node = env.add_node("a").await?;
    bulk::create(&env.client, [env.tight("web", 1).build()?]).await?;
    let [pod] = env.add_pods([("web", managed(&node))]).await?;
    let opens = opens()?;
    let day = opens.strftime("%A").to_string();
    let keeper = env
        .start(windows(&json!([{ "days": [day], "from": "00:00", "to": "00:01" }])))
        .await?;
    ensure!(keeper.log().contains("drain-keeper begins nothing"), "nobody is warned");
    fleet::cordon_since(&env.client, &node, an_hour_ago()).await?;
    let next = opens
        .strftime("next: PdbDelete, not before %Y-%m-%dT00:00:00Z")
        .to_string();
    wait::until("the condition to say when the window opens", secs(60), || async {
        let condition = env.drain_blocked(&node).await?.context("no condition")?;
        let message = condition.message.unwrap_or_default();
        ensure!(condition.reason.as_deref() == Some("WaitsForWindow"), "{message}");
        ensure!(message.contains(&next), "{message}");
        Ok(())
    })
    .await?;
    wait::throughout("the pod to stay", secs(4), || async {
        is_untouched(&env.pods(), &pod).await
    })
    .await?;
    keeper.write_config(&env.config(&windows(&json!([]))))?;
    workload::gone(&env.client, &pod, secs(60)).await?;
    env.end([keeper]).await
}
