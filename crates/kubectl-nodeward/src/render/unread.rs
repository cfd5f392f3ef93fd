//! What is missing from a page, and why.

use std::collections::BTreeMap;

use crate::text::line::Tone;
use crate::text::page::Page;
use crate::view::unread::Unread;

/// Says what could not be read; nothing if all could.
pub fn add(page: &mut Page, unread: &[Unread]) {
    if unread.is_empty() {
        return;
    }
    page.gap();
    let mut absent: BTreeMap<&str, Vec<&str>> = BTreeMap::new();
    for unread in unread {
        match unread {
            Unread::NotInstalled { what, component } => absent.entry(component).or_default().push(what),
            Unread::Forbidden { what, missing } => {
                page.text(Tone::Warning, format!("Not shown: {what}: {missing}."));
            }
        }
    }
    for (component, what) in absent {
        page.text(
            Tone::Faint,
            format!("{component} is not installed: there are no {} to show.", join(&what)),
        );
    }
}

/// `a`, `a and b`, `a, b and c`.
pub fn join<T: AsRef<str>>(items: &[T]) -> String {
    let items: Vec<&str> = items.iter().map(AsRef::as_ref).collect();
    match items.as_slice() {
        [] => String::new(),
        [one] => (*one).to_owned(),
        [first @ .., last] => format!("{} and {last}", first.join(", ")),
    }
}
