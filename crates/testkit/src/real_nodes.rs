//! Nodes with a real kubelet, containerd and runc, beside the simulated ones of [`crate::fleet`].
//!
//! No container engine is needed, and nothing is installed: the kubelet is built as the control plane is, the rest are Debian's
//! packages, and images are made from files. All of a node, but for the network, lives in namespaces of its own, whose first process
//! ends with the process that started it; then the kernel ends the rest.

mod configuration;
mod image;
mod machine;

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::OnceLock;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};
use k8s_openapi::api::core::v1::Node;
use kube::{Api, Client};
use tempfile::TempDir;
use tokio::sync::{Semaphore, SemaphorePermit};

use self::configuration::{BOOT_ID, Programs, Settings};
pub use self::image::APP;
pub use self::machine::cgroups_of;
use crate::binaries::stdout_of;
use crate::process::{self, Process, ProcessId, Signal};
use crate::{ControlPlane, fleet, names, wait};

/// A node is Ready within ten seconds where cores are free.
const READY_WITHIN: Duration = Duration::from_mins(3);

/// How long a program may take until it answers.
const ANSWERS_WITHIN: Duration = Duration::from_mins(1);

/// A port can be taken by somebody else between choosing and binding it.
const ATTEMPTS: usize = 3;

/// More at once would only wait for each other's cores.
const AT_ONCE: usize = 3;
static PLACES: Semaphore = Semaphore::const_new(AT_ONCE);

/// Below these a node has its own files.
const OWN: [&str; 3] = ["/run", "/var/lib", "/var/log"];

/// Whether a test has to do without real nodes; where it has, one line of the process says what is missing.
///
/// # Errors
/// In CI (the variable `CI` is set), which must run these tests: what is missing.
pub fn are_missing() -> Result<bool> {
    static MISSING: OnceLock<Option<String>> = OnceLock::new();
    let is_required = std::env::var_os("CI").is_some_and(|value| !value.is_empty());
    let missing = MISSING.get_or_init(|| {
        let missing = machine::check().err().map(|error| format!("{error:#}"));
        if let Some(missing) = &missing {
            tell(&format!("tests on real nodes are skipped: {missing}"));
        }
        missing
    });
    match missing {
        Some(missing) if is_required => bail!("CI has to test on real nodes: {missing}"),
        missing => Ok(missing.is_some()),
    }
}

/// Past the test harness, which keeps to itself what passing tests print.
fn tell(line: &str) {
    use std::io::Write;
    let _ = writeln!(std::io::stderr(), "{line}");
}

/// One node. Dropping it ends all that runs on it, and removes its files; so does whatever else ends this process. Its Node stays.
pub struct RealNode {
    name: String,
    client: Client,
    programs: Programs,
    /// `unshare`, whose child is the node's first process.
    unshare: Process,
    running: Option<Running>,
    // Last, so that it goes when the processes are gone.
    dir: TempDir,
    _place: SemaphorePermit<'static>,
}

/// What a node that is switched on runs.
struct Running {
    /// With it all others end.
    first: ProcessId,
    containerd: Process,
    kubelet: Process,
}

/// Starts so many nodes, and waits until they are Ready. A test asks for all that it needs at once: there is room for three.
///
/// # Errors
/// When a program is missing or does not start: with the last lines of its log.
pub async fn start(plane: &ControlPlane, count: usize) -> Result<Vec<RealNode>> {
    ensure!(count <= AT_ONCE, "at most {AT_ONCE} real nodes run at once");
    let mut places = PLACES.acquire_many(u32::try_from(count)?).await?;
    let kubernetes = plane.options().kubernetes()?;
    let programs = tokio::task::spawn_blocking(move || {
        let left = machine::sweep();
        if !left.is_empty() {
            tell(&format!("removed the real nodes of runs that were killed: {left:?}"));
        }
        Programs::ensure(kubernetes)
    });
    let programs = programs.await??;
    let places = (0..count).filter_map(|_| places.split(1));
    futures::future::try_join_all(places.map(|place| RealNode::start(plane, &programs, place))).await
}

