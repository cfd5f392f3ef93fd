//! What the documentation says must be what the code does: its words, its examples, its links.
#![allow(clippy::unwrap_used, clippy::panic, reason = "helpers of tests are tests")]

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

use drain_keeper::settings::Settings;
use nodeward_api::reason::{ActReason, BlockerReason, DrainReason, GateReason};

#[test]
fn each_reason_has_a_section_and_each_section_a_reason() {
    let reasons = [
        BlockerReason::ALL
            .iter()
            .map(|reason| reason.as_str())
            .collect::<Vec<_>>(),
        GateReason::ALL.iter().map(|reason| reason.as_str()).collect(),
        ActReason::ALL.iter().map(|reason| reason.as_str()).collect(),
        DrainReason::ALL.iter().map(|reason| reason.as_str()).collect(),
    ]
    .concat();
    let page = read(&root().join("docs/drain-keeper/reasons.md"));
    let sections: BTreeSet<&str> = page.lines().filter_map(|line| line.strip_prefix("### ")).collect();
    assert_eq!(sections, reasons.into_iter().collect());
}

#[test]
fn each_registered_metric_is_on_the_page_and_each_name_on_the_page_is_registered() {
    let mut registered = BTreeSet::from(["upgradeoperator_node_drain_timeout".to_owned()]);
    for file in files(&root().join("crates"), "rs") {
        let path = file.to_string_lossy().into_owned();
        if path.contains("crates/runtime/src") || path.contains("crates/drain-keeper/src") {
            registered.extend(names_registered_in(&read(&file)));
        }
    }
    let page = read(&root().join("docs/drain-keeper/metrics.md"));
    let documented: BTreeSet<String> = page
        .lines()
        .filter_map(|line| line.strip_prefix("| `"))
        .filter_map(|line| line.split('`').next())
        .filter(|name| name.contains('_'))
        .map(str::to_owned)
        .collect();
    assert_eq!(documented, registered);
}

/// Names as they are exported: counters and infos have the suffix that the encoder adds.
fn names_registered_in(source: &str) -> Vec<String> {
    let code = source.split("#[cfg(test)]").next().unwrap_or_default();
    let mut names = Vec::new();
    for call in code.split("registry.register(").skip(1) {
        let mut strings = call.split('"');
        let (Some(before), Some(name)) = (strings.next(), strings.next()) else {
            continue;
        };
        assert!(
            before.trim().is_empty(),
            "a metric's name stands where it is registered: {before}"
        );
        let suffix = match name {
            "build" => "_info",
            "actions" | "budget_overrides" | "cache_lists" | "config_reloads" | "events" | "watch_failures" => "_total",
            _ => "",
        };
        if !name.starts_with("upgradeoperator_") {
            names.push(format!("nodeward_drain_keeper_{name}{suffix}"));
        }
    }
    for call in code.split("encode_descriptor(").skip(1) {
        let Some(name) = call.split('"').nth(1) else { continue };
        // Every Prometheus client has its process's metrics under these names.
        let own = if name.starts_with("process_") {
            ""
        } else {
            "nodeward_drain_keeper_"
        };
        let unit = if call.contains("Unit::Bytes") { "_bytes" } else { "" };
        names.push(format!("{own}{name}{unit}"));
    }
    names
}

#[test]
fn every_example_of_a_configuration_is_accepted() {
    let mut tried = 0;
    for page in pages() {
        for example in examples(&read(&page), "# drain-keeper configuration") {
            tried += 1;
            if let Err(error) = Settings::parse(&example) {
                panic!("{}: {error}\n{example}", page.display());
            }
        }
    }
    assert!(tried > 5, "only {tried} examples were found");
}

#[test]
fn the_documented_defaults_are_the_defaults() {
    let page = read(&root().join("docs/drain-keeper/configuration.md"));
    let documented = &examples(&page, "# drain-keeper configuration: every field, with its default")[0];
    let meant = |text: &str| format!("{:#?}", Settings::parse(text).unwrap().policy);
    assert_eq!(meant(documented), meant(""));
}

