//! Ceph's programs, from Debian's packages, unpacked into the testbed's cache: nothing is installed, and nobody has to be root.

use std::ffi::OsString;
use std::path::PathBuf;
use std::process::Command;

use anyhow::Result;

use crate::binaries::stdout_of;
use crate::debian;
use crate::process::Process;

/// What is needed; what these depend on and the system lacks is fetched with them.
const PACKAGES: [&str; 4] = ["ceph-mon", "ceph-mgr", "ceph-osd", "ceph-common"];

/// Where Ceph is.
#[derive(Clone, Debug)]
pub struct Programs {
    root: PathBuf,
}

impl Programs {
    /// Finds Ceph in the cache, or else fetches it.
    ///
    /// Blocking, and some seconds long the first time on a machine.
    ///
    /// # Errors
    /// The system is not Debian or one of its children, or the packages cannot be fetched.
    pub fn ensure_unpacked() -> Result<Self> {
        let root = debian::ensure_unpacked("ceph", &PACKAGES)?;
        Ok(Self { root })
    }

    /// A program of `/usr/bin`.
    pub fn program(&self, name: &str) -> PathBuf {
        self.path(&format!("usr/bin/{name}"))
    }

    /// A path of the packages.
    pub fn path(&self, path: &str) -> PathBuf {
        self.root.join(path)
    }

    /// Where the shared libraries of this machine's architecture are.
    pub fn libraries(&self) -> PathBuf {
        debian::libraries(&self.root)
    }

    /// The value of `LD_LIBRARY_PATH` with which programs find Ceph's libraries.
    pub fn library_path(&self) -> OsString {
        debian::library_path(&self.root, "ceph")
    }

    /// A process of Ceph's.
    pub(super) fn process(&self, name: &str, program: &str, log: PathBuf) -> Process {
        Process::new(name, self.program(program), log)
            .env("LD_LIBRARY_PATH", self.library_path())
            .env("PYTHONPATH", self.path("usr/lib/python3/dist-packages"))
    }

    /// Runs a program of Ceph's to its end.
    pub(super) fn run(&self, program: &str, args: &[&str]) -> Result<()> {
        stdout_of(self.command(program).args(args)).map(drop)
    }

    /// A program of Ceph's, to be run.
    pub(super) fn command(&self, program: &str) -> Command {
        let mut command = Command::new(self.program(program));
        command.env("LD_LIBRARY_PATH", self.library_path());
        command
    }
}
