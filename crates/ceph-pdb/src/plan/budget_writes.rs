//! From budgets as objects to budgets as steps see them, and from steps to writes.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use super::budget_steps::{DefaultBudget, DomainKey, Layout, OsdBudgets, Step, Target, next_step};
use super::daemon_budgets::{DaemonBudget, Daemons, Limit, MGR_BUDGET, MON_BUDGET, daemon_budgets};
use super::facts::OsdView;
use super::osd_disruptions::{CurrentDisruptions, Disruptions, members};
use super::write::Write;
use crate::budgets::{OSD_BUDGET, domain_budget_name, is_rooks_name};
use crate::ceph::OsdId;
use crate::snapshot::{BudgetFacts, BudgetForm};

type Budgets = BTreeMap<Arc<str>, BudgetFacts>;

/// A namespace's budgets as steps see them.
pub(super) struct BudgetView<'a> {
    all: &'a Budgets,
    /// Those of OSDs that are ours, or Rook's leftovers.
    pub osds: OsdBudgets,
    /// Names of domains' budgets.
    names: BTreeMap<DomainKey, &'a Arc<str>>,
    /// Budgets of domains that none of the above is: with another limit, or a second one of a domain.
    odd: Vec<&'a Arc<str>>,
    /// Budgets that are not ours, and have names that are needed or select OSDs.
    pub foreign: BTreeSet<&'a Arc<str>>,
}

impl<'a> BudgetView<'a> {
    pub(super) fn new(all: &'a Budgets) -> Self {
        let mut this = Self {
            all,
            osds: OsdBudgets::default(),
            names: BTreeMap::new(),
            odd: Vec::new(),
            foreign: BTreeSet::new(),
        };
        for (name, budget) in all {
            if !is_usable(name, budget) {
                // The eviction API refuses each eviction of a pod that two budgets select.
                if matches!(
                    budget.form,
                    Some(BudgetForm::Osds { .. } | BudgetForm::OsdsOfDomain { .. })
                ) {
                    this.foreign.insert(name);
                }
                continue;
            }
            match &budget.form {
                Some(BudgetForm::Osds {
                    max_unavailable,
                    except_domains,
                    except_osds,
                }) if **name == *OSD_BUDGET => {
                    let domains = except_domains.iter().flat_map(|(domain_type, domains)| {
                        domains.iter().map(|domain| (*domain_type, Arc::clone(domain)))
                    });
                    this.osds.default = Some(DefaultBudget {
                        max_unavailable: *max_unavailable,
                        except_domains: domains.collect(),
                        except_osds: except_osds.clone(),
                    });
                }
                Some(BudgetForm::OsdsOfDomain {
                    max_unavailable,
                    domain_type,
                    domain,
                }) => {
                    let key = (*domain_type, Arc::clone(domain));
                    if *max_unavailable == 0 && this.osds.domains.insert(key.clone()) {
                        this.names.insert(key, name);
                    } else {
                        this.odd.push(name);
                    }
                }
                _ => {}
            }
        }
        this
    }

    /// What the budgets allow now.
    pub(super) fn current(&self, osds: &OsdView) -> CurrentDisruptions {
        let labelled = osds.labelled_domains();
        let without = match &self.osds.default {
            Some(default) if default.max_unavailable > 0 => return CurrentDisruptions::Open,
            Some(default) => default.except_domains.clone(),
            // As Rook leaves them: all domains but one have a budget.
            None if self.osds.domains.is_empty() => BTreeSet::new(),
            None => labelled.clone(),
        };
        let mut exempt = without
            .iter()
            .filter(|key| labelled.contains(*key) && !self.osds.domains.contains(*key));
        let by_label = exempt.next().filter(|_| exempt.next().is_none());
        let by_number = || {
            let first = self.osds.default.as_ref()?.except_osds.first()?;
            osds.osds.get(first)?.domain.clone()
        };
        CurrentDisruptions::Closed {
            exempt: by_label.map(|(_, domain)| Arc::clone(domain)).or_else(by_number),
        }
    }

