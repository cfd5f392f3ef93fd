//! Somebody else's budgets over OSDs: whatever their form, the eviction API answers 500 for a pod that two budgets select.

use anyhow::{Result, ensure};
use kube::api::{DeleteParams, PostParams};
use nodeward_testkit::wait;
use nodeward_testkit::workload::Budget;
use serde_json::json;

use crate::environment::{DEADLINE, DEFAULT, Environment};

#[tokio::test(flavor = "multi_thread")]
async fn budgets_of_each_shape_are_named_and_left() -> Result<()> {
    let env = Environment::new().await?;
    let operator = env.start(json!({})).await?;
    env.open().await?;
    let namespace = env.rook.namespace();
    let one = |name: &str| Budget::max_unavailable(namespace, name, 1);
    let by = |expression| json!({ "matchExpressions": [expression] });
    let shapes = [
        one("by-label").selector(json!({"matchLabels": {"app": "rook-ceph-osd"}})),
        Budget::min_available(namespace, "min-available", 2).of("rook-ceph-osd"),
        Budget::max_unavailable(namespace, "percentage", "50%").of("rook-ceph-osd"),
        one("everything").selector(json!({})),
        one("in").selector(by(
            json!({"key": "app", "operator": "In", "values": ["rook-ceph-osd", "other"]}),
        )),
        one("exists").selector(by(json!({"key": "ceph-osd-id", "operator": "Exists"}))),
        one("not-in").selector(by(
            json!({"key": "app", "operator": "NotIn", "values": ["rook-ceph-mon"]}),
        )),
        one("one-osd").selector(json!({"matchLabels": {"ceph-osd-id": "1"}})),
    ];
    for shape in shapes {
        let budget = env
            .rook
            .budgets()
            .create(&PostParams::default(), &shape.build()?)
            .await?;
        let name = budget.metadata.name.unwrap_or_default();
        wait::until(format!("{name} to be named"), DEADLINE, || async {
            env.has_condition("ForeignBudget").await?;
            let state = env.state().await?.to_string();
            ensure!(state.contains(&format!("{name} selects")), "{state}");
            Ok(())
        })
        .await?;
        let left = env.rook.budgets().get(&name).await?;
        ensure!(left.metadata.generation == Some(1), "{left:?}");
        ensure!(env.osd_budgets().await?.contains_key(DEFAULT), "OSDs keep their own");
        env.rook.budgets().delete(&name, &DeleteParams::default()).await?;
        wait::until("no condition", DEADLINE, || async {
            let is_named = env.has_condition("ForeignBudget").await.is_ok();
            ensure!(!is_named, "{}", env.state().await?);
            Ok(())
        })
        .await?;
    }
    env.open().await?;
    env.end([operator]).await
}
