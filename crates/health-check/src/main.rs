//! health-check: creates remediations for nodes that stay unhealthy.

use std::process::ExitCode;

use health_check::operate::HealthCheck;

fn main() -> ExitCode {
    nodeward_runtime::main::<HealthCheck>()
}
