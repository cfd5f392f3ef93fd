//! How late drain-keeper acts: from a deadline to the first request that follows from it, as the API server received it.
//! That is the request on the pod, or where a pod is to lose its grace or its finalizers the look at its node that comes
//! before.

use std::collections::BTreeMap;

use anyhow::{Result, bail, ensure};
use jiff::{SignedDuration, Timestamp};
use kube::api::ObjectMeta;
use nodeward_testkit::audit::{AuditedRequest, Requests};

use super::config::{BUDGET_WAIT, FORCE_AFTER, TIME_OUT};
use crate::bench::large::pods::{Part, PartPod};
use crate::bench::large::size::node_name;

/// Something that falls due.
#[derive(Clone, Debug)]
pub struct Deadline {
    pod: PartPod,
    strategy: Strategy,
    due: Timestamp,
}

/// What is done then, under its name in drain-keeper.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Strategy {
    Delete,
    Finalizer,
    StuckTerminating,
    PdbDelete,
    PdbStuckTerminating,
}

/// Latenesses in milliseconds, sorted.
#[derive(Clone, Debug, Default)]
pub struct Latenesses(Vec<f64>);

/// What came of all deadlines.
#[derive(Clone, Debug, Default)]
pub struct Outcome {
    pub on_time: Latenesses,
    /// By strategy, the same.
    pub by_strategy: BTreeMap<&'static str, Latenesses>,
    /// Delayed by intent: the budget's other pod was on its way out.
    pub held_back: Latenesses,
}

/// Deadlines that are known once the drain has evicted what it could: `start` is when the drain's clock started.
pub fn after_the_drain(start: Timestamp, pods: &[(PartPod, ObjectMeta)]) -> Result<Vec<Deadline>> {
    let mut deadlines = Vec::new();
    for (pod, object) in pods {
        let is_terminating = object.deletion_timestamp.is_some();
        let (strategy, wait) = match pod.part {
            Part::Stray => (Strategy::Delete, TIME_OUT),
            Part::Finalizer => (Strategy::Finalizer, TIME_OUT),
            Part::Stuck => (Strategy::StuckTerminating, TIME_OUT),
            Part::Tight | Part::TightStuck | Part::Shared => (Strategy::PdbDelete, BUDGET_WAIT),
            Part::DaemonSet => continue,
            Part::Ordinary => bail!(
                "{} is still there: the drain was too slow for the first deadline",
                pod.name
            ),
        };
        ensure!(
            is_terminating == pod.part.is_evicted_by_the_drain(),
            "{}: terminating: {is_terminating}",
            pod.name
        );
        deadlines.push(Deadline {
            pod: pod.clone(),
            strategy,
            due: not_before_its_grace(start + wait, object),
        });
    }
    Ok(deadlines)
}

/// Deadlines of the pods that hang after their budget was overridden.
pub fn after_the_override(start: Timestamp, pods: &[(PartPod, ObjectMeta)]) -> Vec<Deadline> {
    let hanging = pods.iter().filter(|(pod, _)| pod.part == Part::TightStuck);
    hanging
        .filter_map(|(pod, object)| {
            let grace = SignedDuration::from_secs(object.deletion_grace_period_seconds?);
            let asked = object.deletion_timestamp.as_ref()?.0 - grace;
            let due = not_before_its_grace(start + BUDGET_WAIT, object).max(asked + FORCE_AFTER);
            Some(Deadline {
                pod: pod.clone(),
                strategy: Strategy::PdbStuckTerminating,
                due,
            })
        })
        .collect()
}

fn not_before_its_grace(due: Timestamp, pod: &ObjectMeta) -> Timestamp {
    pod.deletion_timestamp
        .as_ref()
        .map_or(due, |deletion| due.max(deletion.0))
}

/// When the last of them falls due.
pub fn last(deadlines: &[Deadline]) -> Option<Timestamp> {
    deadlines.iter().map(|deadline| deadline.due).max()
}

