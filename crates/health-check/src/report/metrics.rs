//! Metrics: our own, and those of medik8s under their exact names. What is labelled by node goes with the node.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use jiff::{SignedDuration, Timestamp};
use nodeward_api::node_health_check::Phase;
use nodeward_api::reason::HealthReason;
use nodeward_core::id::NodeName;
use nodeward_runtime::{ActionResult, Metrics, Stop};
use prometheus_client::encoding::EncodeLabelSet;
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::metrics::histogram::Histogram;

use crate::definition::Fields;
use crate::execute::{Executed, Task};
use crate::plan::{Action, RemediationRef, Verdicts};
use crate::snapshot::{RemediationFacts, Snapshot};

/// As medik8s has them.
const UNHEALTHY_SECONDS: [f64; 10] = [30.0, 60.0, 120.0, 180.0, 240.0, 300.0, 600.0, 1200.0, 2400.0, 3600.0];

/// A remediation: `name` is the node's, `remediation` the kind, as medik8s has it.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash, EncodeLabelSet)]
struct RemediationLabels {
    name: String,
    namespace: String,
    remediation: String,
}

#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash, EncodeLabelSet)]
struct OldLabels {
    name: String,
    namespace: String,
}

#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash, EncodeLabelSet)]
#[allow(non_snake_case, reason = "the label's name at medik8s")]
struct DurationLabels {
    providerID: String,
    name: String,
    namespace: String,
    remediation: String,
}

#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash, EncodeLabelSet)]
struct CheckLabel {
    node_health_check: String,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct PhaseLabel {
    phase: &'static str,
}

#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash, EncodeLabelSet)]
struct FieldLabel {
    field: String,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct ReasonLabel {
    reason: &'static str,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct ActionLabels {
    action: &'static str,
    outcome: &'static str,
}

/// The metrics of health-check.
pub(super) struct HealthMetrics {
    ongoing: Family<RemediationLabels, Gauge>,
    old: Family<OldLabels, Gauge>,
    unhealthy: Family<DurationLabels, Histogram, fn() -> Histogram>,
    observed: Family<CheckLabel, Gauge>,
    healthy: Family<CheckLabel, Gauge>,
    remediating: Family<CheckLabel, Gauge>,
    nodes: Family<ReasonLabel, Gauge>,
    checks: Family<PhaseLabel, Gauge>,
    old_now: Family<OldLabels, Gauge>,
    dropped_fields: Family<FieldLabel, Gauge>,
    actions: Family<ActionLabels, Counter>,
    shown: Shown,
    old_counted: BTreeSet<Arc<str>>,
}

/// What is exported by labels that go away.
#[derive(Default)]
struct Shown {
    ongoing: BTreeSet<RemediationLabels>,
    old: BTreeSet<OldLabels>,
    old_now: BTreeSet<OldLabels>,
    unhealthy: BTreeSet<DurationLabels>,
    checks: BTreeSet<CheckLabel>,
    dropped_fields: BTreeSet<FieldLabel>,
}

impl HealthMetrics {
    pub(super) fn register(metrics: &Metrics) -> Self {
        let this = Self {
            ongoing: Family::default(),
            old: Family::default(),
            unhealthy: Family::new_with_constructor(|| Histogram::new(UNHEALTHY_SECONDS)),
            observed: Family::default(),
            healthy: Family::default(),
            remediating: Family::default(),
            nodes: Family::default(),
            checks: Family::default(),
            old_now: Family::default(),
            dropped_fields: Family::default(),
            actions: Family::default(),
            shown: Shown::default(),
            old_counted: BTreeSet::new(),
        };
        metrics.foreign(|registry| {
            registry.register(
                "nodehealthcheck_ongoing_remediation",
                "1 while a node has a remediation of this kind, 0 once it had one; absent without the node",
                this.ongoing.clone(),
            );
            registry.register(
                "nodehealthcheck_old_remediation_cr",
                "Remediations that were seen to be old (48 hours, unless configured): only rises",
                this.old.clone(),
            );
            registry.register(
                "nodehealthcheck_unhealthy_node_duration_seconds",
                "Time from the creation of a remediation to its deletion for a healthy node",
                this.unhealthy.clone(),
            );
        });
        metrics.own(|registry| {
            registry.register("observed_nodes", "Nodes that are selected", this.observed.clone());
            registry.register("healthy_nodes", "Selected nodes that are healthy", this.healthy.clone());
            registry.register(
                "remediating_nodes",
                "Nodes that have a remediation",
                this.remediating.clone(),
            );
            registry.register(
                "nodes",
                "Nodes that are not plainly healthy, by what is done for them or stops that",
                this.nodes.clone(),
            );
            registry.register("checks", "NodeHealthChecks, by phase", this.checks.clone());
            registry.register(
                "old_remediations",
                "Remediations that are old now (48 hours, unless configured)",
                this.old_now.clone(),
            );
            registry.register(
                "dropped_fields",
                "1 for each field of NodeHealthChecks that the installed CRD lacks, so that the API server drops it",
                this.dropped_fields.clone(),
            );
            registry.register("actions", "Writes, by kind and outcome", this.actions.clone());
        });
        this
    }

