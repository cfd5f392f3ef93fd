//! What a drain waits for, what comes next, and what a person does about it.

use std::collections::{BTreeSet, HashMap};

use jiff::Timestamp;
use nodeward_api::annotation::HOLD;
use nodeward_api::node_drain::{BlockedBy, Phase};
use nodeward_api::reason::LockReason;
use nodeward_core::id::BudgetKey;
use nodeward_core::ledger::{Claim, Ledger};
use serde::Serialize;

use super::Why;
use crate::commands::printed::PrintedCommands;
use crate::describe::{self, prefixed};
use crate::model::answer::NodeState;
use crate::model::component::{COMPONENT, Component, DRAIN_KEEPER, DRAIN_LOCK, HEALTH_CHECK, stopped};
use crate::model::drain::Drain;
use crate::model::locks::BudgetLocks;
use crate::text::page::Page;
use crate::text::time::{ahead, moment};

/// Which claims come before which, made once for all that wait.
pub struct Turns<'a> {
    claims: HashMap<&'a str, &'a Claim>,
    /// Tickets of the claims that need or hold disruptions of a budget.
    by_budget: HashMap<BudgetKey, BTreeSet<i64>>,
}

impl<'a> Turns<'a> {
    pub fn of(ledger: &'a Ledger) -> Self {
        let mut by_budget: HashMap<BudgetKey, BTreeSet<i64>> = HashMap::new();
        for claim in ledger.claims() {
            for budget in claim.budgets() {
                by_budget.entry(budget).or_default().insert(claim.ticket);
            }
        }
        let claims = ledger.claims().iter().map(|claim| (claim.node.as_str(), claim));
        Self {
            claims: claims.collect(),
            by_budget,
        }
    }

    pub fn claim(&self, node: &str) -> Option<&'a Claim> {
        self.claims.get(node).copied()
    }

    /// Older claims that need or hold budgets which this node's claim waits for.
    pub fn before(&self, node: &str) -> Option<usize> {
        let own = self.claims.get(node)?;
        let rivals = own
            .needs
            .iter()
            .filter_map(|need| self.by_budget.get(&BudgetKey::from(&need.pdb)));
        let older: BTreeSet<i64> = rivals
            .flat_map(|tickets| tickets.range(..own.ticket))
            .copied()
            .collect();
        Some(older.len())
    }
}

/// Something that is waited for, or that a person does, with the commands for it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Step {
    /// When it happens, where that is known.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub at: Option<Timestamp>,
    pub text: String,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub commands: Vec<String>,
}

impl Step {
    pub(super) fn new(text: impl Into<String>) -> Self {
        Self {
            at: None,
            text: text.into(),
            commands: Vec::new(),
        }
    }

    fn at(at: Timestamp, text: String) -> Self {
        Self {
            at: Some(at),
            ..Self::new(text)
        }
    }

    pub(super) fn with(text: impl Into<String>, command: String) -> Self {
        Self {
            at: None,
            text: text.into() + ":",
            commands: vec![command],
        }
    }

    /// Adds another command that goes with it.
    fn or(mut self, command: String) -> Self {
        self.commands.push(command);
        self
    }
}

/// Each command has a line of its own, to be copied.
pub(super) fn print(page: &mut Page, steps: &[Step]) {
    for (index, step) in steps.iter().enumerate() {
        page.field(if index == 0 { "next" } else { "" }, &step.text);
        for command in &step.commands {
            page.command("", command);
        }
    }
}

