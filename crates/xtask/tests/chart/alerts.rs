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

/// An alert that fires: JOB stands for the matcher of the component's job.
struct Firing {
    alert: &'static str,
    /// Each with its values, one a minute.
    series: &'static [(&'static str, &'static str)],
    /// The labels that it has beside its severity.
    labels: &'static [(&'static str, &'static str)],
    /// When it does not fire yet, in minutes, and when it does.
    minutes: (u32, u32),
}

const fn firing(
    alert: &'static str,
    series: &'static [(&'static str, &'static str)],
    labels: &'static [(&'static str, &'static str)],
    minutes: (u32, u32),
) -> Firing {
    Firing {
        alert,
        series,
        labels,
        minutes,
    }
}

/// All is well for nine minutes, and nothing afterwards.
const FROM_MINUTE_10: &str = "0x9 1x200";

const DRAIN_KEEPER: [Firing; 5] = [
    firing(
        "NodewardDrainStuck",
        &[(
            "upgradeoperator_node_drain_timeout{JOB,node_name=\"a\"}",
            FROM_MINUTE_10,
        )],
        &[("node_name", "a")],
        (14, 20),
    ),
    firing(
        "NodewardWaitsForWindow",
        &[(
            "nodeward_drain_keeper_blockers{JOB,reason=\"WaitsForWindow\"}",
            "0x9 2x1600",
        )],
        &[],
        (1449, 1455),
    ),
    firing(
        "NodewardDrainKeeperConfigRejected",
        &[("nodeward_drain_keeper_config_rejected{JOB}", FROM_MINUTE_10)],
        &[],
        (14, 20),
    ),
    firing(
        "NodewardDrainKeeperPaused",
        &[("nodeward_drain_keeper_paused{JOB}", FROM_MINUTE_10)],
        &[],
        (69, 75),
    ),
    firing(
        "NodewardDrainKeeperPauseUnknown",
        &[("nodeward_drain_keeper_pause_unknown{JOB}", FROM_MINUTE_10)],
        &[],
        (19, 25),
    ),
];

const DRAIN_LOCK: [Firing; 13] = [
    firing(
        "NodewardDrainOverdue",
        &[("nodeward_drain_lock_overdue_drains{JOB,node=\"a\"}", FROM_MINUTE_10)],
        &[("node", "a")],
        (14, 20),
    ),
    firing(
        "NodewardDrainBlockedByBudget",
        &[(
            "nodeward_drain_lock_blocked_drains{JOB,reason=\"BudgetNeverAllows\"}",
            FROM_MINUTE_10,
        )],
        &[("reason", "BudgetNeverAllows")],
        (24, 30),
    ),
    firing(
        "NodewardDrainSuspect",
        &[("nodeward_drain_lock_drains{JOB,phase=\"Failed\"}", FROM_MINUTE_10)],
        &[],
        (14, 20),
    ),
    firing(
        "NodewardDrainLockWebhookFailing",
        &[(
            "apiserver_admission_webhook_fail_open_count{name=\"evictions.drain-lock.nodeward.dev\"}",
            "0x9 1+1x200",
        )],
        &[],
        (19, 30),
    ),
    firing(
        "NodewardDrainLockWebhookFailing",
        &[("nodeward_drain_lock_reviews_failed_open_total{JOB}", "0x9 1+1x200")],
        &[],
        (19, 30),
    ),
    firing(
        "NodewardDrainLockCertificateExpiring",
        &[(
            "nodeward_drain_lock_webhook_certificate_expiry_timestamp_seconds{JOB}",
            "8640000x9 3600x200",
        )],
        &[],
        (69, 75),
    ),
    firing(
        "NodewardDrainLockCertificateExpiring",
        &[(
            "nodeward_drain_lock_fleetlock_certificate_expiry_timestamp_seconds{JOB}",
            "8640000x9 3600x200",
        )],
        &[],
        (69, 75),
    ),
    firing(
        "NodewardDrainLockConfigRejected",
        &[("nodeward_drain_lock_config_rejected{JOB}", FROM_MINUTE_10)],
        &[],
        (14, 20),
    ),
    firing(
        "NodewardDrainLockPaused",
        &[("nodeward_drain_lock_paused{JOB}", FROM_MINUTE_10)],
        &[],
        (69, 75),
    ),
    firing(
        "NodewardDrainLockPauseUnknown",
        &[("nodeward_drain_lock_pause_unknown{JOB}", FROM_MINUTE_10)],
        &[],
        (19, 25),
    ),
    firing(
        "NodewardDrainLockLedgerLarge",
        &[("nodeward_drain_lock_ledger_bytes{JOB}", "700000x9 800000x200")],
        &[],
        (19, 25),
    ),
    firing(
        "NodewardDrainLockLedgerBusy",
        &[(
            "nodeward_drain_lock_ledger_written_bytes_total{JOB}",
            "0+90000000x10 1010000000+120000000x200",
        )],
        &[],
        (20, 40),
    ),
    firing(
        "NodewardDrainLockNotPlanning",
        &[
            ("nodeward_drain_lock_leading{JOB}", "1x200"),
            ("nodeward_drain_lock_leaderless_seconds{JOB}", "30x9 120 180+60x200"),
        ],
        &[],
        (14, 20),
    ),
];

