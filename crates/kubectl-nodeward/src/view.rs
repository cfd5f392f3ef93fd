//! What the commands show, as plain values made of API objects. They are also what `-o json` and `-o yaml` print, so a
//! change of a field's name or meaning is a change for everybody's scripts. Times are RFC 3339 in UTC, names of pods and
//! budgets `namespace/name`; a field that has nothing to say is absent, and so is an empty list.

pub mod drain;
pub mod locks;
pub mod node;
pub mod plan;
pub mod status;
pub mod unread;
pub mod why;
