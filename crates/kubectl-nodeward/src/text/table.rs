//! Tables that fit the terminal: columns give way, and a table that cannot fit becomes a list of records.

use super::line::{Line, Tone};
use super::wrap::wrap;
use textwrap::core::display_width;

/// Spaces between two columns.
const GAP: usize = 2;

/// A flexible column is not made narrower than this, but for a narrower content.
const NARROWEST: usize = 12;

/// A column.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Column {
    title: &'static str,
    look: Look,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Look {
    /// As wide as its content.
    Fixed,
    /// The same, and numbers stand at its right edge.
    Number,
    /// Broken into lines where there is not enough room.
    Flexible,
}

impl Column {
    /// A column that is always as wide as its content.
    pub const fn fixed(title: &'static str) -> Self {
        Self {
            title,
            look: Look::Fixed,
        }
    }

    /// A column of numbers.
    pub const fn number(title: &'static str) -> Self {
        Self {
            title,
            look: Look::Number,
        }
    }

    /// A column whose content is broken into lines where there is not enough room.
    pub const fn flexible(title: &'static str) -> Self {
        Self {
            title,
            look: Look::Flexible,
        }
    }
}

/// What stands in one place of a table.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Cell {
    text: String,
    tone: Tone,
}

impl Cell {
    /// Text in a tone.
    pub fn new(tone: Tone, text: impl Into<String>) -> Self {
        Self {
            text: text.into(),
            tone,
        }
    }
}

