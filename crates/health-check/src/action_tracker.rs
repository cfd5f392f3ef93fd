//! What this process has done and its watches do not show yet, and what it learned by trying. No I/O.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use jiff::{SignedDuration, Timestamp};
use nodeward_api::node_health_check::{NodeHealthCheckStatus, UnhealthyNode};
use nodeward_api::reason::HealthReason;
use nodeward_core::deadline::saturating_add;
use nodeward_core::id::{NamespacedName, NodeUid, ResourceVersion};
use nodeward_core::lease::LeaseView;
use nodeward_runtime::cache::STALE_AFTER;
use nodeward_runtime::{ActionResult, ApiError, Expectations, Stop};

use crate::definition::Fields;
use crate::execute::{Executed, OwnVersions, Written};
use crate::observations::Observations;
use crate::plan::{Action, ActionKey, Plan, Standing};
use crate::snapshot::{CheckFacts, CheckName, RemediationFacts, RemediationKind, Snapshot};

/// What the API server refuses is tried again after this time: a right may be added, or a policy changed.
const REFUSED_AGAIN_AFTER: SignedDuration = SignedDuration::from_mins(10);

/// A watch that has died is replaced within this time, and a kind that may not be watched is read more often: until then a
/// remediation is as it was written, for one that is taken for gone gives its place to another node.
const REMEDIATION_SHOWN_WITHIN: SignedDuration = SignedDuration::from_secs(STALE_AFTER.as_secs().cast_signed());

/// So many failures in a row of whatever kind are told like a refusal, and withdraw an intent.
const FAILURES_THAT_REFUSE: u32 = 3;

/// What failed so often is tried again after this time: whoever answers for it may be back at any moment.
const FAILED_AGAIN_AFTER: SignedDuration = SignedDuration::from_mins(1);

type RemediationKey = (RemediationKind, NamespacedName);

/// What is laid over what the watches show.
#[derive(Debug, Default)]
pub struct ActionTracker {
    observations: Observations,
    statuses: Expectations<CheckName, (ResourceVersion, Arc<NodeHealthCheckStatus>)>,
    remediations: Expectations<RemediationKey, Option<Arc<RemediationFacts>>, Option<ResourceVersion>>,
    leases: Expectations<Arc<str>, Option<Arc<LeaseView>>, Option<ResourceVersion>>,
    annotations: Expectations<(NodeUid, &'static str), Option<String>, Option<String>>,
    may_not_annotate: BTreeMap<RemediationKind, Timestamp>,
    own_versions: OwnVersions,
    /// Statuses that the API server did not store as they were written, and the version that it made of each.
    cut_statuses: BTreeMap<CheckName, (ResourceVersion, Arc<NodeHealthCheckStatus>)>,
    lease_namespace: Option<Arc<str>>,
    /// Leases that were renewed in the future, and since when their version is seen.
    future_leases: BTreeMap<Arc<str>, (ResourceVersion, Timestamp)>,
    /// What the definition was last seen to drop.
    dropped_fields: Option<Fields>,
}

impl ActionTracker {
    /// What a plan is made with beside its snapshot.
    pub fn observations(&mut self, now: Timestamp) -> &Observations {
        self.observations.forget_old(now);
        &self.observations
    }

