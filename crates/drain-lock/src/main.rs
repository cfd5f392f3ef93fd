//! drain-lock: drains of many nodes at once that never wedge each other.

use std::process::ExitCode;

use drain_lock::operate::DrainLock;

fn main() -> ExitCode {
    nodeward_runtime::main::<DrainLock>()
}
