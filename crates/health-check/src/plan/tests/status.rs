use std::sync::Arc;

use jiff::SignedDuration;
use nodeward_api::condition::PERMISSION_MISSING;
use nodeward_api::node_health_check::{NodeHealthCheckStatus, Phase};
use nodeward_api::reason::{HealthEvent, HealthReason};
use nodeward_runtime::{ActionResult, ApiError};
use rstest::rstest;
use serde_json::json;

use super::world::{API, World, at, chain, kind, template_ref};
use crate::plan::{Action, Announcement, plan};
use crate::snapshot::{Listed, TemplateState};

fn announced(world: &World, second: i64) -> Vec<Announcement> {
    let plan = world.plan(second);
    let writes = plan.actions.into_iter().filter_map(|action| match action {
        Action::WriteStatus(write) => Some(write.announcements),
        _ => None,
    });
    writes.flatten().collect()
}

fn events(world: &World, second: i64) -> Vec<HealthEvent> {
    announced(world, second)
        .into_iter()
        .map(|announcement| announcement.event)
        .collect()
}

#[test]
fn phase_follows_what_comes_first() {
    let mut world = World::watched(5);
    world.settle(0);
    assert_eq!(world.status("workers").phase, Some(Phase::Enabled));
    world.fail("w1", 0);
    world.settle(300);
    assert_eq!(world.status("workers").phase, Some(Phase::Remediating));
    assert_eq!(world.status("workers").reason, "remediating w1");
    world.change_check("workers", |check| check.spec.pauses.push("alice".to_owned()));
    world.settle(310);
    assert_eq!(world.status("workers").phase, Some(Phase::Paused));
    assert_eq!(world.status("workers").reason, "paused by: alice");
    world
        .snapshot
        .templates
        .insert(template_ref("Reboot"), TemplateState::NotFound);
    world.settle(320);
    assert_eq!(world.status("workers").phase, Some(Phase::Disabled));
}

#[test]
fn status_has_the_same_keys_as_the_peers() {
    let mut world = World::workers(5)
        .check("workers", chain(&[("Reboot", "5m"), ("Fence", "5m")]))
        .failed("w1", 0);
    world.settle(300);
    world.settle(600);
    let status = serde_json::to_value(world.status("workers")).unwrap();
    let records = status["unhealthyNodes"][0]["remediations"].clone();
    let expected = json!([
        {
            "resource": {
                "apiVersion": "remediation.example.org/v1alpha1", "kind": "RebootRemediation", "namespace": "remediators",
                "name": records[0]["resource"]["name"], "uid": records[0]["resource"]["uid"],
            },
            "started": at(300).to_string(), "timedOut": at(600).to_string(), "templateName": "reboot",
        },
        {
            "resource": {
                "apiVersion": "remediation.example.org/v1alpha1", "kind": "FenceRemediation", "namespace": "remediators",
                "name": records[1]["resource"]["name"], "uid": records[1]["resource"]["uid"],
            },
            "started": at(600).to_string(), "templateName": "fence",
        },
    ]);
    assert_eq!(records, expected);
    assert!(status["lastUpdateTime"].is_string() && status["observedGeneration"] == 1);
    let condition = &status["conditions"][0];
    assert_eq!(
        (&condition["type"], &condition["status"]),
        (&json!("Disabled"), &json!("False"))
    );
    assert_eq!(condition["reason"], "NodeHealthCheckEnabled");
}

#[test]
fn unhealthy_node_without_a_remediation_is_listed() {
    let mut world = World::watched(5).failed("w1", 0);
    world.snapshot.settle_until = Some(at(9999));
    world.settle(299);
    assert_eq!(world.entry("w1"), None);
    world.settle(300);
    assert_eq!(world.entry("w1").unwrap().remediations, []);
}

