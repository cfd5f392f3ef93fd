//! What stays in the cluster when Nodeward is uninstalled, and which of it blocks something then. Pure.

use std::collections::{BTreeMap, BTreeSet};

use k8s_openapi::api::admissionregistration::v1::{ServiceReference, ValidatingWebhookConfiguration};
use k8s_openapi::api::core::v1::Node;
use k8s_openapi::api::policy::v1::PodDisruptionBudget;
use k8s_openapi::apimachinery::pkg::util::intstr::IntOrString;
use kube::{Resource, ResourceExt};
use nodeward_api::condition::{DRAIN_BLOCKED, DRAIN_IN_PROGRESS, DRAIN_LOCK_DRAINED, DRAIN_LOCK_DRAINING, DRAINED};
use nodeward_api::cordon_record::CordonRecord;
use nodeward_api::{COMPONENTS, NodeDrain, NodeHealthCheck, annotation, ceph_state, finalizer, label, taint};
use nodeward_core::ledger::Ledger;
use nodeward_core::node::UNSCHEDULABLE_TAINT;
use serde::Serialize;

use super::ceph::CephCluster;
use super::component::{COMPONENT, DRAIN_KEEPER, DRAIN_LOCK, HEALTH_CHECK};
use super::health::HealthCheck;
use super::node::condition;
use super::qualified;

const CEPH_PDB: &str = "ceph-pdb";

/// What no component has for itself.
pub const ALL: &str = "all";

/// How the name of a dry run's lease ends.
pub const DRY_RUN: &str = "-dry-run";

/// Helm's annotations.
const RELEASE: &str = "meta.helm.sh/release-name";
const RESOURCE_POLICY: &str = "helm.sh/resource-policy";

/// Something that stays, and the objects that are it or have it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Leftover {
    /// Whose it is; `all`: of every component.
    pub component: &'static str,
    pub what: &'static str,
    /// What blocks, or is not guarded any more, for as long as it is there, and what ends that; absent where nothing is.
    pub why: Option<&'static str>,
    /// The command that ends it, where one command does, as arguments of kubectl.
    #[serde(skip)]
    pub remedy: Option<&'static str>,
    /// The kind of the objects, as `kubectl get -o name` prints it.
    #[serde(skip)]
    pub resource: &'static str,
    /// In the order of their names; those with a namespace as `namespace/name`.
    pub objects: Vec<String>,
}

/// The kinds of leftovers: first those that block.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
#[cfg_attr(test, derive(strum::EnumIter))]
pub enum Kind {
    FinalizedDrain,
    Claim,
    Cordon,
    DoNotDisrupt,
    Remediation,
    ClosedBudget,
    OpenBudget,
    Noout,
    Webhook,
    OtherDrain,
    Ledger,
    Hold,
    HoldUntil,
    LockedBy,
    CordonedBy,
    Queued,
    DrainConditions,
    DrainClock,
    DrainBlocked,
    LastOverride,
    HealthCheck,
    HealthCheckDefault,
    Remediations,
    CephState,
    UnservedWebhook,
    Definition,
    Lease,
    Certificate,
    LeaseNamespace,
    Pause,
}

/// All that was found, to be added to.
#[derive(Debug, Clone, Default)]
pub struct Leftovers {
    found: BTreeMap<(Kind, &'static str), Vec<String>>,
    /// The CRDs that go.
    removed: BTreeSet<String>,
}

impl Leftovers {
    fn add(&mut self, component: &'static str, kind: Kind, object: impl Into<String>) {
        self.found.entry((kind, component)).or_default().push(object.into());
    }

    pub fn add_drain(&mut self, drain: &NodeDrain) {
        let is_kept = drain.finalizers().iter().any(|name| name == finalizer::DRAIN_LOCK);
        let kind = if is_kept {
            Kind::FinalizedDrain
        } else {
            Kind::OtherDrain
        };
        self.add(DRAIN_LOCK, kind, drain.name_any());
    }

