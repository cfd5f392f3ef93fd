//! `uninstall --check`: what an uninstall would leave behind, and what of it would block.

use std::collections::BTreeSet;

use jiff::Timestamp;
use k8s_openapi::api::coordination::v1::Lease;
use k8s_openapi::api::core::v1::{ConfigMap, Namespace, Node, Secret, Service};
use k8s_openapi::api::policy::v1::PodDisruptionBudget;
use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition;
use kube::ResourceExt;
use kube::api::ListParams;
use nodeward_api::{COMPONENTS, DisruptionHold, DrainLedger, NodeDrain, NodeHealthCheck, crd};
use serde::Serialize;

use super::Exit;
use super::printed::PrintedCommands;
use super::status::component_objects;
use crate::cluster::Cluster;
use crate::describe::{self, first};
use crate::failure::Failure;
use crate::fetch::Reader;
use crate::model::Unread;
use crate::model::ceph::Published;
use crate::model::component::{COMPONENT, Component, DRAIN_LOCK, HEALTH_CHECK, PART_OF, components};
use crate::model::leftover::{self, ALL, DRY_RUN, Kind, Leftover, Leftovers};
use crate::text::Style;
use crate::text::page::Page;
use crate::text::table::{Column, Table};

/// The ConfigMap by which health-check knows that it has made a NodeHealthCheck.
const HEALTH_CHECK_DEFAULT: &str = "nodeward-health-check-default";

/// How many objects of a kind are named in a text.
const NAMED: usize = 5;

/// What an uninstall of all that is installed would leave behind.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct UninstallCheck {
    pub components: Vec<Component>,
    /// What would block something once no component runs.
    pub blocks: Vec<Leftover>,
    /// What would stay, and block nothing.
    pub stays: Vec<Leftover>,
    /// What could not be read.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub unread: Vec<Unread>,
}

/// Whether health-check has written the status, and not medik8s' operator.
fn has_answered(check: &NodeHealthCheck) -> bool {
    check
        .status
        .as_ref()
        .is_some_and(|status| status.observed_generation.is_some())
}

fn called(name: &str) -> ListParams {
    ListParams::default().fields(&format!("metadata.name={name}"))
}

impl UninstallCheck {
    pub async fn fetch(cluster: &Cluster) -> Result<Self, Failure> {
        // What stays is in all namespaces, whatever -n names.
        let mut everywhere = cluster.clone();
        everywhere.namespace = None;
        let cluster = &everywhere;
        let mut reader = Reader::new(cluster);
        let mut found = Leftovers::default();
        let all = ListParams::default;
        let objects = component_objects(&mut reader).await?;
        for lease in &objects.leases {
            found.add_lease(lease);
        }
        for pause in &objects.pauses {
            found.add_object(ALL, Kind::Pause, pause);
        }
        let add = |drain: NodeDrain| found.add_drain(&drain);
        reader.list_as("drains", cluster.all(), all(), add).await?;
        if let Some(ledger) = reader.ledger().await? {
            found.add_claims(&ledger);
        }
        for ledger in reader.list_metadata::<DrainLedger>("claims", all()).await? {
            found.add_object(DRAIN_LOCK, Kind::Ledger, &ledger);
        }
        let add = |hold: DisruptionHold| found.add_object(DRAIN_LOCK, Kind::Hold, &hold);
        reader.list_as("holds", cluster.all(), all(), add).await?;
        let add = |node: Node| found.add_node(&node);
        reader.list_as("nodes", cluster.all(), all(), add).await?;
        let add = |budget: PodDisruptionBudget| found.add_budget(&budget);
        reader.list_as("budgets", cluster.all(), all(), add).await?;
        let components = components(&objects, reader.now);
        // medik8s' operator serves the same kind.
        let mut has_health_check = components.iter().any(|component| component.name == HEALTH_CHECK);
        let checks = reader.health_checks().await?.unwrap_or_default();
        has_health_check |= checks.iter().any(has_answered);
        for check in checks.iter().filter(|_| has_health_check) {
            found.add_health_check(check);
        }
        for ceph in reader.ceph_clusters().await?.iter().flatten() {
            found.add_ceph_cluster(ceph);
            if let Published::Unreadable(problem) = &ceph.published {
                let message = format!("{}: {problem}", ceph.name());
                let what = "Ceph clusters";
                reader.unread.push(Unread::Undecodable { what, message });
            }
        }
        let webhooks = reader.list("webhooks", cluster.all(), all().labels(PART_OF)).await?;
        for webhook in webhooks.iter().flatten() {
            let mut is_served = false;
            for service in leftover::services(webhook) {
                let found = reader
                    .list_metadata::<Service>("services", called(&service.name))
                    .await?;
                is_served |= found
                    .iter()
                    .any(|one| one.namespace().as_ref() == Some(&service.namespace));
            }
            is_served |= leftover::services(webhook).next().is_none();
            found.add_webhook(
                webhook,
                is_served || reader.unread.iter().any(|unread| unread.hides("services")),
            );
        }
        for component in COMPONENTS {
            let dry_run = called(&format!("{component}{DRY_RUN}"));
            for lease in reader.list_metadata::<Lease>("leases of dry runs", dry_run).await? {
                found.add_lease(&lease);
            }
        }
        for component in [DRAIN_LOCK, HEALTH_CHECK] {
            let name = called(&format!("{component}-webhook-cert"));
            for secret in reader.list_metadata::<Secret>("certificates", name).await? {
                found.add_object(component, Kind::Certificate, &secret);
            }
        }
        let records = reader.list_metadata::<ConfigMap>("health-check's record", called(HEALTH_CHECK_DEFAULT));
        for record in records.await? {
            found.add_object(HEALTH_CHECK, Kind::HealthCheckDefault, &record);
        }
        let of_health_check = all().labels(&format!("{PART_OF},{COMPONENT}={HEALTH_CHECK}"));
        let namespaces = reader.list_metadata::<Namespace>("the namespace of node leases", of_health_check);
        for namespace in namespaces.await? {
            found.add_object(HEALTH_CHECK, Kind::LeaseNamespace, &namespace);
        }
        for (component, definitions) in [(DRAIN_LOCK, crd::drain_lock()), (HEALTH_CHECK, crd::health_check())] {
            for definition in definitions {
                let name = called(&definition.name_any());
                for definition in reader.list_metadata::<CustomResourceDefinition>("CRDs", name).await? {
                    let mut labels = definition.labels().iter();
                    let is_of_chart = labels.any(|(key, value)| format!("{key}={value}") == PART_OF);
                    if component == DRAIN_LOCK || has_health_check || is_of_chart {
                        found.add_definition(component, &definition);
                    }
                }
            }
        }
        let (blocks, stays) = found.sorted();
        Ok(Self {
            components,
            blocks,
            stays,
            unread: reader.unread,
        })
    }

