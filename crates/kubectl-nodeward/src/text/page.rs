//! What a command prints: headings, paragraphs, fields and tables, laid out for a width.

use super::line::{Ink, Line, Tone};
use super::table::Table;
use super::wrap::wrap;

/// What a command prints.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Page {
    blocks: Vec<Block>,
}

#[derive(Debug, Clone, PartialEq, Eq)]
enum Block {
    Paragraph {
        /// What its first line begins with: spaces, a bullet, the name of a field.
        lead: Line,
        /// Columns by which its other lines are indented.
        hang: usize,
        tone: Tone,
        text: String,
    },
    /// A line that is never broken: what is meant to be copied.
    Whole(Line),
    Table {
        indent: usize,
        table: Table,
    },
    Gap,
}

/// A text is not made narrower than this to stand beside what leads it.
const NARROW: usize = 8;

/// Width of the names of fields.
const FIELD: usize = 12;

impl Page {
    /// An empty page.
    pub fn new() -> Self {
        Self::default()
    }

    /// A heading, with a gap before it unless it is the first.
    pub fn heading(&mut self, text: impl Into<String>) {
        self.gap();
        self.paragraph(Line::default(), 2, Tone::Strong, text);
    }

    /// A paragraph.
    pub fn text(&mut self, tone: Tone, text: impl Into<String>) {
        self.paragraph(Line::default(), 2, tone, text);
    }

    /// A point of a list, `level` levels deep.
    pub fn point(&mut self, level: usize, tone: Tone, text: impl Into<String>) {
        let lead = Line::new(Tone::Plain, format!("{}- ", "  ".repeat(level)));
        let hang = lead.width();
        self.paragraph(lead, hang, tone, text);
    }

    /// A field: its name, and what it is.
    pub fn field(&mut self, name: &str, tone: Tone, text: impl Into<String>) {
        let mut lead = Line::new(Tone::Faint, name);
        lead.pad_to(FIELD.max(lead.width() + 1));
        let hang = lead.width();
        self.paragraph(lead, hang, tone, text);
    }

    /// A line as it is; where it is too long its last tone goes on in the next ones.
    pub fn line(&mut self, line: Line) {
        let (lead, tone, text) = line.split_last();
        self.paragraph(lead, 2, tone, text);
    }

    /// A command to be copied, after what it does; the terminal breaks it where it has to.
    pub fn command(&mut self, name: &str, command: impl AsRef<str>) {
        let mut line = Line::new(Tone::Faint, name);
        line.pad_to(FIELD.max(line.width() + 1));
        line.push(Tone::Plain, command);
        self.blocks.push(Block::Whole(line));
    }

    /// A table, indented.
    pub fn table(&mut self, indent: usize, table: Table) {
        self.blocks.push(Block::Table { indent, table });
    }

    /// An empty line, unless there is one or the page begins.
    pub fn gap(&mut self) {
        if !matches!(self.blocks.last(), None | Some(Block::Gap)) {
            self.blocks.push(Block::Gap);
        }
    }

    fn paragraph(&mut self, lead: Line, hang: usize, tone: Tone, text: impl Into<String>) {
        self.blocks.push(Block::Paragraph {
            lead,
            hang,
            tone,
            text: text.into(),
        });
    }

    /// Its lines, in at most `width` columns if there is a limit.
    pub fn lines(&self, width: Option<usize>) -> Vec<Line> {
        let mut lines = Vec::new();
        for block in &self.blocks {
            match block {
                Block::Gap => lines.push(Line::default()),
                Block::Whole(line) => lines.push(line.clone()),
                Block::Table { indent, table } => {
                    for row in table.lines(width.map(|width| width.saturating_sub(*indent))) {
                        let mut line = Line::default();
                        line.pad_to(*indent);
                        line.append(row);
                        lines.push(line);
                    }
                }
                Block::Paragraph { lead, hang, tone, text } => {
                    let beside = |width: usize| width.checked_sub((*hang).max(lead.width()));
                    if width.is_some_and(|width| beside(width).is_none_or(|room| room < NARROW)) && !lead.is_blank() {
                        // No room beside the lead: all of it is one text.
                        let text = format!("{} {text}", lead.paint(Ink::Plain));
                        let parts = wrap(&text, width.unwrap_or(usize::MAX)).into_iter();
                        lines.extend(parts.map(|part| Line::new(*tone, part)));
                        continue;
                    }
                    let room = width.map_or(usize::MAX, |width| beside(width).unwrap_or(1));
                    for (index, part) in wrap(text, room).into_iter().enumerate() {
                        let mut line = if index == 0 { lead.clone() } else { Line::default() };
                        if index > 0 {
                            line.pad_to(*hang);
                        }
                        line.push(*tone, part);
                        lines.push(line);
                    }
                }
            }
        }
        lines
    }

    /// The page as it is printed; ends with a line feed unless it is empty.
    pub fn print(&self, width: Option<usize>, ink: Ink) -> String {
        let mut printed = String::new();
        for line in self.lines(width) {
            printed.push_str(&line.paint(ink));
            printed.push('\n');
        }
        printed
    }
}

#[cfg(test)]
mod tests {
    use super::super::table::{Cell, Column};
    use super::*;

    fn page() -> Page {
        let mut page = Page::new();
        page.heading("node-1");
        page.field(
            "drain",
            Tone::Warning,
            "Queued with ticket 4, for as long as node-2 holds what it needs of shop/web",
        );
        page.point(
            1,
            Tone::Plain,
            "a point that goes on and on until it does not fit into one line of the page any more",
        );
        page.gap();
        page.gap();
        let mut table = Table::new([Column::fixed("A"), Column::flexible("B")]);
        table.row([
            Cell::from("1"),
            "a text that is broken into lines when it does not fit into its place".into(),
        ]);
        page.table(2, table);
        page
    }

    #[test]
    fn a_page_fits_its_width() {
        for width in [20, 40, 60] {
            for line in page().lines(Some(width)) {
                assert!(line.width() <= width, "{}", line.paint(Ink::Plain));
            }
        }
        insta::assert_snapshot!(page().print(Some(40), Ink::Plain));
    }

    #[test]
    fn a_command_is_never_broken() {
        let mut page = Page::new();
        page.command("watch again", "kubectl nodeward drain node-1 node-2");
        assert_eq!(
            page.print(Some(20), Ink::Plain),
            "watch again kubectl nodeward drain node-1 node-2\n"
        );
    }

    #[test]
    fn without_a_limit_each_thing_is_one_line() {
        assert_eq!(page().lines(None).len(), 6);
    }
}
