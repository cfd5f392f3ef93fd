//! How long one pass of an operator takes over a large fleet: no control plane, only the decision. Each is measured by its
//! crate itself (its bench `plan`), whose code xtask does not link.

use std::process::Stdio;

use anyhow::{Context, Result, ensure};
use serde_json::Value;
use tokio::process::Command;

use super::Figures;

/// Nodes of the largest fleet, which targets are for.
const LARGEST: &str = "15000";

/// Milliseconds of drain-keeper's pass at the largest fleet; of drain-lock's, whichever moment of its drains takes longest; and of
/// health-check's when one of its nodes has changed, and when none has.
const KEEPER_TARGET: f64 = 50.0;
const LOCK_TARGET: f64 = 200.0;
const CHANGED_TARGET: f64 = 50.0;
const UNCHANGED_TARGET: f64 = 1.0;

/// Milliseconds of 99 of 100 decisions of drain-lock's webhook.
const DECIDE_TARGET: f64 = 1.0;

/// Megabytes of the ledger of 500 granted nodes, by the disruptions that each holds.
const LEDGER_TARGETS: [(&str, f64); 2] = [("20", 1.0), ("5", 0.4)];

#[derive(clap::Args)]
pub struct Args {
    /// These operators alone
    #[arg(long, value_enum, value_delimiter = ',', default_values_t = [Operator::DrainKeeper, Operator::DrainLock, Operator::HealthCheck])]
    operators: Vec<Operator>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
enum Operator {
    DrainKeeper,
    DrainLock,
    HealthCheck,
}

pub async fn bench(args: &Args) -> Result<Figures> {
    let mut figures = Figures::default();
    figures.line("One pass over a fleet, by its nodes");
    for operator in &args.operators {
        let measured = match operator {
            Operator::DrainKeeper => {
                let measured = measured("drain-keeper").await?;
                show_by_size(
                    &mut figures,
                    "drain-keeper",
                    &measured["drain_keeper_ms"],
                    KEEPER_TARGET,
                )?;
                measured
            }
            Operator::DrainLock => {
                let measured = measured("drain-lock").await?;
                show_lock(&mut figures, &measured)?;
                measured
            }
            Operator::HealthCheck => {
                let measured = measured("health-check").await?;
                let (changed, unchanged) = (&measured["health_check_ms"], &measured["health_check_unchanged_ms"]);
                show_by_size(&mut figures, "health-check, a node changed", changed, CHANGED_TARGET)?;
                show_by_size(&mut figures, "health-check, none changed", unchanged, UNCHANGED_TARGET)?;
                measured
            }
        };
        figures.add(measured);
    }
    Ok(figures)
}

/// What the bench `plan` of a package prints.
async fn measured(package: &str) -> Result<Value> {
    let output = Command::new("cargo")
        .args(["bench", "--quiet", "--locked", "--package", package, "--bench", "plan"])
        .stderr(Stdio::inherit())
        .kill_on_drop(true)
        .output()
        .await
        .context("run cargo bench")?;
    let text = String::from_utf8_lossy(&output.stdout);
    ensure!(
        output.status.success(),
        "cargo bench ended with {}: {text}",
        output.status
    );
    let last = text.lines().last().context("cargo bench printed nothing")?;
    serde_json::from_str(last).with_context(|| last.to_owned())
}

/// A row for each size, the largest with its target.
fn show_by_size(figures: &mut Figures, operator: &str, by_size: &Value, target: f64) -> Result<()> {
    for (size, spent) in by_size.as_object().context("no sizes")? {
        let spent = spent.as_f64().context("no number")?;
        let (name, text) = (format!("{operator} {size}"), format!("{spent:.1} ms"));
        if size == LARGEST {
            figures.row_with_target(&name, text, &format!("<= {target} ms"), spent <= target);
        } else {
            figures.row(&name, text);
        }
    }
    Ok(())
}

/// drain-lock's pass by size and by moment, the webhook's decision, and the size of the ledger.
fn show_lock(figures: &mut Figures, measured: &Value) -> Result<()> {
    show_by_size(figures, "drain-lock", &measured["drain_lock_ms"], LOCK_TARGET)?;
    let moments = measured["drain_lock_ms_by_moment"].as_object();
    for (moment, by_size) in moments.context("no moments")? {
        for (size, spent) in by_size.as_object().context("no sizes")? {
            let first = measured["drain_lock_first_ms_by_moment"][moment][size].as_f64();
            let (spent, first) = (spent.as_f64().context("no number")?, first.context("no number")?);
            let text = format!("{spent:.1} ms, the first {first:.1} ms");
            figures.row(&format!("  {moment} {size}"), text);
        }
    }
    let decide = measured["drain_lock_decide_ms"]["p99"].as_f64().context("no number")?;
    let (text, is_met) = (format!("{decide:.3} ms"), decide <= DECIDE_TARGET);
    figures.row_with_target("decide p99, 100 claims", text, "<= 1 ms", is_met);
    for (disruptions, target) in LEDGER_TARGETS {
        let size = measured["drain_lock_ledger_mb"][disruptions].as_f64();
        let size = size.context("no number")?;
        let name = format!("ledger, 500 nodes x {disruptions}");
        figures.row_with_target(
            &name,
            format!("{size:.2} MB"),
            &format!("<= {target} MB"),
            size <= target,
        );
    }
    Ok(())
}
