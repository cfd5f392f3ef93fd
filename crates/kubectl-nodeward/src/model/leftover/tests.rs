use rstest::rstest;
use serde_json::{Value, json};
use strum::IntoEnumIterator as _;

use super::*;

/// What was found, as `component: what (objects)`.
fn said(leftovers: &[Leftover]) -> Vec<String> {
    let said = leftovers.iter();
    said.map(|one| format!("{}: {} ({})", one.component, one.what, one.objects.join(", ")))
        .collect()
}

fn sorted(add: impl FnOnce(&mut Leftovers)) -> (Vec<String>, Vec<String>) {
    let mut found = Leftovers::default();
    add(&mut found);
    let (blocks, stays) = found.sorted();
    (said(&blocks), said(&stays))
}

fn read<T: serde::de::DeserializeOwned>(object: Value) -> T {
    serde_json::from_value(object).unwrap()
}

const ADDED: &str = "2026-01-01T10:00:00Z";

fn cordon(added: &str) -> Value {
    let taint = json!({ "key": "node.kubernetes.io/unschedulable", "effect": "NoSchedule", "timeAdded": added });
    json!({ "unschedulable": true, "taints": [taint] })
}

const CORDON: &str = "drain-lock: cordon by drain-lock (n1)";
const RECORD: &str = "drain-lock: annotation nodeward.dev/cordoned-by without a cordon by drain-lock (n1)";

#[rstest]
#[case::of_nobody(json!({}), cordon(ADDED), json!([]), &[], &[])]
#[case::own_cordon(json!({ "nodeward.dev/cordoned-by": "uid@2026-01-01T10:00:00Z" }), cordon(ADDED), json!([]), &[CORDON], &[])]
#[case::own_cordon_of_an_earlier_version(
    json!({ "nodeward.dev/cordoned-by": "uid" }), cordon(ADDED), json!([]), &[CORDON], &[]
)]
#[case::cordoned_again_by_another(
    json!({ "nodeward.dev/cordoned-by": "uid@2026-01-01T10:00:00Z" }), cordon("2026-01-01T11:00:00Z"), json!([]), &[], &[RECORD]
)]
#[case::uncordoned(json!({ "nodeward.dev/cordoned-by": "uid@2026-01-01T10:00:00Z" }), json!({}), json!([]), &[], &[RECORD])]
#[case::kept_from_karpenter(
    json!({ "nodeward.dev/do-not-disrupt-by": "drain-lock" }), json!({}), json!([]),
    &["drain-lock: annotation nodeward.dev/do-not-disrupt-by, with karpenter.sh/do-not-disrupt (n1)"], &[]
)]
#[case::in_the_queue(
    json!({}), json!({ "taints": [{ "key": "nodeward.dev/queued", "effect": "PreferNoSchedule" }] }), json!([]),
    &[], &["drain-lock: taint nodeward.dev/queued:PreferNoSchedule (n1)"]
)]
#[case::told_by_all(
    json!({ "nodeward.dev/drain-clock": "{}", "nodeward.dev/remediations": "{}" }), json!({}),
    json!([
        { "type": "DrainInProgress", "status": "True", "reason": "DrainLockDraining" },
        { "type": "nodeward.dev/DrainBlocked", "status": "False" },
    ]),
    &[],
    &[
        "drain-lock: conditions DrainInProgress and Drained (n1)",
        "drain-keeper: annotation nodeward.dev/drain-clock (n1)",
        "drain-keeper: condition nodeward.dev/DrainBlocked (n1)",
        "health-check: annotation nodeward.dev/remediations (n1)",
    ]
)]
#[case::condition_of_another(
    json!({}), json!({}), json!([{ "type": "DrainInProgress", "status": "True", "reason": "NodeController" }]), &[], &[]
)]
fn node_has_what_drains_and_remediations_leave(
    #[case] annotations: Value,
    #[case] spec: Value,
    #[case] conditions: Value,
    #[case] blocks: &[&str],
    #[case] stays: &[&str],
) {
    let node: Node = read(json!({
        "metadata": { "name": "n1", "annotations": annotations }, "spec": spec, "status": { "conditions": conditions },
    }));
    let found = sorted(|found| found.add_node(&node));
    assert_eq!(
        (found.0.as_slice(), found.1.as_slice()),
        (&owned(blocks)[..], &owned(stays)[..])
    );
}

