//! A real Ceph, one OSD on each of three hosts, and what must hold of its OSDs' pods.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use anyhow::{Result, ensure};
use k8s_openapi::api::core::v1::Pod;
use k8s_openapi::apimachinery::pkg::util::intstr::IntOrString;
use kube::ResourceExt;
use kube::runtime::watcher::{self, Event};
use nodeward_testkit::ceph::{Ceph, CephOptions, Judge};
use nodeward_testkit::progress::Progress;
use nodeward_testkit::rook::{CLUSTER, OSD_ID, Rook};
use nodeward_testkit::{ControlPlane, lock, wait, workload};
use tokio::task::JoinSet;

use super::judge::is_evicted;
use crate::watch::Watched;

/// How long Ceph may take to be complete, and the budget to be open, on a loaded machine.
const WELL_WITHIN: Duration = Duration::from_mins(3);

/// The pool, of each of whose objects every host has a copy.
pub const POOL: &str = "data";

pub struct Storage {
    rook: Rook,
    judge: Arc<Judge>,
    pods: Watched<OsdPods>,
    broken: Arc<Mutex<Vec<String>>>,
    answers: Mutex<BTreeMap<u16, usize>>,
    _following: JoinSet<()>,
}

impl Storage {
    pub async fn start(plane: &ControlPlane) -> Result<Self> {
        let progress = Progress::begin("Ceph on three hosts");
        let ceph = Arc::new(Ceph::start(CephOptions::default()).await?);
        progress.step("Rook's objects");
        plane.namespace(CLUSTER).await?;
        let rook = Rook::start(&plane.client().await?, CLUSTER, ceph).await?;
        rook.add_pool(POOL, 3, 8, "host").await?;
        progress.done("all up and clean");
        let judge = Arc::new(Judge::new(rook.ceph()).await?);
        let broken: Arc<Mutex<Vec<String>>> = Arc::default();
        let mut following = JoinSet::new();
        let (followed, failures) = (Arc::clone(&judge), Arc::clone(&broken));
        following.spawn(async move {
            let Err(error) = followed.follow().await;
            lock(&failures).push(format!("Ceph cannot be looked at: {error:#}"));
        });
        let config = watcher::Config::default().labels("app=rook-ceph-osd");
        let osds = rook.ceph().options().osds();
        let pods = Watched::new(OsdPods {
            osds: (0..osds).map(|osd| osd.to_string()).collect(),
            ..OsdPods::default()
        })
        .follow_events(rook.pods(), config, OsdPods::take);
        Ok(Self {
            rook,
            judge,
            pods,
            broken,
            answers: Mutex::default(),
            _following: following,
        })
    }

    pub const fn rook(&self) -> &Rook {
        &self.rook
    }

    pub fn hosts(&self) -> usize {
        self.rook.ceph().options().hosts
    }

    pub fn node(&self, host: usize) -> String {
        self.rook.node_of(host)
    }

    pub fn namespace(&self) -> &str {
        self.rook.namespace()
    }

    /// Tries to evict an OSD. If that is allowed it has to be safe by Ceph's own word.
    pub async fn evict(&self, osd: usize) -> Result<()> {
        let _stops_delayed = self.rook.delay_stops().await;
        let asked = Instant::now();
        let Some(code) = self.rook.evict_osd(osd).await? else {
            return Ok(());
        };
        *lock(&self.answers).entry(code).or_default() += 1;
        if code == 201
            && let Err(wrong) = self.judge.judge(osd, asked).await
        {
            lock(&self.broken).push(format!("{wrong:#}"));
        }
        Ok(())
    }

    /// Everything held so far.
    pub fn hold(&self) -> Result<()> {
        let broken = self.broken();
        ensure!(broken.is_empty(), "{}", broken.join("\n"));
        Ok(())
    }

    /// What did not hold.
    pub fn broken(&self) -> Vec<String> {
        [lock(&self.broken).clone(), self.pods.read().broken.clone()].concat()
    }

    /// How many OSDs were evicted, by whomever.
    pub fn evicted(&self) -> usize {
        self.pods.read().evicted
    }

    /// Waits until the budget lets one OSD go, whichever it is.
    pub async fn is_open(&self) -> Result<()> {
        wait::until("the budget of the OSDs to be open", WELL_WITHIN, || async {
            let budget = self.rook.budgets().get("rook-ceph-osd").await?;
            let allows = budget.spec.as_ref().and_then(|spec| spec.max_unavailable.clone());
            ensure!(allows == Some(IntOrString::Int(1)), "maxUnavailable {allows:?}");
            Ok(())
        })
        .await
    }

    /// Waits until all OSDs are up, all data is complete, and nothing of ours is left.
    pub async fn is_at_rest(&self) -> Result<()> {
        self.rook.ceph().all_up().await?;
        self.rook.ceph().clean(WELL_WITHIN).await?;
        self.is_open().await?;
        wait::until("noout to be off", WELL_WITHIN, || async {
            let noout = self.rook.ceph().buckets_with_noout().await?;
            ensure!(noout.is_empty(), "{noout:?}");
            Ok(())
        })
        .await
    }

    pub fn text(&self) -> String {
        let answers = lock(&self.answers).clone();
        let evicted = self.evicted();
        format!("{evicted} OSDs evicted, answers to those who only tried {answers:?}")
    }
}

/// The pods of the OSDs, as their watch tells them. Each OSD is a failure domain.
#[derive(Default)]
struct OsdPods {
    osds: Vec<String>,
    /// OSD and whether the pod runs, by UID.
    pods: BTreeMap<String, (String, bool)>,
    evicted: usize,
    broken: Vec<String>,
}

impl OsdPods {
    fn take(&mut self, event: Event<Pod>) {
        let (pod, is_gone) = match event {
            Event::Apply(pod) | Event::InitApply(pod) => (pod, false),
            Event::Delete(pod) => (pod, true),
            Event::Init | Event::InitDone => return,
        };
        let uid = pod.uid().unwrap_or_default();
        let osd = pod.labels().get(OSD_ID).cloned().unwrap_or_default();
        let runs = !is_gone && pod.metadata.deletion_timestamp.is_none() && workload::phase(&pod) == "Running";
        let ran = self.pods.insert(uid.clone(), (osd.clone(), runs));
        if is_gone {
            self.pods.remove(&uid);
        }
        if runs || !ran.is_some_and(|(_, ran)| ran) || !is_evicted(&pod) {
            return;
        }
        self.evicted += 1;
        let running = |other: &String| self.pods.values().any(|(osd, runs)| osd == other && *runs);
        let others = self.osds.iter().filter(|other| **other != osd);
        let down: Vec<&String> = others.filter(|other| !running(other)).collect();
        if !down.is_empty() {
            self.broken.push(format!(
                "OSD {osd} is evicted while OSDs {down:?} of other hosts are away"
            ));
        }
    }
}