#[test]
fn every_link_inside_the_repository_leads_somewhere() {
    let mut broken = Vec::new();
    for page in pages() {
        for link in read(&page)
            .split("](")
            .skip(1)
            .filter_map(|rest| rest.split(')').next())
        {
            let (file, anchor) = link
                .split_once('#')
                .map_or((link, None), |(file, anchor)| (file, Some(anchor)));
            if link.is_empty() || link.contains("://") {
                continue;
            }
            let target = if file.is_empty() {
                page.clone()
            } else {
                page.parent().unwrap().join(file)
            };
            let found = target.exists() && anchor.is_none_or(|anchor| anchors(&read(&target)).contains(anchor));
            if !found {
                broken.push(format!("{}: {link}", page.display()));
            }
        }
    }
    assert!(broken.is_empty(), "{broken:#?}");
}

#[test]
fn the_table_of_contents_names_every_page() {
    let docs = root().join("docs");
    let summary = read(&docs.join("SUMMARY.md"));
    for page in files(&docs, "md") {
        let name = page.strip_prefix(&docs).unwrap().to_string_lossy().into_owned();
        assert!(
            name == "SUMMARY.md" || summary.contains(&format!("({name})")),
            "{name} is not in SUMMARY.md"
        );
    }
}

#[test]
fn every_alert_has_its_runbook() {
    let rules = read(&root().join("charts/nodeward/templates/drain-keeper/prometheusrule.yaml"));
    let alerts: Vec<&str> = rules
        .lines()
        .filter_map(|line| line.trim().strip_prefix("- alert: "))
        .collect();
    let runbooks: Vec<&str> = rules
        .lines()
        .filter_map(|line| line.trim().strip_prefix("runbook_url: {{ $rule.runbookBaseUrl }}/"))
        .collect();
    assert_eq!(alerts.len(), runbooks.len());
    for (alert, runbook) in alerts.into_iter().zip(runbooks) {
        let page = read(&root().join("docs/drain-keeper/runbooks").join(runbook));
        assert_eq!(page.lines().next(), Some(format!("# {alert}").as_str()), "{runbook}");
    }
}

/// GitHub's and mdBook's anchors of a page's headings.
fn anchors(page: &str) -> BTreeSet<String> {
    page.lines()
        .filter(|line| line.starts_with('#'))
        .map(|line| {
            let title = line.trim_start_matches('#').trim().to_lowercase();
            title
                .chars()
                .filter(|c| c.is_alphanumeric() || " -_".contains(*c))
                .map(|c| if c == ' ' { '-' } else { c })
                .collect()
        })
        .collect()
}

/// The YAML blocks whose first line begins like this.
fn examples(page: &str, first_line: &str) -> Vec<String> {
    page.split("```yaml")
        .skip(1)
        .filter_map(|rest| rest.split("```").next())
        .filter(|block| block.trim_start().starts_with(first_line))
        .map(without_indent)
        .collect()
}

/// A block inside a list is indented as a whole.
fn without_indent(block: &str) -> String {
    let indent = block
        .lines()
        .filter(|line| !line.trim().is_empty())
        .map(|line| line.len() - line.trim_start().len())
        .min();
    let indent = indent.unwrap_or(0);
    block
        .lines()
        .map(|line| line.get(indent..).unwrap_or_default())
        .collect::<Vec<_>>()
        .join("\n")
}

fn pages() -> Vec<PathBuf> {
    let mut pages = files(&root().join("docs"), "md");
    pages.extend(["README.md", "CONTRIBUTING.md", "SECURITY.md", "crds/README.md"].map(|page| root().join(page)));
    pages
}

fn files(directory: &Path, extension: &str) -> Vec<PathBuf> {
    let mut found = Vec::new();
    for entry in std::fs::read_dir(directory).unwrap() {
        let path = entry.unwrap().path();
        if path.is_dir() {
            found.extend(files(&path, extension));
        } else if path.extension().is_some_and(|e| e == extension) {
            found.push(path);
        }
    }
    found
}

fn read(path: &Path) -> String {
    std::fs::read_to_string(path).unwrap_or_else(|error| panic!("{}: {error}", path.display()))
}

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..")
}
