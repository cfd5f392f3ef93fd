//! Which cordoned nodes are being drained for maintenance, and not merely parked.

use std::borrow::Cow;

use nodeward_api::condition::{DRAIN_IN_PROGRESS, DRAIN_LOCK_DRAINED, DRAIN_LOCK_DRAINING, DRAINED};
use schemars::{JsonSchema, Schema, SchemaGenerator, json_schema};
use serde::{Deserialize, Deserializer};

use super::answer::Tristate;
use super::inputs::SignalInputs;
use super::node_marker::NodeMarker;
use super::preset::PresetSignal;
use super::written::{text_or_map, text_or_map_schema};
use super::{Compiled, SignalError, UpgradeSignal, machine_config};
use crate::drain::NodeDrains;
use crate::node::{ConditionView, NodeView, UNSCHEDULABLE_TAINT, UNSCHEDULABLE_TAINT_EFFECT};

/// What the user says counts as a drain, besides what the signal brings: a mark on the node, a NodeDrain, or `all`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum CountsAsDrain {
    /// A cordoned node that carries this.
    Mark(NodeMarker),
    /// Every cordoned node, parked ones too.
    All,
    /// A cordoned node whose NodeDrain waits or is under way.
    NodeDrain,
    /// A cordoned node with the condition `DrainInProgress` of another program.
    Condition,
}

/// All that marks a cordoned node as being drained.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DrainMarkers(DrainMarker);

#[derive(Debug, Clone, PartialEq, Eq)]
enum DrainMarker {
    MachineConfigOperator,
    Preset(PresetSignal),
    Node(NodeMarker),
    NodeDrain,
    Condition,
    All,
    /// One of these is enough.
    AnyOf(Vec<DrainMarker>),
    /// Each of these.
    Each(Vec<DrainMarker>),
}

/// Whether a cordoned node is being drained, and what says so.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct BeingDrained {
    /// Whether it is.
    pub truth: Tristate,
    /// The mark that says so, what could not be read, or all that were looked for.
    pub because: String,
}

impl DrainMarkers {
    /// What the signal's leaves bring, and what the user adds.
    ///
    /// # Errors
    /// Nothing marks a drain.
    pub fn new(signal: &UpgradeSignal, counts_as_drain: Option<&CountsAsDrain>) -> Result<Self, SignalError> {
        let of_user = counts_as_drain.map(|counts| match counts {
            CountsAsDrain::Mark(mark) => DrainMarker::Node(mark.clone()),
            CountsAsDrain::All => DrainMarker::All,
            CountsAsDrain::NodeDrain => DrainMarker::NodeDrain,
            CountsAsDrain::Condition => DrainMarker::Condition,
        });
        let marks: Vec<DrainMarker> = DrainMarker::of(&signal.root).into_iter().chain(of_user).collect();
        if marks.is_empty() {
            return Err(SignalError::NoDrainMarker(signal.spec().to_string()));
        }
        Ok(Self(DrainMarker::AnyOf(marks)))
    }

    /// Whether a cordoned node is being drained. One mark is enough, except where the signal asks for all of several; *unknown*
    /// is what cannot be read, and nothing else decides.
    pub fn is_being_drained(&self, node: &NodeView, inputs: &SignalInputs, drains: &NodeDrains) -> BeingDrained {
        let found = self.0.is_on(node, inputs, drains);
        match found.truth {
            Tristate::No => BeingDrained {
                because: format!("not found: {}", found.because),
                ..found
            },
            Tristate::Yes | Tristate::Unknown => found,
        }
    }
}

impl DrainMarker {
    /// What this part of a signal brings. A part that brings no mark says nothing of drains.
    fn of(signal: &Compiled) -> Option<Self> {
        let members = |members: &[Compiled]| {
            let mut marks: Vec<Self> = Vec::new();
            for mark in members.iter().filter_map(Self::of) {
                if !marks.contains(&mark) {
                    marks.push(mark);
                }
            }
            Some(marks).filter(|marks| !marks.is_empty())
        };
        match signal {
            Compiled::OpenShift | Compiled::OpenShiftClusterVersion | Compiled::MachineConfigPool => {
                Some(Self::MachineConfigOperator)
            }
            Compiled::Preset(preset) => preset.preset.marks_drains().then(|| Self::Preset(preset.clone())),
            Compiled::Node(mark) => Some(Self::Node(mark.clone())),
            Compiled::AnyOf(signals) => members(signals).map(Self::AnyOf),
            Compiled::AllOf(signals) => members(signals).map(Self::Each),
            Compiled::Always | Compiled::Resource(_) => None,
        }
    }

