use std::collections::BTreeSet;

use jiff::Timestamp;
use nodeward_api::BudgetRef;
use nodeward_core::id::{BudgetKey, PodKey};
use nodeward_core::ledger::{
    BudgetFacts, BudgetPods, Claim, ClaimState, Disruptions, Fence, HeldPod, Need, OwnerDisruptions, Reservations,
    Unusable,
};
use nodeward_core::opt_out::OptOut;
use rstest::rstest;

use super::*;

/// The pod that is evicted: `shop/web-0` on node `n1`, under budget `shop/web`.
const POD: &str = "web-0";
const NODE: &str = "n1";

fn disruptions(pods: &[&str]) -> Disruptions {
    Disruptions {
        pdb: BudgetRef {
            namespace: "shop".to_owned(),
            name: "web".to_owned(),
            uid: "web-uid".to_owned(),
        },
        healthy_at_grant: 0,
        movable: false,
        pods: pods
            .iter()
            .map(|pod| HeldPod {
                name: (*pod).to_owned(),
                uid: (*pod).to_owned(),
                retained: false,
                ..HeldPod::default()
            })
            .collect(),
    }
}

fn some(pods: &[&str]) -> Vec<Disruptions> {
    if pods.is_empty() {
        Vec::new()
    } else {
        vec![disruptions(pods)]
    }
}

/// A claim of a node; its UID is its name, its grant 10 times its ticket.
fn claim(ticket: i64, node: &str, state: ClaimState, needs: &[&str], holds: &[&str]) -> Claim {
    Claim {
        ticket,
        node: node.to_owned(),
        node_uid: node.to_owned(),
        state,
        may_go_down: false,
        since: Timestamp::UNIX_EPOCH,
        queued_at: Timestamp::UNIX_EPOCH,
        grant: 10 * ticket,
        boot_id: String::new(),
        foreign_cordon: true,
        obstructed_since: None,
        reserves: false,
        node_groups: Vec::new(),
        needs: some(needs).into_iter().map(Need::from).collect(),
        holds: some(holds),
        moving: Vec::new(),
    }
}

/// Three healthy pods, of which two must be: one disruption, unless said otherwise.
fn budget() -> BudgetFacts {
    BudgetFacts {
        key: BudgetKey::new("shop", "web"),
        uid: "web-uid".into(),
        current: true,
        disruptions_allowed: 1,
        desired_healthy: 2,
        expected_pods: 3,
        unusable: None,
        is_by_node: false,
        healthy: ["web-0", "web-1", "web-2"].map(Into::into).into(),
        several: [].into(),
        owner_disruptions: None,
        pods: BudgetPods::default(),
    }
}

fn exhausted() -> BudgetFacts {
    BudgetFacts {
        disruptions_allowed: 0,
        ..budget()
    }
}

fn impossible() -> BudgetFacts {
    BudgetFacts {
        unusable: Some(Unusable::ZeroUnavailable),
        ..exhausted()
    }
}

fn node() -> NodeContext {
    NodeContext {
        name: NODE.into(),
        uid: NODE.into(),
        cordoned: true,
        auto: true,
        has_drain: false,
        in_node_group: false,
        retains: None,
        planning_timed_out: false,
        is_being_removed: false,
    }
}

fn context() -> EvictionContext {
    EvictionContext {
        uid: POD.into(),
        state: PodState::Counts,
        opted_out: None,
        surge: None,
        node: Some(node()),
        budgets: MatchingBudgets::One(budget()),
        is_movable: false,
        another_goes_last: false,
        always_allowed: false,
        refuse_opt_out: false,
    }
}

/// One eviction in one cluster.
struct Case {
    caller: Caller,
    dry_run: bool,
    leaderless: bool,
    paused: bool,
    ticket: Option<String>,
    context: EvictionContext,
    claims: Vec<Claim>,
}

fn case() -> Case {
    Case {
        caller: Caller::Another(Drainer::Yes),
        dry_run: false,
        leaderless: false,
        paused: false,
        ticket: None,
        context: context(),
        claims: Vec::new(),
    }
}

impl Case {
    fn judge(&self) -> Verdict {
        self.judge_by(&LookupResult::Found(Box::new(self.context.clone())))
    }

    fn judge_by(&self, found: &LookupResult) -> Verdict {
        let pod = PodKey::new("shop", POD);
        let ledger = Ledger::of(100, self.claims.clone());
        let facts: Facts = match &self.context.budgets {
            MatchingBudgets::One(budget) => [(budget.key.clone(), budget.clone())].into(),
            MatchingBudgets::None | MatchingBudgets::Several => Facts::new(),
        };
        let reservations = Reservations::of_all(&ledger, &facts);
        decide(&self.request(&pod), found, &ledger, &facts, &reservations)
    }

    fn request<'a>(&'a self, pod: &'a PodKey) -> EvictionRequest<'a> {
        EvictionRequest {
            caller: self.caller,
            dry_run: self.dry_run,
            leaderless: self.leaderless,
            paused: self.paused,
            ticket: self.ticket.as_deref(),
            pod,
        }
    }

    fn with(self, claims: Vec<Claim>) -> Self {
        Self { claims, ..self }
    }

    fn of(self, context: EvictionContext) -> Self {
        Self { context, ..self }
    }

    fn under(self, budgets: MatchingBudgets) -> Self {
        let context = EvictionContext {
            budgets,
            ..self.context
        };
        Self { context, ..self }
    }

    fn at(self, node: NodeContext) -> Self {
        let context = EvictionContext {
            node: Some(node),
            ..self.context
        };
        Self { context, ..self }
    }

    fn ours(self, ticket: Option<&str>) -> Self {
        Self {
            caller: Caller::Ourselves,
            ticket: ticket.map(str::to_owned),
            ..self
        }
    }

    fn on_a_running_node(self) -> Self {
        self.at(NodeContext {
            cordoned: false,
            ..node()
        })
    }
}

fn told(verdict: &Verdict) -> Result<Admission, LockReason> {
    match &verdict.decision {
        Decision::Admit(admission) => Ok(*admission),
        Decision::Refuse(refused) => {
            assert_eq!(refused.kind, RefusalKind::Wait);
            Err(refused.reason)
        }
    }
}

