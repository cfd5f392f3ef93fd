//! Install, upgrade, uninstall.

use std::collections::BTreeSet;

use anyhow::{Context, Result, ensure};
use k8s_openapi::api::apps::v1::Deployment;
use k8s_openapi::api::core::v1::{Namespace, Pod};
use kube::api::{Api, DynamicObject, ListParams, Patch, PatchParams, PostParams};
use kube::core::GroupVersionKind;
use kube::discovery::ApiResource;
use nodeward_testkit::fleet::{self, NodeSpec};
use nodeward_testkit::helm::Release;
use nodeward_testkit::names::unique;
use nodeward_testkit::wait::{self, secs};
use nodeward_testkit::{ControlPlane, Options};
use serde_json::{Value, json};

use crate::{CEPH_NAMESPACE, LEASES_NAMESPACE, shared};

const COMPONENTS: [&str; 4] = ["drain-keeper", "drain-lock", "health-check", "ceph-pdb"];

/// Whoever follows them in a dry run must not be left without the budgets that Rook writes, nor wait for a drain.
#[tokio::test]
async fn notes_after_install_fit_a_dry_run() -> Result<()> {
    let (plane, namespace) = shared("notes").await?;
    let notes = async |dry_run: bool| {
        let values = json!({
            "drainKeeper": { "enabled": true, "dryRun": dry_run },
            "drainLock": { "enabled": true, "dryRun": dry_run },
            "healthCheck": { "enabled": true, "dryRun": dry_run, "leases": { "create": "never" } },
            "cephPdb": { "enabled": true, "dryRun": dry_run },
        });
        Release::new("nodeward", &namespace).values(values).notes(plane).await
    };
    let steps = ["\"managePodBudgets\":false", "kubectl nodeward drain NODE"];
    let (real, dry) = (notes(false).await?, notes(true).await?);
    for step in steps {
        ensure!(real.contains(step), "{step}: {real}");
        ensure!(!dry.contains(step), "{step}: {dry}");
    }
    for needed in ["CephClient", "kubectl nodeward pause"] {
        ensure!(real.contains(needed) && dry.contains(needed), "{needed}: {real}{dry}");
    }
    ensure!(dry.matches("dry run").count() >= COMPONENTS.len(), "{dry}");
    Ok(())
}

