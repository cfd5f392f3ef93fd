//! Text for a terminal of any width: styles, wrapped lines, pages, tables and times. Pure.

mod layout;
pub mod page;
pub mod table;
pub mod time;

use serde::Serialize;
use textwrap::WordSeparator;
use textwrap::core::{Word, break_words, display_width};
use textwrap::wrap_algorithms::wrap_first_fit;

/// The meaning of a piece of text; its colour follows from it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize)]
pub enum Style {
    #[default]
    Plain,
    /// A name or a heading.
    Strong,
    Good,
    /// Waits, or is late.
    Warning,
    /// Has failed, or needs a person.
    Bad,
    /// Of less weight.
    Faint,
}

impl Style {
    /// The text with the ANSI sequences of the style, which a page strips where colours are unwanted.
    pub fn paint(self, text: &str) -> String {
        let style = console::Style::new().force_styling(true);
        let style = match self {
            _ if text.is_empty() => return String::new(),
            Self::Plain => return printable(text),
            Self::Strong => style.bold(),
            Self::Good => style.green(),
            Self::Warning => style.yellow(),
            Self::Bad => style.red(),
            Self::Faint => style.dim(),
        };
        style.apply_to(printable(text)).to_string()
    }
}

/// The text with every control character replaced: text from the cluster must not steer a terminal.
pub fn printable(text: &str) -> String {
    // Direction marks make a terminal show text in another order than it has.
    let is_direction_mark =
        |c| matches!(c, '\u{200e}' | '\u{200f}' | '\u{202a}'..='\u{202e}' | '\u{2066}'..='\u{2069}');
    text.chars()
        .map(|c| match c {
            '\n' | '\t' | '\r' => ' ',
            c if c.is_control() || is_direction_mark(c) => '\u{fffd}',
            c => c,
        })
        .collect()
}

/// The text in lines of at most `width` columns, at least one. Words stay whole where they fit; a longer one, such as a
/// name, is broken after a separator, and within if there is none. Nothing is added, so that a name can be copied.
pub fn wrap(text: &str, width: usize) -> Vec<String> {
    let width = width.max(1);
    let words = WordSeparator::AsciiSpace.find_words(text).flat_map(|word| {
        // A splitter of textwrap's own would break names that fit on the next line, too.
        if display_width(word.word) <= width {
            return vec![word];
        }
        let separators = ['-', '.', '/', ':', '_', ',', '='];
        let mut pieces: Vec<Word<'_>> = word.word.split_inclusive(separators).map(Word::from).collect();
        if let Some(last) = pieces.last_mut() {
            last.whitespace = word.whitespace;
        }
        pieces
    });
    let words = break_words(words, width);
    wrap_first_fit(&words, &[u32::try_from(width).map_or(f64::MAX, f64::from)])
        .into_iter()
        .map(|line| {
            let line: String = line.iter().flat_map(|word| [word.word, word.whitespace]).collect();
            line.trim_end_matches(' ').to_owned()
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use rstest::rstest;

    use super::*;

    #[rstest]
    #[case("a\nb\tc", "a b c")]
    #[case("\u{1b}[31mred", "\u{fffd}[31mred")]
    #[case("\u{202e}abc", "\u{fffd}abc")]
    #[case("äöü 節点", "äöü 節点")]
    fn cluster_text_cannot_steer_the_terminal(#[case] text: &str, #[case] shown: &str) {
        assert_eq!(Style::Plain.paint(text), shown);
        assert_eq!(Style::Bad.paint(text), format!("\u{1b}[31m{shown}\u{1b}[0m"));
    }

    #[rstest]
    #[case::fits("a short text", 20, &["a short text"])]
    #[case::at_spaces("node-1 holds shop/web", 14, &["node-1 holds", "shop/web"])]
    #[case::a_name_that_fits_stays_whole("waits for node-12", 12, &["waits for", "node-12"])]
    #[case::a_long_name("ip-10-0-1-2.eu-central-1.compute.internal", 20, &["ip-10-0-1-2.eu-", "central-1.compute.", "internal"])]
    #[case::no_separator("abcdefghij", 4, &["abcd", "efgh", "ij"])]
    #[case::empty("", 4, &[""])]
    #[case::no_width("ab", 0, &["a", "b"])]
    #[case::wide_letters("節点節点", 4, &["節点", "節点"])]
    fn wrapping_loses_nothing(#[case] text: &str, #[case] width: usize, #[case] lines: &[&str]) {
        let wrapped = wrap(text, width);
        assert_eq!(wrapped, lines);
        let letters = |text: &str| text.replace(' ', "");
        assert_eq!(letters(&wrapped.concat()), letters(text));
    }
}