/// Compares deadlines with drain-keeper's own requests.
///
/// # Errors
/// When nothing was done at one, or before it was due.
pub fn compare(deadlines: &[Deadline], requests: &Requests) -> Result<Outcome> {
    let mut by_pod: BTreeMap<(&str, &str), Vec<&AuditedRequest>> = BTreeMap::new();
    for request in requests
        .0
        .iter()
        .filter(|request| request.resource.starts_with("pods") && !request.is_watch())
    {
        by_pod
            .entry((&request.namespace, &request.name))
            .or_default()
            .push(request);
    }
    let mut looks: BTreeMap<&str, Vec<&AuditedRequest>> = BTreeMap::new();
    for request in requests
        .0
        .iter()
        .filter(|request| request.verb == "get" && request.resource == "nodes")
    {
        looks.entry(&request.name).or_default().push(request);
    }
    let mut outcome = Outcome::default();
    let mut shared: BTreeMap<usize, Vec<f64>> = BTreeMap::new();
    for deadline in deadlines {
        let PartPod {
            namespace,
            name,
            node,
            part,
        } = &deadline.pod;
        let of_pod = by_pod
            .get(&(namespace.as_str(), name.as_str()))
            .map(Vec::as_slice)
            .unwrap_or_default();
        let Some(request) = deadline.strategy.first_request(of_pod) else {
            bail!(
                "{name}: nothing was done at its deadline {} ({:?})",
                deadline.due,
                deadline.strategy
            );
        };
        let looks = looks
            .get(node_name(*node).as_str())
            .map(Vec::as_slice)
            .unwrap_or_default();
        let look = looks
            .iter()
            .find(|look| deadline.due <= look.received && deadline.strategy.looks_at_the_node());
        let first = look.map_or(request.received, |look| look.received.min(request.received));
        let late = first.duration_since(deadline.due).as_secs_f64() * 1000.0;
        ensure!(
            deadline.due <= request.received,
            "{name}: {:?} came {late:.0} ms before its deadline {}",
            deadline.strategy,
            deadline.due
        );
        if *part == Part::Shared {
            shared.entry(node / 2).or_default().push(late);
        } else {
            outcome.count(deadline.strategy, late);
        }
    }
    // Of two pods of one budget the first goes when it is due; the other waits for its turn.
    for mut pair in shared.into_values() {
        pair.sort_by(f64::total_cmp);
        let mut pair = pair.into_iter();
        pair.by_ref()
            .take(1)
            .for_each(|late| outcome.count(Strategy::PdbDelete, late));
        outcome.held_back.0.extend(pair);
    }
    outcome.sort();
    Ok(outcome)
}

impl Strategy {
    const fn name(self) -> &'static str {
        match self {
            Self::Delete => "Delete",
            Self::Finalizer => "Finalizer",
            Self::StuckTerminating => "StuckTerminating",
            Self::PdbDelete => "PdbDelete",
            Self::PdbStuckTerminating => "PdbStuckTerminating",
        }
    }

    /// Whether the node is read once more before the pod is touched.
    const fn looks_at_the_node(self) -> bool {
        matches!(
            self,
            Self::Finalizer | Self::StuckTerminating | Self::PdbStuckTerminating
        )
    }

    /// The first request of the strategy on its pod, among all on the pod.
    fn first_request<'a>(self, requests: &[&'a AuditedRequest]) -> Option<&'a AuditedRequest> {
        // A pod whose budget was overridden has been deleted once, with its grace, before it is deleted without.
        let (verb, resource, earlier) = match self {
            Self::Delete | Self::PdbDelete => ("create", "pods/eviction", 0),
            Self::Finalizer => ("patch", "pods", 0),
            Self::StuckTerminating => ("delete", "pods", 0),
            Self::PdbStuckTerminating => ("delete", "pods", 1),
        };
        requests
            .iter()
            .filter(|request| request.verb == verb && request.resource == resource)
            .nth(earlier)
            .copied()
    }
}

impl Outcome {
    fn count(&mut self, strategy: Strategy, late: f64) {
        self.on_time.0.push(late);
        self.by_strategy.entry(strategy.name()).or_default().0.push(late);
    }

    fn sort(&mut self) {
        let all = [&mut self.on_time, &mut self.held_back]
            .into_iter()
            .chain(self.by_strategy.values_mut());
        all.for_each(|latenesses| latenesses.0.sort_by(f64::total_cmp));
    }
}

impl Latenesses {
    pub fn count(&self) -> usize {
        self.0.len()
    }

