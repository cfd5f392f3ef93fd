//! Install, upgrade, uninstall.

use anyhow::{Context, Result, ensure};
use k8s_openapi::api::apps::v1::Deployment;
use k8s_openapi::api::core::v1::{Namespace, Pod};
use kube::api::{Api, DynamicObject, ListParams, Patch, PatchParams};
use kube::discovery::ApiResource;
use nodeward_testkit::fleet::{self, NodeSpec};
use nodeward_testkit::helm::Release;
use nodeward_testkit::names::unique;
use nodeward_testkit::wait::{self, secs};
use serde_json::json;

use crate::shared;

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
            let gvk = kube::core::GroupVersionKind::gvk(group, "v1", kind);
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
    release.uninstall(plane).await
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
