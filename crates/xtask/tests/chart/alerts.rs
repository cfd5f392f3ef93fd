//! The alerts, evaluated by Prometheus' own tool.

use nodeward_api::reason::GateReason;
use rstest::rstest;
use serde_json::{Value, json};

use crate::{rendered, test_rules};

/// One series a replica, with a value a minute. `stale` is what a scrape records that finds the series gone.
fn replicas(metric: &str, job: &str, values: [&str; 2]) -> Vec<Value> {
    ["a", "b"]
        .iter()
        .zip(values)
        .map(|(pod, values)| json!({ "series": format!("{metric}{{job=\"{job}\",pod=\"{pod}\"}}"), "values": values }))
        .collect()
}

/// Without a leader the one fires, without series the other. Where nothing was ever scraped no outage is made up.
#[rstest]
#[case::drain_keeper("drainKeeper", "drain-keeper", "DrainKeeper")]
#[case::drain_lock("drainLock", "drain-lock", "DrainLock")]
#[case::health_check("healthCheck", "health-check", "HealthCheck")]
#[case::ceph_pdb("cephPdb", "ceph-pdb", "CephPdb")]
fn absent_series_are_not_taken_for_lost_leadership(#[case] block: &str, #[case] component: &str, #[case] alerts: &str) {
    let objects = rendered(&json!({
        block: { "enabled": true },
        "monitoring": { "serviceMonitor": { "enabled": true }, "prometheusRule": { "enabled": true } },
    }));
    let rule = objects
        .iter()
        .find(|object| object["kind"] == "PrometheusRule")
        .unwrap();
    let job = format!("nodeward-{component}");
    let metric = |name: &str| format!("nodeward_{}_{name}", component.replace('-', "_"));
    let expected = |name: &str, at: &str, job: Option<&str>, fires: bool| {
        let alert = format!("Nodeward{alerts}{name}");
        let rules = rule["spec"]["groups"][0]["rules"].as_array().unwrap();
        let mut rule = rules
            .iter()
            .find(|rule| rule["alert"] == alert.as_str())
            .unwrap()
            .clone();
        rule["labels"]["job"] = json!(job);
        if job.is_none() {
            rule["labels"].as_object_mut().unwrap().remove("job");
        }
        let firing = json!({ "exp_labels": rule["labels"], "exp_annotations": rule["annotations"] });
        let exp_alerts: Vec<Value> = fires.then_some(firing).into_iter().collect();
        json!({ "alertname": alert, "eval_time": at, "exp_alerts": exp_alerts })
    };
    let at = |time: &str, not_leading: bool, missing: bool| {
        [
            expected("NotLeading", time, None, not_leading),
            expected("MetricsMissing", time, Some(&job), missing),
        ]
    };
    let case = |name: &str, leading: Option<[&str; 2]>, built: &str, expected: Vec<[Value; 2]>| {
        let mut series = leading.map_or_else(Vec::new, |values| replicas(&metric("leading"), &job, values));
        if !built.is_empty() {
            series.extend(replicas(&metric("build_info"), &job, [built, built]));
        }
        json!({
            "name": name, "interval": "1m", "input_series": series, "alert_rule_test": expected.concat(),
        })
    };
    let always = "1x2000";
    let tests = [
        case(
            "never scraped",
            None,
            "",
            vec![at("10m", false, false), at("2h", false, true)],
        ),
        case(
            "one leads",
            Some([always, "0x2000"]),
            always,
            vec![at("2h", false, false)],
        ),
        case(
            "none leads",
            Some(["0x2000", "0x2000"]),
            always,
            vec![at("5m", false, false), at("20m", true, false)],
        ),
        case(
            "gone after an hour",
            Some(["1x60 stale", "0x60 stale"]),
            "1x60 stale",
            vec![at("59m", false, false), at("2h", true, true), at("30h", false, true)],
        ),
        // A change of leaders, and a scrape or two that fail.
        case(
            "back soon",
            Some(["1x60 stale _x5 0x200", "0x68 1x200"]),
            always,
            vec![at("66m", false, false), at("80m", false, false)],
        ),
    ];
    test_rules(&rule["spec"]["groups"], &tests).unwrap();
}