/// Each node, and each once: not only the first one, which the reason of the status names.
#[test]
fn each_stopped_node_is_told_with_what_stops_it() {
    let mut world = World::workers(9)
        .check("workers", json!({ "maxConcurrentRemediations": 1 }))
        .failed("w1", 0);
    world.settle(300);
    world.fail_all(["w2", "w3"], 1);
    world.change_node("w3", |node| {
        drop(node.view.annotations.insert("upgrading".to_owned(), String::new()));
        let history = json!({ "count": 5, "lastEnd": at(300) }).to_string();
        drop(
            node.view
                .annotations
                .insert("nodeward.dev/remediations".to_owned(), history),
        );
    });
    world.settle(301);
    let stop = |node: &str| world.entry(node).unwrap().stopped_by.clone();
    let told = |node: &str| stop(node).map(|stop| (stop.reason, stop.message, stop.until));
    assert_eq!(told("w1"), None);
    let limit = (HealthReason::ConcurrencyLimitReached, "1 of 1: w1".to_owned(), None);
    assert_eq!(told("w2"), Some(limit));
    let until = at(300 + 480);
    let backoff = (HealthReason::BackingOff, format!("until {until}"), Some(until));
    assert_eq!(told("w3"), Some(backoff));
    assert!(world.plan(305).written("workers").is_none(), "nothing has changed");
}

/// The holder of a lease renews it, and a silent watch is looked at again: neither makes a write.
#[test]
fn stop_that_goes_on_is_written_once() {
    let mut world = World::watched(5).failed("w1", 0);
    world.lease("node-w1", "somebody", 290, 1);
    world.settle(300);
    assert_eq!(world.entry("w1").unwrap().stopped_by.as_ref().unwrap().until, None);
    world.lease("node-w1", "somebody", 305, 1);
    assert!(world.plan(310).written("workers").is_none());
    let mut world = World::watched(5).failed("w1", 0);
    world.snapshot.nodes_silent_for = SignedDuration::from_mins(5);
    world.settle(300);
    let planned = world.plan(305);
    assert_eq!(planned.requeue_second(), 310);
    assert!(planned.written("workers").is_none());
}

#[test]
fn deprecated_field_is_cleared() {
    let mut world = World::watched(5);
    world.change_check("workers", |check| {
        Arc::make_mut(&mut check.status).in_flight_remediations = [("w1".to_owned(), at(0))].into();
    });
    world.settle(0);
    assert!(world.status("workers").in_flight_remediations.is_empty());
}

#[test]
fn status_is_written_only_when_it_changes() {
    let mut world = World::watched(5);
    world.settle(100);
    assert_eq!(world.status("workers").last_update_time, Some(at(100)));
    assert!(world.plan(200).written("workers").is_none());
    world.fail("w1", 150);
    world.settle(200);
    assert_eq!(world.status("workers").last_update_time, Some(at(200)));
}

/// `w1` expires at 300.
#[rstest]
#[case::counts_alone(100, |w: &mut World| w.fail("w2", 299), false)]
#[case::long_before_it(300, |w: &mut World| w.fail("w2", 299), true)]
#[case::another_is_due(100, |w: &mut World| { w.snapshot.settle_until = Some(at(9999)); w.fail("w2", -1); }, true)]
#[case::another_condition(100, |w: &mut World| w.set_check("workers", json!({ "stormCooldownDuration": "1m" })), true)]
#[case::a_person_paused(100, |w: &mut World| w.change_check("workers", |check| check.spec.pauses.push("me".to_owned())), true)]
fn counts_are_written_with_an_expiry_that_is_near(
    #[case] before_ms: i64,
    #[case] changed: fn(&mut World),
    #[case] is_written: bool,
) {
    let mut world = World::watched(5).failed("w1", 0);
    world.settle(299);
    changed(&mut world);
    let planned = plan(
        &world.snapshot,
        &world.policy,
        at(300) - SignedDuration::from_millis(before_ms),
    );
    assert_eq!(planned.written("workers").is_some(), is_written);
    assert_eq!(planned.requeue_second(), 300, "that writes them, too");
    assert!(world.plan(300).written("workers").is_some());
}

#[test]
fn unchanged_condition_keeps_its_time() {
    let mut world = World::watched(5);
    world.settle(100);
    world
        .snapshot
        .templates
        .insert(template_ref("Reboot"), TemplateState::NotFound);
    world.settle(200);
    world
        .snapshot
        .templates
        .insert(template_ref("Reboot"), TemplateState::KindAbsent);
    world.settle(300);
    let condition = &world.status("workers").conditions[0];
    assert_eq!(condition.last_transition_time.0, at(200));
    assert!(condition.message.contains("not served"), "{}", condition.message);
}

