//! What no plan does, whatever the cluster looks like.

use std::collections::{BTreeMap, BTreeSet};

use nodeward_api::annotation;
use nodeward_core::id::NodeUid;
use nodeward_core::ledger::Fence;
use proptest::prelude::*;
use serde_json::{Value, json};

use super::super::node_markers::Cordon;
use super::super::*;
use super::policy;
use crate::tests::fixture::{Cluster, budget, merged, node, now, owner, pod};

const NODES: [&str; 3] = ["n1", "n2", "n3"];
const APPS: [&str; 2] = ["web", "db"];
const FALLBACKS: [&str; 4] = ["Wait", "ReleaseAndRequeue", "EvictAnyway", "Delete"];
const STATES: [&str; 5] = ["Waiting", "Granted", "Confirmed", "Returning", "Suspect"];

/// A node: cordoned by nobody, by somebody else, by a drain of ours, or formerly by one; in its first boot or another.
#[derive(Debug, Clone)]
struct ANode {
    cordon: u8,
    rebooted: bool,
    ready: bool,
}

#[derive(Debug, Clone)]
struct APod {
    node: usize,
    app: usize,
    kind: u8,
    ready: bool,
    leaving: bool,
    pinned: bool,
}

#[derive(Debug, Clone)]
#[allow(clippy::struct_excessive_bools, reason = "each of them is drawn by itself")]
struct ADrain {
    evict: bool,
    requested: bool,
    deleted: bool,
    adopted: bool,
    dry_run: bool,
    fallback: u8,
    old: bool,
}

#[derive(Debug, Clone)]
struct AClaim {
    state: u8,
    drained: bool,
    old: bool,
    holds: [bool; 8],
    needs: [bool; 8],
}

type Given = (
    Vec<ANode>,
    Vec<APod>,
    Vec<Option<ADrain>>,
    Vec<Option<AClaim>>,
    [(i32, i32); 2],
);

fn given() -> impl Strategy<Value = Given> {
    let a_node = (0..5_u8, any::<bool>(), prop::bool::weighted(0.8)).prop_map(|(cordon, rebooted, ready)| ANode {
        cordon,
        rebooted,
        ready,
    });
    let a_pod = (
        0..3_usize,
        0..2_usize,
        0..7_u8,
        prop::bool::weighted(0.8),
        prop::bool::weighted(0.15),
        any::<bool>(),
    )
        .prop_map(|(node, app, kind, ready, leaving, pinned)| APod {
            node,
            app,
            kind,
            ready,
            leaving,
            pinned,
        });
    let a_drain = (
        any::<bool>(),
        prop::bool::weighted(0.85),
        prop::bool::weighted(0.15),
        prop::bool::weighted(0.8),
        prop::bool::weighted(0.1),
        0..4_u8,
        any::<bool>(),
    )
        .prop_map(|(evict, requested, deleted, adopted, dry_run, fallback, old)| ADrain {
            evict,
            requested,
            deleted,
            adopted,
            dry_run,
            fallback,
            old,
        });
    let a_claim = (
        0..5_u8,
        any::<bool>(),
        any::<bool>(),
        any::<[bool; 8]>(),
        any::<[bool; 8]>(),
    )
        .prop_map(|(state, drained, old, holds, needs)| AClaim {
            state,
            drained,
            old,
            holds,
            needs,
        });
    (
        prop::collection::vec(a_node, 3),
        prop::collection::vec(a_pod, 0..8),
        prop::collection::vec(prop::option::weighted(0.8, a_drain), 3),
        prop::collection::vec(prop::option::weighted(0.7, a_claim), 3),
        prop::array::uniform2((0..3_i32, 0..4_i32)),
    )
}

fn time(old: bool) -> &'static str {
    if old {
        "2025-12-31T12:00:00Z"
    } else {
        "2026-01-01T11:59:00Z"
    }
}

fn written_node(index: usize, given: &ANode) -> Value {
    let name = NODES[index];
    let cordon = match given.cordon {
        0 => json!({}),
        1 => json!({ "spec": { "unschedulable": true } }),
        2 => json!({
            "metadata": { "annotations": { annotation::CORDONED_BY: format!("uid-drain-{name}") } }, "spec": { "unschedulable": true },
        }),
        3 => json!({ "metadata": { "annotations": { annotation::CORDONED_BY: format!("uid-drain-{name}") } } }),
        _ => json!({
            "metadata": { "annotations": { annotation::CORDONED_BY: format!("uid-drain-{name}@2026-01-01T11:00:00Z") } },
            "spec": { "unschedulable": true },
        }),
    };
    let status = if given.ready { "True" } else { "Unknown" };
    let boot = if given.rebooted { "boot-2" } else { "boot-1" };
    let status = json!({ "status": {
        "nodeInfo": { "bootID": boot },
        "conditions": [{ "type": "Ready", "status": status, "lastTransitionTime": "2026-01-01T11:30:00Z" }],
    } });
    node(name, merged(cordon, status))
}

