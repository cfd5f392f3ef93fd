//! The decision: from one moment of the cluster, a policy and the time to what is done and said. Pure.
//!
//! The life of a drain is [`Stage`], and `Planner::run_stage` is the one place that says what each stage does. A drain gets
//! its turn in three steps: `plan/grant.rs` asks for it, `core/src/ledger/waits.rs` decides by the order of tickets and what
//! the budgets allow, and `execute/ledger.rs` grants it in one write, after it has read the budgets by quorum.

mod action;
pub mod bypass;
mod circle;
mod completion;
pub mod control_plane;
mod cordon;
mod disruptions;
mod drain_context;
mod evict;
pub mod eviction_budget;
mod grant;
pub mod holds;
pub mod intent;
pub mod lease;
mod ledger_size;
mod moving;
pub mod need;
pub mod node_groups;
pub mod node_markers;
mod obstacles;
pub mod pod_classes;
pub mod preview;
pub mod recovery;
pub mod residents;
mod stage;
pub mod stale_budget;
pub mod stale_entries;
#[cfg(test)]
mod tests;
pub mod timeouts;
mod unhealthy;
pub mod verdict;

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use jiff::{SignedDuration, Timestamp};
use nodeward_api::node_drain::{Fallback, NodeDrain, Phase};
use nodeward_api::reason::LockReason;
use nodeward_core::deadline::{RequeueAt, is_due, saturating_add};
use nodeward_core::id::{NodeName, NodeUid, PodUid};
use nodeward_core::ledger::{Ledger, NodeGroupVerdict, Reservations};
use nodeward_scheduling::Cordons;

use crate::policy::Policy;
use crate::snapshot::{
    LeavingPods, LedgerFacts, Memory, NodeFacts, PodFacts, PodToBeDown, Snapshot, StaleBudgets, WriteTarget,
};

use self::bypass::{Bypassed, bypassed};
use self::circle::{Circles, circles};
use self::cordon::{ahead, cordons};
use self::drain_context::{DrainContext, claim_of, drain_records};
use self::eviction_budget::{EvictionBudget, take_out};
use self::holds::{AnnotatedHoldVerdict, HoldVerdict, evaluate_annotated_holds, evaluate_holds};
use self::intent::{Intent, idle_from, in_windows, intent, last_sign, silent_from};
use self::ledger_size::bytes_left;
use self::need::{NodeNeed, classify};
use self::node_groups::{NodeGroups, has_places};
use self::pod_classes::PodClasses;
use self::recovery::UnavailablePods;
use self::timeouts::TimeLimits;
use self::verdict::{Announcement, DrainVerdict};

pub use self::action::{Action, CalledOff, ConfirmAsk, DrainedAsk, GonePod, GrantAsk, LedgerWrite, PodEviction};
pub use self::stage::Stage;

/// An obstacle that has lasted for so long is noted, from its beginning on.
const OBSTACLE_LASTS: SignedDuration = SignedDuration::from_secs(5);

/// What follows from one moment.
#[derive(Debug, Clone, Default)]
pub struct Plan {
    /// What the ledger is to become.
    pub ledger: Option<LedgerWrite>,
    /// What else is to be done, each on its own.
    pub actions: Vec<Action>,
    /// Every drain, and how it stands.
    pub drains: Vec<DrainVerdict>,
    /// Every node group, and how it stands.
    pub node_groups: Vec<NodeGroupVerdict>,
    /// Every owner's hold, and how it stands.
    pub holds: Vec<HoldVerdict>,
    /// Every hold that a budget's annotation declares, and how it stands.
    pub annotated_holds: Vec<AnnotatedHoldVerdict>,
    /// Pods that were deleted around budgets.
    pub bypassed: Vec<Bypassed>,
    /// Movable pods that are on their way out: what replaces them will seek a place.
    pub departing: Vec<Arc<PodFacts>>,
    /// The pods that leave each node that has a drain.
    pub leaving: BTreeMap<NodeName, LeavingPods>,
    /// By the UID of its node, the healthy pods that are down once they leave, and those of them that have gone and are in no claim yet.
    pub to_be_down: BTreeMap<NodeUid, Vec<PodToBeDown>>,
    /// By the UID of its node, since when a drain has had an obstacle.
    pub obstructed: BTreeMap<NodeUid, Timestamp>,
    /// Budgets whose status contradicts their pods.
    pub stale_budgets: StaleBudgets,
    /// When to plan again at the latest.
    pub requeue_at: Option<Timestamp>,
}

