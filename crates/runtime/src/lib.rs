//! The imperative shell that every Nodeward operator shares.
//!
//! An operator's `main` parses its arguments and calls [`main`]; everything around the operator's own loop
//! (logging, clients, caches, leader election, Events, metrics, probes, config with hot reload, shutdown) lives here.
//! What an operator decides is pure and lives elsewhere: nothing in this crate decides about nodes or budgets.

pub mod admin;
pub mod api_error;
pub mod args;
pub mod backoff;
pub mod blocking_service;
pub mod cache;
pub mod client;
pub mod component;
pub mod config;
pub mod control;
pub mod crds;
pub mod discovery;
pub mod events;
mod file_changes;
pub mod leader;
pub mod lease;
pub mod limiter;
pub mod liveness;
pub mod metrics;
pub mod operator;
pub mod pause;
pub mod quorum_reads;
pub mod readiness;
pub mod reconcile_trigger;
pub mod remediation_watch;
pub mod serve;
pub mod shutdown;
pub mod signal_watch;
pub mod sleep;
pub mod supervise;
pub mod telemetry;
pub mod tls;
pub mod webhook;

pub use api_error::ApiError;
pub use args::{LogFormat, OperatorArgs, WebhookArgs};
pub use backoff::{BackoffPolicy, Backoffs};
pub use blocking_service::BlockingService;
pub use cache::{Cache, Index, KindState, NamespacedName, Selection, WatchHandle, WatchHealth, Watches};
pub use client::Clients;
pub use component::Component;
pub use config::{ConfigError, ConfigHandle, ConfigMapSource, ConfigMapText};
pub use control::{Action, ActionResult, Expectations, Operator, Permits, Stop};
pub use discovery::{DynamicCache, DynamicWatches, KindRegistry};
pub use events::{EventSink, EventSpec, Severity};
pub use leader::{LeaderState, Leadership};
pub use lease::LeaseTerms;
pub use limiter::TokenBucket;
pub use liveness::{Liveness, Progress};
pub use metrics::Metrics;
pub use operator::{OperatorContext, main};
pub use pause::{Pause, PauseState};
pub use quorum_reads::QuorumReads;
pub use readiness::Readiness;
pub use reconcile_trigger::ReconcileTrigger;
pub use remediation_watch::RemediationWatches;
pub use signal_watch::SignalWatches;
pub use sleep::sleep_until;
pub use supervise::Supervisor;
pub use tokio_util::sync::CancellationToken;
