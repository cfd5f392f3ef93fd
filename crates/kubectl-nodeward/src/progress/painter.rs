//! Paints the picture of the moment below what is told for good, and paints it over when it changes.

use std::io::{self, Write as _};

use crate::text::line::{Ink, Line};

/// The picture at the end of a terminal.
#[derive(Debug, Default)]
pub struct Painter {
    /// Lines of it that are on the screen.
    painted: usize,
}

impl Painter {
    /// What to write, so that `told` stands above for good, and `picture` below it.
    fn sequence(&mut self, told: &[Line], picture: &[Line], ink: Ink) -> String {
        let mut text = String::new();
        if self.painted > 0 {
            // Up to the first line of the old picture, and everything below it erased (ECMA-48: CUU, ED).
            text = format!("\u{1b}[{}A\r\u{1b}[J", self.painted);
        }
        for line in told.iter().chain(picture) {
            text.push_str(&line.paint(ink));
            text.push('\n');
        }
        self.painted = picture.len();
        text
    }

    /// Writes it, in one piece.
    pub fn paint(&mut self, told: &[Line], picture: &[Line], ink: Ink) {
        let text = self.sequence(told, picture, ink);
        let mut out = io::stdout().lock();
        let _ = out.write_all(text.as_bytes()).and_then(|()| out.flush());
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::text::line::Tone;

    #[test]
    fn a_picture_takes_the_place_of_the_one_before_and_what_is_told_stays() {
        let line = |text: &str| Line::new(Tone::Plain, text);
        let mut painter = Painter::default();
        assert_eq!(
            painter.sequence(&[line("told")], &[line("a"), line("b")], Ink::Plain),
            "told\na\nb\n"
        );
        assert_eq!(
            painter.sequence(&[], &[line("c")], Ink::Plain),
            "\u{1b}[2A\r\u{1b}[Jc\n"
        );
        assert_eq!(
            painter.sequence(&[line("end")], &[], Ink::Plain),
            "\u{1b}[1A\r\u{1b}[Jend\n"
        );
        assert_eq!(painter.sequence(&[], &[], Ink::Plain), "");
    }
}
