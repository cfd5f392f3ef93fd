//! Metrics: our own, and those of medik8s under their exact names. What is labelled by node goes with the node.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use jiff::{SignedDuration, Timestamp};
use nodeward_api::node_health_check::Phase;
use nodeward_api::reason::HealthReason;
use nodeward_core::id::{NamespacedName, NodeName};
use nodeward_runtime::metrics::Series;
use nodeward_runtime::{ActionResult, Metrics, Stop};
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::histogram::Histogram;

use crate::definition::Fields;
use crate::execute::Executed;
use crate::plan::{Action, CheckVerdict, RemediationRef, Verdicts};
use crate::snapshot::{RemediationFacts, RemediationKind, Snapshot};

/// As medik8s has them.
const UNHEALTHY_SECONDS: [f64; 10] = [30.0, 60.0, 120.0, 180.0, 240.0, 300.0, 600.0, 1200.0, 2400.0, 3600.0];

/// A label whose values are known beforehand.
type Label<const N: usize> = [(&'static str, &'static str); N];

/// Labels by which objects are named. Of those of a remediation `name` is the node's, and `remediation` the kind, as
/// medik8s has them.
type Labels<const N: usize> = [(&'static str, String); N];

/// The metrics of health-check.
pub(super) struct HealthMetrics {
    ongoing: Series<3>,
    old: Series<2>,
    unhealthy: Family<Labels<4>, Histogram, fn() -> Histogram>,
    observed: Series<1>,
    healthy: Series<1>,
    remediating: Series<1>,
    nodes: Series<1>,
    checks: Series<1>,
    old_now: Series<2>,
    stuck: Series<2>,
    dropped_fields: Series<1>,
    actions: Family<Label<2>, Counter>,
    /// What is exported until its node goes.
    kept: Kept,
    old_counted: BTreeSet<Arc<str>>,
}

#[derive(Default)]
struct Kept {
    ongoing: BTreeMap<Labels<3>, i64>,
    old: BTreeMap<Labels<2>, i64>,
    unhealthy: BTreeSet<Labels<4>>,
}

impl HealthMetrics {
    pub(super) fn register(metrics: &Metrics) -> Self {
        Self {
            ongoing: metrics.register_foreign(
                "nodehealthcheck_ongoing_remediation",
                "1 while a node has a remediation of this kind, 0 once it had one; absent without the node",
                Series::default(),
            ),
            old: metrics.register_foreign(
                "nodehealthcheck_old_remediation_cr",
                "Remediations that were seen to be old (48 hours, unless configured): only rises",
                Series::default(),
            ),
            unhealthy: metrics.register_foreign(
                "nodehealthcheck_unhealthy_node_duration_seconds",
                "Time from the creation of a remediation to its deletion for a healthy node",
                Family::new_with_constructor(|| Histogram::new(UNHEALTHY_SECONDS)),
            ),
            observed: metrics.register("observed_nodes", "Nodes that are selected"),
            healthy: metrics.register("healthy_nodes", "Selected nodes that are healthy"),
            remediating: metrics.register("remediating_nodes", "Nodes that have a remediation"),
            nodes: metrics.register(
                "nodes",
                "Nodes that are not plainly healthy, by what is done for them or stops that",
            ),
            checks: metrics.register("checks", "NodeHealthChecks, by phase"),
            old_now: metrics.register(
                "old_remediations",
                "Remediations that are old now (48 hours, unless configured)",
            ),
            stuck: metrics.register(
                "stuck_remediations",
                "Remediations that are being deleted, that nothing wants any more, and that finalizers keep",
            ),
            dropped_fields: metrics.register(
                "dropped_fields",
                "1 for each field of NodeHealthChecks that the installed CRD lacks, so that the API server drops it",
            ),
            actions: metrics.register("actions", "Writes, by kind and outcome"),
            kept: Kept::default(),
            old_counted: BTreeSet::new(),
        }
    }

    /// Shows how everything stands.
    pub(super) fn show(&mut self, snapshot: &Snapshot, verdicts: &Verdicts) {
        self.show_checks(verdicts);
        self.nodes.show(HealthReason::ALL.iter().map(|reason| {
            let count = verdicts.nodes.iter().filter(|node| node.reason == *reason).count();
            ([("reason", reason.as_str().to_owned())], gauge(count))
        }));
        self.checks.show(Phase::ALL.iter().map(|phase| {
            let count = verdicts.checks.iter().filter(|check| check.phase == *phase).count();
            ([("phase", phase.as_str().to_owned())], gauge(count))
        }));
        let old = || verdicts.checks.iter().flat_map(|check| &check.old_remediations);
        self.note_ongoing(snapshot);
        self.count_old(snapshot, old());
        self.forget_gone_nodes(snapshot);
        self.ongoing.show(self.kept.ongoing.clone());
        self.old.show(self.kept.old.clone());
        self.old_now.show(by_node(old()));
        let stuck = verdicts.checks.iter().flat_map(|check| &check.stuck_remediations);
        self.stuck.show(by_node(stuck));
    }

    fn show_checks(&mut self, verdicts: &Verdicts) {
        let counts = |count: fn(&CheckVerdict) -> usize| {
            let label = |check: &CheckVerdict| [("node_health_check", check.check.name.to_string())];
            let checks = verdicts.checks.iter();
            checks.map(move |check| (label(check), gauge(count(check))))
        };
        self.observed.show(counts(|check| check.observed));
        self.healthy.show(counts(|check| check.healthy));
        self.remediating.show(counts(|check| check.remediating));
    }

    /// Shows the fields that the API server drops.
    pub(super) fn show_dropped_fields(&mut self, fields: &Fields) {
        let shown = fields.iter().map(|field| ([("field", field.clone())], 1));
        self.dropped_fields.show(shown);
    }

    fn note_ongoing(&mut self, snapshot: &Snapshot) {
        let ours: BTreeSet<&Arc<str>> = snapshot.checks.values().map(|check| &check.uid).collect();
        let is_ours = |live: &&Arc<RemediationFacts>| live.owners.iter().any(|owner| ours.contains(owner));
        self.kept.ongoing.values_mut().for_each(|is_ongoing| *is_ongoing = 0);
        let ongoing = snapshot.remediations.iter().filter(is_ours);
        self.kept.ongoing.extend(ongoing.map(|live| (labels_of(live), 1)));
    }

    /// How often there was an old one. Those that are flagged have been counted, by whoever led then.
    fn count_old<'r>(&mut self, snapshot: &Snapshot, old: impl Iterator<Item = &'r RemediationRef>) {
        let flagged = snapshot.remediations.iter().filter(|live| live.is_flagged_old);
        self.old_counted.extend(flagged.map(|live| Arc::clone(&live.uid)));
        for remediation in old {
            if self.old_counted.insert(Arc::clone(&remediation.uid)) {
                *self.kept.old.entry(node_labels(remediation)).or_default() += 1;
            }
        }
    }

    /// A fleet that is replaced node by node would otherwise leave a series for each node that there ever was.
    fn forget_gone_nodes(&mut self, snapshot: &Snapshot) {
        let exists = |labels: &[(&str, String)]| {
            let name = labels.iter().find(|(label, _)| *label == "name");
            name.is_some_and(|(_, name)| snapshot.nodes.contains_key(&NodeName::from(name.as_str())))
        };
        let known = &snapshot.remediations;
        let has_remediation = |labels: &Labels<3>| known.iter().any(|known| labels_of(known) == *labels);
        self.kept
            .ongoing
            .retain(|labels, _| exists(labels) || has_remediation(labels));
        self.kept.old.retain(|labels, _| exists(labels));
        for labels in self.kept.unhealthy.extract_if(.., |labels| !exists(labels)) {
            self.unhealthy.remove(&labels);
        }
        self.old_counted
            .retain(|uid| known.iter().any(|remediation| remediation.uid == *uid));
    }

    /// Counts what an action has come to.
    pub(super) fn executed(&mut self, executed: &Executed, now: Timestamp) {
        let labels = [
            ("action", kind_of(&executed.action)),
            ("outcome", outcome_of(&executed.effect.result)),
        ];
        self.actions.get_or_create(&labels).inc();
        if let (Action::DeleteRemediation(write), ActionResult::Acted(())) = (&executed.action, &executed.effect.result)
        {
            self.observe_duration(&write.remediation, executed, now);
        }
    }

    fn observe_duration(&mut self, remediation: &RemediationRef, executed: &Executed, now: Timestamp) {
        let Some(created) = executed.effect.created else { return };
        let [name, namespace, kind] = labels(&remediation.node, &remediation.key, &remediation.kind);
        let provider = executed.effect.provider_id.clone().unwrap_or_default();
        let labels = [("providerID", provider), name, namespace, kind];
        let lasted: SignedDuration = now.duration_since(created);
        self.unhealthy
            .get_or_create(&labels)
            .observe(lasted.as_secs_f64().max(0.0));
        self.kept.unhealthy.insert(labels);
    }

    /// Takes back what only the leader exports.
    pub(super) fn clear(&mut self) {
        self.kept.ongoing.clear();
        self.ongoing.show([]);
        for series in [
            &mut self.observed,
            &mut self.healthy,
            &mut self.remediating,
            &mut self.dropped_fields,
            &mut self.nodes,
            &mut self.checks,
        ] {
            series.show([]);
        }
        self.old_now.show([]);
        self.stuck.show([]);
    }
}

fn by_node<'r>(remediations: impl Iterator<Item = &'r RemediationRef>) -> BTreeMap<Labels<2>, i64> {
    let mut counts = BTreeMap::new();
    for remediation in remediations {
        *counts.entry(node_labels(remediation)).or_default() += 1;
    }
    counts
}

