//! OpenShift's signals: managed-upgrade-operator's UpgradeConfig with the node's MachineConfigPool, and ClusterVersion.

use jiff::{SignedDuration, Timestamp};
use serde_json::Value;

use super::answer::{Answer, SignalNote, Tristate};
use super::fields::Fields;
use super::inputs::{SignalInputs, WatchedResource, full_name};
use super::machine_config::{NodePool, Pool, PoolProblem, Pools, is_changing, pool_fields, pool_kind, pool_of};
use crate::duration::ConfigDuration;
use crate::node::NodeView;

/// managed-upgrade-operator's UpgradeConfigs.
fn upgrade_config_kind() -> WatchedResource {
    WatchedResource::all("upgrade.managed.openshift.io/v1alpha1", "UpgradeConfig")
}

/// What the `openshift` signal reads.
pub(super) fn kinds() -> Vec<(WatchedResource, Fields)> {
    let fields = Fields::of(&[
        "metadata.generation",
        "spec.desired.version",
        "spec.PDBForceDrainTimeout",
        "status.history",
    ]);
    vec![(upgrade_config_kind(), fields), (pool_kind(), pool_fields())]
}

pub(super) fn cluster_version_fields() -> Fields {
    Fields::of(&["metadata.generation", "status.conditions"])
}

pub(super) fn cluster_version_kind() -> WatchedResource {
    WatchedResource {
        name: Some("version".to_owned()),
        ..WatchedResource::all("config.openshift.io/v1", "ClusterVersion")
    }
}

/// Whether an UpgradeConfig is upgrading and the node's own pool is not done.
pub(super) fn upgrading(inputs: &SignalInputs, node: &NodeView) -> Answer {
    let configs = match inputs.objects(&upgrade_config_kind()) {
        Ok(configs) => configs,
        Err(answer) => return answer,
    };
    let upgrade = Answer::any_of(configs.iter().map(|config| config_is_upgrading(config)));
    if upgrade.truth != Tristate::Yes {
        return upgrade;
    }
    let pool = match inputs.objects(&pool_kind()) {
        Ok(objects) => ask_pool(node, inputs.pools(objects), Pool::has_outdated_machines),
        Err(answer) => answer,
    };
    // The pool has no start of its own: the upgrade's stands.
    let since = upgrade.since;
    let both = Answer::all_of([upgrade, pool]);
    Answer {
        since: if both.truth == Tristate::Yes { since } else { None },
        ..both
    }
}

/// Whether the node's own pool is being updated, or the node is to get another configuration than it has: the Machine Config
/// Operator alone tells, be there a managed-upgrade-operator or not.
pub(super) fn pool_or_node_is_changing(inputs: &SignalInputs, node: &NodeView) -> Answer {
    let pool = match inputs.objects(&pool_kind()) {
        Ok(objects) => ask_pool(node, inputs.pools(objects), Pool::is_updating),
        Err(answer) => answer,
    };
    Answer::any_of([is_changing(node), pool])
}

/// What the node's own pool says to `question`.
fn ask_pool(node: &NodeView, pools: &Pools, question: impl Fn(&Pool) -> Result<bool, String>) -> Answer {
    let malformed = |problem: String| Answer::unknown(SignalNote::warning(format!("malformed/{problem}"), problem));
    match pool_of(node, pools) {
        NodePool::Member(pool) => match question(&pool) {
            Ok(true) => Answer::yes(None),
            Ok(false) => Answer::no(),
            Err(problem) => malformed(problem),
        },
        NodePool::Unmanaged => Answer::no().with_note(SignalNote::info(
            format!("no-pool/{}", node.name),
            format!(
                "No MachineConfigPool selects node {}: the upgrade does not concern it.",
                node.name
            ),
        )),
        NodePool::Undecided(PoolProblem::SeveralCustomPools(names)) => Answer::unknown(SignalNote::warning(
            format!("several-pools/{}/{}", node.name, names.join(",")),
            format!(
                "Node {} is in {} custom MachineConfigPools ({}), which the Machine Config Operator refuses: leave it in one.",
                node.name,
                names.len(),
                names.join(", ")
            ),
        )),
        NodePool::Undecided(PoolProblem::Malformed(problem)) => malformed(problem),
    }
}

/// The part of an UpgradeConfig that tells whether its upgrade runs.
enum ConfigState {
    Upgrading(Option<Timestamp>),
    NotUpgrading,
    Malformed(String),
}

fn config_is_upgrading(config: &Value) -> Answer {
    match config_state(config) {
        ConfigState::Upgrading(since) => Answer::yes(since),
        ConfigState::NotUpgrading => Answer::no(),
        ConfigState::Malformed(problem) => {
            let name = full_name(config);
            Answer::unknown(SignalNote::warning(
                format!("malformed/UpgradeConfig/{name}/{problem}"),
                format!("UpgradeConfig {name} cannot be read: {problem}."),
            ))
        }
    }
}

/// Reads the history entry of the version that is wanted; the first one, as managed-upgrade-operator does.
fn config_state(config: &Value) -> ConfigState {
    let malformed = |problem: &str| ConfigState::Malformed(problem.to_owned());
    let Some(version) = config.pointer("/spec/desired/version").and_then(Value::as_str) else {
        return malformed("spec.desired.version is not a string");
    };
    let history = match config.pointer("/status/history") {
        None | Some(Value::Null) => {
            return match config.get("status") {
                None | Some(Value::Null | Value::Object(_)) => ConfigState::NotUpgrading,
                Some(_) => malformed("status is not an object"),
            };
        }
        Some(Value::Array(history)) => history,
        Some(_) => return malformed("status.history is not a list"),
    };
    if history
        .iter()
        .any(|entry| !entry.get("version").is_some_and(Value::is_string))
    {
        return malformed("an entry of status.history has no version");
    }
    let Some(entry) = history.iter().find(|entry| entry["version"] == version) else {
        return ConfigState::NotUpgrading;
    };
    match entry.get("phase").and_then(Value::as_str) {
        Some("Upgrading") => match optional_time(entry.get("startTime")) {
            Ok(since) => ConfigState::Upgrading(since),
            Err(()) => malformed("startTime of its history entry is not a time"),
        },
        Some(_) => ConfigState::NotUpgrading,
        None => malformed("phase of its history entry is not a string"),
    }
}

