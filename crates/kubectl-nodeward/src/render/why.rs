//! What stands in the way of one node's drain.

use jiff::Timestamp;
use nodeward_api::annotation::HOLD;
use nodeward_api::node_drain::Phase;
use nodeward_api::reason::LockReason;

use super::{drain, locks, obstacle, unread};
use crate::text::line::Tone;
use crate::text::page::Page;
use crate::text::time::{distance, moment, with_distances};
use crate::view::drain::Drain;
use crate::view::node::{KeeperVerdict, NodeGlance};
use crate::view::unread::Unread;
use crate::view::why::{PodsOnNode, Why};

/// How many pods are named one by one.
const NAMED: usize = 10;

/// What stands in the way of the drain of `name`.
pub fn page(name: &str, why: &Why, now: Timestamp) -> Page {
    let mut page = Page::new();
    page.heading(name);
    if let Some(node) = &why.node {
        page.field(
            "node",
            if node.ready { Tone::Plain } else { Tone::Bad },
            node_state(node, now),
        );
    }
    match &why.drain {
        Some(drain) => about_drain(&mut page, drain, why, now),
        None if !lacks_drains(why) => page.field("drain", Tone::Plain, "nobody has asked drain-lock to drain it"),
        None => (),
    }
    if let Some(keeper) = why.node.as_ref().and_then(|node| node.drain_keeper.as_ref()) {
        about_keeper(&mut page, keeper, now);
    }
    if let Some(pods) = &why.pods {
        about_pods(&mut page, pods);
    }
    if !why.budgets.is_empty() {
        page.heading("Budgets that matter here");
        page.table(2, locks::table(&why.budgets, now));
    }
    unread::add(&mut page, &why.unread);
    page
}

/// Whether nothing can be said of drains.
fn lacks_drains(why: &Why) -> bool {
    let is_drains = |unread: &Unread| {
        matches!(
            unread,
            Unread::NotInstalled { what: "drains", .. } | Unread::Forbidden { what: "drains", .. }
        )
    };
    why.unread.iter().any(is_drains)
}

fn node_state(node: &NodeGlance, now: Timestamp) -> String {
    let ready = if node.ready { "Ready" } else { "not Ready" };
    match (node.cordoned, node.cordoned_since) {
        (true, Some(since)) => format!("{ready}, cordoned since {}", moment(since, now)),
        (true, None) => format!("{ready}, cordoned"),
        (false, _) => format!("{ready}, not cordoned"),
    }
}

fn about_drain(page: &mut Page, view: &Drain, why: &Why, now: Timestamp) {
    let ticket = view
        .ticket
        .map(|ticket| format!(", ticket {ticket}"))
        .unwrap_or_default();
    let since = view
        .since()
        .map(|since| format!(", since {}", moment(since, now)))
        .unwrap_or_default();
    page.field(
        "drain",
        drain::tone(view.phase),
        format!("{}{ticket}{since}: {}", drain::phase(view), drain::meaning(view)),
    );
    let mut asked = if view.requesters.is_empty() {
        "nobody any more".to_owned()
    } else {
        view.requesters.join(", ")
    };
    if let Some(purpose) = &view.purpose {
        asked = format!("{asked}, for: {purpose}");
    }
    page.field("asked by", Tone::Plain, asked);
    if let Some(counts) = view.pods {
        page.field("pods", Tone::Plain, drain::pods(counts));
    }
    for (index, held) in view.holds.iter().enumerate() {
        let name = if index == 0 { "holds" } else { "" };
        let units = if held.units == 1 {
            "1 unit".to_owned()
        } else {
            format!("{} units", held.units)
        };
        page.field(
            name,
            Tone::Plain,
            format!("{units} of {} for {}", held.pdb, held.pods.join(", ")),
        );
    }
    let obstacles = obstacle::distinct(&view.blocked_by);
    for (index, blocked) in obstacles.iter().enumerate() {
        let name = if index == 0 { "in the way" } else { "" };
        page.field(name, Tone::Warning, obstacle::clause(blocked));
    }
    // Where the message only names the obstacles, they have been told.
    let is_told = |message: &str| {
        let mut obstacles = obstacles.iter();
        obstacles.any(|blocked| message.contains(blocked.reason.explanation()))
    };
    if let Some(message) = view.message.as_ref().filter(|message| !is_told(message)) {
        page.field("it says", Tone::Plain, with_distances(message, now));
    }
    for (index, next) in next(view, why, now).into_iter().enumerate() {
        page.field(if index == 0 { "next" } else { "" }, Tone::Plain, next);
    }
}

