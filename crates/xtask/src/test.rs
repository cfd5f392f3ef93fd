//! `cargo xtask test`: everything that the tests need, then all of them, and one summary.
//!
//! Each test binary is run by itself: one that fails stops no other. The harness tells of its tests as JSON, which stable
//! Rust hides behind a flag; it is only read here, and `RUSTC_BOOTSTRAP` concerns no compilation.
//!
//! Tests that wait for a control plane run side by side, the longest binary first; those that only compute run beside them,
//! and give way to them.
//!
//! A failed test that waits for a control plane is run again by itself: on a machine that is too slow for a moment one of
//! thousands fails. Where it passes then it is told of as flaky, with what it printed, and is to be mended.

mod durations;
mod permissions;

use std::cmp::Reverse;
use std::collections::{BTreeMap, VecDeque};
use std::ffi::OsString;
use std::path::PathBuf;
use std::process::{Command, ExitCode, Stdio};
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use nodeward_testkit::audit::AUDIT_LOGS;
use nodeward_testkit::ceph::{self, CephRelease, Programs};
use nodeward_testkit::drainers::{self, Drainer};
use nodeward_testkit::kubernetes::{self, Kubernetes};
use nodeward_testkit::{binaries, lock, toolchain};
use serde_json::Value;

use durations::Durations;
use permissions::AuditLogs;

/// Tests that a binary runs at once where they wait for a control plane.
const THREADS: &str = "4";

/// Packages whose integration tests call librados in their own process.
const WITH_CEPH: [&str; 3] = ["ceph-pdb", "nodeward-testkit", "rados"];

/// Packages whose integration tests start drainers of others.
const WITH_DRAINERS: [&str; 2] = ["drain-keeper", "drain-lock"];

/// How many of the slowest tests the summary names.
const SLOWEST: usize = 10;

/// Where more tests failed than this, none is run again: that is no moment's weakness.
const RETRIED: usize = 5;

/// So many of the last lines that a failed test printed stand in the summary.
const LAST_LINES: usize = 12;

#[derive(Clone, clap::Args)]
pub struct Args {
    /// Only the tests of this package; may be repeated
    #[arg(short, long, value_name = "NAME")]
    package: Vec<String>,

    /// Only tests whose path contains this; may be repeated
    #[arg(long, value_name = "NAME")]
    only: Vec<String>,

    /// The same as --only, as `cargo test` takes it
    #[arg(value_name = "NAME")]
    names: Vec<String>,

    /// Only the packages' unit tests
    #[arg(long)]
    lib: bool,

    /// Only this integration test target, as in `--test testbed`; may be repeated
    #[arg(long, value_name = "TARGET")]
    test: Vec<String>,

    /// Run everything so many times
    #[arg(long, default_value_t = 1, value_name = "TIMES")]
    repeat: u32,

    /// How often a failed test that waits for a control plane is run again, by itself; it is flaky where it passes then
    #[arg(long, default_value_t = 1, value_name = "TIMES")]
    retries: u32,

    /// Which Kubernetes they run on
    #[arg(long, value_name = "VERSION", env = kubernetes::VARIABLE, default_value = kubernetes::DEFAULT)]
    kubernetes: Kubernetes,

    /// Which Ceph they run on, where they do not name one: the `newest` of Debian unstable, or this `system`'s [default: the newest,
    /// where this system has Debian's keys]
    #[arg(long, value_name = "RELEASE", env = ceph::VARIABLE)]
    ceph: Option<CephRelease>,

    /// How many binaries whose tests wait for a control plane run side by side, four tests of each
    #[arg(long, default_value_t = 2, value_name = "BINARIES")]
    at_once: usize,

    /// List at the end what the chart allows the operators to do and none of these tests has seen them do
    #[arg(long)]
    unused_permissions: bool,

    /// Passed on to each test binary, as in `-- --nocapture`
    #[arg(last = true)]
    rest: Vec<OsString>,
}

impl Args {
    /// Whether each binary that is run runs all of its tests, so that the time it takes says something of the next run.
    fn runs_whole_binaries(&self) -> bool {
        self.only.is_empty() && self.names.is_empty() && self.rest.is_empty()
    }