#[test]
fn template_that_is_not_read_yet_does_not_flip_the_condition() {
    let mut world = World::watched(5);
    world.settle(100);
    world
        .snapshot
        .templates
        .insert(template_ref("Reboot"), TemplateState::Unknown);
    world.settle(200);
    let condition = &world.status("workers").conditions[0];
    assert_eq!(
        (condition.status.as_str(), condition.last_transition_time.0),
        ("False", at(100))
    );
}

#[test]
fn conditions_of_others_stay() {
    let mut world = World::watched(5);
    let stored: NodeHealthCheckStatus = serde_json::from_value(json!({ "conditions": [
        { "type": "Theirs", "status": "True", "reason": "R", "message": "", "lastTransitionTime": at(0).to_string() },
    ] }))
    .unwrap();
    world.change_check("workers", |check| check.status = stored.into());
    world.settle(10);
    let types: Vec<&str> = world
        .status("workers")
        .conditions
        .iter()
        .map(|condition| &*condition.type_)
        .collect();
    assert_eq!(types, ["Theirs", "Disabled"]);
}

#[test]
fn transitions_are_announced_once() {
    let mut world = World::watched(5);
    assert_eq!(events(&world, 0), [], "being enabled is nothing new");
    world.settle(0);
    world
        .snapshot
        .templates
        .insert(template_ref("Reboot"), TemplateState::NotFound);
    assert_eq!(events(&world, 10), [HealthEvent::Disabled]);
    world.settle(10);
    assert_eq!(events(&world, 11), []);
    world.template("Reboot", true);
    assert_eq!(events(&world, 20), [HealthEvent::Enabled]);
    world.settle(20);
    world.fail("w1", 0);
    let told = announced(&world, 300);
    assert_eq!(told.len(), 1);
    assert_eq!(told[0].event, HealthEvent::DetectedUnhealthy);
    assert!(told[0].note.contains("Ready is Unknown since"), "{}", told[0].note);
    world.settle(300);
    assert_eq!(events(&world, 301), []);
    world.fail("w2", 100);
    assert_eq!(
        events(&world, 400),
        [HealthEvent::DetectedUnhealthy],
        "of the second alone"
    );
}

/// The only step of the node is over, and its remediation is gone.
fn record_gone_step(world: &mut World, node: &str) {
    let resource = json!({
        "apiVersion": API, "kind": "RebootRemediation", "namespace": "remediators", "name": node, "uid": "gone",
    });
    let over = json!({
        "resource": resource, "started": at(-5000).to_string(), "timedOut": at(-4500).to_string(), "templateName": "reboot",
    });
    let status = json!({ "unhealthyNodes": [{ "name": node, "remediations": [over] }] });
    let status: NodeHealthCheckStatus = serde_json::from_value(status).unwrap();
    world.change_check("workers", |check| check.status = status.into());
}

#[test]
fn status_too_large_drops_the_oldest_steps_that_are_still_there() {
    let check = json!({ "maxUnhealthy": "100%", "pauseRequests": ["me"] });
    let mut world = World::workers(0).check("workers", check);
    for number in 0..4000 {
        let node = format!("a-node-with-a-rather-long-name-such-as-clouds-make-them-{number:04}.example.org");
        world.add_node(&node, "worker", -9000);
        world.fail(&node, -8000);
        if number == 0 {
            record_gone_step(&mut world, &node);
        } else {
            world.add_remediation("Reboot", &node, &["uid-of-workers"], -1500 + number / 4);
        }
    }
    let plan = world.plan(0);
    let status = plan.written("workers").unwrap();
    assert!(serde_json::to_vec(status).unwrap().len() <= 1_000_000);
    assert!(status.reason.contains("are not listed"), "{}", status.reason);
    assert_eq!(status.unhealthy_nodes.len(), 4000, "the nodes stay");
    let listed = |at: usize| !status.unhealthy_nodes[at].remediations.is_empty();
    assert!(!listed(1) && listed(3999), "the oldest go");
    assert!(listed(0), "nothing else tells of a step whose remediation is gone");
    world.apply(plan, 0);
    assert!(world.plan(1).written("workers").is_none(), "it comes to rest");
}

