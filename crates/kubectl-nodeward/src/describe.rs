//! Wording that several commands share: a drain's phase and pods, a reason that it waits, and data that could not be read.

use std::collections::BTreeMap;
use std::fmt::{Display, Write as _};

use jiff::Timestamp;
use nodeward_api::CephClusterState;
use nodeward_api::ceph_state::{DisruptionsPreview, PublishedCondition, PublishedDisruptions};
use nodeward_api::node_drain::{BlockedBy, Evictor, Fallback, GRANT_IDLE, Phase, PodCounts};
use nodeward_api::reason::{CephReason, LockReason};
use nodeward_core::text::counted;

use crate::model::Unread;
use crate::model::component::Component;
use crate::model::drain::Drain;
use crate::model::health::Stop;
use crate::text::Style;
use crate::text::page::Page;
use crate::text::time::{age, ahead, distance, moment, span, with_distances};

pub fn phase_style(phase: Option<Phase>) -> Style {
    match phase {
        Some(Phase::Drained | Phase::Released) => Style::Good,
        Some(Phase::Granted | Phase::Draining | Phase::Recovering) => Style::Plain,
        Some(Phase::Scheduled | Phase::Queued) | None => Style::Warning,
        Some(Phase::Suspect | Phase::Failed) => Style::Bad,
    }
}

/// The phase in one word.
pub fn phase(drain: &Drain) -> &'static str {
    match drain.phase {
        _ if drain.ending => "Ending",
        _ if drain.dry_run => "Planned",
        Some(phase) => phase.as_str(),
        None => "Requested",
    }
}

pub fn phase_meaning(drain: &Drain) -> &'static str {
    match drain.phase {
        _ if drain.ending => "cancelled; it ends when its disruptions have returned",
        None => "drain-lock has not answered yet",
        Some(Phase::Scheduled) if drain.blocked_by.iter().all(|blocked| blocked.reason.is_a_step()) => {
            "has not begun yet"
        }
        Some(Phase::Scheduled) => "has not begun: something stands in its way that no other drain lifts",
        Some(Phase::Queued) => "waits for other drains; pods that find room elsewhere may leave already",
        Some(Phase::Granted) => "its claim is granted and is being confirmed",
        Some(Phase::Draining) if drain.granted => "its claim is granted and its pods are leaving",
        Some(Phase::Draining) => "its pods are leaving; those that go down with the node wait for its claim",
        Some(Phase::Drained) => "no pod has to leave any more: the node may go down",
        Some(Phase::Recovering) => "its turn is over; its disruptions return as its pods become ready",
        Some(Phase::Released) => "over; it holds nothing any more",
        Some(Phase::Suspect) => {
            "its drainer is gone while pods are down; its disruptions return when the pods do, or by an administrator"
        }
        Some(Phase::Failed) => "abandoned",
    }
}

/// What its status says of it in words of its own, or what its phase means.
pub fn message(drain: &Drain) -> &str {
    drain.message.as_deref().unwrap_or_else(|| phase_meaning(drain))
}

/// `3 of 8 gone, 2 evicting, 1 stays`.
pub fn pods(counts: PodCounts) -> String {
    if counts.total == 0 {
        return "no pods to leave".to_owned();
    }
    let stay = if counts.retained == 1 { "stays" } else { "stay" };
    let mut text = format!("{} of {} gone", counts.gone, counts.total);
    for (count, what) in [
        (counts.evicting, "evicting"),
        (counts.waiting, "waiting"),
        (counts.retained, stay),
    ] {
        if count > 0 {
            let _ = write!(text, ", {count} {what}");
        }
    }
    text
}

/// The same in few columns: `3/8`.
pub fn pods_short(counts: PodCounts) -> String {
    format!("{}/{}", counts.gone, counts.total)
}

/// What drain-lock does when the drain's time is over; `None` where that is only reported.
pub fn requeue(drain: &Drain, now: Timestamp) -> Option<String> {
    let at = ahead(drain.deadline, now)?;
    let acts = drain.granted && drain.fallback == Fallback::ReleaseAndRequeue;
    let acts = acts && matches!(drain.phase?, Phase::Draining | Phase::Granted);
    acts.then(|| format!("drain-lock releases what it can and queues it again at {at} (fallback ReleaseAndRequeue)"))
}

