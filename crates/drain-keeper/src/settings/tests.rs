use jiff::SignedDuration;
use nodeward_core::node::NodeView;
use nodeward_core::signal::{PdbForceDrainTimeout, UpgradeSignal};
use nodeward_core::strategy::Waits;
use rstest::rstest;
use serde_json::{Value, json};

use super::*;
use crate::policy::{OverrideBudgets, UnmanagedPods};

fn policy(text: &str) -> Policy {
    Settings::parse(text).unwrap_or_else(|error| panic!("{error}")).policy
}

fn waits_of(policy: &Policy, labels: Value) -> Waits {
    let node = json!({ "metadata": { "name": "n", "labels": labels }, "spec": { "unschedulable": true } });
    let node = NodeView::project(&serde_json::from_value(node).unwrap()).unwrap();
    policy.waits_for(&node, &PdbForceDrainTimeout::NotSet)
}

fn waits(time_out: i64, expected_drain: i64, budget_force: i64, force_after: i64) -> Waits {
    Waits {
        time_out: SignedDuration::from_mins(time_out),
        expected_drain: SignedDuration::from_mins(expected_drain),
        budget_force: SignedDuration::from_mins(budget_force),
        force_after: SignedDuration::from_mins(force_after),
        surge: SignedDuration::MAX,
    }
}

#[rstest]
#[case::nothing("")]
#[case::comments("# nothing\n")]
#[case::an_empty_map("{}")]
#[case::empty_blocks("{nodeDrain: {}, limits: {}, pools: [], nodeSelector: {}}")]
fn what_is_absent_is_its_default_and_never_zero(#[case] text: &str) {
    let policy = policy(text);
    assert_eq!(waits_of(&policy, json!({})), waits(45, 8, 60, 5));
    assert_eq!(policy.flap_tolerance, SignedDuration::from_mins(2));
    assert_eq!(policy.override_spacing, SignedDuration::from_mins(10));
    assert_eq!((policy.forced_per_node, policy.forced_per_minute.get()), (5, 30));
    assert_eq!(
        policy.protected_finalizers,
        [
            "batch.kubernetes.io/job-tracking",
            "foregroundDeletion",
            "orphan",
            "kueue.x-k8s.io/managed",
            "workflows.argoproj.io/status"
        ]
    );
    assert_eq!(
        policy.unmanaged_pods,
        UnmanagedPods::Delete,
        "the openshift signal is the default"
    );
    assert!(policy.signal == UpgradeSignal::default() && !policy.force_on_unreachable);
    assert_eq!(policy.managed_upgrade_config_map, None);
}

/// Every field, as the documentation writes them.
const EVERY_FIELD: &str = r#"
nodeDrain: { timeOut: 30, expectedNodeDrainTime: 4, disableDrainStrategies: true, ignoredNamespacePatterns: ["^kube-"] }
pdbForceDrainTimeout: "20m"
forceAfter: "90s"
overrideSpacing: "7m"
flapTolerance: "30s"
upgradeSignal:
  anyOf:
    - openshift
    - { preset: kured }
    - { node: { taint: { key: a.io/upgrading, effect: NoSchedule } } }
    - { resource: { apiVersion: a.io/v1, kind: Fleet, when: "object.status.phase == 'Upgrading'" } }
countsAsDrain: { annotation: a.io/draining }
nodeSelector: { matchLabels: { pool: blue } }
protectedFinalizers: [a.io/x]
unmanagedPods: keep
forceOnUnreachable: true
overrideBudgets: labelled
limits: { forcedPerNode: 3, forcedPerMinute: 10 }
pools: [ { selector: { pool: slow }, nodeDrain: { timeOut: "2h" } } ]
managedUpgradeConfigMap: {}
"#;

