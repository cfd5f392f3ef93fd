use rstest::rstest;
use serde_json::json;

use super::world::{World, at, chain, intents, name, template, template_ref, two_steps, with};
use crate::observations::Observations;
use crate::plan::{Action, Condition, LeaseName, LeaseStep, RestsOn, Standing};
use crate::snapshot::{MachineFacts, Reading, TemplateRef};
use nodeward_api::reason::HealthReason;
use nodeward_core::id::NamespacedName;

#[test]
fn intent_comes_before_the_remediation() {
    let mut world = World::watched(5).failed("w1", 0);
    let first = world.plan(300);
    assert_eq!(first.started(), [""; 0], "the status does not have the intent yet");
    assert_eq!(first.intended("workers"), ["w1"]);
    assert_eq!(first.reason("w1"), HealthReason::StartingRemediation);
    world.apply(first, 300);
    let second = world.plan(300);
    assert_eq!(second.started(), ["w1"]);
    assert!(second.written("workers").is_none());
    world.apply(second, 300);
    let third = world.plan(301);
    assert_eq!(third.reason("w1"), HealthReason::RemediationRunning);
    let record = &third.written("workers").unwrap().unhealthy_nodes[0].remediations[0];
    assert!(record.resource.uid.is_some(), "the uid comes with the next write");
    world.apply(third, 301);
    assert!(world.plan(301).actions.is_empty());
}

#[test]
fn restart_resumes_an_intent_from_the_status_alone() {
    let mut world = World::watched(5).failed("w1", 0);
    let plan = world.plan(300);
    world.apply(plan, 300);
    world.snapshot.memory = Observations::default();
    let resumed = world.plan(310);
    assert_eq!(resumed.started(), ["w1"]);
    let again = world.plan(320);
    assert_eq!(
        resumed.starts()[0].key,
        again.starts()[0].key,
        "it creates the same object"
    );
}

#[test]
fn another_leaders_remediation_fulfils_the_intent() {
    let mut world = World::watched(5).failed("w1", 0);
    let plan = world.plan(300);
    world.apply(plan, 300);
    let start = world.plan(300);
    world.apply(start, 300);
    // The status still has the intent without a uid, as after a kill between the create and the next write.
    let plan = world.plan(305);
    assert_eq!(plan.started(), [""; 0]);
    world.apply(plan, 305);
    assert_eq!(world.remediations(), ["Reboot of w1"]);
    assert_eq!(intents(world.status("workers")), [""; 0]);
}

#[test]
fn start_rests_on_the_conditions_exact_transition() {
    let mut world = World::watched(5).failed("w1", 0);
    let plan = world.plan(300);
    world.apply(plan, 300);
    let plan = world.plan(300);
    let Condition::Node(evidence) = &plan.starts()[0].conditions[0] else {
        panic!("{:?}", plan.starts()[0].conditions);
    };
    let rests_on = &evidence.rests_on;
    let expected = RestsOn::Unhealthy {
        uid: world.snapshot.nodes["w1"].view.uid.clone(),
        type_: "Ready".into(),
        status: Some("Unknown".into()),
        last_transition: Some(at(0)),
    };
    assert_eq!(*rests_on, expected);
}

#[test]
fn remediation_is_made_as_remediators_expect() {
    let mut world = World::watched(5).single().failed("w1", 0);
    world.change_node("w1", |node| {
        node.machine = Some(NamespacedName::new("remediators", "machine-1"));
    });
    let machine = MachineFacts {
        api_version: "machine.openshift.io/v1beta1".into(),
        uid: "machine-uid".into(),
    };
    world.snapshot.machines = Reading::Known([(NamespacedName::new("remediators", "machine-1"), machine)].into());
    let plan = world.plan(300);
    world.apply(plan, 300);
    let plan = world.plan(300);
    let start = plan.starts()[0];
    let node_uid = world.snapshot.nodes["w1"].view.uid.as_str();
    let expected = json!({
        "apiVersion": "remediation.example.org/v1alpha1",
        "kind": "RebootRemediation",
        "metadata": {
            "namespace": "remediators",
            "name": "w1",
            "labels": { "app.kubernetes.io/part-of": "node-healthcheck-controller" },
            "annotations": {
                "remediation.medik8s.io/node-name": "w1",
                "remediation.medik8s.io/template-name": "reboot",
                "nodeward.dev/node-uid": node_uid,
            },
            "ownerReferences": [
                {
                    "apiVersion": "remediation.medik8s.io/v1alpha1", "kind": "NodeHealthCheck", "name": "workers",
                    "uid": "uid-of-workers", "controller": false, "blockOwnerDeletion": false,
                },
                {
                    "apiVersion": "machine.openshift.io/v1beta1", "kind": "Machine", "name": "machine-1",
                    "uid": "machine-uid", "controller": false, "blockOwnerDeletion": false,
                },
            ],
        },
        "spec": { "by": "Reboot" },
    });
    assert_eq!(start.object(), expected);
    let [lease] = *start.leases().collect::<Vec<_>>() else {
        panic!("{:?}", start.conditions);
    };
    assert_eq!(lease.name, LeaseName::Node(name("w1")));
    let LeaseStep::Take(terms) = &lease.step else {
        panic!("{lease:?}");
    };
    assert_eq!(
        (terms.holder.as_str(), terms.duration.as_mins()),
        ("NodeHealthCheck-workers", 11)
    );
    let owner = json!({ "apiVersion": "v1", "kind": "Node", "name": "w1", "uid": node_uid });
    assert_eq!(json!(terms.owner), owner);
}

