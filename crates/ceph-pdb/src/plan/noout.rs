//! The flag `noout` of a drained host: its OSDs keep their data while they are away, but not for ever.
//!
//! The record comes before the command, so that a flag is never left behind: whoever leads next finds what was meant. A flag
//! without a record is an administrator's.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use jiff::{SignedDuration, Timestamp};
use nodeward_core::deadline::RequeueAt;
use serde::{Deserialize, Serialize};

use super::facts::OsdView;
use super::osd_disruptions::Decision;
use super::write::Write;
use crate::snapshot::{CephView, RookState, StateMap};

/// The record of a host's flag.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct NooutRecord {
    /// Since when its OSDs are to keep their data.
    pub since: Timestamp,
    /// How far it is.
    pub phase: NooutPhase,
    /// Since when it is that far: flags that Ceph listed before say nothing of it.
    #[serde(default)]
    pub changed: Timestamp,
}

/// How far a host's flag is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum NooutPhase {
    /// It is to be set.
    Setting,
    /// It was seen.
    Set,
    /// It is to be cleared.
    Clearing,
    /// It was cleared, for its time was over or somebody else has done it. It is not set again before the OSDs were up.
    Over,
}

/// A host, as it matters here.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct HostFacts {
    /// Ceph has the flag on its bucket.
    pub has_flag: bool,
    /// Whether its data is missed.
    pub data: HostData,
    /// None of its OSDs is away by a drain any more.
    pub is_back: bool,
}

/// Whether a host's data is missed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum HostData {
    Complete,
    /// [`Decision::missed_hosts`].
    Missed,
    /// And it is drained: [`Decision::noout_hosts`].
    MissedByDrain,
}

/// What is done next.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum NooutStep {
    /// Write this record.
    Record(NooutRecord),
    /// Remove the record.
    Forget,
    /// `osd set-group noout`.
    Set,
    /// `osd unset-group noout`.
    Unset,
}

/// The next step for a host; none while all is as it is to be. The flag stays for `timeout` at most
/// (`spec.disruptionManagement.osdMaintenanceTimeout`).
pub fn next_step(
    host: HostFacts,
    record: Option<NooutRecord>,
    timeout: SignedDuration,
    now: Timestamp,
) -> Option<NooutStep> {
    let Some(record) = record else {
        let is_ours_to_set = host.data == HostData::MissedByDrain && !host.has_flag;
        return is_ours_to_set.then_some(NooutStep::Record(NooutRecord {
            since: now,
            phase: NooutPhase::Setting,
            changed: now,
        }));
    };
    let becomes = |phase| {
        Some(NooutStep::Record(NooutRecord {
            phase,
            changed: now,
            ..record
        }))
    };
    let is_late = now.duration_since(record.since) >= timeout;
    match record.phase {
        NooutPhase::Setting | NooutPhase::Set if is_late => becomes(NooutPhase::Clearing),
        // Uncordoned, its OSDs are often still on their way: the flag stays until they are up.
        NooutPhase::Setting if host.data != HostData::MissedByDrain => becomes(NooutPhase::Clearing),
        NooutPhase::Set if host.data == HostData::Complete => becomes(NooutPhase::Clearing),
        NooutPhase::Setting if host.has_flag => becomes(NooutPhase::Set),
        NooutPhase::Setting => Some(NooutStep::Set),
        // An administrator has cleared it, which counts for the whole drain.
        NooutPhase::Set if !host.has_flag => becomes(NooutPhase::Over),
        NooutPhase::Set => None,
        NooutPhase::Clearing if host.has_flag => Some(NooutStep::Unset),
        // The record stays until its OSDs are back: a host gets one flag a drain.
        NooutPhase::Clearing if !host.is_back => becomes(NooutPhase::Over),
        // A flag beside a record that is over was set by somebody else, and stays.
        NooutPhase::Clearing | NooutPhase::Over => host.is_back.then_some(NooutStep::Forget),
    }
}

/// When a host's flag is to be looked at again.
pub fn next_deadline(record: NooutRecord, timeout: SignedDuration) -> Option<Timestamp> {
    let is_counting = matches!(record.phase, NooutPhase::Setting | NooutPhase::Set);
    is_counting.then(|| record.since.checked_add(timeout).ok()).flatten()
}

/// What is known of a cluster's flags.
pub(super) struct Flags<'a> {
    /// Our records, and what Rook has left.
    pub map: &'a StateMap,
    /// What Ceph says; without it no step is taken.
    pub view: Option<&'a CephView>,
    /// Its OSDs.
    pub osds: &'a OsdView,
    /// Which hosts' OSDs are to keep their data; `None` where all flags of ours are to go, for good.
    pub decision: Option<&'a Decision>,
    /// How long a flag stays at most.
    pub timeout: SignedDuration,
}

