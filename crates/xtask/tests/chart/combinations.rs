//! Every combination of switches: what is granted, and what the API server takes.

use std::collections::BTreeMap;
use std::io::Write as _;
use std::sync::LazyLock;

use anyhow::{Result, ensure};
use serde_json::{Value, json};

use crate::values::everything;
use crate::{CEPH_NAMESPACE, rendered, shared};

/// Every combination of the switches that decide which objects of drain-keeper there are.
fn of_drain_keeper() -> Vec<Value> {
    const SWITCHES: [&str; 6] = [
        "/dryRun",
        "/deployment/enabled",
        "/rbac/create",
        "/serviceAccount/create",
        "/service/enabled",
        "/readManagedUpgradeConfigMap/enabled",
    ];
    (0..1_u32 << SWITCHES.len())
        .map(|bits| {
            let mut values = json!({ "enabled": true, "serviceAccount": { "name": "theirs" } });
            for (index, switch) in SWITCHES.iter().enumerate() {
                set(&mut values, switch, json!(bits & (1 << index) != 0));
            }
            json!({ "drainKeeper": values })
        })
        .collect()
}

/// Every pair of changes from drain-lock's defaults: it has too many switches for all combinations.
fn of_drain_lock() -> Vec<Value> {
    let changes = [
        ("/dryRun", json!(true)),
        ("/deployment/enabled", json!(false)),
        ("/rbac/create", json!(false)),
        ("/serviceAccount", json!({ "create": false, "name": "theirs" })),
        ("/service/enabled", json!(false)),
        ("/podDisruptionBudget/enabled", json!(false)),
        ("/webhook/enabled", json!(false)),
        ("/webhook/url", json!("https://192.0.2.1:9443")),
        ("/webhook/certificate/from", json!("certManager")),
        (
            "/fleetLock",
            json!({ "enabled": true, "tlsSecretName": "tls", "clientCASecret": { "name": "ca" } }),
        ),
        ("/medik8sLease/rbac", json!("create")),
        ("/hostNetwork", json!(true)),
    ];
    let mut all = pairs(&changes, |values| json!({ "drainLock": values }));
    for (crds, users) in [(false, false), (true, false), (false, true)] {
        all.push(json!({
            "crds": { "enabled": crds, "keep": false },
            "userRoles": { "create": users, "aggregate": false },
            "drainLock": { "enabled": true },
        }));
    }
    all
}

/// Every pair of changes from health-check's defaults.
fn of_health_check() -> Vec<Value> {
    let template = json!({ "apiVersion": "a.io/v1", "kind": "FenceTemplate", "namespace": "fence", "name": "reboot" });
    let remediator = json!({ "apiGroup": "a.io", "templates": ["fencetemplates"], "remediations": ["fences"] });
    let changes = [
        ("/dryRun", json!(true)),
        ("/deployment/enabled", json!(false)),
        ("/rbac/create", json!(false)),
        ("/serviceAccount", json!({ "create": false, "name": "theirs" })),
        ("/service/enabled", json!(false)),
        ("/webhook/enabled", json!(false)),
        ("/webhook/url", json!("https://192.0.2.1:9443")),
        ("/webhook/certificate/from", json!("certManager")),
        ("/default", json!({ "enabled": true, "remediationTemplate": template })),
        ("/leases/create", json!("never")),
        ("/remediators", json!([remediator])),
    ];
    pairs(&changes, |values| json!({ "healthCheck": values }))
}

/// Every pair of changes from ceph-pdb's defaults.
fn of_ceph_pdb() -> Vec<Value> {
    let changes = [
        ("/dryRun", json!(true)),
        ("/deployment/enabled", json!(false)),
        ("/rbac/create", json!(false)),
        ("/serviceAccount", json!({ "create": false, "name": "theirs" })),
        ("/service/enabled", json!(false)),
        ("/podDisruptionBudget/enabled", json!(false)),
        ("/namespaces", json!(["kube-system", "default"])),
        ("/namespaceRoles", json!("create")),
        ("/credentials", json!({ "secretName": "ceph-user" })),
        ("/credentials/allowAdminKey", json!(true)),
    ];
    pairs(&changes, |values| json!({ "cephPdb": values }))
}

/// What every pair of these changes, and every single one, comes to.
fn pairs(changes: &[(&str, Value)], values_of: impl Fn(Value) -> Value) -> Vec<Value> {
    let pairs = (0..changes.len()).flat_map(|first| (first..changes.len()).map(move |second| (first, second)));
    pairs
        .map(|(first, second)| {
            let mut values = json!({ "enabled": true });
            for index in [first, second] {
                let (switch, value) = &changes[index];
                set(&mut values, switch, value.clone());
            }
            values_of(values)
        })
        .collect()
}

