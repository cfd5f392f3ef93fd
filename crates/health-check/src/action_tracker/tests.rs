use std::collections::BTreeSet;

use nodeward_api::reason::HealthReason;
use nodeward_core::node::NodeView;
use rstest::rstest;
use serde_json::json;

use super::*;
use crate::execute::Effect;
use crate::observations::{Findings, Observations};
use crate::observe::project;
use crate::plan::{
    CheckRef, LeaseChange, LeaseName, LeaseStep, NodeChange, RemediationChange, RemediationRef, RemediationWrite,
    StartRemediation, StatusWrite,
};
use crate::snapshot::{KindFacts, Listed, NodeFacts, TemplateFacts, TemplateRef};

fn at(second: i64) -> Timestamp {
    Timestamp::from_second(second).unwrap()
}

fn kind() -> RemediationKind {
    RemediationKind {
        api_version: "a.example.com/v1".into(),
        kind: "Reboot".into(),
    }
}

fn key() -> NamespacedName {
    NamespacedName::new("ns", "n1")
}

fn remediation(version: &str) -> Arc<RemediationFacts> {
    let object = json!({ "metadata": { "namespace": "ns", "name": "n1", "uid": "r1", "resourceVersion": version } });
    Arc::new(project::remediation(kind(), &serde_json::from_value(object).unwrap()).unwrap())
}

fn lease(version: &str) -> Arc<LeaseView> {
    let object = json!({ "metadata": { "name": "node-n1", "resourceVersion": version } });
    Arc::new(LeaseView::project(&serde_json::from_value(object).unwrap()).unwrap())
}

/// Any action will do where only what was written counts.
fn executed(written: impl IntoIterator<Item = Written>) -> Executed {
    let change = LeaseChange {
        name: LeaseName::ControlPlane,
        seen: None,
        step: LeaseStep::GiveBack,
    };
    Executed {
        action: Action::Lease(change),
        effect: Effect {
            written: written.into_iter().collect(),
            ..ActionResult::Acted(()).into()
        },
    }
}

fn written_remediation(base: Option<&str>, facts: Option<Arc<RemediationFacts>>) -> Written {
    Written::Remediation {
        kind: kind(),
        key: key(),
        base: base.map(Into::into),
        facts,
    }
}

fn seen(tracker: &mut ActionTracker, cached: &[Arc<RemediationFacts>], second: i64) -> Vec<Arc<RemediationFacts>> {
    let mut snapshot = Snapshot {
        remediations: cached.to_vec(),
        ..Snapshot::default()
    };
    tracker.overlay(&mut snapshot, at(second));
    snapshot.remediations
}

fn start() -> StartRemediation {
    StartRemediation {
        check: CheckRef {
            name: "workers".into(),
            uid: "c1".into(),
        },
        node: "n1".into(),
        node_uid: "u1".into(),
        step: 0,
        template: TemplateRef {
            api_version: "a.example.com/v1".into(),
            kind: "RebootTemplate".into(),
            namespace: "ns".into(),
            name: "t".into(),
        },
        made_from: Arc::new(TemplateFacts {
            spec: None,
            supports_multiple: false,
        }),
        machine: None,
        kind: kind(),
        key: key(),
        conditions: Vec::new(),
    }
}

fn reference() -> RemediationRef {
    RemediationRef {
        kind: kind(),
        key: key(),
        uid: "r1".into(),
        node: "n1".into(),
    }
}

fn write() -> RemediationWrite {
    RemediationWrite {
        check: start().check,
        remediation: reference(),
        seen: None,
        evidence: None,
    }
}

fn not_annotated(error: ApiError) -> Executed {
    Executed {
        action: Action::AnnotateRemediation(
            RemediationWrite {
                check: start().check,
                remediation: reference(),
                seen: Some(remediation("5")),
                evidence: None,
            },
            RemediationChange::TimedOut(at(0)),
        ),
        effect: ActionResult::Failed(error).into(),
    }
}

#[test]
fn created_remediation_is_there_before_the_watch_shows_it() {
    let mut tracker = ActionTracker::default();
    tracker.completed(&executed([written_remediation(None, Some(remediation("5")))]), 0, at(0));
    assert_eq!(seen(&mut tracker, &[], 1), [remediation("5")]);
    assert_eq!(seen(&mut tracker, &[remediation("6")], 2), [remediation("6")]);
    assert_eq!(
        seen(&mut tracker, &[], 3),
        [],
        "the watch has shown it, and then its end"
    );
}