#[rstest]
#[case::dry_run(Case { dry_run: true, ..case() }, Admission::DryRun)]
#[case::mirror(case().of(EvictionContext { state: PodState::Mirror, ..context() }), Admission::Mirror)]
#[case::pending_finished_or_terminating(case().of(EvictionContext { state: PodState::SkipsBudgets, ..context() }), Admission::SkipsBudgets)]
#[case::unready_without_a_budget(starting(PodState::Unready).under(MatchingBudgets::None), Admission::Unready)]
#[case::pending_under_several(starting(PodState::Pending).under(MatchingBudgets::Several), Admission::SkipsBudgets)]
#[case::no_budget(case().under(MatchingBudgets::None), Admission::NoBudget)]
#[case::several_budgets(case().under(MatchingBudgets::Several), Admission::SeveralBudgets)]
fn what_the_api_decides_without_counting_disruptions_is_admitted(#[case] case: Case, #[case] admission: Admission) {
    // Whatever the ledger says of the pod.
    for claims in [
        vec![],
        vec![claim(1, NODE, ClaimState::Waiting, &[POD], &[])],
        vec![claim(1, "n2", ClaimState::Confirmed, &[], &["web-1"])],
    ] {
        let verdict = Case {
            claims,
            context: case.context.clone(),
            ticket: None,
            ..case
        }
        .judge();
        assert_eq!(told(&verdict), Ok(admission));
        assert!(!verdict.takes_free_disruption());
    }
}

fn of_a_rollout() -> EvictionContext {
    let surge = Surge {
        pod: PodKey::new("shop", "web-1"),
        until: "2026-01-01T00:12:00Z".parse().unwrap(),
    };
    EvictionContext {
        surge: Some(surge),
        ..context()
    }
}

#[rstest]
#[case::of_a_drainer(case())]
#[case::from_a_running_node(case().on_a_running_node())]
#[case::under_its_claim(case().with(vec![claim(1, NODE, ClaimState::Confirmed, &[], &[POD])]))]
#[case::ours(case().ours(None))]
#[case::ours_by_its_grant(case().ours(Some("1/10")).with(vec![claim(1, NODE, ClaimState::Confirmed, &[], &[POD])]))]
fn no_pod_of_a_rollout_is_evicted(
    #[case] case: Case,
    #[values(PodState::Counts, PodState::Unready, PodState::Pending)] state: PodState,
) {
    let node = case.context.node.clone();
    let case = case.of(EvictionContext {
        state,
        node,
        ..of_a_rollout()
    });
    let verdict = case.judge();
    assert_eq!(told(&verdict), Err(LockReason::Surging));
    let Decision::Refuse(refused) = verdict.decision else {
        unreachable!()
    };
    let text =
        "pod shop/web-1 is being replaced by a rollout of its Deployment, which is given up at 2026-01-01T00:12:00Z";
    assert_eq!(refused.message, text);
}

#[rstest]
#[case::paused(Case { paused: true, ..case() }, Admission::Paused)]
#[case::without_a_leader(Case { leaderless: true, ..case() }, Admission::NoLeader)]
#[case::asked_in_advance(Case { dry_run: true, ..case() }, Admission::DryRun)]
fn rollouts_are_guarded_by_who_plans(#[case] case: Case, #[case] admission: Admission) {
    assert_eq!(told(&case.of(of_a_rollout()).judge()), Ok(admission));
}

fn starting(state: PodState) -> Case {
    case().of(EvictionContext { state, ..context() })
}

fn always_allowed() -> Case {
    case().of(EvictionContext {
        state: PodState::Unready,
        always_allowed: true,
        ..context()
    })
}

/// Its owner keeps all disruptions of its budget.
fn owned() -> Case {
    case().under(MatchingBudgets::One(BudgetFacts {
        owner_disruptions: Some(OwnerDisruptions::All),
        ..budget()
    }))
}

/// It asked to stay, which others' evictions are refused for.
fn opted_out() -> Case {
    case().of(EvictionContext {
        opted_out: Some(OptOut::Skip),
        refuse_opt_out: true,
        ..context()
    })
}

fn asking() -> Vec<Claim> {
    vec![
        claim(1, "n2", ClaimState::Confirmed, &[], &["web-1"]),
        claim(2, NODE, ClaimState::Waiting, &[POD], &[]),
    ]
}

fn of_another_budget(state: ClaimState) -> Vec<Claim> {
    let mut claim = claim(2, NODE, state, &["db-0"], &[]);
    claim.needs[0].pdb.name = "db".to_owned();
    vec![claim]
}

#[rstest]
#[case::held(starting(PodState::Unready).with(asking()), Err(LockReason::WaitsForDisruptions))]
#[case::held_and_pending(starting(PodState::Pending).with(asking()), Err(LockReason::WaitsForDisruptions))]
#[case::not_planned_yet(starting(PodState::Unready), Err(LockReason::NotPlanned))]
#[case::drained_again(starting(PodState::Unready).with(vec![claim(1, NODE, ClaimState::Returning, &[], &["web-1"])]), Err(LockReason::NotPlanned))]
#[case::granted(starting(PodState::Unready).with(vec![claim(2, NODE, ClaimState::Granted, &[], &[POD])]), Err(LockReason::AwaitsConfirmation))]
#[case::confirmed(starting(PodState::Unready).with(vec![claim(2, NODE, ClaimState::Confirmed, &[], &[POD])]), Ok(Admission::UnderClaim))]
#[case::movable(case().of(EvictionContext { state: PodState::Unready, ..movable_pod() }).with(asking()), Ok(Admission::Unready))]
#[case::node_is_not_drained(starting(PodState::Unready).on_a_running_node(), Ok(Admission::Unready))]
#[case::ours_and_movable(starting(PodState::Unready).with(asking()).ours(None), Ok(Admission::Unready))]
#[case::always_allowed_awaits_its_turn(always_allowed().with(of_another_budget(ClaimState::Waiting)), Err(LockReason::NotPlanned))]
#[case::always_allowed_in_its_turn(always_allowed().with(of_another_budget(ClaimState::Confirmed)), Ok(Admission::Unready))]
fn held_pod_that_starts_waits_for_its_claim(#[case] case: Case, #[case] expected: Result<Admission, LockReason>) {
    let verdict = case.judge();
    assert_eq!(told(&verdict), expected);
    assert!(!verdict.takes_free_disruption());
}

