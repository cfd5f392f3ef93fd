//! The installations that the documentation shows.

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use nodeward_testkit::binaries::Profile;
use nodeward_testkit::{binaries, toolchain};
use regex::Regex;
use serde_json::Value;

use crate::{CHART, helm, rendered};

/// README.md and every page of the book.
pub fn pages() -> Vec<(PathBuf, String)> {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    let mut found = vec![root.join("README.md")];
    let mut directories = vec![root.join("docs")];
    while let Some(directory) = directories.pop() {
        for entry in fs::read_dir(directory).unwrap() {
            let path = entry.unwrap().path();
            if path.is_dir() {
                directories.push(path);
            } else if path.extension().is_some_and(|extension| extension == "md") {
                found.push(path);
            }
        }
    }
    let read = |path: PathBuf| (path.clone(), fs::read_to_string(path).unwrap());
    found.into_iter().map(read).collect()
}

/// The blocks of YAML that begin with this comment.
pub fn blocks(page: &str, first_line: &str) -> Vec<String> {
    let blocks = page
        .split("```yaml\n")
        .skip(1)
        .filter_map(|rest| rest.split("```").next());
    let wanted = blocks.filter(|block| block.trim_start().starts_with(first_line));
    wanted.map(str::to_owned).collect()
}

#[test]
fn documented_install_commands_render() {
    let command = Regex::new(r"(?m)^ *helm install nodeward charts/nodeward (.*)$").unwrap();
    let mut tried = 0;
    for (path, page) in pages() {
        let page = page.replace("\\\n", " ");
        for found in command.captures_iter(&page) {
            let flags: Vec<&str> = found[1]
                .split_whitespace()
                .filter(|flag| *flag != "--create-namespace")
                .collect();
            let said = helm(&[&["template", "nodeward", CHART], &flags[..]].concat());
            assert!(said.is_ok(), "{}: {}: {said:?}", path.display(), &found[0]);
            // Until there is a release, the chart's own registry has no images.
            let has_images = found[1].contains("image.registry=") || page.contains("](../install.md#images)");
            assert!(has_images, "{}: where are the images?", path.display());
            tried += 1;
        }
    }
    assert!(tried >= 5, "only {tried} commands were found");
}

type Check = fn(&str) -> Result<(), String>;

/// What each component makes of its configuration.
const CHECKS: [(&str, Check); 4] = [
    ("drain-keeper", |text| {
        checked(drain_keeper::settings::Settings::parse(text))
    }),
    ("drain-lock", |text| {
        checked(drain_lock::settings::Settings::parse(text))
    }),
    ("health-check", |text| {
        checked(health_check::settings::Settings::parse_with(text, None))
    }),
    ("ceph-pdb", |text| checked(ceph_pdb::settings::Settings::parse(text))),
];

fn checked<T, E: ToString>(parsed: Result<T, E>) -> Result<(), String> {
    parsed.map(drop).map_err(|error| error.to_string())
}

/// Without an operator they would install nothing.
#[test]
fn documented_values_render() {
    let mut tried = 0;
    for (path, page) in pages() {
        for block in blocks(&page, "# values of the chart") {
            let values: Value = serde_yaml::from_str(&block).unwrap();
            let objects = rendered(&values);
            assert!(!objects.is_empty(), "{}: {block}", path.display());
            // What they configure, the operator accepts.
            for (component, check) in CHECKS {
                let name = format!("nodeward-{component}");
                let config_map =
                    |object: &&Value| object["kind"] == "ConfigMap" && object["metadata"]["name"] == name.as_str();
                for config in objects.iter().filter(config_map) {
                    let checked = check(config["data"]["config.yaml"].as_str().unwrap());
                    assert_eq!(checked, Ok(()), "{}: {block}", path.display());
                }
            }
            tried += 1;
        }
    }
    assert!(tried >= 2, "only {tried} examples were found");
}

/// `--reuse-values` alone keeps the defaults of the old chart.
#[test]
fn every_upgrade_takes_the_new_defaults() {
    let upgrade = Regex::new(r"helm upgrade [^\n`]*--reuse-values").unwrap();
    for (path, page) in pages() {
        let found = upgrade.find(&page).map(|found| found.as_str());
        assert_eq!(found, None, "{}", path.display());
    }
    let notes = fs::read_to_string(Path::new(CHART).join("templates/NOTES.txt")).unwrap();
    assert!(!upgrade.is_match(&notes), "NOTES.txt");
}

/// The subcommand exists, and so does each flag. What stands for a name is taken as one.
#[test]
fn documented_plugin_commands_parse() {
    let plugin = binaries::operator("kubectl-nodeward", Profile::Dev).unwrap();
    let command = Regex::new(r"kubectl nodeward ([a-z][^`\n]*)").unwrap();
    let end = Regex::new(r"  +#| # | && |\|| > |; |\.\s*$").unwrap();
    let word = Regex::new(r#"'[^']*'|"[^"]*"|\S+"#).unwrap();
    let mut tried = BTreeSet::new();
    for (path, page) in pages() {
        for line in code(&page) {
            let Some(found) = command.captures(line) else { continue };
            let text = end.split(&found[1]).next().unwrap();
            let words = word
                .find_iter(text)
                .map(|word| word.as_str().trim_matches(['\'', '"', '$', '.', '…']));
            let words = words.filter(|word| !word.is_empty() && !word.starts_with('['));
            // NODE is no name of a node.
            let words: Vec<String> = words.map(str::to_lowercase).collect();
            if tried.insert(words.join(" ")) {
                let help = Command::new(&plugin).args(&words).arg("--help").output().unwrap();
                let said = String::from_utf8_lossy(&help.stderr);
                assert!(help.status.success(), "{}: {line}: {words:?}: {said}", path.display());
            }
        }
    }
    assert!(tried.len() > 30, "{tried:?}");
}

/// The same for kubectl's own, but for what the demo prints and for other plugins.
#[test]
fn documented_kubectl_commands_parse() {
    let kubectl = toolchain::of_environment().unwrap().kubectl;
    let command = Regex::new(r"(?:^|[\s(|])kubectl ([a-z-][^`\n]*)").unwrap();
    let end = Regex::new(r"  +#| # | && | \| | > |; |\)").unwrap();
    let word = Regex::new(r#"(?:'[^']*'|"[^"]*"|[^\s'"])+"#).unwrap();
    let mut tried = BTreeSet::new();
    for (path, page) in pages() {
        if path.ends_with("docs/demo.md") {
            continue;
        }
        let page = page.replace("\\\n", " ");
        for line in code(&page) {
            let Some(found) = command.captures(line) else { continue };
            let text = end.split(&found[1]).next().unwrap();
            let words = word.find_iter(text).map(|word| word.as_str().replace(['\'', '"'], ""));
            let words: Vec<String> = words.collect();
            if ["nodeward", "krew"].contains(&words[0].as_str()) || !tried.insert(words.clone()) {
                continue;
            }
            let help = Command::new(&kubectl).args(&words).arg("--help").output().unwrap();
            let said = String::from_utf8_lossy(&help.stderr);
            assert!(help.status.success(), "{}: {line}: {words:?}: {said}", path.display());
        }
    }
    assert!(tried.len() > 80, "{tried:?}");
}

/// Lines of code blocks, and code in lines of text.
fn code(page: &str) -> Vec<&str> {
    let mut found = Vec::new();
    let mut is_block = false;
    for line in page.lines() {
        if line.trim_start().starts_with("```") {
            is_block = !is_block;
        } else if is_block {
            found.push(line);
        } else {
            found.extend(line.split('`').skip(1).step_by(2));
        }
    }
    found
}
