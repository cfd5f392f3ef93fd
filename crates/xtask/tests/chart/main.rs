//! The chart: what it refuses, what it renders, and what a cluster makes of it.
#![allow(clippy::unwrap_used, reason = "helpers of tests are tests")]

use std::collections::BTreeMap;
use std::io::Write as _;
use std::process::Command;

use anyhow::{Context, Result, ensure};
use drain_keeper::settings::Settings;
use k8s_openapi::api::apps::v1::Deployment;
use k8s_openapi::api::authorization::v1::{ResourceAttributes, SubjectAccessReview, SubjectAccessReviewSpec};
use k8s_openapi::api::core::v1::{ConfigMap, Namespace, Pod};
use kube::api::{Api, DynamicObject, ListParams, Patch, PatchParams, PostParams};
use kube::discovery::ApiResource;
use nodeward_testkit::fleet::{self, NodeSpec};
use nodeward_testkit::helm::Release;
use nodeward_testkit::names::unique;
use nodeward_testkit::operator::OperatorSpec;
use nodeward_testkit::wait::{self, secs};
use nodeward_testkit::{ControlPlane, toolchain};
use rstest::rstest;
use serde_json::{Value, json};
use tokio::sync::OnceCell;

const CHART: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../../charts/nodeward");

/// managed-upgrade-operator's namespace in these tests.
const FOREIGN_NAMESPACE: &str = "openshift-managed-upgrade-operator";

/// Every combination of the switches that decide which objects there are.
fn combinations() -> Vec<Value> {
    const SWITCHES: [&str; 7] = [
        "/enabled",
        "/dryRun",
        "/deployment/enabled",
        "/rbac/create",
        "/serviceAccount/create",
        "/service/enabled",
        "/readManagedUpgradeConfigMap/enabled",
    ];
    (0..1_u32 << SWITCHES.len())
        .map(|bits| {
            let mut values = json!({});
            for (index, switch) in SWITCHES.iter().enumerate() {
                let on = bits & (1 << index) != 0;
                let mut place = &mut values;
                for part in switch.split('/').skip(1) {
                    place = &mut place[part];
                }
                *place = json!(on);
            }
            json!({ "drainKeeper": values })
        })
        .collect()
}

#[rstest]
#[case::defaults(json!({}))]
#[case::everything_on(json!({
    "monitoring": { "serviceMonitor": { "enabled": true }, "prometheusRule": { "enabled": true } },
    "drainKeeper": {
        "dryRun": true,
        "readManagedUpgradeConfigMap": { "enabled": true },
        "extraReadRules": [{ "apiGroups": ["example.com"], "resources": ["fleetupgrades"], "resourceNames": ["main"] }],
        "extraArgs": ["--log-level=debug"],
        "extraEnv": [{ "name": "A", "value": "b" }],
        "affinity": { "podAntiAffinity": {} },
        "image": { "digest": "sha256:0000000000000000000000000000000000000000000000000000000000000000" },
    },
}))]
#[case::nothing_on(json!({ "drainKeeper": { "enabled": false } }))]
fn helm_has_nothing_to_complain_of(#[case] values: Value) {
    let file = values_file(&values);
    let said = helm(&["lint", "--strict", CHART, "--values", file.path().to_str().unwrap()]);
    said.unwrap();
}

