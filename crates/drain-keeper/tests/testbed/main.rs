//! drain-keeper on a real control plane: its release binary, under the ServiceAccount that the chart installs. One
//! binary, so that all tests share one control plane; each has nodes, namespaces and an operator of its own.

mod flapping;
mod place;
mod strategies;
