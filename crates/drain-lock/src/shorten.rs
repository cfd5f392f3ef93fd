//! Texts of others that go into messages and names are cut to a bound.

/// Cuts a text to at most so many bytes, at the end of a character.
pub fn shorten(mut text: String, most: usize) -> String {
    text.truncate(text.floor_char_boundary(most));
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_text_is_cut_between_characters_and_only_if_it_is_too_long() {
        assert_eq!(shorten("aü".to_owned(), 2), "a");
        assert_eq!(shorten("aü".to_owned(), 3), "aü");
        assert_eq!(shorten("aü".to_owned(), 4), "aü");
    }
}
