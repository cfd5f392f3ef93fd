//! Blocks of a page as lines of a terminal.

use textwrap::core::display_width;

use super::page::Block;
use super::table::{Cell, Column, GAP, Row, Table};
use super::{Style, wrap};

/// Lines of at most this width.
pub(super) struct Layout {
    pub(super) width: usize,
    pub(super) lines: Vec<String>,
}

/// A text that would get fewer columns than this beside its lead follows it instead.
const NARROW: usize = 8;

/// Width of the names of fields.
const FIELD: usize = 12;

impl Layout {
    pub(super) fn new(width: usize) -> Self {
        Self {
            width,
            lines: Vec::new(),
        }
    }

    pub(super) fn add(&mut self, block: &Block) {
        match block {
            Block::Heading { heading } => self.paragraph("", 2, Style::Strong, heading),
            Block::Text { lead, text, style } => self.paragraph(lead, 2, *style, text),
            Block::Point { point, style } => self.paragraph("  - ", 4, *style, point),
            Block::Field { field, value, style } => {
                let lead = field_name(field);
                self.paragraph(&lead, display_width(&lead), *style, value);
            }
            Block::Command { field, command } => self.push(field_name(field) + command),
            Block::Table { indent, table } => self.table(*indent, table),
            Block::Gap => self.gap(),
        }
    }

    pub(super) fn gap(&mut self) {
        if self.lines.last().is_some_and(|line| !line.is_empty()) {
            self.lines.push(String::new());
        }
    }

    /// A text after a painted lead; its other lines are indented by `hang` columns.
    pub(super) fn paragraph(&mut self, lead: &str, hang: usize, style: Style, text: &str) {
        let used = display_width(lead).max(hang);
        if used + NARROW > self.width && !lead.trim().is_empty() {
            let text = format!("{} {text}", console::strip_ansi_codes(lead).trim_end());
            for part in wrap(&text, self.width) {
                self.push(style.paint(&part));
            }
            return;
        }
        for (index, part) in wrap(text, self.width.saturating_sub(used)).iter().enumerate() {
            let lead = if index == 0 { lead.to_owned() } else { " ".repeat(hang) };
            self.push(lead + &style.paint(part));
        }
    }

    fn push(&mut self, mut line: String) {
        line.truncate(line.trim_end().len());
        self.lines.push(line);
    }

    fn table(&mut self, indent: usize, table: &Table) {
        let Some(widths) = table.widths(self.width.saturating_sub(indent)) else {
            return self.records(indent, table);
        };
        let titles = table
            .columns
            .iter()
            .map(|column| Cell::new(Style::Faint, column.title()));
        self.row(indent, 0, table, &widths, &titles.collect::<Vec<_>>());
        for row in &table.rows {
            match row {
                Row::Section { section, about } => self.section(indent, section, about),
                Row::Cells { cells } => self.row(indent, table.inset(), table, &widths, cells),
            }
        }
    }

    fn row(&mut self, indent: usize, inset: usize, table: &Table, widths: &[usize], cells: &[Cell]) {
        let mut edge = indent;
        let mut wrapped = Vec::new();
        let places = table.columns.iter().zip(widths).zip(cells);
        for (index, ((column, width), cell)) in places.enumerate() {
            let inset = if index == 0 { inset } else { 0 };
            let parts = wrap(&cell.text, width - inset);
            wrapped.push((column, edge + inset, edge + width, cell.style, parts));
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
    fn records(&mut self, indent: usize, table: &Table) {
        let titles = table.columns.iter().map(|column| display_width(column.title()));
        let beside = indent + titles.max().unwrap_or(0) + GAP;
        for row in &table.rows {
            self.gap();
            match row {
                Row::Section { section, about } => self.section(indent, section, about),
                Row::Cells { cells } => {
                    let filled = table
                        .columns
                        .iter()
                        .zip(cells)
                        .filter(|(_, cell)| !cell.text.is_empty());
                    for (column, cell) in filled {
                        let title = Style::Faint.paint(column.title());
                        let lead = pad(" ".repeat(indent) + &title, beside);
                        self.paragraph(&lead, beside, cell.style, &cell.text);
                    }
                }
            }
        }
    }
}

fn field_name(name: &str) -> String {
    pad(Style::Faint.paint(name), FIELD.max(display_width(name) + 1))
}

/// The painted text with spaces up to this width.
fn pad(mut text: String, width: usize) -> String {
    let missing = width.saturating_sub(display_width(&text));
    text.extend(std::iter::repeat_n(' ', missing));
    text
}
