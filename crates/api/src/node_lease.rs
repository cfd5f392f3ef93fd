//! The lease by which those who drain and those who remediate a node keep out of each other's way, as medik8s has it
//! (<https://github.com/medik8s/common>, package `lease`).

/// The namespace of the leases, unless told otherwise.
pub const DEFAULT_NAMESPACE: &str = "medik8s-leases";

/// How the holder of a lease begins who remediates its node: the NodeHealthCheck's name follows.
pub const REMEDIATION_HOLDER_PREFIX: &str = "NodeHealthCheck-";

/// The lease of whoever takes a control-plane node down: one at a time, whatever program does it.
pub const CONTROL_PLANE: &str = "nodeward-control-plane";

/// Name of a node's lease.
pub fn name_of(node: &str) -> String {
    format!("node-{node}")
}

/// The holder of a node's lease while it is remediated for a NodeHealthCheck.
pub fn holder_of(node_health_check: &str) -> String {
    format!("{REMEDIATION_HOLDER_PREFIX}{node_health_check}")
}
