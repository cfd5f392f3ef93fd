//! How the demo's text is set: what is said stands to the right of when and who, and breaks at spaces only, so that
//! names can be copied whole.

use std::borrow::Cow;

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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_keep_the_width_and_names_with_hyphens_stay_whole() {
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
}
