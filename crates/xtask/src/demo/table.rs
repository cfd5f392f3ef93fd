//! The table at the end of an act.

use std::fmt::Write as _;

use console::style;

/// Rows of a name and a value.
#[derive(Default)]
pub struct Table(String);

impl Table {
    pub fn row(&mut self, name: &str, value: impl std::fmt::Display) {
        let _ = writeln!(self.0, "  {name:<42} {value:>10}");
    }

    /// A row whose value is good only if it is 0.
    pub fn must_be_zero(&mut self, name: &str, count: usize) {
        let value = style(format!("{count:>10}")).bold();
        let value = if count == 0 { value.green() } else { value.red() };
        let _ = writeln!(self.0, "  {name:<42} {value}");
    }

    /// The text, with the budgets that fell short as its last row.
    pub fn end(mut self, violations: &[String]) -> String {
        self.must_be_zero("budget violations", violations.len());
        self.0
    }
}
