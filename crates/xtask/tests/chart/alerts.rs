//! The alerts, evaluated by Prometheus' own tool.

use std::fs;
use std::process::Command;

use nodeward_api::reason::GateReason;
use nodeward_testkit::debian;
use rstest::rstest;
use serde_json::{Value, json};

use crate::rendered;

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
    let directory = tempfile::tempdir().unwrap();
    let write = |name: &str, content: &Value| fs::write(directory.path().join(name), content.to_string()).unwrap();
    write("rules.yaml", &rule["spec"]);
    write(
        "tests.yaml",
        &json!({ "rule_files": ["rules.yaml"], "evaluation_interval": "5m", "tests": tests }),
    );
    let prometheus = debian::ensure_unpacked("prometheus", &["prometheus"]).unwrap();
    let ran = Command::new(prometheus.join("usr/bin/promtool"))
        .args(["test", "rules", "tests.yaml"])
        .current_dir(directory.path())
        .output()
        .unwrap();
    let said = [ran.stdout, ran.stderr].map(|said| String::from_utf8_lossy(&said).into_owned());
    assert!(ran.status.success(), "{}", said.concat());
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