    /// The same for one test alone.
    fn of_test(&self, name: &str) -> Self {
        let mut one = Self {
            only: Vec::new(),
            names: vec![name.to_owned()],
            ..self.clone()
        };
        one.rest.push("--exact".into());
        one
    }
}

/// # Errors
/// When something does not compile. Tests that fail are in the summary, and in the exit code.
pub fn run(args: &Args) -> Result<ExitCode> {
    let tools = toolchain::ensure_built(args.kubernetes)?;
    let is_narrowed = !args.package.is_empty() || args.lib || !args.test.is_empty();
    if is_narrowed {
        // Tests of one package start operators of others.
        let status = cargo(&["build", "--workspace", "--bins"]).status()?;
        ensure!(status.success(), "cargo build failed: {status}");
    }
    let mut binaries = build_tests(args)?;
    provide_librados(&mut binaries);
    if binaries.iter().any(Binary::needs_drainers) {
        build_drainers();
    }
    let audit_logs = args.unused_permissions.then(AuditLogs::begin).transpose()?;
    if let Some(logs) = &audit_logs {
        for binary in &mut binaries {
            binary.audit_logs = Some(logs.dir().to_owned());
        }
    }
    let durations = Durations::load();
    durations.longest_first(&mut binaries, |binary| (binary.name(), binary.size()));
    let began = Instant::now();
    let summary = Mutex::new(Summary::default());
    for _ in 0..args.repeat {
        let (waiting, computing) = binaries.iter().partition(|binary| binary.needs_control_plane());
        std::thread::scope(|scope| {
            scope.spawn(|| run_all(computing, 1, args, &summary));
            run_all(waiting, args.at_once.max(1), args, &summary);
        });
    }
    if args.runs_whole_binaries() {
        durations.record(lock(&summary).binaries.iter().map(|run| (run.name.clone(), run.taken)));
    }
    if args.only.is_empty() && args.names.is_empty() && !args.lib && args.test.is_empty() {
        let mut doc = cargo(&["test", "--doc"]);
        let status = doc.args(selection(&args.package)).status()?;
        if !status.success() {
            lock(&summary)
                .broken
                .push(format!("doc tests ({status})\n    cargo test --doc --workspace"));
        }
    }
    let mut summary = summary.into_inner().unwrap_or_else(PoisonError::into_inner);
    summary.retry(&binaries, args);
    if let Some(logs) = audit_logs {
        println!("\npermissions that no test has used:\n{}", logs.unused(&tools.helm)?);
    }
    summary.print(began.elapsed().as_secs(), &tools.kubernetes);
    Ok(if summary.is_green() {
        ExitCode::SUCCESS
    } else {
        ExitCode::FAILURE
    })
}

fn cargo(args: &[&str]) -> Command {
    let mut cargo = binaries::cargo();
    cargo.args(args);
    cargo
}

fn selection(packages: &[String]) -> Vec<&str> {
    if packages.is_empty() {
        return vec!["--workspace"];
    }
    packages
        .iter()
        .flat_map(|package| ["--package", package.as_str()])
        .collect()
}

/// An executable with tests.
struct Binary {
    package: String,
    /// Of an integration test; `None` for unit tests.
    target: Option<String>,
    executable: PathBuf,
    /// Its package's directory, in which cargo would run it.
    dir: PathBuf,
    /// Where the loader finds what the system may lack.
    library_path: Option<OsString>,
    /// Where its control planes leave their audit logs, if these are to be kept.
    audit_logs: Option<PathBuf>,
}

/// Builds the drainers of others before any test waits for one. Tests that need one which cannot be had fail by themselves:
/// none is skipped.
fn build_drainers() {
    for drainer in Drainer::ALL {
        if let Err(error) = drainer.ensure_built() {
            eprintln!("{}", drainers::in_one_line(&error));
        }
    }
}