/// Whether the ClusterVersion is `Progressing`.
pub(super) fn cluster_version_progressing(inputs: &SignalInputs) -> Answer {
    match inputs.objects(&cluster_version_kind()) {
        Ok(versions) => Answer::any_of(versions.iter().map(|version| progressing(version))),
        Err(answer) => answer,
    }
}

fn progressing(version: &Value) -> Answer {
    let malformed = |problem: &str| {
        let name = full_name(version);
        Answer::unknown(SignalNote::warning(
            format!("malformed/ClusterVersion/{name}/{problem}"),
            format!("ClusterVersion {name} cannot be read: {problem}."),
        ))
    };
    let Some(conditions) = version.pointer("/status/conditions").and_then(Value::as_array) else {
        return malformed("status.conditions is not a list");
    };
    let Some(condition) = conditions.iter().find(|condition| condition["type"] == "Progressing") else {
        return malformed("status.conditions has no Progressing");
    };
    match condition.get("status").and_then(Value::as_str) {
        Some("True") => match optional_time(condition.get("lastTransitionTime")) {
            Ok(since) => Answer::yes(since),
            Err(()) => malformed("lastTransitionTime of Progressing is not a time"),
        },
        Some("False") => Answer::no(),
        Some("Unknown") => malformed("Progressing is Unknown"),
        _ => malformed("status of Progressing is neither True, False nor Unknown"),
    }
}

/// The objects by which OpenShift says that an upgrade is on, each with the generation of what it asks for.
pub fn upgrades_in_progress(inputs: &SignalInputs) -> Vec<String> {
    let objects = |kind| inputs.objects(&kind).unwrap_or_default();
    let configs = objects(upgrade_config_kind()).iter();
    let configs = configs.filter(|config| matches!(config_state(config), ConfigState::Upgrading(_)));
    let versions = objects(cluster_version_kind()).iter();
    let versions = versions.filter(|version| progressing(version).truth == Tristate::Yes);
    let named = |kind: &str, object: &Value| match object.pointer("/metadata/generation") {
        Some(generation) => format!("{kind} {} (generation {generation})", full_name(object)),
        None => format!("{kind} {}", full_name(object)),
    };
    configs
        .map(|config| named("UpgradeConfig", config))
        .chain(versions.map(|version| named("ClusterVersion", version)))
        .collect()
}

/// The UpgradeConfig's own wait before budgets are overridden.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub enum PdbForceDrainTimeout {
    /// No UpgradeConfig is upgrading: there is nothing that could set it.
    #[default]
    NotSet,
    /// This long, in whole minutes; 0 is legal.
    Minutes(SignedDuration),
    /// Longer than a configured time may be; the text says what. [`ConfigDuration::LONGEST`] counts: the configured wait
    /// would force sooner than was asked for.
    TooLong(String),
    /// An UpgradeConfig is upgrading and does not set it; the text says which. The configured wait counts, and somebody
    /// should know.
    Missing(String),
    /// An UpgradeConfig is upgrading and sets something else; the text says what. The configured wait counts, and
    /// somebody should know.
    Malformed(String),
}

/// `spec.PDBForceDrainTimeout` (minutes) of the UpgradeConfig that is upgrading; of several, the longest. The first that
/// cannot be read decides for all: what its upgrade was meant to wait is not known.
pub fn pdb_force_drain_timeout(inputs: &SignalInputs) -> PdbForceDrainTimeout {
    let Ok(configs) = inputs.objects(&upgrade_config_kind()) else {
        return PdbForceDrainTimeout::NotSet;
    };
    let (mut longest, mut too_long) = (None, None);
    for config in configs
        .iter()
        .filter(|config| matches!(config_state(config), ConfigState::Upgrading(_)))
    {
        let name = full_name(config);
        let value = match config.pointer("/spec/PDBForceDrainTimeout") {
            None | Some(Value::Null) => {
                return PdbForceDrainTimeout::Missing(format!(
                    "UpgradeConfig {name}: spec.PDBForceDrainTimeout is not set"
                ));
            }
            Some(value) => value,
        };
        let Some(minutes) = value.as_u64() else {
            return PdbForceDrainTimeout::Malformed(format!(
                "UpgradeConfig {name}: spec.PDBForceDrainTimeout is {value}, not a whole number of minutes"
            ));
        };
        match i64::try_from(minutes) {
            Ok(minutes) if minutes <= ConfigDuration::LONGEST.as_mins() => {
                longest = longest.max(Some(SignedDuration::from_mins(minutes)));
            }
            _ => {
                too_long = Some(format!(
                    "UpgradeConfig {name}: spec.PDBForceDrainTimeout is {value} minutes"
                ));
            }
        }
    }
    if let Some(text) = too_long {
        return PdbForceDrainTimeout::TooLong(text);
    }
    longest.map_or(PdbForceDrainTimeout::NotSet, PdbForceDrainTimeout::Minutes)
}

fn optional_time(value: Option<&Value>) -> Result<Option<Timestamp>, ()> {
    match value {
        None | Some(Value::Null) => Ok(None),
        Some(Value::String(text)) => text.parse().map(Some).map_err(|_| ()),
        Some(_) => Err(()),
    }
}

#[cfg(test)]
mod tests;