const HEALTH_CHECK: [Firing; 12] = [
    firing(
        "NodewardRemediationOld",
        &[("nodeward_health_check_old_remediations{JOB,name=\"a\"}", FROM_MINUTE_10)],
        &[("name", "a")],
        (14, 20),
    ),
    firing(
        "NodewardRemediationStuck",
        &[(
            "nodeward_health_check_stuck_remediations{JOB,name=\"a\"}",
            FROM_MINUTE_10,
        )],
        &[("name", "a")],
        (24, 30),
    ),
    firing(
        "NodewardTooFewNodesHealthy",
        &[(
            "nodeward_health_check_nodes{JOB,reason=\"TooFewHealthy\"}",
            FROM_MINUTE_10,
        )],
        &[],
        (14, 20),
    ),
    firing(
        "NodewardRemediationStorm",
        &[(
            "nodeward_health_check_nodes{JOB,reason=\"StormCooldown\"}",
            FROM_MINUTE_10,
        )],
        &[],
        (24, 30),
    ),
    firing(
        "NodewardNodeHealthCheckDisabled",
        &[("nodeward_health_check_checks{JOB,phase=\"Disabled\"}", FROM_MINUTE_10)],
        &[],
        (14, 20),
    ),
    firing(
        "NodewardNodeHealthCheckFieldsDropped",
        &[(
            "nodeward_health_check_dropped_fields{JOB,field=\"spec.dryRun\"}",
            FROM_MINUTE_10,
        )],
        &[("field", "spec.dryRun")],
        (14, 20),
    ),
    firing(
        "NodewardNoTemplateLeft",
        &[(
            "nodeward_health_check_nodes{JOB,reason=\"ChainExhausted\"}",
            FROM_MINUTE_10,
        )],
        &[],
        (14, 20),
    ),
    firing(
        "NodewardRemediationForbidden",
        &[(
            "nodeward_health_check_nodes{JOB,reason=\"PermissionMissing\"}",
            FROM_MINUTE_10,
        )],
        &[],
        (14, 20),
    ),
    firing(
        "NodewardHealthCheckCertificateExpiring",
        &[(
            "nodeward_health_check_webhook_certificate_expiry_timestamp_seconds{JOB}",
            "8640000x9 3600x200",
        )],
        &[],
        (69, 75),
    ),
    firing(
        "NodewardHealthCheckConfigRejected",
        &[("nodeward_health_check_config_rejected{JOB}", FROM_MINUTE_10)],
        &[],
        (14, 20),
    ),
    firing(
        "NodewardHealthCheckPaused",
        &[("nodeward_health_check_paused{JOB}", FROM_MINUTE_10)],
        &[],
        (69, 75),
    ),
    firing(
        "NodewardHealthCheckPauseUnknown",
        &[("nodeward_health_check_pause_unknown{JOB}", FROM_MINUTE_10)],
        &[],
        (19, 25),
    ),
];

/// The namespace is that of the CephCluster, which a monitor renames.
const CEPH_PDB: [Firing; 9] = [
    firing(
        "NodewardCephUnavailable",
        &[(
            "nodeward_ceph_pdb_conditions{JOB,reason=\"CephUnavailable\",exported_namespace=\"rook-ceph\"}",
            FROM_MINUTE_10,
        )],
        &[("exported_namespace", "rook-ceph")],
        (14, 20),
    ),
    firing(
        "NodewardCephBudgetsClosed",
        &[(
            "nodeward_ceph_pdb_closed_since_timestamp_seconds{JOB,exported_namespace=\"rook-ceph\"}",
            "600x200",
        )],
        &[("exported_namespace", "rook-ceph")],
        (129, 135),
    ),
    firing(
        "NodewardCephNooutLeftOn",
        &[(
            "nodeward_ceph_pdb_noout_since_timestamp_seconds{JOB,exported_namespace=\"rook-ceph\",bucket=\"host-2\"}",
            "600x200",
        )],
        &[("exported_namespace", "rook-ceph"), ("bucket", "host-2")],
        (129, 135),
    ),
    firing(
        "NodewardCephForeignBudget",
        &[(
            "nodeward_ceph_pdb_conditions{JOB,reason=\"ForeignBudget\",exported_namespace=\"rook-ceph\"}",
            FROM_MINUTE_10,
        )],
        &[("exported_namespace", "rook-ceph")],
        (14, 20),
    ),
    firing(
        "NodewardCephBudgetWriteRefused",
        &[(
            "nodeward_ceph_pdb_conditions{JOB,reason=\"BudgetWriteRefused\",exported_namespace=\"rook-ceph\"}",
            FROM_MINUTE_10,
        )],
        &[("exported_namespace", "rook-ceph")],
        (10, 16),
    ),
    firing(
        "NodewardCephOsdPodAbandoned",
        &[(
            "nodeward_ceph_pdb_conditions{JOB,reason=\"OsdPodAbandoned\",exported_namespace=\"rook-ceph\"}",
            FROM_MINUTE_10,
        )],
        &[("exported_namespace", "rook-ceph")],
        (14, 20),
    ),
    firing(
        "NodewardCephPdbConfigRejected",
        &[("nodeward_ceph_pdb_config_rejected{JOB}", FROM_MINUTE_10)],
        &[],
        (14, 20),
    ),
    firing(
        "NodewardCephPdbPaused",
        &[("nodeward_ceph_pdb_paused{JOB}", FROM_MINUTE_10)],
        &[],
        (69, 75),
    ),
    firing(
        "NodewardCephPdbPauseUnknown",
        &[("nodeward_ceph_pdb_pause_unknown{JOB}", FROM_MINUTE_10)],
        &[],
        (19, 25),
    ),
];

