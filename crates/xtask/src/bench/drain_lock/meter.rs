//! Watches pods while nodes are drained: how many are missing, and since when nothing has changed.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use k8s_openapi::api::core::v1::Pod;
use kube::api::Api;
use kube::runtime::{reflector, watcher};
use kube::{Client, ResourceExt};
use nodeward_testkit::workload::is_up;

use super::stage::NAMESPACE;
use crate::bench::figures::count;
use crate::watch::Watched;

/// Each pod's app and whether it is Ready, by UID.
type Pods = BTreeMap<String, (String, bool)>;

/// Pods under watch.
pub struct Meter(Watched<Seen>);

/// What is known of the pods.
struct Seen {
    /// How many pods each app has.
    expected: BTreeMap<String, usize>,
    pods: Pods,
    /// Unready pod-seconds until `since`.
    sum: f64,
    since: Instant,
}

impl Meter {
    /// Starts with all pods Ready; `expected` is how many pods each app has.
    pub fn start(client: Client, expected: BTreeMap<String, usize>) -> Self {
        let seen = Seen {
            expected,
            pods: Pods::new(),
            sum: 0.0,
            since: Instant::now(),
        };
        let (store, mut writer) = reflector::store::<Pod>();
        let pods: Api<Pod> = Api::namespaced(client, NAMESPACE);
        let take = move |seen: &mut Seen, event| {
            writer.apply_watcher_event(&event);
            let pods = store.state().iter().filter_map(|pod| entry(pod)).collect();
            seen.change(Instant::now(), pods);
        };
        Self(Watched::new(seen).follow_events(pods, watcher::Config::default(), take))
    }

    /// How many pods are missing or not Ready now.
    pub fn missing(&self) -> usize {
        self.0.read().missing()
    }

    /// The sum over all pods of the time for which each was missing, in seconds.
    pub fn unready_pod_seconds(&self) -> f64 {
        self.0.read().until(Instant::now())
    }

    /// For how long no pod has come, gone or changed.
    pub fn quiet_for(&self) -> Duration {
        self.0.read().since.elapsed()
    }
}

fn entry(pod: &Pod) -> Option<(String, (String, bool))> {
    let app = pod.labels().get("app")?.clone();
    Some((pod.uid()?, (app, is_up(pod))))
}

impl Seen {
    fn missing(&self) -> usize {
        let ready = |app: &str| self.pods.values().filter(|(of, is_up)| of == app && *is_up).count();
        let each = self
            .expected
            .iter()
            .map(|(app, count)| count.saturating_sub(ready(app)));
        // Before the first list nothing is known, and all pods are Ready.
        if self.pods.is_empty() { 0 } else { each.sum() }
    }

    fn until(&self, now: Instant) -> f64 {
        self.sum + count(self.missing()) * now.saturating_duration_since(self.since).as_secs_f64()
    }

    fn change(&mut self, now: Instant, pods: Pods) {
        if pods != self.pods {
            self.sum = self.until(now);
            self.since = now;
            self.pods = pods;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pods(ready: &[(&str, bool)]) -> Pods {
        let pod = |(uid, up): &(&str, bool)| ((*uid).to_owned(), ("web".to_owned(), *up));
        ready.iter().map(pod).collect()
    }

    #[test]
    fn missing_and_unready_pods_count_by_the_second() {
        let began = Instant::now();
        let at = |seconds| began + Duration::from_secs(seconds);
        let mut seen = Seen {
            expected: BTreeMap::from([("web".to_owned(), 3)]),
            pods: Pods::new(),
            sum: 0.0,
            since: began,
        };
        seen.change(at(1), pods(&[("a", true), ("b", true), ("c", true)]));
        seen.change(at(2), pods(&[("a", true), ("b", true)]));
        seen.change(at(4), pods(&[("a", true), ("b", true), ("d", false)]));
        // What changes nothing is no change.
        seen.change(at(5), seen.pods.clone());
        assert_eq!(seen.since, at(4));
        seen.change(at(6), pods(&[("a", true), ("b", false), ("d", true)]));
        assert!((seen.until(at(7)) - 5.0).abs() < 1e-9, "{}", seen.until(at(7)));
        assert_eq!(seen.missing(), 1);
    }
}
