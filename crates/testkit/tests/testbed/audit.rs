//! The count of requests.

use anyhow::Result;
use futures::StreamExt;
use k8s_openapi::api::core::v1::{ConfigMap, Node, ServiceAccount};
use kube::Api;
use kube::api::{ListParams, PostParams, WatchEvent, WatchParams};
use nodeward_testkit::control_plane::client_from;
use nodeward_testkit::operator::service_account_token;
use nodeward_testkit::{Cluster, ControlPlane, bulk, names};
use serde_json::json;

#[tokio::test]
async fn service_account_requests_are_counted_by_verb() -> Result<()> {
    let plane = ControlPlane::shared().await;
    let client = plane.client().await?;
    let namespace = names::unique("audit");
    plane.namespace(&namespace).await?;
    let account: ServiceAccount =
        serde_json::from_value(json!({"metadata": {"name": "counted", "namespace": namespace}}))?;
    bulk::create(&client, [account]).await?;
    let token = service_account_token(plane, &namespace, "counted").await?;
    let file = plane.dir().join(&namespace);
    std::fs::write(&file, Cluster::from(plane).kubeconfig_of(&token, None))?;
    let counted = client_from(&file).await?;

    let mark = plane.audit().mark()?;
    // It may do none of this, which is counted all the same.
    let maps: Api<ConfigMap> = Api::namespaced(counted.clone(), &namespace);
    let nodes: Api<Node> = Api::all(counted.clone());
    assert!(maps.get("none").await.is_err());
    assert!(
        maps.create(&PostParams::default(), &ConfigMap::default())
            .await
            .is_err()
    );
    for _ in 0..3 {
        assert!(nodes.list(&ListParams::default()).await.is_err());
    }
    let first = nodes.watch(&WatchParams::default(), "0").await?.boxed().next().await;
    assert!(matches!(first, Some(Err(_) | Ok(WatchEvent::Error(_)))));

    let requests = plane.audit().since(mark)?.of_service_account(&namespace, "counted");
    let counts = requests.by_verb_and_resource();
    let expected = [
        ("create configmaps", 1),
        ("get configmaps", 1),
        ("list nodes", 3),
        ("watch nodes", 1),
    ];
    assert_eq!(counts, expected.map(|(what, count)| (what.to_owned(), count)).into());
    assert_eq!(requests.clone().without_watches().count(), 5);
    assert_eq!(requests.clone().writes().count(), 1);
    assert!(requests.0.iter().all(|request| request.code == 403));
    assert_eq!(
        plane
            .audit()
            .since(plane.audit().mark()?)?
            .of_service_account(&namespace, "counted")
            .count(),
        0
    );
    Ok(())
}