#[rstest]
#[case::a_typing_error(json!({ "drainKeper": {} }), "drainKeper")]
#[case::a_typing_error_further_in(json!({ "drainKeeper": { "replica": 1 } }), "replica")]
#[case::a_budget_that_blocks_every_drain(
    json!({ "drainKeeper": { "podDisruptionBudget": { "maxUnavailable": 0 } } }),
    "maxUnavailable"
)]
#[case::another_right_than_reading(
    json!({ "drainKeeper": { "extraReadRules": [{ "apiGroups": [""], "resources": ["pods"], "verbs": ["*"] }] } }),
    "verbs"
)]
#[case::the_same_said_twice(
    json!({ "drainKeeper": {
        "readManagedUpgradeConfigMap": { "enabled": true },
        "config": { "managedUpgradeConfigMap": { "name": "other" } },
    } }),
    "managedUpgradeConfigMap"
)]
fn values_that_cannot_be_meant_are_refused_by_name(#[case] values: Value, #[case] named: &str) {
    let file = values_file(&values);
    let refusal = helm(&["template", "nodeward", CHART, "--values", file.path().to_str().unwrap()]).unwrap_err();
    assert!(format!("{refusal:#}").contains(named), "{refusal:#}");
}

#[test]
fn the_configuration_that_is_rendered_is_one_that_the_operator_reads() {
    let values = json!({ "drainKeeper": {
        "readManagedUpgradeConfigMap": { "enabled": true, "name": "theirs" },
        "config": { "nodeDrain": { "timeOut": 20 }, "limits": { "forcedPerMinute": 3_000_000 } },
    } });
    let objects = rendered(&values);
    let config_map = objects.iter().find(|object| object["kind"] == "ConfigMap").unwrap();
    let policy = Settings::parse(config_map["data"]["config.yaml"].as_str().unwrap())
        .unwrap()
        .policy;
    assert_eq!(policy.managed_upgrade_config_map.unwrap().name, "theirs");
    assert_eq!(policy.forced_per_minute.get(), 3_000_000);
}

#[test]
fn no_rule_has_a_wildcard_and_a_dry_run_may_write_nothing_but_its_lease() {
    for values in combinations() {
        let dry_run = values["drainKeeper"]["dryRun"] == true;
        for role in rendered(&values)
            .iter()
            .filter(|object| object["kind"].as_str().unwrap().ends_with("Role"))
        {
            for rule in role["rules"].as_array().unwrap() {
                let text = rule.to_string();
                assert!(!text.contains("\"*\""), "{text}");
                let writes = ["create", "update", "patch", "delete"]
                    .iter()
                    .any(|verb| text.contains(verb));
                let of_lease = rule["resources"] == json!(["leases"]);
                assert!(!dry_run || !writes || of_lease, "{text}");
                assert!(
                    !dry_run || !text.contains("\"drain-keeper\""),
                    "the real one's lease: {text}"
                );
            }
        }
    }
}

/// The images' registry cannot be reached by a test, and kwok does not need it: the objects are real, the pods' containers
/// are played. The namespace enforces the restricted Pod Security Standard.
#[tokio::test]
async fn it_installs_upgrades_and_uninstalls_under_the_restricted_pod_security_standard() -> Result<()> {
    let plane = ControlPlane::shared().await;
    let client = plane.client().await?;
    let namespace = unique("restricted");
    plane.namespace(&namespace).await?;
    let enforce = json!({ "metadata": { "labels": { "pod-security.kubernetes.io/enforce": "restricted" } } });
    let namespaces: Api<Namespace> = Api::all(client.clone());
    namespaces
        .patch(&namespace, &PatchParams::default(), &Patch::Merge(enforce))
        .await?;
    fleet::create(&client, NodeSpec::workers(&unique("chart"), 2)).await?;

    let release = Release::new(&unique("nw"), &namespace);
    release.install(plane).await?;
    let before = rolled_out(&client, &release).await?;
    let config = json!({ "drainKeeper": { "config": { "nodeDrain": { "timeOut": 20 } } } });
    let release = release.values(config);
    release.install(plane).await?;
    let after = rolled_out(&client, &release).await?;
    assert_ne!(before, after, "a changed configuration rolls the pods");

    release.uninstall(plane).await?;
    wait::until("everything of the release to be gone", secs(30), || async {
        for (kind, plural) in [
            ("ClusterRole", "clusterroles"),
            ("ClusterRoleBinding", "clusterrolebindings"),
        ] {
            let resource = ApiResource::from_gvk_with_plural(
                &kube::core::GroupVersionKind::gvk("rbac.authorization.k8s.io", "v1", kind),
                plural,
            );
            let left = Api::<DynamicObject>::all_with(client.clone(), &resource)
                .list(&of(&release))
                .await?
                .items
                .len();
            ensure!(left == 0, "{left} {plural}");
        }
        let pods = Api::<Pod>::namespaced(client.clone(), &namespace)
            .list(&of(&release))
            .await?
            .items
            .len();
        ensure!(pods == 0, "{pods} pods");
        Ok(())
    })
    .await
}

