//! Tells what happens, as it happens: on a terminal above a progress line, elsewhere as plain lines.

use std::fmt::Write as _;
use std::io::{IsTerminal, Write as _};
use std::time::{Duration, Instant};

use console::{Style, StyledObject, style};
use indicatif::{ProgressBar, ProgressStyle};
use jiff::Timestamp;

use super::environment::Environment;
use super::page::{self, MARGIN};

/// Who is speaking.
#[derive(Clone, Copy)]
pub enum Voice {
    Keeper,
    Health,
    Machine,
    Kubectl,
    Lock,
    CephPdb,
    Ceph,
    Admin,
    Observer,
}

impl Voice {
    /// As wide as the widest.
    fn shown(self) -> StyledObject<&'static str> {
        match self {
            Self::Keeper => style("drain-keeper").green(),
            Self::Health => style("health-check").green(),
            Self::Machine => style("machine     ").red(),
            Self::Kubectl => style("kubectl     ").blue(),
            Self::Lock => style("drain-lock  ").green(),
            Self::CephPdb => style("ceph-pdb    ").green(),
            Self::Ceph => style("ceph        ").cyan(),
            Self::Admin => style("admin       ").magenta(),
            Self::Observer => style("who waits   ").yellow(),
        }
    }
}

/// A line of what is said.
pub struct Line {
    text: String,
    look: Style,
    /// How far what does not fit is indented.
    hang: usize,
}

impl Line {
    pub fn plain(text: impl Into<String>) -> Self {
        Self {
            text: text.into(),
            look: Style::new(),
            hang: 2,
        }
    }

    pub fn look(self, look: Style) -> Self {
        Self { look, ..self }
    }

    pub fn hang(self, hang: usize) -> Self {
        Self { hang, ..self }
    }
}

/// Tells what happens.
pub struct Narrator {
    began: Instant,
    began_at: Timestamp,
    /// What all names of the demo begin with, which is not told again and again.
    prefix: String,
    bar: Option<ProgressBar>,
}

impl Narrator {
    pub fn new(env: &Environment) -> Self {
        let bar = std::io::stdout().is_terminal().then(|| {
            let bar = ProgressBar::new(1);
            if let Ok(style) =
                ProgressStyle::with_template("{spinner:.cyan} {pos}/{len} nodes [{bar:24.cyan}] {elapsed}  {wide_msg}")
            {
                bar.set_style(style.progress_chars("=> "));
            }
            bar.enable_steady_tick(Duration::from_millis(120));
            bar
        });
        Self {
            began: Instant::now(),
            began_at: Timestamp::now(),
            prefix: env.prefix.clone(),
            bar,
        }
    }

    /// What all names of the demo begin with.
    pub fn prefix(&self) -> &str {
        &self.prefix
    }

    /// A name without what all names of the demo begin with.
    pub fn short(&self, text: &str) -> String {
        if self.prefix.is_empty() {
            text.to_owned()
        } else {
            text.replace(&self.prefix, "")
        }
    }

    /// Says several lines about a node.
    pub fn tell(&self, voice: Voice, node: &str, lines: impl IntoIterator<Item = Line>) {
        let about = (!node.is_empty()).then(|| Line::plain(format!("{node}:")).look(Style::new().bold()));
        self.set(voice, about.into_iter().chain(lines));
    }

    /// Says something about one of several nodes at work: its name leads the line.
    pub fn remark(&self, voice: Voice, node: &str, line: Line) {
        let hang = self.short(node).len() + 2;
        let text = format!("{node}: {}", line.text);
        self.set(voice, [Line { text, hang, ..line }]);
    }

    fn set(&self, voice: Voice, lines: impl IntoIterator<Item = Line>) {
        let who = voice.shown();
        let mut margin = format!("{:>6.1}s  {who}  ", self.began.elapsed().as_secs_f32());
        let mut block = String::new();
        for line in lines {
            let text = page::in_seconds(&self.short(&line.text), self.began_at);
            for part in page::wrap(&text, page::width() - MARGIN, line.hang) {
                let _ = writeln!(block, "{margin}{}", line.look.apply_to(part));
                margin = " ".repeat(MARGIN);
            }
        }
        self.print(&block);
    }

    /// Begins a part.
    pub fn title(&self, text: &str) {
        let rule = "-".repeat(page::width().saturating_sub(text.len() + 5));
        self.print(&format!("\n-- {} {}\n", style(text).bold(), style(rule).dim()));
    }

    /// Says something before the story begins, or a part.
    pub fn preface(&self, text: &str) {
        let mut block = String::new();
        for line in page::wrap(text, page::width(), 0) {
            let _ = writeln!(block, "{line}");
        }
        self.print(&block);
    }

    /// What a command has printed.
    pub fn shell(&self, command: &str, output: &str) {
        let mut block = format!("\n{}\n", style(format!("$ {}", self.short(command))).bold());
        for line in output.trim_end().lines() {
            let _ = writeln!(block, "{}", self.short(line));
        }
        self.print(&format!("{block}\n"));
    }

    /// What has come of a part.
    pub fn result(&self, text: &str) {
        let mut block = String::from("\n");
        for line in page::wrap(&format!("=> {text}"), page::width(), 3) {
            let _ = writeln!(block, "{}", style(line).green().bold());
        }
        self.print(&block);
    }

    /// How far the upgrade is.
    pub fn progress(&self, done: usize, all: usize, text: &str) {
        if let Some(bar) = &self.bar {
            bar.set_length(all as u64);
            bar.set_position(done as u64);
            bar.set_message(self.short(text));
        }
    }

    /// The story is over, or was interrupted.
    pub fn finish(&self) {
        if let Some(bar) = &self.bar {
            bar.finish_and_clear();
        }
    }

    /// Whoever closes the output early does not end the demo in the middle.
    fn print(&self, block: &str) {
        let write = || {
            let _ = std::io::stdout().lock().write_all(block.as_bytes());
        };
        match &self.bar {
            Some(bar) => bar.suspend(write),
            None => write(),
        }
    }
}

impl Drop for Narrator {
    fn drop(&mut self) {
        self.finish();
    }
}
