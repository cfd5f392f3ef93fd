//! What Ceph says, and what of it is true now. Pure.

pub mod answers;
#[cfg(test)]
mod damage;
pub mod freshness;
pub mod pg_health;
pub mod reckoning;
pub mod stop_check;
pub mod topology;

/// Number of an OSD.
pub type OsdId = i64;
