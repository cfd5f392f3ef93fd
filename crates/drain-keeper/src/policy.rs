//! The configuration, checked and compiled once: nothing in here can be invalid.

use std::collections::BTreeSet;
use std::num::NonZeroU32;
use std::sync::Arc;

use jiff::{SignedDuration, Timestamp};
use nodeward_api::surge_record;
use nodeward_core::budget::{BudgetView, ForceDrain};
use nodeward_core::deadline::saturating_add;
use nodeward_core::duration::ConfigDuration;
use nodeward_core::node::NodeView;
use nodeward_core::pattern::NamespacePatterns;
use nodeward_core::selector::Selector;
use nodeward_core::signal::{
    DrainMarkers, NodeMarker, PdbForceDrainTimeout, Preset, SignalSpec, UpgradeSignal, WatchedResource,
};
use nodeward_core::strategy::Waits;
use nodeward_core::surge::DeploymentView;
use nodeward_core::window::Windows;
use nodeward_runtime::ConfigError;

use crate::config::{Config, NodeDrain, RemediationKind, SurgeConfig};

pub use crate::config::{ConfigMapRef, OptOutKind, OverrideBudgets, UnmanagedPods};

const TIME_OUT: SignedDuration = SignedDuration::from_mins(45);
const EXPECTED_NODE_DRAIN_TIME: SignedDuration = SignedDuration::from_mins(8);
const PDB_FORCE_DRAIN_TIMEOUT: SignedDuration = SignedDuration::from_mins(60);
const FORCE_AFTER: SignedDuration = SignedDuration::from_mins(5);
const OVERRIDE_SPACING: SignedDuration = SignedDuration::from_mins(10);
const FLAP_TOLERANCE: SignedDuration = SignedDuration::from_mins(2);
const SURGE_AFTER: SignedDuration = SignedDuration::from_mins(2);
const SURGE_TIMEOUT: SignedDuration = SignedDuration::from_mins(10);
const SURGE_PARALLEL: u32 = 5;
/// What they wait for is done by controllers that finish their work also while a node drains.
const PROTECTED_FINALIZERS: [&str; 5] = [
    "batch.kubernetes.io/job-tracking",
    "foregroundDeletion",
    "orphan",
    "kueue.x-k8s.io/managed",
    "workflows.argoproj.io/status",
];
const FORCED_PER_NODE: u32 = 5;
const FORCED_PER_MINUTE: NonZeroU32 = NonZeroU32::new(30).unwrap();

/// What drain-keeper goes by.
#[derive(Debug, Clone)]
pub struct Policy {
    /// What says that an upgrade is on.
    pub signal: UpgradeSignal,
    /// What marks a cordoned node as being drained.
    pub drain_markers: DrainMarkers,
    /// Taints that cordon a node without `spec.unschedulable`.
    pub cordon_taints: Vec<NodeMarker>,
    /// Nodes in scope.
    pub node_selector: Selector,
    /// Finalizers that are never removed.
    pub protected_finalizers: Vec<String>,
    /// What is done with pods without a controller.
    pub unmanaged_pods: UnmanagedPods,
    /// Whether pods that must not run twice are forced off a node that is not Ready.
    pub force_on_unreachable: bool,
    /// Which budgets may be overridden.
    pub override_budgets: OverrideBudgets,
    /// Whether Deployments are told to roll, and how.
    pub surge: Option<SurgePolicy>,
    /// When it may begin.
    pub windows: Windows,
    /// How far opt-outs of owners count.
    pub opt_outs: OptOutLimits,
    /// Forced pods on their way out at once, a node.
    pub forced_per_node: usize,
    /// Forced pods a minute, in the cluster.
    pub forced_per_minute: NonZeroU32,
    /// An uncordon shorter than this continues the drain.
    pub flap_tolerance: SignedDuration,
    /// How long a budget that does not recover is left alone between two overrides.
    pub override_spacing: SignedDuration,
    /// Where to read the leases of nodes, if at all.
    pub lease_namespace: Option<String>,
    /// Further kinds of remediations.
    pub remediation_kinds: Vec<WatchedResource>,
    /// Where to read managed-upgrade-operator's ConfigMap, if at all.
    pub managed_upgrade_config_map: Option<ConfigMapRef>,
    force_after: SignedDuration,
    budget_force: SignedDuration,
    drain: DrainSettings,
    pools: Vec<Pool>,
}

