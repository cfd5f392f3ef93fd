//! Which OSDs of a cluster may go down now.
//!
//! Pods and nodes are enough to close budgets; opening them needs Ceph. In doubt they stay as closed as they are.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use nodeward_api::reason::CephReason;

use crate::ceph::OsdId;
use crate::ceph::freshness::Doubt;

/// Name of a failure domain's bucket.
pub type Domain = Arc<str>;

/// An OSD.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
#[expect(clippy::struct_excessive_bools, reason = "each is a fact of its own")]
pub struct OsdFacts {
    /// Its failure domain, where that is known.
    pub domain: Option<Domain>,
    /// Its host's bucket, where that is known.
    pub host: Option<Arc<str>>,
    /// Ceph says that it is not up, or its pod is on its way out, missing or pending.
    pub is_down: bool,
    /// Ceph says that it is up.
    pub is_up_in_ceph: bool,
    /// Ceph counts on its data; not once it is marked out.
    pub is_in: bool,
    /// Its node is being drained, or gone.
    pub is_draining: bool,
}

/// The worst that is true of a placement group.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Default)]
pub enum PgHealth {
    /// All are clean.
    Clean,
    /// Some are not, and none lacks a copy: they only move.
    Moving,
    /// Some lack a copy.
    Degraded,
    /// Some take no requests.
    #[default]
    Inactive,
}

/// What Ceph has said since the last change of an OSD.
#[derive(Debug, Clone, Default)]
pub struct CephFacts {
    /// Its statistics are current.
    pub is_fresh: bool,
    /// What has happened since they were last current.
    pub doubt: Doubt,
    /// Its placement groups.
    pub pgs: PgHealth,
    /// Whether these OSDs may be down together, as both witnesses say of the same statistics. Pools that cannot lose a domain even
    /// when healthy are left out.
    pub safe_together: BTreeMap<BTreeSet<OsdId>, bool>,
}

/// What the budgets allow, or are to allow.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Disruptions {
    /// One OSD at a time.
    Open {
        /// OSDs that are down without harm: a budget that counted them would allow nothing.
        excluded: BTreeSet<OsdId>,
    },
    /// None, except those of one domain.
    Closed {
        /// That domain.
        exempt: Option<Domain>,
    },
}

/// A decision about the OSDs of a cluster.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Decision {
    /// What the budgets are to allow.
    pub disruptions: Disruptions,
    /// Why.
    pub reason: CephReason,
    /// What Ceph is to be asked: whether these may be down together.
    pub questions: BTreeSet<BTreeSet<OsdId>>,
    /// Hosts that are drained and whose data is missed: Ceph must not move it elsewhere yet.
    pub noout_hosts: BTreeSet<Arc<str>>,
    /// Hosts whose data is missed, drained or not.
    pub missed_hosts: BTreeSet<Arc<str>>,
}

/// Decides. `ceph` is absent until Ceph has answered since the last change; `timeout_is_over` is that of
/// `pgHealthCheckTimeout`, which a person sets so that an upgrade cannot hang.
pub fn decide(
    osds: &BTreeMap<OsdId, OsdFacts>,
    ceph: Option<&CephFacts>,
    current: &Disruptions,
    timeout_is_over: bool,
) -> Decision {
    let down: BTreeSet<OsdId> = osds.iter().filter(|(_, osd)| osd.is_down).map(|(id, _)| *id).collect();
    let situation = Situation {
        osds,
        down,
        questions: BTreeSet::new(),
    };
    situation.decide(ceph, current, timeout_is_over)
}

struct Situation<'a> {
    osds: &'a BTreeMap<OsdId, OsdFacts>,
    down: BTreeSet<OsdId>,
    questions: BTreeSet<BTreeSet<OsdId>>,
}

