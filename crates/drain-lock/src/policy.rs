//! The configuration, checked and compiled once: nothing in here can be invalid.

use std::collections::BTreeSet;
use std::net::SocketAddr;
use std::path::PathBuf;

use jiff::SignedDuration;
use nodeward_api::node_drain::{Consent, Fallback};
use nodeward_core::consent::Consents;
use nodeward_core::duration::ConfigDuration;
use nodeward_core::hold::{DRAIN_LASTS, RECOVERY_LASTS};
use nodeward_core::selector::Selector;
use nodeward_core::window::Windows;
use nodeward_runtime::ConfigError;

use crate::config::{AutoConfig, Config, FleetLockConfig, KnownConsent, Mode};
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
    /// When drains of its own may begin.
    pub windows: Windows,
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
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Auto {
    /// Whether an eviction from a cordoned node asks for a NodeDrain.
    pub enabled: bool,
    /// Users whose evictions do so, whatever they may.
    pub also_drainers: BTreeSet<String>,
    /// Users whose evictions never do.
    pub never_drainers: BTreeSet<String>,
    /// Whether another drainer's eviction of a pod that asked to stay is refused.
    pub refuse_opt_out: bool,
    /// How long after its last eviction or end of a pod such a drain ends, while none of its pods is down.
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
            windows: config.windows,
            evictions_per_node: config
                .eviction
                .max_parallel
                .map_or(MAX_PARALLEL, |given| given.get() as usize),
            hold_max_duration: or(config.holds.max_duration, HOLD_MAX),
            auto: Auto::from_config(config.auto)?,
            node_selector: config.node_selector,
            node_groups: NodeGroup::from_config(config.node_groups)?,
            medik8s_leases: medik8s.enabled.unwrap_or(true).then_some(namespace),
            fleet_lock: FleetLock::from_config(config.fleet_lock)?,
        })
    }
}

impl Auto {
    fn from_config(config: AutoConfig) -> Result<Self, ConfigError> {
        let also_drainers = users("auto.alsoDrainers", config.also_drainers)?;
        let never_drainers = users("auto.neverDrainers", config.never_drainers)?;
        if let Some(both) = also_drainers.intersection(&never_drainers).next() {
            let text = format!("{both:?} is in auto.alsoDrainers, too; leave it in one of them");
            return Err(ConfigError::at("auto.neverDrainers", text));
        }
        Ok(Self {
            enabled: config.enabled.unwrap_or(true),
            also_drainers,
            never_drainers,
            refuse_opt_out: config.refuse_opt_out,
            quiet_period: config.quiet_period.map_or(QUIET_PERIOD, ConfigDuration::get),
        })
    }
}

/// The names of users, checked for what no user is called.
fn users(field: &str, given: Vec<String>) -> Result<BTreeSet<String>, ConfigError> {
    let mut users = BTreeSet::new();
    for (index, name) in given.into_iter().enumerate() {
        if let Some(problem) = problem_of_user(&name) {
            return Err(ConfigError::at(
                format!("{field}[{index}]"),
                format!("{name:?} {problem}"),
            ));
        }
        if users.contains(&name) {
            let text = format!("{name:?} is there twice; leave one of them out");
            return Err(ConfigError::at(format!("{field}[{index}]"), text));
        }
        users.insert(name);
    }
    Ok(users)
}

fn problem_of_user(name: &str) -> Option<&'static str> {
    if name.is_empty() || name.len() > 1024 || name.chars().any(|c| c.is_whitespace() || c.is_control()) {
        return Some("is no user's name; write it as kubectl auth whoami shows it");
    }
    if name.contains('*') {
        return Some("has a wildcard, and names are compared as they are; name each user");
    }
    if name.starts_with("system:serviceaccounts") {
        return Some("is a group; name each ServiceAccount as system:serviceaccount:NAMESPACE:NAME");
    }
    let is_name = |part: &str| {
        let is_allowed = |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit() || byte == b'-' || byte == b'.';
        !part.is_empty() && part.bytes().all(is_allowed)
    };
    let account = name.strip_prefix("system:serviceaccount:")?;
    let is_account = account
        .split_once(':')
        .is_some_and(|(namespace, name)| is_name(namespace) && is_name(name));
    (!is_account).then_some("is no ServiceAccount; write system:serviceaccount:NAMESPACE:NAME")
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

#[cfg(test)]
mod tests {
    use rstest::rstest;
    use serde_json::{Value, json};

    use super::*;

    fn auto(config: Value) -> Result<Auto, String> {
        let config = serde_json::from_value(json!({ "auto": config })).unwrap();
        let policy = Policy::from_config(config).map_err(|error| error.to_string())?;
        Ok(policy.auto)
    }

    #[rstest]
    #[case::person("alice@example.com")]
    #[case::issuer("https://idp.example.com#7f3a")]
    #[case::service_account("system:serviceaccount:kube-system:descheduler")]
    #[case::dotted_service_account("system:serviceaccount:ops:drain.er")]
    #[case::node("system:node:n1")]
    fn users_are_taken_by_their_full_names(#[case] name: &str) {
        let auto = auto(json!({ "alsoDrainers": [name, "bob"], "neverDrainers": ["carol"] })).unwrap();
        assert!(auto.also_drainers.contains(name) && auto.never_drainers.contains("carol"));
    }

    #[rstest]
    #[case::empty(json!({ "alsoDrainers": [""] }), "auto.alsoDrainers[0]", "is no user's name")]
    #[case::blank(json!({ "alsoDrainers": ["bob", "al ice"] }), "auto.alsoDrainers[1]", "is no user's name")]
    #[case::endless(json!({ "neverDrainers": ["a".repeat(1025)] }), "auto.neverDrainers[0]", "is no user's name")]
    #[case::wildcard(json!({ "neverDrainers": ["system:node:*"] }), "auto.neverDrainers[0]", "name each user")]
    #[case::group(json!({ "alsoDrainers": ["system:serviceaccounts:ops"] }), "auto.alsoDrainers[0]", "is a group")]
    #[case::half_an_account(json!({ "alsoDrainers": ["system:serviceaccount:drainer"] }), "auto.alsoDrainers[0]", "NAMESPACE:NAME")]
    #[case::account_with_more(json!({ "alsoDrainers": ["system:serviceaccount:a:b:c"] }), "auto.alsoDrainers[0]", "NAMESPACE:NAME")]
    #[case::account_in_capitals(json!({ "alsoDrainers": ["system:serviceaccount:Ops:b"] }), "auto.alsoDrainers[0]", "NAMESPACE:NAME")]
    #[case::twice(json!({ "alsoDrainers": ["bob", "bob"] }), "auto.alsoDrainers[1]", "is there twice")]
    #[case::in_both(json!({ "alsoDrainers": ["bob"], "neverDrainers": ["bob"] }), "auto.neverDrainers", "leave it in one")]
    fn names_that_no_user_has_are_refused(#[case] config: Value, #[case] place: &str, #[case] remedy: &str) {
        let error = auto(config).unwrap_err();
        assert!(error.contains(place) && error.contains(remedy), "{error}");
    }
}
