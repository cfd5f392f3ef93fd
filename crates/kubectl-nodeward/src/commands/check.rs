//! `check`: whether what is installed works, as after an installation or an upgrade.

mod webhooks;

use std::time::Duration;

use jiff::Timestamp;
use k8s_openapi::ByteString;
use k8s_openapi::api::admissionregistration::v1::ValidatingWebhookConfiguration;
use kube::ResourceExt;
use kube::api::ListParams;
use nodeward_core::duration::ConfigDuration;
use serde::Serialize;
use tokio::time::{Instant, sleep};

use super::Exit;
use super::status::components_of;
use crate::cluster::Cluster;
use crate::describe;
use crate::failure::Failure;
use crate::fetch::Reader;
use crate::model::Unread;
use crate::model::component::{Component, PART_OF};
use crate::screen::Screen;
use crate::text::Style;
use crate::text::page::Page;
use crate::text::table::Cell;

/// Between two looks of `--wait`.
const LOOK_EVERY: Duration = Duration::from_secs(2);

/// Whether what is installed works.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Check {
    pub components: Vec<Component>,
    /// What does not work, a sentence each.
    pub failures: Vec<String>,
    /// What could not be read.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub unread: Vec<Unread>,
}

/// Checks once, or until all works or the time of `--wait` has passed.
pub async fn run(cluster: &Cluster, wait: Option<ConfigDuration>, screen: &Screen) -> anyhow::Result<Exit> {
    let end = Instant::now() + wait.map_or(Duration::ZERO, |wait| wait.get().unsigned_abs());
    let check = loop {
        let check = Check::fetch(cluster).await?;
        if check.failures.is_empty() || end <= Instant::now() + LOOK_EVERY {
            break check;
        }
        sleep(LOOK_EVERY).await;
    };
    screen.show(&check, |page| check.print(page, Timestamp::now()))?;
    Ok(
        match (check.failures.is_empty(), check.unread.iter().any(Unread::is_hidden)) {
            (false, _) if wait.is_some() => Exit::TimedOut,
            (false, _) => Exit::Failed,
            (true, true) => Exit::CannotTell,
            (true, false) => Exit::Done,
        },
    )
}

impl Check {
    async fn fetch(cluster: &Cluster) -> Result<Self, Failure> {
        let mut reader = Reader::new(cluster);
        let components = components_of(&mut reader).await?;
        let params = ListParams::default().labels(PART_OF);
        let webhooks = reader
            .list("webhooks", cluster.all(), params)
            .await?
            .unwrap_or_default();
        let mut check = Self::of(components, &webhooks);
        for configuration in webhooks.iter().filter(|webhook| is_trusted(webhook)) {
            let failures = webhooks::failures(cluster, configuration, &mut reader.unread).await?;
            check.failures.extend(failures);
        }
        check.unread = reader.unread;
        if !check.has_component() && !check.unread.iter().any(Unread::is_hidden) {
            check.failures.push("no component of Nodeward is installed".to_owned());
        }
        Ok(check)
    }

    fn of(components: Vec<Component>, webhooks: &[ValidatingWebhookConfiguration]) -> Self {
        let stopped = components
            .iter()
            .filter(|component| component.is_installed())
            .filter_map(|component| {
                let why = component.acts_not()?;
                Some(format!("{why} (namespace {})", component.namespace))
            });
        let without_ca = webhooks.iter().filter(|webhook| !is_trusted(webhook));
        let without_ca = without_ca.map(|configuration| {
            let name = configuration.name_any();
            format!("the API server cannot call the webhook {name}: its configuration has no CA certificate yet")
        });
        Self {
            failures: stopped.chain(without_ca).collect(),
            components,
            unread: Vec::new(),
        }
    }

    fn has_component(&self) -> bool {
        self.components.iter().any(Component::is_installed)
    }

    fn print(&self, page: &mut Page, now: Timestamp) {
        describe::cannot_tell(page, &self.unread);
        describe::components(page, &self.components, now);
        self.print_failures(page);
        if self.failures.is_empty() && self.has_component() {
            page.text(Style::Good, "All that is installed works.");
        }
    }

    pub fn print_failures(&self, page: &mut Page) {
        let failures = self.failures.iter().map(|failure| Cell::new(Style::Bad, failure));
        page.fields("fails", failures);
    }
}

/// Whether the API server knows by which certificate to trust its webhooks.
fn is_trusted(configuration: &ValidatingWebhookConfiguration) -> bool {
    let mut webhooks = configuration.webhooks.iter().flatten();
    let bundle = |bundle: &ByteString| !bundle.0.is_empty();
    webhooks.all(|webhook| webhook.client_config.ca_bundle.as_ref().is_some_and(bundle))
}

#[cfg(test)]
mod tests {
    use rstest::rstest;
    use serde_json::json;

    use super::*;
    use crate::model::component::ComponentState;

    fn component(state: ComponentState) -> Component {
        Component {
            name: "drain-lock".to_owned(),
            state,
            version: None,
            namespace: "nodeward-system".to_owned(),
            deployment: None,
            runs_elsewhere: false,
            ready: Some(2),
            replicas: Some(2),
            leader: None,
            renewed: None,
            planned: None,
            paused: None,
        }
    }

    fn webhook(bundle: Option<&str>) -> ValidatingWebhookConfiguration {
        serde_json::from_value(json!({
            "metadata": { "name": "nodeward-drain-lock" },
            "webhooks": [{
                "name": "evictions.drain-lock.nodeward.dev", "sideEffects": "None", "admissionReviewVersions": ["v1"],
                "clientConfig": { "caBundle": bundle },
            }],
        }))
        .unwrap()
    }

    const NO_CA: &str =
        "the API server cannot call the webhook nodeward-drain-lock: its configuration has no CA certificate yet";

    #[rstest]
    #[case::works(ComponentState::Leading, Some("Q0E="), &[])]
    #[case::leases_cannot_be_read(ComponentState::Ready, Some("Q0E="), &[])]
    #[case::plans_nothing(ComponentState::NotPlanning, Some("Q0E="), &["drain-lock leads and plans nothing (namespace nodeward-system)"])]
    #[case::nobody_leads(ComponentState::NotLeading, Some("Q0E="), &["no replica of drain-lock leads (namespace nodeward-system)"])]
    #[case::lease_is_left(ComponentState::NotInstalled, Some("Q0E="), &[])]
    #[case::no_certificate_yet(ComponentState::Leading, None, &[NO_CA])]
    #[case::empty_certificate(ComponentState::Leading, Some(""), &[NO_CA])]
    fn what_does_not_work_is_named(
        #[case] state: ComponentState,
        #[case] bundle: Option<&str>,
        #[case] failures: &[&str],
    ) {
        let check = Check::of(vec![component(state)], &[webhook(bundle)]);
        assert_eq!(check.failures, failures);
    }
}
