use nodeward_core::id::NamespacedName;
use rstest::rstest;
use serde_json::json;

use std::collections::BTreeSet;

use super::*;

fn objects<V: Clone>(values: &[(&str, V)]) -> Known<V> {
    let objects = values
        .iter()
        .map(|(name, value)| (NamespacedName::new("ns", *name), Arc::new(value.clone())));
    Known::Objects(Arc::new(objects.collect()))
}

const WHY: &str = "may not be listed";

fn unknown<V>() -> Known<V> {
    Known::Unknown(WHY.to_owned())
}

fn names(known: Known<NodeName>) -> Reading<BTreeSet<NodeName>> {
    read(known, |objects| objects.values().map(|node| (**node).clone()).collect())
}

#[test]
fn absent_kind_is_known_to_have_no_objects() {
    assert_eq!(names(Known::Absent), Reading::Known(BTreeSet::new()));
    assert_eq!(
        names(objects(&[("a", "n1".into())])),
        Reading::Known(["n1".into()].into())
    );
    assert_eq!(names(unknown()), Reading::Unknown(WHY.to_owned()));
    assert_eq!(etcd_guards(Known::Absent, None), Reading::Known(None));
}

/// Without knowing what guards etcd, no control-plane node is rebooted.
#[rstest]
#[case::whether_it_is_openshift(unknown(), None)]
#[case::whether_it_still_is_openshift(unknown(), Some((objects(&[]), objects(&[]))))]
#[case::budgets(objects(&[("version", ())]), Some((unknown(), objects(&[]))))]
#[case::guards(objects(&[("version", ())]), Some((objects(&[]), unknown())))]
fn etcd_guards_are_unknown_while_one_source_is(#[case] cluster_version: Known<()>, #[case] etcd: Option<EtcdSources>) {
    assert_eq!(etcd_guards(cluster_version, etcd), Reading::Unknown(WHY.to_owned()));
}

#[test]
fn etcd_guards_are_budgets_and_pods() {
    let openshift = || objects(&[("version", ())]);
    let guards = objects(&[("guard", (NodeName::from("n1"), true))]);
    let expected = EtcdGuards {
        disruptions_allowed: vec![1],
        guards: [(NodeName::from("n1"), true)].into(),
    };
    let found = etcd_guards(openshift(), Some((objects(&[("pdb", 1)]), guards)));
    assert_eq!(found, Reading::Known(Some(expected)));
    let found = etcd_guards(openshift(), Some((Known::Absent, objects(&[]))));
    assert_eq!(found, Reading::Known(Some(EtcdGuards::default())), "nothing is safe");
}

#[test]
fn drain_that_cannot_be_read_is_known_to_be_there() {
    let object = json!({
        "apiVersion": "nodeward.dev/v1alpha1", "kind": "NodeDrain", "metadata": { "name": "n1" }, "spec": { "nodeName": 3 },
    });
    let drain = node_drain(serde_json::from_value(object).unwrap());
    assert!(matches!(drain, Some(Err(why)) if why.contains("n1")));
}
