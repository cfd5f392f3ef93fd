//! What differs between two moments of the fleet. Pure.

use std::collections::BTreeMap;
use std::sync::Arc;

use serde::Serialize;
use serde_json::{Map, Value};

use super::fleet::Fleet;

/// What turns one fleet into a later one, as the page applies it.
#[derive(Debug, Serialize)]
pub struct Changes<'a> {
    at: &'a jiff::Timestamp,
    /// Entries of sections to put.
    #[serde(skip_serializing_if = "Map::is_empty")]
    set: Map<String, Value>,
    /// Keys of sections to remove.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    drop: BTreeMap<&'static str, Vec<&'a str>>,
    /// Values to replace.
    #[serde(skip_serializing_if = "Map::is_empty")]
    whole: Map<String, Value>,
}

impl<'a> Changes<'a> {
    /// `None` where nothing but the time has changed.
    pub fn between(before: &'a Fleet, after: &'a Fleet) -> serde_json::Result<Option<Self>> {
        let mut changes = Self {
            at: &after.at,
            set: Map::new(),
            drop: BTreeMap::new(),
            whole: Map::new(),
        };
        changes.section("nodes", &before.nodes, &after.nodes)?;
        changes.section("drains", &before.drains, &after.drains)?;
        changes.section("budgets", &before.budgets, &after.budgets)?;
        changes.section("healthChecks", &before.health_checks, &after.health_checks)?;
        changes.section("cephClusters", &before.ceph_clusters, &after.ceph_clusters)?;
        changes.section("log", &before.log, &after.log)?;
        changes.value("source", &before.source, &after.source)?;
        changes.value("components", &before.components, &after.components)?;
        changes.value("groupings", &before.groupings, &after.groupings)?;
        changes.value("nodeGroups", &before.node_groups, &after.node_groups)?;
        changes.value("durations", &before.durations, &after.durations)?;
        changes.value("unread", &before.unread, &after.unread)?;
        let is_empty = changes.set.is_empty() && changes.drop.is_empty() && changes.whole.is_empty();
        Ok((!is_empty).then_some(changes))
    }

    fn section<T: PartialEq + Serialize>(
        &mut self,
        name: &'static str,
        before: &'a BTreeMap<String, Arc<T>>,
        after: &'a BTreeMap<String, Arc<T>>,
    ) -> serde_json::Result<()> {
        let mut set = Map::new();
        for (key, value) in after {
            let is_same = |known: &Arc<T>| Arc::ptr_eq(known, value) || **known == **value;
            if !before.get(key).is_some_and(is_same) {
                set.insert(key.clone(), serde_json::to_value(&**value)?);
            }
        }
        if !set.is_empty() {
            self.set.insert(name.to_owned(), Value::Object(set));
        }
        let gone = before.keys().filter(|key| !after.contains_key(*key));
        let gone: Vec<&str> = gone.map(String::as_str).collect();
        if !gone.is_empty() {
            self.drop.insert(name, gone);
        }
        Ok(())
    }

    fn value<T: PartialEq + Serialize>(&mut self, name: &str, before: &T, after: &T) -> serde_json::Result<()> {
        if before != after {
            self.whole.insert(name.to_owned(), serde_json::to_value(after)?);
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::super::fleet::tests::{fleet_of, renamed};
    use super::*;

    /// What the page does with them.
    fn apply(state: &mut Value, changes: &Value) {
        for (name, value) in changes["whole"].as_object().into_iter().flatten() {
            state[name] = value.clone();
        }
        for (section, entries) in changes["set"].as_object().into_iter().flatten() {
            for (key, value) in entries.as_object().unwrap() {
                state[section][key] = value.clone();
            }
        }
        for (section, keys) in changes["drop"].as_object().into_iter().flatten() {
            for key in keys.as_array().unwrap() {
                state[section].as_object_mut().unwrap().remove(key.as_str().unwrap());
            }
        }
        state["at"] = changes["at"].clone();
    }

    #[test]
    fn changes_lead_from_one_fleet_to_the_next() {
        let steps = [
            fleet_of(0),
            fleet_of(3),
            fleet_of(2),
            renamed(fleet_of(2)),
            fleet_of(40),
            fleet_of(0),
        ];
        let mut state = serde_json::to_value(&steps[0]).unwrap();
        for pair in steps.windows(2) {
            let changes = Changes::between(&pair[0], &pair[1]).unwrap().unwrap();
            apply(&mut state, &serde_json::to_value(&changes).unwrap());
            assert_eq!(state, serde_json::to_value(&pair[1]).unwrap());
        }
    }

    #[test]
    fn only_what_differs_is_sent() {
        let (before, after) = (fleet_of(3), fleet_of(4));
        assert!(Changes::between(&before, &fleet_of(3)).unwrap().is_none());
        let changes = serde_json::to_value(Changes::between(&before, &after).unwrap()).unwrap();
        assert_eq!(
            changes["set"]["nodes"].as_object().unwrap().keys().collect::<Vec<_>>(),
            ["n3"]
        );
        assert_eq!((&changes["drop"], &changes["whole"]), (&json!(null), &json!(null)));
    }
}
