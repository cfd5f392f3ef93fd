//! A control plane ends with whoever started it.

use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::sync::Mutex;

use anyhow::{Context, Result, ensure};
use nodeward_testkit::process::{ProcessId, Signal};
use nodeward_testkit::wait::{self, secs};
use nodeward_testkit::{ControlPlane, Options};
use rstest::rstest;
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use tempfile::TempDir;

#[derive(Serialize, Deserialize)]
pub struct Started {
    pub processes: Vec<ProcessId>,
    pub dir: PathBuf,
}

impl Started {
    pub fn of(plane: &ControlPlane) -> Self {
        Self {
            processes: plane.process_ids(),
            dir: plane.dir().to_owned(),
        }
    }

    pub async fn is_gone(&self) -> Result<()> {
        wait::until("every process and the directory to be gone", secs(60), || async {
            let left: Vec<_> = self.processes.iter().filter(|id| id.is_alive()).collect();
            ensure!(left.is_empty(), "still running: {left:?}");
            ensure!(!self.dir.exists(), "{} still exists", self.dir.display());
            Ok(())
        })
        .await
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn nothing_is_left_after_a_drop() -> Result<()> {
    let plane = ControlPlane::start(Options::default()).await?;
    let started = Started::of(&plane);
    ensure!(
        started.processes.len() == 5 && started.processes.iter().all(|id| id.is_alive()),
        "{:?}",
        started.processes
    );
    drop(plane);
    started.is_gone().await
}

/// What the test below kills.
#[tokio::test(flavor = "multi_thread")]
#[ignore = "a process of its own for the test that kills it"]
async fn holds_a_control_plane_until_it_is_killed() -> Result<()> {
    let plane = ControlPlane::start(Options::default()).await?;
    Holder::hold(&Started::of(&plane)).await
}

#[rstest]
#[case::killed(Signal::KILL)]
#[case::interrupted_by_ctrl_c(Signal::INT)]
#[tokio::test(flavor = "multi_thread")]
async fn nothing_survives_the_starting_process(#[case] signal: Signal) -> Result<()> {
    let mut holder = Holder::start("cleanup::holds_a_control_plane_until_it_is_killed")?;
    let started: Started = holder.started().await?;
    ensure!(
        started.processes.len() == 5 && started.processes.iter().all(|id| id.is_alive()),
        "{:?}",
        started.processes
    );
    holder.end(signal).await?;
    started.is_gone().await
}

/// A test of this binary in a process of its own.
pub struct Holder {
    child: Mutex<Child>,
    dir: TempDir,
}

impl Holder {
    pub fn start(test: &str) -> Result<Self> {
        let dir = tempfile::tempdir()?;
        // What a shell runs in the background ignores Ctrl-C, and so would all that comes of it.
        let child = Command::new("env")
            .arg("--default-signal=INT")
            .arg(std::env::current_exe()?)
            .args(["--exact", test, "--ignored"])
            .env("NODEWARD_TESTBED_HOLD", dir.path().join("started"))
            .stdout(Stdio::null())
            .spawn()?;
        let child = Mutex::new(child);
        Ok(Self { child, dir })
    }

    /// In the holder: tells what it has started, and stays.
    pub async fn hold(started: &impl Serialize) -> Result<()> {
        let file = PathBuf::from(std::env::var_os("NODEWARD_TESTBED_HOLD").context("NODEWARD_TESTBED_HOLD")?);
        let unfinished = file.with_extension("new");
        std::fs::write(&unfinished, serde_json::to_vec(started)?)?;
        std::fs::rename(unfinished, file)?;
        std::future::pending().await
    }

    /// What it has started.
    pub async fn started<T: DeserializeOwned>(&self) -> Result<T> {
        let file = self.dir.path().join("started");
        wait::until("what the holder starts", secs(180), || async {
            Ok(serde_json::from_slice(&std::fs::read(&file)?)?)
        })
        .await
    }

    pub fn id(&self) -> Result<ProcessId> {
        ProcessId::of(nodeward_testkit::lock(&self.child).id()).context("the holder")
    }

    /// Ends it, and waits until it is gone.
    pub async fn end(&mut self, signal: Signal) -> Result<()> {
        ensure!(self.id()?.signal(signal), "the holder had ended by itself");
        wait::until("the holder to end", secs(60), || async {
            nodeward_testkit::lock(&self.child).try_wait()?.context("it goes on")
        })
        .await
        .map(drop)
    }
}

impl Drop for Holder {
    fn drop(&mut self) {
        let child = nodeward_testkit::lock(&self.child).id();
        let _ = ProcessId::of(child).map(|id| id.signal(Signal::KILL));
    }
}
