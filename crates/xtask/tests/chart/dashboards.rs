//! The dashboards: each query is evaluated by Prometheus' own tool, on the metrics that the component's page documents.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;

use nodeward_testkit::documented::{self, DocumentedMetric};
use nodeward_testkit::prometheus;
use regex::Regex;
use rstest::rstest;
use serde_json::{Value, json};

use crate::{rendered, test_rules};

/// The dashboard's ConfigMap, and the dashboard in it.
fn dashboard(block: &str, component: &str) -> (Value, Value) {
    let objects = rendered(&json!({
        block: { "enabled": true },
        "monitoring": { "dashboards": { "enabled": true, "annotations": { "grafana_folder": "Nodeward" } } },
    }));
    let name = format!("nodeward-{component}-dashboard");
    let found = objects
        .into_iter()
        .find(|object| object["metadata"]["name"] == name.as_str());
    let config_map = found.unwrap();
    let text = config_map["data"][format!("nodeward-{component}.json")]
        .as_str()
        .unwrap();
    let dashboard = serde_json::from_str(text).unwrap();
    (config_map, dashboard)
}

/// What a Prometheus has that scrapes the component as the chart's ServiceMonitor says: one series for each word that may be
/// the value of a label.
fn scraped(component: &str, documented: &BTreeMap<String, DocumentedMetric>) -> Vec<Value> {
    let words = words(component);
    let mut series = Vec::new();
    let mut add = |name: &str, labels: &[String], values: &str| {
        let target = ["namespace", "pod", "service"].map(|label| format!("{label}=\"of-the-target\""));
        let job = [format!("job=\"nodeward-{component}\"")];
        let labels = [labels, &target[..], &job[..]].concat().join(",");
        series.push(json!({ "series": format!("{name}{{{labels}}}"), "values": values }));
    };
    for (name, metric) in documented {
        let values = if metric.labels.is_empty() {
            &words[..1]
        } else {
            &words[..]
        };
        for value in values {
            let labels = metric.labels.iter().map(|label| match label.as_str() {
                // Prometheus renames what collides with a label of the target.
                "namespace" => format!("exported_namespace={value:?}"),
                label => format!("{label}={value:?}"),
            });
            let labels: Vec<String> = labels.collect();
            match metric.kind.as_str() {
                "counter" => add(name, &labels, "0+1x120"),
                "histogram" => {
                    for (bound, values) in [("1", "0+1x120"), ("+Inf", "0+2x120")] {
                        let labels = [&labels[..], &[format!("le={bound:?}")][..]].concat();
                        add(&format!("{name}_bucket"), &labels, values);
                    }
                }
                _ => add(name, &labels, "1x120"),
            }
        }
    }
    series
}

/// The words that the pages of the component's metrics and reasons give as code or as a heading.
fn words(component: &str) -> Vec<String> {
    let page = |name: &str| {
        let path = format!("{}/../../docs/{component}/{name}.md", env!("CARGO_MANIFEST_DIR"));
        fs::read_to_string(path).unwrap()
    };
    let code = Regex::new("`([A-Za-z][A-Za-z-]*)`").unwrap();
    let heading = Regex::new("(?m)^### ([A-Za-z]+)$").unwrap();
    let (metrics, reasons) = (page("metrics"), page("reasons"));
    let found = code.captures_iter(&metrics).chain(heading.captures_iter(&reasons));
    let words: BTreeSet<String> = found.map(|word| word[1].to_owned()).collect();
    words.into_iter().collect()
}

/// An empty panel looks like a quiet cluster.
#[rstest]
#[case::drain_keeper("drainKeeper", "drain-keeper")]
#[case::drain_lock("drainLock", "drain-lock")]
#[case::health_check("healthCheck", "health-check")]
#[case::ceph_pdb("cephPdb", "ceph-pdb")]
fn every_query_finds_series_of_documented_metrics(#[case] block: &str, #[case] component: &str) {
    let (_, dashboard) = dashboard(block, component);
    let documented = documented::metrics_of(component).unwrap();
    let queries = prometheus::queries(component, &dashboard).unwrap();
    assert!(queries.len() > 20, "only {} queries", queries.len());
    let mut rules = Vec::new();
    let mut tests = Vec::new();
    for (index, query) in queries.iter().enumerate() {
        let record = format!("query:{index}");
        let present: Vec<String> = query.legend.iter().map(|label| format!("{label}!=\"\"")).collect();
        rules.push(json!({ "record": record, "expr": query.expression }));
        tests.push(json!({
            "expr": format!("count({{__name__={record:?}}}) == count({{__name__={record:?},{}}}) > bool 0", present.join(",")),
            "eval_time": "60m",
            "exp_samples": [{ "labels": "{}", "value": 1 }],
        }));
    }
    let test = json!({
        "interval": "1m",
        "input_series": scraped(component, &documented),
        "promql_expr_test": tests,
    });
    let told = test_rules(&json!([{ "name": "dashboard", "rules": rules }]), &[test]);
    let numbered = queries.iter().enumerate();
    let numbered: Vec<String> = numbered
        .map(|(index, query)| format!("{index}: {}: {}", query.title, query.expression))
        .collect();
    told.unwrap_or_else(|told| panic!("{told:#}\n{}", numbered.join("\n")));
}

