//! The programs of the control plane, built from the pinned Go modules under `e2e/tools`.
//!
//! Each module is built once into a cache outside the checkout, in a directory named by the hash of everything that
//! decides the result (`go.mod`, `go.sum`, the Go version, the build flags), so that a fresh clone on the same machine
//! reuses it. The cache is `$NODEWARD_TESTBED_CACHE`, else `$XDG_CACHE_HOME/nodeward/testbed`, else
//! `~/.cache/nodeward/testbed`.

use std::fs::{self, File, TryLockError};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use anyhow::{Context, Result, bail, ensure};
use sha2::{Digest, Sha256};

use crate::binaries::{run, workspace};
use crate::progress::Progress;

/// Where each program is.
#[derive(Clone, Debug)]
pub struct Toolchain {
    /// etcd, the API server's store.
    pub etcd: PathBuf,
    pub kube_apiserver: PathBuf,
    pub kube_controller_manager: PathBuf,
    pub kube_scheduler: PathBuf,
    pub kubectl: PathBuf,
    /// kwok, which plays the kubelets.
    pub kwok: PathBuf,
    pub helm: PathBuf,
}

/// One Go module under `e2e/tools` and what is built from it.
struct Module {
    name: &'static str,
    /// Package and the name of the binary made from it.
    binaries: &'static [(&'static str, &'static str)],
    /// Variables set at link time, for the versions that the programs report.
    link: &'static [&'static str],
}

const KUBERNETES: Module = Module {
    name: "kubernetes",
    binaries: &[
        ("k8s.io/kubernetes/cmd/kube-apiserver", "kube-apiserver"),
        (
            "k8s.io/kubernetes/cmd/kube-controller-manager",
            "kube-controller-manager",
        ),
        ("k8s.io/kubernetes/cmd/kube-scheduler", "kube-scheduler"),
        ("k8s.io/kubernetes/cmd/kubectl", "kubectl"),
    ],
    link: &[
        "k8s.io/component-base/version.gitVersion=v1.35.4",
        "k8s.io/component-base/version.gitMajor=1",
        "k8s.io/component-base/version.gitMinor=35",
        "k8s.io/component-base/version.gitTreeState=clean",
    ],
};
const ETCD: Module = Module {
    name: "etcd",
    binaries: &[("go.etcd.io/etcd/server/v3", "etcd")],
    link: &[],
};
const KWOK: Module = Module {
    name: "kwok",
    binaries: &[("sigs.k8s.io/kwok/cmd/kwok", "kwok")],
    link: &[],
};
// Helm decides by these which Kubernetes its `template` command stands in for.
const HELM: Module = Module {
    name: "helm",
    binaries: &[("helm.sh/helm/v3/cmd/helm", "helm")],
    link: &[
        "helm.sh/helm/v3/internal/version.version=v3.22.0",
        "helm.sh/helm/v3/pkg/chartutil.k8sVersionMajor=1",
        "helm.sh/helm/v3/pkg/chartutil.k8sVersionMinor=35",
    ],
};

/// Finds the programs in the cache, and builds what is missing.
///
/// Blocking, and minutes long the first time on a machine; progress goes to standard error. Two processes never build
/// the same module at once.
///
/// # Errors
/// When Go is missing, a module cannot be fetched or does not compile: with the compiler's last lines.
pub fn ensure_built() -> Result<Toolchain> {
    let go = Go::find()?;
    let kubernetes = built(&go, &KUBERNETES)?;
    Ok(Toolchain {
        etcd: built(&go, &ETCD)?.join("etcd"),
        kwok: built(&go, &KWOK)?.join("kwok"),
        helm: built(&go, &HELM)?.join("helm"),
        kube_apiserver: kubernetes.join("kube-apiserver"),
        kube_controller_manager: kubernetes.join("kube-controller-manager"),
        kube_scheduler: kubernetes.join("kube-scheduler"),
        kubectl: kubernetes.join("kubectl"),
    })
}

/// The cache directory, shared by all clones on this machine.
///
/// # Errors
/// When neither of the three variables that name it is set.
pub fn cache_dir() -> Result<PathBuf> {
    let set = path_in_environment;
    set("NODEWARD_TESTBED_CACHE")
        .or_else(|| Some(set("XDG_CACHE_HOME")?.join("nodeward/testbed")))
        .or_else(|| Some(set("HOME")?.join(".cache/nodeward/testbed")))
        .context("no place for the testbed's programs: set NODEWARD_TESTBED_CACHE, XDG_CACHE_HOME or HOME")
}

/// What a variable names; an empty one names nothing.
pub fn path_in_environment(name: &str) -> Option<PathBuf> {
    let value = std::env::var_os(name).filter(|value| !value.is_empty());
    value.map(PathBuf::from)
}

/// The Go command and what it calls itself.
struct Go {
    program: PathBuf,
    version: String,
}

