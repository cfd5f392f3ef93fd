//! What Ceph waits for where a node has OSDs: what ends it, and what a person can do.

use jiff::Timestamp;
use nodeward_api::CephClusterState;
use nodeward_api::reason::{CephCondition, CephReason};
use nodeward_core::text::counted;

use crate::describe::{self, prefixed};
use crate::model::ceph::{CephCluster, NodeCeph, OsdEvictions, Published};
use crate::text::Style;
use crate::text::page::Page;
use crate::text::table::Cell;
use crate::text::time::moment;

/// How many nodes of a domain are named.
const NAMED: usize = 5;

/// The state of a cluster that waits for nothing.
fn settled(cluster: &CephCluster) -> Option<&CephClusterState> {
    let state = cluster.state()?;
    let would_close = state.preview.as_ref().is_some_and(|would| would.is_closed);
    let is_settled = !state.disruptions.is_closed() && !would_close && state.conditions.is_empty();
    is_settled.then_some(state)
}

/// One line for clusters that wait for nothing; the others get a section each.
pub fn print_summary(page: &mut Page, ceph: Option<&[NodeCeph]>) {
    let settled = ceph.into_iter().flatten().filter_map(|ceph| {
        let state = settled(&ceph.cluster)?;
        let (name, explanation, reason) = (ceph.cluster.name(), state.reason.explanation(), state.reason);
        Some(format!("{}; CephCluster {name} {explanation} [{reason}]", osds(ceph)))
    });
    page.fields("ceph", settled);
}

pub fn print(page: &mut Page, ceph: &NodeCeph, now: Timestamp) {
    if settled(&ceph.cluster).is_some() {
        return;
    }
    page.heading(format!("Ceph, by CephCluster {}", ceph.cluster.name()));
    let state = match &ceph.cluster.published {
        Published::State(state) => state,
        Published::Unreadable(problem) => {
            page.field("state", Cell::new(Style::Bad, problem));
            page.field("here", describe::list(&ceph.osds));
            return;
        }
    };
    let (budgets, exempt) = (state.disruptions, prefixed(" but for ", state.exempt()));
    let (since, explanation, reason) = (moment(state.since, now), state.reason.explanation(), state.reason);
    let text = format!("{budgets}{exempt} since {since}: the cluster {explanation} [{reason}]");
    page.field("state", Cell::new(describe::ceph_style(state), text));
    page.fields("preview", state.preview.as_ref().map(describe::ceph_preview));
    let style = match ceph.evictions {
        Some(OsdEvictions::Refused | OsdEvictions::SomeExempt) => Style::Warning,
        _ => Style::Plain,
    };
    page.field("here", Cell::new(style, osds(ceph)));
    page.fields("down", down(state).map(|down| Cell::new(Style::Warning, down)));
    page.field("data", data(state, now));
    let noout = state.noout.iter();
    page.fields(
        "noout",
        noout.map(|(bucket, since)| format!("{bucket}, since {}", moment(*since, now))),
    );
    let conditions = state.conditions.iter();
    let conditions = conditions.map(|condition| format!("the cluster {}", describe::ceph_condition(condition, now)));
    page.fields("look at", conditions.map(|text| Cell::new(Style::Warning, text)));
    page.fields("next", next(state));
}

/// The node's OSDs, and which of them may be evicted.
fn osds(ceph: &NodeCeph) -> String {
    let state = ceph.cluster.state();
    let kind = state.map_or("failure domain", describe::domain_type);
    let domains: Vec<&String> = ceph.domains.iter().collect();
    let domains = match domains.as_slice() {
        [] => String::new(),
        domains => format!(" of {kind} {}", describe::list(domains)),
    };
    let osds = match ceph.osds.as_slice() {
        [] => "no OSD pod is on the node now; its OSDs".to_owned(),
        osds => describe::list(osds),
    };
    let may = match ceph.evictions {
        Some(OsdEvictions::OneAtATime) => "one OSD of the cluster at a time may be evicted".to_owned(),
        Some(OsdEvictions::AllExempt) => "may be evicted".to_owned(),
        Some(OsdEvictions::SomeExempt) => {
            let exempt = state.and_then(CephClusterState::exempt);
            format!("may be evicted where of {}", exempt.unwrap_or_default())
        }
        Some(OsdEvictions::Refused) => "may not be evicted".to_owned(),
        Some(OsdEvictions::Unmanaged) | None => "ceph-pdb writes no budgets".to_owned(),
    };
    format!("{osds}{domains}: {may}")
}

