//! What the documentation says of the operators' metrics. Real ones are held against it wherever a test reads them, so that the
//! pages, and the dashboards that are checked by them, name no label that does not exist.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::Path;

use anyhow::{Context, Result, ensure};

use crate::operator::Metrics;

/// A row of a page's tables.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DocumentedMetric {
    /// `gauge`, `counter`, `histogram` or `info`.
    pub kind: String,
    pub labels: BTreeSet<String>,
}

/// The metrics on the page of a component, by name; none where it has no page.
///
/// # Errors
/// When the page cannot be read.
pub fn metrics_of(component: &str) -> Result<BTreeMap<String, DocumentedMetric>> {
    let docs = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs");
    let page = docs.join(component).join("metrics.md");
    if !page.exists() {
        return Ok(BTreeMap::new());
    }
    let text = fs::read_to_string(&page).with_context(|| page.display().to_string())?;
    Ok(text.lines().filter_map(row).collect())
}

/// `| name | type | labels | meaning |`, the name and each label in backticks.
fn row(line: &str) -> Option<(String, DocumentedMetric)> {
    let cells: Vec<&str> = line.trim().trim_matches('|').split('|').map(str::trim).collect();
    let [name, kind, labels, _] = cells[..] else {
        return None;
    };
    let name = name.strip_prefix('`')?.strip_suffix('`')?;
    let labels = labels.split('`').skip(1).step_by(2).map(str::to_owned).collect();
    let kind = kind.to_owned();
    Some((name.to_owned(), DocumentedMetric { kind, labels }))
}

/// Holds real metrics against the page.
pub(crate) fn check(component: &str, metrics: &Metrics) -> Result<()> {
    let documented = metrics_of(component)?;
    ensure!(
        documented.is_empty() || undocumented(&documented, metrics).is_empty(),
        "not as docs/{component}/metrics.md says: {:#?}",
        undocumented(&documented, metrics)
    );
    Ok(())
}

/// Series whose name or labels are not those of the page.
fn undocumented(documented: &BTreeMap<String, DocumentedMetric>, metrics: &Metrics) -> Vec<String> {
    let is_documented = |name: &str, labels: &BTreeMap<String, String>| {
        let parts = ["_bucket", "_sum", "_count"];
        let of_histogram = parts.iter().filter_map(|part| documented.get(name.strip_suffix(part)?));
        let mut found = documented.get(name).into_iter().chain(of_histogram);
        let labels = labels.keys().filter(|label| *label != "le");
        found.any(|metric| metric.labels.iter().eq(labels.clone()))
    };
    let wrong = metrics
        .samples()
        .filter(|sample| !is_documented(&sample.name, &sample.labels));
    wrong
        .map(|sample| format!("{}{:?}", sample.name, sample.labels.keys()))
        .collect()
}

#[cfg(test)]
mod tests {
    use rstest::rstest;

    use super::*;

    #[rstest]
    #[case::as_it_says("a{node=\"n\"} 1\nb_bucket{le=\"1\"} 1\nb_sum 1\nb_count 1\n", true)]
    #[case::another_name("c 1\n", false)]
    #[case::a_label_too_many("a{node=\"n\",pod=\"p\"} 1\n", false)]
    #[case::a_label_too_few("a 1\n", false)]
    fn series_not_on_the_page_are_found(#[case] real: &str, #[case] is_documented: bool) {
        let page = "| name | type | labels | meaning |\n| `a` | gauge | `node` | x |\n| `b` | histogram | | x |\n";
        let documented: BTreeMap<_, _> = page.lines().filter_map(row).collect();
        assert_eq!(documented.len(), 2);
        let found = undocumented(&documented, &Metrics::parse(real));
        assert_eq!(found.is_empty(), is_documented, "{found:?}");
    }
}
