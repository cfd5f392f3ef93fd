//! Names and metaphors that were replaced by the words of the field do not come back.
#![allow(clippy::unwrap_used, clippy::panic, reason = "helpers of tests are tests")]

use std::path::{Path, PathBuf};

use regex::Regex;

/// A pattern, what stands in its place now, and the paths (by their beginning) where the old word may still stand.
type Retired = (&'static str, &'static str, &'static [&'static str]);

/// One line a word. Patterns are regular expressions, matched against each line of [`SEARCHED`].
const RETIRED: &[Retired] = &[
    (r"\bmod refusal\b|\brefusal::", "api_error", &[]),
    (r"\bnodeward_runtime::Refusal\b|\benum Refusal\b", "ApiError", &[]),
    (r"\bleaves_outcome_unknown\b", "is_ambiguous", &[]),
    (r"\bretell\.rs\b|\bmod retell\b|\bretell::", "parse_messages", &[]),
    (r"\bMachinery\b|\bmod machinery\b", "SimulatedMco", &[]),
    (r"\bdrain_lock::Install\b", "install::Installation", &[]),
    (r"\bTaskSet\b|\btask_set\b", "control::Executor", &[]),
    (r"\bKindOfInterest\b|\bDynamicTarget\b", "WatchedResource", &[]),
    (r"\bEchoes\b|\bmod echo\b", "EventDeduplicator", &[]),
    (r"\b(enum|struct) Stay\b|\bStay::", "NotEvictable", &[]),
    (r"\bstruct Floor\b|\bFloor::", "SchedulingView", &[]),
    (r"\bfn stand_down\b", "on_leadership_lost", &[]),
    (r"\bfn go_by\b", "effective_policy", &[]),
    (r"\bSetback\b", "ElectionError", &[]),
    (r"\bObjectKey\b", "NamespacedName", &[]),
    (r"\bDrainingNode\b", "NodeView", &[]),
    (r"\b(Ink|Tone)::", "Style", &[]),
    (
        r"\bPerturbed\b|\bmod perturb(ed)?\b|\bperturb::",
        "fault_injection",
        &[],
    ),
    (r"\bstruct Site\b|\bSite::", "TestEnv", &[]),
    (r"\bmod place\b|\bplace::(Place|PLACE)\b", "Environment", &[]),
    (r"\bmod upheavals\b", "cluster_changes", &[]),
    (
        r"\bWake::|\bstruct Wake\b|\bmod wake\b|\.woken\(",
        "ReconcileTrigger",
        &[],
    ),
    (r"\bRemember\b|\bmod remember\b|\bremember::", "ActionTracker", &[]),
    (r"\bPolicyInForce\b|\bpolicy_in_force\b", "EffectivePolicy", &[]),
    (r"\bTheirs::|\benum Theirs\b", "ExternalConfig", &[]),
    (
        r"\bstruct Feed\b|\bFeed::|\brequire_feed\b|\bmod feed\b",
        "WatchHandle",
        &[],
    ),
    (r"\bInlet\b|\.contact\(\)", "WatchEventHandler", &[]),
    (r"\blast_contact\b", "last_response", &[]),
    (r"\bOutages?::|\bstruct Outages?\b", "WatchFailureLog", &[]),
    (r"\bCampaign\b", "ElectionHandle", &[]),
    (r"\bFatality\b|\bfatality\b", "TaskFailure", &[]),
    (r"\bfn converse\b", "serve_connection", &[]),
    (r"\bUnderWay\b", "InFlightGuard", &[]),
    (r"\bis_believed\b", "is_fresh", &[]),
    (r"\bconst SILENCE\b", "STALE_AFTER", &[]),
    (r"\bstruct Means\b|&Means\b", "ExecutorContext", &[]),
    (r"\benum Work\b|\bWork::", "Task", &[]),
    (r"\benum Show\b|\bShow::", "StatusUpdate", &[]),
    (r"\btype Done\b|\bDone::Acted\b|\bdone_label\b", "ActionResult", &[]),
    (r"\bmod recheck\b|\brecheck::|\benum Objection\b", "preconditions", &[]),
    (r"\bGrounds\b", "VerifiedState", &[]),
    (r"\bOddity\b|\boddities\b", "Warning", &[]),
    (r"\bGateLog\b", "GateTransitionLog", &[]),
    (r"\bis_blurred\b", "is_indeterminate", &[]),
    (
        r"\bNodeMark\b|\bnode_mark\b|\bDrainMarks?\b|\bdrain_marks?\b",
        "NodeMarker",
        &[],
    ),
    (r"\bTruth::|\benum Truth\b", "Tristate", &[]),
    (r"\bNextWake\b", "RequeueAt", &[]),
    (r"\bdeadline::later\b|\bfn later\b", "saturating_add", &[]),
    (r"\bfn (go_on|take_step|take_up)\b", "reconcile", &[]),
    (r"\benum Room\b|\bRoom::|\bNoRoom::", "DisruptionAllowance", &[]),
    (r"\bWaitsInCircle\b", "CircularWait", &[]),
    (r"\bGivenUp\b", "Abandoned", &[]),
    (r"\bOptOutNotHonoured\b|\bnot_honoured\b", "OptOutIgnored", &[]),
    (r"Reason::MisconfiguredPDB\b", "SeveralPDBs or BudgetNeverAllows", &[]),
    (
        r"\bheldUnits\b|\bheld_units\b|\bWaitsForUnits\b|\bOwnerUnits\b|\bspec\.units\b|--units\b",
        "disruptions",
        &[],
    ),
    (r"\bpeopleRoles\b", "userRoles", &[]),
    (r"\bWorld::(open|watch|still)\b|\btake_in\b", "ClusterCache", &[]),
    (
        r"\bstruct Board\b|\btrait Shelf\b|\bstruct Intake\b|\bbegin_round\b",
        "ClusterIndex",
        &[],
    ),
    (
        r"\bopen_files\b|\bmod strangers\b|\bself\.strangers\b",
        "DrainContext",
        &[],
    ),
    (r"\bstruct Look\b|\bLook::of\b|\bverdict\.says\b", "PodClasses", &[]),
    (
        r"\bstruct Departures\b|\bmod departures\b|\bdepartures::",
        "EvictionBudget",
        &[],
    ),
    (
        r"\bstruct Down\b|\bmod (down|returned)\b|\breturned::",
        "UnavailablePods",
        &[],
    ),
    (r"\bmod run_out\b|\bfn run_out\b|\bmod time_limits\b", "timeouts", &[]),
    (r"\bmod give_way\b|\bfn give_way\b", "break_deadlock", &[]),
    (r"\bmod end\b|\bfn close_case\b", "completion", &[]),
    (
        r"\bfn (take_step|go_on|stand_aside|let_leave|asks_again)\b",
        "run_stage",
        &[],
    ),
    (r"\bLeaseStand\b|\bgive_lease_back\b", "LeaseState", &[]),
    (r"\bLookout\b|\benum Covering\b|\bCovering::", "ContextLookup", &[]),
    (
        r"\bstruct Patience\b|\bmod patience\b|\bpatience_is_over\b",
        "PlanningTimeouts",
        &[],
    ),
    (r"\bmod tally\b|\btally::", "RecentAdmissions", &[]),
    (
        r"\bstruct (Filer|Filing|FilingSender)\b|\bmod filing\b|drain_lock_filings",
        "DrainRequestQueue",
        &[],
    ),
    (r"\bmod standing\b|\bstanding\.rs\b", "RebootGate", &[]),
    (r"\bstruct Aside\b|\bmod aside\b", "SingleFlight", &[]),
    (r"\bMisfit\b", "UnschedulableReason", &[]),
    (r"\benum Joined\b|\bInTheWay\b|\bstruct Wish\b", "JoinOutcome", &[]),
];