/// What a person does about a drain of this phase, whatever else is in its way.
pub fn command_of_phase(drain: &Drain, commands: &PrintedCommands) -> Option<Step> {
    let node = &drain.node;
    match drain.phase {
        _ if drain.ending => None,
        Some(Phase::Drained) => Some(Step::with(
            "do the work, then end the drain, which uncordons the node if drain-lock cordoned it",
            commands.end_of(drain),
        )),
        Some(Phase::Suspect) => {
            let uncordon = Step::with(
                "uncordon the node once it can take pods again; release the drain by force only if its pods will not come back",
                commands.uncordon(node),
            );
            Some(uncordon.or(commands.nodeward("release", &format!("{node} --force --reason TEXT"))))
        }
        // There is nothing to drain.
        Some(Phase::Failed)
            if drain
                .blocked_by
                .iter()
                .any(|blocked| blocked.reason == LockReason::NodeGone) =>
        {
            Some(Step::with("end it", commands.end_of(drain)))
        }
        Some(Phase::Failed) => {
            let end = Step::with("end it, and request it again", commands.end_of(drain));
            Some(end.or(commands.nodeward("drain", node)))
        }
        _ => None,
    }
}

/// How many drains come first.
pub fn ahead_of(ahead: usize) -> String {
    match ahead {
        0 => "no older drain needs or holds a budget that it waits for".to_owned(),
        1 => "1 older drain needs or holds a budget that it waits for, and comes first".to_owned(),
        ahead => format!("{ahead} older drains need or hold budgets that it waits for, and come first"),
    }
}

impl Why {
    /// What happens here and who does it: the components, in the order in which they act, and a person.
    pub fn next(&self, commands: &PrintedCommands, now: Timestamp) -> Vec<Step> {
        let of_drain_lock = self.drain.iter().flat_map(|drain| self.in_time(drain, now));
        let mut next: Vec<Step> = self.of_keeper(commands, now).into_iter().chain(of_drain_lock).collect();
        next.sort_by_key(|step| step.at);
        if let Some(drain) = &self.drain {
            next.extend(self.of_drain(drain, commands, now));
        }
        let left_alone = self.answer.as_ref().filter(|answer| answer.needs_person());
        match left_alone.map(|answer| answer.state) {
            Some(NodeState::Cordoned) => {
                let text = "nothing happens here until you drain the node, or give it back";
                let drain = commands.nodeward("drain", &self.name);
                next.push(Step::with(text, drain).or(commands.uncordon(&self.name)));
            }
            Some(NodeState::NotReady) => {
                let text = "nothing happens here until you see to the node";
                let describe = commands.kubectl(&format!("describe node {}", self.name));
                next.push(Step::with(text, describe));
            }
            _ => {}
        }
        next
    }

    /// What drain-keeper does with the first pod that keeps the drain from ending.
    fn of_keeper(&self, commands: &PrintedCommands, now: Timestamp) -> Option<Step> {
        let keeper = self.node.as_ref()?.drain_keeper.as_ref()?;
        let act = keeper.blocked.as_ref()?.pods.as_ref()?.next_act()?;
        if let Some((component, why)) = stopped(&self.components, DRAIN_KEEPER) {
            let text = format!("drain-keeper does not act on {}: {why}; see to that", act.pod);
            return Some(Step::with(text, restoring(component, commands)));
        }
        let when = ahead(Some(act.at), now).map_or_else(|| "now".to_owned(), |at| format!("at {at}"));
        let text = format!("drain-keeper acts {when} on {}: {}", act.pod, act.intent);
        Some(Step::at(act.at, text))
    }

    /// What drain-lock does when a time of the drain is over.
    fn in_time(&self, drain: &Drain, now: Timestamp) -> impl Iterator<Item = Step> + use<> {
        let leaves_out = drain.leaves_out_at.zip(describe::leaves_out(drain, now));
        let requeue = drain.deadline.zip(describe::requeue(drain, now));
        let works = stopped(&self.components, DRAIN_LOCK).is_none();
        let timed = leaves_out.into_iter().chain(requeue).filter(move |_| works);
        timed.map(|(at, text)| Step::at(at, text))
    }

