//! What an expression may be made of: known names and functions, patterns that compile, and no more depth than the stack has
//! room for.

use std::collections::BTreeMap;

use cel::common::ast::{CallExpr, ComprehensionExpr, EntryExpr, Expr, IdedExpr, LiteralValue, operators};
use regex::Regex;

use super::{ExpressionError, Position};

/// How deep its syntax tree may be, `object.a.b.c` counting once: evaluation recurses that far, on an ordinary stack.
const MAX_DEPTH: usize = 16;

/// Functions that expressions may call, methods among them.
pub(super) const FUNCTIONS: &[&str] = &[
    "size",
    "contains",
    "startsWith",
    "endsWith",
    "matches",
    "string",
    "int",
    "uint",
    "double",
    "bool",
    "bytes",
    "dyn",
    "type",
];
pub(super) const OPERATORS: &[&str] = &[
    operators::CONDITIONAL,
    operators::LOGICAL_AND,
    operators::LOGICAL_OR,
    operators::LOGICAL_NOT,
    operators::SUBSTRACT,
    operators::ADD,
    operators::MULTIPLY,
    operators::DIVIDE,
    operators::MODULO,
    operators::EQUALS,
    operators::NOT_EQUALS,
    operators::GREATER_EQUALS,
    operators::LESS_EQUALS,
    operators::GREATER,
    operators::LESS,
    operators::NEGATE,
    operators::INDEX,
    operators::NOT_STRICTLY_FALSE,
    operators::IN,
];
const TYPES: &[&str] = &[
    "bool",
    "int",
    "uint",
    "double",
    "string",
    "bytes",
    "list",
    "map",
    "null_type",
    "type",
];
const NODE: &str = "node";
const VARIABLES: [&str; 2] = ["object", NODE];

/// Checks names, functions and depth.
struct Check<'a> {
    /// Line and column of a node of the tree, if they are known.
    position: &'a dyn Fn(u64) -> Option<(usize, usize)>,
    /// Variables of the comprehensions around what is being checked.
    scope: Vec<String>,
    found: Checks,
}

/// What an expression was found to be made of.
#[derive(Default)]
pub(super) struct Checks {
    /// What its calls of `matches` look for, compiled.
    pub(super) patterns: BTreeMap<String, Regex>,
    /// `node` is named in it.
    pub(super) reads_node: bool,
}

/// Checks a parsed expression.
pub(super) fn check(
    root: &IdedExpr,
    position: &dyn Fn(u64) -> Option<(usize, usize)>,
) -> Result<Checks, ExpressionError> {
    let mut check = Check {
        position,
        scope: Vec::new(),
        found: Checks::default(),
    };
    check.expression(root, 0)?;
    Ok(check.found)
}

impl Check<'_> {
    fn expression(&mut self, expression: &IdedExpr, depth: usize) -> Result<(), ExpressionError> {
        if depth > MAX_DEPTH {
            return Err(ExpressionError::TooDeep);
        }
        let position = Position((self.position)(expression.id));
        let deeper = depth + 1;
        match &expression.expr {
            Expr::Literal(_) => Ok(()),
            Expr::Ident(name) => {
                self.found.reads_node |= name == NODE;
                let known = VARIABLES.contains(&name.as_str()) || TYPES.contains(&name.as_str());
                if known || self.scope.contains(name) {
                    Ok(())
                } else {
                    Err(ExpressionError::UnknownName {
                        position,
                        name: name.clone(),
                    })
                }
            }
            // The evaluator takes a name with its fields in one step.
            Expr::Select(select) if matches!(select.operand.expr, Expr::Ident(_) | Expr::Select(_)) => {
                self.expression(&select.operand, depth)
            }
            Expr::Select(select) => self.expression(&select.operand, deeper),
            Expr::Call(call) => {
                self.call(call, position)?;
                let target = call.target.iter().map(|target| &**target);
                target
                    .chain(&call.args)
                    .try_for_each(|argument| self.expression(argument, deeper))
            }
            Expr::List(list) => list
                .elements
                .iter()
                .try_for_each(|element| self.expression(element, deeper)),
            Expr::Map(map) => map.entries.iter().try_for_each(|entry| match &entry.expr {
                EntryExpr::MapEntry(entry) => {
                    self.expression(&entry.key, deeper)?;
                    self.expression(&entry.value, deeper)
                }
                EntryExpr::StructField(_) => Err(ExpressionError::Unsupported {
                    position,
                    what: "a message literal",
                }),
            }),
            Expr::Comprehension(comprehension) => self.comprehension(comprehension, deeper),
            Expr::Struct(_) => Err(ExpressionError::Unsupported {
                position,
                what: "a message literal",
            }),
            Expr::Unspecified => Err(ExpressionError::Unsupported {
                position,
                what: "an empty part",
            }),
        }
    }

    fn call(&mut self, call: &CallExpr, position: Position) -> Result<(), ExpressionError> {
        let name = call.func_name.as_str();
        if !FUNCTIONS.contains(&name) && !OPERATORS.contains(&name) {
            return Err(ExpressionError::UnknownFunction {
                position,
                name: name.to_owned(),
            });
        }
        if name != "matches" {
            return Ok(());
        }
        // Compiled here and once: a pattern that was computed could not be checked before it is needed.
        let refuse = |problem: String| Err(ExpressionError::Pattern { position, problem });
        let Some(Expr::Literal(LiteralValue::String(pattern))) = call.args.last().map(|last| &last.expr) else {
            return refuse("it is not one".to_owned());
        };
        match Regex::new(pattern.inner()) {
            Ok(regex) => {
                self.found.patterns.insert(pattern.inner().to_owned(), regex);
                Ok(())
            }
            Err(error) => refuse(error.to_string()),
        }
    }

    fn comprehension(&mut self, comprehension: &ComprehensionExpr, depth: usize) -> Result<(), ExpressionError> {
        self.expression(&comprehension.iter_range, depth)?;
        self.expression(&comprehension.accu_init, depth)?;
        let outer = self.scope.len();
        self.scope.push(comprehension.accu_var.clone());
        self.scope.push(comprehension.iter_var.clone());
        self.scope.extend(comprehension.iter_var2.clone());
        let inner = [
            &comprehension.loop_cond,
            &comprehension.loop_step,
            &comprehension.result,
        ];
        let checked = inner.into_iter().try_for_each(|part| self.expression(part, depth));
        self.scope.truncate(outer);
        checked
    }
}
