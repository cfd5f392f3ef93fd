//! Tables that fit the terminal: columns give way, and a table that cannot fit becomes a list of records.

use textwrap::core::display_width;

use super::page::{Page, pad};
use super::{Style, printable, wrap};

/// Spaces between two columns.
const GAP: usize = 2;

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
    fn title(self) -> &'static str {
        let (Self::Fixed(title) | Self::Number(title) | Self::Flexible(title)) = self;
        title
    }
}

#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Cell {
    pub(super) text: String,
    pub(super) style: Style,
}

impl Cell {
    pub fn new(style: Style, text: impl AsRef<str>) -> Self {
        let text = printable(text.as_ref());
        Self { text, style }
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
    columns: Vec<Column>,
    rows: Vec<Row>,
}

#[derive(Debug, Clone, PartialEq, Eq)]
enum Row {
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

    /// Begins a section.
    pub fn section(&mut self, name: Cell, about: Cell) {
        self.rows.push(Row::Section(name, about));
    }

    fn cells(&self, column: usize) -> impl Iterator<Item = &Cell> {
        self.rows.iter().filter_map(move |row| match row {
            Row::Cells(cells) => cells.get(column),
            Row::Section(..) => None,
        })
    }

    /// Columns by which the rows of sections are indented.
    fn inset(&self) -> usize {
        let has_sections = self.rows.iter().any(|row| matches!(row, Row::Section(..)));
        if has_sections { GAP } else { 0 }
    }

    /// The width of each column; `None` if they cannot fit.
    fn widths(&self, shown: &[usize], limit: usize) -> Option<Vec<usize>> {
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

impl Page {
    /// Adds a table below what is there; none without rows.
    pub fn separate_table(&mut self, table: &Table) {
        if !table.rows.is_empty() {
            self.gap();
            self.table(0, table);
        }
    }

    pub fn table(&mut self, indent: usize, table: &Table) {
        let has_content = |&column: &usize| table.cells(column).any(|cell| !cell.text.is_empty());
        let shown: Vec<usize> = (0..table.columns.len()).filter(has_content).collect();
        let Some(widths) = table.widths(&shown, self.width.saturating_sub(indent)) else {
            return self.records(indent, table, &shown);
        };
        let titles: Vec<Cell> = table
            .columns
            .iter()
            .map(|column| Cell::new(Style::Faint, column.title()))
            .collect();
        let places = |cells: &[Cell]| -> Vec<(Column, usize, Cell)> {
            let places = shown.iter().zip(&widths);
            places
                .map(|(&column, &width)| (table.columns[column], width, cells[column].clone()))
                .collect()
        };
        self.row(indent, 0, &places(&titles));
        for row in &table.rows {
            match row {
                Row::Section(name, about) => self.section(indent, name, about),
                Row::Cells(cells) => self.row(indent, table.inset(), &places(cells)),
            }
        }
    }

    fn row(&mut self, indent: usize, inset: usize, places: &[(Column, usize, Cell)]) {
        let mut edge = indent;
        let mut wrapped = Vec::new();
        for (index, (column, width, cell)) in places.iter().enumerate() {
            let inset = if index == 0 { inset } else { 0 };
            wrapped.push((
                column,
                edge + inset,
                edge + width,
                cell.style,
                wrap(&cell.text, width - inset),
            ));
            edge += width + GAP;
        }
        let height = wrapped.iter().map(|(.., parts)| parts.len()).max().unwrap_or(0);
        for part in 0..height {
            let mut line = String::new();
            for (column, left, right, style, parts) in &wrapped {
                let text = parts.get(part).map_or("", String::as_str);
                let left = match column {
                    Column::Number(_) => right.saturating_sub(display_width(text)),
                    Column::Fixed(_) | Column::Flexible(_) => *left,
                };
                line = pad(line, left) + &style.paint(text);
            }
            self.push(line);
        }
    }

    fn section(&mut self, indent: usize, name: &Cell, about: &Cell) {
        let lead = " ".repeat(indent) + &name.style.paint(&name.text) + "  ";
        self.paragraph(&lead, indent + GAP, about.style, &about.text);
    }

    /// A record for each row: a line for each column that has content.
    fn records(&mut self, indent: usize, table: &Table, shown: &[usize]) {
        let titles = shown.iter().map(|&column| display_width(table.columns[column].title()));
        let beside = indent + titles.max().unwrap_or(0) + GAP;
        for row in &table.rows {
            self.gap();
            match row {
                Row::Section(name, about) => self.section(indent, name, about),
                Row::Cells(cells) => {
                    for &column in shown.iter().filter(|&&column| !cells[column].text.is_empty()) {
                        let title = Style::Faint.paint(table.columns[column].title());
                        let lead = pad(" ".repeat(indent) + &title, beside);
                        self.paragraph(&lead, beside, cells[column].style, &cells[column].text);
                    }
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use rstest::rstest;

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
        page.table(0, &table);
        page
    }

    #[rstest]
    #[case(usize::MAX, "unlimited")]
    #[case(120, "120")]
    #[case(80, "80")]
    #[case(40, "40")]
    fn table_fits_and_omits_empty_columns(#[case] width: usize, #[case] name: &str) {
        for line in fleet(width).lines() {
            assert!(display_width(line) <= width, "{line}");
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
        page.table(0, &table);
        assert_eq!(page.print(false), "A  B\n1  2\n3\n");
    }
}
