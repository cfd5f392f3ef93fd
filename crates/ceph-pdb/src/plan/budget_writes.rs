//! From budgets as objects to budgets as steps see them, and from steps to writes.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use super::budget_steps::{Layout, OsdBudgets, Step, Target, next_step};
use super::daemon_budgets::{DaemonBudget, Daemons, Limit, MGR_BUDGET, MON_BUDGET, daemon_budgets};
use super::facts::OsdView;
use super::osd_disruptions::Disruptions;
use super::write::Write;
use crate::budgets::{OSD_BUDGET, OSD_BUDGET_BESIDE_FOREIGN, domain_budget_name, is_rooks_name};
use crate::ceph::OsdId;
use crate::snapshot::{BudgetFacts, BudgetForm, DefaultBudget, DomainKey};

type Budgets = BTreeMap<Arc<str>, BudgetFacts>;

/// A namespace's budgets as steps see them.
pub(super) struct BudgetView<'a> {
    all: &'a Budgets,
    /// Name of the budget of all OSDs but some.
    default_name: Arc<str>,
    /// Those of OSDs that are ours, or Rook's leftovers.
    pub osds: OsdBudgets,
    /// Names of domains' budgets.
    names: BTreeMap<DomainKey, &'a Arc<str>>,
    /// Budgets of OSDs that none of the above is: with another limit, or a second one of a domain.
    odd: Vec<&'a Arc<str>>,
    /// Budgets that are not ours, and have names that are needed or select OSDs.
    pub foreign: BTreeSet<&'a Arc<str>>,
}

impl<'a> BudgetView<'a> {
    pub(super) fn new(all: &'a Budgets) -> Self {
        let mut this = Self {
            all,
            default_name: OSD_BUDGET.into(),
            osds: OsdBudgets::default(),
            names: BTreeMap::new(),
            odd: Vec::new(),
            foreign: BTreeSet::new(),
        };
        // Whatever a foreign budget of that name selects, OSDs are not left without one: beside it evictions are refused at worst.
        if !this.is_free(OSD_BUDGET) {
            this.default_name = OSD_BUDGET_BESIDE_FOREIGN.into();
        }
        for (name, budget) in all {
            match &budget.form {
                None | Some(BudgetForm::Daemon(_)) => {
                    this.foreign.extend(Some(name).filter(|_| budget.selects_osds));
                }
                // The eviction API refuses each eviction of a pod that two budgets select.
                Some(_) if !is_usable(name, budget) => drop(this.foreign.insert(name)),
                Some(BudgetForm::Osds(default)) if *name == this.default_name => {
                    this.osds.default = Some(default.clone());
                }
                Some(BudgetForm::OsdsOfDomain {
                    max_unavailable: 0,
                    domain,
                }) if this.osds.domains.insert(domain.clone()) => drop(this.names.insert(domain.clone(), name)),
                Some(_) => this.odd.push(name),
            }
        }
        this
    }

    /// What the budgets allow now.
    pub(super) fn current(&self, osds: &OsdView) -> Disruptions {
        if let Some(DefaultBudget {
            max_unavailable: 1..,
            except_osds,
            ..
        }) = &self.osds.default
        {
            let excluded = except_osds.clone();
            return Disruptions::Open { excluded };
        }
        let is_covered = |id: OsdId, domain: Option<&DomainKey>| {
            let has = |domains: &BTreeSet<DomainKey>| domain.is_some_and(|domain| domains.contains(domain));
            let is_by_default = match &self.osds.default {
                Some(default) => !default.except_osds.contains(&id) && !has(&default.except_domains),
                // As Rook leaves them, all domains but one have a budget. Without any budget nothing is exempt.
                None => self.osds.domains.is_empty(),
            };
            is_by_default || has(&self.osds.domains)
        };
        let exempt = osds.labelled().filter(|(id, domain)| !is_covered(*id, domain.as_ref()));
        Disruptions::Closed {
            exempt: exempt.map(|(id, _)| id).collect(),
        }
    }

