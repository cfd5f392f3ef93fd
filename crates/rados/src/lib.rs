//! The few calls of librados that ceph-pdb needs: connect, ask the monitors and the manager, follow the cluster log.
//!
//! The library is loaded at run time, so that whatever links this crate starts without it and can say that it is missing. It
//! is never unloaded: its threads outlive a connection.
//!
//! All calls block. A call to a monitor ends after [`Options::timeout`]; a call to the manager has no timeout of its own (one
//! that times out inside librados leaves it with pointers into a stack that is gone), so it belongs on a thread that may hang.

mod cluster;
mod error;
mod ffi;
mod log;

pub use cluster::{Answer, Cluster, Options};
pub use error::Error;
pub use ffi::{ClusterStat, Librados};
pub use log::LogLine;
