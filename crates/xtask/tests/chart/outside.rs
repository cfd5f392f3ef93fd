//! The operators' binaries under the accounts that the chart installs, as a user does who runs them outside the cluster:
//! `deployment.enabled=false`.

use anyhow::{Context, Result, ensure};
use k8s_openapi::ByteString;
use k8s_openapi::api::admissionregistration::v1::ValidatingWebhookConfiguration;
use k8s_openapi::api::core::v1::{ConfigMap, Pod};
use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition;
use kube::api::{Api, PostParams};
use nodeward_api::NodeHealthCheck;
use nodeward_testkit::fleet::{self, NodeSpec};
use nodeward_testkit::helm::Release;
use nodeward_testkit::names::unique;
use nodeward_testkit::operator::{self, Operator, OperatorSpec};
use nodeward_testkit::wait::{self, secs};
use nodeward_testkit::workload::PodTemplate;
use nodeward_testkit::{ControlPlane, bulk, ports};
use serde_json::{Value, json};

use crate::shared;

#[tokio::test]
async fn drain_keeper_runs_under_the_installed_account() -> Result<()> {
    let (plane, namespace) = shared("outside").await?;
    let release = Release::new(&unique("nw"), &namespace).values(json!({ "drainKeeper": {
        "enabled": true,
        "deployment": { "enabled": false },
        "readManagedUpgradeConfigMap": { "enabled": true },
        "config": { "upgradeSignal": { "anyOf": ["openshift", { "preset": "systemUpgradeController" }] } },
    } }));
    release.install(plane).await?;
    let operator = spec(plane, &release, "drain-keeper").await?.start(plane).await?;
    leads(&operator, "drain-keeper").await?;
    exports_what_is_documented(&operator, "drain-keeper").await?;
    ends_well(&operator).await?;
    release.uninstall(plane).await
}

/// In kube-system, whose pods have budgets, too. The kinds are this release's: no other one of this binary installs them.
#[tokio::test]
async fn drain_lock_answers_across_a_chart_upgrade() -> Result<()> {
    let (plane, _) = shared("outside").await?;
    let namespace = "kube-system".to_owned();
    let client = plane.client().await?;
    let port = ports::free()?;
    let values = |config: Value| {
        json!({
            "drainLock": {
                "enabled": true,
                "deployment": { "enabled": false },
                "config": config,
                "webhook": { "url": format!("https://127.0.0.1:{port}") },
            },
        })
    };
    let release = Release::new(&unique("nw"), &namespace).values(values(json!({})));
    release.install(plane).await?;
    let name = format!("{}-nodeward-drain-lock", release.name());
    let spec = spec(plane, &release, "drain-lock").await?;
    let spec = spec
        .arg(&format!("--webhook-bind=127.0.0.1:{port}"))
        .arg(&format!("--webhook-configuration={name}"));
    let operator = spec.start(plane).await?;
    leads(&operator, "drain-lock").await?;

    let apps = unique("apps");
    plane.namespace(&apps).await?;
    let node = unique("outside");
    fleet::create(&client, [NodeSpec::worker(&node)]).await?;
    bulk::create(&client, [PodTemplate::new().on(&node).pod(&apps, "asked-for")?]).await?;
    let configurations: Api<ValidatingWebhookConfiguration> = Api::all(client.clone());
    is_asked(&client, &operator, &apps).await?;
    is_asked_about_all_but_its_own_pods(&client, &name).await?;
    let published = authority(&configurations.get(&name).await?)?;

    let release = release.values(values(json!({ "fallback": "Wait" })));
    release.install(plane).await?;
    let after = authority(&configurations.get(&name).await?)?;
    ensure!(published == after, "an upgrade has taken the certificate to trust away");
    is_asked(&client, &operator, &apps).await?;

    exports_what_is_documented(&operator, "drain-lock").await?;
    ends_well(&operator).await?;
    release.uninstall(plane).await?;
    ensure!(
        configurations.get_opt(&name).await?.is_none(),
        "evictions are still reviewed"
    );
    let kinds: Api<CustomResourceDefinition> = Api::all(client);
    ensure!(
        kinds.get_opt("nodedrains.nodeward.dev").await?.is_some(),
        "the kinds are gone"
    );
    Ok(())
}