/// The OSDs that are down, by domain: `osd.2, osd.3 of rack b`.
fn down(state: &CephClusterState) -> impl Iterator<Item = String> {
    let kind = describe::domain_type(state);
    state.down_osds.iter().map(move |(domain, osds)| {
        let osds: Vec<String> = osds.iter().map(|osd| format!("osd.{osd}")).collect();
        let osds = describe::list(&osds);
        if domain.is_empty() {
            format!("{osds} of an unknown {kind}")
        } else {
            format!("{osds} of {kind} {domain}{}", prefixed(" on ", nodes_of(state, domain)))
        }
    })
}

/// The nodes with OSDs of a domain, unless they are called like it.
fn nodes_of(state: &CephClusterState, domain: &str) -> Option<String> {
    let nodes = state.nodes.iter().filter(|(_, domains)| domains.contains(domain));
    let nodes: Vec<&str> = nodes.map(|(node, _)| node.as_str()).collect();
    let is_news = !nodes.is_empty() && nodes != [domain];
    is_news.then(|| describe::first(&nodes, NAMED))
}

fn data(state: &CephClusterState, now: Timestamp) -> String {
    let clean = match state.is_clean {
        Some(true) => "all placement groups are clean",
        Some(false) => "not all placement groups are clean",
        None => "whether placement groups are clean is not known",
    };
    match state.statistics_fresh_since {
        Some(since) => format!("{clean}; statistics are fresh since {}", moment(since, now)),
        None => format!("{clean}; statistics are stale"),
    }
}

/// What ends it, and what a person can do.
fn next(state: &CephClusterState) -> Vec<String> {
    let mut next = Vec::new();
    if state.disruptions.is_closed() {
        next.push(format!("ends when {}", state.reason.ends_when()));
        next.extend(help_by_reason(state));
    }
    let drained: Vec<&str> = state.noout.keys().map(|node| &**node).collect();
    for condition in &state.conditions {
        match condition.kind {
            CephCondition::CannotHeal if !drained.is_empty() => next.push(format!(
                "the OSDs of {} come back with their node, which is down for its drain; if they do not: {}",
                describe::list(&drained),
                CANNOT_HEAL
            )),
            kind => next.extend(help_by_condition(kind).map(str::to_owned)),
        }
    }
    next
}

/// What ends that Ceph cannot recover without OSDs.
const CANNOT_HEAL: &str = "start them, purge them if their data is lost, or unset the flags";

fn help_by_reason(state: &CephClusterState) -> Option<String> {
    let help = match state.reason {
        CephReason::DomainDown => {
            let osds: usize = state.down_osds.values().map(std::collections::BTreeSet::len).sum();
            let are = if osds == 1 { "is" } else { "are" };
            return Some(format!(
                "to end it earlier: start and uncordon the nodes of the {} that {are} down",
                counted(osds, "OSD")
            ));
        }
        CephReason::SecondDomainDown => {
            "to end it: start the OSDs that failed; Ceph is asked again with each new statistic"
        }
        CephReason::CephNotAsked => "if it lasts, Ceph's monitors do not answer: ceph status",
        CephReason::StatisticsStale => "takes some ten seconds; if it lasts, no Ceph manager runs: ceph mgr stat",
        CephReason::AwaitingStopCheck => "if it lasts, the Ceph manager does not answer: ceph mgr stat",
        CephReason::Recovering => "if it does not go on, recovery is slow or stuck: ceph pg dump_stuck",
        CephReason::UnsurvivablePool => {
            "does not end by itself: give the pools more copies, or remove what is not needed"
        }
        _ => return None,
    };
    Some(help.to_owned())
}

const fn help_by_condition(condition: CephCondition) -> Option<&'static str> {
    match condition {
        CephCondition::CephUnavailable => Some("no budget opens until Ceph can be asked"),
        CephCondition::StopCheckFailed => Some("look at the Ceph manager: ceph mgr stat"),
        CephCondition::KeyTypeUnknown => {
            Some("install an image with a newer librados, or give the user a key of type aes")
        }
        CephCondition::BudgetWriteRefused => {
            Some("budgets may still allow what is to be refused: see what denies the write")
        }
        CephCondition::NooutRefused => Some(
            "until noout is changed, Ceph may move the data of drained hosts: give Ceph's user the caps that the message names",
        ),
        CephCondition::ManagedByRookAgain => Some(
            "unless you handed them back: see who sets managePodBudgets, with kubectl get cephcluster --show-managed-fields -o yaml",
        ),
        CephCondition::FailureDomainTypeUnknown => Some("mend failureDomainType in ceph-pdb's configuration"),
        CephCondition::StopCheckDisagrees => {
            Some("the stricter of the two holds; compare ceph osd ok-to-stop with ceph pg dump, and report it to Ceph")
        }
        CephCondition::NoManager => Some("no domain is exempt and nothing opens until one runs: ceph mgr stat"),
        CephCondition::UnsurvivablePools => Some("a drain stops the clients of these pools: give them more copies"),
        CephCondition::CannotHeal => {
            Some("does not end without the OSDs: start them, purge them if their data is lost, or unset the flags")
        }
        CephCondition::HealthCheckTimeoutIgnored => {
            Some("look at the placement groups that are inactive: ceph pg dump_stuck inactive")
        }
        CephCondition::NooutExpired => Some("Ceph moves the data of these hosts elsewhere unless they come back"),
        CephCondition::ForeignBudget => Some("delete the budget that is not ceph-pdb's"),
        CephCondition::OsdLabelWrong => Some("restart Rook's operator, so that it writes the label anew"),
        CephCondition::OsdOutsideDomains => Some("move it in CRUSH: ceph osd crush move"),
        CephCondition::OsdNotReady => Some("see why the pod is not Ready: kubectl describe pod"),
        CephCondition::OsdPodAbandoned => {
            Some("to start the node's kubelet stops the OSD: do not while another failure domain is down")
        }
        CephCondition::StopCheckRefused => Some("give these pools more copies, or wait until theirs are complete"),
        CephCondition::NotCheckedYet
        | CephCondition::NodeInSeveralDomains
        | CephCondition::Unreadable
        | CephCondition::Other => None,
    }
}

