//! A control plane ends with whoever started it.

use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::{Mutex, PoisonError};

use anyhow::{Context, Result, ensure};
use nodeward_testkit::process::{ProcessId, Signal};
use nodeward_testkit::wait::{self, secs};
use nodeward_testkit::{ControlPlane, Options};
use rstest::rstest;
use serde::{Deserialize, Serialize};

#[derive(Serialize, Deserialize)]
struct Started {
    processes: Vec<ProcessId>,
    dir: PathBuf,
}

impl Started {
    fn of(plane: &ControlPlane) -> Self {
        Self {
            processes: plane.process_ids(),
            dir: plane.dir().to_owned(),
        }
    }

    async fn is_gone(&self) -> Result<()> {
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

/// What the test below kills. It gets the file to write to in `NODEWARD_TESTBED_HOLD`.
#[tokio::test(flavor = "multi_thread")]
#[ignore = "a process of its own for the test that kills it"]
async fn holds_a_control_plane_until_it_is_killed() -> Result<()> {
    let file = PathBuf::from(std::env::var_os("NODEWARD_TESTBED_HOLD").context("NODEWARD_TESTBED_HOLD")?);
    let plane = ControlPlane::start(Options::default()).await?;
    let unfinished = file.with_extension("new");
    std::fs::write(&unfinished, serde_json::to_vec(&Started::of(&plane))?)?;
    std::fs::rename(unfinished, file)?;
    std::future::pending().await
}

#[rstest]
#[case::killed(Signal::KILL)]
#[case::interrupted_by_ctrl_c(Signal::INT)]
#[tokio::test(flavor = "multi_thread")]
async fn nothing_survives_the_starting_process(#[case] signal: Signal) -> Result<()> {
    let dir = tempfile::tempdir()?;
    let file = dir.path().join("started");
    // What a shell runs in the background ignores Ctrl-C, and so would all that comes of it.
    let mut holder = Command::new("env")
        .arg("--default-signal=INT")
        .arg(std::env::current_exe()?)
        .args([
            "--exact",
            "cleanup::holds_a_control_plane_until_it_is_killed",
            "--ignored",
        ])
        .env("NODEWARD_TESTBED_HOLD", &file)
        .stdout(Stdio::null())
        .spawn()?;
    let started = read(&file).await?;
    ensure!(
        started.processes.len() == 5 && started.processes.iter().all(|id| id.is_alive()),
        "{:?}",
        started.processes
    );
    let id = ProcessId::of(holder.id()).context("the holder")?;
    ensure!(id.signal(signal), "the holder had ended by itself");
    let ended = Mutex::new(&mut holder);
    wait::until("the holder to end", secs(60), || async {
        let status = ended.lock().unwrap_or_else(PoisonError::into_inner).try_wait()?;
        status.context("it goes on")
    })
    .await?;
    started.is_gone().await
}

async fn read(file: &Path) -> Result<Started> {
    wait::until("the holder's control plane", secs(120), || async {
        Ok(serde_json::from_slice(&std::fs::read(file)?)?)
    })
    .await
}
