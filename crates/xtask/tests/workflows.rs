//! What the workflows run.
#![allow(clippy::unwrap_used, reason = "helpers of tests are tests")]

use std::fs;
use std::path::Path;
use std::process::Command;

use regex::Regex;
use serde_json::{Value, json};
use sha2::{Digest as _, Sha256};

/// A tag can be moved to other code, a commit cannot.
#[test]
fn actions_are_pinned_to_commits() {
    let pinned = Regex::new("^[a-z-]+/[a-z-]+@[0-9a-f]{40} # v[0-9]+\\.[0-9]+\\.[0-9]+$").unwrap();
    let workflows = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../.github/workflows");
    let mut used = 0;
    for file in fs::read_dir(workflows).unwrap() {
        let path = file.unwrap().path();
        for line in fs::read_to_string(&path).unwrap().lines() {
            let Some((_, action)) = line.split_once("uses: ") else {
                continue;
            };
            assert!(pinned.is_match(action), "{}: {action}", path.display());
            used += 1;
        }
    }
    assert!(used > 10, "{used}");
}

/// For the archives that the release workflow makes.
#[test]
fn krew_manifest_names_every_archive() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    let workflow = fs::read_to_string(root.join(".github/workflows/release.yaml")).unwrap();
    let workflow: Value = serde_yaml::from_str(&workflow).unwrap();
    let built = &workflow["jobs"]["plugin"]["strategy"]["matrix"]["include"];
    let directory = tempfile::tempdir().unwrap();
    let mut expected = Vec::new();
    for platform in built.as_array().unwrap() {
        let platform = platform["platform"].as_str().unwrap();
        let archive = format!("kubectl-nodeward_1.2.3_{platform}.tar.gz");
        fs::write(directory.path().join(&archive), platform).unwrap();
        let (os, arch) = platform.split_once('_').unwrap();
        expected.push(json!({
            "selector": { "matchLabels": { "os": os, "arch": arch } },
            "uri": format!("https://github.com/nodeward/nodeward/releases/download/v1.2.3/{archive}"),
            "sha256": format!("{:x}", Sha256::digest(platform)),
            "bin": "kubectl-nodeward",
        }));
    }
    let script = Command::new(root.join(".ci/krew-manifest"))
        .arg("1.2.3")
        .arg(directory.path())
        .output()
        .unwrap();
    assert!(script.status.success(), "{script:?}");
    let manifest: Value = serde_yaml::from_slice(&script.stdout).unwrap();
    assert_eq!(manifest["spec"]["version"], "v1.2.3");
    assert_eq!(manifest["spec"]["platforms"], json!(expected));
}
