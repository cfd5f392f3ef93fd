//! drain-lock: drains of many nodes at once that never wedge each other.

use std::process::ExitCode;

use clap::Parser;
use drain_lock::operate::operate;
use drain_lock::settings::Settings;
use nodeward_runtime::{Component, OperatorArgs, WebhookArgs};

const COMPONENT: Component = Component::new("drain-lock", env!("CARGO_PKG_VERSION"));

#[derive(Parser)]
#[command(name = "drain-lock", version, about)]
struct Cli {
    #[command(flatten)]
    operator: OperatorArgs,
    #[command(flatten)]
    webhook: WebhookArgs,
    #[command(subcommand)]
    command: Option<Command>,
}

#[derive(clap::Subcommand)]
enum Command {
    /// Prints the CustomResourceDefinitions that this component serves, as YAML.
    Crds,
}

fn main() -> ExitCode {
    let cli = Cli::parse();
    match cli.command {
        Some(Command::Crds) => print_crds(),
        None => nodeward_runtime::run(COMPONENT, cli.operator, Settings::parse, |context| {
            operate(context, cli.webhook)
        }),
    }
}

#[allow(
    clippy::print_stdout,
    clippy::print_stderr,
    reason = "what was asked for is the output"
)]
fn print_crds() -> ExitCode {
    match nodeward_runtime::crds::yaml(&nodeward_api::crd::drain_lock()) {
        Ok(yaml) => {
            print!("{yaml}");
            ExitCode::SUCCESS
        }
        Err(error) => {
            eprintln!("drain-lock: {error}");
            ExitCode::FAILURE
        }
    }
}