    /// The writes of the next step of the OSDs' budgets.
    pub(super) fn osd_writes(&mut self, disruptions: &Disruptions, osds: &OsdView, layout: Layout) -> Vec<Write> {
        let default_name = Arc::clone(&self.default_name);
        let mut domains = osds.labelled_domains();
        domains.retain(|key| self.names.contains_key(key) || self.is_free(&domain_budget_name(key)));
        if !self.is_free(&default_name) {
            return Vec::new();
        }
        let (target, layout) = target(disruptions, osds, layout);
        let mut writes: Vec<Write> = match next_step(&self.osds, &target, &domains, layout) {
            Some(Step::WriteDefault(default)) => vec![self.write(&default_name, BudgetForm::Osds(default))],
            Some(Step::AddDomains(domains)) => domains.into_iter().map(|domain| self.add(domain)).collect(),
            Some(Step::RemoveDomains(domains)) => {
                let names = domains.iter().filter_map(|domain| self.names.get(domain));
                names.map(|name| self.delete(name)).collect()
            }
            None => self.odd.iter().map(|name| self.delete(name)).collect(),
        };
        // Those that are right but for their labels, owner or eviction policy become ours.
        let written: BTreeSet<Arc<str>> = writes.iter().filter_map(|write| write.budget().cloned()).collect();
        let kept = self.names.values().copied().chain([&default_name]);
        writes.extend(kept.filter(|name| !written.contains(*name)).filter_map(|name| {
            let budget = self.all.get(name).filter(|budget| !budget.is_exact)?;
            Some(self.write(name, budget.form.clone()?))
        }));
        writes
    }

    /// The writes of all other daemons' budgets.
    pub(super) fn daemon_writes(&mut self, daemons: &Daemons, is_ceph_answering: bool) -> Vec<Write> {
        let mut wanted = daemon_budgets(daemons);
        if !is_ceph_answering {
            self.keep_monitors(&mut wanted);
        }
        let mut writes = Vec::new();
        for budget in &wanted {
            let form = BudgetForm::Daemon(budget.clone());
            let existing = self.all.get(budget.name.as_str());
            let is_right = existing.is_some_and(|existing| existing.is_exact && existing.form.as_ref() == Some(&form));
            if self.is_free(&budget.name) && !is_right {
                writes.push(self.write(&budget.name.as_str().into(), form));
            }
        }
        // While a kind cannot be listed, a daemon that is not named may exist.
        let surplus = self.all.iter().filter(|(name, budget)| {
            let is_wanted = wanted.iter().any(|wanted| *wanted.name == ***name);
            is_usable(name, budget) && matches!(budget.form, Some(BudgetForm::Daemon(_))) && !is_wanted
        });
        for (name, budget) in surplus.filter(|_| daemons.unknown.is_empty()) {
            // A Rook operator that runs keeps this one itself.
            let is_rooks = **name == *MGR_BUDGET && daemons.mgrs.is_none();
            match (is_rooks, budget.is_ours) {
                (false, _) => writes.push(delete(name, budget, None)),
                (true, true) => writes.push(release(name, budget)),
                (true, false) => {}
            }
        }
        writes
    }

    /// Gives ours back to Rook. Those of OSDs stay as they are until Rook has written its own `rook-ceph-osd`, which never allows
    /// nothing: in a drain Rook takes over domains' budgets that have its names, and deletes that one, and a domain whose budget we
    /// deleted would be without any. Then all others go, for Rook deletes only those that it would have named so itself.
    pub(super) fn hand_back(&self) -> Vec<Write> {
        let ours = || self.all.iter().filter(|(_, budget)| budget.is_ours);
        let (of_osds, others): (Vec<_>, Vec<_>) = ours().partition(|(_, budget)| {
            matches!(budget.form, Some(BudgetForm::Osds(_) | BudgetForm::OsdsOfDomain { .. }))
        });
        let mut writes: Vec<Write> = others.into_iter().map(|(name, budget)| release(name, budget)).collect();
        let default = self.all.get(OSD_BUDGET).and_then(|budget| budget.form.as_ref());
        let is_rooks = |form: &BudgetForm| matches!(form, BudgetForm::Osds(default) if default.max_unavailable > 0 && default.except_domains.is_empty());
        if default.is_some_and(is_rooks) {
            let default: Arc<str> = OSD_BUDGET.into();
            let surplus = of_osds.iter().filter(|(name, _)| **name != default);
            let surplus: Vec<Write> = surplus
                .map(|(name, budget)| delete(name, budget, Some(&default)))
                .collect();
            if surplus.is_empty() {
                writes.extend(of_osds.into_iter().map(|(name, budget)| release(name, budget)));
            }
            writes.extend(surplus);
        }
        writes
    }

