//! A printed page: headings, paragraphs, fields and tables, laid out for a width.

use textwrap::core::display_width;

use super::table::Cell;
use super::{Style, printable, wrap};

/// A printed page.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Page {
    pub(super) width: usize,
    pub(super) lines: Vec<String>,
}

/// A text that would get fewer columns than this beside its lead follows it instead.
const NARROW: usize = 8;

/// Width of the names of fields.
const FIELD: usize = 12;

impl Page {
    /// An empty page whose lines have at most `width` columns.
    pub fn new(width: usize) -> Self {
        Self {
            width,
            lines: Vec::new(),
        }
    }

    /// A heading, with a gap before it unless it is the first.
    pub fn heading(&mut self, text: impl AsRef<str>) {
        self.gap();
        self.text(Style::Strong, text);
    }

    /// A paragraph.
    pub fn text(&mut self, style: Style, text: impl AsRef<str>) {
        self.paragraph("", 2, style, text);
    }

    /// A point of a list.
    pub fn point(&mut self, style: Style, text: impl AsRef<str>) {
        self.paragraph("  - ", 4, style, text);
    }

    /// A named value.
    pub fn field(&mut self, name: &str, value: impl Into<Cell>) {
        let (lead, Cell { text, style }) = (field_name(name), value.into());
        self.paragraph(&lead, display_width(&lead), style, text);
    }

    /// Several values of one name, which stands before the first.
    pub fn fields(&mut self, name: &str, values: impl IntoIterator<Item = impl Into<Cell>>) {
        for (index, value) in values.into_iter().enumerate() {
            self.field(if index == 0 { name } else { "" }, value);
        }
    }

    /// A command to be copied, after its effect; only the terminal breaks it.
    pub fn command(&mut self, name: &str, command: impl AsRef<str>) {
        self.push(field_name(name) + &printable(command.as_ref()));
    }

    /// An empty line, unless there is one or the page begins.
    pub fn gap(&mut self) {
        if self.lines.last().is_some_and(|line| !line.is_empty()) {
            self.lines.push(String::new());
        }
    }

    /// A text after a painted lead; its other lines are indented by `hang` columns.
    pub fn paragraph(&mut self, lead: &str, hang: usize, style: Style, text: impl AsRef<str>) {
        let text = printable(text.as_ref());
        let used = display_width(lead).max(hang);
        if used + NARROW > self.width && !lead.trim().is_empty() {
            let text = format!("{} {text}", console::strip_ansi_codes(lead).trim_end());
            for part in wrap(&text, self.width) {
                self.push(style.paint(&part));
            }
            return;
        }
        for (index, part) in wrap(&text, self.width.saturating_sub(used)).iter().enumerate() {
            let lead = if index == 0 { lead.to_owned() } else { " ".repeat(hang) };
            self.push(lead + &style.paint(part));
        }
    }

    pub(super) fn push(&mut self, mut line: String) {
        line.truncate(line.trim_end().len());
        self.lines.push(line);
    }

    /// Its lines, painted.
    pub fn lines(&self) -> &[String] {
        &self.lines
    }

    /// The page as it is printed; ends with a line feed unless it is empty.
    pub fn print(&self, colored: bool) -> String {
        let text: String = self.lines.iter().flat_map(|line| [line.as_str(), "\n"]).collect();
        if colored {
            text
        } else {
            console::strip_ansi_codes(&text).into_owned()
        }
    }
}

fn field_name(name: &str) -> String {
    pad(Style::Faint.paint(name), FIELD.max(display_width(name) + 1))
}

/// The painted text with spaces up to this width.
pub(super) fn pad(mut text: String, width: usize) -> String {
    let missing = width.saturating_sub(display_width(&text));
    text.extend(std::iter::repeat_n(' ', missing));
    text
}

#[cfg(test)]
mod tests {
    use super::super::table::{Cell, Column, Table};
    use super::*;

    fn page(width: usize) -> Page {
        let mut page = Page::new(width);
        page.heading("node-1");
        page.field(
            "drain",
            Cell::new(
                Style::Warning,
                "Queued with ticket 4, for as long as node-2 holds what it needs of shop/web",
            ),
        );
        page.point(
            Style::Plain,
            "a point that goes on and on until it does not fit into one line of the page any more",
        );
        page.gap();
        page.gap();
        let mut table = Table::new([Column::Fixed("A"), Column::Flexible("B")]);
        table.row([
            Cell::from("1"),
            "a text that is broken into lines when it does not fit into its place".into(),
        ]);
        page.table(2, &table);
        page
    }

    #[test]
    fn page_fits_its_width() {
        for width in [20, 40, 60] {
            for line in page(width).lines() {
                assert!(display_width(line) <= width, "{line}");
            }
        }
        insta::assert_snapshot!(page(40).print(false));
        assert_eq!(page(usize::MAX).lines().len(), 6);
    }

    #[test]
    fn command_is_never_broken() {
        let mut page = Page::new(20);
        page.command("watch again", "kubectl nodeward drain node-1 node-2");
        assert_eq!(page.print(false), "watch again kubectl nodeward drain node-1 node-2\n");
    }
}