/// The kind is this release's: no other one of this binary installs it.
#[tokio::test]
async fn health_check_reviews_under_the_installed_account() -> Result<()> {
    let (plane, namespace) = shared("outside").await?;
    let port = ports::free()?;
    let release = Release::new(&unique("nw"), &namespace).values(json!({
        "healthCheck": {
            "enabled": true,
            "deployment": { "enabled": false },
            "webhook": { "url": format!("https://127.0.0.1:{port}") },
        },
    }));
    release.install(plane).await?;
    let name = format!("{}-nodeward-health-check", release.name());
    let spec = spec(plane, &release, "health-check").await?;
    let spec = spec
        .arg(&format!("--webhook-bind=127.0.0.1:{port}"))
        .arg(&format!("--webhook-configuration={name}"));
    let operator = spec.start(plane).await?;
    leads(&operator, "health-check").await?;

    let checks: Api<NodeHealthCheck> = Api::all(plane.client().await?);
    let dry_run = PostParams {
        dry_run: true,
        ..PostParams::default()
    };
    let check = |operator: &str| -> Result<NodeHealthCheck> {
        Ok(serde_json::from_value(json!({
            "metadata": { "name": unique("check") },
            "spec": {
                "selector": { "matchExpressions": [{ "key": "nobody", "operator": operator }] },
                "remediationTemplate": { "apiVersion": "absent.example.com/v1", "kind": "FenceTemplate", "namespace": "fence", "name": "t" },
            },
        }))?)
    };
    // The schema takes any word for an operator.
    let unknown = check("Near")?;
    // Until the certificate is published the API server goes on without an answer.
    wait::until("the API server to ask", secs(60), || async {
        let refused = checks.create(&dry_run, &unknown).await;
        let Err(kube::Error::Api(status)) = &refused else {
            anyhow::bail!("{refused:?}");
        };
        ensure!(status.message.contains("spec.selector"), "{}", status.message);
        Ok(())
    })
    .await?;
    // A template that does not exist is a warning.
    checks.create(&dry_run, &check("Exists")?).await?;
    let reviews = operator.metrics().await?;
    let warned = [("decision", "warned")];
    let warned = reviews.sum("nodeward_health_check_node_health_check_reviews_total", &warned);
    ensure!(warned >= 1.0, "it was not asked");

    exports_what_is_documented(&operator, "health-check").await?;
    ends_well(&operator).await?;
    release.uninstall(plane).await
}

/// Waits until the API server asks about an eviction. That is refused after it, for it is meant for another pod of the name.
async fn is_asked(client: &kube::Client, operator: &Operator, namespace: &str) -> Result<()> {
    let reviews = async || {
        Ok::<_, anyhow::Error>(
            operator
                .metrics()
                .await?
                .sum("nodeward_drain_lock_eviction_reviews_total", &[]),
        )
    };
    let before = reviews().await?;
    let pods: Api<Pod> = Api::namespaced(client.clone(), namespace);
    let eviction = json!({
        "apiVersion": "policy/v1", "kind": "Eviction",
        "metadata": { "name": "asked-for", "namespace": namespace },
        "deleteOptions": { "preconditions": { "uid": "another" } },
    });
    wait::until("the API server to ask", secs(60), || async {
        let refused = pods
            .create_subresource::<_, Value>("eviction", "asked-for", &PostParams::default(), &eviction)
            .await;
        ensure!(
            matches!(&refused, Err(kube::Error::Api(status)) if status.code == 409),
            "{refused:?}"
        );
        ensure!(reviews().await? > before, "not once");
        Ok(())
    })
    .await
}

