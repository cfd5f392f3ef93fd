//! The page of rights, `docs/rights.md`, generated from what the chart renders.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write as _;
use std::{env, fs};

use serde_json::{Value, json};

use crate::schema::UPDATE;
use crate::{CHART, rendered};

/// The components in the order of their sections, and the values that bring every rule of one.
fn components() -> [(&'static str, &'static str, Value); 4] {
    [
        (
            "drain-keeper",
            "drainKeeper",
            json!({
                "readManagedUpgradeConfigMap": { "enabled": true },
                "leases": { "rbac": "create" },
                "config": { "optOuts": { "namespaces": { "selector": { "team": "a" } } }, "surge": { "enabled": true } },
            }),
        ),
        (
            "drain-lock",
            "drainLock",
            json!({ "medik8sLease": { "rbac": "create" }, "fleetLock": { "enabled": true, "tlsSecretName": "tls" } }),
        ),
        (
            "health-check",
            "healthCheck",
            json!({
                "default": { "enabled": true, "remediationTemplate": crate::values::template() },
                "ceph": { "namespaces": ["rook-ceph"], "leaderNamespace": "rook-ceph", "namespaceRoles": "create" },
                "etcdGuards": { "rbac": "create" },
            }),
        ),
        ("ceph-pdb", "cephPdb", json!({ "namespaceRoles": "create" })),
    ]
}

/// A rule, as the page tells it.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
struct Rule {
    group: String,
    resource: String,
    names: String,
    place: String,
}

impl Rule {
    /// A dry run has some of the names, or the same rule.
    fn covers(&self, dry: &Self) -> bool {
        let names = |rule: &Self| rule.names.split(", ").map(ToOwned::to_owned).collect::<BTreeSet<_>>();
        let is_of_the_same = (&self.group, &self.resource, &self.place) == (&dry.group, &dry.resource, &dry.place);
        is_of_the_same && names(dry).is_subset(&names(self))
    }
}

/// Each rule's verbs.
type Rules = BTreeMap<Rule, BTreeSet<String>>;

/// What one component's account may do with these values.
fn rules(component: &str, block: &str, values: &Value) -> Rules {
    let mut own = values.clone();
    own["enabled"] = json!(true);
    let objects = rendered(&json!({ block: own }));
    let account = objects.iter().find(|object| {
        object["kind"] == "ServiceAccount" && object["metadata"]["labels"]["app.kubernetes.io/component"] == component
    });
    let account = &account.unwrap()["metadata"]["name"];
    let is_its = |binding: &&Value| {
        let subjects = binding["subjects"].as_array();
        subjects.is_some_and(|subjects| subjects.iter().any(|subject| subject["name"] == *account))
    };
    let mut rules = Rules::new();
    for binding in objects.iter().filter(is_its) {
        let namespace = binding["metadata"]["namespace"].as_str();
        let place = match (binding["kind"].as_str().unwrap(), namespace) {
            ("ClusterRoleBinding", _) => "cluster".to_owned(),
            (_, Some("ns") | None) => "its own namespace".to_owned(),
            (_, Some(namespace)) => format!("`{namespace}`"),
        };
        let of_binding = &binding["roleRef"];
        let is_bound = |role: &&Value| {
            role["kind"] == of_binding["kind"]
                && role["metadata"]["name"] == of_binding["name"]
                && (role["kind"] == "ClusterRole" || role["metadata"]["namespace"] == binding["metadata"]["namespace"])
        };
        let role = objects.iter().find(is_bound).unwrap();
        for rule in role["rules"].as_array().into_iter().flatten() {
            let verbs: BTreeSet<String> = texts(&rule["verbs"]).map(ToOwned::to_owned).collect();
            assert!(!verbs.contains("*"), "{rule}");
            for group in texts(&rule["apiGroups"]) {
                for resource in texts(&rule["resources"]) {
                    let names: Vec<&str> = texts(&rule["resourceNames"]).collect();
                    let rule = Rule {
                        group: group.to_owned(),
                        resource: resource.to_owned(),
                        names: names.join(", "),
                        place: place.clone(),
                    };
                    rules.entry(rule).or_default().extend(verbs.iter().cloned());
                }
            }
        }
    }
    rules
}