#[rstest]
#[case::held(asking())]
#[case::of_another_drain(vec![claim(1, "n2", ClaimState::Confirmed, &[], &["web-1", "web-2"])])]
fn leaderless_lock_admits_and_still_files(#[case] claims: Vec<Claim>) {
    let verdict = Case {
        leaderless: true,
        ..case().with(claims)
    }
    .judge();
    assert_eq!(told(&verdict), Ok(Admission::NoLeader));
    assert!(verdict.requests_drain);
    assert!(Admission::NoLeader.fails_open());
}

#[rstest]
#[case::held(asking())]
#[case::of_another_drain(vec![claim(1, "n2", ClaimState::Confirmed, &[], &["web-1", "web-2"])])]
fn paused_lock_admits_and_requests_nothing(#[case] claims: Vec<Claim>) {
    let paused = Case {
        paused: true,
        ..case().with(claims)
    };
    let verdict = paused.judge();
    assert_eq!(told(&verdict), Ok(Admission::Paused));
    assert!(!verdict.requests_drain);
    assert!(!Admission::Paused.fails_open(), "it was asked for");
    let (pod, found) = (
        PodKey::new("shop", POD),
        LookupResult::Found(Box::new(paused.context.clone())),
    );
    let unreadable = decide_unreadable(&paused.request(&pod), &found);
    assert_eq!(told(&unreadable), Ok(Admission::Paused));
}

#[rstest]
#[case::on_a_cordoned_node(case(), Err(LockReason::LedgerUnreadable))]
#[case::on_a_running_node(case().on_a_running_node(), Ok(Admission::FreeDisruption))]
#[case::held_by_its_owner(owned().on_a_running_node(), Ok(Admission::FreeDisruption))]
#[case::opted_out(opted_out().on_a_running_node(), Ok(Admission::FreeDisruption))]
#[case::opted_out_on_a_cordoned_node(opted_out(), Err(LockReason::OptedOut))]
#[case::starting(starting(PodState::Unready), Ok(Admission::Unready))]
#[case::without_a_budget(case().under(MatchingBudgets::None), Ok(Admission::NoBudget))]
#[case::dry_run(Case { dry_run: true, ..case() }, Ok(Admission::DryRun))]
#[case::ours(case().ours(Some("1/10")), Err(LockReason::StaleTicket))]
fn unreadable_ledger_refuses_on_cordoned_nodes_alone(
    #[case] case: Case,
    #[case] expected: Result<Admission, LockReason>,
) {
    let pod = PodKey::new("shop", POD);
    let found = LookupResult::Found(Box::new(case.context.clone()));
    let verdict = decide_unreadable(&case.request(&pod), &found);
    assert_eq!(told(&verdict), expected);
}

#[rstest]
#[case::unsynced(LookupResult::Unsynced, Admission::Unsynced)]
#[case::unknown(LookupResult::UnknownPod, Admission::UnknownPod)]
fn unknown_pod_is_admitted_without_a_drain(#[case] found: LookupResult, #[case] admission: Admission) {
    let verdict = case().judge_by(&found);
    assert_eq!(told(&verdict), Ok(admission));
    assert!(admission.fails_open());
    assert_eq!(
        (verdict.requests_drain, verdict.takes_free_disruption()),
        (false, false)
    );
}

#[rstest]
#[case::movable_pods_leave_first(vec![claim(1, NODE, ClaimState::Waiting, &[], &[])], LockReason::AwaitingPods)]
#[case::no_claim_yet(vec![], LockReason::NotPlanned)]
#[case::granted_soon(vec![claim(1, NODE, ClaimState::Waiting, &[POD], &[])], LockReason::Queued)]
#[case::granted_and_not_confirmed(vec![claim(1, NODE, ClaimState::Granted, &[POD], &[POD])], LockReason::AwaitsConfirmation)]
#[case::suspect(vec![claim(1, NODE, ClaimState::Suspect, &[POD], &[POD])], LockReason::Suspect)]
#[case::coming_back(vec![claim(1, NODE, ClaimState::Returning, &[], &[POD])], LockReason::AwaitingReady)]
#[case::drained_again_while_suspect(vec![claim(1, NODE, ClaimState::Suspect, &[], &["web-1"])], LockReason::NotPlanned)]
#[case::drained_again_before_others_are_back(vec![claim(1, NODE, ClaimState::Returning, &[], &["web-1"])], LockReason::NotPlanned)]
#[case::behind_another(
    vec![claim(1, "n2", ClaimState::Confirmed, &[], &["web-1"]), claim(2, NODE, ClaimState::Waiting, &[POD], &[])],
    LockReason::WaitsForDisruptions
)]
fn held_pod_waits_for_a_confirmed_claim(#[case] claims: Vec<Claim>, #[case] reason: LockReason) {
    assert_eq!(told(&case().with(claims).judge()), Err(reason));
}

#[test]
fn held_pod_goes_under_its_confirmed_claim() {
    let confirmed = vec![claim(1, NODE, ClaimState::Confirmed, &[], &[POD])];
    let verdict = case().with(confirmed.clone()).judge();
    assert_eq!(told(&verdict), Ok(Admission::UnderClaim));
    assert!(
        !verdict.takes_free_disruption(),
        "the claim's disruption is not a free one"
    );
    // A status that lags behind the grant is the API's to judge.
    let verdict = case().with(confirmed).under(MatchingBudgets::One(exhausted())).judge();
    assert_eq!(told(&verdict), Ok(Admission::UnderClaim));
}

#[test]
fn the_claim_of_another_node_lets_nobody_through() {
    let others = vec![claim(1, "n2", ClaimState::Confirmed, &[], &[POD])];
    assert_eq!(told(&case().with(others.clone()).judge()), Err(LockReason::NotPlanned));
    let verdict = case().with(others).on_a_running_node().judge();
    assert_eq!(told(&verdict), Err(LockReason::WaitsForDisruptions));
}

#[test]
fn new_node_of_same_name_has_no_claim() {
    let mut old = claim(1, NODE, ClaimState::Confirmed, &[], &[POD]);
    old.node_uid = "n1-before".to_owned();
    assert_eq!(told(&case().with(vec![old]).judge()), Err(LockReason::NotPlanned));
}

