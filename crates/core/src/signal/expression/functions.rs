//! Functions of our own: the charge, and `matches` with patterns that were compiled beforehand.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::AtomicU64;

use cel::common::types::{CelBool, CelString};
use cel::common::value::CowVal;
use cel::{Context, ExecutionError, FunctionContext};
use regex::Regex;

use super::meter::{CHARGE, charging};

pub(super) type Function =
    Box<dyn for<'c, 'v> Fn(&mut FunctionContext<'c, 'v>) -> Result<CowVal<'c, 'v>, ExecutionError> + Send + Sync>;

/// Binds them for one evaluation.
pub(super) fn add_functions(
    context: &mut Context<'_, '_>,
    patterns: &Arc<BTreeMap<String, Regex>>,
    spent: &Arc<AtomicU64>,
) -> Result<(), cel::DeclarationError> {
    context.add_function(CHARGE, charging(spent))?;
    let patterns = Arc::clone(patterns);
    let matches: Function = Box::new(move |call| {
        let text = call.this.take();
        let mut arguments = std::mem::take(&mut call.args).into_iter();
        let given = (text.or_else(|| arguments.next()), arguments.next(), arguments.next());
        let (Some(text), Some(pattern), None) = given else {
            return Err(call.error("it takes a string and a pattern"));
        };
        let text = text
            .downcast_ref::<CelString>()
            .ok_or_else(|| call.error("only a string can match"))?;
        let pattern = pattern
            .downcast_ref::<CelString>()
            .and_then(|pattern| patterns.get(pattern.inner()));
        let pattern = pattern.ok_or_else(|| call.error("the pattern was not compiled"))?;
        Ok(CowVal::owned(CelBool::from(pattern.is_match(text.inner()))))
    });
    context.add_function("matches", matches)
}
