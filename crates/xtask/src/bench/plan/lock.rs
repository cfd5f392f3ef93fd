//! drain-lock's pass while many nodes drain at once, the webhook's decision, and the size of the ledger.

use anyhow::{Context, Result};

use super::super::figures::Figures;
use super::{measured, show_by_size};

/// Milliseconds of a pass at the largest fleet, whichever moment of its drains takes longest.
const TARGET: f64 = 200.0;

/// Milliseconds of 99 of 100 decisions of the webhook.
const DECIDE_TARGET: f64 = 1.0;

/// Megabytes of the ledger of 500 granted nodes, by the disruptions that each holds.
const LEDGER_TARGETS: [(&str, f64); 2] = [("20", 1.0), ("5", 0.4)];

/// Adds `drain_lock_ms`, by size, with the same by moment; `drain_lock_decide_ms` and `drain_lock_ledger_mb`.
pub async fn bench(figures: &mut Figures) -> Result<()> {
    let measured = measured("drain-lock").await?;
    show_by_size(figures, "drain-lock", &measured["drain_lock_ms"], TARGET)?;
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
    figures.add(measured);
    Ok(())
}
