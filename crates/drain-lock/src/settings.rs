//! Settings: the configuration file, read and checked.

use nodeward_runtime::{ConfigError, config};

use crate::config::Config;
use crate::policy::Policy;

/// A checked configuration file.
#[derive(Debug, Clone)]
pub struct Settings {
    /// What the file means.
    pub policy: std::sync::Arc<Policy>,
}

impl Settings {
    /// Reads the configuration file; no text is all defaults.
    ///
    /// # Errors
    /// With line, field and what to write instead.
    pub fn parse(text: &str) -> Result<Self, ConfigError> {
        let file: Config = config::from_yaml(text)?;
        Ok(Self {
            policy: std::sync::Arc::new(Policy::from_config(file)?),
        })
    }
}

#[cfg(test)]
mod tests {
    use rstest::rstest;

    use super::*;

    #[rstest]
    #[case::fallback_that_deleted("fallback: Delete", "drain-keeper overrides budgets")]
    #[case::fallback_that_evicted("fallback: EvictAnyway", "drain-keeper overrides budgets")]
    #[case::unknown_fallback("fallback: Force", "Wait")]
    #[case::field_that_is_gone("reserveThroughBudgetStatus: true", "reserveThroughBudgetStatus")]
    fn what_is_gone_is_refused_by_name(#[case] file: &str, #[case] named: &str) {
        let refusal = Settings::parse(file).unwrap_err().to_string();
        assert!(refusal.contains(named), "{refusal}");
    }
}
