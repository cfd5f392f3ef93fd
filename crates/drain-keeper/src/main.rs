//! drain-keeper: unblocks nodes that cannot drain during an upgrade, and says why a node is stuck.

use std::process::ExitCode;

use clap::Parser;
use drain_keeper::operate::operate;
use drain_keeper::settings::Settings;
use nodeward_runtime::{Component, OperatorArgs};

const COMPONENT: Component = Component::new("drain-keeper", env!("CARGO_PKG_VERSION"));

#[derive(Parser)]
#[command(name = "drain-keeper", version, about)]
struct Cli {
    #[command(flatten)]
    operator: OperatorArgs,
    #[command(subcommand)]
    command: Option<Command>,
}

#[derive(clap::Subcommand)]
enum Command {
    /// Prints the CustomResourceDefinitions that this component serves: it serves none.
    Crds,
}

fn main() -> ExitCode {
    let cli = Cli::parse();
    match cli.command {
        Some(Command::Crds) => ExitCode::SUCCESS,
        None => nodeward_runtime::run(COMPONENT, cli.operator, Settings::parse, operate),
    }
}
