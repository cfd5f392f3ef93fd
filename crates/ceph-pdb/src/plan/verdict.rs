//! How a CephCluster stands: what is published, and what else is reported.

use std::collections::BTreeMap;

use jiff::Timestamp;

use super::write::Owner;
use crate::snapshot::Namespace;
use nodeward_api::CephClusterState;

/// How all CephClusters stand.
pub type Verdicts = BTreeMap<Namespace, ClusterVerdict>;

/// How a CephCluster stands.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ClusterVerdict {
    /// The CephCluster.
    pub owner: Owner,
    /// What is published of it: the source of every explanation.
    pub state: CephClusterState,
    /// It is published as it is.
    pub is_published: bool,
    /// Placement groups by state, as Ceph said last.
    pub placement_groups: BTreeMap<String, i64>,
    /// States of placement groups that are not clean.
    pub unclean: BTreeMap<String, i64>,
    /// OSDs by failure domain; those of an unknown one are under the empty name.
    pub osds: BTreeMap<String, OsdCounts>,
    /// When Ceph was asked for what it said last.
    pub asked_at: Option<Timestamp>,
}

/// OSDs of a failure domain.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct OsdCounts {
    /// That run.
    pub up: i64,
    /// That are down.
    pub down: i64,
    /// On nodes that are being drained, up or down.
    pub draining: i64,
}