    /// The smallest lateness that at least this share (0 to 1) of all do not exceed, in milliseconds.
    pub fn quantile(&self, share: f64) -> Option<f64> {
        // A share of a length is between 0 and that length.
        #[allow(
            clippy::cast_possible_truncation,
            clippy::cast_sign_loss,
            clippy::cast_precision_loss
        )]
        let rank = (share * self.0.len() as f64).ceil() as usize;
        self.0.get(rank.max(1) - 1).copied()
    }

    pub fn max(&self) -> Option<f64> {
        self.0.last().copied()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pod(part: Part, node: usize) -> PartPod {
        PartPod {
            namespace: "a".to_owned(),
            name: format!("{part:?}-{node}"),
            node,
            part,
        }
    }

    fn at(millis: i64) -> Timestamp {
        Timestamp::from_millisecond(1_800_000_000_000 + millis).unwrap()
    }

    fn deadline(part: Part, node: usize, strategy: Strategy) -> Deadline {
        Deadline {
            pod: pod(part, node),
            strategy,
            due: at(0),
        }
    }

    fn request(verb: &str, resource: &str, name: &str, received: i64) -> AuditedRequest {
        AuditedRequest {
            user: String::new(),
            user_agent: String::new(),
            verb: verb.to_owned(),
            resource: resource.to_owned(),
            namespace: "a".to_owned(),
            name: name.to_owned(),
            uri: String::new(),
            code: 200,
            received: at(received),
        }
    }

    #[test]
    fn of_two_pods_of_one_budget_only_the_first_is_on_time() {
        let deadlines = [
            deadline(Part::Shared, 0, Strategy::PdbDelete),
            deadline(Part::Shared, 1, Strategy::PdbDelete),
        ];
        let requests = Requests(vec![
            request("create", "pods/eviction", "Shared-1", 20),
            request("create", "pods/eviction", "Shared-0", 9_000),
        ]);
        let outcome = compare(&deadlines, &requests).unwrap();
        assert_eq!((outcome.on_time.0, outcome.held_back.0), (vec![20.0], vec![9_000.0]));
    }

    #[test]
    fn a_grace_0_delete_is_not_the_delete_that_overrode_the_budget() {
        let deadlines = [deadline(Part::TightStuck, 0, Strategy::PdbStuckTerminating)];
        let name = "TightStuck-0";
        let mut requests = Requests(vec![
            request("create", "pods/eviction", name, -90),
            request("delete", "pods", name, -80),
        ]);
        assert!(compare(&deadlines, &requests).is_err());
        requests.0.push(request("delete", "pods", name, 30));
        assert_eq!(compare(&deadlines, &requests).unwrap().on_time.0, vec![30.0]);
    }

    #[test]
    fn the_look_at_the_node_is_the_first_request_of_a_delete_without_grace() {
        let deadlines = [deadline(Part::Stuck, 0, Strategy::StuckTerminating)];
        let mut requests = Requests(vec![
            request("get", "nodes", &node_name(0), -5),
            request("get", "nodes", &node_name(1), 5),
            request("get", "nodes", &node_name(0), 10),
        ]);
        assert!(compare(&deadlines, &requests).is_err(), "a look alone is not enough");
        requests.0.push(request("delete", "pods", "Stuck-0", 30));
        assert_eq!(compare(&deadlines, &requests).unwrap().on_time.0, vec![10.0]);
    }

    #[test]
    fn what_comes_before_its_deadline_is_an_error() {
        let deadlines = [deadline(Part::Stray, 0, Strategy::Delete)];
        let requests = Requests(vec![request("create", "pods/eviction", "Stray-0", -1)]);
        assert!(compare(&deadlines, &requests).is_err());
    }

    #[test]
    fn a_quantile_is_one_of_the_values() {
        let hundred = Latenesses((1..=100).map(f64::from).collect());
        assert_eq!(
            [0.5, 0.99, 1.0].map(|share| hundred.quantile(share)),
            [Some(50.0), Some(99.0), Some(100.0)]
        );
        assert_eq!(Latenesses(vec![7.0]).quantile(0.5), Some(7.0));
        assert_eq!(Latenesses::default().quantile(0.5), None);
    }
}
