//! PodDisruptionBudgets as objects and as [`BudgetForm`]s, both ways. Pure.
//!
//! Names, labels and selectors are Rook's. A budget is told by its selector and our label: Rook hashes long names.

use std::collections::{BTreeMap, BTreeSet};
use std::hash::{DefaultHasher, Hash, Hasher};

use k8s_openapi::api::policy::v1::{PodDisruptionBudget, PodDisruptionBudgetSpec};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{
    LabelSelector, LabelSelectorRequirement, ObjectMeta, OwnerReference,
};
use k8s_openapi::apimachinery::pkg::util::intstr::IntOrString;
use kube::ResourceExt;
use kube::core::Selector;
use nodeward_api::{annotation, label};
use serde_json::{Value, json};

use crate::ceph::topology::DomainType;
use crate::plan::Owner;
use crate::plan::daemon_budgets::{DaemonBudget, Limit, MGR_BUDGET, MIRROR_BUDGET, MON_BUDGET};
use crate::snapshot::{BudgetFacts, BudgetForm, DefaultBudget, DomainKey};

/// Name of the budget of all OSDs, and the value of their label `app`.
pub const OSD_BUDGET: &str = "rook-ceph-osd";

/// Its name where somebody else's budget has that one.
pub const OSD_BUDGET_BESIDE_FOREIGN: &str = "rook-ceph-osd-nodeward";

/// Prefix of the label that names an OSD's bucket of a type.
const LOCATION: &str = "topology-location-";

/// Label that names an OSD's number.
const OSD: &str = "osd";

/// The only `unhealthyPodEvictionPolicy` that is set; its absence is `IfHealthyBudget`.
const ALWAYS_ALLOW: &str = "AlwaysAllow";

const NAME_LENGTH: usize = 63;

/// Reads a budget.
pub fn facts(pdb: &PodDisruptionBudget, cluster_uid: &str) -> BudgetFacts {
    let form = form(pdb);
    let has_label = |key: &str, value: &str| pdb.labels().get(key).is_some_and(|found| found == value);
    let is_owned = pdb.owner_references().iter().any(|owner| owner.uid == cluster_uid);
    let is_ours = has_label(label::MANAGED_BY, label::MANAGED_BY_CEPH_PDB) && is_owned;
    let policy = pdb
        .spec
        .as_ref()
        .and_then(|spec| spec.unhealthy_pod_eviction_policy.as_deref());
    let counts = pdb.annotations().get(annotation::COUNTS).map(String::as_str);
    let counts_as_it_is_to = form.as_ref().is_some_and(|form| counts == counts_of(form));
    let has_policy = form.as_ref().is_some_and(|form| policy == eviction_policy(form));
    BudgetFacts {
        uid: pdb.uid().unwrap_or_default().into(),
        resource_version: pdb.resource_version().unwrap_or_default().into(),
        is_deleting: pdb.metadata.deletion_timestamp.is_some(),
        is_ours,
        is_exact: is_ours
            && has_policy
            && counts_as_it_is_to
            && has_label(label::FORCE_DRAIN, label::FORCE_DRAIN_NEVER),
        form,
        selects_osds: false,
        selector: describe_selector(pdb).into(),
    }
}

/// What a budget selects pods by; `None` where it selects none.
pub fn selector(pdb: &PodDisruptionBudget) -> Option<Selector> {
    pdb.spec.as_ref()?.selector.clone()?.try_into().ok()
}

/// How drain-lock is to count the pods of a node: once one OSD is down, the others of its failure domain are left out.
fn counts_of(form: &BudgetForm) -> Option<&'static str> {
    match form {
        BudgetForm::Osds(_) | BudgetForm::OsdsOfDomain { .. } => Some(annotation::COUNTS_NODE),
        BudgetForm::Daemon(_) => None,
    }
}

/// The whole object, to be created.
pub fn object(owner: &Owner, name: &str, form: &BudgetForm) -> PodDisruptionBudget {
    let labels = [
        (label::MANAGED_BY, label::MANAGED_BY_CEPH_PDB),
        (label::FORCE_DRAIN, label::FORCE_DRAIN_NEVER),
    ];
    PodDisruptionBudget {
        metadata: ObjectMeta {
            name: Some(name.to_owned()),
            labels: Some(labels.map(|(key, value)| (key.to_owned(), value.to_owned())).into()),
            annotations: counts_of(form).map(|counts| [(annotation::COUNTS.to_owned(), counts.to_owned())].into()),
            owner_references: Some(vec![owner_reference(owner)]),
            ..ObjectMeta::default()
        },
        spec: Some(spec(form)),
        ..PodDisruptionBudget::default()
    }
}

