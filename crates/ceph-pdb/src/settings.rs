//! Settings: the configuration file, read and checked.

use std::sync::Arc;

use nodeward_runtime::{ConfigError, config};

use crate::config::Config;
use crate::policy::Policy;

/// A checked configuration file.
#[derive(Debug, Clone)]
pub struct Settings {
    /// What the file means.
    pub policy: Arc<Policy>,
}

impl Settings {
    /// Reads the configuration file; no text is all defaults.
    ///
    /// # Errors
    /// With line, field and what to write instead.
    pub fn parse(text: &str) -> Result<Self, ConfigError> {
        let file: Config = config::from_yaml(text)?;
        Ok(Self {
            policy: Arc::new(Policy::from_config(file)?),
        })
    }
}

#[cfg(test)]
mod tests {
    use jiff::SignedDuration;
    use rstest::rstest;

    use super::*;
    use crate::ceph::topology::DomainType;
    use crate::plan::budget_steps::Layout;

    #[test]
    fn no_text_is_all_defaults() {
        let defaults = Policy {
            namespaces: Arc::default(),
            credentials_secret: None,
            allow_admin_key: false,
            failure_domain_type: None,
            layout: Layout::PerDomain,
            blocks_on_unsurvivable_pools: false,
            drain_taints: Arc::default(),
            osd_maintenance_timeout: SignedDuration::from_mins(30),
        };
        assert_eq!(*Settings::parse("").unwrap().policy, defaults);
    }

    #[test]
    fn each_field_is_read() {
        let text = "
            namespaces: [rook-ceph, rook-ceph-two]
            credentials: {secretName: ceph-user, allowAdminKey: true}
            failureDomainType: zone
            osdBudgets: single
            unsurvivablePools: block
            drainTaints: [example.com/leaving]
            osdMaintenanceTimeout: 1h
        ";
        let policy = Settings::parse(text).unwrap().policy;
        assert_eq!(*policy.namespaces, ["rook-ceph".into(), "rook-ceph-two".into()]);
        assert_eq!(policy.credentials_secret.as_deref(), Some("ceph-user"));
        assert!(policy.allow_admin_key && policy.blocks_on_unsurvivable_pools);
        assert_eq!(policy.failure_domain_type.map(DomainType::name), Some("zone"));
        assert_eq!(policy.layout, Layout::Single);
        assert_eq!(*policy.drain_taints, ["example.com/leaving".into()]);
        assert_eq!(policy.osd_maintenance_timeout.as_secs(), 3600);
    }

    #[rstest]
    #[case::unknown_field("namespace: [a]", "namespace")]
    #[case::unknown_domain_type("failureDomainType: shelf", "failureDomainType")]
    #[case::osd_is_no_domain("failureDomainType: osd", "failureDomainType")]
    #[case::unknown_layout("osdBudgets: many", "osdBudgets")]
    #[case::unknown_meaning("unsurvivablePools: allow", "unsurvivablePools")]
    #[case::no_namespace("namespaces: [Rook]", "namespaces[0]")]
    #[case::namespace_twice("namespaces: [a, a]", "namespaces[1]")]
    #[case::empty_taint("drainTaints: ['']", "drainTaints[0]")]
    #[case::empty_secret("credentials: {secretName: ''}", "credentials.secretName")]
    #[case::no_time("osdMaintenanceTimeout: 0s", "osdMaintenanceTimeout")]
    fn invalid_value_is_rejected_with_its_field(#[case] text: &str, #[case] field: &str) {
        let error = Settings::parse(text).unwrap_err().to_string();
        assert!(error.contains(field), "{error}");
    }
}