    /// Lays what was written over what the watches show.
    pub fn overlay(&mut self, snapshot: &mut Snapshot, now: Timestamp) {
        // What was written to an object that is gone since is asked for by nobody, and would end for ever.
        self.statuses.forget_expired(now);
        self.remediations.forget_expired(now);
        self.leases.forget_expired(now);
        self.annotations.forget_expired(now);
        self.cut_statuses.retain(|name, _| snapshot.checks.contains_key(name));
        self.own_versions
            .with(|own| own.retain(|name, _| snapshot.checks.contains_key(name)));
        for check in snapshot.checks.values_mut() {
            let written = self.statuses.effective(&check.name, &check.resource_version, now);
            if let Some((version, status)) = written {
                *check = Arc::new(CheckFacts {
                    resource_version: version.clone(),
                    status: Arc::clone(status),
                    ..(**check).clone()
                });
            }
        }
        self.overlay_remediations(&mut snapshot.remediations, now);
        lay_over(
            &mut self.leases,
            &mut snapshot.leases,
            |lease| &lease.resource_version,
            now,
        );
        self.judge_future_leases(&mut snapshot.leases, now);
        self.overlay_annotations(snapshot, now);
        self.observations.checks.extend(snapshot.checks.keys().cloned());
        self.observations.unannotated.retain(|_, (_, until)| now < *until);
        self.observations.undeleted.retain(|_, (_, until)| now < *until);
        self.observations
            .unwritten
            .retain(|name, _| snapshot.checks.contains_key(name));
        if !self.observations.gone.is_empty() {
            let checks = snapshot.checks.values();
            let entries = checks.flat_map(|check| &check.status.unhealthy_nodes);
            let remediations = entries.flat_map(UnhealthyNode::all_remediations);
            let named: BTreeSet<&str> = remediations.filter_map(|known| known.resource.uid.as_deref()).collect();
            self.observations.gone.retain(|uid| named.contains(&**uid));
        }
        self.may_not_annotate.retain(|_, until| now < *until);
        for kind in self.may_not_annotate.keys() {
            if let Some(facts) = snapshot.kinds.get_mut(kind) {
                facts.may_annotate = false;
            }
        }
    }

    /// A lease that was renewed in the future was so by a clock that is wrong: it counts from when we saw it move.
    fn judge_future_leases(&mut self, leases: &mut BTreeMap<Arc<str>, Arc<LeaseView>>, now: Timestamp) {
        let mut seen = BTreeMap::new();
        for (name, lease) in leases {
            if lease.renewed.is_none_or(|renewed| renewed <= now) {
                continue;
            }
            let before = self.future_leases.get(name);
            let before = before.filter(|(version, _)| *version == lease.resource_version);
            let first_seen = before.map_or(now, |(_, at)| *at);
            seen.insert(Arc::clone(name), (lease.resource_version.clone(), first_seen));
            Arc::make_mut(lease).renewed = Some(first_seen);
        }
        self.future_leases = seen;
    }

    fn overlay_remediations(&mut self, remediations: &mut Vec<Arc<RemediationFacts>>, now: Timestamp) {
        if self.remediations.keys().next().is_none() {
            return;
        }
        // Hundreds of nodes may fail at once: neither list is walked for each entry of the other.
        let cached = remediations.drain(..);
        let mut known: BTreeMap<RemediationKey, Arc<RemediationFacts>> = cached
            .map(|facts| ((facts.kind.clone(), facts.key.clone()), facts))
            .collect();
        lay_over(&mut self.remediations, &mut known, |facts| &facts.resource_version, now);
        remediations.extend(known.into_values());
    }

    fn overlay_annotations(&mut self, snapshot: &mut Snapshot, now: Timestamp) {
        let mut pending: BTreeMap<NodeUid, Vec<&'static str>> = BTreeMap::new();
        for (node, annotation) in self.annotations.keys() {
            pending.entry(node.clone()).or_default().push(annotation);
        }
        if pending.is_empty() {
            return;
        }
        snapshot.nodes.change(|nodes| {
            for node in nodes.values_mut() {
                let uid = node.view.uid.clone();
                for annotation in pending.remove(&uid).unwrap_or_default() {
                    let key = (uid.clone(), annotation);
                    let cached = node.view.annotations.get(annotation).cloned();
                    let Some(written) = self.annotations.effective(&key, &cached, now) else {
                        continue;
                    };
                    let annotations = &mut Arc::make_mut(node).view.annotations;
                    match written.clone() {
                        Some(value) => drop(annotations.insert(annotation.to_owned(), value)),
                        None => drop(annotations.remove(annotation)),
                    }
                }
            }
        });
    }

    /// A plan was made. One that the emergency stop keeps from being carried out knows no end of what stops a step.
    pub fn planned(&mut self, plan: &Plan, is_running: bool) {
        self.observations.found.clone_from(&plan.found);
        if !is_running {
            self.observations.found.overdue_stops = None;
        }
    }

    /// Leases are kept in this namespace: what was written in another one is not there.
    pub fn leases_are_in(&mut self, namespace: &Arc<str>) {
        if self.lease_namespace.as_ref() != Some(namespace) {
            self.lease_namespace = Some(Arc::clone(namespace));
            self.leases = Expectations::default();
        }
    }

