//! A CephCluster by its failure domains.

use std::collections::BTreeMap;

use jiff::Timestamp;
use nodeward_api::CephClusterState;
use nodeward_api::ceph_state::PublishedDisruptions;
use nodeward_api::reason::CephReason;
use serde::Serialize;

use crate::commands::status::ceph::placement_groups;
use crate::describe::{self, prefixed};
use crate::model::ceph::{CephCluster, Published};
use crate::text::Style;

/// A CephCluster by its failure domains.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct FleetCeph {
    namespace: String,
    name: String,
    style: Style,
    sentence: String,
    unreadable: Option<String>,
    disruptions: Option<PublishedDisruptions>,
    exempt_domain: Option<String>,
    since: Option<Timestamp>,
    reason: Option<CephReason>,
    failure_domain_type: Option<String>,
    is_clean: Option<bool>,
    statistics_fresh_since: Option<Timestamp>,
    domains: Vec<Domain>,
    conditions: Vec<Sentence>,
}

/// A failure domain.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize)]
struct Domain {
    name: String,
    nodes: Vec<String>,
    /// OSDs that are down.
    down: Vec<i64>,
    exempt: bool,
    /// Since when its `noout` is set.
    noout: Option<Timestamp>,
}

/// What somebody should look at.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
struct Sentence {
    sentence: String,
    since: Timestamp,
}

impl FleetCeph {
    pub fn of(cluster: &CephCluster, now: Timestamp) -> Self {
        let unreadable = Self {
            namespace: cluster.namespace.clone(),
            name: cluster.name(),
            style: Style::Bad,
            sentence: String::new(),
            unreadable: None,
            disruptions: None,
            exempt_domain: None,
            since: None,
            reason: None,
            failure_domain_type: None,
            is_clean: None,
            statistics_fresh_since: None,
            domains: Vec::new(),
            conditions: Vec::new(),
        };
        let state = match &cluster.published {
            Published::State(state) => state,
            Published::Unreadable(problem) => {
                return Self {
                    sentence: problem.clone(),
                    unreadable: Some(problem.clone()),
                    ..unreadable
                };
            }
        };
        let exempt = prefixed(" but for ", state.exempt());
        let groups = prefixed(
            "; placement groups ",
            Some(placement_groups(state, now)).filter(|text| !text.is_empty()),
        );
        let (budgets, reason) = (state.disruptions, state.reason);
        Self {
            style: describe::ceph_style(state),
            sentence: format!(
                "OSD budgets {budgets}{exempt}: the cluster {} [{reason}]{groups}",
                reason.explanation()
            ),
            disruptions: Some(budgets),
            exempt_domain: state.exempt_domain.clone(),
            since: Some(state.since),
            reason: Some(reason),
            failure_domain_type: state.failure_domain_type.clone(),
            is_clean: state.is_clean,
            statistics_fresh_since: state.statistics_fresh_since,
            domains: domains(state),
            conditions: state
                .conditions
                .iter()
                .map(|condition| Sentence {
                    sentence: format!(
                        "{}: {} [{}]",
                        condition.kind.explanation(),
                        condition.message,
                        condition.kind
                    ),
                    since: condition.since,
                })
                .collect(),
            ..unreadable
        }
    }
}

/// Those that have OSDs on nodes, or OSDs that are down.
fn domains(state: &CephClusterState) -> Vec<Domain> {
    let mut domains: BTreeMap<&str, Domain> = BTreeMap::new();
    for (node, named) in &state.nodes {
        for domain in named {
            domains.entry(domain).or_default().nodes.push(node.clone());
        }
    }
    for (domain, osds) in &state.down_osds {
        domains.entry(domain).or_default().down.extend(osds);
    }
    let domains = domains.into_iter().map(|(name, mut domain)| {
        // The flag is set on the domain's own bucket, or on that of a host in it.
        let buckets = std::iter::once(name).chain(domain.nodes.iter().map(String::as_str));
        domain.noout = buckets.filter_map(|bucket| state.noout.get(bucket)).min().copied();
        domain.exempt = state.exempt_domain.as_deref() == Some(name);
        name.clone_into(&mut domain.name);
        domain
    });
    domains.collect()
}