/// What is made from it has none either, and the status says so as the API server does.
#[test]
fn templates_of_a_kind_without_namespaces_make_remediations_without_one() {
    let mut world = World::workers(5).failed("w1", 0);
    let (global, fence) = (json!({ "namespace": null }), template("Fence"));
    let steps = [with(template("Reboot"), global), fence];
    let step = |(order, template)| json!({ "order": order, "timeout": "5m", "remediationTemplate": template });
    let steps: Vec<_> = steps.into_iter().enumerate().map(step).collect();
    world.set_check(
        "workers",
        json!({ "remediationTemplate": null, "escalatingRemediations": steps }),
    );
    let found = world.snapshot.templates[&template_ref("Reboot")].clone();
    let namespace = "".into();
    let global = TemplateRef {
        namespace,
        ..template_ref("Reboot")
    };
    world.snapshot.templates.insert(global, found);
    world.settle(300);
    assert_eq!(world.snapshot.remediations[0].key.namespace, "".into());
    let resource = &world.entry("w1").unwrap().remediations[0].resource;
    assert_eq!((&resource.namespace, resource.uid.is_some()), (&None, true));
    assert_eq!(world.settle(301).reason("w1"), HealthReason::RemediationRunning);
    world.live(301, 602);
    assert_eq!(
        world.remediations(),
        ["Fence of w1", "Reboot of w1"],
        "one of each step"
    );
    world.heal("w1", 610);
    world.settle(611);
    assert_eq!(world.remediations(), [""; 0]);
}

#[test]
fn machine_of_another_namespace_owns_nothing() {
    let mut world = World::watched(5).failed("w1", 0);
    world.change_node("w1", |node| {
        node.machine = Some(NamespacedName::new("machines", "machine-1"));
    });
    let machine = MachineFacts {
        api_version: "machine.openshift.io/v1beta1".into(),
        uid: "machine-uid".into(),
    };
    world.snapshot.machines = Reading::Known([(NamespacedName::new("machines", "machine-1"), machine)].into());
    let plan = world.plan(300);
    world.apply(plan, 300);
    let owners = world.plan(300).starts()[0].object()["metadata"]["ownerReferences"].clone();
    assert_eq!(owners.as_array().unwrap().len(), 1);
}

#[test]
fn name_with_several_templates_is_cut_and_tells_what_it_is_for() {
    let long = "n".repeat(253);
    let mut world = World::watched(3);
    world.add_node(&long, "worker", -3600);
    world.fail(&long, 0);
    let plan = world.plan(300);
    world.apply(plan, 300);
    let key = world.plan(300).starts()[0].key.clone();
    assert_eq!(key.name.len(), 253);
    assert!(key.name.starts_with(&"n".repeat(242)) && key.name.as_bytes()[242] == b'-');
    let intended = world.entry(&long).unwrap().remediations[0].resource.name.clone();
    assert_eq!(intended.as_deref(), Some(&*key.name));
}

#[test]
fn foreign_remediation_of_the_name_is_left_alone() {
    let mut world = World::watched(5).single().failed("w1", 0);
    world.add_remediation("Reboot", "w1", &["somebody"], 10);
    let plan = world.settle(300);
    assert_eq!(plan.reason("w1"), HealthReason::ForeignRemediation);
    assert_eq!(plan.node("w1").detail, "RebootRemediation remediators/w1");
    world.heal("w1", 400);
    world.settle(400);
    assert_eq!(world.remediations(), ["Reboot of w1"]);
}

