use nodeward_core::node::NodeView;
use nodeward_runtime::Component;
use serde_json::{Value, json};

use super::*;
use crate::execute::Effect;
use crate::observe::project;
use crate::plan::{CheckRef, CheckVerdict, RemediationWrite};
use crate::snapshot::{NodeFacts, RemediationKind};

fn at(second: i64) -> Timestamp {
    Timestamp::from_second(second).unwrap()
}

fn kind() -> RemediationKind {
    RemediationKind {
        api_version: "a.example.com/v1".into(),
        kind: "Reboot".into(),
    }
}

fn remediation(node: &str, owner: &str) -> Arc<RemediationFacts> {
    let owner = json!({ "apiVersion": "v1", "kind": "A", "name": "a", "uid": owner });
    let object = json!({ "metadata": { "namespace": "ns", "name": node, "uid": node, "ownerReferences": [owner] } });
    Arc::new(project::remediation(kind(), &serde_json::from_value(object).unwrap()).unwrap())
}

fn reference(node: &str) -> RemediationRef {
    let facts = remediation(node, "c1");
    RemediationRef {
        kind: kind(),
        key: facts.key.clone(),
        uid: Arc::clone(&facts.uid),
        node: node.into(),
    }
}

fn snapshot(nodes: &[&str], remediations: &[Arc<RemediationFacts>]) -> Snapshot {
    let check: Value = json!({ "metadata": { "name": "workers", "uid": "c1" }, "spec": {} });
    let check = project::check(serde_json::from_value(check).unwrap()).unwrap();
    let node = |name: &&str| {
        let node = json!({ "metadata": { "name": name, "uid": name } });
        let facts = NodeFacts {
            view: NodeView::project(&serde_json::from_value(node).unwrap()).unwrap(),
            created: at(0),
            conditions: Box::default(),
            machine: None,
        };
        (NodeName::from(*name), Arc::new(facts))
    };
    Snapshot {
        checks: [("workers".into(), Arc::new(check))].into(),
        nodes: nodes.iter().map(node).collect::<BTreeMap<_, _>>().into(),
        remediations: remediations.to_vec(),
        ..Snapshot::default()
    }
}

fn verdicts(old: &[&str]) -> Verdicts {
    Verdicts {
        checks: vec![CheckVerdict {
            check: CheckRef {
                name: "workers".into(),
                uid: "c1".into(),
            },
            phase: Phase::Enabled,
            observed: 3,
            healthy: 2,
            remediating: 1,
            old_remediations: old.iter().map(|node| reference(node)).collect(),
            stuck_remediations: Vec::new(),
        }],
        ..Verdicts::default()
    }
}

fn deleted(node: &str) -> Executed {
    Executed {
        action: Action::DeleteRemediation(RemediationWrite {
            check: CheckRef {
                name: "workers".into(),
                uid: "c1".into(),
            },
            remediation: reference(node),
            seen: None,
            evidence: None,
        }),
        effect: Effect {
            created: Some(at(0)),
            provider_id: Some("aws:///i-1".to_owned()),
            ..ActionResult::Acted(()).into()
        },
    }
}

struct Fixture {
    metrics: Metrics,
    health: HealthMetrics,
}

impl Fixture {
    fn new() -> Self {
        let metrics = Metrics::new(Component::new("health-check", "1.2.3"));
        Self {
            health: HealthMetrics::register(&metrics),
            metrics,
        }
    }

    /// The samples of a metric.
    fn samples(&self, name: &str) -> Vec<String> {
        let text = self.metrics.encode().unwrap();
        let samples = text.lines().filter(|line| line.starts_with(name));
        samples.map(|line| line[name.len()..].to_owned()).collect()
    }
}

const ONGOING: &str = "nodehealthcheck_ongoing_remediation";
const OLD: &str = "nodehealthcheck_old_remediation_cr";
const DURATION: &str = "nodehealthcheck_unhealthy_node_duration_seconds_count";

#[test]
fn ongoing_remediation_goes_to_zero_and_then_away_with_the_node() {
    let mut fixture = Fixture::new();
    let labels = r#"{name="n1",namespace="ns",remediation="Reboot"}"#;
    let (ours, others) = (remediation("n1", "c1"), remediation("n2", "another"));
    fixture
        .health
        .show(&snapshot(&["n1", "n2"], &[ours, others]), &verdicts(&[]));
    assert_eq!(fixture.samples(ONGOING), [format!("{labels} 1")]);
    fixture.health.show(&snapshot(&["n1"], &[]), &verdicts(&[]));
    assert_eq!(fixture.samples(ONGOING), [format!("{labels} 0")]);
    fixture.health.show(&snapshot(&[], &[]), &verdicts(&[]));
    assert_eq!(fixture.samples(ONGOING), Vec::<String>::new());
}

