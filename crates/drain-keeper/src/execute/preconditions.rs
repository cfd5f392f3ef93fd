//! Recheck: what overrides a budget, removes finalizers or takes a pod's grace reads what it rests on by quorum, just before,
//! and asks [`may_force`] again. One GET of the Node and one LIST of the namespace's budgets serve all actions of a moment;
//! where drain-lock's kinds are installed, and a budget selects the pod, so do one GET of the ledger and one LIST of the
//! namespace's holds. What the API server does not serve is not asked for. Where the configuration honours opt-outs by
//! namespace, one GET tells whether the pod's is still left out. The pod itself needs no read: each of these writes insists on
//! the version that was judged, so an opt-out that it was given since makes it a conflict.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use jiff::Timestamp;
use k8s_openapi::api::core::v1::{Namespace, Node};
use k8s_openapi::api::policy::v1::PodDisruptionBudget;
use kube::Api;
use kube::api::ListParams;
use nodeward_api::drain_clock::DrainClock;
use nodeward_api::drain_ledger;
use nodeward_api::reason::GateReason;
use nodeward_api::{DisruptionHold, DrainLedger, NodeDrain};
use nodeward_core::budget::{BudgetView, Budgets};
use nodeward_core::drain::{NodeDrainView, NodeDrains};
use nodeward_core::hold::{self, Hold, Holds};
use nodeward_core::id::{NodeName, NodeUid};
use nodeward_core::labels::Labels;
use nodeward_core::ledger::{Claim, Ledger};
use nodeward_core::node::NodeView;
use nodeward_runtime::{ApiError, QuorumReads};

use crate::gate;
use crate::observe::holds::claims_holds;
use crate::plan::PodAction;
use crate::plan::may_force::{Decision, Evidence, may_force};

use super::{PassContext, PodResult};

/// Why an action is not carried out after all.
#[derive(Debug, Clone)]
pub(super) enum PreconditionError {
    /// What it rested on has changed.
    Changed(String),
    /// It could not be read.
    Unread(ApiError),
}

impl From<PreconditionError> for PodResult {
    fn from(error: PreconditionError) -> Self {
        match error {
            PreconditionError::Changed(what) => Self::Outdated(what),
            PreconditionError::Unread(error) => Self::Failed(error),
        }
    }
}

impl From<ApiError> for PreconditionError {
    fn from(error: ApiError) -> Self {
        Self::Unread(error)
    }
}

/// The reads, by name of the object or of the namespace.
#[derive(Clone, Default)]
pub struct Reads {
    nodes: QuorumReads<String, Option<Arc<NodeView>>>,
    namespaces: QuorumReads<Arc<str>, Option<Arc<Labels>>>,
    budgets: QuorumReads<String, Arc<Budgets>>,
    ledger: QuorumReads<(), Option<Arc<Ledger>>>,
    owners: QuorumReads<String, Vec<Hold>>,
    drains: QuorumReads<NodeName, Option<Arc<NodeDrainView>>>,
}

/// What an action rests on, as it was read anew.
pub(super) struct VerifiedState {
    /// The budgets that select the pod.
    pub(super) budgets: Vec<Arc<BudgetView>>,
    /// What holds them, or did.
    pub(super) holds: Holds,
}

/// The node still drains, and the pod may still be forced by the strategy that was planned.
pub(super) async fn check_preconditions(
    action: &PodAction,
    context: &PassContext,
) -> Result<VerifiedState, PreconditionError> {
    // Each is boxed while it lasts: see `super::force_pod::Forcing::force`.
    let node = Box::pin(node_still_drains(action, context)).await?;
    let without_opt_outs = Box::pin(without_opt_outs(&action.pod.key.namespace, context)).await?;
    let budgets = Box::pin(budgets_of(action, context)).await?;
    let holds = Box::pin(holds_on(&budgets, &action.node_uid, context)).await?;
    let evidence = Evidence {
        node: &node,
        clock: &action.clock,
        budgets: &budgets,
        holds: &holds,
        without_opt_outs: &without_opt_outs,
        waits: context
            .policy
            .waits_for(&node, &context.snapshot.pdb_force_drain_timeout),
        memory: &context.snapshot.memory,
        policy: &context.policy,
    };
    let changed = match may_force(&action.pod, &evidence, Timestamp::now()) {
        Decision::Due { strategy, .. } if strategy == action.strategy => return Ok(VerifiedState { budgets, holds }),
        Decision::Due { strategy, .. } => format!("strategy {} fits the pod now", strategy.name),
        Decision::NoBlocker => "no drain waits for the pod any more".to_owned(),
        Decision::Blocked { reason, detail, .. } => {
            let budgets: Vec<String> = budgets.iter().map(|budget| budget.key.to_string()).collect();
            let (why, budgets) = (reason.explanation(), budgets.join(", "));
            format!("the pod {why}; {detail} (budgets: {budgets})")
        }
    };
    Err(PreconditionError::Changed(changed))
}

