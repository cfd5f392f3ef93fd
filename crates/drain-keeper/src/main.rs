//! drain-keeper: unblocks nodes that cannot drain during an upgrade, and says why a node is stuck.

use std::process::ExitCode;

use drain_keeper::operate::DrainKeeper;

fn main() -> ExitCode {
    nodeward_runtime::main::<DrainKeeper>()
}
