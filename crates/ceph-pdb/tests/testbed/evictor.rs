//! Somebody who evicts OSDs again and again, and has each eviction that is allowed judged by the placement groups.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Mutex;
use std::time::{Duration, Instant};

use anyhow::Result;
use futures::future::try_join_all;
use nodeward_testkit::ceph::Judge;
use nodeward_testkit::lock;

use crate::environment::Environment;

/// What an evictor has met.
#[derive(Clone, Debug, Default)]
pub struct Met {
    /// Answers by status code.
    pub codes: BTreeMap<u16, usize>,
    /// OSDs that went, in this order.
    pub gone: Vec<usize>,
}

/// Evicts OSDs over and over, and has each eviction that is allowed judged.
pub struct Evictor<'a> {
    env: &'a Environment,
    judge: &'a Judge,
    met: Mutex<Met>,
    spared: Mutex<BTreeSet<usize>>,
}

impl<'a> Evictor<'a> {
    pub fn new(env: &'a Environment, judge: &'a Judge) -> Self {
        Self {
            env,
            judge,
            met: Mutex::default(),
            spared: Mutex::default(),
        }
    }

    /// From now on it leaves these alone.
    pub fn spare(&self, osds: &[usize]) {
        lock(&self.spared).extend(osds);
    }

    /// What it has met so far.
    pub fn met(&self) -> Met {
        lock(&self.met).clone()
    }

    /// Tries to evict one.
    ///
    /// # Errors
    /// It has gone, and was not to.
    pub async fn evict(&self, osd: usize) -> Result<()> {
        if lock(&self.spared).contains(&osd) {
            return Ok(());
        }
        let _stops_delayed = self.env.rook.delay_stops().await;
        let asked = Instant::now();
        let Some(code) = self.env.rook.evict_osd(osd).await? else {
            return Ok(());
        };
        *lock(&self.met).codes.entry(code).or_default() += 1;
        if code == 201 {
            let judged = self.judge.judge(osd, asked).await;
            if let Err(error) = judged {
                return Err(error.context(format!("state {}", self.env.state().await?)));
            }
            lock(&self.met).gone.push(osd);
        }
        Ok(())
    }

    /// Tries to evict these all at once, and then one after the other, until that is over.
    ///
    /// # Errors
    /// As [`Evictor::evict`].
    pub async fn run(&self, osds: &[usize], is_over: impl Fn(&Met) -> bool) -> Result<()> {
        try_join_all(osds.iter().map(|osd| self.evict(*osd))).await?;
        let mut pace = tokio::time::interval(Duration::from_millis(50));
        for osd in osds.iter().cycle() {
            if is_over(&lock(&self.met)) {
                return Ok(());
            }
            pace.tick().await;
            self.evict(*osd).await?;
        }
        Ok(())
    }
}
