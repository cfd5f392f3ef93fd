//! Clients that write, and somebody who evicts.

use std::collections::BTreeMap;
use std::convert::Infallible;
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use anyhow::Result;
use nodeward_testkit::ceph::Ceph;
use nodeward_testkit::rook::Rook;
use nodeward_testkit::{bulk, lock};

use super::POOL;
use crate::demo::narrator::{Narrator, Voice};

/// Between two writes: all that is written is read in the end.
const WRITES_EVERY: Duration = Duration::from_millis(250);

/// Between two evictions.
const PACE: Duration = Duration::from_millis(100);

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

/// Evicts OSDs of all hosts but the one that is drained.
#[derive(Default)]
pub struct Evictor {
    /// None: it rests.
    spared: Mutex<Option<usize>>,
    answers: Mutex<BTreeMap<u16, usize>>,
}

impl Evictor {
    /// From now on it evicts all but this one.
    pub fn leave_alone(&self, osd: usize) {
        *lock(&self.spared) = Some(osd);
    }

    /// From now on it evicts none.
    pub fn rest(&self) {
        *lock(&self.spared) = None;
    }

    pub async fn run(&self, rook: &Rook, narrator: &Narrator) -> Result<Infallible> {
        let mut pace = tokio::time::interval(PACE);
        let mut said = None;
        loop {
            for osd in 0..rook.ceph().options().osds() {
                pace.tick().await;
                let spared = *lock(&self.spared);
                if spared.is_none_or(|spared| spared == osd) {
                    continue;
                }
                let Some(code) = rook.evict_osd(osd).await? else {
                    continue;
                };
                *lock(&self.answers).entry(code).or_default() += 1;
                let node = rook.node_of(osd);
                if code == 201 {
                    narrator.say(Voice::Evictor, &node, &format!("evicts OSD {osd}"));
                } else if said != spared {
                    let text = format!("may not evict OSD {osd} ({code}), and tries again and again");
                    narrator.say(Voice::Evictor, &node, &text);
                    said = spared;
                }
            }
        }
    }

    /// By status code.
    pub fn answers(&self) -> BTreeMap<u16, usize> {
        lock(&self.answers).clone()
    }
}
