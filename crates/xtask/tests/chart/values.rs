//! Values: what is refused, and what of them the operators read.

use ceph_pdb::settings::Settings as CephSettings;
use drain_lock::settings::Settings as LockSettings;
use rstest::rstest;
use serde_json::{Value, json};

use drain_keeper::settings::Settings as KeeperSettings;
use health_check::settings::Settings as CheckSettings;

use crate::{CHART, helm, rendered, values_file};

#[rstest]
#[case::defaults(json!({}))]
#[case::everything_on(everything())]
fn helm_lints_without_complaint(#[case] values: Value) {
    let file = values_file(&values);
    let said = helm(&["lint", "--strict", CHART, "--values", file.path().to_str().unwrap()]);
    said.unwrap();
}

/// Values that turn on whatever can be turned on.
pub fn everything() -> Value {
    json!({
        "global": { "imageRegistry": "mirror.example.com/nodeward", "imagePullSecrets": ["global"] },
        "nameOverride": "nw",
        "bindAddress": "::",
        "imagePullSecrets": [{ "name": "own" }],
        "networkPolicy": { "enabled": true, "metricsFrom": [{ "namespaceSelector": {} }] },
        "monitoring": {
            "serviceMonitor": {
                "enabled": true,
                "labels": { "team": "prometheus" },
                "relabelings": [{ "action": "labeldrop", "regex": "pod" }],
            },
            "prometheusRule": { "enabled": true, "labels": { "team": "prometheus" } },
            "dashboards": { "enabled": true, "annotations": { "grafana_folder": "Nodeward" } },
            "prometheusServiceAccount": { "name": "prometheus-k8s", "namespace": "openshift-monitoring" },
        },
        "podLabels": { "team": "pods" },
        "commonAnnotations": { "contact": "nodes" },
        "commonLabels": { "team": "nodes" },
        "drainKeeper": {
            "enabled": true,
            "dryRun": true,
            "readManagedUpgradeConfigMap": { "enabled": true },
            "extraReadRules": [{ "apiGroups": ["example.com"], "resources": ["fleetupgrades"], "resourceNames": ["main"] }],
            "extraArgs": ["--log-level=debug"],
            "extraEnv": [{ "name": "A", "value": "b" }],
            "affinity": { "podAntiAffinity": {} },
            "hostNetwork": true,
            "adminPort": 8081,
            "revisionHistoryLimit": 0,
            "livenessProbe": { "timeoutSeconds": 9 },
            "extraVolumes": [{ "name": "scratch", "emptyDir": {} }],
            "extraVolumeMounts": [{ "name": "scratch", "mountPath": "/scratch" }],
            "image": { "digest": "sha256:0000000000000000000000000000000000000000000000000000000000000000" },
        },
        "drainLock": {
            "enabled": true,
            "webhook": {
                "certificate": { "from": "certManager", "issuerRef": { "kind": "ClusterIssuer", "name": "theirs" } },
                "timeoutSeconds": 3,
                "excludedNamespaces": ["scratch"],
                "extraMatchConditions": [{ "name": "is-no-test", "expression": "request.namespace != 'test'" }],
            },
            "fleetLock": {
                "enabled": true,
                "tlsSecretName": "tls",
                "clientCASecret": { "name": "ca" },
                "bearerTokenSecret": { "name": "token" },
                "service": { "type": "NodePort", "nodePort": 30444, "annotations": { "a": "b" } },
            },
            "medik8sLease": { "rbac": "create" },
            "extraScaleRules": [{ "apiGroups": ["argoproj.io"], "resources": ["rollouts/scale"] }],
        },
        "healthCheck": {
            "enabled": true,
            "default": { "enabled": true, "remediationTemplate": template() },
            "peerNamespaces": ["operators"],
            "ceph": { "namespaces": ["rook-ceph"], "leaderNamespace": "rook-ceph", "namespaceRoles": "create" },
            "etcdGuards": { "rbac": "create" },
            "remediators": [{ "apiGroup": "a.io", "templates": ["fencetemplates"], "remediations": ["fences"] }],
            "webhook": { "certificate": { "from": "certManager" } },
        },
        "cephPdb": {
            "enabled": true,
            "config": { "osdBudgets": "single" },
            "namespaces": ["rook-ceph", "rook-ceph-two"],
            "namespaceRoles": "create",
            "credentials": { "secretName": "ceph-user", "allowAdminKey": true },
        },
    })
}

