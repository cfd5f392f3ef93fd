//! `cargo xtask test`: everything that the tests need, and then all of them.

use std::ffi::OsString;
use std::process::{Command, ExitCode};

use anyhow::{Context, Result};
use nodeward_testkit::{binaries, toolchain};

#[derive(clap::Args)]
pub struct Args {
    /// Passed on, as in `cargo xtask test -p drain-keeper -- --nocapture`
    #[arg(trailing_var_arg = true, allow_hyphen_values = true)]
    rest: Vec<OsString>,
}

pub fn run(args: &Args) -> Result<ExitCode> {
    toolchain::ensure_built()?;
    binaries::ensure_built(binaries::OPERATORS)?;
    let mut cargo = Command::new(binaries::cargo());
    cargo.arg("test");
    // `--package` narrows; everything else keeps the whole workspace.
    let narrowed = args
        .rest
        .iter()
        .take_while(|arg| *arg != "--")
        .any(|arg| arg == "-p" || arg == "--package");
    if !narrowed {
        cargo.arg("--workspace");
    }
    // The binaries are there: what a test starts must be what was just built.
    let status = cargo
        .args(&args.rest)
        .env(binaries::BUILT, "1")
        .status()
        .context("run cargo test")?;
    Ok(if status.success() {
        ExitCode::SUCCESS
    } else {
        ExitCode::FAILURE
    })
}
