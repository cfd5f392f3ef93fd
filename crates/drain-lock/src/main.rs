//! drain-lock: drains of many nodes at once that never wedge each other.

use std::process::ExitCode;

use clap::Parser;
use drain_lock::operate::operate;
use drain_lock::settings::Settings;
use nodeward_runtime::{Component, OperatorArgs};

const COMPONENT: Component = Component::new("drain-lock", env!("CARGO_PKG_VERSION"));

#[derive(Parser)]
#[command(name = "drain-lock", version, about)]
struct Cli {
    #[command(flatten)]
    operator: OperatorArgs,
}

fn main() -> ExitCode {
    let cli = Cli::parse();
    nodeward_runtime::run(COMPONENT, cli.operator, Settings::parse, operate)
}
