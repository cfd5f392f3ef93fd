//! ceph-pdb: keeps the disruption budgets of Rook-Ceph clusters true while nodes drain.

use std::process::ExitCode;

use ceph_pdb::operate::CephPdb;

fn main() -> ExitCode {
    nodeward_runtime::main::<CephPdb>()
}
