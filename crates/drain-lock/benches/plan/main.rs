//! How long one pass takes while many nodes drain at once, by the fleet's size in nodes and how far the drains have come; how
//! long the webhook decides on one eviction; and how large the ledger is. Prints one JSON object; `cargo xtask bench plan`
//! adds it to its own.

mod fleet;

use std::collections::BTreeMap;
use std::time::Instant;

use anyhow::{Context, Result, ensure};
use drain_lock::config::Config;
use drain_lock::plan::{Plan, plan};
use drain_lock::policy::Policy;
use drain_lock::snapshot::Memory;
use drain_lock::webhook::decide::{
    Caller, Drainer, EvictionContext, EvictionRequest, LookupResult, MatchingBudgets, NodeContext, PodState, decide,
};
use jiff::Timestamp;
use nodeward_api::budget_ref::BudgetRef;
use nodeward_api::drain_ledger::DrainLedgerSpec;
use nodeward_core::ledger::{ClaimState, Disruptions, HeldPod, Ledger, Reservations};
use serde_json::{Value, json};

use self::fleet::{Fleet, Moment};

/// Nodes of the fleet, and how many of them drain.
const SIZES: [(usize, usize); 3] = [(1_000, 50), (5_000, 150), (15_000, 500)];

/// The median of so many passes counts. The first, which finds nothing in the processor's caches, is told apart.
const PASSES: usize = 20;

/// Claims in the ledger while the webhook decides.
const CLAIMS: usize = 100;

/// Milliseconds by moment, and of these by size.
type Measured = BTreeMap<&'static str, BTreeMap<usize, f64>>;

fn main() -> Result<()> {
    // `cargo test` runs it too, and only wants to know that it works.
    let is_measured = std::env::args().any(|argument| argument == "--bench");
    let (sizes, passes) = if is_measured {
        (&SIZES[..], PASSES)
    } else {
        (&[(100, 10)][..], 1)
    };
    let policy = Policy::from_config(Config::default())?;
    let (mut first, mut median) = (Measured::new(), Measured::new());
    let mut slowest: BTreeMap<usize, f64> = BTreeMap::new();
    for &(nodes, draining) in sizes {
        for moment in Moment::ALL {
            let fleet = Fleet::new(nodes, draining, moment)?;
            let mut spent = Vec::with_capacity(passes);
            for _ in 0..=passes {
                let began = Instant::now();
                let planned = plan(&fleet.snapshot, &Memory::default(), &policy, fleet.now);
                spent.push(began.elapsed().as_secs_f64() * 1000.0);
                check(&planned, draining, moment)?;
            }
            let own_first = spent.remove(0);
            spent.sort_by(f64::total_cmp);
            let own_median = *spent.get(passes / 2).context("no pass")?;
            first.entry(moment.as_str()).or_default().insert(nodes, own_first);
            median.entry(moment.as_str()).or_default().insert(nodes, own_median);
            let slowest = slowest.entry(nodes).or_default();
            *slowest = slowest.max(own_median);
        }
    }
    println!(
        "{}",
        json!({
            "drain_lock_decide_ms": decide_milliseconds(&policy)?,
            "drain_lock_ledger_mb": { "5": ledger_megabytes(5)?, "20": ledger_megabytes(20)? },
            "drain_lock_ms": slowest,
            "drain_lock_ms_by_moment": median,
            "drain_lock_first_ms_by_moment": first,
        })
    );
    Ok(())
}

/// That the pass had something to decide.
fn check(planned: &Plan, draining: usize, moment: Moment) -> Result<()> {
    ensure!(planned.drains.len() == draining, "{} drains", planned.drains.len());
    let write = planned.ledger.as_ref();
    let (actions, grants) = (
        planned.actions.len(),
        write.map(|write| write.grants.len()).unwrap_or_default(),
    );
    let is_busy = match moment {
        Moment::Cordoning | Moment::Leaving | Moment::Evicting => actions > 0,
        Moment::Claiming => grants > 0 && grants < draining,
        Moment::Mixed => actions > 0 && write.is_some(),
    };
    ensure!(is_busy, "{}: {actions} actions, {grants} grants", moment.as_str());
    Ok(())
}

