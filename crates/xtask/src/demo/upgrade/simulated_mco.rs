//! How an upgrade and its drains are announced: as OpenShift does, or by an annotation of the demo's own.

use anyhow::Result;
use kube::Client;
use nodeward_testkit::fleet;
use nodeward_testkit::foreign::{Foreign, begin_openshift_upgrade, machine_config_pool};
use serde_json::{Value, json};

use super::scenario::NODES;
use crate::demo::environment::{Environment, RUN};

/// Where the UpgradeConfig lives, as in managed-upgrade-operator's clusters.
const UPGRADE_NAMESPACE: &str = "openshift-managed-upgrade-operator";

/// What machine-config-operator writes on a node that it wants drained, and when it is.
const DESIRED: &str = "machineconfiguration.openshift.io/desiredDrain";
const APPLIED: &str = "machineconfiguration.openshift.io/lastAppliedDrain";
const DRAIN: &str = "drain-rendered-worker-2";

/// The demo's own, for clusters in which nothing may be mistaken for OpenShift's.
const DRAINING: &str = "demo.nodeward.dev/draining";

/// How an upgrade and its drains are announced.
#[derive(Clone, Copy)]
pub enum SimulatedMco {
    /// An UpgradeConfig, a MachineConfigPool and machine-config-operator's annotations on the nodes.
    OpenShift,
    /// An annotation on the node: no kind is installed, no operator of the cluster can take it for an upgrade.
    Annotation,
}

impl SimulatedMco {
    /// As suits the environment.
    pub const fn of(env: &Environment) -> Self {
        if env.plane.is_some() {
            Self::OpenShift
        } else {
            Self::Annotation
        }
    }

    /// Announces the upgrade.
    pub async fn begin(self, env: &Environment) -> Result<()> {
        if matches!(self, Self::Annotation) {
            return Ok(());
        }
        env.create_namespace(UPGRADE_NAMESPACE).await?;
        begin_openshift_upgrade(&env.client(), UPGRADE_NAMESPACE, u32::try_from(NODES)?).await
    }

    /// Says how many nodes are upgraded.
    pub async fn upgraded(self, client: &Client, count: usize) -> Result<()> {
        if matches!(self, Self::OpenShift) {
            let pool = machine_config_pool("worker", u32::try_from(NODES)?, u32::try_from(count)?);
            Foreign::MachineConfigPool.put(client, None, "worker", pool).await?;
        }
        Ok(())
    }

    /// Marks a node as being drained.
    pub async fn drain_begins(self, client: &Client, node: &str) -> Result<()> {
        match self {
            Self::OpenShift => {
                fleet::annotate(client, node, APPLIED, Some("uncordon-rendered-worker-1")).await?;
                fleet::annotate(client, node, DESIRED, Some(DRAIN)).await
            }
            Self::Annotation => fleet::annotate(client, node, DRAINING, Some("true")).await,
        }
    }

    /// Marks a node as drained; it is still cordoned.
    pub async fn drained(self, client: &Client, node: &str) -> Result<()> {
        match self {
            Self::OpenShift => fleet::annotate(client, node, APPLIED, Some(DRAIN)).await,
            Self::Annotation => fleet::annotate(client, node, DRAINING, None).await,
        }
    }

    /// Marks a node as back, which is about to be uncordoned.
    pub async fn back(self, client: &Client, node: &str) -> Result<()> {
        if matches!(self, Self::OpenShift) {
            fleet::annotate(client, node, DESIRED, Some("uncordon-rendered-worker-2")).await?;
            fleet::annotate(client, node, APPLIED, Some("uncordon-rendered-worker-2")).await?;
        }
        Ok(())
    }

    /// What marks a node as being upgraded.
    pub fn mark(self) -> Value {
        match self {
            Self::OpenShift => json!({ "annotation": { "key": DESIRED, "value": DRAIN } }),
            Self::Annotation => json!({ "annotation": DRAINING }),
        }
    }

    /// drain-keeper's configuration: minutes are seconds here, so that the demo is short.
    pub fn config(self, env: &Environment) -> Value {
        let opted_out = format!("^{}batch-", &env.prefix);
        let mut config = json!({
            "nodeDrain": {
                "timeOut": "6s",
                "expectedNodeDrainTime": "9s",
                "ignoredNamespacePatterns": [opted_out],
            },
            "forceAfter": "4s",
            "overrideSpacing": "30s",
            "flapTolerance": "5s",
            "upgradeSignal": "openshift",
            "overrideBudgets": "all",
        });
        if matches!(self, Self::Annotation) {
            let mark = self.mark();
            config["upgradeSignal"] = json!({ "node": mark });
            config["countsAsDrain"] = mark;
            config["nodeDrain"]["expectedNodeDrainTime"] = json!("8s");
            config["pdbForceDrainTimeout"] = json!("1s");
            config["nodeSelector"] = json!({ RUN: &env.run });
            // Whatever of somebody else's tolerates the demo's taint is none of its business.
            let others = env.others.iter().map(|name| Value::from(format!("^{name}$")));
            if let Some(patterns) = config["nodeDrain"]["ignoredNamespacePatterns"].as_array_mut() {
                patterns.extend(others);
            }
        }
        config
    }
}
