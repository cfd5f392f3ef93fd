//! A CephCluster by its failure domains.

use std::collections::BTreeMap;

use jiff::Timestamp;
use nodeward_api::CephClusterState;
use serde::Serialize;

use crate::commands::status::ceph::placement_groups;
use crate::describe::{self, prefixed};
use crate::model::ceph::{CephCluster, Published};
use crate::text::Style;

/// A CephCluster by its failure domains.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct FleetCeph {
    #[serde(flatten)]
    cluster: CephCluster,
    name: String,
    style: Style,
    sentence: String,
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
        let (style, sentence) = match &cluster.published {
            Published::State(state) => (describe::ceph_style(state), sentence(state, now)),
            Published::Unreadable(problem) => (Style::Bad, problem.clone()),
        };
        let conditions = cluster.state().into_iter().flat_map(|state| &state.conditions);
        let conditions = conditions.map(|condition| Sentence {
            sentence: format!(
                "{}: {} [{}]",
                condition.kind.explanation(),
                condition.message,
                condition.kind
            ),
            since: condition.since,
        });
        Self {
            name: cluster.name(),
            style,
            sentence,
            domains: cluster.state().map(domains).unwrap_or_default(),
            conditions: conditions.collect(),
            cluster: cluster.clone(),
        }
    }
}

fn sentence(state: &CephClusterState, now: Timestamp) -> String {
    let exempt = prefixed(" but for ", state.exempt());
    let groups = Some(placement_groups(state, now)).filter(|text| !text.is_empty());
    let groups = prefixed("; placement groups ", groups);
    let (budgets, explanation, reason) = (state.disruptions, state.reason.explanation(), state.reason);
    format!("OSD budgets {budgets}{exempt}: the cluster {explanation} [{reason}]{groups}")
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