#[test]
fn every_field_is_read() {
    let policy = policy(EVERY_FIELD);
    let force_after = SignedDuration::from_secs(90);
    assert_eq!(
        waits_of(&policy, json!({})),
        Waits {
            force_after,
            ..waits(30, 4, 20, 0)
        }
    );
    assert_eq!(
        waits_of(&policy, json!({ "pool": "slow" })),
        Waits {
            force_after,
            ..waits(120, 4, 20, 0)
        }
    );
    assert_eq!(policy.flap_tolerance, SignedDuration::from_secs(30));
    assert_eq!(policy.override_spacing, SignedDuration::from_mins(7));
    assert_eq!((policy.forced_per_node, policy.forced_per_minute.get()), (3, 10));
    assert_eq!(
        (policy.unmanaged_pods, policy.force_on_unreachable),
        (UnmanagedPods::Keep, true)
    );
    assert_eq!(policy.override_budgets, OverrideBudgets::Labelled);
    assert_eq!(policy.protected_finalizers, ["a.io/x"]);
    let config_map = policy.managed_upgrade_config_map.unwrap();
    assert_eq!(
        (config_map.namespace.as_str(), config_map.name.as_str()),
        ("openshift-managed-upgrade-operator", "managed-upgrade-operator-config")
    );
}

#[rstest]
#[case::default("{}", OverrideBudgets::All)]
#[case::openshift("upgradeSignal: openshift", OverrideBudgets::All)]
#[case::machine_config_pools("upgradeSignal: machineConfigPool", OverrideBudgets::All)]
#[case::machine_config_operator("upgradeSignal: {preset: machineConfig}", OverrideBudgets::All)]
#[case::all_of_openshift("upgradeSignal: {anyOf: [openshift, {preset: machineConfig}]}", OverrideBudgets::All)]
#[case::another_beside_it("upgradeSignal: {anyOf: [openshift, {preset: kured}]}", OverrideBudgets::Never)]
#[case::another("upgradeSignal: {preset: karpenter}", OverrideBudgets::Never)]
#[case::always("{upgradeSignal: always, countsAsDrain: all}", OverrideBudgets::Never)]
#[case::chosen("{upgradeSignal: {preset: kured}, overrideBudgets: all}", OverrideBudgets::All)]
#[case::chosen_against("overrideBudgets: never", OverrideBudgets::Never)]
fn budgets_are_overridden_by_default_only_as_openshift_does(#[case] text: &str, #[case] choice: OverrideBudgets) {
    assert_eq!(policy(text).override_budgets, choice);
}

