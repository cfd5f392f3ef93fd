use std::fs;
use std::path::Path;
use std::sync::Mutex;

use clap::Parser;
use rstest::rstest;

use super::{Args, Binary, RETRIED, Summary};

#[derive(Parser)]
struct Command {
    #[command(flatten)]
    args: Args,
}

fn args(given: &[&str]) -> Args {
    Command::parse_from([&["test"], given].concat()).args
}

/// In the place of a test binary. A file of its own: one that is written and run at once may still be open for writing in a
/// child that another test has forked.
const SAMPLE: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/src/test/sample.sh");

/// Of its one test the first `failures` runs fail.
fn binary(dir: &Path, target: Option<&str>, failures: usize) -> Binary {
    fs::write(dir.join("failures"), failures.to_string()).unwrap();
    Binary {
        package: "sample".to_owned(),
        target: target.map(str::to_owned),
        executable: SAMPLE.into(),
        dir: dir.to_owned(),
        library_path: None,
        audit_logs: None,
    }
}

/// Passed, failed, flaky, and how often it ran.
#[rstest]
#[case::passes(Some("testbed"), 0, &[], (1, 0, 0, 1))]
#[case::fails_once(Some("testbed"), 1, &[], (0, 0, 1, 2))]
#[case::fails_always(Some("testbed"), 9, &[], (0, 1, 0, 2))]
#[case::needs_two_more(Some("testbed"), 2, &["--retries", "2"], (0, 0, 1, 3))]
#[case::nothing_is_retried(Some("testbed"), 1, &["--retries", "0"], (0, 1, 0, 1))]
#[case::only_computes(None, 1, &[], (0, 1, 0, 1))]
fn failed_test_runs_again_alone(
    #[case] target: Option<&str>,
    #[case] failures: usize,
    #[case] given: &[&str],
    #[case] expected: (usize, usize, usize, usize),
) {
    let dir = tempfile::tempdir().unwrap();
    let (binary, args) = (binary(dir.path(), target, failures), args(given));
    let summary = Mutex::new(Summary::default());
    binary.run(&args, &summary).unwrap();
    let mut summary = summary.into_inner().unwrap();
    assert_eq!(summary.times.len(), 1, "of a test that takes long, too");
    summary.retry(&[binary], &args);
    let runs = fs::read_to_string(dir.path().join("runs")).unwrap().lines().count();
    let seen = (summary.passed, summary.failed.len(), summary.flaky.len(), runs);
    assert_eq!(seen, expected);
    assert_eq!(summary.is_green(), expected.1 == 0);
}

#[test]
fn many_failures_are_not_run_again() {
    let dir = tempfile::tempdir().unwrap();
    let (binary, args) = (binary(dir.path(), Some("testbed"), 1), args(&[]));
    let summary = Mutex::new(Summary::default());
    binary.run(&args, &summary).unwrap();
    let mut summary = summary.into_inner().unwrap();
    let failure = summary.failed.values().next().unwrap().clone();
    summary
        .failed
        .extend((0..RETRIED).map(|index| (format!("sample {index}"), failure.clone())));
    summary.retry(&[binary], &args);
    assert_eq!((summary.failed.len(), summary.flaky.len()), (RETRIED + 1, 0));
}