#[test]
fn create_that_the_watch_never_shows_is_not_believed_for_ever() {
    let mut tracker = ActionTracker::default();
    tracker.completed(&executed([written_remediation(None, Some(remediation("5")))]), 0, at(0));
    assert_eq!(tracker.next_expiry(), Some(at(300)));
    // A watch that has died may be replaced as late as this.
    assert_eq!(seen(&mut tracker, &[], 299), [remediation("5")]);
    assert_eq!(seen(&mut tracker, &[], 300), []);
}

#[test]
fn deleted_remediation_is_gone_before_the_watch_shows_it() {
    let mut tracker = ActionTracker::default();
    tracker.completed(&executed([written_remediation(Some("5"), None)]), 0, at(0));
    assert_eq!(seen(&mut tracker, &[remediation("5")], 1), []);
    assert_eq!(
        seen(&mut tracker, &[remediation("9")], 1),
        [remediation("9")],
        "made again"
    );
}

#[test]
fn lease_counts_from_its_answer_on() {
    let mut tracker = ActionTracker::default();
    let name: Arc<str> = "node-n1".into();
    let taken = Written::Lease {
        name: Arc::clone(&name),
        base: None,
        lease: Some(lease("3")),
    };
    let given_back = Written::Lease {
        name: Arc::clone(&name),
        base: Some("3".into()),
        lease: None,
    };
    let mut leases = |written: Option<&Written>, cached: &[Arc<LeaseView>]| {
        tracker.completed(&executed(written.cloned()), 0, at(0));
        let mut snapshot = Snapshot {
            leases: cached
                .iter()
                .map(|lease| (Arc::clone(&name), Arc::clone(lease)))
                .collect(),
            ..Snapshot::default()
        };
        tracker.overlay(&mut snapshot, at(1));
        snapshot.leases.into_values().collect::<Vec<_>>()
    };
    assert_eq!(leases(Some(&taken), &[]), [lease("3")]);
    assert_eq!(leases(Some(&given_back), &[]), [], "the watch is two versions behind");
    assert_eq!(leases(None, &[lease("3")]), [], "the watch is one version behind");
    assert_eq!(leases(None, &[lease("8")]), [lease("8")], "another has taken it");
}

fn check(version: &str, reason: &str) -> Arc<CheckFacts> {
    let object = json!({
        "metadata": { "name": "workers", "uid": "c1", "resourceVersion": version }, "spec": {}, "status": { "reason": reason },
    });
    Arc::new(project::check(serde_json::from_value(object).unwrap()).unwrap())
}

#[test]
fn status_counts_from_its_answer_on() {
    let mut tracker = ActionTracker::default();
    let status = |base: &str, version: &str, reason: &str| Written::Status {
        check: "workers".into(),
        base: base.into(),
        version: version.into(),
        status: Arc::clone(&check(version, reason).status),
    };
    tracker.completed(&executed([status("1", "2", "first")]), 0, at(0));
    tracker.completed(&executed([status("2", "3", "second")]), 0, at(0));
    for (cached, expected) in [
        (check("1", ""), check("3", "second")),
        (check("2", "first"), check("3", "second")),
        (check("4", "another's"), check("4", "another's")),
    ] {
        let mut snapshot = Snapshot {
            checks: [("workers".into(), cached)].into(),
            ..Snapshot::default()
        };
        tracker.overlay(&mut snapshot, at(1));
        assert_eq!(snapshot.checks["workers"], expected);
    }
}

/// The API server drops the field `observedGeneration`.
#[rstest]
#[case::same("2", "first", 1, true)]
#[case::another_time("2", "first", 9, true)]
#[case::another_version("3", "first", 1, false)]
#[case::another_status("2", "second", 1, false)]
fn status_is_not_written_again_for_dropped_fields(
    #[case] base: &str,
    #[case] reason: &str,
    #[case] second: i64,
    #[case] is_futile: bool,
) {
    let write = |base: &str, reason: &str, second| {
        let status = NodeHealthCheckStatus {
            reason: reason.to_owned(),
            observed_generation: Some(7),
            last_update_time: Some(at(second)),
            ..NodeHealthCheckStatus::default()
        };
        Action::WriteStatus(Box::new(StatusWrite {
            check: start().check,
            base: base.into(),
            status: Arc::new(status),
            announcements: Vec::new(),
        }))
    };
    let mut tracker = ActionTracker::default();
    let stored = |status: Arc<NodeHealthCheckStatus>| Executed {
        action: write("1", "first", 1),
        ..executed([Written::Status {
            check: "workers".into(),
            base: "1".into(),
            version: "2".into(),
            status,
        }])
    };
    tracker.completed(&stored(Arc::clone(&check("2", "first").status)), 0, at(1));
    assert_eq!(tracker.is_futile(&write(base, reason, second)), is_futile);
    tracker.definition_drops(Some(["status.phase".to_owned()].into()));
    assert!(!tracker.is_futile(&write("2", "first", 1)), "another definition");
}

