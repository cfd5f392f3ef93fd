//! What the webhook says to an eviction: pure.
//!
//! An eviction belongs to the claim of its pod's node. Pods that the claim has a disruption for go once it is confirmed, movable
//! ones by the disruption that it has for these, or by one that is free after grants, reservations and owners' holds. So does
//! every other eviction. Whatever the eviction API itself decides without counting disruptions is admitted, so that its own answer shows.

use jiff::Timestamp;
use nodeward_api::reason::LockReason;
use nodeward_core::deadline::to_the_second;
use nodeward_core::id::{NodeName, NodeUid, PodKey, PodUid};
use nodeward_core::ledger::{BudgetFacts, Claim, ClaimState, Facts, Fence, Ledger, Obstacle, Reservations, Unusable};
use nodeward_core::opt_out::OptOut;

/// Who asks for an eviction.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Caller {
    /// drain-lock itself: its ServiceAccount.
    Ourselves,
    /// Anybody else.
    Another(Drainer),
}

/// Whether a user's evictions from a cordoned node are the drain of that node.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Drainer {
    /// The user may change nodes, or the configuration says so.
    Yes,
    /// The user may not, or the configuration says so, or it is one of our own operators.
    No,
    /// The API server has not been asked, or not answered yet.
    Unanswered,
    /// The API server does not say.
    Unknown,
}

impl Caller {
    fn is_another(self) -> bool {
        matches!(self, Self::Another(_))
    }

    /// Whether the eviction waits for the drain that it may ask for.
    fn may_drain(self) -> bool {
        matches!(self, Self::Another(Drainer::Yes | Drainer::Unanswered))
    }
}

/// An eviction, as far as it is judged by.
#[derive(Debug, Clone, Copy)]
pub struct EvictionRequest<'a> {
    /// Who asks.
    pub caller: Caller,
    /// Whether nothing is to happen.
    pub dry_run: bool,
    /// Whether nobody has led and planned for too long: what waits would wait for ever.
    pub leaderless: bool,
    /// Whether a person has paused drain-lock, with the same consequence.
    pub paused: bool,
    /// The grant that it says it rests on.
    pub ticket: Option<&'a str>,
    pub pod: &'a PodKey,
}

/// What the watches show of the pod.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum LookupResult {
    /// The watches are not complete yet, or have been silent: nothing may be concluded.
    Unsynced,
    /// There is no such pod, or another of its name.
    UnknownPod,
    Found(Box<EvictionContext>),
}

impl LookupResult {
    pub fn context(&self) -> Option<&EvictionContext> {
        match self {
            Self::Unsynced | Self::UnknownPod => None,
            Self::Found(context) => Some(context),
        }
    }

    /// The same of a node that nothing stays on.
    fn without_retained(&self) -> Self {
        let mut found = self.clone();
        if let Self::Found(context) = &mut found
            && let Some(node) = &mut context.node
        {
            node.retains = None;
        }
        found
    }

    /// The pod's budget, if it has just one, and the pod's UID.
    pub fn one_budget(&mut self) -> Option<(&mut BudgetFacts, &PodUid)> {
        match self {
            Self::Found(context) => match &mut context.budgets {
                MatchingBudgets::One(budget) => Some((budget, &context.uid)),
                MatchingBudgets::None | MatchingBudgets::Several => None,
            },
            Self::Unsynced | Self::UnknownPod => None,
        }
    }
}

/// The pod, its node and its budgets.
#[expect(clippy::struct_excessive_bools, reason = "each is a fact of its own")]
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct EvictionContext {
    pub uid: PodUid,
    /// How the eviction API treats it.
    pub state: PodState,
    /// What its owner asked of drains: to leave it, or to wait for it.
    pub opted_out: Option<OptOut>,
    /// The rollout by which it or another pod of its budgets moves.
    pub surge: Option<Surge>,
    /// Its node, where that is known.
    pub node: Option<NodeContext>,
    /// The budgets that select it.
    pub budgets: MatchingBudgets,
    /// Whether it is movable in the drain of its node; false where that is not known. It only matters while that drain's
    /// claim has no disruption for it.
    pub is_movable: bool,
    /// Whether another pod of its node leaves under the claim alone, so that no drainer is done with the node before.
    pub another_goes_last: bool,
    /// Whether it is not Ready, and its budget lets such pods go whatever else it says (`AlwaysAllow`).
    pub always_allowed: bool,
    /// Whether other drainers' evictions of opted-out pods are refused.
    pub refuse_opt_out: bool,
}