/// What drain-lock does with a grant that the drain's own drainer does not use; nobody else hears when that one stops.
pub fn idle(drain: &Drain) -> Option<String> {
    let evicts = drain.granted && drain.evict == Evictor::Requester && drain.phase == Some(Phase::Draining);
    evicts.then(|| {
        format!(
            "if the drainer of {} has stopped, others may use what it does not, at the latest once it has evicted nothing for {}; to \
             end that drain now",
            drain.node,
            span(GRANT_IDLE)
        )
    })
}

/// That drain-lock goes on without the pods that cannot go.
pub fn leaves_out(drain: &Drain, now: Timestamp) -> Option<String> {
    let at = ahead(drain.leaves_out_at, now)?;
    Some(format!("drain-lock goes on at {at} without the pods that cannot go"))
}

/// A deadline that is only reported.
pub fn overdue(drain: &Drain, now: Timestamp) -> Option<String> {
    let deadline = drain.deadline?;
    if matches!(drain.phase?, Phase::Released | Phase::Failed) || requeue(drain, now).is_some() {
        return None;
    }
    let at = moment(deadline, now);
    Some(if deadline <= now {
        format!("it is overdue since {at}, which is reported and changes nothing")
    } else {
        format!("it is reported as overdue from {at} on, which changes nothing")
    })
}

/// For how long a drain has been in its phase.
pub fn phase_age(drain: &Drain, now: Timestamp) -> Option<String> {
    drain.in_phase_since().map(|since| age(since, now))
}

/// One obstacle, with its reason, by which it is found in Events and metrics.
pub fn obstacle(blocked: &BlockedBy) -> String {
    let mut text = match blocked.message.as_str() {
        "" => blocked.reason.explanation().to_owned(),
        message => message.to_owned(),
    };
    let parts = [("PDB", &blocked.pdb), ("pod", &blocked.pod), ("node", &blocked.node)];
    let unnamed: Vec<String> = parts
        .into_iter()
        .filter_map(|(kind, name)| Some((kind, name.as_ref().filter(|name| !names(&text, name))?)))
        .map(|(kind, name)| format!("{kind} {name}"))
        .collect();
    if !unnamed.is_empty() {
        let _ = write!(text, " ({})", unnamed.join(", "));
    }
    format!("{text} [{}]", blocked.reason)
}

/// Whether the text has this name as a word of its own: `shop/web-0` does not name `shop/web`.
fn names(text: &str, name: &str) -> bool {
    let is_of_name = |letter: char| letter.is_ascii_alphanumeric() || matches!(letter, '/' | '-' | '.');
    text.split(|letter| !is_of_name(letter)).any(|word| word == name)
}

/// Each obstacle once: the plan and the ledger may both report it.
pub fn distinct(blocked: &[BlockedBy]) -> Vec<&BlockedBy> {
    let subject = |blocked: &BlockedBy| {
        let BlockedBy { pdb, pod, node, .. } = blocked.clone();
        (blocked.reason, pdb, pod, node)
    };
    let mut seen: Vec<&BlockedBy> = Vec::new();
    for obstacle in blocked {
        if !seen.iter().any(|other| subject(other) == subject(obstacle)) {
            seen.push(obstacle);
        }
    }
    seen
}

/// The same without steps of the drain itself. That a deadline has passed is no obstacle: it says how long the others last.
pub fn obstacles(blocked: &[BlockedBy]) -> Vec<&BlockedBy> {
    let mut obstacles = distinct(blocked);
    obstacles.retain(|obstacle| !obstacle.reason.is_a_step());
    if obstacles
        .iter()
        .any(|obstacle| obstacle.reason != LockReason::DeadlinePassed)
    {
        obstacles.retain(|obstacle| obstacle.reason != LockReason::DeadlinePassed);
    }
    obstacles
}

/// All obstacles in a few words, for a table: `node-2 (shop/web), +1`.
pub fn obstacles_short(blocked: &[BlockedBy]) -> String {
    let blocked = obstacles(blocked);
    let Some(first) = blocked.first() else {
        return String::new();
    };
    let text = match (&first.node, &first.pdb, &first.pod) {
        (Some(node), Some(pdb), _) => format!("{node} ({pdb})"),
        (Some(node), None, _) => format!("{node} ({})", first.reason),
        (None, Some(about), _) | (None, None, Some(about)) => format!("{} {about}", first.reason),
        (None, None, None) => first.reason.to_string(),
    };
    text + &more(blocked.len() - 1)
}

