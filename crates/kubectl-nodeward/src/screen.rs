//! Where output goes: how wide it may be, whether it is coloured, and in which form results are printed.

use std::io::{self, IsTerminal, Write as _};

use console::Term;
use serde::Serialize;

use crate::args::{Global, Output};
use crate::text::line::Ink;
use crate::text::page::Page;

/// The standard output.
#[derive(Debug, Clone)]
pub struct Screen {
    output: Output,
    is_terminal: bool,
    ink: Ink,
}

impl Screen {
    /// What the arguments, the environment and the standard output come to.
    pub fn new(global: &Global) -> Self {
        let is_terminal = io::stdout().is_terminal();
        // https://no-color.org: present and not empty.
        let wants_none = std::env::var_os("NO_COLOR").is_some_and(|value| !value.is_empty());
        let is_dumb = std::env::var_os("TERM").is_some_and(|term| term == "dumb");
        let plain = global.no_color || wants_none || is_dumb || !is_terminal;
        Self {
            output: global.output,
            is_terminal: is_terminal && !is_dumb,
            ink: if plain { Ink::Plain } else { Ink::Coloured },
        }
    }

    /// The form of results.
    pub fn output(&self) -> Output {
        self.output
    }

    /// Whether text is coloured.
    pub fn ink(&self) -> Ink {
        self.ink
    }

    /// Whether what has been printed can be printed over: text for people, on a terminal.
    pub fn is_live(&self) -> bool {
        self.is_terminal && self.output == Output::Table
    }

    /// How wide and how high the terminal is; `None` where there is none, and lines are as long as they are.
    pub fn size(&self) -> Option<(usize, usize)> {
        let columns = || {
            std::env::var("COLUMNS")
                .ok()?
                .parse::<usize>()
                .ok()
                .filter(|columns| *columns > 0)
        };
        if !self.is_terminal {
            return columns().map(|columns| (columns, usize::MAX));
        }
        let (rows, columns) = Term::stdout().size();
        Some((usize::from(columns).max(1), usize::from(rows)))
    }

    /// Takes the `^C` away that a terminal shows.
    pub fn clear_line(&self) {
        if self.is_live() {
            let _ = write("\r\u{1b}[K");
        }
    }

    /// Prints a result: the page, or the value it was made of.
    ///
    /// # Errors
    /// The standard output is closed.
    pub fn show<T: Serialize>(&self, value: &T, page: impl FnOnce(&T) -> Page) -> anyhow::Result<()> {
        let text = match self.output {
            Output::Table => page(value).print(self.size().map(|(columns, _)| columns), self.ink),
            Output::Json => serde_json::to_string_pretty(value)? + "\n",
            Output::Yaml => serde_yaml::to_string(value)?,
        };
        write(&text)?;
        Ok(())
    }

    /// Says something on the way to the result: where the result is for a program, on the standard error.
    pub fn say(&self, page: &Page) {
        let text = page.print(self.size().map(|(columns, _)| columns), self.ink);
        let _ = match self.output {
            Output::Table => write(&text),
            Output::Json | Output::Yaml => io::stderr().write_all(text.as_bytes()),
        };
    }
}

/// Writes at once, so that two lines are never mixed.
fn write(text: &str) -> io::Result<()> {
    let mut out = io::stdout().lock();
    out.write_all(text.as_bytes())?;
    out.flush()
}