    fn is_on(&self, node: &NodeView, inputs: &SignalInputs, drains: &NodeDrains) -> BeingDrained {
        let holds = |holds: bool, because: String| BeingDrained {
            truth: if holds { Tristate::Yes } else { Tristate::No },
            because,
        };
        match self {
            Self::MachineConfigOperator => {
                let (is_draining, because) = machine_config::is_draining(node);
                holds(is_draining, because)
            }
            Self::Preset(preset) => {
                let (truth, because) = preset.is_draining(inputs, node);
                BeingDrained { truth, because }
            }
            Self::Node(mark) => holds(mark.is_on(node), mark.to_string()),
            Self::NodeDrain => has_node_drain(node, drains),
            Self::Condition => holds(
                has_condition(node),
                "the condition DrainInProgress of another program, since the cordon, without Drained".to_owned(),
            ),
            Self::All => holds(
                true,
                "every cordoned node counts as being drained (countsAsDrain: all)".to_owned(),
            ),
            Self::AnyOf(marks) => combined(marks.iter().map(|mark| mark.is_on(node, inputs, drains)), Tristate::Yes),
            Self::Each(marks) => combined(marks.iter().map(|mark| mark.is_on(node, inputs, drains)), Tristate::No),
        }
    }
}

/// The first that decides; else the first that cannot be told; else all of them together.
fn combined(marks: impl Iterator<Item = BeingDrained>, deciding: Tristate) -> BeingDrained {
    let (mut all, mut unknown, mut truth) = (Vec::new(), None, Tristate::No);
    for mark in marks {
        match mark.truth {
            found if found == deciding => return mark,
            Tristate::Unknown => unknown = unknown.or(Some(mark)),
            found => {
                truth = found;
                all.push(mark.because);
            }
        }
    }
    unknown.unwrap_or_else(|| BeingDrained {
        truth,
        because: all.join("; "),
    })
}

fn has_node_drain(node: &NodeView, drains: &NodeDrains) -> BeingDrained {
    let (truth, because) = match drains.of(&node.name) {
        Err(why) => (Tristate::Unknown, why.to_owned()),
        Ok(drain) => match drain.filter(|drain| drain.is_of(&node.uid)) {
            None => (Tristate::No, "a NodeDrain of the node".to_owned()),
            Some(drain) => {
                let phase = drain.phase.map_or("not taken up yet", |phase| phase.as_str());
                if drain.marks_drain() {
                    (Tristate::Yes, format!("its NodeDrain ({phase})"))
                } else {
                    (
                        Tristate::No,
                        format!("a NodeDrain that is under way (the node's is {phase})"),
                    )
                }
            }
        },
    };
    BeingDrained { truth, because }
}

/// Whether the condition of KEP-5683 says so. drain-lock's own does not count: it would tell of a drain that is `Suspect`, too. One from
/// before the cordon was left by an earlier drain.
fn has_condition(node: &NodeView) -> bool {
    let is_true = |condition: &&ConditionView| *condition.status == *"True";
    let is_of_others =
        |condition: &&ConditionView| ![DRAIN_LOCK_DRAINING, DRAIN_LOCK_DRAINED].contains(&&*condition.reason);
    let is_drained = node.condition(DRAINED).is_some_and(|condition| is_true(&condition));
    let cordon = node.taint(UNSCHEDULABLE_TAINT, Some(UNSCHEDULABLE_TAINT_EFFECT));
    let cordoned = cordon.and_then(|cordon| cordon.time_added);
    let in_progress = node.condition(DRAIN_IN_PROGRESS).filter(is_true).filter(is_of_others);
    !is_drained
        && in_progress.is_some_and(|condition| condition.last_transition.is_none_or(|since| Some(since) >= cordoned))
}

impl From<NodeMarker> for CountsAsDrain {
    fn from(mark: NodeMarker) -> Self {
        Self::Mark(mark)
    }
}

impl<'de> Deserialize<'de> for CountsAsDrain {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        const EXPECTED: &str =
            "all, nodeDrain, condition, or one of {annotation, label, taint} with a key or {key, value}";
        let from_text = |name: &str| match name {
            "all" => Ok(Self::All),
            "nodeDrain" => Ok(Self::NodeDrain),
            "condition" => Ok(Self::Condition),
            other => Err(format!("{other:?} is not known: expected {EXPECTED}")),
        };
        text_or_map::<D, NodeMarker, _>(deserializer, EXPECTED, from_text)
    }
}

