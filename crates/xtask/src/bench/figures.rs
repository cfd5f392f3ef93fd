//! The figures of a benchmark: one JSON object for programs, one table for people.

use std::fmt::{Display, Write as _};

use serde::Serialize;
use serde_json::{Map, Value, json};

/// Figures by key, and the rows that tell them.
#[derive(Debug, Default)]
pub struct Figures {
    object: Map<String, Value>,
    table: String,
}

impl Figures {
    /// Adds the fields of an object.
    pub fn add(&mut self, mut object: Value) {
        round(&mut object);
        if let Value::Object(fields) = object {
            self.object.extend(fields);
        }
    }

    /// Adds a line of the table that is not a row.
    pub fn line(&mut self, text: impl Display) {
        let _ = writeln!(self.table, "{text}");
    }

    /// Adds a row to the table.
    pub fn row(&mut self, name: &str, text: impl Display) {
        self.line(format_args!("  {name:18} {text}"));
    }

    /// Adds a row whose figure the product promises.
    pub fn row_with_target(&mut self, name: &str, text: impl Display, target: &str, is_met: bool) {
        let met = if is_met { "met" } else { "MISSED" };
        self.row(name, format_args!("{text}  [{target}: {met}]"));
    }

    /// The same figures with another table.
    pub fn with_table(self, table: String) -> Self {
        Self { table, ..self }
    }

    pub fn table(&self) -> &str {
        &self.table
    }

    pub fn into_json(self) -> Value {
        Value::Object(self.object)
    }
}

/// Rounds to three digits after the point: more would be noise.
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

/// How measured values are distributed; all `None` without any.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize)]
pub struct Distribution {
    pub count: usize,
    pub min: Option<f64>,
    pub mean: Option<f64>,
    pub p50: Option<f64>,
    pub p95: Option<f64>,
    pub p99: Option<f64>,
    pub max: Option<f64>,
}

impl Distribution {
    pub fn of(values: &[f64]) -> Self {
        let mut sorted = values.to_vec();
        sorted.sort_by(f64::total_cmp);
        Self {
            count: sorted.len(),
            min: sorted.first().copied(),
            mean: (!sorted.is_empty()).then(|| sorted.iter().sum::<f64>() / count(sorted.len())),
            p50: quantile(&sorted, 0.5),
            p95: quantile(&sorted, 0.95),
            p99: quantile(&sorted, 0.99),
            max: sorted.last().copied(),
        }
    }

    /// Whether at most one in a hundred exceeds the limit; not without any.
    pub fn is_within(&self, limit: f64) -> bool {
        self.p99.is_some_and(|p99| p99 <= limit)
    }

    /// As `p50 12 ms, p99 40 ms, max 41 ms`, with so many digits after the point.
    pub fn text(&self, unit: &str, digits: usize) -> String {
        let told = |value: Option<f64>| value.map_or("none".to_owned(), |value| format!("{value:.digits$} {unit}"));
        format!("p50 {}, p99 {}, max {}", told(self.p50), told(self.p99), told(self.max))
    }
}

/// The smallest of sorted values that at least this share (0 to 1) of all do not exceed.
fn quantile(sorted: &[f64], share: f64) -> Option<f64> {
    // A share of a length is between 0 and that length.
    #[allow(clippy::cast_possible_truncation, clippy::cast_sign_loss)]
    let rank = (share * count(sorted.len())).ceil() as usize;
    sorted.get(rank.max(1) - 1).copied()
}

pub const fn count(number: usize) -> f64 {
    // Counts of objects and requests are far below 2^53.
    #[allow(clippy::cast_precision_loss)]
    let number = number as f64;
    number
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn quantiles_are_measured_values() {
        let hundred: Vec<f64> = (1..=100).rev().map(f64::from).collect();
        let of = Distribution::of(&hundred);
        assert_eq!(
            (of.min, of.mean, of.p50, of.p95, of.p99, of.max),
            (Some(1.0), Some(50.5), Some(50.0), Some(95.0), Some(99.0), Some(100.0))
        );
        assert_eq!(Distribution::of(&[7.0]).p50, Some(7.0));
        assert_eq!(Distribution::of(&[]), Distribution::default());
    }

    #[test]
    fn figures_are_rounded_at_any_depth() {
        let mut figures = Figures::default();
        figures.add(json!({ "a": { "b": [1.234_56, 7] } }));
        assert_eq!(figures.into_json(), json!({ "a": { "b": [1.235, 7] } }));
    }
}
