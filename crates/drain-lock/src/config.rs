//! The configuration file, as written by the user. What it means is [`crate::policy::Policy`].
//!
//! Unknown fields, zero and negative times are errors; an absent field is its default, never 0.

use std::net::SocketAddr;
use std::num::NonZeroU32;
use std::path::PathBuf;

use k8s_openapi::apimachinery::pkg::util::intstr::IntOrString;
use nodeward_api::node_drain::{Consent, Fallback};
use nodeward_core::duration::ConfigDuration;
use nodeward_core::selector::Selector;
use nodeward_core::window::Windows;
use schemars::{JsonSchema, Schema, SchemaGenerator, json_schema};
use serde::de::Error;
use serde::{Deserialize, Deserializer};

/// The configuration file of drain-lock.
#[derive(Debug, Clone, Default, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields, default)]
#[schemars(rename = "DrainLockConfig")]
pub struct Config {
    /// Whether it acts, or only says what it would do. Default `enforce`.
    pub mode: Mode,
    /// How long each part of a drain may take, where the NodeDrain does not say.
    pub deadlines: DeadlinesConfig,
    /// What becomes of drains that the webhook or FleetLock asks for when they have not emptied their nodes in time. Default
    /// `ReleaseAndRequeue`.
    pub fallback: Option<KnownFallback>,
    /// How long a node is away when it reboots: pods that stay have to tolerate that. Default 15 minutes.
    pub expected_outage: Option<ConfigDuration>,
    /// How long a replacement may be without a node before its pod counts as one that finds no other. Default 30 seconds.
    pub unschedulable_after: Option<ConfigDuration>,
    /// Maintenance windows: when drains of drain-lock's own may begin. Default: always.
    pub windows: Windows,
    /// How pods are evicted.
    pub eviction: EvictionConfig,
    /// What the owners of applications may hold.
    pub holds: HoldsConfig,
    /// Drains by programs that know nothing of drain-lock.
    pub auto: AutoConfig,
    /// Nodes that these drains are taken from. Default: all.
    pub node_selector: Selector,
    /// How many nodes of a group may be away at once. Default: one node of the control plane.
    pub node_groups: Vec<NodeGroupConfig>,
    /// The lease by which medik8s' operators keep out of each other's way on a node.
    #[serde(rename = "medik8sLease")]
    pub medik8s_lease: Medik8sLeaseConfig,
    /// The FleetLock endpoint.
    pub fleet_lock: FleetLockConfig,
}

/// What becomes of decisions.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum Mode {
    /// They are carried out.
    #[default]
    Enforce,
    /// They are logged, counted and told to whoever evicts, as with `--dry-run`.
    Audit,
}

/// An entry of `nodeGroups`.
#[derive(Debug, Clone, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct NodeGroupConfig {
    /// Its name, which FleetLock clients may give as their group; `control-plane` replaces the built-in group.
    pub name: String,
    /// Its nodes; `{}` is all. Only `control-plane` may leave it out.
    pub selector: Option<Selector>,
    /// How many of them may be away at once: a number, or a percentage of the group, rounded down to at least one node.
    #[schemars(schema_with = "nodes_or_percentage")]
    pub max_unavailable: IntOrString,
}

fn nodes_or_percentage(_: &mut SchemaGenerator) -> Schema {
    json_schema!({ "type": ["integer", "string"], "minimum": 1, "pattern": "^0*([1-9][0-9]?|100)%$" })
}

/// What becomes of a drain whose time is over. As in a NodeDrain, but here nothing else is taken for one of them.
#[derive(Debug, Clone, Copy, PartialEq, Eq, JsonSchema)]
pub enum KnownFallback {
    /// It waits on.
    Wait,
    /// It gives back what it can, and queues again.
    ReleaseAndRequeue,
}

impl<'de> Deserialize<'de> for KnownFallback {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        match String::deserialize(deserializer)?.as_str() {
            "Wait" => Ok(Self::Wait),
            "ReleaseAndRequeue" => Ok(Self::ReleaseAndRequeue),
            _ => Err(D::Error::custom(Fallback::REFUSED)),
        }
    }
}