    /// The writes of the next step of the OSDs' budgets.
    pub(super) fn osd_writes(&mut self, disruptions: &Disruptions, osds: &OsdView, layout: Layout) -> Vec<Write> {
        let (target, layout) = target(disruptions, osds, layout);
        let mut domains = osds.labelled_domains();
        domains.retain(|key| self.names.contains_key(key) || self.is_free(&domain_budget_name(key)));
        if !self.is_free(OSD_BUDGET) {
            return Vec::new();
        }
        let step = next_step(&self.osds, &target, &domains, layout);
        let (mut writes, removed) = match step {
            Some(Step::WriteDefault(default)) => (vec![self.write(OSD_BUDGET.into(), default_form(default))], None),
            Some(Step::AddDomains(keys)) => {
                let writes = keys.into_iter().map(|key| {
                    let odd = self.odd.iter().find(|name| self.is_of_domain(name, &key));
                    let name = odd.map_or_else(|| domain_budget_name(&key).into(), |name| Arc::clone(name));
                    self.write(name, domain_form(&key))
                });
                (writes.collect(), None)
            }
            Some(Step::RemoveDomain(key)) => {
                let name = self.names.get(&key).copied();
                (name.into_iter().filter_map(|name| self.delete(name)).collect(), name)
            }
            None => {
                let odd = self.odd.iter().filter_map(|name| self.delete(name));
                (odd.collect(), None)
            }
        };
        let is_written = writes.iter().any(|write| is_of(write, OSD_BUDGET));
        if let (false, Some(default)) = (is_written, &self.osds.default) {
            writes.extend(self.mend(&OSD_BUDGET.into(), default_form(default.clone())));
        }
        for (key, name) in self.names.iter().filter(|(_, name)| Some(**name) != removed) {
            writes.extend(self.mend(name, domain_form(key)));
        }
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
            if !self.is_free(&budget.name) {
                continue;
            }
            let form = BudgetForm::Daemon(budget.clone());
            let existing = self.all.get(budget.name.as_str());
            if existing.is_none_or(|existing| !existing.is_exact || existing.form.as_ref() != Some(&form)) {
                writes.push(self.write(budget.name.as_str().into(), form));
            }
        }
        // While a kind cannot be listed, a daemon that is not named may exist.
        let surplus = self.all.iter().filter(|(name, budget)| {
            let is_wanted = wanted.iter().any(|wanted| *wanted.name == ***name);
            budget.is_ours && matches!(budget.form, Some(BudgetForm::Daemon(_))) && !is_wanted
        });
        for (name, budget) in surplus.filter(|_| daemons.unknown.is_empty()) {
            if **name == *MGR_BUDGET {
                // A Rook operator runs again, and keeps this one itself.
                writes.push(release(name, budget));
            } else {
                writes.extend(self.delete_alone(name));
            }
        }
        writes
    }

    /// Gives all of ours back to Rook.
    pub(super) fn release_all(&self) -> Vec<Write> {
        let ours = self.all.iter().filter(|(_, budget)| budget.is_ours);
        ours.map(|(name, budget)| release(name, budget)).collect()
    }

    /// How many monitors may go is not raised while Ceph does not say who is in the quorum.
    fn keep_monitors(&self, wanted: &mut [DaemonBudget]) {
        let existing = self.all.get(MON_BUDGET).and_then(|budget| match &budget.form {
            Some(BudgetForm::Daemon(budget)) => Some(budget.limit),
            _ => None,
        });
        for budget in wanted.iter_mut().filter(|budget| budget.name == MON_BUDGET) {
            if let (Limit::MaxUnavailable(wanted), Some(Limit::MaxUnavailable(existing))) =
                (&mut budget.limit, existing)
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

    fn is_of_domain(&self, name: &Arc<str>, (wanted_type, wanted): &DomainKey) -> bool {
        let form = self.all.get(name).and_then(|budget| budget.form.as_ref());
        matches!(form, Some(BudgetForm::OsdsOfDomain { domain_type, domain, .. }) if (domain_type, domain) == (wanted_type, wanted))
    }

    fn write(&self, name: Arc<str>, form: BudgetForm) -> Write {
        match self.all.get(&name) {
            Some(existing) => Write::PatchBudget {
                name,
                resource_version: Arc::clone(&existing.resource_version),
                form,
            },
            None => Write::CreateBudget { name, form },
        }
    }

    /// Makes a budget ours that is right but for its labels, owner or eviction policy.
    fn mend(&self, name: &Arc<str>, form: BudgetForm) -> Option<Write> {
        let is_exact = self.all.get(name)?.is_exact;
        (!is_exact).then(|| self.write(Arc::clone(name), form))
    }

    /// Deletes a domain's budget, which the default covers.
    fn delete(&self, name: &Arc<str>) -> Option<Write> {
        let default = self.all.get(OSD_BUDGET)?;
        let default = (OSD_BUDGET.into(), Arc::clone(&default.resource_version));
        let budget = self.all.get(name)?;
        Some(delete(name, budget, Some(default)))
    }

    fn delete_alone(&self, name: &Arc<str>) -> Option<Write> {
        self.all.get(name).map(|budget| delete(name, budget, None))
    }
}

/// Ours, or left behind by Rook's own manager.
fn is_usable(name: &str, budget: &BudgetFacts) -> bool {
    let is_rooks = || budget.form.as_ref().is_some_and(|form| is_rooks_name(name, form));
    budget.is_ours || is_rooks()
}

/// The decision in labels. Where they do not say what CRUSH does of the exempt domain, its OSDs are named by number, beside one
/// budget for all: a domain's own would still select them.
fn target(disruptions: &Disruptions, osds: &OsdView, layout: Layout) -> (Target, Layout) {
    let exempt = match disruptions {
        Disruptions::Open { excluded } => {
            let excluded = excluded.clone();
            return (Target::Open { excluded }, layout);
        }
        Disruptions::Closed { exempt } => exempt.as_ref(),
    };
    let Some(exempt) = exempt else {
        let exempt_osds = BTreeSet::new();
        return (
            Target::Closed {
                exempt: None,
                exempt_osds,
            },
            layout,
        );
    };
    let members: BTreeSet<OsdId> = members(&osds.osds, exempt).collect();
    let is_labelled = |id: &OsdId| osds.labels.get(id).is_none_or(|label| label.as_ref() == Some(exempt));
    let mut others = osds
        .labels
        .iter()
        .filter(|(id, _)| osds.osds.contains_key(id) && !members.contains(id));
    if members.iter().all(is_labelled) && others.all(|(_, label)| label.as_ref() != Some(exempt)) {
        let exempt = Some((osds.domain_type, Arc::clone(exempt)));
        let exempt_osds = BTreeSet::new();
        return (Target::Closed { exempt, exempt_osds }, layout);
    }
    let target = Target::Closed {
        exempt: None,
        exempt_osds: members,
    };
    (target, Layout::Single)
}

fn default_form(default: DefaultBudget) -> BudgetForm {
    let mut except_domains: BTreeMap<_, BTreeSet<_>> = BTreeMap::new();
    for (domain_type, domain) in default.except_domains {
        except_domains.entry(domain_type).or_default().insert(domain);
    }
    BudgetForm::Osds {
        max_unavailable: default.max_unavailable,
        except_domains,
        except_osds: default.except_osds,
    }
}

fn domain_form((domain_type, domain): &DomainKey) -> BudgetForm {
    BudgetForm::OsdsOfDomain {
        max_unavailable: 0,
        domain_type: *domain_type,
        domain: Arc::clone(domain),
    }
}

fn delete(name: &Arc<str>, budget: &BudgetFacts, rests_on: Option<(Arc<str>, Arc<str>)>) -> Write {
    Write::DeleteBudget {
        name: Arc::clone(name),
        uid: Arc::clone(&budget.uid),
        resource_version: Arc::clone(&budget.resource_version),
        rests_on,
    }
}

fn release(name: &Arc<str>, budget: &BudgetFacts) -> Write {
    Write::ReleaseBudget {
        name: Arc::clone(name),
        resource_version: Arc::clone(&budget.resource_version),
    }
}

fn is_of(write: &Write, budget: &str) -> bool {
    match write {
        Write::CreateBudget { name, .. } | Write::PatchBudget { name, .. } => **name == *budget,
        _ => false,
    }
}
