//! Which OSDs of a cluster may go down now.
//!
//! Pods and nodes are enough to close budgets; opening them needs Ceph. In doubt they stay as closed as they are.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use nodeward_api::reason::CephReason;

use crate::ceph::OsdId;
use crate::ceph::freshness::Doubt;
use crate::snapshot::NodeName;

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
    /// The node that it is on, or was on last, where that is known.
    pub node: Option<NodeName>,
    /// Ceph says that it is not up, or its pod is on its way out, missing or pending.
    pub is_down: bool,
    /// Ceph says that it is up.
    pub is_up_in_ceph: bool,
    /// Ceph counts on its data; not once it is marked out.
    pub is_in: bool,
    /// Its node is being drained, or gone.
    pub is_draining: bool,
    /// It runs on under a pod that nobody ends: it is not down, and to evict it means nothing.
    pub is_abandoned: bool,
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

/// What Ceph has said last.
#[derive(Debug, Clone, Default)]
pub struct CephFacts {
    /// It was asked after the last change of an OSD's pod or node.
    pub is_current: bool,
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
        /// OSDs that are down without harm, or abandoned: a budget that counted their pods would allow nothing.
        excluded: BTreeSet<OsdId>,
    },
    /// None, except some.
    Closed {
        /// All of these may go, one after the other or together.
        exempt: BTreeSet<OsdId>,
    },
}

impl Disruptions {
    /// Whether none but these may be evicted.
    pub fn allows_no_more_than(&self, osds: &BTreeSet<OsdId>) -> bool {
        match self {
            Self::Open { .. } => false,
            Self::Closed { exempt } => exempt.is_subset(osds),
        }
    }
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

/// Decides. `ceph` is absent while Ceph does not answer; `timeout_is_over` is that of `pgHealthCheckTimeout`, which a person sets
/// so that an upgrade cannot hang.
pub fn decide(
    osds: &BTreeMap<OsdId, OsdFacts>,
    ceph: Option<&CephFacts>,
    current: &Disruptions,
    timeout_is_over: bool,
) -> Decision {
    let none = BTreeSet::new();
    let situation = Situation {
        osds,
        down: ids(osds, |osd| osd.is_down),
        abandoned: ids(osds, |osd| osd.is_abandoned),
        exempt: match current {
            Disruptions::Closed { exempt } => exempt,
            Disruptions::Open { .. } => &none,
        },
        questions: BTreeSet::new(),
    };
    situation.decide(ceph, current, timeout_is_over)
}

struct Situation<'a> {
    osds: &'a BTreeMap<OsdId, OsdFacts>,
    down: BTreeSet<OsdId>,
    abandoned: BTreeSet<OsdId>,
    /// What closed budgets exempt now.
    exempt: &'a BTreeSet<OsdId>,
    questions: BTreeSet<BTreeSet<OsdId>>,
}