#[test]
fn candidates_start_by_expiry_then_by_name() {
    let check = json!({ "maxUnhealthy": "100%", "maxConcurrentRemediations": 3 });
    let mut world = World::workers(6).check("workers", check);
    for (node, since) in [("w5", 50), ("w2", 0), ("w4", 0), ("w1", 100)] {
        world.fail(node, since);
    }
    world.settle(500);
    assert_eq!(world.remediations(), ["Reboot of w2", "Reboot of w4", "Reboot of w5"]);
    assert_eq!(world.plan(500).reason("w1"), HealthReason::ConcurrencyLimitReached);
}

#[rstest]
#[case::node_changed(HealthReason::NodeChanged)]
#[case::lease_taken(HealthReason::LeaseTaken)]
#[case::forbidden(HealthReason::PermissionMissing)]
fn intent_that_came_to_nothing_is_withdrawn_and_tried_again(#[case] reason: HealthReason) {
    let mut world = World::watched(5).failed("w1", 0);
    let plan = world.plan(300);
    world.apply(plan, 300);
    let check = world.plan(300).starts()[0].check.name.clone();
    let memory = &mut world.snapshot.memory;
    memory.start_refused((&check, &name("w1"), 0), Standing::new(reason, "why"), at(300));
    let plan = world.plan(300);
    assert_eq!(plan.started(), [""; 0]);
    assert_eq!(plan.intended("workers"), [""; 0]);
    assert_eq!((plan.reason("w1"), plan.node("w1").detail.as_str()), (reason, "why"));
    assert_eq!(plan.requeue_second(), 305);
    world.apply(plan, 300);
    assert_eq!(
        world.status("workers").phase,
        Some(nodeward_api::node_health_check::Phase::Enabled)
    );
    world.settle(305);
    assert_eq!(world.remediations(), ["Reboot of w1"]);
}

/// One at a time. The first step of `w1` is over at 600, and the second is refused again and again.
fn refused_in_mid_chain() -> World {
    let limited = with(two_steps(), json!({ "maxConcurrentRemediations": 1 }));
    let mut world = World::remediating(limited);
    world.fail("w2", 200);
    refuse(&mut world, 1, 600, 699);
    world
}

/// The API server refuses to create the remediations of a step of `w1`.
fn refuse(world: &mut World, step: usize, from: i64, to: i64) {
    for now in from..=to {
        for _ in 0..4 {
            let plan = world.plan(now);
            world.remember(&plan);
            for action in plan.actions {
                match &action {
                    Action::StartRemediation(start) if start.node.as_str() == "w1" => {
                        assert_eq!(start.step, step);
                        let key = (&start.check.name, &start.node, start.step);
                        let refusal = Standing::new(HealthReason::RemediationRejected, "422");
                        world.snapshot.memory.start_refused(key, refusal, at(now));
                    }
                    _ => assert!(world.try_act(action, now)),
                }
            }
        }
    }
}

#[test]
fn refused_step_gives_its_slot_to_others_after_a_while() {
    let limited = with(two_steps(), json!({ "maxConcurrentRemediations": 1 }));
    let mut world = World::remediating(limited);
    world.fail("w2", 200);
    refuse(&mut world, 1, 600, 674);
    assert_eq!(world.remediations(), ["Reboot of w1"], "it may pass");
    assert_eq!(world.plan(674).reason("w2"), HealthReason::ConcurrencyLimitReached);
    refuse(&mut world, 1, 675, 676);
    assert_eq!(world.remediations(), ["Reboot of w1", "Reboot of w2"]);
    assert_eq!(world.holder("node-w1"), None);
}

/// It is created after all: not before a slot is free.
#[test]
fn refused_step_comes_back_within_the_limit() {
    let mut world = refused_in_mid_chain();
    let at_work = |world: &World| {
        let live = world.snapshot.remediations.iter();
        live.filter(|live| live.timed_out.is_none()).count()
    };
    for now in 700..2500 {
        world.settle(now);
        assert!(at_work(&world) <= 1, "at {now}: {:?}", world.remediations());
    }
    assert_eq!(
        world.remediations(),
        ["Fence of w1", "Fence of w2", "Reboot of w1", "Reboot of w2"]
    );
}

/// No machine is deleted because an admission webhook refuses its reboot.
#[test]
fn refused_first_step_gives_way_to_no_second() {
    let mut world = World::workers(5).check("workers", two_steps()).failed("w1", 0);
    refuse(&mut world, 0, 300, 2000);
    assert_eq!(world.remediations(), [""; 0]);
}