/// A node whose drains nobody requests goes by its budgets, whatever is left of its last drain: no later one takes that over.
#[rstest]
#[case::its_pods_are_awaited(ClaimState::Returning)]
#[case::its_pods_are_late(ClaimState::Suspect)]
fn end_of_the_last_drain_keeps_nobody_where_none_is_requested(#[case] state: ClaimState) {
    let left = vec![claim(1, NODE, state, &[], &["db-0"])];
    let retains = Some(PodKey::new("shop", "stays"));
    let node = NodeContext {
        auto: false,
        retains,
        ..node()
    };
    let ready = case().with(left.clone()).at(node.clone());
    assert_eq!(told(&ready.judge()), Ok(Admission::FreeDisruption));
    let unready = starting(PodState::Unready).with(left).at(node);
    assert_eq!(told(&unready.judge()), Ok(Admission::Unready));
}

#[rstest]
#[case::a_disruption_is_free(budget(), vec![], Ok(Admission::FreeDisruption))]
#[case::none_is_allowed(exhausted(), vec![], Err(LockReason::BudgetUnhealthy))]
#[case::none_ever_is(impossible(), vec![], Err(LockReason::BudgetNeverAllows))]
#[case::it_is_granted(budget(), vec![claim(2, "n2", ClaimState::Confirmed, &[], &["web-1"])], Err(LockReason::WaitsForDisruptions))]
#[case::it_is_granted_and_unconfirmed(budget(), vec![claim(2, "n2", ClaimState::Granted, &["web-1"], &["web-1"])], Err(LockReason::WaitsForDisruptions))]
#[case::its_owner_holds_it(BudgetFacts { owner_disruptions: Some(OwnerDisruptions::All), ..budget() }, vec![], Err(LockReason::OwnerHold))]
#[case::its_owner_holds_a_disruption(BudgetFacts { owner_disruptions: Some(OwnerDisruptions::Some(1)), ..budget() }, vec![], Err(LockReason::OwnerHold))]
fn movable_pod_of_planned_drain_takes_free_disruption(
    #[case] budget: BudgetFacts,
    #[case] others: Vec<Claim>,
    #[case] expected: Result<Admission, LockReason>,
    // Whether the claim is granted makes no difference to pods that it has no disruption for.
    #[values(ClaimState::Waiting, ClaimState::Granted, ClaimState::Confirmed, ClaimState::Suspect)] state: ClaimState,
) {
    let mut claims = vec![claim(1, NODE, state, &[], &[])];
    let needed = Disruptions {
        pdb: BudgetRef {
            name: "db".to_owned(),
            ..disruptions(&[]).pdb
        },
        ..disruptions(&["db-0"])
    };
    claims[0].needs = vec![needed.into()];
    claims.extend(others);
    let verdict = case()
        .of(movable_pod())
        .with(claims)
        .under(MatchingBudgets::One(budget))
        .judge();
    assert_eq!(told(&verdict), expected);
    assert_eq!(verdict.takes_free_disruption(), expected.is_ok());
}

fn movable_pod() -> EvictionContext {
    EvictionContext {
        is_movable: true,
        ..context()
    }
}

#[rstest]
#[case::of_a_younger_claim(1, Ok(Admission::FreeDisruption))]
#[case::of_an_older_claim(3, Err(LockReason::Reserved))]
fn movable_pod_waits_for_reservations_ahead_of_its_drain(
    #[case] ticket: i64,
    #[case] expected: Result<Admission, LockReason>,
) {
    let own = claim(ticket, NODE, ClaimState::Waiting, &["db-0"], &[]);
    let mut claims = vec![own, claim(2, "n2", ClaimState::Waiting, &["web-1"], &[])];
    claims.sort_by_key(|claim| claim.ticket);
    assert_eq!(told(&case().of(movable_pod()).with(claims).judge()), expected);
}

/// It is an obstacle that the drain leaves out, or the plan has yet to see it.
#[rstest]
#[case::all_that_the_budget_spares_is_taken(&["web-1"], LockReason::NeedExceedsBudget)]
#[case::it_came_after_the_grant(&[], LockReason::NotPlanned)]
fn held_pod_without_a_disruption_is_told_why(#[case] holds: &[&str], #[case] expected: LockReason) {
    let claims = vec![claim(1, NODE, ClaimState::Confirmed, &[], holds)];
    assert_eq!(told(&case().with(claims).judge()), Err(expected));
}

#[rstest]
#[case::confirmed(ClaimState::Confirmed, movable_pod(), Ok(Admission::FreeDisruption))]
#[case::unconfirmed(ClaimState::Granted, movable_pod(), Err(LockReason::AwaitsConfirmation))]
#[case::held_one(ClaimState::Confirmed, context(), Err(LockReason::AwaitingPods))]
fn movable_pod_goes_by_what_its_claim_has_for_these(
    #[case] state: ClaimState,
    #[case] context: EvictionContext,
    #[case] expected: Result<Admission, LockReason>,
) {
    let mut own = claim(1, NODE, state, &[], &["web-0"]);
    own.holds[0].movable = true;
    own.holds[0].pods.clear();
    assert_eq!(told(&case().of(context).with(vec![own]).judge()), expected);
}

/// What it waited for would never come back.
#[rstest]
#[case::no_claim_yet(vec![], budget(), Ok(Admission::FreeDisruption))]
#[case::it_waits(vec![claim(1, NODE, ClaimState::Waiting, &[], &[])], budget(), Ok(Admission::FreeDisruption))]
#[case::its_budget_has_none(vec![], exhausted(), Err(LockReason::BudgetUnhealthy))]
#[case::another_drain_has_it(vec![claim(2, "n2", ClaimState::Confirmed, &[], &["web-1"])], budget(), Err(LockReason::WaitsForDisruptions))]
#[case::another_drain_is_to_have_it(vec![claim(2, "n2", ClaimState::Waiting, &["web-1"], &[])], budget(), Err(LockReason::Reserved))]
fn pod_of_a_node_that_is_removed_goes_as_its_budget_allows(
    #[case] claims: Vec<Claim>,
    #[case] budget: BudgetFacts,
    #[case] expected: Result<Admission, LockReason>,
) {
    let removed = NodeContext {
        is_being_removed: true,
        ..node()
    };
    let verdict = case()
        .at(removed)
        .with(claims)
        .under(MatchingBudgets::One(budget))
        .judge();
    assert_eq!(told(&verdict), expected);
    assert!(verdict.requests_drain, "its NodeDrain shows how far it is");
}