    pub fn add_claims(&mut self, ledger: &Ledger) {
        for claim in ledger.claims() {
            self.add(DRAIN_LOCK, Kind::Claim, &claim.node);
        }
    }

    pub fn add_node(&mut self, node: &Node) {
        let name = node.name_any();
        let has = |key: &str| node.annotations().contains_key(key);
        if has(annotation::CORDONED_BY) {
            let kind = if has_own_cordon(node) {
                Kind::Cordon
            } else {
                Kind::CordonedBy
            };
            self.add(DRAIN_LOCK, kind, &name);
        }
        for (component, key, kind) in [
            (DRAIN_LOCK, annotation::DO_NOT_DISRUPT_BY, Kind::DoNotDisrupt),
            (DRAIN_KEEPER, annotation::DRAIN_CLOCK, Kind::DrainClock),
            (HEALTH_CHECK, annotation::REMEDIATIONS, Kind::Remediations),
        ] {
            if has(key) {
                self.add(component, kind, &name);
            }
        }
        let mut taints = node.spec.iter().flat_map(|spec| spec.taints.iter().flatten());
        if taints.any(|found| found.key == taint::QUEUED) {
            self.add(DRAIN_LOCK, Kind::Queued, &name);
        }
        let mut markers = [DRAIN_IN_PROGRESS, DRAINED].into_iter();
        let is_own = |reason: &str| [DRAIN_LOCK_DRAINING, DRAIN_LOCK_DRAINED].contains(&reason);
        if markers.any(|type_| condition(node, type_).is_some_and(|told| told.reason.as_deref().is_some_and(is_own))) {
            self.add(DRAIN_LOCK, Kind::DrainConditions, &name);
        }
        if condition(node, DRAIN_BLOCKED).is_some() {
            self.add(DRAIN_KEEPER, Kind::DrainBlocked, name);
        }
    }

    pub fn add_budget(&mut self, budget: &PodDisruptionBudget) {
        let has = |key: &str| budget.annotations().contains_key(key);
        for (component, key, kind) in [
            (DRAIN_LOCK, annotation::HOLD_UNTIL, Kind::HoldUntil),
            (DRAIN_LOCK, annotation::LOCKED_BY, Kind::LockedBy),
            (DRAIN_KEEPER, annotation::LAST_OVERRIDE, Kind::LastOverride),
        ] {
            if has(key) {
                self.add(component, kind, qualified(budget));
            }
        }
        if budget
            .labels()
            .get(label::MANAGED_BY)
            .is_some_and(|by| by == label::MANAGED_BY_CEPH_PDB)
        {
            let most = budget.spec.as_ref().and_then(|spec| spec.max_unavailable.as_ref());
            let is_closed = most == Some(&IntOrString::Int(0));
            let kind = if is_closed {
                Kind::ClosedBudget
            } else {
                Kind::OpenBudget
            };
            self.add(CEPH_PDB, kind, qualified(budget));
        }
    }

    pub fn add_health_check(&mut self, check: &NodeHealthCheck) {
        for node in HealthCheck::of(check).remediating {
            self.add(HEALTH_CHECK, Kind::Remediation, node);
        }
        self.add(HEALTH_CHECK, Kind::HealthCheck, check.name_any());
    }

    pub fn add_ceph_cluster(&mut self, cluster: &CephCluster) {
        for bucket in cluster.state().iter().flat_map(|state| state.noout.keys()) {
            self.add(CEPH_PDB, Kind::Noout, format!("{}: {bucket}", cluster.name()));
        }
        let map = format!("{}/{}", cluster.namespace, ceph_state::CONFIG_MAP);
        self.add(CEPH_PDB, Kind::CephState, map);
    }

    /// One that is not served stays, for Helm would have deleted it with its Service.
    pub fn add_webhook(&mut self, configuration: &ValidatingWebhookConfiguration, is_served: bool) {
        let mut webhooks = configuration.webhooks.iter().flatten();
        let kind = if webhooks.any(|webhook| webhook.failure_policy.as_deref() != Some("Ignore")) {
            Kind::Webhook
        } else if !is_served {
            Kind::UnservedWebhook
        } else {
            return;
        };
        let component = configuration.labels().get(COMPONENT);
        let component = component.map_or(ALL, |component| known(component));
        self.add(component, kind, configuration.name_any());
    }

