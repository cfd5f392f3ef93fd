use std::collections::BTreeSet;
use std::sync::Arc;

use jiff::SignedDuration;
use nodeward_core::node::NodeView;
use nodeward_core::signal::{KindState, SignalInputs, Tristate, UpgradeSignal, WatchedResource};
use rstest::rstest;
use serde_json::{Value, json};

use super::Settings;
use crate::policy::Policy;

fn policy(text: &str) -> Policy {
    (*Settings::parse_with(text, None).unwrap().policy).clone()
}

#[test]
fn an_empty_file_is_all_defaults() {
    let policy = policy("");
    let peers = [
        "openshift-workload-availability",
        "node-healthcheck-operator-system",
        "operators",
        "openshift-operators",
    ];
    let defaults = Policy {
        upgrade_signal: UpgradeSignal::openshift_node(),
        lease_namespace: "medik8s-leases".into(),
        peer_namespaces: peers.map(Arc::from).into(),
        ceph_namespaces: BTreeSet::new(),
        settle: SignedDuration::from_secs(60),
        safety_pass: SignedDuration::from_secs(60),
        longest_maintenance: SignedDuration::from_hours(24),
        old_remediation: SignedDuration::from_hours(48),
        default_template: None,
    };
    assert_eq!(policy, defaults);
}

#[test]
fn every_field_is_read() {
    let policy = policy(
        "upgradeSignal: {node: {label: upgrading}}\n\
         leaseNamespace: leases\n\
         peer: {namespaces: [a, b]}\n\
         ceph: {namespaces: [rook-ceph]}\n\
         maintenance: {maxDuration: 4h}\n\
         oldRemediationAfter: 24h\n\
         settle: 2m\n\
         safetyPass: 30s\n\
         default:\n  enabled: true\n  remediationTemplate: {apiVersion: a/v1, kind: ATemplate, namespace: n, name: t}\n",
    );
    assert_eq!(policy.upgrade_signal.spec().to_string(), "node label upgrading");
    assert_eq!(&*policy.lease_namespace, "leases");
    assert_eq!(
        policy.peer_namespaces.iter().map(|name| &**name).collect::<Vec<_>>(),
        ["a", "b"]
    );
    assert_eq!(policy.ceph_namespaces, ["rook-ceph".into()].into());
    assert_eq!(policy.longest_maintenance, SignedDuration::from_hours(4));
    assert_eq!(policy.old_remediation, SignedDuration::from_hours(24));
    assert_eq!(policy.settle, SignedDuration::from_mins(2));
    assert_eq!(policy.safety_pass, SignedDuration::from_secs(30));
    assert_eq!(policy.default_template.unwrap().to_string(), "ATemplate n/t");
}

#[rstest]
#[case::file_before_environment("leaseNamespace: a", Some("b"), "a")]
#[case::environment_before_default("", Some("b"), "b")]
#[case::empty_environment_is_none("", Some(""), "medik8s-leases")]
fn lease_namespace_comes_from_file_then_environment(
    #[case] text: &str,
    #[case] environment: Option<&str>,
    #[case] expected: &str,
) {
    let settings = Settings::parse_with(text, environment.map(str::to_owned)).unwrap();
    assert_eq!(&*settings.policy.lease_namespace, expected);
}

#[rstest]
#[case::always("upgradeSignal: always", "upgradeSignal", "spec.pauseRequests")]
#[case::always_within(
    "upgradeSignal: {anyOf: [openshift, {allOf: [always]}]}",
    "upgradeSignal",
    "spec.pauseRequests"
)]
#[case::unknown_field("settles: 60s", "settles", "unknown field")]
#[case::unknown_field_of_the_default("default: {template: {}}", "default.template", "unknown field")]
#[case::zero("settle: 0s", "settle", "")]
#[case::capitals("leaseNamespace: Leases", "leaseNamespace", "cannot be the name of a namespace")]
#[case::no_namespace(
    "peer: {namespaces: [a, '']}",
    "peer.namespaces[1]",
    "cannot be the name of a namespace"
)]
#[case::no_namespace_of_ceph(
    "ceph: {namespaces: [Rook]}",
    "ceph.namespaces[0]",
    "cannot be the name of a namespace"
)]
#[case::unknown_field_of_ceph("ceph: {clusters: [rook]}", "ceph.clusters", "unknown field")]
#[case::enabled_without_template("default: {enabled: true}", "default.remediationTemplate", "is needed")]
#[case::no_template_kind(
    "default: {remediationTemplate: {apiVersion: a/v1, kind: A, namespace: n, name: t}}",
    "default.remediationTemplate.kind",
    "SelfNodeRemediationTemplate"
)]
#[case::empty_name(
    "default: {remediationTemplate: {apiVersion: a/v1, kind: ATemplate, namespace: n, name: ''}}",
    "default.remediationTemplate.name",
    "must not be empty"
)]
fn what_cannot_be_meant_is_refused_with_its_field(#[case] text: &str, #[case] field: &str, #[case] remedy: &str) {
    let error = Settings::parse_with(text, None).unwrap_err().to_string();
    assert!(error.contains(field) && error.contains(remedy), "{error}");
}

type Versions = KindState<Vec<Arc<Value>>>;

fn cluster_version(progressing: &str) -> Versions {
    let version = json!({
        "metadata": { "name": "version" },
        "status": { "conditions": [{ "type": "Progressing", "status": progressing }] },
    });
    KindState::Synced(vec![version.into()])
}

#[rstest]
#[case::elsewhere(KindState::Absent, json!({}), Tristate::No)]
#[case::at_rest(cluster_version("False"), json!({}), Tristate::No)]
#[case::cluster_upgrades(cluster_version("True"), json!({}), Tristate::Yes)]
#[case::node_is_reconfigured(cluster_version("False"), json!({
    "machineconfiguration.openshift.io/currentConfig": "a", "machineconfiguration.openshift.io/desiredConfig": "b",
}), Tristate::Yes)]
#[case::unreadable(KindState::Forbidden("no".into()), json!({}), Tristate::Unknown)]
fn by_default_openshift_tells_of_upgrades_and_nothing_elsewhere(
    #[case] versions: Versions,
    #[case] annotations: Value,
    #[case] truth: Tristate,
) {
    let mut inputs = SignalInputs::default();
    let kind = WatchedResource::all("config.openshift.io/v1", "ClusterVersion").named("version");
    inputs.insert(kind, versions);
    let node = json!({ "metadata": { "name": "n1", "annotations": annotations } });
    let node = NodeView::project(&serde_json::from_value(node).unwrap()).unwrap();
    assert_eq!(Policy::default().upgrade_signal.evaluate(&inputs, &node).truth, truth);
}
