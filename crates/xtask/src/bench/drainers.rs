//! How programs that drain fare beside drain-lock, and without it. The scenarios are drain-lock's tests of these programs, which
//! count and judge: here their figures are put together.

use std::io::{self, Write as _};
use std::process::Stdio;

use anyhow::{Context, Result, ensure};
use nodeward_testkit::drainers::FIGURES;
use serde::Deserialize;
use serde_json::{Value, json};
use tokio::process::Command;

use super::Figures;

#[derive(clap::Args)]
pub struct Args {
    /// Only scenarios whose test's path contains this
    #[arg(long, value_name = "NAME", default_value = "real::")]
    only: String,
}

/// What came of a scenario, as its test writes it.
#[derive(Debug, Deserialize, PartialEq)]
struct Scenario {
    #[serde(rename = "scenario")]
    name: String,
    without: Side,
    with: Side,
}

#[derive(Debug, Deserialize, PartialEq)]
#[serde(rename_all = "camelCase")]
struct Side {
    ended: bool,
    evicted: u32,
    refused: u32,
    deleted: u32,
    budgets_broken: bool,
    nodes_made: u32,
    pending: u32,
    seconds: u32,
}

pub async fn bench(args: &Args) -> Result<Figures> {
    let file = tempfile::NamedTempFile::new()?;
    // What the tests say is not the figures.
    let status = Command::new(std::env::current_exe()?)
        .args(["test", "--package", "drain-lock", "--test", "testbed", "--retries", "0"])
        .args(["--only", &args.only])
        .env(FIGURES, file.path())
        .stdout(Stdio::from(io::stderr()))
        .status()
        .await
        .context("run the scenarios")?;
    let written = std::fs::read_to_string(file.path())?;
    ensure!(!written.is_empty(), "no scenario gave figures ({status})");
    let mut figures = told(&written)?;
    if !status.success() {
        let _ = writeln!(
            io::stderr(),
            "some scenarios failed: the summary above says which, and why"
        );
    }
    figures.add(json!({ "all_passed": status.success() }));
    Ok(figures)
}

/// The figures of scenarios, one of them a line.
fn told(lines: &str) -> Result<Figures> {
    let mut figures = Figures::default();
    let mut scenarios = Vec::new();
    for line in lines.lines() {
        let scenario: Value = serde_json::from_str(line).with_context(|| line.to_owned())?;
        let read = Scenario::deserialize(&scenario)?;
        figures.line(&read.name);
        figures.row("without", in_words(&read.without));
        figures.row("with", in_words(&read.with));
        scenarios.push(scenario);
    }
    figures.add(json!({ "scenarios": scenarios }));
    Ok(figures)
}

fn in_words(side: &Side) -> String {
    let ended = if side.ended { "ended" } else { "did not end" };
    let broken = if side.budgets_broken {
        "budgets broken"
    } else {
        "no budget broken"
    };
    format!(
        "{ended} in {} s: {} evicted, {} refused, {} deleted by itself, {} nodes made, {} Pending, {broken}",
        side.seconds, side.evicted, side.refused, side.deleted, side.nodes_made, side.pending
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    fn line(ended: bool) -> String {
        let side = |ended: bool, refused: u32| {
            json!({
                "ended": ended, "evicted": 12, "refused": refused, "deleted": 0, "budgetsBroken": false,
                "nodesMade": 3, "pending": 1, "seconds": 60,
            })
        };
        json!({ "scenario": "a", "without": side(ended, 15), "with": side(true, 29) }).to_string()
    }

    #[test]
    fn each_scenario_is_told_for_both_sides() {
        let figures = told(&format!("{}\n{}\n", line(true), line(false))).unwrap();
        let expected = "a\n  without            did not end in 60 s: 12 evicted, 15 refused, 0 deleted by itself, 3 nodes made, 1 Pending, no budget broken\n";
        assert!(figures.table().contains(expected), "{}", figures.table());
        assert_eq!(figures.table().lines().count(), 6);
        let object = figures.into_json();
        assert_eq!(object["scenarios"].as_array().map(Vec::len), Some(2));
        assert_eq!(object["scenarios"][0]["with"]["refused"], 29);
    }

    #[test]
    fn line_that_is_no_scenario_is_an_error() {
        assert!(told("{}").is_err());
        assert!(told("figures").is_err());
    }
}