    /// The definition of NodeHealthChecks drops these fields. One that drops others may store what was cut before.
    pub fn definition_drops(&mut self, fields: Option<Fields>) {
        if self.dropped_fields != fields {
            self.dropped_fields = fields;
            self.cut_statuses.clear();
        }
    }

    /// Whether a write would change nothing: the API server drops all that is new in it, as it did with the last one.
    pub fn is_futile(&self, action: &Action) -> bool {
        let Action::WriteStatus(write) = action else {
            return false;
        };
        self.cut_statuses
            .get(&write.check.name)
            .is_some_and(|(version, cut)| *version == write.base && is_same(&write.status, cut))
    }

    /// When a watch that does not show a write is believed again.
    pub fn next_expiry(&self) -> Option<Timestamp> {
        let expiries = [
            self.statuses.next_expiry(),
            self.remediations.next_expiry(),
            self.leases.next_expiry(),
            self.annotations.next_expiry(),
        ];
        expiries.into_iter().flatten().min()
    }

    /// What this process wrote since it leads.
    pub fn own_versions(&self) -> OwnVersions {
        self.own_versions.clone()
    }

    /// An action is about to start.
    pub fn started(&mut self, action: &Action) {
        if let Action::StartRemediation(start) = action {
            let key = (Arc::clone(&start.check.name), start.node.clone());
            self.observations.starting.insert(key, start.is_of_control_plane());
        }
    }

    /// An action of this key has ended, be it by a panic.
    pub fn ended(&mut self, key: &ActionKey) {
        if let ActionKey::Start(check, node) = key {
            self.observations.starting.remove(&(Arc::clone(check), node.clone()));
        }
    }

    /// An action has ended, after this many failures of its key in a row.
    pub fn completed(&mut self, executed: &Executed, failures_before: u32, now: Timestamp) {
        for written in &executed.effect.written {
            self.expect(written, now);
        }
        // While the emergency stop cannot be read nothing is carried out, as in a pause: the wait begins with its end.
        if matches!(executed.effect.result, ActionResult::Stopped(Stop::PauseUnknown)) {
            self.observations.found.overdue_stops = None;
        }
        if let Some(right) = executed.action.right() {
            self.observations.asked(right, &executed.effect.result, now);
        }
        let result = &executed.effect.result;
        let failure = failure(result, failures_before);
        let has_worked = matches!(result, ActionResult::Acted(()) | ActionResult::AlreadyDone);
        match &executed.action {
            Action::WriteStatus(write) => {
                let name = &write.check.name;
                if let Some((why, _)) = failure {
                    self.observations.unwritten.insert(Arc::clone(name), why);
                } else if has_worked {
                    self.observations.unwritten.remove(name);
                }
                if let [Written::Status { version, status, .. }] = &*executed.effect.written
                    && *status != write.status
                {
                    let cut = (version.clone(), Arc::clone(&write.status));
                    self.cut_statuses.insert(Arc::clone(name), cut);
                }
            }
            Action::StartRemediation(start) => {
                let refused = (&start.check.name, &start.node, start.step);
                if let Some(refusal) = &executed.effect.refusal {
                    self.observations.start_refused(refused, refusal.clone(), now);
                } else if let ActionResult::Failed(error) = result
                    && failures_before + 1 >= FAILURES_THAT_REFUSE
                {
                    // An intent holds a place under the limits and the control plane's lease: it does not wait for ever.
                    let refusal = Standing::new(HealthReason::RemediationRejected, error.to_string());
                    self.observations.start_refused(refused, refusal, now);
                } else if has_worked {
                    let key = (Arc::clone(&start.check.name), start.node.clone());
                    self.observations.refusals.remove(&key);
                }
            }
            Action::DeleteRemediation(write) => {
                let uid = &write.remediation.uid;
                if let Some((why, _)) = failure {
                    let until = saturating_add(now, REFUSED_AGAIN_AFTER);
                    self.observations.undeleted.insert(Arc::clone(uid), (why, until));
                } else if has_worked {
                    self.observations.undeleted.remove(uid);
                }
                let is_gone = |written: &Written| matches!(written, Written::Remediation { facts: None, .. });
                if executed.effect.written.iter().any(is_gone) {
                    self.observations.gone.insert(Arc::clone(uid));
                }
            }
            // A right concerns all of a kind.
            Action::AnnotateRemediation(write, _)
                if matches!(result, ActionResult::Failed(ApiError::Forbidden { .. })) =>
            {
                let until = saturating_add(now, REFUSED_AGAIN_AFTER);
                self.may_not_annotate.insert(write.remediation.kind.clone(), until);
            }
            Action::AnnotateRemediation(write, change) => {
                self.not_annotated((Arc::clone(&write.remediation.uid), change.annotation()), failure, now);
            }
            Action::AnnotateNode { node_uid, change, .. } => {
                self.not_annotated((node_uid.as_str().into(), change.annotation()), failure, now);
            }
            _ => {}
        }
    }

