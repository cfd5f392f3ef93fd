//! `cargo xtask cluster`: a control plane that stays, in the foreground or detached.

use std::fs::{self, OpenOptions};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode, Stdio};
use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};
use clap::Subcommand;
use nodeward_testkit::ceph::{Ceph, CephOptions, Programs};
use nodeward_testkit::drainers::{self, Drainer};
use nodeward_testkit::fleet::{self, NodeSpec};
use nodeward_testkit::kubernetes::{self, Kubernetes};
use nodeward_testkit::process::{ProcessId, Signal};
use nodeward_testkit::progress::Progress;
use nodeward_testkit::rook::{self, Rook};
use nodeward_testkit::{ControlPlane, Options, toolchain};
use serde::{Deserialize, Serialize};
use tokio::signal::unix::{SignalKind, signal};

/// Enough for the slowest part to end on SIGTERM; what is left is killed.
const STOPPED_WITHIN: Duration = Duration::from_secs(20);
/// The mark of a directory that this command made and may therefore empty.
const MARK: &str = ".nodeward-cluster";
/// Where programs look for shared libraries first: read once, when they begin.
const LIBRARY_PATH: &str = "LD_LIBRARY_PATH";

#[derive(clap::Args)]
pub struct Args {
    #[command(subcommand)]
    command: Action,
    /// Where data, logs and the kubeconfig go [default: nodeward/cluster in the user's state directory]
    #[arg(long, global = true)]
    dir: Option<PathBuf>,
}

#[derive(Subcommand)]
enum Action {
    /// Start it, and stop it on Ctrl-C
    Up {
        #[command(flatten)]
        contents: Contents,
        /// Leave it running in the background; `down` stops it
        #[arg(long)]
        detach: bool,
        /// The background half of `--detach`
        #[arg(long, hide = true, conflicts_with = "detach")]
        supervised: bool,
    },
    /// Stop the one that `up --detach` left running
    Down,
    /// Print the path of its kubeconfig
    Kubeconfig,
}

/// Which control plane there is, and what besides it.
#[derive(clap::Args, Clone)]
struct Contents {
    /// Which Kubernetes it is
    #[arg(long, value_name = "VERSION", env = kubernetes::VARIABLE, default_value = kubernetes::DEFAULT)]
    kubernetes: Kubernetes,
    /// How many (simulated) worker nodes to create
    #[arg(long, default_value_t = 3)]
    nodes: usize,
    /// Run a real Ceph, too, with the objects that Rook would have made: Debian's packages, fetched when first needed
    #[arg(long)]
    ceph: bool,
    /// Hosts of the Ceph, each a further node
    #[arg(long, default_value_t = 3, requires = "ceph", value_parser = clap::value_parser!(u16).range(1..))]
    hosts: u16,
    /// Racks that these are in
    #[arg(long, default_value_t = 3, requires = "ceph", value_parser = clap::value_parser!(u16).range(1..))]
    racks: u16,
    /// OSDs of each host
    #[arg(long, default_value_t = 1, requires = "ceph", value_parser = clap::value_parser!(u16).range(1..))]
    osds_per_host: u16,
    /// Programs of others that empty nodes, built when first needed: karpenter, cluster-api, descheduler
    #[arg(long, value_name = "NAMES", value_delimiter = ',')]
    drainers: Vec<Drainer>,
}

/// What runs.
struct Running {
    // Before the control plane, which they talk to.
    drainers: Vec<drainers::Running>,
    told: Vec<String>,
    // Before the control plane, which has its objects.
    rook: Option<Rook>,
    plane: ControlPlane,
}

/// What is written into the directory once the cluster is ready, and removed when it ends.
#[derive(Serialize, Deserialize)]
struct State {
    supervisor: ProcessId,
    parts: Vec<ProcessId>,
    kubeconfig: PathBuf,
    kubectl: PathBuf,
    helm: PathBuf,
    /// What became of each drainer that was asked for, a line each.
    #[serde(default)]
    drainers: Vec<String>,
}

pub fn run(args: Args) -> Result<ExitCode> {
    let dir = directory(args.dir)?;
    match args.command {
        Action::Up {
            contents,
            detach,
            supervised,
        } => {
            if contents.ceph {
                find_ceph_libraries()?;
            }
            if supervised {
                // A session of its own, so that neither Ctrl-C nor closing the terminal reaches it.
                rustix::process::setsid().context("leave the terminal's session")?;
            }
            if detach {
                up_detached(&contents, &dir)
            } else {
                up(&contents, &dir)
            }
        }
        Action::Down => Ok(down(&dir)),
        Action::Kubeconfig => kubeconfig(&dir),
    }
}