#[rstest]
#[case::movable(true, budget(), Ok(Admission::FreeDisruption))]
#[case::movable_without_a_free_disruption(true, exhausted(), Err(LockReason::BudgetUnhealthy))]
#[case::held_or_not_classified(false, budget(), Err(LockReason::Queued))]
fn only_pods_that_are_not_movable_wait_with_claim(
    #[case] is_movable: bool,
    #[case] budget: BudgetFacts,
    #[case] expected: Result<Admission, LockReason>,
) {
    let asking = vec![claim(1, NODE, ClaimState::Waiting, &["web-1"], &[])];
    let seen = EvictionContext {
        is_movable,
        ..context()
    };
    let verdict = case().of(seen).under(MatchingBudgets::One(budget)).with(asking).judge();
    assert_eq!(told(&verdict), expected);
    assert_eq!(verdict.takes_free_disruption(), expected.is_ok());
}

#[rstest]
#[case::a_disruption_is_free(budget(), vec![], Ok(Admission::FreeDisruption))]
#[case::none_is_allowed(exhausted(), vec![], Err(LockReason::BudgetUnhealthy))]
#[case::it_is_granted(budget(), vec![claim(2, "n2", ClaimState::Confirmed, &[], &["web-1"])], Err(LockReason::WaitsForDisruptions))]
#[case::a_drain_is_to_have_it(budget(), vec![claim(2, "n2", ClaimState::Waiting, &["web-1"], &[])], Err(LockReason::Reserved))]
#[case::its_owner_holds_it(BudgetFacts { owner_disruptions: Some(OwnerDisruptions::All), ..budget() }, vec![], Err(LockReason::OwnerHold))]
fn foreign_eviction_respects_grants_and_reservations(
    #[case] budget: BudgetFacts,
    #[case] claims: Vec<Claim>,
    #[case] expected: Result<Admission, LockReason>,
) {
    let verdict = case()
        .with(claims)
        .under(MatchingBudgets::One(budget))
        .on_a_running_node()
        .judge();
    assert_eq!(told(&verdict), expected);
    assert!(!verdict.requests_drain);
    assert_eq!(verdict.takes_free_disruption(), expected.is_ok());
}

#[rstest]
#[case::auto_is_off(NodeContext { auto: false, ..node() }, Ok(Admission::FreeDisruption), false)]
#[case::not_cordoned(NodeContext { cordoned: false, ..node() }, Ok(Admission::FreeDisruption), false)]
#[case::waits_for_a_plan(node(), Err(LockReason::NotPlanned), true)]
#[case::no_plan_ever_came(NodeContext { planning_timed_out: true, ..node() }, Ok(Admission::Unplanned), true)]
fn eviction_from_cordoned_node_requests_drain(
    #[case] node: NodeContext,
    #[case] expected: Result<Admission, LockReason>,
    #[case] requests_drain: bool,
) {
    let verdict = case().at(node).judge();
    assert_eq!((told(&verdict), verdict.requests_drain), (expected, requests_drain));
}

fn by(drainer: Drainer) -> Case {
    Case {
        caller: Caller::Another(drainer),
        ..case()
    }
}

fn with_drain() -> NodeContext {
    NodeContext {
        has_drain: true,
        ..node()
    }
}

fn late() -> NodeContext {
    NodeContext {
        planning_timed_out: true,
        ..node()
    }
}

/// Of a node that is only cordoned the evictions of whoever is no drainer are judged like any other; a drain holds for all.
#[rstest]
#[case::drainer(by(Drainer::Yes), Err(LockReason::NotPlanned), true)]
#[case::perhaps_one(by(Drainer::Unanswered), Err(LockReason::NotPlanned), true)]
#[case::none(by(Drainer::No), Ok(Admission::FreeDisruption), false)]
#[case::nobody_knows(by(Drainer::Unknown), Ok(Admission::UnknownUser), true)]
#[case::none_beside_a_drain(by(Drainer::No).at(with_drain()), Err(LockReason::NotPlanned), false)]
#[case::nobody_knows_beside_a_drain(by(Drainer::Unknown).at(with_drain()), Err(LockReason::NotPlanned), true)]
#[case::none_beside_a_claim(by(Drainer::No).with(vec![claim(1, NODE, ClaimState::Waiting, &[POD], &[])]), Err(LockReason::Queued), false)]
#[case::nobody_knows_under_a_grant(by(Drainer::Unknown).with(vec![claim(1, NODE, ClaimState::Granted, &[POD], &[POD])]), Err(LockReason::AwaitsConfirmation), true)]
#[case::none_under_a_grant(by(Drainer::No).with(vec![claim(1, NODE, ClaimState::Granted, &[POD], &[POD])]), Err(LockReason::AwaitsConfirmation), false)]
#[case::none_without_a_disruption(by(Drainer::No).under(MatchingBudgets::One(exhausted())), Err(LockReason::BudgetUnhealthy), false)]
#[case::none_and_another_drain_has_it(by(Drainer::No).with(vec![claim(2, "n2", ClaimState::Confirmed, &[], &["web-1"])]), Err(LockReason::WaitsForDisruptions), false)]
#[case::nobody_knows_and_another_drain_has_it(by(Drainer::Unknown).with(vec![claim(2, "n2", ClaimState::Confirmed, &[], &["web-1"])]), Err(LockReason::WaitsForDisruptions), true)]
#[case::none_and_another_drain_is_to_have_it(by(Drainer::No).with(vec![claim(2, "n2", ClaimState::Waiting, &["web-1"], &[])]), Err(LockReason::Reserved), false)]
#[case::none_where_a_plan_never_came(by(Drainer::No).at(late()), Ok(Admission::FreeDisruption), false)]
#[case::perhaps_one_where_a_plan_never_came(by(Drainer::Unanswered).at(late()), Ok(Admission::Unplanned), true)]
#[case::nobody_knows_on_a_running_node(by(Drainer::Unknown).on_a_running_node(), Ok(Admission::FreeDisruption), false)]
#[case::perhaps_one_on_a_running_node(by(Drainer::Unanswered).on_a_running_node(), Ok(Admission::FreeDisruption), false)]
#[case::none_and_starting(by(Drainer::No).of(EvictionContext { state: PodState::Unready, ..context() }), Ok(Admission::Unready), false)]
#[case::perhaps_one_and_starting(by(Drainer::Unanswered).of(EvictionContext { state: PodState::Unready, ..context() }), Err(LockReason::NotPlanned), true)]
#[case::perhaps_one_without_a_budget(by(Drainer::Unanswered).under(MatchingBudgets::None), Ok(Admission::NoBudget), true)]
fn only_drainers_make_a_cordoned_node_a_draining_one(
    #[case] case: Case,
    #[case] expected: Result<Admission, LockReason>,
    #[case] requests_drain: bool,
) {
    let verdict = case.judge();
    assert_eq!((told(&verdict), verdict.requests_drain), (expected, requests_drain));
    let takes = matches!(
        expected,
        Ok(Admission::FreeDisruption | Admission::UnknownUser | Admission::Unplanned)
    );
    assert_eq!(verdict.takes_free_disruption(), takes);
}