#[rstest]
#[case::zero("nodeDrain: {timeOut: 0}", "nodeDrain.timeOut", "more than 0")]
#[case::zero_text("forceAfter: '0s'", "forceAfter", "more than 0")]
#[case::negative("pdbForceDrainTimeout: -5", "pdbForceDrainTimeout", "negative")]
#[case::negative_text("overrideSpacing: '-5m'", "overrideSpacing", "negative")]
#[case::fraction("flapTolerance: 1.5", "flapTolerance", "whole number")]
#[case::not_a_time(
    "nodeDrain: {expectedNodeDrainTime: soon}",
    "nodeDrain.expectedNodeDrainTime",
    "not a duration"
)]
#[case::too_long("nodeDrain: {timeOut: 99999999999}", "nodeDrain.timeOut", "too long")]
#[case::unknown_field("nodeDrian: {}", "nodeDrian", "unknown field")]
#[case::unknown_field_inside("nodeDrain: {timeout: 5}", "nodeDrain.timeout", "unknown field")]
#[case::remediations_of_the_core_group(
    "remediationKinds: [{apiVersion: v1, kind: Pod}]",
    "remediationKinds[0]",
    "group"
)]
#[case::unknown_field_in_a_pool("pools: [{selector: {}, nodeDrain: {}, name: a}]", "pools[0].name", "unknown field")]
#[case::unknown_field_in_limits("limits: {forcedPerHour: 1}", "limits.forcedPerHour", "unknown field")]
#[case::bad_pattern(
    "nodeDrain: {ignoredNamespacePatterns: ['^ok$', 'a(b']}",
    "nodeDrain.ignoredNamespacePatterns[1]",
    "character 2"
)]
#[case::bad_pattern_in_a_pool(
    "pools: [{selector: {}, nodeDrain: {ignoredNamespacePatterns: ['[']}}]",
    "pools[0].nodeDrain.ignoredNamespacePatterns[0]",
    "character 1"
)]
#[case::bad_expression(
    "{countsAsDrain: all, upgradeSignal: {resource: {apiVersion: a.io/v1, kind: A, when: 'object.'}}}",
    "upgradeSignal",
    "when"
)]
#[case::unknown_signal("upgradeSignal: openshfit", "upgradeSignal", "openshfit")]
#[case::unknown_preset("upgradeSignal: {preset: kurd}", "upgradeSignal.preset", "kurd")]
#[case::empty_any_of("upgradeSignal: {anyOf: []}", "upgradeSignal", "at least one")]
#[case::always_without_a_mark("upgradeSignal: always", "countsAsDrain", "set countsAsDrain")]
#[case::resource_without_a_mark(
    "upgradeSignal: {resource: {apiVersion: a.io/v1, kind: A, when: 'true'}}",
    "countsAsDrain",
    "set countsAsDrain"
)]
#[case::zero_limit("limits: {forcedPerNode: 0}", "limits.forcedPerNode", "nonzero")]
#[case::negative_limit("limits: {forcedPerMinute: -1}", "limits.forcedPerMinute", "-1")]
#[case::unknown_opt_out("optOuts: {honour: [nodewards]}", "optOuts.honour[0]", "nodewards")]
#[case::opt_out_without_time("optOuts: {maxDuration: 0}", "optOuts.maxDuration", "more than 0")]
#[case::opt_outs_without_selector("optOuts: {namespaces: {}}", "optOuts.namespaces", "selector")]
#[case::unknown_choice("unmanagedPods: remove", "unmanagedPods", "keep")]
#[case::unknown_budgets("overrideBudgets: some", "overrideBudgets", "labelled")]
#[case::bad_selector(
    "nodeSelector: {matchExpressions: [{key: a, operator: Near}]}",
    "nodeSelector",
    "Near"
)]
#[case::mixed_selector("nodeSelector: {matchLabels: {a: b}, pool: blue}", "nodeSelector", "pool")]
#[case::label_that_is_no_text("nodeSelector: {zone: 1}", "nodeSelector", "quotes")]
#[case::pool_without_a_selector("pools: [{nodeDrain: {}}]", "pools[0]", "selector")]
#[case::window_that_never_opens("windows: [{days: [], from: '22:00', to: '04:00'}]", "windows[0]", "never opens")]
#[case::zone_that_does_not_exist(
    "windows: [{from: '22:00', to: '04:00', timeZone: Berlin}]",
    "windows[0]",
    "such as Europe/Berlin"
)]
#[case::empty_window("windows: [{from: '22:00', to: '22:00'}]", "windows[0]", "let them differ")]
#[case::not_a_map("[]", "", "")]
#[case::not_yaml("nodeDrain: {timeOut: ", "nodeDrain.timeOut", "did not find")]
fn bad_value_is_refused_with_field_and_cause(#[case] text: &str, #[case] path: &str, #[case] says: &str) {
    let error = Settings::parse(text).expect_err(text).located_in(text);
    let shown = error.to_string();
    assert_eq!(error.path().unwrap_or_default(), path, "{shown}");
    assert!(shown.contains(says), "{shown}");
    let is_in_the_text = text.contains(path.split(['.', '[']).next().unwrap()) && !path.is_empty();
    assert!(!is_in_the_text || error.line().is_some(), "{shown}");
}

