//! The configuration, checked and compiled once: nothing in here can be invalid.

use std::net::SocketAddr;
use std::path::PathBuf;

use jiff::SignedDuration;
use nodeward_api::node_drain::{Consent, Fallback};
use nodeward_core::consent::Consents;
use nodeward_core::duration::ConfigDuration;
use nodeward_core::hold::{DRAIN_LASTS, RECOVERY_LASTS};
use nodeward_core::selector::Selector;
use nodeward_runtime::ConfigError;

use crate::config::{Config, FleetLockConfig, KnownConsent, Mode};
use crate::node_group::NodeGroup;

const QUEUE: SignedDuration = SignedDuration::from_hours(1);
const OBSTACLE: SignedDuration = SignedDuration::from_mins(5);
const EXPECTED_OUTAGE: SignedDuration = SignedDuration::from_mins(15);
const UNSCHEDULABLE_AFTER: SignedDuration = SignedDuration::from_secs(30);
const MAX_PARALLEL: usize = 50;
const HOLD_MAX: SignedDuration = SignedDuration::from_hours(24);
const QUIET_PERIOD: SignedDuration = SignedDuration::from_mins(10);
const MEDIK8S_NAMESPACE: &str = "medik8s-leases";
const FLEET_LOCK_BIND: SocketAddr = SocketAddr::new(std::net::IpAddr::V4(std::net::Ipv4Addr::UNSPECIFIED), 9444);

/// What drain-lock goes by.
#[derive(Debug, Clone)]
pub struct Policy {
    /// Whether nothing is carried out.
    pub audits: bool,
    /// How long each part of a drain may take, where the NodeDrain does not say.
    pub deadlines: Deadlines,
    /// How long an obstacle that no other drain's end lifts keeps the rest of another program's drain waiting.
    pub obstacle_after: SignedDuration,
    /// What becomes of drains that the webhook or FleetLock asks for when they have not emptied their nodes in time.
    pub fallback: Fallback,
    /// How long a node is away when it reboots.
    pub expected_outage: SignedDuration,
    /// How long a replacement may be without a node before its pod counts as one that finds no other.
    pub unschedulable_after: SignedDuration,
    /// Pods of one node on their way out at once.
    pub evictions_per_node: usize,
    /// How long an owner's hold lasts at most.
    pub hold_max_duration: SignedDuration,
    /// Drains by programs that know nothing of drain-lock.
    pub auto: Auto,
    /// Nodes that `auto` concerns.
    pub node_selector: Selector,
    /// How many nodes of a group may be away at once.
    pub node_groups: Vec<NodeGroup>,
    /// Namespace of medik8s' node leases; `None` where they are neither taken nor respected.
    pub medik8s_leases: Option<String>,
    /// The FleetLock endpoint, where it is served.
    pub fleet_lock: Option<FleetLock>,
}

/// How long each part of a drain may take.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Deadlines {
    /// From the drain's turn in the queue to its grant.
    pub queue: SignedDuration,
    /// From the grant to the node being drained.
    pub drain: SignedDuration,
    /// On top of `drain`, counted from the grant, to the last disruption's return.
    pub recover: SignedDuration,
}

/// Drains by programs that know nothing of drain-lock.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Auto {
    /// Whether an eviction from a node that is being drained asks for a NodeDrain.
    pub enabled: bool,
    /// Whether another drainer's eviction of a pod that asked to stay is refused.
    pub refuse_opt_out: bool,
    /// How long after its last eviction such a drain ends, while none of its pods is down.
    pub quiet_period: SignedDuration,
}

/// The FleetLock endpoint.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct FleetLock {
    /// Where it is served.
    pub bind: SocketAddr,
    /// A directory with `tls.crt` and `tls.key`; without it, plain HTTP.
    pub tls: Option<PathBuf>,
    /// A file with the certificates that clients have to be signed by.
    pub client_ca: Option<PathBuf>,
    /// A file with the token that clients have to send.
    pub bearer_token_file: Option<PathBuf>,
    /// What machines that ask to reboot consent to.
    pub consents: Consents,
}

impl Policy {
    /// Checks and compiles the file.
    ///
    /// # Errors
    /// With the field and what to write instead.
    pub fn from_config(config: Config) -> Result<Self, ConfigError> {
        let or = |given: Option<ConfigDuration>, default| given.map_or(default, ConfigDuration::get);
        let medik8s = config.medik8s_lease;
        let namespace = medik8s.namespace.unwrap_or_else(|| MEDIK8S_NAMESPACE.to_owned());
        if namespace.is_empty() {
            return Err(ConfigError::at(
                "medik8sLease.namespace",
                "must name a namespace; leave it out for the default, or set medik8sLease.enabled to false",
            ));
        }
        Ok(Self {
            audits: config.mode == Mode::Audit,
            deadlines: Deadlines {
                queue: or(config.deadlines.queue, QUEUE),
                drain: or(config.deadlines.drain, DRAIN_LASTS),
                recover: or(config.deadlines.recover, RECOVERY_LASTS),
            },
            obstacle_after: or(config.deadlines.obstacle, OBSTACLE),
            fallback: config.fallback.map(Fallback::from).unwrap_or_default(),
            expected_outage: or(config.expected_outage, EXPECTED_OUTAGE),
            unschedulable_after: or(config.unschedulable_after, UNSCHEDULABLE_AFTER),
            evictions_per_node: config
                .eviction
                .max_parallel
                .map_or(MAX_PARALLEL, |given| given.get() as usize),
            hold_max_duration: or(config.holds.max_duration, HOLD_MAX),
            auto: Auto {
                enabled: config.auto.enabled.unwrap_or(true),
                refuse_opt_out: config.auto.refuse_opt_out,
                quiet_period: or(config.auto.quiet_period, QUIET_PERIOD),
            },
            node_selector: config.node_selector,
            node_groups: NodeGroup::from_config(config.node_groups)?,
            medik8s_leases: medik8s.enabled.unwrap_or(true).then_some(namespace),
            fleet_lock: FleetLock::from_config(config.fleet_lock)?,
        })
    }
}

impl FleetLock {
    fn from_config(config: FleetLockConfig) -> Result<Option<Self>, ConfigError> {
        if config.client_ca.is_some() && config.tls.is_none() {
            return Err(ConfigError::at(
                "fleetLock.clientCA",
                "client certificates are only checked over TLS: set fleetLock.tls too",
            ));
        }
        let consent = |given: Option<KnownConsent>, default| given.map_or(default, |KnownConsent(known)| known);
        Ok(config.enabled.then(|| Self {
            bind: config.bind.unwrap_or(FLEET_LOCK_BIND),
            tls: config.tls,
            client_ca: config.client_ca,
            bearer_token_file: config.bearer_token_file,
            consents: Consents {
                unmanaged_pods: consent(config.unmanaged_pods, Consent::Keep),
                // Most nodes have such pods, and their machines could never update otherwise.
                empty_dir_data: consent(config.empty_dir_data, Consent::Evict),
            },
        }))
    }
}
