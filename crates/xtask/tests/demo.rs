//! The demo keeps its promises, with the operators and without them; and on somebody's cluster nothing is left of it.
#![allow(clippy::unwrap_used, clippy::panic, reason = "helpers of tests are tests")]

use std::collections::BTreeSet;
use std::process::{Command, Output, Stdio};
use std::time::Duration;

use nodeward_testkit::fleet::{self, NodeSpec};
use nodeward_testkit::process::{ProcessId, Signal};
use nodeward_testkit::wait::{self, secs};
use nodeward_testkit::workload::PodTemplate;
use nodeward_testkit::{ControlPlane, bulk};

fn demo(args: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_xtask"));
    command
        .arg("demo")
        .args(args)
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped());
    command
}

async fn ended(mut command: Command) -> Output {
    tokio::task::spawn_blocking(move || command.output().unwrap())
        .await
        .unwrap()
}

fn said(output: &Output) -> String {
    let text = [output.stdout.as_slice(), output.stderr.as_slice()].concat();
    String::from_utf8(text).unwrap()
}

/// The row of the table at the end.
fn row<'a>(text: &'a str, name: &str) -> &'a str {
    let line = text.lines().find_map(|line| line.trim().strip_prefix(name));
    line.unwrap_or_else(|| panic!("no row {name}:\n{text}")).trim()
}

fn fits_a_terminal(output: Output) {
    let told = String::from_utf8(output.stdout).unwrap();
    let wide: Vec<&str> = told.lines().filter(|line| line.chars().count() > 80).collect();
    assert!(wide.is_empty(), "wider than 80 columns: {wide:#?}");
}

#[tokio::test]
async fn all_operators_upgrade_one_fleet() {
    let output = ended(demo(&[])).await;
    let text = said(&output);
    assert!(output.status.success(), "{text}");
    let has_ceph = !text.contains("All that is about Ceph is left out");
    let nodes = if has_ceph { "9 of 9" } else { "6 of 6" };
    assert_eq!(row(&text, "kubectl drain: nodes upgraded"), nodes);
    assert_eq!(row(&text, "health-check: nodes remediated"), "1");
    assert_eq!(row(&text, "of any other node"), "0");
    assert_eq!(row(&text, "budget violations"), "0");
    assert_eq!(row(&text, "left behind"), "0");
    if has_ceph {
        assert_eq!(row(&text, "while another host's was away"), "0");
        assert_eq!(row(&text, "objects lost"), "0");
    }
    fits_a_terminal(output);
}

#[tokio::test]
async fn same_drains_get_stuck_without_operators() {
    let output = ended(demo(&["--without"])).await;
    let text = said(&output);
    assert!(output.status.success() && text.contains("STUCK, as expected"), "{text}");
    assert_eq!(row(&text, "operators"), "left out");
    assert_eq!(row(&text, "budget violations"), "0");
    fits_a_terminal(output);
}

/// Everything of these kinds, but Events, Leases and what belongs to pods that come and go.
const LASTING: &str = "nodes,namespaces,deployments,daemonsets,replicasets,poddisruptionbudgets,serviceaccounts,configmaps,\
    secrets,services,roles,rolebindings,clusterroles,clusterrolebindings,customresourcedefinitions,pods,leases";

fn objects(plane: &ControlPlane) -> BTreeSet<String> {
    let output = plane
        .kubectl()
        .args([
            "get",
            LASTING,
            "-A",
            "--no-headers",
            "-o=custom-columns=K:.kind,S:.metadata.namespace,N:.metadata.name,U:.metadata.uid",
        ])
        .output()
        .unwrap();
    assert!(output.status.success(), "{}", said(&output));
    String::from_utf8(output.stdout)
        .unwrap()
        .lines()
        .map(str::to_owned)
        .collect()
}

#[tokio::test(flavor = "multi_thread")]
async fn demo_on_a_users_cluster_cleans_up() {
    let plane = ControlPlane::shared().await;
    let client = plane.client().await.unwrap();
    fleet::create(&client, NodeSpec::workers("users-own", 2)).await.unwrap();
    plane.namespace("users-own").await.unwrap();
    // It goes to every node, the demo's too, and must be as before afterwards.
    let everywhere = PodTemplate::new()
        .tolerates_all()
        .daemon_set("users-own", "everywhere")
        .unwrap();
    bulk::create(&client, [everywhere]).await.unwrap();
    nodeward_testkit::workload::ready_pods(&client, "users-own", "everywhere", 2, secs(60))
        .await
        .unwrap();
    let kubeconfig = plane.kubeconfig();
    // What the control plane makes by itself comes later.
    let before = wait::until("all that belongs to namespaces and nodes", secs(60), || async {
        let objects = objects(plane);
        let count = |kind: &str, name: &str| {
            let is_so = |object: &&String| object.starts_with(kind) && object.contains(name);
            objects.iter().filter(is_so).count()
        };
        let (namespaces, certificates) = (count("Namespace ", ""), count("ConfigMap ", " kube-root-ca.crt "));
        anyhow::ensure!(
            namespaces == certificates,
            "{certificates} certificates in {namespaces} namespaces"
        );
        anyhow::ensure!(count("Lease ", " users-own-") == 2, "{objects:?}");
        Ok(objects)
    })
    .await
    .unwrap();
    let nothing_is_left = || async {
        let objects = objects(plane);
        anyhow::ensure!(objects == before, "{:?}", objects.symmetric_difference(&before));
        Ok(())
    };

    let on_it = ["--kubeconfig", kubeconfig.to_str().unwrap()];
    let interrupted = demo(&["--without", on_it[0], on_it[1]]).spawn().unwrap();
    let made = |prefix: &'static str| {
        move || async move {
            let objects = objects(plane);
            anyhow::ensure!(objects.iter().any(|object| object.contains(prefix)), "{objects:?}");
            Ok(())
        }
    };
    wait::until("pods of the demo", Duration::from_mins(3), made("-media"))
        .await
        .unwrap();
    assert!(ProcessId::of(interrupted.id()).unwrap().signal(Signal::INT));
    let output = tokio::task::spawn_blocking(move || interrupted.wait_with_output().unwrap())
        .await
        .unwrap();
    assert_eq!(output.status.code(), Some(130), "{}", said(&output));
    let left = wait::until("nothing to be left", secs(60), nothing_is_left).await;
    left.unwrap_or_else(|left| panic!("{left:#}\n{}", said(&output)));

    let output = ended(demo(&on_it)).await;
    let text = said(&output);
    assert!(output.status.success(), "{text}");
    assert_eq!(row(&text, "kubectl drain: nodes upgraded"), "1 of 1");
    assert_eq!(row(&text, "budgets overridden by policy"), "1");
    assert_eq!(row(&text, "drain-keeper: pods moved by a rollout"), "1");
    assert_eq!(row(&text, "looks at which none was Ready"), "0");
    let left = wait::until("nothing to be left", secs(60), nothing_is_left).await;
    left.unwrap_or_else(|left| panic!("{left:#}\n{text}"));
}
