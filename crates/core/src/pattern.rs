//! Namespace patterns: regular expressions, anchored only where the user anchors them.

use std::fmt;

use regex::Regex;

/// Regular expressions that name namespaces, compiled once.
#[derive(Clone, Default)]
pub struct NamespacePatterns(Vec<Regex>);

/// A pattern that cannot be used.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("pattern {index} ({pattern:?}) cannot be used: {}{message}", Position(*.column))]
pub struct PatternError {
    /// Its place in the list, from 0.
    pub index: usize,
    pub pattern: String,
    /// Where in the pattern, in characters from 1, if it can be told.
    pub column: Option<usize>,
    /// What is wrong there.
    pub message: String,
}

struct Position(Option<usize>);

impl fmt::Display for Position {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.0 {
            Some(column) => write!(f, "at character {column}, "),
            None => Ok(()),
        }
    }
}

impl NamespacePatterns {
    /// Compiles the patterns.
    ///
    /// # Errors
    /// Names the first bad pattern, its index and the position in it.
    pub fn compile(patterns: &[String]) -> Result<Self, PatternError> {
        let compile = |(index, pattern): (usize, &String)| {
            if pattern.is_empty() {
                return Err(PatternError {
                    index,
                    pattern: String::new(),
                    column: None,
                    message: "it is empty and would match every namespace; write .* if that is meant".to_owned(),
                });
            }
            Regex::new(pattern).map_err(|error| explain(index, pattern, &error))
        };
        patterns
            .iter()
            .enumerate()
            .map(compile)
            .collect::<Result<_, _>>()
            .map(Self)
    }

    /// Whether any pattern matches, anywhere in the name unless it is anchored.
    pub fn matches(&self, namespace: &str) -> bool {
        self.first_match(namespace).is_some()
    }

    pub fn first_match(&self, namespace: &str) -> Option<&str> {
        self.0
            .iter()
            .find(|pattern| pattern.is_match(namespace))
            .map(Regex::as_str)
    }

    /// The patterns as written.
    pub fn iter(&self) -> impl Iterator<Item = &str> {
        self.0.iter().map(Regex::as_str)
    }
}

impl fmt::Debug for NamespacePatterns {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_list().entries(self.iter()).finish()
    }
}

impl PartialEq for NamespacePatterns {
    fn eq(&self, other: &Self) -> bool {
        self.iter().eq(other.iter())
    }
}

impl Eq for NamespacePatterns {}

fn explain(index: usize, pattern: &str, error: &regex::Error) -> PatternError {
    let (column, message) = match regex_syntax::parse(pattern) {
        Err(regex_syntax::Error::Parse(syntax)) => (Some(syntax.span().start.column), syntax.kind().to_string()),
        Err(regex_syntax::Error::Translate(syntax)) => (Some(syntax.span().start.column), syntax.kind().to_string()),
        _ => (None, error.to_string()),
    };
    PatternError {
        index,
        pattern: pattern.to_owned(),
        column,
        message,
    }
}

#[cfg(test)]
mod tests {
    use rstest::rstest;

    use super::*;

    fn compile(patterns: &[&str]) -> Result<NamespacePatterns, PatternError> {
        NamespacePatterns::compile(&patterns.iter().map(|&pattern| pattern.to_owned()).collect::<Vec<_>>())
    }

    #[rstest]
    #[case(&["kube"], "kube-system", true)]
    #[case(&["kube"], "my-kube-apps", true)]
    #[case(&["^kube"], "my-kube-apps", false)]
    #[case(&["^kube-system$"], "kube-system", true)]
    #[case(&["^kube-system$"], "kube-systems", false)]
    #[case(&["openshift-.*", "^a"], "abc", true)]
    #[case(&["Kube"], "kube-system", false)]
    #[case(&[], "kube-system", false)]
    fn pattern_is_not_anchored_by_itself(#[case] patterns: &[&str], #[case] namespace: &str, #[case] matches: bool) {
        assert_eq!(compile(patterns).unwrap().matches(namespace), matches);
    }

    #[test]
    fn the_first_pattern_that_matches_is_named() {
        let patterns = compile(&["^b", "a", "ab"]).unwrap();
        assert_eq!(patterns.first_match("cab"), Some("a"));
        assert_eq!(patterns.first_match("c"), None);
    }

    #[rstest]
    #[case(&["ok", "a(b"], 1, Some(2), "unclosed group")]
    #[case::matches_everything(&["ok", ""], 1, None, "write .*")]
    #[case(&["*a"], 0, Some(1), "repetition operator missing expression")]
    #[case(&["ü[z-a]"], 0, Some(3), "invalid character class range")]
    #[case(&["a", "b", "\\p{Nothing}"], 2, Some(1), "Unicode property not found")]
    #[case(&["(?=a)"], 0, Some(1), "look-around")]
    #[case(&["a{1000}{1000}{1000}"], 0, None, "size limit")]
    fn bad_pattern_is_named_by_index_and_position(
        #[case] patterns: &[&str],
        #[case] index: usize,
        #[case] column: Option<usize>,
        #[case] says: &str,
    ) {
        let error = compile(patterns).unwrap_err();
        assert_eq!(
            (error.index, error.column, error.pattern.as_str()),
            (index, column, patterns[index])
        );
        let text = error.to_string();
        assert!(
            text.contains(says) && text.starts_with(&format!("pattern {index} (")),
            "{text}"
        );
        assert_eq!(text.contains("at character"), column.is_some(), "{text}");
    }
}
