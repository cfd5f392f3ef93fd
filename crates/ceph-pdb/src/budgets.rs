//! PodDisruptionBudgets as objects and as [`BudgetForm`]s, both ways. Pure.
//!
//! Names, labels and selectors are Rook's. A budget is told by its selector and our label: Rook hashes long names.

use std::collections::{BTreeMap, BTreeSet};
use std::hash::{DefaultHasher, Hash, Hasher};

use k8s_openapi::api::policy::v1::{PodDisruptionBudget, PodDisruptionBudgetSpec};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{LabelSelector, LabelSelectorRequirement, OwnerReference};
use k8s_openapi::apimachinery::pkg::util::intstr::IntOrString;
use kube::ResourceExt;
use nodeward_api::label;
use serde_json::{Value, json};

use crate::ceph::topology::DomainType;
use crate::plan::Owner;
use crate::plan::budget_steps::DomainKey;
use crate::plan::daemon_budgets::{DaemonBudget, Limit, MGR_BUDGET, MON_BUDGET};
use crate::snapshot::{BudgetFacts, BudgetForm};

/// Name of the budget of all OSDs, and the value of their label `app`.
pub const OSD_BUDGET: &str = "rook-ceph-osd";

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
    let has_policy = match &form {
        Some(form) => policy == eviction_policy(form),
        None => false,
    };
    BudgetFacts {
        uid: pdb.uid().unwrap_or_default().into(),
        resource_version: pdb.resource_version().unwrap_or_default().into(),
        is_deleting: pdb.metadata.deletion_timestamp.is_some(),
        is_ours,
        is_exact: is_ours && has_policy && has_label(label::FORCE_DRAIN, label::FORCE_DRAIN_NEVER),
        form,
        selector: describe_selector(pdb).into(),
    }
}

/// The whole object, to be created.
pub fn object(owner: &Owner, name: &str, form: &BudgetForm) -> PodDisruptionBudget {
    let labels = [
        (label::MANAGED_BY, label::MANAGED_BY_CEPH_PDB),
        (label::FORCE_DRAIN, label::FORCE_DRAIN_NEVER),
    ];
    let mut pdb = PodDisruptionBudget {
        spec: Some(spec(form)),
        ..PodDisruptionBudget::default()
    };
    pdb.metadata.name = Some(name.to_owned());
    pdb.metadata.namespace = Some(owner.namespace.to_string());
    pdb.metadata.labels = Some(labels.map(|(key, value)| (key.to_owned(), value.to_owned())).into());
    pdb.metadata.owner_references = Some(vec![owner_reference(owner)]);
    pdb
}