fn written_pod(index: usize, given: &APod) -> Value {
    let (node, app) = (NODES[given.node], APPS[given.app]);
    let kind = match given.kind {
        0 => json!({ "metadata": { "ownerReferences": [owner("apps/v1", "DaemonSet", "d")] } }),
        1 => json!({ "metadata": { "annotations": { "kubernetes.io/config.mirror": "h" } } }),
        2 => json!({ "metadata": { "labels": { "nodeward.dev/drain": "skip" } } }),
        3 => json!({ "metadata": { "labels": { "nodeward.dev/drain": "wait-completed" } } }),
        4 => json!({ "status": { "phase": "Succeeded" } }),
        _ => json!({}),
    };
    let ready = if given.ready { "True" } else { "False" };
    let rest = json!({
        "metadata": { "labels": { "app": app } },
        "spec": { "nodeName": node },
        "status": { "conditions": [{ "type": "Ready", "status": ready }] },
    });
    let leaving = json!({ "metadata": { "deletionTimestamp": "2026-01-01T12:00:00Z" } });
    let pinned = json!({ "spec": { "nodeSelector": { "kubernetes.io/hostname": node } } });
    let mut written = pod(&format!("p{index}"), merged(rest, kind));
    if given.leaving {
        written = merged(written, leaving);
    }
    if given.pinned { merged(written, pinned) } else { written }
}

fn written_drain(index: usize, given: &ADrain) -> Value {
    let name = NODES[index];
    let finalizers: &[&str] = if given.adopted {
        &[nodeward_api::finalizer::DRAIN_LOCK]
    } else {
        &[]
    };
    let requesters: &[Value] = if given.requested {
        &[json!({ "name": "alice" })]
    } else {
        &[]
    };
    json!({
        "metadata": {
            "name": name, "uid": format!("uid-drain-{name}"), "resourceVersion": "7", "finalizers": finalizers,
            "creationTimestamp": time(given.old), "deletionTimestamp": given.deleted.then_some("2026-01-01T12:00:00Z"),
        },
        "spec": {
            "nodeName": name, "nodeUID": format!("uid-{name}"), "requesters": requesters, "dryRun": given.dry_run,
            "evict": if given.evict { "Nodeward" } else { "Requester" },
            "fallback": FALLBACKS[usize::from(given.fallback)],
        },
    })
}

/// Of the pods on the node, those for which `chosen` says so, by budget.
fn written_disruptions(node: usize, pods: &[APod], chosen: [bool; 8]) -> Vec<Value> {
    APPS.iter()
        .enumerate()
        .filter_map(|(app, name)| {
            let pods: Vec<Value> = pods
                .iter()
                .enumerate()
                .filter(|(index, pod)| pod.node == node && pod.app == app && chosen[*index])
                .map(|(index, pod)| json!({ "name": format!("p{index}"), "uid": format!("uid-p{index}"), "retained": pod.kind == 2 }))
                .collect();
            let pdb = json!({ "namespace": "shop", "name": name, "uid": format!("uid-{name}") });
            (!pods.is_empty()).then(|| json!({ "pdb": pdb, "healthyAtGrant": 2, "pods": pods }))
        })
        .collect()
}

fn written_claim(index: usize, given: &AClaim, pods: &[APod]) -> Value {
    let name = NODES[index];
    json!({
        "ticket": index + 1, "node": name, "nodeUID": format!("uid-{name}"), "grant": 5, "bootID": "boot-1", "mayGoDown": given.drained,
        "state": STATES[usize::from(given.state)],
        "since": time(given.old), "queuedAt": time(given.old),
        "needs": written_disruptions(index, pods, given.needs), "holds": written_disruptions(index, pods, given.holds),
    })
}

fn cluster(given: &Given) -> Cluster {
    let (nodes, pods, drains, claims, budgets) = given;
    let claims: Vec<Value> = claims
        .iter()
        .enumerate()
        .filter_map(|(index, claim)| Some(written_claim(index, claim.as_ref()?, pods)))
        .collect();
    Cluster::new(
        nodes.iter().enumerate().map(|(index, node)| written_node(index, node)),
        pods.iter().enumerate().map(|(index, pod)| written_pod(index, pod)),
    )
    .budgets(APPS.iter().zip(budgets).map(|(app, (allowed, desired))| {
        let numbers =
            json!({ "disruptionsAllowed": allowed, "desiredHealthy": desired, "expectedPods": 4, "currentHealthy": 4 });
        budget(
            app,
            json!({ "spec": { "selector": { "matchLabels": { "app": app } } }, "status": numbers }),
        )
    }))
    .drains(
        drains
            .iter()
            .enumerate()
            .filter_map(|(index, drain)| Some(written_drain(index, drain.as_ref()?))),
    )
    .ledger(json!({ "nextTicket": 9, "claims": claims }))
}

/// The evictions of a plan, with the fence of those that name a grant.
fn evictions(plan: &Plan) -> Vec<(&PodEviction, Option<(Fence, &NodeUid)>)> {
    plan.actions.iter().flat_map(evictions_of).collect()
}