/// Begins this program anew where it, or what it starts, would not find librados of Ceph's packages.
pub fn find_ceph_libraries() -> Result<()> {
    let path = Programs::ensure_unpacked()?.library_path();
    if std::env::var_os(LIBRARY_PATH).as_ref() == Some(&path) {
        return Ok(());
    }
    let failed = Command::new(std::env::current_exe()?)
        .args(std::env::args_os().skip(1))
        .env(LIBRARY_PATH, path)
        .exec();
    Err(failed).context("begin anew with other libraries")
}

fn directory(given: Option<PathBuf>) -> Result<PathBuf> {
    let set = toolchain::path_in_environment;
    let dir = given
        .or_else(|| Some(set("XDG_STATE_HOME")?.join("nodeward/cluster")))
        .or_else(|| Some(set("HOME")?.join(".local/state/nodeward/cluster")))
        .context("no place for the cluster: give --dir, or set HOME")?;
    Ok(std::path::absolute(dir)?)
}

fn up(contents: &Contents, dir: &Path) -> Result<ExitCode> {
    prepare(dir)?;
    toolchain::ensure_built(contents.kubernetes)?;
    tokio::runtime::Runtime::new()?.block_on(async {
        // From before the start: Ctrl-C while it starts stops what has been started.
        let mut ended = Ended::listen()?;
        let running = tokio::select! {
            started = start(contents, dir) => started?,
            () = ended.wait() => return Ok(()),
        };
        let state = record(&running, dir)?;
        println!("{}\nCtrl-C stops it.", usage(&state));
        ended.wait().await;
        println!("stopping");
        fs::remove_file(dir.join("state.json"))?;
        drop(running);
        anyhow::Ok(())
    })?;
    Ok(ExitCode::SUCCESS)
}

fn up_detached(contents: &Contents, dir: &Path) -> Result<ExitCode> {
    prepare(dir)?;
    // Here, for its progress to be seen.
    toolchain::ensure_built(contents.kubernetes)?;
    for drainer in &contents.drainers {
        // What cannot be built is named when the rest has started.
        let _ = drainer.ensure_built();
    }
    let progress = Progress::begin("starting the control plane");
    let log = dir.join("supervisor.log");
    let out = OpenOptions::new().create(true).write(true).truncate(true).open(&log)?;
    let mut supervisor = Command::new(std::env::current_exe()?)
        .args(std::env::args_os().skip(1).filter(|arg| arg != "--detach"))
        .arg("--supervised")
        .stdin(Stdio::null())
        .stdout(out.try_clone()?)
        .stderr(out)
        .spawn()?;
    while !dir.join("state.json").exists() {
        let said = fs::read_to_string(&log).unwrap_or_default();
        if let Some(status) = supervisor.try_wait()? {
            bail!("it ended ({status}):\n{said}");
        }
        progress.step(said.lines().last().unwrap_or_default());
        std::thread::sleep(Duration::from_millis(100));
    }
    progress.done("ready");
    println!(
        "{}\n`cargo xtask cluster down --dir {}` stops it.",
        usage(&read(dir)?),
        dir.display()
    );
    Ok(ExitCode::SUCCESS)
}

fn down(dir: &Path) -> ExitCode {
    let Ok(state) = read(dir) else {
        println!("no cluster runs in {}", dir.display());
        return ExitCode::SUCCESS;
    };
    let everyone = || state.parts.iter().chain([&state.supervisor]).filter(|id| id.is_alive());
    let progress = Progress::begin("stopping the control plane");
    // The supervisor stops the parts. A part whose supervisor is gone has no one else to do it.
    state.supervisor.signal(Signal::TERM);
    let began = Instant::now();
    while everyone().next().is_some() && began.elapsed() < STOPPED_WITHIN {
        if !state.supervisor.is_alive() {
            for id in everyone() {
                id.signal(Signal::TERM);
            }
        }
        std::thread::sleep(Duration::from_millis(50));
    }
    for id in everyone() {
        id.signal(Signal::KILL);
    }
    let _ = fs::remove_file(dir.join("state.json"));
    progress.done("stopped");
    ExitCode::SUCCESS
}

fn kubeconfig(dir: &Path) -> Result<ExitCode> {
    let state = read(dir)?;
    ensure!(
        state.supervisor.is_alive(),
        "the cluster in {} does not run any more",
        dir.display()
    );
    println!("{}", state.kubeconfig.display());
    Ok(ExitCode::SUCCESS)
}

async fn start(contents: &Contents, dir: &Path) -> Result<Running> {
    let progress = Progress::begin(format!(
        "starting etcd, kube-apiserver, kube-controller-manager, kube-scheduler (Kubernetes {}) and kwok",
        contents.kubernetes
    ));
    let plane = ControlPlane::start(Options {
        kubernetes: Some(contents.kubernetes),
        dir: Some(dir.to_owned()),
        ..Options::default()
    })
    .await?;
    progress.done("ready");
    let nodes = contents.nodes;
    if nodes > 0 {
        let progress = Progress::begin(format!("creating {nodes} nodes"));
        fleet::create(&plane.client().await?, NodeSpec::workers("worker", nodes)).await?;
        progress.done("Ready");
    }
    let (drainers, told) = start_drainers(&contents.drainers, &plane).await;
    let mut running = Running {
        drainers,
        told,
        rook: None,
        plane,
    };
    if contents.ceph {
        let options = CephOptions {
            hosts: contents.hosts.into(),
            racks: contents.racks.into(),
            osds_per_host: contents.osds_per_host.into(),
            ..CephOptions::default()
        };
        running.rook = Some(start_ceph(&running.plane, options).await?);
    }
    Ok(running)
}