    /// What a script does about it: what could not be read may block.
    pub fn exit(&self) -> Exit {
        match (self.blocks.is_empty(), self.unread.iter().any(Unread::is_hidden)) {
            (false, _) => Exit::Failed,
            (true, true) => Exit::CannotTell,
            (true, false) => Exit::Done,
        }
    }

    pub fn print(&self, page: &mut Page, commands: &PrintedCommands, now: Timestamp) {
        describe::cannot_tell(page, &self.unread);
        describe::components(page, &self.components, now);
        self.print_blocks(page, commands);
        match self.exit() {
            Exit::Done => page.text(Style::Good, "Nothing would block after an uninstall."),
            Exit::CannotTell => page.text(
                Style::Warning,
                "Nothing that could be read would block after an uninstall.",
            ),
            _ => {}
        }
        let mut table = Table::new([
            Column::Fixed("STAYS OF"),
            Column::Flexible("WHAT"),
            Column::Flexible("WHERE"),
        ]);
        for leftover in &self.stays {
            table.row([
                leftover.component.into(),
                leftover.what.into(),
                first(&leftover.objects, NAMED).into(),
            ]);
        }
        page.separate_table(table);
    }

    fn has_at_work(&self, name: &str) -> bool {
        let mut found = self.components.iter().filter(|component| component.name == name);
        found.any(|component| component.acts_not().is_none())
    }

    fn print_blocks(&self, page: &mut Page, commands: &PrintedCommands) {
        if self.blocks.is_empty() {
            return;
        }
        page.heading("To be ended before an uninstall");
        for leftover in &self.blocks {
            let (component, what, objects) = (leftover.component, leftover.what, first(&leftover.objects, NAMED));
            let why = leftover.why.unwrap_or_default();
            page.point(Style::Bad, format!("{component}: {what} ({objects}): {why}"));
        }
        let idle: BTreeSet<&str> = self
            .blocks
            .iter()
            .map(|leftover| leftover.component)
            .filter(|name| !self.has_at_work(name))
            .collect();
        for name in idle {
            let text = format!(
                "{name} is not at work, and ends nothing of this. Let it work first; if it is uninstalled, its page on installing \
                 says how to end the rest by hand."
            );
            page.text(Style::Warning, text);
        }
        for remedy in self.blocks.iter().filter_map(|leftover| leftover.remedy) {
            page.text(Style::Plain, "End it by:");
            page.command("", commands.kubectl(remedy));
        }
    }
}