/// Each of them, and what it renders: worked out once, for helm takes its time.
static RENDERED: LazyLock<Vec<(Value, Vec<Value>)>> = LazyLock::new(|| {
    // But for namespaces that are not there.
    let mut everything = everything();
    set(&mut everything, "/cephPdb/namespaces", json!([CEPH_NAMESPACE]));
    set(&mut everything, "/healthCheck/etcdGuards/rbac", json!("external"));
    set(&mut everything, "/drainKeeper/dryRun", json!(false));
    let all = [
        of_drain_keeper(),
        of_drain_lock(),
        of_health_check(),
        of_ceph_pdb(),
        vec![everything],
    ]
    .concat();
    std::thread::scope(|scope| {
        let halves: Vec<_> = all
            .chunks(all.len().div_ceil(2))
            .map(|half| {
                scope.spawn(|| {
                    half.iter()
                        .map(|values| (values.clone(), rendered(values)))
                        .collect::<Vec<_>>()
                })
            })
            .collect();
        halves.into_iter().flat_map(|half| half.join().unwrap()).collect()
    })
});

fn set(values: &mut Value, path: &str, to: Value) {
    let mut place = values;
    for part in path.split('/').skip(1) {
        place = &mut place[part];
    }
    *place = to;
}

#[test]
fn rules_are_explicit_and_dry_runs_read_only() {
    for (values, objects) in RENDERED.iter() {
        let components = [
            ("drainLock", "drain-lock"),
            ("healthCheck", "health-check"),
            ("cephPdb", "ceph-pdb"),
        ];
        let named = components.into_iter().find(|(key, _)| !values[key].is_null());
        let (key, component) = named.unwrap_or(("drainKeeper", "drain-keeper"));
        let dry_run = values[key]["dryRun"] == true;
        for role in objects
            .iter()
            .filter(|object| object["kind"].as_str().unwrap().ends_with("Role"))
        {
            let of_people = role["metadata"]["labels"]["app.kubernetes.io/name"] == "nodeward";
            // What remediators grant is aggregated, and what they do not grant by themselves the values name.
            let of_remediators = !role["aggregationRule"].is_null();
            assert!(of_remediators == role["rules"].is_null(), "{role}");
            for rule in role["rules"].as_array().into_iter().flatten() {
                let text = rule.to_string();
                assert!(!text.contains("\"*\""), "{text}");
                if !dry_run || of_people {
                    continue;
                }
                let writes = ["create", "update", "patch", "delete"]
                    .iter()
                    .any(|verb| rule["verbs"].as_array().unwrap().contains(&json!(verb)));
                let harmless = ["leases", "selfsubjectreviews", "subjectaccessreviews"]
                    .iter()
                    .any(|resource| rule["resources"] == json!([resource]));
                // By name, or what cannot be limited to one: the certificate of a dry run that is asked.
                let of_webhook = component == "drain-lock"
                    && ["secrets", "validatingwebhookconfigurations"]
                        .iter()
                        .any(|resource| rule["resources"] == json!([resource]));
                assert!(!writes || harmless || of_webhook, "{text}");
                let webhook = format!("nodeward-{component}\"");
                assert!(
                    !of_webhook || !text.contains(&webhook),
                    "the real one's webhook: {text}"
                );
                assert!(
                    !text.contains(&format!("\"{component}\"")),
                    "the real one's lease: {text}"
                );
            }
        }
    }
}

#[tokio::test]
async fn api_server_accepts_every_combination() -> Result<()> {
    let (plane, namespace) = shared("combinations").await?;
    plane.namespace(&namespace).await?;
    // One request an object, so each object is tried once however many combinations render it.
    let mut objects = BTreeMap::new();
    let rendered = tokio::task::spawn_blocking(|| &*RENDERED).await?;
    for (_, of_these) in rendered {
        for mut object in of_these.iter().cloned() {
            // Neither cert-manager nor the Prometheus operator is installed.
            let version = object["apiVersion"].as_str().unwrap_or_default();
            if ["cert-manager.io/", "monitoring.coreos.com/"]
                .iter()
                .any(|group| version.starts_with(group))
            {
                continue;
            }
            if object["metadata"]["namespace"] == "ns" {
                object["metadata"]["namespace"] = json!(namespace);
            }
            objects.insert(object.to_string(), object);
        }
    }
    ensure!(objects.len() > 40, "only {} different objects", objects.len());
    let list = json!({ "apiVersion": "v1", "kind": "List", "items": objects.into_values().collect::<Vec<_>>() });
    let mut file = tempfile::NamedTempFile::new()?;
    write!(file, "{list}")?;
    let mut kubectl = plane.kubectl();
    kubectl
        .args(["apply", "--dry-run=server", "--validate=strict", "--filename"])
        .arg(file.path());
    let output = kubectl.output()?;
    ensure!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    Ok(())
}
