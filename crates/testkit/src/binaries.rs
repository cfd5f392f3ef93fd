//! The operators' own binaries, in the one profile that tests, demo and benchmarks share.
//!
//! It is the release profile: what is measured and tried is what ships. The dependencies are compiled once more than
//! a development build would need; a test that starts an optimised operator wins most of that back.

use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use anyhow::{Context, Result, ensure};

use crate::progress::Progress;

/// The packages with a binary that tests run, each of its own name.
pub const OPERATORS: &[&str] = &["drain-keeper", "drain-lock", "kubectl-nodeward"];
/// Set to say that the binaries are built already, as `cargo xtask test` does for the tests that it starts.
pub const BUILT: &str = "NODEWARD_BINARIES_BUILT";

/// The cargo that runs us, else the one on the PATH.
pub fn cargo() -> PathBuf {
    std::env::var_os("CARGO").map_or_else(|| "cargo".into(), PathBuf::from)
}

/// Where an operator's binary is, built first unless [`BUILT`] is set.
///
/// # Errors
/// When it does not compile.
pub fn operator(name: &str) -> Result<PathBuf> {
    if std::env::var_os(BUILT).is_none() {
        ensure_built(&[name])?;
    }
    built(name)
}

/// Where the binary of an operator that is built is.
///
/// # Errors
/// When it is not.
pub fn built(name: &str) -> Result<PathBuf> {
    let binary = target_dir()?.join("release").join(name);
    ensure!(binary.is_file(), "{} does not exist", binary.display());
    Ok(binary)
}

/// Builds the release binaries of `packages`, with progress on standard error.
///
/// # Errors
/// When they do not compile: cargo's messages have been shown then.
pub fn ensure_built(packages: &[&str]) -> Result<()> {
    let progress = Progress::begin(format!("building {}", packages.join(", ")));
    let mut command = Command::new(cargo());
    command
        .args(["build", "--release", "--bins"])
        .args(packages.iter().flat_map(|package| ["-p", package]));
    let mut child = command
        .current_dir(workspace())
        .stdin(Stdio::null())
        .stderr(Stdio::piped())
        .spawn()
        .context("run cargo")?;
    let mut said = Vec::new();
    for line in child
        .stderr
        .take()
        .map(BufReader::new)
        .into_iter()
        .flat_map(BufRead::lines)
    {
        let line = line?;
        progress.step(line.trim());
        said.push(line);
    }
    let status = child.wait()?;
    ensure!(status.success(), "cargo build failed ({status}):\n{}", said.join("\n"));
    progress.done("built");
    Ok(())
}

fn workspace() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..")
}

/// As cargo has it, configuration and `CARGO_TARGET_DIR` included.
fn target_dir() -> Result<PathBuf> {
    let output = Command::new(cargo())
        .args(["metadata", "--format-version=1", "--no-deps", "--offline"])
        .current_dir(workspace())
        .output()
        .context("run cargo metadata")?;
    ensure!(
        output.status.success(),
        "cargo metadata failed: {}",
        String::from_utf8_lossy(&output.stderr)
    );
    let metadata: serde_json::Value = serde_json::from_slice(&output.stdout)?;
    metadata["target_directory"]
        .as_str()
        .map(PathBuf::from)
        .context("cargo metadata names no target directory")
}
