//! Child processes that never outlive the process that started them.
//!
//! Destructors do not run on SIGKILL, on abort, or for a `static`. So each process that uses this module starts one
//! small shell, the *reaper*, which reads the ids of the children from a pipe. When the pipe closes, because this
//! process ended in whatever way, the reaper kills each child that is still the one that was started, and removes the
//! cgroups and temporary directories it was told about.

use std::ffi::{OsStr, OsString};
use std::fs::{File, OpenOptions};
use std::io::Write;
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, Command, ExitStatus, Stdio};
use std::sync::{Mutex, MutexGuard, OnceLock};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, anyhow, bail, ensure};
pub use rustix::process::Signal;
use rustix::process::{Pid, kill_process, kill_process_group};

use crate::wait;

/// How long the threads of a process may take to stop, on a loaded machine.
const STOPPED_WITHIN: Duration = Duration::from_mins(1);

/// Ends what this process leaves behind.
const REAPER: &str = include_str!("reaper.sh");

fn reaper() -> Result<MutexGuard<'static, ChildStdin>> {
    static REAPER_STDIN: OnceLock<Result<Mutex<ChildStdin>, String>> = OnceLock::new();
    let started = REAPER_STDIN.get_or_init(|| start_reaper().map_err(|error| format!("{error:#}")));
    match started {
        Ok(stdin) => Ok(crate::lock(stdin)),
        Err(error) => Err(anyhow!("{error}")),
    }
}

fn start_reaper() -> Result<Mutex<ChildStdin>> {
    let mut child = Command::new("/bin/sh")
        .args(["-c", REAPER, "nodeward-testbed-reaper"])
        .stdin(Stdio::piped())
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        // A group of its own: Ctrl-C on the terminal must not reach it.
        .process_group(0)
        .spawn()
        .context("start the process that cleans up after this one")?;
    let stdin = child.stdin.take().context("the reaper's standard input")?;
    Ok(Mutex::new(stdin))
}

/// Has `dir` removed when this process has ended. The directory is marked, and only a marked one is ever removed.
///
/// # Errors
/// When the directory cannot be marked or the reaper cannot be told.
pub fn remove_at_exit(dir: &Path) -> Result<()> {
    File::create(dir.join(".nodeward-testbed"))?;
    writeln!(reaper()?, "d {}", dir.display()).context("tell the reaper")
}

/// Has the cgroups of this name, directly below the root of each hierarchy, removed when this process has ended.
///
/// # Errors
/// When the reaper cannot be told.
pub(crate) fn remove_cgroups_at_exit(name: &str) -> Result<()> {
    writeln!(reaper()?, "c {name}").context("tell the reaper")
}

/// A process as the kernel knows it: an id is only meaningful together with the start time.
#[derive(Clone, Copy, Debug, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
pub struct ProcessId {
    pub pid: u32,
    /// Field 22 of `/proc/PID/stat`: clock ticks since boot.
    pub start_time: u64,
}

impl ProcessId {
    /// The process that has the id `pid` now, if there is one.
    pub fn of(pid: u32) -> Option<Self> {
        let start_time = stat_fields(pid)?.get(19)?.parse().ok()?;
        Some(Self { pid, start_time })
    }

    pub fn own() -> Option<Self> {
        Self::of(std::process::id())
    }

    /// Whether that very process still exists and is not a zombie.
    pub fn is_alive(self) -> bool {
        Self::of(self.pid) == Some(self)
            && stat_fields(self.pid).is_some_and(|fields| fields.first().is_none_or(|state| state != "Z"))
    }

    /// Sends `signal` if that very process still exists; tells whether it did.
    pub fn signal(self, signal: Signal) -> bool {
        self.is_alive() && rustix_pid(self.pid).is_some_and(|pid| kill_process(pid, signal).is_ok())
    }
}

fn rustix_pid(pid: u32) -> Option<Pid> {
    i32::try_from(pid).ok().and_then(Pid::from_raw)
}

/// The fields of `/proc/PID/stat` after the command's name: the first is the state, which proc(5) numbers 3.
fn stat_fields(pid: u32) -> Option<Vec<String>> {
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    let (_, rest) = stat.rsplit_once(") ")?;
    Some(rest.split_whitespace().map(str::to_owned).collect())
}

/// Whether all its threads are stopped.
pub(crate) fn is_stopped(pid: u32) -> Result<bool> {
    for thread in std::fs::read_dir(format!("/proc/{pid}/task"))? {
        // One that has ended since cannot be read, and does nothing.
        let stat = std::fs::read_to_string(thread?.path().join("stat")).unwrap_or_default();
        let state = stat.rsplit_once(") ").and_then(|(_, rest)| rest.chars().next());
        if state.is_some_and(|state| state != 'T') {
            return Ok(false);
        }
    }
    Ok(true)
}

