//! health-check on a real control plane: its binary, under the ServiceAccount that the chart installs. One binary, so that
//! all tests share one control plane, and most of them one operator.

mod ceph;
mod chains;
mod control_plane;
mod defaults;
mod drain_lock;
mod environment;
mod failures;
mod fault_injection;
mod faults;
mod gone;
mod leaders;
mod leftovers;
mod migration;
mod openshift;
mod others;
mod real_nodes;
mod recovery;
mod reload;
mod stops;
mod thresholds;
