//! Which fields of `object` an expression selects: what is below them it sees too, and of the rest nothing.

use cel::common::ast::{EntryExpr, Expr, IdedExpr, LiteralValue, operators};

use crate::signal::fields::Fields;

const OBJECT: &str = "object";

/// The fields that a checked expression selects. A variable of a comprehension that is named `object` counts as the object:
/// then too much is kept.
pub(super) fn fields_of_object(root: &IdedExpr) -> Fields {
    let mut fields = Fields::none();
    collect(root, &mut fields);
    fields
}

fn collect(expression: &IdedExpr, fields: &mut Fields) {
    if let Some(path) = path(expression) {
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

/// The path of `object.a.b` or `object.a["b"]`.
fn path(expression: &IdedExpr) -> Option<Vec<String>> {
    match &expression.expr {
        Expr::Ident(name) => (name == OBJECT).then(Vec::new),
        Expr::Select(select) => {
            let mut path = path(&select.operand)?;
            path.push(select.field.clone());
            Some(path)
        }
        Expr::Call(call) if call.func_name == operators::INDEX => {
            let [map, key] = call.args.as_slice() else { return None };
            let Expr::Literal(LiteralValue::String(key)) = &key.expr else {
                return None;
            };
            let mut path = path(map)?;
            path.push(key.inner().to_owned());
            Some(path)
        }
        _ => None,
    }
}