/// Where retired words are looked for: code, comments, documentation and the chart.
const SEARCHED: [&str; 8] = [
    "crates",
    "docs",
    "charts",
    "crds",
    "README.md",
    "CONTRIBUTING.md",
    "SECURITY.md",
    "Cargo.toml",
];

const EXTENSIONS: [&str; 6] = ["rs", "md", "toml", "yaml", "tpl", "json"];

#[test]
fn retired_words_stay_away() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    let mut files = Vec::new();
    for path in SEARCHED {
        collect(&root.join(path), &mut files);
    }
    assert!(files.len() > 300, "only {} files were found", files.len());
    let retired: Vec<(Regex, &Retired)> = RETIRED.iter().map(|word| (Regex::new(word.0).unwrap(), word)).collect();
    let mut hits = Vec::new();
    for file in files {
        let path = file.strip_prefix(&root).unwrap().to_string_lossy().into_owned();
        let text = std::fs::read_to_string(&file).unwrap();
        for (pattern, (_, replacement, allowed)) in &retired {
            let may_stand = path.ends_with("tests/words.rs") || allowed.iter().any(|prefix| path.starts_with(prefix));
            if may_stand || !pattern.is_match(&text) {
                continue;
            }
            let lines = text.lines().enumerate().filter(|(_, line)| pattern.is_match(line));
            hits.extend(
                lines.map(|(index, line)| format!("{path}:{}: {} (now: {replacement})", index + 1, line.trim())),
            );
        }
    }
    assert!(hits.is_empty(), "retired words:\n{}", hits.join("\n"));
}

#[test]
fn replacements_are_not_retired_themselves() {
    for (pattern, replacement, _) in RETIRED {
        let pattern = Regex::new(pattern).unwrap();
        assert!(
            !pattern.is_match(replacement),
            "{pattern} refuses its own replacement {replacement}"
        );
        assert!(!pattern.is_match(""), "{pattern} matches everything");
    }
}

fn collect(path: &Path, files: &mut Vec<PathBuf>) {
    if path.is_dir() {
        for entry in std::fs::read_dir(path).unwrap() {
            collect(&entry.unwrap().path(), files);
        }
    } else if path
        .extension()
        .is_some_and(|extension| EXTENSIONS.iter().any(|known| extension == *known))
    {
        files.push(path.to_owned());
    }
}
