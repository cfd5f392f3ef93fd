//! Tables that fit the terminal: columns give way, and a table that cannot fit becomes a list of records.

use serde::ser::SerializeStruct as _;
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

/// A table. A column without any content is left out.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Table {
    pub(super) columns: Vec<Column>,
    pub(super) rows: Vec<Row>,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Row {
    Cells(Vec<Cell>),
    /// The subject of the rows after it, and more about it, over the whole width.
    Section(Cell, Cell),
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
        self.rows.push(Row::Cells(cells));
    }

    pub(super) fn is_empty(&self) -> bool {
        self.rows.is_empty()
    }

    /// Begins a section.
    pub fn section(&mut self, name: Cell, about: Cell) {
        self.rows.push(Row::Section(name, about));
    }

    /// The columns that have content.
    pub(super) fn shown(&self) -> Vec<usize> {
        let has_content = |&column: &usize| self.cells(column).any(|cell| !cell.text.is_empty());
        (0..self.columns.len()).filter(has_content).collect()
    }

    fn cells(&self, column: usize) -> impl Iterator<Item = &Cell> {
        self.rows.iter().filter_map(move |row| match row {
            Row::Cells(cells) => cells.get(column),
            Row::Section(..) => None,
        })
    }

    /// Columns by which the rows of sections are indented.
    pub(super) fn inset(&self) -> usize {
        let has_sections = self.rows.iter().any(|row| matches!(row, Row::Section(..)));
        if has_sections { GAP } else { 0 }
    }

    /// The width of each column; `None` if they cannot fit.
    pub(super) fn widths(&self, shown: &[usize], limit: usize) -> Option<Vec<usize>> {
        let natural = |&column: &usize| {
            let inset = if column == 0 { self.inset() } else { 0 };
            let cells = self.cells(column).map(|cell| display_width(&cell.text) + inset);
            cells.fold(display_width(self.columns[column].title()), usize::max)
        };
        let mut widths: Vec<usize> = shown.iter().map(natural).collect();
        let narrowest = |column: Column, natural: usize| match column {
            Column::Flexible(title) => natural.min(NARROWEST.max(display_width(title))),
            Column::Fixed(_) | Column::Number(_) => natural,
        };
        let narrowest: Vec<usize> = shown
            .iter()
            .zip(&widths)
            .map(|(&column, &natural)| narrowest(self.columns[column], natural))
            .collect();
        let gaps = GAP * shown.len().saturating_sub(1);
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

impl Serialize for Table {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        #[derive(Serialize)]
        #[serde(untagged)]
        enum Shown<'a> {
            Cells { cells: Vec<&'a Cell> },
            Section { section: &'a Cell, about: &'a Cell },
        }
        let shown = self.shown();
        let titles: Vec<&str> = shown.iter().map(|&column| self.columns[column].title()).collect();
        let rows = self.rows.iter().map(|row| match row {
            Row::Cells(cells) => Shown::Cells {
                cells: shown.iter().map(|&column| &cells[column]).collect(),
            },
            Row::Section(section, about) => Shown::Section { section, about },
        });
        let mut table = serializer.serialize_struct("Table", 2)?;
        table.serialize_field("columns", &titles)?;
        table.serialize_field("rows", &rows.collect::<Vec<_>>())?;
        table.end()
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
