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
use nodeward_core::drain::NodeDrains;
use nodeward_core::hold::{self, Hold, Holds};
use nodeward_core::id::{NodeName, NodeUid};
use nodeward_core::labels::Labels;
use nodeward_core::ledger::{Claim, Ledger};
use nodeward_core::node::NodeView;
use nodeward_core::surge::Workloads;
use nodeward_runtime::{ApiError, QuorumReads};

use crate::gate::{self, Gates};
use crate::observe::{claims_holds, of_stored};
use crate::plan::PodAction;
use crate::plan::may_force::{Decision, Evidence, may_force};
use crate::plan::surge;
use crate::planned_pods::{PlannedDrain, PlannedPods};
use crate::policy::Policy;
use crate::snapshot::Snapshot;

use super::{PassContext, PodResult, restart};

/// Why an action is not carried out after all.
#[derive(Debug, Clone)]
pub enum PreconditionError {
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
    ledger: QuorumReads<(), Option<Arc<Result<Ledger, String>>>>,
    owners: QuorumReads<String, Vec<Hold>>,
    drains: QuorumReads<NodeName, Option<Arc<PlannedDrain>>>,
}

/// What an action rests on, as it was read anew.
pub struct VerifiedState {
    /// The budgets that select the pod.
    pub budgets: Vec<Arc<BudgetView>>,
    /// What holds them, or did.
    pub holds: Holds,
    /// What drain-lock has planned for the pods of the node, while it drains that.
    pub planned: Option<Arc<PlannedPods>>,
    /// Of the pod's namespace, where its Deployment is what is acted on.
    pub workloads: Option<Workloads>,
}

/// The node still drains, and the pod may still be forced by the strategy that was planned.
pub(super) async fn check_preconditions(
    action: &PodAction,
    context: &PassContext,
) -> Result<VerifiedState, PreconditionError> {
    // Each is boxed while it lasts: see `super::force_pod::Forcing::force`.
    let (node, planned) = Box::pin(node_still_drains(action, context)).await?;
    let without_opt_outs = Box::pin(without_opt_outs(&action.pod.key.namespace, context)).await?;
    let budgets = Box::pin(budgets_of(action, context)).await?;
    let holds = Box::pin(holds_on(&budgets, &action.node_uid, context)).await?;
    let workloads = if action.strategy.remedy.is_about_deployment() {
        Some(Box::pin(restart::workloads(&action.pod, context)).await?)
    } else {
        None
    };
    let state = VerifiedState {
        budgets,
        holds,
        planned,
        workloads,
    };
    let now = Timestamp::now();
    let due = still_due(
        action,
        &node,
        &state,
        &without_opt_outs,
        &context.snapshot,
        &context.policy,
        now,
    );
    due.map(|()| state).map_err(PreconditionError::Changed)
}

/// The pod may still be forced by the strategy that was planned, by what was read of its node and budgets. Pure.
///
/// # Errors
/// When it may not: what has changed.
pub fn still_due(
    action: &PodAction,
    node: &NodeView,
    state: &VerifiedState,
    without_opt_outs: &BTreeSet<Arc<str>>,
    snapshot: &Snapshot,
    policy: &Policy,
    now: Timestamp,
) -> Result<(), String> {
    let drain_rules = policy.signal.drain_rules(&snapshot.signals, node);
    let evidence = Evidence {
        node,
        clock: &action.clock,
        budgets: &state.budgets,
        holds: &state.holds,
        planned: state.planned.as_deref(),
        drain_rules: &drain_rules,
        without_opt_outs,
        surge_namespaces: snapshot.surge_namespaces.as_ref(),
        workloads: state.workloads.as_ref(),
        waits: policy.waits_for(node, &snapshot.pdb_force_drain_timeout),
        memory: &snapshot.memory,
        policy,
    };
    let ordinary = may_force(&action.pod, &evidence, now);
    let decision = if action.strategy.remedy.is_about_deployment() {
        surge::ahead_of(ordinary, &action.pod, &evidence, true, now).0
    } else {
        ordinary
    };
    Err(match decision {
        Decision::Due { strategy, .. } if strategy == action.strategy => return Ok(()),
        Decision::Due { strategy, .. } => format!("strategy {} fits the pod now", strategy.name),
        Decision::NoBlocker => "no drain waits for the pod any more".to_owned(),
        Decision::Blocked { reason, detail, .. } => {
            let budgets: Vec<String> = state.budgets.iter().map(|budget| budget.key.to_string()).collect();
            let (why, budgets) = (reason.explanation(), budgets.join(", "));
            format!("the pod {why}; {detail} (budgets: {budgets})")
        }
    })
}

