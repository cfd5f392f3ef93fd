//! The queue between whoever tells and the task that sends.

use std::time::Duration;

use jiff::Timestamp;
use k8s_openapi::api::core::v1::ObjectReference;
use kube::Client;
use kube::runtime::events::{Event, EventType, Recorder, Reporter};
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use tokio::sync::mpsc;
use tokio::time::timeout;

use super::deduplicator::{EventDeduplicator, SeriesNotes};
use super::note::shortened;
use super::{EventSpec, Severity};
use crate::api_error::with_sources;
use crate::component::Component;
use crate::metrics::Metrics;

/// More than a pass over a large fleet tells at once; beyond it Events are dropped and counted, for they are hints.
const CAPACITY: usize = 512;

/// An answer slower than this costs the Event, not the queue.
const ANSWER: Duration = Duration::from_secs(10);

/// Where an operator tells. Clones share one queue.
#[derive(Clone)]
pub struct EventSink {
    queue: Option<mpsc::Sender<EventSpec>>,
    counters: Counters,
}

/// The receiving end, to be run as a task.
pub struct EventQueue {
    incoming: mpsc::Receiver<EventSpec>,
    client: Client,
    reporter: Reporter,
    recorder: Recorder,
    notes: SeriesNotes,
    deduplicator: EventDeduplicator,
    counters: Counters,
}

impl EventSink {
    /// A sink and the queue behind it. One recorder serves all Events, for it remembers the series.
    pub fn new(client: Client, component: Component, identity: &str, metrics: &Metrics) -> (Self, EventQueue) {
        let (queue, incoming) = mpsc::channel(CAPACITY);
        let counters = Counters::registered(metrics);
        let reporter = Reporter {
            controller: format!("nodeward.dev/{}", component.name()),
            instance: Some(identity.chars().take(128).collect()),
        };
        let recorder = Recorder::new(client.clone(), reporter.clone());
        let sink = Self {
            queue: Some(queue),
            counters: counters.clone(),
        };
        (
            sink,
            EventQueue {
                incoming,
                client,
                reporter,
                recorder,
                notes: SeriesNotes::default(),
                deduplicator: EventDeduplicator::default(),
                counters,
            },
        )
    }

    /// A sink that only logs, for a dry run.
    pub fn silent(metrics: &Metrics) -> Self {
        Self {
            queue: None,
            counters: Counters::registered(metrics),
        }
    }

    /// The same, but it only logs, as an audit does.
    #[must_use]
    pub fn silenced(&self) -> Self {
        Self {
            queue: None,
            ..self.clone()
        }
    }

    /// Tells, and logs: who emits an Event logs nothing of it. Never blocks and never fails: an Event that finds the queue full
    /// is dropped and counted.
    pub fn emit(&self, event: EventSpec) {
        let (reason, object, related) = (
            event.reason,
            in_words(&event.regarding),
            event.related.as_ref().map(in_words),
        );
        match event.severity {
            Severity::Normal => tracing::info!(reason, object, related, "{}", event.note),
            Severity::Warning => tracing::warn!(reason, object, related, "{}", event.note),
        }
        let Some(queue) = &self.queue else { return };
        if queue.try_send(event).is_err() {
            self.counters.count(Delivery::Dropped);
        }
    }
}

impl EventQueue {
    /// Sends until every sink is gone and the queue is empty.
    pub async fn run(mut self) {
        while let Some(event) = self.incoming.recv().await {
            let delivery = self.send(event).await;
            self.counters.count(delivery);
        }
    }

    async fn send(&mut self, mut event: EventSpec) -> Delivery {
        event.note = shortened(event.note);
        if self.deduplicator.is_repeated(&event, Timestamp::now()) {
            return Delivery::Repeated;
        }
        if self.notes.would_hide(&event) {
            self.recorder = Recorder::new(self.client.clone(), self.reporter.clone());
        }
        let reason = event.reason;
        let regarding = event.regarding;
        let event = Event {
            type_: match event.severity {
                Severity::Normal => EventType::Normal,
                Severity::Warning => EventType::Warning,
            },
            reason: event.reason.to_owned(),
            note: Some(event.note),
            action: event.action.to_owned(),
            secondary: event.related,
        };
        match timeout(ANSWER, self.recorder.publish(&event, &regarding)).await {
            Ok(Ok(())) => Delivery::Sent,
            Ok(Err(error)) => {
                tracing::debug!(reason, "an Event could not be sent: {}", with_sources(&error));
                Delivery::Failed
            }
            Err(_) => Delivery::Failed,
        }
    }
}

/// `Pod shop/web-0`.
fn in_words(object: &ObjectReference) -> String {
    let (kind, name) = (
        object.kind.as_deref().unwrap_or_default(),
        object.name.as_deref().unwrap_or_default(),
    );
    match object.namespace.as_deref() {
        Some(namespace) if !namespace.is_empty() => format!("{kind} {namespace}/{name}"),
        _ => format!("{kind} {name}"),
    }
}

/// What became of an Event.
#[derive(Clone, Copy, Debug, PartialEq, Eq, strum::IntoStaticStr)]
#[strum(serialize_all = "lowercase")]
enum Delivery {
    Sent,
    Repeated,
    Dropped,
    Failed,
}

#[derive(Clone)]
struct Counters(Family<[(&'static str, &'static str); 1], Counter>);