impl Plan {
    /// Whether the node is to be written.
    pub fn writes_node(&self, node: &NodeUid) -> bool {
        let mut actions = self.actions.iter();
        actions.any(|action| matches!(action, Action::Node(write) if write.node.uid == *node))
    }
}

/// Decides.
pub fn plan(snapshot: &Snapshot, memory: &Memory, policy: &Policy, now: Timestamp) -> Plan {
    let (base, mut ledger) = match &snapshot.ledger {
        None => (None, Ledger::default()),
        // Whatever was done by an older reading of it, or by half of one, could be wrong.
        Some(facts) if facts.unreadable.is_some() => return Plan::default(),
        Some(facts) => (Some(Arc::clone(facts)), facts.ledger.clone()),
    };
    let before = ledger.clone();
    for time in &memory.leaderless {
        ledger.note_leaderless(*time);
    }
    let mut requeue_at = RequeueAt::after(now);
    let mut contexts = drain_contexts(snapshot, &ledger, memory, policy, now, &mut requeue_at);
    let mut planner = Planner {
        snapshot,
        memory,
        policy,
        now,
        before,
        reservations: Reservations::new(&ledger, &snapshot.facts),
        write: LedgerWrite {
            next: ledger,
            base,
            ..LedgerWrite::default()
        },
        eviction_budget: EvictionBudget::new(snapshot, memory, now),
        cordons: cordons(&contexts, snapshot, policy, now),
        ahead: BTreeSet::new(),
        control_plane_for: BTreeSet::new(),
        circles: Circles::new(),
        places: NodeGroups::default(),
        bytes_left: 0,
        plan: Plan::default(),
        requeue_at,
    };
    planner.requeue_at.note(memory.next_attempt(now));
    planner.classify_pods(&mut contexts);
    planner.ahead = ahead(&contexts);
    planner.bytes_left = bytes_left(&contexts, &planner.before);
    planner.circles = circles(&contexts, snapshot, policy, now, &mut planner.requeue_at);
    let open = contexts.iter().filter(|context| context.is_open());
    let leaving = open.filter_map(|context| Some(context.classes.as_ref()?.to_find_room()));
    planner.cordons.leave(leaving.flatten().cloned());
    let classes = contexts.iter().filter_map(|context| context.classes.as_ref());
    planner.plan.departing = classes.flat_map(|classes| classes.departing.iter().cloned()).collect();
    planner.cordons.leave(memory.departed(now).cloned());
    let leaving = contexts
        .iter()
        .map(|context| (context.name.clone(), context.leaving.clone()));
    planner.plan.leaving = leaving.collect();
    // What is back is there for all drains of this pass, and what claims wait for is worked out after it.
    planner.settle_moving();
    for context in &contexts {
        planner.return_what_is_back(context);
    }
    for context in &contexts {
        planner.reconcile(context);
    }
    planner.report_unreadable();
    planner.break_deadlock(&contexts);
    planner.plan.node_groups = planner.node_group_verdicts();
    planner.plan.holds = evaluate_holds(snapshot, policy, now, &mut planner.requeue_at);
    planner.plan.bypassed = bypassed(snapshot, memory);
    planner.plan.annotated_holds = evaluate_annotated_holds(snapshot, policy, now, &mut planner.requeue_at);
    planner.finish()
}