fn owned(texts: &[&str]) -> Vec<String> {
    texts.iter().map(|&text| text.to_owned()).collect()
}

#[test]
fn drains_block_by_their_finalizer_and_their_claims() {
    let drain = |name: &str, finalizers: Value| -> NodeDrain {
        read(json!({ "metadata": { "name": name, "finalizers": finalizers }, "spec": { "nodeName": name } }))
    };
    let mut ledger = Ledger::default();
    ledger.enqueue("n2", "uid", false, ADDED.parse().unwrap());
    let found = sorted(|found| {
        found.add_drain(&drain("n2", json!(["nodeward.dev/drain-lock"])));
        found.add_drain(&drain("n1", json!(["example.com/other", "nodeward.dev/drain-lock"])));
        found.add_drain(&drain("n3", json!(["example.com/other"])));
        found.add_claims(&ledger);
    });
    let blocks = [
        "drain-lock: NodeDrain with the finalizer nodeward.dev/drain-lock (n1, n2)",
        "drain-lock: claim in the DrainLedger (n2)",
    ];
    assert_eq!(
        found,
        (
            owned(&blocks),
            owned(&["drain-lock: NodeDrain that drain-lock has not begun (n3)"])
        )
    );
}

#[rstest]
#[case::of_nobody(json!({}), json!({}), 0, &[], &[])]
#[case::closed(
    json!({ "app.kubernetes.io/managed-by": "nodeward-ceph-pdb" }), json!({}), 0,
    &["ceph-pdb: closed budget of ceph-pdb (shop/web)"], &[]
)]
#[case::open(
    json!({ "app.kubernetes.io/managed-by": "nodeward-ceph-pdb" }), json!({}), 1,
    &["ceph-pdb: open budget of ceph-pdb (shop/web)"], &[]
)]
#[case::annotated(
    json!({}),
    json!({ "nodeward.dev/hold": "mine", "nodeward.dev/hold-until": "t", "nodeward.dev/locked-by": "n1", "nodeward.dev/last-override": "{}" }),
    0, &[],
    &[
        "drain-lock: annotation nodeward.dev/hold-until (shop/web)",
        "drain-lock: annotation nodeward.dev/locked-by (shop/web)",
        "drain-keeper: annotation nodeward.dev/last-override (shop/web)",
    ]
)]
fn budget_of_ceph_pdb_is_to_be_handed_back(
    #[case] labels: Value,
    #[case] annotations: Value,
    #[case] max_unavailable: i32,
    #[case] blocks: &[&str],
    #[case] stays: &[&str],
) {
    let budget: PodDisruptionBudget = read(json!({
        "metadata": { "name": "web", "namespace": "shop", "labels": labels, "annotations": annotations },
        "spec": { "maxUnavailable": max_unavailable },
    }));
    assert_eq!(sorted(|found| found.add_budget(&budget)), (owned(blocks), owned(stays)));
}

#[test]
fn running_remediation_and_noout_block() {
    let check: NodeHealthCheck = read(json!({
        "metadata": { "name": "workers" }, "spec": { "selector": {} },
        "status": { "unhealthyNodes": [
            { "name": "n1", "remediations": [{
                "resource": { "apiVersion": "a/v1", "kind": "Fence", "name": "n1" }, "started": ADDED,
            }] },
            { "name": "n2" },
        ] },
    }));
    let state = json!({
        "cluster": "rook", "disruptions": "Open", "since": ADDED, "reason": "AllClean", "noout": { "host-a": ADDED },
    });
    let map: k8s_openapi::api::core::v1::ConfigMap = read(json!({
        "metadata": { "name": "nodeward-ceph-pdb", "namespace": "rook-ceph" }, "data": { "state": state.to_string() },
    }));
    let found = sorted(|found| {
        found.add_health_check(&check);
        found.add_ceph_cluster(&CephCluster::of(&map).unwrap());
    });
    let blocks = [
        "health-check: running remediation (n1)",
        "ceph-pdb: flag noout by ceph-pdb (rook-ceph/rook: host-a)",
    ];
    let stays = [
        "health-check: NodeHealthCheck (workers)",
        "ceph-pdb: ConfigMap nodeward-ceph-pdb (rook-ceph/nodeward-ceph-pdb)",
    ];
    assert_eq!(found, (owned(&blocks), owned(&stays)));
}

