use k8s_openapi::api::policy::v1::PodDisruptionBudget;
use kube::ResourceExt;
use kube::core::SelectorExt;
use rstest::rstest;
use serde_json::{Value, json};

use super::{domain_budget_name, facts, is_rooks_name, object, patch, release_patch, selector};
use crate::ceph::topology::DomainType;
use crate::plan::Owner;
use crate::plan::daemon_budgets::{DaemonBudget, Limit};
use crate::snapshot::{BudgetForm, DefaultBudget};

fn owner() -> Owner {
    Owner {
        namespace: "rook-ceph".into(),
        name: "my-cluster".into(),
        uid: "u1".into(),
    }
}

fn rack() -> DomainType {
    "rack".parse().unwrap()
}

fn all(max_unavailable: i32, racks: &[&str], osds: &[i64]) -> BudgetForm {
    BudgetForm::Osds(DefaultBudget {
        max_unavailable,
        except_domains: racks.iter().map(|name| (rack(), (*name).into())).collect(),
        except_osds: osds.iter().copied().collect(),
    })
}

fn of_rack(domain: &str) -> BudgetForm {
    BudgetForm::OsdsOfDomain {
        max_unavailable: 0,
        domain: (rack(), domain.into()),
    }
}

fn mons(limit: i32) -> BudgetForm {
    BudgetForm::Daemon(DaemonBudget {
        name: "rook-ceph-mon-pdb".to_owned(),
        selector: ("app", "rook-ceph-mon".to_owned()),
        limit: Limit::MaxUnavailable(limit),
        evicts_unready: false,
    })
}

fn gateways() -> BudgetForm {
    BudgetForm::Daemon(DaemonBudget {
        name: "rook-ceph-rgw-store".to_owned(),
        selector: ("rgw", "store".to_owned()),
        limit: Limit::MinAvailable(2),
        evicts_unready: true,
    })
}

/// A budget as somebody else made it.
fn made(name: &str, spec: Value) -> PodDisruptionBudget {
    let metadata = json!({"name": name, "namespace": "rook-ceph", "uid": "p1", "resourceVersion": "5"});
    serde_json::from_value(json!({"metadata": metadata, "spec": spec})).unwrap()
}

/// As the API server applies a merge patch.
fn merge(object: &mut Value, patch: &Value) {
    let Value::Object(patch) = patch else {
        *object = patch.clone();
        return;
    };
    if !object.is_object() {
        *object = json!({});
    }
    for (key, value) in patch {
        if value.is_null() {
            object.as_object_mut().unwrap().remove(key);
        } else {
            merge(&mut object[key], value);
        }
    }
}

#[rstest]
#[case::open("rook-ceph-osd", all(1, &[], &[]))]
#[case::osds_excluded("rook-ceph-osd", all(1, &[], &[1, 3, 10]))]
#[case::closed_around("rook-ceph-osd", all(0, &["rack-a"], &[4]))]
#[case::domain("rook-ceph-osd-rack-rack-a", of_rack("rack-a"))]
#[case::mons("rook-ceph-mon-pdb", mons(1))]
#[case::gateways("rook-ceph-rgw-store", gateways())]
fn budget_is_read_as_it_was_written(#[case] name: &str, #[case] form: BudgetForm) {
    let object_of_form = object(&owner(), name, &form);
    let counts = object_of_form
        .annotations()
        .get("nodeward.dev/counts")
        .map(String::as_str);
    let is_over_osds = !matches!(form, BudgetForm::Daemon(_));
    assert_eq!(
        counts,
        is_over_osds.then_some("node"),
        "only OSDs of a node are left out together"
    );
    let created = facts(&object_of_form, "u1");
    assert!(created.is_ours && created.is_exact);
    assert_eq!(created.form.as_ref(), Some(&form));
    assert!(is_rooks_name(name, &form));

    // From each other form of that name, too.
    for before in [all(0, &["rack-b", "rack-c"], &[]), mons(2), gateways(), of_rack("x")] {
        let mut patched = serde_json::to_value(object(&owner(), name, &before)).unwrap();
        patched["metadata"].as_object_mut().unwrap().remove("labels");
        if std::mem::discriminant(&before) == std::mem::discriminant(&form) && before_selects_like(&before, &form) {
            merge(&mut patched, &patch(&owner(), "5", &form));
            let patched = facts(&serde_json::from_value(patched).unwrap(), "u1");
            assert_eq!(patched.form.as_ref(), Some(&form), "from {before:?}");
            assert!(patched.is_exact);
        }
    }
}

