//! What the workflows run is fixed: a tag can be moved to other code, a commit cannot.
#![allow(clippy::unwrap_used, reason = "helpers of tests are tests")]

use std::fs;
use std::path::Path;

use regex::Regex;

#[test]
fn actions_are_pinned_to_commits() {
    let pinned = Regex::new("^[a-z-]+/[a-z-]+@[0-9a-f]{40} # v[0-9]+\\.[0-9]+\\.[0-9]+$").unwrap();
    let workflows = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../.github/workflows");
    let mut used = 0;
    for file in fs::read_dir(workflows).unwrap() {
        let path = file.unwrap().path();
        for line in fs::read_to_string(&path).unwrap().lines() {
            let Some((_, action)) = line.split_once("uses: ") else {
                continue;
            };
            assert!(pinned.is_match(action), "{}: {action}", path.display());
            used += 1;
        }
    }
    assert!(used > 10, "{used}");
}
