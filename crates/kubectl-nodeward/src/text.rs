//! Text for a terminal of any width: lines of toned spans, tables, paragraphs, times. Pure.

pub mod line;
pub mod page;
pub mod table;
pub mod time;
pub mod wrap;
