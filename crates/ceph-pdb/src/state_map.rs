//! ConfigMap `rook-ceph-pdbstatemap`, as text and back. Pure.
//!
//! Rook's own manager keeps its state there, and leaves it behind; ours has a key for each CRUSH bucket whose `noout` is ours.

use k8s_openapi::api::core::v1::ConfigMap;
use kube::ResourceExt;

use crate::plan::noout::NooutRecord;
use crate::snapshot::{RookState, StateMap};

/// Its name, which Rook gave it.
pub const NAME: &str = "rook-ceph-pdbstatemap";

/// Begins the keys of our records.
const RECORD_PREFIX: &str = "nodeward-noout-";

/// Key of the domain that Rook's manager was about to drain.
pub const ROOK_DRAINING_DOMAIN: &str = "draining-failure-domain";

/// Key by which Rook's manager knows that it has set `noout`.
pub const ROOK_SET_NOOUT: &str = "set-no-out";

/// Ends the keys that say when Rook's manager has set a domain's `noout`.
const ROOK_SET_AT_SUFFIX: &str = "-noout-last-set-at";

/// The key of a bucket's record.
pub fn record_key(bucket: &str) -> String {
    format!("{RECORD_PREFIX}{bucket}")
}

/// The key by which Rook's manager knows when it has set a domain's `noout`.
pub fn rook_set_at_key(domain: &str) -> String {
    format!("{domain}{ROOK_SET_AT_SUFFIX}")
}

/// A record as it is written.
pub fn record_text(record: NooutRecord) -> String {
    serde_json::to_string(&record).unwrap_or_default()
}

/// Reads it. A key that cannot be read leaves the others as they are.
pub fn read(config_map: &ConfigMap) -> StateMap {
    let mut map = StateMap {
        resource_version: config_map.resource_version().map(Into::into),
        ..StateMap::default()
    };
    for (key, text) in config_map.data.iter().flatten() {
        if let Some(bucket) = key.strip_prefix(RECORD_PREFIX) {
            match serde_json::from_str(text) {
                Ok(record) => drop(map.noout.insert(bucket.into(), record)),
                Err(error) => map.unreadable.push(format!("{key}: {error}")),
            }
        } else if let Some(domain) = key.strip_suffix(ROOK_SET_AT_SUFFIX) {
            match text.parse() {
                Ok(at) => drop(map.rook.noout_set_at.insert(domain.into(), at)),
                Err(error) => map.unreadable.push(format!("{key}: {error}")),
            }
        } else {
            read_rook(&mut map.rook, key, text);
        }
    }
    map
}

fn read_rook(rook: &mut RookState, key: &str, text: &str) {
    match key {
        ROOK_DRAINING_DOMAIN => rook.draining_domain = Some(text.into()).filter(|_| !text.is_empty()),
        ROOK_SET_NOOUT => rook.set_noout = text == "true",
        _ => {}
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::plan::noout::NooutPhase;

    fn map(data: &serde_json::Value) -> StateMap {
        let object = json!({ "metadata": { "name": NAME, "resourceVersion": "7" }, "data": data });
        read(&serde_json::from_value(object).unwrap())
    }

    #[test]
    fn record_is_read_as_it_was_written() {
        let record = NooutRecord {
            since: "2026-01-01T00:00:00Z".parse().unwrap(),
            phase: NooutPhase::Clearing,
            changed: "2026-01-01T00:30:00Z".parse().unwrap(),
        };
        let text = record_text(record);
        assert_eq!(
            text,
            r#"{"since":"2026-01-01T00:00:00Z","phase":"clearing","changed":"2026-01-01T00:30:00Z"}"#
        );
        let read = map(&json!({ record_key("host-1.a"): text }));
        assert_eq!(read.noout, [("host-1.a".into(), record)].into());
        assert_eq!(read.resource_version.as_deref(), Some("7"));
    }

    #[test]
    fn what_rook_leaves_behind_is_read() {
        let read = map(&json!({
            ROOK_DRAINING_DOMAIN: "zone-a", ROOK_SET_NOOUT: "true", "zone-a-noout-last-set-at": "2026-01-01T01:00:00+01:00", "else": "",
        }));
        assert_eq!(read.rook.draining_domain.as_deref(), Some("zone-a"));
        assert!(read.rook.set_noout && read.unreadable.is_empty());
        let at = "2026-01-01T00:00:00Z".parse().unwrap();
        assert_eq!(read.rook.noout_set_at, [("zone-a".into(), at)].into());
        let idle = map(&json!({ ROOK_DRAINING_DOMAIN: "", ROOK_SET_NOOUT: "" }));
        assert_eq!(idle.rook, RookState::default());
    }

    #[test]
    fn broken_key_is_named_and_others_are_read() {
        let good = r#"{"since":"2026-01-01T00:00:00Z","phase":"set"}"#;
        let read = map(&json!({ record_key("a"): "{}", record_key("b"): good, "z-noout-last-set-at": "soon" }));
        assert_eq!(read.noout.len(), 1);
        assert_eq!(read.unreadable.len(), 2, "{:?}", read.unreadable);
        assert!(read.unreadable[0].starts_with("nodeward-noout-a: "));
    }
}