/// What stays on a node, and the node's group, matter to whoever empties it.
#[rstest]
#[case::drainer(Drainer::Yes, false, false)]
#[case::perhaps_one(Drainer::Unanswered, false, false)]
#[case::none(Drainer::No, false, true)]
#[case::nobody_knows(Drainer::Unknown, false, true)]
#[case::none_beside_a_drain(Drainer::No, true, false)]
fn pods_around_retained_ones_go_for_whoever_drains_nothing(
    #[case] drainer: Drainer,
    #[case] has_drain: bool,
    #[case] goes: bool,
    #[values(true, false)] in_node_group: bool,
) {
    let case = Case {
        caller: Caller::Another(drainer),
        ..beside_retained()
    };
    let retaining = case.context.node.clone().unwrap();
    let node = NodeContext {
        has_drain,
        in_node_group,
        ..retaining
    };
    assert_eq!(told(&case.at(node).judge()) == Ok(Admission::NoBudget), goes);
}

#[test]
fn guess_about_a_user_is_said_to_be_one() {
    assert!(Admission::UnknownUser.fails_open());
}

/// Of a node in a group nothing leaves before the node's turn, whether a budget counts it or not.
#[rstest]
#[case::no_claim(vec![], Err(LockReason::WaitsForNodeGroup))]
#[case::waits(vec![claim(1, NODE, ClaimState::Waiting, &[], &[])], Err(LockReason::WaitsForNodeGroup))]
#[case::not_confirmed(vec![claim(1, NODE, ClaimState::Granted, &[], &[])], Err(LockReason::WaitsForNodeGroup))]
#[case::confirmed(vec![claim(1, NODE, ClaimState::Confirmed, &[], &[])], Ok(Admission::NoBudget))]
#[case::drained(vec![Claim { may_go_down: true, ..claim(1, NODE, ClaimState::Waiting, &[], &[]) }], Ok(Admission::NoBudget))]
fn pods_of_grouped_nodes_wait_for_confirmed_claim(
    #[case] claims: Vec<Claim>,
    #[case] expected: Result<Admission, LockReason>,
) {
    let grouped = NodeContext {
        in_node_group: true,
        ..node()
    };
    let judged = |at: NodeContext| {
        let case = case().with(claims.clone()).under(MatchingBudgets::None);
        told(&case.at(at).judge())
    };
    assert_eq!(judged(grouped.clone()), expected);
    let admitted = Ok(Admission::NoBudget);
    let uncordoned = NodeContext {
        cordoned: false,
        ..grouped.clone()
    };
    assert_eq!(judged(uncordoned), admitted, "nobody empties it");
    let not_auto = NodeContext { auto: false, ..grouped };
    assert_eq!(judged(not_auto), admitted, "others' drains are left alone");
}

#[test]
fn unready_pods_of_grouped_nodes_wait_too() {
    let grouped = NodeContext {
        in_node_group: true,
        ..node()
    };
    let starting = EvictionContext {
        state: PodState::Unready,
        node: Some(grouped),
        ..context()
    };
    assert_eq!(
        told(&case().of(starting.clone()).judge()),
        Err(LockReason::WaitsForNodeGroup)
    );
    assert_eq!(told(&case().of(starting).ours(None).judge()), Ok(Admission::Unready));
}

#[test]
fn without_a_plan_budgets_are_still_counted() {
    let impatient = NodeContext {
        planning_timed_out: true,
        ..node()
    };
    let granted = vec![claim(2, "n2", ClaimState::Confirmed, &[], &["web-1"])];
    let verdict = case().with(granted).at(impatient).judge();
    assert_eq!(told(&verdict), Err(LockReason::WaitsForDisruptions));
}

#[rstest]
#[case::admitted_anyway(case().under(MatchingBudgets::None), true)]
#[case::pending(case().of(EvictionContext { state: PodState::SkipsBudgets, ..context() }), true)]
#[case::mirror(case().of(EvictionContext { state: PodState::Mirror, ..context() }), false)]
#[case::dry_run(Case { dry_run: true, ..case() }, false)]
#[case::ours(case().ours(None), false)]
fn eviction_requests_drain_unless_nothing_is_to_happen(#[case] case: Case, #[case] requests_drain: bool) {
    assert_eq!(case.judge().requests_drain, requests_drain);
}

#[rstest]
#[case::claimed_by_hand(false, vec![claim(1, NODE, ClaimState::Waiting, &[], &[])], Err(LockReason::AwaitingPods))]
#[case::nobody_drains_it(false, vec![], Ok(Admission::FreeDisruption))]
fn only_requested_drains_block_without_auto_mode(
    #[case] auto: bool,
    #[case] claims: Vec<Claim>,
    #[case] expected: Result<Admission, LockReason>,
) {
    let verdict = case().with(claims).at(NodeContext { auto, ..node() }).judge();
    assert_eq!((told(&verdict), verdict.requests_drain), (expected, false));
}

