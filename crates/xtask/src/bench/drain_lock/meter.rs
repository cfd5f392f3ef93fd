//! Watches pods while nodes are drained: how many are missing, and since when nothing has changed.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use futures::StreamExt;
use k8s_openapi::api::core::v1::Pod;
use kube::api::Api;
use kube::runtime::watcher::{self, Event, watcher};
use kube::{Client, ResourceExt};
use nodeward_testkit::workload;
use tokio::task::JoinHandle;

use super::stage::NAMESPACE;

/// Pods under watch.
pub struct Meter {
    seen: Arc<Mutex<Seen>>,
    task: JoinHandle<()>,
}

/// What is known of the pods.
struct Seen {
    expected: BTreeMap<String, usize>,
    /// Each pod's app and whether it is Ready, by UID.
    pods: BTreeMap<String, (String, bool)>,
    /// Unready pod-seconds until `since`.
    sum: f64,
    since: Instant,
}

impl Meter {
    /// Starts with all pods Ready; `expected` is how many pods each app has.
    pub fn start(client: Client, expected: BTreeMap<String, usize>) -> Self {
        let seen = Arc::new(Mutex::new(Seen {
            expected,
            pods: BTreeMap::new(),
            sum: 0.0,
            since: Instant::now(),
        }));
        let task = tokio::spawn({
            let seen = Arc::clone(&seen);
            async move {
                let pods: Api<Pod> = Api::namespaced(client, NAMESPACE);
                let mut events = watcher(pods, watcher::Config::default()).boxed();
                let mut listed: Option<BTreeMap<String, (String, bool)>> = None;
                while let Some(event) = events.next().await {
                    let mut seen = seen.lock().unwrap_or_else(PoisonError::into_inner);
                    match event {
                        Ok(Event::Init) => listed = Some(BTreeMap::new()),
                        Ok(Event::InitApply(pod)) => {
                            if let Some(listed) = &mut listed {
                                listed.extend(entry(&pod));
                            }
                        }
                        Ok(Event::InitDone) => {
                            let all = listed.take().unwrap_or_default();
                            seen.change(Instant::now(), |pods| *pods = all);
                        }
                        Ok(Event::Apply(pod)) => seen.change(Instant::now(), |pods| pods.extend(entry(&pod))),
                        Ok(Event::Delete(pod)) => {
                            let uid = pod.uid().unwrap_or_default();
                            seen.change(Instant::now(), |pods| drop(pods.remove(&uid)));
                        }
                        Err(_) => {}
                    }
                }
            }
        });
        Self { seen, task }
    }

    fn seen<T>(&self, read: impl FnOnce(&Seen) -> T) -> T {
        read(&self.seen.lock().unwrap_or_else(PoisonError::into_inner))
    }

    /// How many pods are missing or not Ready now.
    pub fn missing(&self) -> usize {
        self.seen(Seen::missing)
    }

    /// The sum over all pods of the time for which each was missing, in seconds.
    pub fn unready_pod_seconds(&self) -> f64 {
        self.seen(|seen| seen.until(Instant::now()))
    }

    /// For how long no pod has come, gone or changed.
    pub fn quiet_for(&self) -> Duration {
        self.seen(|seen| seen.since.elapsed())
    }
}

impl Drop for Meter {
    fn drop(&mut self) {
        self.task.abort();
    }
}

fn entry(pod: &Pod) -> Option<(String, (String, bool))> {
    let app = pod.labels().get("app")?.clone();
    let is_up = workload::is_ready(pod) && pod.metadata.deletion_timestamp.is_none();
    Some((pod.uid()?, (app, is_up)))
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
        // Far below 2^53.
        #[allow(clippy::cast_precision_loss)]
        let missing = self.missing() as f64;
        self.sum + missing * now.saturating_duration_since(self.since).as_secs_f64()
    }

    fn change(&mut self, now: Instant, change: impl FnOnce(&mut BTreeMap<String, (String, bool)>)) {
        let mut changed = self.pods.clone();
        change(&mut changed);
        if changed != self.pods {
            self.sum = self.until(now);
            self.since = now;
            self.pods = changed;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pods(ready: &[(&str, bool)]) -> BTreeMap<String, (String, bool)> {
        let pod = |(uid, up): &(&str, bool)| ((*uid).to_owned(), ("web".to_owned(), *up));
        ready.iter().map(pod).collect()
    }

    #[test]
    fn each_pod_counts_for_as_long_as_it_is_missing_or_not_ready() {
        let began = Instant::now();
        let at = |seconds| began + Duration::from_secs(seconds);
        let mut seen = Seen {
            expected: BTreeMap::from([("web".to_owned(), 3)]),
            pods: BTreeMap::new(),
            sum: 0.0,
            since: began,
        };
        seen.change(at(1), |all| *all = pods(&[("a", true), ("b", true), ("c", true)]));
        seen.change(at(2), |all| *all = pods(&[("a", true), ("b", true)]));
        seen.change(at(4), |all| *all = pods(&[("a", true), ("b", true), ("d", false)]));
        // What changes nothing is no change.
        seen.change(at(5), |_| {});
        assert_eq!(seen.since, at(4));
        seen.change(at(6), |all| *all = pods(&[("a", true), ("b", false), ("d", true)]));
        assert!((seen.until(at(7)) - 5.0).abs() < 1e-9, "{}", seen.until(at(7)));
        assert_eq!(seen.missing(), 1);
    }
}