/// Of the webhook's decision on each pod of nodes that are drained by others, with 100 claims in the ledger.
fn decide_milliseconds(policy: &Policy) -> Result<Value> {
    let fleet = Fleet::new(1_000, CLAIMS, Moment::Mixed)?;
    let snapshot = &fleet.snapshot;
    let planned = plan(snapshot, &Memory::default(), policy, fleet.now);
    let ledger = planned.ledger.context("nothing is written")?.next;
    ensure!(ledger.claims().len() == CLAIMS, "{} claims", ledger.claims().len());
    let reservations = Reservations::of_all(&ledger, &snapshot.facts);
    let mut spent = Vec::new();
    for (pod, node) in snapshot
        .pods
        .values()
        .flatten()
        .filter_map(|pod| Some((pod, pod.node.as_ref()?)))
    {
        let node = snapshot.nodes.get(node).context("no node")?;
        let budget = snapshot.budgets_of(pod).first().and_then(|key| snapshot.facts.get(key));
        let found = LookupResult::Found(Box::new(EvictionContext {
            uid: pod.uid.clone(),
            state: PodState::Counts,
            opted_out: None,
            surge: None,
            node: Some(NodeContext {
                name: node.name.clone(),
                uid: node.uid.clone(),
                cordoned: true,
                auto: true,
                has_drain: true,
                in_node_group: false,
                retains: None,
                planning_timed_out: false,
                is_being_removed: false,
            }),
            budgets: budget.map_or(MatchingBudgets::None, |budget| MatchingBudgets::One(budget.clone())),
            is_movable: false,
            another_goes_last: false,
            always_allowed: false,
            refuse_opt_out: false,
        }));
        let request = EvictionRequest {
            caller: Caller::Another(Drainer::Yes),
            dry_run: false,
            leaderless: false,
            paused: false,
            ticket: None,
            pod: &pod.key,
        };
        let began = Instant::now();
        let verdict = decide(&request, &found, &ledger, &snapshot.facts, &reservations);
        spent.push(began.elapsed().as_secs_f64() * 1000.0);
        drop(verdict);
    }
    spent.sort_by(f64::total_cmp);
    let quantile = |of_100: usize| spent.get(spent.len() * of_100 / 100).copied().context("no decision");
    Ok(json!({ "p50": quantile(50)?, "p99": quantile(99)? }))
}

/// Of the ledger of 500 nodes that were granted so many disruptions each, as the API server has it: of budgets of five pods, most of
/// StatefulSets, for what a Deployment makes again elsewhere needs no disruption.
fn ledger_megabytes(disruptions: usize) -> Result<f64> {
    const NODES: usize = 500;
    let mut ledger = Ledger::default();
    let now = Timestamp::now();
    for node in 0..NODES {
        // As long as names in a cloud and UIDs are.
        let (name, uid) = (
            format!("ip-10-0-{node:03}-17.eu-central-1.compute.internal"),
            uid(1, node),
        );
        ledger.enqueue(&name, &uid, false, now);
        let held = (0..disruptions).map(|pod| {
            let budget = (node * disruptions + pod) % (NODES * disruptions / 5);
            let name = format!("application-{budget}-{}", node % 5);
            Disruptions {
                pdb: BudgetRef {
                    namespace: format!("team-{}", budget / 20),
                    name: format!("application-{budget}"),
                    uid: self::uid(2, budget),
                },
                pods: vec![HeldPod {
                    name,
                    uid: self::uid(3, node * disruptions + pod),
                    ..HeldPod::default()
                }],
                ..Disruptions::default()
            }
        });
        if let Some(claim) = ledger.claims.last_mut() {
            claim.state = ClaimState::Confirmed;
            claim.boot_id = self::uid(4, node);
            claim.holds = held.collect();
            claim.holds.sort();
        }
    }
    let bytes = serde_json::to_vec(&DrainLedgerSpec::from(&ledger))?.len();
    Ok(f64::from(u32::try_from(bytes)?) / 1e6)
}

fn uid(kind: usize, number: usize) -> String {
    format!("{number:08x}-0000-4000-8000-{kind:012x}")
}
