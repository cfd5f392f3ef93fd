//! Which of the due steps are started, and what creates their remediations. A step is intended first, in the status; its
//! remediation is planned from a status that has the intent, so that every leader counts it.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use jiff::{SignedDuration, Timestamp};
use nodeward_api::reason::HealthReason;
use nodeward_core::deadline::{saturating_add, whole_second};
use nodeward_core::id::NodeName;
use nodeward_runtime::cache::STALE_AFTER;

use super::Planner;
use super::action::{Action, RemediationRef, StartRemediation};
use super::case::{Case, Check, Standing};
use super::may_start::Condition;
use super::record::{Record, Stage};
use super::remediation::Identity;
use crate::snapshot::{CheckName, NodeFacts, TemplateState};
use nodeward_core::node_health_check::Step;

/// A step that is due.
#[derive(Debug, Clone)]
pub struct Candidate {
    /// The node.
    pub node: NodeName,
    /// The step.
    pub step: usize,
    /// An earlier step is over: only what stops every step stops it.
    pub is_escalation: bool,
    /// When the node's condition had lasted for long enough.
    pub expired: Timestamp,
    /// Since when it is intended; `None`: not yet.
    pub intended: Option<Timestamp>,
}

/// After this time a watch shows what was intended, and created up to two minutes later.
const WATCHES_TELL_WITHIN: SignedDuration = SignedDuration::from_secs(STALE_AFTER.as_secs().cast_signed() + 120);

/// A remediation that is gone, as far as is seen.
pub struct Gone {
    check: CheckName,
    is_of_control_plane: bool,
    /// It was created so lately that the watch may not show it yet.
    is_new: bool,
    remediation: RemediationRef,
}

/// What is remediated, and what this pass adds to it.
#[derive(Default)]
pub struct Tally {
    /// Nodes that run, and for whom.
    pub running_for: BTreeMap<NodeName, BTreeSet<CheckName>>,
    /// Remediations that are gone, as far as is seen, as a watch may not show yet what was just created.
    pub gone: Vec<Gone>,
    /// Nodes whose remediation is intended or being created.
    pub starting: BTreeSet<NodeName>,
    /// Control-plane nodes that have a remediation, may have one, or get one.
    pub remediated_control_plane: BTreeSet<NodeName>,
    /// Nodes that are away for a remediation, or may be, where OSDs matter.
    pub away: BTreeSet<NodeName>,
}

impl Tally {
    fn start(&mut self, check: &CheckName, node: &NodeName, is_control_plane: bool) {
        self.starting.insert(node.clone());
        let checks = self.running_for.entry(node.clone()).or_default();
        checks.insert(Arc::clone(check));
        if is_control_plane {
            self.remediated_control_plane.insert(node.clone());
        }
    }
}

