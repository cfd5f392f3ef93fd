//! The chart's objects are installed with helm, and an operator runs as the ServiceAccount among them.

use std::os::unix::fs::PermissionsExt;

use anyhow::{Context, Result, ensure};
use k8s_openapi::api::authentication::v1::SelfSubjectReview;
use kube::Api;
use kube::api::PostParams;
use nodeward_testkit::control_plane::client_from;
use nodeward_testkit::helm::Release;
use nodeward_testkit::operator::OperatorSpec;
use nodeward_testkit::wait::{self, secs};
use nodeward_testkit::{ControlPlane, names};
use serde_json::json;

/// A chart as small as can be, so that these tests say nothing about ours.
fn chart() -> Result<tempfile::TempDir> {
    let dir = tempfile::tempdir()?;
    std::fs::create_dir(dir.path().join("templates"))?;
    std::fs::write(
        dir.path().join("Chart.yaml"),
        "apiVersion: v2\nname: small\nversion: 0.1.0\n",
    )?;
    std::fs::write(dir.path().join("values.yaml"), "account: none\n")?;
    let template = "apiVersion: v1\nkind: ServiceAccount\nmetadata:\n  name: {{ .Values.account }}\n";
    std::fs::write(dir.path().join("templates/account.yaml"), template)?;
    Ok(dir)
}

fn script(dir: &std::path::Path, body: &str) -> Result<std::path::PathBuf> {
    let path = dir.join("operator");
    std::fs::write(&path, format!("#!/bin/sh\n{body}\n"))?;
    std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o755))?;
    Ok(path)
}

#[tokio::test(flavor = "multi_thread")]
async fn operator_runs_as_the_charts_service_account() -> Result<()> {
    let plane = ControlPlane::shared().await;
    let (chart, namespace) = (chart()?, names::unique("operators"));
    // Long before it is run: while other tests fork, a file that was just written may still be open in a child.
    let binary = script(chart.path(), "echo \"$@\"; exec sleep 600")?;
    let release = Release::new("small", &namespace)
        .chart(chart.path())
        .values(json!({"account": "keeper"}));
    let rendered = release.template(plane).await?;
    ensure!(
        rendered.len() == 1 && rendered[0]["metadata"]["name"] == "keeper",
        "{rendered:?}"
    );
    release.install(plane).await?;

    let operator = OperatorSpec::new("small", &namespace, "keeper")
        .binary(binary)
        .config("a: 1\n")
        .arg("--dry-run")
        .start(plane)
        .await?;
    let reviews: Api<SelfSubjectReview> = Api::all(client_from(operator.kubeconfig()).await?);
    let review = reviews
        .create(&PostParams::default(), &SelfSubjectReview::default())
        .await?;
    let user = review
        .status
        .and_then(|status| status.user_info)
        .and_then(|user| user.username)
        .context("a user name")?;
    ensure!(user == format!("system:serviceaccount:{namespace}:keeper"), "{user}");
    wait::until("its arguments", secs(60), || async {
        let log = operator.log();
        ensure!(
            [
                "--admin-bind=127.0.0.1:",
                "--config ",
                "--dry-run",
                &format!("--namespace={namespace}")
            ]
            .iter()
            .all(|arg| log.contains(arg)),
            "{log}"
        );
        Ok(())
    })
    .await?;
    ensure!(operator.usage()?.rss_mib > 0.0);
    operator.process().kill();
    ensure!(!operator.process().is_running());
    release.uninstall(plane).await?;
    let gone = OperatorSpec::new("small", &namespace, "keeper")
        .binary("/bin/true")
        .start(plane)
        .await;
    ensure!(gone.is_err(), "a token of a ServiceAccount that was uninstalled");
    Ok(())
}
