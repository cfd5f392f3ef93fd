//! CephClusters, field by field: one that cannot be read leaves the others as they are.

use jiff::SignedDuration;
use kube::ResourceExt;
use kube::core::DynamicObject;
use serde::de::DeserializeOwned;
use serde_json::Value;

use crate::ceph::pg_health::CleanPattern;
use crate::snapshot::CephClusterFacts;

/// Monitors, where the CephCluster names no number: what Rook takes then.
const DEFAULT_MONS: i32 = 3;

/// Managers, likewise.
const DEFAULT_MGRS: i32 = 1;

/// What is read of a CephCluster.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct ClusterObject {
    pub(super) facts: CephClusterFacts,
    /// How many monitors it asks for.
    pub(super) mons: i32,
    /// How many managers.
    pub(super) mgrs: i32,
    /// Its daemons talk encrypted.
    pub(super) is_encrypted: bool,
}

impl ClusterObject {
    /// Reads one; `None` without a namespace.
    pub(super) fn project(object: &DynamicObject) -> Option<Self> {
        let mut spec = SpecReader::new(object);
        let clean_pattern = spec.clean_pattern();
        let minutes = |minutes: i64| SignedDuration::try_from_mins(minutes);
        let facts = CephClusterFacts {
            namespace: object.namespace()?.into(),
            name: object.name_any().into(),
            uid: object.uid().unwrap_or_default().into(),
            is_deleting: object.metadata.deletion_timestamp.is_some(),
            is_external: spec.read("/external/enable").unwrap_or_default(),
            // What cannot be read may be `true`, and two managers would fight.
            is_managed_by_rook: spec.read_or("/disruptionManagement/managePodBudgets", false, true),
            osd_maintenance_timeout: spec
                .read("/disruptionManagement/osdMaintenanceTimeout")
                // Rook takes 0 for its default.
                .filter(|timeout| *timeout != 0)
                .and_then(minutes),
            pg_health_check_timeout: spec
                .read("/disruptionManagement/pgHealthCheckTimeout")
                .and_then(minutes),
            clean_pattern,
            unreadable: Vec::new(),
        };
        let mut cluster = Self {
            facts,
            mons: spec.count("/mon/count", DEFAULT_MONS),
            mgrs: spec.count("/mgr/count", DEFAULT_MGRS),
            is_encrypted: spec.read("/network/connections/encryption/enabled").unwrap_or_default(),
        };
        cluster.facts.unreadable = spec.unreadable;
        Some(cluster)
    }
}

/// Reads the fields of a `spec`, and notes those that it cannot read.
pub(super) struct SpecReader<'a> {
    spec: &'a Value,
    unreadable: Vec<String>,
}

impl<'a> SpecReader<'a> {
    pub(super) fn new(object: &'a DynamicObject) -> Self {
        Self {
            spec: object.data.get("spec").unwrap_or(&Value::Null),
            unreadable: Vec::new(),
        }
    }

    /// The field, which is absent too where it cannot be read.
    pub(super) fn read<T: DeserializeOwned>(&mut self, path: &str) -> Option<T> {
        self.try_read(path).ok().flatten()
    }

    fn read_or<T: DeserializeOwned>(&mut self, path: &str, absent: T, unreadable: T) -> T {
        self.try_read(path).map_or(unreadable, |value| value.unwrap_or(absent))
    }

    /// A number of daemons; none is as good as absent.
    fn count(&mut self, path: &str, absent: i32) -> i32 {
        self.read(path).filter(|count| *count > 0).unwrap_or(absent)
    }

    fn try_read<T: DeserializeOwned>(&mut self, path: &str) -> Result<Option<T>, ()> {
        let Some(value) = self.spec.pointer(path) else {
            return Ok(None);
        };
        serde_json::from_value(value.clone()).map_err(|error| self.refuse(path, &error.to_string()))
    }

    /// The cluster's own pattern, or else the usual one.
    fn clean_pattern(&mut self) -> CleanPattern {
        let path = "/disruptionManagement/pgHealthyRegex";
        let own: Option<String> = self.read(path);
        CleanPattern::new(own.as_deref()).unwrap_or_else(|error| {
            self.refuse(path, &error.to_string());
            CleanPattern::default()
        })
    }

    fn refuse(&mut self, path: &str, why: &str) {
        self.unreadable.push(format!("spec{}: {why}", path.replace('/', ".")));
    }
}

#[cfg(test)]
mod tests {
    use rstest::rstest;
    use serde_json::json;

    use super::*;

    fn cluster(spec: Value) -> ClusterObject {
        let object = json!({
            "apiVersion": "ceph.rook.io/v1", "kind": "CephCluster",
            "metadata": { "namespace": "rook-ceph", "name": "rook-ceph", "uid": "u1" },
            "spec": spec,
        });
        ClusterObject::project(&serde_json::from_value(object).unwrap()).unwrap()
    }

    #[test]
    fn all_that_matters_is_read() {
        let cluster = cluster(json!({
            "mon": { "count": 5 },
            "mgr": { "count": 2 },
            "network": { "connections": { "encryption": { "enabled": true } } },
            "disruptionManagement": {
                "managePodBudgets": false,
                "osdMaintenanceTimeout": 45,
                "pgHealthCheckTimeout": 10,
                "pgHealthyRegex": "^active",
            },
        }));
        let facts = &cluster.facts;
        assert_eq!((&*facts.namespace, &*facts.uid), ("rook-ceph", "u1"));
        assert!(!facts.is_managed_by_rook && !facts.is_external && !facts.is_deleting);
        assert_eq!(facts.osd_maintenance_timeout, Some(SignedDuration::from_mins(45)));
        assert_eq!(facts.pg_health_check_timeout, Some(SignedDuration::from_mins(10)));
        assert_eq!(Ok(&facts.clean_pattern), CleanPattern::new(Some("^active")).as_ref());
        assert_eq!((cluster.mons, cluster.mgrs, cluster.is_encrypted), (5, 2, true));
        assert_eq!(facts.unreadable, Vec::<String>::new());
    }

    #[test]
    fn absent_fields_have_the_defaults_of_rook() {
        let cluster = cluster(json!({}));
        assert_eq!((cluster.mons, cluster.mgrs, cluster.is_encrypted), (3, 1, false));
        assert!(!cluster.facts.is_managed_by_rook);
        assert_eq!(cluster.facts.osd_maintenance_timeout, None);
    }

    #[test]
    fn maintenance_timeout_of_zero_is_the_default() {
        let facts = cluster(json!({ "disruptionManagement": { "osdMaintenanceTimeout": 0 } })).facts;
        assert_eq!((facts.osd_maintenance_timeout, facts.unreadable.len()), (None, 0));
    }

    #[rstest]
    #[case(json!({ "osdMaintenanceTimeout": "30m" }), "spec.disruptionManagement.osdMaintenanceTimeout: invalid type")]
    #[case(json!({ "pgHealthyRegex": "(" }), "spec.disruptionManagement.pgHealthyRegex: regex parse error")]
    fn unreadable_field_is_named_and_absent(#[case] management: Value, #[case] named: &str) {
        let facts = cluster(json!({ "disruptionManagement": management })).facts;
        assert!(facts.unreadable[0].starts_with(named), "{:?}", facts.unreadable);
        assert_eq!(facts.osd_maintenance_timeout, None);
        assert_eq!(facts.clean_pattern, CleanPattern::default());
    }

    #[test]
    fn unreadable_switch_leaves_the_budgets_to_rook() {
        let facts = cluster(json!({ "disruptionManagement": { "managePodBudgets": "no" } })).facts;
        assert!(facts.is_managed_by_rook);
    }
}
