//! Ceph's part: a client that writes and what is left of that, and what Ceph and ceph-pdb say, told as it changes.

use std::convert::Infallible;
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use anyhow::Result;
use k8s_openapi::api::core::v1::ConfigMap;
use kube::api::Api;
use nodeward_api::CephClusterState;
use nodeward_api::ceph_state::{CONFIG_MAP, PublishedDisruptions};
use nodeward_testkit::ceph::{Ceph, ServiceWatch};
use nodeward_testkit::rook::Rook;
use nodeward_testkit::{bulk, lock};

use super::narrator::{Line, Narrator, Voice};
use crate::soak::drains::storage::POOL;

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
        let Some(Ok(state)) = map.as_ref().map(CephClusterState::read) else {
            return Ok(None);
        };
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

/// Between two writes: all that is written is read in the end.
const WRITES_EVERY: Duration = Duration::from_millis(250);

fn object(number: usize) -> (String, String) {
    (format!("object-{number}"), format!("content of object {number}"))
}

/// A client that writes objects one after the other.
#[derive(Default)]
pub struct Writer {
    written: AtomicUsize,
    failed: Mutex<Vec<String>>,
}

impl Writer {
    pub async fn run(&self, ceph: &Ceph) -> Infallible {
        let mut pace = tokio::time::interval(WRITES_EVERY);
        loop {
            pace.tick().await;
            let number = self.written.load(Ordering::Relaxed);
            let (name, content) = object(number);
            match ceph.put(POOL, &name, content.as_bytes()).await {
                Ok(()) => self.written.store(number + 1, Ordering::Relaxed),
                Err(error) => lock(&self.failed).push(format!("{error:#}")),
            }
        }
    }

    /// How many Ceph has taken, and why it has not taken others.
    pub fn written(&self) -> (usize, Vec<String>) {
        (self.written.load(Ordering::Relaxed), lock(&self.failed).clone())
    }
}

/// Of the objects that Ceph has taken, those that are not there as they were written.
pub async fn lost(ceph: &Ceph, written: usize) -> Result<Vec<String>> {
    let all = bulk::each(0..written, |number| async move {
        let (name, content) = object(number);
        Ok(match ceph.get(POOL, &name).await {
            Ok(found) if found == content.as_bytes() => None,
            Ok(found) => Some(format!("{name} has {} other bytes", found.len())),
            Err(error) => Some(format!("{error:#}")),
        })
    });
    Ok(all.await?.into_iter().flatten().collect())
}