/// A monitor gives series the namespace of the scraped pod, and Prometheus renames their own label. Without one it stands.
#[rstest]
#[case::by_a_monitor("namespace=\"nodeward-system\",exported_namespace=\"rook-ceph\"")]
#[case::by_an_address("namespace=\"rook-ceph\"")]
fn ceph_alerts_name_the_namespace_of_the_cluster(#[case] labels: &str) {
    let objects = rendered(&json!({
        "cephPdb": { "enabled": true },
        "monitoring": { "serviceMonitor": { "enabled": true }, "prometheusRule": { "enabled": true } },
    }));
    let found = objects.iter().find(|object| object["kind"] == "PrometheusRule");
    let groups = &found.unwrap()["spec"]["groups"];
    let rules = groups[0]["rules"].as_array().unwrap();
    let series = |name: &str, labels: &str| {
        let labels = format!("job=\"nodeward-ceph-pdb\",{labels}");
        json!({ "series": format!("nodeward_ceph_pdb_{name}{{{labels}}}"), "values": "1x300" })
    };
    let input_series = [
        series("conditions", &format!("reason=\"CephUnavailable\",{labels}")),
        series("conditions", &format!("reason=\"ForeignBudget\",{labels}")),
        series("closed_since_timestamp_seconds", labels),
    ];
    let mut expected = Vec::new();
    for alert in [
        "NodewardCephUnavailable",
        "NodewardCephForeignBudget",
        "NodewardCephBudgetsClosed",
    ] {
        let mut rule = rules.iter().find(|rule| rule["alert"] == alert).unwrap().clone();
        for label in labels.split(',') {
            let (name, value) = label.split_once('=').unwrap();
            rule["labels"][name] = json!(value.trim_matches('"'));
        }
        let summary = rule["annotations"]["summary"].as_str().unwrap();
        let (before, rest) = summary.split_once("{{").unwrap();
        let (_, after) = rest.split_once("}}").unwrap();
        rule["annotations"]["summary"] = json!(format!("{before}rook-ceph{after}"));
        let firing = json!([{ "exp_labels": rule["labels"], "exp_annotations": rule["annotations"] }]);
        expected.push(json!({ "alertname": alert, "eval_time": "3h", "exp_alerts": firing }));
    }
    let test = json!({ "interval": "1m", "input_series": input_series, "alert_rule_test": expected });
    test_rules(groups, &[test]).unwrap();
}

/// A paused drain-keeper writes no clock, and a node whose drain begins stays at `ClockStarting` until it goes on.
#[test]
fn paused_keeper_is_not_said_to_be_undecided() {
    let objects = rendered(&json!({
        "drainKeeper": { "enabled": true },
        "monitoring": { "serviceMonitor": { "enabled": true }, "prometheusRule": { "enabled": true } },
    }));
    let found = objects.iter().find(|object| object["kind"] == "PrometheusRule");
    let groups = &found.unwrap()["spec"]["groups"];
    let alert = "NodewardDrainKeeperCannotDecide";
    let rules = groups[0]["rules"].as_array().unwrap();
    let mut rule = rules.iter().find(|rule| rule["alert"] == alert).unwrap().clone();
    rule["labels"]["gate"] = json!("ClockStarting");
    let summary = rule["annotations"]["summary"].as_str().unwrap();
    rule["annotations"]["summary"] = json!(summary.replace("{{ $labels.gate }}", "ClockStarting"));
    let firing = json!([{ "exp_labels": rule["labels"], "exp_annotations": rule["annotations"] }]);
    let series = |name: &str, labels: &str, values: &str| {
        let labels = format!("job=\"nodeward-drain-keeper\",pod=\"a\"{labels}");
        json!({ "series": format!("nodeward_drain_keeper_{name}{{{labels}}}"), "values": values })
    };
    let test = json!({
        "interval": "1m",
        "input_series": [
            series("nodes", ",gate=\"ClockStarting\"", "1x120"),
            series("paused", "", "1x60 0x60"),
        ],
        "alert_rule_test": [
            { "alertname": alert, "eval_time": "59m", "exp_alerts": [] },
            { "alertname": alert, "eval_time": "80m", "exp_alerts": firing },
        ],
    });
    test_rules(groups, &[test]).unwrap();
}

/// A gate that is renamed would never fire again, and one that is new might be forgotten.
#[test]
fn gates_that_cannot_be_told_raise_an_alert() {
    let objects = rendered(&json!({
        "drainKeeper": { "enabled": true },
        "monitoring": { "serviceMonitor": { "enabled": true }, "prometheusRule": { "enabled": true } },
    }));
    let rule = objects
        .iter()
        .find(|object| object["kind"] == "PrometheusRule")
        .unwrap();
    let rules = rule["spec"]["groups"][0]["rules"].as_array().unwrap();
    let rule = rules
        .iter()
        .find(|rule| rule["alert"] == "NodewardDrainKeeperCannotDecide")
        .unwrap();
    let expression = rule["expr"].as_str().unwrap();
    let gates = expression.split_once("gate=~\"").unwrap().1.split_once('"').unwrap().0;
    let gates: Vec<&str> = gates.split('|').collect();
    let known: Vec<&str> = GateReason::ALL.iter().map(|gate| gate.as_str()).collect();
    assert!(gates.iter().all(|gate| known.contains(gate)), "{gates:?}");
    let page = include_str!("../../../../docs/drain-keeper/runbooks/cannot-decide.md");
    for gate in known.iter().filter(|gate| gate.ends_with("Unknown")).chain(&gates) {
        assert!(gates.contains(gate), "{gate} raises no alert");
        assert!(page.contains(&format!("`{gate}`")), "the runbook does not name {gate}");
    }
}
