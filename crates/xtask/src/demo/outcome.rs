//! What came of the demo: the table at its end, and whether it is what was promised.

use std::fmt::{Display, Write as _};
use std::time::Duration;

use anyhow::{Result, ensure};
use console::style;
use nodeward_testkit::wait;

use super::page;

/// Waits until nothing is left; gives what is at the deadline.
pub async fn left_after(
    what: &str,
    deadline: Duration,
    look: impl AsyncFn() -> Result<Vec<String>>,
) -> Result<Vec<String>> {
    let is_clean = wait::until(what, deadline, || async {
        let left = look().await?;
        ensure!(left.is_empty(), "{}", left.join(", "));
        Ok(())
    });
    if is_clean.await.is_ok() {
        return Ok(Vec::new());
    }
    look().await
}

/// Rows of a name and a value, and the reasons why the demo is not as promised.
#[derive(Debug, Default)]
pub struct Outcome {
    table: String,
    promised: String,
    broken: Vec<String>,
}

impl Outcome {
    /// With what the demo promises.
    pub fn new(promised: impl Into<String>) -> Self {
        Self {
            promised: promised.into(),
            ..Self::default()
        }
    }

    pub fn row(&mut self, name: &str, value: impl Display) {
        let _ = writeln!(self.table, "  {name:<42} {value:>10}");
    }

    /// Adds a row with the number of failures, each of which breaks the promise.
    pub fn must_be_none(&mut self, name: &str, failure: &str, failures: &[impl Display]) {
        let value = style(format!("{:>10}", failures.len())).bold();
        let value = if failures.is_empty() {
            value.green()
        } else {
            value.red()
        };
        let _ = writeln!(self.table, "  {name:<42} {value}");
        let failures = failures.iter().map(|what| format!("{failure}: {what}"));
        self.broken.extend(failures);
    }

    /// Breaks the promise.
    pub fn broken(&mut self, reason: impl Into<String>) {
        self.broken.push(reason.into());
    }

    pub fn table(&self) -> &str {
        &self.table
    }

    pub fn is_promised(&self) -> bool {
        self.broken.is_empty()
    }

    /// What was promised, or why it was not kept.
    pub fn verdict(&self) -> String {
        let paragraph = |text: &str, indent| page::wrap(text, page::width(), indent).join("\n");
        if self.is_promised() {
            return style(paragraph(&self.promised, 0)).green().bold().to_string();
        }
        let reasons = self.broken.iter().map(|reason| paragraph(&format!("  - {reason}"), 4));
        let reasons: Vec<String> = reasons.collect();
        let text = format!("NOT as promised:\n{}", reasons.join("\n"));
        style(text).red().bold().to_string()
    }

    #[cfg(test)]
    pub fn is_broken_because(&self, reason: &str) -> bool {
        self.broken.iter().any(|why| why.contains(reason))
    }
}