#[rstest]
#[case::no_component(json!({}), "drainKeeper.enabled=true")]
#[case::a_typing_error(json!({ "drainKeper": {} }), "drainKeper")]
#[case::a_typing_error_further_in(json!({ "drainKeeper": { "replica": 1 } }), "replica")]
#[case::a_typing_error_in_the_webhook(json!({ "drainLock": { "webhook": { "failurePolicy": "Fail" } } }), "failurePolicy")]
#[case::a_budget_that_blocks_every_drain(
    json!({ "drainKeeper": { "podDisruptionBudget": { "maxUnavailable": 0 } } }),
    "maxUnavailable"
)]
#[case::a_budget_that_blocks_every_drain_here_too(
    json!({ "drainLock": { "podDisruptionBudget": { "maxUnavailable": 0 } } }),
    "maxUnavailable"
)]
#[case::another_right_than_reading(
    json!({ "drainKeeper": { "extraReadRules": [{ "apiGroups": [""], "resources": ["pods"], "verbs": ["*"] }] } }),
    "verbs"
)]
#[case::the_same_said_twice(
    json!({ "drainKeeper": {
        "enabled": true,
        "readManagedUpgradeConfigMap": { "enabled": true },
        "config": { "managedUpgradeConfigMap": { "name": "other" } },
    } }),
    "managedUpgradeConfigMap"
)]
#[case::surges_without_their_policy(
    json!({ "drainKeeper": { "enabled": true, "config": { "surge": { "enabled": true } }, "surgePolicy": { "create": false } } }),
    "drainKeeper.surgePolicy.create"
)]
#[case::fleet_lock_said_twice(locked(json!({ "config": { "fleetLock": { "enabled": true } } })), "drainLock.fleetLock")]
#[case::leases_of_drain_keeper_said_twice(
    json!({ "drainKeeper": { "enabled": true, "config": { "leaseNamespace": "a" } } }), "drainKeeper.leases"
)]
#[case::leases_said_twice(locked(json!({ "config": { "medik8sLease": { "enabled": false } } })), "drainLock.medik8sLease")]
#[case::a_webhook_without_tls(locked(json!({ "webhook": { "url": "http://192.0.2.1:9443" } })), "webhook/url")]
#[case::a_webhook_with_a_path(locked(json!({ "webhook": { "url": "https://192.0.2.1:9443/x" } })), "webhook/url")]
#[case::a_certificate_of_nobody(locked(json!({ "webhook": { "certificate": { "from": "secret" } } })), "secretName")]
#[case::a_certificate_that_nobody_trusts(
    locked(json!({ "webhook": { "certificate": { "from": "secret", "secretName": "a" } } })),
    "drainLock.webhook.certificate.caBundle"
)]
#[case::a_certificate_that_nobody_trusts_here_too(
    checked(json!({ "webhook": { "certificate": { "from": "secret", "secretName": "a" } } })),
    "healthCheck.webhook.certificate.caBundle"
)]
#[case::replicas_without_an_election(locked(json!({ "leaderElect": false })), "drainLock.replicas")]
#[case::replicas_without_an_election_here_too(with_ceph(json!({ "leaderElect": false, "replicas": 3 })), "cephPdb.replicas")]
#[case::two_operators_with_one_account(
    json!({
        "drainKeeper": { "enabled": true, "serviceAccount": { "name": "a" } },
        "cephPdb": { "enabled": true, "serviceAccount": { "create": false, "name": "a" } },
    }),
    "cephPdb.serviceAccount.name"
)]
#[case::the_account_that_another_has_by_default(
    json!({
        "drainKeeper": { "enabled": true, "serviceAccount": { "name": "nodeward-drain-lock" } },
        "drainLock": { "enabled": true },
    }),
    "drainLock.serviceAccount.name"
)]
#[case::a_certificate_from_elsewhere(locked(json!({ "webhook": { "certificate": { "from": "vault" } } })), "certificate/from")]
#[case::two_servers_on_one_port(
    locked(json!({ "webhook": { "containerPort": 9444 }, "fleetLock": { "enabled": true } })),
    "fleetLock.containerPort"
)]
#[case::the_metrics_port(locked(json!({ "webhook": { "containerPort": 8080 } })), "webhook.containerPort")]
#[case::no_port(locked(json!({ "webhook": { "containerPort": 0 } })), "containerPort")]
#[case::client_certificates_without_tls(
    locked(json!({ "fleetLock": { "enabled": true, "clientCASecret": { "name": "ca" } } })),
    "tlsSecretName"
)]
#[case::a_default_without_template(checked(json!({ "default": { "enabled": true } })), "default.remediationTemplate.apiVersion")]
#[case::a_default_of_another_kind(
    checked(json!({ "default": { "remediationTemplate": { "kind": "Fence" } } })),
    "remediationTemplate/kind"
)]
#[case::a_default_said_twice(checked(json!({ "config": { "default": { "enabled": true } } })), "healthCheck.default")]
#[case::lease_namespace_said_twice(checked(json!({ "config": { "leaseNamespace": "a" } })), "healthCheck.leases.namespace")]
#[case::peer_said_twice(checked(json!({ "config": { "peer": { "namespaces": [] } } })), "healthCheck.peerNamespaces")]
#[case::ceph_said_twice(checked(json!({ "config": { "ceph": { "namespaces": ["a"] } } })), "healthCheck.ceph")]
#[case::a_remediator_without_kinds(checked(json!({ "remediators": [{ "apiGroup": "a.io" }] })), "templates")]
#[case::the_metrics_port_here_too(checked(json!({ "webhook": { "containerPort": 8080 } })), "webhook.containerPort")]
#[case::a_stricter_webhook(checked(json!({ "webhook": { "failurePolicy": "Fail" } })), "failurePolicy")]
#[case::no_namespace_of_ceph(with_ceph(json!({ "namespaces": [] })), "namespaces")]
#[case::namespaces_said_twice(with_ceph(json!({ "config": { "namespaces": ["a"] } })), "cephPdb.namespaces")]
#[case::credentials_said_twice(with_ceph(json!({ "config": { "credentials": {} } })), "cephPdb.credentials")]
#[case::its_own_config_map_in_the_way(with_ceph(json!({ "namespaces": ["ns"] })), "nodeward-ceph-pdb")]
#[case::no_configuration(checked(json!({ "config": null })), "config")]
#[case::no_servers_of_dns(locked(json!({ "dnsPolicy": "None" })), "dnsPolicy")]
#[case::no_port_at_all(locked(json!({ "adminPort": null })), "adminPort")]
#[case::no_address(json!({ "bindAddress": null, "drainLock": { "enabled": true } }), "bindAddress")]
#[case::no_list_of_namespaces(with_ceph(json!({ "namespaces": null })), "namespaces")]
#[case::no_block_of_ceph(checked(json!({ "ceph": null })), "ceph")]
#[case::no_name_of_an_object(json!({ "nameOverride": "Foo_Bar", "drainLock": { "enabled": true } }), "nameOverride")]
#[case::no_block_to_look_into(locked(json!({ "service": null })), "service")]
#[case::an_account_of_no_name(
    with_ceph(json!({ "serviceAccount": { "create": false } })),
    "cephPdb.serviceAccount.name"
)]
#[case::a_label_of_the_charts(
    json!({ "commonLabels": { "app.kubernetes.io/name": "a" }, "drainLock": { "enabled": true } }),
    "app.kubernetes.io/name"
)]
#[case::a_pod_label_of_the_charts(locked(json!({ "podLabels": { "helm.sh/chart": "a" } })), "helm.sh/chart")]
#[case::an_image_with_its_tag(locked(json!({ "image": { "repository": "a.io/b:1" } })), "repository")]
#[case::everything_scraped_twice(
    json!({
        "drainLock": { "enabled": true },
        "monitoring": { "serviceMonitor": { "enabled": true }, "podMonitor": { "enabled": true } },
    }),
    "monitoring.podMonitor"
)]
#[case::a_scraper_of_no_namespace(
    json!({ "monitoring": { "prometheusServiceAccount": { "name": "prometheus-k8s" } } }),
    "namespace"
)]
#[case::a_webhook_that_may_block_for_ever(locked(json!({ "webhook": { "timeoutSeconds": 31 } })), "timeoutSeconds")]
fn invalid_values_are_rejected_by_name(#[case] values: Value, #[case] named: &str) {
    let file = values_file(&values);
    let values = file.path().to_str().unwrap();
    let refusal = helm(&["template", "nodeward", CHART, "--namespace", "ns", "--values", values]).unwrap_err();
    let refusal = format!("{refusal:#}");
    // The schema names the place with slashes or with dots, as the version of helm has it.
    assert!(
        refusal.replace('.', "/").contains(&named.replace('.', "/")),
        "{refusal}"
    );
}

