//! The operators' own binaries.
//!
//! Tests and demo run those of the dev profile: a fresh machine compiles one profile for both. Benchmarks, the soak and images run
//! those of the release profile: what is measured is what ships.

use std::collections::{BTreeMap, VecDeque};
use std::io::{self, BufRead, BufReader, Read};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::{Mutex, PoisonError};

use anyhow::{Context, Result, ensure};

use crate::progress::Progress;

/// The directory of binaries that are built already: `cargo xtask test` sets it for the tests that it starts.
pub const DIR: &str = "NODEWARD_BINARIES";

/// How many lines of a failed command's output its error has.
const LAST_LINES: usize = 40;

/// The packages with a binary that ships, each of its own name. They are built together: cargo would resolve other features for
/// one of them alone, and compile their dependencies again.
const PACKAGES: [&str; 5] = [
    "ceph-pdb",
    "drain-keeper",
    "drain-lock",
    "health-check",
    "kubectl-nodeward",
];

/// The cargo that runs us, else the one on the PATH, without what `cargo run` and the test runner have added to the
/// environment: build scripts that look at it (ring's, proc-macro2's) would run again, and all that rests on them be
/// compiled again.
pub fn cargo() -> Command {
    let mut cargo = Command::new(std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into()));
    for (key, _) in std::env::vars_os() {
        let name = key.to_string_lossy();
        let is_added =
            name.starts_with("CARGO_PKG_") || name.starts_with("CARGO_MANIFEST_") || name == "RUSTC_BOOTSTRAP";
        if is_added {
            cargo.env_remove(&key);
        }
    }
    cargo
}

/// Which profile a binary is built in.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Profile {
    /// What tests run, with what the test runner is itself built of.
    Dev,
    /// What ships.
    Release,
}

/// Where an operator's binary is: in [`DIR`] if that is set, else built first.
///
/// # Errors
/// When it does not compile, or [`DIR`] does not have it.
pub fn operator(name: &str, profile: Profile) -> Result<PathBuf> {
    let binary = match std::env::var_os(DIR) {
        Some(dir) => PathBuf::from(dir).join(name),
        None => build(profile)?.join(name),
    };
    ensure!(binary.is_file(), "{} does not exist", binary.display());
    Ok(binary)
}

/// The lines of a child's output, as they come; none where it is not piped.
pub fn lines_of(output: Option<impl Read>) -> impl Iterator<Item = io::Result<String>> {
    output.map(BufReader::new).into_iter().flat_map(BufRead::lines)
}

/// Runs to the end, handing each line of its output to `seen`.
///
/// # Errors
/// When it fails: with its last lines.
pub(crate) fn run(mut command: Command, mut seen: impl FnMut(&str)) -> Result<()> {
    let (reader, writer) = io::pipe()?;
    command.stderr(writer.try_clone()?).stdout(writer);
    let mut child = command.spawn()?;
    // The command holds the pipe's writing end too: without this the reading below would never end.
    drop(command);
    let mut last = VecDeque::new();
    for line in lines_of(Some(reader)) {
        let line = line?;
        seen(&line);
        last.push_back(line);
        if last.len() > LAST_LINES {
            last.pop_front();
        }
    }
    let status = child.wait()?;
    ensure!(status.success(), "{status}:\n{}", Vec::from(last).join("\n"));
    Ok(())
}

/// Runs to the end, and gives what it has written to standard output.
///
/// # Errors
/// When it fails: with what it has written to standard error.
pub fn stdout_of(command: &mut Command) -> Result<String> {
    let output = command.stdin(Stdio::null()).output();
    let output = output.with_context(|| format!("run {command:?}"))?;
    let errors = String::from_utf8_lossy(&output.stderr);
    ensure!(
        output.status.success(),
        "{command:?}: {}: {}",
        output.status,
        errors.trim()
    );
    Ok(String::from_utf8(output.stdout)?.trim().to_owned())
}

/// Builds all binaries once, with progress on standard error; gives their directory.
///
/// # Errors
/// When they do not compile: cargo's messages have been shown then.
pub fn build(profile: Profile) -> Result<PathBuf> {
    static BUILT: Mutex<BTreeMap<Profile, PathBuf>> = Mutex::new(BTreeMap::new());
    // Whoever asks meanwhile waits for it.
    let mut built = BUILT.lock().unwrap_or_else(PoisonError::into_inner);
    if let Some(dir) = built.get(&profile) {
        return Ok(dir.clone());
    }
    let dir = compile(profile)?;
    built.insert(profile, dir.clone());
    Ok(dir)
}

fn compile(profile: Profile) -> Result<PathBuf> {
    let mut command = cargo();
    command.args(["build", "--bins"]);
    let dir = match profile {
        // Dependencies have the features here that tests have compiled them with: .ci/run checks that.
        Profile::Dev => {
            command.arg("--workspace");
            "debug"
        }
        Profile::Release => {
            command.arg("--release");
            command.args(PACKAGES.iter().flat_map(|package| ["-p", package]));
            "release"
        }
    };
    let progress = Progress::begin(format!("building {} ({dir})", PACKAGES.join(", ")));
    command.current_dir(workspace()).stdin(Stdio::null());
    run(command, |line| progress.step(line.trim())).context("cargo build")?;
    progress.done("built");
    Ok(target_dir()?.join(dir))
}

/// The root of this repository.
pub fn workspace() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..")
}

/// As cargo has it, configuration and `CARGO_TARGET_DIR` included.
fn target_dir() -> Result<PathBuf> {
    let mut command = cargo();
    command.args(["metadata", "--format-version=1", "--no-deps", "--offline"]);
    let metadata = stdout_of(command.current_dir(workspace())).context("cargo metadata")?;
    let metadata: serde_json::Value = serde_json::from_str(&metadata)?;
    metadata["target_directory"]
        .as_str()
        .map(PathBuf::from)
        .context("cargo metadata names no target directory")
}