impl Go {
    fn find() -> Result<Self> {
        for program in ["go", "/usr/local/go/bin/go"] {
            let asked = Command::new(program)
                .args(["env", "GOVERSION", "GOOS", "GOARCH"])
                .output();
            if let Ok(output) = asked
                && output.status.success()
            {
                let version = String::from_utf8_lossy(&output.stdout);
                let version = version.split_whitespace().collect::<Vec<_>>().join(" ");
                return Ok(Self {
                    program: program.into(),
                    version,
                });
            }
        }
        bail!(
            "the testbed builds its control plane with Go 1.26, and there is no `go` on the PATH or in /usr/local/go/bin"
        )
    }

    fn command(&self, source: &Path) -> Command {
        let mut command = Command::new(&self.program);
        // The result must not depend on the caller's workspace or flags, nor need a C compiler.
        command
            .current_dir(source)
            .env("CGO_ENABLED", "0")
            .env("GOFLAGS", "-mod=readonly")
            .env("GOWORK", "off")
            .stdin(Stdio::null());
        command
    }
}

/// The directory of the module's finished binaries.
fn built(go: &Go, module: &Module) -> Result<PathBuf> {
    let source = workspace().join("e2e/tools").join(module.name);
    let flags = link_flags(module);
    let cache = cache_dir()?;
    let target = cache.join(format!("{}-{}", module.name, key(go, module, &source, &flags)?));
    if target.is_dir() {
        return Ok(target);
    }
    fs::create_dir_all(&cache).with_context(|| format!("create {}", cache.display()))?;
    let progress = Progress::begin(format!("building {}", module.name));
    let _lock = lock(&cache.join(format!(".{}.lock", module.name)), &progress)?;
    if target.is_dir() {
        progress.done("built by another process");
        return Ok(target);
    }
    let unfinished = tempfile::Builder::new()
        .prefix(&format!(".{}-", module.name))
        .tempdir_in(&cache)?;
    build(go, module, &source, &flags, unfinished.path(), &progress)?;
    fs::rename(unfinished.path(), &target)
        .with_context(|| format!("move the finished build to {}", target.display()))?;
    progress.done(&format!("in {}", target.display()));
    Ok(target)
}

fn key(go: &Go, module: &Module, source: &Path, flags: &str) -> Result<String> {
    let mut hash = Sha256::new();
    for file in ["go.mod", "go.sum"] {
        let path = source.join(file);
        hash.update(fs::read(&path).with_context(|| format!("read {}", path.display()))?);
        hash.update([0]);
    }
    hash.update(&go.version);
    hash.update(flags);
    hash.update(format!("{:?}", module.binaries));
    let digest = hash.finalize();
    let short: [u8; 8] = digest[..8].try_into()?;
    Ok(format!("{:016x}", u64::from_be_bytes(short)))
}

fn link_flags(module: &Module) -> String {
    module.link.iter().fold(String::from("-s -w"), |flags, variable| {
        format!("{flags} -X {variable}")
    })
}

/// Held until the returned file is closed.
pub(crate) fn lock(path: &Path, progress: &Progress) -> Result<File> {
    let file = File::create(path).with_context(|| format!("create {}", path.display()))?;
    match file.try_lock() {
        Ok(()) => {}
        Err(TryLockError::WouldBlock) => {
            progress.step("another process builds it: waiting");
            file.lock().with_context(|| format!("lock {}", path.display()))?;
        }
        Err(TryLockError::Error(error)) => return Err(error).with_context(|| format!("lock {}", path.display())),
    }
    Ok(file)
}

fn build(go: &Go, module: &Module, source: &Path, flags: &str, into: &Path, progress: &Progress) -> Result<()> {
    progress.step("fetching Go modules");
    let total = packages(go, module, source, progress)?;
    let mut compiled = 0_usize;
    // One package after another shares all that was compiled before; linking is what is repeated.
    for (package, binary) in module.binaries {
        progress.step(&format!("{binary}: compiling and linking"));
        let mut command = go.command(source);
        command
            .args(["build", "-v", "-buildvcs=false", "-trimpath", "-ldflags", flags, "-o"])
            .arg(into.join(binary))
            .arg(package);
        let lines = run(command, |line| {
            if !line.starts_with("go: ") {
                compiled += 1;
            }
            progress.step(&format!("{binary}: {compiled} of up to {total} packages: {line}"));
        });
        lines.with_context(|| format!("build {package} in {}", source.display()))?;
        ensure!(into.join(binary).is_file(), "go build made no {binary}");
    }
    Ok(())
}

/// How many packages there are to compile; fetches the modules on the way.
fn packages(go: &Go, module: &Module, source: &Path, progress: &Progress) -> Result<usize> {
    let mut fetch = go.command(source);
    fetch
        .args(["list", "-deps"])
        .args(module.binaries.iter().map(|(package, _)| package));
    let mut packages = 0;
    let listed = run(fetch, |line| {
        if line.starts_with("go: ") {
            progress.step(line);
        } else {
            packages += 1;
        }
    });
    listed.with_context(|| format!("fetch the Go modules of {}", source.display()))?;
    Ok(packages)
}
