//! Values of arguments, validated before the cluster is contacted.

use std::time::Duration;

use nodeward_core::duration::ConfigDuration;

/// A target of `release`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Target {
    /// A request to drain this node.
    Node(String),
    /// The DisruptionHold of this name.
    Hold(String),
}

/// What `why` is asked about. A namespace that is absent is that of `-n`, or the context's.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub enum WhyTarget {
    Node(String),
    Pod { namespace: Option<String>, name: String },
    Budget { namespace: Option<String>, name: String },
}

/// Longest text that is stored in an object for others to read.
const LONGEST_TEXT: usize = 256;

/// The longest name of an object (RFC 1123 subdomain).
const LONGEST_NAME: usize = 253;

/// Whether it is a kind that has the names of nodes: nodes, and their drains.
fn is_node(kind: &str) -> bool {
    let drain = ["nodedrain", "nodedrains", "nd", "nodedrain.nodeward.dev"];
    ["node", "nodes", "no"].contains(&kind) || drain.contains(&kind)
}

/// A node's name; `node/NAME` and `nodedrain.nodeward.dev/NAME`, as `-o name` prints them, are the same.
pub fn node(text: &str) -> Result<String, String> {
    match split_kind(text) {
        (None, name) => object_name(name),
        (Some(kind), name) if is_node(kind) => object_name(name),
        (Some(kind), _) => Err(format!("expected a node, not a {kind}")),
    }
}

/// A PodDisruptionBudget's name; `pdb/NAME` is the same.
pub fn budget(text: &str) -> Result<String, String> {
    let text = text.replacen("poddisruptionbudget.policy/", "pdb/", 1);
    match split_kind(&text) {
        (None | Some("pdb" | "poddisruptionbudget" | "poddisruptionbudgets"), name) => object_name(name),
        (Some(_), name) => Err(format!(
            "give the namespace with -n, not before the name: {name} -n NAMESPACE"
        )),
    }
}

/// A node, or `hold/NAME`.
pub fn target(text: &str) -> Result<Target, String> {
    match split_kind(text) {
        (None, name) => object_name(name).map(Target::Node),
        (Some(kind), name) if is_node(kind) => object_name(name).map(Target::Node),
        (
            Some("hold" | "holds" | "dh" | "disruptionhold" | "disruptionholds" | "disruptionhold.nodeward.dev"),
            name,
        ) => object_name(name).map(Target::Hold),
        (Some(kind), _) => Err(format!("{kind} is neither a node nor a hold: write NODE or hold/NAME")),
    }
}

/// A node, `pod/NAME`, `pod/NAMESPACE/NAME`, `pdb/NAME` or `pdb/NAMESPACE/NAME`.
pub fn why_target(text: &str) -> Result<WhyTarget, String> {
    let text = text.replacen("poddisruptionbudget.policy/", "pdb/", 1);
    let (kind, rest) = split_kind(&text);
    let namespaced = || match rest.split_once('/') {
        Some((namespace, name)) => Ok((Some(object_name(namespace)?), object_name(name)?)),
        None => object_name(rest).map(|name| (None, name)),
    };
    match kind {
        None => object_name(rest).map(WhyTarget::Node),
        Some(kind) if is_node(kind) => object_name(rest).map(WhyTarget::Node),
        Some("pod" | "pods" | "po") => namespaced().map(|(namespace, name)| WhyTarget::Pod { namespace, name }),
        Some("pdb" | "poddisruptionbudget" | "poddisruptionbudgets") => {
            namespaced().map(|(namespace, name)| WhyTarget::Budget { namespace, name })
        }
        Some(_) => Err(format!("write NODE, pod/{text} or pdb/{text}")),
    }
}

fn split_kind(text: &str) -> (Option<&str>, &str) {
    match text.split_once('/') {
        Some((kind, name)) => (Some(kind), name),
        None => (None, text),
    }
}

fn object_name(name: &str) -> Result<String, String> {
    let is_alphanumeric = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit();
    let is_label = |label: &str| {
        label.starts_with(is_alphanumeric)
            && label.ends_with(is_alphanumeric)
            && label.chars().all(|c| is_alphanumeric(c) || c == '-')
    };
    if name.is_empty() {
        return Err("the name is empty".to_owned());
    }
    if name.len() > LONGEST_NAME || !name.split('.').all(is_label) {
        return Err(
            "a name consists of lower case letters, digits, '-' and '.', and begins and ends with a letter or digit"
                .to_owned(),
        );
    }
    Ok(name.to_owned())
}

/// A positive duration in Go's form.
pub fn duration(text: &str) -> Result<ConfigDuration, String> {
    ConfigDuration::parse(text).map_err(|_| "expected a duration such as 90s, 15m, 1h30m".to_owned())
}

/// How long a request may take; as in kubectl, a bare number is seconds and 0 is no limit.
pub fn request_timeout(text: &str) -> Result<Duration, String> {
    Ok(match text.parse::<u64>() {
        Ok(0) => Duration::MAX,
        Ok(seconds) => Duration::from_secs(seconds),
        Err(_) => duration(text)?.get().unsigned_abs(),
    })
}

/// A text that others will read.
pub fn reason(text: &str) -> Result<String, String> {
    let text = text.trim();
    if text.is_empty() {
        return Err("the text is empty".to_owned());
    }
    if text.chars().any(char::is_control) {
        return Err("the text must be a single line".to_owned());
    }
    if text.chars().count() > LONGEST_TEXT {
        return Err(format!("the text must have at most {LONGEST_TEXT} characters"));
    }
    Ok(text.to_owned())
}

/// A positive number of disruptions.
pub fn disruptions(text: &str) -> Result<i32, String> {
    match text.parse::<i32>() {
        Ok(disruptions @ 1..) => Ok(disruptions),
        _ => Err("expected a number of 1 or more".to_owned()),
    }
}
