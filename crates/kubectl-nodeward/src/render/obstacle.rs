//! What a drain waits for, in words.

use nodeward_api::node_drain::BlockedBy;
use nodeward_api::reason::LockReason;

/// One obstacle as a clause, with its reason, by which it is found in Events and metrics:
/// `waits for units of a budget that another drain holds: PDB shop/web, held by node-2 [WaitsForUnits]`.
pub fn clause(blocked: &BlockedBy) -> String {
    let mut text = blocked
        .pod
        .as_ref()
        .map(|pod| format!("pod {pod} "))
        .unwrap_or_default();
    text.push_str(blocked.reason.explanation());
    let mut about = Vec::new();
    if let Some(pdb) = &blocked.pdb {
        about.push(format!("PDB {pdb}"));
    }
    if let Some(node) = &blocked.node {
        about.push(match blocked.reason {
            LockReason::Reserved => format!("kept for {node}"),
            LockReason::WaitsForUnits => format!("held by {node}"),
            _ => format!("node {node}"),
        });
    }
    about.extend(beyond(&blocked.message, blocked.reason.explanation()));
    if !about.is_empty() {
        text.push_str(": ");
        text.push_str(&about.join(", "));
    }
    format!("{text} [{}]", blocked.reason)
}

/// What the message says beyond the explanation: all of it, or the numbers in brackets behind the explanation.
fn beyond(message: &str, explanation: &str) -> Option<String> {
    match message.split_once(explanation) {
        None => (!message.is_empty()).then(|| message.to_owned()),
        Some((_, rest)) => {
            let (numbers, _) = rest.strip_prefix(" (")?.split_once(')')?;
            Some(numbers.to_owned())
        }
    }
}

/// All obstacles in a few words, for a table: `node-2 (shop/web), +1`.
pub fn summary(blocked: &[BlockedBy]) -> String {
    let Some(first) = blocked.first() else {
        return String::new();
    };
    let text = match (&first.node, &first.pdb, &first.pod) {
        (Some(node), Some(pdb), _) => format!("{node} ({pdb})"),
        (Some(node), None, _) => format!("{node} ({})", first.reason),
        (None, Some(about), _) | (None, None, Some(about)) => format!("{} {about}", first.reason),
        (None, None, None) => first.reason.to_string(),
    };
    match blocked.len() {
        1 => text,
        more => format!("{text}, +{}", more - 1),
    }
}

#[cfg(test)]
mod tests {
    use rstest::rstest;

    use super::*;

    fn blocked(reason: LockReason, pdb: &str, pod: &str, node: &str, message: &str) -> BlockedBy {
        let some = |text: &str| (!text.is_empty()).then(|| text.to_owned());
        BlockedBy {
            reason,
            pdb: some(pdb),
            pod: some(pod),
            node: some(node),
            message: message.to_owned(),
        }
    }

    #[rstest]
    #[case(
        blocked(LockReason::WaitsForUnits, "shop/web", "", "node-2", ""),
        "waits for units of a budget that another drain holds: PDB shop/web, held by node-2 [WaitsForUnits]",
        "node-2 (shop/web)"
    )]
    #[case(
        blocked(
            LockReason::WaitsForUnits,
            "shop/web",
            "",
            "node-2",
            "shop/web waits for units of a budget that another drain holds (1 needed, 0 free): node node-2"
        ),
        "waits for units of a budget that another drain holds: PDB shop/web, held by node-2, 1 needed, 0 free [WaitsForUnits]",
        "node-2 (shop/web)"
    )]
    #[case(
        blocked(LockReason::Reserved, "shop/web", "", "node-2", ""),
        "waits for units of a budget that are kept for an older drain: PDB shop/web, kept for node-2 [Reserved]",
        "node-2 (shop/web)"
    )]
    #[case(
        blocked(
            LockReason::SeveralPDBs,
            "",
            "shop/web-0",
            "",
            "pod shop/web-0 is selected by several budgets, which the eviction API refuses"
        ),
        "pod shop/web-0 is selected by several budgets, which the eviction API refuses [SeveralPDBs]",
        "SeveralPDBs shop/web-0"
    )]
    #[case(
        blocked(LockReason::OwnerHold, "shop/web", "", "", "migration until 12:00"),
        "waits for a budget that its owner holds: PDB shop/web, migration until 12:00 [OwnerHold]",
        "OwnerHold shop/web"
    )]
    #[case(blocked(LockReason::Queued, "", "", "", ""), "waits for its turn [Queued]", "Queued")]
    #[case(
        blocked(LockReason::Queued, "", "", "node-1", ""),
        "waits for its turn: node node-1 [Queued]",
        "node-1 (Queued)"
    )]
    fn an_obstacle_names_its_budget_its_holder_and_its_reason(
        #[case] blocked: BlockedBy,
        #[case] clause_: &str,
        #[case] summary_: &str,
    ) {
        assert_eq!(clause(&blocked), clause_);
        assert_eq!(summary(std::slice::from_ref(&blocked)), summary_);
        assert_eq!(summary(&[blocked.clone(), blocked]), format!("{summary_}, +1"));
    }

    #[test]
    fn no_obstacle_is_no_text() {
        assert_eq!(summary(&[]), "");
    }
}