/// A line that was left unfinished is not a default: an empty list of protected finalizers would protect none.
#[rstest]
#[case("nodeDrain: {timeOut: }", "nodeDrain.timeOut")]
#[case("nodeDrain: {disableDrainStrategies: null}", "nodeDrain.disableDrainStrategies")]
#[case("protectedFinalizers:", "protectedFinalizers")]
#[case("unmanagedPods:", "unmanagedPods")]
#[case("countsAsDrain:", "countsAsDrain")]
#[case("upgradeSignal:", "upgradeSignal")]
#[case("nodeSelector:", "nodeSelector")]
#[case("nodeDrain:", "nodeDrain")]
#[case("limits: ~", "limits")]
#[case("optOuts: {honour: }", "optOuts.honour")]
#[case("limits: {forcedPerNode: }", "limits.forcedPerNode")]
#[case("pools:", "pools")]
#[case("pools: [{selector: , nodeDrain: {}}]", "pools[0].selector")]
#[case("forceOnUnreachable:", "forceOnUnreachable")]
#[case("managedUpgradeConfigMap:", "managedUpgradeConfigMap")]
fn a_field_without_a_value_is_refused(#[case] text: &str, #[case] path: &str) {
    let error = Settings::parse(text).expect_err(text);
    assert_eq!(error.path(), Some(path), "{error}");
    assert!(error.message().contains("no value"), "{error}");
}

/// A time in its place in the file, for whoever mends it.
#[test]
fn an_error_names_the_line() {
    let text = "forceAfter: 5m\nnodeDrain:\n  timeOut: 45\n  ignoredNamespacePatterns:\n    - ok\n    - '('\n";
    let error = Settings::parse(text).unwrap_err().located_in(text);
    assert_eq!(error.line(), Some(6), "{error}");
}

/// The peer's file as it is shipped, with blocks and fields that are none of ours.
const THEIRS: &str = r#"
configManager: { source: OCM, watchInterval: 60 }
maintenance: { controlPlaneTime: 90, ignoredAlerts: { controlPlaneCriticals: [etcdMembersDown] } }
scale: { timeOut: 30 }
nodeDrain:
  timeOut: 50
  expectedNodeDrainTime: 9
  ignoredNamespacePatterns: ["^openshift-"]
  somethingNew: { anything: 0 }
healthCheck: { ignoredCriticals: [] }
"#;

#[test]
fn peer_node_drain_replaces_ours_as_a_whole() {
    let ours = "{nodeDrain: {timeOut: 30, disableDrainStrategies: true}, pdbForceDrainTimeout: 20, forceAfter: 6, \
                pools: [{selector: {pool: slow}, nodeDrain: {timeOut: 100}}]}";
    let policy = Settings::parse(ours)
        .unwrap()
        .with_managed_upgrade_config(THEIRS)
        .unwrap();
    assert_eq!(waits_of(&policy, json!({})), waits(50, 9, 20, 6));
    assert_eq!(
        waits_of(&policy, json!({ "pool": "slow" })),
        waits(100, 9, 20, 6),
        "pools count on top of it"
    );
    let node = json!({ "metadata": { "name": "n" }, "spec": { "unschedulable": true } });
    let node = NodeView::project(&serde_json::from_value(node).unwrap()).unwrap();
    let drain = policy.drain_for(&node);
    assert!(
        !drain.disable_strategies,
        "what theirs leaves out is the default, not ours"
    );
    assert!(drain.ignored_namespaces.matches("openshift-x") && !drain.ignored_namespaces.matches("my-openshift-x"));
}

/// There, a missing `timeOut` means: force at the moment of the cordon.
#[rstest]
#[case::missing("nodeDrain: {expectedNodeDrainTime: 9}", waits(45, 9, 60, 5))]
#[case::without_a_value(
    "nodeDrain: {timeOut: , ignoredNamespacePatterns: , expectedNodeDrainTime: 9}",
    waits(45, 9, 60, 5)
)]
#[case::empty("nodeDrain: {}", waits(45, 8, 60, 5))]
fn missing_peer_timeout_is_the_default(#[case] theirs: &str, #[case] expected: Waits) {
    let policy = Settings::parse("nodeDrain: {timeOut: 30}")
        .unwrap()
        .with_managed_upgrade_config(theirs)
        .unwrap();
    assert_eq!(waits_of(&policy, json!({})), expected);
}

