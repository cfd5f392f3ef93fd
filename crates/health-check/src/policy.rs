//! The configuration, checked and compiled once: nothing in here can be invalid.

use std::collections::BTreeSet;
use std::sync::Arc;

use jiff::SignedDuration;
use nodeward_api::node_lease;
use nodeward_core::duration::ConfigDuration;
use nodeward_core::signal::{SignalSpec, UpgradeSignal};
use nodeward_runtime::ConfigError;
use nodeward_runtime::config::namespace;

use crate::config::{Config, DefaultConfig, TemplateConfig};
use crate::snapshot::TemplateRef;

/// Where OpenShift, the project's own manifests, OperatorHub on plain Kubernetes and that of OpenShift install the peer.
const PEER_NAMESPACES: [&str; 4] = [
    "openshift-workload-availability",
    "node-healthcheck-operator-system",
    "operators",
    "openshift-operators",
];
const LONGEST_MAINTENANCE: SignedDuration = SignedDuration::from_hours(24);
const OLD_REMEDIATION: SignedDuration = SignedDuration::from_hours(48);
const SETTLE: SignedDuration = SignedDuration::from_secs(60);
const SAFETY_PASS: SignedDuration = SignedDuration::from_secs(60);

/// How long an upgrade signal, or a state of Ceph, that cannot be read postpones a remediation at most.
pub const UNKNOWN_POSTPONES: SignedDuration = SignedDuration::from_mins(10);

/// The rules that plans follow.
#[derive(Debug, Clone, PartialEq)]
pub struct Policy {
    /// What stops remediations during an upgrade. Where the kinds that it reads are not served, none is on.
    pub upgrade_signal: UpgradeSignal,
    /// Namespace of the leases of nodes and of the control plane.
    pub lease_namespace: Arc<str>,
    /// Namespaces in which the peer's leader lease is looked for.
    pub peer_namespaces: BTreeSet<Arc<str>>,
    /// Namespaces of the CephClusters of which no second failure domain is to go down.
    pub ceph_namespaces: BTreeSet<Arc<str>>,
    /// For so long after we or the API server were away nothing is started.
    pub settle: SignedDuration,
    /// Everything is decided anew at least this often, from the caches.
    pub safety_pass: SignedDuration,
    /// For so long a condition of a node declares maintenance at most.
    pub longest_maintenance: SignedDuration,
    /// A remediation that is older than this is flagged.
    pub old_remediation: SignedDuration,
    /// The template of the NodeHealthCheck that is created once where there is none; `None`: none is created.
    pub default_template: Option<TemplateRef>,
}

impl Policy {
    /// Checks and compiles the file.
    ///
    /// # Errors
    /// With the field and what to write instead.
    pub fn from_config(config: Config) -> Result<Self, ConfigError> {
        let or = |given: Option<ConfigDuration>, default| given.map_or(default, ConfigDuration::get);
        let lease_namespace = config
            .lease_namespace
            .unwrap_or_else(|| node_lease::DEFAULT_NAMESPACE.to_owned());
        let peers = config
            .peer
            .namespaces
            .unwrap_or_else(|| PEER_NAMESPACES.map(str::to_owned).into());
        Ok(Self {
            upgrade_signal: upgrade_signal(config.upgrade_signal)?,
            lease_namespace: namespace("leaseNamespace", &lease_namespace)?,
            peer_namespaces: namespaces("peer", &peers)?,
            ceph_namespaces: namespaces("ceph", &config.ceph.namespaces)?,
            settle: or(config.settle, SETTLE),
            safety_pass: or(config.safety_pass, SAFETY_PASS),
            longest_maintenance: or(config.maintenance.max_duration, LONGEST_MAINTENANCE),
            old_remediation: or(config.old_remediation_after, OLD_REMEDIATION),
            default_template: default_template(config.default)?,
        })
    }
}

#[cfg(test)]
impl Default for Policy {
    fn default() -> Self {
        Self::from_config(Config::default()).unwrap()
    }
}

/// Never on where there is no OpenShift.
pub fn default_signal() -> UpgradeSignal {
    UpgradeSignal::openshift_node()
}

/// A signal that is always on would stop every remediation for ever, and the pause of a NodeHealthCheck says so plainly.
fn upgrade_signal(given: Option<UpgradeSignal>) -> Result<UpgradeSignal, ConfigError> {
    let signal = given.unwrap_or_else(default_signal);
    if is_always_on(signal.spec()) {
        return Err(ConfigError::at(
            "upgradeSignal",
            "always would stop every remediation: leave it out; to stop remediation for a while, add a line to \
             spec.pauseRequests of the NodeHealthChecks",
        ));
    }
    Ok(signal)
}

fn is_always_on(spec: &SignalSpec) -> bool {
    match spec {
        SignalSpec::Always => true,
        SignalSpec::AnyOf(members) | SignalSpec::AllOf(members) => members.iter().any(is_always_on),
        SignalSpec::OpenShift
        | SignalSpec::OpenShiftClusterVersion
        | SignalSpec::MachineConfigPool
        | SignalSpec::Preset(_)
        | SignalSpec::Node(_)
        | SignalSpec::Resource(_) => false,
    }
}

fn namespaces(block: &str, names: &[String]) -> Result<BTreeSet<Arc<str>>, ConfigError> {
    let names = names.iter().enumerate();
    names
        .map(|(index, name)| namespace(&format!("{block}.namespaces[{index}]"), name))
        .collect()
}

fn default_template(config: DefaultConfig) -> Result<Option<TemplateRef>, ConfigError> {
    match (config.enabled, config.remediation_template) {
        (true, None) => Err(ConfigError::at(
            "default.remediationTemplate",
            "is needed: name the template of your remediator (apiVersion, kind, namespace, name), or set default.enabled to false",
        )),
        (enabled, Some(template)) => {
            let template = template_ref(&template)?;
            Ok(enabled.then_some(template))
        }
        (false, None) => Ok(None),
    }
}

fn template_ref(template: &TemplateConfig) -> Result<TemplateRef, ConfigError> {
    let at = |field: &str, problem: &str| Err(ConfigError::at(format!("default.remediationTemplate.{field}"), problem));
    if template.kind.strip_suffix("Template").is_none_or(str::is_empty) {
        return at(
            "kind",
            "must be the kind of a template, such as SelfNodeRemediationTemplate",
        );
    }
    for (field, value) in [("apiVersion", &template.api_version), ("name", &template.name)] {
        if value.is_empty() {
            return at(field, "must not be empty");
        }
    }
    Ok(TemplateRef {
        api_version: template.api_version.as_str().into(),
        kind: template.kind.as_str().into(),
        namespace: namespace("default.remediationTemplate.namespace", &template.namespace)?,
        name: template.name.as_str().into(),
    })
}
