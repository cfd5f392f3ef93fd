//! What a drain waits for, in words.

use nodeward_api::node_drain::BlockedBy;
use nodeward_api::reason::LockReason;

/// One obstacle as a clause, with its reason, by which it is found in Events and metrics:
/// `waits for units of a budget that another drain holds: PDB shop/web, held by node-2 [WaitsForUnits]`.
pub fn clause(blocked: &BlockedBy) -> String {
    // Of a pod the message may be a whole sentence, which says more than the reason's own.
    let is_sentence = blocked
        .pod
        .as_ref()
        .is_some_and(|pod| blocked.message.starts_with(&format!("pod {pod} ")));
    let mut text = if is_sentence {
        blocked.message.clone()
    } else {
        subject(blocked) + blocked.reason.explanation()
    };
    let mut about = Vec::new();
    if let Some(pdb) = blocked.pdb.as_ref().filter(|pdb| !names(&text, pdb)) {
        about.push(format!("PDB {pdb}"));
    }
    if let Some(node) = &blocked.node {
        about.push(match blocked.reason {
            LockReason::Reserved => format!("kept for {node}"),
            LockReason::WaitsForUnits => format!("held by {node}"),
            _ => format!("node {node}"),
        });
    }
    if !is_sentence {
        about.extend(beyond(&blocked.message, blocked.reason.explanation()));
    }
    if !about.is_empty() {
        text.push_str(": ");
        text.push_str(&about.join(", "));
    }
    format!("{text} [{}]", blocked.reason)
}

/// Who or what waits; nothing where that is the drain itself.
fn subject(blocked: &BlockedBy) -> String {
    match (&blocked.pod, blocked.reason) {
        (Some(pod), _) => format!("pod {pod} "),
        (None, LockReason::MisconfiguredPDB) => "a pod ".to_owned(),
        (None, _) => String::new(),
    }
}

/// Whether the text has this name as a word of its own: `shop/web` is not named by `shop/web-0`.
fn names(text: &str, name: &str) -> bool {
    let is_of_name = |letter: char| letter.is_ascii_alphanumeric() || matches!(letter, '/' | '-' | '.');
    text.split(|letter| !is_of_name(letter)).any(|word| word == name)
}

/// Each obstacle once: what was found by the plan is found by the ledger again, in fewer words.
pub fn distinct(blocked: &[BlockedBy]) -> Vec<&BlockedBy> {
    let mut seen: Vec<&BlockedBy> = Vec::new();
    for obstacle in blocked {
        let is_same = |other: &&BlockedBy| {
            (other.reason, &other.pdb, &other.pod, &other.node)
                == (obstacle.reason, &obstacle.pdb, &obstacle.pod, &obstacle.node)
        };
        if !seen.iter().any(is_same) {
            seen.push(obstacle);
        }
    }
    seen
}

/// What the message says beyond the explanation: all of it, or the numbers in brackets behind the explanation.
fn beyond(message: &str, explanation: &str) -> Option<String> {
    match message.split_once(explanation) {
        None => {
            // `budget shop/web can never …: it demands 1 healthy pods of 1`: the reason behind, the rest has been said.
            let own = message.strip_prefix("budget ").and_then(|text| text.split_once(": "));
            let message = own.map_or(message, |(_, reason)| reason);
            (!message.is_empty()).then(|| message.to_owned())
        }
        Some((_, rest)) => {
            let (numbers, _) = rest.strip_prefix(" (")?.split_once(')')?;
            Some(numbers.to_owned())
        }
    }
}

/// All obstacles in a few words, for a table: `node-2 (shop/web), +1`.
pub fn summary(blocked: &[BlockedBy]) -> String {
    let mut blocked = distinct(blocked);
    blocked.retain(|obstacle| !obstacle.reason.is_a_step());
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
        blocked(
            LockReason::BudgetUnhealthy,
            "shop/web",
            "shop/web-0",
            "",
            "pod shop/web-0 waits for a budget whose pods are not healthy"
        ),
        "pod shop/web-0 waits for a budget whose pods are not healthy: PDB shop/web [BudgetUnhealthy]",
        "BudgetUnhealthy shop/web"
    )]
    #[case(
        blocked(
            LockReason::TolerationTooShort,
            "",
            "shop/web-0",
            "",
            "pod shop/web-0 stays, but tolerates node.kubernetes.io/not-ready for 300 s only"
        ),
        "pod shop/web-0 stays, but tolerates node.kubernetes.io/not-ready for 300 s only [TolerationTooShort]",
        "TolerationTooShort shop/web-0"
    )]
    #[case(
        blocked(LockReason::OwnerHold, "shop/web", "", "", "migration until 12:00"),
        "waits for a budget that its owner holds: PDB shop/web, migration until 12:00 [OwnerHold]",
        "OwnerHold shop/web"
    )]
    #[case(
        blocked(
            LockReason::MisconfiguredPDB,
            "shop/web",
            "",
            "",
            "budget shop/web can never allow a disruption: it demands 1 healthy pods of 1"
        ),
        "a pod is covered by a budget that can never allow a disruption: PDB shop/web, it demands 1 healthy pods of 1 \
         [MisconfiguredPDB]",
        "MisconfiguredPDB shop/web"
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
        // Found twice, it is one; another is one more.
        let again = BlockedBy {
            message: "1 needed, 0 free".to_owned(),
            ..blocked.clone()
        };
        let other = BlockedBy {
            pdb: Some("shop/other".to_owned()),
            ..blocked.clone()
        };
        assert_eq!(summary(&[blocked.clone(), again]), summary_);
        assert_eq!(summary(&[blocked, other]), format!("{summary_}, +1"));
    }

    #[test]
    fn no_obstacle_is_no_text() {
        assert_eq!(summary(&[]), "");
        let step = blocked(LockReason::AwaitsConfirmation, "", "", "", "");
        assert_eq!(summary(&[step]), "");
    }
}