/// The merge patch that makes a budget ours, with this form.
pub fn patch(owner: &Owner, resource_version: &str, form: &BudgetForm) -> Value {
    let spec = spec(form);
    let selector = spec.selector.unwrap_or_default();
    json!({
        "metadata": {
            "resourceVersion": resource_version,
            "labels": {
                (label::MANAGED_BY): label::MANAGED_BY_CEPH_PDB,
                (label::FORCE_DRAIN): label::FORCE_DRAIN_NEVER,
            },
            "ownerReferences": [owner_reference(owner)],
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

/// The merge patch that takes our label from a budget, and leaves all else as it is.
pub fn release_patch(resource_version: &str) -> Value {
    json!({
        "metadata": {
            "resourceVersion": resource_version,
            "labels": { (label::MANAGED_BY): null },
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
        BudgetForm::Osds { .. } => name == OSD_BUDGET,
        BudgetForm::OsdsOfDomain { domain_type, .. } => name.starts_with(&format!("{OSD_BUDGET}-{domain_type}-")),
        BudgetForm::Daemon(DaemonBudget { selector, .. }) => match selector {
            ("app", app) => name == format!("{app}-pdb"),
            ("rgw", store) => name == format!("rook-ceph-rgw-{store}"),
            ("rook_file_system", filesystem) => name == format!("rook-ceph-mds-{filesystem}"),
            ("rbd-mirror", mirror) => name == format!("rook-ceph-rbd-mirror-{mirror}"),
            ("ceph_nfs", server) => name == format!("rook-ceph-nfs-{server}"),
            _ => false,
        },
    }
}

fn spec(form: &BudgetForm) -> PodDisruptionBudgetSpec {
    let mut selector = LabelSelector::default();
    let mut spec = PodDisruptionBudgetSpec {
        unhealthy_pod_eviction_policy: eviction_policy(form).map(str::to_owned),
        ..PodDisruptionBudgetSpec::default()
    };
    match form {
        BudgetForm::Osds {
            max_unavailable,
            except_domains,
            except_osds,
        } => {
            spec.max_unavailable = Some(IntOrString::Int(*max_unavailable));
            selector.match_labels = Some([("app".to_owned(), OSD_BUDGET.to_owned())].into());
            let domains = except_domains.iter().map(|(domain_type, names)| {
                let names = names.iter().map(ToString::to_string);
                not_in(format!("{LOCATION}{domain_type}"), names.collect())
            });
            // In the order of their numbers: another order would be another spec.
            let osds = not_in(OSD.to_owned(), except_osds.iter().map(ToString::to_string).collect());
            let excepted: Vec<_> = domains
                .chain([osds])
                .filter(|requirement| requirement.values.as_ref().is_some_and(|values| !values.is_empty()))
                .collect();
            selector.match_expressions = (!excepted.is_empty()).then_some(excepted);
        }
        BudgetForm::OsdsOfDomain {
            max_unavailable,
            domain_type,
            domain,
        } => {
            spec.max_unavailable = Some(IntOrString::Int(*max_unavailable));
            selector.match_labels = Some([(format!("{LOCATION}{domain_type}"), domain.to_string())].into());
        }
        BudgetForm::Daemon(budget) => {
            let (key, value) = &budget.selector;
            selector.match_labels = Some([((*key).to_owned(), value.clone())].into());
            match budget.limit {
                Limit::MaxUnavailable(count) => spec.max_unavailable = Some(IntOrString::Int(count)),
                Limit::MinAvailable(count) => spec.min_available = Some(IntOrString::Int(count)),
            }
        }
    }
    spec.selector = Some(selector);
    spec
}

fn eviction_policy(form: &BudgetForm) -> Option<&'static str> {
    match form {
        BudgetForm::Daemon(budget) if budget.evicts_unready => Some(ALWAYS_ALLOW),
        // A broken OSD or monitor may hold the only good copy, or be about to rejoin the quorum.
        BudgetForm::Osds { .. } | BudgetForm::OsdsOfDomain { .. } | BudgetForm::Daemon(_) => None,
    }
}

fn not_in(key: String, values: Vec<String>) -> LabelSelectorRequirement {
    LabelSelectorRequirement {
        key,
        operator: "NotIn".to_owned(),
        values: Some(values),
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

/// One requirement of a selector.
enum Requirement {
    In(BTreeSet<String>),
    NotIn(BTreeSet<String>),
}

fn requirements(selector: &LabelSelector) -> Option<BTreeMap<&str, Requirement>> {
    let mut all = BTreeMap::new();
    for (key, value) in selector.match_labels.iter().flatten() {
        all.insert(key.as_str(), Requirement::In([value.clone()].into()));
    }
    for expression in selector.match_expressions.iter().flatten() {
        let values: BTreeSet<String> = expression.values.iter().flatten().cloned().collect();
        let requirement = match expression.operator.as_str() {
            "In" => Requirement::In(values),
            "NotIn" => Requirement::NotIn(values),
            _ => return None,
        };
        if all.insert(expression.key.as_str(), requirement).is_some() {
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
    let is_of_osds =
        |requirement: &Requirement| matches!(requirement, Requirement::In(values) if values.iter().eq([OSD_BUDGET]));
    if requirements.get("app").is_some_and(is_of_osds) {
        requirements.remove("app");
        let Limit::MaxUnavailable(max_unavailable) = limit else {
            return None;
        };
        return all_osds(max_unavailable, requirements);
    }
    let (key, Requirement::In(values)) = requirements.pop_first()? else {
        return None;
    };
    let value = values
        .first()
        .filter(|_| values.len() == 1 && requirements.is_empty())?;
    if let Some(domain_type) = key.strip_prefix(LOCATION) {
        let Limit::MaxUnavailable(max_unavailable) = limit else {
            return None;
        };
        return Some(BudgetForm::OsdsOfDomain {
            max_unavailable,
            domain_type: domain_type.parse().ok()?,
            domain: value.as_str().into(),
        });
    }
    let key = ["app", "rgw", "rook_file_system", "rbd-mirror", "ceph_nfs"]
        .into_iter()
        .find(|known| *known == key)?;
    let name = pdb.name_any();
    if key == "app" && ![MON_BUDGET, MGR_BUDGET].contains(&&*name) {
        return None;
    }
    Some(BudgetForm::Daemon(DaemonBudget {
        name,
        selector: (key, value.clone()),
        limit,
        evicts_unready: spec.unhealthy_pod_eviction_policy.as_deref() == Some(ALWAYS_ALLOW),
    }))
}

fn all_osds(max_unavailable: i32, requirements: BTreeMap<&str, Requirement>) -> Option<BudgetForm> {
    let mut except_domains = BTreeMap::new();
    let mut except_osds = BTreeSet::new();
    for (key, requirement) in requirements {
        let Requirement::NotIn(values) = requirement else {
            return None;
        };
        if let Some(domain_type) = key.strip_prefix(LOCATION) {
            let domain_type: DomainType = domain_type.parse().ok()?;
            except_domains.insert(domain_type, values.iter().map(|value| value.as_str().into()).collect());
        } else if key == OSD {
            except_osds = values.iter().map(|value| value.parse().ok()).collect::<Option<_>>()?;
        } else {
            return None;
        }
    }
    Some(BudgetForm::Osds {
        max_unavailable,
        except_domains,
        except_osds,
    })
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
