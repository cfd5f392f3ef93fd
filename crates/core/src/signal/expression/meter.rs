//! What an evaluation costs, and the end of one that costs too much.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use cel::ExecutionError;
use cel::common::ast::{CallExpr, EntryExpr, Expr, IdedExpr, LiteralValue, operators};
use cel::common::types::{CelBytes, CelInt, CelList, CelMap, CelString};
use cel::common::value::Val;

use super::check::OPERATORS;
use super::functions::Function;

/// What one evaluation may cost, roughly in bytes looked at: about 100,000 steps of a comprehension.
const MAX_COST: u64 = 4_000_000;
/// What one value costs, besides its bytes.
const VALUE_COST: u64 = 16;

const COMPARISONS: [&str; 6] = [
    operators::EQUALS,
    operators::NOT_EQUALS,
    operators::LESS,
    operators::LESS_EQUALS,
    operators::GREATER,
    operators::GREATER_EQUALS,
];

/// Charges for its first argument and passes it on. No expression can be written that calls it.
pub(super) const CHARGE: &str = "@charge";

/// Puts a charge on everything whose cost is not bounded by the length of the expression: what a comprehension runs over,
/// what is searched or compared, and every value that is made larger or copied.
pub(super) fn meter(expression: &mut IdedExpr) {
    match &mut expression.expr {
        Expr::Literal(_) | Expr::Ident(_) | Expr::Struct(_) | Expr::Unspecified => {}
        Expr::Select(select) => meter(&mut select.operand),
        Expr::List(list) => list.elements.iter_mut().for_each(|element| {
            meter(element);
            charge(element, 0);
        }),
        Expr::Map(map) => {
            for entry in &mut map.entries {
                if let EntryExpr::MapEntry(entry) = &mut entry.expr {
                    meter(&mut entry.key);
                    meter(&mut entry.value);
                    charge(&mut entry.value, 0);
                }
            }
        }
        Expr::Comprehension(comprehension) => {
            let body = size(&comprehension.loop_cond) + size(&comprehension.loop_step);
            meter(&mut comprehension.iter_range);
            charge(&mut comprehension.iter_range, body);
            for part in [
                &mut comprehension.loop_cond,
                &mut comprehension.loop_step,
                &mut comprehension.result,
            ] {
                meter(part);
            }
        }
        Expr::Call(call) => {
            call.target.iter_mut().for_each(|target| meter(target));
            call.args.iter_mut().for_each(meter);
            let appends = call
                .args
                .first()
                .is_some_and(|first| matches!(&first.expr, Expr::Ident(name) if name.starts_with('@')));
            match call.func_name.as_str() {
                // The accumulator of `map`, `filter` and `exists_one`, whose elements are charged for.
                operators::ADD if appends => {}
                operators::ADD => charge(expression, 0),
                operators::IN => call.args.iter_mut().skip(1).for_each(|container| charge(container, 0)),
                name if COMPARISONS.contains(&name) => {
                    // A comparison with a literal costs no more than the literal.
                    if !call.args.iter().any(|side| matches!(side.expr, Expr::Literal(_))) {
                        call.args.iter_mut().for_each(|side| charge(side, 0));
                    }
                }
                name if OPERATORS.contains(&name) => {}
                _ => {
                    call.target.iter_mut().for_each(|target| charge(target, 0));
                    call.args.iter_mut().for_each(|argument| charge(argument, 0));
                }
            }
        }
    }
}

/// Replaces an expression by a charge for it, and for `per_item` nodes an item.
fn charge(expression: &mut IdedExpr, per_item: usize) {
    if per_item == 0 && is_accounted_for(expression) {
        return;
    }
    let charged = std::mem::take(expression);
    let id = charged.id;
    let per_item = CelInt::from(i64::try_from(per_item).unwrap_or(i64::MAX));
    let per_item = IdedExpr {
        id,
        expr: Expr::Literal(LiteralValue::Int(per_item)),
    };
    let call = CallExpr {
        func_name: CHARGE.to_owned(),
        target: None,
        args: vec![charged, per_item],
    };
    *expression = IdedExpr {
        id,
        expr: Expr::Call(call),
    };
}