/// A key without a value, as `podLabels:` in a file, takes the chart's own out.
#[test]
fn keys_without_values_are_taken_for_empty() {
    let values = json!({
        "commonLabels": null, "commonAnnotations": null, "podLabels": null, "imagePullSecrets": null, "global": null,
        "drainLock": {
            "enabled": true,
            "podLabels": null, "podAnnotations": null, "nodeSelector": null, "tolerations": null, "affinity": null,
            "topologySpreadConstraints": null, "extraArgs": null, "extraEnv": null, "extraVolumes": null,
            "extraVolumeMounts": null, "resources": null, "extraScaleRules": null,
        },
    });
    let objects = rendered(&values);
    let deployment = objects.iter().find(|object| object["kind"] == "Deployment").unwrap();
    assert_eq!(deployment["spec"]["template"]["spec"]["tolerations"], Value::Null);
}

/// What looks like what is refused, and works.
#[rstest]
#[case::one_replica_without_an_election(locked(json!({ "leaderElect": false, "replicas": 1 })))]
#[case::a_dry_run_has_one_replica(locked(json!({ "leaderElect": false, "dryRun": true })))]
#[case::nothing_runs_here(locked(json!({ "leaderElect": false, "deployment": { "enabled": false } })))]
#[case::systems_trust_the_certificate(locked(json!({
    "webhook": { "url": "https://lock.example.com", "certificate": { "from": "secret", "secretName": "a" } },
})))]
#[case::a_dry_run_has_its_own(checked(json!({
    "dryRun": true, "webhook": { "certificate": { "from": "secret", "secretName": "a" } },
})))]
#[case::accounts_of_one_that_is_not_enabled(json!({
    "drainKeeper": { "enabled": true, "serviceAccount": { "name": "a" } },
    "cephPdb": { "serviceAccount": { "name": "a" } },
}))]
fn values_that_work_are_taken(#[case] values: Value) {
    assert!(!rendered(&values).is_empty());
}

