//! How long one pass over a fleet takes while an upgrade rolls through it: the index of the budgets, of which one has changed,
//! and the plan, for which one object of a signal has changed. Prints one JSON object, milliseconds by the fleet's size in nodes;
//! `cargo xtask bench plan` adds it to its own. The first pass, which evaluates everything, is told apart.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Instant;

use anyhow::{Context, Result};
use drain_keeper::plan::plan;
use drain_keeper::settings::Settings;
use drain_keeper::snapshot::{NodePods, Snapshot};
use jiff::{SignedDuration, Timestamp};
use nodeward_core::budget::{BudgetView, Budgets};
use nodeward_core::node::NodeView;
use nodeward_core::pod::PodView;
use nodeward_core::signal::{KindState, SignalInputs, WatchedResource, pdb_force_drain_timeout};
use serde_json::{Value, json};

const SIZES: [usize; 3] = [1_000, 5_000, 15_000];

/// Of so many passes the median counts.
const PASSES: usize = 15;

/// One node in so many is being drained.
const DRAINING: usize = 50;
const PODS_PER_NODE: usize = 30;
/// A budget covers so many pods of the fleet; a namespace has so many budgets.
const PODS_PER_BUDGET: usize = 50;
const BUDGETS_PER_NAMESPACE: usize = 20;
/// Each has a MachineConfigPool of its own. Each node has a Plan of its own.
const POOLS: usize = 20;

/// All of the kinds of signals are asked for each node.
const CONFIG: &str = r#"
overrideBudgets: all
upgradeSignal:
  allOf:
    - openshift
    - resource:
        apiVersion: upgrade.cattle.io/v1
        kind: Plan
        when: "object.metadata.name == node.metadata.name && object.status.phase == 'Upgrading'"
    - node: { annotation: example.com/upgrading }
"#;

fn main() -> Result<()> {
    // `cargo test` runs it too, and only wants to know that it works.
    let is_measured = std::env::args().any(|argument| argument == "--bench");
    let (sizes, passes) = if is_measured {
        (&SIZES[..], PASSES)
    } else {
        (&SIZES[..1], 1)
    };
    let measured: Result<BTreeMap<usize, Spent>> = sizes
        .iter()
        .map(|&size| Ok((size, milliseconds(size, passes)?)))
        .collect();
    let measured = measured?;
    let by_size = |spent: fn(&Spent) -> f64| {
        let by_size = measured.iter().map(|(size, of)| (size.to_string(), json!(spent(of))));
        Value::Object(by_size.collect())
    };
    println!(
        "{}",
        json!({ "drain_keeper_ms": by_size(|of| of.median), "drain_keeper_first_ms": by_size(|of| of.first) })
    );
    Ok(())
}

/// Milliseconds of a pass.
struct Spent {
    first: f64,
    /// Of those after it; without any, its own.
    median: f64,
}

/// Of one pass over so many nodes.
fn milliseconds(size: usize, passes: usize) -> Result<Spent> {
    let now = Timestamp::now();
    let policy = Settings::parse(CONFIG)?.policy;
    let (mut snapshot, budgets) = fleet(size, now)?;
    let mut kinds = signals_of(size, now);
    let mut spent = Vec::with_capacity(passes);
    for pass in 0..passes {
        let mut budgets = budgets.clone();
        // Some budget's status changes in nearly every pass.
        let changed = pass % budgets.len();
        budgets[changed] = Arc::new(BudgetView::clone(&budgets[changed]));
        let [.., (_, plans)] = &mut kinds;
        plans[pass] = Arc::new(Value::clone(&plans[pass]));
        let mut signals = SignalInputs::at(now).after(snapshot.signals.evaluations());
        for (kind, objects) in kinds.clone() {
            signals.insert(kind, KindState::Synced(objects));
        }
        snapshot.pdb_force_drain_timeout = pdb_force_drain_timeout(&signals);
        snapshot.signals = signals;
        let began = Instant::now();
        snapshot.budgets = Arc::new(snapshot.budgets.renewed(budgets));
        let planned = plan(&snapshot, &policy, now);
        spent.push(began.elapsed().as_secs_f64() * 1000.0);
        let judged: usize = planned.verdicts.iter().map(|verdict| verdict.blockers.len()).sum();
        let draining = size / DRAINING;
        anyhow::ensure!(
            judged == draining * PODS_PER_NODE,
            "{judged} pods judged on {draining} nodes"
        );
        snapshot.memory.node_history = planned.node_history;
    }
    let first = *spent.first().context("no pass")?;
    let later = spent.get_mut(1..).unwrap_or_default();
    later.sort_by(f64::total_cmp);
    let median = later.get(later.len() / 2).copied().unwrap_or(first);
    Ok(Spent { first, median })
}

