//! A line of text, each part of it in a tone.

use console::Style;
use textwrap::core::display_width;

/// How a piece of text is meant; its colour follows from it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Tone {
    /// Nothing special.
    #[default]
    Plain,
    /// A name or a heading.
    Strong,
    /// As it should be.
    Good,
    /// Waits, or is late.
    Warning,
    /// Has failed, or somebody has to look.
    Bad,
    /// Of less weight.
    Faint,
}

impl Tone {
    fn style(self) -> Style {
        // The tones are used only where colours are wanted, whatever console itself would find out.
        let style = Style::new().force_styling(true);
        match self {
            Self::Plain => style,
            Self::Strong => style.bold(),
            Self::Good => style.green(),
            Self::Warning => style.yellow(),
            Self::Bad => style.red(),
            Self::Faint => style.dim(),
        }
    }
}

/// Whether text is coloured.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Ink {
    /// Text alone.
    Plain,
    /// Text with ANSI sequences for its tones.
    Coloured,
}

/// A line of text.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Line {
    spans: Vec<(Tone, String)>,
}

impl Line {
    /// One piece of text.
    pub fn new(tone: Tone, text: impl AsRef<str>) -> Self {
        let mut line = Self::default();
        line.push(tone, text);
        line
    }

    /// Appends a piece of text.
    pub fn push(&mut self, tone: Tone, text: impl AsRef<str>) {
        let text = printable(text.as_ref());
        if !text.is_empty() {
            self.spans.push((tone, text));
        }
    }

    /// Appends another line.
    pub fn append(&mut self, other: Self) {
        self.spans.extend(other.spans);
    }

    /// Whether there is nothing to see.
    pub fn is_blank(&self) -> bool {
        self.spans.iter().all(|(_, text)| text.trim().is_empty())
    }

    /// The line without its last piece, that piece's tone, and its text.
    pub fn split_last(mut self) -> (Self, Tone, String) {
        let (tone, text) = self.spans.pop().unwrap_or_default();
        (self, tone, text)
    }

    /// Columns that it takes.
    pub fn width(&self) -> usize {
        self.spans.iter().map(|(_, text)| display_width(text)).sum()
    }

    /// Appends spaces up to this width.
    pub fn pad_to(&mut self, width: usize) {
        let missing = width.saturating_sub(self.width());
        if missing > 0 {
            self.spans.push((Tone::Plain, " ".repeat(missing)));
        }
    }

    /// The line as it is printed, without spaces at its end.
    pub fn paint(&self, ink: Ink) -> String {
        let text: usize = self
            .spans
            .iter()
            .rposition(|(_, text)| !text.trim_end().is_empty())
            .map_or(0, |last| last + 1);
        let mut painted = String::new();
        for (index, (tone, span)) in self.spans.iter().take(text).enumerate() {
            let span = if index + 1 == text { span.trim_end() } else { span };
            match (ink, tone) {
                (Ink::Plain, _) | (_, Tone::Plain) => painted.push_str(span),
                (Ink::Coloured, tone) => painted.push_str(&tone.style().apply_to(span).to_string()),
            }
        }
        painted
    }
}

/// The text with every control character replaced: what comes out of the cluster must not steer a terminal.
pub fn printable(text: &str) -> String {
    text.chars()
        .map(|c| match c {
            '\n' | '\t' | '\r' => ' ',
            c if c.is_control() || is_direction_mark(c) => '\u{fffd}',
            c => c,
        })
        .collect()
}

/// Marks that make a terminal show text in another order than it has.
fn is_direction_mark(c: char) -> bool {
    matches!(c, '\u{200e}' | '\u{200f}' | '\u{202a}'..='\u{202e}' | '\u{2066}'..='\u{2069}')
}

#[cfg(test)]
mod tests {
    use rstest::rstest;

    use super::*;

    #[test]
    fn a_line_is_painted_only_where_colours_are_wanted() {
        let mut line = Line::new(Tone::Strong, "node-1");
        line.push(Tone::Plain, " is ");
        line.push(Tone::Bad, "stuck");
        assert_eq!(line.paint(Ink::Plain), "node-1 is stuck");
        assert_eq!(
            line.paint(Ink::Coloured),
            "\u{1b}[1mnode-1\u{1b}[0m is \u{1b}[31mstuck\u{1b}[0m"
        );
        assert_eq!(line.width(), 15);
    }

    #[test]
    fn a_line_never_ends_with_spaces() {
        let mut line = Line::new(Tone::Plain, "a ");
        line.pad_to(10);
        assert_eq!((line.width(), line.paint(Ink::Plain)), (10, "a".to_owned()));
        assert_eq!(Line::new(Tone::Plain, "  ").paint(Ink::Plain), "");
    }

    #[rstest]
    #[case("a\nb\tc", "a b c")]
    #[case("\u{1b}[31mred", "\u{fffd}[31mred")]
    #[case("\u{202e}abc", "\u{fffd}abc")]
    #[case("äöü 節点", "äöü 節点")]
    fn text_of_the_cluster_cannot_steer_the_terminal(#[case] text: &str, #[case] shown: &str) {
        assert_eq!(Line::new(Tone::Plain, text).paint(Ink::Plain), shown);
    }
}
