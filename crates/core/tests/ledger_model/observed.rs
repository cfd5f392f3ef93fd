//! What the watches show of a node and its pods, as the functions read it that tell when a pod is back.

use std::sync::LazyLock;

use jiff::{SignedDuration, Timestamp};
use k8s_openapi::api::core::v1;
use nodeward_core::ledger::Claim;
use nodeward_core::node::NodeView;
use nodeward_core::pod::{PodSummary, PodView};
use serde_json::{Value, json};

use crate::world::{Cordon, NOW, Plan, State};

/// When whoever was told that a node may go down does not act on it any more.
pub const LATER: Timestamp = Timestamp::constant(3600, 0);

/// Claims stand since [`NOW`], and what is not of this boot is from before.
const BEFORE: SignedDuration = SignedDuration::from_mins(-60);

static NODE: LazyLock<NodeView> = LazyLock::new(|| {
    let node: v1::Node = serde_json::from_value(json!({ "metadata": { "name": "node", "uid": "node" } })).unwrap();
    NodeView::project(&node).unwrap()
});

fn pod(container: &str) -> PodSummary {
    let status: Value = json!({ "phase": "Running", "containerStatuses": [{
        "name": "c", "image": "", "imageID": "", "ready": true, "restartCount": 0, "containerID": container,
        "state": { "running": { "startedAt": "1970-01-01T00:00:00Z" } },
    }] });
    let pod = json!({ "metadata": { "namespace": "shop", "name": "pod", "uid": "pod" }, "status": status });
    let pod: v1::Pod = serde_json::from_value(pod).unwrap();
    PodView::project(&pod).unwrap().summary
}

static OLD: LazyLock<PodSummary> = LazyLock::new(|| pod("containerd://1"));
static NEW: LazyLock<PodSummary> = LazyLock::new(|| pod("containerd://2"));

/// The node of a claim.
pub fn node(plan: &Plan, state: &State, number: usize, claim: &Claim) -> NodeView {
    let node = &state.nodes[number];
    let boot_id = node.boots.to_string();
    let shows_its_return = claim.has_rebooted(&boot_id) && !plan.quick_reboots;
    NodeView {
        ready: !node.down,
        ready_since: Some(NOW + if shows_its_return { -BEFORE } else { BEFORE }),
        boot_id: boot_id.into(),
        unschedulable: node.cordon != Cordon::None,
        ..NODE.clone()
    }
}

/// A pod that stays on the node of a claim.
pub fn retained(plan: &Plan, state: &State, slot: usize, claim: &Claim) -> PodSummary {
    let node = &state.nodes[plan.slots[slot].node.unwrap()];
    let is_started_anew = claim.has_rebooted(&node.boots.to_string()) && !node.unreported;
    let (pod, since) = if is_started_anew {
        (&*NEW, NOW + -BEFORE * 2)
    } else {
        (&*OLD, NOW + BEFORE / 2)
    };
    PodSummary {
        ready: state.looks_up(plan, slot),
        ready_since: Some(since),
        started_at: Some(since),
        ..pod.clone()
    }
}
