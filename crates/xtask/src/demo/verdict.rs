//! Whether an act came out as it was promised.

use console::style;

use super::page;

/// Whether the outcome is the promised one.
#[derive(Debug)]
pub enum Verdict {
    Promised(String),
    Broken(Vec<String>),
}

impl Verdict {
    /// What was promised, unless something is broken.
    pub fn of(promised: String, broken: Vec<String>) -> Self {
        if broken.is_empty() {
            Self::Promised(promised)
        } else {
            Self::Broken(broken)
        }
    }

    pub const fn is_promised(&self) -> bool {
        matches!(self, Self::Promised(_))
    }

    pub fn text(&self) -> String {
        let paragraph = |text: &str, indent| page::wrap(text, page::width(), indent).join("\n");
        match self {
            Self::Promised(text) => style(paragraph(text, 0)).green().bold().to_string(),
            Self::Broken(reasons) => {
                let reasons: Vec<String> = reasons
                    .iter()
                    .map(|reason| paragraph(&format!("  - {reason}"), 4))
                    .collect();
                style(format!("NOT as promised:\n{}", reasons.join("\n")))
                    .red()
                    .bold()
                    .to_string()
            }
        }
    }
}

/// Budgets that fell short, as reasons why an act is broken.
pub fn violated(budgets: &[String]) -> Vec<String> {
    budgets
        .iter()
        .map(|budget| format!("budget violated: {budget}"))
        .collect()
}