/// How far opt-outs of owners count.
#[derive(Debug, Clone, Default)]
pub struct OptOutLimits {
    /// Whose; `None`: everybody's.
    honour: Option<BTreeSet<OptOutKind>>,
    /// In the namespaces whose labels it matches; `None`: in all, and nobody has to know the labels.
    pub namespaces: Option<Selector>,
    /// How long past the pod's deadline; `None`: without end.
    pub max_duration: Option<SignedDuration>,
}

impl OptOutLimits {
    /// Whether all of them count everywhere, without end.
    pub fn are_none(&self) -> bool {
        self.honour.is_none() && self.namespaces.is_none() && self.max_duration.is_none()
    }

    pub fn honours(&self, kind: OptOutKind) -> bool {
        self.honour.as_ref().is_none_or(|honoured| honoured.contains(&kind))
    }
}

/// How pods move by a rollout of their Deployment.
#[derive(Debug, Clone)]
pub struct SurgePolicy {
    /// How long a pod's budget must have refused it.
    pub after: SignedDuration,
    /// How long a rollout may take.
    pub timeout: SignedDuration,
    /// Rollouts at once, in the cluster.
    pub parallel: usize,
    /// In the namespaces whose labels it matches; `None`: in all, and nobody has to know the labels.
    pub namespaces: Option<Selector>,
}

impl SurgePolicy {
    fn of(config: SurgeConfig) -> Result<Option<Self>, ConfigError> {
        let timeout = config.timeout.map_or(SURGE_TIMEOUT, ConfigDuration::get);
        if timeout > surge_record::LONGEST {
            return Err(ConfigError::at("surge.timeout", "must be at most 1h"));
        }
        Ok(config.enabled.then(|| Self {
            after: config.after.map_or(SURGE_AFTER, ConfigDuration::get),
            timeout,
            parallel: config.parallel.map_or(SURGE_PARALLEL, NonZeroU32::get) as usize,
            namespaces: config.namespaces.map(|namespaces| namespaces.selector),
        }))
    }

    /// When a rollout that begins now is given up, by our own clock: a pod that flaps renews the controller's.
    pub fn gives_up_at(&self, began: Timestamp, deployment: &DeploymentView) -> Timestamp {
        let deadline = deployment.progress_deadline.unwrap_or(self.timeout);
        saturating_add(began, deadline.min(self.timeout))
    }
}

/// How one node is drained.
#[derive(Debug, Clone)]
pub struct DrainSettings {
    /// Grace for a node to drain by itself.
    pub time_out: SignedDuration,
    /// How long a drain takes at best.
    pub expected_drain: SignedDuration,
    /// Explain only.
    pub disable_strategies: bool,
    /// Namespaces whose pods are never touched.
    pub ignored_namespaces: NamespacePatterns,
}

#[derive(Debug, Clone)]
struct Pool {
    selector: Selector,
    drain: DrainSettings,
}

