//! What is wrong with a configuration, and where.

use std::fmt;
use std::sync::Arc;

/// A configuration that cannot be used. Shown as `FILE:LINE:COLUMN: field.path: what is wrong`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ConfigError {
    origin: Option<String>,
    place: Option<(usize, usize)>,
    path: Option<String>,
    message: String,
}

impl ConfigError {
    /// Something is wrong with the document as a whole.
    pub fn new(message: impl Into<String>) -> Self {
        Self {
            origin: None,
            place: None,
            path: None,
            message: message.into(),
        }
    }

    /// Something is wrong with one field: `path` as in `nodeDrain.timeOut` or `pools[0].selector`. The message should say
    /// what to write instead.
    pub fn at(path: impl Into<String>, message: impl Into<String>) -> Self {
        Self {
            path: Some(path.into()),
            ..Self::new(message)
        }
    }

    /// Names the file or object that the text came from.
    #[must_use]
    pub fn in_origin(mut self, origin: impl Into<String>) -> Self {
        self.origin.get_or_insert_with(|| origin.into());
        self
    }

    /// Finds the line of the field in the text, where it is not known yet.
    #[must_use]
    pub fn located_in(mut self, text: &str) -> Self {
        if self.place.is_none() {
            self.place = self
                .path
                .as_deref()
                .and_then(|path| super::document::locate(text, path));
        }
        self
    }

    pub(super) fn with_place(mut self, line: usize, column: usize) -> Self {
        self.place = Some((line, column));
        self
    }

    /// The line, counted from 1.
    pub fn line(&self) -> Option<usize> {
        self.place.map(|(line, _)| line)
    }

    /// The field.
    pub fn path(&self) -> Option<&str> {
        self.path.as_deref()
    }

    /// What is wrong, without the place.
    pub fn message(&self) -> &str {
        &self.message
    }
}

impl fmt::Display for ConfigError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let origin = self.origin.as_deref().unwrap_or("config");
        match self.place {
            Some((line, column)) => write!(f, "{origin}:{line}:{column}: ")?,
            None => write!(f, "{origin}: ")?,
        }
        if let Some(path) = &self.path {
            write!(f, "{path}: ")?;
        }
        f.write_str(&self.message)
    }
}

impl std::error::Error for ConfigError {}

/// The name of a namespace, as the API server accepts it.
///
/// # Errors
/// With the field and what is allowed.
pub fn namespace(field: &str, name: &str) -> Result<Arc<str>, ConfigError> {
    let is_alphanumeric = |byte: &u8| byte.is_ascii_lowercase() || byte.is_ascii_digit();
    let bytes = name.as_bytes();
    let ends = bytes.first().zip(bytes.last());
    let is_label = ends.is_some_and(|(first, last)| is_alphanumeric(first) && is_alphanumeric(last))
        && bytes.iter().all(|byte| is_alphanumeric(byte) || *byte == b'-')
        && bytes.len() <= 63;
    if is_label {
        Ok(name.into())
    } else {
        let text = format!("{name:?} cannot be the name of a namespace: lower-case letters, digits and - are allowed");
        Err(ConfigError::at(field, text))
    }
}