/// A name has one kind of selector: only what is behind it changes.
fn before_selects_like(before: &BudgetForm, form: &BudgetForm) -> bool {
    match (before, form) {
        (BudgetForm::Daemon(before), BudgetForm::Daemon(form)) => before.selector == form.selector,
        (BudgetForm::OsdsOfDomain { .. }, _) => before == form,
        _ => true,
    }
}

#[test]
fn excluded_osds_are_listed_in_order() {
    let object = object(&owner(), "rook-ceph-osd", &all(1, &[], &[10, 9, 1]));
    let expressions = object.spec.unwrap().selector.unwrap().match_expressions.unwrap();
    assert_eq!(expressions[0].key, "osd");
    assert_eq!(expressions[0].values.as_deref().unwrap(), ["1", "9", "10"]);
}

#[rstest]
#[case::labels("rook-ceph-osd", json!({"maxUnavailable": 1, "selector": {"matchLabels": {"app": "rook-ceph-osd"}}}), Some(all(1, &[], &[])))]
#[case::expressions(
    "rook-ceph-osd",
    json!({"maxUnavailable": 1, "selector": {"matchExpressions": [
        {"key": "app", "operator": "In", "values": ["rook-ceph-osd"]}, {"key": "osd", "operator": "NotIn", "values": ["5", "1"]}]}}),
    Some(all(1, &[], &[1, 5]))
)]
#[case::several_down("rook-ceph-osd", json!({"maxUnavailable": 3, "selector": {"matchLabels": {"app": "rook-ceph-osd"}}}), Some(all(3, &[], &[])))]
#[case::domain("rook-ceph-osd-rack-a", json!({"maxUnavailable": 0, "selector": {"matchLabels": {"topology-location-rack": "a"}}}), Some(of_rack("a")))]
#[case::percentage("rook-ceph-osd", json!({"maxUnavailable": "10%", "selector": {"matchLabels": {"app": "rook-ceph-osd"}}}), None)]
#[case::another_key("rook-ceph-osd", json!({"maxUnavailable": 1, "selector": {"matchLabels": {"app": "rook-ceph-osd", "x": "y"}}}), None)]
#[case::key_exists("rook-ceph-osd", json!({"maxUnavailable": 1, "selector": {"matchExpressions": [{"key": "app", "operator": "Exists"}]}}), None)]
#[case::another_app("rook-ceph-osd", json!({"maxUnavailable": 1, "selector": {"matchLabels": {"app": "other"}}}), None)]
#[case::no_selector("rook-ceph-osd", json!({"maxUnavailable": 1}), None)]
#[case::osd_no_number("rook-ceph-osd", json!({"maxUnavailable": 1, "selector": {"matchLabels": {"app": "rook-ceph-osd"},
    "matchExpressions": [{"key": "osd", "operator": "NotIn", "values": ["a"]}]}}), None)]
fn only_rooks_selectors_are_recognised(#[case] name: &str, #[case] spec: Value, #[case] expected: Option<BudgetForm>) {
    let facts = facts(&made(name, spec), "u1");
    assert_eq!(facts.form, expected);
    assert!(!facts.is_ours && !facts.is_exact);
}

#[rstest]
#[case::no_label(json!({"nodeward.dev/force-drain": "never"}), "u1", false)]
#[case::another_cluster(json!({"app.kubernetes.io/managed-by": "nodeward-ceph-pdb"}), "u2", false)]
#[case::ours(json!({"app.kubernetes.io/managed-by": "nodeward-ceph-pdb"}), "u1", true)]
fn ours_has_our_label_and_owner(#[case] labels: Value, #[case] uid: &str, #[case] is_ours: bool) {
    let mut pdb = object(&owner(), "rook-ceph-osd", &all(1, &[], &[]));
    pdb.metadata.labels = serde_json::from_value(labels).unwrap();
    let facts = facts(&pdb, uid);
    assert_eq!((facts.is_ours, facts.is_exact), (is_ours, false));
}