    /// The events that the drain waits for, and the commands that help.
    fn of_drain(&self, drain: &Drain, commands: &PrintedCommands, now: Timestamp) -> Vec<Step> {
        if let Some((component, why)) = stopped(&self.components, DRAIN_LOCK) {
            let text = format!("nothing goes on here: {why}; first see to that");
            return vec![Step::with(text, restoring(component, commands))];
        }
        let mut next = Vec::new();
        if drain.phase == Some(Phase::Queued) {
            next.extend(self.place_in_queue(drain));
        }
        for blocked in describe::obstacles(&drain.blocked_by) {
            let steps = self.steps_past(blocked, commands, now);
            let new: Vec<Step> = steps.into_iter().filter(|step| !next.contains(step)).collect();
            next.extend(new);
        }
        next.extend(command_of_phase(drain, commands));
        if drain.ending && self.node.as_ref().is_some_and(|node| node.cordoned) {
            let text = "once the work on the node is done";
            next.push(Step::with(text, commands.uncordon(&self.name)));
        }
        next.extend(describe::idle(drain).map(|text| Step::with(text, commands.end_of(drain))));
        next
    }

    /// How many drains come first, and its place among those that wait for the same budget.
    fn place_in_queue(&self, drain: &Drain) -> Vec<Step> {
        let mut places: Vec<String> = self.ahead.map(ahead_of).into_iter().collect();
        let place = |budget: &BudgetLocks| {
            let place = budget.waiting.iter().position(|waiting| waiting.node == drain.node)?;
            let (place, all) = (place + 1, budget.waiting.len());
            (all > 1).then(|| format!("{place} of the {all} drains that wait for {}", budget.pdb))
        };
        let of_budgets: Vec<String> = self.budgets.iter().filter_map(place).collect();
        if !of_budgets.is_empty() {
            places.push(format!("it is number {}", describe::list(&of_budgets)));
        }
        let estimate = self.ahead.zip(self.durations);
        places.extend(estimate.and_then(|(ahead, durations)| durations.estimate(ahead)));
        places.into_iter().map(Step::new).collect()
    }

    /// What ends one obstacle.
    fn steps_past(&self, blocked: &BlockedBy, commands: &PrintedCommands, now: Timestamp) -> Vec<Step> {
        let holder = blocked.node.as_ref();
        let holder = holder.and_then(|node| self.holders.iter().find(|holder| holder.node == *node));
        let about = blocked.pdb.as_ref().or(blocked.pod.as_ref()).or(blocked.node.as_ref());
        let about = prefixed("", about.map(|about| format!("{about}: ")));
        let remedy = format!("{about}{}", blocked.reason.remedy());
        let idle = stopped(&self.components, HEALTH_CHECK).filter(|_| blocked.reason == LockReason::UnderRemediation);
        if let Some((component, why)) = idle {
            let text = format!(
                "{about}{why}: let it work again, or delete the NodeHealthCheck if nothing remediates the node"
            );
            return vec![Step::with(text, restoring(component, commands))];
        }
        let steps = match (blocked.reason, &blocked.pdb) {
            (LockReason::OwnerHold, Some(pdb)) => self.ends_of_holds(pdb, commands, now),
            // A hold of the same budget comes to light once the pods are healthy.
            (LockReason::BudgetUnhealthy, Some(pdb)) => {
                let mut steps = self.recovery_of(pdb);
                if steps.is_empty() {
                    steps.push(Step::new(remedy.clone()));
                }
                steps.extend(self.ends_of_holds(pdb, commands, now));
                steps
            }
            (LockReason::CircularWait | LockReason::AwaitsUncordon, _) => {
                let node = blocked.node.as_ref().unwrap_or(&self.name);
                vec![Step::with(remedy.clone(), commands.uncordon(node))]
            }
            (reason, _) if reason.lacks_consent() => {
                let flag = match reason {
                    LockReason::UnmanagedPodKept => "--force",
                    _ => "--delete-emptydir-data",
                };
                let consent = commands.nodeward("drain", &format!("{} {flag}", self.name));
                vec![Step::with(reason.remedy(), consent)]
            }
            (LockReason::Reserved, _) => {
                let after = holder.map(|Drain { node, .. }| {
                    let text = format!("{about}goes on after the older drain of {node}, for which they are kept");
                    Step::with(text, commands.why(node))
                });
                after.into_iter().collect()
            }
            _ => {
                let ends = |holder: &Drain| holder_ends(holder, self.closed.contains(&holder.node), commands, now);
                holder.map(ends).into_iter().collect()
            }
        };
        if steps.is_empty() {
            vec![Step::new(remedy)]
        } else {
            steps
        }
    }

