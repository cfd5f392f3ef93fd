//! The objects that Rook keeps for a cluster, as far as anyone looks at them.

use anyhow::Result;
use kube::ResourceExt;
use kube::api::DynamicObject;
use serde_json::{Value, json};

use super::{CLUSTER, OSD_ID};
use crate::ceph::Ceph;

/// What they are made from.
pub(super) struct Objects<'a> {
    pub(super) namespace: &'a str,
    /// The CephCluster.
    pub(super) owner: &'a DynamicObject,
    pub(super) ceph: &'a Ceph,
    /// The node of all daemons but OSDs.
    pub(super) other_node: &'a str,
}

/// A CephCluster's body with Rook's manager of budgets off.
pub(super) fn cluster_spec(mons: usize) -> Value {
    json!({
        "spec": {
            "cephVersion": {"image": "quay.io/ceph/ceph:v16.2.15"},
            "dataDirHostPath": "/var/lib/rook",
            "mon": {"count": mons, "allowMultiplePerNode": true},
            "mgr": {"count": 1},
            "disruptionManagement": {"managePodBudgets": false},
            "storage": {"useAllNodes": true, "useAllDevices": true},
        },
        "status": {"phase": "Ready", "state": "Created"},
    })
}

/// The Secret of a CephClient.
pub(super) fn user_secret(namespace: &str, owner: &DynamicObject, name: &str, key: &str) -> Value {
    let data = json!({name: key, "userID": name, "userKey": key, "adminID": name, "adminKey": key});
    secret(namespace, owner, &format!("rook-ceph-client-{name}"), &data)
}

fn secret(namespace: &str, owner: &DynamicObject, name: &str, data: &Value) -> Value {
    json!({
        "metadata": {"name": name, "namespace": namespace, "ownerReferences": [owned_by(owner)]},
        "type": "kubernetes.io/rook",
        "stringData": data,
    })
}

fn owned_by(owner: &DynamicObject) -> Value {
    let types = owner.types.as_ref();
    json!({
        "apiVersion": types.map(|types| &types.api_version),
        "kind": types.map(|types| &types.kind),
        "name": owner.name_any(),
        "uid": owner.uid(),
        "controller": true,
        "blockOwnerDeletion": true,
    })
}

impl Objects<'_> {
    /// Who the administrator is.
    pub(super) async fn mon_secret(&self) -> Result<Value> {
        let admin = self.ceph.admin();
        let fsid = self.ceph.command(json!({"prefix": "fsid"})).await?;
        let data = json!({
            "cluster-name": self.namespace,
            "fsid": fsid["fsid"],
            "ceph-username": admin.user,
            "ceph-secret": admin.key,
            "mon-secret": admin.key,
        });
        Ok(secret(self.namespace, self.owner, "rook-ceph-mon", &data))
    }

    /// How the monitors are reached.
    pub(super) fn config_secret(&self) -> Value {
        let names: Vec<String> = self.mon_names().collect();
        let data = json!({"mon_host": self.ceph.admin().mon_host, "mon_initial_members": names.join(",")});
        secret(self.namespace, self.owner, "rook-ceph-config", &data)
    }

    /// The same, as Rook itself remembers it.
    pub(super) fn mon_endpoints(&self) -> Value {
        let addresses = self.ceph.admin().mon_host.replace("[v2:", "").replace(']', "");
        let named: Vec<String> = self
            .mon_names()
            .zip(addresses.split(','))
            .map(|(name, address)| format!("{name}={address}"))
            .collect();
        json!({
            "metadata": {
                "name": "rook-ceph-mon-endpoints", "namespace": self.namespace,
                "ownerReferences": [owned_by(self.owner)],
            },
            "data": {"data": named.join(","), "mapping": "{\"node\":{}}", "maxMonId": "0", "outOfQuorum": ""},
        })
    }

    fn mon_names(&self) -> impl Iterator<Item = String> {
        ('a'..='z').take(self.ceph.options().mons).map(String::from)
    }

    /// The Deployments of the monitors.
    pub(super) fn mons(&self) -> Vec<Value> {
        let deployment = |name: String| {
            let labels = json!({"mon": name, "ceph_daemon_id": name, "ceph_daemon_type": "mon", "mon_daemon": "true"});
            self.deployment("rook-ceph-mon", &name, labels, self.other_node, &json!({}))
        };
        self.mon_names().map(deployment).collect()
    }

    /// The Deployment of the manager.
    pub(super) fn mgr(&self) -> Value {
        let labels = json!({"mgr": "a", "ceph_daemon_id": "a", "ceph_daemon_type": "mgr", "mgr_role": "active"});
        self.deployment("rook-ceph-mgr", "a", labels, self.other_node, &json!({}))
    }

    /// The Deployment of an OSD, bound to its host for ever.
    pub(super) fn osd(&self, osd: usize) -> Value {
        let (id, options) = (osd.to_string(), self.ceph.options());
        let host = options.host_of(osd);
        let labels = json!({
            OSD_ID: id,
            "osd": id,
            "ceph_daemon_id": id,
            "ceph_daemon_type": "osd",
            "failure-domain": host,
            "portable": options.are_portable.to_string(),
            "device-class": "hdd",
            "topology-location-root": "default",
            "topology-location-host": options.bucket_of(osd),
            "topology-location-rack": options.rack_of(osd),
        });
        // Their pods start and end as the processes do.
        let annotations = json!({"testbed.nodeward.dev/start": "never-started", "testbed.nodeward.dev/end": "stuck"});
        self.deployment("rook-ceph-osd", &id, labels, &host, &annotations)
    }

    fn deployment(&self, app: &str, id: &str, mut labels: Value, node: &str, annotations: &Value) -> Value {
        labels["app"] = json!(app);
        labels["rook_cluster"] = json!(self.namespace);
        labels["app.kubernetes.io/part-of"] = json!(CLUSTER);
        let selector = json!({"app": app, "rook_cluster": self.namespace, "ceph_daemon_id": id});
        json!({
            "metadata": {
                "name": format!("{app}-{id}"), "namespace": self.namespace, "labels": labels,
                "ownerReferences": [owned_by(self.owner)],
            },
            "spec": {
                "replicas": 1,
                "strategy": {"type": "Recreate"},
                "selector": {"matchLabels": selector},
                "template": {
                    "metadata": {"labels": labels, "annotations": annotations},
                    "spec": {
                        "nodeSelector": {"kubernetes.io/hostname": node},
                        "containers": [{"name": app.trim_start_matches("rook-ceph-"), "image": "quay.io/ceph/ceph:v16.2.15"}],
                        "automountServiceAccountToken": false,
                    },
                },
            },
        })
    }
}