    /// Shows how everything stands.
    pub(super) fn show(&mut self, snapshot: &Snapshot, verdicts: &Verdicts) {
        self.show_checks(verdicts);
        for reason in HealthReason::ALL {
            let count = verdicts.nodes.iter().filter(|node| node.reason == *reason).count();
            let label = ReasonLabel {
                reason: reason.as_str(),
            };
            self.nodes.get_or_create(&label).set(gauge(count));
        }
        self.show_ongoing(snapshot);
        for phase in Phase::ALL {
            let count = verdicts.checks.iter().filter(|check| check.phase == *phase).count();
            let label = PhaseLabel { phase: phase.as_str() };
            self.checks.get_or_create(&label).set(gauge(count));
        }
        self.show_old(verdicts);
        self.remove_series_of_gone_nodes(snapshot);
    }

    fn show_checks(&mut self, verdicts: &Verdicts) {
        let mut shown = BTreeSet::new();
        for check in &verdicts.checks {
            let label = CheckLabel {
                node_health_check: check.check.name.to_string(),
            };
            self.observed.get_or_create(&label).set(gauge(check.observed));
            self.healthy.get_or_create(&label).set(gauge(check.healthy));
            self.remediating.get_or_create(&label).set(gauge(check.remediating));
            shown.insert(label);
        }
        for gone in self.shown.checks.difference(&shown) {
            self.observed.remove(gone);
            self.healthy.remove(gone);
            self.remediating.remove(gone);
        }
        self.shown.checks = shown;
    }

    /// Shows the fields that the API server drops.
    pub(super) fn show_dropped_fields(&mut self, fields: &Fields) {
        let label = |field: &String| FieldLabel { field: field.clone() };
        let shown: BTreeSet<FieldLabel> = fields.iter().map(label).collect();
        for label in &shown {
            self.dropped_fields.get_or_create(label).set(1);
        }
        for gone in self.shown.dropped_fields.difference(&shown) {
            self.dropped_fields.remove(gone);
        }
        self.shown.dropped_fields = shown;
    }

    fn show_ongoing(&mut self, snapshot: &Snapshot) {
        let ours: BTreeSet<&Arc<str>> = snapshot.checks.values().map(|check| &check.uid).collect();
        let remediations = snapshot.remediations.iter();
        let ongoing: BTreeSet<RemediationLabels> = remediations
            .filter(|remediation| remediation.owners.iter().any(|owner| ours.contains(owner)))
            .map(|remediation| labels_of(remediation))
            .collect();
        for labels in &ongoing {
            self.ongoing.get_or_create(labels).set(1);
        }
        for over in self.shown.ongoing.difference(&ongoing) {
            self.ongoing.get_or_create(over).set(0);
        }
        self.shown.ongoing.extend(ongoing);
    }

    /// What is old now, and how often there was one.
    fn show_old(&mut self, verdicts: &Verdicts) {
        let mut old: BTreeMap<OldLabels, usize> = BTreeMap::new();
        for remediation in verdicts.checks.iter().flat_map(|check| &check.old_remediations) {
            self.count_old(remediation);
            *old.entry(old_labels(remediation)).or_default() += 1;
        }
        for (labels, count) in &old {
            self.old_now.get_or_create(labels).set(gauge(*count));
        }
        let shown: BTreeSet<OldLabels> = old.into_keys().collect();
        for over in self.shown.old_now.difference(&shown) {
            self.old_now.remove(over);
        }
        self.shown.old_now = shown;
    }

    fn count_old(&mut self, remediation: &RemediationRef) {
        if self.old_counted.insert(Arc::clone(&remediation.uid)) {
            let labels = old_labels(remediation);
            self.old.get_or_create(&labels).inc();
            self.shown.old.insert(labels);
        }
    }

