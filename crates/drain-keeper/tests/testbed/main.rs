//! drain-keeper on a real control plane: its release binary, under the ServiceAccount that the chart installs. One
//! binary, so that all tests share one control plane; each has nodes, namespaces and an operator of its own.

mod chart;
mod configuration;
mod dry_run;
mod environment;
mod explanations;
mod fault_injection;
mod faults;
mod flapping;
mod holds;
mod leaders;
mod migration;
mod openshift;
mod opt_outs;
mod pause;
mod presets;
mod prometheus;
mod real_nodes;
mod remediations;
mod requests;
mod strategies;
mod surge;
mod windows;