#[cfg(test)]
mod tests {
    use rstest::rstest;
    use serde_json::json;

    use super::next;

    fn told(disruptions: &str, reason: &str, conditions: &[&str]) -> String {
        let since = "2026-01-01T00:00:00Z";
        let conditions = conditions
            .iter()
            .map(|kind| json!({ "type": kind, "message": "m", "since": since }));
        let state = json!({
            "cluster": "rook", "disruptions": disruptions, "since": since, "reason": reason, "downOsds": { "a": [1] },
            "conditions": conditions.collect::<Vec<_>>(),
        });
        next(&serde_json::from_value(state).unwrap()).join("; ")
    }

    #[rstest]
    #[case(
        "DomainDown",
        "the OSDs are back",
        "start and uncordon the nodes of the 1 OSD that is down"
    )]
    #[case("SecondDomainDown", "the OSDs are back", "start the OSDs that failed")]
    #[case("CephNotAsked", "Ceph has answered", "ceph status")]
    #[case("StatisticsStale", "each OSD has reported twice", "ceph mgr stat")]
    #[case("AwaitingStopCheck", "the manager has answered", "ceph mgr stat")]
    #[case("Recovering", "no placement group lacks a copy", "ceph pg dump_stuck")]
    #[case("UnsurvivablePool", "the pool has more copies", "give the pools more copies")]
    fn closed_cluster_tells_its_end_and_help(#[case] reason: &str, #[case] end: &str, #[case] help: &str) {
        let closed = told("Closed", reason, &[]);
        assert!(closed.starts_with(&format!("ends when {end}")), "{closed}");
        assert!(closed.contains(help), "{closed}");
        assert_eq!(told("Open", reason, &[]), "");
    }

    #[rstest]
    #[case("StopCheckFailed", "ceph mgr stat")]
    #[case("KeyTypeUnknown", "newer librados")]
    #[case("BudgetWriteRefused", "see what denies the write")]
    #[case("NooutRefused", "give Ceph's user the caps")]
    #[case("ManagedByRookAgain", "see who sets managePodBudgets")]
    #[case("FailureDomainTypeUnknown", "mend failureDomainType")]
    #[case("StopCheckDisagrees", "the stricter of the two holds")]
    #[case("NoManager", "ceph mgr stat")]
    #[case("CannotHeal", "purge them if their data is lost")]
    #[case("ForeignBudget", "delete the budget")]
    #[case("OsdLabelWrong", "restart Rook's operator")]
    fn condition_tells_help_in_open_cluster(#[case] condition: &str, #[case] help: &str) {
        let open = told("Open", "AllClean", &[condition]);
        assert!(open.contains(help), "{open}");
    }

    #[test]
    fn nobody_is_told_to_purge_what_a_drain_brings_back() {
        let state = json!({
            "cluster": "rook", "disruptions": "Closed", "since": "2026-01-01T00:00:00Z", "reason": "DomainDown",
            "downOsds": { "a": [1] }, "noout": { "node-a": "2026-01-01T00:00:00Z" },
            "conditions": [{ "type": "CannotHeal", "message": "m", "since": "2026-01-01T00:00:00Z" }],
        });
        let told = next(&serde_json::from_value(state).unwrap()).join("; ");
        assert!(told.contains("the OSDs of node-a come back with their node"), "{told}");
    }

    #[test]
    fn condition_of_later_version_adds_nothing() {
        assert_eq!(told("Open", "AllClean", &["OfALaterVersion"]), "");
    }
}
