//! ceph-pdb keeps the disruption budgets of a Rook-Ceph cluster true while nodes drain.

pub mod ceph;
pub mod connection;
pub mod credentials;
pub mod plan;
pub mod snapshot;
pub mod state_map;
