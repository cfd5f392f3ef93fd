//! Tables that fit the terminal: columns give way, and a table that cannot fit becomes a list of records.

use serde::{Serialize, Serializer};
use textwrap::core::display_width;

use super::{Style, printable};

/// Spaces between two columns.
pub(super) const GAP: usize = 2;

/// A flexible column is not made narrower than this, but for a narrower content.
const NARROWEST: usize = 12;

/// A column and its title.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Column {
    /// As wide as its content.
    Fixed(&'static str),
    /// The same, with its content at the right edge.
    Number(&'static str),
    /// Broken into lines where there is not enough room.
    Flexible(&'static str),
}

impl Column {
    pub(super) fn title(self) -> &'static str {
        let (Self::Fixed(title) | Self::Number(title) | Self::Flexible(title)) = self;
        title
    }
}

#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize)]
pub struct Cell {
    pub(super) text: String,
    pub(super) style: Style,
}

impl Cell {
    pub fn new(style: Style, text: impl AsRef<str>) -> Self {
        let text = printable(text.as_ref());
        Self { text, style }
    }

    pub fn into_parts(self) -> (String, Style) {
        (self.text, self.style)
    }
}

impl<T: AsRef<str>> From<T> for Cell {
    fn from(text: T) -> Self {
        Self::new(Style::Plain, text)
    }
}

/// A table. A column without any content is left out of the page.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Table {
    pub(super) columns: Vec<Column>,
    pub(super) rows: Vec<Row>,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[serde(untagged)]
pub(super) enum Row {
    Cells {
        cells: Vec<Cell>,
    },
    /// The subject of the rows after it, and more about it, over the whole width.
    Section {
        section: Cell,
        about: Cell,
    },
}

impl Table {
    /// A table without rows.
    pub fn new(columns: impl Into<Vec<Column>>) -> Self {
        Self {
            columns: columns.into(),
            rows: Vec::new(),
        }
    }

    /// Adds a row; cells that are missing are empty.
    pub fn row(&mut self, cells: impl Into<Vec<Cell>>) {
        let mut cells = cells.into();
        cells.resize(self.columns.len(), Cell::default());
        self.rows.push(Row::Cells { cells });
    }

    pub(super) fn is_empty(&self) -> bool {
        self.rows.is_empty()
    }

    /// Begins a section.
    pub fn section(&mut self, section: Cell, about: Cell) {
        self.rows.push(Row::Section { section, about });
    }

    /// Without the columns that have no content.
    pub(super) fn trimmed(mut self) -> Self {
        for column in (0..self.columns.len()).rev() {
            if self.cells(column).all(|cell| cell.text.is_empty()) {
                self.columns.remove(column);
                for row in &mut self.rows {
                    if let Row::Cells { cells } = row {
                        cells.remove(column);
                    }
                }
            }
        }
        self
    }

    fn cells(&self, column: usize) -> impl Iterator<Item = &Cell> {
        self.rows.iter().filter_map(move |row| match row {
            Row::Cells { cells } => cells.get(column),
            Row::Section { .. } => None,
        })
    }

    /// Columns by which the rows of sections are indented.
    pub(super) fn inset(&self) -> usize {
        let has_sections = self.rows.iter().any(|row| matches!(row, Row::Section { .. }));
        if has_sections { GAP } else { 0 }
    }

    /// The width of each column; `None` if they cannot fit.
    pub(super) fn widths(&self, limit: usize) -> Option<Vec<usize>> {
        let natural = |(column, title): (usize, &Column)| {
            let inset = if column == 0 { self.inset() } else { 0 };
            let cells = self.cells(column).map(|cell| display_width(&cell.text) + inset);
            cells.fold(display_width(title.title()), usize::max)
        };
        let mut widths: Vec<usize> = self.columns.iter().enumerate().map(natural).collect();
        let narrowest = |(column, &natural): (&Column, &usize)| match column {
            Column::Flexible(title) => natural.min(NARROWEST.max(display_width(title))),
            Column::Fixed(_) | Column::Number(_) => natural,
        };
        let narrowest: Vec<usize> = self.columns.iter().zip(&widths).map(narrowest).collect();
        let gaps = GAP * widths.len().saturating_sub(1);
        while widths.iter().sum::<usize>() + gaps > limit {
            // The widest gives way first.
            let widest = (0..widths.len())
                .filter(|&i| widths[i] > narrowest[i])
                .max_by_key(|&i| widths[i])?;
            widths[widest] -= 1;
        }
        Some(widths)
    }
}

/// By its title.
impl Serialize for Column {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        self.title().serialize(serializer)
    }
}

#[cfg(test)]
mod tests {
    use rstest::rstest;

    use super::super::page::Page;
    use super::*;

    fn fleet(width: usize) -> Page {
        let mut table = Table::new([
            Column::Flexible("NODE"),
            Column::Fixed("PHASE"),
            Column::Number("TICKET"),
            Column::Fixed("NOBODY"),
            Column::Flexible("WAITS FOR"),
        ]);
        table.row([
            Cell::from("ip-10-0-1-2.eu-central-1.compute.internal"),
            Cell::new(Style::Good, "Draining"),
            "3".into(),
            "".into(),
            "2 pods to end: shop/web-0, shop/web-1".into(),
        ]);
        table.row([
            Cell::from("node-2"),
            Cell::new(Style::Warning, "Queued"),
            "12".into(),
            "".into(),
            "ip-10-0-1-2.eu-central-1.compute.internal, which holds shop/database-with-a-long-name".into(),
        ]);
        let mut page = Page::new(width);
        page.table(0, table);
        page
    }

    #[rstest]
    #[case(usize::MAX, "unlimited")]
    #[case(120, "120")]
    #[case(80, "80")]
    #[case(40, "40")]
    fn table_fits_and_omits_empty_columns(#[case] width: usize, #[case] name: &str) {
        for line in fleet(width).lines() {
            assert!(display_width(&line) <= width, "{line}");
        }
        let text = fleet(width).print(false);
        assert!(!text.contains("NOBODY"), "{text}");
        insta::assert_snapshot!(format!("table_{name}"), text.trim_end());
    }

    #[test]
    fn short_row_is_filled_up() {
        let mut table = Table::new([Column::Fixed("A"), Column::Fixed("B")]);
        table.row(["1".into(), "2".into()]);
        table.row([Cell::from("3")]);
        let mut page = Page::new(80);
        page.table(0, table);
        assert_eq!(page.print(false), "A  B\n1  2\n3\n");
    }
}
