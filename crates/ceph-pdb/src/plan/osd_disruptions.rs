//! Which OSDs of a cluster may go down now.
//!
//! What Kubernetes shows closes; only Ceph opens. In doubt everything stays as closed as it is.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use crate::ceph::OsdId;

/// Name of a failure domain's bucket.
pub type Domain = Arc<str>;

/// An OSD.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct OsdFacts {
    /// Its failure domain, where that is known.
    pub domain: Option<Domain>,
    /// Its host's bucket, where that is known.
    pub host: Option<Arc<str>>,
    /// Ceph says that it is not up, or its pod is on its way out, missing or pending.
    pub is_down: bool,
    /// Ceph says that it is up.
    pub is_up_in_ceph: bool,
    /// Its node is being drained, or gone.
    pub is_draining: bool,
}

/// What Ceph has said since the last change of an OSD.
#[derive(Debug, Clone, Default)]
pub struct CephFacts {
    /// Its statistics are of now.
    pub is_fresh: bool,
    /// All placement groups are clean.
    pub is_clean: bool,
    /// Some placement group takes no requests.
    pub has_inactive: bool,
    /// Some placement group lacks a copy, or takes no requests.
    pub lacks_redundancy: bool,
    /// Whether these OSDs may be down together (`osd ok-to-stop`), of the same statistics. Pools that cannot lose a domain even
    /// when healthy are left out.
    pub safe_together: BTreeMap<BTreeSet<OsdId>, bool>,
}

/// What the budgets are now.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Present {
    /// One OSD may go, whichever.
    Open,
    /// None may go, but those of one domain.
    Closed {
        /// That domain.
        exempt: Option<Domain>,
    },
}

/// What the budgets are to be.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Disruptions {
    /// One OSD may go, whichever.
    Open {
        /// Those that are down without harm: a budget that counted them would allow nothing.
        excluded: BTreeSet<OsdId>,
    },
    /// None may go, but those of one domain.
    Closed {
        /// That domain.
        exempt: Option<Domain>,
        /// Why.
        because: Because,
    },
}

/// Why nothing may go, or only a domain's OSDs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Because {
    /// OSDs are down, and Ceph has not said since then what that means.
    CephSilent,
    /// OSDs are down, and the statistics are older than that.
    StatisticsStale,
    /// Another question is under way.
    NotAnswered,
    /// OSDs of one domain are down, and its others may follow.
    DomainDown,
    /// OSDs are down, and no domain could follow without loss.
    SecondDomainDown,
    /// All OSDs are up, and placement groups have not recovered.
    Recovering,
}

/// What follows.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Decision {
    /// What the budgets are to be.
    pub disruptions: Disruptions,
    /// What Ceph is to be asked: whether these may be down together.
    pub questions: BTreeSet<BTreeSet<OsdId>>,
    /// The hosts whose OSDs are to keep their data while their node is away.
    pub keep_in: BTreeSet<Arc<str>>,
}

/// Decides. `ceph` is absent until Ceph has answered since the last change; `timeout_is_over` is that of
/// `pgHealthCheckTimeout`, which a person sets so that an upgrade cannot hang.
pub fn decide(
    osds: &BTreeMap<OsdId, OsdFacts>,
    ceph: Option<&CephFacts>,
    present: &Present,
    timeout_is_over: bool,
) -> Decision {
    let down: BTreeSet<OsdId> = osds.iter().filter(|(_, osd)| osd.is_down).map(|(id, _)| *id).collect();
    let situation = Situation {
        osds,
        down,
        questions: BTreeSet::new(),
    };
    situation.decide(ceph, present, timeout_is_over)
}

struct Situation<'a> {
    osds: &'a BTreeMap<OsdId, OsdFacts>,
    down: BTreeSet<OsdId>,
    questions: BTreeSet<BTreeSet<OsdId>>,
}