/// Waits until all replicas of the present template are available; gives the template's checksum of the configuration.
async fn rolled_out(client: &kube::Client, release: &Release) -> Result<String> {
    let deployments: Api<Deployment> = Api::namespaced(client.clone(), release.namespace());
    let name = format!("{}-nodeward-drain-keeper", release.name());
    wait::until("the Deployment to be rolled out", secs(60), || async {
        let deployment = deployments.get(&name).await?;
        let status = deployment.status.clone().unwrap_or_default();
        ensure!(
            status.observed_generation == deployment.metadata.generation,
            "not observed"
        );
        let counts = (status.replicas, status.updated_replicas, status.available_replicas);
        ensure!(
            counts == (Some(2), Some(2), Some(2)),
            "{counts:?} {:?}",
            status.conditions
        );
        let annotations = deployment
            .spec
            .and_then(|spec| spec.template.metadata)
            .and_then(|meta| meta.annotations);
        annotations
            .unwrap_or_default()
            .remove("nodeward.dev/config-checksum")
            .context("no checksum")
    })
    .await
}

fn of(release: &Release) -> ListParams {
    ListParams::default().labels(&format!("app.kubernetes.io/instance={}", release.name()))
}

#[tokio::test]
async fn the_api_server_takes_what_every_combination_of_switches_renders() -> Result<()> {
    let plane = ControlPlane::shared().await;
    let namespace = unique("combinations");
    plane.namespace(&namespace).await?;
    ensure_foreign_namespace(plane).await?;
    // One request an object, so each object is tried once however many combinations render it.
    let mut objects = BTreeMap::new();
    for values in combinations() {
        for object in Release::new("nodeward", &namespace)
            .values(values)
            .template(plane)
            .await?
        {
            objects.insert(object.to_string(), object);
        }
    }
    ensure!(objects.len() > 15, "only {} different objects", objects.len());
    let list = json!({ "apiVersion": "v1", "kind": "List", "items": objects.into_values().collect::<Vec<_>>() });
    let mut file = tempfile::NamedTempFile::new()?;
    write!(file, "{list}")?;
    let mut kubectl = plane.kubectl();
    kubectl
        .args(["apply", "--dry-run=server", "--validate=strict", "--filename"])
        .arg(file.path());
    let output = kubectl.output()?;
    ensure!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    Ok(())
}

/// Made once, for the tests of this binary share the cluster.
async fn ensure_foreign_namespace(plane: &ControlPlane) -> Result<()> {
    static MADE: OnceCell<()> = OnceCell::const_new();
    MADE.get_or_try_init(|| plane.namespace(FOREIGN_NAMESPACE))
        .await
        .map(drop)
}