/// Has the loader find librados. Where Ceph cannot be had the tests that need it fail by themselves: none is skipped.
fn provide_librados(binaries: &mut [Binary]) {
    let mut in_need: Vec<&mut Binary> = binaries.iter_mut().filter(|binary| binary.needs_ceph()).collect();
    if in_need.is_empty() {
        return;
    }
    match Programs::ensure_unpacked() {
        Ok(programs) => in_need
            .iter_mut()
            .for_each(|binary| binary.library_path = Some(programs.library_path())),
        Err(error) => eprintln!("Ceph cannot be had, and its tests will fail: {error:#}"),
    }
}

/// Compiles the tests; cargo's own progress goes to standard error.
fn build_tests(args: &Args) -> Result<Vec<Binary>> {
    let mut build = cargo(&["test", "--no-run", "--message-format=json-render-diagnostics"]);
    build.args(selection(&args.package));
    if args.lib {
        build.arg("--lib");
    }
    build.args(args.test.iter().flat_map(|target| ["--test", target]));
    let mut child = build
        .stdout(Stdio::piped())
        .spawn()
        .context("run cargo test --no-run")?;
    let mut tests = Vec::new();
    for line in binaries::lines_of(child.stdout.take()) {
        tests.extend(Binary::of_artifact(&serde_json::from_str(&line?)?));
    }
    let status = child.wait()?;
    ensure!(status.success(), "the tests do not compile: {status}");
    Ok(tests)
}

impl Binary {
    /// Of a message of cargo's, if that tells of a test's executable.
    fn of_artifact(message: &Value) -> Option<Self> {
        if message["profile"]["test"] != true {
            return None;
        }
        let target = &message["target"];
        let is_integration = target["kind"][0] == "test";
        // `path+file:///…/crates/api#nodeward-api@0.1.0`, or without the name where the directory has it.
        let (path, version) = message["package_id"].as_str()?.split_once('#')?;
        let named = version.split_once('@').map(|(name, _)| name);
        Some(Self {
            package: named.or_else(|| path.rsplit('/').next())?.to_owned(),
            target: is_integration.then(|| target["name"].as_str().unwrap_or_default().to_owned()),
            executable: message["executable"].as_str()?.into(),
            dir: PathBuf::from(message["manifest_path"].as_str()?).parent()?.to_owned(),
            library_path: None,
            audit_logs: None,
        })
    }

    fn needs_control_plane(&self) -> bool {
        self.target.is_some() && self.package != "nodeward-core"
    }

    fn needs_drainers(&self) -> bool {
        self.target.is_some() && WITH_DRAINERS.contains(&self.package.as_str())
    }

    fn needs_ceph(&self) -> bool {
        self.target.is_some() && WITH_CEPH.contains(&self.package.as_str())
    }

    fn name(&self) -> String {
        match &self.target {
            None => self.package.clone(),
            Some(target) => format!("{}/{target}", self.package),
        }
    }

    /// Of the executable, in bytes.
    fn size(&self) -> u64 {
        std::fs::metadata(&self.executable).map_or(0, |executable| executable.len())
    }

    fn command(&self, args: &Args) -> Command {
        let mut command = if self.needs_control_plane() {
            Command::new(&self.executable)
        } else {
            // It gives way to tests with deadlines, but not so far that its own few with real time miss theirs.
            let mut nice = Command::new("nice");
            nice.args(["-n", "5"]).arg(&self.executable);
            nice
        };
        command
            .args(["-Z", "unstable-options", "--format=json", "--report-time"])
            .args(args.only.iter().chain(&args.names))
            .args(&args.rest)
            .current_dir(&self.dir)
            .env("RUSTC_BOOTSTRAP", "1")
            .env("CARGO_MANIFEST_DIR", &self.dir)
            .env(kubernetes::VARIABLE, args.kubernetes.minor())
            .env(
                ceph::VARIABLE,
                args.ceph.unwrap_or_else(CephRelease::newest_here).name(),
            )
            .stdout(Stdio::piped());
        if let Some(library_path) = &self.library_path {
            command.env("LD_LIBRARY_PATH", library_path);
        }
        if let Some(dir) = &self.audit_logs {
            command.env(AUDIT_LOGS, dir);
        }
        // Next to `deps`, where the tests are.
        if let Some(dir) = self.executable.ancestors().nth(2) {
            command.env(binaries::DIR, dir);
        }
        let is_given = args
            .rest
            .iter()
            .any(|arg| arg.to_string_lossy().starts_with("--test-threads"));
        if self.needs_control_plane() && !is_given {
            command.args(["--test-threads", THREADS]);
        }
        command
    }