impl RealNode {
    async fn start(plane: &ControlPlane, programs: &Programs, place: SemaphorePermit<'static>) -> Result<Self> {
        let mut node = Self::create(plane, programs, place).await?;
        let mut attempt = 1;
        loop {
            match node.power_on().await {
                Err(error) if attempt < ATTEMPTS && format!("{error:#}").contains("address already in use") => {
                    attempt += 1;
                    node.power_off()?;
                    node.settings(plane).write_ports()?;
                }
                outcome => return outcome.map(|_| node).context("start a real node"),
            }
        }
    }

    /// Writes its files.
    async fn create(plane: &ControlPlane, programs: &Programs, place: SemaphorePermit<'static>) -> Result<Self> {
        let dir = tempfile::Builder::new().prefix(machine::PREFIX).tempdir()?;
        process::remove_at_exit(dir.path())?;
        let owner = ProcessId::own().context("this process")?;
        fs::write(dir.path().join(machine::OWNER), serde_json::to_vec(&owner)?)?;
        for path in [dir.path(), &programs.kubelet, &programs.path("usr/bin/containerd")?] {
            let hidden = OWN.iter().find(|own| path.starts_with(own));
            ensure!(
                hidden.is_none(),
                "{} is where nodes have files of their own",
                path.display()
            );
        }
        let script = dir.path().join("init.sh");
        fs::write(&script, include_str!("real_nodes/init.sh"))?;
        let unshare = Process::new("a real node", "unshare", dir.path().join("unshare.log"))
            .args(["--mount", "--pid", "--fork", "--kill-child", "--mount-proc", "sh"])
            .args([&script, dir.path()]);
        let name = names::unique("real");
        let user = format!("system:node:{name}");
        fs::copy(
            plane.kubeconfig_of(&user, "system:nodes")?,
            dir.path().join("kubeconfig"),
        )?;
        let node = Self {
            name,
            client: plane.client().await?,
            programs: programs.clone(),
            unshare,
            running: None,
            dir,
            _place: place,
        };
        process::remove_cgroups_at_exit(&node.cgroup())?;
        node.settings(plane).write(programs)?;
        Ok(node)
    }

    fn settings<'a>(&'a self, plane: &'a ControlPlane) -> Settings<'a> {
        Settings {
            dir: self.dir.path(),
            lease: plane.options().lease(),
            authority: plane.ca(),
        }
    }

    /// Its Node's name.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Its directory on this machine.
    pub fn dir(&self) -> &Path {
        self.dir.path()
    }

    /// The name of its cgroups, directly below the root of each hierarchy.
    pub fn cgroup(&self) -> String {
        let name = self.dir.path().file_name().unwrap_or_default();
        name.to_string_lossy().into_owned()
    }

    /// Where its kubelet looks for manifests of static pods.
    pub fn manifests(&self) -> PathBuf {
        self.dir.path().join("manifests")
    }

    /// Every process of it: those in its namespace of processes, and those of containers, which have such namespaces of their own.
    pub fn processes(&self) -> Vec<ProcessId> {
        let namespace = |pid: &str| fs::read_link(format!("/proc/{pid}/ns/pid")).ok();
        let first = self.running.as_ref().map(|running| running.first.pid.to_string());
        let Some(own) = first.and_then(|first| namespace(&first)) else {
            return Vec::new();
        };
        let cgroup = self.cgroup();
        let is_contained = |pid: &str| {
            let cgroups = fs::read_to_string(format!("/proc/{pid}/cgroup"));
            cgroups.is_ok_and(|cgroups| cgroups.contains(&cgroup))
        };
        let entries = fs::read_dir("/proc").into_iter().flatten().flatten();
        let pids = entries.filter_map(|entry| entry.file_name().into_string().ok());
        let inside = pids.filter(|pid| namespace(pid).as_ref() == Some(&own) || is_contained(pid));
        inside.filter_map(|pid| ProcessId::of(pid.parse().ok()?)).collect()
    }

    /// The memory of all its processes, in MiB; what several of them share is counted once.
    pub fn memory_mib(&self) -> u64 {
        let kib = |id: ProcessId| -> Option<u64> {
            let rollup = fs::read_to_string(format!("/proc/{}/smaps_rollup", id.pid)).ok()?;
            let line = rollup.lines().find_map(|line| line.strip_prefix("Pss:"))?;
            line.split_whitespace().next()?.parse().ok()
        };
        self.processes().into_iter().filter_map(kib).sum::<u64>() / 1024
    }

