//! How the demo's text is set: what is said stands to the right of when and who, and breaks at spaces only, so that
//! names can be copied whole. Moments and durations are told in seconds since the demo began.

use std::borrow::Cow;
use std::time::Duration;

use jiff::Timestamp;
use textwrap::{Options, WordSeparator, WordSplitter};

/// Width of the columns for when and who.
pub const MARGIN: usize = 23;

/// The narrowest and the widest that text is set.
const WIDTHS: (usize, usize) = (60, 110);

/// The terminal's width, within what can be read; 80 where there is no terminal.
pub fn width() -> usize {
    usize::from(console::Term::stdout().size().1).clamp(WIDTHS.0, WIDTHS.1)
}

/// Breaks `text` into lines of at most `width`; all but the first are indented by `indent`.
pub fn wrap(text: &str, width: usize, indent: usize) -> Vec<String> {
    let blank = " ".repeat(indent);
    let options = Options::new(width)
        .subsequent_indent(&blank)
        .word_separator(WordSeparator::AsciiSpace)
        .word_splitter(WordSplitter::NoHyphenation);
    textwrap::wrap(text, options).into_iter().map(Cow::into_owned).collect()
}

/// Moments become seconds of the demo's own clock, which began at `began`.
pub fn in_seconds(text: &str, began: Timestamp) -> String {
    let word = |word: &str| {
        let end = word.find('Z').map_or(0, |at| at + 1);
        let moment: Option<Timestamp> = word.get(..end).and_then(|text| text.parse().ok());
        // Written to the second, the rest cut off: what is announced never comes earlier than it was told.
        let since = moment.map(|moment| moment.duration_since(began).as_secs_f64().floor().max(0.0));
        since.map_or_else(|| word.to_owned(), |since| format!("{since:.0} s{}", &word[end..]))
    };
    text.split(' ').map(word).collect::<Vec<_>>().join(" ")
}

/// A duration as the margin shows it.
pub fn seconds(duration: Duration) -> String {
    format!("{:.1} s", duration.as_secs_f32())
}

#[cfg(test)]
mod tests {
    use jiff::ToSpan;

    use super::*;

    #[test]
    fn names_with_hyphens_stay_whole() {
        let pod = "batch-reports/report-785bcb9578-vd45d";
        let text = format!("eviction of {pod} is refused: its budget has no room, and {pod} is back");
        let lines = wrap(&text, 80 - MARGIN, 2);
        assert!(
            lines.len() > 1 && lines.iter().all(|line| line.len() <= 80 - MARGIN),
            "{lines:?}"
        );
        assert!(lines.iter().filter(|line| line.contains(pod)).count() == 2, "{lines:?}");
        assert!(lines[1..].iter().all(|line| line.starts_with("  ")), "{lines:?}");
    }

    #[test]
    fn moments_become_seconds_of_the_demo() {
        let began: Timestamp = "2026-11-21T11:09:00Z".parse().unwrap();
        let began = began.checked_add(500.milliseconds()).unwrap();
        assert_eq!(in_seconds("at 2026-11-21T11:09:31Z: evict", began), "at 30 s: evict");
        assert_eq!(
            in_seconds("(grace until 2026-11-21T11:09:10Z)", began),
            "(grace until 9 s)"
        );
        assert_eq!(in_seconds("(PDB Z/Zoo) Zed", began), "(PDB Z/Zoo) Zed");
    }
}
