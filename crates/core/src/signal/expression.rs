//! CEL expressions, checked when the configuration is read and bounded when they are evaluated: a mistake in one makes an
//! answer unknown, never a panic, an endless loop or an exhausted stack.

mod check;
mod functions;
mod meter;
mod selected;

use std::collections::{BTreeMap, HashMap};
use std::fmt;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, LazyLock};

use cel::common::ast::IdedExpr;
use cel::objects::Key;
use cel::parser::Parser;
use cel::{Context, Env, Value};
use regex::Regex;
use serde_json::Value as Json;

use crate::text::cut_visibly;

use self::check::{Checks, FUNCTIONS, check};
use self::functions::add_functions;
use self::meter::{is_overspent, meter};
use self::selected::{EqualFields, equal_fields, fields_of_object};
use super::fields::Fields;

/// How long an expression may be, in bytes.
pub const MAX_SOURCE: usize = 1024;
/// How many of the characters that can deepen the tree it may hold, before anything recursive looks at it.
const MAX_STRUCTURE: usize = 256;
/// How deep the parser goes before it gives up; parentheses count there, and leave nothing in the tree.
const MAX_PARSED_DEPTH: u16 = 96;
/// Stack of the parser, in bytes; only what is used is ever backed by memory.
const PARSER_STACK: usize = 128 << 20;

/// A CEL expression over `object` and `node`, which are bound as they stand in the API: maps, lists, strings, numbers.
#[derive(Clone)]
pub struct Expression(Arc<Checked>);

struct Checked {
    source: String,
    root: IdedExpr,
    patterns: Arc<BTreeMap<String, Regex>>,
    reads_node: bool,
    object_fields: Fields,
    equal_fields: Vec<EqualFields>,
}

/// Why an expression is refused.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum ExpressionError {
    /// Nothing but white space.
    #[error("the expression is empty")]
    Empty,
    /// Longer than an expression may be.
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

/// An expression about one node, which is bound once, as are the functions.
pub struct AboutNode<'a> {
    root: &'a IdedExpr,
    /// Or why it cannot be told.
    context: Result<Context<'static, 'static>, String>,
    /// Fields of the object, and the texts that they have to be for it to be true: of thousands of objects most are about other
    /// nodes, and comparing these is much less work than an evaluation.
    equals: Vec<(&'a [String], String)>,
    spent: Arc<AtomicU64>,
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

    /// Whether the node has a part in it: without one it is the same for all nodes.
    pub fn reads_node(&self) -> bool {
        self.0.reads_node
    }

    /// Which fields of the object it reads.
    pub fn object_fields(&self) -> &Fields {
        &self.0.object_fields
    }

    /// The expression about one node, for any number of objects.
    pub fn about(&self, node: &Json) -> AboutNode<'_> {
        let spent = Arc::new(AtomicU64::new(0));
        let context = catch_unwind(AssertUnwindSafe(|| {
            let mut context = Context::with_env(Arc::clone(&ENVIRONMENT));
            context.add_variable_from_value("node", to_cel(node));
            add_functions(&mut context, &self.0.patterns, &spent).map_err(|error| error.to_string())?;
            Ok(context)
        }));
        let equals = self.0.equal_fields.iter().filter_map(|fields| {
            let expected = text_at(node, &fields.node)?;
            Some((fields.object.as_slice(), expected.to_owned()))
        });
        AboutNode {
            root: &self.0.root,
            equals: equals.collect(),
            context: context.unwrap_or_else(|_| Err("its evaluation failed".to_owned())),
            spent,
        }
    }

    /// Evaluates it once.
    ///
    /// # Errors
    /// A sentence on why it cannot be told, as for [`Self::about`].
    pub fn is_true(&self, object: &Json, node: &Json) -> Result<bool, String> {
        self.about(node).is_true(object)
    }
}

impl AboutNode<'_> {
    /// Evaluates it.
    ///
    /// # Errors
    /// A sentence on why it cannot be told: a missing field, a wrong type, a result that is no boolean, too much work.
    pub fn is_true(&mut self, object: &Json) -> Result<bool, String> {
        let context = self.context.as_mut().map_err(|problem| problem.clone())?;
        // As CEL has it, whatever the other parts of the conjunction come to.
        let is_another =
            |(path, expected): &(&[String], String)| text_at(object, path).is_some_and(|text| text != expected);
        if self.equals.iter().any(is_another) {
            return Ok(false);
        }
        self.spent.store(0, Ordering::Relaxed);
        let evaluated = catch_unwind(AssertUnwindSafe(|| {
            context.add_variable_from_value("object", to_cel(object));
            Value::resolve(self.root, context).map_err(|error| cut_visibly(error.to_string(), LONGEST_MESSAGE))
        }));
        if is_overspent(&self.spent) {
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
        let Checks { patterns, reads_node } = check(&root, &position)?;
        let object_fields = fields_of_object(&root);
        let equal_fields = equal_fields(&root);
        meter(&mut root);
        Ok(Self {
            source: source.to_owned(),
            root,
            patterns: Arc::new(patterns),
            reads_node,
            object_fields,
            equal_fields,
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

/// Values may be long; a message, in bytes, need not.
const LONGEST_MESSAGE: usize = 300;

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

/// The text of the field at this path.
fn text_at<'a>(json: &'a Json, path: &[String]) -> Option<&'a str> {
    path.iter().try_fold(json, |json, field| json.get(field))?.as_str()
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

#[cfg(test)]
mod tests;