/// Values with a drain-lock of these.
fn locked(mut values: Value) -> Value {
    values["enabled"] = json!(true);
    json!({ "drainLock": values })
}

/// Values with a health-check of these.
fn checked(mut values: Value) -> Value {
    values["enabled"] = json!(true);
    json!({ "healthCheck": values })
}

/// Values with a ceph-pdb of these.
fn with_ceph(mut values: Value) -> Value {
    values["enabled"] = json!(true);
    json!({ "cephPdb": values })
}

pub fn template() -> Value {
    json!({ "apiVersion": "a.io/v1", "kind": "FenceTemplate", "namespace": "fence", "name": "reboot" })
}

/// The text of the component's configuration file.
fn configuration(objects: &[Value], component: &str) -> String {
    let name = format!("nodeward-{component}");
    let config_map = objects
        .iter()
        .find(|object| object["kind"] == "ConfigMap" && object["metadata"]["name"] == name.as_str());
    config_map.unwrap()["data"]["config.yaml"].as_str().unwrap().to_owned()
}

#[test]
fn drain_keeper_reads_the_rendered_configuration() {
    let values = json!({ "drainKeeper": {
        "enabled": true,
        "readManagedUpgradeConfigMap": { "enabled": true, "name": "theirs" },
        "config": { "nodeDrain": { "timeOut": 20 }, "limits": { "forcedPerMinute": 3_000_000 } },
    } });
    let text = configuration(&rendered(&values), "drain-keeper");
    let policy = KeeperSettings::parse(&text).unwrap().policy;
    assert_eq!(policy.managed_upgrade_config_map.unwrap().name, "theirs");
    assert_eq!(policy.forced_per_minute.get(), 3_000_000);
}

