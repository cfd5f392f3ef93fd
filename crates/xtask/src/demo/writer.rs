//! A client that writes to Ceph, and what is left of that.

use std::convert::Infallible;
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use anyhow::Result;
use nodeward_testkit::ceph::Ceph;
use nodeward_testkit::{bulk, lock};

use crate::soak::drains::storage::POOL;

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
