//! The standard output: its width, its colours, and the format of results.

use std::io::{self, IsTerminal, Write as _};

use console::Term;
use serde::Serialize;
use serde_yaml::Value;

use crate::args::{Global, Output};
use crate::listed::Listed;
use crate::text::page::Page;

/// The standard output.
#[derive(Debug, Clone)]
pub struct Screen {
    output: Output,
    is_terminal: bool,
    is_colored: bool,
}

impl Screen {
    pub fn new(global: &Global) -> Self {
        let is_terminal = io::stdout().is_terminal();
        // https://no-color.org: present and not empty.
        let wants_none = std::env::var_os("NO_COLOR").is_some_and(|value| !value.is_empty());
        let is_dumb = std::env::var_os("TERM").is_some_and(|term| term == "dumb");
        let plain = global.no_color || wants_none || is_dumb || !is_terminal;
        Self {
            output: global.output,
            is_terminal: is_terminal && !is_dumb,
            is_colored: !plain,
        }
    }

    pub fn output(&self) -> Output {
        self.output
    }

    /// Whether printed lines can be drawn over: text for people, on a terminal.
    pub fn is_live(&self) -> bool {
        self.is_terminal && self.output.is_text()
    }

    /// Columns and rows of the terminal; `None` where there is none and lines are not broken.
    pub fn size(&self) -> Option<(usize, usize)> {
        let columns = || {
            std::env::var("COLUMNS")
                .ok()?
                .parse()
                .ok()
                .filter(|columns| *columns > 0)
        };
        if !self.is_terminal {
            return columns().map(|columns| (columns, usize::MAX));
        }
        let (rows, columns) = Term::stdout().size();
        Some((usize::from(columns).max(1), usize::from(rows)))
    }

    /// Removes the `^C` that a terminal shows.
    pub fn clear_line(&self) {
        if self.is_live() {
            let _ = write("\r\u{1b}[K");
        }
    }

    /// Prints a result: as a page, as one document, or the names alone.
    pub fn show<T: Listed>(&self, value: &T, print: impl FnOnce(&mut Page)) -> anyhow::Result<()> {
        let text = match self.output {
            Output::Table | Output::Wide => self.text(print),
            Output::Json => serde_json::to_string_pretty(&document(value)?)? + "\n",
            Output::Yaml => serde_yaml::to_string(&document(value)?)?,
            Output::Name => {
                self.say(|page| value.print_beside_names(page));
                value.names().into_iter().map(|name| name + "\n").collect()
            }
        };
        write(&text)?;
        Ok(())
    }

    /// Prints a result in place of the one before: on a terminal as much of it as there are lines, elsewhere one after the other.
    pub fn redraw<T: Listed>(&self, value: &T, print: impl FnOnce(&mut Page)) -> anyhow::Result<()> {
        let Some((_, rows)) = self.size().filter(|_| self.is_live()) else {
            let separator = if self.output == Output::Yaml { "---\n" } else { "" };
            write(separator)?;
            return self.show(value, print);
        };
        let text = self.text(print);
        let lines: Vec<&str> = text.lines().collect();
        // A full last line would scroll.
        let fitting = rows.saturating_sub(2).max(1);
        let shown = lines[..lines.len().min(fitting)].join("\n");
        let rest = match lines.len().checked_sub(fitting) {
            None | Some(0) => String::new(),
            Some(more) => format!("… {more} more lines: make the terminal higher\n"),
        };
        // Cursor to the first line, and everything below it away.
        write(&format!("\u{1b}[H\u{1b}[J{shown}\n{rest}"))?;
        Ok(())
    }

    /// Prints a message on the way to the result: on the standard error where the result is for a program.
    pub fn say(&self, print: impl FnOnce(&mut Page)) {
        let text = self.text(print);
        let _ = match self.output {
            Output::Table | Output::Wide => write(&text),
            Output::Json | Output::Yaml | Output::Name => io::stderr().write_all(text.as_bytes()),
        };
    }

    fn text(&self, print: impl FnOnce(&mut Page)) -> String {
        let fitted = self.size().filter(|_| self.output != Output::Wide);
        let mut page = Page::new(fitted.map_or(usize::MAX, |(columns, _)| columns));
        print(&mut page);
        page.print(self.is_colored)
    }
}

/// A result for programs, its fields in their order. What is not known is left out.
pub fn document(value: &impl Serialize) -> Result<Value, serde_yaml::Error> {
    let mut document = serde_yaml::to_value(value)?;
    remove_nulls(&mut document);
    Ok(document)
}

fn remove_nulls(value: &mut Value) {
    match value {
        Value::Mapping(fields) => {
            fields.retain(|_, value| !value.is_null());
            fields.values_mut().for_each(remove_nulls);
        }
        Value::Sequence(items) => items.iter_mut().for_each(remove_nulls),
        _ => (),
    }
}

/// Writes at once, so that two lines are never mixed.
fn write(text: &str) -> io::Result<()> {
    let mut out = io::stdout().lock();
    out.write_all(text.as_bytes())?;
    out.flush()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::text::Style;

    /// Whatever the width of the terminal is.
    #[test]
    fn wide_lines_are_not_broken() {
        let lines = |output| {
            let screen = Screen {
                output,
                is_terminal: true,
                is_colored: false,
            };
            let text = screen.text(|page| page.text(Style::Plain, "word ".repeat(1000)));
            text.lines().count()
        };
        assert!(lines(Output::Table) > 1);
        assert_eq!(lines(Output::Wide), 1);
    }
}