impl Flags<'_> {
    /// At most one write: records and commands never change at once.
    pub(super) fn write(&self, now: Timestamp, requeue_at: &mut RequeueAt) -> Option<Write> {
        let view = self.view?;
        let mut records = self.map.noout.clone();
        let wanted = self.decision.map(|decision| &decision.noout_hosts);
        if self.decision.is_some() {
            self.take_over(view, &mut records, now);
        }
        let buckets: BTreeSet<Arc<str>> = records.keys().chain(wanted.into_iter().flatten()).cloned().collect();
        let (mut set, mut clear) = (BTreeSet::new(), BTreeSet::new());
        for bucket in buckets {
            let record = records.get(&bucket).copied();
            // Flags that were listed before the last change of the record say nothing of what became of it.
            if record.is_some_and(|record| view.asked_at < record.changed) {
                continue;
            }
            let host = HostFacts {
                has_flag: has_noout(view, &bucket),
                data: self.data_of(&bucket),
                is_back: self.decision.is_none() || self.osds.is_back(&bucket),
            };
            match next_step(host, record, self.timeout, now) {
                Some(NooutStep::Record(record)) => drop(records.insert(bucket, record)),
                Some(NooutStep::Forget) => drop(records.remove(&bucket)),
                Some(NooutStep::Set) => drop(set.insert(bucket)),
                Some(NooutStep::Unset) => drop(clear.insert(bucket)),
                None => requeue_at.note(record.and_then(|record| next_deadline(record, self.timeout))),
            }
        }
        let takes_over = self.decision.is_some() && self.map.rook != RookState::default();
        if records != self.map.noout || takes_over {
            return Some(Write::WriteStateMap {
                resource_version: self.map.resource_version.clone(),
                takes_over: self.decision.is_some(),
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

    fn data_of(&self, host: &Arc<str>) -> HostData {
        match self.decision {
            Some(decision) if decision.noout_hosts.contains(host) => HostData::MissedByDrain,
            Some(decision) if decision.missed_hosts.contains(host) => HostData::Missed,
            _ => HostData::Complete,
        }
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

#[cfg(test)]
mod tests {
    use jiff::{SignedDuration, Timestamp};
    use proptest::prelude::*;
    use rstest::rstest;

    use super::{HostData, HostFacts, NooutPhase, NooutRecord, NooutStep, next_step};

    const TIMEOUT: SignedDuration = SignedDuration::from_mins(30);

    fn at(minute: i64) -> Timestamp {
        Timestamp::UNIX_EPOCH + SignedDuration::from_mins(minute)
    }

    fn record(phase: NooutPhase) -> NooutRecord {
        NooutRecord {
            since: at(0),
            phase,
            changed: at(0),
        }
    }

    /// A step without the time of its change.
    fn undated(step: NooutStep) -> NooutStep {
        match step {
            NooutStep::Record(record) => NooutStep::Record(NooutRecord {
                changed: at(0),
                ..record
            }),
            step => step,
        }
    }

    const DRAINED: HostFacts = HostFacts {
        has_flag: false,
        data: HostData::MissedByDrain,
        is_back: false,
    };

    const FLAGGED: HostFacts = HostFacts {
        has_flag: true,
        ..DRAINED
    };

    const BACK: HostFacts = HostFacts {
        has_flag: true,
        data: HostData::Complete,
        is_back: true,
    };

    const AWAY: HostFacts = HostFacts {
        data: HostData::Complete,
        ..FLAGGED
    };

    #[rstest]
    #[case::recorded_first(DRAINED, None, 0, Some(NooutStep::Record(record(NooutPhase::Setting))))]
    #[case::then_set(DRAINED, Some(NooutPhase::Setting), 1, Some(NooutStep::Set))]
    #[case::seen(
        FLAGGED,
        Some(NooutPhase::Setting),
        1,
        Some(NooutStep::Record(record(NooutPhase::Set)))
    )]
    #[case::stays(FLAGGED, Some(NooutPhase::Set), 29, None)]
    #[case::too_long(
        FLAGGED,
        Some(NooutPhase::Set),
        30,
        Some(NooutStep::Record(record(NooutPhase::Clearing)))
    )]
    #[case::cleared(FLAGGED, Some(NooutPhase::Clearing), 30, Some(NooutStep::Unset))]
    #[case::not_set_again(
        DRAINED,
        Some(NooutPhase::Clearing),
        30,
        Some(NooutStep::Record(record(NooutPhase::Over)))
    )]
    #[case::over(DRAINED, Some(NooutPhase::Over), 31, None)]
    #[case::set_again_by_somebody(FLAGGED, Some(NooutPhase::Over), 31, None)]
    #[case::cleared_by_somebody(DRAINED, Some(NooutPhase::Set), 5, Some(NooutStep::Record(record(NooutPhase::Over))))]
    #[case::back(
        BACK,
        Some(NooutPhase::Set),
        5,
        Some(NooutStep::Record(record(NooutPhase::Clearing)))
    )]
    #[case::back_and_cleared(HostFacts { has_flag: false, ..BACK }, Some(NooutPhase::Clearing), 5, Some(NooutStep::Forget))]
    #[case::back_after_all(HostFacts { has_flag: false, ..BACK }, Some(NooutPhase::Over), 90, Some(NooutStep::Forget))]
    #[case::no_longer_missed(
        AWAY,
        Some(NooutPhase::Set),
        5,
        Some(NooutStep::Record(record(NooutPhase::Clearing)))
    )]
    #[case::uncordoned_and_still_missed(HostFacts { data: HostData::Missed, ..AWAY }, Some(NooutPhase::Set), 5, None)]
    #[case::missed_for_too_long(
        HostFacts { data: HostData::Missed, ..AWAY },
        Some(NooutPhase::Set),
        30,
        Some(NooutStep::Record(record(NooutPhase::Clearing)))
    )]
    #[case::uncordoned_before_it_was_set(
        HostFacts { data: HostData::Missed, has_flag: false, ..AWAY },
        Some(NooutPhase::Setting),
        1,
        Some(NooutStep::Record(record(NooutPhase::Clearing)))
    )]
    #[case::not_set_again_in_the_same_drain(
        HostFacts { has_flag: false, ..AWAY },
        Some(NooutPhase::Clearing),
        5,
        Some(NooutStep::Record(record(NooutPhase::Over)))
    )]
    #[case::an_administrators(FLAGGED, None, 0, None)]
    #[case::an_administrators_stays(BACK, None, 0, None)]
    fn a_flag_goes_its_way(
        #[case] host: HostFacts,
        #[case] phase: Option<NooutPhase>,
        #[case] minute: i64,
        #[case] expected: Option<NooutStep>,
    ) {
        let step = next_step(host, phase.map(record), TIMEOUT, at(minute));
        assert_eq!(step.map(undated), expected);
    }

    fn any_phase() -> impl Strategy<Value = NooutPhase> {
        proptest::sample::select(vec![
            NooutPhase::Setting,
            NooutPhase::Set,
            NooutPhase::Clearing,
            NooutPhase::Over,
        ])
    }

    /// Follows the steps until none is left; gives what the flag and the record are then.
    fn follow(mut host: HostFacts, mut record: Option<NooutRecord>, now: Timestamp) -> (bool, Option<NooutRecord>) {
        for _ in 0..10 {
            match next_step(host, record, TIMEOUT, now) {
                Some(NooutStep::Record(written)) => record = Some(written),
                Some(NooutStep::Forget) => record = None,
                Some(NooutStep::Set) => {
                    assert!(record.is_some(), "set without a record");
                    host.has_flag = true;
                }
                Some(NooutStep::Unset) => {
                    assert!(record.is_some(), "cleared without a record");
                    host.has_flag = false;
                }
                None => return (host.has_flag, record),
            }
        }
        panic!("no end: {host:?} {record:?}");
    }

    proptest! {
        #[test]
        fn nothing_is_left_once_the_osds_are_back(
            phase in any_phase(),
            has_flag in any::<bool>(),
            minute in 0_i64..100,
        ) {
            let host = HostFacts { has_flag, data: HostData::Complete, is_back: true };
            let (flag, left) = follow(host, Some(record(phase)), at(minute));
            prop_assert_eq!(left, None);
            // One that came after ours was cleared is somebody else's.
            prop_assert_eq!(flag, has_flag && phase == NooutPhase::Over);
        }

        #[test]
        fn a_flag_of_ours_ends_with_its_time(
            phase in any_phase(),
            data in proptest::sample::select(vec![HostData::Complete, HostData::Missed, HostData::MissedByDrain]),
            is_back in any::<bool>(),
        ) {
            let host = HostFacts { has_flag: phase != NooutPhase::Over, data, is_back };
            let (flag, _) = follow(host, Some(record(phase)), at(30));
            prop_assert!(!flag || (is_back && data == HostData::MissedByDrain));
        }
    }
}
