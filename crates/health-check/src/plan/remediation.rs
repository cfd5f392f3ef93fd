//! What a remediation is named and made of.

use std::sync::Arc;

use jiff::Timestamp;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::OwnerReference;
use nodeward_api::{annotation, label};
use nodeward_core::id::NamespacedName;
use serde_json::{Value, json};
use sha2::{Digest, Sha256};

use super::action::StartRemediation;
use super::case::{Check, Standing};
use super::gates::unreadable;
use crate::snapshot::{NodeFacts, Reading, RemediationKind};
use nodeward_core::node_health_check::Step;

/// The longest name that the API server takes.
const LONGEST_NAME: usize = 253;

/// Digits of the hash in a name.
const HASH_DIGITS: usize = 10;

/// Which remediation a step makes.
pub struct Identity {
    /// Its kind.
    pub kind: RemediationKind,
    /// Its namespace and name.
    pub key: NamespacedName,
}

impl StartRemediation {
    /// The remediation in full. Hundreds may be planned in each pass, and each is made once.
    pub fn object(&self) -> Value {
        let mut labels = json!({ label::PART_OF: label::PART_OF_NODE_HEALTH_CHECK });
        if self.is_of_control_plane() {
            labels[label::IS_CONTROL_PLANE_NODE] = "".into();
        }
        let mut owners = vec![json!({
            "apiVersion": "remediation.medik8s.io/v1alpha1",
            "kind": "NodeHealthCheck",
            "name": &*self.check.name,
            "uid": &*self.check.uid,
            "controller": false,
            "blockOwnerDeletion": false,
        })];
        owners.extend(
            self.machine
                .as_ref()
                .and_then(|machine| serde_json::to_value(machine).ok()),
        );
        json!({
            "apiVersion": &*self.kind.api_version,
            "kind": &*self.kind.kind,
            "metadata": {
                "namespace": &*self.key.namespace,
                "name": &*self.key.name,
                "labels": labels,
                "annotations": {
                    annotation::REMEDIATION_NODE_NAME: self.node.as_str(),
                    annotation::REMEDIATION_TEMPLATE_NAME: &*self.template.name,
                    annotation::REMEDIATION_NODE_UID: self.node_uid.as_str(),
                },
                "ownerReferences": owners,
            },
            "spec": self.made_from.spec,
        })
    }
}

impl super::Planner<'_> {
    /// Which remediation a step that was intended at `started` makes. It is named after its node; where a node may have several
    /// of its kind, a hash of what it is for tells them apart, so that creating it twice makes one.
    pub(super) fn identity(&self, check: &Check<'_>, node: &NodeFacts, step: &Step, started: Timestamp) -> Identity {
        let template = &step.template;
        let name = if self.supports_multiple(step) {
            let hash = hash(&[
                &check.facts.uid,
                &template.kind,
                &template.name,
                node.view.uid.as_str(),
                &started.as_second().to_string(),
            ]);
            let longest = LONGEST_NAME - HASH_DIGITS - 1;
            let name = node.view.name.as_str();
            let cut = name.get(..longest).unwrap_or(name).trim_end_matches(['.', '-']);
            format!("{cut}-{hash}")
        } else {
            node.view.name.to_string()
        };
        Identity {
            kind: template.remediation_kind(),
            key: NamespacedName::new(Arc::clone(&template.namespace), name),
        }
    }

    /// The node's Machine, if it may own what the step makes: owners are of the same namespace. Remediators that find the
    /// Machine by its reference could do nothing without it.
    ///
    /// # Errors
    /// With why Machines cannot be read.
    pub(super) fn machine_of(&self, node: &NodeFacts, step: &Step) -> Result<Option<OwnerReference>, Standing> {
        let machine = node.machine.as_ref();
        let Some(key) = machine.filter(|key| key.namespace == step.template.namespace) else {
            return Ok(None);
        };
        let machines = match &self.snapshot.machines {
            Reading::Known(machines) => machines,
            Reading::Unknown(why) => return Err(unreadable(why)),
        };
        Ok(machines.get(key).map(|machine| OwnerReference {
            api_version: machine.api_version.to_string(),
            kind: "Machine".to_owned(),
            name: key.name.to_string(),
            uid: machine.uid.to_string(),
            controller: Some(false),
            block_owner_deletion: Some(false),
        }))
    }
}

fn hash(parts: &[&str]) -> String {
    let mut hasher = Sha256::new();
    for part in parts {
        hasher.update(part.as_bytes());
        hasher.update([0]);
    }
    let mut digest = format!("{:x}", hasher.finalize());
    digest.truncate(HASH_DIGITS);
    digest
}
