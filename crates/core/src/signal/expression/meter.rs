//! What an evaluation costs, and the end of one that costs too much.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use cel::ExecutionError;
use cel::common::ast::{CallExpr, EntryExpr, Expr, IdedExpr, LiteralValue, operators};
use cel::common::types::{CelBytes, CelInt, CelList, CelMap, CelString};
use cel::common::value::Val;

use super::functions::Function;

/// What one evaluation may cost, roughly in bytes looked at: about 100,000 steps of a comprehension.
const MAX_COST: u64 = 4_000_000;
/// What one value costs, besides its bytes.
const VALUE_COST: u64 = 16;

/// Charges for its first argument and passes it on. No expression can be written that calls it.
pub(super) const CHARGE: &str = "@charge";

/// Puts a charge on what the length of the expression does not bound: the steps of a comprehension, and values that are
/// copied into a list or a map, or joined. Returns the number of nodes.
///
/// Searching and comparing are not charged for: a step costs at most the size of the object there.
pub(super) fn meter(expression: &mut IdedExpr) -> usize {
    let (size, joins) = match &mut expression.expr {
        Expr::Literal(_) | Expr::Ident(_) | Expr::Struct(_) | Expr::Unspecified => (0, false),
        Expr::Select(select) => (meter(&mut select.operand), false),
        Expr::List(list) => (list.elements.iter_mut().map(meter_copy).sum(), false),
        Expr::Map(map) => {
            let entries = map.entries.iter_mut().map(|entry| match &mut entry.expr {
                EntryExpr::MapEntry(entry) => meter(&mut entry.key) + meter_copy(&mut entry.value),
                EntryExpr::StructField(_) => 0,
            });
            (entries.sum(), false)
        }
        Expr::Comprehension(comprehension) => {
            let range = meter(&mut comprehension.iter_range);
            let body = meter(&mut comprehension.loop_cond) + meter(&mut comprehension.loop_step);
            charge(&mut comprehension.iter_range, body);
            (range + body + meter(&mut comprehension.result), false)
        }
        Expr::Call(call) => {
            // `@result + [element]` is how `map` and `filter` go on, and the element is charged for.
            let appends = |first: &IdedExpr| matches!(&first.expr, Expr::Ident(name) if name.starts_with('@'));
            let joins = call.func_name == operators::ADD && !call.args.first().is_some_and(appends);
            let target = call.target.iter_mut().map(|target| meter(target)).sum::<usize>();
            (target + call.args.iter_mut().map(meter).sum::<usize>(), joins)
        }
    };
    if joins {
        charge(expression, 0);
    }
    size + 1
}

fn meter_copy(value: &mut IdedExpr) -> usize {
    let size = meter(value);
    if !matches!(value.expr, Expr::Literal(_)) {
        charge(value, 0);
    }
    size
}

/// Replaces an expression by a charge for it, and for `per_item` nodes an item.
fn charge(expression: &mut IdedExpr, per_item: usize) {
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
