//! The programs of the control plane, built from the pinned Go modules under `e2e/tools`.
//!
//! Each module is built once into a cache outside the checkout, in a directory named by the hash of everything that
//! decides the result (`go.mod`, `go.sum`, the Go version, the build flags), so that a fresh clone on the same machine
//! reuses it. Several versions of Kubernetes lie there side by side. The cache is `$NODEWARD_TESTBED_CACHE`, else
//! `$XDG_CACHE_HOME/nodeward/testbed`, else `~/.cache/nodeward/testbed`.

use std::fs::{self, File, TryLockError};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use anyhow::{Context, Result, bail, ensure};
use sha2::{Digest, Sha256};

use crate::binaries::{run, stdout_of, workspace};
use crate::kubernetes::Kubernetes;
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
    /// The release of Kubernetes, as in `v1.35.4`.
    pub kubernetes: String,
}

/// One Go module and what is built from it.
pub(crate) struct Module {
    name: &'static str,
    /// For people.
    title: String,
    /// Where its `go.mod` is.
    source: PathBuf,
    /// Package and the name of the binary made from it.
    binaries: &'static [(&'static str, &'static str)],
    /// Variables set at link time, for the versions that the programs report.
    link: Vec<String>,
    /// Required modules and directories of theirs that are kept beside the binaries: CRDs, charts.
    files: &'static [(&'static str, &'static str)],
}

impl Module {
    /// With these directories of required modules beside its binaries.
    pub(crate) fn files(self, files: &'static [(&'static str, &'static str)]) -> Self {
        Self { files, ..self }
    }

    /// The version of the required Go module that its `go.mod` pins, as in `v1.14.1`.
    pub(crate) fn pinned(&self, required: &str) -> Result<String> {
        let path = self.source.join("go.mod");
        let text = fs::read_to_string(&path).with_context(|| format!("read {}", path.display()))?;
        let mut versions = text.lines().filter_map(|line| {
            let mut words = line.split_whitespace();
            (words.next()? == required).then(|| words.next()).flatten()
        });
        let version = versions
            .next()
            .with_context(|| format!("{} requires no {required}", path.display()))?;
        Ok(version.to_owned())
    }
}

/// The control plane's programs. `release` is that of `kubernetes`.
fn kubernetes_module(kubernetes: Kubernetes, release: &str) -> Module {
    Module {
        name: "kubernetes",
        title: format!("Kubernetes {release}"),
        source: kubernetes.module(),
        binaries: &[
            ("k8s.io/kubernetes/cmd/kube-apiserver", "kube-apiserver"),
            (
                "k8s.io/kubernetes/cmd/kube-controller-manager",
                "kube-controller-manager",
            ),
            ("k8s.io/kubernetes/cmd/kube-scheduler", "kube-scheduler"),
            ("k8s.io/kubernetes/cmd/kubectl", "kubectl"),
        ],
        link: kubernetes_version(kubernetes, release),
        files: &[],
    }
}

/// The kubelet, which only real nodes need.
fn kubelet_module(kubernetes: Kubernetes, release: &str) -> Module {
    Module {
        name: "kubelet",
        title: format!("kubelet {release}"),
        binaries: &[("k8s.io/kubernetes/cmd/kubelet", "kubelet")],
        ..kubernetes_module(kubernetes, release)
    }
}

fn kubernetes_version(kubernetes: Kubernetes, release: &str) -> Vec<String> {
    let of_version = |variable: &str, value: &str| format!("k8s.io/component-base/version.{variable}={value}");
    let (major, minor) = kubernetes.minor().split_once('.').unwrap_or_default();
    vec![
        of_version("gitVersion", release),
        of_version("gitMajor", major),
        of_version("gitMinor", minor),
        of_version("gitTreeState", "clean"),
    ]
}

/// One under `e2e/tools`.
pub(crate) fn module(name: &'static str, binaries: &'static [(&'static str, &'static str)], link: &[&str]) -> Module {
    Module {
        name,
        title: name.to_owned(),
        source: workspace().join("e2e/tools").join(name),
        binaries,
        link: link.iter().map(|variable| (*variable).to_owned()).collect(),
        files: &[],
    }
}

fn etcd() -> Module {
    module("etcd", &[("go.etcd.io/etcd/server/v3", "etcd")], &[])
}

fn kwok() -> Module {
    module("kwok", &[("sigs.k8s.io/kwok/cmd/kwok", "kwok")], &[])
}

/// The variable that asks for another Helm than 3: `NODEWARD_HELM=4`.
const HELM: &str = "NODEWARD_HELM";

fn helm() -> Result<Module> {
    match std::env::var(HELM).unwrap_or_default().as_str() {
        "" | "3" => {}
        "4" => {
            let link = ["helm.sh/helm/v4/internal/version.version=v4.3.2"];
            return Ok(module("helm4", &[("helm.sh/helm/v4/cmd/helm", "helm")], &link));
        }
        other => bail!("{HELM}: the testbed has no Helm {other:?}; it has 3 and 4"),
    }
    // It decides by these which Kubernetes its `template` command stands in for.
    let link = [
        "helm.sh/helm/v3/internal/version.version=v3.22.0",
        "helm.sh/helm/v3/pkg/chartutil.k8sVersionMajor=1",
        "helm.sh/helm/v3/pkg/chartutil.k8sVersionMinor=35",
    ];
    Ok(module("helm", &[("helm.sh/helm/v3/cmd/helm", "helm")], &link))
}

