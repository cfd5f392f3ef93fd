//! `nodeward-core` decides and does nothing else: what it depends on must not be able to reach a network, a clock or an
//! async runtime of Kubernetes. Its whole dependency tree is looked at, features and platforms included.

use std::collections::BTreeSet;
use std::process::Command;

/// Crates that act: clients, runtimes, sockets.
const FORBIDDEN: [&str; 8] = [
    "kube",
    "kube-client",
    "kube-runtime",
    "tokio",
    "hyper",
    "reqwest",
    "axum",
    "mio",
];

/// Every package in the tree of normal and build dependencies of a package of this workspace.
fn dependencies_of(package: &str) -> BTreeSet<String> {
    let output = Command::new(env!("CARGO"))
        .args([
            "tree",
            "--locked",
            "--target",
            "all",
            "--edges",
            "normal,build",
            "--prefix",
            "none",
        ])
        .args(["--format", "{p}", "--package", package])
        .current_dir(env!("CARGO_MANIFEST_DIR"))
        .output()
        .expect("cargo runs");
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let tree = String::from_utf8(output.stdout).expect("cargo writes UTF-8");
    tree.lines()
        .filter_map(|line| line.split_whitespace().next())
        .map(str::to_owned)
        .collect()
}

fn forbidden_in(package: &str) -> Vec<&'static str> {
    let dependencies = dependencies_of(package);
    assert!(
        dependencies.contains(package),
        "the tree of {package} was not read: {dependencies:?}"
    );
    FORBIDDEN
        .into_iter()
        .filter(|name| dependencies.contains(*name))
        .collect()
}

#[test]
fn core_depends_on_no_client_and_no_async_runtime() {
    assert_eq!(forbidden_in("nodeward-core"), [""; 0]);
    assert!(
        dependencies_of("nodeward-core").contains("k8s-openapi"),
        "the tree of core was not read to its leaves"
    );
}

/// The same look at a crate that does act finds what is forbidden: the check above can fail.
#[test]
fn the_check_finds_what_it_forbids() {
    let found = forbidden_in("nodeward-runtime");
    for name in ["kube", "kube-client", "tokio", "hyper"] {
        assert!(found.contains(&name), "{name} was not found among {found:?}");
    }
}

/// Time is a parameter. Nothing in core asks for it, waits for it, or reaches out.
#[test]
fn core_reads_no_clock_and_does_no_io() {
    const BANNED: [&str; 9] = [
        "Timestamp::now",
        "Zoned::now",
        "SystemTime",
        "Instant::now",
        "thread::sleep",
        "std::fs",
        "std::net",
        "std::env",
        "std::process",
    ];
    let mut looked_at = 0;
    let mut folders = vec![std::path::PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("src")];
    while let Some(folder) = folders.pop() {
        for entry in std::fs::read_dir(folder).expect("the sources are there") {
            let path = entry.expect("the sources can be listed").path();
            if path.is_dir() {
                folders.push(path);
                continue;
            }
            let source = std::fs::read_to_string(&path).expect("a source can be read");
            let found: Vec<_> = BANNED.into_iter().filter(|banned| source.contains(banned)).collect();
            assert!(found.is_empty(), "{} uses {found:?}", path.display());
            looked_at += 1;
        }
    }
    assert!(looked_at > 10, "only {looked_at} sources were found");
}