/// What a process has used so far.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Usage {
    /// Resident memory now, in MiB.
    pub rss_mib: f64,
    /// The highest resident memory so far, in MiB.
    pub peak_rss_mib: f64,
    /// User and system CPU time since its start.
    pub cpu: Duration,
}

/// How long this machine's cores were busy since it started, all together.
///
/// # Errors
/// When the kernel does not tell.
pub fn machine_cpu() -> Result<Duration> {
    let stat = std::fs::read_to_string("/proc/stat")?;
    // `cpu`, then ticks: user, nice, system, idle, iowait, irq, softirq.
    let line = stat.lines().next().unwrap_or_default();
    let ticks: Vec<u64> = line
        .split_whitespace()
        .skip(1)
        .filter_map(|field| field.parse().ok())
        .collect();
    let &[user, nice, system, _idle, _iowait, irq, softirq, ..] = ticks.as_slice() else {
        anyhow::bail!("/proc/stat begins with {line:?}");
    };
    let busy = user + nice + system + irq + softirq;
    Ok(Duration::from_millis(
        busy * 1000 / rustix::param::clock_ticks_per_second().max(1),
    ))
}

/// A program with its arguments and environment, started as often as wished, its output appended to one log file.
pub struct Process {
    name: String,
    program: PathBuf,
    args: Vec<OsString>,
    env: Vec<(OsString, OsString)>,
    log: PathBuf,
    child: Mutex<Option<Child>>,
}

impl Process {
    /// Describes a process; nothing runs yet. `name` is for messages.
    pub fn new(name: impl Into<String>, program: impl Into<PathBuf>, log: impl Into<PathBuf>) -> Self {
        Self {
            name: name.into(),
            program: program.into(),
            args: Vec::new(),
            env: Vec::new(),
            log: log.into(),
            child: Mutex::new(None),
        }
    }

    /// Adds arguments.
    #[must_use]
    pub fn args<I: IntoIterator<Item = S>, S: AsRef<OsStr>>(mut self, args: I) -> Self {
        self.args.extend(args.into_iter().map(|arg| arg.as_ref().to_owned()));
        self
    }

    /// Sets a variable of its environment.
    #[must_use]
    pub fn env(mut self, key: impl AsRef<OsStr>, value: impl AsRef<OsStr>) -> Self {
        self.env.push((key.as_ref().to_owned(), value.as_ref().to_owned()));
        self
    }

    /// Its name in messages.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// The file to which its standard output and error are appended.
    pub fn log(&self) -> &Path {
        &self.log
    }

