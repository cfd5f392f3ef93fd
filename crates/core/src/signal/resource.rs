//! The `resource` signal: an expression over objects of any kind.

use std::sync::Arc;

use serde_json::Value;

use super::SignalError;
use super::answer::{Answer, SignalNote};
use super::evaluations::Found;
use super::expression::Expression;
use super::fields::Fields;
use super::inputs::{SignalInputs, WatchedResource, full_name};
use super::spec::ResourceSpec;
use crate::node::NodeView;

/// A `resource` signal whose expression is compiled.
#[derive(Debug, Clone)]
pub(super) struct ResourceSignal {
    kind: WatchedResource,
    when: Expression,
}

impl ResourceSignal {
    pub(super) fn compile(spec: &ResourceSpec) -> Result<Self, SignalError> {
        let refuse = |problem: String| Err(SignalError::Resource(problem));
        let (group, version) = spec.api_version.split_once('/').unwrap_or(("", &spec.api_version));
        if version.is_empty() || version.contains('/') || (group.is_empty() && spec.api_version.contains('/')) {
            return refuse(format!(
                "apiVersion {:?} is neither group/version nor v1",
                spec.api_version
            ));
        }
        if !spec.kind.starts_with(|c: char| c.is_ascii_uppercase())
            || !spec.kind.bytes().all(|c| c.is_ascii_alphanumeric())
        {
            return refuse(format!(
                "kind {:?} is not a kind: write it as in a manifest, such as Plan",
                spec.kind
            ));
        }
        for (field, value) in [("name", &spec.name), ("namespace", &spec.namespace)] {
            if value.as_deref() == Some("") {
                return refuse(format!("{field} is empty: leave it out for any"));
            }
        }
        let kind = WatchedResource {
            api_version: spec.api_version.clone(),
            kind: spec.kind.clone(),
            namespace: spec.namespace.clone(),
            name: spec.name.clone(),
            selector: spec
                .selector
                .as_ref()
                .map(ToString::to_string)
                .filter(|selector| !selector.is_empty()),
        };
        let when = Expression::compile(&spec.when).map_err(|error| SignalError::Expression {
            resource: format!("{} {}", spec.api_version, spec.kind),
            error,
        })?;
        Ok(Self { kind, when })
    }

    pub(super) fn kind(&self) -> &WatchedResource {
        &self.kind
    }

    /// What the expression reads of an object.
    pub(super) fn fields(&self) -> Fields {
        self.when.object_fields().clone()
    }

    /// Yes if the expression is true for any object; Unknown if for none, and for some it cannot be told.
    pub(super) fn evaluate(&self, inputs: &SignalInputs, node: &NodeView) -> Answer {
        let objects = match inputs.objects(&self.kind) {
            Ok(objects) => objects,
            Err(answer) => return answer,
        };
        let (uid, node) = if self.when.reads_node() {
            (Some(node.uid.clone()), node.to_expression_value())
        } else {
            (None, Value::Null)
        };
        let node = Arc::new(node);
        let mut when = None;
        let is_true = |object: &Value| when.get_or_insert_with(|| self.when.about(&node)).is_true(object);
        let name = format!("{}: {}", self.kind, self.when);
        let (object, problem) = match inputs.evaluations().over(name, objects, uid, &node, is_true) {
            Found::True(_) => return Answer::yes(None),
            Found::False => return Answer::no(),
            Found::Unknown(object, problem) => (full_name(&object), problem),
        };
        Answer::unknown(SignalNote::warning(
            format!("expression/{}/{}", self.kind, self.when),
            format!(
                "The expression {:?} cannot be decided for {} {object}, which does not count as upgrading: {problem}",
                self.when.source(),
                self.kind.kind
            ),
        ))
    }
}