impl From<KnownFallback> for Fallback {
    fn from(known: KnownFallback) -> Self {
        match known {
            KnownFallback::Wait => Self::Wait,
            KnownFallback::ReleaseAndRequeue => Self::ReleaseAndRequeue,
        }
    }
}

/// The block `deadlines`.
#[derive(Debug, Clone, Default, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct DeadlinesConfig {
    /// From the drain's turn in the queue to its grant. Default 1 hour.
    pub queue: Option<ConfigDuration>,
    /// From the grant to the node being drained. Default 30 minutes.
    pub drain: Option<ConfigDuration>,
    /// On top of `drain`, counted from the grant, to the last disruption's return. Default 30 minutes.
    pub recover: Option<ConfigDuration>,
    /// How long pods that no end of another drain lets go keep the rest of a drain by another program waiting. Default 5 minutes.
    pub obstacle: Option<ConfigDuration>,
}

/// The block `eviction`.
#[derive(Debug, Clone, Default, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct EvictionConfig {
    /// Pods of one node on their way out at once. Default 50.
    pub max_parallel: Option<NonZeroU32>,
}

/// The block `holds`.
#[derive(Debug, Clone, Default, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct HoldsConfig {
    /// How long an owner's hold lasts at most. Default 24 hours.
    pub max_duration: Option<ConfigDuration>,
}

/// The block `auto`.
#[derive(Debug, Clone, Default, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields, default)]
pub struct AutoConfig {
    /// Whether an eviction from a cordoned node asks for a NodeDrain, if its user may change nodes. Default true.
    pub enabled: Option<bool>,
    /// Users whose evictions do so although they may not change nodes: their names, as in `system:serviceaccount:NAMESPACE:NAME`.
    pub also_drainers: Vec<String>,
    /// Users whose evictions never do.
    pub never_drainers: Vec<String>,
    /// Whether another drainer's eviction of a pod that asked to stay is refused. Default false.
    pub refuse_opt_out: bool,
    /// How long after its last eviction or end of a pod another program's drain ends, while none of its pods is down. Default
    /// 10 minutes.
    pub quiet_period: Option<ConfigDuration>,
}

/// The block `medik8sLease`.
#[derive(Debug, Clone, Default, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct Medik8sLeaseConfig {
    /// Whether the lease is taken and respected. Default true.
    pub enabled: Option<bool>,
    /// Its namespace. Default `medik8s-leases`.
    pub namespace: Option<String>,
}

/// The block `fleetLock`.
#[derive(Debug, Clone, Default, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields, default)]
pub struct FleetLockConfig {
    /// Whether it is served. Default false.
    pub enabled: bool,
    /// Where. Default `0.0.0.0:9444`.
    pub bind: Option<SocketAddr>,
    /// A directory with `tls.crt` and `tls.key`. Default: plain HTTP.
    pub tls: Option<PathBuf>,
    /// A file with the certificates that clients have to be signed by. Needs `tls`.
    #[serde(rename = "clientCA")]
    pub client_ca: Option<PathBuf>,
    /// A file with the token that clients have to send.
    pub bearer_token_file: Option<PathBuf>,
    /// Whether pods that no controller makes again are evicted for a machine that asks to reboot. Default `Keep`.
    pub unmanaged_pods: Option<KnownConsent>,
    /// Whether pods with emptyDir volumes are, whose data goes with them. Default `Evict`.
    pub empty_dir_data: Option<KnownConsent>,
}

/// Consent to evictions. As in a NodeDrain, but here nothing else is taken for one of them.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize, JsonSchema)]
pub struct KnownConsent(#[serde(with = "ConsentConfig")] pub Consent);

#[derive(Deserialize, JsonSchema)]
#[serde(remote = "Consent")]
enum ConsentConfig {
    Evict,
    Keep,
}
