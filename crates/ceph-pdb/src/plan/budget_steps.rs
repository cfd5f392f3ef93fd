//! From the budgets as they are to those that are to be, step by step, so that no OSD is ever without one.
//!
//! The eviction API answers 500 for a pod that two budgets select, and lets one go that none selects. So the default budget is
//! narrowed only by what another one already covers, and a domain's budget goes only once the default covers it again. Each step
//! takes effect at once: the API refuses evictions while the disruption controller has not seen a change.

use std::collections::BTreeSet;

use crate::ceph::OsdId;
use crate::snapshot::{DefaultBudget, DomainKey};

/// So many domains get their own budget before the default is narrowed by them, and are covered by the default before theirs go.
/// Meanwhile two budgets select their OSDs, and the API answers evictions of these with 500: more at once take fewer steps, but
/// more evictions meet them.
pub const BATCH: usize = 8;

/// The budgets of a cluster's OSDs as they are.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct OsdBudgets {
    /// `rook-ceph-osd`.
    pub default: Option<DefaultBudget>,
    /// The domains with a budget of their own that allows nothing.
    pub domains: BTreeSet<DomainKey>,
}

/// What the budgets are to be.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Target {
    /// One OSD may be evicted, these left out.
    Open {
        /// Down without harm.
        excluded: BTreeSet<OsdId>,
    },
    /// None may be evicted, except those of one domain.
    Closed {
        /// The domain, by label.
        exempt: Option<DomainKey>,
        /// Its OSDs by number, where labels do not say what CRUSH does.
        exempt_osds: BTreeSet<OsdId>,
    },
}

/// A step of one or several writes.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Step {
    /// `rook-ceph-osd` becomes this.
    WriteDefault(DefaultBudget),
    /// These get a budget of their own.
    AddDomains(BTreeSet<DomainKey>),
    /// Theirs are deleted.
    RemoveDomains(BTreeSet<DomainKey>),
}

/// Whether closed domains get a budget each, as Rook's do.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Layout {
    /// One budget for all.
    Single,
    /// One for each domain.
    PerDomain,
}

/// The next step to what the budgets are to be; none once they are. `all` are the domains that have OSDs.
pub fn next_step(now: &OsdBudgets, target: &Target, all: &BTreeSet<DomainKey>, layout: Layout) -> Option<Step> {
    match target {
        Target::Open { excluded } => open(now, excluded),
        Target::Closed { exempt, exempt_osds } => close(now, exempt.as_ref(), exempt_osds, all, layout),
    }
}

fn close(
    now: &OsdBudgets,
    exempt: Option<&DomainKey>,
    exempt_osds: &BTreeSet<OsdId>,
    all: &BTreeSet<DomainKey>,
    layout: Layout,
) -> Option<Step> {
    let own: BTreeSet<DomainKey> = match layout {
        Layout::Single => BTreeSet::new(),
        Layout::PerDomain => all.iter().filter(|domain| Some(*domain) != exempt).cloned().collect(),
    };
    let narrowed_by = |covered: &BTreeSet<DomainKey>| DefaultBudget {
        max_unavailable: 0,
        except_domains: covered.iter().chain(exempt).cloned().collect(),
        except_osds: exempt_osds.clone(),
    };
    // What has a budget of its own, and keeps it.
    let covered: BTreeSet<DomainKey> = now.domains.intersection(&own).cloned().collect();
    let is_closed = now.default.as_ref().is_some_and(|default| {
        let excepted = &default.except_domains;
        let is_covered = |domain: &DomainKey| covered.contains(domain) || Some(domain) == exempt;
        default.max_unavailable == 0 && default.except_osds.is_subset(exempt_osds) && excepted.iter().all(is_covered)
    });
    if !is_closed {
        // What the default leaves out already, and another one covers, need not be selected twice for a moment. Where there is
        // no default, that is all that another one covers.
        let kept = match &now.default {
            Some(default) => default.except_domains.intersection(&covered).cloned().collect(),
            None => covered,
        };
        return Some(Step::WriteDefault(narrowed_by(&kept)));
    }
    let surplus = batch(now.domains.difference(&own));
    if !surplus.is_empty() {
        return Some(Step::RemoveDomains(surplus));
    }
    let narrowed = narrowed_by(&covered);
    if now.default.as_ref() != Some(&narrowed) {
        return Some(Step::WriteDefault(narrowed));
    }
    let missing = batch(own.difference(&now.domains));
    (!missing.is_empty()).then_some(Step::AddDomains(missing))
}

