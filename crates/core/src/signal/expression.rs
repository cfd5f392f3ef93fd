//! CEL expressions, checked when the configuration is read and bounded when they are evaluated: a mistake in one makes an
//! answer unknown, never a panic, an endless loop or an exhausted stack.

use std::collections::{BTreeMap, HashMap};
use std::fmt;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, LazyLock};

use cel::common::ast::{CallExpr, ComprehensionExpr, EntryExpr, Expr, IdedExpr, LiteralValue, operators};
use cel::common::types::{CelBool, CelBytes, CelInt, CelList, CelMap, CelString};
use cel::common::value::{CowVal, Val};
use cel::objects::Key;
use cel::parser::Parser;
use cel::{Context, Env, ExecutionError, FunctionContext, Value};
use regex::Regex;
use serde_json::Value as Json;

/// How long an expression may be, in bytes.
pub const MAX_SOURCE: usize = 1024;
/// How deep its syntax tree may be, `object.a.b.c` counting once: evaluation recurses that far, on an ordinary stack.
const MAX_DEPTH: usize = 16;
/// How many of the characters that can deepen the tree it may hold, before anything recursive looks at it.
const MAX_STRUCTURE: usize = 256;
/// How deep the parser goes before it gives up; parentheses count there, and leave nothing in the tree.
const MAX_PARSED_DEPTH: u16 = 96;
/// Stack of the parser, in bytes; only what is used is ever backed by memory.
const PARSER_STACK: usize = 128 << 20;
/// What one evaluation may cost, roughly in bytes looked at: about 100,000 steps of a comprehension.
const MAX_COST: u64 = 4_000_000;
/// What one value costs, besides its bytes.
const VALUE_COST: u64 = 16;

/// Functions that expressions may call, methods among them.
const FUNCTIONS: &[&str] = &[
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
const OPERATORS: &[&str] = &[
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
const COMPARISONS: [&str; 6] = [
    operators::EQUALS,
    operators::NOT_EQUALS,
    operators::LESS,
    operators::LESS_EQUALS,
    operators::GREATER,
    operators::GREATER_EQUALS,
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
const VARIABLES: [&str; 2] = ["object", "node"];

/// Charges for its first argument and passes it on. No expression can be written that calls it.
const CHARGE: &str = "@charge";

/// A CEL expression over `object` and `node`, which are bound as they stand in the API: maps, lists, strings, numbers.
#[derive(Clone)]
pub struct Expression(Arc<Checked>);

struct Checked {
    source: String,
    root: IdedExpr,
    patterns: Arc<BTreeMap<String, Regex>>,
}

/// Why an expression is refused.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum ExpressionError {
    /// Nothing but white space.
    #[error("the expression is empty")]
    Empty,
    /// Longer than [`MAX_SOURCE`].
    #[error("the expression is {0} bytes long: at most {MAX_SOURCE}")]
    TooLong(usize),
    /// Nested too deeply to be evaluated safely.
    #[error("the expression has too many operators or is nested too deeply: split it with anyOf or allOf")]
    TooDeep,
    /// Not CEL.
    #[error("not a CEL expression: {0}")]
    Syntax(String),
    /// A name that nothing is bound to.
    #[error("{position}{name:?} is not known: an expression can use object and node")]
    UnknownName {
        /// Line and column.
        position: Position,
        /// The name.
        name: String,
    },
    /// A function that there is not.
    #[error("{position}there is no function {name:?}: the functions are {}, has, all, exists, exists_one, map, filter", FUNCTIONS.join(", "))]
    UnknownFunction {
        /// Line and column.
        position: Position,
        /// The function.
        name: String,
    },
    /// The pattern of `matches` is not a literal, or not a regular expression.
    #[error("{position}matches needs a regular expression in quotes: {problem}")]
    Pattern {
        /// Line and column.
        position: Position,
        /// What is wrong with it.
        problem: String,
    },
    /// Syntax of CEL that has no use here.
    #[error("{position}{what} cannot be used here")]
    Unsupported {
        /// Line and column.
        position: Position,
        /// What.
        what: &'static str,
    },
}

/// Line and column in an expression, from 1, if they are known.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Position(Option<(usize, usize)>);

impl fmt::Display for Position {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.0 {
            Some((line, column)) => write!(f, "line {line}, column {column}: "),
            None => Ok(()),
        }
    }
}

static ENVIRONMENT: LazyLock<Arc<Env>> = LazyLock::new(|| Arc::new(Env::stdlib()));

impl Expression {
    /// Parses and checks an expression.
    ///
    /// # Errors
    /// Not CEL, too long, too deep, or it names something that there is not.
    pub fn compile(source: &str) -> Result<Self, ExpressionError> {
        if source.trim().is_empty() {
            return Err(ExpressionError::Empty);
        }
        if source.len() > MAX_SOURCE {
            return Err(ExpressionError::TooLong(source.len()));
        }
        if source.bytes().filter(|c| b"([{.!-+*/%?<>=&|".contains(c)).count() > MAX_STRUCTURE {
            return Err(ExpressionError::TooDeep);
        }
        // The parser recurses through a dozen frames a level, more than the stack of an ordinary thread has room for.
        std::thread::scope(|scope| {
            let parser = std::thread::Builder::new()
                .name("expression".to_owned())
                .stack_size(PARSER_STACK);
            let parsed = parser
                .spawn_scoped(scope, || Checked::parse(source))
                .map(std::thread::ScopedJoinHandle::join);
            match parsed {
                Ok(Ok(checked)) => checked.map(|checked| Self(Arc::new(checked))),
                Ok(Err(_)) => Err(ExpressionError::Syntax("the parser cannot read it".to_owned())),
                Err(error) => Err(ExpressionError::Syntax(format!(
                    "there is no room to parse it: {error}"
                ))),
            }
        })
    }

    /// The expression as written.
    pub fn source(&self) -> &str {
        &self.0.source
    }

    /// Evaluates it.
    ///
    /// # Errors
    /// A sentence on why it cannot be told: a missing field, a wrong type, a result that is no boolean, too much work.
    pub fn is_true(&self, object: &Json, node: &Json) -> Result<bool, String> {
        let spent = Arc::new(AtomicU64::new(0));
        let evaluated = catch_unwind(AssertUnwindSafe(|| {
            let mut context = Context::with_env(Arc::clone(&ENVIRONMENT));
            context.add_variable_from_value("object", to_cel(object));
            context.add_variable_from_value("node", to_cel(node));
            add_functions(&mut context, &self.0.patterns, &spent).map_err(|error| error.to_string())?;
            Value::resolve(&self.0.root, &context).map_err(|error| shorten(error.to_string()))
        }));
        if spent.load(Ordering::Relaxed) > MAX_COST {
            return Err("it takes too much work".to_owned());
        }
        match evaluated {
            Ok(Ok(Value::Bool(truth))) => Ok(truth),
            Ok(Ok(other)) => Err(format!("its result is {}, not true or false", kind_of(&other))),
            Ok(Err(problem)) => Err(problem),
            Err(_) => Err("its evaluation failed".to_owned()),
        }
    }
}

impl Checked {
    fn parse(source: &str) -> Result<Self, ExpressionError> {
        let parsed = Parser::new()
            .max_recursion_depth(MAX_PARSED_DEPTH)
            .parse_with_source_info(source);
        let (mut root, positions) = parsed.map_err(|errors| ExpressionError::Syntax(explain(&errors)))?;
        let position = |id| {
            let (start, _) = positions.offset_for(id)?;
            let before = source.get(..start as usize)?;
            let line = before.matches('\n').count() + 1;
            Some((line, before.rsplit('\n').next().unwrap_or_default().chars().count() + 1))
        };
        let mut check = Check {
            position: &position,
            scope: Vec::new(),
            patterns: BTreeMap::new(),
        };
        check.expression(&root, 0)?;
        let patterns = Arc::new(check.patterns);
        meter(&mut root);
        Ok(Self {
            source: source.to_owned(),
            root,
            patterns,
        })
    }
}

impl fmt::Debug for Expression {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Expression({:?})", self.source())
    }
}

