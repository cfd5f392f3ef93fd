//! `cargo xtask cluster`, as it is typed.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};

use anyhow::{Context, Result, ensure};
use nodeward_testkit::kubernetes::Kubernetes;
use nodeward_testkit::process::{ProcessId, Signal};
use nodeward_testkit::toolchain;
use nodeward_testkit::wait::{self, secs};

fn cluster(dir: &Path, args: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_xtask"));
    command.arg("cluster").args(args).arg("--dir").arg(dir);
    command
}

fn output(dir: &Path, args: &[&str]) -> Result<Output> {
    let output = cluster(dir, args).stderr(Stdio::inherit()).output()?;
    ensure!(
        output.status.success(),
        "{args:?}: {}",
        String::from_utf8_lossy(&output.stdout)
    );
    Ok(output)
}

/// The processes that run in this directory's cluster, the supervisor among them.
fn recorded(dir: &Path) -> Result<Vec<ProcessId>> {
    let state: serde_json::Value = serde_json::from_slice(&std::fs::read(dir.join("state.json"))?)?;
    let mut ids: Vec<ProcessId> = serde_json::from_value(state["parts"].clone())?;
    ids.push(serde_json::from_value(state["supervisor"].clone())?);
    ensure!(ids.len() == 6 && ids.iter().all(|id| id.is_alive()), "{ids:?}");
    Ok(ids)
}

async fn all_gone(ids: &[ProcessId]) -> Result<()> {
    wait::until("every process to be gone", secs(60), || async {
        let left: Vec<_> = ids.iter().filter(|id| id.is_alive()).collect();
        ensure!(left.is_empty(), "{left:?}");
        Ok(())
    })
    .await
}

fn nodes(kubeconfig: &str, dir: &Path) -> Result<usize> {
    let listed = kubectl(kubeconfig, dir, &["get", "nodes", "-o", "name"])?;
    Ok(listed.lines().count())
}

fn kubectl(kubeconfig: &str, dir: &Path, args: &[&str]) -> Result<String> {
    let state: serde_json::Value = serde_json::from_slice(&std::fs::read(dir.join("state.json"))?)?;
    let kubectl = state["kubectl"].as_str().context("kubectl's path")?;
    let output = Command::new(kubectl)
        .args(args)
        .args(["--kubeconfig", kubeconfig])
        .output()?;
    ensure!(
        output.status.success(),
        "{args:?}: {}",
        String::from_utf8_lossy(&output.stderr)
    );
    Ok(String::from_utf8(output.stdout)?)
}

