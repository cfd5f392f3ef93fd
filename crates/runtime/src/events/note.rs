//! The length of a note.

use nodeward_core::text::cut_visibly;

/// The most that `events.k8s.io/v1` takes, in bytes.
const LONGEST_NOTE: usize = 1024;

/// Cuts a note that is too long, and shows that it was cut.
pub(super) fn shortened(note: String) -> String {
    cut_visibly(note, LONGEST_NOTE)
}

#[cfg(test)]
mod tests {
    use rstest::rstest;

    use super::{LONGEST_NOTE, shortened};

    #[rstest]
    #[case::short("a".repeat(10))]
    #[case::exact("a".repeat(LONGEST_NOTE))]
    #[case::one_too_many("a".repeat(LONGEST_NOTE + 1))]
    #[case::cut_inside_a_character("ü".repeat(LONGEST_NOTE))]
    fn a_note_fits_and_stays_text(#[case] note: String) {
        let cut = note.len() > LONGEST_NOTE;
        let shortened = shortened(note);
        assert!(shortened.len() <= LONGEST_NOTE, "{}", shortened.len());
        assert_eq!(shortened.ends_with('…'), cut);
    }
}
