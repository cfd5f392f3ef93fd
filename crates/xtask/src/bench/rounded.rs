//! Figures as JSON.

use serde::Serialize;
use serde_json::{Value, json};

/// To three digits after the point: more would be noise.
pub fn rounded(figures: &impl Serialize) -> Value {
    let mut value = json!(figures);
    round(&mut value);
    value
}

fn round(value: &mut Value) {
    match value {
        Value::Number(number) if number.is_f64() => {
            *value = json!(number.as_f64().map(|number| (number * 1000.0).round() / 1000.0));
        }
        Value::Array(items) => items.iter_mut().for_each(round),
        Value::Object(fields) => fields.values_mut().for_each(round),
        _ => {}
    }
}