#[rstest]
#[case::in_force("1/10", ClaimState::Confirmed, true)]
#[case::of_an_earlier_grant("1/9", ClaimState::Confirmed, false)]
#[case::of_another_ticket("2/10", ClaimState::Confirmed, false)]
#[case::not_confirmed("1/10", ClaimState::Granted, false)]
#[case::taken_back("1/10", ClaimState::Waiting, false)]
#[case::suspect("1/10", ClaimState::Suspect, false)]
#[case::malformed("ten", ClaimState::Confirmed, false)]
#[case::empty("", ClaimState::Confirmed, false)]
fn own_eviction_of_held_pod_needs_grant(
    #[case] ticket: &str,
    #[case] claim_state: ClaimState,
    #[case] goes: bool,
    #[values(PodState::Counts, PodState::Unready)] state: PodState,
) {
    let claims = vec![claim(1, NODE, claim_state, &[POD], &[POD])];
    let verdict = case()
        .with(claims)
        .of(EvictionContext { state, ..context() })
        .ours(Some(ticket))
        .judge();
    let expected = if goes {
        Ok(Admission::UnderClaim)
    } else {
        Err(LockReason::StaleTicket)
    };
    assert_eq!(told(&verdict), expected);
}

#[test]
fn ticket_covers_only_pods_of_its_grant() {
    let claims = vec![claim(1, NODE, ClaimState::Confirmed, &[], &["web-1"])];
    let verdict = case().with(claims).ours(Some("1/10")).judge();
    assert_eq!(told(&verdict), Err(LockReason::StaleTicket));
}

#[rstest]
#[case::unknown(LookupResult::UnknownPod)]
#[case::unsynced(LookupResult::Unsynced)]
fn ticket_is_refused_for_an_unseen_pod(#[case] found: LookupResult) {
    assert_eq!(
        told(&case().ours(Some("1/10")).judge_by(&found)),
        Err(LockReason::StaleTicket)
    );
}

#[test]
fn own_eviction_of_held_pod_names_its_grant() {
    let claims = vec![claim(1, NODE, ClaimState::Confirmed, &[], &[POD])];
    assert_eq!(
        told(&case().with(claims).ours(None).judge()),
        Err(LockReason::StaleTicket)
    );
}

#[rstest]
#[case::a_disruption_is_free(budget(), Ok(Admission::FreeDisruption))]
#[case::none_is(exhausted(), Err(LockReason::BudgetUnhealthy))]
fn own_eviction_of_movable_pod_takes_free_disruption(
    #[case] budget: BudgetFacts,
    #[case] expected: Result<Admission, LockReason>,
) {
    // Its drain may have no need yet: movable pods leave before the held ones are claimed for.
    let claims = vec![claim(1, NODE, ClaimState::Waiting, &[], &[])];
    let verdict = case()
        .with(claims)
        .under(MatchingBudgets::One(budget))
        .ours(None)
        .judge();
    assert_eq!(told(&verdict), expected);
}

#[rstest]
fn a_ticket_that_anybody_else_sends_is_forbidden(#[values(true, false)] dry_run: bool) {
    let claims = vec![claim(1, NODE, ClaimState::Confirmed, &[], &[POD])];
    let forged = Case {
        ticket: Some(Fence { ticket: 1, grant: 10 }.to_string()),
        dry_run,
        ..case().with(claims)
    };
    let verdict = forged.judge();
    let Decision::Refuse(refused) = &verdict.decision else {
        panic!("admitted: {verdict:?}");
    };
    assert_eq!(
        (refused.kind, refused.reason),
        (RefusalKind::Forbidden, LockReason::ForgedTicket)
    );
    assert!(!verdict.requests_drain);
}

#[rstest]
#[case::asked_to_stay(OptOut::Skip, LockReason::OptedOut)]
#[case::asked_to_finish(OptOut::WaitCompleted, LockReason::WaitCompleted)]
#[case::asked_for_something_unknown(OptOut::Unknown, LockReason::UnknownOptOut)]
fn refused_opt_out_says_what_was_asked(#[case] opt_out: OptOut, #[case] reason: LockReason) {
    let context = EvictionContext {
        opted_out: Some(opt_out),
        refuse_opt_out: true,
        ..context()
    };
    let claims = vec![claim(1, NODE, ClaimState::Confirmed, &[], &[POD])];
    assert_eq!(told(&case().with(claims).of(context).judge()), Err(reason));
}

#[rstest]
#[case::under_its_claim(vec![claim(1, NODE, ClaimState::Confirmed, &[], &[POD])], context(), Ok(Admission::UnderClaim))]
#[case::under_no_budget(vec![], EvictionContext { budgets: MatchingBudgets::None, ..context() }, Ok(Admission::NoBudget))]
fn foreign_eviction_of_opted_out_pod_follows_policy(
    #[case] claims: Vec<Claim>,
    #[case] seen: EvictionContext,
    #[case] expected: Result<Admission, LockReason>,
) {
    let opted_out = EvictionContext {
        opted_out: Some(OptOut::Skip),
        ..seen
    };
    let announced = case().with(claims.clone()).of(opted_out.clone()).judge();
    assert_eq!((told(&announced), announced.ignores_opt_out), (expected, true));
    let refusing = EvictionContext {
        refuse_opt_out: true,
        ..opted_out
    };
    let refused = case().with(claims).of(refusing).judge();
    assert_eq!(
        (told(&refused), refused.ignores_opt_out),
        (Err(LockReason::OptedOut), false)
    );
}

#[rstest]
#[case::its_claim_is_not_granted(case().with(vec![claim(1, NODE, ClaimState::Waiting, &[POD], &[])]))]
#[case::ours(case().with(vec![claim(1, NODE, ClaimState::Confirmed, &[], &[POD])]).ours(Some("1/10")))]
#[case::dry_run(Case { dry_run: true, ..case() })]
#[case::not_drained(case().on_a_running_node())]
#[case::finished(case().of(EvictionContext { state: PodState::SkipsBudgets, ..context() }))]
fn only_ignored_opt_out_is_announced(#[case] case: Case) {
    let opted_out = EvictionContext {
        opted_out: Some(OptOut::Skip),
        ..case.context.clone()
    };
    assert!(!case.of(opted_out).judge().ignores_opt_out);
}