pub fn ceph_style(state: &CephClusterState) -> Style {
    match (state.disruptions, state.reason) {
        (PublishedDisruptions::Open, _) => Style::Good,
        (PublishedDisruptions::Unmanaged, _) => Style::Plain,
        (PublishedDisruptions::Closed, CephReason::SecondDomainDown) | (PublishedDisruptions::Closing, _) => Style::Bad,
        (PublishedDisruptions::Closed, _) => Style::Warning,
    }
}

/// `host`, `rack`, …
pub fn domain_type(state: &CephClusterState) -> &str {
    state.failure_domain_type.as_deref().unwrap_or("failure domain")
}

/// What somebody should look at: completes "the cluster …".
pub fn ceph_condition(condition: &PublishedCondition, now: Timestamp) -> String {
    let PublishedCondition { kind, message, since } = condition;
    format!("{}: {message} [{kind}, {}]", kind.explanation(), distance(*since, now))
}

/// What ceph-pdb would do while Rook manages the budgets: completes "CephCluster …: ".
pub fn ceph_preview(would: &DisruptionsPreview) -> String {
    let may_go = match (would.is_closed, &would.exempt) {
        (false, _) => "one OSD at a time".to_owned(),
        (true, Some(exempt)) => format!("only OSDs of {exempt}"),
        (true, None) => "no OSD".to_owned(),
    };
    let (explanation, reason) = (would.reason.explanation(), would.reason);
    format!("ceph-pdb would let {may_go} go: the cluster {explanation} [{reason}]")
}

/// `, +2`; nothing for none.
pub fn more(count: usize) -> String {
    if count == 0 {
        String::new()
    } else {
        format!(", +{count}")
    }
}

/// The first of these names, and how many more there are.
pub fn first<T: AsRef<str>>(names: &[T], most: usize) -> String {
    let named: Vec<&str> = names.iter().take(most).map(AsRef::as_ref).collect();
    named.join(", ") + &more(names.len().saturating_sub(most))
}

/// What a budget allows: `no disruption now`, `2 disruptions now`.
pub fn disruptions(allowed: i32) -> String {
    match allowed {
        ..=0 => "no disruption now".to_owned(),
        allowed => format!("{} now", counted(allowed, "disruption")),
    }
}

/// `a`, `a and b`, `a, b and c`.
pub fn list<T: AsRef<str>>(items: &[T]) -> String {
    let items: Vec<&str> = items.iter().map(AsRef::as_ref).collect();
    match items.as_slice() {
        [first @ .., last] if !first.is_empty() => format!("{} and {last}", first.join(", ")),
        items => items.concat(),
    }
}

/// `prefix` and the value, where there is one.
pub fn prefixed<T: Display>(prefix: &str, value: Option<T>) -> String {
    value.map(|value| format!("{prefix}{value}")).unwrap_or_default()
}

/// What stops a remediation, its reason, and when it ends by itself.
pub fn stop(stop: &Stop, now: Timestamp) -> String {
    let until = prefixed(", until ", ahead(stop.until, now));
    format!("{} [{}{until}]", with_distances(&stop.detail, now), stop.reason)
}

/// The components that are installed, and whether each works.
pub fn components(page: &mut Page, components: &[Component], now: Timestamp) {
    page.fields("components", components.iter().map(|component| component.line(now)));
}

/// What could not be read, and why; nothing if all could. It is said before anything else: what is missing may be what counts.
pub fn cannot_tell(page: &mut Page, unread: &[Unread]) {
    for unread in unread.iter().filter(|unread| unread.is_hidden()) {
        page.text(Style::Warning, format!("Cannot tell: {unread}."));
    }
}

/// What there is nothing to show of, for its component is not installed.
pub fn not_installed(page: &mut Page, unread: &[Unread]) {
    let mut absent: BTreeMap<&str, Vec<&str>> = BTreeMap::new();
    for unread in unread {
        if let Unread::NotInstalled { what, component } = unread {
            absent.entry(component).or_default().push(what);
        }
    }
    if !absent.is_empty() {
        page.gap();
    }
    for (component, what) in absent {
        let what = list(&what);
        let text = format!("{component} is not installed: there are no {what} to show.");
        page.text(Style::Faint, text);
    }
}