/// What the ServiceAccount may and may not do, asked of the API server's own authorizer.
#[tokio::test]
async fn the_service_account_may_do_what_drain_keeper_does_and_nothing_more() -> Result<()> {
    let plane = ControlPlane::shared().await;
    let client = plane.client().await?;
    let namespace = unique("rights");
    ensure_foreign_namespace(plane).await?;
    let real = Release::new(&unique("real"), &namespace).values(json!({ "drainKeeper": {
        "deployment": { "enabled": false },
        "readManagedUpgradeConfigMap": { "enabled": true },
    } }));
    let dry = Release::new(&unique("dry"), &namespace)
        .values(json!({ "drainKeeper": { "deployment": { "enabled": false }, "dryRun": true } }));
    real.install(plane).await?;
    dry.install(plane).await?;

    // verb, group, resource and subresource, namespace ("" in all), name ("" any): the real one, the dry run.
    let own = namespace.as_str();
    let table = [
        ("watch", "", "nodes", "", "", true, true),
        ("patch", "", "nodes", "", "", true, false),
        ("patch", "", "nodes/status", "", "", true, false),
        ("delete", "", "nodes", "", "", false, false),
        ("update", "", "nodes", "", "", false, false),
        ("list", "", "pods", "", "", true, true),
        ("patch", "", "pods", "", "", true, false),
        ("delete", "", "pods", "", "", true, false),
        ("deletecollection", "", "pods", "", "", false, false),
        ("create", "", "pods", "", "", false, false),
        ("create", "", "pods/exec", "", "", false, false),
        ("create", "", "pods/eviction", "", "", true, false),
        ("list", "policy", "poddisruptionbudgets", "", "", true, true),
        ("patch", "policy", "poddisruptionbudgets/status", "", "", true, false),
        ("patch", "policy", "poddisruptionbudgets", "", "", false, false),
        (
            "watch",
            "apiextensions.k8s.io",
            "customresourcedefinitions",
            "",
            "",
            true,
            true,
        ),
        (
            "list",
            "upgrade.managed.openshift.io",
            "upgradeconfigs",
            "",
            "",
            true,
            true,
        ),
        (
            "list",
            "machineconfiguration.openshift.io",
            "machineconfigpools",
            "",
            "",
            true,
            true,
        ),
        ("list", "config.openshift.io", "clusterversions", "", "", true, true),
        ("list", "upgrade.cattle.io", "plans", "", "", true, true),
        ("create", "events.k8s.io", "events", "default", "", true, false),
        ("patch", "events.k8s.io", "events", "default", "", true, false),
        ("get", "", "secrets", own, "", false, false),
        ("get", "coordination.k8s.io", "leases", own, "drain-keeper", true, false),
        (
            "patch",
            "coordination.k8s.io",
            "leases",
            own,
            "drain-keeper",
            true,
            false,
        ),
        (
            "patch",
            "coordination.k8s.io",
            "leases",
            own,
            "drain-keeper-dry-run",
            true,
            true,
        ),
        ("patch", "coordination.k8s.io", "leases", own, "another", false, false),
        ("create", "coordination.k8s.io", "leases", own, "", true, true),
        (
            "create",
            "coordination.k8s.io",
            "leases",
            "kube-system",
            "",
            false,
            false,
        ),
        (
            "watch",
            "",
            "configmaps",
            FOREIGN_NAMESPACE,
            "managed-upgrade-operator-config",
            true,
            false,
        ),
        ("watch", "", "configmaps", FOREIGN_NAMESPACE, "another", false, false),
        ("get", "", "configmaps", own, "", false, false),
    ];
    let reviews: Api<SubjectAccessReview> = Api::all(client);
    // A grant is in force once the authorizer's own watch has seen it.
    wait::until("the rights to be exactly these", secs(20), || async {
        let mut wrong = Vec::new();
        for (verb, group, resource, within, name, real_may, dry_may) in &table {
            for (release, expected) in [(&real, *real_may), (&dry, *dry_may)] {
                let review = review_of(release, verb, group, resource, within, name);
                let answer = reviews.create(&PostParams::default(), &review).await?;
                if answer.status.context("no answer")?.allowed != expected {
                    let rule = format!("{verb} {group}/{resource} {within}/{name}");
                    wrong.push(format!("{}: {rule} should be {expected}", release.name()));
                }
            }
        }
        ensure!(wrong.is_empty(), "{wrong:#?}");
        Ok(())
    })
    .await?;
    real.uninstall(plane).await?;
    dry.uninstall(plane).await
}

