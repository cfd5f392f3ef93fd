//! Ceph's programs, from Debian's packages, unpacked into the testbed's cache: nothing is installed, and nobody has to be root.

use std::ffi::OsString;
use std::fs;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::str::FromStr;
use std::sync::Mutex;

use anyhow::{Context, Result, bail};

use crate::binaries::stdout_of;
use crate::process::Process;
use crate::{debian, lock};

/// What is needed; what these depend on and the system lacks is fetched with them.
const PACKAGES: [&str; 4] = ["ceph-mon", "ceph-mgr", "ceph-osd", "ceph-common"];

/// The directory of programs that are started by their own loader.
const OWN_LOADER: &str = "own-loader";

/// Where the newest Ceph was found: `apt-get` takes seconds to say what it would install.
static NEWEST: Mutex<Option<PathBuf>> = Mutex::new(None);

/// The programs that are run.
const PROGRAMS: [&str; 5] = ["ceph-mon", "ceph-mgr", "ceph-osd", "monmaptool", "rados"];

/// The variable that asks for another Ceph than this system's.
pub const VARIABLE: &str = "NODEWARD_CEPH";

/// Which Ceph.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CephRelease {
    /// That of this system's Debian, whose librados tests connect with.
    System,
    /// That of Debian unstable, which has its own C library.
    Newest,
}

impl CephRelease {
    /// The one that [`VARIABLE`] names, else this system's.
    ///
    /// # Errors
    /// When it names one that is not known.
    pub fn from_environment() -> Result<Self> {
        match std::env::var(VARIABLE) {
            Ok(name) if !name.is_empty() => name.parse().context(VARIABLE),
            _ => Ok(Self::System),
        }
    }

    /// The newest where this system can fetch it, else its own.
    pub fn newest_here() -> Self {
        if Path::new(debian::KEYRING).exists() {
            Self::Newest
        } else {
            Self::System
        }
    }

    /// As it is asked for.
    pub const fn name(self) -> &'static str {
        match self {
            Self::System => "system",
            Self::Newest => "newest",
        }
    }
}

impl FromStr for CephRelease {
    type Err = anyhow::Error;

    fn from_str(text: &str) -> Result<Self> {
        match [Self::System, Self::Newest]
            .into_iter()
            .find(|release| release.name() == text)
        {
            Some(release) => Ok(release),
            None => bail!("the testbed has no Ceph {text:?}; it has system and newest"),
        }
    }
}

/// Where Ceph is.
#[derive(Clone, Debug)]
pub struct Programs {
    root: PathBuf,
    release: CephRelease,
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
        let release = CephRelease::System;
        Ok(Self { root, release })
    }

    /// The same of a release.
    ///
    /// # Errors
    /// As [`Programs::ensure_unpacked`].
    pub fn of(release: CephRelease) -> Result<Self> {
        if release == CephRelease::System {
            return Self::ensure_unpacked();
        }
        let mut found = lock(&NEWEST);
        let root = match &*found {
            Some(root) => root.clone(),
            None => debian::ensure_unpacked_of_unstable("ceph-newest", &PACKAGES, prepare)?,
        };
        *found = Some(root.clone());
        Ok(Self { root, release })
    }

    /// Which Ceph it is.
    pub fn release(&self) -> CephRelease {
        self.release
    }

    /// A program.
    pub fn program(&self, name: &str) -> PathBuf {
        match self.release {
            CephRelease::System => self.path(&format!("usr/bin/{name}")),
            CephRelease::Newest => self.path(OWN_LOADER).join(name),
        }
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

    /// A program of this machine's, to be run with the libraries of this Ceph, the C library among them: it has to be the newer one.
    ///
    /// # Errors
    /// There is no loader among them.
    pub fn loading(&self, program: &Path) -> Result<Command> {
        let mut command = self.loader()?;
        command.arg(program);
        Ok(command)
    }

    /// Prints, as `ldd` does, where a program or a library of this machine's finds what it is linked to among the libraries of this
    /// Ceph.
    ///
    /// # Errors
    /// There is no loader among them.
    pub fn ldd(&self, file: &Path) -> Result<Command> {
        let mut command = self.loader()?;
        command.arg("--list").arg(file);
        Ok(command)
    }

    fn loader(&self) -> Result<Command> {
        let libraries = self.libraries();
        let mut command = Command::new(libraries.join(loader_in(&libraries)?));
        command.arg("--library-path").arg(self.library_path());
        Ok(command)
    }

    /// A process of Ceph's.
    pub(super) fn process(&self, name: &str, program: &str, log: PathBuf) -> Process {
        let process = Process::new(name, self.program(program), log)
            .env("LD_LIBRARY_PATH", self.library_path())
            .env("PYTHONPATH", self.path("usr/lib/python3/dist-packages"));
        match self.release {
            CephRelease::System => process,
            CephRelease::Newest => process.env("PYTHONHOME", self.path("usr")),
        }
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

fn loader_in(libraries: &Path) -> Result<String> {
    let loaders = fs::read_dir(libraries)?;
    let mut loaders = loaders.filter_map(|entry| entry.ok()?.file_name().into_string().ok());
    let loader = loaders.find(|name| name.starts_with("ld-linux-"));
    loader.context("the C library has no loader")
}

/// Has programs started by the loader that came with their C library: this system's is older. One that starts itself again, as
/// the manager does, needs that written in the program.
fn prepare(root: &Path, target: &Path) -> Result<()> {
    let patchelf = debian::ensure_unpacked("patchelf", &["patchelf"])?.join("usr/bin/patchelf");
    // Packages have files in directories that are links where they are installed.
    for directory in ["lib", "lib64", "bin", "sbin"] {
        if !root.join(directory).exists() {
            symlink(format!("usr/{directory}"), root.join(directory))?;
        }
    }
    let loader = debian::libraries(target).join(loader_in(&debian::libraries(root))?);
    let programs = root.join(OWN_LOADER);
    fs::create_dir(&programs)?;
    for name in PROGRAMS {
        fs::copy(root.join("usr/bin").join(name), programs.join(name))?;
        let mut patch = Command::new(&patchelf);
        stdout_of(patch.arg("--set-interpreter").arg(&loader).arg(programs.join(name)))?;
    }
    Ok(())
}