/// medik8s has it as a counter without `_total`: a gauge that only rises keeps the name.
#[test]
fn old_remediation_is_counted_once() {
    let mut fixture = Fixture::new();
    let world = snapshot(&["n1"], &[remediation("n1", "c1")]);
    fixture.health.show(&world, &verdicts(&["n1"]));
    fixture.health.show(&world, &verdicts(&["n1"]));
    assert_eq!(fixture.samples(OLD), [r#"{name="n1",namespace="ns"} 1"#]);
    fixture.health.show(&snapshot(&[], &[]), &verdicts(&[]));
    assert_eq!(fixture.samples(OLD), Vec::<String>::new());
}

/// An alert on the counter alone would fire again for the next remediation of the node, which is young.
#[test]
fn old_remediation_is_shown_as_long_as_it_is_there() {
    let mut fixture = Fixture::new();
    let world = snapshot(&["n1"], &[remediation("n1", "c1")]);
    let now_old = "nodeward_health_check_old_remediations";
    fixture.health.show(&world, &verdicts(&["n1"]));
    assert_eq!(fixture.samples(now_old), [r#"{name="n1",namespace="ns"} 1"#]);
    fixture.health.show(&world, &verdicts(&[]));
    assert_eq!(fixture.samples(now_old), Vec::<String>::new());
    assert_eq!(fixture.samples(OLD), [r#"{name="n1",namespace="ns"} 1"#]);
}

#[test]
fn checks_are_counted_by_phase() {
    let mut fixture = Fixture::new();
    let mut disabled = verdicts(&[]);
    disabled.checks[0].phase = Phase::Disabled;
    fixture.health.show(&snapshot(&[], &[]), &disabled);
    let checks = "nodeward_health_check_checks";
    let of = |fixture: &Fixture, phase: &str| {
        let samples = fixture.samples(checks);
        let sample = samples.iter().find(|sample| sample.contains(phase)).unwrap();
        sample.rsplit(' ').next().unwrap().to_owned()
    };
    assert_eq!(
        (of(&fixture, "Disabled"), of(&fixture, "Enabled")),
        ("1".to_owned(), "0".to_owned())
    );
    fixture.health.show(&snapshot(&[], &[]), &verdicts(&[]));
    assert_eq!(
        (of(&fixture, "Disabled"), of(&fixture, "Enabled")),
        ("0".to_owned(), "1".to_owned())
    );
}

#[test]
fn duration_is_observed_at_the_deletion() {
    let mut fixture = Fixture::new();
    fixture.health.executed(&deleted("n1"), at(90));
    let labels = r#"providerID="aws:///i-1",name="n1",namespace="ns",remediation="Reboot""#;
    assert_eq!(fixture.samples(DURATION), [format!("{{{labels}}} 1")]);
    let bucket = "nodehealthcheck_unhealthy_node_duration_seconds_bucket";
    let up_to = |le: &str| {
        let buckets = fixture.samples(bucket);
        buckets
            .into_iter()
            .find(|sample| sample.contains(&format!("le=\"{le}\"")))
    };
    assert!(
        up_to("60.0").is_some_and(|sample| sample.ends_with(" 0")),
        "{:?}",
        fixture.samples(bucket)
    );
    assert!(up_to("120.0").is_some_and(|sample| sample.ends_with(" 1")));
    fixture.health.show(&snapshot(&[], &[]), &verdicts(&[]));
    assert_eq!(fixture.samples(DURATION), Vec::<String>::new());
}

#[test]
fn standby_exports_no_counts() {
    let mut fixture = Fixture::new();
    fixture
        .health
        .show(&snapshot(&["n1"], &[remediation("n1", "c1")]), &verdicts(&[]));
    let observed = "nodeward_health_check_observed_nodes";
    assert_eq!(fixture.samples(observed), [r#"{node_health_check="workers"} 3"#]);
    fixture.health.clear();
    assert_eq!(fixture.samples(observed), Vec::<String>::new());
    assert_eq!(fixture.samples(ONGOING), Vec::<String>::new());
}