impl Policy {
    /// Checks and compiles the file.
    ///
    /// # Errors
    /// With the field and what to write instead.
    pub fn from_config(config: Config) -> Result<Self, ConfigError> {
        let defaults = DrainSettings {
            time_out: TIME_OUT,
            expected_drain: EXPECTED_NODE_DRAIN_TIME,
            disable_strategies: false,
            ignored_namespaces: NamespacePatterns::default(),
        };
        let drain = defaults.overlaid(&config.node_drain, "nodeDrain")?;
        let pools = config
            .pools
            .iter()
            .enumerate()
            .map(|(index, pool)| {
                Ok(Pool {
                    selector: pool.selector.clone(),
                    drain: drain.overlaid(&pool.node_drain, &format!("pools[{index}].nodeDrain"))?,
                })
            })
            .collect::<Result<Vec<_>, ConfigError>>()?;
        let drain_markers = DrainMarkers::new(&config.upgrade_signal, config.counts_as_drain.as_ref())
            .map_err(|error| ConfigError::at("countsAsDrain", error.to_string()))?;
        let unmanaged_pods = config
            .unmanaged_pods
            .unwrap_or(if is_openshift_only(config.upgrade_signal.spec()) {
                UnmanagedPods::Delete
            } else {
                UnmanagedPods::Keep
            });
        let override_budgets =
            config
                .override_budgets
                .unwrap_or(if upgrades_openshift_only(config.upgrade_signal.spec()) {
                    OverrideBudgets::All
                } else {
                    OverrideBudgets::Never
                });
        let lease_namespace = config.lease_namespace;
        if lease_namespace.as_deref() == Some("") {
            return Err(ConfigError::at(
                "leaseNamespace",
                "must name a namespace; leave it out to read no leases",
            ));
        }
        let remediation_kinds = remediation_kinds(&config.remediation_kinds)?;
        let or = |given: Option<ConfigDuration>, default| given.map_or(default, ConfigDuration::get);
        Ok(Self {
            cordon_taints: config.upgrade_signal.cordon_taints(),
            drain_markers,
            node_selector: config.node_selector,
            protected_finalizers: config
                .protected_finalizers
                .unwrap_or_else(|| PROTECTED_FINALIZERS.map(str::to_owned).to_vec()),
            unmanaged_pods,
            override_budgets,
            force_on_unreachable: config.force_on_unreachable,
            surge: SurgePolicy::of(config.surge)?,
            windows: config.windows,
            opt_outs: OptOutLimits {
                honour: config.opt_outs.honour,
                namespaces: config.opt_outs.namespaces.map(|namespaces| namespaces.selector),
                max_duration: config.opt_outs.max_duration.map(ConfigDuration::get),
            },
            forced_per_node: config.limits.forced_per_node.map_or(FORCED_PER_NODE, NonZeroU32::get) as usize,
            forced_per_minute: config.limits.forced_per_minute.unwrap_or(FORCED_PER_MINUTE),
            flap_tolerance: or(config.flap_tolerance, FLAP_TOLERANCE),
            override_spacing: or(config.override_spacing, OVERRIDE_SPACING),
            lease_namespace,
            remediation_kinds,
            managed_upgrade_config_map: config.managed_upgrade_config_map,
            force_after: or(config.force_after, FORCE_AFTER),
            budget_force: or(config.pdb_force_drain_timeout, PDB_FORCE_DRAIN_TIMEOUT),
            signal: config.upgrade_signal,
            drain,
            pools,
        })
    }

    /// The same, with all strategies disabled: nodes are watched and explained, and no pod is touched.
    #[must_use]
    pub fn disabled(mut self) -> Self {
        self.drain.disable_strategies = true;
        for pool in &mut self.pools {
            pool.drain.disable_strategies = true;
        }
        self
    }

    /// What is valid, and unlikely to be meant.
    pub fn warnings(&self) -> Vec<String> {
        let drains = std::iter::once(&self.drain).chain(self.pools.iter().map(|pool| &pool.drain));
        let shortest = drains.map(|drain| drain.expected_drain).min().unwrap_or_default();
        let mut warnings = Vec::new();
        if shortest < self.force_after {
            warnings.push(format!(
                "forceAfter ({:#}) is longer than expectedNodeDrainTime ({shortest:#}): a drain may count as failed before its \
                 last pod is deleted without grace; lengthen expectedNodeDrainTime, or shorten forceAfter",
                self.force_after
            ));
        }
        if self.windows != Windows::default() {
            warnings.push(
                "outside its windows drain-keeper begins nothing: drains by others go on, and those that need it may time out \
                 before one opens"
                    .to_owned(),
            );
        }
        warnings
    }

