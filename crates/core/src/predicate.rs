//! Facts about a pod in its drain.

use crate::pod::{Owner, PodSummary, PodView};

/// Values of the label `app` on pods of Ceph daemons, as Rook names them.
const CEPH_DAEMONS: [&str; 8] = [
    "rook-ceph-osd",
    "rook-ceph-mon",
    "rook-ceph-mgr",
    "rook-ceph-mds",
    "rook-ceph-rgw",
    "rook-ceph-rbd-mirror",
    "rook-ceph-filesystem-mirror",
    "rook-ceph-nfs",
];

/// Its place is on this node, drained or not.
pub fn belongs_to_node(pod: &PodView) -> bool {
    pod.mirror || pod.is_daemon()
}

/// Two copies of it could do harm if the node that cannot be asked still ran it.
pub fn must_not_run_twice(pod: &PodView) -> bool {
    let owner = pod.owner();
    pod.has_persistent_volume || matches!(owner, Owner::StatefulSet | Owner::Job) || owner.is_foreign()
}

/// It is a daemon of Ceph, which is not to be forced: its data or its quorum may depend on it, also while no budget says so,
/// as of the OSDs of a failure domain that Ceph's operator has left out of all budgets.
pub fn is_ceph_daemon(pod: &PodSummary) -> bool {
    pod.labels.get("app").is_some_and(|app| CEPH_DAEMONS.contains(&app))
}

#[cfg(test)]
mod tests {
    use rstest::rstest;
    use serde_json::{Value, json};

    use super::*;

    fn pod(metadata: Value, spec: Value, status: Value) -> PodView {
        let mut pod = json!({ "metadata": metadata, "spec": spec, "status": status });
        pod["metadata"]["namespace"] = "shop".into();
        pod["metadata"]["name"] = "web-0".into();
        pod["spec"]["containers"] = json!([]);
        PodView::project(&serde_json::from_value(pod).unwrap()).unwrap()
    }

    fn owned_by(api_version: &str, kind: &str) -> PodView {
        let owner = json!([{ "apiVersion": api_version, "kind": kind, "name": "o", "uid": "u", "controller": true }]);
        pod(json!({ "ownerReferences": owner }), json!({}), json!({}))
    }

    #[rstest]
    #[case::daemon_set(owned_by("apps/v1", "DaemonSet"), true)]
    #[case::mirror(pod(json!({ "annotations": { "kubernetes.io/config.mirror": "h" } }), json!({}), json!({})), true)]
    #[case::replica_set(owned_by("apps/v1", "ReplicaSet"), false)]
    #[case::unmanaged(pod(json!({}), json!({}), json!({})), false)]
    // A DaemonSet of another group is not one that drains leave alone.
    #[case::foreign_daemon_set(owned_by("apps.kruise.io/v1", "DaemonSet"), false)]
    fn daemon_sets_and_mirrors_belong_to_their_node(#[case] pod: PodView, #[case] belongs: bool) {
        assert_eq!(belongs_to_node(&pod), belongs);
    }

    #[rstest]
    #[case::osd("rook-ceph-osd", true)]
    #[case::monitor("rook-ceph-mon", true)]
    #[case::manager("rook-ceph-mgr", true)]
    #[case::metadata_server("rook-ceph-mds", true)]
    #[case::gateway("rook-ceph-rgw", true)]
    // They keep no data, and nothing waits for them.
    #[case::crash_collector("rook-ceph-crashcollector", false)]
    #[case::operator("rook-ceph-operator", false)]
    #[case::another("web", false)]
    fn ceph_daemons_are_told_by_rooks_label(#[case] app: &str, #[case] is_daemon: bool) {
        let pod = pod(json!({ "labels": { "app": app } }), json!({}), json!({}));
        assert_eq!(is_ceph_daemon(&pod), is_daemon);
    }

    #[rstest]
    #[case::stateful_set(owned_by("apps/v1", "StatefulSet"), true)]
    #[case::foreign_owner(owned_by("kubevirt.io/v1", "VirtualMachineInstance"), true)]
    #[case::volcanos_job(owned_by("batch.volcano.sh/v1alpha1", "Job"), true)]
    #[case::replica_set(owned_by("apps/v1", "ReplicaSet"), false)]
    #[case::job(owned_by("batch/v1", "Job"), true)]
    #[case::unmanaged(pod(json!({}), json!({}), json!({})), false)]
    #[case::claim(pod(json!({}), json!({ "volumes": [{ "name": "v", "persistentVolumeClaim": { "claimName": "c" } }] }), json!({})), true)]
    #[case::empty_dir(pod(json!({}), json!({ "volumes": [{ "name": "v", "emptyDir": {} }] }), json!({})), false)]
    fn state_identity_and_foreign_owners_must_not_run_twice(#[case] pod: PodView, #[case] must_not: bool) {
        assert_eq!(must_not_run_twice(&pod), must_not);
    }
}