#[test]
fn refusal_names_budget_holder_and_since() {
    let claims = vec![
        claim(1, "n2", ClaimState::Confirmed, &[], &["web-1"]),
        claim(2, NODE, ClaimState::Waiting, &[POD], &[]),
    ];
    let Decision::Refuse(refused) = case().with(claims).judge().decision else {
        panic!("admitted");
    };
    assert_eq!(
        refused.message,
        "node n1 waits for its turn to drain (ticket 2): budget shop/web has 0 of 1 needed disruptions free, \
         node n2 holds the rest (ticket 1, confirmed since 1970-01-01T00:00:00Z)"
    );
}

/// The pods of `n2` are on the move, and so is one of the node's own.
#[rstest]
#[case::of_another(
    2,
    "n2",
    LockReason::WaitsForDisruptions,
    "node n2 holds the rest (ticket 2, whose pods are on the move)"
)]
#[case::of_its_own_node(1, NODE, LockReason::AwaitingReady, "waits for pods to be ready again")]
fn refusal_names_whose_pods_are_on_the_move(
    #[case] ticket: i64,
    #[case] node: &str,
    #[case] reason: LockReason,
    #[case] words: &str,
) {
    let mut moving = claim(ticket, node, ClaimState::Waiting, &[], &["web-gone"]);
    moving.moving = std::mem::take(&mut moving.holds);
    let own = claim(1, NODE, ClaimState::Waiting, &[], &[]);
    let claims = if ticket == 1 { vec![moving] } else { vec![own, moving] };
    let case = case()
        .of(movable_pod())
        .with(claims)
        .under(MatchingBudgets::One(exhausted()));
    let Decision::Refuse(refused) = case.judge().decision else {
        panic!("admitted");
    };
    assert_eq!(refused.reason, reason);
    assert!(refused.message.contains(words), "{}", refused.message);
}

#[test]
fn every_admission_has_a_label_of_its_own() {
    let labels: BTreeSet<_> = Admission::ALL.iter().map(|admission| admission.as_label()).collect();
    assert_eq!(labels.len(), Admission::ALL.len());
}

/// A pod that no budget guards, beside one that stays on its node.
fn beside_retained() -> Case {
    let retaining = NodeContext {
        retains: Some(PodKey::new("shop", "db-0")),
        ..node()
    };
    case().under(MatchingBudgets::None).at(retaining)
}

/// The same of a node that may go down.
fn may_go_down(state: ClaimState) -> Case {
    let mut case = asked(state);
    case.claims[0].may_go_down = true;
    case
}

fn asked(state: ClaimState) -> Case {
    beside_retained().with(vec![claim(1, NODE, state, &[], &["db-0"])])
}

/// The same of a movable pod whose budget the claim needs.
fn movable(another_goes_last: bool) -> Case {
    let mut case = beside_retained().under(MatchingBudgets::One(budget())).with(asking());
    case.claims.remove(0);
    case.context.is_movable = true;
    case.context.another_goes_last = another_goes_last;
    case
}

/// The same where another pod waits for the claim.
fn one_of_many(mut case: Case) -> Case {
    case.context.another_goes_last = true;
    case
}

fn in_state(state: PodState) -> Case {
    let case = beside_retained();
    let context = EvictionContext {
        state,
        ..case.context.clone()
    };
    case.of(context)
}

fn on(change: impl FnOnce(&mut NodeContext)) -> Case {
    let mut case = beside_retained();
    change(case.context.node.as_mut().unwrap());
    case
}

#[rstest]
#[case::nobody_has_asked_for_its_drain(beside_retained(), Err(LockReason::NotPlanned))]
#[case::queued(asked(ClaimState::Waiting), Err(LockReason::AwaitingPods))]
#[case::waits(beside_retained().under(MatchingBudgets::One(exhausted())).with(asking()), Err(LockReason::BudgetUnhealthy))]
#[case::granted(asked(ClaimState::Granted), Err(LockReason::AwaitsConfirmation))]
#[case::confirmed(asked(ClaimState::Confirmed), Ok(Admission::NoBudget))]
#[case::drained(may_go_down(ClaimState::Confirmed), Ok(Admission::NoBudget))]
#[case::called_off(may_go_down(ClaimState::Returning), Err(LockReason::AwaitingReady))]
#[case::suspect(asked(ClaimState::Suspect), Err(LockReason::Suspect))]
#[case::pending(in_state(PodState::Pending), Err(LockReason::NotPlanned))]
#[case::on_its_way_out(in_state(PodState::SkipsBudgets), Ok(Admission::SkipsBudgets))]
#[case::static_pod(in_state(PodState::Mirror), Ok(Admission::Mirror))]
#[case::asked_for_a_dry_run(Case { dry_run: true, ..beside_retained() }, Ok(Admission::DryRun))]
#[case::ours(beside_retained().ours(None), Ok(Admission::NoBudget))]
#[case::not_cordoned(on(|node| node.cordoned = false), Ok(Admission::NoBudget))]
#[case::nobody_plans(on(|node| node.planning_timed_out = true), Ok(Admission::NoBudget))]
#[case::movable_under_a_budget(movable(false), Err(LockReason::Queued))]
#[case::movable_while_another_goes_last(movable(true), Ok(Admission::FreeDisruption))]
#[case::unguarded_while_another_goes_last(one_of_many(asked(ClaimState::Waiting)), Ok(Admission::NoBudget))]
#[case::unguarded_without_a_plan(one_of_many(beside_retained()), Ok(Admission::NoBudget))]
fn node_is_not_emptied_around_retained_pods(#[case] case: Case, #[case] expected: Result<Admission, LockReason>) {
    let verdict = case.judge();
    assert_eq!(told(&verdict), expected);
    if let Decision::Refuse(refused) = &verdict.decision {
        assert!(refused.message.contains("shop/db-0"), "{}", refused.message);
        assert!(verdict.requests_drain);
    }
}

#[test]
fn unreadable_ledger_keeps_nobody_for_retained_pods() {
    let pod = PodKey::new("shop", POD);
    let case = beside_retained();
    let found = LookupResult::Found(Box::new(case.context.clone()));
    let verdict = decide_unreadable(&case.request(&pod), &found);
    assert_eq!(told(&verdict), Ok(Admission::NoBudget));
}
