//! Parts of messages: numbers of things, and texts of others, which are cut to a bound, in bytes, between two characters. And how
//! long a text is that a value makes.

use std::fmt::Display;
use std::io;

use serde::Serialize;

const ELLIPSIS: char = '…';

/// Cuts a text to at most so many bytes, and does not show it: for names, which others compare.
pub fn cut(mut text: String, most: usize) -> String {
    text.truncate(text.floor_char_boundary(most));
    text
}

/// Cuts a text to at most so many bytes, the ellipsis that shows it included: for messages, which people read.
pub fn cut_visibly(mut text: String, most: usize) -> String {
    if text.len() > most {
        text.truncate(text.floor_char_boundary(most.saturating_sub(ELLIPSIS.len_utf8())));
        text.push(ELLIPSIS);
    }
    text
}

/// How many bytes a value takes as JSON, which is not built for that.
pub fn json_length(value: &impl Serialize) -> usize {
    struct Counted(usize);
    impl io::Write for Counted {
        fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
            self.0 += bytes.len();
            Ok(bytes.len())
        }

        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }
    let mut counted = Counted(0);
    // It counts what it is given, and refuses nothing.
    let _ = serde_json::to_writer(&mut counted, value);
    counted.0
}

/// `1 pod`, `3 pods`.
pub fn counted(count: impl Display, what: &str) -> String {
    match count.to_string().as_str() {
        "1" => format!("1 {what}"),
        count => format!("{count} {what}s"),
    }
}

#[cfg(test)]
mod tests {
    use rstest::rstest;

    use super::*;

    #[rstest]
    #[case("aü", 2, "a")]
    #[case("aü", 3, "aü")]
    #[case("aü", 4, "aü")]
    fn long_text_is_cut_between_characters(#[case] text: &str, #[case] most: usize, #[case] expected: &str) {
        assert_eq!(cut(text.to_owned(), most), expected);
    }

    #[rstest]
    #[case("abcd", 4, "abcd")]
    #[case("abcde", 4, "a…")]
    #[case("aüüü", 6, "aü…")]
    #[case("aüüü", 7, "aüüü")]
    fn a_cut_that_shows_fits_the_bound_too(#[case] text: &str, #[case] most: usize, #[case] expected: &str) {
        assert_eq!(cut_visibly(text.to_owned(), most), expected);
    }
}