impl<T: Into<String>> From<T> for Cell {
    fn from(text: T) -> Self {
        Self::new(Tone::Plain, text)
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
    /// What the rows after it have in common.
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

    /// Begins a section: its name, and what else there is to say of it, over the whole width.
    pub fn section(&mut self, name: impl Into<Cell>, about: impl Into<Cell>) {
        self.rows.push(Row::Section(name.into(), about.into()));
    }

    /// Columns by which the rows of sections stand to the right of the sections' names.
    fn indent(&self, column: usize) -> usize {
        let has_sections = self.rows.iter().any(|row| matches!(row, Row::Section(..)));
        if column == 0 && has_sections { GAP } else { 0 }
    }

    fn cells(&self) -> impl Iterator<Item = &Vec<Cell>> {
        self.rows.iter().filter_map(|row| match row {
            Row::Cells(cells) => Some(cells),
            Row::Section(..) => None,
        })
    }

    /// Whether it has no row.
    pub fn is_empty(&self) -> bool {
        self.rows.is_empty()
    }

    /// Its lines, in at most `width` columns if there is a limit.
    pub fn lines(&self, width: Option<usize>) -> Vec<Line> {
        let shown: Vec<usize> = (0..self.columns.len())
            .filter(|&column| self.cells().any(|row| !row[column].text.is_empty()))
            .collect();
        match self.widths(&shown, width) {
            Some(widths) => self.as_table(&shown, &widths, width),
            None => self.as_records(&shown, width.unwrap_or(usize::MAX)),
        }
    }

    /// How wide each column is; `None` if they cannot fit.
    fn widths(&self, shown: &[usize], limit: Option<usize>) -> Option<Vec<usize>> {
        let natural = |&column: &usize| {
            let indent = self.indent(column);
            let cells = self.cells().map(|row| display_width(&row[column].text) + indent);
            cells
                .chain([display_width(self.columns[column].title)])
                .max()
                .unwrap_or(0)
        };
        let mut widths: Vec<usize> = shown.iter().map(natural).collect();
        let Some(limit) = limit else { return Some(widths) };
        let narrowest: Vec<usize> = shown
            .iter()
            .zip(&widths)
            .map(|(&column, &natural)| match self.columns[column].look {
                Look::Flexible => natural.min(NARROWEST.max(display_width(self.columns[column].title))),
                Look::Fixed | Look::Number => natural,
            })
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

    fn as_table(&self, shown: &[usize], widths: &[usize], limit: Option<usize>) -> Vec<Line> {
        let mut lines = Vec::new();
        let header: Vec<Cell> = shown
            .iter()
            .map(|&column| Cell::new(Tone::Faint, self.columns[column].title))
            .collect();
        self.push_row(&mut lines, shown, widths, &header.iter().collect::<Vec<_>>(), false);
        for row in &self.rows {
            match row {
                Row::Section(name, about) => push_section(&mut lines, name, about, limit),
                Row::Cells(cells) => {
                    let cells: Vec<&Cell> = shown.iter().map(|&column| &cells[column]).collect();
                    self.push_row(&mut lines, shown, widths, &cells, true);
                }
            }
        }
        lines
    }

    fn push_row(&self, lines: &mut Vec<Line>, shown: &[usize], widths: &[usize], cells: &[&Cell], indented: bool) {
        let indent = |index: usize| if indented { self.indent(shown[index]) } else { 0 };
        let wrapped: Vec<Vec<String>> = cells
            .iter()
            .zip(widths)
            .enumerate()
            .map(|(index, (cell, &width))| wrap(&cell.text, width - indent(index)))
            .collect();
        let height = wrapped.iter().map(Vec::len).max().unwrap_or(0);
        for part in 0..height {
            let mut line = Line::default();
            let mut edge = 0;
            for (index, cell) in cells.iter().enumerate() {
                line.pad_to(edge + indent(index));
                let text = wrapped[index].get(part).map_or("", String::as_str);
                if self.columns[shown[index]].look == Look::Number {
                    line.pad_to(edge + widths[index].saturating_sub(display_width(text)));
                }
                line.push(cell.tone, text);
                edge += widths[index] + GAP;
            }
            lines.push(line);
        }
    }

    /// A record for each row: one line for each column that has something in it.
    fn as_records(&self, shown: &[usize], width: usize) -> Vec<Line> {
        let titles = shown.iter().map(|&column| display_width(self.columns[column].title));
        let title_width = titles.max().unwrap_or(0) + GAP;
        // Where there is no room beside the titles, what they name stands below them.
        let beside = title_width + NARROWEST <= width;
        let indent = if beside {
            title_width
        } else {
            GAP.min(width.saturating_sub(1))
        };
        let mut lines = Vec::new();
        for (index, row) in self.rows.iter().enumerate() {
            if index > 0 {
                lines.push(Line::default());
            }
            let cells = match row {
                Row::Section(name, about) => {
                    push_section(&mut lines, name, about, Some(width));
                    continue;
                }
                Row::Cells(cells) => cells,
            };
            for &column in shown.iter().filter(|&&column| !cells[column].text.is_empty()) {
                let title = self.columns[column].title;
                if !beside {
                    lines.extend(
                        wrap(title, width)
                            .into_iter()
                            .map(|title| Line::new(Tone::Faint, title)),
                    );
                }
                for (part, text) in wrap(&cells[column].text, width - indent).into_iter().enumerate() {
                    let mut line = Line::new(Tone::Faint, if beside && part == 0 { title } else { "" });
                    line.pad_to(indent);
                    line.push(cells[column].tone, text);
                    lines.push(line);
                }
            }
        }
        lines
    }
}

fn push_section(lines: &mut Vec<Line>, name: &Cell, about: &Cell, limit: Option<usize>) {
    let width = display_width(&name.text) + GAP + display_width(&about.text);
    if limit.is_none_or(|limit| width <= limit) {
        let mut line = Line::new(name.tone, &name.text);
        line.pad_to(display_width(&name.text) + GAP);
        line.push(about.tone, &about.text);
        lines.push(line);
        return;
    }
    for cell in [name, about] {
        let parts = wrap(&cell.text, limit.unwrap_or(usize::MAX)).into_iter();
        lines.extend(parts.map(|part| Line::new(cell.tone, part)));
    }
}

#[cfg(test)]
mod tests {
    use rstest::rstest;

    use super::super::line::Ink;
    use super::*;

    fn fleet() -> Table {
        let mut table = Table::new([
            Column::flexible("NODE"),
            Column::fixed("PHASE"),
            Column::number("TICKET"),
            Column::fixed("NOBODY"),
            Column::flexible("WAITS FOR"),
        ]);
        table.row([
            Cell::from("ip-10-0-1-2.eu-central-1.compute.internal"),
            Cell::new(Tone::Good, "Draining"),
            "3".into(),
            "".into(),
            "2 pods to end: shop/web-0, shop/web-1".into(),
        ]);
        table.row([
            Cell::from("node-2"),
            Cell::new(Tone::Warning, "Queued"),
            "12".into(),
            "".into(),
            "ip-10-0-1-2.eu-central-1.compute.internal, which holds shop/database-with-a-long-name".into(),
        ]);
        table
    }

    fn text(width: Option<usize>) -> String {
        let lines: Vec<String> = fleet().lines(width).iter().map(|line| line.paint(Ink::Plain)).collect();
        lines.join("\n")
    }

    #[rstest]
    #[case(None, "unlimited")]
    #[case(Some(120), "120")]
    #[case(Some(80), "80")]
    #[case(Some(40), "40")]
    fn a_table_fits_and_loses_nothing(#[case] width: Option<usize>, #[case] name: &str) {
        for line in fleet().lines(width) {
            assert!(
                line.width() <= width.unwrap_or(usize::MAX),
                "{:?}",
                line.paint(Ink::Plain)
            );
        }
        insta::assert_snapshot!(format!("table_{name}"), text(width));
        let letters = |text: String| text.replace(|c: char| c.is_whitespace(), "");
        assert!(letters(text(width)).contains("Draining"));
    }

    #[test]
    fn a_column_without_content_is_left_out() {
        assert!(!text(None).contains("NOBODY"));
    }

    #[test]
    fn a_row_that_is_too_short_is_filled_up() {
        let mut table = Table::new([Column::fixed("A"), Column::fixed("B")]);
        table.row(["1".into(), "2".into()]);
        table.row([Cell::from("3")]);
        let lines: Vec<String> = table.lines(None).iter().map(|line| line.paint(Ink::Plain)).collect();
        assert_eq!(lines, ["A  B", "1  2", "3"]);
    }
}