/// Every drain, the oldest first, with what is wanted of it; its pods are not classified yet.
fn drain_contexts(
    snapshot: &Snapshot,
    ledger: &Ledger,
    memory: &Memory,
    policy: &Policy,
    now: Timestamp,
    requeue_at: &mut RequeueAt,
) -> Vec<DrainContext> {
    let records = drain_records(snapshot, ledger).into_iter();
    let contexts = records.map(|record| {
        let unavailable = UnavailablePods::of(&record, snapshot, memory, now);
        let leaving = record.leaving(snapshot, memory, now);
        let last_sign = last_sign(&record, &leaving, snapshot);
        let mut is_past = |from: Option<Timestamp>| {
            requeue_at.note(from);
            from.is_some_and(|from| is_due(from, now))
        };
        let is_idle = is_past(idle_from(&record, last_sign, policy, memory, ledger));
        let quiet_period = policy.auto.quiet_period;
        let is_silent = is_past(silent_from(&record, last_sign, quiet_period, memory, ledger));
        let intent = intent(&record, &unavailable, is_silent);
        DrainContext {
            intent: in_windows(intent, &record, policy, now, requeue_at),
            record,
            unavailable,
            leaving,
            last_sign,
            is_idle,
            classes: None,
        }
    });
    contexts.collect()
}

/// What becomes of the pods of every drain that is wanted or previewed, each with its place among the drains. Those of open drains
/// take places first, for they leave now.
fn needs(
    contexts: &[DrainContext],
    cordons: &Cordons<'_>,
    snapshot: &Snapshot,
    policy: &Policy,
    now: Timestamp,
) -> Vec<(usize, NodeNeed)> {
    let mut placement = cordons.placement();
    let (open, others): (Vec<_>, Vec<_>) = contexts.iter().enumerate().partition(|(_, context)| context.is_open());
    let classified = open.into_iter().chain(others).filter_map(|(index, context)| {
        let is_classified = matches!(context.intent, Intent::Drain | Intent::Await(_) | Intent::Preview);
        let node = context.record.node.as_ref().filter(|_| is_classified)?;
        Some((
            index,
            classify(node, snapshot, Some(cordons), &mut placement, policy, now),
        ))
    });
    classified.collect()
}

/// What becomes of the pods of every drain, as the plan decides it: for whoever answers beside it.
pub fn needs_of_drains(snapshot: &Snapshot, policy: &Policy, now: Timestamp) -> BTreeMap<NodeUid, NodeNeed> {
    let ledger = LedgerFacts::content(snapshot.ledger.as_deref());
    let mut later = RequeueAt::after(now);
    // Without a memory of pods that ended, nothing follows from silence.
    let memory = Memory::of_first_plan(now);
    let contexts = drain_contexts(snapshot, &ledger, &memory, policy, now, &mut later);
    let cordons = cordons(&contexts, snapshot, policy, now);
    let needs = needs(&contexts, &cordons, snapshot, policy, now).into_iter();
    needs
        .filter_map(|(index, need)| Some((contexts[index].node_uid.clone()?, need)))
        .collect()
}

/// A drain that is wanted, and whose node is there.
struct ActiveDrain<'a> {
    context: &'a DrainContext,
    drain: &'a NodeDrain,
    node: &'a Arc<NodeFacts>,
    classes: &'a PodClasses,
    limits: TimeLimits,
    /// Whether its claim is to be asked for: before, its movable pods leave.
    asks: bool,
    /// Whether the ledger has it as away in each of its node's groups.
    has_places: bool,
}

impl<'a> ActiveDrain<'a> {
    fn uid(&self) -> &'a str {
        self.node.uid.as_str()
    }
}

/// A plan in the making.
struct Planner<'a> {
    snapshot: &'a Snapshot,
    memory: &'a Memory,
    policy: &'a Policy,
    now: Timestamp,
    before: Ledger,
    write: LedgerWrite,
    /// What claims ahead in the queue are to have, as the ledger is in this pass.
    reservations: Reservations,
    eviction_budget: EvictionBudget<'a>,
    /// All pods that have to find room, and the nodes that this pass cordons.
    cordons: Cordons<'a>,
    /// The nodes whose drains come before a cordon for which there is no room.
    ahead: BTreeSet<NodeName>,
    /// Control-plane nodes that need their lease to be granted what they ask for.
    control_plane_for: BTreeSet<NodeName>,
    /// Drains that wait for each other without claims that say so.
    circles: Circles,
    /// Places in node groups that this pass has promised.
    places: NodeGroups,
    /// The bytes of the ledger that claims of further drains may take.
    bytes_left: usize,
    plan: Plan,
    requeue_at: RequeueAt,
}

