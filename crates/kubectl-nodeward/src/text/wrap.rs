//! Breaks text into lines without losing any of it.

use textwrap::core::display_width;

/// The text in lines of at most `width` columns. Words stay whole where they fit; a longer one, such as a name, is broken
/// after a separator, and within if there is none. Nothing is added, so that a name can be copied. At least one line.
pub fn wrap(text: &str, width: usize) -> Vec<String> {
    let width = width.max(1);
    let mut lines = Vec::new();
    let mut line = String::new();
    let mut used = 0;
    for word in text.split(' ').filter(|word| !word.is_empty()) {
        let pieces = if display_width(word) <= width {
            vec![word]
        } else {
            pieces_of(word, width)
        };
        for (index, piece) in pieces.into_iter().enumerate() {
            let needed = display_width(piece);
            let space = usize::from(index == 0 && used > 0);
            if used > 0 && used + space + needed > width {
                lines.push(std::mem::take(&mut line));
                used = 0;
            } else if space > 0 {
                line.push(' ');
                used += 1;
            }
            line.push_str(piece);
            used += needed;
        }
    }
    if used > 0 || lines.is_empty() {
        lines.push(line);
    }
    lines
}

/// The parts of a long word, none wider than `width`.
fn pieces_of(word: &str, width: usize) -> Vec<&str> {
    word.split_inclusive(['-', '.', '/', ':', '_', ',', '='])
        .flat_map(|piece| {
            if display_width(piece) <= width {
                vec![piece]
            } else {
                letters_of(piece, width)
            }
        })
        .collect()
}

fn letters_of(mut piece: &str, width: usize) -> Vec<&str> {
    let mut parts = Vec::new();
    while display_width(piece) > width {
        let mut used = 0;
        let end = piece.char_indices().find(|(index, c)| {
            used += display_width(c.encode_utf8(&mut [0; 4]));
            *index > 0 && used > width
        });
        let Some((end, _)) = end else { break };
        let (part, rest) = piece.split_at(end);
        parts.push(part);
        piece = rest;
    }
    parts.push(piece);
    parts
}

/// The text in at most `width` columns: what does not fit is replaced by an ellipsis.
pub fn shorten(text: &str, width: usize) -> String {
    if display_width(text) <= width {
        return text.to_owned();
    }
    let mut short = String::new();
    let mut used = 1;
    for c in text.chars() {
        used += display_width(c.encode_utf8(&mut [0; 4]));
        if used > width {
            break;
        }
        short.push(c);
    }
    if width > 0 {
        short.push('…');
    }
    short
}

#[cfg(test)]
mod tests {
    use rstest::rstest;

    use super::*;

    #[rstest]
    #[case::fits("a short text", 20, &["a short text"])]
    #[case::at_spaces("node-1 holds shop/web", 14, &["node-1 holds", "shop/web"])]
    #[case::a_name_that_fits_stays_whole("waits for node-12", 12, &["waits for", "node-12"])]
    #[case::a_long_name("ip-10-0-1-2.eu-central-1.compute.internal", 20, &["ip-10-0-1-2.eu-", "central-1.compute.", "internal"])]
    #[case::no_separator("abcdefghij", 4, &["abcd", "efgh", "ij"])]
    #[case::empty("", 4, &[""])]
    #[case::no_width("ab", 0, &["a", "b"])]
    #[case::wide_letters("節点節点", 4, &["節点", "節点"])]
    fn nothing_is_lost_by_wrapping(#[case] text: &str, #[case] width: usize, #[case] lines: &[&str]) {
        let wrapped = wrap(text, width);
        assert_eq!(wrapped, lines);
        let letters = |text: &str| text.replace(' ', "");
        assert_eq!(letters(&wrapped.concat()), letters(text));
    }

    #[rstest]
    #[case("abc", 3, "abc")]
    #[case("abcd", 3, "ab…")]
    #[case("節点節点", 4, "節…")]
    #[case("abc", 0, "")]
    fn a_shortened_text_says_so(#[case] text: &str, #[case] width: usize, #[case] short: &str) {
        assert_eq!(shorten(text, width), short);
    }
}