    /// Runs it, prints what it tells as it comes, and keeps it for the summary.
    fn run(&self, args: &Args, summary: &Mutex<Summary>) -> Result<()> {
        let began = Instant::now();
        let mut tests = 0.0;
        let mut child = self
            .command(args)
            .spawn()
            .with_context(|| format!("run {}", self.name()))?;
        let mut is_complete = false;
        for line in binaries::lines_of(child.stdout.take()) {
            let line = line?;
            match serde_json::from_str::<Value>(&line) {
                Ok(event) if event["type"] == "suite" => {
                    is_complete |= event["event"] != "started";
                    self.tell_suite(&event);
                }
                Ok(event) if event["type"] == "test" => {
                    tests += event["exec_time"].as_f64().unwrap_or_default();
                    self.tell_test(&event, &mut lock(summary));
                }
                _ => println!("{line}"),
            }
        }
        let status = child.wait()?;
        ensure!(is_complete, "ended before its tests: {status}");
        lock(summary).binaries.push(BinaryRun {
            name: self.name(),
            taken: began.elapsed(),
            tests,
        });
        Ok(())
    }

    /// Whether this one of its tests passes.
    fn passes(&self, test: &str, args: &Args) -> bool {
        println!("\nagain: {} {test}", self.name());
        let summary = Mutex::new(Summary::default());
        let is_complete = self.run(&args.of_test(test), &summary).is_ok();
        let summary = lock(&summary);
        is_complete && summary.is_green() && summary.passed == 1
    }

    fn tell_suite(&self, event: &Value) {
        let count = |field: &str| event[field].as_u64().unwrap_or_default();
        match event["event"].as_str() {
            Some("started") if count("test_count") > 0 => {
                println!("\nrunning {} tests of {}", count("test_count"), self.name());
            }
            Some("started") => {}
            _ if count("passed") + count("failed") + count("ignored") == 0 => {}
            outcome => println!(
                "\n{}\ntest result: {}. {} passed; {} failed; {} ignored; {} measured; {} filtered out; finished in {:.2}s\n",
                self.name(),
                if outcome == Some("ok") { "ok" } else { "FAILED" },
                count("passed"),
                count("failed"),
                count("ignored"),
                count("measured"),
                count("filtered_out"),
                event["exec_time"].as_f64().unwrap_or_default(),
            ),
        }
    }

    fn tell_test(&self, event: &Value, summary: &mut Summary) {
        let name = event["name"].as_str().unwrap_or_default();
        let path = format!("{} {name}", self.name());
        let seconds = event["exec_time"].as_f64().unwrap_or_default();
        match event["event"].as_str() {
            Some("ok") => {
                summary.passed += 1;
                println!("test {path} ... ok ({seconds:.1} s)");
            }
            Some("failed") => {
                let output = event["stdout"].as_str().unwrap_or_default();
                println!("test {path} ... FAILED ({seconds:.1} s)\n{output}");
                let failure = summary.failed.entry(path.clone()).or_insert_with(|| Failure {
                    binary: self.name(),
                    test: name.to_owned(),
                    again: format!("cargo xtask test -p {} --only {name}", self.package),
                    times: 0,
                    output: output.to_owned(),
                });
                failure.times += 1;
            }
            Some("ignored") => summary.ignored += 1,
            Some("timeout") => {
                println!("test {path} still runs after 60 s");
                return;
            }
            _ => return,
        }
        summary.times.push((seconds, path));
    }
}

/// Runs all of them, so many side by side.
fn run_all(binaries: Vec<&Binary>, at_once: usize, args: &Args, summary: &Mutex<Summary>) {
    let queue = Mutex::new(VecDeque::from(binaries));
    std::thread::scope(|scope| {
        for _ in 0..at_once {
            scope.spawn(|| {
                loop {
                    let Some(binary) = lock(&queue).pop_front() else { return };
                    if let Err(error) = binary.run(args, summary) {
                        let again = format!("cargo xtask test -p {}", binary.package);
                        lock(summary)
                            .broken
                            .push(format!("{}: {error:#}\n    {again}", binary.name()));
                    }
                }
            });
        }
    });
}

