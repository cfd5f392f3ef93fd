//! The log's word on gates: why a cordoned node is acted on or not, each time that changes.

use std::collections::BTreeMap;

use nodeward_api::reason::GateReason;
use nodeward_core::id::NodeName;

use crate::plan::Plan;

/// What has been logged.
#[derive(Debug, Default)]
pub struct GateTransitionLog {
    reported: BTreeMap<NodeName, GateReason>,
}

impl GateTransitionLog {
    /// Logs what has changed since the last plan.
    pub fn log_transitions(&mut self, plan: &Plan) {
        let now: BTreeMap<NodeName, GateReason> = plan
            .verdicts
            .iter()
            .map(|verdict| (verdict.node.clone(), verdict.gate))
            .collect();
        for verdict in &plan.verdicts {
            let (node, gate) = (&verdict.node, verdict.gate);
            if self.reported.get(node) != Some(&gate) {
                tracing::info!(%node, %gate, detail = verdict.gate_detail, "the node {}", gate.explanation());
            }
        }
        for node in self.reported.keys().filter(|node| !now.contains_key(*node)) {
            tracing::info!(%node, "the node is not cordoned any more");
        }
        self.reported = now;
    }
}
