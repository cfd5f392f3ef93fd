//! How long one pass of an operator takes over a large fleet: no control plane, only the decision. Each is measured by its
//! crate itself (its bench `plan`), whose code xtask does not link.

mod health;
mod keeper;
mod lock;

use std::process::Stdio;

use anyhow::{Context, Result, ensure};
use serde_json::Value;
use tokio::process::Command;

use super::Figures;

/// Nodes of the largest fleet, which targets are for.
const LARGEST: &str = "15000";

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
        match operator {
            Operator::DrainKeeper => keeper::bench(&mut figures).await?,
            Operator::DrainLock => lock::bench(&mut figures).await?,
            Operator::HealthCheck => health::bench(&mut figures).await?,
        }
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
