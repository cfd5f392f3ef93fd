//! Tables, by subject.

mod backoff;
mod ceph;
mod control_plane;
mod counting;
mod escalation;
mod gates;
mod gone;
mod leases;
mod leftovers;
mod may_start;
mod overdue;
mod pairs;
mod peer;
mod peer_faults;
mod promises;
mod properties;
mod recorded;
mod recovery;
mod repeats;
mod selector;
mod start;
mod status;
mod storm;
mod told;
mod under_way;
mod unlisted;
pub(crate) mod world;