/// A rollout by which a pod moves.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Surge {
    pub pod: PodKey,
    /// When it is given up.
    pub until: Timestamp,
}

/// How the eviction API treats a pod.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum PodState {
    /// The API's copy of a static pod: its eviction does nothing.
    Mirror,
    /// Finished or terminating: no budget is asked.
    SkipsBudgets,
    /// Bound to a node, and not running yet: no budget is asked.
    Pending,
    /// Not Ready: the API applies `unhealthyPodEvictionPolicy`.
    Unready,
    /// Its budget is asked for a disruption.
    Counts,
}

impl PodState {
    /// Whether it is on its way to being Ready, or to failing at that.
    pub fn is_starting(self) -> bool {
        matches!(self, Self::Pending | Self::Unready)
    }
}

/// A node, and whether it is being emptied.
#[expect(clippy::struct_excessive_bools, reason = "each is a fact of its own")]
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct NodeContext {
    pub name: NodeName,
    pub uid: NodeUid,
    /// Whether it is cordoned, by whoever.
    pub cordoned: bool,
    /// Whether a drainer's eviction from it, while cordoned, asks for a drain of it by itself: auto mode is on, and it is selected.
    pub auto: bool,
    /// Whether somebody has asked for its drain.
    pub has_drain: bool,
    /// Whether it is in a node group, so that nobody empties it before it has its place there.
    pub in_node_group: bool,
    /// One of its pods that stays on it through its drain and that a budget guards: the node is not to be emptied around it
    /// before its drain has a disruption for it. `None` where nobody would give it one, or for an eviction that no drainer
    /// waits for.
    pub retains: Option<PodKey>,
    /// Whether it has been waited for a plan of its drain for longer than any plan takes.
    pub planning_timed_out: bool,
    /// Whether somebody takes it away for good: its pods go as their budgets allow, less what other drains are to have.
    pub is_being_removed: bool,
}

impl NodeContext {
    /// Whether the evictions of a drainer ask for its drain.
    pub fn takes_drainers(&self) -> bool {
        self.cordoned && self.auto
    }
}

/// The budgets that select a pod.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum MatchingBudgets {
    None,
    /// One.
    One(BudgetFacts),
    /// Several: the API answers 500.
    Several,
}

/// The answer.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Decision {
    /// The API goes on, and asks the budget itself.
    Admit(Admission),
    /// The API refuses.
    Refuse(Refused),
}

/// Why an eviction is admitted.
#[derive(Debug, Clone, Copy, PartialEq, Eq, strum::IntoStaticStr, strum::VariantArray)]
#[strum(serialize_all = "kebab-case")]
pub enum Admission {
    /// Nothing is to happen.
    DryRun,
    /// It would have been refused, or may have been; drain-lock only audits.
    Audit,
    /// Nobody has led and planned for too long.
    NoLeader,
    /// A person has paused drain-lock.
    Paused,
    /// The watches are not complete.
    Unsynced,
    /// The watches know no such pod.
    UnknownPod,
    /// The API's copy of a static pod.
    #[strum(serialize = "mirror-pod")]
    Mirror,
    /// Pending, finished or terminating.
    SkipsBudgets,
    /// Not Ready.
    Unready,
    /// No budget selects it.
    NoBudget,
    /// Several budgets select it, which the API answers with 500.
    SeveralBudgets,
    /// The claim of its node has a disruption for it.
    UnderClaim,
    FreeDisruption,
    /// A disruption is free, and nobody has planned the drain of its node in time.
    Unplanned,
    /// A disruption is free, and the API server does not say whether who evicts from the cordoned node drains it.
    UnknownUser,
}

