//! The schema of the operators' configuration in `values.schema.json`, which is generated from the Rust types.

use std::env;
use std::fs;

use rstest::rstest;
use schemars::generate::SchemaSettings;
use schemars::transform::{RecursiveTransform, Transform as _};
use schemars::{JsonSchema, Schema, SchemaGenerator};
use serde_json::{Map, Value, json};

use crate::documented::{blocks, pages};
use crate::{CHART, helm, values_file};

/// Rewrites the file instead of comparing it.
pub const UPDATE: &str = "UPDATE_EXPECT";

/// The definitions that the types give.
fn definitions() -> Map<String, Value> {
    let mut generator = SchemaSettings::draft07().into_generator();
    let roots = [
        define::<ceph_pdb::config::Config>,
        define::<drain_keeper::config::Config>,
        define::<drain_lock::config::Config>,
        define::<health_check::config::Config>,
    ];
    for root in roots {
        root(&mut generator);
    }
    let mut definitions = generator.take_definitions(true);
    for definition in definitions.values_mut() {
        if let Ok(schema) = <&mut Schema>::try_from(definition) {
            RecursiveTransform(without_null).transform(schema);
        }
    }
    definitions
}

fn define<T: JsonSchema>(generator: &mut SchemaGenerator) {
    generator.subschema_for::<T>();
}

/// The operators refuse a null: a field that is left out is its default.
fn without_null(schema: &mut Schema) {
    if let Some(of_types) = schema.get_mut("type")
        && let Some(types) = of_types.as_array_mut()
    {
        types.retain(|kind| kind != "null");
        if let [kind] = types.as_slice() {
            *of_types = kind.clone();
        }
    }
    if let Some(options) = schema.get_mut("anyOf").and_then(Value::as_array_mut) {
        options.retain(|option| option["type"] != "null");
    }
}

/// The file as it has to be: what is written by hand, and then the types' definitions, which alone begin with a capital letter.
fn expected(present: &str) -> String {
    let is_by_hand = |line: &&str| {
        let name = line.strip_prefix("    \"");
        !name.is_some_and(|name| name.starts_with(|first: char| first.is_ascii_uppercase()))
    };
    let by_hand: Vec<&str> = present.lines().take_while(is_by_hand).collect();
    let definitions = json!({ "definitions": definitions() });
    let generated = serde_json::to_string_pretty(&definitions).unwrap();
    let generated = generated.lines().skip_while(|line| !line.starts_with("    "));
    let lines: Vec<&str> = by_hand.into_iter().chain(generated).collect();
    format!("{}\n", lines.join("\n"))
}

#[test]
fn schema_of_configuration_matches_the_rust_types() {
    let path = format!("{CHART}/values.schema.json");
    let present = fs::read_to_string(&path).unwrap();
    let expected = expected(&present);
    if env::var_os(UPDATE).is_some() {
        fs::write(path, &expected).unwrap();
    } else {
        let remedy = format!("run {UPDATE}=1 cargo xtask test -p xtask --test chart schema");
        assert!(
            present == expected,
            "the definitions at its end are not what the types give: {remedy}"
        );
    }
}

#[rstest]
#[case::unknown_field("drainKeeper", json!({ "nodeDrain": { "timeout": 45 } }), "timeout")]
#[case::a_time_in_words("drainKeeper", json!({ "forceAfter": "soon" }), "config/forceAfter")]
#[case::no_time("drainKeeper", json!({ "forceAfter": 0 }), "config/forceAfter")]
#[case::unknown_word("drainKeeper", json!({ "unmanagedPods": "evict" }), "config/unmanagedPods")]
#[case::unknown_signal("drainKeeper", json!({ "upgradeSignal": "kured" }), "config/upgradeSignal")]
#[case::unknown_preset("drainKeeper", json!({ "upgradeSignal": { "preset": "kurd" } }), "config/upgradeSignal/preset")]
#[case::two_signals(
    "drainKeeper",
    json!({ "upgradeSignal": { "anyOf": [{ "preset": "kured", "node": { "label": "a" } }] } }),
    "config/upgradeSignal/anyOf/0"
)]
#[case::unknown_mark("drainKeeper", json!({ "countsAsDrain": { "taint": { "name": "a" } } }), "countsAsDrain/taint")]
#[case::a_value_that_is_no_text("drainLock", json!({ "nodeSelector": { "pool": true } }), "config/nodeSelector/pool")]
#[case::unknown_part_of_a_selector("drainLock", json!({ "nodeSelector": { "matchLabels": {}, "a": "b" } }), "nodeSelector")]
#[case::a_group_without_a_name("drainLock", json!({ "nodeGroups": [{ "maxUnavailable": 1 }] }), "config/nodeGroups/0")]
#[case::none_away("drainLock", json!({ "nodeGroups": [{ "name": "a", "maxUnavailable": "0%" }] }), "0/maxUnavailable")]
#[case::unknown_fallback("drainLock", json!({ "fallback": "Delete" }), "config/fallback")]
#[case::unknown_check("healthCheck", json!({ "settled": "1m" }), "settled")]
#[case::unknown_layout("cephPdb", json!({ "osdBudgets": "perdomain" }), "config/osdBudgets")]
fn wrong_configuration_is_refused_by_helm(#[case] component: &str, #[case] config: Value, #[case] named: &str) {
    let refusal = refused_by_schema(component, &config).unwrap();
    // Versions of helm name the place with slashes or with dots.
    assert!(refusal.replace('.', "/").contains(named), "{refusal}");
}

/// The schema's refusal, without what the templates refuse besides.
fn refused_by_schema(component: &str, config: &Value) -> Option<String> {
    let file = values_file(&json!({ component: { "enabled": true, "config": config } }));
    let values = file.path().to_str().unwrap();
    let refusal = helm(&["template", "nodeward", CHART, "--namespace", "ns", "--values", values]).err()?;
    Some(format!("{refusal:#}")).filter(|refusal| refusal.contains("the schema"))
}

/// The operators' own reading of them is tested with the documentation.
#[test]
fn documented_configurations_fit_the_schema() {
    let components = [
        ("drain-keeper", "drainKeeper"),
        ("drain-lock", "drainLock"),
        ("health-check", "healthCheck"),
        ("ceph-pdb", "cephPdb"),
    ];
    let mut tried = 0;
    for (path, page) in pages() {
        for (operator, component) in components {
            for block in blocks(&page, &format!("# {operator} configuration")) {
                let config: Value = serde_yaml::from_str(&block).unwrap();
                let refused = refused_by_schema(component, &config);
                assert_eq!(refused, None, "{}: {block}", path.display());
                tried += 1;
            }
        }
    }
    assert!(tried >= 17, "only {tried} examples were found");
}
