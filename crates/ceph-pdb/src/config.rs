//! The configuration file, as written by the user. What it means is [`crate::policy::Policy`].
//!
//! Unknown fields, zero and negative times are errors; an absent field is its default, never 0.

use nodeward_core::duration::ConfigDuration;
use schemars::JsonSchema;
use serde::Deserialize;

/// The configuration file of ceph-pdb.
#[derive(Debug, Clone, Default, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
#[schemars(rename = "CephPdbConfig")]
pub struct Config {
    /// Namespaces of the CephClusters. Needed.
    #[serde(default)]
    pub namespaces: Vec<String>,
    /// How Ceph is asked.
    #[serde(default)]
    pub credentials: CredentialsConfig,
    /// Failure domain type, such as `zone`, in place of the one that the CRUSH rules of the pools name.
    pub failure_domain_type: Option<String>,
    /// Whether closed failure domains get a budget each, as with Rook. Default `perDomain`.
    pub osd_budgets: Option<OsdBudgetsConfig>,
    /// What pools that cannot lose a host mean for budgets. Default `ignore`.
    pub unsurvivable_pools: Option<UnsurvivablePoolsConfig>,
    /// Keys of further taints (`NoSchedule` or `NoExecute`) of nodes that are being drained.
    #[serde(default)]
    pub drain_taints: Vec<String>,
    /// How long `noout` stays on a drained host where its CephCluster has no `osdMaintenanceTimeout`. Default 30 minutes.
    pub osd_maintenance_timeout: Option<ConfigDuration>,
}

/// The block `credentials`.
#[derive(Debug, Clone, Default, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct CredentialsConfig {
    /// Name of a Secret with a Ceph user and its key, in the CephCluster's namespace. Default: `rook-ceph-client-nodeward`.
    pub secret_name: Option<String>,
    /// Use Rook's own administrator key where there is no such Secret. Default false.
    #[serde(default)]
    pub allow_admin_key: bool,
}

/// The field `osdBudgets`.
#[derive(Debug, Clone, Copy, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub enum OsdBudgetsConfig {
    /// A budget for each closed failure domain.
    PerDomain,
    /// One budget for all.
    Single,
}

/// The field `unsurvivablePools`.
#[derive(Debug, Clone, Copy, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub enum UnsurvivablePoolsConfig {
    /// They are reported, and left out of each judgement.
    Ignore,
    /// No OSD may be evicted while there is one.
    Block,
}
