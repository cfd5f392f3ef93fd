//! The machine is as before, whatever ends the process that has started real nodes.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::PathBuf;
use std::process::Command;

use anyhow::{Context, Result, ensure};
use nodeward_testkit::process::{ProcessId, Signal};
use nodeward_testkit::real_nodes;
use nodeward_testkit::wait::{self, secs};
use nodeward_testkit::{ControlPlane, Options};
use rstest::rstest;
use serde::{Deserialize, Serialize};

use super::{app, ready};
use crate::cleanup::{Holder, Started};

/// What is not the node's, and what it may not change.
#[derive(Debug, PartialEq)]
struct Machine {
    mounts: Vec<String>,
    sysctls: BTreeMap<&'static str, String>,
    folders: BTreeMap<&'static str, BTreeSet<String>>,
}

const SYSCTLS: [&str; 7] = [
    "vm/overcommit_memory",
    "vm/panic_on_oom",
    "kernel/panic",
    "kernel/panic_on_oops",
    "kernel/keys/root_maxkeys",
    "kernel/keys/root_maxbytes",
    "net/ipv4/ip_forward",
];

const FOLDERS: [&str; 9] = [
    "/etc/cni",
    "/etc/kubernetes",
    "/opt",
    "/opt/cni",
    "/run",
    "/usr/libexec",
    "/usr/libexec/kubernetes",
    "/var/lib",
    "/var/log",
];

impl Machine {
    fn now() -> Result<Self> {
        let mounts = fs::read_to_string("/proc/self/mountinfo")?;
        // Other programs mount, too.
        let of_nodes = |line: &&str| {
            ["nodeward-node", "containerd", "kubelet", "netns"]
                .iter()
                .any(|word| line.contains(word))
        };
        let names = |folder| {
            let entries = fs::read_dir(folder).into_iter().flatten().flatten();
            entries
                .map(|entry| entry.file_name().to_string_lossy().into_owned())
                .collect()
        };
        let sysctls = SYSCTLS.map(|name| Ok((name, fs::read_to_string(format!("/proc/sys/{name}"))?)));
        Ok(Self {
            mounts: mounts.lines().filter(of_nodes).map(str::to_owned).collect(),
            sysctls: sysctls.into_iter().collect::<Result<_>>()?,
            folders: FOLDERS.into_iter().map(|folder| (folder, names(folder))).collect(),
        })
    }
}

/// What is one node's.
#[derive(Serialize, Deserialize)]
struct Traces {
    plane: Started,
    dir: PathBuf,
    cgroup: String,
    processes: Vec<ProcessId>,
    /// Of its pods.
    subnet: String,
}

impl Traces {
    /// The links through which its pods are reached.
    fn links(&self) -> Result<Vec<String>> {
        let routes = Command::new("ip")
            .args(["-json", "route", "show", "root", &self.subnet])
            .output()?;
        let routes: Vec<serde_json::Value> = serde_json::from_slice(&routes.stdout)?;
        Ok(routes
            .iter()
            .filter_map(|route| route["dev"].as_str().map(str::to_owned))
            .collect())
    }

    /// Processes outside of its namespaces count, too: their arguments name its directory.
    fn processes(&self) -> Vec<String> {
        let inside = self
            .processes
            .iter()
            .filter(|id| id.is_alive())
            .map(|id| id.pid.to_string());
        let dir = self.dir.to_string_lossy();
        let pids = fs::read_dir("/proc")
            .into_iter()
            .flatten()
            .flatten()
            .map(|entry| entry.path());
        let named = pids.filter_map(|path| {
            let arguments = fs::read_to_string(path.join("cmdline")).ok()?;
            arguments.contains(&*dir).then(|| arguments.replace('\0', " "))
        });
        inside.chain(named).collect()
    }