#[rstest]
#[case::no_block("scale: {timeOut: 30}", "nodeDrain", "missing")]
#[case::nothing("", "nodeDrain", "missing")]
#[case::zero("nodeDrain: {timeOut: 0}", "nodeDrain.timeOut", "more than 0")]
#[case::negative(
    "nodeDrain: {expectedNodeDrainTime: -8}",
    "nodeDrain.expectedNodeDrainTime",
    "negative"
)]
#[case::bad_pattern(
    "nodeDrain: {ignoredNamespacePatterns: ['*']}",
    "nodeDrain.ignoredNamespacePatterns[0]",
    "character 1"
)]
#[case::nonsense("nodeDrain: 45", "nodeDrain", "")]
#[case::not_yaml("[", "", "")]
fn a_bad_config_map_is_refused_with_its_field(#[case] theirs: &str, #[case] path: &str, #[case] says: &str) {
    let settings = Settings::parse("").unwrap();
    let error = settings.with_managed_upgrade_config(theirs).expect_err(theirs);
    assert_eq!(error.path().unwrap_or_default(), path, "{error}");
    assert!(error.to_string().contains(says), "{error}");
}

#[rstest]
#[case::always("windows: []", false)]
#[case::at_night("windows: [{from: '22:00', to: '04:00'}]", true)]
fn drains_by_others_that_windows_delay_are_warned_of(#[case] text: &str, #[case] is_warned_of: bool) {
    let warnings = Settings::parse(text).unwrap().policy.warnings();
    let is_meant = |warning: &String| warning.contains("may time out");
    assert_eq!(warnings.iter().any(is_meant), is_warned_of, "{warnings:?}");
}

/// The metric would fire before the last strategy has had its time.
#[rstest]
#[case::default("", false)]
#[case::equal("forceAfter: 8m", false)]
#[case::longer("forceAfter: 9m", true)]
#[case::longer_for_a_pool("pools: [{selector: {pool: slow}, nodeDrain: {expectedNodeDrainTime: 4}}]", true)]
fn force_after_beyond_expected_time_is_warned_of(#[case] text: &str, #[case] is_warned_of: bool) {
    let warnings = Settings::parse(text).unwrap().policy.warnings();
    assert_eq!(
        warnings
            .iter()
            .any(|warning| warning.contains("forceAfter") && warning.contains("expectedNodeDrainTime")),
        is_warned_of,
        "{warnings:?}"
    );
}

#[test]
fn surges_are_off_unless_asked_for() {
    for off in ["{}", "{surge: {}}", "{surge: {after: 5, parallel: 1}}"] {
        assert!(policy(off).surge.is_none(), "{off}");
    }
    let surge = policy("{surge: {enabled: true}}").surge.unwrap();
    let minutes = |duration: SignedDuration| duration.as_mins();
    assert_eq!(
        (minutes(surge.after), minutes(surge.timeout), surge.parallel),
        (2, 10, 5)
    );
    assert!(surge.namespaces.is_none());
    let given = "{surge: {enabled: true, after: 3, timeout: '4m', parallel: 1, namespaces: {selector: {a: b}}}}";
    let surge = policy(given).surge.unwrap();
    assert_eq!(
        (minutes(surge.after), minutes(surge.timeout), surge.parallel),
        (3, 4, 1)
    );
    assert!(surge.namespaces.is_some());
    for wrong in [
        "{surge: {enabled: true, after: 0}}",
        "{surge: {enabled: true, parallel: 0}}",
        "{surge: {enabled: true, timeout: 61}}",
        "{surge: {on: true}}",
    ] {
        assert!(Settings::parse(wrong).is_err(), "{wrong}");
    }
}