#[test]
fn drain_lock_reads_the_rendered_configuration() {
    let policy = |values: Value| {
        let objects = rendered(&locked(values));
        LockSettings::parse(&configuration(&objects, "drain-lock"))
            .unwrap()
            .policy
    };
    let defaults = LockSettings::parse("").unwrap().policy;
    assert_eq!(
        format!("{:?}", policy(json!({ "medik8sLease": { "rbac": "create" } }))),
        format!("{defaults:?}")
    );

    let changed = policy(json!({
        "config": { "fallback": "Wait", "eviction": { "maxParallel": 3_000_000 }, "deadlines": { "queue": "2h" } },
        "medik8sLease": { "enabled": false },
        "fleetLock": {
            "enabled": true,
            "tlsSecretName": "tls",
            "clientCASecret": { "name": "ca", "key": "clients.crt" },
            "bearerTokenSecret": { "name": "token" },
        },
    }));
    assert_eq!(changed.evictions_per_node, 3_000_000);
    assert_eq!(changed.deadlines.queue, jiff::SignedDuration::from_hours(2));
    assert_eq!(changed.medik8s_leases, None);
    let fleet_lock = changed.fleet_lock.clone().unwrap();
    assert_eq!(fleet_lock.bind.port(), 9444);
    assert_eq!(
        fleet_lock.client_ca.unwrap().to_str(),
        Some("/etc/nodeward-fleetlock/client-ca/clients.crt")
    );
}

/// drain-lock knows the others by the names that the chart gives their accounts.
#[test]
fn drain_lock_is_told_accounts_of_other_names() {
    let told = |accounts: Value, config: Value| {
        let account = |component: &str| accounts.get(component).cloned().unwrap_or_else(|| json!({}));
        let mut values = locked(json!({ "config": config, "serviceAccount": account("drain-lock") }));
        values["drainKeeper"] = json!({ "enabled": true, "serviceAccount": account("drain-keeper") });
        let text = configuration(&rendered(&values), "drain-lock");
        let never = LockSettings::parse(&text).unwrap().policy.auto.never_drainers.clone();
        never.into_iter().collect::<Vec<_>>()
    };
    let own = |name: &str| format!("system:serviceaccount:ns:{name}");
    let named = |component: &str, name: &str| json!({ component: { "name": name } });
    assert_eq!(told(json!({}), json!({})), Vec::<String>::new());
    assert_eq!(told(named("drain-keeper", "keeper"), json!({})), [own("keeper")]);
    assert_eq!(
        told(named("drain-lock", "lock"), json!({})),
        [own("nodeward-drain-keeper")]
    );
    let config = json!({ "auto": { "quietPeriod": "40m", "neverDrainers": ["bob", own("keeper")] } });
    assert_eq!(
        told(named("drain-keeper", "keeper"), config),
        ["bob".to_owned(), own("keeper")]
    );
}

#[test]
fn health_check_reads_the_rendered_configuration() {
    let policy = |values: Value| {
        let objects = rendered(&checked(values));
        CheckSettings::parse_with(&configuration(&objects, "health-check"), None)
            .unwrap()
            .policy
    };
    assert_eq!(*policy(json!({})), *CheckSettings::parse_with("", None).unwrap().policy);
    let changed = policy(json!({
        "config": { "oldRemediationAfter": "24h" },
        "leases": { "namespace": "leases" },
        "peerNamespaces": ["a", "b"],
        "ceph": { "namespaces": ["rook-ceph"] },
        "default": { "enabled": true, "remediationTemplate": template() },
    }));
    assert_eq!(changed.old_remediation, jiff::SignedDuration::from_hours(24));
    assert_eq!(&*changed.lease_namespace, "leases");
    assert_eq!(changed.peer_namespaces.len(), 2);
    assert_eq!(changed.ceph_namespaces, ["rook-ceph".into()].into());
    assert_eq!(
        changed.default_template.clone().unwrap().to_string(),
        "FenceTemplate fence/reboot"
    );
}

#[test]
fn ceph_pdb_reads_the_rendered_configuration() {
    let policy = |values: Value| {
        let objects = rendered(&with_ceph(values));
        let text = configuration(&objects, "ceph-pdb");
        CephSettings::parse(&text).unwrap().policy
    };
    let of_namespace = CephSettings::parse("namespaces: [rook-ceph]").unwrap().policy;
    assert_eq!(policy(json!({})), of_namespace);
    let changed = policy(json!({
        "config": { "osdMaintenanceTimeout": "1h" },
        "namespaces": ["a", "b"],
        "credentials": { "secretName": "ceph-user", "allowAdminKey": true },
    }));
    assert_eq!(changed.osd_maintenance_timeout, jiff::SignedDuration::from_hours(1));
    assert_eq!(*changed.namespaces, ["a".into(), "b".into()]);
    assert_eq!(changed.credentials_secret.as_deref(), Some("ceph-user"));
    assert!(changed.allow_admin_key);
}

