//! Programs of Debian's packages, unpacked into the testbed's cache: nothing is installed, and nobody has to be root.

use std::ffi::{OsStr, OsString};
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, bail};
use sha2::{Digest, Sha256};

use crate::binaries::stdout_of;
use crate::progress::Progress;
use crate::toolchain::{cache_dir, lock};

/// The key by which `apt-get` knows Debian unstable: each Debian has it, Ubuntu in a package of this name.
pub const KEYRING: &str = "/usr/share/keyrings/debian-archive-keyring.gpg";

/// The directory below which these packages are, with what they depend on and the system lacks: `/` where it lacks none,
/// else a part of the cache, of this name, where they are fetched to.
///
/// Blocking, and some seconds long the first time on a machine.
///
/// # Errors
/// The system is not Debian or one of its children, or the packages cannot be fetched.
pub fn ensure_unpacked(name: &str, packages: &[&str]) -> Result<PathBuf> {
    let apt = Apt::default();
    let missing = apt.missing_packages(packages)?;
    if missing.is_empty() {
        return Ok("/".into());
    }
    apt.ensure_unpacked(name, &missing, |_, _| Ok(()))
}

/// The same from Debian unstable, with all that the packages depend on, the C library too. `prepare` is given where they are, and
/// where they will be.
///
/// # Errors
/// As [`ensure_unpacked`].
pub fn ensure_unpacked_of_unstable(
    name: &str,
    packages: &[&str],
    prepare: impl FnOnce(&Path, &Path) -> Result<()>,
) -> Result<PathBuf> {
    let apt = Apt::of_unstable()?;
    let progress = Progress::begin("looking for packages of Debian unstable".to_owned());
    let packages = {
        let _lock = lock(&cache_dir()?.join(".apt-unstable.lock"), &progress)?;
        apt.missing_packages(packages)?
    };
    progress.done(&format!("{} packages", packages.len()));
    apt.ensure_unpacked(name, &packages, prepare)
}

/// `apt-get`, with the options that say whose packages it is to take.
#[derive(Default)]
struct Apt {
    options: Vec<String>,
}

impl Apt {
    /// Knows Debian unstable alone, and nothing that is installed.
    fn of_unstable() -> Result<Self> {
        let state = cache_dir()?.join("apt-unstable");
        for directory in ["sources.d", "lists/partial", "archives/partial"] {
            fs::create_dir_all(state.join(directory))?;
        }
        let sources = state.join("sources.list");
        let unstable = format!("deb [signed-by={KEYRING}] http://deb.debian.org/debian unstable main\n");
        fs::write(&sources, unstable)?;
        let at = |path: &str| state.join(path).display().to_string();
        let options = [
            ("Dir::Etc::sourcelist", sources.display().to_string()),
            ("Dir::Etc::sourceparts", at("sources.d")),
            ("Dir::State::lists", at("lists")),
            ("Dir::State::status", "/dev/null".to_owned()),
            ("Dir::Cache", state.display().to_string()),
        ];
        let options = options.map(|(name, value)| format!("--option={name}={value}"));
        Ok(Self {
            options: options.into(),
        })
    }

    fn get(&self, args: &[&str]) -> Command {
        let mut command = Command::new("apt-get");
        command.args(&self.options).args(args);
        command
    }

    fn ensure_unpacked(
        &self,
        name: &str,
        packages: &[String],
        prepare: impl FnOnce(&Path, &Path) -> Result<()>,
    ) -> Result<PathBuf> {
        let cache = cache_dir()?;
        let target = cache.join(format!("{name}-{}", key(packages)));
        if target.is_dir() {
            return Ok(target);
        }
        fs::create_dir_all(&cache).with_context(|| format!("create {}", cache.display()))?;
        let progress = Progress::begin(format!("fetching {name}: {} Debian packages", packages.len()));
        let _lock = lock(&cache.join(format!(".{name}.lock")), &progress)?;
        if !target.is_dir() {
            let unfinished = tempfile::Builder::new()
                .prefix(&format!(".{name}-"))
                .tempdir_in(&cache)?;
            self.unpack(packages, unfinished.path(), &progress)?;
            prepare(&unfinished.path().join("root"), &target)?;
            fs::rename(unfinished.path().join("root"), &target)
                .with_context(|| format!("move the unpacked packages to {}", target.display()))?;
        }
        progress.done(&format!("in {}", target.display()));
        Ok(target)
    }