impl Situation<'_> {
    fn decide(mut self, ceph: Option<&CephFacts>, present: &Present, timeout_is_over: bool) -> Decision {
        // While Ceph counts on an OSD whose pod is on its way out, "clean" still includes the copies that are about to go.
        let mut down = self.down.iter().filter_map(|id| self.osds.get(id));
        let knows_all_down = !down.any(|osd| osd.is_up_in_ceph);
        let is_settled = knows_all_down && ceph.is_some_and(|ceph| ceph.is_fresh && ceph.is_clean);
        let keep_in = if is_settled {
            BTreeSet::new()
        } else {
            self.drained_hosts()
        };
        let disruptions = match (ceph, present) {
            _ if is_settled => Disruptions::Open {
                excluded: self.down.clone(),
            },
            (None, _) if !self.down.is_empty() => closed(None, Because::CephSilent),
            (Some(ceph), _) if !self.down.is_empty() => self.around_a_domain(ceph, present),
            (_, Present::Open) => Disruptions::Open {
                excluded: BTreeSet::new(),
            },
            (Some(ceph), Present::Closed { .. }) if self.has_recovered(ceph, timeout_is_over) => Disruptions::Open {
                excluded: BTreeSet::new(),
            },
            (_, Present::Closed { exempt }) => closed(exempt.clone(), Because::Recovering),
        };
        Decision {
            disruptions,
            questions: self.questions,
            keep_in,
        }
    }

    /// OSDs are down, and not all placement groups are clean without them.
    fn around_a_domain(&mut self, ceph: &CephFacts, present: &Present) -> Disruptions {
        if !ceph.is_fresh {
            return closed(None, Because::StatisticsStale);
        }
        let mut is_answered = true;
        for domain in self.candidates(present) {
            match self.may_go(&domain, ceph) {
                Some(true) => return closed(Some(domain), Because::DomainDown),
                Some(false) => {}
                None => is_answered = false,
            }
        }
        let because = if is_answered {
            Because::SecondDomainDown
        } else {
            Because::NotAnswered
        };
        closed(None, because)
    }

    /// The domains that may be the one: while OSDs of the present one are down there is no other; else those that drain come
    /// first.
    fn candidates(&self, present: &Present) -> Vec<Domain> {
        let with_down = |wanted: fn(&OsdFacts) -> bool| {
            let down = self.down.iter().filter_map(|id| self.osds.get(id));
            let domains = down.filter(move |osd| wanted(osd)).filter_map(|osd| osd.domain.clone());
            domains.collect::<BTreeSet<_>>()
        };
        let all = with_down(|_| true);
        if let Present::Closed { exempt: Some(exempt) } = present
            && all.contains(exempt)
        {
            return vec![Arc::clone(exempt)];
        }
        let draining = with_down(|osd| osd.is_draining);
        let others: Vec<Domain> = all.difference(&draining).cloned().collect();
        draining.into_iter().chain(others).collect()
    }

    /// Whether the rest of a domain may go down beside all that is down.
    fn may_go(&mut self, domain: &Domain, ceph: &CephFacts) -> Option<bool> {
        let mut together = self.down.clone();
        together.extend(self.members(domain));
        let answer = ceph.safe_together.get(&together).copied();
        if answer.is_none() {
            self.questions.insert(together);
        }
        answer
    }

    fn members(&self, domain: &Domain) -> impl Iterator<Item = OsdId> {
        let osds = self.osds.iter();
        osds.filter(move |(_, osd)| osd.domain.as_ref() == Some(domain))
            .map(|(id, _)| *id)
    }

    /// Whether closed budgets may open although not all is clean: what is left is to be moved, not to be repaired.
    fn has_recovered(&mut self, ceph: &CephFacts, timeout_is_over: bool) -> bool {
        let is_intact = !ceph.lacks_redundancy || (timeout_is_over && !ceph.has_inactive);
        if !ceph.is_fresh || !is_intact {
            return false;
        }
        let domains: BTreeSet<Domain> = self.osds.values().filter_map(|osd| osd.domain.clone()).collect();
        let answers: Vec<Option<bool>> = domains.iter().map(|domain| self.may_go(domain, ceph)).collect();
        answers.iter().all(|answer| *answer == Some(true))
    }

    fn drained_hosts(&self) -> BTreeSet<Arc<str>> {
        let down = self.down.iter().filter_map(|id| self.osds.get(id));
        down.filter(|osd| osd.is_draining)
            .filter_map(|osd| osd.host.clone())
            .collect()
    }
}

fn closed(exempt: Option<Domain>, because: Because) -> Disruptions {
    Disruptions::Closed { exempt, because }
}

#[cfg(test)]
mod tests;