impl JsonSchema for CountsAsDrain {
    fn schema_name() -> Cow<'static, str> {
        "CountsAsDrain".into()
    }

    fn json_schema(generator: &mut SchemaGenerator) -> Schema {
        text_or_map_schema::<NodeMarker>(generator, &json_schema!({ "enum": ["all", "nodeDrain", "condition"] }))
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use rstest::rstest;
    use serde_json::{Value, json};

    use super::super::tests::fixture::{cordoned, signal};
    use super::*;
    use crate::drain::NodeDrainView;

    fn marks(yaml: &str, counts_as_drain: Option<&str>) -> Result<DrainMarkers, SignalError> {
        let counts_as_drain = counts_as_drain.map(|yaml| serde_yaml::from_str::<CountsAsDrain>(yaml).unwrap());
        DrainMarkers::new(&signal(yaml), counts_as_drain.as_ref())
    }

    fn is_drained(marks: &DrainMarkers, annotations: Value) -> BeingDrained {
        let node = cordoned(json!({ "annotations": annotations, "labels": { "pool": "blue" } }));
        marks.is_being_drained(&node, &SignalInputs::default(), &NodeDrains::default())
    }

    fn mco(desired: Option<&str>, last: Option<&str>, state: Option<&str>) -> Value {
        let keys = ["desiredDrain", "lastAppliedDrain", "state"];
        let values = keys.into_iter().zip([desired, last, state]);
        values
            .filter_map(|(key, value)| Some((format!("machineconfiguration.openshift.io/{key}"), Value::from(value?))))
            .collect()
    }

    #[rstest]
    #[case::asked(mco(Some("drain-a"), Some("uncordon-b"), None), true)]
    #[case::asked_for_the_first_time(mco(Some("drain-a"), None, None), true)]
    #[case::asked_and_working(mco(Some("drain-a"), Some("uncordon-b"), Some("Working")), true)]
    #[case::done(mco(Some("drain-a"), Some("drain-a"), Some("Working")), false)]
    #[case::done_and_degraded(mco(Some("drain-a"), Some("drain-a"), Some("Degraded")), false)]
    #[case::uncordoning(mco(Some("uncordon-a"), Some("drain-a"), Some("Working")), false)]
    #[case::an_empty_request(mco(Some(""), Some("drain-a"), Some("Working")), false)]
    #[case::another_word(mco(Some("drained-a"), None, None), false)]
    #[case::no_request_and_working(mco(None, None, Some("Working")), true)]
    #[case::no_request_and_degraded(mco(None, Some("drain-a"), Some("Degraded")), true)]
    #[case::no_request_and_done(mco(None, None, Some("Done")), false)]
    #[case::parked(json!({}), false)]
    fn mco_drains_while_its_request_is_open(#[case] annotations: Value, #[case] drained: bool) {
        for yaml in [
            "openshift",
            "openshiftClusterVersion",
            "machineConfigPool",
            "{anyOf: [openshift, always]}",
        ] {
            let answer = is_drained(&marks(yaml, None).unwrap(), annotations.clone());
            assert_eq!(answer.truth == Tristate::Yes, drained, "{}", answer.because);
        }
    }

    #[rstest]
    #[case("{node: {annotation: mark}}", None, json!({ "mark": "" }), true)]
    #[case("{node: {annotation: mark}}", None, json!({}), false)]
    #[case("always", Some("{annotation: mark}"), json!({ "mark": "" }), true)]
    #[case("always", Some("{annotation: mark}"), json!({ "other": "" }), false)]
    #[case("always", Some("{label: {key: pool, value: blue}}"), json!({}), true)]
    #[case("always", Some("{label: {key: pool, value: red}}"), json!({}), false)]
    #[case("always", Some("all"), json!({}), true)]
    // The user's mark adds to what the signal brings.
    #[case("openshift", Some("{annotation: mark}"), json!({ "mark": "" }), true)]
    #[case("openshift", Some("{annotation: mark}"), mco(Some("drain-a"), None, None), true)]
    #[case("{preset: talos}", Some("all"), json!({}), true)]
    // Under allOf every part must hold that brings a mark.
    #[case("{allOf: [{preset: talos}, {anyOf: [always, {node: {annotation: mark}}]}]}", None, json!({ "mark": "" }), false)]
    #[case(
        "{allOf: [{preset: talos}, {anyOf: [always, {node: {annotation: mark}}]}]}", None,
        json!({ "mark": "", "talos.dev/cordoned": "true" }), true
    )]
    #[case("{allOf: [always, {node: {annotation: mark}}]}", None, json!({ "mark": "" }), true)]
    #[case("{allOf: [{preset: talos}, {node: {annotation: mark}}]}", Some("all"), json!({}), true)]
    // By prefix too.
    #[case("{node: {annotation: {keyPrefix: plan.example.com/}}}", None, json!({ "plan.example.com/os": "" }), true)]
    #[case("{node: {annotation: {keyPrefix: plan.example.com/}}}", None, json!({ "an.example.com/plan": "" }), false)]
    #[case("{node: {annotation: {key: mark, valuePrefix: drain-}}}", None, json!({ "mark": "drain-1" }), true)]
    #[case("{node: {annotation: {key: mark, valuePrefix: drain-}}}", None, json!({ "mark": "undrain-1" }), false)]
    fn markers_of_signal_and_user_both_count(
        #[case] yaml: &str,
        #[case] counts_as_drain: Option<&str>,
        #[case] annotations: Value,
        #[case] drained: bool,
    ) {
        let answer = is_drained(&marks(yaml, counts_as_drain).unwrap(), annotations);
        assert_eq!(answer.truth == Tristate::Yes, drained);
        assert!(
            drained || answer.because.starts_with("not found: "),
            "{}",
            answer.because
        );
    }

    #[rstest]
    #[case::drains(condition("DrainInProgress", "True", "KubectlDrain", "12:00:00"), None, true)]
    #[case::says_no(condition("DrainInProgress", "False", "KubectlDrain", "12:00:00"), None, false)]
    #[case::of_an_earlier_cordon(condition("DrainInProgress", "True", "KubectlDrain", "11:59:59"), None, false)]
    #[case::of_drain_lock(condition("DrainInProgress", "True", "DrainLockDraining", "12:00:01"), None, false)]
    #[case::drained(
        condition("DrainInProgress", "True", "KubectlDrain", "12:00:01"),
        Some(condition("Drained", "True", "KubectlDrain", "12:00:09")),
        false
    )]
    #[case::not_drained_yet(
        condition("DrainInProgress", "True", "KubectlDrain", "12:00:01"),
        Some(condition("Drained", "False", "KubectlDrain", "12:00:01")),
        true
    )]
    fn condition_of_another_program_marks_a_drain(
        #[case] in_progress: Value,
        #[case] drained: Option<Value>,
        #[case] is_drained: bool,
    ) {
        let conditions: Vec<Value> = [Some(in_progress), drained].into_iter().flatten().collect();
        let cordon = json!({
            "key": "node.kubernetes.io/unschedulable", "effect": "NoSchedule", "timeAdded": "2026-01-01T12:00:00Z",
        });
        let node = json!({
            "metadata": { "name": "n1", "uid": "u1" }, "spec": { "unschedulable": true, "taints": [cordon] },
            "status": { "conditions": conditions },
        });
        let node = NodeView::project(&serde_json::from_value(node).unwrap()).unwrap();
        let marks = marks("always", Some("condition")).unwrap();
        let answer = marks.is_being_drained(&node, &SignalInputs::default(), &NodeDrains::default());
        assert_eq!(answer.truth == Tristate::Yes, is_drained, "{}", answer.because);
    }

    fn condition(kind: &str, status: &str, reason: &str, time: &str) -> Value {
        json!({ "type": kind, "status": status, "reason": reason, "lastTransitionTime": format!("2026-01-01T{time}Z") })
    }

    #[test]
    fn parked_node_names_every_expected_marker() {
        let marks = marks("{anyOf: [openshift, {preset: talos}]}", Some("{label: draining}")).unwrap();
        let because = is_drained(&marks, json!({})).because;
        for mark in ["desiredDrain", "annotation talos.dev/cordoned=true", "label draining"] {
            assert!(because.contains(mark), "{because}");
        }
    }

    #[rstest]
    #[case("always")]
    #[case("{resource: {apiVersion: v1, kind: ConfigMap, when: 'true'}}")]
    #[case("{anyOf: [always, {resource: {apiVersion: v1, kind: ConfigMap, when: 'true'}}]}")]
    fn signal_without_marker_requires_counts_as_drain(#[case] yaml: &str) {
        let error = marks(yaml, None).unwrap_err().to_string();
        assert!(
            error.contains("set countsAsDrain") && error.contains("or to all"),
            "{error}"
        );
    }

    fn node_drain(phase: &str, changes: Value) -> NodeDrains {
        let mut drain = json!({
            "apiVersion": "nodeward.dev/v1alpha1", "kind": "NodeDrain", "metadata": { "name": "n1" },
            "spec": { "nodeName": "n1" }, "status": { "phase": phase },
        });
        for (key, value) in changes.as_object().unwrap() {
            drain["spec"][key] = value.clone();
        }
        let view = NodeDrainView::project(&serde_json::from_value(drain).unwrap()).unwrap();
        NodeDrains::Known([("n1".into(), Ok(Arc::new(view)))].into())
    }

    #[rstest]
    #[case::under_way(node_drain("Draining", json!({})), Tristate::Yes, "its NodeDrain (Draining)")]
    #[case::queued(node_drain("Queued", json!({})), Tristate::Yes, "its NodeDrain (Queued)")]
    #[case::drained(node_drain("Drained", json!({})), Tristate::No, "the node's is Drained")]
    #[case::scheduled(node_drain("Scheduled", json!({})), Tristate::Yes, "its NodeDrain (Scheduled)")]
    #[case::not_taken_up(node_drain("", json!({})), Tristate::Yes, "not taken up yet")]
    #[case::without_a_drainer(node_drain("Suspect", json!({})), Tristate::No, "the node's is Suspect")]
    #[case::a_plan(node_drain("Draining", json!({ "dryRun": true })), Tristate::No, "under way")]
    #[case::an_earlier_node_of_its_name(node_drain("Draining", json!({ "nodeUID": "older" })), Tristate::No, "a NodeDrain of the node")]
    #[case::none(NodeDrains::default(), Tristate::No, "not found: a NodeDrain of the node")]
    #[case::unreadable(NodeDrains::Unknown("nodedrains are forbidden".to_owned()), Tristate::Unknown, "forbidden")]
    fn running_node_drain_marks_its_node(#[case] drains: NodeDrains, #[case] truth: Tristate, #[case] says: &str) {
        let node = cordoned(json!({}));
        let marks = marks("always", Some("nodeDrain")).unwrap();
        let answer = marks.is_being_drained(&node, &SignalInputs::default(), &drains);
        assert_eq!(answer.truth, truth);
        assert!(answer.because.contains(says), "{}", answer.because);
    }

    #[test]
    fn other_marker_suffices_without_readable_node_drains() {
        let node = cordoned(json!({ "annotations": { "talos.dev/cordoned": "true" } }));
        let marks = marks("{preset: talos}", Some("nodeDrain")).unwrap();
        let unknown = NodeDrains::Unknown("forbidden".to_owned());
        let answer = marks.is_being_drained(&node, &SignalInputs::default(), &unknown);
        assert_eq!(answer.truth, Tristate::Yes);
    }

    #[rstest]
    #[case("all", CountsAsDrain::All)]
    #[case("nodeDrain", CountsAsDrain::NodeDrain)]
    #[case("condition", CountsAsDrain::Condition)]
    #[case("{annotation: a}", CountsAsDrain::Mark(NodeMarker::annotation("a")))]
    #[case(
        "{taint: {key: a, value: b, effect: NoSchedule}}",
        CountsAsDrain::Mark(NodeMarker::taint("a", Some("NoSchedule")).with_value("b"))
    )]
    fn every_form_is_read(#[case] yaml: &str, #[case] meant: CountsAsDrain) {
        assert_eq!(serde_yaml::from_str::<CountsAsDrain>(yaml).unwrap(), meant);
    }

    #[rstest]
    #[case("every", "expected all, nodeDrain, condition, or one of {annotation, label, taint}")]
    #[case("5", "expected all")]
    #[case("[all]", "expected all")]
    #[case("{annotations: a}", "unknown field `annotations`")]
    #[case("{annotation: a, label: b}", "both given")]
    fn anything_else_is_refused(#[case] yaml: &str, #[case] says: &str) {
        let error = serde_yaml::from_str::<CountsAsDrain>(yaml).unwrap_err().to_string();
        assert!(error.contains(says), "{error}");
    }
}