impl Admission {
    /// Every one.
    pub const ALL: &'static [Self] = <Self as strum::VariantArray>::VARIANTS;

    /// Its label in metrics and in the API server's audit log.
    pub fn as_label(self) -> &'static str {
        self.into()
    }

    /// Whether it was admitted for want of knowledge, not by a rule.
    pub fn fails_open(self) -> bool {
        matches!(
            self,
            Self::NoLeader | Self::Unsynced | Self::UnknownPod | Self::Unplanned | Self::UnknownUser
        )
    }
}

/// A refusal.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Refused {
    /// What clients make of it.
    pub kind: RefusalKind,
    /// Why, in one word.
    pub reason: LockReason,
    /// Why, for a person: who holds what is waited for.
    pub message: String,
}

/// What clients make of a refusal.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum RefusalKind {
    /// 429: they ask again.
    Wait,
    /// 403: they do not.
    Forbidden,
}

impl RefusalKind {
    /// The HTTP status.
    pub fn code(self) -> u16 {
        match self {
            Self::Wait => 429,
            Self::Forbidden => 403,
        }
    }

    /// `metav1.Status.reason`.
    pub fn reason(self) -> &'static str {
        match self {
            Self::Wait => "TooManyRequests",
            Self::Forbidden => "Forbidden",
        }
    }
}

/// The answer, and what follows from it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Verdict {
    /// The answer.
    pub decision: Decision,
    /// Whether a drain of the pod's node is to be asked for, if who evicts is a drainer.
    pub requests_drain: bool,
    /// Whether a pod goes that asked to stay.
    pub ignores_opt_out: bool,
    /// Why it would have been refused, were this no audit.
    pub audited: Option<Refused>,
}

impl From<Decision> for Verdict {
    fn from(decision: Decision) -> Self {
        Self {
            decision,
            requests_drain: false,
            ignores_opt_out: false,
            audited: None,
        }
    }
}

impl Verdict {
    /// The same where nothing is refused.
    #[must_use]
    pub fn audited(self) -> Self {
        match self.decision {
            Decision::Admit(_) => self,
            Decision::Refuse(refused) => Self {
                decision: Decision::Admit(Admission::Audit),
                audited: Some(refused),
                ..self
            },
        }
    }

    /// Whether a disruption goes with it that no claim holds.
    pub fn takes_free_disruption(&self) -> bool {
        matches!(
            self.decision,
            Decision::Admit(Admission::FreeDisruption | Admission::Unplanned | Admission::UnknownUser)
        )
    }
}

/// Judges one eviction while the ledger is there and cannot be read. What a budget guards on a cordoned node is refused, for the
/// ledger may hold it; all else goes by the API's own rules.
pub fn decide_unreadable(request: &EvictionRequest<'_>, found: &LookupResult) -> Verdict {
    let (ledger, facts) = (Ledger::default(), Facts::new());
    // Nobody plans, so that no claim would ever be confirmed.
    let found = &found.without_retained();
    let reservations = Reservations::new(&ledger, &facts);
    let verdict = decide(request, found, &ledger, &facts, &reservations);
    let is_judged = request.ticket.is_none() && !request.dry_run && !request.leaderless && !request.paused;
    let (Some(context), true) = (found.context(), is_judged) else {
        return verdict;
    };
    let MatchingBudgets::One(budget) = &context.budgets else {
        return verdict;
    };
    let is_cordoned = context.node.as_ref().is_some_and(|node| node.cordoned);
    if is_cordoned && context.refuse_opt_out && context.opted_out.is_some() {
        return verdict;
    }
    let decision = match context.state {
        PodState::Counts if is_cordoned => wait(
            LockReason::LedgerUnreadable,
            &format!(
                "budget {} {}, and the ledger that says so cannot be read",
                budget.key,
                LockReason::LedgerUnreadable.explanation()
            ),
        ),
        PodState::Counts => Decision::Admit(Admission::FreeDisruption),
        PodState::Pending => Decision::Admit(Admission::SkipsBudgets),
        PodState::Unready => Decision::Admit(Admission::Unready),
        PodState::Mirror | PodState::SkipsBudgets => return verdict,
    };
    Verdict { decision, ..verdict }
}

