//! What unit tests of several modules begin with.

use serde_json::Value;

/// Lays `change` over `into`, field by field.
pub fn merge(into: &mut Value, change: Value) {
    match (into, change) {
        (Value::Object(into), Value::Object(change)) => {
            for (key, value) in change {
                merge(into.entry(key).or_insert(Value::Null), value);
            }
        }
        (into, change) => *into = change,
    }
}