    /// Reboots the node: all that runs on it is killed, it is away for `away`, and comes back with another `bootID`, which is
    /// given when it is Ready and the not-ready taint is gone.
    ///
    /// # Errors
    /// When it does not come back.
    pub async fn reboot(&mut self, away: Duration) -> Result<String> {
        self.power_off()?;
        tokio::time::sleep(away).await;
        self.power_on().await
    }

    /// The machine dies: all that runs on it is gone, and nobody says so.
    ///
    /// # Errors
    /// When something goes on.
    pub fn power_off(&mut self) -> Result<()> {
        let Some(running) = self.running.take() else {
            self.unshare.kill();
            return Ok(());
        };
        running.first.signal(Signal::KILL);
        let began = Instant::now();
        // Whoever brought them in reaps them, even if it stands still.
        for program in [&running.kubelet, &running.containerd] {
            let _ = program.resume();
            while program.is_running() && began.elapsed() < ANSWERS_WITHIN {
                std::thread::sleep(Duration::from_millis(5));
            }
        }
        drop(running);
        self.unshare.kill();
        // Where all is gone nothing holds a cgroup any more.
        machine::remove_cgroups(&self.cgroup())
    }

    /// The machine boots, with the disk that it had. Gives its `bootID` when its Node is Ready and the not-ready taint is gone.
    ///
    /// # Errors
    /// When a program does not start: with the last lines of its log.
    pub async fn power_on(&mut self) -> Result<String> {
        ensure!(self.running.is_none(), "{} is on", self.name);
        let dir = self.dir.path();
        let boot_id = fleet::new_boot_id();
        fs::write(dir.join("sys").join(BOOT_ID), &boot_id)?;
        let up = dir.join("up");
        let _ = fs::remove_file(&up);
        self.unshare.start()?;
        self.answers(&self.unshare, || ensure_exists(&up)).await?;
        let first = self
            .unshare
            .pid()
            .and_then(child_of)
            .context("the node's first process")?;
        fs::write(dir.join(machine::FIRST), serde_json::to_vec(&first)?)?;
        let containerd = self.program("containerd", first, &self.programs.path("usr/bin/containerd")?);
        let config = dir.join("containerd.toml");
        let containerd = containerd.args(["--config".as_ref(), config.as_os_str()]);
        let kubelet = self.program("kubelet", first, &self.programs.kubelet).args([
            format!("--config={}/kubelet.json", dir.display()),
            format!("--kubeconfig={}/kubeconfig", dir.display()),
            format!("--hostname-override={}", self.name),
        ]);
        let running = self.running.insert(Running {
            first,
            containerd,
            kubelet,
        });
        running.containerd.start()?;
        let running = self.running.as_ref().context("running")?;
        self.answers(&running.containerd, || self.ctr(first, &["version"]))
            .await?;
        if !dir.join("images").exists() {
            let archive = image::archive(&dir.join("images"))?;
            let archive = archive.to_string_lossy();
            self.ctr(first, &["images", "import", &archive])?;
        }
        running.kubelet.start()?;
        self.ready(&boot_id).await?;
        Ok(boot_id)
    }

    /// Ends the kubelet; containers go on.
    ///
    /// # Errors
    /// When the node is off.
    pub fn stop_kubelet(&self) -> Result<()> {
        self.running()?.kubelet.kill();
        Ok(())
    }

    /// Starts the kubelet again, and does not wait.
    ///
    /// # Errors
    /// When the node is off, or the kubelet runs.
    pub fn start_kubelet(&self) -> Result<()> {
        self.running()?.kubelet.start()
    }

    /// The machine stands still, as one whose hypervisor does not let it run: every process of it is stopped.
    ///
    /// # Errors
    /// When the node is off, or a process goes on.
    pub fn freeze(&self) -> Result<()> {
        self.running()?;
        let began = Instant::now();
        // A process that was not stopped yet may have started another.
        loop {
            let processes = self.processes();
            let going: Vec<_> = processes
                .into_iter()
                .filter(|id| !process::is_stopped(id.pid).unwrap_or(true))
                .collect();
            if going.is_empty() {
                return Ok(());
            }
            ensure!(began.elapsed() < ANSWERS_WITHIN, "{going:?} of {} go on", self.name);
            for id in going {
                id.signal(Signal::STOP);
            }
            std::thread::sleep(Duration::from_millis(5));
        }
    }