impl fmt::Display for Expression {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.source())
    }
}

impl PartialEq for Expression {
    fn eq(&self, other: &Self) -> bool {
        self.source() == other.source()
    }
}

impl Eq for Expression {}

fn explain(errors: &cel::ParseErrors) -> String {
    let Some(first) = errors.errors.first() else {
        return "it cannot be read".to_owned();
    };
    let (line, column) = first.pos;
    if line > 0 {
        format!("line {line}, column {}: {}", column.max(1), first.msg)
    } else {
        first.msg.clone()
    }
}

/// Values may be long; a message need not.
fn shorten(mut message: String) -> String {
    const LONGEST: usize = 300;
    if message.len() > LONGEST {
        let end = (0..=LONGEST)
            .rev()
            .find(|end| message.is_char_boundary(*end))
            .unwrap_or(0);
        message.truncate(end);
        message.push('…');
    }
    message
}

fn kind_of(value: &Value) -> &'static str {
    match value {
        Value::Null => "null",
        Value::String(_) => "a string",
        Value::Int(_) | Value::UInt(_) | Value::Float(_) => "a number",
        Value::List(_) => "a list",
        Value::Map(_) => "a map",
        _ => "something else",
    }
}

/// Whole numbers become CEL's `int` wherever they fit, as the API server binds them.
fn to_cel(json: &Json) -> Value {
    match json {
        Json::Null => Value::Null,
        Json::Bool(truth) => Value::Bool(*truth),
        Json::Number(number) => number
            .as_i64()
            .map(Value::Int)
            .or_else(|| number.as_u64().map(Value::UInt))
            .unwrap_or_else(|| Value::Float(number.as_f64().unwrap_or(f64::NAN))),
        Json::String(text) => Value::String(Arc::new(text.clone())),
        Json::Array(items) => Value::List(Arc::new(items.iter().map(to_cel).collect())),
        Json::Object(fields) => {
            let entry = |(key, value): (&String, &Json)| (Key::String(Arc::new(key.clone())), to_cel(value));
            Value::Map(cel::objects::Map {
                map: Arc::new(fields.iter().map(entry).collect::<HashMap<_, _>>()),
            })
        }
    }
}

/// Checks names, functions and depth.
struct Check<'a> {
    position: &'a dyn Fn(u64) -> Option<(usize, usize)>,
    scope: Vec<String>,
    patterns: BTreeMap<String, Regex>,
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
                self.patterns.insert(pattern.inner().to_owned(), regex);
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

/// Puts a charge on everything whose cost is not bounded by the length of the expression: what a comprehension runs over,
/// what is searched or compared, and every value that is made larger or copied.
fn meter(expression: &mut IdedExpr) {
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

type Function =
    Box<dyn for<'c, 'v> Fn(&mut FunctionContext<'c, 'v>) -> Result<CowVal<'c, 'v>, ExecutionError> + Send + Sync>;

fn add_functions(
    context: &mut Context<'_, '_>,
    patterns: &Arc<BTreeMap<String, Regex>>,
    spent: &Arc<AtomicU64>,
) -> Result<(), cel::DeclarationError> {
    let spent = Arc::clone(spent);
    let charge: Function = Box::new(move |call| {
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
    });
    context.add_function(CHARGE, charge)?;
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

#[cfg(test)]
mod tests;
