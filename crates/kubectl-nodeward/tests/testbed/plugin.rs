//! The plugin as a part of kubectl, and where the cluster lacks Nodeward or does not answer.

use std::io::Write as _;
use std::process::{Command, Stdio};

use anyhow::{Context, Result, ensure};
use kube::Api;
use kube::api::{ApiResource, DynamicObject, PostParams};
use nodeward_api::{DrainLedger, NodeDrain, crd, drain_ledger};
use nodeward_testkit::fleet::{self, NodeSpec};
use nodeward_testkit::wait::{self, secs};
use nodeward_testkit::workload::Budget;
use nodeward_testkit::{ControlPlane, Options, bulk};
use serde_json::json;

use crate::environment::Environment;
use crate::person::{Person, plugins, says};

#[tokio::test(flavor = "multi_thread")]
async fn missing_nodeward_differs_from_no_drains() -> Result<()> {
    for (command, answer) in Environment::bare().await? {
        match command[0] {
            "status" | "locks" => {
                assert_eq!(answer.code, 0, "{answer:?}");
                says(&answer.out, &["drain-lock is not installed"])?;
            }
            _ => {
                assert_eq!(answer.code, 1, "{answer:?}");
                says(
                    &answer.err,
                    &["error: drain-lock is not installed: the API server does not serve "],
                )?;
            }
        }
    }
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn kubectl_finds_the_plugin_and_its_completion() -> Result<()> {
    let env = Environment::new().await?;
    let [node] = env.workers().await?;
    let budget = Budget::max_unavailable(&env.name, "web", 1).of("web").build()?;
    bulk::create(&env.client, [budget]).await?;
    let admin = &env.admin;
    let listed = admin.kubectl(&["plugin", "list"]).await?;
    says(&listed.out, &["/kubectl-nodeward"])?;
    says(
        &admin.page(&["--help"]).await?,
        &["Usage: kubectl nodeward", "drain", "why"],
    )?;
    says(&admin.page(&["--version"]).await?, &[env!("CARGO_PKG_VERSION")])?;
    // As a shell's completion of kubectl asks; the link's name is kubectl's convention.
    for (line, offered) in [
        (&["nodeward", "pl"][..], "plan\tShow what draining nodes would take"),
        (&["nodeward", "why", &env.name], &node),
        (&["nodeward", "hold", "-n", &env.name, ""], "web\n:4"),
        (&["nodeward", "status", "--context", ""], "testbed\n:4"),
    ] {
        // It gives up soon, for a person waits.
        wait::until("the completion", secs(60), || async {
            let completed = admin.kubectl(&[&["__complete"], line].concat()).await?;
            ensure!(completed.out.contains(offered), "{line:?}: {completed:?}");
            Ok(())
        })
        .await?;
    }
    let nobody = Person::named(env.plane, "nobody", "people", "default")?;
    let completed = nobody.nodeward(&["__complete", "why", ""]).await?;
    assert_eq!(
        (completed.code, completed.out.as_str(), completed.err.as_str()),
        (0, ":4\n", "")
    );
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn a_cluster_that_does_not_answer_is_named() -> Result<()> {
    let plugin = |args: &[&str]| -> Result<(Option<i32>, String)> {
        let output = Command::new(plugins().join("kubectl-nodeward"))
            .args(args)
            .env_remove("KUBECONFIG")
            .env("HOME", "/nonexistent")
            .output()?;
        Ok((output.status.code(), String::from_utf8(output.stderr)?))
    };
    let (code, error) = plugin(&["status", "--kubeconfig", "/nonexistent/config"])?;
    assert_eq!(code, Some(1), "{error}");
    says(&error, &["error: the kubeconfig cannot be used", "/nonexistent/config"])?;
    ensure!(error.matches("No such file").count() == 1, "{error}");
    let (code, error) = plugin(&["status"])?;
    assert_eq!(code, Some(1), "{error}");
    says(
        &error,
        &["error: no cluster is configured", "set KUBECONFIG or --kubeconfig"],
    )?;
    // Nobody listens on a reserved port.
    let dir = tempfile::tempdir()?;
    let kubeconfig = dir.path().join("kubeconfig");
    std::fs::write(
        &kubeconfig,
        "apiVersion: v1\nkind: Config\ncurrent-context: c\ncontexts: [{name: c, context: {cluster: c, user: u}}]\n\
         clusters: [{name: c, cluster: {server: 'http://127.0.0.1:1'}}]\nusers: [{name: u, user: {}}]\n",
    )?;
    let path = kubeconfig.to_str().context("a path of text")?;
    let (code, error) = plugin(&["status", "--kubeconfig", path])?;
    assert_eq!(code, Some(1), "{error}");
    says(&error, &["error: the API server cannot be reached", "127.0.0.1:1"])?;
    let (code, error) = plugin(&["status", "--kubeconfig", path, "--context", "other"])?;
    assert_eq!(code, Some(1), "{error}");
    says(&error, &["error: the kubeconfig cannot be used", "other"])
}

/// One ledger is in a cluster, so it has a control plane of its own, where nobody runs drain-lock.
#[tokio::test(flavor = "multi_thread")]
async fn garbage_in_the_ledger_is_named_and_all_else_is_shown() -> Result<()> {
    let plane = ControlPlane::start(Options::patient()).await?;
    let client = plane.client().await?;
    bulk::create(&client, crd::drain_lock()).await?;
    plane.namespace("shop").await?;
    fleet::create(&client, [NodeSpec::worker("n1")]).await?;
    bulk::create(&client, [Budget::max_unavailable("shop", "web", 1).of("web").build()?]).await?;
    let resource = ApiResource::erase::<DrainLedger>(&());
    let mut ledger = DynamicObject::new(drain_ledger::NAME, &resource);
    ledger.data = json!({ "spec": { "claims": [{
        "ticket": 1, "node": "n1", "nodeUID": "u1", "state": "Confirmed", "since": "2026-01-01T00:00:00Z",
        "queuedAt": "2026-01-01T00:00:00Z", "grant": 1, "holds": ["garbage"],
    }] } });
    let drain: NodeDrain = serde_json::from_value(json!({
        "metadata": { "name": "n1" }, "spec": { "nodeName": "n1", "requesters": [{ "name": "alice" }] },
    }))?;
    wait::until("the kinds to be served", secs(60), || async {
        let ledgers: Api<DynamicObject> = Api::all_with(client.clone(), &resource);
        if ledgers.get_opt(drain_ledger::NAME).await?.is_none() {
            ledgers.create(&PostParams::default(), &ledger).await?;
        }
        let drains: Api<NodeDrain> = Api::all(client.clone());
        if drains.get_opt("n1").await?.is_none() {
            drains.create(&PostParams::default(), &drain).await?;
        }
        Ok(())
    })
    .await?;
    let admin = Person::admin(&plane)?;
    let named = [
        "claims: the ledger cannot be decoded",
        "claims[0].holds[0]: a held pod is written BUDGET/NAME/UID[/retained[/HASH]], not \"garbage\"",
        "undo the last edit of the DrainLedger, or run the version of drain-lock that wrote it",
    ];
    for (command, shown) in [
        (&["status"][..], "1 in all, 0 cordoned"),
        (&["locks"], "Cannot tell"),
        (&["why", "n1"], "alice"),
        (&["why", "pdb/shop/web"], "PDB shop/web"),
    ] {
        let page = admin.page(command).await?;
        says(&page, &named)?;
        says(&page, &[shown])?;
        let read = admin.json(command).await?;
        ensure!(read["unread"][0]["reason"] == "Undecodable", "{command:?}: {read}");
    }
    Ok(())
}

#[test]
fn completion_scripts_are_what_their_shells_can_read() -> Result<()> {
    for (shell, check) in [
        ("bash", &["bash", "-n"][..]),
        ("zsh", &["zsh", "-n"]),
        ("fish", &["fish", "-n"]),
    ] {
        let output = Command::new(plugins().join("kubectl-nodeward"))
            .args(["completion", shell])
            .output()?;
        let script = String::from_utf8(output.stdout)?;
        ensure!(
            output.status.success() && script.contains("deadline-queue"),
            "{shell}: {script}"
        );
        let mut reads = Command::new(check[0]);
        let Ok(mut child) = reads.args(&check[1..]).stdin(Stdio::piped()).spawn() else {
            eprintln!("{shell} is not installed: its script was not read");
            continue;
        };
        child.stdin.take().context("no input")?.write_all(script.as_bytes())?;
        ensure!(child.wait()?.success(), "{shell} cannot read its script");
    }
    Ok(())
}
