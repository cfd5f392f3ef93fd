//! kubectl as people run it: each command is a process of its own, and what it says is kept line by line.

use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use anyhow::{Context, Result, ensure};

use crate::Cluster;
use crate::process::Process;

/// kubectl with a kubeconfig, and nothing of the user's own.
#[derive(Clone, Debug)]
pub struct Kubectl {
    program: PathBuf,
    kubeconfig: PathBuf,
    dir: PathBuf,
    path: OsString,
    columns: Option<usize>,
}

impl Kubectl {
    /// As the user of the cluster's kubeconfig.
    ///
    /// # Errors
    /// When the directory for what it says cannot be made.
    pub fn of(cluster: impl Into<Cluster>) -> Result<Self> {
        let cluster: Cluster = cluster.into();
        let dir = cluster.dir().join("kubectl");
        std::fs::create_dir_all(&dir).with_context(|| format!("create {}", dir.display()))?;
        Ok(Self {
            program: cluster.tools().kubectl.clone(),
            kubeconfig: cluster.kubeconfig().to_owned(),
            dir,
            path: std::env::var_os("PATH").unwrap_or_default(),
            columns: None,
        })
    }

    /// As the user of another kubeconfig.
    #[must_use]
    pub fn kubeconfig(mut self, kubeconfig: impl Into<PathBuf>) -> Self {
        self.kubeconfig = kubeconfig.into();
        self
    }

    /// With the plugins (`kubectl-NAME`) of this directory.
    #[must_use]
    pub fn plugins(mut self, dir: &Path) -> Self {
        let mut path = dir.as_os_str().to_owned();
        path.push(":");
        path.push(&self.path);
        self.path = path;
        self
    }

    /// Plugins break their lines at this width.
    #[must_use]
    pub const fn columns(mut self, columns: usize) -> Self {
        self.columns = Some(columns);
        self
    }

    /// Starts a command.
    ///
    /// # Errors
    /// When it cannot be started.
    pub fn start<S: AsRef<str>>(&self, args: impl IntoIterator<Item = S>) -> Result<Said> {
        static NUMBER: AtomicU32 = AtomicU32::new(0);
        let args: Vec<String> = args.into_iter().map(|arg| arg.as_ref().to_owned()).collect();
        let log = self.dir.join(format!("{}.log", NUMBER.fetch_add(1, Ordering::Relaxed)));
        let process = Process::new(format!("kubectl {}", args.join(" ")), &self.program, log)
            .args(&args)
            .env("KUBECONFIG", &self.kubeconfig)
            .env("HOME", &self.dir)
            .env("PATH", &self.path);
        let process = match self.columns {
            Some(columns) => process.env("COLUMNS", columns.to_string()),
            None => process,
        };
        process.start()?;
        Ok(Said { process, told: 0 })
    }

    /// Runs a command to its end, and gives all that it said.
    ///
    /// # Errors
    /// When it fails, with its own words, or does not end in time.
    pub async fn run<S: AsRef<str>>(&self, args: impl IntoIterator<Item = S>, deadline: Duration) -> Result<String> {
        let command = self.start(args)?;
        let ended = command.process.wait_for_exit(deadline).await.ok();
        let said = command.text();
        let how = ended.map_or("did not end in time", |_| "failed");
        let (name, text) = (command.process.name(), said.trim_end());
        ensure!(ended.is_some_and(|status| status.success()), "{name} {how}:\n{text}");
        Ok(said)
    }
}

/// A command that was started, and what it has said so far. It is killed when dropped.
pub struct Said {
    process: Process,
    /// Bytes of what it said that [`Said::news`] has given.
    told: usize,
}

impl Said {
    /// The command, for messages.
    pub fn command(&self) -> &str {
        self.process.name()
    }

    /// The process: signals, memory.
    pub fn process(&self) -> &Process {
        &self.process
    }

    /// How it ended: `None` while it runs, then whether it succeeded.
    pub fn ended(&self) -> Option<bool> {
        (!self.process.is_running()).then(|| self.process.exit_status().is_some_and(|status| status.success()))
    }

    /// All that it has said so far, standard output and error as they came.
    pub fn text(&self) -> String {
        let said = std::fs::read(self.process.log()).unwrap_or_default();
        String::from_utf8_lossy(&said).into_owned()
    }

    /// Whole lines that it has said since the last call.
    pub fn news(&mut self) -> Vec<String> {
        let said = std::fs::read(self.process.log()).unwrap_or_default();
        let fresh = said.get(self.told..).unwrap_or_default();
        let whole = fresh.iter().rposition(|byte| *byte == b'\n').map_or(0, |end| end + 1);
        self.told += whole;
        let fresh = fresh.get(..whole).unwrap_or_default();
        String::from_utf8_lossy(fresh).lines().map(str::to_owned).collect()
    }
}