/// Names and texts of any length, and not their number, make a status too large.
#[test]
fn few_remediations_beside_many_nodes_are_measured_too() {
    let mut world = World::workers(0).check(
        "workers",
        json!({ "maxUnhealthy": "100%", "maxConcurrentRemediations": 400 }),
    );
    for number in 0..4400 {
        let node = format!(
            "{}-{number:04}.example.org",
            "a-node-with-a-very-long-name-such-as-nobody-should-give".repeat(3)
        );
        world.add_node(&node, "worker", -9000);
        world.fail(&node, -8000);
        if number < 400 {
            world.add_remediation("Reboot", &node, &["uid-of-workers"], -4000 + number);
        }
    }
    let status = world.plan(0).written("workers").unwrap().clone();
    let size = serde_json::to_vec(&status).unwrap().len();
    assert!(size <= 1_000_000, "{size}");
    assert!(status.reason.contains("are not listed"), "{}", status.reason);
}

#[test]
fn reason_does_not_grow_with_the_pause_requests() {
    let long = "ü".repeat(600_000);
    let mut world = World::workers(5).check("workers", json!({ "pauseRequests": [long, "b"] }));
    world.settle(10);
    assert!(world.status("workers").reason.len() < 4200);
}

fn missing(world: &World) -> Option<&str> {
    let mut conditions = world.status("workers").conditions.iter();
    let found = conditions.find(|condition| condition.type_ == PERMISSION_MISSING)?;
    assert_eq!((&*found.status, &*found.reason), ("True", "PermissionMissing"));
    Some(&found.message)
}

/// What is refused, and what may not be listed, in the server's words.
#[test]
fn missing_right_is_a_condition_while_it_is_missing() {
    let mut world = World::watched(5);
    world.settle(0);
    assert_eq!(missing(&world), None);
    let refused = |message: &str| {
        ActionResult::Failed(ApiError::Forbidden {
            message: message.to_owned(),
        })
    };
    let right = |check: &str, verb| (check.into(), kind("Reboot"), verb);
    let words = "reboots \"w1\" is forbidden: User \"u\" cannot delete resource \"reboots\"";
    let memory = &mut world.snapshot.memory;
    memory.asked(right("workers", "delete"), &refused(words), at(10));
    memory.asked(right("others", "create"), &refused("not for this one"), at(10));
    world.settle(10);
    assert_eq!(missing(&world), Some("User \"u\" cannot delete resource \"reboots\""));
    let facts = world.snapshot.kinds.get_mut(&kind("Reboot")).unwrap();
    facts.listed = Listed::Forbidden("User \"u\" cannot list resource \"reboots\"".to_owned());
    world.settle(20);
    let both = "User \"u\" cannot delete resource \"reboots\"; User \"u\" cannot list resource \"reboots\"";
    assert_eq!(missing(&world), Some(both));
    world.snapshot.kinds.get_mut(&kind("Reboot")).unwrap().listed = Listed::Complete;
    world
        .snapshot
        .memory
        .asked(right("workers", "create"), &ActionResult::Acted(()), at(30));
    world.settle(30);
    assert!(missing(&world).is_some(), "another verb does not tell");
    world
        .snapshot
        .memory
        .asked(right("workers", "delete"), &ActionResult::Acted(()), at(40));
    world.settle(40);
    assert_eq!(missing(&world), None);
}

/// Nobody needs the right any more, or it was granted.
#[test]
fn right_that_is_not_refused_again_is_forgotten() {
    let mut world = World::watched(5);
    let refused = ActionResult::Failed(ApiError::Forbidden {
        message: "no".to_owned(),
    });
    let right = ("workers".into(), kind("Reboot"), "create");
    world.snapshot.memory.asked(right, &refused, at(10));
    world.snapshot.memory.forget_old(at(609));
    world.settle(609);
    assert_eq!(missing(&world), Some("no"));
    world.snapshot.memory.forget_old(at(610));
    world.settle(610);
    assert_eq!(missing(&world), None);
}