/// Labels, annotations and the key's ending are what Grafana's sidecar goes by; two dashboards of one UID replace each other.
#[test]
fn sidecar_finds_a_dashboard_of_each_component() {
    let components = [
        ("drainKeeper", "drain-keeper"),
        ("drainLock", "drain-lock"),
        ("healthCheck", "health-check"),
        ("cephPdb", "ceph-pdb"),
    ];
    for (block, component) in components {
        let (config_map, dashboard) = dashboard(block, component);
        let metadata = &config_map["metadata"];
        assert_eq!(metadata["labels"]["grafana_dashboard"], "1");
        assert_eq!(metadata["annotations"]["grafana_folder"], "Nodeward");
        assert_eq!(dashboard["uid"], format!("nodeward-{component}").as_str());
        let jobs = dashboard["templating"]["list"][1]["definition"].as_str().unwrap();
        let expected = format!("label_values(nodeward_{}_build_info, job)", component.replace('-', "_"));
        assert_eq!(jobs, expected);
        let ids: BTreeSet<i64> = dashboard["panels"]
            .as_array()
            .unwrap()
            .iter()
            .map(|panel| panel["id"].as_i64().unwrap())
            .collect();
        assert_eq!(ids.len(), dashboard["panels"].as_array().unwrap().len());
        for panel in dashboard["panels"].as_array().unwrap() {
            let source = &panel["datasource"]["uid"];
            assert!(panel["type"] == "row" || source == "${datasource}", "{panel}");
        }
    }
}

/// Grafana moves panels that overlap, and cuts off what is beyond its 24 columns.
#[rstest]
#[case::drain_keeper("drainKeeper", "drain-keeper")]
#[case::drain_lock("drainLock", "drain-lock")]
#[case::health_check("healthCheck", "health-check")]
#[case::ceph_pdb("cephPdb", "ceph-pdb")]
fn panels_have_places_of_their_own(#[case] block: &str, #[case] component: &str) {
    let (_, dashboard) = dashboard(block, component);
    let mut taken = BTreeSet::new();
    for panel in dashboard["panels"].as_array().unwrap() {
        let place = |side: &str| panel["gridPos"][side].as_u64().unwrap();
        assert!(place("x") + place("w") <= 24, "{}", panel["title"]);
        for x in place("x")..place("x") + place("w") {
            for y in place("y")..place("y") + place("h") {
                assert!(taken.insert((x, y)), "{} is on another panel", panel["title"]);
            }
        }
    }
}

/// The page says which panels answer which question.
#[rstest]
fn panels_on_the_page_of_metrics_exist(
    #[values("drain-keeper", "drain-lock", "health-check", "ceph-pdb")] component: &str,
) {
    let root = concat!(env!("CARGO_MANIFEST_DIR"), "/../..");
    let page = fs::read_to_string(format!("{root}/docs/{component}/metrics.md")).unwrap();
    let dashboard = fs::read_to_string(format!("{root}/charts/nodeward/files/dashboards/{component}.json")).unwrap();
    let (_, section) = page.split_once("## Dashboard\n").unwrap();
    let (section, _) = section.split_once("## Alerts\n").unwrap();
    let named: Vec<&str> = section.split('*').skip(1).step_by(2).collect();
    assert!(named.len() > 5, "{named:?}");
    for panel in named {
        assert!(dashboard.contains(&format!("\"title\": \"{panel}\"")), "{panel}");
    }
}

/// A runbook is named by its alert, as on the alerts themselves.
#[test]
fn runbooks_that_panels_name_exist() {
    let name = Regex::new(r"runbook of (\w+)").unwrap();
    let chart = concat!(env!("CARGO_MANIFEST_DIR"), "/../../charts/nodeward");
    let mut named = 0;
    for component in ["drain-keeper", "drain-lock", "health-check", "ceph-pdb"] {
        let dashboard = fs::read_to_string(format!("{chart}/files/dashboards/{component}.json")).unwrap();
        let rules = fs::read_to_string(format!("{chart}/templates/{component}/prometheusrule.yaml")).unwrap();
        for found in name.captures_iter(&dashboard) {
            assert!(rules.contains(&format!("- alert: {}\n", &found[1])), "{}", &found[1]);
            named += 1;
        }
    }
    assert!(named > 8, "{named}");
}
