//! The emergency stop: one ConfigMap in the components' namespace that every operator watches, and that every one of its writes
//! asks. Each key is a component, or [`ALL`]; its value is the reason. `kubectl nodeward pause` writes it, and plain `kubectl` can.

use jiff::Timestamp;
use k8s_openapi::api::core::v1::ConfigMap;
use serde::Serialize;

use crate::COMPONENTS;

/// The name of the ConfigMap.
pub const CONFIG_MAP: &str = "nodeward-pause";

/// The key that pauses every component.
pub const ALL: &str = "all";

/// A component that is to write nothing.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Paused {
    /// As the person gave it; never empty.
    pub reason: String,
    /// When the key was written, by the API server's clock; `None` where the server does not tell.
    pub since: Option<Timestamp>,
}

/// Whether the component is paused. Its own key counts before [`ALL`].
pub fn paused(config_map: &ConfigMap, component: &str) -> Option<Paused> {
    let data = config_map.data.as_ref()?;
    let (key, value) = data.get_key_value(component).or_else(|| data.get_key_value(ALL))?;
    let reason = match value.trim() {
        "" => "no reason is given",
        reason => reason,
    };
    Some(Paused {
        reason: reason.to_owned(),
        since: written_at(config_map, key),
    })
}

/// Keys that name no component: whoever wrote them has paused less than was meant.
pub fn unknown_keys(config_map: &ConfigMap) -> impl Iterator<Item = &str> {
    let keys = config_map.data.iter().flat_map(|data| data.keys());
    keys.map(String::as_str)
        .filter(|key| *key != ALL && !COMPONENTS.contains(key))
}

/// Field managers' entries have the time of their last change.
fn written_at(config_map: &ConfigMap, key: &str) -> Option<Timestamp> {
    let field = format!("f:{key}");
    let managers = config_map.metadata.managed_fields.iter().flatten();
    let owners = managers.filter(|entry| {
        let fields = entry.fields_v1.as_ref().map(|fields| &fields.0["f:data"]);
        fields.is_some_and(|data| data.get(&field).is_some())
    });
    owners.filter_map(|entry| entry.time.as_ref()).map(|time| time.0).max()
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    fn config_map(data: &Value) -> ConfigMap {
        let fields = |key: &str| json!({ "f:data": { ".": {}, (format!("f:{key}")): {} } });
        serde_json::from_value(json!({
            "metadata": { "name": CONFIG_MAP, "managedFields": [
                { "manager": "kubectl", "time": "2026-01-01T10:00:00Z", "fieldsV1": fields("drain-lock") },
                { "manager": "other", "time": "2026-01-01T11:00:00Z", "fieldsV1": fields("all") },
            ] },
            "data": data,
        }))
        .unwrap()
    }

    /// The reason, and the hour since when.
    fn of(data: &Value) -> Option<(String, i8)> {
        let paused = paused(&config_map(data), "drain-lock")?;
        let since = paused.since.unwrap().to_zoned(jiff::tz::TimeZone::UTC);
        Some((paused.reason, since.hour()))
    }

    #[test]
    fn own_key_counts_before_that_of_all() {
        assert_eq!(of(&json!({ "drain-keeper": "x" })), None);
        assert_eq!(of(&json!({ "all": "INC-1" })), Some(("INC-1".to_owned(), 11)));
        let both = json!({ "all": "INC-1", "drain-lock": " " });
        assert_eq!(of(&both), Some(("no reason is given".to_owned(), 10)));
    }

    #[test]
    fn misspelt_component_is_told() {
        let given = config_map(&json!({ "all": "", "drain-lock": "", "drain_lock": "" }));
        assert_eq!(unknown_keys(&given).collect::<Vec<_>>(), ["drain_lock"]);
        assert_eq!(paused(&ConfigMap::default(), "drain-lock"), None);
    }
}
