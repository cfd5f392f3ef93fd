//! The configuration file, as written by the user. What it means is [`crate::policy::Policy`].
//!
//! Unknown fields, zero and negative times are errors; an absent field is its default, never 0.

use nodeward_core::duration::ConfigDuration;
use nodeward_core::signal::UpgradeSignal;
use schemars::JsonSchema;
use serde::Deserialize;

/// The configuration file of health-check.
#[derive(Debug, Clone, Default, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
#[schemars(rename = "HealthCheckConfig")]
pub struct Config {
    /// What stops remediations during an upgrade. Default
    /// `{anyOf: [openshiftClusterVersion, {preset: machineConfig}]}`, which is never on where there is no OpenShift.
    pub upgrade_signal: Option<UpgradeSignal>,
    /// Namespace of the leases of nodes and of the control plane. Default: the environment variable `LEASE_NAMESPACE`, else
    /// `medik8s-leases`.
    pub lease_namespace: Option<String>,
    /// medik8s' node-healthcheck-operator.
    #[serde(default)]
    pub peer: PeerConfig,
    /// What ceph-pdb tells.
    #[serde(default)]
    pub ceph: CephConfig,
    /// Maintenance that a condition of the node declares.
    #[serde(default)]
    pub maintenance: MaintenanceConfig,
    /// A remediation that is older is flagged and counted. Default 48 hours.
    pub old_remediation_after: Option<ConfigDuration>,
    /// For how long nothing is started after this process, or the API server, was away. Default 60 seconds.
    pub settle: Option<ConfigDuration>,
    /// How often everything is decided anew at least, from the caches. Default 60 seconds.
    pub safety_pass: Option<ConfigDuration>,
    /// The NodeHealthCheck that is created once where there is none.
    #[serde(default)]
    pub default: DefaultConfig,
}

/// The block `peer`.
#[derive(Debug, Clone, Default, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct PeerConfig {
    /// Namespaces in which its leader lease is looked for. Default `openshift-workload-availability`,
    /// `node-healthcheck-operator-system`, `operators` and `openshift-operators`.
    pub namespaces: Option<Vec<String>>,
}

/// The block `ceph`.
#[derive(Debug, Clone, Default, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct CephConfig {
    /// Namespaces of CephClusters of which no second failure domain is to go down by a remediation. Default none.
    #[serde(default)]
    pub namespaces: Vec<String>,
}

/// The block `maintenance`.
#[derive(Debug, Clone, Default, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct MaintenanceConfig {
    /// For how long a node's condition `MaintenanceInProgress` protects it at most, for people forget. Default 24 hours.
    pub max_duration: Option<ConfigDuration>,
}

/// The block `default`.
#[derive(Debug, Clone, Default, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct DefaultConfig {
    /// Whether it is created. Default false.
    #[serde(default)]
    pub enabled: bool,
    /// Its remediation template. Needed where it is enabled.
    pub remediation_template: Option<TemplateConfig>,
}

/// A remediation template.
#[derive(Debug, Clone, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct TemplateConfig {
    /// Group and version, such as `self-node-remediation.medik8s.io/v1alpha1`.
    pub api_version: String,
    /// Kind, which ends in `Template`.
    pub kind: String,
    /// Namespace.
    pub namespace: String,
    /// Name.
    pub name: String,
}