/// What comes next, and when.
fn next(view: &Drain, why: &Why, now: Timestamp) -> Vec<String> {
    let mut next = Vec::new();
    let is_waiting = matches!(view.phase, Some(Phase::Queued));
    if is_waiting {
        match why.ahead {
            Some(0) => next.push("it is the oldest drain of all: nobody is before it".to_owned()),
            Some(1) => next.push("one drain is older, and comes first where both need the same budget".to_owned()),
            Some(ahead) => next.push(format!(
                "{ahead} drains are older, and come first where they need the same budget"
            )),
            None => (),
        }
    }
    for holder in &why.holders {
        let pods = holder
            .pods
            .map(|pods| format!(", {}", drain::pods(pods)))
            .unwrap_or_default();
        let until = holder
            .deadline
            .map(|deadline| format!(", until {} at most", moment(deadline, now)));
        let asked = if holder.requesters.is_empty() {
            String::new()
        } else {
            format!(", asked for by {}", holder.requesters.join(", "))
        };
        let hint = match holder.phase {
            Some(Phase::Drained) if !holder.ending => format!(
                ". It gives them back when its pods are back: once its work is done, kubectl nodeward release {}",
                holder.node
            ),
            _ => String::new(),
        };
        next.push(format!(
            "goes on when {} gives its units back: that is {}{pods}{asked}{}{hint}",
            holder.node,
            drain::phase(holder),
            until.unwrap_or_default()
        ));
    }
    for blocked in obstacle::distinct(&view.blocked_by) {
        let Some(pdb) = &blocked.pdb else { continue };
        match blocked.reason {
            LockReason::OwnerHold => next.extend(holds_of(pdb, why, now)),
            LockReason::MisconfiguredPDB => next.push(format!(
                "does not go on by itself: PDB {pdb} has to allow a disruption, or its workload to have more pods"
            )),
            _ => (),
        }
    }
    next.extend(drain::when_late(view, now));
    match view.phase {
        _ if view.ending => (),
        Some(Phase::Drained) => next.push(
            "do what it was drained for, then uncordon it: kubectl nodeward release does that, too, where drain-lock cordoned it".to_owned(),
        ),
        Some(Phase::Suspect) => next.push(format!(
            "if its pods will not come back: kubectl nodeward release {} --force --reason TEXT",
            view.node
        )),
        Some(Phase::Failed) => next.push(format!("ask again after kubectl nodeward release {}", view.node)),
        _ => (),
    }
    next
}

/// When the holds of a budget end, and how they are ended before.
fn holds_of(pdb: &str, why: &Why, now: Timestamp) -> Vec<String> {
    let (namespace, budget) = pdb.split_once('/').unwrap_or_default();
    let locks = why.budgets.iter().filter(|locks| locks.pdb == pdb);
    let holds = locks.flat_map(|locks| &locks.owner_holds);
    holds
        .map(|hold| {
            let ends = hold
                .until
                .map(|until| format!(" at {}", moment(until, now)))
                .unwrap_or_default();
            let how = match &hold.name {
                Some(name) => format!("kubectl nodeward release hold/{name} -n {namespace}"),
                None => format!("kubectl annotate -n {namespace} pdb {budget} {HOLD}-"),
            };
            format!("goes on when its owner's hold of {pdb} ends{ends}; to end it before, if its owner agrees: {how}")
        })
        .collect()
}

fn about_keeper(page: &mut Page, keeper: &KeeperVerdict, now: Timestamp) {
    page.heading("drain-keeper");
    if let Some(began) = keeper.drain_began {
        page.field("times", Tone::Plain, format!("the drain since {}", moment(began, now)));
    }
    let Some(blocked) = &keeper.blocked else {
        page.field(
            "blocked",
            Tone::Good,
            "no: nothing keeps the drain from ending but its own pace",
        );
        return;
    };
    let since = blocked
        .since
        .map(|since| format!(", {}", distance(since, now)))
        .unwrap_or_default();
    match &blocked.pods {
        Some(message) => {
            let failed = if message.drain_failed {
                "the drain has failed: everything that may be done has been; "
            } else {
                ""
            };
            let keep = if message.pods == 1 { "pod keeps" } else { "pods keep" };
            let tone = if message.drain_failed { Tone::Bad } else { Tone::Warning };
            page.field(
                "blocked",
                tone,
                format!(
                    "{failed}{} {keep} it from ending [{}{since}]",
                    message.pods, blocked.reason
                ),
            );
            for pod in &message.named {
                page.point(1, Tone::Plain, with_distances(pod, now));
            }
            let more = message.pods.saturating_sub(message.named.len());
            if more > 0 {
                page.point(1, Tone::Faint, format!("and {more} more"));
            }
        }
        None => page.field(
            "blocked",
            Tone::Warning,
            format!("{} [{}{since}]", with_distances(&blocked.message, now), blocked.reason),
        ),
    }
}

fn about_pods(page: &mut Page, pods: &PodsOnNode) {
    page.heading("Pods");
    let terminating = match pods.terminating {
        0 => String::new(),
        count => format!(", {count} of them terminating"),
    };
    page.field(
        "to leave",
        Tone::Plain,
        format!(
            "{}{terminating}{}",
            pods.to_leave,
            match pods.ignored {
                0 => String::new(),
                count => format!("; {count} that no drain concerns"),
            }
        ),
    );
    if pods.obstacles.is_empty() {
        page.field(
            "refused",
            Tone::Good,
            "none: the API server would accept every eviction now",
        );
        return;
    }
    page.field(
        "refused",
        Tone::Warning,
        format!("{} would not go now:", pods.obstacles.len()),
    );
    for obstacle in pods.obstacles.iter().take(NAMED) {
        let pdbs = match obstacle.pdbs.as_slice() {
            [] => String::new(),
            [one] => format!(" (PDB {one})"),
            several => format!(" (PDBs {})", several.join(", ")),
        };
        page.point(
            1,
            Tone::Plain,
            format!("{} {}{pdbs}", obstacle.pod, obstacle.kept_by.explanation()),
        );
    }
    if pods.obstacles.len() > NAMED {
        page.point(1, Tone::Faint, format!("and {} more", pods.obstacles.len() - NAMED));
    }
}