/// The merge patch that makes a budget ours, with this form.
pub fn patch(owner: &Owner, resource_version: &str, form: &BudgetForm) -> Value {
    let PodDisruptionBudget { metadata, spec, .. } = object(owner, "", form);
    let spec = spec.unwrap_or_default();
    let selector = spec.selector.unwrap_or_default();
    json!({
        "metadata": {
            "resourceVersion": resource_version,
            "labels": metadata.labels,
            "annotations": { (annotation::COUNTS): counts_of(form) },
            "ownerReferences": metadata.owner_references,
        },
        // A field that is left out keeps its value: each is named.
        "spec": {
            "maxUnavailable": spec.max_unavailable,
            "minAvailable": spec.min_available,
            "unhealthyPodEvictionPolicy": spec.unhealthy_pod_eviction_policy,
            "selector": {
                "matchLabels": replaced_labels(selector.match_labels.unwrap_or_default()),
                "matchExpressions": selector.match_expressions,
            },
        },
    })
}

/// The merge patch that takes our label from a budget, and what it says of who keeps it, and leaves all else as it is.
pub fn release_patch(resource_version: &str) -> Value {
    json!({
        "metadata": {
            "resourceVersion": resource_version,
            "labels": { (label::MANAGED_BY): null },
            "annotations": { (annotation::COUNTS): null },
        },
    })
}

/// Name of a failure domain's budget. Rook, too, hashes a name that is too long.
pub fn domain_budget_name((domain_type, domain): &DomainKey) -> String {
    let name = format!("{OSD_BUDGET}-{domain_type}-{domain}");
    let is_allowed = |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit() || b"-.".contains(&byte);
    let ends_well = name.ends_with(|last: char| last.is_ascii_alphanumeric());
    if name.len() <= NAME_LENGTH && name.bytes().all(is_allowed) && ends_well {
        return name;
    }
    let mut hasher = DefaultHasher::new();
    domain.hash(&mut hasher);
    format!("{OSD_BUDGET}-{domain_type}-{:016x}", hasher.finish())
}

/// Whether Rook would give this name to a budget of this form: without our label it is what Rook has left behind.
pub fn is_rooks_name(name: &str, form: &BudgetForm) -> bool {
    match form {
        BudgetForm::Osds(_) => name == OSD_BUDGET,
        BudgetForm::OsdsOfDomain { domain, .. } => name.starts_with(&format!("{OSD_BUDGET}-{}-", domain.0)),
        BudgetForm::Daemon(DaemonBudget { selector, .. }) => match selector {
            ("app", app) => name == format!("{app}-pdb"),
            ("rgw", store) => name == format!("rook-ceph-rgw-{store}"),
            ("rook_file_system", filesystem) => name == format!("rook-ceph-mds-{filesystem}"),
            ("ceph_nfs", server) => name == format!("rook-ceph-nfs-{server}"),
            _ => false,
        },
    }
}

fn spec(form: &BudgetForm) -> PodDisruptionBudgetSpec {
    let (limit, label, excepted) = match form {
        BudgetForm::Osds(default) => (
            Limit::MaxUnavailable(default.max_unavailable),
            ("app".to_owned(), OSD_BUDGET.to_owned()),
            excepted(default),
        ),
        BudgetForm::OsdsOfDomain {
            max_unavailable,
            domain,
        } => {
            let label = (format!("{LOCATION}{}", domain.0), domain.1.to_string());
            (Limit::MaxUnavailable(*max_unavailable), label, Vec::new())
        }
        BudgetForm::Daemon(DaemonBudget { selector, limit, .. }) => {
            (*limit, (selector.0.to_owned(), selector.1.clone()), Vec::new())
        }
    };
    let (max_unavailable, min_available) = match limit {
        Limit::MaxUnavailable(count) => (Some(IntOrString::Int(count)), None),
        Limit::MinAvailable(count) => (None, Some(IntOrString::Int(count))),
    };
    PodDisruptionBudgetSpec {
        max_unavailable,
        min_available,
        unhealthy_pod_eviction_policy: eviction_policy(form).map(str::to_owned),
        selector: Some(LabelSelector {
            match_labels: Some([label].into()),
            match_expressions: Some(excepted).filter(|excepted| !excepted.is_empty()),
        }),
    }
}

/// `NotIn`, in an order that is always the same: another order would be another spec.
fn excepted(default: &DefaultBudget) -> Vec<LabelSelectorRequirement> {
    let mut excepted: BTreeMap<String, Vec<String>> = BTreeMap::new();
    for (domain_type, domain) in &default.except_domains {
        let key = format!("{LOCATION}{domain_type}");
        excepted.entry(key).or_default().push(domain.to_string());
    }
    for osd in &default.except_osds {
        excepted.entry(OSD.to_owned()).or_default().push(osd.to_string());
    }
    let not_in = |(key, values)| LabelSelectorRequirement {
        key,
        operator: "NotIn".to_owned(),
        values: Some(values),
    };
    excepted.into_iter().map(not_in).collect()
}

fn eviction_policy(form: &BudgetForm) -> Option<&'static str> {
    match form {
        BudgetForm::Daemon(budget) if budget.evicts_unready => Some(ALWAYS_ALLOW),
        // A broken OSD or monitor may hold the only good copy, or be about to rejoin the quorum.
        _ => None,
    }
}

