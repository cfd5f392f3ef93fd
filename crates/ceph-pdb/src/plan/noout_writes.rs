//! The writes by which `noout` flags follow a decision: first the record, then the command.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use jiff::{SignedDuration, Timestamp};
use nodeward_core::deadline::RequeueAt;

use super::facts::OsdView;
use super::noout::{HostFacts, NooutPhase, NooutRecord, NooutStep, next_deadline, next_step};
use super::write::Write;
use crate::snapshot::{CephView, StateMap};

/// What is known of a cluster's flags.
pub(super) struct Flags<'a> {
    /// Our records, and what Rook has left.
    pub map: &'a StateMap,
    /// What Ceph says; without it no step is taken.
    pub view: Option<&'a CephView>,
    /// Its OSDs.
    pub osds: &'a OsdView,
    /// Hosts whose OSDs are to keep their data; `None` where all flags of ours are to go, for good.
    pub wanted: Option<&'a BTreeSet<Arc<str>>>,
    /// How long a flag stays at most.
    pub timeout: SignedDuration,
}

impl Flags<'_> {
    /// At most one write: records and commands never change at once.
    pub(super) fn write(&self, now: Timestamp, requeue_at: &mut RequeueAt) -> Option<Write> {
        let view = self.view?;
        let mut records = self.map.noout.clone();
        if self.wanted.is_some() {
            self.take_over(view, &mut records, now);
        }
        let buckets: BTreeSet<Arc<str>> = records
            .keys()
            .chain(self.wanted.into_iter().flatten())
            .cloned()
            .collect();
        let (mut set, mut clear) = (BTreeSet::new(), BTreeSet::new());
        for bucket in buckets {
            let record = records.get(&bucket).copied();
            // Flags that were listed before the last change of the record say nothing of what became of it.
            if record.is_some_and(|record| view.asked_at < record.changed) {
                continue;
            }
            let host = HostFacts {
                has_flag: has_noout(view, &bucket),
                is_wanted: self.wanted.is_some_and(|wanted| wanted.contains(&bucket)),
                is_up: self.wanted.is_none() || self.osds.is_up(&bucket),
            };
            match next_step(host, record, self.timeout, now) {
                Some(NooutStep::Record(record)) => drop(records.insert(bucket, record)),
                Some(NooutStep::Forget) => drop(records.remove(&bucket)),
                Some(NooutStep::Set) => drop(set.insert(bucket)),
                Some(NooutStep::Unset) => drop(clear.insert(bucket)),
                None => requeue_at.note(record.and_then(|record| next_deadline(record, self.timeout))),
            }
        }
        let takes_over = self.wanted.is_some() && self.map.rook != crate::snapshot::RookState::default();
        if records != self.map.noout || takes_over {
            return Some(Write::WriteStateMap {
                resource_version: self.map.resource_version.clone(),
                noout: records,
            });
        }
        let (buckets, on) = if clear.is_empty() { (set, true) } else { (clear, false) };
        let state_map_version = self.map.resource_version.clone()?;
        (!buckets.is_empty()).then_some(Write::SetNoout {
            buckets,
            on,
            state_map_version,
            noout: records,
        })
    }

    /// The flags that Rook's own manager has set, and left behind, become ours.
    fn take_over(&self, view: &CephView, records: &mut BTreeMap<Arc<str>, NooutRecord>, now: Timestamp) {
        let rook = &self.map.rook;
        let draining = rook.draining_domain.iter().filter(|_| rook.set_noout);
        for domain in rook.noout_set_at.keys().chain(draining) {
            if has_noout(view, domain) {
                let since = rook.noout_set_at.get(domain).copied().unwrap_or(now);
                records.entry(Arc::clone(domain)).or_insert(NooutRecord {
                    since,
                    phase: NooutPhase::Set,
                    changed: since,
                });
            }
        }
    }
}

fn has_noout(view: &CephView, bucket: &str) -> bool {
    let flags = view.map.dump.crush_node_flags.get(bucket);
    flags.is_some_and(|flags| flags.contains("noout"))
}
