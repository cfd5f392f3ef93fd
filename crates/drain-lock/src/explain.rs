//! Explain: what a drain of one node would do, or what stands in the way of the one that there is. It has no rules of its
//! own: the plan's [`classify`] and [`grant_obstacles`] answer.

use jiff::Timestamp;
use nodeward_api::node_drain::{BlockedBy, Evictor, NodeDrain};
use nodeward_api::reason::LockReason;
use nodeward_core::id::NodeName;
use nodeward_core::ledger::{Claim, ClaimState, Disruptions, Facts};
use nodeward_scheduling::Placement;
use serde::Serialize;

use crate::observe::ClusterCache;
use crate::plan::need::{Class, ClassifiedPod, Ignored, NodeNeed, classify};
use crate::plan::needs_of_drains;
use crate::plan::preview::{grant_obstacles, node_obstacles};
use crate::policy::Policy;
use crate::snapshot::{LedgerFacts, NodeFacts, Snapshot, SnapshotScope};

/// A node, its pods, and what stands in the way of its drain. The body of `GET /v1/plan`.
#[derive(Debug, Clone, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Explanation {
    pub node: String,
    /// When this was true.
    pub at: Timestamp,
    /// Whether the node is cordoned.
    pub cordoned: bool,
    /// The drain that there is.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub drain: Option<ExplainedDrain>,
    /// The claim that there is.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub claim: Option<ExplainedClaim>,
    /// What becomes of each pod.
    pub pods: Vec<ExplainedPod>,
    /// Disruptions that the drain needs, by budget.
    pub needs: Vec<ExplainedDisruptions>,
    /// What stands in the way of a grant now; for a node without a claim, as if it asked after all others.
    pub obstacles: Vec<BlockedBy>,
    /// What a person has to see to.
    pub problems: Vec<BlockedBy>,
}

/// A drain, for people.
#[derive(Debug, Clone, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct ExplainedDrain {
    /// Who asked for it.
    pub requesters: Vec<String>,
    pub evict: Evictor,
    /// Whether nothing is done.
    pub dry_run: bool,
}

/// A claim, for people.
#[derive(Debug, Clone, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct ExplainedClaim {
    /// Its place in the queue.
    pub ticket: i64,
    /// Where it stands.
    pub state: ClaimState,
    /// Since when.
    pub since: Timestamp,
    /// Whether no pod has to leave any more.
    pub drained: bool,
    pub holds: Vec<ExplainedDisruptions>,
}

/// Disruptions of one budget.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct ExplainedDisruptions {
    /// The budget, as `namespace/name`.
    pub pdb: String,
    /// How many.
    pub disruptions: i32,
    /// For these pods of its namespace.
    pub pods: Vec<String>,
}

/// What becomes of a pod.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct ExplainedPod {
    /// The pod, as `namespace/name`.
    pub pod: String,
    /// `ignored`, `finished`, `waitCompleted`, `movable`, `held` or `retained`.
    pub class: &'static str,
    /// Why, in one word, where there is more than one way to come by the class.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub reason: Option<&'static str>,
    /// Why, for a person.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub message: Option<String>,
    /// The budgets that select it, as `namespace/name`.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub budgets: Vec<String>,
    /// Whether it is terminating.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub terminating: bool,
}

/// Why there is no explanation.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Unexplained {
    /// The watches are not complete, or have been silent for long.
    NotReady,
    /// There is no such node.
    NoSuchNode,
}

/// Explains a node.
///
/// # Errors
/// When it cannot be said.
pub fn explain(cache: &ClusterCache, policy: &Policy, node: &str, now: Timestamp) -> Result<Explanation, Unexplained> {
    let name = NodeName::from(node);
    let scope = SnapshotScope {
        nodes: [name.clone()].into(),
        ..SnapshotScope::default()
    };
    let snapshot = cache.snapshot(&scope, now).ok_or(Unexplained::NotReady)?;
    let facts = snapshot.nodes.get(&name).ok_or(Unexplained::NoSuchNode)?;
    // A node that nobody drains is asked about as if it came after all that are drained.
    let alone = || {
        classify(
            facts,
            &snapshot,
            None,
            &mut Placement::new(&snapshot.scheduling),
            policy,
            now,
        )
    };
    let need = needs_of_drains(&snapshot, policy, now)
        .remove(&facts.uid)
        .unwrap_or_else(alone);
    Ok(page(facts, &snapshot, need, now))
}

/// Puts together what is known.
fn page(node: &NodeFacts, snapshot: &Snapshot, need: NodeNeed, now: Timestamp) -> Explanation {
    let ledger = LedgerFacts::content(snapshot.ledger.as_deref());
    Explanation {
        node: node.name.to_string(),
        at: now,
        cordoned: node.is_cordoned(),
        drain: snapshot.drains.get(&node.name).map(|drain| explained_drain(drain)),
        claim: ledger
            .claim(node.uid.as_str())
            .map(|claim| explained_claim(claim, &snapshot.facts)),
        pods: need.pods.into_iter().map(|pod| explained_pod(pod, snapshot)).collect(),
        obstacles: node_obstacles(node, snapshot, now)
            .into_iter()
            .chain(grant_obstacles(ledger, node, &need.needs, snapshot, now))
            .collect(),
        needs: explained_disruptions(&need.needs, &snapshot.facts),
        problems: need.problems,
    }
}

fn explained_drain(drain: &NodeDrain) -> ExplainedDrain {
    ExplainedDrain {
        requesters: drain.spec.requesters.iter().map(|known| known.name.clone()).collect(),
        evict: drain.spec.evict,
        dry_run: drain.spec.dry_run,
    }
}

fn explained_claim(claim: &Claim, facts: &Facts) -> ExplainedClaim {
    ExplainedClaim {
        ticket: claim.ticket,
        state: claim.state,
        since: claim.since,
        drained: claim.may_go_down,
        holds: explained_disruptions(&claim.holds, facts),
    }
}

fn explained_disruptions(disruptions: &[Disruptions], facts: &Facts) -> Vec<ExplainedDisruptions> {
    let explained = disruptions.iter().map(|disruptions| ExplainedDisruptions {
        pdb: disruptions.pdb.to_string(),
        disruptions: disruptions.number(facts),
        pods: disruptions.pods.iter().map(|pod| pod.name.clone()).collect(),
    });
    explained.collect()
}

fn explained_pod(classified: ClassifiedPod, snapshot: &Snapshot) -> ExplainedPod {
    let pod = classified.pod;
    let (class, reason) = match classified.class {
        Class::Ignored(Ignored::DaemonSet) => ("ignored", Some("DaemonSet")),
        Class::Ignored(Ignored::Mirror) => ("ignored", Some("Mirror")),
        Class::Finished => ("finished", None),
        Class::WaitsCompleted => ("waitCompleted", Some(LockReason::WaitCompleted.as_str())),
        Class::Movable => ("movable", None),
        Class::Held(reason) => ("held", Some(reason.as_str())),
        Class::LeftToOwner => ("leftToOwner", Some(LockReason::BudgetNeverAllows.as_str())),
        Class::Retained(reason) => ("retained", Some(reason.as_str())),
    };
    ExplainedPod {
        pod: pod.key.to_string(),
        class,
        reason,
        message: classified.why,
        budgets: snapshot.budgets_of(&pod).iter().map(ToString::to_string).collect(),
        terminating: pod.deletion.is_some(),
    }
}