    /// Whether all of these budgets may be overridden, as far as the configuration says. None are known where a refusal alone tells
    /// of one.
    pub fn may_override(&self, budgets: &[Arc<BudgetView>]) -> bool {
        match self.override_budgets {
            OverrideBudgets::All => true,
            OverrideBudgets::Labelled => {
                let is_allowed = |budget: &Arc<BudgetView>| budget.force_drain == ForceDrain::Allowed;
                !budgets.is_empty() && budgets.iter().all(is_allowed)
            }
            OverrideBudgets::Never => false,
        }
    }

    pub fn drain_for(&self, node: &NodeView) -> &DrainSettings {
        self.pools
            .iter()
            .find(|pool| pool.selector.matches(&node.labels))
            .map_or(&self.drain, |pool| &pool.drain)
    }

    /// The waits of this node's strategies. The UpgradeConfig's `PDBForceDrainTimeout` comes before the file's.
    pub fn waits_for(&self, node: &NodeView, timeout: &PdbForceDrainTimeout) -> Waits {
        let drain = self.drain_for(node);
        let budget_force = match timeout {
            PdbForceDrainTimeout::Minutes(minutes) => *minutes,
            PdbForceDrainTimeout::TooLong(_) => ConfigDuration::LONGEST,
            PdbForceDrainTimeout::NotSet | PdbForceDrainTimeout::Missing(_) | PdbForceDrainTimeout::Malformed(_) => {
                self.budget_force
            }
        };
        Waits {
            time_out: drain.time_out,
            expected_drain: drain.expected_drain,
            budget_force,
            force_after: self.force_after,
            surge: self.surge.as_ref().map_or(SignedDuration::MAX, |surge| surge.after),
        }
    }
}

fn remediation_kinds(kinds: &[RemediationKind]) -> Result<Vec<WatchedResource>, ConfigError> {
    let watched = kinds
        .iter()
        .enumerate()
        .map(|(index, RemediationKind { api_version, kind })| {
            // A core kind would be a node's pods, say: its objects are named after nothing that is remediated.
            if kind.is_empty() || !api_version.contains('/') {
                let field = format!("remediationKinds[{index}]");
                return Err(ConfigError::at(
                    field,
                    "must have an apiVersion with its group, and a kind",
                ));
            }
            Ok(WatchedResource::all(api_version, kind))
        });
    watched.collect()
}

impl DrainSettings {
    fn overlaid(&self, node_drain: &NodeDrain, path: &str) -> Result<Self, ConfigError> {
        let ignored_namespaces = match &node_drain.ignored_namespace_patterns {
            None => self.ignored_namespaces.clone(),
            Some(patterns) => NamespacePatterns::compile(patterns).map_err(|error| {
                ConfigError::at(
                    format!("{path}.ignoredNamespacePatterns[{}]", error.index),
                    error.to_string(),
                )
            })?,
        };
        Ok(Self {
            time_out: node_drain.time_out.map_or(self.time_out, ConfigDuration::get),
            expected_drain: node_drain
                .expected_node_drain_time
                .map_or(self.expected_drain, ConfigDuration::get),
            disable_strategies: node_drain.disable_drain_strategies.unwrap_or(self.disable_strategies),
            ignored_namespaces,
        })
    }
}

/// Whether every signal is one of OpenShift's, whose own drains delete pods without a controller too.
fn is_openshift_only(signal: &SignalSpec) -> bool {
    match signal {
        SignalSpec::OpenShift | SignalSpec::OpenShiftClusterVersion | SignalSpec::MachineConfigPool => true,
        SignalSpec::AnyOf(all) | SignalSpec::AllOf(all) => all.iter().all(is_openshift_only),
        SignalSpec::Always | SignalSpec::Preset(_) | SignalSpec::Node(_) | SignalSpec::Resource(_) => false,
    }
}

/// Whether every signal tells of an upgrade of OpenShift's machines, whose upgraders override budgets in the end.
fn upgrades_openshift_only(signal: &SignalSpec) -> bool {
    match signal {
        SignalSpec::Preset(signal) => signal.preset == Preset::MachineConfig,
        SignalSpec::AnyOf(all) | SignalSpec::AllOf(all) => all.iter().all(upgrades_openshift_only),
        other => is_openshift_only(other),
    }
}