impl Situation<'_> {
    fn decide(mut self, ceph: Option<&CephFacts>, current: &Disruptions, timeout_is_over: bool) -> Decision {
        // While Ceph counts on an OSD whose pod is on its way out, "clean" still includes the copies that are about to go.
        let mut down = self.down.iter().filter_map(|id| self.osds.get(id));
        let knows_all_down = !down.any(|osd| osd.is_up_in_ceph);
        let is_settled = knows_all_down && ceph.is_some_and(|ceph| ceph.is_fresh && ceph.pgs == PgHealth::Clean);
        let (noout_hosts, missed_hosts) = if is_settled {
            (BTreeSet::new(), BTreeSet::new())
        } else {
            (
                self.hosts_with_down(|osd| osd.is_draining),
                self.hosts_with_down(|_| true),
            )
        };
        let all_up = self.down.is_empty();
        let (disruptions, reason) = match (ceph, current) {
            _ if is_settled && all_up => open(CephReason::AllClean),
            _ if is_settled => {
                let excluded = self.down.clone();
                (Disruptions::Open { excluded }, CephReason::DownOsdsExcluded)
            }
            (None, _) if !all_up => closed(None, CephReason::CephNotAsked),
            (Some(ceph), _) if !all_up => self.around_a_domain(ceph, current),
            (None, Disruptions::Open { .. }) => open(CephReason::AllUp),
            (None, Disruptions::Closed { exempt }) => closed(exempt.clone(), CephReason::Recovering),
            (Some(ceph), Disruptions::Open { .. }) if self.stays_open(ceph) => open(CephReason::AllUp),
            (Some(_), Disruptions::Open { .. }) => closed(None, CephReason::Recovering),
            (Some(ceph), Disruptions::Closed { exempt }) => match self.reopens(ceph, timeout_is_over) {
                Some(reason) => open(reason),
                None => closed(self.still_exempt(exempt.as_ref(), ceph), CephReason::Recovering),
            },
        };
        Decision {
            disruptions,
            reason,
            questions: self.questions,
            noout_hosts,
            missed_hosts,
        }
    }

    /// OSDs are down, and not all placement groups are clean without them.
    fn around_a_domain(&mut self, ceph: &CephFacts, current: &Disruptions) -> (Disruptions, CephReason) {
        if !ceph.is_fresh {
            return closed(None, CephReason::StatisticsStale);
        }
        let mut is_answered = true;
        for domain in self.candidates(current) {
            match self.may_stop_domain(&domain, ceph) {
                Some(true) => return closed(Some(domain), CephReason::DomainDown),
                Some(false) => {}
                None => is_answered = false,
            }
        }
        let reason = if is_answered {
            CephReason::SecondDomainDown
        } else {
            CephReason::AwaitingStopCheck
        };
        closed(None, reason)
    }

    /// The domains that may be exempt, in order: while OSDs of the current one are down it is the only one; else draining
    /// domains come first, and last those whose OSDs Ceph counts on no more.
    fn candidates(&self, current: &Disruptions) -> Vec<Domain> {
        let with_down = |wanted: fn(&OsdFacts) -> bool| {
            let down = self.down.iter().filter_map(|id| self.osds.get(id));
            let domains = down.filter(move |osd| wanted(osd)).filter_map(|osd| osd.domain.clone());
            domains.collect::<BTreeSet<_>>()
        };
        let all = with_down(|_| true);
        if let Disruptions::Closed { exempt: Some(exempt) } = current
            && all.contains(exempt)
        {
            return vec![Arc::clone(exempt)];
        }
        let draining = with_down(|osd| osd.is_draining);
        let (missed, others): (Vec<_>, Vec<_>) = {
            let missed = with_down(|osd| osd.is_in);
            all.difference(&draining)
                .cloned()
                .partition(|domain| missed.contains(domain))
        };
        draining.into_iter().chain(missed).chain(others).collect()
    }

    /// Whether the rest of a domain may go down beside all that is down; `None` until Ceph has answered that.
    fn may_stop_domain(&mut self, domain: &Domain, ceph: &CephFacts) -> Option<bool> {
        let mut together = self.down.clone();
        together.extend(members(self.osds, domain));
        let answer = ceph.safe_together.get(&together).copied();
        // Asked for as long as the decision rests on it: an answer holds only while it is asked for.
        self.questions.insert(together);
        answer
    }

    /// Why closed budgets may open although not all placement groups are clean: nothing lacks a copy, or a person's time limit
    /// has passed; and each domain as a whole could be lost.
    fn reopens(&mut self, ceph: &CephFacts, timeout_is_over: bool) -> Option<CephReason> {
        let reason = match ceph.pgs {
            PgHealth::Clean | PgHealth::Moving => CephReason::NothingDegraded,
            PgHealth::Degraded if timeout_is_over => CephReason::HealthCheckTimedOut,
            PgHealth::Degraded | PgHealth::Inactive => return None,
        };
        if !ceph.is_fresh {
            return None;
        }
        self.each_domain_may_stop(ceph).then_some(reason)
    }

    /// Whether open budgets stay open while not all placement groups are clean. They do while copies only move; where some may be
    /// missing, only while each domain as a whole could be lost.
    fn stays_open(&mut self, ceph: &CephFacts) -> bool {
        let is_whole = ceph.pgs <= PgHealth::Moving && ceph.doubt == Doubt::None;
        is_whole || (ceph.is_fresh && self.each_domain_may_stop(ceph))
    }

    /// What of closed budgets stays exempt once its OSDs are up: until it is refused, or a pool needs more copies than it was judged
    /// by.
    fn still_exempt(&mut self, exempt: Option<&Domain>, ceph: &CephFacts) -> Option<Domain> {
        let is_exempt =
            |domain: &&Domain| self.may_stop_domain(domain, ceph) != Some(false) && ceph.doubt != Doubt::PoolRaised;
        exempt.filter(is_exempt).cloned()
    }

    fn each_domain_may_stop(&mut self, ceph: &CephFacts) -> bool {
        // All are asked for, not only those up to the first refusal: the answers come together.
        let domains = domains(self.osds);
        let answers: Vec<Option<bool>> = domains
            .iter()
            .map(|domain| self.may_stop_domain(domain, ceph))
            .collect();
        // No domain is no proof.
        !answers.is_empty() && answers.iter().all(|answer| *answer == Some(true))
    }

    /// Hosts with such OSDs that are down and in. `noout` keeps no data of one that is out.
    fn hosts_with_down(&self, wanted: impl Fn(&OsdFacts) -> bool) -> BTreeSet<Arc<str>> {
        let down = self.down.iter().filter_map(|id| self.osds.get(id));
        down.filter(|osd| osd.is_in && wanted(osd))
            .filter_map(|osd| osd.host.clone())
            .collect()
    }
}

/// All failure domains.
pub fn domains(osds: &BTreeMap<OsdId, OsdFacts>) -> BTreeSet<Domain> {
    osds.values().filter_map(|osd| osd.domain.clone()).collect()
}

/// The OSDs of a failure domain.
pub fn members(osds: &BTreeMap<OsdId, OsdFacts>, domain: &Domain) -> impl Iterator<Item = OsdId> {
    let osds = osds.iter().filter(move |(_, osd)| osd.domain.as_ref() == Some(domain));
    osds.map(|(id, _)| *id)
}

fn open(reason: CephReason) -> (Disruptions, CephReason) {
    let excluded = BTreeSet::new();
    (Disruptions::Open { excluded }, reason)
}

fn closed(exempt: Option<Domain>, reason: CephReason) -> (Disruptions, CephReason) {
    (Disruptions::Closed { exempt }, reason)
}

#[cfg(test)]
mod tests;