/// The name of the first step has not become free: the second one's turn has come, and it was never refused.
#[test]
fn refusal_is_of_its_step() {
    let mut world = World::workers(5).single().check("workers", two_steps()).failed("w1", 0);
    world.add_remediation("Reboot", "w1", &["somebody"], -100);
    world.succeeded("False");
    let refusal = Standing::new(HealthReason::RemediationRejected, "422");
    let key = (&"workers".into(), &name("w1"), 0);
    world.snapshot.memory.start_refused(key, refusal, at(599));
    world.settle(600);
    assert_eq!(world.remediations(), ["Fence of w1", "Reboot of w1"]);
}

#[test]
fn intent_of_a_node_that_is_fine_again_is_withdrawn() {
    for heals in [true, false] {
        let mut world = World::watched(5).failed("w1", 0);
        let plan = world.plan(300);
        world.apply(plan, 300);
        if heals {
            world.heal("w1", 300);
        } else {
            world.set_condition("w1", "Ready", Some("False"), 300);
        }
        let plan = world.settle(301);
        assert_eq!(world.remediations(), [""; 0]);
        assert_eq!(world.entry("w1"), None, "{plan:?}");
    }
}

#[test]
fn intent_of_an_edited_template_is_replaced() {
    let mut world = World::watched(5).failed("w1", 0);
    let plan = world.plan(300);
    world.apply(plan, 300);
    world.set_check("workers", json!({ "remediationTemplate": template("Fence") }));
    let plan = world.plan(301);
    assert_eq!(plan.started(), [""; 0]);
    world.apply(plan, 301);
    world.settle(301);
    assert_eq!(world.remediations(), ["Fence of w1"]);
}

#[test]
fn dry_run_writes_the_status_alone() {
    let check = json!({ "dryRun": true, "selector": null, "backoff": { "type": "exponential" } });
    let mut world = World::workers(5)
        .check("workers", check)
        .failed("w1", 0)
        .failed("w2", 0);
    let live = world.add_remediation("Reboot", "w2", &["uid-of-workers"], 100);
    world.lease("node-w2", "NodeHealthCheck-workers", -7200, 1);
    world.lease("node-w3", "NodeHealthCheck-workers", 0, 9999);
    assert!(live.node_uid.is_none());
    for second in [300, 301, 60 * 60 * 60] {
        let plan = world.plan(second);
        let is_status = |action: &Action| matches!(action, Action::WriteStatus(_));
        assert!(plan.actions.iter().all(is_status), "{:?}", plan.actions);
        assert_eq!(plan.reason("w1"), HealthReason::WouldRemediate);
        world.apply(plan, second);
    }
    assert_eq!(intents(world.status("workers")), [""; 0]);
    world.heal("w2", 300_000);
    let plan = world.plan(300_000);
    assert_eq!(plan.deleted(), [""; 0]);
    assert_eq!(plan.reason("w2"), HealthReason::RemovingRemediations);
}

#[rstest]
#[case::timed_out(|_: &mut World| {}, HealthReason::Escalating)]
#[case::gone(|w: &mut World| w.remove_node("w1"), HealthReason::RemediatedNodeGone)]
fn dry_run_leaves_running_remediations_alone(#[case] change: fn(&mut World), #[case] reason: HealthReason) {
    let check = with(chain(&[("Reboot", "5m"), ("Fence", "5m")]), json!({ "dryRun": true }));
    let mut world = World::workers(5).check("workers", check).failed("w1", -2000);
    world.add_remediation("Reboot", "w1", &["uid-of-workers"], -1000);
    change(&mut world);
    let plan = world.plan(0);
    assert_eq!(plan.reason("w1"), reason);
    assert_eq!((plan.annotations(), plan.deleted()), (vec![], vec![]));
}

#[test]
fn check_that_turns_to_dry_run_withdraws_its_intent() {
    let mut world = World::watched(5).failed("w1", 0);
    let plan = world.plan(300);
    world.apply(plan, 300);
    world.change_check("workers", |check| check.spec.dry_run = true);
    let plan = world.plan(301);
    assert_eq!(plan.started(), [""; 0]);
    world.apply(plan, 301);
    assert_eq!(intents(world.status("workers")), [""; 0]);
}

/// Its node, says its annotation, is another one.
#[test]
fn name_that_a_foreign_remediation_has_is_not_taken() {
    let mut world = World::watched(5).single().failed("w1", 0);
    world.add_remediation("Reboot", "w1", &["somebody"], 10);
    world.change_remediations(|live| live.node = name("w2"));
    let plan = world.settle(300);
    assert_eq!(plan.reason("w1"), HealthReason::ForeignRemediation);
}

