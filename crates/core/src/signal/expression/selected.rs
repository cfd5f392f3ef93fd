//! Which fields of `object` an expression selects: what is below them it sees too, and of the rest nothing.

use cel::common::ast::{EntryExpr, Expr, IdedExpr, LiteralValue, operators};

use crate::signal::fields::Fields;

const OBJECT: &str = "object";
const NODE: &str = "node";

/// A field of the object that has to equal one of the node, for the expression to be true.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct EqualFields {
    pub object: Vec<String>,
    pub node: Vec<String>,
}

/// The fields that a checked expression demands to be equal, whatever else it says.
pub(super) fn equal_fields(root: &IdedExpr) -> Vec<EqualFields> {
    let Expr::Call(call) = &root.expr else {
        return Vec::new();
    };
    match (call.func_name.as_str(), call.args.as_slice()) {
        (operators::LOGICAL_AND, parts) => parts.iter().flat_map(equal_fields).collect(),
        (operators::EQUALS, [one, other]) => {
            let of = |one, other| plain_path(one, OBJECT).zip(plain_path(other, NODE));
            let found = of(one, other).or_else(|| of(other, one));
            found
                .map(|(object, node)| EqualFields { object, node })
                .into_iter()
                .collect()
        }
        _ => Vec::new(),
    }
}

/// The fields that a checked expression selects. A variable of a comprehension that is named `object` counts as the object:
/// then too much is kept.
pub(super) fn fields_of_object(root: &IdedExpr) -> Fields {
    let mut fields = Fields::none();
    collect(root, &mut fields);
    fields
}

fn collect(expression: &IdedExpr, fields: &mut Fields) {
    if let Some(path) = path(expression, OBJECT) {
        fields.add(path);
        return;
    }
    match &expression.expr {
        Expr::Unspecified | Expr::Ident(_) | Expr::Literal(_) | Expr::Struct(_) => {}
        Expr::Select(select) => collect(&select.operand, fields),
        Expr::Call(call) => {
            let target = call.target.iter().map(|target| &**target);
            target.chain(&call.args).for_each(|part| collect(part, fields));
        }
        Expr::List(list) => list.elements.iter().for_each(|element| collect(element, fields)),
        Expr::Map(map) => {
            for entry in &map.entries {
                if let EntryExpr::MapEntry(entry) = &entry.expr {
                    collect(&entry.key, fields);
                    collect(&entry.value, fields);
                }
            }
        }
        Expr::Comprehension(of) => {
            let parts = [&of.iter_range, &of.accu_init, &of.loop_cond, &of.loop_step, &of.result];
            for part in parts {
                collect(part, fields);
            }
        }
    }
}

/// The path of the field itself, not of `has` it.
fn plain_path(expression: &IdedExpr, root: &str) -> Option<Vec<String>> {
    let is_test = matches!(&expression.expr, Expr::Select(select) if select.test);
    path(expression, root).filter(|_| !is_test)
}

/// The path below this root of `object.a.b` or `object.a["b"]`, or of `has` it.
fn path(expression: &IdedExpr, root: &str) -> Option<Vec<String>> {
    match &expression.expr {
        Expr::Ident(name) => (name == root).then(Vec::new),
        Expr::Select(select) => {
            let mut path = path(&select.operand, root)?;
            path.push(select.field.clone());
            Some(path)
        }
        Expr::Call(call) if call.func_name == operators::INDEX => {
            let [map, key] = call.args.as_slice() else { return None };
            let Expr::Literal(LiteralValue::String(key)) = &key.expr else {
                return None;
            };
            let mut path = path(map, root)?;
            path.push(key.inner().to_owned());
            Some(path)
        }
        _ => None,
    }
}