/// A forged eviction is refused where drain-lock is asked, and none of these pods exists. One that names another pod than its path
/// goes nowhere.
async fn is_asked_about_all_but_its_own_pods(client: &kube::Client, fullname: &str) -> Result<()> {
    let own = format!("{fullname}-5d9c7b8f6d-x2x5z");
    for (namespace, pod, named, code) in [
        ("kube-system", "coredns-5d9c7b8f6d-x2x5z", None, 403),
        ("kube-system", own.as_str(), None, 404),
        ("default", own.as_str(), None, 403),
        ("kube-system", "coredns-5d9c7b8f6d-x2x5z", Some(own.as_str()), 400),
    ] {
        let pods: Api<Pod> = Api::namespaced(client.clone(), namespace);
        let name = named.unwrap_or(pod);
        let annotations = json!({ "nodeward.dev/ticket": "1/1" });
        let eviction = json!({
            "apiVersion": "policy/v1", "kind": "Eviction",
            "metadata": { "name": name, "namespace": namespace, "annotations": annotations },
        });
        let refused = pods
            .create_subresource::<_, Value>("eviction", pod, &PostParams::default(), &eviction)
            .await;
        ensure!(
            matches!(&refused, Err(kube::Error::Api(status)) if status.code == code),
            "{namespace}/{pod}: {refused:?}"
        );
    }
    Ok(())
}

fn authority(configuration: &ValidatingWebhookConfiguration) -> Result<ByteString> {
    let webhook = configuration.webhooks.iter().flatten().next().context("no webhook")?;
    webhook
        .client_config
        .ca_bundle
        .clone()
        .context("no certificate is published")
}

/// The operator as the chart would run it.
async fn spec(plane: &ControlPlane, release: &Release, component: &str) -> Result<OperatorSpec> {
    let name = format!("{}-nodeward-{component}", release.name());
    let client = plane.client().await?;
    let rights = [
        ["list", "", "nodes", ""],
        ["create", "coordination.k8s.io", "leases", release.namespace()],
    ];
    operator::granted(&client, release.namespace(), &name, &rights).await?;
    let config_maps: Api<ConfigMap> = Api::namespaced(client, release.namespace());
    let data = config_maps.get(&name).await?.data.unwrap_or_default();
    let config = data.get("config.yaml").context("no config.yaml")?;
    Ok(OperatorSpec::new(component, release.namespace(), &name).config(config))
}

async fn leads(operator: &Operator, component: &str) -> Result<()> {
    operator.ready(secs(60)).await?;
    let name = format!("nodeward_{}_leading", component.replace('-', "_"));
    wait::until("it to lead", secs(60), || async {
        let leading = operator.metrics().await?.value(&name, &[]);
        ensure!(leading == Some(1.0), "{leading:?}");
        Ok(())
    })
    .await
}

async fn exports_what_is_documented(operator: &Operator, component: &str) -> Result<()> {
    let root = concat!(env!("CARGO_MANIFEST_DIR"), "/../..");
    let page = std::fs::read_to_string(format!("{root}/docs/{component}/metrics.md"))?;
    let (_, exported) = operator.get("/metrics").await?;
    let types: Vec<&str> = exported
        .lines()
        .filter_map(|line| line.strip_prefix("# TYPE "))
        .collect();
    ensure!(types.len() > 5, "{exported}");
    for exported in types {
        let (name, kind) = exported.split_once(' ').context("no type")?;
        let suffix = match kind {
            "counter" => "_total",
            "info" => "_info",
            _ => "",
        };
        let row = format!("| `{name}{suffix}` | {kind} |");
        ensure!(page.contains(&row), "not on the page: {row}");
    }
    Ok(())
}

/// Nothing was forbidden to it, and it ends when it is told to.
async fn ends_well(operator: &Operator) -> Result<()> {
    let log = operator.log();
    ensure!(!log.to_lowercase().contains("forbidden"), "{log}");
    let status = operator.stop(secs(60)).await?;
    ensure!(status.success(), "{status}: {}", operator.log());
    Ok(())
}