fn evictions_of(action: &Action) -> Vec<(&PodEviction, Option<(Fence, &NodeUid)>)> {
    match action {
        Action::Evict { eviction } => vec![(eviction, None)],
        Action::EvictHeld {
            fence, node_uid, pods, ..
        } => pods
            .iter()
            .map(|eviction| (eviction, Some((*fence, node_uid))))
            .collect(),
        _ => Vec::new(),
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 512, ..ProptestConfig::default() })]

    #[test]
    fn only_pods_of_our_drains_are_evicted(given in given()) {
        let snapshot = cluster(&given).snapshot_of(&NODES);
        let plan = plan(&snapshot, &Memory::default(), &policy(), now());
        let mut seen = BTreeSet::new();
        for (eviction, _) in evictions(&plan) {
            let pod = &eviction.pod;
            let at = NODES.iter().position(|name| *name == eviction.node.as_str()).unwrap();
            prop_assert!(seen.insert(pod.uid.clone()), "{} is evicted twice", pod.key);
            prop_assert_eq!(pod.node.as_ref(), Some(&eviction.node));
            prop_assert!(pod.deletion.is_none() && !pod.is_finished() && !pod.mirror && !pod.is_daemon(), "{} is none of ours", pod.key);
            let drain = given.2[at].as_ref().expect("a pod is evicted without a drain");
            prop_assert!(drain.adopted && drain.requested && drain.evict && !drain.deleted && !drain.dry_run);
            prop_assert!(snapshot.nodes[&eviction.node].is_cordoned(), "{} is evicted from a node that is not cordoned", pod.key);
            let kind = given.1[pod.key.name.trim_start_matches('p').parse::<usize>().unwrap()].kind;
            prop_assert!(kind != 2, "{} asked to stay", pod.key);
        }
    }

    #[test]
    fn held_pods_leave_by_grant_others_by_free_disruption(given in given()) {
        let snapshot = cluster(&given).snapshot_of(&NODES);
        let Some(facts) = &snapshot.ledger else { unreachable!() };
        let written = facts.ledger.clone();
        let plan = plan(&snapshot, &Memory::default(), &policy(), now());
        let mut taken: BTreeMap<_, (i32, i32)> = BTreeMap::new();
        for (eviction, grant) in evictions(&plan) {
            if let Some((fence, node)) = grant {
                prop_assert!(written.may_evict(node.as_str(), fence, eviction.pod.uid.as_str()));
            } else if eviction.pod.ready && !eviction.pod.skips_budgets() {
                // A claim that waits may have the pod's disruption: it is none of the free ones.
                let is_free = !written.is_held(eviction.pod.uid.as_str());
                for key in snapshot.budgets_of(&eviction.pod) {
                    let (all, free) = taken.entry(key.clone()).or_default();
                    *all += 1;
                    *free += i32::from(is_free);
                }
            }
        }
        for (key, (all, of_free)) in taken {
            let budget = &snapshot.facts[&key];
            let (free, allowed) = (written.free(budget), budget.disruptions_allowed);
            prop_assert!(of_free <= free.max(0), "{of_free} disruptions of {key} are taken and {free} are free");
            prop_assert!(all <= allowed.max(0), "{all} pods of {key} leave and {allowed} may");
        }
    }

    #[test]
    fn foreign_cordon_is_neither_lifted_nor_taken(given in given()) {
        let snapshot = cluster(&given).snapshot_of(&NODES);
        let plan = plan(&snapshot, &Memory::default(), &policy(), now());
        for action in &plan.actions {
            let Action::Node(write) = action else { continue };
            match write.cordon {
                Cordon::Lift => prop_assert!(write.node.is_cordoned_by_us()),
                Cordon::Forget => prop_assert!(write.node.cordon_record().is_some()),
                Cordon::Set { .. } => prop_assert!(!write.node.unschedulable || write.node.is_cordoned_by_us()),
                Cordon::Keep | Cordon::Respect => {}
            }
        }
    }

    #[test]
    fn ledger_keeps_disruptions_of_down_pods(given in given()) {
        let snapshot = cluster(&given).snapshot_of(&NODES);
        let Some(facts) = &snapshot.ledger else { unreachable!() };
        let plan = plan(&snapshot, &Memory::default(), &policy(), now());
        let Some(write) = &plan.ledger else { return Ok(()) };
        let kept: BTreeSet<&str> = write.next.claims().iter().flat_map(|claim| &claim.holds).flat_map(|disruptions| &disruptions.pods).map(|pod| pod.uid.as_str()).collect();
        for (index, pod) in given.1.iter().enumerate() {
            let (node, uid) = (&given.0[pod.node], format!("uid-p{index}"));
            let is_held = facts.ledger.claims().iter().flat_map(|claim| &claim.holds).flat_map(|disruptions| &disruptions.pods).any(|held| held.uid == uid);
            // It terminates, or it stays on a node that is down.
            let is_down = pod.leaving || (pod.kind == 2 && !node.ready);
            prop_assert!(!is_held || !is_down || kept.contains(uid.as_str()), "the disruption of p{index} is given away while it is down");
        }
    }
}