impl Situation<'_> {
    fn decide(mut self, last: Option<&CephFacts>, current: &Disruptions, timeout_is_over: bool) -> Decision {
        let ceph = last.filter(|ceph| ceph.is_current);
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
            _ if is_settled && all_up => self.open(CephReason::AllClean),
            _ if is_settled => self.open(CephReason::DownOsdsExcluded),
            _ if !all_up => match ceph.filter(|ceph| ceph.is_fresh) {
                Some(ceph) => self.around_what_is_down(ceph),
                None => self.as_agreed(last),
            },
            (None, Disruptions::Open { .. }) => self.open(CephReason::AllUp),
            (None, Disruptions::Closed { .. }) => closed(self.still_exempt(last), CephReason::Recovering),
            (Some(ceph), Disruptions::Open { .. }) if self.stays_open(ceph) => self.open(CephReason::AllUp),
            (Some(_), Disruptions::Open { .. }) => closed(BTreeSet::new(), CephReason::Recovering),
            (Some(ceph), Disruptions::Closed { .. }) => match self.reopens(ceph, timeout_is_over) {
                Some(reason) => self.open(reason),
                None => closed(self.still_exempt(last), CephReason::Recovering),
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

    fn open(&self, reason: CephReason) -> (Disruptions, CephReason) {
        let excluded = &self.down | &self.abandoned;
        (Disruptions::Open { excluded }, reason)
    }

    /// OSDs are down, and not all placement groups are clean without them.
    fn around_what_is_down(&mut self, ceph: &CephFacts) -> (Disruptions, CephReason) {
        for exempt in self.tries() {
            let exempt = &exempt - &self.abandoned;
            match self.may_stop(&exempt, ceph) {
                Some(true) => return closed(exempt, CephReason::DomainDown),
                Some(false) => {}
                None => return closed(BTreeSet::new(), CephReason::AwaitingStopCheck),
            }
        }
        closed(BTreeSet::new(), CephReason::SecondDomainDown)
    }

    /// Statistics are older than what is down.
    fn as_agreed(&mut self, last: Option<&CephFacts>) -> (Disruptions, CephReason) {
        let exempt = self.still_exempt(last);
        let reason = match last {
            _ if !exempt.is_empty() => CephReason::DomainDown,
            Some(ceph) if ceph.is_current => CephReason::StatisticsStale,
            Some(_) | None => CephReason::CephNotAsked,
        };
        closed(exempt, reason)
    }

    /// What of closed budgets stays exempt while nothing new can be asked for. An exemption holds while only OSDs that it was asked for
    /// go down and come up: the set that is asked about is the same then, and its answer still counts. Whatever else has happened,
    /// or may have where Ceph was not asked before, ends it.
    fn still_exempt(&mut self, last: Option<&CephFacts>) -> BTreeSet<OsdId> {
        let exempt = self.exempt.clone();
        let asked_of = last.filter(|_| !exempt.is_empty());
        if asked_of.and_then(|ceph| self.may_stop(&exempt, ceph)) == Some(true) {
            exempt
        } else {
            BTreeSet::new()
        }
    }

    /// What may be exempt, in order. Of a node that is drained: all that its domains have and it has, or else what it has alone. Without
    /// such a node: the domain of an OSD that is down.
    fn tries(&self) -> Vec<BTreeSet<OsdId>> {
        let of_domains = |domains: &BTreeSet<&Domain>| {
            ids(self.osds, |osd| {
                osd.domain.as_ref().is_some_and(|domain| domains.contains(domain))
            })
        };
        if let Some(anchor) = self.anchor() {
            let on_node = ids(self.osds, |osd| osd.node.as_ref() == Some(anchor));
            let domains = on_node.iter().filter_map(|id| self.osds.get(id)?.domain.as_ref());
            let whole = &of_domains(&domains.collect()) | &on_node;
            let mut tries = vec![whole];
            // Of a node whose OSDs are all down, nothing is left to go.
            tries.extend(Some(on_node).filter(|on_node| !on_node.is_subset(&self.down)));
            return tries;
        }
        let down = self.first_down(|osd| osd.domain.as_ref());
        down.map(|domain| of_domains(&BTreeSet::from([domain])))
            .into_iter()
            .collect()
    }

    /// The node whose drain goes on: one that is drained and has an OSD down. Others that are drained have to wait.
    fn anchor(&self) -> Option<&NodeName> {
        self.first_down(|osd| osd.node.as_ref().filter(|_| osd.is_draining))
    }

    /// Of what OSDs that are down are on or in, the first by name: before others what is exempt already, and last what Ceph counts
    /// on no more.
    fn first_down<'b, T: Ord>(&'b self, of: impl Fn(&'b OsdFacts) -> Option<&'b T>) -> Option<&'b T> {
        let down = self.down.iter().filter_map(|id| Some((id, self.osds.get(id)?)));
        let ordered = down.filter_map(|(id, osd)| Some((!self.exempt.contains(id), !osd.is_in, of(osd)?)));
        ordered.min().map(|(_, _, found)| found)
    }

    /// Whether these may go down beside all that is down; `None` until Ceph has answered that.
    fn may_stop(&mut self, osds: &BTreeSet<OsdId>, ceph: &CephFacts) -> Option<bool> {
        let together = &self.down | osds;
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

    fn each_domain_may_stop(&mut self, ceph: &CephFacts) -> bool {
        let mut sets: Vec<BTreeSet<OsdId>> = domains(self.osds)
            .iter()
            .map(|domain| members(self.osds, domain))
            .collect();
        // Outside of any domain each goes alone.
        let outside = ids(self.osds, |osd| osd.domain.is_none());
        sets.extend(outside.into_iter().map(|id| BTreeSet::from([id])));
        // All are asked for, not only those up to the first refusal: the answers come together.
        let answers: Vec<Option<bool>> = sets.iter().map(|osds| self.may_stop(osds, ceph)).collect();
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
pub fn members(osds: &BTreeMap<OsdId, OsdFacts>, domain: &Domain) -> BTreeSet<OsdId> {
    ids(osds, |osd| osd.domain.as_ref() == Some(domain))
}

fn ids(osds: &BTreeMap<OsdId, OsdFacts>, wanted: impl Fn(&OsdFacts) -> bool) -> BTreeSet<OsdId> {
    let wanted = osds.iter().filter(|(_, osd)| wanted(osd));
    wanted.map(|(id, _)| *id).collect()
}

fn closed(exempt: BTreeSet<OsdId>, reason: CephReason) -> (Disruptions, CephReason) {
    (Disruptions::Closed { exempt }, reason)
}

#[cfg(test)]
mod tests;