/// Whether a value is small, or what it is made of has been charged for.
fn is_accounted_for(expression: &IdedExpr) -> bool {
    match &expression.expr {
        Expr::Literal(_) | Expr::List(_) | Expr::Map(_) | Expr::Comprehension(_) => true,
        Expr::Call(call) => {
            let may_be_large = [operators::CONDITIONAL, operators::INDEX, "string", "bytes", "dyn"];
            !may_be_large.contains(&call.func_name.as_str())
        }
        Expr::Select(select) => select.test,
        Expr::Ident(_) | Expr::Struct(_) | Expr::Unspecified => false,
    }
}

/// Number of nodes.
fn size(expression: &IdedExpr) -> usize {
    let of_all = |expressions: &[IdedExpr]| expressions.iter().map(size).sum::<usize>();
    1 + match &expression.expr {
        Expr::Literal(_) | Expr::Ident(_) | Expr::Struct(_) | Expr::Unspecified => 0,
        Expr::Select(select) => size(&select.operand),
        Expr::List(list) => of_all(&list.elements),
        Expr::Map(map) => map
            .entries
            .iter()
            .map(|entry| match &entry.expr {
                EntryExpr::MapEntry(entry) => size(&entry.key) + size(&entry.value),
                EntryExpr::StructField(_) => 0,
            })
            .sum(),
        Expr::Comprehension(inner) => size(&inner.iter_range) + size(&inner.loop_cond) + size(&inner.loop_step),
        Expr::Call(call) => call.target.as_ref().map_or(0, |target| size(target)) + of_all(&call.args),
    }
}

/// [`CHARGE`]: adds to what is spent, and refuses to go on beyond what one evaluation may cost.
pub(super) fn charging(spent: &Arc<AtomicU64>) -> Function {
    let spent = Arc::clone(spent);
    Box::new(move |call| {
        let per_item = call
            .args
            .pop()
            .and_then(|cost| cost.downcast_ref::<CelInt>().map(|cost| *cost.inner()));
        let value = call.args.pop().ok_or(ExecutionError::MissingArgumentOrTarget)?;
        let items = value
            .as_sizer()
            .map_or(0, |sizer| u64::try_from(*sizer.size().inner()).unwrap_or(0));
        let per_item = u64::try_from(per_item.unwrap_or(0)).unwrap_or(0);
        let cost = weight(value.as_ref()).saturating_add(items.saturating_mul(per_item).saturating_mul(VALUE_COST));
        let before = spent.fetch_add(cost.min(MAX_COST + 1), Ordering::Relaxed);
        if before.saturating_add(cost) > MAX_COST {
            return Err(call.error("it takes too much work"));
        }
        Ok(value)
    })
}

/// Whether more was spent than one evaluation may cost.
pub(super) fn is_overspent(spent: &AtomicU64) -> bool {
    spent.load(Ordering::Relaxed) > MAX_COST
}

/// What a value costs to look at or copy, about.
fn weight(value: &dyn Val) -> u64 {
    let length = |length: usize| u64::try_from(length).unwrap_or(u64::MAX);
    let inner = if let Some(text) = value.downcast_ref::<CelString>() {
        length(text.inner().len())
    } else if let Some(bytes) = value.downcast_ref::<CelBytes>() {
        length(bytes.inner().len())
    } else if let Some(list) = value.downcast_ref::<CelList>() {
        list.inner()
            .iter()
            .map(|item| weight(item.as_ref()))
            .fold(0, u64::saturating_add)
    } else if let Some(map) = value.downcast_ref::<CelMap>() {
        let entries = map
            .inner()
            .iter()
            .map(|(key, value)| weight(key.inner()).saturating_add(weight(value.as_ref())));
        entries.fold(0, u64::saturating_add)
    } else {
        let items = value
            .as_sizer()
            .and_then(|sizer| u64::try_from(*sizer.size().inner()).ok());
        items.unwrap_or(0).saturating_mul(VALUE_COST)
    };
    inner.saturating_add(VALUE_COST)
}