/// The node is the same, under the same cordon, timed by the same clock, with all gates open.
async fn node_still_drains(action: &PodAction, context: &PassContext) -> Result<Arc<NodeView>, PreconditionError> {
    let name = action.node.as_str();
    let read = context.reads.nodes.get(name.to_owned(), context.planned_at, async {
        let nodes: Api<Node> = Api::all(context.clients.requests.clone());
        let node = nodes.get_opt(name).await?;
        Ok(node.and_then(|node| NodeView::project(&node)).map(Arc::new))
    });
    let changed = |what: &str| Err(PreconditionError::Changed(format!("node {name}: {what}")));
    let Some(node) = read.await?.filter(|node| node.uid == action.node_uid) else {
        return changed("is gone");
    };
    if !node.concerns_drains() {
        return changed("is no longer cordoned");
    }
    let (drains, unread) = drains_for(&action.node, context).await;
    let gates = gate::look(&node, &context.snapshot.signals, &drains, &context.policy);
    if !gates.are_open() {
        return match unread {
            Some(error) if matches!(gates.reason, GateReason::DrainUnknown | GateReason::TurnUnknown) => {
                Err(PreconditionError::Unread(error))
            }
            _ => changed(gates.reason.explanation()),
        };
    }
    let clock = DrainClock::of(&node.annotations).and_then(Result::ok);
    // Another clock has other deadlines: the strategy may not be due by it.
    if clock.as_ref() != Some(&action.clock) {
        return changed("its drain is timed by another clock now");
    }
    // Between the two cordons the node was in service, and the drain that fell due is over.
    if gates.cordon.and_then(|cordon| cordon.time_added) != action.clock.cordoned_at {
        return changed("is under another cordon now");
    }
    Ok(node)
}

/// The namespace, if no opt-out counts in it by its labels as they stand now. Where the watch says that they count, nobody was
/// judged in spite of his, and nothing is read.
async fn without_opt_outs(
    namespace: &Arc<str>,
    context: &PassContext,
) -> Result<BTreeSet<Arc<str>>, PreconditionError> {
    let honoured = context.policy.opt_outs.namespaces.as_ref();
    let Some(honoured) = honoured.filter(|_| context.snapshot.without_opt_outs.contains(namespace)) else {
        return Ok(BTreeSet::new());
    };
    let reads = &context.reads.namespaces;
    let read = reads.get(Arc::clone(namespace), context.planned_at, async {
        let namespaces: Api<Namespace> = Api::all(context.clients.requests.clone());
        let found = namespaces.get_metadata_opt(namespace).await?;
        let labels = found.map(|found| Labels::project(found.metadata.labels.as_ref(), |text| text.into()));
        Ok(labels.map(Arc::new))
    });
    let is_left_out = read.await?.is_some_and(|labels| !honoured.matches(&labels));
    Ok(is_left_out.then(|| Arc::clone(namespace)).into_iter().collect())
}

/// The budgets that select the pod, as they stand now.
async fn budgets_of(action: &PodAction, context: &PassContext) -> Result<Vec<Arc<BudgetView>>, ApiError> {
    let namespace = &*action.pod.key.namespace;
    let reads = &context.reads.budgets;
    let read = reads.get(namespace.to_owned(), context.planned_at, async {
        let budgets: Api<PodDisruptionBudget> = Api::namespaced(context.clients.requests.clone(), namespace);
        let list = budgets.list(&ListParams::default()).await?;
        let views = list.items.iter().filter_map(BudgetView::project).map(Arc::new);
        Ok(Arc::new(Budgets::new(views)))
    });
    Ok(read.await?.matching(&action.pod).into_iter().cloned().collect())
}