#[cfg(test)]
mod tests {
    use nodeward_api::NodeDrain;
    use rstest::rstest;
    use serde_json::json;

    use super::*;

    fn blocked(reason: LockReason, pdb: &str, pod: &str, node: &str, message: &str) -> BlockedBy {
        let some = |text: &str| (!text.is_empty()).then(|| text.to_owned());
        BlockedBy {
            reason,
            pdb: some(pdb),
            pod: some(pod),
            node: some(node),
            message: message.to_owned(),
        }
    }

    #[rstest]
    #[case::without_a_message(
        blocked(LockReason::Reserved, "shop/web", "", "node-2", ""),
        "waits for disruptions of a budget that are kept for an older drain (PDB shop/web, node node-2) [Reserved]",
        "node-2 (shop/web)"
    )]
    #[case::message_names_all(
        blocked(
            LockReason::WaitsForDisruptions,
            "shop/web",
            "",
            "node-2",
            "shop/web waits for disruptions of a budget that another drain holds (1 needed, 0 free): node node-2"
        ),
        "shop/web waits for disruptions of a budget that another drain holds (1 needed, 0 free): node node-2 [WaitsForDisruptions]",
        "node-2 (shop/web)"
    )]
    #[case::longer_name_is_another(
        blocked(
            LockReason::BudgetUnhealthy,
            "shop/web",
            "shop/web-0",
            "",
            "pod shop/web-0 waits for a budget whose pods are not healthy"
        ),
        "pod shop/web-0 waits for a budget whose pods are not healthy (PDB shop/web) [BudgetUnhealthy]",
        "BudgetUnhealthy shop/web"
    )]
    #[case(
        blocked(LockReason::SeveralPDBs, "", "shop/web-0", "", "pod shop/web-0 has several"),
        "pod shop/web-0 has several [SeveralPDBs]",
        "SeveralPDBs shop/web-0"
    )]
    #[case(blocked(LockReason::Queued, "", "", "", ""), "waits for its turn [Queued]", "Queued")]
    #[case(
        blocked(LockReason::Queued, "", "", "node-1", ""),
        "waits for its turn (node node-1) [Queued]",
        "node-1 (Queued)"
    )]
    fn obstacle_names_its_subjects_and_reason(#[case] blocked: BlockedBy, #[case] long: &str, #[case] short: &str) {
        assert_eq!(obstacle(&blocked), long);
        assert_eq!(obstacles_short(std::slice::from_ref(&blocked)), short);
        // Found twice, it is one; another is one more.
        let again = BlockedBy {
            message: "1 needed, 0 free".to_owned(),
            ..blocked.clone()
        };
        let other = BlockedBy {
            pdb: Some("shop/other".to_owned()),
            ..blocked.clone()
        };
        assert_eq!(obstacles_short(&[blocked.clone(), again]), short);
        assert_eq!(obstacles_short(&[blocked, other]), format!("{short}, +1"));
    }

    #[rstest]
    #[case::granted_and_not_used(Evictor::Requester, "Draining", "True", true)]
    #[case::waits_for_its_grant(Evictor::Requester, "Draining", "False", false)]
    #[case::drained(Evictor::Requester, "Drained", "True", false)]
    #[case::of_drain_lock(Evictor::Nodeward, "Draining", "True", false)]
    fn drainer_that_stops_is_told_of_where_others_wait_for_it(
        #[case] evict: Evictor,
        #[case] phase: &str,
        #[case] granted: &str,
        #[case] told: bool,
    ) {
        let drain: NodeDrain = serde_json::from_value(json!({
            "metadata": { "name": "n1" },
            "spec": { "nodeName": "n1", "requesters": [], "evict": evict },
            "status": { "phase": phase, "conditions": [{
                "type": "Granted", "status": granted, "reason": "r", "message": "", "lastTransitionTime": "2026-01-01T00:00:00Z",
            }] },
        }))
        .unwrap();
        assert_eq!(idle(&Drain::of(&drain)).is_some(), told);
    }

    #[test]
    fn step_is_no_obstacle() {
        assert_eq!(obstacles_short(&[]), "");
        let step = blocked(LockReason::AwaitsConfirmation, "", "", "", "");
        assert_eq!(obstacles_short(&[step]), "");
    }
}
