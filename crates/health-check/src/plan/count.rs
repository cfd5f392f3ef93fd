//! Which nodes a NodeHealthCheck selects, how many of them are healthy, and which need a look.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use k8s_openapi::apimachinery::pkg::apis::meta::v1::{LabelSelector, LabelSelectorRequirement};
use nodeward_api::label::{CONTROL_PLANE_ROLES, EXCLUDE_FROM_REMEDIATION, WORKER_ROLE};
use nodeward_api::node_health_check::{NodeHealthCheckStatus, UnhealthyNode};
use nodeward_api::reason::{HealthEvent, HealthReason};
use nodeward_core::deadline::saturating_add;
use nodeward_core::id::NodeName;
use nodeward_core::selector::Selector;

use super::action::{Action, SelectorWrite};
use super::case::{Case, Check, Standing};
use super::chain::Chain;
use super::expiry::{self, Health};
use super::gates::is_excluded;
use super::record::Known;
use super::storm::Storm;
use super::survey::Survey;
use super::unhealthy_period::UnhealthyPeriod;
use super::verdict::Warning;
use super::{Planner, enablement};
use crate::observations::{Moment, Refusal};
use crate::snapshot::{CheckFacts, NodeFacts, Nodes};
use nodeward_core::node_health_check::{CheckSpec, ThresholdState};

/// So often in a row, which takes a minute, the next step of a node is refused until it gives up its slot.
const REFUSALS_THAT_FREE_THE_SLOT: u32 = 5;