impl Planner<'_> {
    fn classify_pods(&mut self, contexts: &mut [DrainContext]) {
        for (index, need) in needs(contexts, &self.cordons, self.snapshot, self.policy, self.now) {
            self.requeue_at.note(need.changes_at);
            contexts[index].classes = Some(PodClasses::of(need, self.snapshot, self.memory, self.now));
        }
    }

    /// What comes back without the drain's doing, whatever else becomes of it.
    fn return_what_is_back(&mut self, context: &DrainContext) {
        self.return_disruptions(context);
        self.return_node_groups(context);
        if let Some(uid) = &context.node_uid {
            let containers = UnavailablePods::containers_before_reboot(context, self.snapshot);
            self.write.next.note_containers(uid.as_str(), &containers);
        }
    }

    fn reconcile(&mut self, context: &DrainContext) {
        match (context.intent, &context.drain, &context.node, &context.classes) {
            (Intent::Drain | Intent::Await(_), Some(drain), Some(node), _)
                if !context.is_adopted() || drain.spec.node_uid.is_none() =>
            {
                self.adopt(context, drain, node);
            }
            (Intent::Await(opens), Some(_), Some(node), _) => self.await_window(context, node, opens),
            (Intent::Drain, Some(_), Some(_), Some(classes)) if !self.may_be_queued(context, classes) => {
                self.report_full(context);
            }
            (Intent::Drain, Some(drain), Some(node), Some(classes)) => self.advance(ActiveDrain {
                context,
                drain,
                node,
                classes,
                limits: TimeLimits::of_active(context, self.policy.deadlines, &self.write.next),
                asks: false,
                has_places: has_places(context.claim.as_ref(), self.policy, node),
            }),
            (Intent::Preview, Some(_), _, _) => self.preview(context),
            (Intent::Impossible(reason), _, _, _) => self.report_impossible(context, reason),
            (Intent::Override, _, _, _) => self.release_by_override(context),
            (Intent::End(ending), _, _, _) => self.complete(context, ending),
            // Only a drain with its node is wanted.
            (Intent::Drain | Intent::Await(_) | Intent::Preview, _, _, _) => {}
        }
    }

    /// Disruptions of pods that are back return.
    fn return_disruptions(&mut self, context: &DrainContext) {
        let (Some(claim), unavailable) = (&context.claim, &context.unavailable) else {
            return;
        };
        self.requeue_at.note(unavailable.changes_at());
        for budget in unavailable.perhaps_scaled_down() {
            match self.memory.scale_not_before(budget, self.now) {
                None => _ = self.write.scales.insert(budget.clone()),
                until => self.requeue_at.note(until),
            }
        }
        let recovered = unavailable.recovered();
        if !recovered.is_empty() && self.write.next.return_pods(&claim.node_uid, &recovered) > 0 {
            let gone = unavailable.gone().iter().map(|gone| GonePod {
                node_uid: claim.node_uid.as_str().into(),
                key: gone.key.clone(),
                uid: gone.uid.clone(),
                by_number_of: gone.by_number_of.clone(),
            });
            self.write.gone.extend(gone);
            self.write.called_off.extend(unavailable.called_off().cloned());
        }
    }

    /// A drain that is wanted: one step of its life.
    fn advance(&mut self, mut active: ActiveDrain<'_>) {
        let (context, uid) = (active.context, active.uid());
        let is_foreign = context.has_foreign_cordon();
        self.write
            .next
            .enqueue(context.name.as_str(), uid, is_foreign, self.now);
        self.apply_timeouts(&active);
        if is_foreign {
            self.write.next.take_over(uid, self.now);
        }
        self.note_obstacle(&active);
        self.write.next.settle_movable(uid, &active.classes.needs);
        self.note_leaving(&active);
        if active.node.is_being_removed() {
            // What was claimed while it was to come back: its pods go as their budgets allow.
            self.set_needs(&active, Vec::new());
        }
        active.asks = self.is_to_ask(&active);
        let Some(claim) = self.write.next.claim(uid).cloned() else {
            return;
        };
        let mut verdict = self.verdict(context);
        verdict.blocked_by.extend(active.classes.problems.iter().cloned());
        for text in &active.limits.unreadable {
            verdict.block(LockReason::InvalidDrain, text.as_str());
        }
        if active.drain.spec.fallback == Fallback::Removed {
            verdict.block(
                LockReason::InvalidDrain,
                format!("it counts as Wait: {}", Fallback::REFUSED),
            );
        }
        verdict.gives_lease_up = active.limits.recover_until(&claim) <= self.now && context.is_granted();
        let stage = Stage::of(&claim, &active);
        self.run_stage(stage, &active, &mut verdict);
        self.conclude(stage, &active, verdict);
    }

    /// Notes in the ledger since when the drain has had an obstacle, once it has had it for a while: most are over before.
    fn note_obstacle(&mut self, active: &ActiveDrain<'_>) {
        let (obstacles, uid) = (&active.classes.obstacles, &active.node.uid);
        let known = self.memory.obstructed.get(uid).copied();
        if obstacles.is_behind && !obstacles.is_waited_for {
            // Nobody can tell yet whether there is one.
            self.plan.obstructed.extend(known.map(|since| (uid.clone(), since)));
            return;
        }
        if !(obstacles.is_waited_for && active.node.is_cordoned()) {
            self.write.next.note_obstacle(uid.as_str(), None);
            return;
        }
        let since = known.unwrap_or(self.now);
        self.plan.obstructed.insert(uid.clone(), since);
        let lasting = saturating_add(since, (self.policy.obstacle_after / 4).min(OBSTACLE_LASTS));
        self.requeue_at.note(lasting);
        if lasting <= self.now {
            self.write.next.note_obstacle(uid.as_str(), Some(since));
        }
    }

    /// Takes a NodeDrain into care before anything is done for it: until it names the node's UID, another node of that
    /// name could take its place. Its status waits for that too, so that the two writes do not get into each other's way.
    fn adopt(&mut self, context: &DrainContext, drain: &Arc<NodeDrain>, node: &NodeFacts) {
        self.plan.actions.push(Action::Adopt {
            drain: Arc::clone(drain),
            node_uid: node.uid.as_str().to_owned(),
        });
        let mut verdict = self.verdict(context);
        verdict.drain = None;
        verdict.set_message("is being taken into care");
        self.plan.drains.push(verdict);
    }

    /// What is known of every drain.
    fn verdict(&self, context: &DrainContext) -> DrainVerdict {
        let (drain, classes) = (context.drain.as_deref(), context.classes.as_ref());
        let status = drain.and_then(|drain| drain.status.as_ref());
        let before = status.and_then(|status| status.pods);
        let claim = claim_of(context.node_uid.as_ref(), &self.write.next);
        DrainVerdict {
            drain: context.drain.clone(),
            node: context.name.clone(),
            node_uid: context.node_uid.clone(),
            phase: Phase::Queued,
            claim: claim.cloned(),
            blocked_by: Vec::new(),
            plan: classes.map(|classes| classes.plan.clone()),
            counts: classes.map_or_else(|| before.unwrap_or_default(), |classes| classes.counts(before)),
            deadline: None,
            leaves_out_at: None,
            gives_lease_up: false,
            message: String::new(),
            lease_lost: false,
        }
    }

    /// Has people told, once the ledger is written.
    fn announce(&mut self, node: &NodeName, node_uid: &str, reason: LockReason, note: String) {
        self.write.announcements.push(Announcement {
            node: node.clone(),
            node_uid: node_uid.into(),
            reason,
            note,
        });
    }

    /// The pods that leave without a disruption of their own: those of this pass, and those that no watch shows yet.
    fn leaving(&self) -> BTreeSet<PodUid> {
        let now = self.plan.actions.iter().filter_map(|action| match action {
            Action::Evict { eviction } => Some(&eviction.pod.uid),
            _ => None,
        });
        let all = now.chain(self.memory.asked_to_go(self.now));
        let without_disruption = all.filter(|pod| !self.write.next.is_held(pod.as_str()));
        without_disruption.cloned().collect()
    }

    /// What rests on reads that failed, or contradicted the plan, a moment ago is left out until it is tried again.
    fn leave_out_doubted(&mut self) {
        let reading = self.write.reading_claims();
        for (node_uid, doubted) in self.memory.doubted(self.now) {
            if !reading.contains(node_uid) {
                continue;
            }
            self.write.leave_out(node_uid);
            self.requeue_at.note(doubted.not_before);
            let is_meant = |verdict: &&mut DrainVerdict| verdict.node_uid.as_ref() == Some(node_uid);
            if let Some(verdict) = self.plan.drains.iter_mut().find(is_meant) {
                verdict.claim = claim_of(Some(node_uid), &self.write.next).cloned();
                verdict.block(
                    LockReason::ReadFailed,
                    format!("{} ({})", LockReason::ReadFailed.explanation(), doubted.why),
                );
            }
        }
    }

    /// Says of each drain what the API server refused to write for it the last time.
    fn name_refused_writes(&mut self) {
        for (target, refusal) in &self.memory.refused_writes {
            let (what, nodes): (_, Vec<NodeUid>) = match target {
                WriteTarget::Ledger => ("the DrainLedger".to_owned(), self.changed_claims()),
                WriteTarget::Node(node) if self.plan.writes_node(node) => ("the node".to_owned(), vec![node.clone()]),
                WriteTarget::Node(_) => continue,
            };
            let text = format!("{} ({what}: {refusal})", LockReason::WriteRefused.explanation());
            let is_meant =
                |verdict: &&mut DrainVerdict| verdict.node_uid.as_ref().is_some_and(|node| nodes.contains(node));
            for verdict in self.plan.drains.iter_mut().filter(is_meant) {
                verdict.block(LockReason::WriteRefused, text.clone());
                verdict.set_message(text.clone());
            }
        }
    }

    /// The nodes whose claims this pass changes, or wants to be granted.
    fn changed_claims(&self) -> Vec<NodeUid> {
        let asked = self.write.grants.iter().map(|ask| &ask.node_uid);
        let asked: Vec<&NodeUid> = asked
            .chain(self.write.confirms.iter().map(|ask| &ask.node_uid))
            .collect();
        let nodes = self.plan.drains.iter().filter_map(|verdict| verdict.node_uid.as_ref());
        let is_changed = |node: &&NodeUid| {
            asked.contains(node) || claim_of(Some(node), &self.before) != claim_of(Some(node), &self.write.next)
        };
        nodes.filter(is_changed).cloned().collect()
    }

    /// Of the claims that could be granted each by itself, those that can be granted together: each asked by what others held when its
    /// turn came, so two may have asked for the same disruption.
    fn keep_grants_that_go_together(&mut self) {
        let asks = std::mem::take(&mut self.write.grants);
        if asks.is_empty() {
            return;
        }
        let mut facts = self.snapshot.facts.clone();
        take_out(&mut facts, &self.write.leaving);
        let mut rehearsal = self.write.next.clone();
        let mut reservations = Reservations::new(&rehearsal, &facts);
        for ask in asks {
            let (uid, boot_id) = (ask.node_uid.as_str(), &ask.boot_id);
            match rehearsal.try_grant_by(&mut reservations, uid, boot_id, &facts, self.now) {
                Ok(_) => {
                    rehearsal.take_node_groups(ask.node_uid.as_str(), &ask.node_groups);
                    self.write.grants.push(ask);
                }
                Err(obstacles) => {
                    let is_meant = |verdict: &&mut DrainVerdict| verdict.node_uid.as_ref() == Some(&ask.node_uid);
                    if let Some(verdict) = self.plan.drains.iter_mut().find(is_meant) {
                        verdict.block_by(&obstacles, self.snapshot);
                    }
                }
            }
        }
    }

    /// The end of the pass.
    fn finish(mut self) -> Plan {
        self.remove_stale_entries();
        self.keep_control_plane_lease();
        self.touch_stale_budgets();
        self.leave_out_doubted();
        self.name_refused_writes();
        self.write.leaving = self.leaving();
        self.write.next.count_needs(&self.snapshot.facts);
        self.keep_grants_that_go_together();
        let is_new = self.write.base.is_none() && !self.write.next.claims().is_empty();
        let has_changed = self.write.base.is_some() && self.write.next != self.before;
        if is_new || has_changed || self.write.asks() {
            self.plan.ledger = Some(self.write);
        }
        self.plan.requeue_at = self.requeue_at.at();
        self.plan
    }
}