#[test]
fn node_annotation_counts_from_its_answer_on() {
    let mut tracker = ActionTracker::default();
    let written = Written::NodeAnnotation {
        node: "u1".into(),
        annotation: "nodeward.dev/remediations",
        base: None,
        value: Some("1".to_owned()),
    };
    tracker.completed(&executed([written]), 0, at(0));
    let node = json!({ "metadata": { "name": "n1", "uid": "u1" } });
    let facts = NodeFacts {
        view: NodeView::project(&serde_json::from_value(node).unwrap()).unwrap(),
        created: at(0),
        conditions: Box::default(),
        machine: None,
    };
    let mut snapshot = Snapshot {
        nodes: BTreeMap::from([("n1".into(), Arc::new(facts))]).into(),
        ..Snapshot::default()
    };
    tracker.overlay(&mut snapshot, at(1));
    let annotations = &snapshot.nodes["n1"].view.annotations;
    assert_eq!(
        annotations.get("nodeward.dev/remediations").map(String::as_str),
        Some("1")
    );
}

#[test]
fn write_to_a_deleted_object_wakes_nobody_for_ever() {
    let mut tracker = ActionTracker::default();
    let status = Written::Status {
        check: "workers".into(),
        base: "1".into(),
        version: "2".into(),
        status: Arc::clone(&check("2", "").status),
    };
    let annotation = Written::NodeAnnotation {
        node: "u1".into(),
        annotation: "nodeward.dev/remediations",
        base: None,
        value: Some("1".to_owned()),
    };
    tracker.completed(&executed([status, annotation]), 0, at(0));
    let own = tracker.own_versions();
    own.with(|own| own.insert("workers".into(), "2".into()));
    assert_eq!(tracker.next_expiry(), Some(at(10)));
    tracker.overlay(&mut Snapshot::default(), at(10));
    assert_eq!(tracker.next_expiry(), None);
    assert!(own.with(|own| own.is_empty()));
}

#[test]
fn check_that_was_seen_is_remembered() {
    let mut tracker = ActionTracker::default();
    let mut snapshot = Snapshot {
        checks: [("workers".into(), check("1", ""))].into(),
        ..Snapshot::default()
    };
    tracker.overlay(&mut snapshot, at(0));
    tracker.overlay(&mut Snapshot::default(), at(1));
    assert!(tracker.observations(at(1)).checks.contains("workers"));
}

#[test]
fn start_that_fails_three_times_withdraws_its_intent() {
    let failed = Executed {
        action: Action::StartRemediation(Box::new(start())),
        effect: ActionResult::Failed(ApiError::Conflict).into(),
    };
    let mut tracker = ActionTracker::default();
    let mut is_refused = |failures_before| {
        tracker.completed(&failed, failures_before, at(0));
        let observations = tracker.observations(at(1));
        observations.refusal(&"workers".into(), &"n1".into()).is_some()
    };
    assert_eq!([is_refused(0), is_refused(1), is_refused(2)], [false, false, true]);
}

#[test]
fn remediation_that_starts_ends_the_backoff_of_its_refusals() {
    let mut tracker = ActionTracker::default();
    let (check, node) = ("workers".into(), "n1".into());
    let refusal = Standing::new(HealthReason::LeaseTaken, "");
    tracker.observations.start_refused((&check, &node, 0), refusal, at(0));
    let started = Executed {
        action: Action::StartRemediation(Box::new(start())),
        ..executed([])
    };
    tracker.completed(&started, 0, at(5));
    assert!(tracker.observations(at(5)).refusals.is_empty());
}

#[test]
fn kind_that_may_not_be_annotated_is_tried_again_later() {
    let mut tracker = ActionTracker::default();
    let message = String::new();
    tracker.completed(&not_annotated(ApiError::Forbidden { message }), 0, at(0));
    let mut may_annotate = |second| {
        let facts = KindFacts {
            listed: Listed::Complete,
            may_annotate: true,
        };
        let mut snapshot = Snapshot {
            kinds: [(kind(), facts)].into(),
            ..Snapshot::default()
        };
        tracker.overlay(&mut snapshot, at(second));
        snapshot.kinds[&kind()].may_annotate
    };
    assert_eq!((may_annotate(599), may_annotate(600)), (false, true));
}

