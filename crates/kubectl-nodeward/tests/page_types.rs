//! The modules of the page agree with what the server sends, as `ui/types.d.ts` says it.

#![allow(clippy::expect_used, reason = "a test may fail")]

use std::path::Path;
use std::process::Command;

#[test]
fn modules_of_the_page_are_well_typed() {
    let (page, copy) = (
        Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/ui")),
        tempfile::tempdir().unwrap(),
    );
    for entry in std::fs::read_dir(page).unwrap() {
        let entry = entry.unwrap();
        if entry.file_type().unwrap().is_file() {
            std::fs::copy(entry.path(), copy.path().join(entry.file_name())).unwrap();
        }
    }
    for args in [["ci", "--silent"], ["run", "check"]] {
        let ran = Command::new("npm").args(args).current_dir(copy.path()).output();
        let ran = ran.expect("npm checks the page: install nodejs and npm");
        let told = String::from_utf8_lossy(&ran.stdout).into_owned() + &String::from_utf8_lossy(&ran.stderr);
        assert!(ran.status.success(), "npm {}: {told}", args.join(" "));
    }
}
