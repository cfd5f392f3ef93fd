//! Which fields of an object a signal reads. The rest is not kept: there may be an object for each of thousands of nodes, and
//! a change of what nobody reads wakes nobody.

use std::collections::BTreeSet;

use serde_json::Value;

/// What every message names an object by.
const NAME: [&str; 2] = ["metadata.namespace", "metadata.name"];

/// Which fields of an object are read.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Fields {
    /// All of them.
    Whole,
    /// Those at these paths, and what is below them.
    At(BTreeSet<Vec<String>>),
}

impl Fields {
    /// None but the object's name.
    pub(super) fn none() -> Self {
        Self::of(&[])
    }

    /// Those at these paths, as in `status.conditions`.
    pub(super) fn of(paths: &[&str]) -> Self {
        let path = |path: &&str| path.split('.').map(str::to_owned).collect();
        Self::At(NAME.iter().chain(paths).map(path).collect())
    }

    /// The one at this path as well; the empty path is the whole object.
    pub(super) fn add(&mut self, path: Vec<String>) {
        match self {
            Self::At(_) if path.is_empty() => *self = Self::Whole,
            Self::At(paths) => drop(paths.insert(path)),
            Self::Whole => {}
        }
    }

    /// What either reads.
    pub(super) fn and(self, other: Self) -> Self {
        match (self, other) {
            (Self::At(mut paths), Self::At(others)) => {
                paths.extend(others);
                Self::At(paths)
            }
            _ => Self::Whole,
        }
    }

    /// The object without the fields that are not read. What is no map, where a map is expected, stays: it is told apart from
    /// what is missing.
    pub fn keep(&self, mut object: Value) -> Value {
        if let Self::At(paths) = self {
            let paths: Vec<&[String]> = paths.iter().map(Vec::as_slice).collect();
            keep(&mut object, &paths);
        }
        object
    }
}

fn keep(value: &mut Value, paths: &[&[String]]) {
    let Value::Object(fields) = value else { return };
    fields.retain(|key, field| {
        let split = paths.iter().filter_map(|path| path.split_first());
        let below: Vec<&[String]> = split.filter(|(first, _)| *first == key).map(|(_, rest)| rest).collect();
        if !below.is_empty() && below.iter().all(|rest| !rest.is_empty()) {
            keep(field, &below);
        }
        !below.is_empty()
    });
}

#[cfg(test)]
mod tests {
    use rstest::rstest;
    use serde_json::json;

    use super::*;

    #[rstest]
    #[case::some(&["status.phase", "spec.nodes"], json!({
        "metadata": { "name": "p" }, "spec": { "nodes": ["a", "b"] }, "status": { "phase": "On" },
    }))]
    #[case::one_below_another(&["status", "status.phase"], json!({
        "metadata": { "name": "p" }, "status": { "phase": "On", "text": "long" },
    }))]
    // Missing stays missing, and no map stays no map.
    #[case::missing(&["status.none", "data.a"], json!({
        "metadata": { "name": "p" }, "status": {}, "data": "text",
    }))]
    #[case::none(&[], json!({ "metadata": { "name": "p" } }))]
    fn only_fields_that_are_read_stay(#[case] paths: &[&str], #[case] kept: Value) {
        let object = json!({
            "metadata": { "name": "p", "resourceVersion": "7", "labels": { "a": "b" } },
            "spec": { "nodes": ["a", "b"], "template": {} }, "status": { "phase": "On", "text": "long" }, "data": "text",
        });
        assert_eq!(Fields::of(paths).keep(object.clone()), kept);
        assert_eq!(Fields::of(paths).and(Fields::Whole).keep(object.clone()), object);
    }
}
