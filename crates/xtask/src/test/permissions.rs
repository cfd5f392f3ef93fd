//! What the chart allows the operators to do and no test has seen them do: each line is either needless, or lacks a test.

use std::collections::BTreeSet;
use std::fmt::{self, Write as _};
use std::path::{Path, PathBuf};
use std::{fs, io};

use anyhow::{Context, Result, ensure};
use nodeward_api::COMPONENTS;
use nodeward_testkit::audit::AuditLog;
use nodeward_testkit::binaries;
use serde::Deserialize as _;
use serde_json::{Value, json};

/// A component may do this with some objects of a kind.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
struct Permission {
    component: String,
    group: String,
    resource: String,
    verb: String,
}

impl fmt::Display for Permission {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:13} {:8} {}", self.component, self.verb, self.resource)?;
        match self.group.as_str() {
            "" => Ok(()),
            group => write!(f, " ({group})"),
        }
    }
}

/// Where the control planes of a run leave their audit logs.
pub struct AuditLogs(PathBuf);

impl AuditLogs {
    /// An empty directory.
    pub fn begin() -> Result<Self> {
        let dir = std::path::absolute(binaries::workspace().join("target/audit-logs"))?;
        match fs::remove_dir_all(&dir) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => {
                return Err(error).context("remove old audit logs");
            }
            _ => fs::create_dir_all(&dir)?,
        }
        Ok(Self(dir))
    }

    pub fn dir(&self) -> &Path {
        &self.0
    }

    /// A table of all permissions that no request of these logs has used.
    pub fn unused(&self, helm: &Path) -> Result<String> {
        let mut unused = granted(helm)?;
        for log in fs::read_dir(&self.0)? {
            for permission in used(&AuditLog::new(log?.path()))? {
                unused.remove(&permission);
            }
        }
        let mut table = String::new();
        for permission in &unused {
            writeln!(table, "  {permission}")?;
        }
        Ok(table)
    }
}

/// What the chart grants with everything on.
fn granted(helm: &Path) -> Result<BTreeSet<Permission>> {
    let values = json!({
        "drainKeeper": {
            "enabled": true,
            "readManagedUpgradeConfigMap": { "enabled": true },
            "config": { "optOuts": { "namespaces": { "selector": { "team": "a" } } } },
        },
        "drainLock": { "enabled": true },
        "healthCheck": { "enabled": true },
        "cephPdb": { "enabled": true },
    });
    let file = tempfile::Builder::new().suffix(".json").tempfile()?;
    serde_json::to_writer(&file, &values)?;
    let mut command = std::process::Command::new(helm);
    command
        .args(["template", "nodeward"])
        .arg(binaries::workspace().join("charts/nodeward"));
    command.arg("--values").arg(file.path());
    let rendered = binaries::stdout_of(&mut command)?;
    let mut granted = BTreeSet::new();
    for document in serde_yaml::Deserializer::from_str(&rendered) {
        let object = Value::deserialize(document)?;
        if matches!(object["kind"].as_str(), Some("ClusterRole" | "Role")) {
            granted.extend(of_role(&object));
        }
    }
    ensure!(!granted.is_empty(), "the chart grants nothing");
    Ok(granted)
}

/// What a role grants to the component whose it is; nothing for the roles of people.
fn of_role(role: &Value) -> BTreeSet<Permission> {
    let mut permissions = BTreeSet::new();
    let texts = |list: &Value| {
        let list = list.as_array().into_iter().flatten();
        list.filter_map(|text| Some(text.as_str()?.to_owned()))
            .collect::<Vec<_>>()
    };
    let component = role["metadata"]["labels"]["app.kubernetes.io/component"].as_str();
    let Some(component) = component.filter(|component| COMPONENTS.contains(component)) else {
        return permissions;
    };
    for rule in role["rules"].as_array().into_iter().flatten() {
        for group in texts(&rule["apiGroups"]) {
            for resource in texts(&rule["resources"]) {
                permissions.extend(texts(&rule["verbs"]).into_iter().map(|verb| Permission {
                    component: component.to_owned(),
                    group: group.clone(),
                    resource: resource.clone(),
                    verb,
                }));
            }
        }
    }
    permissions
}

/// What operators have done: their ServiceAccounts end with the component's name.
fn used(log: &AuditLog) -> Result<BTreeSet<Permission>> {
    let requests = log.since(log.beginning())?.0.into_iter();
    let used = requests.filter(|request| request.code != 403).filter_map(|request| {
        let component = COMPONENTS.iter().find(|component| {
            request.user.starts_with("system:serviceaccount:") && request.user.ends_with(*component)
        })?;
        Some(Permission {
            component: (*component).to_owned(),
            group: request.group,
            resource: request.resource,
            verb: request.verb,
        })
    });
    Ok(used.collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_unused_permissions_are_told() {
        let role = json!({
            "metadata": { "labels": { "app.kubernetes.io/component": "drain-lock" } },
            "rules": [{ "apiGroups": ["apps"], "resources": ["replicasets", "deployments/scale"], "verbs": ["get", "list"] }],
        });
        let dir = tempfile::tempdir().unwrap();
        let event = |user: &str, verb: &str, code: u16| {
            json!({
                "stage": "ResponseComplete", "verb": verb, "user": { "username": format!("system:serviceaccount:ns:{user}") },
                "requestURI": "/", "requestReceivedTimestamp": "2026-01-01T00:00:00Z", "responseStatus": { "code": code },
                "objectRef": { "apiGroup": "apps", "resource": "deployments", "subresource": "scale" },
            })
        };
        let events = [
            event("x-drain-lock", "get", 404),
            event("x-drain-lock", "list", 403),
            event("x-drain-keeper", "list", 200),
        ];
        let file = dir.path().join("log");
        fs::write(&file, events.map(|event| format!("{event}\n")).concat()).unwrap();
        let used = used(&AuditLog::new(file)).unwrap();
        let unused: Vec<String> = (&of_role(&role) - &used).iter().map(ToString::to_string).collect();
        assert_eq!(
            unused,
            [
                "drain-lock    list     deployments/scale (apps)",
                "drain-lock    get      replicasets (apps)",
                "drain-lock    list     replicasets (apps)",
            ]
        );
    }
}