    /// It goes on after [`RealNode::freeze`].
    ///
    /// # Errors
    /// When the node is off.
    pub fn thaw(&self) -> Result<()> {
        let running = self.running()?;
        for id in self.processes() {
            id.signal(Signal::CONT);
        }
        // Who brought these in has stopped with them.
        running.containerd.resume()?;
        running.kubelet.resume()
    }

    fn running(&self) -> Result<&Running> {
        self.running.as_ref().with_context(|| format!("{} is off", self.name))
    }

    /// A program that runs in the node's namespaces.
    fn program(&self, name: &str, first: ProcessId, program: &Path) -> Process {
        let path = std::env::var("PATH").unwrap_or_default();
        let shims = program.parent().unwrap_or(program).display();
        Process::new(name, "nsenter", self.dir.path().join(format!("{name}.log")))
            .args(enter(first))
            .args([program])
            .env("PATH", format!("{shims}:{path}"))
            .env("HOME", self.dir.path())
    }

    /// containerd's client, on its images and containers of Kubernetes.
    fn ctr(&self, first: ProcessId, args: &[&str]) -> Result<()> {
        let mut command = Command::new("nsenter");
        command.args(enter(first)).arg(self.programs.path("usr/bin/ctr")?);
        stdout_of(command.args(["--namespace", "k8s.io"]).args(args)).map(drop)
    }

    async fn ready(&self, boot_id: &str) -> Result<()> {
        let nodes: Api<Node> = Api::all(self.client.clone());
        let look = || async {
            let node = nodes.get(&self.name).await?;
            let info = node.status.as_ref().and_then(|status| status.node_info.as_ref());
            ensure!(info.is_some_and(|info| info.boot_id == boot_id), "it has not booted");
            let keys: Vec<&str> = fleet::taints(&node).iter().map(|taint| taint.key.as_str()).collect();
            ensure!(!keys.iter().any(|key| fleet::tells_not_ready(key)), "tainted {keys:?}");
            ensure!(fleet::is_ready(&node), "{:?}", fleet::condition(&node, "Ready"));
            Ok(())
        };
        let kubelet = &self.running()?.kubelet;
        until_it_ends(
            kubelet,
            wait::until(format!("{} to be Ready", self.name), READY_WITHIN, look),
        )
        .await
    }

    /// Waits until a program does what is asked of it.
    async fn answers(&self, program: &Process, ask: impl Fn() -> Result<()>) -> Result<()> {
        let answer = wait::until(format!("{} to answer", program.name()), ANSWERS_WITHIN, || async {
            ask()
        });
        until_it_ends(program, answer).await
    }
}

impl Drop for RealNode {
    fn drop(&mut self) {
        if let Err(error) = self.power_off() {
            tell(&format!("{}: {error:#}", self.name));
        }
    }
}

/// The arguments with which `nsenter` runs a program beside the node's first process.
fn enter(first: ProcessId) -> [String; 5] {
    ["--target", &first.pid.to_string(), "--mount", "--pid", "--"].map(str::to_owned)
}

/// The first child of a process.
fn child_of(pid: u32) -> Option<ProcessId> {
    let children = fs::read_to_string(format!("/proc/{pid}/task/{pid}/children")).ok()?;
    ProcessId::of(children.split_whitespace().next()?.parse().ok()?)
}

fn ensure_exists(path: &Path) -> Result<()> {
    ensure!(path.exists(), "{} is not there", path.display());
    Ok(())
}

/// What a program is waited for; an error at once when it ends. Either has the last lines of its log.
async fn until_it_ends(program: &Process, answer: impl Future<Output = Result<()>>) -> Result<()> {
    let ended = async {
        while program.is_running() {
            tokio::time::sleep(Duration::from_millis(100)).await;
        }
    };
    let log = || format!("its log ends with:\n{}", program.log_tail(15));
    tokio::select! {
        answer = answer => answer.with_context(log),
        () = ended => bail!("{} has ended; {}", program.name(), log()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn program_that_ends_is_told_with_its_last_words() {
        let log = tempfile::NamedTempFile::new().unwrap();
        let program = Process::new("containerd", "/bin/sh", log.path()).args(["-c", "echo no space; exit 1"]);
        program.start().unwrap();
        let refusal = until_it_ends(&program, std::future::pending()).await.unwrap_err();
        assert_eq!(
            format!("{refusal:#}"),
            "containerd has ended; its log ends with:\nno space"
        );
    }
}