impl Counters {
    fn registered(metrics: &Metrics) -> Self {
        Self(metrics.register("events", "Kubernetes Events, by what became of them"))
    }

    fn count(&self, delivery: Delivery) {
        self.0.get_or_create(&[("outcome", delivery.into())]).inc();
    }
}

#[cfg(test)]
mod tests {
    use std::sync::{Arc, Mutex};

    use http::{Request, Response};
    use kube::Client;
    use kube::client::Body;

    use super::{CAPACITY, EventSink};
    use crate::component::Component;
    use crate::events::{EventSpec, Severity, node_reference};
    use crate::metrics::Metrics;

    const COMPONENT: Component = Component::new("drain-keeper", "1.2.3");

    fn event(note: &str) -> EventSpec {
        EventSpec {
            regarding: node_reference("worker-1", "u1"),
            related: None,
            severity: Severity::Warning,
            reason: "DrainBlocked",
            action: "Waiting",
            note: note.to_owned(),
        }
    }

    /// A server that takes every Event and remembers how it was asked.
    fn server() -> (Client, Arc<Mutex<Vec<String>>>) {
        let asked = Arc::new(Mutex::new(Vec::new()));
        let log = Arc::clone(&asked);
        let service = tower::service_fn(move |request: Request<Body>| {
            log.lock()
                .unwrap()
                .push(format!("{} {}", request.method(), request.uri().path()));
            async move {
                let bytes = http_body_util::BodyExt::collect(request.into_body())
                    .await
                    .unwrap()
                    .to_bytes();
                Ok::<_, std::convert::Infallible>(Response::new(Body::from(bytes.to_vec())))
            }
        });
        (Client::new(service, "default"), asked)
    }

    /// What the log says meanwhile.
    fn logged(act: impl FnOnce()) -> String {
        let lines = Arc::new(Mutex::new(Vec::new()));
        let writer = Arc::clone(&lines);
        let subscriber = tracing_subscriber::fmt()
            .with_ansi(false)
            .without_time()
            .with_writer(move || Lines(Arc::clone(&writer)))
            .finish();
        tracing::subscriber::with_default(subscriber, act);
        String::from_utf8(lines.lock().unwrap().clone()).unwrap()
    }

    struct Lines(Arc<Mutex<Vec<u8>>>);

    impl std::io::Write for Lines {
        fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
            self.0.lock().unwrap().extend_from_slice(bytes);
            Ok(bytes.len())
        }

        fn flush(&mut self) -> std::io::Result<()> {
            Ok(())
        }
    }

    #[test]
    fn event_is_logged_once_with_its_severity() {
        let sink = EventSink::silent(&Metrics::new(COMPONENT));
        let warning = logged(|| sink.emit(event("waits")));
        assert_eq!(warning.lines().count(), 1, "{warning}");
        for part in [" WARN ", "waits", "DrainBlocked", "Node worker-1"] {
            assert!(warning.contains(part), "{part}: {warning}");
        }
        let normal = EventSpec {
            severity: Severity::Normal,
            related: Some(node_reference("worker-2", "u2")),
            ..event("goes on")
        };
        let normal = logged(|| sink.emit(normal));
        assert!(
            normal.contains(" INFO ") && normal.contains("Node worker-2"),
            "{normal}"
        );
    }

    #[tokio::test]
    async fn a_repeated_event_is_sent_once_and_counted() {
        let (client, asked) = server();
        let metrics = Metrics::new(COMPONENT);
        let (sink, queue) = EventSink::new(client, COMPONENT, "one", &metrics);
        sink.emit(event("blocked"));
        sink.emit(event("blocked"));
        drop(sink);
        queue.run().await;
        assert_eq!(
            *asked.lock().unwrap(),
            ["POST /apis/events.k8s.io/v1/namespaces/default/events"]
        );
        let text = metrics.encode().unwrap();
        assert!(text.contains("events_total{outcome=\"sent\"} 1"), "{text}");
        assert!(text.contains("events_total{outcome=\"repeated\"} 1"), "{text}");
    }

    /// kube's recorder alone would patch the first Event, and keep its note.
    #[tokio::test]
    async fn changed_note_is_sent_as_a_new_event() {
        let (client, asked) = server();
        let metrics = Metrics::new(COMPONENT);
        let (sink, queue) = EventSink::new(client, COMPONENT, "one", &metrics);
        sink.emit(event("blocked by web-0"));
        sink.emit(event("blocked by web-1"));
        drop(sink);
        queue.run().await;
        assert_eq!(
            *asked.lock().unwrap(),
            ["POST /apis/events.k8s.io/v1/namespaces/default/events"; 2]
        );
    }

    #[tokio::test]
    async fn a_full_queue_drops_and_counts_and_never_blocks() {
        let (client, _) = server();
        let metrics = Metrics::new(COMPONENT);
        let (sink, _queue) = EventSink::new(client, COMPONENT, "one", &metrics);
        for number in 0..CAPACITY + 3 {
            sink.emit(event(&number.to_string()));
        }
        let text = metrics.encode().unwrap();
        assert!(text.contains("events_total{outcome=\"dropped\"} 3"), "{text}");
    }

    #[tokio::test]
    async fn a_dry_run_sends_nothing() {
        let metrics = Metrics::new(COMPONENT);
        EventSink::silent(&metrics).emit(event("blocked"));
        assert!(!metrics.encode().unwrap().contains("events_total{"));
    }
}
