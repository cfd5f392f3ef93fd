//! The rules by which an eviction goes or waits.

use nodeward_api::reason::LockReason;
use nodeward_core::deadline::to_the_second;
use nodeward_core::ledger::{BudgetFacts, Claim, ClaimState, Facts, Fence, Ledger, Obstacle, Reservations, Unusable};
use nodeward_core::opt_out::OptOut;
use nodeward_core::text::counted;

use super::answer::{Admission, Decision, RefusalKind, Refused};
use super::eviction::{
    Caller, Drainer, EvictionContext, EvictionRequest, MatchingBudgets, NodeContext, PodState, Surge,
};

pub(super) struct Judge<'a> {
    pub request: &'a EvictionRequest<'a>,
    pub ledger: &'a Ledger,
    pub facts: &'a Facts,
    pub reservations: &'a Reservations,
}

impl Judge<'_> {
    /// An eviction of ours that names its grant: the grant is in force and has a disruption for the pod, or it is refused,
    /// whatever the pod is. A leader that was paused acts on nothing else.
    pub(super) fn under_ticket(&self, ticket: &str, context: Option<&EvictionContext>) -> Decision {
        let Some(context) = context else {
            return wait(
                LockReason::StaleTicket,
                "the eviction's ticket cannot be checked: the watches do not show its pod",
            );
        };
        if let Some(refused) = surging(context) {
            return refused;
        }
        let fence = Fence::parse(ticket);
        let in_force = fence
            .zip(context.node.as_ref())
            .is_some_and(|(fence, node)| self.ledger.may_evict(node.uid.as_str(), fence, context.uid.as_str()));
        if in_force {
            Decision::Admit(Admission::UnderClaim)
        } else {
            wait(
                LockReason::StaleTicket,
                "the eviction's ticket is not that of a grant in force",
            )
        }
    }

    pub(super) fn without_ticket(&self, context: &EvictionContext) -> Decision {
        match context.state {
            PodState::Mirror => return Decision::Admit(Admission::Mirror),
            PodState::SkipsBudgets => return Decision::Admit(Admission::SkipsBudgets),
            PodState::Pending | PodState::Unready | PodState::Counts => {}
        }
        if let Some(refused) = surging(context) {
            return refused;
        }
        let is_anothers = self.request.caller.is_another();
        if let Some(opt_out) = context.opted_out
            && context.state != PodState::Pending
            && is_anothers
            && context.refuse_opt_out
            && self.is_emptied(context)
        {
            let reason = match opt_out {
                OptOut::Skip => LockReason::OptedOut,
                OptOut::WaitCompleted => LockReason::WaitCompleted,
                OptOut::Unknown => LockReason::UnknownOptOut,
            };
            let (pod, why) = (self.request.pod, reason.explanation());
            let text = format!("pod {pod} {why}, and only drain-lock's own drainer may evict it here");
            return wait(reason, &text);
        }
        if is_anothers && let Some(refused) = self.node_group(context).or_else(|| self.retained(context)) {
            return refused;
        }
        if context.state.is_starting() {
            return self.starting(context);
        }
        match &context.budgets {
            MatchingBudgets::None => Decision::Admit(Admission::NoBudget),
            MatchingBudgets::Several => Decision::Admit(Admission::SeveralBudgets),
            MatchingBudgets::One(budget) => self.counted(context, budget),
        }
    }

    /// A pod that is not Ready yet. The API takes no disruption for it, but where its node drains and it is held, it goes
    /// under the claim as if it were: of two nodes that each lost one so, each would wait for what the other took.
    fn starting(&self, context: &EvictionContext) -> Decision {
        let admission = match context.state {
            PodState::Pending => Admission::SkipsBudgets,
            _ => Admission::Unready,
        };
        let admitted = Decision::Admit(admission);
        let (Some(node), MatchingBudgets::One(budget)) = (&context.node, &context.budgets) else {
            return admitted;
        };
        // What drain-lock evicts without a ticket it has found movable, or under a budget that lets it go.
        if self.request.caller == Caller::Ourselves {
            return admitted;
        }
        match self.ledger.claim(node.uid.as_str()) {
            _ if node.is_being_removed => admitted,
            Some(claim) if is_left_for_good(claim, node) => admitted,
            // Of a budget that lets it go it needs no disruption; its turn it awaits all the same.
            Some(claim) if context.always_allowed && claim.state == ClaimState::Confirmed => admitted,
            Some(claim) if claim.has_disruption(context.uid.as_str()) => {
                self.under_claim(claim, node, context, false, budget)
            }
            // The last of its node waits with it, so it goes only once its drain is planned anew.
            Some(claim) if self.is_drained_again(claim, node) && !context.is_movable => not_planned(node),
            Some(claim) if is_draining(claim, node) && !context.is_movable => self.waits(claim, Some(budget)),
            None if self.awaits_plan(node) => not_planned(node),
            Some(_) | None => admitted,
        }
    }

    /// The refusal of the last pod of a node that has yet to get its place in its node groups.
    fn node_group(&self, context: &EvictionContext) -> Option<Decision> {
        let node = context
            .node
            .as_ref()
            .filter(|node| node.in_node_group && node.takes_drainers() && !context.another_goes_last)?;
        let claim = self.ledger.claim(node.uid.as_str());
        // Without a plan nobody would ever give it its place.
        if self.ledger.admits_in_node_group(node.uid.as_str()) || (claim.is_none() && !self.awaits_plan(node)) {
            return None;
        }
        let text = format!(
            "node {} is in a node group and waits for its turn to be away; its NodeDrain says which nodes are",
            node.name
        );
        Some(wait(LockReason::WaitsForNodeGroup, &text))
    }

    /// The refusal of the last pod beside those that stay on the node, before its claim is confirmed. Others go: later, the claim
    /// could have the last disruption of their budget, and the drain would not end.
    fn retained(&self, context: &EvictionContext) -> Option<Decision> {
        let node = context
            .node
            .as_ref()
            .filter(|node| node.cordoned && !context.another_goes_last)?;
        let retained = node.retains.as_ref()?;
        let claim = self.ledger.claim(node.uid.as_str());
        if self.ledger.admits_around_retained(node.uid.as_str()) || (claim.is_none() && !self.awaits_plan(node)) {
            return None;
        }
        let Decision::Refuse(refused) = (match claim {
            Some(claim) if is_left_for_good(claim, node) => return None,
            Some(claim) => self.waits(claim, None),
            None => not_planned(node),
        }) else {
            return None;
        };
        let message = format!(
            "pod {retained} stays on its node, which waits for that: {}",
            refused.message
        );
        Some(Decision::Refuse(Refused { message, ..refused }))
    }

    /// A pod whose budget is asked for a disruption.
    fn counted(&self, context: &EvictionContext, budget: &BudgetFacts) -> Decision {
        let Some(node) = &context.node else {
            return self.free(None, budget, Admission::FreeDisruption);
        };
        let claim = self.ledger.claim(node.uid.as_str());
        let is_ours = self.request.caller == Caller::Ourselves;
        match claim {
            Some(claim) if claim.has_disruption(context.uid.as_str()) => {
                self.under_claim(claim, node, context, is_ours, budget)
            }
            _ if node.is_being_removed => self.free(None, budget, Admission::FreeDisruption),
            // What drain-lock evicts beside these it has found movable.
            _ if is_ours => self.free(Some(node), budget, Admission::FreeDisruption),
            // No claim helps, and the API's own answer says why.
            Some(_) if budget.unusable.is_some_and(Unusable::is_for_good) => {
                self.free(Some(node), budget, Admission::FreeDisruption)
            }
            Some(claim) if is_draining(claim, node) && context.is_movable => {
                self.free(Some(node), budget, Admission::FreeDisruption)
            }
            Some(claim) if self.is_drained_again(claim, node) => not_planned(node),
            Some(claim) if is_left_for_good(claim, node) => self.free(None, budget, Admission::FreeDisruption),
            Some(claim) if is_left(claim) || is_draining(claim, node) => self.waits(claim, Some(budget)),
            None if self.awaits_plan(node) => not_planned(node),
            None if self.belongs_to_drain(node) => self.free(None, budget, Admission::Unplanned),
            None if node.takes_drainers() && self.request.caller == Caller::Another(Drainer::Unknown) => {
                self.free(None, budget, Admission::UnknownUser)
            }
            Some(_) | None => self.free(None, budget, Admission::FreeDisruption),
        }
    }

    /// A pod that the claim of its node has a disruption for.
    fn under_claim(
        &self,
        claim: &Claim,
        node: &NodeContext,
        context: &EvictionContext,
        is_ours: bool,
        budget: &BudgetFacts,
    ) -> Decision {
        if !is_ours && self.ledger.admits_requester(node.uid.as_str(), context.uid.as_str()) {
            return Decision::Admit(Admission::UnderClaim);
        }
        if is_ours && claim.state != ClaimState::Suspect {
            return wait(
                LockReason::StaleTicket,
                "the eviction of a held pod must name its grant",
            );
        }
        self.waits(claim, Some(budget))
    }

    /// What a claim that is not confirmed waits for.
    fn waits(&self, claim: &Claim, budget: Option<&BudgetFacts>) -> Decision {
        let node = &claim.node;
        match claim.state {
            ClaimState::Granted => wait(
                LockReason::AwaitsConfirmation,
                &format!("node {node} has its turn to drain, which is being confirmed"),
            ),
            ClaimState::Suspect => wait(
                LockReason::Suspect,
                &format!("the drain of node {node} is suspect: nobody has gone on with it while pods of it are down"),
            ),
            ClaimState::Returning => wait(
                LockReason::AwaitingReady,
                &format!(
                    "the last drain of node {node} has ended, and its pods are on their way back: uncordon it, if they fit \
                     no other node"
                ),
            ),
            ClaimState::Confirmed => self.beside_grant(claim, budget),
            ClaimState::Waiting => self.queued(claim, budget),
        }
    }

    /// What a held pod waits for that a confirmed claim has no disruption for.
    fn beside_grant(&self, claim: &Claim, budget: Option<&BudgetFacts>) -> Decision {
        let node = &claim.node;
        let Some(budget) = budget else {
            return is_being_planned(node);
        };
        if claim.has_movable_disruption(&budget.key) {
            let key = &budget.key;
            let text = format!("pods of budget {key} that find room elsewhere leave node {node} first");
            return wait(LockReason::AwaitingPods, &text);
        }
        if (1..=claim.disruptions_of(budget)).contains(&budget.ceiling()) {
            let text = format!(
                "budget {} can spare {} at most, which the drain of node {node} has taken",
                budget.key,
                counted(budget.ceiling(), "disruption")
            );
            return wait(LockReason::NeedExceedsBudget, &text);
        }
        match self.ledger.admits(Some(&claim.node_uid), budget, self.reservations) {
            // Its obstacle has lasted, and the grant was made without it.
            Err(obstacle) => wait(obstacle.reason, &self.words(&obstacle)),
            // It came after the grant.
            Ok(()) => is_being_planned(node),
        }
    }

    /// What the claim of the pod's node waits for: the pod's own budget first.
    fn queued(&self, claim: &Claim, budget: Option<&BudgetFacts>) -> Decision {
        let obstacles = self.ledger.obstacles_by(&claim.node_uid, self.facts, self.reservations);
        let own = obstacles
            .iter()
            .find(|obstacle| budget.is_some_and(|budget| obstacle.pdb.as_ref() == Some(&budget.key)));
        let (node, ticket) = (&claim.node, claim.ticket);
        match own.or(obstacles.first()) {
            Some(obstacle) => {
                let obstacle_words = self.words(obstacle);
                let words = format!("node {node} waits for its turn to drain (ticket {ticket}): {obstacle_words}");
                wait(obstacle.reason, &words)
            }
            None if claim.needs.is_empty() => wait(
                LockReason::AwaitingPods,
                &format!("pods of node {node} that find room elsewhere leave first (ticket {ticket})"),
            ),
            None => wait(
                LockReason::Queued,
                &format!("node {node} is about to get its turn to drain (ticket {ticket})"),
            ),
        }
    }

    /// A pod that no claim has a disruption for by name; with the node of its drain, if it is movable.
    fn free(&self, node: Option<&NodeContext>, budget: &BudgetFacts, admission: Admission) -> Decision {
        let node_uid = node.map(|node| node.uid.as_str());
        self.by_room(self.ledger.admits(node_uid, budget, self.reservations), admission)
    }

    fn by_room(&self, room: Result<(), Obstacle>, admission: Admission) -> Decision {
        match room {
            Ok(()) => Decision::Admit(admission),
            Err(obstacle) => wait(obstacle.reason, &self.words(&obstacle)),
        }
    }

    /// What is in the way, who has it, and since when: for a person to see whether that is long.
    fn words(&self, obstacle: &Obstacle) -> String {
        let (Some(budget), Some(holder)) = (&obstacle.pdb, &obstacle.holder) else {
            return obstacle.to_string();
        };
        let claim = self.ledger.claims().iter().find(|claim| claim.node == holder.as_str());
        let since = claim.map_or_else(String::new, |claim| {
            let has_moving_alone = claim.holds.is_empty() && !claim.moving.is_empty();
            let state = if has_moving_alone {
                "whose pods are on the move".to_owned()
            } else {
                format!("{} since {}", words(claim.state), to_the_second(claim.since))
            };
            format!(" (ticket {}, {state})", claim.ticket)
        });
        let free = obstacle.free.max(0);
        match obstacle.needed {
            ..=0 => format!("budget {budget} has no disruption to spare beside those of node {holder}{since}"),
            needed => format!(
                "budget {budget} has {free} of {needed} needed disruptions free, node {holder} holds the rest{since}"
            ),
        }
    }

    /// Whether the eviction, from a node without a claim, belongs to a drain: one that is there, or that it asks for.
    fn belongs_to_drain(&self, node: &NodeContext) -> bool {
        node.takes_drainers() && (node.has_drain || self.request.caller.may_drain())
    }

    /// Whether it belongs to a drain that begins before the pods of the node's last one are back.
    fn is_drained_again(&self, claim: &Claim, node: &NodeContext) -> bool {
        is_left(claim) && node.takes_drainers() && self.request.caller.may_drain()
    }

    /// Whether it waits until that drain is planned.
    fn awaits_plan(&self, node: &NodeContext) -> bool {
        self.belongs_to_drain(node) && !node.planning_timed_out
    }

    /// Whether the pod's node is being emptied.
    pub(super) fn is_emptied(&self, context: &EvictionContext) -> bool {
        context
            .node
            .as_ref()
            .is_some_and(|node| node.cordoned || self.ledger.claim(node.uid.as_str()).is_some())
    }
}

