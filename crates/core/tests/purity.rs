//! The decisions stay pure: whoever reads, tests or reuses them needs no cluster, no async runtime and no clock.

#![allow(clippy::unwrap_used, reason = "a test")]

use std::collections::BTreeSet;
use std::path::Path;
use std::process::Command;

use rstest::rstest;

/// Crates by which I/O or an async runtime would come in.
const IMPURE: [&str; 8] = [
    "kube",
    "kube-client",
    "kube-runtime",
    "tokio",
    "hyper",
    "reqwest",
    "axum",
    "nodeward-runtime",
];

/// Everything that a package is built from, directly or not; what only its tests use does not count.
fn dependencies_of(package: &str) -> BTreeSet<String> {
    let output = Command::new(env!("CARGO"))
        .args(["tree", "--locked", "--edges", "normal,build", "--prefix", "none"])
        .args(["--format", "{p}", "--package", package])
        .current_dir(env!("CARGO_MANIFEST_DIR"))
        .output()
        .unwrap();
    assert!(
        output.status.success(),
        "cargo tree: {}",
        String::from_utf8_lossy(&output.stderr)
    );
    let listing = String::from_utf8(output.stdout).unwrap();
    let names: BTreeSet<String> = listing
        .lines()
        .filter_map(|line| line.split_whitespace().next())
        .map(str::to_owned)
        .collect();
    assert!(names.contains(package), "{listing}");
    names
}

fn impure_dependencies_of(package: &str) -> Vec<&'static str> {
    let dependencies = dependencies_of(package);
    IMPURE.into_iter().filter(|name| dependencies.contains(*name)).collect()
}

#[rstest]
#[case("nodeward-api")]
#[case("nodeward-core")]
#[case("nodeward-scheduling")]
fn pure_crates_have_no_client_or_async_runtime(#[case] package: &str) {
    assert_eq!(impure_dependencies_of(package), Vec::<&str>::new());
}

/// The check above can fail: it finds what the shell is made of.
#[test]
fn purity_check_finds_real_dependencies() {
    let found = impure_dependencies_of("nodeward-runtime");
    for expected in ["kube", "kube-client", "tokio"] {
        assert!(found.contains(&expected), "{found:?}");
    }
}

/// The clock and the file system need no dependency; the lints that keep them out stand in this crate's own clippy.toml,
/// where a file further up no longer counts.
#[test]
fn lint_keeps_clock_and_file_system_out() {
    let lints = std::fs::read_to_string(Path::new(env!("CARGO_MANIFEST_DIR")).join("clippy.toml")).unwrap();
    for method in [
        "jiff::Timestamp::now",
        "std::time::SystemTime::now",
        "std::time::Instant::now",
    ] {
        assert!(lints.contains(&format!("{method:?}")), "{method}");
    }
    assert!(lints.contains("disallowed-methods"));
}
