//! drain-keeper's pass. It is measured by the crate itself (`crates/drain-keeper/benches/plan.rs`), whose code xtask does not
//! link.

use std::process::Stdio;

use anyhow::{Context, Result, ensure};
use serde_json::Value;
use tokio::process::Command;

use super::super::figures::Figures;

/// Milliseconds of a pass at the largest fleet.
const TARGET: f64 = 50.0;
const LARGEST: &str = "15000";

/// Adds `drain_keeper_ms`, by size.
pub async fn bench(figures: &mut Figures) -> Result<()> {
    let output = Command::new("cargo")
        .args([
            "bench",
            "--quiet",
            "--locked",
            "--package",
            "drain-keeper",
            "--bench",
            "plan",
        ])
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
    let measured: Value = serde_json::from_str(last).with_context(|| last.to_owned())?;
    let by_size = measured["drain_keeper_ms"].as_object().context("no drain_keeper_ms")?;
    for (size, spent) in by_size {
        let spent = spent.as_f64().context("no number")?;
        let (name, text) = (format!("drain-keeper {size}"), format!("{spent:.1} ms"));
        if size == LARGEST {
            figures.row_with_target(&name, text, "<= 50 ms", spent <= TARGET);
        } else {
            figures.row(&name, text);
        }
    }
    figures.add(measured);
    Ok(())
}