fn texts(list: &Value) -> impl Iterator<Item = &str> {
    list.as_array().into_iter().flatten().filter_map(Value::as_str)
}

fn section(page: &mut String, component: &str, block: &str, options: &Value) {
    let usual = rules(component, block, &json!({}));
    let dry_run = rules(component, block, &json!({ "dryRun": true }));
    let all = rules(component, block, options);
    writeln!(page, "\n## {component}\n").unwrap();
    page.push_str("| resource | names | where | verbs | with `dryRun` |\n| --- | --- | --- | --- | --- |\n");
    let is_told_by = |dry: &Rule| all.keys().any(|rule| rule.covers(dry));
    let of_dry_run_alone = dry_run.keys().filter(|dry| !is_told_by(dry));
    let rows: BTreeSet<&Rule> = all.keys().chain(of_dry_run_alone).collect();
    for rule in rows {
        let verbs = all.get(rule).cloned().unwrap_or_default();
        let of_usual = usual.get(rule).cloned().unwrap_or_default();
        let of_dry_run = dry_run.iter().filter(|(dry, _)| rule.covers(dry));
        let in_dry_run: BTreeSet<String> = of_dry_run.flat_map(|(_, verbs)| verbs.iter().cloned()).collect();
        let resource = match rule.group.as_str() {
            "" => rule.resource.clone(),
            group => format!("{}.{group}", rule.resource),
        };
        let optional: BTreeSet<String> = verbs.difference(&of_usual).cloned().collect();
        let told = [(of_usual, ""), (optional, " (with an option)")];
        let told = told.iter().filter(|(verbs, _)| !verbs.is_empty());
        let told: Vec<String> = told.map(|(verbs, note)| format!("{}{note}", list(verbs))).collect();
        writeln!(
            page,
            "| `{resource}` | {} | {} | {} | {} |",
            code(&rule.names),
            rule.place,
            told.join("; "),
            list(&in_dry_run),
        )
        .unwrap();
    }
}

fn code(names: &str) -> String {
    let names = names.split(", ").filter(|name| !name.is_empty());
    names.map(|name| format!("`{name}`")).collect::<Vec<_>>().join(", ")
}

fn list(verbs: &BTreeSet<String>) -> String {
    verbs.iter().map(String::as_str).collect::<Vec<_>>().join(", ")
}

#[test]
fn rights_page_tells_what_the_chart_grants() {
    let mut page = "# Rights of the operators\n\nGenerated from what the chart renders, with its defaults, with `dryRun: true` \
                    and with the options that add rules. [SECURITY](https://github.com/nodeward/nodeward/blob/main/SECURITY.md#what-they-are-allowed-to-do) says what each right is for. \
                    `UPDATE_EXPECT=1 cargo test -p xtask --test chart rights_page` makes this page again.\n\n\
                    A rule without names is for all objects of its resource. A rule with an option is there only where a value of the \
                    chart asks for it, or, in a namespace of others, where that exists at the install. health-check's ClusterRole also has what the roles \
                    of your remediators grant. `extraReadRules`, `extraScaleRules` and `healthCheck.remediators` add what they name.\n"
        .to_owned();
    for (component, block, options) in components() {
        section(&mut page, component, block, &options);
    }
    let path = format!("{CHART}/../../docs/rights.md");
    if env::var_os(UPDATE).is_some() {
        fs::write(&path, &page).unwrap();
    }
    let present = fs::read_to_string(&path).unwrap_or_default();
    assert!(
        present == page,
        "docs/rights.md is out of date: {UPDATE}=1 cargo test -p xtask --test chart rights_page"
    );
}
