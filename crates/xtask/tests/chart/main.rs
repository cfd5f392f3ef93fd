//! The chart: what it refuses, what it renders, and what a cluster makes of it.
#![allow(clippy::unwrap_used, reason = "helpers of tests are tests")]

mod alerts;
mod combinations;
mod dashboards;
mod documented;
mod gitops;
mod life;
mod objects;
mod outside;
mod rights;
mod rights_page;
mod schema;
mod values;

use std::fs;
use std::io::Write as _;
use std::process::Command;

use anyhow::{Result, ensure};
use nodeward_testkit::names::unique;
use nodeward_testkit::{ControlPlane, prometheus, toolchain};
use serde_json::{Value, json};
use tokio::sync::OnceCell;

const CHART: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../../charts/nodeward");

/// managed-upgrade-operator's namespace in these tests.
const FOREIGN_NAMESPACE: &str = "openshift-managed-upgrade-operator";

/// The namespace of medik8s' node leases in these tests.
const LEASES_NAMESPACE: &str = "medik8s-leases";

/// The namespace of a CephCluster that the chart's defaults name.
const CEPH_NAMESPACE: &str = "rook-ceph";

/// The cluster that the tests of this binary share, with the namespaces of others, which the chart grants rights in, and a
/// name for a namespace of a test's own.
async fn shared(prefix: &str) -> Result<(&'static ControlPlane, String)> {
    static MADE: OnceCell<()> = OnceCell::const_new();
    let plane = ControlPlane::shared().await;
    let make = async || {
        plane.namespace(FOREIGN_NAMESPACE).await?;
        plane.namespace(CEPH_NAMESPACE).await?;
        plane.namespace(LEASES_NAMESPACE).await
    };
    MADE.get_or_try_init(make).await?;
    Ok((plane, unique(prefix)))
}

/// What the chart renders with these values.
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

/// Has Prometheus' own tool evaluate these groups of rules every five minutes, and test what comes of them.
fn test_rules(groups: &Value, tests: &[Value]) -> Result<()> {
    let directory = tempfile::tempdir()?;
    let write = |name: &str, content: Value| fs::write(directory.path().join(name), content.to_string());
    write("rules.yaml", json!({ "groups": groups }))?;
    let files = json!({ "rule_files": ["rules.yaml"], "evaluation_interval": "5m", "tests": tests });
    write("tests.yaml", files)?;
    let mut promtool = Command::new(prometheus::program("promtool")?);
    promtool
        .args(["test", "rules", "tests.yaml"])
        .current_dir(directory.path());
    output_of(&mut promtool).map(drop)
}

fn helm(args: &[&str]) -> Result<String> {
    output_of(Command::new(toolchain::of_environment()?.helm).args(args))
}

fn output_of(command: &mut Command) -> Result<String> {
    let output = command.output()?;
    let said = String::from_utf8_lossy(&output.stdout).into_owned();
    ensure!(
        output.status.success(),
        "{said}{}",
        String::from_utf8_lossy(&output.stderr)
    );
    Ok(said)
}