    /// Helm deletes what is its own, and with a CRD all objects of it, unless it is told to keep it.
    pub fn add_definition(&mut self, component: &'static str, definition: &impl Resource) {
        let annotations = ResourceExt::annotations(definition);
        let is_kept = annotations.get(RESOURCE_POLICY).is_some_and(|policy| policy == "keep");
        if annotations.contains_key(RELEASE) && !is_kept {
            self.removed.insert(definition.name_any());
        } else {
            self.add_object(component, Kind::Definition, definition);
        }
    }

    pub fn add_lease(&mut self, lease: &impl Resource) {
        let name = lease.name_any();
        self.add_object(known(name.trim_end_matches(DRY_RUN)), Kind::Lease, lease);
    }

    pub fn add_object(&mut self, component: &'static str, kind: Kind, object: &impl Resource) {
        self.add(component, kind, qualified(object));
    }

    /// What blocks, and what stays and blocks nothing.
    pub fn sorted(self) -> (Vec<Leftover>, Vec<Leftover>) {
        let Self { found, removed } = self;
        let all = found.into_iter().map(|((kind, component), mut objects)| {
            objects.sort();
            objects.dedup();
            kind.leftover(component, objects)
        });
        let (blocks, mut stays): (Vec<_>, Vec<_>) = all.partition(|leftover| leftover.why.is_some());
        stays.retain(|leftover| !removed.contains(&leftover.resource.replacen('.', "s.", 1)));
        (blocks, stays)
    }
}

/// What answers the webhooks of a configuration, as far as it is in the cluster.
pub fn services(configuration: &ValidatingWebhookConfiguration) -> impl Iterator<Item = &ServiceReference> {
    let webhooks = configuration.webhooks.iter().flatten();
    webhooks.filter_map(|webhook| webhook.client_config.service.as_ref())
}

/// The component of this name.
fn known(name: &str) -> &'static str {
    COMPONENTS
        .into_iter()
        .find(|component| *component == name)
        .unwrap_or(ALL)
}

/// Whether the node is under the cordon that drain-lock gave it.
fn has_own_cordon(node: &Node) -> bool {
    let spec = node.spec.as_ref();
    let record = node.annotations().get(annotation::CORDONED_BY);
    let record = record.and_then(|record| CordonRecord::parse(record).taint_added);
    let mut taints = spec.iter().flat_map(|spec| spec.taints.iter().flatten());
    let cordon = taints.find(|taint| taint.key == UNSCHEDULABLE_TAINT);
    let added = cordon.and_then(|taint| taint.time_added.as_ref()).map(|time| time.0);
    spec.is_some_and(|spec| spec.unschedulable == Some(true)) && (record.is_none() || record == added)
}

impl Kind {
    fn leftover(self, component: &'static str, objects: Vec<String>) -> Leftover {
        let (resource, what, why, remedy) = self.words();
        Leftover {
            component,
            what,
            why,
            remedy,
            resource,
            objects,
        }
    }

