//! What the ServiceAccounts may and may not do, asked of the API server's own authorizer.

use anyhow::{Context, Result, ensure};
use k8s_openapi::api::authorization::v1::{ResourceAttributes, SubjectAccessReview, SubjectAccessReviewSpec};
use k8s_openapi::api::rbac::v1::{ClusterRoleBinding, RoleBinding};
use kube::api::{Api, PostParams};
use nodeward_testkit::helm::Release;
use nodeward_testkit::names::unique;
use nodeward_testkit::wait::{self, secs};
use nodeward_testkit::{ControlPlane, bulk};
use serde_json::json;

use crate::{FOREIGN_NAMESPACE, LEASES_NAMESPACE, ensure_foreign_namespaces};

/// Verb, group, resource and subresource, namespace ("" in all), name ("" any), and who may: the first user, the second.
type Right<'a> = (&'a str, &'a str, &'a str, &'a str, &'a str, bool, bool);

#[tokio::test]
async fn the_service_account_may_do_what_drain_keeper_does_and_nothing_more() -> Result<()> {
    let plane = ControlPlane::shared().await;
    let namespace = unique("rights");
    ensure_foreign_namespaces(plane).await?;
    let real = Release::new(&unique("real"), &namespace).values(json!({ "drainKeeper": {
        "deployment": { "enabled": false },
        "readManagedUpgradeConfigMap": { "enabled": true },
    } }));
    let dry = Release::new(&unique("dry"), &namespace)
        .values(json!({ "drainKeeper": { "deployment": { "enabled": false }, "dryRun": true } }));
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
        ("list", "nodeward.dev", "nodedrains", "", "", true, true),
        ("watch", "nodeward.dev", "drainledgers", "", "", true, true),
        ("watch", "nodeward.dev", "disruptionholds", "", "", true, true),
        ("patch", "nodeward.dev", "nodedrains", "", "", false, false),
        ("patch", "nodeward.dev", "drainledgers", "", "", false, false),
    ];
    expect(plane, "drain-keeper", [&real, &dry], &table).await
}

