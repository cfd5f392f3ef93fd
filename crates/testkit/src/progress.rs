//! Progress of long set-up work: a live line on a terminal, plain lines elsewhere.

use std::io::{IsTerminal, Write};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use indicatif::{ProgressBar, ProgressStyle};

/// How often a plain (not terminal) output repeats that work goes on, also when nothing new is said: nobody should have
/// to wonder for ten seconds.
const PLAIN_EVERY: Duration = Duration::from_secs(8);

/// One named piece of work whose progress is shown on standard error.
pub struct Progress {
    title: String,
    began: Instant,
    shown: Shown,
}

enum Shown {
    Bar(ProgressBar),
    Lines(Arc<Lines>),
}

/// What a thread repeats from time to time, until the work ends.
#[derive(Default)]
struct Lines {
    state: Mutex<State>,
    ended: Condvar,
}

#[derive(Default)]
struct State {
    message: String,
    ended: bool,
}

impl Lines {
    fn state(&self) -> MutexGuard<'_, State> {
        crate::lock(&self.state)
    }

    fn repeat(&self, title: &str, began: Instant) {
        let mut state = self.state();
        loop {
            let woken = self.ended.wait_timeout_while(state, PLAIN_EVERY, |state| !state.ended);
            state = woken.unwrap_or_else(PoisonError::into_inner).0;
            if state.ended {
                return;
            }
            let separator = if state.message.is_empty() { "" } else { ", " };
            let seconds = began.elapsed().as_secs();
            line(&format!("{title} ... {seconds} s{separator}{}", state.message));
        }
    }
}

impl Progress {
    /// Begins to show `title`.
    pub fn begin(title: impl Into<String>) -> Self {
        let title = title.into();
        let began = Instant::now();
        let shown = if std::io::stderr().is_terminal() {
            let bar = ProgressBar::new(0);
            if let Ok(style) = ProgressStyle::with_template("{spinner:.cyan} {prefix}  {elapsed}  {wide_msg}") {
                bar.set_style(style);
            }
            bar.set_prefix(title.clone());
            bar.enable_steady_tick(Duration::from_millis(120));
            Shown::Bar(bar)
        } else {
            line(&format!("{title} ..."));
            let lines = Arc::<Lines>::default();
            let (repeated, title) = (Arc::clone(&lines), title.clone());
            std::thread::spawn(move || repeated.repeat(&title, began));
            Shown::Lines(lines)
        };
        Self { title, began, shown }
    }

    /// Says how far the work is. Plain output repeats the last word only, and only from time to time.
    pub fn step(&self, message: &str) {
        match &self.shown {
            Shown::Bar(bar) => bar.set_message(message.to_owned()),
            Shown::Lines(lines) => message.clone_into(&mut lines.state().message),
        }
    }

    /// Ends with one line that stays: the title, `outcome` and the time it took.
    pub fn done(self, outcome: &str) {
        let text = format!(
            "{}: {outcome} ({:.1} s)",
            self.title,
            self.began.elapsed().as_secs_f32()
        );
        self.end();
        line(&text);
    }

    fn end(&self) {
        match &self.shown {
            Shown::Bar(bar) => bar.finish_and_clear(),
            Shown::Lines(lines) => {
                lines.state().ended = true;
                lines.ended.notify_all();
            }
        }
    }
}

/// Work that failed has no outcome to tell here; its error tells it.
impl Drop for Progress {
    fn drop(&mut self) {
        self.end();
    }
}

/// Writes one line to standard error; a closed standard error is not worth failing for.
fn line(text: &str) {
    let _ = writeln!(std::io::stderr(), "{text}");
}