    async fn are_gone(&self) -> Result<()> {
        wait::until("all traces of the node to be gone", secs(60), || async {
            let (links, processes) = (self.links()?, self.processes());
            ensure!(links.is_empty(), "links: {links:?}");
            ensure!(processes.is_empty(), "processes: {processes:?}");
            let cgroups = real_nodes::cgroups_of(&self.cgroup);
            ensure!(cgroups.is_empty(), "cgroups: {cgroups:?}");
            ensure!(!self.dir.exists(), "{} is there", self.dir.display());
            Ok(())
        })
        .await
    }
}

/// What the test below kills.
#[tokio::test(flavor = "multi_thread")]
#[ignore = "a process of its own for the test that kills it"]
async fn holds_a_real_node_until_it_is_killed() -> Result<()> {
    let plane = ControlPlane::start(Options::default()).await?;
    let nodes = real_nodes::start(&plane, 1).await?;
    let node = nodes.first().context("a node")?;
    let client = plane.client().await?;
    // It has a volume, a network and a cgroup.
    ready(
        &client,
        &app(node)
            .empty_dir()
            .spec("automountServiceAccountToken", true.into())
            .pod("default", "app")?,
    )
    .await?;
    let network: serde_json::Value = serde_json::from_slice(&fs::read(node.dir().join("cni/pods.conflist"))?)?;
    let subnet = network["plugins"][0]["ipam"]["subnet"].as_str().context("the subnet")?;
    Holder::hold(&Traces {
        plane: Started::of(&plane),
        dir: node.dir().to_owned(),
        cgroup: node.cgroup(),
        processes: node.processes(),
        subnet: subnet.to_owned(),
    })
    .await
}

#[rstest]
#[case::which_cleans_up_after_itself(false)]
#[case::and_whoever_cleans_up_after_it(true)]
#[tokio::test(flavor = "multi_thread")]
async fn machine_is_as_before_the_killed_process(#[case] reaper_dies: bool) -> Result<()> {
    if real_nodes::are_missing()? {
        return Ok(());
    }
    let before = Machine::now()?;
    let mut holder = Holder::start("real_nodes::cleanup::holds_a_real_node_until_it_is_killed")?;
    let traces: Traces = holder.started().await?;
    ensure!(traces.links()?.len() == 1, "{:?}", traces.links());
    ensure!(!real_nodes::cgroups_of(&traces.cgroup).is_empty() && traces.dir.exists());
    // The shell, containerd, the kubelet, a shim, the pause and the app.
    ensure!(traces.processes.len() >= 6, "{:?}", traces.processes);
    if reaper_dies {
        reaper_of(holder.id()?)?.signal(Signal::KILL);
    }
    holder.end(Signal::KILL).await?;
    if reaper_dies {
        for id in &traces.plane.processes {
            id.signal(Signal::KILL);
        }
        fs::remove_dir_all(&traces.plane.dir)?;
        // The next run finds it.
        drop(real_nodes::start(ControlPlane::shared().await, 1).await?);
    }
    traces.are_gone().await?;
    traces.plane.is_gone().await?;
    let after = Machine::now()?;
    ensure!(after == before, "before: {before:#?}\nafter: {after:#?}");
    Ok(())
}

/// What cleans up after a process.
fn reaper_of(process: ProcessId) -> Result<ProcessId> {
    let threads = fs::read_dir(format!("/proc/{}/task", process.pid))?.flatten();
    let children = threads.filter_map(|thread| fs::read_to_string(thread.path().join("children")).ok());
    let mut children = children.flat_map(|pids| {
        let pids = pids.split_whitespace().filter_map(|pid| pid.parse().ok());
        pids.collect::<Vec<u32>>()
    });
    let is_reaper = |pid: &u32| {
        let arguments = fs::read_to_string(format!("/proc/{pid}/cmdline"));
        arguments.is_ok_and(|arguments| arguments.contains("nodeward-testbed-reaper"))
    };
    children.find(is_reaper).and_then(ProcessId::of).context("the reaper")
}
