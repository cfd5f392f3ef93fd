//! `cargo xtask crds`: the CustomResourceDefinitions as files, and a page of reference for each, generated from the Rust types.

mod reference;

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use anyhow::{Context, Result};
use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition;

/// Where they stand: for those who apply them by hand, and for the chart.
const FOLDERS: [&str; 2] = ["crds", "charts/nodeward/files/crds"];

/// Where the pages are.
const PAGES: &str = "docs/api";

#[derive(clap::Args)]
pub struct Args {
    /// Write nothing: fail where a file is not what the Rust types give
    #[arg(long)]
    check: bool,
}

pub fn run(args: &Args) -> Result<ExitCode> {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    let mut outdated = Vec::new();
    for (path, text) in files(&definitions())? {
        let path = root.join(path);
        if std::fs::read_to_string(&path).is_ok_and(|present| present == text) {
            continue;
        }
        if args.check {
            outdated.push(path.display().to_string());
        } else {
            std::fs::create_dir_all(path.parent().context("no folder")?)?;
            std::fs::write(&path, text).with_context(|| format!("write {}", path.display()))?;
            eprintln!("wrote {}", path.display());
        }
    }
    if outdated.is_empty() {
        return Ok(ExitCode::SUCCESS);
    }
    eprintln!(
        "not what the Rust types give, run cargo xtask crds:\n  {}",
        outdated.join("\n  ")
    );
    Ok(ExitCode::FAILURE)
}

/// What all operators serve.
fn definitions() -> Vec<CustomResourceDefinition> {
    [nodeward_api::crd::drain_lock(), nodeward_api::crd::health_check()].concat()
}

/// Each file, by its path in the repository.
fn files(definitions: &[CustomResourceDefinition]) -> Result<BTreeMap<PathBuf, String>> {
    let mut files = BTreeMap::new();
    for definition in definitions {
        let name = format!("{}_{}.yaml", definition.spec.group, definition.spec.names.plural);
        let text = nodeward_runtime::crds::yaml(std::slice::from_ref(definition))?;
        for folder in FOLDERS {
            files.insert(Path::new(folder).join(&name), text.clone());
        }
        let (name, page) = reference::page(definition)?;
        files.insert(Path::new(PAGES).join(name), page);
    }
    Ok(files)
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    #[test]
    fn crd_files_match_the_rust_types() {
        let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
        let expected = files(&definitions()).unwrap();
        for (path, text) in &expected {
            let present = std::fs::read_to_string(root.join(path)).unwrap_or_default();
            assert!(present == *text, "{}: run cargo xtask crds", path.display());
        }
        let mut present = BTreeSet::new();
        for folder in [&FOLDERS[..], &[PAGES]].concat() {
            for entry in std::fs::read_dir(root.join(folder)).unwrap() {
                let path = Path::new(folder).join(entry.unwrap().file_name());
                let is_written_by_hand = path.ends_with("README.md") || path.ends_with("index.md");
                if !is_written_by_hand {
                    present.insert(path);
                }
            }
        }
        assert_eq!(present, expected.into_keys().collect());
    }
}
