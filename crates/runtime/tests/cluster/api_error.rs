//! What the API server really answers, and that nothing is asked twice behind our back.

use anyhow::{Context, Result, ensure};
use k8s_openapi::api::core::v1::{ConfigMap, Namespace, Pod};
use kube::api::{DeleteParams, EvictParams, PostParams, Preconditions};
use kube::{Api, Client};
use nodeward_runtime::{ApiError, Clients, Component};
use nodeward_testkit::fleet::{self, NodeSpec};
use nodeward_testkit::proxy::{Fault, Proxy, Record, Rule};
use nodeward_testkit::wait::{self, secs};
use nodeward_testkit::workload::{self, Budget, PodTemplate};
use nodeward_testkit::{ControlPlane, bulk, names};
use rstest::rstest;

use crate::access::client_as;

const COMPONENT: Component = Component::new("drain-keeper", "1.2.3");

struct Scene {
    plane: &'static ControlPlane,
    proxy: Proxy,
    clients: Clients,
    namespace: String,
}

async fn scene() -> Result<Scene> {
    let plane = ControlPlane::shared().await;
    let proxy = Proxy::start(plane).await?;
    let namespace = names::unique("refusal");
    plane.namespace(&namespace).await?;
    let mut config = plane.config().await?;
    config.cluster_url = proxy.url().parse()?;
    let clients = Clients::from_config(config, COMPONENT)?;
    Ok(Scene {
        plane,
        proxy,
        clients,
        namespace,
    })
}

impl Scene {
    fn config_maps(&self) -> Api<ConfigMap> {
        Api::namespaced(self.clients.requests.clone(), &self.namespace)
    }

    fn pods(&self) -> Api<Pod> {
        Api::namespaced(self.clients.requests.clone(), &self.namespace)
    }

    /// A ready pod that so many budgets without room select.
    async fn covered_pod(&self, budgets: &[&str]) -> Result<Pod> {
        let client = self.plane.client().await?;
        let node = names::unique("node");
        fleet::create(&client, [NodeSpec::worker(&node)]).await?;
        let pod = PodTemplate::new()
            .on(&node)
            .label("app", "web")
            .pod(&self.namespace, "web")?;
        for name in budgets {
            bulk::create_one(
                client.clone(),
                Budget::min_available(&self.namespace, name, 1).of("web").build()?,
            )
            .await?;
        }
        bulk::create_one(client.clone(), pod).await?;
        // A pod that is not ready may be evicted without regard to the budget.
        workload::ready_pods(&client, &self.namespace, "web", 1, secs(60)).await?;
        // Of several budgets on one pod the disruption controller counts it for one only.
        if let [name] = budgets {
            workload::counted_budget(&client, &self.namespace, name, 1, secs(60)).await?;
        }
        self.pods().get("web").await.context("the pod")
    }

    async fn evict(&self) -> Result<ApiError> {
        let refused = self.pods().evict("web", &EvictParams::default()).await.err();
        Ok(ApiError::from(&refused.context("the eviction was not refused")?))
    }