    /// How many monitors may go is not raised while Ceph does not say who is in the quorum.
    fn keep_monitors(&self, wanted: &mut [DaemonBudget]) {
        let Some(Some(BudgetForm::Daemon(existing))) = self.all.get(MON_BUDGET).map(|budget| &budget.form) else {
            return;
        };
        for budget in wanted.iter_mut().filter(|budget| budget.name == MON_BUDGET) {
            if let (Limit::MaxUnavailable(wanted), Limit::MaxUnavailable(existing)) =
                (&mut budget.limit, existing.limit)
            {
                *wanted = existing.min(*wanted);
            }
        }
    }

    /// Whether a name is not taken by somebody else's budget; one that is taken is reported.
    fn is_free(&mut self, name: &str) -> bool {
        let taken = self
            .all
            .get_key_value(name)
            .filter(|(name, budget)| !is_usable(name, budget));
        self.foreign.extend(taken.map(|(name, _)| name));
        taken.is_none()
    }

    /// A domain's own budget, under the name that an odd one of it has.
    fn add(&self, domain: DomainKey) -> Write {
        let is_of_domain = |name: &&&Arc<str>| {
            let form = self.all.get(**name).and_then(|budget| budget.form.as_ref());
            matches!(form, Some(BudgetForm::OsdsOfDomain { domain: of, .. }) if *of == domain)
        };
        let odd = self.odd.iter().find(is_of_domain);
        let name = odd.map_or_else(|| domain_budget_name(&domain).into(), |name| Arc::clone(name));
        let max_unavailable = 0;
        self.write(
            &name,
            BudgetForm::OsdsOfDomain {
                max_unavailable,
                domain,
            },
        )
    }

    fn write(&self, name: &Arc<str>, form: BudgetForm) -> Write {
        let existing = self.all.get(name);
        Write::WriteBudget {
            name: Arc::clone(name),
            resource_version: existing.map(|existing| Arc::clone(&existing.resource_version)),
            form,
        }
    }

    /// Deletes a budget of OSDs, which the default covers.
    fn delete(&self, name: &Arc<str>) -> Write {
        delete(name, &self.all[name], Some(&self.default_name))
    }
}

/// Ours, or left behind by Rook's own manager.
fn is_usable(name: &str, budget: &BudgetFacts) -> bool {
    let is_rooks = || budget.form.as_ref().is_some_and(|form| is_rooks_name(name, form));
    budget.is_ours || is_rooks()
}

/// The decision in labels. Where no domain's label says exactly what is exempt, its OSDs are named by number, beside one budget for
/// all: a domain's own would still select them.
fn target(disruptions: &Disruptions, osds: &OsdView, layout: Layout) -> (Target, Layout) {
    let exempt = match disruptions {
        Disruptions::Open { excluded } => {
            let excluded = excluded.clone();
            return (Target::Open { excluded }, layout);
        }
        Disruptions::Closed { exempt } => exempt,
    };
    let mut by_domain: BTreeMap<DomainKey, BTreeSet<OsdId>> = BTreeMap::new();
    let mut exempt_osds = BTreeSet::new();
    for (id, domain) in osds.labelled() {
        if exempt.contains(&id) {
            exempt_osds.insert(id);
        }
        if let Some(domain) = domain {
            by_domain.entry(domain).or_default().insert(id);
        }
    }
    let labelled = by_domain.into_iter().find(|(_, osds)| *osds == exempt_osds);
    let exempt = labelled.map(|(domain, _)| domain);
    if exempt.is_some() || exempt_osds.is_empty() {
        exempt_osds.clear();
        return (Target::Closed { exempt, exempt_osds }, layout);
    }
    (Target::Closed { exempt, exempt_osds }, Layout::Single)
}

fn delete(name: &Arc<str>, budget: &BudgetFacts, rests_on: Option<&Arc<str>>) -> Write {
    Write::DeleteBudget {
        name: Arc::clone(name),
        uid: Arc::clone(&budget.uid),
        resource_version: Arc::clone(&budget.resource_version),
        rests_on: rests_on.cloned(),
    }
}

fn release(name: &Arc<str>, budget: &BudgetFacts) -> Write {
    Write::ReleaseBudget {
        name: Arc::clone(name),
        resource_version: Arc::clone(&budget.resource_version),
    }
}