impl<'a> Planner<'a> {
    /// Goes through the steps that are due: first those that are intended, then those that expired first.
    pub(super) fn decide_starts(&mut self, mut candidates: Vec<(usize, Candidate)>, checks: &mut [Check<'a>]) {
        candidates.sort_by(|(a_check, a), (b_check, b)| {
            let order = |intended: Option<Timestamp>| (intended.is_none(), intended);
            (order(a.intended), a.expired, &a.node, a_check).cmp(&(order(b.intended), b.expired, &b.node, b_check))
        });
        let mut tally = self.tally(checks);
        for (at, candidate) in candidates {
            let check = &mut checks[at];
            let Some(mut case) = check.cases.remove(&candidate.node) else {
                continue;
            };
            self.decide_start(check, &mut case, &candidate, &mut tally);
            check.cases.insert(candidate.node, case);
        }
    }

    fn tally(&self, checks: &[Check<'a>]) -> Tally {
        let mut tally = Tally::default();
        for check in checks {
            for case in check.cases.values() {
                if case.has_begun(check, self.now) {
                    let checks = tally.running_for.entry(case.name.clone()).or_default();
                    checks.insert(Arc::clone(&check.facts.name));
                }
                let is_of_control_plane = case.node.is_some_and(|node| self.is_control_plane(node));
                // Stricter: over or not, until it is gone.
                if case.has_remediation() && is_of_control_plane {
                    tally.remediated_control_plane.insert(case.name.clone());
                }
                let gone = case.chain.records.iter().filter(|record| record.stage() == Stage::Gone);
                tally.gone.extend(gone.filter_map(|record| {
                    Some(Gone {
                        check: Arc::clone(&check.facts.name),
                        is_of_control_plane,
                        is_new: self.now < saturating_add(record.started, WATCHES_TELL_WITHIN),
                        remediation: record.reference(&case.name)?,
                    })
                }));
            }
        }
        if !self.snapshot.ceph.is_empty() {
            tally.away = self.nodes_away(checks);
        }
        for ((check, node), is_control_plane) in &self.snapshot.memory.starting {
            tally.start(check, node, *is_control_plane);
        }
        tally
    }

    /// What must be gone before a step of the node: its own remediations, and those in whose place it comes.
    pub(super) fn must_be_gone(&self, check: &Check<'_>, node: &NodeFacts, tally: &Tally) -> Vec<Condition> {
        let is_control_plane = self.is_control_plane(node);
        let is_in_its_way = |gone: &&Gone| {
            let is_own = gone.remediation.node == node.view.name;
            let is_limited = gone.is_new && check.spec.max_concurrent.is_some();
            ((is_own || is_limited) && gone.check == check.facts.name)
                || (gone.is_new && gone.is_of_control_plane && is_control_plane)
        };
        let gone = tally.gone.iter().filter(is_in_its_way);
        gone.map(|gone| Condition::Gone(gone.remediation.clone())).collect()
    }

    fn decide_start(&mut self, check: &Check<'a>, case: &mut Case<'a>, candidate: &Candidate, tally: &mut Tally) {
        let (Some(node), Some(step)) = (case.node, check.spec.steps.get(candidate.step)) else {
            return;
        };
        let conditions = match self.may_take(check, case, node, candidate, tally) {
            Err(stopped) => {
                case.chain.withdraw_intent();
                case.standing = stopped;
                return;
            }
            Ok(conditions) => conditions,
        };
        let is_intended = self.intend(check, case, node, candidate, step);
        tally.start(&check.facts.name, &case.name, self.is_control_plane(node));
        case.standing = Standing::new(HealthReason::StartingRemediation, step.template.to_string());
        let template = self.snapshot.templates.get(&step.template);
        if let (true, Some(intent), Some(TemplateState::Found(template)), Ok(machine)) =
            (is_intended, case.chain.intent(), template, self.machine_of(node, step))
        {
            self.act(Action::StartRemediation(Box::new(StartRemediation {
                check: check.facts.reference(),
                node: case.name.clone(),
                node_uid: node.view.uid.clone(),
                step: candidate.step,
                template: step.template.clone(),
                made_from: Arc::clone(template),
                machine,
                kind: intent.kind.clone(),
                key: intent.key.clone(),
                conditions,
            })));
        }
    }

    /// Makes sure of the intent; answers whether the status has it already.
    fn intend(
        &self,
        check: &Check<'a>,
        case: &mut Case<'a>,
        node: &NodeFacts,
        candidate: &Candidate,
        step: &Step,
    ) -> bool {
        if let Some(intent) = case.chain.intent() {
            let wanted = self.identity(check, node, step, intent.started);
            if wanted.key == intent.key && wanted.kind == intent.kind {
                return true;
            }
        }
        case.chain.withdraw_intent();
        let started = self.now_to_the_second();
        let Identity { kind, key } = self.identity(check, node, step, started);
        let template = Some(Arc::clone(&step.template.name));
        let intent = Record::intended(Some(candidate.step), kind, key, template, started, check.spec);
        case.chain.records.push(intent);
        false
    }

    pub(super) fn supports_multiple(&self, step: &Step) -> bool {
        let template = self.snapshot.templates.get(&step.template);
        matches!(template, Some(TemplateState::Found(template)) if template.supports_multiple)
    }

    /// A moment as the status keeps it.
    pub(super) fn now_to_the_second(&self) -> Timestamp {
        whole_second(self.now)
    }
}