/// The objects of our kinds that the documentation shows, each with its page.
fn documented_objects() -> Result<Vec<(PathBuf, String)>> {
    let mut found = Vec::new();
    let mut directories = vec![Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs")];
    while let Some(directory) = directories.pop() {
        for entry in std::fs::read_dir(directory)? {
            let path = entry?.path();
            if path.is_dir() {
                directories.push(path);
                continue;
            }
            if path.extension().is_none_or(|extension| extension != "md") {
                continue;
            }
            let page = std::fs::read_to_string(&path)?;
            let blocks = page.split("```yaml\n").skip(1);
            let blocks = blocks.filter_map(|rest| rest.split("```").next());
            let ours = ["nodeward.dev/v1alpha1", "remediation.medik8s.io/v1alpha1"];
            let is_ours = |block: &&str| {
                ours.iter()
                    .any(|group| block.contains(&format!("apiVersion: {group}\n")))
            };
            found.extend(blocks.filter(is_ours).map(|block| (path.clone(), block.to_owned())));
        }
    }
    Ok(found)
}

/// As somebody does who applies the CRDs by hand.
#[tokio::test]
async fn documented_objects_are_accepted() -> Result<()> {
    let dir = tempfile::tempdir()?;
    let dir = dir.path();
    output(dir, &["up", "--detach", "--nodes", "0"])?;
    let kubeconfig = String::from_utf8(output(dir, &["kubeconfig"])?.stdout)?;
    let kubeconfig = kubeconfig.trim_end();
    let crds = concat!(env!("CARGO_MANIFEST_DIR"), "/../../crds/");
    kubectl(kubeconfig, dir, &["apply", "--server-side", "-f", crds])?;
    kubectl(
        kubeconfig,
        dir,
        &["wait", "--for=condition=Established", "--timeout=60s", "crd", "--all"],
    )?;
    kubectl(kubeconfig, dir, &["create", "namespace", "shop"])?;
    let objects = documented_objects()?;
    let mut kinds = BTreeSet::new();
    for (page, object) in &objects {
        let file = dir.join("object.yaml");
        std::fs::write(&file, object)?;
        let file = file.to_str().context("no UTF-8")?;
        let tried = [
            "apply",
            "--dry-run=server",
            "--validate=strict",
            "-o",
            "name",
            "-f",
            file,
        ];
        let accepted = kubectl(kubeconfig, dir, &tried).with_context(|| format!("{}: {object}", page.display()))?;
        kinds.extend(accepted.split('/').next().map(str::to_owned));
    }
    ensure!(kinds.len() == 4, "{kinds:?}");
    // It can be refused.
    let (_, object) = &objects[0];
    std::fs::write(dir.join("object.yaml"), format!("{object}noSuchField: 1\n"))?;
    let file = dir.join("object.yaml");
    let tried = ["apply", "--dry-run=server", "--validate=strict", "-f"];
    let tried = [&tried[..], &[file.to_str().context("no UTF-8")?]].concat();
    ensure!(
        kubectl(kubeconfig, dir, &tried).is_err(),
        "an unknown field is accepted"
    );
    output(dir, &["down"])?;
    Ok(())
}

#[tokio::test]
async fn detached_cluster_lives_until_down() -> Result<()> {
    let dir = tempfile::tempdir()?;
    let dir = dir.path();
    let said = String::from_utf8(output(dir, &["up", "--detach", "--nodes", "2"])?.stdout)?;
    let running = recorded(dir)?;
    let kubeconfig = String::from_utf8(output(dir, &["kubeconfig"])?.stdout)?;
    let kubeconfig = kubeconfig.trim_end();
    ensure!(said.contains(&format!("export KUBECONFIG={kubeconfig}")), "{said}");
    ensure!(nodes(kubeconfig, dir)? == 2);

    let second = cluster(dir, &["up", "--detach"]).output()?;
    let refusal = String::from_utf8(second.stderr)?;
    ensure!(!second.status.success() && refusal.contains("runs in"), "{refusal}");
    ensure!(running.iter().all(|id| id.is_alive()), "the refused command did harm");

    output(dir, &["down"])?;
    all_gone(&running).await?;
    ensure!(
        !cluster(dir, &["kubeconfig"]).output()?.status.success(),
        "a kubeconfig of a cluster that is down"
    );
    output(dir, &["down"])?;
    // The directory is used again, and what was in the old cluster is not in the new one.
    output(dir, &["up", "--detach", "--nodes", "1"])?;
    let again = recorded(dir)?;
    ensure!(nodes(kubeconfig, dir)? == 1);
    output(dir, &["down"])?;
    all_gone(&again).await
}

#[tokio::test]
async fn down_ends_a_cluster_whose_supervisor_was_killed() -> Result<()> {
    let dir = tempfile::tempdir()?;
    let dir = dir.path();
    output(dir, &["up", "--detach", "--nodes", "0"])?;
    let running = recorded(dir)?;
    let supervisor = running.last().context("the supervisor")?;
    ensure!(supervisor.signal(Signal::KILL));
    output(dir, &["down"])?;
    all_gone(&running).await
}

struct Foreground(Child);

impl Drop for Foreground {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

#[tokio::test]
async fn ctrl_c_stops_a_cluster_in_the_foreground() -> Result<()> {
    let dir = tempfile::tempdir()?;
    let dir = dir.path();
    let mut up = Foreground(cluster(dir, &["up", "--nodes", "1"]).stdout(Stdio::null()).spawn()?);
    let running = wait::until("the cluster", secs(120), || async { recorded(dir) }).await?;
    ensure!(ProcessId::of(up.0.id()).context("the command")?.signal(Signal::INT));
    all_gone(&running).await?;
    ensure!(up.0.wait()?.success(), "Ctrl-C is the way to end it, and no failure");
    ensure!(!dir.join("state.json").exists());
    Ok(())
}

/// The programs that are built, but for those of this name.
fn cache_without(name: &str) -> Result<tempfile::TempDir> {
    let cache = tempfile::tempdir()?;
    for entry in std::fs::read_dir(toolchain::cache_dir()?)? {
        let entry = entry?;
        if !entry.file_name().to_string_lossy().contains(name) {
            std::os::unix::fs::symlink(entry.path(), cache.path().join(entry.file_name()))?;
        }
    }
    Ok(cache)
}

/// No registry has its module.
#[tokio::test]
async fn drainer_that_cannot_be_built_is_named_and_the_rest_runs() -> Result<()> {
    toolchain::ensure_built(Kubernetes::from_environment()?)?;
    let (dir, modules) = (tempfile::tempdir()?, tempfile::tempdir()?);
    let (dir, cache) = (dir.path(), cache_without("descheduler")?);
    let up = cluster(dir, &["up", "--detach", "--nodes", "1", "--drainers", "descheduler"])
        .env("NODEWARD_TESTBED_CACHE", cache.path())
        .env("GOMODCACHE", modules.path())
        .env("GOPROXY", "off")
        .output()?;
    let said = String::from_utf8(up.stdout)?;
    ensure!(up.status.success(), "{said}{}", String::from_utf8_lossy(&up.stderr));
    let named: Vec<&str> = said.lines().filter(|line| line.contains("descheduler")).collect();
    ensure!(
        named.len() == 1 && named[0].starts_with("no descheduler: descheduler cannot be built: "),
        "{said}"
    );
    recorded(dir)?;
    output(dir, &["down"])?;
    Ok(())
}

#[test]
fn a_directory_with_somebodys_files_is_left_alone() -> Result<()> {
    let dir = tempfile::tempdir()?;
    let file = dir.path().join("thesis.txt");
    std::fs::write(&file, "years of work")?;
    let refused = cluster(dir.path(), &["up", "--detach"]).output()?;
    ensure!(!refused.status.success() && String::from_utf8(refused.stderr)?.contains("was not made by this command"));
    ensure!(std::fs::read_to_string(file)? == "years of work");
    Ok(())
}
