//! Progress of long set-up work: a live line on a terminal, plain lines elsewhere.

use std::io::{IsTerminal, Write};
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use indicatif::{ProgressBar, ProgressStyle};

/// How often a plain (not terminal) output repeats that work goes on.
const PLAIN_EVERY: Duration = Duration::from_secs(10);

/// One named piece of work whose progress is shown on standard error.
pub struct Progress {
    title: String,
    began: Instant,
    shown: Shown,
}

enum Shown {
    Bar(ProgressBar),
    Lines(Mutex<Instant>),
}

impl Progress {
    /// Begins to show `title`.
    pub fn begin(title: impl Into<String>) -> Self {
        let title = title.into();
        let shown = if std::io::stderr().is_terminal() {
            let bar = ProgressBar::new(0);
            if let Ok(style) = ProgressStyle::with_template("{spinner:.cyan} {prefix}  {elapsed}  {msg}") {
                bar.set_style(style);
            }
            bar.set_prefix(title.clone());
            bar.enable_steady_tick(Duration::from_millis(120));
            Shown::Bar(bar)
        } else {
            line(&format!("{title} ..."));
            Shown::Lines(Mutex::new(Instant::now()))
        };
        Self {
            title,
            began: Instant::now(),
            shown,
        }
    }

    /// Says how far the work is. Plain output is thinned to one line each ten seconds.
    pub fn step(&self, message: &str) {
        match &self.shown {
            Shown::Bar(bar) => bar.set_message(message.to_owned()),
            Shown::Lines(last) => {
                let mut last = last.lock().unwrap_or_else(PoisonError::into_inner);
                if last.elapsed() >= PLAIN_EVERY {
                    *last = Instant::now();
                    line(&format!(
                        "{} ... {:.0} s, {message}",
                        self.title,
                        self.began.elapsed().as_secs_f32()
                    ));
                }
            }
        }
    }

    /// Ends with one line that stays: the title, `outcome` and the time it took.
    pub fn done(self, outcome: &str) {
        let text = format!(
            "{}: {outcome} ({:.1} s)",
            self.title,
            self.began.elapsed().as_secs_f32()
        );
        if let Shown::Bar(bar) = &self.shown {
            bar.finish_and_clear();
        }
        line(&text);
    }
}

/// Writes one line to standard error; a closed standard error is not worth failing for.
fn line(text: &str) {
    let _ = writeln!(std::io::stderr(), "{text}");
}