#[tokio::test]
async fn the_service_account_may_do_what_drain_lock_does_and_nothing_more() -> Result<()> {
    let plane = ControlPlane::shared().await;
    let namespace = unique("rights");
    ensure_foreign_namespaces(plane).await?;
    let with = |values: serde_json::Value| {
        let mut all = json!({
            "crds": { "enabled": false },
            "drainKeeper": { "enabled": false },
            "drainLock": { "enabled": true, "deployment": { "enabled": false } },
        });
        for (key, value) in values.as_object().into_iter().flatten() {
            all["drainLock"][key] = value.clone();
        }
        all
    };
    // The namespace of the leases exists: the role is made without a word of the user's.
    let real = Release::new(&unique("real"), &namespace).values(with(json!({})));
    let dry = Release::new(&unique("dry"), &namespace).values(with(json!({ "dryRun": true })));
    let own = namespace.as_str();
    let hook = format!("{}-nodeward-drain-lock", real.name());
    let hook = hook.as_str();
    let table = [
        ("watch", "", "nodes", "", "", true, true),
        ("get", "", "nodes", "", "", true, true),
        ("patch", "", "nodes", "", "", true, false),
        ("patch", "", "nodes/status", "", "", true, false),
        ("update", "", "nodes", "", "", false, false),
        ("delete", "", "nodes", "", "", false, false),
        ("list", "", "pods", "", "", true, true),
        ("patch", "", "pods", "", "", false, false),
        ("delete", "", "pods", "", "", false, false),
        ("create", "", "pods", "", "", false, false),
        ("create", "", "pods/exec", "", "", false, false),
        ("create", "", "pods/eviction", "", "", true, false),
        ("list", "", "persistentvolumes", "", "", true, true),
        ("patch", "", "persistentvolumes", "", "", false, false),
        ("get", "policy", "poddisruptionbudgets", "", "", true, true),
        ("watch", "policy", "poddisruptionbudgets", "", "", true, true),
        ("patch", "policy", "poddisruptionbudgets", "", "", true, false),
        ("patch", "policy", "poddisruptionbudgets/status", "", "", false, false),
        ("delete", "policy", "poddisruptionbudgets", "", "", false, false),
        ("watch", "nodeward.dev", "nodedrains", "", "", true, true),
        ("create", "nodeward.dev", "nodedrains", "", "", true, false),
        ("patch", "nodeward.dev", "nodedrains", "", "", true, false),
        ("delete", "nodeward.dev", "nodedrains", "", "", true, false),
        ("patch", "nodeward.dev", "nodedrains/status", "", "", true, false),
        ("watch", "nodeward.dev", "drainledgers", "", "", true, true),
        ("create", "nodeward.dev", "drainledgers", "", "", true, false),
        ("patch", "nodeward.dev", "drainledgers", "", "", true, false),
        ("delete", "nodeward.dev", "drainledgers", "", "", false, false),
        ("watch", "nodeward.dev", "disruptionholds", "", "", true, true),
        ("patch", "nodeward.dev", "disruptionholds", "", "", false, false),
        ("patch", "nodeward.dev", "disruptionholds/status", "", "", true, false),
        ("create", "events.k8s.io", "events", "default", "", true, false),
        (
            "create",
            "authentication.k8s.io",
            "selfsubjectreviews",
            "",
            "",
            true,
            true,
        ),
        ("watch", "", "secrets", own, "drain-lock-webhook-cert", true, true),
        ("update", "", "secrets", own, "drain-lock-webhook-cert", true, false),
        ("create", "", "secrets", own, "", true, false),
        ("get", "", "secrets", own, "another", false, false),
        ("list", "", "secrets", own, "", false, false),
        ("create", "", "secrets", "default", "", false, false),
        (
            "get",
            "admissionregistration.k8s.io",
            "validatingwebhookconfigurations",
            "",
            hook,
            true,
            false,
        ),
        (
            "patch",
            "admissionregistration.k8s.io",
            "validatingwebhookconfigurations",
            "",
            hook,
            true,
            false,
        ),
        (
            "patch",
            "admissionregistration.k8s.io",
            "validatingwebhookconfigurations",
            "",
            "another",
            false,
            false,
        ),
        ("patch", "coordination.k8s.io", "leases", own, "drain-lock", true, false),
        (
            "patch",
            "coordination.k8s.io",
            "leases",
            own,
            "drain-lock-dry-run",
            true,
            true,
        ),
        (
            "patch",
            "coordination.k8s.io",
            "leases",
            own,
            "drain-keeper",
            false,
            false,
        ),
        (
            "watch",
            "coordination.k8s.io",
            "leases",
            LEASES_NAMESPACE,
            "",
            true,
            true,
        ),
        (
            "create",
            "coordination.k8s.io",
            "leases",
            LEASES_NAMESPACE,
            "",
            true,
            false,
        ),
        (
            "update",
            "coordination.k8s.io",
            "leases",
            LEASES_NAMESPACE,
            "node-n1",
            true,
            false,
        ),
        (
            "delete",
            "coordination.k8s.io",
            "leases",
            LEASES_NAMESPACE,
            "node-n1",
            true,
            false,
        ),
        (
            "delete",
            "coordination.k8s.io",
            "leases",
            "kube-system",
            "",
            false,
            false,
        ),
        ("get", "", "configmaps", own, "", false, false),
    ];
    expect(plane, "drain-lock", [&real, &dry], &table).await
}

/// The first has every right that a value can grant, the second is without all that a value can take away.
#[tokio::test]
async fn what_few_need_is_granted_only_where_a_value_says_so() -> Result<()> {
    let plane = ControlPlane::shared().await;
    let namespace = unique("rights");
    ensure_foreign_namespaces(plane).await?;
    let all = Release::new(&unique("all"), &namespace).values(json!({
        "crds": { "enabled": false },
        "drainLock": {
            "enabled": true, "deployment": { "enabled": false },
            "config": { "fallback": "Delete" }, "reserveThroughBudgetStatus": true,
        },
    }));
    let few = Release::new(&unique("few"), &namespace).values(json!({
        "crds": { "enabled": false },
        "drainLock": {
            "enabled": true, "deployment": { "enabled": false }, "medik8sLease": { "enabled": false },
            "webhook": { "url": "https://192.0.2.1:9443", "certificate": { "from": "secret", "secretName": "tls" } },
        },
    }));
    let own = namespace.as_str();
    let table = [
        ("delete", "", "pods", "", "", true, false),
        ("deletecollection", "", "pods", "", "", false, false),
        ("patch", "policy", "poddisruptionbudgets/status", "", "", true, false),
        ("update", "policy", "poddisruptionbudgets/status", "", "", false, false),
        (
            "list",
            "coordination.k8s.io",
            "leases",
            LEASES_NAMESPACE,
            "",
            true,
            false,
        ),
        ("get", "", "secrets", own, "drain-lock-webhook-cert", true, false),
        ("create", "", "secrets", own, "", true, false),
        ("create", "", "pods/eviction", "", "", true, true),
    ];
    expect(plane, "drain-lock", [&all, &few], &table).await
}

