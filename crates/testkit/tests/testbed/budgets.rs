//! Budgets are kept by the real disruption controller and eviction handler.

use anyhow::{Result, bail, ensure};
use k8s_openapi::api::core::v1::Pod;
use kube::ResourceExt;
use kube::api::{Api, EvictParams};
use nodeward_testkit::fleet::{self, NodeSpec};
use nodeward_testkit::wait::secs;
use nodeward_testkit::workload::{self, Budget, PodTemplate};
use nodeward_testkit::{ControlPlane, bulk, names};
use rstest::rstest;
use serde_json::{Value, json};

#[rstest]
#[case::match_labels(json!({"matchLabels": {"app": "web"}}), 2, false)]
#[case::match_expressions(json!({"matchExpressions": [{"key": "app", "operator": "In", "values": ["web"]}]}), 2, false)]
#[case::all(json!({}), 2, false)]
#[case::of_another_app(json!({"matchLabels": {"app": "db"}}), 0, true)]
#[case::null(Value::Null, 0, true)]
#[tokio::test(flavor = "multi_thread")]
async fn an_eviction_is_refused_by_a_budget_that_selects_the_pod_and_has_no_room(
    #[case] selector: Value,
    #[case] expected: i32,
    #[case] evicted: bool,
) -> Result<()> {
    let plane = ControlPlane::shared().await;
    let client = plane.client().await?;
    let (namespace, node) = (names::unique("budgets"), names::unique("node"));
    plane.namespace(&namespace).await?;
    fleet::create(&client, [NodeSpec::worker(&node)]).await?;
    let web = PodTemplate::new().node_selector("kubernetes.io/hostname", &node);
    bulk::create_one(client.clone(), web.deployment(&namespace, "web", 2)?).await?;
    let pods = workload::ready_pods(&client, &namespace, "web", 2, secs(30)).await?;
    bulk::create_one(
        client.clone(),
        Budget::max_unavailable(&namespace, "budget", 0)
            .selector(selector)
            .build()?,
    )
    .await?;
    workload::counted_budget(&client, &namespace, "budget", expected, secs(20)).await?;

    let api: Api<Pod> = Api::namespaced(client, &namespace);
    match api.evict(&pods[0].name_any(), &EvictParams::default()).await {
        Ok(_) => ensure!(evicted, "it was evicted"),
        Err(kube::Error::Api(status)) => {
            let causes: Vec<_> = status
                .details
                .iter()
                .flat_map(|details| &details.causes)
                .map(|cause| cause.reason.as_str())
                .collect();
            ensure!(
                !evicted && status.code == 429 && causes == ["DisruptionBudget"],
                "{status:?}"
            );
        }
        Err(other) => bail!(other),
    }
    Ok(())
}