#[test]
fn lost_leadership_leaves_only_what_was_seen() {
    let mut tracker = ActionTracker::default();
    tracker.completed(&executed([written_remediation(None, Some(remediation("5")))]), 0, at(0));
    let plan = Plan {
        found: Findings {
            unknown_since: [(("n1".into(), HealthReason::UpgradeSignalUnknown), at(0))].into(),
            ..Findings::default()
        },
        ..Plan::default()
    };
    tracker.planned(&plan, true);
    tracker.observations.start_refused(
        (&"workers".into(), &"n1".into(), 0),
        Standing::new(HealthReason::LeaseTaken, ""),
        at(0),
    );
    tracker.on_leadership_lost();
    assert_eq!(seen(&mut tracker, &[], 1), []);
    let observations = tracker.observations(at(1));
    assert!(observations.refusals.is_empty());
    assert_eq!(
        observations.found.unknown_since.keys().collect::<BTreeSet<_>>(),
        [&("n1".into(), HealthReason::UpgradeSignalUnknown)].into()
    );
}

/// As after a pause: what is overdue by then goes on a while later.
#[test]
fn unreadable_emergency_stop_knows_no_end_of_what_stops_a_step() {
    let mut tracker = ActionTracker::default();
    let mut plan = Plan::default();
    plan.found.overdue_stops = Some(BTreeMap::new());
    tracker.planned(&plan, true);
    assert!(tracker.observations(at(0)).found.overdue_stops.is_some());
    let mut stopped = executed([]);
    stopped.effect.result = ActionResult::Stopped(Stop::PauseUnknown);
    tracker.completed(&stopped, 0, at(0));
    assert_eq!(tracker.observations(at(1)).found.overdue_stops, None);
}

#[test]
fn start_is_under_way_until_it_ends() {
    let mut tracker = ActionTracker::default();
    let action = Action::StartRemediation(Box::new(start()));
    let key = action.key();
    let is_starting = |tracker: &mut ActionTracker| {
        let observations = tracker.observations(at(1));
        observations.is_starting(&"workers".into(), &"n1".into())
    };
    assert!(!is_starting(&mut tracker));
    tracker.started(&action);
    tracker.on_leadership_lost();
    assert!(is_starting(&mut tracker), "its create may still be on its way");
    tracker.ended(&key);
    assert!(!is_starting(&mut tracker));
}

#[test]
fn leases_of_another_namespace_are_not_expected() {
    let mut tracker = ActionTracker::default();
    tracker.leases_are_in(&"leases".into());
    let written = Written::Lease {
        name: "node-n1".into(),
        base: None,
        lease: Some(lease("5")),
    };
    tracker.completed(&executed([written]), 0, at(0));
    let mut leases_seen = |namespace: &str| {
        tracker.leases_are_in(&namespace.into());
        let mut snapshot = Snapshot::default();
        tracker.overlay(&mut snapshot, at(1));
        snapshot.leases.len()
    };
    assert_eq!(leases_seen("leases"), 1);
    assert_eq!(leases_seen("others"), 0);
}

#[rstest]
#[case::invalid(ApiError::Invalid { message: String::new() }, true)]
#[case::denied(ApiError::Denied { message: String::new() }, true)]
#[case::passes_by_itself(ApiError::Conflict, false)]
fn annotation_that_is_refused_is_left_out_for_a_while(#[case] error: ApiError, #[case] left_out: bool) {
    let mut tracker = ActionTracker::default();
    tracker.completed(&not_annotated(error), 9, at(0));
    seen(&mut tracker, &[remediation("5")], 599);
    assert_eq!(!tracker.observations(at(599)).unannotated.is_empty(), left_out);
    seen(&mut tracker, &[remediation("5")], 600);
    assert!(tracker.observations(at(600)).unannotated.is_empty());
}