/// Each of the chart's alerts, but for those that have tests of their own above and below.
#[rstest]
#[case::drain_keeper("drainKeeper", "drain-keeper", &DRAIN_KEEPER, &["NodewardDrainKeeperCannotDecide"])]
#[case::drain_lock("drainLock", "drain-lock", &DRAIN_LOCK, &[])]
#[case::health_check("healthCheck", "health-check", &HEALTH_CHECK, &[])]
#[case::ceph_pdb("cephPdb", "ceph-pdb", &CEPH_PDB, &[])]
fn every_alert_fires_after_its_time(
    #[case] block: &str,
    #[case] component: &str,
    #[case] firings: &[Firing],
    #[case] elsewhere: &[&str],
) {
    let objects = rendered(&json!({
        block: { "enabled": true },
        "monitoring": { "serviceMonitor": { "enabled": true }, "prometheusRule": { "enabled": true } },
    }));
    let found = objects.iter().find(|object| object["kind"] == "PrometheusRule");
    let groups = &found.unwrap()["spec"]["groups"];
    let rules = groups[0]["rules"].as_array().unwrap();
    for rule in rules {
        let alert = rule["alert"].as_str().unwrap();
        let is_tested = firings.iter().any(|firing| firing.alert == alert)
            || elsewhere.contains(&alert)
            || ["NotLeading", "MetricsMissing"].iter().any(|end| alert.ends_with(end));
        assert!(is_tested, "no test has {alert} fire");
    }
    let tests: Vec<Value> = firings
        .iter()
        .map(|firing| {
            let mut rule = rules.iter().find(|rule| rule["alert"] == firing.alert).unwrap().clone();
            let mut summary = rule["annotations"]["summary"].as_str().unwrap().to_owned();
            for (label, value) in firing.labels {
                rule["labels"][label] = json!(value);
                for shown in [
                    format!("{{{{ $labels.{label} }}}}"),
                    format!("{{{{ or $labels.{label} $labels.namespace }}}}"),
                ] {
                    summary = summary.replace(&shown, value);
                }
            }
            rule["annotations"]["summary"] = json!(summary);
            let job = format!("job=\"nodeward-{component}\"");
            let series = firing.series.iter();
            let series = series.map(|(name, values)| json!({ "series": name.replace("JOB", &job), "values": values }));
            let fires = json!([{ "exp_labels": rule["labels"], "exp_annotations": rule["annotations"] }]);
            let at = |minute: u32, alerts: &Value| {
                json!({ "alertname": firing.alert, "eval_time": format!("{minute}m"), "exp_alerts": alerts })
            };
            json!({
                "name": firing.alert, "interval": "1m", "input_series": series.collect::<Vec<_>>(),
                "alert_rule_test": [at(firing.minutes.0, &json!([])), at(firing.minutes.1, &fires)],
            })
        })
        .collect();
    test_rules(groups, &tests).unwrap();
}

/// One outage is one page.
#[rstest]
#[case::nobody_leads("0x60", false)]
#[case::one_leads_and_plans_nothing("1x60", true)]
fn planless_leader_is_told_from_none(#[case] leading: &str, #[case] fires: bool) {
    let objects = rendered(&json!({
        "drainLock": { "enabled": true },
        "monitoring": { "serviceMonitor": { "enabled": true }, "prometheusRule": { "enabled": true } },
    }));
    let found = objects.iter().find(|object| object["kind"] == "PrometheusRule");
    let groups = &found.unwrap()["spec"]["groups"];
    let alert = "NodewardDrainLockNotPlanning";
    let rules = groups[0]["rules"].as_array().unwrap();
    let rule = rules.iter().find(|rule| rule["alert"] == alert).unwrap();
    let firing = json!({ "exp_labels": rule["labels"], "exp_annotations": rule["annotations"] });
    let mut input_series = replicas("nodeward_drain_lock_leading", "nodeward-drain-lock", [leading, "0x60"]);
    input_series.extend(replicas(
        "nodeward_drain_lock_leaderless_seconds",
        "nodeward-drain-lock",
        ["0+60x60", "0+60x60"],
    ));
    let exp_alerts: Vec<Value> = fires.then_some(firing).into_iter().collect();
    let test = json!({
        "interval": "1m", "input_series": input_series,
        "alert_rule_test": [{ "alertname": alert, "eval_time": "30m", "exp_alerts": exp_alerts }],
    });
    test_rules(groups, &[test]).unwrap();
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