#[rstest]
#[case::fails_open("Ignore", true, &[], &[])]
#[case::fails_open_and_is_left("Ignore", false, &[], &["drain-lock: webhook whose Service is gone (nodeward-drain-lock)"])]
#[case::fails_closed("Fail", true, &["drain-lock: webhook whose failurePolicy is not Ignore (nodeward-drain-lock)"], &[])]
#[case::fails_closed_and_is_left(
    "Fail", false, &["drain-lock: webhook whose failurePolicy is not Ignore (nodeward-drain-lock)"], &[]
)]
fn webhook_blocks_where_it_fails_closed(
    #[case] policy: &str,
    #[case] is_served: bool,
    #[case] blocks: &[&str],
    #[case] stays: &[&str],
) {
    let webhook = |policy: &str| json!({ "name": "a.b.c", "sideEffects": "None", "admissionReviewVersions": ["v1"], "clientConfig": {}, "failurePolicy": policy });
    let configuration: ValidatingWebhookConfiguration = read(json!({
        "metadata": { "name": "nodeward-drain-lock", "labels": { "app.kubernetes.io/component": "drain-lock" } },
        "webhooks": [webhook("Ignore"), webhook(policy)],
    }));
    let found = sorted(|found| found.add_webhook(&configuration, is_served));
    assert_eq!(found, (owned(blocks), owned(stays)));
}

/// What is removed with its CRD does not stay; what a finalizer keeps blocks all the same.
#[rstest]
#[case::kept(json!({ "meta.helm.sh/release-name": "nodeward", "helm.sh/resource-policy": "keep" }), true)]
#[case::applied_by_hand(json!({}), true)]
#[case::of_the_release_alone(json!({ "meta.helm.sh/release-name": "nodeward" }), false)]
fn objects_go_with_a_crd_that_is_not_kept(#[case] annotations: Value, #[case] is_kept: bool) {
    let definition = |name: &str| -> kube::core::PartialObjectMeta<NodeDrain> {
        read(json!({ "metadata": { "name": name, "annotations": annotations } }))
    };
    let hold: nodeward_api::DisruptionHold = read(json!({
        "metadata": { "name": "h", "namespace": "shop" }, "spec": { "pdbRef": "web", "reason": "r" },
    }));
    let drain: NodeDrain = read(json!({
        "metadata": { "name": "n1", "finalizers": ["nodeward.dev/drain-lock"] }, "spec": { "nodeName": "n1" },
    }));
    let (blocks, stays) = sorted(|found| {
        found.add_drain(&drain);
        found.add_object(DRAIN_LOCK, Kind::Hold, &hold);
        for name in ["nodedrains.nodeward.dev", "disruptionholds.nodeward.dev"] {
            found.add_definition(DRAIN_LOCK, &definition(name));
        }
    });
    assert_eq!(blocks.len(), 1);
    let expected = [
        "drain-lock: DisruptionHold (shop/h)",
        "drain-lock: CustomResourceDefinition (disruptionholds.nodeward.dev, nodedrains.nodeward.dev)",
    ];
    assert_eq!(stays, if is_kept { owned(&expected) } else { Vec::new() });
}

#[test]
fn leases_are_of_their_component() {
    let lease = |name: &str| -> k8s_openapi::api::coordination::v1::Lease {
        read(json!({ "metadata": { "name": name, "namespace": "nodeward-system" } }))
    };
    let found = sorted(|found| {
        for name in ["drain-lock", "drain-lock-dry-run", "ceph-pdb"] {
            found.add_lease(&lease(name));
        }
    });
    let stays = [
        "ceph-pdb: Lease (nodeward-system/ceph-pdb)",
        "drain-lock: Lease (nodeward-system/drain-lock, nodeward-system/drain-lock-dry-run)",
    ];
    assert_eq!(found, (Vec::new(), owned(&stays)));
}

/// The page for users has each of them.
#[test]
fn whatever_stays_is_in_the_table_of_the_documentation() {
    let page = include_str!("../../../../../docs/install.md").replace('`', "");
    for kind in Kind::iter() {
        let (_, what, why, _) = kind.words();
        assert!(why.is_some() || page.contains(what), "{what}");
    }
}
