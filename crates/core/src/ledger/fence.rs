//! Which grant an eviction rests on, and how that is written.

use std::fmt;

use serde::{Deserialize, Serialize};

use super::Claim;

/// Which grant of which claim an eviction rests on. Tickets are never given twice, and a claim's grants are counted.
///
/// Written `<ticket>/<grant>`: so it travels with an eviction (annotation `nodeward.dev/ticket`).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Fence {
    /// The claim's ticket.
    pub ticket: i64,
    /// The number of its grant.
    pub grant: i64,
}

impl Fence {
    /// The claim's present grant, or its last.
    pub fn of(claim: &Claim) -> Self {
        Self {
            ticket: claim.ticket,
            grant: claim.grant,
        }
    }

    /// Reads what was written; `None` for anything else.
    pub fn parse(text: &str) -> Option<Self> {
        let (ticket, grant) = text.split_once('/')?;
        Some(Self {
            ticket: number(ticket)?,
            grant: number(grant)?,
        })
    }
}

impl fmt::Display for Fence {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.ticket, self.grant)
    }
}

/// Digits alone: no sign, no spaces, so that one fence has one spelling.
fn number(text: &str) -> Option<i64> {
    let digits = !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit());
    digits.then(|| text.parse().ok()).flatten()
}

#[cfg(test)]
mod tests {
    use rstest::rstest;

    use super::*;

    #[test]
    fn a_fence_is_read_as_it_was_written() {
        let fence = Fence {
            ticket: 7,
            grant: 1_763_737_380_123,
        };
        assert_eq!(fence.to_string(), "7/1763737380123");
        assert_eq!(Fence::parse("7/1763737380123"), Some(fence));
    }

    #[rstest]
    #[case("")]
    #[case("/")]
    #[case("7")]
    #[case("7/")]
    #[case("-7/1")]
    #[case("+7/1")]
    #[case(" 7/1")]
    #[case("7/1/1")]
    #[case("7/99999999999999999999")]
    #[case("٧/١")]
    fn anything_else_is_no_fence(#[case] text: &str) {
        assert_eq!(Fence::parse(text), None);
    }
}