    /// A fleet that is replaced node by node would otherwise leave a series for each node that there ever was.
    fn remove_series_of_gone_nodes(&mut self, snapshot: &Snapshot) {
        let exists = |name: &String| snapshot.nodes.contains_key(&NodeName::from(name.as_str()));
        let has_remediation =
            |labels: &RemediationLabels| snapshot.remediations.iter().any(|known| labels_of(known) == *labels);
        self.shown.ongoing.retain(|labels| {
            let stays = exists(&labels.name) || has_remediation(labels);
            if !stays {
                self.ongoing.remove(labels);
            }
            stays
        });
        self.shown.old.retain(|labels| {
            let stays = exists(&labels.name);
            if !stays {
                self.old.remove(labels);
            }
            stays
        });
        self.shown.unhealthy.retain(|labels| {
            let stays = exists(&labels.name);
            if !stays {
                self.unhealthy.remove(labels);
            }
            stays
        });
        let known = &snapshot.remediations;
        self.old_counted
            .retain(|uid| known.iter().any(|remediation| remediation.uid == *uid));
    }

    /// Counts what an action has come to.
    pub(super) fn executed(&mut self, executed: &Executed, now: Timestamp) {
        let labels = ActionLabels {
            action: kind_of(&executed.task),
            outcome: outcome_of(&executed.result),
        };
        self.actions.get_or_create(&labels).inc();
        if let (Task::Act(Action::DeleteRemediation { remediation, .. }), ActionResult::Acted(())) =
            (&executed.task, &executed.result)
        {
            self.observe_duration(remediation, executed, now);
        }
    }

    fn observe_duration(&mut self, remediation: &RemediationRef, executed: &Executed, now: Timestamp) {
        let Some(created) = executed.created else { return };
        let labels = DurationLabels {
            providerID: executed.provider_id.clone().unwrap_or_default(),
            name: remediation.node.to_string(),
            namespace: remediation.key.namespace.to_string(),
            remediation: remediation.kind.kind.to_string(),
        };
        let lasted: SignedDuration = now.duration_since(created);
        self.unhealthy
            .get_or_create(&labels)
            .observe(lasted.as_secs_f64().max(0.0));
        self.shown.unhealthy.insert(labels);
    }

    /// Takes back what only the leader exports.
    pub(super) fn clear(&mut self) {
        self.ongoing.clear();
        self.observed.clear();
        self.healthy.clear();
        self.remediating.clear();
        self.nodes.clear();
        self.checks.clear();
        self.old_now.clear();
        self.dropped_fields.clear();
        self.shown = Shown {
            old: std::mem::take(&mut self.shown.old),
            unhealthy: std::mem::take(&mut self.shown.unhealthy),
            ..Shown::default()
        };
    }
}

fn old_labels(remediation: &RemediationRef) -> OldLabels {
    OldLabels {
        name: remediation.node.to_string(),
        namespace: remediation.key.namespace.to_string(),
    }
}

fn labels_of(remediation: &RemediationFacts) -> RemediationLabels {
    RemediationLabels {
        name: remediation.node.to_string(),
        namespace: remediation.key.namespace.to_string(),
        remediation: remediation.kind.kind.to_string(),
    }
}

fn gauge(count: usize) -> i64 {
    i64::try_from(count).unwrap_or(i64::MAX)
}

fn kind_of(task: &Task) -> &'static str {
    match task {
        Task::Act(action) => match action {
            Action::WriteStatus(_) => "write-status",
            Action::WriteSelector(_) => "write-selector",
            Action::StartRemediation(_) => "start-remediation",
            Action::DeleteRemediation { .. } => "delete-remediation",
            Action::AnnotateRemediation { .. } => "annotate-remediation",
            Action::Lease(_) => "lease",
            Action::AnnotateNode { .. } => "annotate-node",
        },
        Task::Default { .. } => "default-node-health-check",
    }
}

fn outcome_of(result: &ActionResult) -> &'static str {
    match result {
        ActionResult::Acted(()) => "done",
        ActionResult::AlreadyDone => "already-done",
        ActionResult::Outdated(_) | ActionResult::Stopped(Stop::PolicyChanged | Stop::Unplanned) => "outdated",
        ActionResult::Failed(_) => "failed",
        ActionResult::Stopped(Stop::NotLeading) => "not-leading",
        ActionResult::Stopped(Stop::DryRun) => "dry-run",
    }
}

#[cfg(test)]
mod tests;
