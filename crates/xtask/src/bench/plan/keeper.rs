//! drain-keeper's pass.

use anyhow::Result;

use super::super::figures::Figures;
use super::{measured, show_by_size};

/// Milliseconds of a pass at the largest fleet.
const TARGET: f64 = 50.0;

/// Adds `drain_keeper_ms`, by size.
pub async fn bench(figures: &mut Figures) -> Result<()> {
    let measured = measured("drain-keeper").await?;
    show_by_size(figures, "drain-keeper", &measured["drain_keeper_ms"], TARGET)?;
    figures.add(measured);
    Ok(())
}
