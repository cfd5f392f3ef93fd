//! ceph-pdb keeps the disruption budgets of a Rook-Ceph cluster true while nodes drain.

pub mod ceph;
pub mod plan;
pub mod snapshot;