/// The images' registry cannot be reached by a test, and kwok does not need it: the objects are real, the pods' containers
/// are played. The namespace enforces the restricted Pod Security Standard.
#[tokio::test]
async fn chart_lives_under_the_restricted_standard() -> Result<()> {
    let (plane, namespace) = shared("restricted").await?;
    let client = plane.client().await?;
    plane.namespace(&namespace).await?;
    let enforce = json!({ "metadata": { "labels": { "pod-security.kubernetes.io/enforce": "restricted" } } });
    let namespaces: Api<Namespace> = Api::all(client.clone());
    namespaces
        .patch(&namespace, &PatchParams::default(), &Patch::Merge(enforce))
        .await?;
    fleet::create(&client, NodeSpec::workers(&unique("chart"), 2)).await?;

    // The kinds are another release's: they can be of one alone.
    let values = |keeper, lock, check, ceph| {
        json!({
            "crds": { "enabled": false },
            "drainKeeper": { "enabled": true, "config": keeper },
            "drainLock": { "enabled": true, "config": lock },
            "healthCheck": { "enabled": true, "config": check },
            "cephPdb": { "enabled": true, "config": ceph },
        })
    };
    let defaults = values(json!({}), json!({}), json!({}), json!({}));
    let release = Release::new(&unique("nw"), &namespace).values(defaults);
    release.install(plane).await?;
    let before = rolled_out(&client, &release).await?;
    are_spread(&client, &release).await?;
    let changed = values(
        json!({ "nodeDrain": { "timeOut": 20 } }),
        json!({ "fallback": "Wait" }),
        json!({ "oldRemediationAfter": "24h" }),
        json!({ "osdBudgets": "single" }),
    );
    let release = release.values(changed);
    release.install(plane).await?;
    let after = rolled_out(&client, &release).await?;
    for (component, (before, after)) in COMPONENTS.iter().zip(before.iter().zip(&after)) {
        assert_ne!(before, after, "a changed configuration rolls the pods of {component}");
    }

    release.uninstall(plane).await?;
    wait::until("everything of the release to be gone", secs(60), || async {
        for (group, kind, plural) in [
            ("rbac.authorization.k8s.io", "ClusterRole", "clusterroles"),
            ("rbac.authorization.k8s.io", "ClusterRoleBinding", "clusterrolebindings"),
            (
                "admissionregistration.k8s.io",
                "ValidatingWebhookConfiguration",
                "validatingwebhookconfigurations",
            ),
        ] {
            let gvk = GroupVersionKind::gvk(group, "v1", kind);
            let resource = ApiResource::from_gvk_with_plural(&gvk, plural);
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

/// Each operator's replicas are on nodes of their own, though no node says its zone: a drain of one node leaves one of them.
async fn are_spread(client: &kube::Client, release: &Release) -> Result<()> {
    let pods = Api::<Pod>::namespaced(client.clone(), release.namespace());
    for component in COMPONENTS {
        let selected = of(release);
        let labels = selected.label_selector.unwrap_or_default();
        let selected = ListParams::default().labels(&format!("{labels},app.kubernetes.io/component={component}"));
        let pods = pods.list(&selected).await?.items;
        let nodes = pods.iter().filter_map(|pod| pod.spec.as_ref()?.node_name.as_deref());
        let nodes: BTreeSet<&str> = nodes.collect();
        ensure!(pods.len() == 2 && nodes.len() == 2, "{component} is on {nodes:?}");
    }
    Ok(())
}

/// With the flag that every upgrade in the documentation has.
#[tokio::test]
async fn enabling_one_component_keeps_the_others() -> Result<()> {
    let (plane, namespace) = shared("more").await?;
    let release = Release::new(&unique("nw"), &namespace);
    let only = |block: &str| json!({ "crds": { "enabled": false }, block: { "enabled": true, "replicas": 0 } });
    release.clone().values(only("drainKeeper")).install_more(plane).await?;
    release.clone().values(only("cephPdb")).install_more(plane).await?;
    let deployments: Api<Deployment> = Api::namespaced(plane.client().await?, &namespace);
    let found = deployments.list(&of(&release)).await?.items;
    let names: Vec<_> = found.into_iter().filter_map(|found| found.metadata.name).collect();
    let expected = ["ceph-pdb", "drain-keeper"].map(|component| format!("{}-nodeward-{component}", release.name()));
    assert_eq!(names, expected);
    // The strategy of a Deployment that is there changes as a whole.
    let alone = json!({ "drainKeeper": { "leaderElect": false } });
    release.clone().values(alone).install_more(plane).await?;
    let strategy = deployments.get(&expected[1]).await?.spec.and_then(|spec| spec.strategy);
    assert_eq!(
        strategy.and_then(|strategy| strategy.type_).as_deref(),
        Some("Recreate")
    );
    release.uninstall(plane).await
}

/// Whatever Helm does with a release that had an operator and then has none, and with the release itself. On a control plane of
/// its own, for the kinds can be of one release alone.
#[tokio::test]
async fn rollback_and_uninstall_keep_what_holds_state() -> Result<()> {
    const NAMESPACE: &str = "nodeward-system";
    let plane = ControlPlane::start(Options::patient()).await?;
    let client = plane.client().await?;
    plane.namespace(CEPH_NAMESPACE).await?;
    let nobody_runs = json!({ "enabled": true, "deployment": { "enabled": false } });
    let of = |values: Value| Release::new("nodeward", NAMESPACE).values(values);
    let first = of(json!({ "drainKeeper": nobody_runs }));
    let all = of(json!({
        "drainKeeper": nobody_runs, "drainLock": nobody_runs, "healthCheck": nobody_runs, "cephPdb": nobody_runs,
    }));
    first.install(&plane).await?;
    all.install(&plane).await?;
    for (object, plural) in state() {
        let (api, object) = dynamic(&client, &object, plural)?;
        let name = object.metadata.name.clone().context("no name")?;
        // The kinds are served a moment after their definitions are stored.
        wait::until(format!("{plural} {name} to be made"), secs(60), || async {
            Ok(api.create(&PostParams::default(), &object).await?)
        })
        .await?;
    }
    let before = uids(&client).await?;
    // The second upgrade finds the namespace of the leases.
    all.install(&plane).await?;
    ensure!(
        uids(&client).await? == before,
        "an upgrade has replaced or pruned something"
    );
    first.install(&plane).await?;
    ensure!(
        uids(&client).await? == before,
        "an upgrade that disables operators has pruned something"
    );
    all.rollback(&plane, 3).await?;
    ensure!(uids(&client).await? == before, "a rollback has replaced something");
    all.rollback(&plane, 1).await?;
    ensure!(uids(&client).await? == before, "a rollback has pruned something");
    // Helm rolls no release back to objects that it has kept outside of it, but takes them over in an upgrade.
    all.install(&plane).await?;
    ensure!(uids(&client).await? == before, "an upgrade has replaced something");
    all.uninstall(&plane).await?;
    ensure!(uids(&client).await? == before, "an uninstall has pruned something");
    all.install(&plane).await?;
    ensure!(uids(&client).await? == before, "an install has replaced something");
    all.uninstall(&plane).await
}

/// What operators and people keep state in, and the plurals of its kinds.
fn state() -> Vec<(Value, &'static str)> {
    let named = |name: &str, namespace: Option<&str>| json!({ "name": name, "namespace": namespace });
    let system = Some("nodeward-system");
    let object = |api_version: &str, kind: &str, metadata: Value, content: Value| {
        let mut object = json!({ "apiVersion": api_version, "kind": kind, "metadata": metadata });
        for (field, value) in content.as_object().into_iter().flatten() {
            object[field] = value.clone();
        }
        object
    };
    let own = "nodeward.dev/v1alpha1";
    let ledger = json!({ "spec": { "formatVersion": 1, "nextTicket": 7, "budgets": [], "claims": [] } });
    let mut objects = vec![
        (
            object(own, "DrainLedger", named("cluster", None), ledger),
            "drainledgers",
        ),
        (
            object(
                own,
                "NodeDrain",
                named("n1", None),
                json!({ "spec": { "nodeName": "n1" } }),
            ),
            "nodedrains",
        ),
        (
            object(
                own,
                "DisruptionHold",
                named("h", Some("default")),
                json!({ "spec": {
                "pdbRef": "web", "reason": "r", "expiresAt": "2099-01-01T00:00:00Z",
            } }),
            ),
            "disruptionholds",
        ),
        (
            object(
                "remediation.medik8s.io/v1alpha1",
                "NodeHealthCheck",
                named("workers", None),
                json!({ "spec": {
                "selector": { "matchExpressions": [{ "key": "a", "operator": "Exists" }] },
                "remediationTemplate": { "apiVersion": "a.io/v1", "kind": "FenceTemplate", "namespace": "fence", "name": "t" },
            } }),
            ),
            "nodehealthchecks",
        ),
        (
            object(
                "v1",
                "ConfigMap",
                named("nodeward-ceph-pdb", Some(CEPH_NAMESPACE)),
                json!({}),
            ),
            "configmaps",
        ),
    ];
    for name in ["nodeward-pause", "nodeward-health-check-default"] {
        objects.push((
            object(
                "v1",
                "ConfigMap",
                named(name, system),
                json!({ "data": { "all": "r" } }),
            ),
            "configmaps",
        ));
    }
    for name in ["drain-lock-webhook-cert", "health-check-webhook-cert"] {
        objects.push((object("v1", "Secret", named(name, system), json!({})), "secrets"));
    }
    for name in COMPONENTS {
        objects.push((
            object("coordination.k8s.io/v1", "Lease", named(name, system), json!({})),
            "leases",
        ));
    }
    objects
}

/// The UIDs of all that holds state, and of what it is in: whatever was made anew has another.
async fn uids(client: &kube::Client) -> Result<Vec<String>> {
    let definition = |name: &str| {
        json!({
            "apiVersion": "apiextensions.k8s.io/v1", "kind": "CustomResourceDefinition", "metadata": { "name": name },
        })
    };
    let mut all = state();
    all.push((
        json!({ "apiVersion": "v1", "kind": "Namespace", "metadata": { "name": LEASES_NAMESPACE } }),
        "namespaces",
    ));
    for name in ["nodedrains", "drainledgers", "disruptionholds"] {
        all.push((definition(&format!("{name}.nodeward.dev")), "customresourcedefinitions"));
    }
    all.push((
        definition("nodehealthchecks.remediation.medik8s.io"),
        "customresourcedefinitions",
    ));
    let mut uids = Vec::new();
    for (object, plural) in all {
        let (api, object) = dynamic(client, &object, plural)?;
        let name = object.metadata.name.context("no name")?;
        let found = api.get(&name).await.with_context(|| format!("{plural} {name}"))?;
        ensure!(
            found.metadata.deletion_timestamp.is_none(),
            "{plural} {name} is being deleted"
        );
        uids.push(found.metadata.uid.context("no UID")?);
    }
    Ok(uids)
}

fn dynamic(client: &kube::Client, object: &Value, plural: &str) -> Result<(Api<DynamicObject>, DynamicObject)> {
    let object: DynamicObject = serde_json::from_value(object.clone())?;
    let types = object.types.clone().context("no kind")?;
    let resource = ApiResource::from_gvk_with_plural(&GroupVersionKind::try_from(types)?, plural);
    let api = match &object.metadata.namespace {
        Some(namespace) => Api::namespaced_with(client.clone(), namespace, &resource),
        None => Api::all_with(client.clone(), &resource),
    };
    Ok((api, object))
}

/// Waits until all replicas of the present templates are available; gives the templates' checksums of the configuration.
async fn rolled_out(client: &kube::Client, release: &Release) -> Result<Vec<String>> {
    let deployments: Api<Deployment> = Api::namespaced(client.clone(), release.namespace());
    let mut checksums = Vec::new();
    for component in COMPONENTS {
        let name = format!("{}-nodeward-{component}", release.name());
        let checksum = wait::until(format!("{name} to be rolled out"), secs(90), || async {
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
        });
        checksums.push(checksum.await?);
    }
    Ok(checksums)
}

fn of(release: &Release) -> ListParams {
    ListParams::default().labels(&format!("app.kubernetes.io/instance={}", release.name()))
}
