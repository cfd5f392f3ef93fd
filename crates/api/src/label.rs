//! Labels that Nodeward reads or writes.

/// On a Pod: how a drain treats it.
pub const DRAIN: &str = "nodeward.dev/drain";

/// On a PodDisruptionBudget: whether its pods may be forced, [`FORCE_DRAIN_ALLOWED`] or [`FORCE_DRAIN_NEVER`]. Any other value counts
/// as the latter.
pub const FORCE_DRAIN: &str = "nodeward.dev/force-drain";

/// The value of [`FORCE_DRAIN`] by which its owner lets the budget be overridden.
pub const FORCE_DRAIN_ALLOWED: &str = "allowed";

/// The value of [`FORCE_DRAIN`] that keeps every strategy from the budget's pods.
pub const FORCE_DRAIN_NEVER: &str = "never";

/// On a Node: it runs a member of etcd. Where no node has it, the control-plane nodes do.
pub const ETCD_ROLE: &str = "node-role.kubernetes.io/etcd";

/// Any of these on a Node makes it a control-plane node: it runs the API server, or a member of etcd.
pub const CONTROL_PLANE_ROLES: [&str; 4] = [
    "node-role.kubernetes.io/control-plane",
    "node-role.kubernetes.io/master",
    ETCD_ROLE,
    "node-role.kubernetes.io/arbiter",
];

/// On a Pod: what Cluster API does with it when it drains its node, `skip` or `wait-completed`
/// (`PodDrainLabel` of <https://pkg.go.dev/sigs.k8s.io/cluster-api/api/core/v1beta1>).
pub const CLUSTER_API_DRAIN: &str = "cluster.x-k8s.io/drain";

/// On a Node: it is a worker. What a NodeHealthCheck without a selector selects.
pub const WORKER_ROLE: &str = "node-role.kubernetes.io/worker";

/// On a Node, with the value [`EXCLUDE_FROM_REMEDIATION_TRUE`]: no remediation of it starts or escalates.
pub const EXCLUDE_FROM_REMEDIATION: &str = "remediation.medik8s.io/exclude-from-remediation";

/// The value of [`EXCLUDE_FROM_REMEDIATION`] that means it.
pub const EXCLUDE_FROM_REMEDIATION_TRUE: &str = "true";

/// On a remediation, with an empty value: its node is a control-plane node.
pub const IS_CONTROL_PLANE_NODE: &str = "remediation.medik8s.io/isControlPlaneNode";

/// On a remediation, with the value [`PART_OF_NODE_HEALTH_CHECK`]: a NodeHealthCheck's controller created it.
pub const PART_OF: &str = "app.kubernetes.io/part-of";

/// The value of [`PART_OF`] on remediations.
pub const PART_OF_NODE_HEALTH_CHECK: &str = "node-healthcheck-controller";

/// On an object that a component of ours writes, with the component's name as value: who keeps it as it is.
pub const MANAGED_BY: &str = "app.kubernetes.io/managed-by";

/// The value of [`MANAGED_BY`] on the budgets of ceph-pdb.
pub const MANAGED_BY_CEPH_PDB: &str = "nodeward-ceph-pdb";