fn open(now: &OsdBudgets, excluded: &BTreeSet<OsdId>) -> Option<Step> {
    let opened = DefaultBudget {
        max_unavailable: 1,
        except_domains: BTreeSet::new(),
        except_osds: excluded.clone(),
    };
    if now.domains.is_empty() {
        return (now.default.as_ref() != Some(&opened)).then_some(Step::WriteDefault(opened));
    }
    // Open beside a domain's own budget: somebody has opened it, or a step was lost.
    let Some(default) = now.default.as_ref().filter(|default| default.max_unavailable == 0) else {
        return Some(Step::WriteDefault(DefaultBudget {
            max_unavailable: 0,
            except_domains: now.domains.clone(),
            except_osds: BTreeSet::new(),
        }));
    };
    let covered = batch(now.domains.difference(&default.except_domains));
    if !covered.is_empty() {
        return Some(Step::RemoveDomains(covered));
    }
    let next = batch(now.domains.iter());
    let mut widened = default.clone();
    widened.except_domains.retain(|domain| !next.contains(domain));
    Some(Step::WriteDefault(widened))
}

fn batch<'a>(domains: impl Iterator<Item = &'a DomainKey>) -> BTreeSet<DomainKey> {
    domains.take(BATCH).cloned().collect()
}

/// The budgets after a step.
#[cfg(test)]
pub(crate) fn after(now: &OsdBudgets, step: &Step) -> OsdBudgets {
    let mut then = now.clone();
    match step {
        Step::WriteDefault(default) => then.default = Some(default.clone()),
        Step::AddDomains(domains) => then.domains.extend(domains.iter().cloned()),
        Step::RemoveDomains(domains) => then.domains.retain(|domain| !domains.contains(domain)),
    }
    then
}

