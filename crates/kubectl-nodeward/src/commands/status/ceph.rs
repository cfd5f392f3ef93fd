//! The CephClusters, as ceph-pdb publishes them.

use jiff::Timestamp;
use nodeward_api::CephClusterState;
use nodeward_api::ceph_state::PublishedDisruptions;
use nodeward_api::reason::{CephCondition, CephReason};

use crate::describe::{self, prefixed};
use crate::model::ceph::{CephCluster, Published};
use crate::text::Style;
use crate::text::page::Page;
use crate::text::table::{Cell, Column, Table};
use crate::text::time::age;

/// How many OSDs, and hosts with `noout`, are named.
const NAMED: usize = 4;

pub fn print(page: &mut Page, clusters: &[CephCluster], now: Timestamp) {
    let mut table = Table::new([
        Column::Flexible("CEPH CLUSTER"),
        Column::Fixed("OSD BUDGETS"),
        Column::Fixed("FOR"),
        Column::Flexible("BUT FOR"),
        Column::Flexible("OSDS DOWN"),
        Column::Flexible("PGS"),
        Column::Flexible("NOOUT"),
        Column::Flexible("REASON"),
    ]);
    for cluster in clusters {
        let name = Cell::new(Style::Strong, cluster.name());
        match &cluster.published {
            Published::State(state) => table.row(row(name, state, now)),
            Published::Unreadable(_) => table.row([name, Cell::new(Style::Bad, "Unreadable")]),
        }
    }
    page.separate_table(table);
    for cluster in clusters {
        match &cluster.published {
            Published::State(state) => {
                if is_ready_to_take_over(state) {
                    page.point(
                        Style::Good,
                        format!("{} is ready to be taken over from Rook", cluster.name()),
                    );
                }
                if let Some(would) = &state.preview {
                    page.point(
                        Style::Plain,
                        format!("{}: {}", cluster.name(), describe::ceph_preview(would)),
                    );
                }
                for condition in &state.conditions {
                    let text = describe::ceph_condition(condition, now);
                    page.point(Style::Warning, format!("{} {text}", cluster.name()));
                }
            }
            Published::Unreadable(problem) => page.point(Style::Warning, format!("{}: {problem}", cluster.name())),
        }
    }
    let mut states = clusters.iter().filter_map(CephCluster::state);
    if states.any(|state| state.disruptions.is_closed()) {
        page.text(Style::Faint, "What Ceph waits for: kubectl nodeward why NODE");
    }
}

/// Whether nothing would keep ceph-pdb from managing the budgets: it has asked Ceph all, and there is nothing to look at.
fn is_ready_to_take_over(state: &CephClusterState) -> bool {
    let is_checked = state.reason == CephReason::ManagedByRook && state.failure_domain_type.is_some();
    let mut open = state.conditions.iter().map(|condition| condition.kind);
    is_checked && open.all(|kind| kind == CephCondition::ManagedByRookAgain)
}

fn row(name: Cell, state: &CephClusterState, now: Timestamp) -> [Cell; 8] {
    let down = state.down_osds.iter().flat_map(|(domain, osds)| {
        let domain = Some(domain).filter(|domain| !domain.is_empty());
        let domain = prefixed(" in ", domain);
        osds.iter().map(move |osd| format!("{osd}{domain}"))
    });
    [
        name,
        Cell::new(describe::ceph_style(state), state.disruptions.to_string()),
        age(state.since, now).into(),
        state.exempt().unwrap_or_default().into(),
        describe::first(&down.collect::<Vec<_>>(), NAMED).into(),
        placement_groups(state, now).into(),
        describe::first(&state.noout.keys().collect::<Vec<_>>(), NAMED).into(),
        state.reason.as_str().into(),
    ]
}

/// Whether they are clean, and whether that is known of now.
pub fn placement_groups(state: &CephClusterState, now: Timestamp) -> String {
    if state.disruptions == PublishedDisruptions::Unmanaged {
        return String::new();
    }
    let clean = match state.is_clean {
        Some(true) => "clean",
        Some(false) => "not clean",
        None => "unknown",
    };
    match state.statistics_fresh_since {
        Some(since) => format!("{clean}, fresh for {}", age(since, now)),
        None => format!("{clean}, stale"),
    }
}
