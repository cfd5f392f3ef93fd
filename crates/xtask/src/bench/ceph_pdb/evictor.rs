//! Tries to evict the OSDs of all hosts but one, over and over, as long as that one is drained.
//!
//! Each attempt is a dry run: the API decides as it would, and nothing goes. So a window that lets an OSD go is counted for as
//! long as it lasts, and the drain is not disturbed.

use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use anyhow::{Context, Result};
use k8s_openapi::api::core::v1::Pod;
use kube::api::{Api, EvictParams, PostParams};
use tokio::time::{MissedTickBehavior, interval};

use super::probe::Probe;
use super::timeline::Timeline;

/// Between two attempts.
const PACE: Duration = Duration::from_millis(20);

/// What its attempts came to.
#[derive(Debug, Default)]
pub struct Attempts {
    pub count: usize,
    /// Answered 500: two budgets selected the pod.
    pub http_500: usize,
    /// Allowed while Ceph could not lose that OSD, and why it could not.
    pub unsafe_evictions: Vec<String>,
}

impl Attempts {
    pub fn add(&mut self, other: Self) {
        self.count += other.count;
        self.http_500 += other.http_500;
        self.unsafe_evictions.extend(other.unsafe_evictions);
    }
}

/// Evicts OSDs.
pub struct Evictor<'a> {
    pub pods: Api<Pod>,
    pub timeline: &'a Timeline,
    pub probe: &'a Probe,
    /// Of all OSDs.
    pub osds: usize,
}

impl Evictor<'_> {
    /// Tries each of these OSDs in turn until it is over.
    pub async fn evict(&self, osds: &[usize], is_over: &AtomicBool) -> Result<Attempts> {
        let dry_run = EvictParams {
            post_options: PostParams {
                dry_run: true,
                ..PostParams::default()
            },
            ..EvictParams::default()
        };
        let mut attempts = Attempts::default();
        let mut pace = interval(PACE);
        pace.set_missed_tick_behavior(MissedTickBehavior::Delay);
        for osd in osds.iter().cycle() {
            pace.tick().await;
            if is_over.load(Ordering::Relaxed) {
                break;
            }
            let Some(pod) = self.timeline.pods(|pods| pods.live.get(osd).cloned()) else {
                continue;
            };
            attempts.count += 1;
            match self.pods.evict(&pod, &dry_run).await {
                Ok(_) => attempts.unsafe_evictions.extend(self.objection(*osd).await?),
                Err(kube::Error::Api(status)) if status.code == 500 => attempts.http_500 += 1,
                Err(kube::Error::Api(_)) => {}
                Err(error) => return Err(error).with_context(|| format!("evict {pod}")),
            }
        }
        Ok(attempts)
    }

    /// Why this OSD must not have been let go just now.
    async fn objection(&self, osd: usize) -> Result<Option<String>> {
        let away: Vec<usize> = self.timeline.pods(|pods| pods.away(self.osds).collect());
        let objection = if away.is_empty() {
            self.probe.objection(osd).await?
        } else {
            Some(format!("OSDs {away:?} have no pod that is ready"))
        };
        Ok(objection.map(|why| format!("OSD {osd}: {why}")))
    }
}
