//! What the rendered objects say.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::process::Command;

use nodeward_testkit::operator::ALLOCATOR;
use nodeward_testkit::toolchain;
use rstest::rstest;
use serde_json::{Value, json};

use crate::values::everything;
use crate::{CHART, helm, rendered, values_file};

#[rstest]
#[case::drain_keeper("drainKeeper", "drain-keeper")]
#[case::drain_lock("drainLock", "drain-lock")]
#[case::health_check("healthCheck", "health-check")]
#[case::ceph_pdb("cephPdb", "ceph-pdb")]
fn enabled_component_brings_no_other_one(#[case] block: &str, #[case] component: &str) {
    let objects = rendered(&json!({ block: { "enabled": true } }));
    let named = |object: &Value| object["metadata"]["labels"]["app.kubernetes.io/component"].clone();
    let components: BTreeSet<String> = objects
        .iter()
        .map(|object| named(object).as_str().unwrap().to_owned())
        .collect();
    let shared = ["crds", "user-roles"].map(str::to_owned);
    let own: Vec<_> = components.iter().filter(|name| !shared.contains(name)).collect();
    assert_eq!(own, [component]);
}

/// What drain-keeper may not force drain-lock should not begin to drain.
#[test]
fn windows_are_of_both_operators() {
    let windows = json!([{ "days": ["Saturday"], "from": "22:00", "to": "04:00", "timeZone": "Europe/Berlin" }]);
    let both = json!({ "windows": windows, "drainKeeper": { "enabled": true }, "drainLock": { "enabled": true } });
    let objects = rendered(&both);
    for operator in ["drain-keeper", "drain-lock"] {
        let name = format!("nodeward-{operator}");
        let is_meant = |object: &&Value| object["kind"] == "ConfigMap" && object["metadata"]["name"] == name.as_str();
        let config = objects.iter().find(is_meant).unwrap()["data"]["config.yaml"]
            .as_str()
            .unwrap();
        let config: Value = serde_yaml::from_str(config).unwrap();
        assert_eq!(config["windows"], windows, "{operator}");
    }
    let twice = values_file(&json!({ "drainKeeper": { "enabled": true, "config": { "windows": windows } } }));
    let refusal = helm(&[
        "template",
        "nodeward",
        CHART,
        "--values",
        twice.path().to_str().unwrap(),
    ])
    .unwrap_err();
    assert!(
        refusal.to_string().contains("set the value windows instead"),
        "{refusal:#}"
    );
    let wrong =
        values_file(&json!({ "drainKeeper": { "enabled": true }, "windows": [{ "from": "22", "to": "04:00" }] }));
    let refusal = helm(&[
        "template",
        "nodeward",
        CHART,
        "--values",
        wrong.path().to_str().unwrap(),
    ])
    .unwrap_err();
    assert!(
        format!("{refusal:#}").replace('.', "/").contains("windows/0/from"),
        "{refusal:#}"
    );
}

/// kustomize refuses a key or an object that is there twice.
#[test]
fn kustomize_accepts_what_the_chart_renders() {
    let file = values_file(&everything());
    let values = ["--values", file.path().to_str().unwrap()];
    let text = helm(&[&["template", "nodeward", CHART, "--namespace", "ns"], &values[..]].concat()).unwrap();
    let directory = tempfile::tempdir().unwrap();
    fs::write(directory.path().join("all.yaml"), &text).unwrap();
    let kustomization = json!({ "resources": ["all.yaml"], "labels": [{ "pairs": { "added": "here" } }] });
    fs::write(directory.path().join("kustomization.yaml"), kustomization.to_string()).unwrap();
    let kubectl = toolchain::of_environment().unwrap().kubectl;
    let built = Command::new(kubectl)
        .arg("kustomize")
        .arg(directory.path())
        .output()
        .unwrap();
    assert!(built.status.success(), "{}", String::from_utf8_lossy(&built.stderr));
    let kinds = |text: &str| text.lines().filter(|line| line.starts_with("kind: ")).count();
    assert_eq!(kinds(&String::from_utf8_lossy(&built.stdout)), kinds(&text));
}

/// What the testbed measures memory with is what users run with.
#[test]
fn every_pod_has_the_allocators_settings() {
    let objects = rendered(&everything());
    let deployments = objects.iter().filter(|object| object["kind"] == "Deployment");
    for deployment in deployments {
        let environment = &deployment["spec"]["template"]["spec"]["containers"][0]["env"];
        let value_of = |name: &str| {
            let mut entries = environment.as_array().unwrap().iter();
            entries.find(|entry| entry["name"] == name).unwrap()["value"].clone()
        };
        for (name, value) in ALLOCATOR {
            assert_eq!(value_of(name), value, "{environment}");
        }
    }
}

#[test]
fn labels_and_annotations_are_on_every_object() {
    let objects = rendered(&everything());
    assert!(objects.len() > 50, "{}", objects.len());
    for object in &objects {
        let metadata = &object["metadata"];
        let labels = &metadata["labels"];
        assert_eq!(labels["app.kubernetes.io/name"], "nw", "{metadata}");
        assert_eq!(labels["app.kubernetes.io/part-of"], "nodeward", "{metadata}");
        assert!(labels["app.kubernetes.io/component"].is_string(), "{metadata}");
        let is_monitored = ["ServiceMonitor", "PrometheusRule"].contains(&object["kind"].as_str().unwrap());
        let team = if is_monitored { "prometheus" } else { "nodes" };
        assert_eq!(labels["team"], team, "{metadata}");
        assert_eq!(metadata["annotations"]["contact"], "nodes", "{metadata}");
    }
    let webhook = named(&objects, "ValidatingWebhookConfiguration", "nodeward-nw-drain-lock");
    let injected = &webhook["metadata"]["annotations"]["cert-manager.io/inject-ca-from"];
    assert_eq!(injected, "ns/nodeward-nw-drain-lock-webhook");
    let monitor = named(&objects, "ServiceMonitor", "nodeward-nw-drain-lock");
    assert_eq!(monitor["spec"]["endpoints"][0]["relabelings"][0]["action"], "labeldrop");
    for deployment in objects.iter().filter(|object| object["kind"] == "Deployment") {
        let template = &deployment["spec"]["template"]["metadata"];
        assert_eq!(template["labels"]["team"], "pods", "{template}");
        assert_eq!(template["annotations"]["contact"], "nodes", "{template}");
        let selector = deployment["spec"]["selector"]["matchLabels"].as_object().unwrap();
        assert_eq!(selector["app.kubernetes.io/name"], "nw");
        for (label, value) in selector {
            assert_eq!(&template["labels"][label], value);
        }
    }
}