/// How many budgets select an OSD, and how many of them would let it go.
#[cfg(test)]
pub(crate) fn selected_by(
    budgets: &OsdBudgets,
    osd: OsdId,
    domains: &[DomainKey],
) -> std::collections::BTreeMap<bool, usize> {
    let mut selected = std::collections::BTreeMap::new();
    let mut count = |is_open| *selected.entry(is_open).or_default() += 1;
    if let Some(default) = &budgets.default {
        let is_excepted = domains.iter().any(|domain| default.except_domains.contains(domain));
        if !is_excepted && !default.except_osds.contains(&osd) {
            count(default.max_unavailable > 0);
        }
    }
    for _ in domains.iter().filter(|domain| budgets.domains.contains(*domain)) {
        count(false);
    }
    selected
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use proptest::prelude::*;

    use super::super::osd_disruptions::Domain;
    use super::{Layout, OsdBudgets, Step, Target, after, next_step, selected_by};
    use crate::ceph::topology::DomainType;
    use crate::snapshot::{DefaultBudget, DomainKey};

    fn key(name: &str) -> DomainKey {
        (DomainType::HOST, Domain::from(name))
    }

    fn domains(names: &[&str]) -> BTreeSet<DomainKey> {
        names.iter().map(|name| key(name)).collect()
    }

    fn default(is_open: bool, except: &[&str]) -> DefaultBudget {
        DefaultBudget {
            max_unavailable: i32::from(is_open),
            except_domains: domains(except),
            except_osds: BTreeSet::new(),
        }
    }

    fn budgets(is_open: bool, except: &[&str], own: &[&str]) -> OsdBudgets {
        OsdBudgets {
            default: Some(default(is_open, except)),
            domains: domains(own),
        }
    }

    fn closed(exempt: Option<&str>) -> Target {
        Target::Closed {
            exempt: exempt.map(key),
            exempt_osds: BTreeSet::new(),
        }
    }

    fn steps(from: &OsdBudgets, target: &Target, all: &BTreeSet<DomainKey>, layout: Layout) -> Vec<Step> {
        let mut now = from.clone();
        let mut steps = Vec::new();
        while let Some(step) = next_step(&now, target, all, layout) {
            now = after(&now, &step);
            steps.push(step);
            assert!(steps.len() < 100, "{steps:?}");
        }
        steps
    }

    #[test]
    fn closing_takes_one_write() {
        let all = domains(&["a", "b", "c"]);
        let open = budgets(true, &[], &[]);
        let expected = [Step::WriteDefault(default(false, &["b"]))];
        assert_eq!(steps(&open, &closed(Some("b")), &all, Layout::Single), expected);
    }

    #[test]
    fn domains_follow_behind_closed_default() {
        let all = domains(&["a", "b", "c"]);
        let expected = [
            Step::WriteDefault(default(false, &["b"])),
            Step::AddDomains(domains(&["a", "c"])),
            Step::WriteDefault(default(false, &["a", "b", "c"])),
        ];
        let open = budgets(true, &[], &[]);
        assert_eq!(steps(&open, &closed(Some("b")), &all, Layout::PerDomain), expected);
    }

    #[test]
    fn many_domains_are_spelled_out_in_batches() {
        let all: BTreeSet<DomainKey> = (0..20).map(|number| key(&format!("rack-{number:02}"))).collect();
        let steps = steps(
            &budgets(true, &[], &[]),
            &closed(Some("rack-00")),
            &all,
            Layout::PerDomain,
        );
        let batches = steps.iter().filter_map(|step| match step {
            Step::AddDomains(domains) => Some(domains.len()),
            _ => None,
        });
        assert_eq!(batches.collect::<Vec<_>>(), [8, 8, 3]);
    }

    #[test]
    fn many_domains_are_covered_again_in_batches() {
        let all: BTreeSet<DomainKey> = (0..20).map(|number| key(&format!("rack-{number:02}"))).collect();
        let around = OsdBudgets {
            default: Some(DefaultBudget {
                max_unavailable: 0,
                except_domains: all.clone(),
                except_osds: BTreeSet::new(),
            }),
            domains: all.iter().skip(1).cloned().collect(),
        };
        let excluded = BTreeSet::new();
        let steps = steps(&around, &Target::Open { excluded }, &all, Layout::PerDomain);
        let removed = steps.iter().filter_map(|step| match step {
            Step::RemoveDomains(domains) => Some(domains.len()),
            _ => None,
        });
        assert_eq!(removed.collect::<Vec<_>>(), [8, 8, 3]);
        assert_eq!(
            steps.len(),
            7,
            "one write of the default before each batch, and one to open: {steps:?}"
        );
    }

    #[test]
    fn domain_is_covered_before_its_budget_goes() {
        let around = budgets(false, &["a", "b", "c"], &["a", "c"]);
        let open = Target::Open {
            excluded: BTreeSet::from([3]),
        };
        let opened = DefaultBudget {
            except_osds: BTreeSet::from([3]),
            ..default(true, &[])
        };
        let expected = [
            Step::WriteDefault(default(false, &["b"])),
            Step::RemoveDomains(domains(&["a", "c"])),
            Step::WriteDefault(opened),
        ];
        assert_eq!(
            steps(&around, &open, &domains(&["a", "b", "c"]), Layout::PerDomain),
            expected
        );
    }

    #[test]
    fn exempt_domain_changes_without_a_gap() {
        let around_a = budgets(false, &["a", "b", "c"], &["b", "c"]);
        let expected = [
            Step::WriteDefault(default(false, &["b", "c"])),
            Step::RemoveDomains(domains(&["b"])),
            Step::AddDomains(domains(&["a"])),
            Step::WriteDefault(default(false, &["a", "b", "c"])),
        ];
        let all = domains(&["a", "b", "c"]);
        assert_eq!(steps(&around_a, &closed(Some("b")), &all, Layout::PerDomain), expected);
    }

    #[test]
    fn budgets_that_rook_left_are_not_doubled() {
        let left = OsdBudgets {
            default: None,
            domains: domains(&["a", "c"]),
        };
        let all = domains(&["a", "b", "c"]);
        let expected = [Step::WriteDefault(default(false, &["a", "b", "c"]))];
        assert_eq!(steps(&left, &closed(Some("b")), &all, Layout::PerDomain), expected);
    }

    #[test]
    fn budgets_of_another_type_are_replaced() {
        let rack: DomainType = "rack".parse().unwrap();
        let mut left = budgets(false, &["a"], &[]);
        left.domains = [(rack, "r".into())].into();
        let all = domains(&["a", "b"]);
        let taken = steps(&left, &closed(Some("a")), &all, Layout::PerDomain);
        assert_eq!(taken[0], Step::RemoveDomains([(rack, "r".into())].into()));
        assert_eq!(taken[1], Step::AddDomains(domains(&["b"])));
    }

    #[test]
    fn exempt_osds_are_left_out_by_number() {
        let target = Target::Closed {
            exempt: None,
            exempt_osds: [3].into(),
        };
        let around = DefaultBudget {
            except_osds: [3].into(),
            ..default(false, &[])
        };
        let all = domains(&["a"]);
        let open = budgets(true, &[], &[]);
        assert_eq!(
            steps(&open, &target, &all, Layout::Single),
            [Step::WriteDefault(around)]
        );
    }

    const ALL: [&str; 4] = ["a", "b", "c", "d"];

    fn some_domains() -> impl Strategy<Value = BTreeSet<DomainKey>> {
        proptest::sample::subsequence(ALL.to_vec(), 0..=ALL.len()).prop_map(|names| domains(&names))
    }

    fn any_target() -> impl Strategy<Value = Target> {
        let closed = proptest::option::of(proptest::sample::select(ALL.to_vec())).prop_map(closed);
        let open = proptest::collection::btree_set(0_i64..8, 0..3).prop_map(|excluded| Target::Open { excluded });
        prop_oneof![closed, open]
    }

    fn any_layout() -> impl Strategy<Value = Layout> {
        prop_oneof![Just(Layout::Single), Just(Layout::PerDomain)]
    }

    proptest! {
        /// From whatever state, of whatever target before: no step leaves an OSD without a budget that had one, and none but those
        /// of the exempt domain may go while the target is closed and the first step is done.
        #[test]
        fn no_step_opens_a_gap(
            is_open in any::<bool>(),
            except in some_domains(),
            own in some_domains(),
            target in any_target(),
            layout in any_layout(),
        ) {
            let all = domains(&ALL);
            let mut now = OsdBudgets {
                default: Some(DefaultBudget { max_unavailable: i32::from(is_open), except_domains: except, except_osds: BTreeSet::new() }),
                domains: own,
            };
            let mut taken = 0;
            while let Some(step) = next_step(&now, &target, &all, layout) {
                let then = after(&now, &step);
                taken += 1;
                prop_assert!(taken < 40, "no end: {step:?}");
                for (osd, domain) in (0..).zip(all.iter()) {
                    let (before, behind) = (selected_by(&now, osd, std::slice::from_ref(domain)), selected_by(&then, osd, std::slice::from_ref(domain)));
                    match &target {
                        Target::Closed { exempt, .. } if Some(domain) != exempt.as_ref() => {
                            prop_assert_eq!(behind.contains_key(&true), false, "{:?} lets {:?} go", step, domain);
                            prop_assert!(!behind.is_empty(), "{:?} leaves {:?} without a budget", step, domain);
                        }
                        Target::Open { excluded } if !excluded.contains(&osd) => {
                            prop_assert!(!behind.is_empty() || before.is_empty(), "{:?} leaves {:?} without a budget", step, domain);
                        }
                        _ => {}
                    }
                }
                now = then;
            }
            for (osd, domain) in (0..).zip(all.iter()) {
                let selected = selected_by(&now, osd, std::slice::from_ref(domain));
                let expected = match &target {
                    Target::Closed { exempt, .. } => usize::from(Some(domain) != exempt.as_ref()),
                    Target::Open { excluded } => usize::from(!excluded.contains(&osd)),
                };
                prop_assert_eq!(selected.values().sum::<usize>(), expected, "{:?}: {:?}", domain, now);
            }
        }
    }
}
