//! What the chart's roles allow, and what is said to those who lack one.

use anyhow::{Context, Result, ensure};
use k8s_openapi::api::authorization::v1::SelfSubjectRulesReview;
use k8s_openapi::api::rbac::v1::{ClusterRoleBinding, RoleBinding};
use kube::Client;
use kube::api::{Api, PostParams};
use nodeward_testkit::bulk;
use nodeward_testkit::wait::{self, secs};
use serde_json::{Value, json};

use crate::environment::Environment;
use crate::person::{Person, says};

/// Binds a ClusterRole to a person: in a namespace, or everywhere.
pub async fn bind(env: &Environment, role: &str, person: &str, namespace: Option<&str>) -> Result<()> {
    let binding: Value = json!({
        "metadata": { "name": format!("{person}-{role}"), "namespace": namespace },
        "roleRef": { "apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": role },
        "subjects": [{ "apiGroup": "rbac.authorization.k8s.io", "kind": "User", "name": person }],
    });
    let before = rules(env, person, namespace).await?;
    if namespace.is_some() {
        bulk::create(&env.client, [serde_json::from_value::<RoleBinding>(binding)?]).await?;
    } else {
        bulk::create(&env.client, [serde_json::from_value::<ClusterRoleBinding>(binding)?]).await?;
    }
    // The API server goes by a binding a moment after it has stored it.
    wait::until(format!("{role} of {person}"), secs(60), || async {
        let now = rules(env, person, namespace).await?;
        ensure!(now > before, "{now} rules");
        Ok(())
    })
    .await
}

/// How many rules say what a person may do in a namespace.
async fn rules(env: &Environment, person: &str, namespace: Option<&str>) -> Result<usize> {
    let mut config = env.plane.config().await?;
    config.auth_info.impersonate = Some(person.to_owned());
    config.auth_info.impersonate_groups = Some(vec!["system:authenticated".to_owned()]);
    let reviews: Api<SelfSubjectRulesReview> = Api::all(Client::try_from(config)?);
    let review = serde_json::from_value(json!({ "spec": { "namespace": namespace.unwrap_or("default") } }))?;
    let status = reviews.create(&PostParams::default(), &review).await?.status;
    Ok(status.context("no status")?.resource_rules.len())
}

#[tokio::test(flavor = "multi_thread")]
async fn chart_roles_suffice_and_missing_rights_are_named() -> Result<()> {
    let env = Environment::new().await?;
    let [n1, n2] = env.workers().await?;
    env.add_pinned("web", &[n1.clone(), n2]).await?;
    let person = |name: &str| {
        let name = format!("{}-{name}", env.name);
        Person::named(env.plane, &name, "people", &env.name).map(|person| (person, name))
    };
    let ((operator, operator_name), (owner, owner_name), (viewer, viewer_name), (nobody, nobody_name)) = (
        person("operator")?,
        person("owner")?,
        person("viewer")?,
        person("nobody")?,
    );
    bind(&env, "nodeward-admin", &operator_name, None).await?;
    bind(&env, "edit", &owner_name, Some(&env.name)).await?;
    bind(&env, "nodeward-view", &viewer_name, None).await?;

    // Who runs the cluster needs no right to evict pods or to cordon nodes.
    says(&operator.page(&["plan", &n1]).await?, &["[NoRoom]"])?;
    let drained = operator.page(&["drain", &n1, "--timeout", "90s"]).await?;
    says(&drained, &["is drained"])?;
    for page in [&["why", &n1][..], &["locks"]] {
        let page = operator.page(page).await?;
        assert!(!page.contains("Cannot tell"), "{page}");
        says(&page, &[&format!("{}/web", env.name)])?;
    }
    says(&operator.page(&["release", &n1]).await?, &["its drain ends"])?;
    env.gone(&n1).await?;

    // The owner of an application holds its budgets, and drains no node.
    says(
        &owner.page(&["hold", "web", "--reason", "r", "--for", "1h"]).await?,
        &["keeps all disruptions"],
    )?;
    let error = owner.nodeward(&["drain", &n1]).await?.error()?;
    says(
        &error,
        &[
            &format!("{owner_name} may not "),
            "nodedrains.nodeward.dev in the whole cluster",
            "nodeward-admin",
        ],
    )?;

    // Who may only look sees what there is, and what they do not see.
    let status = viewer.page(&["status"]).await?;
    let nodes = format!("Cannot tell: nodes: {viewer_name} may not list nodes in the whole cluster");
    says(&status, &["drains", &nodes, "nodeward-admin"])?;
    let error = viewer.nodeward(&["release", &format!("hold/{}", "web-x")]).await?;
    says(
        &error.out,
        &["may not delete disruptionholds.nodeward.dev", "nodeward-hold"],
    )?;

    let locks = nobody.page(&["locks"]).await?;
    says(
        &locks,
        &[
            &format!("{nobody_name} may not get drainledgers.nodeward.dev in the whole cluster"),
            "nodeward-view",
        ],
    )?;
    Ok(())
}