/// The refusal of a pod that a rollout moves, or that comes in its place: once both are Ready the budget lets one go, whichever it
/// is, and before the new one has been Ready for as long as its Deployment asks.
fn surging(context: &EvictionContext) -> Option<Decision> {
    let Surge { pod, until } = context.surge.as_ref()?;
    let (why, until) = (LockReason::Surging.explanation(), to_the_second(*until));
    let text = format!("pod {pod} {why}, which is given up at {until}");
    Some(wait(LockReason::Surging, &text))
}

fn not_planned(node: &NodeContext) -> Decision {
    is_being_planned(node.name.as_str())
}

fn is_being_planned(node: &str) -> Decision {
    wait(
        LockReason::NotPlanned,
        &format!("the drain of node {node} is being planned"),
    )
}

pub(super) fn wait(reason: LockReason, message: &str) -> Decision {
    refuse(RefusalKind::Wait, reason, message)
}

pub(super) fn refuse(kind: RefusalKind, reason: LockReason, message: &str) -> Decision {
    Decision::Refuse(Refused {
        kind,
        reason,
        message: message.to_owned(),
    })
}

fn words(state: ClaimState) -> &'static str {
    match state {
        ClaimState::Waiting | ClaimState::Returning => "waiting",
        ClaimState::Granted => "granted",
        ClaimState::Confirmed => "confirmed",
        ClaimState::Suspect => "suspect",
    }
}

/// Whether the drain of the claim has ended, or nobody goes on with it, while its pods are down.
pub(in crate::webhook) fn is_left(claim: &Claim) -> bool {
    matches!(claim.state, ClaimState::Returning | ClaimState::Suspect)
}

/// The same, of a node whose evictions request no drain: no later one takes over what the last one left.
fn is_left_for_good(claim: &Claim, node: &NodeContext) -> bool {
    is_left(claim) && !node.takes_drainers() && !node.has_drain
}

/// Whether the node is being emptied under the claim. One that nobody has cordoned yet is not, while its claim only has its place.
fn is_draining(claim: &Claim, node: &NodeContext) -> bool {
    match claim.state {
        ClaimState::Returning => false,
        ClaimState::Waiting => claim.asks() || node.cordoned,
        _ => true,
    }
}
