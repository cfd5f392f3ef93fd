//! health-check's passes until a node's remediation starts.

use anyhow::Result;

use super::super::figures::Figures;
use super::{measured, show_by_size};

/// Milliseconds of a pass at the largest fleet when one of its nodes has changed.
const CHANGED_TARGET: f64 = 50.0;

/// Milliseconds of the same when none has.
const UNCHANGED_TARGET: f64 = 1.0;

/// Adds `health_check_ms` and `health_check_unchanged_ms`, by size.
pub async fn bench(figures: &mut Figures) -> Result<()> {
    let measured = measured("health-check").await?;
    let (changed, unchanged) = (&measured["health_check_ms"], &measured["health_check_unchanged_ms"]);
    show_by_size(figures, "health-check, a node changed", changed, CHANGED_TARGET)?;
    show_by_size(figures, "health-check, none changed", unchanged, UNCHANGED_TARGET)?;
    figures.add(measured);
    Ok(())
}