/// What holds these budgets, which are all of one namespace, and select a pod of `node`.
async fn holds_on(budgets: &[Arc<BudgetView>], node: &NodeUid, context: &PassContext) -> Result<Holds, ApiError> {
    let Some(first) = budgets.first() else {
        return Ok(Holds::default());
    };
    let annotated = budgets.iter().filter_map(|budget| hold::of_annotation(budget));
    let mut holds: Holds = annotated.collect();
    holds.extend(claims_on(budgets, node, context).await?);
    holds.extend(owners(&first.key.namespace, context).await?);
    Ok(holds)
}

/// The holds that claims have on these budgets. Another node's claim got here only if it is new, or beyond its limit as
/// far as the watches tell: so its NodeDrain, which sets the limit, is read anew too.
async fn claims_on(budgets: &[Arc<BudgetView>], node: &NodeUid, context: &PassContext) -> Result<Vec<Hold>, ApiError> {
    if !context.snapshot.lock_kinds.ledger {
        return Ok(Vec::new());
    }
    let read = context.reads.ledger.get((), context.planned_at, async {
        let ledgers: Api<DrainLedger> = Api::all(context.clients.requests.clone());
        let ledger = ledgers.get_opt(drain_ledger::NAME).await?;
        Ok(ledger.map(|ledger| Arc::new(Ledger::from(&ledger.spec))))
    });
    let Some(ledger) = read.await? else {
        return Ok(Vec::new());
    };
    let has_some = |claim: &&Claim| budgets.iter().any(|budget| has_disruptions_of(claim, budget));
    let claims: Vec<&Claim> = ledger.claims().iter().filter(has_some).collect();
    let mut drains = BTreeMap::new();
    for claim in claims.iter().filter(|claim| claim.node_uid != node.as_str()) {
        let name = NodeName::from(claim.node.as_str());
        if let Some(drain) = node_drain(&name, context).await? {
            drains.insert(name, Ok(drain));
        }
    }
    Ok(claims_holds(claims, &NodeDrains::Known(drains)))
}

/// The holds of owners in a namespace.
async fn owners(namespace: &str, context: &PassContext) -> Result<Vec<Hold>, ApiError> {
    if !context.snapshot.lock_kinds.holds {
        return Ok(Vec::new());
    }
    let reads = &context.reads.owners;
    let read = reads.get(namespace.to_owned(), context.planned_at, async {
        let holds: Api<DisruptionHold> = Api::namespaced(context.clients.requests.clone(), namespace);
        let list = holds.list(&ListParams::default()).await?;
        Ok(list.items.iter().filter_map(hold::of_owner).collect())
    });
    match read.await {
        // The kind was taken away a moment ago, and every hold with it.
        Err(ApiError::NotFound) => Ok(Vec::new()),
        read => read,
    }
}

/// The NodeDrains as far as the node's gates need them, read anew: one may count as a drain, and one that waits for its
/// turn keeps everybody off the node.
async fn drains_for(node: &NodeName, context: &PassContext) -> (NodeDrains, Option<ApiError>) {
    match node_drain(node, context).await {
        Ok(drain) => {
            let known = drain.map(|drain| (node.clone(), Ok(drain)));
            (NodeDrains::Known(known.into_iter().collect()), None)
        }
        Err(error) => (NodeDrains::Unknown(error.to_string()), Some(error)),
    }
}

async fn node_drain(node: &NodeName, context: &PassContext) -> Result<Option<Arc<NodeDrainView>>, ApiError> {
    if !context.snapshot.lock_kinds.drains {
        return Ok(None);
    }
    let reads = &context.reads.drains;
    let read = reads.get(node.clone(), context.planned_at, async {
        let drains: Api<NodeDrain> = Api::all(context.clients.requests.clone());
        let drain = drains.get_opt(node.as_str()).await?;
        Ok(drain.and_then(|drain| NodeDrainView::project(&drain)).map(Arc::new))
    });
    read.await
}

fn has_disruptions_of(claim: &Claim, budget: &BudgetView) -> bool {
    claim.holds.iter().any(|disruptions| {
        *disruptions.pdb.namespace == *budget.key.namespace && *disruptions.pdb.name == *budget.key.name
    })
}
