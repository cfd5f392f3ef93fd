//! What Ceph and ceph-pdb say, told as it changes.

use std::convert::Infallible;
use std::time::Duration;

use anyhow::Result;
use k8s_openapi::api::core::v1::ConfigMap;
use kube::api::Api;
use nodeward_api::CephClusterState;
use nodeward_api::ceph_state::{CONFIG_MAP, PublishedDisruptions, STATE_KEY};
use nodeward_testkit::ceph::ServiceWatch;
use nodeward_testkit::rook::Rook;

use crate::demo::narrator::{Line, Narrator, Voice};

/// How often both are looked at.
const LOOKS_EVERY: Duration = Duration::from_secs(1);

/// Looks at both.
pub struct Follower<'a> {
    rook: &'a Rook,
    narrator: &'a Narrator,
    config_maps: Api<ConfigMap>,
    watch: ServiceWatch,
    groups: String,
    budgets: String,
}

impl<'a> Follower<'a> {
    pub fn new(rook: &'a Rook, narrator: &'a Narrator) -> Self {
        Self {
            rook,
            narrator,
            config_maps: Api::namespaced(rook.client(), rook.namespace()),
            watch: ServiceWatch::default(),
            groups: String::new(),
            budgets: String::new(),
        }
    }

    pub async fn run(&mut self) -> Result<Infallible> {
        let mut pace = tokio::time::interval(LOOKS_EVERY);
        loop {
            pace.tick().await;
            self.watch.look(self.rook.ceph()).await?;
            let states = self.watch.states();
            let complete = states.get("active+clean").copied().unwrap_or_default();
            let groups = format!(
                "placement groups with all copies of their data: {complete} of {}",
                states.values().sum::<usize>()
            );
            if self.groups != groups {
                self.narrator.tell(Voice::Ceph, "", [Line::plain(groups.as_str())]);
                self.groups = groups;
            }
            if let Some(budgets) = self.budgets().await?
                && self.budgets != budgets
            {
                self.narrator.tell(Voice::CephPdb, "", [Line::plain(budgets.as_str())]);
                self.budgets = budgets;
            }
        }
    }

    /// What ceph-pdb has published.
    async fn budgets(&self) -> Result<Option<String>> {
        let map = self.config_maps.get_opt(CONFIG_MAP).await?;
        let text = map.and_then(|map| map.data).and_then(|mut data| data.remove(STATE_KEY));
        let Some(text) = text else { return Ok(None) };
        let state: CephClusterState = serde_json::from_str(&text)?;
        let budgets = match (state.disruptions, state.exempt_domain) {
            (PublishedDisruptions::Open, _) => "open".to_owned(),
            (_, Some(domain)) => format!("closed, but for {domain}"),
            (_, None) => "closed for all".to_owned(),
        };
        Ok(Some(format!(
            "budgets are {budgets}: Ceph {}",
            state.reason.explanation()
        )))
    }

    /// Placement groups that were ever without service.
    pub fn without_service(&self) -> Vec<String> {
        self.watch.without_service().iter().cloned().collect()
    }
}
