use nodeward_api::node_health_check::Phase;
use nodeward_runtime::{Component, Metrics};
use rstest::rstest;

use super::*;
use crate::plan::{CheckVerdict, NodeVerdict};

fn at(second: i64) -> Timestamp {
    Timestamp::from_second(second).unwrap()
}

fn announcer() -> Announcer {
    let metrics = Metrics::new(Component::new("health-check", "1.2.3"));
    Announcer::new(EventSink::silent(&metrics))
}

fn verdicts(reasons: &[(&str, HealthReason)]) -> Verdicts {
    let node = |(name, reason): &(&str, HealthReason)| NodeVerdict {
        check: CheckRef {
            name: "workers".into(),
            uid: "c1".into(),
        },
        node: (*name).into(),
        node_uid: Some(format!("uid-{name}").as_str().into()),
        reason: *reason,
        detail: "2 of 3".to_owned(),
        until: None,
        condition: None,
    };
    Verdicts {
        checks: vec![CheckVerdict {
            check: CheckRef {
                name: "workers".into(),
                uid: "c1".into(),
            },
            phase: Phase::Enabled,
            observed: 3,
            healthy: 2,
            remediating: 0,
            old_remediations: Vec::new(),
            stuck_remediations: Vec::new(),
        }],
        nodes: reasons.iter().map(node).collect(),
        warnings: Vec::new(),
    }
}

/// Kind of the object, its name, reason and action.
fn told(events: &[EventSpec]) -> Vec<(&str, &str, &str, &str)> {
    events
        .iter()
        .map(|event| {
            let object = &event.regarding;
            (
                object.kind.as_deref().unwrap_or_default(),
                object.name.as_deref().unwrap_or_default(),
                event.reason,
                event.action,
            )
        })
        .collect()
}

#[test]
fn refused_nodes_are_told_with_their_own_reasons() {
    let refused = [
        ("n1", HealthReason::TooFewHealthy),
        ("n2", HealthReason::LeaseTaken),
        ("n3", HealthReason::RemediationRunning),
    ];
    let events = announcer().news_of_nodes(&verdicts(&refused), at(0));
    assert_eq!(
        told(&events),
        [
            ("NodeHealthCheck", "workers", "RemediationSkipped", "TooFewHealthy"),
            ("Node", "n1", "RemediationSkipped", "TooFewHealthy"),
            ("NodeHealthCheck", "workers", "RemediationSkipped", "LeaseTaken"),
            ("Node", "n2", "RemediationSkipped", "LeaseTaken"),
        ]
    );
    assert!(events[0].note.contains("2 of 3"), "{}", events[0].note);
}

/// Each is told on the node, with itself as the action.
#[rstest]
fn what_stops_a_remediation_is_told(
    #[values(
        HealthReason::CheckPaused,
        HealthReason::ClusterUpgrading,
        HealthReason::UpgradeSignalUnknown,
        HealthReason::ExcludedByLabel,
        HealthReason::UnderMaintenance,
        HealthReason::LeaseTaken,
        HealthReason::TooFewHealthy,
        HealthReason::StormCooldown,
        HealthReason::ConcurrencyLimitReached,
        HealthReason::BackingOff,
        HealthReason::ControlPlaneNodeAway,
        HealthReason::EtcdQuorumAtRisk,
        HealthReason::CephDomainDown,
        HealthReason::CephStateUnknown,
        HealthReason::RemediatedByAnotherCheck,
        HealthReason::ForeignRemediation,
        HealthReason::EarlierRemediation,
        HealthReason::Settling,
        HealthReason::SourceUnreadable,
        HealthReason::PermissionMissing,
        HealthReason::RemediationRejected,
        HealthReason::WouldRemediate
    )]
    reason: HealthReason,
) {
    let events = announcer().news_of_nodes(&verdicts(&[("n1", reason)]), at(0));
    assert_eq!(told(&events)[1], ("Node", "n1", "RemediationSkipped", reason.as_str()));
}

#[test]
fn exhausted_chain_is_told() {
    let events = announcer().news_of_nodes(&verdicts(&[("n1", HealthReason::ChainExhausted)]), at(0));
    assert_eq!(told(&events)[1], ("Node", "n1", "NoTemplateLeft", "Remediation"));
}

#[rstest]
#[case::a_moment_later(HealthReason::TooFewHealthy, 60, 0)]
#[case::before_its_event_ends(HealthReason::TooFewHealthy, 1800, 2)]
#[case::another_reason(HealthReason::LeaseTaken, 60, 2)]
#[case::after_it_was_healthy(HealthReason::Healthy, 60, 0)]
fn refusal_is_told_again_when_it_changes(#[case] reason: HealthReason, #[case] second: i64, #[case] events: usize) {
    let mut announcer = announcer();
    announcer.news_of_nodes(&verdicts(&[("n1", HealthReason::TooFewHealthy)]), at(0));
    let news = announcer.news_of_nodes(&verdicts(&[("n1", reason)]), at(second));
    assert_eq!(news.len(), events);
}

/// A lease that is renewed is no news, and a backoff that somebody has edited is.
#[rstest]
#[case(HealthReason::BackingOff, 2)]
#[case(HealthReason::LeaseTaken, 0)]
fn end_of_a_backoff_that_moves_is_told(#[case] reason: HealthReason, #[case] events: usize) {
    let mut announcer = announcer();
    let mut refused = verdicts(&[("n1", reason)]);
    for (until, expected) in [(100, 2), (100, 0), (200, events)] {
        refused.nodes[0].until = Some(at(until));
        assert_eq!(
            announcer.news_of_nodes(&refused, at(0)).len(),
            expected,
            "until {until}"
        );
    }
}

#[test]
fn next_leader_tells_it_again() {
    let mut announcer = announcer();
    let refused = verdicts(&[("n1", HealthReason::TooFewHealthy)]);
    announcer.news_of_nodes(&refused, at(0));
    announcer.forget();
    assert_eq!(announcer.news_of_nodes(&refused, at(1)).len(), 2);
}