    /// The kind of the objects, what stays, and why it blocks, if it does.
    #[rustfmt::skip]
    const fn words(self) -> (&'static str, &'static str, Option<&'static str>, Option<&'static str>) {
        const DRAIN: &str = "nodedrain.nodeward.dev";
        const NODE: &str = "node";
        const BUDGET: &str = "poddisruptionbudget.policy";
        const CONFIG_MAP: &str = "configmap";
        const WEBHOOK: &str = "validatingwebhookconfiguration.admissionregistration.k8s.io";
        match self {
            Self::FinalizedDrain => (
                DRAIN, "NodeDrain with the finalizer nodeward.dev/drain-lock",
                Some("only drain-lock removes the finalizer: neither the NodeDrain nor its CRD can be deleted without it"),
                Some("delete nodedrains --all --wait"),
            ),
            Self::Claim => (
                NODE, "claim in the DrainLedger",
                Some("what the drain of the node holds or waits for stays with it until drain-lock has ended the drain"), None,
            ),
            Self::Cordon => (
                NODE, "cordon by drain-lock",
                Some("drain-lock lifts it when the drain of the node ends, and nobody else does: where there is no NodeDrain, \
                      kubectl uncordon"), None,
            ),
            Self::DoNotDisrupt => (
                NODE, "annotation nodeward.dev/do-not-disrupt-by, with karpenter.sh/do-not-disrupt",
                Some("Karpenter removes no node with it; drain-lock takes it away when the drain of the node ends"), None,
            ),
            Self::Remediation => (
                NODE, "running remediation",
                Some("health-check deletes it once the node is healthy, and nobody else does; the node is not drained until then: where \
                      health-check is gone, delete the remediation, then the NodeHealthCheck"), None,
            ),
            Self::ClosedBudget => (
                BUDGET, "closed budget of ceph-pdb",
                Some("nobody opens it: set managePodBudgets: true in the CephCluster, and wait for ManagedByRook"), None,
            ),
            Self::OpenBudget => (
                BUDGET, "open budget of ceph-pdb",
                Some("nobody closes it while an OSD is down: set managePodBudgets: true in the CephCluster, and wait for ManagedByRook"),
                None,
            ),
            Self::Noout => (
                "", "flag noout by ceph-pdb",
                Some("Ceph does not move the data of OSDs that are down, and nobody removes the flag: set managePodBudgets: true in \
                      the CephCluster, and wait for ManagedByRook"), None,
            ),
            Self::Webhook => (
                WEBHOOK, "webhook whose failurePolicy is not Ignore",
                Some("what it reviews is refused while nobody answers: set its failurePolicy to Ignore, or delete it"), None,
            ),
            Self::OtherDrain => (DRAIN, "NodeDrain that drain-lock has not begun", None, None),
            Self::Ledger => ("drainledger.nodeward.dev", "DrainLedger", None, None),
            Self::Hold => ("disruptionhold.nodeward.dev", "DisruptionHold", None, None),
            Self::HoldUntil => (BUDGET, "annotation nodeward.dev/hold-until", None, None),
            Self::LockedBy => (BUDGET, "annotation nodeward.dev/locked-by", None, None),
            Self::CordonedBy => (NODE, "annotation nodeward.dev/cordoned-by without a cordon by drain-lock", None, None),
            Self::Queued => (NODE, "taint nodeward.dev/queued:PreferNoSchedule", None, None),
            Self::DrainConditions => (NODE, "conditions DrainInProgress and Drained", None, None),
            Self::DrainClock => (NODE, "annotation nodeward.dev/drain-clock", None, None),
            Self::DrainBlocked => (NODE, "condition nodeward.dev/DrainBlocked", None, None),
            Self::LastOverride => (BUDGET, "annotation nodeward.dev/last-override", None, None),
            Self::HealthCheck => ("nodehealthcheck.remediation.medik8s.io", "NodeHealthCheck", None, None),
            Self::HealthCheckDefault => (CONFIG_MAP, "ConfigMap nodeward-health-check-default", None, None),
            Self::Remediations => (NODE, "annotation nodeward.dev/remediations", None, None),
            Self::UnservedWebhook => (WEBHOOK, "webhook whose Service is gone", None, None),
            Self::CephState => (CONFIG_MAP, "ConfigMap nodeward-ceph-pdb", None, None),
            Self::Definition => ("customresourcedefinition.apiextensions.k8s.io", "CustomResourceDefinition", None, None),
            Self::Lease => ("lease.coordination.k8s.io", "Lease", None, None),
            Self::Certificate => ("secret", "Secret", None, None),
            Self::LeaseNamespace => ("namespace", "Namespace", None, None),
            Self::Pause => (CONFIG_MAP, "ConfigMap nodeward-pause", None, None),
        }
    }
}

#[cfg(test)]
mod tests;
