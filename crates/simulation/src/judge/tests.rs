//! The judge objects to what must not be, and to nothing else.

use std::sync::Arc;

use nodeward_api::BudgetRef;
use nodeward_api::drain_ledger::DrainLedgerSpec;
use nodeward_core::ledger::{Claim, Ledger};
use serde_json::json;

use super::*;
use crate::api::{Eviction, Request};
use crate::topology::{App, MaxUnavailable, Member, Topology};

/// `a0` has three pods on `n0`, of which one may be unavailable.
fn world() -> World {
    let member = Member::movable(0);
    let app = App {
        budget: Some(MaxUnavailable::Pods(1)),
        members: vec![member; 3],
        replica_set: false,
        starts_within: 1,
    };
    let topology = Topology {
        slots: vec![9, 9],
        apps: vec![app],
        drains: Vec::new(),
    };
    World::new(&Arc::new(topology), 1)
}

fn evict(world: &mut World, pod: &str) {
    let eviction = Eviction {
        pod: pod.to_owned(),
        ..Eviction::default()
    };
    world.submit("drainer-n0", Request::Evict(eviction));
}

#[test]
fn an_eviction_beyond_its_budget_is_objected_to() {
    let mut world = world();
    evict(&mut world, "a0-0");
    evict(&mut world, "a0-1");
    assert_eq!(world.violations, [], "the handler refuses the second");
    let mut budget = world.budgets["a0"].clone();
    budget.status.as_mut().unwrap().disruptions_allowed = 1;
    world.put_budget(budget);
    evict(&mut world, "a0-1");
    let broken = Violation::BudgetBroken {
        pod: "a0-1".to_owned(),
        healthy: 1,
        desired: 2,
    };
    assert_eq!(world.violations, [broken]);
}

/// Until the disruption controller has counted it, the handler admits an eviction that it would refuse then.
#[test]
fn node_that_goes_down_under_no_claim_fails_by_itself() {
    let mut world = world();
    world.set_ready("n0", false, false);
    assert_eq!(world.failed.len(), 3);
    let pods = world.pods_on("n0").filter(|pod| pod.is_healthy());
    assert_eq!(pods.count(), 0);
}

#[test]
fn a_node_may_not_go_down_over_pods() {
    let mut world = world();
    world.judge_reboot("n1", false);
    assert_eq!(world.violations, []);
    world.judge_reboot("n0", false);
    assert_eq!(world.violations.len(), 3);
}

/// Only drain-lock promises a disruption for a pod that stays.
#[test]
fn drained_node_may_not_go_down_over_unclaimed_pods_that_stay() {
    let mut world = world();
    for pod in world.pods.values_mut() {
        pod.stays = true;
    }
    world.judge_reboot("n0", false);
    assert_eq!(world.violations, []);
    world.judge_reboot("n0", true);
    assert_eq!(world.violations.len(), 3);
}

#[test]
fn a_pod_is_not_forced_under_the_claim_of_another_node() {
    let mut world = world();
    let pod = world.pods["a0-0"].clone();
    world.judge_force(&pod);
    assert_eq!(world.violations, [], "nobody has its budget");
    let pdb = BudgetRef {
        namespace: NAMESPACE.to_owned(),
        name: "a0".to_owned(),
        uid: "uid-budget-a0".to_owned(),
    };
    let claim: Claim = serde_json::from_value(json!({
        "ticket": 1, "node": "n1", "nodeUID": "uid-n1", "state": "Confirmed", "since": timestamp(0), "queuedAt": timestamp(0),
        "needs": [], "holds": [{ "pdb": pdb, "pods": [{ "name": "a0-1", "uid": "a0-1#2" }] }],
    }))
    .unwrap();
    let ledger = Ledger::of(2, vec![claim]);
    let spec = Box::new(DrainLedgerSpec::from(&ledger));
    world.submit("drain-lock", Request::SwapLedger { read: None, spec });
    world.judge_force(&pod);
    let forced = Violation::ForcedProtected {
        pod: "a0-0".to_owned(),
        holder: "n1".to_owned(),
    };
    assert_eq!(world.violations, [forced]);
    assert_eq!(world.leftovers(), ["the claim of n1 (Confirmed)"]);
}