#[test]
fn osd_budget_that_evicts_unready_pods_is_not_exact() {
    let mut pdb = object(&owner(), "rook-ceph-osd", &all(1, &[], &[]));
    pdb.spec.as_mut().unwrap().unhealthy_pod_eviction_policy = Some("AlwaysAllow".to_owned());
    let facts = facts(&pdb, "u1");
    assert!(facts.is_ours && !facts.is_exact);
}

#[test]
fn released_budget_keeps_all_but_our_label() {
    let mut value = serde_json::to_value(object(&owner(), "rook-ceph-osd", &all(0, &["a"], &[]))).unwrap();
    merge(&mut value, &release_patch("5"));
    let pdb: PodDisruptionBudget = serde_json::from_value(value).unwrap();
    assert_eq!(
        pdb.metadata.labels.as_ref().unwrap()["nodeward.dev/force-drain"],
        "never"
    );
    let facts = facts(&pdb, "u1");
    assert_eq!(facts.form, Some(all(0, &["a"], &[])));
    assert!(!facts.is_ours);
}

#[rstest]
#[case::short("a", "rook-ceph-osd-rack-a")]
#[case::capitals("Rack", "rook-ceph-osd-rack-")]
fn domain_budgets_are_named_as_by_rook(#[case] domain: &str, #[case] prefix: &str) {
    let name = domain_budget_name(&(rack(), domain.into()));
    assert!(name.starts_with(prefix) && !name.ends_with('-'), "{name}");
    assert!(is_rooks_name(&name, &of_rack(domain)));
}

#[test]
fn long_name_is_hashed_to_fit() {
    let domain = "r".repeat(60);
    let name = domain_budget_name(&(rack(), domain.as_str().into()));
    assert!(name.len() <= 63, "{name}");
    assert_ne!(name, domain_budget_name(&(rack(), "s".repeat(60).as_str().into())));
}

/// An OSD's pod has the labels `app`, `osd` and `topology-location-rack`.
#[rstest]
#[case::everything(json!({"maxUnavailable": 1, "selector": {}}), true)]
#[case::nothing(json!({"maxUnavailable": 1}), false)]
#[case::labels(json!({"maxUnavailable": "10%", "selector": {"matchLabels": {"app": "rook-ceph-osd"}}}), true)]
#[case::other_labels(json!({"minAvailable": 1, "selector": {"matchLabels": {"app": "rook-ceph-mon"}}}), false)]
#[case::one_osd(json!({"minAvailable": 1, "selector": {"matchLabels": {"osd": "3"}}}), true)]
#[case::listed(json!({"minAvailable": "50%", "selector": {"matchExpressions": [{"key": "app", "operator": "In", "values": ["rook-ceph-mon", "rook-ceph-osd"]}]}}), true)]
#[case::has_key(json!({"minAvailable": 1, "selector": {"matchExpressions": [{"key": "osd", "operator": "Exists"}]}}), true)]
#[case::lacks_key(json!({"minAvailable": 1, "selector": {"matchExpressions": [{"key": "mgr", "operator": "DoesNotExist"}]}}), true)]
#[case::left_out(json!({"minAvailable": 1, "selector": {"matchExpressions": [{"key": "osd", "operator": "NotIn", "values": ["3"]}]}}), false)]
fn budget_selects_in_any_form(#[case] spec: Value, #[case] expected: bool) {
    let labels = [
        ("app", "rook-ceph-osd"),
        ("osd", "3"),
        ("topology-location-rack", "rack-1"),
    ];
    let labels = labels.map(|(key, value)| (key.to_owned(), value.to_owned())).into();
    let budget: PodDisruptionBudget = serde_json::from_value(json!({ "spec": spec })).unwrap();
    let selects = selector(&budget).is_some_and(|selector| selector.matches(&labels));
    assert_eq!(selects, expected);
}