impl<'a> Planner<'a> {
    /// Counts the nodes of a NodeHealthCheck, and opens a case for each that is not plainly healthy.
    pub(super) fn count(&mut self, facts: &'a CheckFacts) -> Check<'a> {
        let mut check = Check {
            facts,
            spec: &facts.spec,
            enablement: enablement::look(&facts.spec, self.snapshot, self.index),
            observed: 0,
            healthy: 0,
            threshold: ThresholdState::Holds,
            storm: Storm::read(&facts.spec, &facts.status, self.now),
            cases: BTreeMap::new(),
        };
        let selects = self.resolve_selector(&check);
        let entries: BTreeMap<&str, &'a UnhealthyNode> = facts
            .status
            .unhealthy_nodes
            .iter()
            .map(|entry| (entry.name.as_str(), entry))
            .collect();
        let survey = Survey::of(&self.snapshot.nodes, &facts.name, &selects, &check.spec.conditions);
        check.observed = survey.selected;
        check.healthy = survey.selected;
        let starting = self.snapshot.memory.starting.keys();
        let starting = starting.filter(|(check, _)| *check == facts.name);
        let followed: BTreeSet<NodeName> = (entries.keys().map(|name| NodeName::from(*name)))
            .chain(self.index.owned_by(&facts.uid).map(|(node, _)| node.clone()))
            .chain(starting.map(|(_, node)| node.clone()))
            .collect();
        let in_question = survey.in_question.iter().filter(|name| !followed.contains(*name));
        for name in followed.iter().chain(in_question) {
            let node = self.snapshot.nodes.get(name);
            let is_selected = node.is_some_and(|node| selects.matches(&node.view.labels));
            let judged = node.map(|node| (node, self.judge(node, check.spec)));
            let is_fine = judged.as_ref().is_some_and(|(_, health)| health.is_fine());
            let case = (!is_fine || followed.contains(name))
                .then(|| self.open_case(&check, name, &entries, judged, is_selected));
            if let Some(node) = node.filter(|_| is_selected) {
                self.warn_of_exclusion_label(node, &check);
                if !is_fine || case.as_ref().is_some_and(Case::has_remediation) {
                    check.healthy -= 1;
                }
                if case.is_none() {
                    self.tidy_healthy_node(node, &check);
                }
            }
            check.cases.extend(case.map(|case| (name.clone(), case)));
        }
        check.threshold = check.spec.threshold.judge(check.observed, check.healthy);
        check
    }

    /// The selector that counts; the default one is written down first.
    fn resolve_selector(&mut self, check: &Check<'a>) -> Selector {
        if let Some(selector) = &check.spec.selector {
            return selector.clone();
        }
        let selector = if is_of_the_peer(&check.facts.status) {
            LabelSelector::default()
        } else {
            default_selector(&self.snapshot.nodes)
        };
        let parsed = Selector::parse(Some(&selector)).unwrap_or(Selector::NOTHING);
        if check.writes_selector() {
            self.act(Action::WriteSelector(SelectorWrite {
                check: check.facts.reference(),
                base: check.facts.resource_version.clone(),
                selector,
            }));
        }
        parsed
    }

    pub(super) fn judge(&mut self, node: &NodeFacts, spec: &CheckSpec) -> Health {
        let (snapshot, now) = (self.snapshot, self.now);
        let stepped_by = snapshot.clock_stepped_by;
        let moment = Moment { now, stepped_by };
        let seen = &mut self.plan.found.absent_since;
        // As far as we have seen, but not from before there was a node.
        let absent_since = |type_: &Arc<str>| {
            let key = (node.view.uid.clone(), Arc::clone(type_));
            let before = snapshot.memory.found.absent_since.get(&key);
            let first_seen = before.copied().unwrap_or_else(|| moment.steady(now));
            seen.insert(key, first_seen);
            saturating_add(first_seen, stepped_by).max(node.created)
        };
        let has_handler = self.has_termination_handler;
        expiry::judge(node, &spec.conditions, has_handler, absent_since, moment)
    }

    fn open_case(
        &self,
        check: &Check<'a>,
        name: &NodeName,
        entries: &BTreeMap<&str, &'a UnhealthyNode>,
        judged: Option<(&'a Arc<NodeFacts>, Health)>,
        is_selected: bool,
    ) -> Case<'a> {
        let (node, health) = judged.map_or((None, Health::NotJudged), |(node, health)| (Some(node), health));
        let entry = entries.get(name.as_str()).copied();
        let live = self.index.owned_on(&check.facts.uid, name);
        let memory = &self.snapshot.memory;
        let found = &memory.found;
        let key = (Arc::clone(&check.facts.name), name.clone());
        let before = found.unhealthy_periods.get(&key);
        let unhealthy_period = UnhealthyPeriod::follow(before, found.looked_at, &health, entry);
        let refusal = memory.refusal(&check.facts.name, name);
        let is_given_up = |refusal: &&Refusal| REFUSALS_THAT_FREE_THE_SLOT <= refusal.in_a_row;
        let known = Known {
            node: node.map(|node| &**node),
            health: &health,
            unhealthy_period: unhealthy_period.as_ref().filter(|_| !health.is_fine()),
            spec: check.spec,
            index: self.index,
            now: self.now,
        };
        let mut chain = Chain::new(entry, live, &known);
        chain.refused = refusal.filter(is_given_up).map(|refusal| refusal.step);
        chain.is_held = node.is_some_and(|node| self.is_held(node));
        Case {
            name: name.clone(),
            node,
            is_selected,
            health,
            entry,
            unhealthy_period,
            chain,
            is_starting: memory.is_starting(&check.facts.name, name),
            healthy_since: None,
            standing: Standing::new(HealthReason::Healthy, ""),
        }
    }

    /// An exclusion label with a value other than true counts for nothing, and that is said.
    fn warn_of_exclusion_label(&mut self, node: &NodeFacts, check: &Check<'_>) {
        let label = node.view.labels.get(EXCLUDE_FROM_REMEDIATION);
        let Some(value) = label.filter(|value| !is_excluded(Some(value))) else {
            return;
        };
        self.plan.verdicts.warnings.push(Warning {
            key: format!("exclusion-label/{}/{value}", node.view.uid),
            text: format!(
                "label {EXCLUDE_FROM_REMEDIATION} of node {} is {value:?} and is ignored: set it to true, or remove it",
                node.view.name
            ),
            check: check.facts.reference(),
            node: Some((node.view.name.clone(), node.view.uid.clone())),
            event: HealthEvent::InvalidNodeLabel,
        });
    }
}

/// Whether the peer has followed the NodeHealthCheck so far: to it an absent selector means all nodes.
fn is_of_the_peer(status: &NodeHealthCheckStatus) -> bool {
    status.last_update_time.is_some() && status.observed_generation.is_none()
}

/// Workers; where no node of the cluster has that role, nodes without a control-plane role.
pub(super) fn default_selector(nodes: &Nodes) -> LabelSelector {
    let has_role = |key: &str, operator: &str| LabelSelectorRequirement {
        key: key.to_owned(),
        operator: operator.to_owned(),
        values: None,
    };
    let there_are_workers = nodes.values().any(|node| node.view.labels.get(WORKER_ROLE).is_some());
    let expressions = if there_are_workers {
        vec![has_role(WORKER_ROLE, "Exists")]
    } else {
        let roles = CONTROL_PLANE_ROLES.iter();
        roles.map(|role| has_role(role, "DoesNotExist")).collect()
    };
    LabelSelector {
        match_expressions: Some(expressions),
        match_labels: None,
    }
}
