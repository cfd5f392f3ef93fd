//! ceph-pdb on a real control plane and a real Ceph: its binary, under the ServiceAccount that the chart installs. All tests
//! share the control plane; each has a Ceph, nodes, a namespace and an operator of its own.

mod at_rest;
mod drains;
mod emergency;
mod environment;
mod evictor;
mod failures;
mod faults;
mod foreign_budgets;
mod hand_over;
mod leaders;
mod noout;
mod outages;
mod replacements;
mod topology;
