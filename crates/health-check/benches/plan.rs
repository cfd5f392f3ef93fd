//! How long one pass over a fleet takes in which a node has changed and expired, and the next one, in which none has changed and
//! its remediation starts. Prints one JSON object, milliseconds by the fleet's size in nodes; `cargo xtask bench plan` adds it to
//! its own.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Instant;

use anyhow::{Context, Result, ensure};
use health_check::observe::project::{self, NodeProjector};
use health_check::plan::{Action, Plan, plan};
use health_check::policy::Policy;
use health_check::settings::Settings;
use health_check::snapshot::{KindFacts, Listed, Snapshot, TemplateFacts, TemplateState};
use jiff::{SignedDuration, Timestamp};
use nodeward_core::id::NodeName;
use serde_json::{Value, json};

const SIZES: [usize; 3] = [1_000, 5_000, 15_000];

/// The median of so many passes counts.
const PASSES: usize = 25;

/// Each condition that kubelets report.
const CONDITIONS: [(&str, &str); 5] = [
    ("NetworkUnavailable", "False"),
    ("MemoryPressure", "False"),
    ("DiskPressure", "False"),
    ("PIDPressure", "False"),
    ("Ready", "True"),
];

fn main() -> Result<()> {
    // `cargo test` runs it too, and only wants to know that it works.
    let is_measured = std::env::args().any(|argument| argument == "--bench");
    let (sizes, passes) = if is_measured {
        (&SIZES[..], PASSES)
    } else {
        (&SIZES[..1], 1)
    };
    let mut intends = BTreeMap::new();
    let mut starts = BTreeMap::new();
    for &size in sizes {
        let (intending, starting) = milliseconds(size, passes)?;
        intends.insert(size, intending);
        starts.insert(size, starting);
    }
    println!(
        "{}",
        json!({ "health_check_ms": intends, "health_check_unchanged_ms": starts })
    );
    Ok(())
}

/// Of the pass in which a node has changed and expired, and of the next one, upon its intent.
fn milliseconds(size: usize, passes: usize) -> Result<(f64, f64)> {
    let now = Timestamp::now();
    let policy = Settings::parse("upgradeSignal: { node: { annotation: upgrading } }")?.policy;
    let mut snapshot = fleet(size, now)?;
    let (mut intending, mut starting) = (Vec::new(), Vec::new());
    for pass in 0..passes {
        fail(&mut snapshot, &format!("n{pass}"), now)?;
        let (planned, spent) = timed(&snapshot, &policy, now);
        intending.push(spent);
        let written = planned.actions.into_iter().find_map(|action| match action {
            Action::WriteStatus(write) => Some(write.status),
            _ => None,
        });
        for check in snapshot.checks.values_mut() {
            Arc::make_mut(check).status = written.clone().context("no intent")?;
        }
        let (planned, spent) = timed(&snapshot, &policy, now);
        starting.push(spent);
        let is_start = |action: &&Action| matches!(action, Action::StartRemediation(_));
        let started = planned.actions.iter().filter(is_start).count();
        ensure!(started == pass + 1, "{started} remediations start in pass {pass}");
    }
    Ok((median(intending)?, median(starting)?))
}

fn timed(snapshot: &Snapshot, policy: &Policy, now: Timestamp) -> (Plan, f64) {
    let began = Instant::now();
    let planned = plan(snapshot, policy, now);
    let spent = began.elapsed();
    (planned, spent.as_secs_f64() * 1000.0)
}

fn median(mut spent: Vec<f64>) -> Result<f64> {
    spent.sort_by(f64::total_cmp);
    spent.get(spent.len() / 2).copied().context("no pass")
}

/// So many workers that are Ready, and the NodeHealthCheck that looks after them.
fn fleet(size: usize, now: Timestamp) -> Result<Snapshot> {
    let mut snapshot = Snapshot::default();
    snapshot.memory.found.overdue_stops = Some(BTreeMap::new());
    let moment = (now - SignedDuration::from_hours(1)).into();
    let (mut projector, mut nodes) = (NodeProjector::new(false), BTreeMap::new());
    for number in 0..size {
        let object = serde_json::from_value(node(number))?;
        let facts = projector.project(&object, None, true, moment).context("no node")?;
        nodes.insert(facts.view.name.clone(), Arc::new(facts));
    }
    snapshot.nodes = nodes.into();
    let check = serde_json::from_value(json!({
        "metadata": { "name": "workers", "uid": "uid", "resourceVersion": "1", "generation": 1 },
        "spec": {
            "selector": { "matchExpressions": [{ "key": "node-role.kubernetes.io/worker", "operator": "Exists" }] },
            "remediationTemplate": { "apiVersion": "a/v1", "kind": "RebootTemplate", "namespace": "n", "name": "reboot" },
        },
    }))?;
    let check = project::check(check).context("no NodeHealthCheck")?;
    let template = check.spec.steps.first().context("no step")?.template.clone();
    let kind = KindFacts {
        listed: Listed::Complete,
        may_annotate: true,
    };
    snapshot.kinds.insert(template.remediation_kind(), kind);
    let found = TemplateFacts {
        spec: Some(json!({})),
        supports_multiple: false,
    };
    snapshot.templates.insert(template, TemplateState::Found(found.into()));
    snapshot.checks.insert("workers".into(), Arc::new(check));
    Ok(snapshot)
}

/// With the labels that a cloud's nodes have.
fn node(number: usize) -> Value {
    let name = format!("n{number}");
    let conditions = CONDITIONS.map(|(type_, status)| json!({ "type": type_, "status": status }));
    json!({
        "metadata": {
            "name": name, "uid": format!("{number:08}-0000-4000-8000-000000000000"),
            "labels": {
                "kubernetes.io/hostname": name, "kubernetes.io/os": "linux", "kubernetes.io/arch": "amd64",
                "node.kubernetes.io/instance-type": "m5.xlarge", "topology.kubernetes.io/region": "eu-west-1",
                "topology.kubernetes.io/zone": format!("eu-west-1{}", number % 3), "node-role.kubernetes.io/worker": "",
            },
        },
        "status": { "conditions": conditions },
    })
}

/// It has been silent for long enough.
fn fail(snapshot: &mut Snapshot, name: &str, now: Timestamp) -> Result<()> {
    snapshot.nodes.change(|nodes| {
        let node = nodes.get_mut(&NodeName::from(name)).context("no such node")?;
        let mut conditions = Arc::make_mut(node).conditions.iter_mut();
        let ready = conditions.find(|condition| *condition.type_ == *"Ready");
        let ready = ready.context("it is not Ready")?;
        ready.status = "Unknown".into();
        ready.counts_since = now - SignedDuration::from_mins(6);
        ready.last_transition = Some(ready.counts_since);
        Ok(())
    })
}