/// A merge patch adds to a map: labels that other forms select by are removed by name.
fn replaced_labels(labels: BTreeMap<String, String>) -> Value {
    let mut value = json!({ "app": null });
    for (key, text) in labels {
        value[key] = Value::String(text);
    }
    value
}

/// The CephCluster as the owner of what goes with it.
pub fn owner_reference(owner: &Owner) -> OwnerReference {
    OwnerReference {
        api_version: "ceph.rook.io/v1".to_owned(),
        kind: "CephCluster".to_owned(),
        name: owner.name.to_string(),
        uid: owner.uid.to_string(),
        controller: Some(true),
        block_owner_deletion: Some(true),
    }
}

/// What a selector asks of a label: one of these values, or none of them.
struct Requirement {
    is_in: bool,
    values: BTreeSet<String>,
}

fn requirements(selector: &LabelSelector) -> Option<BTreeMap<&str, Requirement>> {
    let mut all = BTreeMap::new();
    for (key, value) in selector.match_labels.iter().flatten() {
        let values = [value.clone()].into();
        all.insert(key.as_str(), Requirement { is_in: true, values });
    }
    for expression in selector.match_expressions.iter().flatten() {
        let is_in = match expression.operator.as_str() {
            "In" => true,
            "NotIn" => false,
            _ => return None,
        };
        let values = expression.values.iter().flatten().cloned().collect();
        let before = all.insert(expression.key.as_str(), Requirement { is_in, values });
        if before.is_some() {
            return None;
        }
    }
    Some(all)
}

fn form(pdb: &PodDisruptionBudget) -> Option<BudgetForm> {
    let spec = pdb.spec.as_ref()?;
    let mut requirements = requirements(spec.selector.as_ref()?)?;
    let limit = match (&spec.max_unavailable, &spec.min_available) {
        (Some(IntOrString::Int(count)), None) => Limit::MaxUnavailable(*count),
        (None, Some(IntOrString::Int(count))) => Limit::MinAvailable(*count),
        _ => return None,
    };
    let max_unavailable = match limit {
        Limit::MaxUnavailable(count) => Some(count),
        Limit::MinAvailable(_) => None,
    };
    let app = requirements.get("app");
    if app.is_some_and(|app| app.is_in && app.values.iter().eq([OSD_BUDGET])) {
        requirements.remove("app");
        return all_osds(max_unavailable?, requirements);
    }
    let (key, Requirement { is_in, values }) = requirements.pop_first()?;
    if !is_in || values.len() != 1 || !requirements.is_empty() {
        return None;
    }
    let value = values.into_iter().next()?;
    if let Some(domain_type) = key.strip_prefix(LOCATION) {
        return Some(BudgetForm::OsdsOfDomain {
            max_unavailable: max_unavailable?,
            domain: (domain_type.parse().ok()?, value.into()),
        });
    }
    let mut keys = ["app", "rgw", "rook_file_system", "ceph_nfs"].into_iter();
    let key = keys.find(|known| *known == key)?;
    let name = pdb.name_any();
    if key == "app" && ![MON_BUDGET, MGR_BUDGET, MIRROR_BUDGET].contains(&&*name) {
        return None;
    }
    Some(BudgetForm::Daemon(DaemonBudget {
        name,
        selector: (key, value),
        limit,
        evicts_unready: spec.unhealthy_pod_eviction_policy.as_deref() == Some(ALWAYS_ALLOW),
    }))
}

fn all_osds(max_unavailable: i32, requirements: BTreeMap<&str, Requirement>) -> Option<BudgetForm> {
    let mut default = DefaultBudget {
        max_unavailable,
        except_domains: BTreeSet::new(),
        except_osds: BTreeSet::new(),
    };
    for (key, Requirement { is_in, values }) in requirements {
        if is_in {
            return None;
        }
        if key == OSD {
            default.except_osds = values.iter().map(|value| value.parse().ok()).collect::<Option<_>>()?;
        } else {
            let domain_type: DomainType = key.strip_prefix(LOCATION)?.parse().ok()?;
            let domains = values.iter().map(|value| (domain_type, value.as_str().into()));
            default.except_domains.extend(domains);
        }
    }
    Some(BudgetForm::Osds(default))
}

fn describe_selector(pdb: &PodDisruptionBudget) -> String {
    let Some(selector) = pdb.spec.as_ref().and_then(|spec| spec.selector.as_ref()) else {
        return "nothing".to_owned();
    };
    let labels = selector.match_labels.iter().flatten();
    let labels = labels.map(|(key, value)| format!("{key}={value}"));
    let expressions = selector.match_expressions.iter().flatten().map(|expression| {
        let values = expression.values.as_deref().unwrap_or_default().join(",");
        format!("{} {} ({values})", expression.key, expression.operator)
    });
    labels.chain(expressions).collect::<Vec<_>>().join(", ")
}

#[cfg(test)]
mod tests;