    fn child(&self) -> MutexGuard<'_, Option<Child>> {
        crate::lock(&self.child)
    }

    /// Starts it. Standard input is empty, and it leads a process group of its own, so that Ctrl-C on the terminal
    /// leaves the order of shutdown to us.
    ///
    /// # Errors
    /// When it runs already, or cannot be started.
    pub fn start(&self) -> Result<()> {
        let mut slot = self.child();
        if let Some(child) = slot.as_mut()
            && child.try_wait()?.is_none()
        {
            bail!("{} is running already", self.name);
        }
        let out = OpenOptions::new()
            .create(true)
            .append(true)
            .open(&self.log)
            .with_context(|| format!("open {}", self.log.display()))?;
        let mut reaper = reaper()?;
        let child = Command::new(&self.program)
            .args(&self.args)
            .envs(self.env.iter().map(|(key, value)| (key, value)))
            .stdin(Stdio::null())
            .stdout(out.try_clone()?)
            .stderr(out)
            .process_group(0)
            .spawn()
            .with_context(|| format!("start {} ({})", self.name, self.program.display()))?;
        if let Some(id) = ProcessId::of(child.id()) {
            writeln!(reaper, "p {} {}", id.pid, id.start_time).context("tell the reaper")?;
        }
        *slot = Some(child);
        Ok(())
    }

    /// Its process id while it runs.
    pub fn pid(&self) -> Option<u32> {
        let mut slot = self.child();
        let child = slot.as_mut()?;
        matches!(child.try_wait(), Ok(None)).then(|| child.id())
    }

    /// Its id and start time while it runs.
    pub fn id(&self) -> Option<ProcessId> {
        self.pid().and_then(ProcessId::of)
    }

    /// Whether it runs; a stopped (paused) process counts as running.
    pub fn is_running(&self) -> bool {
        self.pid().is_some()
    }

    /// How it ended: `None` while it runs or when it was never started.
    pub fn exit_status(&self) -> Option<ExitStatus> {
        self.child().as_mut()?.try_wait().ok().flatten()
    }

    /// Waits for it to end by itself.
    ///
    /// # Errors
    /// When it still runs at the deadline.
    pub async fn wait_for_exit(&self, deadline: Duration) -> Result<ExitStatus> {
        wait::until(format!("{} to exit", self.name), deadline, || async {
            self.exit_status().context("still running")
        })
        .await
    }

    /// Sends a signal, if it runs.
    ///
    /// # Errors
    /// When it does not run, or the signal is refused.
    pub fn signal(&self, signal: Signal) -> Result<()> {
        let pid = self.pid().and_then(rustix_pid);
        let pid = pid.with_context(|| format!("{} is not running", self.name))?;
        kill_process(pid, signal).with_context(|| format!("signal {}", self.name))
    }

    /// SIGKILL to its process group, and waits until it is gone. Not running is fine.
    pub fn kill(&self) {
        let mut slot = self.child();
        if let Some(child) = slot.as_mut()
            && matches!(child.try_wait(), Ok(None))
        {
            if let Some(pid) = rustix_pid(child.id()) {
                let _ = kill_process_group(pid, Signal::KILL);
            }
            let _ = child.wait();
        }
    }

    /// SIGTERM, then SIGKILL after `grace`. Gives how it ended.
    ///
    /// # Errors
    /// When it was not running.
    pub async fn stop(&self, grace: Duration) -> Result<ExitStatus> {
        self.signal(Signal::TERM)?;
        if let Ok(status) = self.wait_for_exit(grace).await {
            return Ok(status);
        }
        self.kill();
        Ok(self.exit_status().unwrap_or_else(|| ExitStatus::from_raw(9)))
    }

    /// SIGKILL and start again.
    ///
    /// # Errors
    /// When it cannot be started.
    pub fn restart(&self) -> Result<()> {
        self.kill();
        self.start()
    }

    /// SIGSTOP, and waits until it stands still: it keeps its sockets and does nothing.
    ///
    /// # Errors
    /// When it does not run, or a thread of it goes on for a minute.
    pub fn pause(&self) -> Result<()> {
        self.signal(Signal::STOP)?;
        let pid = self.pid().with_context(|| format!("{} is not running", self.name))?;
        // The signal stops each thread when the kernel comes to it: one that runs on another core may still answer.
        let signalled = Instant::now();
        while !is_stopped(pid)? {
            ensure!(signalled.elapsed() < STOPPED_WITHIN, "{} goes on", self.name);
            std::thread::sleep(Duration::from_millis(1));
        }
        Ok(())
    }

    /// SIGCONT after [`Process::pause`].
    ///
    /// # Errors
    /// When it does not run.
    pub fn resume(&self) -> Result<()> {
        self.signal(Signal::CONT)
    }

    /// Memory and CPU used so far, from `/proc`.
    ///
    /// # Errors
    /// When it does not run.
    pub fn usage(&self) -> Result<Usage> {
        let pid = self.pid().with_context(|| format!("{} is not running", self.name))?;
        let status = std::fs::read_to_string(format!("/proc/{pid}/status"))?;
        let mib = |key: &str| -> Option<f64> {
            let line = status.lines().find_map(|line| line.strip_prefix(key))?;
            let kib: f64 = line.split_whitespace().next()?.parse().ok()?;
            Some(kib / 1024.0)
        };
        let fields = stat_fields(pid).context("its /proc stat")?;
        let ticks = |index: usize| fields.get(index).and_then(|field| field.parse().ok()).unwrap_or(0_u64);
        let per_second = rustix::param::clock_ticks_per_second();
        Ok(Usage {
            rss_mib: mib("VmRSS:").context("VmRSS")?,
            peak_rss_mib: mib("VmHWM:").context("VmHWM")?,
            cpu: Duration::from_millis((ticks(11) + ticks(12)) * 1000 / per_second.max(1)),
        })
    }

    /// The last `lines` lines of its log, for messages.
    pub fn log_tail(&self, lines: usize) -> String {
        let text = std::fs::read(&self.log).unwrap_or_default();
        let text = String::from_utf8_lossy(&text);
        let all: Vec<&str> = text.lines().collect();
        all[all.len().saturating_sub(lines)..].join("\n")
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        self.kill();
    }
}

#[cfg(test)]
mod tests {
    use super::{Process, is_stopped};

    #[test]
    fn paused_process_stands_still_at_once() {
        let busy = Process::new("busy", "/bin/sh", "/dev/null").args(["-c", "while :; do :; done"]);
        busy.start().unwrap();
        for _ in 0..200 {
            busy.pause().unwrap();
            assert!(is_stopped(busy.pid().unwrap()).unwrap());
            busy.resume().unwrap();
        }
    }
}
