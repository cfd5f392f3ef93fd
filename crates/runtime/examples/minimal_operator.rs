//! The smallest operator: while it leads, it keeps a ConfigMap `report` that says how many ConfigMaps carry the label
//! `counted`. It shows the shape of an operator's loop, and the tests run it to see the shell from outside.

use std::process::ExitCode;
use std::time::Duration;

use clap::Parser;
use k8s_openapi::api::core::v1::ConfigMap;
use kube::api::{Patch, PatchParams};
use kube::{Api, Resource};
use nodeward_runtime::config::from_yaml;
use nodeward_runtime::{
    Cache, Component, ConfigError, EventSpec, OperatorArgs, OperatorContext, Selection, Severity, sleep_until,
};
use serde::Deserialize;
use serde_json::json;

const COMPONENT: Component = Component::new("minimal-operator", env!("CARGO_PKG_VERSION"));

#[derive(Parser)]
#[command(name = "minimal-operator", version)]
struct Cli {
    #[command(flatten)]
    operator: OperatorArgs,
}

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

fn parse(text: &str) -> Result<Config, ConfigError> {
    let config: Config = from_yaml(text)?;
    if config.repeat == 0 {
        return Err(ConfigError::at("repeat", "must be at least 1"));
    }
    Ok(config)
}

fn main() -> ExitCode {
    nodeward_runtime::run(COMPONENT, Cli::parse().operator, parse, operate)
}

async fn operate(ctx: OperatorContext<Config>) -> anyhow::Result<()> {
    let watched: Api<ConfigMap> = Api::namespaced(ctx.clients.watches.clone(), &ctx.args.namespace);
    let counted = ctx
        .watches
        .cache("configmaps", watched, Selection::all().labels("counted"), |_| Some(()));
    ctx.readiness.require_cache(&counted);
    let progress = ctx.liveness.watch("main loop", Duration::from_mins(1));
    let mut written = None;
    loop {
        {
            let _pass = progress.begin_pass();
            let wanted = report(&ctx.config.current(), &counted);
            if counted.is_synced() && written.as_ref() != Some(&wanted) && ctx.leadership.is_leading_now() {
                write(&ctx, &wanted).await?;
                written = Some(wanted);
            }
        }
        tokio::select! {
            () = ctx.shutdown.cancelled() => return Ok(()),
            () = ctx.wake.woken() => {}
            () = sleep_until(None) => {}
        }
    }
}

fn report(config: &Config, counted: &Cache<()>) -> String {
    format!(
        "{}{}",
        format!("{} ", config.greeting).repeat(config.repeat as usize),
        counted.len()
    )
}

async fn write(ctx: &OperatorContext<Config>, text: &str) -> anyhow::Result<()> {
    if ctx.args.dry_run {
        tracing::info!("would report {text}");
        return Ok(());
    }
    let api: Api<ConfigMap> = Api::namespaced(ctx.clients.requests.clone(), &ctx.args.namespace);
    let body = json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "report"}, "data": {"text": text}});
    let parameters = PatchParams::apply(ctx.component.field_manager());
    let written = api.patch("report", &parameters, &Patch::Apply(body)).await?;
    ctx.events.emit(EventSpec {
        regarding: written.object_ref(&()),
        related: None,
        severity: Severity::Normal,
        reason: "Reported",
        action: "Counted",
        note: "the report is up to date".to_owned(),
    });
    Ok(())
}
