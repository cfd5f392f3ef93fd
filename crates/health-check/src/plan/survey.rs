//! Which nodes a NodeHealthCheck selects, and which of these need a look in each pass: what the others are only a change of
//! theirs can alter.

use std::sync::Arc;

use nodeward_api::annotation;
use nodeward_api::label::EXCLUDE_FROM_REMEDIATION;
use nodeward_core::id::NodeName;
use nodeward_core::node_health_check::UnhealthyCondition;
use nodeward_core::selector::Selector;

use super::expiry::is_plainly_healthy;
use crate::snapshot::{CheckName, NodeFacts, Nodes};

/// What a selector and conditions find among the nodes.
#[derive(Debug)]
pub struct Survey {
    selector: Selector,
    conditions: Arc<[UnhealthyCondition]>,
    /// How many nodes are selected.
    pub selected: usize,
    /// Those of them that are not plainly healthy, or carry a label or an annotation that asks for something.
    pub in_question: Vec<NodeName>,
}

impl Survey {
    /// Surveys the nodes for a NodeHealthCheck, or answers with what was found before.
    pub fn of(
        nodes: &Nodes,
        check: &CheckName,
        selector: &Selector,
        conditions: &Arc<[UnhealthyCondition]>,
    ) -> Arc<Self> {
        let mut surveys = nodes.surveys();
        let is_same = |known: &&Arc<Self>| known.selector == *selector && known.conditions == *conditions;
        if let Some(known) = surveys.get(check).filter(is_same) {
            return Arc::clone(known);
        }
        let selected = || nodes.values().filter(|node| selector.matches(&node.view.labels));
        let in_question = selected().filter(|node| is_in_question(node, conditions));
        let made = Arc::new(Self {
            selector: selector.clone(),
            conditions: Arc::clone(conditions),
            in_question: in_question.map(|node| node.view.name.clone()).collect(),
            selected: selected().count(),
        });
        surveys.insert(Arc::clone(check), Arc::clone(&made));
        made
    }
}

fn is_in_question(node: &NodeFacts, conditions: &[UnhealthyCondition]) -> bool {
    let NodeFacts { view, .. } = node;
    let asks = [annotation::MANUALLY_CONFIRMED_HEALTHY, annotation::REMEDIATIONS];
    !is_plainly_healthy(node, conditions)
        || view.labels.get(EXCLUDE_FROM_REMEDIATION).is_some()
        || asks.iter().any(|asked| view.annotations.contains_key(*asked))
}