/// A webhook whose pod is on the dead node answers nothing for as long as that is dead: it is told like a refusal, and tried sooner.
#[rstest]
#[case::annotation(not_annotated(ApiError::Timeout).action, |seen: &Observations| !seen.unannotated.is_empty(), 60)]
#[case::annotation_of_a_node(
    Action::AnnotateNode { node: "n1".into(), node_uid: "u1".into(), before: None, change: NodeChange::ConfirmationHeeded },
    |seen: &Observations| !seen.unannotated.is_empty(),
    60
)]
#[case::deletion(Action::DeleteRemediation(write()), |seen: &Observations| !seen.undeleted.is_empty(), 600)]
fn what_fails_again_and_again_is_told_like_a_refusal(
    #[case] action: Action,
    #[case] is_told: fn(&Observations) -> bool,
    #[case] until: i64,
) {
    let mut tracker = ActionTracker::default();
    let failed = Executed {
        action,
        effect: ActionResult::Failed(ApiError::Timeout).into(),
    };
    tracker.completed(&failed, 1, at(0));
    assert!(!is_told(tracker.observations(at(0))));
    tracker.completed(&failed, 2, at(0));
    seen(&mut tracker, &[], until - 1);
    assert!(is_told(tracker.observations(at(until - 1))));
    seen(&mut tracker, &[], until);
    assert!(!is_told(tracker.observations(at(until))));
}

#[test]
fn status_that_fails_again_and_again_is_told_until_it_is_written() {
    let mut tracker = ActionTracker::default();
    let write = |result: ActionResult| Executed {
        action: Action::WriteStatus(Box::new(StatusWrite {
            check: start().check,
            base: "5".into(),
            status: Arc::default(),
            announcements: Vec::new(),
        })),
        effect: result.into(),
    };
    let is_told = |tracker: &mut ActionTracker| tracker.observations(at(0)).unwritten.contains_key("workers");
    tracker.completed(&write(ActionResult::Failed(ApiError::Conflict)), 9, at(0));
    assert!(!is_told(&mut tracker), "the next look ends it");
    tracker.completed(&write(ActionResult::Failed(ApiError::Timeout)), 2, at(0));
    assert!(is_told(&mut tracker));
    tracker.completed(&write(ActionResult::Acted(())), 3, at(0));
    assert!(!is_told(&mut tracker));
}

#[rstest]
#[case::gone(None, true)]
#[case::kept_by_a_finalizer(Some(remediation("6")), false)]
fn delete_tells_what_is_gone(#[case] left: Option<Arc<RemediationFacts>>, #[case] is_gone: bool) {
    let mut tracker = ActionTracker::default();
    let deleted = Executed {
        action: Action::DeleteRemediation(write()),
        ..executed([written_remediation(None, left)])
    };
    tracker.completed(&deleted, 0, at(0));
    assert_eq!(tracker.observations(at(1)).gone.contains("r1"), is_gone);
    tracker.overlay(&mut Snapshot::default(), at(2));
    assert!(tracker.observations(at(2)).gone.is_empty(), "no status names it");
}

/// Its holder's clock is years ahead: it ends when it has not been renewed for as long as it lasts.
#[test]
fn lease_from_the_future_counts_from_when_it_moved() {
    let mut tracker = ActionTracker::default();
    let mut until = |version: &str, second: i64| {
        let lease = LeaseView {
            renewed: Some(at(99_999_999)),
            duration: Some(SignedDuration::from_secs(60)),
            ..(*lease(version)).clone()
        };
        let mut snapshot = Snapshot {
            leases: [(Arc::clone(&lease.name), Arc::new(lease))].into(),
            ..Snapshot::default()
        };
        tracker.overlay(&mut snapshot, at(second));
        snapshot.leases["node-n1"].until()
    };
    assert_eq!(until("1", 10), Some(at(70)));
    assert_eq!(until("1", 60), Some(at(70)));
    assert_eq!(until("2", 65), Some(at(125)), "it was renewed");
}

/// Whichever request a remediation needs a right for.
#[rstest]
#[case::create(Action::StartRemediation(Box::new(start())), "create")]
#[case::annotate(not_annotated(ApiError::Conflict).action, "patch")]
fn missing_right_is_remembered_by_its_verb(#[case] action: Action, #[case] verb: &'static str) {
    let mut tracker = ActionTracker::default();
    let forbidden = ApiError::Forbidden {
        message: "no".to_owned(),
    };
    let refused = Executed {
        action,
        effect: ActionResult::Failed(forbidden).into(),
    };
    tracker.completed(&refused, 0, at(0));
    let forbidden = &tracker.observations(at(1)).forbidden;
    assert!(
        forbidden.contains_key(&("workers".into(), kind(), verb)),
        "{forbidden:?}"
    );
}