/// Judges one eviction. `facts` are those of all budgets that claims in the ledger need, `reservations` those of all claims.
pub fn decide(
    request: &EvictionRequest<'_>,
    found: &LookupResult,
    ledger: &Ledger,
    facts: &Facts,
    reservations: &Reservations,
) -> Verdict {
    let judge = Judge {
        request,
        ledger,
        facts,
        reservations,
    };
    let decision = match (request.caller, request.ticket) {
        (Caller::Another(_), Some(_)) => refuse(
            RefusalKind::Forbidden,
            LockReason::ForgedTicket,
            "the annotation nodeward.dev/ticket is drain-lock's own, and not for others to set",
        ),
        _ if request.dry_run => Decision::Admit(Admission::DryRun),
        (Caller::Another(_), None) if request.paused => Decision::Admit(Admission::Paused),
        (Caller::Another(_), None) if request.leaderless => Decision::Admit(Admission::NoLeader),
        (Caller::Ourselves, Some(ticket)) => judge.under_ticket(ticket, found.context()),
        _ => match found {
            LookupResult::Unsynced => Decision::Admit(Admission::Unsynced),
            LookupResult::UnknownPod => Decision::Admit(Admission::UnknownPod),
            LookupResult::Found(context) => judge.without_ticket(context),
        },
    };
    let is_anothers = request.caller.is_another() && request.ticket.is_none() && !request.dry_run;
    let Some(context) = found.context().filter(|_| is_anothers) else {
        return decision.into();
    };
    let takes_drainers = context.node.as_ref().is_some_and(NodeContext::takes_drainers);
    let may_be_one = request.caller != Caller::Another(Drainer::No);
    let admits = matches!(decision, Decision::Admit(_));
    Verdict {
        requests_drain: context.state != PodState::Mirror && takes_drainers && may_be_one && !request.paused,
        ignores_opt_out: admits
            && context.opted_out.is_some()
            && !context.is_on_its_way_out()
            && judge.is_emptied(context),
        decision,
        audited: None,
    }
}

impl EvictionContext {
    /// Whether its eviction takes nothing from anybody.
    fn is_on_its_way_out(&self) -> bool {
        matches!(
            self.state,
            PodState::Mirror | PodState::SkipsBudgets | PodState::Pending
        )
    }
}

struct Judge<'a> {
    request: &'a EvictionRequest<'a>,
    ledger: &'a Ledger,
    facts: &'a Facts,
    reservations: &'a Reservations,
}

impl Judge<'_> {
    /// An eviction of ours that names its grant: the grant is in force and has a disruption for the pod, or it is refused,
    /// whatever the pod is. A leader that was paused acts on nothing else.
    fn under_ticket(&self, ticket: &str, context: Option<&EvictionContext>) -> Decision {
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

    fn without_ticket(&self, context: &EvictionContext) -> Decision {
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
                "budget {} can spare {} disruptions at most, and the drain of node {node} has taken them",
                budget.key,
                budget.ceiling()
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
            let since = to_the_second(claim.since);
            format!(" (ticket {}, {} since {since})", claim.ticket, words(claim.state))
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
    fn is_emptied(&self, context: &EvictionContext) -> bool {
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

fn wait(reason: LockReason, message: &str) -> Decision {
    refuse(RefusalKind::Wait, reason, message)
}

fn refuse(kind: RefusalKind, reason: LockReason, message: &str) -> Decision {
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
pub(super) fn is_left(claim: &Claim) -> bool {
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

#[cfg(test)]
mod tests;