/// How long a binary took.
struct BinaryRun {
    name: String,
    taken: Duration,
    /// Its tests one by one, in seconds: where that is much more, they ran side by side.
    tests: f64,
}

/// A test that failed, once or more often.
#[derive(Clone)]
struct Failure {
    /// Its name.
    binary: String,
    /// Its name within the binary.
    test: String,
    /// The command that repeats it.
    again: String,
    times: usize,
    /// What it printed when it failed for the first time.
    output: String,
}

/// What became of all tests.
#[derive(Default)]
struct Summary {
    passed: usize,
    ignored: usize,
    /// By path.
    failed: BTreeMap<String, Failure>,
    /// Those that passed when they were run again, by path.
    flaky: BTreeMap<String, Failure>,
    /// What ended before its tests did.
    broken: Vec<String>,
    times: Vec<(f64, String)>,
    binaries: Vec<BinaryRun>,
}

impl Summary {
    fn is_green(&self) -> bool {
        self.failed.is_empty() && self.broken.is_empty()
    }

    /// Runs again, one after another, what failed while it waited for a control plane.
    fn retry(&mut self, binaries: &[Binary], args: &Args) {
        if args.retries == 0 || self.failed.len() > RETRIED {
            return;
        }
        for (path, failure) in std::mem::take(&mut self.failed) {
            let binary = binaries.iter().find(|binary| binary.name() == failure.binary);
            let passes = binary.is_some_and(|binary| {
                binary.needs_control_plane() && (0..args.retries).any(|_| binary.passes(&failure.test, args))
            });
            let outcome = if passes { &mut self.flaky } else { &mut self.failed };
            outcome.insert(path, failure);
        }
    }

    fn print(&self, seconds: u64, release: &str) {
        // Without those of which nothing was selected.
        let mut binaries: Vec<_> = self.binaries.iter().filter(|run| run.tests > 0.0).collect();
        binaries.sort_by_key(|run| Reverse(run.taken));
        println!("\nbinaries, and their tests one by one:");
        for BinaryRun { name, taken, tests } in binaries {
            println!("{:>8.1} s {tests:>8.1} s  {name}", taken.as_secs_f64());
        }
        let mut slowest: Vec<_> = self.times.iter().collect();
        slowest.sort_by(|a, b| b.0.total_cmp(&a.0));
        println!("\nslowest:");
        for (seconds, path) in slowest.iter().take(SLOWEST) {
            println!("{seconds:>8.1} s  {path}");
        }
        if !self.is_green() {
            println!("\nfailed:");
        }
        print_failures(&self.failed);
        for broken in &self.broken {
            println!("  {broken}");
        }
        if !self.flaky.is_empty() {
            println!("\nflaky, for they passed when they were run again; to be mended:");
        }
        print_failures(&self.flaky);
        let times =
            |failures: &BTreeMap<String, Failure>| failures.values().map(|failure| failure.times).sum::<usize>();
        let failed = times(&self.failed) + self.broken.len();
        let (passed, ignored) = (self.passed + times(&self.flaky), self.ignored);
        println!(
            "\n{passed} passed, {failed} failed, {ignored} ignored in {} min {} s, on Kubernetes {release}",
            seconds / 60,
            seconds % 60
        );
    }
}

fn print_failures(failures: &BTreeMap<String, Failure>) {
    for (path, failure) in failures {
        println!("  {path} ({} times)\n    {}", failure.times, failure.again);
        let told = failure.output.lines().filter(|line| !line.trim().is_empty());
        // Of an error or of a panic.
        let is_backtrace = |line: &str| line.eq_ignore_ascii_case("stack backtrace:");
        let lines: Vec<&str> = told.take_while(|line| !is_backtrace(line)).collect();
        for line in lines.iter().skip(lines.len().saturating_sub(LAST_LINES)) {
            println!("      {line}");
        }
    }
}

#[cfg(test)]
mod tests;