/// The nodes that are being drained, with their pods, and all budgets of the fleet.
fn fleet(size: usize, now: Timestamp) -> Result<(Snapshot, Vec<Arc<BudgetView>>)> {
    let mut snapshot = Snapshot::default();
    for number in 0..size / DRAINING {
        let name = format!("n{number}");
        let node = NodeView::project(&serde_json::from_value(node(&name, number, now))?).context("no node")?;
        let pods: Result<Vec<Arc<PodView>>> = (0..PODS_PER_NODE)
            .map(|pod| {
                let budget = (number * PODS_PER_NODE + pod) * DRAINING / PODS_PER_BUDGET;
                let pod = serde_json::from_value(self::pod(&name, pod, budget, now))?;
                Ok(Arc::new(PodView::project(&pod).context("no pod")?))
            })
            .collect();
        snapshot.pods.insert(node.name.clone(), NodePods::Synced(pods?));
        snapshot.nodes.push(Arc::new(node));
    }
    let budgets: Result<Vec<Arc<BudgetView>>> = (0..size * PODS_PER_NODE / PODS_PER_BUDGET)
        .map(|number| {
            let budget = serde_json::from_value(budget(number))?;
            Ok(Arc::new(BudgetView::project(&budget).context("no budget")?))
        })
        .collect();
    let budgets = budgets?;
    snapshot.budgets = Arc::new(Budgets::new(budgets.iter().cloned()));
    Ok((snapshot, budgets))
}

/// The kinds that the signal reads.
fn signals_of(size: usize, now: Timestamp) -> [(WatchedResource, Vec<Arc<Value>>); 3] {
    let upgrade = json!({
        "metadata": { "namespace": "openshift-managed-upgrade-operator", "name": "managed-upgrade-config" },
        "spec": { "desired": { "version": "4.20.1" }, "PDBForceDrainTimeout": 60 },
        "status": { "history": [{ "version": "4.20.1", "phase": "Upgrading", "startTime": now }] },
    });
    let pool = |number: usize| {
        json!({
            "metadata": { "name": format!("pool-{number}") },
            "spec": { "nodeSelector": { "matchLabels": { "pool": format!("pool-{number}") } } },
            "status": { "machineCount": 100, "updatedMachineCount": 1 },
        })
    };
    let plan = |number: usize| {
        json!({
            "metadata": { "namespace": "system", "name": format!("n{number}") }, "status": { "phase": "Upgrading" },
        })
    };
    // Those of the nodes that are being drained come last: each is looked for among all others.
    let each =
        |count, object: &dyn Fn(usize) -> Value| (0..count).rev().map(|number| Arc::new(object(number))).collect();
    [
        (
            WatchedResource::all("upgrade.managed.openshift.io/v1alpha1", "UpgradeConfig"),
            vec![Arc::new(upgrade)],
        ),
        (
            WatchedResource::all("machineconfiguration.openshift.io/v1", "MachineConfigPool"),
            each(POOLS, &pool),
        ),
        (WatchedResource::all("upgrade.cattle.io/v1", "Plan"), each(size, &plan)),
    ]
}

/// A node of a pool that the Machine Config Operator has been draining for an hour, with its clock.
fn node(name: &str, number: usize, now: Timestamp) -> Value {
    let began = now - SignedDuration::from_mins(30);
    let clock = json!({ "start": now, "from": "Upgrade", "bootID": "b", "cordonedAt": began });
    json!({
        "metadata": {
            "name": name, "uid": name,
            "labels": {
                "kubernetes.io/hostname": name, "pool": format!("pool-{}", number % POOLS),
                "node-role.kubernetes.io/worker": "",
            },
            "annotations": {
                "nodeward.dev/drain-clock": clock.to_string(),
                "machineconfiguration.openshift.io/desiredDrain": "drain-2",
                "example.com/upgrading": "true",
            },
        },
        "spec": {
            "unschedulable": true,
            "taints": [{ "key": "node.kubernetes.io/unschedulable", "effect": "NoSchedule", "timeAdded": began }],
        },
        "status": { "conditions": [{ "type": "Ready", "status": "True" }] },
    })
}

fn namespace_of(budget: usize) -> String {
    format!("team-{}", budget / BUDGETS_PER_NAMESPACE)
}

fn pod(node: &str, number: usize, budget: usize, now: Timestamp) -> Value {
    let name = format!("{node}-{number}");
    json!({
        "metadata": {
            "namespace": namespace_of(budget), "name": name, "uid": name, "resourceVersion": "1",
            "creationTimestamp": now - SignedDuration::from_hours(24),
            "labels": { "app": format!("app-{budget}"), "pod-template-hash": "7d4b9c" },
            "ownerReferences": [
                { "apiVersion": "apps/v1", "kind": "ReplicaSet", "name": "r", "uid": "r", "controller": true },
            ],
        },
        "spec": { "nodeName": node, "containers": [] },
        "status": { "phase": "Running", "conditions": [{ "type": "Ready", "status": "True" }] },
    })
}

fn budget(number: usize) -> Value {
    json!({
        "metadata": {
            "namespace": namespace_of(number), "name": format!("app-{number}"), "uid": format!("{number}"),
            "resourceVersion": "1", "generation": 1,
        },
        "spec": { "selector": { "matchLabels": { "app": format!("app-{number}") } } },
        "status": {
            "observedGeneration": 1, "disruptionsAllowed": 0, "currentHealthy": 49, "desiredHealthy": 49,
            "expectedPods": 50,
        },
    })
}