fn node_labels(remediation: &RemediationRef) -> Labels<2> {
    let [name, namespace, _] = labels(&remediation.node, &remediation.key, &remediation.kind);
    [name, namespace]
}

fn labels_of(remediation: &RemediationFacts) -> Labels<3> {
    labels(&remediation.node, &remediation.key, &remediation.kind)
}

fn labels(node: &NodeName, key: &NamespacedName, kind: &RemediationKind) -> Labels<3> {
    [
        ("name", node.to_string()),
        ("namespace", key.namespace.to_string()),
        ("remediation", kind.kind.to_string()),
    ]
}

fn gauge(count: usize) -> i64 {
    i64::try_from(count).unwrap_or(i64::MAX)
}

fn kind_of(action: &Action) -> &'static str {
    match action {
        Action::WriteStatus(_) => "write-status",
        Action::WriteSelector(_) => "write-selector",
        Action::StartRemediation(_) => "start-remediation",
        Action::DeleteRemediation(_) => "delete-remediation",
        Action::AnnotateRemediation(..) => "annotate-remediation",
        Action::Lease(_) => "lease",
        Action::AnnotateNode { .. } => "annotate-node",
        Action::Default { .. } => "default-node-health-check",
    }
}

fn outcome_of(result: &ActionResult) -> &'static str {
    match result {
        ActionResult::Acted(()) => "done",
        ActionResult::AlreadyDone => "already-done",
        ActionResult::Outdated(_) | ActionResult::Stopped(Stop::PolicyChanged | Stop::Unplanned) => "outdated",
        ActionResult::Failed(_) => "failed",
        ActionResult::Stopped(Stop::NotLeading) => "not-leading",
        ActionResult::Stopped(Stop::Paused) => "paused",
        ActionResult::Stopped(Stop::PauseUnknown) => "pause-unknown",
        ActionResult::Stopped(Stop::DryRun) => "dry-run",
    }
}

#[cfg(test)]
mod tests;
