//! The fleet at a glance.

use std::collections::BTreeMap;
use std::fmt::Write as _;

use jiff::Timestamp;

use super::{drain, obstacle, unread};
use crate::text::line::Tone;
use crate::text::page::Page;
use crate::text::table::{Cell, Column, Table};
use crate::text::time::{age, distance};
use crate::view::node::NodeGlance;
use crate::view::status::{Component, ComponentState, Status};

/// The fleet at a glance.
pub fn page(status: &Status, now: Timestamp) -> Page {
    let mut page = Page::new();
    components(&mut page, &status.components, now);
    if let Some(nodes) = status.nodes {
        let tone = if nodes.not_ready > 0 {
            Tone::Warning
        } else {
            Tone::Plain
        };
        let text = format!(
            "{} in all, {} cordoned, {} not Ready",
            nodes.total, nodes.cordoned, nodes.not_ready
        );
        page.field("nodes", tone, text);
    }
    let has_drain_lock = !status.unread.iter().any(|unread| {
        matches!(
            unread,
            crate::view::unread::Unread::NotInstalled { what: "drains", .. }
                | crate::view::unread::Unread::Forbidden { what: "drains", .. }
        )
    });
    if has_drain_lock {
        page.field("drains", Tone::Plain, phases(status));
    }
    if let Some(locks) = status.locks {
        let text = format!(
            "{} held by drains, {} waited for, {} held by owners",
            locks.held, locks.waited_for, locks.owner_held
        );
        page.field("budgets", Tone::Plain, text);
    }
    drains(&mut page, status, now);
    timed(&mut page, &status.timed, now);
    unread::add(&mut page, &status.unread);
    page
}

fn components(page: &mut Page, components: &[Component], now: Timestamp) {
    if components.is_empty() {
        page.field("components", Tone::Warning, "none found");
    }
    for (index, component) in components.iter().enumerate() {
        let name = if index == 0 { "components" } else { "" };
        let (tone, state) = match component.state {
            ComponentState::Leading => (Tone::Good, "works".to_owned()),
            ComponentState::Ready => (Tone::Good, "is ready".to_owned()),
            ComponentState::NotLeading => {
                let last = component
                    .renewed
                    .map(|renewed| format!("; the last was seen {}", distance(renewed, now)));
                (Tone::Bad, format!("has no leader{}", last.unwrap_or_default()))
            }
            ComponentState::NotReady => (Tone::Bad, "has no ready replica".to_owned()),
        };
        let version = component
            .version
            .as_ref()
            .map(|version| format!(" {version}"))
            .unwrap_or_default();
        let replicas = match (component.ready, component.replicas) {
            (Some(ready), Some(replicas)) => format!(", {ready} of {replicas} ready"),
            _ => String::new(),
        };
        let leader = component
            .leader
            .as_ref()
            .map(|leader| format!(", led by {leader}"))
            .unwrap_or_default();
        let namespace = &component.namespace;
        page.field(
            name,
            tone,
            format!("{}{version} {state} in {namespace}{replicas}{leader}", component.name),
        );
    }
}

fn phases(status: &Status) -> String {
    let mut counts: BTreeMap<_, usize> = BTreeMap::new();
    for drain in &status.drains {
        *counts.entry((drain.phase, drain::phase(drain))).or_default() += 1;
    }
    let counts: Vec<String> = counts
        .into_iter()
        .map(|((_, phase), count)| format!("{count} {phase}"))
        .collect();
    if counts.is_empty() {
        "none".to_owned()
    } else {
        counts.join(", ")
    }
}

fn drains(page: &mut Page, status: &Status, now: Timestamp) {
    if status.drains.is_empty() {
        return;
    }
    let mut table = Table::new([
        Column::flexible("DRAIN OF"),
        Column::fixed("PHASE"),
        Column::number("TICKET"),
        Column::fixed("FOR"),
        Column::fixed("GONE"),
        Column::flexible("WAITS FOR"),
    ]);
    for drain in &status.drains {
        table.row([
            Cell::new(Tone::Strong, drain.node.clone()),
            Cell::new(drain::tone(drain.phase), drain::phase(drain)),
            drain.ticket.map(|ticket| ticket.to_string()).unwrap_or_default().into(),
            drain::age(drain, now).unwrap_or_default().into(),
            drain.pods.map(drain::pods_short).unwrap_or_default().into(),
            obstacle::summary(&drain.blocked_by).into(),
        ]);
    }
    page.gap();
    page.table(0, table);
}

fn timed(page: &mut Page, nodes: &[NodeGlance], now: Timestamp) {
    if nodes.is_empty() {
        return;
    }
    let mut table = Table::new([
        Column::flexible("DRAIN-KEEPER TIMES"),
        Column::fixed("FOR"),
        Column::fixed("BLOCKED BY"),
        Column::flexible("PODS"),
    ]);
    for node in nodes {
        let keeper = node.drain_keeper.as_ref();
        let blocked = keeper.and_then(|keeper| keeper.blocked.as_ref());
        let message = blocked.and_then(|blocked| blocked.pods.as_ref());
        let failed = message.is_some_and(|message| message.drain_failed);
        let names: Vec<&str> = message
            .iter()
            .flat_map(|message| &message.named)
            .filter_map(|text| text.split(' ').next())
            .collect();
        let more = message.map_or(0, |message| message.pods.saturating_sub(3.min(names.len())));
        let mut pods = names.iter().take(3).copied().collect::<Vec<_>>().join(", ");
        if more > 0 {
            let _ = write!(pods, ", +{more}");
        }
        table.row([
            Cell::new(Tone::Strong, node.name.clone()),
            keeper
                .and_then(|keeper| keeper.drain_began)
                .map(|began| age(began, now))
                .unwrap_or_default()
                .into(),
            Cell::new(
                if failed { Tone::Bad } else { Tone::Warning },
                blocked.map(|blocked| blocked.reason.clone()).unwrap_or_default(),
            ),
            pods.into(),
        ]);
    }
    page.gap();
    page.table(0, table);
    if nodes.iter().any(|node| {
        node.drain_keeper
            .as_ref()
            .is_some_and(|keeper| keeper.blocked.is_some())
    }) {
        page.text(Tone::Faint, "What happens next: kubectl nodeward why NODE");
    }
}