/// The node, if it still drains, and what drain-lock has planned for its pods.
async fn node_still_drains(
    action: &PodAction,
    context: &PassContext,
) -> Result<(Arc<NodeView>, Option<Arc<PlannedPods>>), PreconditionError> {
    let name = action.node.as_str();
    let read = context.reads.nodes.get(name.to_owned(), context.planned_at, async {
        let nodes: Api<Node> = Api::all(context.clients.requests.clone());
        let node = nodes.get_opt(name).await?;
        Ok(node.and_then(|node| NodeView::project(&node)).map(Arc::new))
    });
    let changed = |what: &str| PreconditionError::Changed(format!("node {name}: {what}"));
    let node = read.await?.ok_or_else(|| changed("is gone"))?;
    let drain = node_drain(&action.node, context).await;
    // One may count as a drain, and one that waits for its turn keeps everybody off the node.
    let drains = match &drain {
        Ok(drain) => {
            let view = drain.iter().map(|drain| Ok(Arc::clone(&drain.view)));
            NodeDrains::Known(view.map(|view| (action.node.clone(), view)).collect())
        }
        Err(error) => NodeDrains::Unknown(error.to_string()),
    };
    let gates = gate::look(&node, &context.snapshot.signals, &drains, &context.policy);
    let drain = match drain {
        Err(error) if matches!(gates.reason, GateReason::DrainUnknown | GateReason::TurnUnknown) => {
            return Err(PreconditionError::Unread(error));
        }
        drain => drain.ok().flatten(),
    };
    still_drains(action, &node, &gates).map_err(changed)?;
    let drain = drain.filter(|drain| drain.view.is_under_way_on(&node.uid));
    Ok((node, drain.map(|drain| Arc::clone(&drain.pods))))
}

/// The node is the same, under the same cordon, timed by the same clock, with all gates open. Pure.
///
/// # Errors
/// When it is not: what has become of it.
pub fn still_drains(action: &PodAction, node: &NodeView, gates: &Gates) -> Result<(), &'static str> {
    if node.uid != action.node_uid {
        return Err("is gone");
    }
    if !node.concerns_drains() {
        return Err("is no longer cordoned");
    }
    if !gates.are_open() {
        return Err(gates.reason.explanation());
    }
    let clock = DrainClock::of(&node.annotations).and_then(Result::ok);
    // Another clock has other deadlines: the strategy may not be due by it.
    if clock.as_ref() != Some(&action.clock) {
        return Err("its drain is timed by another clock now");
    }
    // Between the two cordons the node was in service, and the drain that fell due is over.
    if gates.cordon.and_then(|cordon| cordon.time_added) != action.clock.cordoned_at {
        return Err("is under another cordon now");
    }
    Ok(())
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

/// The holds that claims have on these budgets, or are to have. Another node's claim got here only if it is new, or beyond its limit as
/// far as the watches tell: so its NodeDrain, which sets the limit, is read anew too.
async fn claims_on(budgets: &[Arc<BudgetView>], node: &NodeUid, context: &PassContext) -> Result<Vec<Hold>, ApiError> {
    if !context.snapshot.lock_kinds.ledger {
        return Ok(Vec::new());
    }
    let read = context.reads.ledger.get((), context.planned_at, async {
        let ledgers: Api<DrainLedger> = Api::all(context.clients.requests.clone());
        let ledger = ledgers.get_opt(drain_ledger::NAME).await?;
        Ok(ledger.map(|ledger| Arc::new(of_stored(&ledger))))
    });
    let read = read.await?;
    let ledger = match read.as_deref() {
        Some(Ok(ledger)) => ledger,
        Some(Err(why)) => return Ok(vec![Hold::unknown(why.as_str())]),
        None => return Ok(Vec::new()),
    };
    let names_some = |claim: &&Claim| {
        let mut named = claim.budgets();
        named.any(|named| budgets.iter().any(|budget| budget.key == named))
    };
    let claims: Vec<&Claim> = ledger.claims().iter().filter(names_some).collect();
    let mut drains = BTreeMap::new();
    for claim in claims.iter().filter(|claim| claim.node_uid != node.as_str()) {
        let name = NodeName::from(claim.node.as_str());
        if let Some(drain) = node_drain(&name, context).await? {
            drains.insert(name, Ok(Arc::clone(&drain.view)));
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

async fn node_drain(node: &NodeName, context: &PassContext) -> Result<Option<Arc<PlannedDrain>>, ApiError> {
    if !context.snapshot.lock_kinds.drains {
        return Ok(None);
    }
    let reads = &context.reads.drains;
    let read = reads.get(node.clone(), context.planned_at, async {
        let drains: Api<NodeDrain> = Api::all(context.clients.requests.clone());
        let drain = drains.get_opt(node.as_str()).await?;
        Ok(drain.as_ref().and_then(PlannedDrain::project).map(Arc::new))
    });
    read.await
}
