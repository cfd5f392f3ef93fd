//! Which grant one of our own evictions rests on, as it travels with the eviction (annotation `nodeward.dev/ticket`).

use nodeward_core::ledger::Fence;

/// `<ticket>/<grant>`.
pub fn text(fence: Fence) -> String {
    format!("{}/{}", fence.ticket, fence.grant)
}

/// Reads what [`text`] writes; `None` for anything else.
pub fn parse(text: &str) -> Option<Fence> {
    let (ticket, grant) = text.split_once('/')?;
    Some(Fence {
        ticket: number(ticket)?,
        grant: number(grant)?,
    })
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
        assert_eq!(text(fence), "7/1763737380123");
        assert_eq!(parse("7/1763737380123"), Some(fence));
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
        assert_eq!(parse(text), None);
    }
}
