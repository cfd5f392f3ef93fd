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

/// The directory below which these packages are, with what they depend on and the system lacks: `/` where it lacks none,
/// else a part of the cache, of this name, where they are fetched to.
///
/// Blocking, and some seconds long the first time on a machine.
///
/// # Errors
/// The system is not Debian or one of its children, or the packages cannot be fetched.
pub fn ensure_unpacked(name: &str, packages: &[&str]) -> Result<PathBuf> {
    let missing = missing_packages(packages)?;
    if missing.is_empty() {
        return Ok("/".into());
    }
    let cache = cache_dir()?;
    let target = cache.join(format!("{name}-{}", key(&missing)));
    if target.is_dir() {
        return Ok(target);
    }
    fs::create_dir_all(&cache).with_context(|| format!("create {}", cache.display()))?;
    let progress = Progress::begin(format!("fetching {name}: {} Debian packages", missing.len()));
    let _lock = lock(&cache.join(format!(".{name}.lock")), &progress)?;
    if !target.is_dir() {
        let unfinished = tempfile::Builder::new()
            .prefix(&format!(".{name}-"))
            .tempdir_in(&cache)?;
        unpack(&missing, unfinished.path(), &progress)?;
        fs::rename(unfinished.path().join("root"), &target)
            .with_context(|| format!("move the unpacked packages to {}", target.display()))?;
    }
    progress.done(&format!("in {}", target.display()));
    Ok(target)
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

/// The packages that would have to be installed, each as `name=version`.
fn missing_packages(wanted: &[&str]) -> Result<Vec<String>> {
    let simulate = || {
        let mut command = Command::new("apt-get");
        stdout_of(
            command
                .args(["install", "--simulate", "--no-install-recommends"])
                .args(wanted),
        )
    };
    let simulated = simulate().or_else(|_| {
        // A new system knows no packages yet.
        stdout_of(Command::new("apt-get").args(["update", "-qq"]))
            .context("apt-get cannot fetch the lists of Debian's packages")?;
        simulate()
    })?;
    simulated
        .lines()
        .filter_map(|line| line.strip_prefix("Inst "))
        .map(package)
        .collect()
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

fn unpack(packages: &[String], into: &Path, progress: &Progress) -> Result<()> {
    progress.step("downloading");
    stdout_of(
        Command::new("apt-get")
            .args(["download", "-qq"])
            .args(packages)
            .current_dir(into),
    )?;
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