    /// The packages that would have to be installed, each as `name=version`.
    fn missing_packages(&self, wanted: &[&str]) -> Result<Vec<String>> {
        let simulate = || {
            let mut command = self.get(&["install", "--simulate", "--no-install-recommends"]);
            stdout_of(command.args(wanted))
        };
        let simulated = simulate().or_else(|_| {
            // A new system knows no packages yet.
            stdout_of(&mut self.get(&["update", "-qq"]))
                .context("apt-get cannot fetch the lists of Debian's packages")?;
            simulate()
        })?;
        simulated
            .lines()
            .filter_map(|line| line.strip_prefix("Inst "))
            .map(package)
            .collect()
    }

    fn unpack(&self, packages: &[String], into: &Path, progress: &Progress) -> Result<()> {
        progress.step("downloading");
        stdout_of(self.get(&["download", "-qq"]).args(packages).current_dir(into))?;
        let root = into.join("root");
        fs::create_dir(&root)?;
        for file in fs::read_dir(into)? {
            let file = file?.path();
            if file.extension().is_some_and(|extension| extension == "deb") {
                progress.step(&format!("unpacking {}", file.display()));
                stdout_of(Command::new("dpkg-deb").arg("--extract").arg(&file).arg(&root))?;
            }
        }
        Ok(())
    }
}

/// The value of `LD_LIBRARY_PATH` with which programs below `root` find the packages' libraries; `own` is a directory among them.
pub fn library_path(root: &Path, own: &str) -> OsString {
    let libraries = libraries(root);
    // Some packages know nothing of `/lib` being a link.
    let unmerged = root.join(format!("lib/{}-linux-gnu", std::env::consts::ARCH));
    let directories = [libraries.join(own), libraries, unmerged].map(PathBuf::into_os_string);
    directories.join(OsStr::new(":"))
}

/// Where the shared libraries of this machine's architecture are.
pub fn libraries(root: &Path) -> PathBuf {
    root.join(format!("usr/lib/{}-linux-gnu", std::env::consts::ARCH))
}

/// `name=version` of `NAME [OLD] (VERSION ORIGIN [ARCHITECTURE])`.
fn package(line: &str) -> Result<String> {
    let name = line.split_whitespace().next();
    let version = line
        .split_once('(')
        .and_then(|(_, rest)| rest.split_whitespace().next());
    let (Some(name), Some(version)) = (name, version) else {
        bail!("apt-get says \"Inst {line}\": not a package and its version");
    };
    Ok(format!("{name}={version}"))
}

fn key(packages: &[String]) -> String {
    let digest = Sha256::digest(packages.join("\n"));
    let first = digest.first_chunk().copied().unwrap_or_default();
    format!("{:016x}", u64::from_be_bytes(first))
}

#[cfg(test)]
mod tests {
    use rstest::rstest;

    use super::package;

    #[rstest]
    #[case::new("libfmt9 (9.1.0+ds1-2 Debian:12.4/oldstable [amd64])", "libfmt9=9.1.0+ds1-2")]
    #[case::upgrade("librados2 [16.2.11] (16.2.15+ds-0 Debian [amd64]) []", "librados2=16.2.15+ds-0")]
    fn a_package_is_read_with_its_version(#[case] line: &str, #[case] expected: &str) {
        assert_eq!(package(line).unwrap(), expected);
    }

    #[test]
    fn a_line_without_a_version_is_refused() {
        assert!(package("libfmt9").is_err());
    }
}
