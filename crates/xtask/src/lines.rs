//! `cargo xtask lines`: how much code there is, by crate. Blank lines, comments and tests do not count.

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;
use std::process::ExitCode;

use anyhow::{Context, Result};

pub fn run() -> Result<ExitCode> {
    let crates = Path::new(env!("CARGO_MANIFEST_DIR")).join("..");
    let mut totals = BTreeMap::new();
    for entry in fs::read_dir(&crates)? {
        let entry = entry?;
        let lines = lines_under(&entry.path())?;
        totals.insert(entry.file_name().into_string().ok().context("a crate's name")?, lines);
    }
    for (name, lines) in &totals {
        println!("{lines:>6}  {name}");
    }
    println!("{:>6}  in all", totals.values().sum::<usize>());
    Ok(ExitCode::SUCCESS)
}

/// Lines of code in the Rust files under `dir`, but for `tests/` and `tests.rs`.
fn lines_under(dir: &Path) -> Result<usize> {
    let mut lines = 0;
    for entry in fs::read_dir(dir).with_context(|| dir.display().to_string())? {
        let path = entry?.path();
        if path.file_stem().is_some_and(|name| name == "tests") {
        } else if path.is_dir() {
            lines += lines_under(&path)?;
        } else if path.extension().is_some_and(|extension| extension == "rs") {
            lines += code_lines(&fs::read_to_string(&path)?);
        }
    }
    Ok(lines)
}

/// Lines that are neither blank nor comments nor in an item under `#[cfg(test)]`. rustfmt ends an item of several lines
/// with a brace at its own indentation.
fn code_lines(text: &str) -> usize {
    let mut lines = text.lines();
    let mut code = 0;
    while let Some(line) = lines.next() {
        let trimmed = line.trim_start();
        if trimmed.starts_with("#[cfg(test)]") || trimmed.starts_with("#[cfg(any(test") {
            let item = lines.find(|line| !line.trim_start().starts_with("#["));
            if item.is_some_and(|item| !item.ends_with(';')) {
                let indent = line.len() - trimmed.len();
                let end = |line: &&str| {
                    line.len() > indent && line.as_bytes()[indent] == b'}' && line[..indent].trim().is_empty()
                };
                lines.find(end);
            }
        } else if !trimmed.is_empty() && !trimmed.starts_with("//") {
            code += 1;
        }
    }
    code
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn blank_lines_comments_and_tests_do_not_count() {
        let text = "//! Doc\nuse a;\n\nfn f() {\n    // why\n    g();\n}\n#[cfg(test)]\nmod fixture;\n#[cfg(test)]\n#[rstest]\nmod t {\n    fn x() {\n    }\n}\nconst A: u8 = 1;\n";
        assert_eq!(code_lines(text), 5);
    }
}