#[test]
fn pods_follow_the_values_of_their_component() {
    let mut values = everything();
    values["healthCheck"]["image"] =
        json!({ "repository": "r.example.com:5000/checks", "tag": "2", "pullPolicy": "Always" });
    values["drainLock"]["dnsPolicy"] = json!("Default");
    let objects = rendered(&values);
    let pod = |component: &str| {
        let name = format!("nodeward-nw-{component}");
        named(&objects, "Deployment", &name)["spec"]["template"]["spec"].clone()
    };
    let keeper = pod("drain-keeper");
    assert_eq!(
        (&keeper["hostNetwork"], &keeper["dnsPolicy"]),
        (&json!(true), &json!("ClusterFirstWithHostNet"))
    );
    assert_eq!(
        keeper["imagePullSecrets"],
        json!([{ "name": "global" }, { "name": "own" }])
    );
    let container = &keeper["containers"][0];
    let mount = container["volumeMounts"].as_array().unwrap().last().unwrap();
    assert_eq!(
        (&mount["name"], &keeper["volumes"][1]["name"]),
        (&json!("scratch"), &json!("scratch"))
    );
    assert_eq!(container["livenessProbe"]["timeoutSeconds"], 9);
    assert_eq!(container["livenessProbe"]["failureThreshold"], 6, "the others stay");
    assert!(
        container["args"].to_string().contains("--admin-bind=[::]:8081"),
        "{container}"
    );
    assert_eq!(container["ports"][0]["containerPort"], 8081);
    let image = container["image"].as_str().unwrap();
    assert!(
        image.starts_with("mirror.example.com/nodeward/drain-keeper@sha256:"),
        "{image}"
    );

    let lock = pod("drain-lock");
    assert_eq!(
        (&lock["hostNetwork"], &lock["dnsPolicy"]),
        (&Value::Null, &json!("Default"))
    );
    assert!(
        lock["containers"][0]["args"]
            .to_string()
            .contains("--webhook-bind=[::]:9443")
    );
    let checks = pod("health-check");
    assert_eq!(checks["containers"][0]["image"], "r.example.com:5000/checks:2");
    assert_eq!(checks["containers"][0]["imagePullPolicy"], "Always");
    let webhook = named(&objects, "ValidatingWebhookConfiguration", "nodeward-nw-drain-lock");
    assert_eq!(webhook["webhooks"][0]["timeoutSeconds"], 3);
    let deployment = named(&objects, "Deployment", "nodeward-nw-drain-keeper");
    assert_eq!(deployment["spec"]["revisionHistoryLimit"], 0);
}

#[test]
fn network_policies_open_every_port_served() {
    let objects = rendered(&everything());
    let policies = objects.iter().filter(|object| object["kind"] == "NetworkPolicy");
    let mut opened = BTreeMap::new();
    for policy in policies {
        let name = policy["metadata"]["name"].as_str().unwrap();
        let rules = policy["spec"]["ingress"].as_array().unwrap();
        for rule in rules {
            let port = rule["ports"][0]["port"].as_str().unwrap();
            assert_eq!(rule["from"].is_null(), port != "metrics", "{policy}");
        }
        let deployment = named(&objects, "Deployment", name);
        let served = &deployment["spec"]["template"]["spec"]["containers"][0]["ports"];
        let served: Vec<&Value> = served.as_array().unwrap().iter().map(|port| &port["name"]).collect();
        let ports: Vec<&Value> = rules.iter().map(|rule| &rule["ports"][0]["port"]).collect();
        assert_eq!(ports, served, "{name}");
        opened.insert(name.to_owned(), ports.len());
    }
    assert_eq!(opened.into_values().collect::<Vec<_>>(), [1, 1, 3, 2]);
}

#[test]
fn pod_monitor_takes_the_place_of_service_monitor() {
    let mut values = everything();
    values["monitoring"]["serviceMonitor"]["enabled"] = json!(false);
    values["monitoring"]["podMonitor"] = json!({ "enabled": true });
    let objects = rendered(&values);
    let kinds: BTreeSet<&str> = objects.iter().map(|object| object["kind"].as_str().unwrap()).collect();
    assert!(
        kinds.contains("PodMonitor") && !kinds.contains("ServiceMonitor"),
        "{kinds:?}"
    );
    // The job of a PodMonitor's targets has the namespace before its name.
    let rules = named(&objects, "PrometheusRule", "nodeward-nw-ceph-pdb").to_string();
    assert!(rules.contains(r#"job=\"ns/nodeward-nw-ceph-pdb\""#), "{rules}");
}

fn named<'a>(objects: &'a [Value], kind: &str, name: &str) -> &'a Value {
    let found = objects
        .iter()
        .find(|object| object["kind"] == kind && object["metadata"]["name"] == name);
    assert!(found.is_some(), "no {kind} {name}");
    found.unwrap()
}
