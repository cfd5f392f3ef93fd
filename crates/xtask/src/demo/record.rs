//! Keeping what a run has told as a page of the documentation.

use std::fs;
use std::io::{BufRead, BufReader, Write};
use std::path::Path;
use std::process::{Command, ExitCode, Stdio};

use anyhow::{Context, Result};

/// The block of the page that is written.
const BEGINS: &str = "```text\n";
const ENDS: &str = "\n```\n";

/// Plays without `--record PAGE`, and writes what is told into the page if all was as promised.
pub fn run(page: &Path) -> Result<ExitCode> {
    let is_ours = |arg: &str| arg == "--record" || arg.starts_with("--record=") || Path::new(arg) == page;
    let args = std::env::args().skip(1).filter(|arg| !is_ours(arg));
    let mut run = Command::new(std::env::current_exe()?)
        .args(args)
        .stdout(Stdio::piped())
        .spawn()?;
    let mut told = String::new();
    for line in BufReader::new(run.stdout.take().context("no output")?).lines() {
        let line = line?;
        // Whoever closes the output early still gets the page.
        let _ = writeln!(std::io::stdout(), "{line}");
        told.push_str(line.trim_end());
        told.push('\n');
    }
    if !run.wait()?.success() {
        return Ok(ExitCode::FAILURE);
    }
    let text = fs::read_to_string(page).with_context(|| page.display().to_string())?;
    let written = with_block(&text, told.trim()).context("the page has no block of text")?;
    fs::write(page, written).with_context(|| page.display().to_string())?;
    Ok(ExitCode::SUCCESS)
}

/// The page with this in its first block of text.
fn with_block(page: &str, told: &str) -> Option<String> {
    let (before, rest) = page.split_once(BEGINS)?;
    // The block may be empty.
    let end = rest.find("```\n")?;
    Some(format!("{before}{BEGINS}{told}{ENDS}{}", &rest[end + 4..]))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[rstest::rstest]
    #[case::empty("a\n```text\n```\nb\n", Some("a\n```text\nnew\n```\nb\n"))]
    #[case::with_another_after_it(
        "```text\nold\nold\n```\n```text\nkept\n```\n",
        Some("```text\nnew\n```\n```text\nkept\n```\n")
    )]
    #[case::none("a\n", None)]
    #[case::without_end("```text\nold", None)]
    fn first_block_of_text_is_replaced(#[case] page: &str, #[case] written: Option<&str>) {
        assert_eq!(with_block(page, "new").as_deref(), written);
    }
}