/// Who has the role `edit` in one namespace, and who has the chart's role for those who run the cluster.
#[tokio::test]
async fn owners_hold_budgets_and_administrators_drain_nodes_with_no_right_to_evict() -> Result<()> {
    let plane = ControlPlane::shared().await;
    let client = plane.client().await?;
    let apps = unique("apps");
    plane.namespace(&apps).await?;
    let values = json!({
        "crds": { "enabled": false }, "drainKeeper": { "enabled": false },
        "drainLock": { "enabled": true, "deployment": { "enabled": false } },
    });
    let release = Release::new(&unique("people"), &unique("rights")).values(values);
    release.install(plane).await?;
    let (owner, administrator) = (unique("owner"), unique("administrator"));
    let of_owner: RoleBinding = serde_json::from_value(json!({
        "metadata": { "name": owner, "namespace": apps },
        "roleRef": { "apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": "edit" },
        "subjects": [{ "apiGroup": "rbac.authorization.k8s.io", "kind": "User", "name": owner }],
    }))?;
    let role = format!("{}-nodeward-admin", release.name());
    let of_administrator: ClusterRoleBinding = serde_json::from_value(json!({
        "metadata": { "name": administrator },
        "roleRef": { "apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": role },
        "subjects": [{ "apiGroup": "rbac.authorization.k8s.io", "kind": "User", "name": administrator }],
    }))?;
    bulk::create(&client, [of_owner]).await?;
    bulk::create(&client, [of_administrator]).await?;
    let within = apps.as_str();
    let table = [
        ("create", "nodeward.dev", "disruptionholds", within, "", true, true),
        ("delete", "nodeward.dev", "disruptionholds", within, "", true, true),
        ("create", "nodeward.dev", "disruptionholds", "default", "", false, true),
        ("patch", "policy", "poddisruptionbudgets", within, "", true, false),
        ("list", "nodeward.dev", "nodedrains", "", "", false, true),
        ("create", "nodeward.dev", "nodedrains", "", "", false, true),
        ("patch", "nodeward.dev", "nodedrains", "", "", false, true),
        ("delete", "nodeward.dev", "nodedrains", "", "", false, true),
        ("list", "nodeward.dev", "drainledgers", "", "", false, true),
        ("patch", "nodeward.dev", "drainledgers", "", "", false, false),
        ("patch", "nodeward.dev", "nodedrains/status", "", "", false, false),
        ("list", "", "pods", "", "", false, true),
        ("create", "", "pods/eviction", "kube-system", "", false, false),
        ("patch", "", "nodes", "", "", false, false),
    ];
    exactly(plane, [&owner, &administrator], &table).await?;
    release.uninstall(plane).await
}

/// Installs both, waits until the accounts' rights are these, and uninstalls them.
async fn expect(plane: &ControlPlane, component: &str, releases: [&Release; 2], table: &[Right<'_>]) -> Result<()> {
    for release in releases {
        release.install(plane).await?;
    }
    let accounts = releases.map(|release| {
        let (name, namespace) = (release.name(), release.namespace());
        format!("system:serviceaccount:{namespace}:{name}-nodeward-{component}")
    });
    exactly(plane, accounts.each_ref().map(String::as_str), table).await?;
    for release in releases {
        release.uninstall(plane).await?;
    }
    Ok(())
}

/// Waits until the users' rights are these.
async fn exactly(plane: &ControlPlane, users: [&str; 2], table: &[Right<'_>]) -> Result<()> {
    let reviews: Api<SubjectAccessReview> = Api::all(plane.client().await?);
    // A grant is in force once the authorizer's own watch has seen it.
    wait::until("the rights to be exactly these", secs(60), || async {
        let mut wrong = Vec::new();
        for (verb, group, resource, within, name, first, second) in table {
            for (user, expected) in users.into_iter().zip([*first, *second]) {
                let review = review_of(user, [*verb, *group, *resource, *within, *name]);
                let answer = reviews.create(&PostParams::default(), &review).await?;
                if answer.status.context("no answer")?.allowed != expected {
                    wrong.push(format!(
                        "{user}: {verb} {group}/{resource} {within}/{name} should be {expected}"
                    ));
                }
            }
        }
        ensure!(wrong.is_empty(), "{wrong:#?}");
        Ok(())
    })
    .await
}

fn review_of(user: &str, asked: [&str; 5]) -> SubjectAccessReview {
    let [verb, group, resource, within, name] = asked;
    let some = |text: &str| (!text.is_empty()).then(|| text.to_owned());
    let (resource, subresource) = resource.split_once('/').unwrap_or((resource, ""));
    SubjectAccessReview {
        spec: SubjectAccessReviewSpec {
            user: Some(user.to_owned()),
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
