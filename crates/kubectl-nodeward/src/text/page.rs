//! A page of text: headings, paragraphs, fields, commands and tables. A terminal prints it as lines; the page of `ui` shows the
//! same blocks.

use serde::Serialize;

use super::layout::Layout;
use super::table::{Cell, Table};
use super::{Style, printable};

/// A page of text, to be printed with this width.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Page {
    width: usize,
    blocks: Vec<Block>,
}

/// A part of a page.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[serde(untagged)]
pub enum Block {
    Heading {
        heading: String,
    },
    /// A paragraph, whose further lines are indented by two.
    Text {
        /// Painted.
        #[serde(skip)]
        lead: String,
        text: String,
        style: Style,
    },
    Point {
        point: String,
        style: Style,
    },
    /// A named value; one without a name is a further value of the name before it.
    Field {
        field: String,
        value: String,
        style: Style,
    },
    /// To be copied, so it is never broken.
    Command {
        #[serde(skip)]
        field: String,
        command: String,
    },
    Table {
        #[serde(skip)]
        indent: usize,
        table: Table,
    },
    /// An empty line, unless there is one or the page begins.
    #[serde(skip)]
    Gap,
}

impl Page {
    /// An empty page whose lines have at most `width` columns.
    pub fn new(width: usize) -> Self {
        Self {
            width,
            blocks: Vec::new(),
        }
    }

    /// A heading, with a gap before it unless it is the first.
    pub fn heading(&mut self, text: impl AsRef<str>) {
        self.gap();
        let heading = printable(text.as_ref());
        self.blocks.push(Block::Heading { heading });
    }

    /// A paragraph.
    pub fn text(&mut self, style: Style, text: impl AsRef<str>) {
        self.paragraph("", style, text);
    }

    /// A paragraph that begins with this painted text.
    pub fn paragraph(&mut self, lead: &str, style: Style, text: impl AsRef<str>) {
        let (lead, text) = (lead.to_owned(), printable(text.as_ref()));
        self.blocks.push(Block::Text { lead, text, style });
    }

    /// A point of a list.
    pub fn point(&mut self, style: Style, text: impl AsRef<str>) {
        let point = printable(text.as_ref());
        self.blocks.push(Block::Point { point, style });
    }

    /// A named value.
    pub fn field(&mut self, name: &str, value: impl Into<Cell>) {
        let (field, Cell { text: value, style }) = (name.to_owned(), value.into());
        self.blocks.push(Block::Field { field, value, style });
    }

    /// Several values of one name, which stands before the first.
    pub fn fields(&mut self, name: &str, values: impl IntoIterator<Item = impl Into<Cell>>) {
        for (index, value) in values.into_iter().enumerate() {
            self.field(if index == 0 { name } else { "" }, value);
        }
    }

    /// A command to be copied, after its effect; only the terminal breaks it.
    pub fn command(&mut self, name: &str, command: impl AsRef<str>) {
        let (field, command) = (name.to_owned(), printable(command.as_ref()));
        self.blocks.push(Block::Command { field, command });
    }

    pub fn table(&mut self, indent: usize, table: Table) {
        let table = table.trimmed();
        self.blocks.push(Block::Table { indent, table });
    }

    /// Adds a table below what is there; none without rows.
    pub fn separate_table(&mut self, table: Table) {
        if !table.is_empty() {
            self.gap();
            self.table(0, table);
        }
    }

    /// An empty line, unless there is one or the page begins.
    pub fn gap(&mut self) {
        self.blocks.push(Block::Gap);
    }

    /// Its parts, gaps aside.
    pub fn into_blocks(self) -> Vec<Block> {
        let mut blocks = self.blocks;
        blocks.retain(|block| *block != Block::Gap);
        blocks
    }

    /// Its lines, painted.
    pub fn lines(&self) -> Vec<String> {
        let mut layout = Layout::new(self.width);
        for block in &self.blocks {
            layout.add(block);
        }
        layout.lines
    }

    /// The page as it is printed; ends with a line feed unless it is empty.
    pub fn print(&self, colored: bool) -> String {
        let lines = self.lines();
        let text: String = lines.iter().flat_map(|line| [line.as_str(), "\n"]).collect();
        if colored {
            text
        } else {
            console::strip_ansi_codes(&text).into_owned()
        }
    }
}

#[cfg(test)]
mod tests {
    use textwrap::core::display_width;

    use super::super::table::Column;
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
        page.table(2, table);
        page
    }

    #[test]
    fn page_fits_its_width() {
        for width in [20, 40, 60] {
            for line in page(width).lines() {
                assert!(display_width(&line) <= width, "{line}");
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
