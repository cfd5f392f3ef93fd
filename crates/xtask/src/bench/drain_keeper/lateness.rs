//! How late drain-keeper acts: from a deadline to the first request that follows from it, as the API server received it.
//! That is the request on the pod, or where a pod is to lose its grace or its finalizers the look at its node that comes
//! before.

use std::collections::BTreeMap;

use anyhow::{Result, bail, ensure};
use jiff::Timestamp;
use kube::api::ObjectMeta;
use nodeward_testkit::audit::{AuditedRequest, Requests};

use super::{BUDGET_WAIT, FORCE_AFTER, TIME_OUT};
use crate::bench::fleet::pods::{Part, PartPod};
use crate::bench::fleet::size::node_name;

/// Something that falls due.
#[derive(Clone, Debug)]
pub struct Deadline {
    pod: PartPod,
    strategy: Strategy,
    pub due: Timestamp,
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

/// What came of all deadlines: latenesses in milliseconds.
#[derive(Clone, Debug, Default)]
pub struct Outcome {
    pub on_time: Vec<f64>,
    /// By strategy, the same.
    pub by_strategy: BTreeMap<String, Vec<f64>>,
    /// Delayed by intent: the budget's other pod was on its way out.
    pub held_back: Vec<f64>,
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
            due: (start + wait).max(beyond_its_grace(object).unwrap_or(start)),
        });
    }
    Ok(deadlines)
}

/// Deadlines of the pods that hang after their budget was overridden.
pub fn after_the_override(start: Timestamp, pods: &[(PartPod, ObjectMeta)]) -> Vec<Deadline> {
    let hanging = pods.iter().filter(|(pod, _)| pod.part == Part::TightStuck);
    hanging
        .filter_map(|(pod, object)| {
            Some(Deadline {
                pod: pod.clone(),
                strategy: Strategy::PdbStuckTerminating,
                due: (start + BUDGET_WAIT).max(beyond_its_grace(object)?),
            })
        })
        .collect()
}

/// From when a terminating pod may lose its finalizers, or what is left of it its grace.
fn beyond_its_grace(pod: &ObjectMeta) -> Option<Timestamp> {
    Some(pod.deletion_timestamp.as_ref()?.0 + FORCE_AFTER)
}

/// Compares deadlines with drain-keeper's own requests.
///
/// # Errors
/// When nothing was done at one, or before it was due.
pub fn compare(deadlines: &[Deadline], requests: &Requests) -> Result<Outcome> {
    let mut on_pods: BTreeMap<(&str, &str), Vec<&AuditedRequest>> = BTreeMap::new();
    let mut looks: BTreeMap<&str, Vec<&AuditedRequest>> = BTreeMap::new();
    for request in &requests.0 {
        if request.resource.starts_with("pods") && !request.is_watch() {
            let pod = (request.namespace.as_str(), request.name.as_str());
            on_pods.entry(pod).or_default().push(request);
        } else if request.verb == "get" && request.resource == "nodes" {
            looks.entry(&request.name).or_default().push(request);
        }
    }
    let mut outcome = Outcome::default();
    let mut shared: BTreeMap<usize, Vec<f64>> = BTreeMap::new();
    for Deadline { pod, strategy, due } in deadlines {
        let on_pod = on_pods.get(&(pod.namespace.as_str(), pod.name.as_str()));
        let request = on_pod.and_then(|requests| strategy.first_request(requests));
        let Some(request) = request else {
            bail!("{}: nothing was done at its deadline {due} ({strategy:?})", pod.name);
        };
        let looks = looks.get(node_name(pod.node).as_str()).into_iter().flatten();
        let look = looks
            .filter(|_| strategy.looks_at_the_node())
            .find(|look| *due <= look.received);
        let first = look.map_or(request.received, |look| look.received.min(request.received));
        let late = first.duration_since(*due).as_secs_f64() * 1000.0;
        ensure!(
            *due <= request.received,
            "{}: {strategy:?} came {late:.0} ms before its deadline {due}",
            pod.name
        );
        if pod.part == Part::Shared {
            shared.entry(pod.node / 2).or_default().push(late);
        } else {
            outcome.count(*strategy, late);
        }
    }
    // Of two pods of one budget the first goes when it is due; the other waits for its turn.
    for mut pair in shared.into_values() {
        pair.sort_by(f64::total_cmp);
        outcome.held_back.extend(pair.split_off(1));
        outcome.count(Strategy::PdbDelete, pair[0]);
    }
    Ok(outcome)
}

impl Strategy {
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
        self.on_time.push(late);
        self.by_strategy.entry(format!("{strategy:?}")).or_default().push(late);
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
            group: String::new(),
            resource: resource.to_owned(),
            namespace: "a".to_owned(),
            name: name.to_owned(),
            uri: String::new(),
            code: 200,
            received: at(received),
        }
    }

    #[test]
    fn second_pod_of_a_budget_is_held_back() {
        let deadlines = [
            deadline(Part::Shared, 0, Strategy::PdbDelete),
            deadline(Part::Shared, 1, Strategy::PdbDelete),
        ];
        let requests = Requests(vec![
            request("create", "pods/eviction", "Shared-1", 20),
            request("create", "pods/eviction", "Shared-0", 9_000),
        ]);
        let outcome = compare(&deadlines, &requests).unwrap();
        assert_eq!((outcome.on_time, outcome.held_back), (vec![20.0], vec![9_000.0]));
    }

    #[test]
    fn override_is_not_the_delete_without_grace() {
        let deadlines = [deadline(Part::TightStuck, 0, Strategy::PdbStuckTerminating)];
        let name = "TightStuck-0";
        let mut requests = Requests(vec![
            request("create", "pods/eviction", name, -90),
            request("delete", "pods", name, -80),
        ]);
        assert!(compare(&deadlines, &requests).is_err());
        requests.0.push(request("delete", "pods", name, 30));
        assert_eq!(compare(&deadlines, &requests).unwrap().on_time, vec![30.0]);
    }

    #[test]
    fn node_read_counts_as_the_first_request() {
        let deadlines = [deadline(Part::Stuck, 0, Strategy::StuckTerminating)];
        let mut requests = Requests(vec![
            request("get", "nodes", &node_name(0), -5),
            request("get", "nodes", &node_name(1), 5),
            request("get", "nodes", &node_name(0), 10),
        ]);
        assert!(compare(&deadlines, &requests).is_err(), "a look alone is not enough");
        requests.0.push(request("delete", "pods", "Stuck-0", 30));
        assert_eq!(compare(&deadlines, &requests).unwrap().on_time, vec![10.0]);
    }

    #[test]
    fn requests_before_their_deadline_are_errors() {
        let deadlines = [deadline(Part::Stray, 0, Strategy::Delete)];
        let requests = Requests(vec![request("create", "pods/eviction", "Stray-0", -1)]);
        assert!(compare(&deadlines, &requests).is_err());
    }
}
