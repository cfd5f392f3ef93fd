//! The configuration file, as written by the user. What it means is [`crate::policy::Policy`].
//!
//! Unknown fields, zero and negative times are errors; an absent field is its default, never 0.

use std::collections::BTreeSet;
use std::fmt;
use std::num::NonZeroU32;

use nodeward_core::duration::ConfigDuration;
use nodeward_core::selector::Selector;
use nodeward_core::signal::{CountsAsDrain, UpgradeSignal};
use nodeward_core::window::Windows;
use schemars::JsonSchema;
use serde::Deserialize;

/// The configuration file of drain-keeper.
#[derive(Debug, Clone, Default, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields, default)]
#[schemars(rename = "DrainKeeperConfig")]
pub struct Config {
    /// The block that managed-upgrade-operator has under the same name.
    pub node_drain: NodeDrain,
    /// How long budgets are respected on top of `expectedNodeDrainTime`. Default 60 minutes.
    #[serde(rename = "pdbForceDrainTimeout")]
    pub pdb_force_drain_timeout: Option<ConfigDuration>,
    /// How long a covered pod that was deleted gets on top of its grace. Default 5 minutes.
    pub force_after: Option<ConfigDuration>,
    /// How long a budget that does not recover is left alone between two overrides. Default 10 minutes.
    pub override_spacing: Option<ConfigDuration>,
    /// An uncordon shorter than this continues the drain. Default 2 minutes.
    pub flap_tolerance: Option<ConfigDuration>,
    /// What says that an upgrade is on. Default `openshift`.
    pub upgrade_signal: UpgradeSignal,
    /// What marks a cordoned node as being drained, on top of what the signal brings.
    pub counts_as_drain: Option<CountsAsDrain>,
    /// Whether pods that their budgets never let go move by a rollout of their Deployment. Default: none does.
    pub surge: SurgeConfig,
    /// Maintenance windows: when evictions, deletes of running pods and rollouts may begin. Default: always.
    pub windows: Windows,
    /// Nodes in scope. Default: all but the control plane.
    pub node_selector: Selector,
    /// Finalizers that are never removed. The default is `PROTECTED_FINALIZERS` of the policy.
    pub protected_finalizers: Option<Vec<String>>,
    /// What is done with pods that no controller would make again. Default `delete` with the `openshift` signals, else
    /// `keep`.
    pub unmanaged_pods: Option<UnmanagedPods>,
    /// Whether pods that must not run twice are forced off a node that is not Ready. Default false.
    pub force_on_unreachable: bool,
    /// Which budgets may be overridden once their time is over. Default `all` with the `openshift` signals and the preset
    /// `machineConfig`, else `never`.
    pub override_budgets: Option<OverrideBudgets>,
    /// How far opt-outs of owners count. Default: all of them, everywhere, without end.
    pub opt_outs: OptOutsConfig,
    /// Limits of forced pods.
    pub limits: LimitsConfig,
    /// Nodes with a `nodeDrain` of their own; the first whose selector matches counts.
    pub pools: Vec<PoolConfig>,
    /// Where the leases of nodes are, which tell remediations, too. Default: they are not read.
    pub lease_namespace: Option<String>,
    /// Further kinds of remediations, of other controllers than NodeHealthCheck's. Default: none.
    pub remediation_kinds: Vec<RemediationKind>,
    /// Where to read managed-upgrade-operator's ConfigMap, if at all.
    pub managed_upgrade_config_map: Option<ConfigMapRef>,
}

/// A kind of remediations.
#[derive(Debug, Clone, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct RemediationKind {
    /// Group and version, such as `self-node-remediation.medik8s.io/v1alpha1`.
    pub api_version: String,
    /// Kind.
    pub kind: String,
}

/// The block `nodeDrain`.
#[derive(Debug, Clone, Default, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct NodeDrain {
    /// Grace for a node to drain by itself. Default 45 minutes.
    #[serde(rename = "timeOut")]
    pub time_out: Option<ConfigDuration>,
    /// How long a drain takes at best. Default 8 minutes.
    pub expected_node_drain_time: Option<ConfigDuration>,
    /// Explain only. Default false.
    pub disable_drain_strategies: Option<bool>,
    /// Namespaces whose pods are never touched, as regular expressions, anchored only where they say so.
    pub ignored_namespace_patterns: Option<Vec<String>>,
}

/// What is done with pods that no controller would make again.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub enum UnmanagedPods {
    /// They are named, and left to a person.
    Keep,
    /// They are treated as any other pod.
    Delete,
}

/// Which budgets may be overridden: a pod whose eviction they refuse is deleted then.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub enum OverrideBudgets {
    /// All that nobody protects.
    All,
    /// Those with the label `nodeward.dev/force-drain: allowed`.
    Labelled,
    /// None.
    Never,
}

/// The block `optOuts`.
#[derive(Debug, Clone, Default, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields, default)]
pub struct OptOutsConfig {
    /// Whose opt-outs count. Default: all.
    pub honour: Option<BTreeSet<OptOutKind>>,
    /// Where they count. Default: in every namespace.
    pub namespaces: Option<NamespacesConfig>,
    /// How long they count past the pod's deadline. Default: without end.
    pub max_duration: Option<ConfigDuration>,
}

/// Where an owner's opt-out is written.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub enum OptOutKind {
    /// The label or annotation `nodeward.dev/drain`.
    Nodeward,
    /// Cluster API's label.
    ClusterApi,
    /// Karpenter's annotation.
    Karpenter,
    /// Holds of budgets' owners: a `DisruptionHold`, or the annotation `nodeward.dev/hold`.
    Holds,
}

/// The block `surge`.
#[derive(Debug, Clone, Default, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields, default)]
pub struct SurgeConfig {
    /// Whether Deployments are told to roll at all. Default false.
    pub enabled: bool,
    /// How long a pod's budget must have refused it. Default 2 minutes.
    pub after: Option<ConfigDuration>,
    /// How long a rollout may take: at most 1 hour. Default 10 minutes.
    pub timeout: Option<ConfigDuration>,
    /// Rollouts at once, in the cluster. Default 5.
    pub parallel: Option<NonZeroU32>,
    /// Where. Default: in every namespace.
    pub namespaces: Option<NamespacesConfig>,
}

/// A choice of namespaces.
#[derive(Debug, Clone, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct NamespacesConfig {
    /// By their labels.
    pub selector: Selector,
}

/// The block `limits`.
#[derive(Debug, Clone, Copy, Default, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct LimitsConfig {
    /// Forced pods on their way out at once, a node. Default 5.
    pub forced_per_node: Option<NonZeroU32>,
    /// Forced pods a minute, in the cluster. Default 30.
    pub forced_per_minute: Option<NonZeroU32>,
}

/// An entry of `pools`.
#[derive(Debug, Clone, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct PoolConfig {
    /// The pool's nodes.
    pub selector: Selector,
    /// What differs from the top level's `nodeDrain`.
    pub node_drain: NodeDrain,
}

#[derive(Debug, Clone, PartialEq, Eq, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct ConfigMapRef {
    #[serde(default = "ConfigMapRef::default_namespace")]
    pub namespace: String,
    #[serde(default = "ConfigMapRef::default_name")]
    pub name: String,
}

impl fmt::Display for ConfigMapRef {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "ConfigMap {}/{}", self.namespace, self.name)
    }
}

impl ConfigMapRef {
    fn default_namespace() -> String {
        "openshift-managed-upgrade-operator".to_owned()
    }

    fn default_name() -> String {
        "managed-upgrade-operator-config".to_owned()
    }
}
