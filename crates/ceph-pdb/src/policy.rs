//! The configuration, checked and compiled once: nothing in here can be invalid.

use std::collections::BTreeSet;
use std::sync::Arc;

use jiff::SignedDuration;
use nodeward_core::duration::ConfigDuration;
use nodeward_runtime::ConfigError;
use nodeward_runtime::config::namespace;

use crate::ceph::topology::DomainType;
use crate::config::{Config, OsdBudgetsConfig, UnsurvivablePoolsConfig};
use crate::plan::budget_steps::Layout;
use crate::snapshot::Namespace;

/// Rook's default.
const OSD_MAINTENANCE_TIMEOUT: SignedDuration = SignedDuration::from_mins(30);

/// The rules that plans follow.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Policy {
    /// Namespaces of the CephClusters.
    pub namespaces: Arc<[Namespace]>,
    /// Secret with a Ceph user's name and key, in each namespace.
    pub credentials_secret: Option<Arc<str>>,
    /// Rook's administrator key may be used.
    pub allow_admin_key: bool,
    /// Failure domain type in place of CRUSH's.
    pub failure_domain_type: Option<DomainType>,
    /// Whether closed failure domains get a budget each.
    pub layout: Layout,
    /// No OSD may be evicted while a pool cannot lose a host.
    pub blocks_on_unsurvivable_pools: bool,
    /// Keys of further taints of nodes that are being drained.
    pub drain_taints: Arc<[Arc<str>]>,
    /// How long `noout` stays where the CephCluster does not say.
    pub osd_maintenance_timeout: SignedDuration,
}

impl Policy {
    /// Checks and compiles the file.
    ///
    /// # Errors
    /// With the field and what to write instead.
    pub fn from_config(config: Config) -> Result<Self, ConfigError> {
        let domain_type = config
            .failure_domain_type
            .as_deref()
            .map(str::parse::<DomainType>)
            .transpose();
        Ok(Self {
            namespaces: namespaces(&config.namespaces)?,
            credentials_secret: match config.credentials.secret_name {
                Some(name) if name.is_empty() => {
                    return Err(ConfigError::at(
                        "credentials.secretName",
                        "must not be empty: leave it out",
                    ));
                }
                name => name.map(Arc::from),
            },
            allow_admin_key: config.credentials.allow_admin_key,
            failure_domain_type: domain_type
                .map_err(|error| ConfigError::at("failureDomainType", error.to_string()))?,
            layout: match config.osd_budgets {
                Some(OsdBudgetsConfig::Single) => Layout::Single,
                Some(OsdBudgetsConfig::PerDomain) | None => Layout::PerDomain,
            },
            blocks_on_unsurvivable_pools: matches!(config.unsurvivable_pools, Some(UnsurvivablePoolsConfig::Block)),
            drain_taints: taints(&config.drain_taints)?,
            osd_maintenance_timeout: config
                .osd_maintenance_timeout
                .map_or(OSD_MAINTENANCE_TIMEOUT, ConfigDuration::get),
        })
    }
}

#[cfg(test)]
impl Default for Policy {
    fn default() -> Self {
        Self::from_config(Config::default()).unwrap()
    }
}

fn namespaces(names: &[String]) -> Result<Arc<[Namespace]>, ConfigError> {
    let mut seen = BTreeSet::new();
    let checked = names.iter().enumerate().map(|(index, name)| {
        let field = format!("namespaces[{index}]");
        if !seen.insert(name) {
            return Err(ConfigError::at(field, format!("{name:?} is there twice")));
        }
        namespace(&field, name)
    });
    checked.collect()
}

fn taints(keys: &[String]) -> Result<Arc<[Arc<str>]>, ConfigError> {
    let checked = keys.iter().enumerate().map(|(index, key)| {
        if key.is_empty() {
            let problem = "must be the key of a taint";
            return Err(ConfigError::at(format!("drainTaints[{index}]"), problem));
        }
        Ok(key.as_str().into())
    });
    checked.collect()
}