/// As a user does who runs it outside the cluster: `drainKeeper.deployment.enabled=false`.
#[tokio::test]
async fn the_binary_leads_under_the_installed_account_and_exports_what_is_documented() -> Result<()> {
    let plane = ControlPlane::shared().await;
    ensure_foreign_namespace(plane).await?;
    let namespace = unique("outside");
    let release = Release::new(&unique("nw"), &namespace).values(json!({ "drainKeeper": {
        "deployment": { "enabled": false },
        "readManagedUpgradeConfigMap": { "enabled": true },
        "config": { "upgradeSignal": { "anyOf": ["openshift", { "preset": "systemUpgradeController" }] } },
    } }));
    release.install(plane).await?;
    let name = format!("{}-nodeward-drain-keeper", release.name());
    let config_maps: Api<ConfigMap> = Api::namespaced(plane.client().await?, &namespace);
    let config = config_maps
        .get(&name)
        .await?
        .data
        .and_then(|mut data| data.remove("config.yaml"));
    let spec = OperatorSpec::new("drain-keeper", &namespace, &name).config(&config.context("no config.yaml")?);
    let operator = spec.start(plane).await?;
    operator.ready(secs(30)).await?;
    wait::until("it to lead", secs(30), || async {
        let leading = operator.metrics().await?.value("nodeward_drain_keeper_leading", &[]);
        ensure!(leading == Some(1.0), "{leading:?}");
        Ok(())
    })
    .await?;

    let page = std::fs::read_to_string(concat!(
        env!("CARGO_MANIFEST_DIR"),
        "/../../docs/drain-keeper/metrics.md"
    ))?;
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
    let log = operator.log();
    ensure!(!log.to_lowercase().contains("forbidden"), "{log}");
    let status = operator.stop(secs(30)).await?;
    ensure!(status.success(), "{status}: {}", operator.log());
    release.uninstall(plane).await
}

fn review_of(
    release: &Release,
    verb: &str,
    group: &str,
    resource: &str,
    within: &str,
    name: &str,
) -> SubjectAccessReview {
    let some = |text: &str| (!text.is_empty()).then(|| text.to_owned());
    let (resource, subresource) = resource.split_once('/').unwrap_or((resource, ""));
    let account = format!("{}-nodeward-drain-keeper", release.name());
    SubjectAccessReview {
        spec: SubjectAccessReviewSpec {
            user: Some(format!("system:serviceaccount:{}:{account}", release.namespace())),
            resource_attributes: Some(ResourceAttributes {
                verb: some(verb),
                group: some(group),
                resource: some(resource),
                subresource: some(subresource),
                namespace: some(within),
                name: some(name),
                ..ResourceAttributes::default()
            }),
            ..SubjectAccessReviewSpec::default()
        },
        ..SubjectAccessReview::default()
    }
}

fn rendered(values: &Value) -> Vec<Value> {
    let file = values_file(values);
    let text = helm(&[
        "template",
        "nodeward",
        CHART,
        "--namespace",
        "ns",
        "--values",
        file.path().to_str().unwrap(),
    ]);
    serde_yaml::Deserializer::from_str(&text.unwrap())
        .map(|document| serde::Deserialize::deserialize(document).unwrap())
        .filter(|object: &Value| !object.is_null())
        .collect()
}

fn values_file(values: &Value) -> tempfile::NamedTempFile {
    let mut file = tempfile::NamedTempFile::new().unwrap();
    write!(file, "{values}").unwrap();
    file
}

fn helm(args: &[&str]) -> Result<String> {
    let output = Command::new(toolchain::ensure_built()?.helm).args(args).output()?;
    let said = String::from_utf8_lossy(&output.stdout).into_owned();
    ensure!(
        output.status.success(),
        "{said}{}",
        String::from_utf8_lossy(&output.stderr)
    );
    Ok(said)
}
