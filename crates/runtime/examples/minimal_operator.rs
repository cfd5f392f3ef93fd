//! The smallest operator: while it leads, it keeps a ConfigMap `report` that says how many ConfigMaps carry the label
//! `counted`. `docs/operator-shape.md` walks through it, and the tests run it to see the shell from outside.

use std::process::ExitCode;
use std::sync::Arc;
use std::time::Duration;

use jiff::{SignedDuration, Timestamp};
use k8s_openapi::api::core::v1::ConfigMap;
use kube::api::{Patch, PatchParams};
use kube::{Api, Client, Resource};
use nodeward_runtime::config::from_yaml;
use nodeward_runtime::control::{Completed, ControlOptions, Observed, Plan, Report};
use nodeward_runtime::{
    Action, ActionResult, BackoffPolicy, Cache, Component, ConfigError, ConfigHandle, EventSink, EventSpec,
    Expectations, Operator, OperatorContext, Permits, Selection, Severity,
};
use serde::Deserialize;
use serde_json::json;

fn main() -> ExitCode {
    nodeward_runtime::main::<Counter>()
}

/// The configuration file, which is the policy as well.
#[derive(Debug, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields, default)]
struct Config {
    greeting: String,
    repeat: u32,
}

impl Default for Config {
    fn default() -> Self {
        Self {
            greeting: "hello".to_owned(),
            repeat: 1,
        }
    }
}

/// What decisions rest on.
struct Snapshot {
    counted: usize,
    /// The text of the report as the cache shows it.
    report: Option<String>,
}

/// The only action: write the report.
struct WriteReport {
    replaced: Option<String>,
    text: String,
}

struct Counter {
    config: ConfigHandle<Config>,
    config_maps: Cache<Content>,
    client: Client,
    namespace: String,
    events: EventSink,
    /// What was written, until the cache shows it: otherwise it would be written again.
    expectations: Expectations<&'static str, String, Option<String>>,
}

/// What is kept of a ConfigMap.
#[derive(PartialEq)]
struct Content {
    is_counted: bool,
    text: Option<String>,
}

/// The decision: pure, so that a test of it is a table.
fn plan(snapshot: &Snapshot, config: &Config) -> Option<WriteReport> {
    let text = format!(
        "{}{}",
        format!("{} ", config.greeting).repeat(config.repeat as usize),
        snapshot.counted
    );
    (snapshot.report.as_ref() != Some(&text)).then(|| WriteReport {
        replaced: snapshot.report.clone(),
        text,
    })
}

impl Operator for Counter {
    type Args = ();
    type Settings = Config;
    type Policy = Config;
    type Snapshot = Snapshot;
    type Verdicts = ();
    type Action = WriteReport;

    const COMPONENT: Component = Component::new("minimal-operator", env!("CARGO_PKG_VERSION"));
    const ABOUT: &'static str = "Counts ConfigMaps";
    const OPTIONS: ControlOptions = ControlOptions {
        pass_spacing: Duration::from_millis(50),
        backoff: BackoffPolicy {
            first: SignedDuration::from_secs(1),
            limit: SignedDuration::from_mins(1),
        },
        dry_run_silence: SignedDuration::from_mins(10),
        standbys_observe: false,
    };

    fn parse(text: &str) -> Result<Config, ConfigError> {
        let config: Config = from_yaml(text)?;
        if config.repeat == 0 {
            return Err(ConfigError::at("repeat", "must be at least 1"));
        }
        Ok(config)
    }

    async fn open(context: &OperatorContext<Config>, (): ()) -> anyhow::Result<Self> {
        let namespace = context.args.namespace.clone();
        let api = Api::namespaced(context.clients.watches.clone(), &namespace);
        let project = |object: ConfigMap| {
            let labels = object.metadata.labels.unwrap_or_default();
            Some(Content {
                is_counted: labels.contains_key("counted"),
                text: object.data.and_then(|mut data| data.remove("text")),
            })
        };
        let config_maps = context.watches.cache("configmaps", api, Selection::all(), project);
        context.readiness.require_watch(&config_maps);
        Ok(Self {
            config: context.config.clone(),
            config_maps,
            client: context.clients.requests.clone(),
            namespace,
            events: context.events.clone(),
            expectations: Expectations::default(),
        })
    }

    fn effective_policy(&mut self) -> Option<Arc<Config>> {
        Some(self.config.current())
    }

    fn observe(&mut self, _: &Config, now: Timestamp) -> Observed<Snapshot> {
        if !self.config_maps.is_synced() {
            return Observed::wait("configmaps are still being listed");
        }
        let all = self.config_maps.snapshot();
        let report = all.iter().find(|(key, _)| &*key.name == "report");
        let cached = report.and_then(|(_, content)| content.text.clone());
        Observed::Ready(Snapshot {
            counted: all.values().filter(|content| content.is_counted).count(),
            report: self.expectations.effective(&"report", &cached, now).cloned().or(cached),
        })
    }

    fn plan(&mut self, snapshot: &Snapshot, config: &Config, _: Timestamp) -> Plan<WriteReport, ()> {
        Plan {
            actions: plan(snapshot, config).into_iter().collect(),
            verdicts: (),
            requeue_at: None,
        }
    }

    fn report(&mut self, _: &Snapshot, (): (), _: Timestamp) -> Report<WriteReport> {
        Report {
            actions: Vec::new(),
            requeue_at: None,
        }
    }

    fn action_context(&self, _: &Arc<Snapshot>, _: &Arc<Config>) -> Api<ConfigMap> {
        Api::namespaced(self.client.clone(), &self.namespace)
    }

    fn completed(&mut self, completed: Completed<WriteReport>, now: Timestamp) {
        if let Some(ActionResult::Acted((action, written))) = completed.outcome {
            self.expectations.expect("report", action.replaced, action.text, now);
            self.events.emit(EventSpec {
                regarding: written.object_ref(&()),
                related: None,
                severity: Severity::Normal,
                reason: "Reported",
                action: "Counted",
                note: "the report is up to date".to_owned(),
            });
        }
    }

    fn on_leadership_lost(&mut self) {}
}

impl Action for WriteReport {
    type Key = &'static str;
    type Context = Api<ConfigMap>;
    type Outcome = ActionResult<(Self, ConfigMap)>;

    fn key(&self) -> &'static str {
        "report"
    }

    async fn run(self, api: Api<ConfigMap>, permits: Permits) -> Self::Outcome {
        let _permit = match permits.next_write().await {
            Ok(permit) => permit,
            Err(stop) => {
                tracing::info!("did not report {}: {stop}", self.text);
                return stop.into();
            }
        };
        let body = json!({ "apiVersion": "v1", "kind": "ConfigMap", "metadata": { "name": "report" }, "data": { "text": self.text } });
        let parameters = PatchParams::apply(Counter::COMPONENT.field_manager());
        match api.patch("report", &parameters, &Patch::Apply(body)).await {
            Ok(written) => ActionResult::Acted((self, written)),
            Err(error) => error.into(),
        }
    }
}