/// Without an election a rollout must not have two replicas act at once.
#[rstest]
#[case::elected(json!({}), json!({ "type": "RollingUpdate", "rollingUpdate": { "maxSurge": 1, "maxUnavailable": 0 } }))]
#[case::not_elected(json!({ "leaderElect": false, "replicas": 1 }), json!({ "type": "Recreate" }))]
fn rollout_follows_the_election(#[case] values: Value, #[case] strategy: Value) {
    let objects = rendered(&locked(values));
    let deployment = objects.iter().find(|object| object["kind"] == "Deployment").unwrap();
    assert_eq!(deployment["spec"]["strategy"], strategy);
}

/// Each operator's kinds are installed with it, and no others.
#[test]
fn kinds_are_installed_with_their_operator() {
    let groups = |values: Value| {
        let objects = rendered(&values);
        let definitions = objects
            .iter()
            .filter(|object| object["kind"] == "CustomResourceDefinition");
        let mut groups: Vec<String> = definitions
            .map(|object| object["spec"]["group"].as_str().unwrap().to_owned())
            .collect();
        groups.dedup();
        groups
    };
    assert_eq!(
        groups(json!({ "drainKeeper": { "enabled": true } })),
        Vec::<String>::new()
    );
    assert_eq!(groups(locked(json!({}))), ["nodeward.dev"]);
    assert_eq!(groups(checked(json!({}))), ["remediation.medik8s.io"]);
}

/// On a first install the namespace of the leases is made by health-check's templates, and the others use it at once.
#[test]
fn others_use_the_leases_that_health_check_brings() {
    let values = |create: &str| {
        json!({
            "drainKeeper": { "enabled": true },
            "drainLock": { "enabled": true },
            "healthCheck": { "enabled": true, "leases": { "create": create } },
        })
    };
    for (create, uses) in [("auto", true), ("never", false)] {
        let text = configuration(&rendered(&values(create)), "drain-lock");
        let policy = LockSettings::parse(&text).unwrap().policy;
        assert_eq!(policy.medik8s_leases.is_some(), uses, "{create}");
        let text = configuration(&rendered(&values(create)), "drain-keeper");
        let policy = KeeperSettings::parse(&text).unwrap().policy;
        assert_eq!(policy.lease_namespace.is_some(), uses, "{create}");
    }
}

/// Each file that the configuration names is mounted, each server's port is open, and the operator knows each of its flags.
#[test]
fn files_of_the_configuration_are_mounted() {
    let objects = rendered(&locked(json!({
        "webhook": { "certificate": { "from": "secret", "secretName": "hook", "caBundle": "CA" } },
        "fleetLock": {
            "enabled": true,
            "tlsSecretName": "tls",
            "clientCASecret": { "name": "ca" },
            "bearerTokenSecret": { "name": "token" },
        },
    })));
    let policy = LockSettings::parse(&configuration(&objects, "drain-lock"))
        .unwrap()
        .policy;
    let deployment = objects
        .iter()
        .find(|object| object["kind"] == "Deployment" && object["metadata"]["name"] == "nodeward-drain-lock");
    let pod = &deployment.unwrap()["spec"]["template"]["spec"];
    let container = &pod["containers"][0];
    let secret_at = |path: &std::path::Path| {
        let mounts = container["volumeMounts"].as_array().unwrap();
        let mount = mounts
            .iter()
            .find(|mount| path.starts_with(mount["mountPath"].as_str().unwrap()) && mount["name"] != "config")?;
        let volume = pod["volumes"]
            .as_array()
            .unwrap()
            .iter()
            .find(|v| v["name"] == mount["name"])?;
        volume["secret"]["secretName"].as_str()
    };
    let fleet_lock = policy.fleet_lock.clone().unwrap();
    assert_eq!(secret_at(&fleet_lock.tls.unwrap()), Some("tls"));
    assert_eq!(secret_at(&fleet_lock.client_ca.unwrap()), Some("ca"));
    assert_eq!(secret_at(&fleet_lock.bearer_token_file.unwrap()), Some("token"));
    let args = container["args"].to_string();
    assert!(args.contains("--webhook-cert-dir=/etc/nodeward-webhook\""), "{args}");
    assert_eq!(secret_at("/etc/nodeward-webhook".as_ref()), Some("hook"));
    let port = json!({ "name": "fleetlock", "containerPort": fleet_lock.bind.port(), "protocol": "TCP" });
    assert!(
        container["ports"].as_array().unwrap().contains(&port),
        "{}",
        container["ports"]
    );
}