    fn ends_of_holds(&self, pdb: &str, commands: &PrintedCommands, now: Timestamp) -> Vec<Step> {
        let locks = self.budgets.iter().filter(|locks| locks.pdb == pdb);
        locks.flat_map(|locks| ends_of_holds(locks, commands, now)).collect()
    }

    /// What the pods of a budget wait for, and what of its counts has to become true.
    fn recovery_of(&self, pdb: &str) -> Vec<Step> {
        let Some(health) = self.counts.iter().find(|health| health.pdb == pdb) else {
            return Vec::new();
        };
        let pods = health.unhealthy.iter().take(NAMED);
        let pods = pods.map(|pod| Step::new(format!("goes on when {} is Ready: it {}", pod.pod, pod.cause)));
        let counts = health.not_true.iter().map(|told| Step::new(format!("{pdb}: {told}")));
        pods.chain(counts).collect()
    }
}

/// What makes a component act again that does nothing, or shows why it does not.
fn restoring(component: &Component, commands: &PrintedCommands) -> String {
    let (name, namespace) = (&component.name, &component.namespace);
    if component.paused.is_some() {
        commands.nodeward("resume", name)
    } else {
        commands.kubectl(&format!("get pods -n {namespace} -l {COMPONENT}={name}"))
    }
}

/// Pods that the steps name.
const NAMED: usize = 5;

/// When the owner's holds of a budget end, and the commands that end them before.
pub(super) fn ends_of_holds(locks: &BudgetLocks, commands: &PrintedCommands, now: Timestamp) -> Vec<Step> {
    let pdb = &locks.pdb;
    let (namespace, budget) = pdb.split_once('/').unwrap_or_default();
    let ends = locks.owner_holds.iter().map(|hold| {
        let ends = prefixed(" at ", hold.until.map(|until| moment(until, now)));
        let command = match &hold.name {
            Some(name) => commands.nodeward("release", &format!("hold/{name} -n {namespace}")),
            None => commands.kubectl(&format!("annotate -n {namespace} pdb {budget} {HOLD}-")),
        };
        let text = format!("goes on when its owner's hold of {pdb} ends{ends}; to end it earlier, if the owner agrees");
        Step {
            at: hold.until,
            ..Step::with(text, command)
        }
    });
    ends.collect()
}

/// When a drain that holds disruptions returns them.
fn holder_ends(holder: &Drain, is_closed: bool, commands: &PrintedCommands, now: Timestamp) -> Step {
    let node = &holder.node;
    let phase = describe::phase(holder);
    let pods = prefixed(", ", holder.pods.map(describe::pods));
    let requesters = holder.requesters.join(", ");
    let requesters = prefixed(", requested by ", Some(requesters).filter(|text| !text.is_empty()));
    // Only this deadline does something.
    let requeue = describe::requeue(holder, now).and(holder.deadline);
    let until = prefixed(
        ", and releases what it can at ",
        requeue.map(|until| moment(until, now)),
    );
    let goes_on = if holder.holds.is_empty() {
        // What it was granted was for pods that have found another node.
        format!("goes on when the pods that have left {node} are Ready elsewhere")
    } else {
        format!("goes on when {node} releases its disruptions")
    };
    let text = format!("{goes_on}: its drain is {phase}{pods}{requesters}{until}");
    match holder.phase {
        Some(Phase::Drained) if !holder.ending => Step::with(
            format!("{text}. It releases them when its pods are ready again: once its work is done"),
            commands.end_of(holder),
        ),
        _ if is_closed => {
            let back = "Its pods that fit no other node come back only once that is uncordoned: when its work is done";
            Step::with(format!("{text}. {back}"), commands.uncordon(node))
        }
        _ => match describe::idle(holder) {
            Some(idle) => Step::with(format!("{text}. {idle}"), commands.end_of(holder)),
            None => Step::with(format!("{text}; more"), commands.why(node)),
        },
    }
}