/// Finds the programs in the cache, and builds what is missing.
///
/// Blocking, and minutes long the first time on a machine; progress goes to standard error. Two processes never build
/// the same module at once.
///
/// # Errors
/// When Go is missing, a module cannot be fetched or does not compile: with the compiler's last lines.
pub fn ensure_built(kubernetes: Kubernetes) -> Result<Toolchain> {
    let go = Go::find()?;
    let release = kubernetes.release()?;
    let programs = built(&go, &kubernetes_module(kubernetes, &release))?;
    Ok(Toolchain {
        etcd: built(&go, &etcd())?.join("etcd"),
        kwok: built(&go, &kwok())?.join("kwok"),
        helm: built(&go, &helm()?)?.join("helm"),
        kube_apiserver: programs.join("kube-apiserver"),
        kube_controller_manager: programs.join("kube-controller-manager"),
        kube_scheduler: programs.join("kube-scheduler"),
        kubectl: programs.join("kubectl"),
        kubernetes: release,
    })
}

/// Finds what is built of this module in the cache, and builds it if it is missing; gives the directory.
///
/// # Errors
/// As [`ensure_built`].
pub(crate) fn ensure_module_built(module: &Module) -> Result<PathBuf> {
    built(&Go::find()?, module)
}

/// The same with the Kubernetes that the environment asks for.
///
/// # Errors
/// As [`ensure_built`], and when it asks for one that is not known.
pub fn of_environment() -> Result<Toolchain> {
    ensure_built(Kubernetes::from_environment()?)
}

/// Finds the kubelet for a control plane in the cache, and builds it if it is missing.
///
/// # Errors
/// As [`ensure_built`].
pub(crate) fn kubelet(control_plane: Kubernetes) -> Result<PathBuf> {
    let kubernetes = control_plane.of_kubelet();
    let module = kubelet_module(kubernetes, &kubernetes.release()?);
    Ok(ensure_module_built(&module)?.join("kubelet"))
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
    let flags = link_flags(module);
    let cache = cache_dir()?;
    let target = cache.join(format!("{}-{}", module.name, key(go, module, &flags)?));
    if target.is_dir() {
        return Ok(target);
    }
    fs::create_dir_all(&cache).with_context(|| format!("create {}", cache.display()))?;
    let progress = Progress::begin(format!("building {}", module.title));
    let _lock = lock(&cache.join(format!(".{}.lock", module.name)), &progress)?;
    if target.is_dir() {
        progress.done("built by another process");
        return Ok(target);
    }
    let unfinished = tempfile::Builder::new()
        .prefix(&format!(".{}-", module.name))
        .tempdir_in(&cache)?;
    build(go, module, &flags, unfinished.path(), &progress)?;
    fs::rename(unfinished.path(), &target)
        .with_context(|| format!("move the finished build to {}", target.display()))?;
    progress.done(&format!("in {}", target.display()));
    Ok(target)
}

fn key(go: &Go, module: &Module, flags: &str) -> Result<String> {
    let mut hash = Sha256::new();
    for file in ["go.mod", "go.sum"] {
        let path = module.source.join(file);
        hash.update(fs::read(&path).with_context(|| format!("read {}", path.display()))?);
        hash.update([0]);
    }
    hash.update(&go.version);
    hash.update(flags);
    hash.update(format!("{:?}", module.binaries));
    if !module.files.is_empty() {
        hash.update(format!("{:?}", module.files));
    }
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

fn build(go: &Go, module: &Module, flags: &str, into: &Path, progress: &Progress) -> Result<()> {
    let source = &module.source;
    progress.step("fetching Go modules");
    let total = packages(go, module, progress)?;
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
    for (required, dir) in module.files {
        let root = stdout_of(go.command(source).args(["list", "-m", "-f", "{{.Dir}}", required]))?;
        let copied = copy(&Path::new(&root).join(dir), &into.join(dir));
        copied.with_context(|| format!("copy {dir} of {required}"))?;
    }
    Ok(())
}

/// Copies a directory with all that is in it.
fn copy(from: &Path, to: &Path) -> Result<()> {
    fs::create_dir_all(to)?;
    for entry in fs::read_dir(from)? {
        let entry = entry?;
        let to = to.join(entry.file_name());
        if entry.file_type()?.is_dir() {
            copy(&entry.path(), &to)?;
        } else {
            fs::copy(entry.path(), to)?;
        }
    }
    Ok(())
}

/// How many packages there are to compile; fetches the modules on the way.
fn packages(go: &Go, module: &Module, progress: &Progress) -> Result<usize> {
    let source = &module.source;
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
