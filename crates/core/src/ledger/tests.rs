//! The rules of the ledger, one by one. That they hold together, whatever happens between them, is checked in
//! `tests/ledger_model.rs`.

mod asking;
mod movable;
mod moving;
mod osds;
mod queueing;
mod releasing;
mod reservations;
mod stored;

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use jiff::Timestamp;
use nodeward_api::budget_ref::BudgetRef;
use nodeward_api::reason::LockReason;

use super::{
    BudgetFacts, BudgetPods, Claim, ClaimState, Disruptions, Facts, Fence, FirstGrant, HeldPod, Ledger, Obstacle,
    OwnerDisruptions, Reservations, circle_of,
};
use crate::id::{BudgetKey, PodUid};

/// The moment at which everything happens that is not said to happen later.
const NOW: Timestamp = Timestamp::UNIX_EPOCH;

const NOT_DOWN: &dyn Fn(&HeldPod) -> bool = &|_| false;
const ALL_DOWN: &dyn Fn(&HeldPod) -> bool = &|_| true;

/// A budget of three pods, of which one may be missing, and all three run.
fn budget(name: &str) -> BudgetFacts {
    BudgetFacts {
        key: BudgetKey::new("shop", name),
        uid: Arc::from(format!("uid of {name}")),
        current: true,
        disruptions_allowed: 1,
        desired_healthy: 2,
        expected_pods: 3,
        unusable: None,
        is_by_node: false,
        healthy: pods(&[format!("{name}-0"), format!("{name}-1"), format!("{name}-2")]),
        several: BTreeSet::new(),
        owner_disruptions: None,
        pods: BudgetPods::default(),
    }
}

/// The same when a pod of it has gone down, and its status says so.
fn without(mut budget: BudgetFacts, pod: &str) -> BudgetFacts {
    assert!(budget.healthy.remove(pod), "{pod} was not healthy");
    budget.disruptions_allowed -= 1;
    budget
}

fn pods(uids: &[String]) -> BTreeSet<PodUid> {
    uids.iter().map(|uid| PodUid::from(uid.as_str())).collect()
}

fn facts(budgets: impl IntoIterator<Item = BudgetFacts>) -> Facts {
    budgets.into_iter().map(|budget| (budget.key.clone(), budget)).collect()
}

fn key(name: &str) -> BudgetKey {
    BudgetKey::new("shop", name)
}

/// Disruptions for pods that are named after their budget: `web-0` is by `web`.
fn disruptions(pods: &[&str]) -> Vec<Disruptions> {
    let disruption = |pod: &&str| {
        let (name, _) = pod.split_once('-').unwrap();
        Disruptions {
            pdb: BudgetRef {
                namespace: "shop".to_owned(),
                name: name.to_owned(),
                uid: format!("uid of {name}"),
            },
            healthy_at_grant: 0,
            movable: false,
            pods: vec![HeldPod {
                name: (*pod).to_owned(),
                uid: (*pod).to_owned(),
                ..HeldPod::default()
            }],
        }
    };
    super::disruptions::normal(pods.iter().map(disruption))
}

fn retained(pods: &[&str]) -> Vec<Disruptions> {
    let mut disruptions = disruptions(pods);
    for pod in disruptions.iter_mut().flat_map(|u| &mut u.pods) {
        pod.retained = true;
    }
    disruptions
}

/// Nodes that queue for disruptions, the oldest first.
fn queue(claims: &[(&str, &[&str])]) -> Ledger {
    let mut ledger = Ledger::default();
    for (node, pods) in claims {
        ask(&mut ledger, node, pods);
    }
    ledger
}

fn ask(ledger: &mut Ledger, node: &str, pods: &[&str]) {
    ledger.enqueue(node, node, false, NOW);
    ledger.set_needs(node, disruptions(pods), NOT_DOWN, NOW);
}

/// Whether a pod may go that no claim holds a disruption for: a movable one of this node's drain, or one of any other node.
fn admits(ledger: &Ledger, node: Option<&str>, budget: &BudgetFacts, facts: &Facts) -> Result<(), Obstacle> {
    ledger.admits(node, budget, &Reservations::of_all(ledger, facts))
}

fn grant(ledger: &mut Ledger, node: &str, facts: &Facts) -> Fence {
    let number = ledger.try_grant(node, "boot", facts, NOW).unwrap();
    ledger.confirm(node, number, facts, NOT_DOWN, NOW).unwrap();
    fence(ledger, node)
}

fn fence(ledger: &Ledger, node: &str) -> Fence {
    Fence::of(claim(ledger, node))
}

fn claim<'a>(ledger: &'a Ledger, node: &str) -> &'a Claim {
    ledger.claim(node).unwrap()
}

fn state(ledger: &Ledger, node: &str) -> ClaimState {
    claim(ledger, node).state
}

fn may_go_down(ledger: &Ledger, node: &str) -> bool {
    claim(ledger, node).may_go_down
}

/// UIDs of the pods for which a node holds disruptions.
fn held(ledger: &Ledger, node: &str) -> Vec<String> {
    names(&claim(ledger, node).holds)
}

/// UIDs of the pods for which a node needs disruptions beyond those that it holds.
fn needed(ledger: &Ledger, node: &str) -> Vec<String> {
    let needs = claim(ledger, node).needs.iter();
    needs
        .flat_map(|need| need.pods.0.iter().map(|pod| pod.uid.clone()))
        .collect()
}

fn names(disruptions: &[Disruptions]) -> Vec<String> {
    disruptions
        .iter()
        .flat_map(|u| u.pods.iter().map(|pod| pod.uid.clone()))
        .collect()
}

fn nodes(ledger: &Ledger) -> Vec<&str> {
    ledger.claims().iter().map(|claim| claim.node.as_str()).collect()
}

/// Why a node waits.
fn reasons(ledger: &Ledger, node: &str, facts: &Facts) -> Vec<LockReason> {
    ledger
        .obstacles(node, facts)
        .iter()
        .map(|obstacle| obstacle.reason)
        .collect()
}