    fn evictions(&self) -> usize {
        self.proxy.count(|record| record.request.resource == "pods/eviction")
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_budget_without_room_refuses_once_and_at_once() -> Result<()> {
    let scene = scene().await?;
    scene.covered_pod(&["web"]).await?;
    assert!(matches!(scene.evict().await?, ApiError::RefusedByBudget { .. }));
    assert_eq!(scene.evictions(), 1, "kube's own retries are off");
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn two_budgets_on_one_pod_are_a_server_error() -> Result<()> {
    let scene = scene().await?;
    scene.covered_pod(&["one", "two"]).await?;
    let refusal = scene.evict().await?;
    let is_the_handlers = matches!(&refusal, ApiError::Server { code: 500, reason, .. } if reason.is_empty());
    assert!(is_the_handlers, "{refusal:?}");
    assert_eq!(scene.evictions(), 1);
    Ok(())
}

#[rstest]
#[case::flow_control(
    Fault::TooManyRequests { retry_after: Some(7) },
    |error: &ApiError| matches!(error, ApiError::Throttled { retry_after: Some(after), .. } if after.as_secs() == 7)
)]
#[case::budget_still_counting(
    Fault::BudgetRefusal { retry_after: Some(10) },
    |error: &ApiError| matches!(error, ApiError::RefusedByBudget { retry_after: Some(after) } if after.as_secs() == 10)
)]
#[tokio::test(flavor = "multi_thread")]
async fn too_many_requests_is_classified_by_cause(
    #[case] fault: Fault,
    #[case] is_expected: fn(&ApiError) -> bool,
) -> Result<()> {
    let scene = scene().await?;
    scene.proxy.inject(Rule::new(fault));
    let refusal = scene.evict().await?;
    assert!(is_expected(&refusal), "{refusal:?}");
    assert_eq!(scene.evictions(), 1);
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn wrong_uid_conflicts_and_absent_is_gone() -> Result<()> {
    let scene = scene().await?;
    crate::access::put(&scene.clients.requests, &scene.namespace, "a", serde_json::json!({})).await?;
    let other = Preconditions {
        uid: Some("another".to_owned()),
        resource_version: None,
    };
    let params = DeleteParams {
        preconditions: Some(other),
        ..DeleteParams::default()
    };
    let refused = scene
        .config_maps()
        .delete("a", &params)
        .await
        .err()
        .context("it was deleted")?;
    assert_eq!(ApiError::from(&refused), ApiError::Conflict);
    let absent = scene
        .config_maps()
        .delete("b", &params)
        .await
        .err()
        .context("it was deleted")?;
    assert_eq!(ApiError::from(&absent), ApiError::NotFound);
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn terminating_namespace_differs_from_forbidden() -> Result<()> {
    let scene = scene().await?;
    let admin = scene.plane.client().await?;
    let held = ConfigMap {
        metadata: serde_json::from_value(serde_json::json!({
            "namespace": scene.namespace, "name": "held", "finalizers": ["example.com/held"],
        }))?,
        ..ConfigMap::default()
    };
    bulk::create_one(admin.clone(), held).await?;
    let namespaces: Api<Namespace> = Api::all(admin.clone());
    namespaces.delete(&scene.namespace, &DeleteParams::default()).await?;
    wait::until("the namespace to be terminating", secs(60), || async {
        let namespace = namespaces.get(&scene.namespace).await?;
        ensure!(namespace.metadata.deletion_timestamp.is_some(), "not yet");
        Ok(())
    })
    .await?;
    let new = || ConfigMap {
        metadata: kube::api::ObjectMeta {
            name: Some("new".into()),
            ..<_>::default()
        },
        ..<_>::default()
    };
    let refused = scene
        .config_maps()
        .create(&PostParams::default(), &new())
        .await
        .err()
        .context("created")?;
    assert_eq!(ApiError::from(&refused), ApiError::NamespaceTerminating);

    let user = names::unique("user");
    let theirs: Api<ConfigMap> = Api::namespaced(client_as(scene.plane, &user).await?, "default");
    let refused = theirs
        .create(&PostParams::default(), &new())
        .await
        .err()
        .context("created")?;
    match ApiError::from(&refused) {
        ApiError::Forbidden { message } => assert!(message.contains(&user), "{message}"),
        other => anyhow::bail!("{other:?}"),
    }
    Ok(())
}

#[rstest]
#[case::lost_reply(Fault::LostReply)]
#[case::broken_connection(Fault::BrokenConnection)]
#[tokio::test(flavor = "multi_thread")]
async fn after_a_lost_answer_the_outcome_is_unknown(#[case] fault: Fault) -> Result<()> {
    let scene = scene().await?;
    let sent = fault == Fault::LostReply;
    scene.proxy.inject(Rule::new(fault).writes());
    let config_map: ConfigMap = serde_json::from_value(serde_json::json!({"metadata": {"name": "a"}}))?;
    let refused = scene
        .config_maps()
        .create(&PostParams::default(), &config_map)
        .await
        .err()
        .context("created")?;
    let refusal = ApiError::from(&refused);
    assert!(refusal.is_ambiguous(), "{refusal:?}");
    let theirs: Api<ConfigMap> = Api::namespaced(scene.plane.client().await?, &scene.namespace);
    assert_eq!(theirs.get_opt("a").await?.is_some(), sent);
    let creations = |record: &Record| record.request.resource == "configmaps" && record.request.is_write();
    assert_eq!(
        scene.proxy.count(creations),
        1,
        "nobody repeats a write whose outcome is unknown"
    );
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn requests_carry_the_components_name() -> Result<()> {
    let scene = scene().await?;
    scene.config_maps().get_opt("a").await?;
    let named = |record: &Record| record.request.user_agent == "nodeward/drain-keeper";
    assert_eq!(scene.proxy.count(named), 1);
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn a_server_that_never_answers_is_a_timeout() -> Result<()> {
    let scene = scene().await?;
    let mut config = scene.plane.config().await?;
    config.cluster_url = scene.proxy.url().parse()?;
    config.read_timeout = Some(secs(3));
    config.default_retry = false;
    let client = Client::try_from(config)?;
    scene.proxy.inject(Rule::new(Fault::Delay(secs(30))));
    let config_maps: Api<ConfigMap> = Api::namespaced(client, &scene.namespace);
    let refused = config_maps.get_opt("a").await.err().context("answered")?;
    assert_eq!(ApiError::from(&refused), ApiError::Timeout);
    Ok(())
}