    fn not_annotated(
        &mut self,
        key: (Arc<str>, &'static str),
        failure: Option<(String, SignedDuration)>,
        now: Timestamp,
    ) {
        let refused = failure.map(|(why, again_after)| (key, (why, saturating_add(now, again_after))));
        self.observations.unannotated.extend(refused);
    }

    fn expect(&mut self, written: &Written, now: Timestamp) {
        match written {
            Written::Status {
                check,
                base,
                version,
                status,
            } => {
                let effective = (version.clone(), Arc::clone(status));
                self.statuses
                    .expect_onto(Arc::clone(check), base.clone(), effective, now);
            }
            Written::Remediation { kind, key, base, facts } => {
                let (id, until) = (
                    (kind.clone(), key.clone()),
                    saturating_add(now, REMEDIATION_SHOWN_WITHIN),
                );
                self.remediations
                    .expect_onto_until(id, base.clone(), facts.clone(), until, now);
            }
            Written::Lease { name, base, lease } => {
                self.leases
                    .expect_onto(Arc::clone(name), base.clone(), lease.clone(), now);
            }
            Written::NodeAnnotation {
                node,
                annotation,
                base,
                value,
            } => {
                self.annotations
                    .expect((node.clone(), annotation), base.clone(), value.clone(), now);
            }
        }
    }

    /// Another replica leads, and writes what this one's watches do not show: nothing is expected any more. Since when
    /// something is so is not forgotten, nor what is still under way.
    pub fn on_leadership_lost(&mut self) {
        *self = Self {
            observations: Observations {
                refusals: BTreeMap::new(),
                ..std::mem::take(&mut self.observations)
            },
            ..Self::default()
        };
    }
}

/// What people are told of a request that came to nothing, and after how long it is tried again: a refusal at once, and whatever
/// fails again and again; a conflict is over with the next look.
fn failure(result: &ActionResult, failures_before: u32) -> Option<(String, SignedDuration)> {
    let ActionResult::Failed(error) = result else {
        return None;
    };
    let again_after = match error {
        ApiError::Conflict => return None,
        ApiError::Forbidden { .. } | ApiError::Denied { .. } | ApiError::Invalid { .. } => REFUSED_AGAIN_AFTER,
        _ if failures_before + 1 >= FAILURES_THAT_REFUSE => FAILED_AGAIN_AFTER,
        _ => return None,
    };
    Some((error.to_string(), again_after))
}

/// Lays what was written, or deleted, over what a watch shows.
fn lay_over<K: Ord + Clone, V>(
    written: &mut Expectations<K, Option<Arc<V>>, Option<ResourceVersion>>,
    shown: &mut BTreeMap<K, Arc<V>>,
    version: fn(&V) -> &ResourceVersion,
    now: Timestamp,
) {
    for key in written.keys().cloned().collect::<Vec<_>>() {
        let cached = shown.get(&key).map(|object| version(object).clone());
        match written.effective(&key, &cached, now) {
            Some(Some(object)) => drop(shown.insert(key, Arc::clone(object))),
            Some(None) => drop(shown.remove(&key)),
            None => {}
        }
    }
}

/// Apart from its time, which differs with each write.
fn is_same(status: &NodeHealthCheckStatus, other: &NodeHealthCheckStatus) -> bool {
    let timeless = NodeHealthCheckStatus {
        last_update_time: other.last_update_time,
        ..status.clone()
    };
    timeless == *other
}

#[cfg(test)]
mod tests;
