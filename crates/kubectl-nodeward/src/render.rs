//! What each command shows, as a page. Pure: a value and the time in, text out.

pub mod drain;
pub mod locks;
pub mod obstacle;
pub mod plan;
pub mod status;
pub mod unread;
pub mod why;

#[cfg(test)]
mod tests;