/// What cannot be had is named, and the rest runs. Gives what became of each, too.
async fn start_drainers(drainers: &[Drainer], plane: &ControlPlane) -> (Vec<drainers::Running>, Vec<String>) {
    let (mut running, mut told) = (Vec::new(), Vec::new());
    for drainer in drainers {
        match drainer.start(plane).await {
            Ok(started) => {
                let log = started.process().log().display();
                told.push(format!("{drainer} runs; its log is {log}\n"));
                running.push(started);
            }
            Err(error) => told.push(format!("no {drainer}: {}\n", drainers::in_one_line(&error))),
        }
    }
    (running, told)
}

async fn start_ceph(plane: &ControlPlane, options: CephOptions) -> Result<Rook> {
    let osds = options.osds();
    let (domain, domains) = match options.racks.min(options.hosts) {
        racks @ 3.. => ("rack", racks),
        _ => ("host", options.hosts),
    };
    let progress = Progress::begin(format!("starting Ceph with {osds} OSDs"));
    let ceph = Arc::new(Ceph::start(options).await?);
    progress.step("Rook's objects");
    plane.namespace(rook::CLUSTER).await?;
    let rook = Rook::start(&plane.client().await?, rook::CLUSTER, ceph).await?;
    if domains > 1 {
        rook.add_pool("data", domains.min(3), 8, domain).await?;
    }
    progress.done(&format!("ready in namespace {}", rook.namespace()));
    Ok(rook)
}

/// An empty directory, in which no cluster runs.
fn prepare(dir: &Path) -> Result<()> {
    if let Ok(state) = read(dir) {
        ensure!(
            !state.supervisor.is_alive(),
            "a cluster runs in {} already: `cargo xtask cluster down`, or another --dir",
            dir.display()
        );
    }
    fs::create_dir_all(dir).with_context(|| format!("create {}", dir.display()))?;
    let ours = dir.join(MARK).exists();
    for entry in fs::read_dir(dir)? {
        let path = entry?.path();
        ensure!(ours, "{} is not empty and was not made by this command", dir.display());
        // Its supervisor writes there while it starts.
        if path.file_name().is_some_and(|name| name == "supervisor.log") {
            continue;
        }
        if path.is_dir() {
            fs::remove_dir_all(&path)?;
        } else {
            fs::remove_file(&path)?;
        }
    }
    fs::write(dir.join(MARK), "")?;
    Ok(())
}

fn record(running: &Running, dir: &Path) -> Result<State> {
    let Running {
        drainers,
        told,
        rook,
        plane,
    } = running;
    let mut parts = plane.process_ids();
    parts.extend(drainers.iter().filter_map(|drainer| drainer.process().id()));
    parts.extend(rook.iter().flat_map(|rook| rook.ceph().process_ids()));
    let state = State {
        supervisor: ProcessId::own().context("this process's start time")?,
        parts,
        kubeconfig: plane.kubeconfig(),
        kubectl: plane.tools().kubectl.clone(),
        helm: plane.tools().helm.clone(),
        drainers: told.clone(),
    };
    let unfinished = dir.join(".state.json");
    fs::write(&unfinished, serde_json::to_vec_pretty(&state)?)?;
    fs::rename(unfinished, dir.join("state.json"))?;
    Ok(state)
}

fn read(dir: &Path) -> Result<State> {
    let file = dir.join("state.json");
    let text = fs::read(&file).with_context(|| format!("no cluster runs in {}", dir.display()))?;
    serde_json::from_slice(&text).with_context(|| format!("read {}", file.display()))
}

fn usage(state: &State) -> String {
    format!(
        "\n{}The cluster is ready. To use it:\n\n  export KUBECONFIG={}\n  {} get nodes\n  {} list -A\n",
        state.drainers.concat(),
        state.kubeconfig.display(),
        state.kubectl.display(),
        state.helm.display()
    )
}

/// Ctrl-C, SIGTERM or the terminal's end.
pub struct Ended([tokio::signal::unix::Signal; 3]);

impl Ended {
    pub fn listen() -> Result<Self> {
        Ok(Self([
            signal(SignalKind::interrupt())?,
            signal(SignalKind::terminate())?,
            signal(SignalKind::hangup())?,
        ]))
    }

    pub async fn wait(&mut self) {
        let signals = self.0.iter_mut().map(|signal| Box::pin(signal.recv()));
        futures::future::select_all(signals).await;
    }
}