#[rstest]
#[case::another_check(|w: &mut World| w.change_check("workers", |check| check.uid = "made-again".into()))]
#[case::another_node(|w: &mut World| { w.add_node("w1", "worker", -3000); w.fail("w1", 0); })]
#[case::another_template(|w: &mut World| use_template(w, "RebootRemediationTemplate", "other"))]
#[case::another_kind(|w: &mut World| use_template(w, "FenceRemediationTemplate", "reboot"))]
fn name_tells_what_a_remediation_is_for(#[case] change: fn(&mut World)) {
    let name_of = |world: &World| {
        let status = world.plan(300).written("workers").unwrap().clone();
        status.unhealthy_nodes[0].remediations[0].resource.name.clone().unwrap()
    };
    let world = World::watched(5).failed("w1", 0);
    let mut changed = world.clone();
    change(&mut changed);
    assert_ne!(name_of(&changed), name_of(&world));
}

fn use_template(world: &mut World, kind: &str, name: &str) {
    let facts = world.snapshot.templates[&template_ref("Reboot")].clone();
    world.change_check("workers", |check| {
        let template = &mut check.spec.steps[0].template;
        (template.kind, template.name) = (kind.into(), name.into());
    });
    let template = world.snapshot.checks["workers"].spec.steps[0].template.clone();
    world.snapshot.templates.insert(template, facts);
}

#[test]
fn nothing_is_written_beside_a_live_peer() {
    let mut world = World::workers(5).check("workers", chain(&[("Reboot", "5m"), ("Fence", "5m")]));
    world.fail("w1", 0);
    world.settle(300);
    world.fail("w2", 0);
    world.snapshot.peer = Reading::Known(Some("medik8s/x leads".to_owned()));
    let plan = world.plan(900);
    assert!(plan.actions.is_empty(), "{:?}", plan.actions);
    assert_eq!(plan.reason("w1"), HealthReason::PeerActive);
    assert_eq!(plan.reason("w2"), HealthReason::PeerActive);
}

#[test]
fn remediation_seen_in_two_versions_is_one() {
    let mut world = World::watched(5).failed("w1", 0);
    world.settle(300);
    let mut again = crate::snapshot::RemediationFacts::clone(&world.snapshot.remediations[0]);
    again.kind.api_version = "remediation.example.org/v1beta1".into();
    world.snapshot.remediations.push(again.into());
    let plan = world.plan(310);
    assert_eq!(plan.actions, []);
    world.heal("w1", 320);
    assert_eq!(world.plan(320).deleted(), ["w1"]);
}

#[test]
fn unreadable_machines_stop_only_nodes_with_one() {
    let mut world = World::watched(5).failed("w1", 0).failed("w2", 0);
    world.change_node("w1", |node| {
        node.machine = Some(NamespacedName::new("remediators", "machine-1"));
    });
    world.change_node("w2", |node| {
        node.machine = Some(NamespacedName::new("elsewhere", "machine-2"));
    });
    world.snapshot.machines = Reading::Unknown("403".to_owned());
    let plan = world.settle(300);
    assert_eq!(plan.reason("w1"), HealthReason::SourceUnreadable);
    assert_eq!(world.remediations(), ["Reboot of w2"]);
    world.snapshot.machines = Reading::default();
    world.settle(301);
    assert_eq!(world.remediations(), ["Reboot of w1", "Reboot of w2"]);
}

#[test]
fn only_clean_up_goes_on_while_the_peer_is_unknown() {
    let mut world = World::watched(5).failed("w1", 0).failed("w2", 0);
    world.settle(300);
    world.heal("w1", 400);
    world.fail("w3", 0);
    world.snapshot.peer = Reading::Unknown("403".to_owned());
    let plan = world.plan(1000);
    assert_eq!(plan.deleted(), ["w1"]);
    let renewed: Vec<_> = plan.leases().iter().map(|change| change.name.clone()).collect();
    assert_eq!(renewed, [LeaseName::Node(name("w1")), LeaseName::Node(name("w2"))]);
    assert!(
        plan.written("workers").is_none(),
        "two controllers would write it in turns"
    );
    assert_eq!(plan.reason("w3"), HealthReason::SourceUnreadable);
    world.snapshot.peer = Reading::default();
    assert!(world.plan(1000).written("workers").is_some());
}
