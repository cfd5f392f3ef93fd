//! A moment of the fleet to keep: as a snapshot that `--from` shows again, or as one page that needs nothing else.

use std::collections::BTreeMap;
use std::fmt::Write as _;

use anyhow::{Context as _, bail};
use serde_json::{Value, json};

use super::assets::{self, Asset};
use super::fleet::Fleet;
use super::live::Live;
use super::node_view::NodeView;
use crate::model::answer::Severity;

/// The version of a snapshot's form.
const FORMAT: u64 = 3;

/// How many nodes are kept with all that `why` tells of them, those that need a person first.
const EXPLAINED: usize = 50;

/// The moment as one document.
pub async fn snapshot(live: &Live, fleet: &Fleet) -> anyhow::Result<Value> {
    let mut worst: Vec<_> = fleet
        .nodes
        .iter()
        .filter(|(_, node)| node.answer.severity >= Severity::Waits)
        .collect();
    worst.sort_by_key(|(_, node)| std::cmp::Reverse(node.answer.severity));
    let mut views = BTreeMap::new();
    for (name, _) in worst.into_iter().take(EXPLAINED) {
        // Of a node that is gone by now the fleet's own words are left.
        if let Ok(view) = NodeView::fetch(live, name).await {
            views.insert(name.clone(), view);
        }
    }
    let mut state = serde_json::to_value(fleet)?;
    state["source"]["snapshot"] = serde_json::to_value(fleet.at)?;
    Ok(json!({ "format": FORMAT, "state": state, "nodeViews": views }))
}

/// A snapshot that was written to a file.
pub fn read(text: &str) -> anyhow::Result<Value> {
    let kept: Value = serde_json::from_str(text).context("it is no JSON document")?;
    match kept["format"].as_u64() {
        Some(FORMAT) if kept["state"]["nodes"].is_object() => Ok(kept),
        Some(FORMAT) => bail!("it has no nodes: write it with kubectl nodeward ui --snapshot FILE"),
        Some(other) => bail!("its format is {other}, and this version reads {FORMAT}: use the version that wrote it"),
        None => bail!("it is no snapshot: write one with kubectl nodeward ui --snapshot FILE"),
    }
}

/// The page with the moment, its styles and its modules in one file.
pub fn page(kept: &Value) -> anyhow::Result<String> {
    let index = assets::find("index.html").context("the page is missing")?.content;
    let style = assets::find("style.css").context("the page has no styles")?.content;
    let modules: BTreeMap<String, String> = assets::modules()
        .map(|module| (specifier(module.name), data_url(&bare(module))))
        .collect();
    let imports = json!({ "imports": modules });
    let main = specifier("app.js");
    let head = format!(
        "<style>{style}</style>\n<script type=\"importmap\">{}</script>\n<script type=\"application/json\" id=\"state\">{}</script>\n",
        inert(&imports.to_string()),
        inert(&kept.to_string()),
    );
    let link = "<link rel=\"stylesheet\" href=\"style.css\">";
    let script = "<script type=\"module\" src=\"app.js\"></script>";
    if !index.contains(link) || !index.contains(script) {
        bail!("the page does not link its styles and its script as they are replaced here");
    }
    Ok(index
        .replace(link, &head)
        .replace(script, &format!("<script type=\"module\">import {main:?};</script>")))
}

/// Text within a script element: nothing in it may end the element.
fn inert(json: &str) -> String {
    json.replace('<', "\\u003c")
}

fn specifier(name: &str) -> String {
    format!("nodeward/{name}")
}

/// The module, importing others by the names of the import map: an address like `./view.js` means nothing in a `data:` URL.
fn bare(module: &Asset) -> String {
    module.content.replace("from \"./", "from \"nodeward/")
}

fn data_url(module: &str) -> String {
    let mut url = "data:text/javascript;charset=utf-8,".to_owned();
    for byte in module.bytes() {
        if byte.is_ascii_alphanumeric() || b"-_.~!*'()/:;,=?@+$&".contains(&byte) {
            url.push(char::from(byte));
        } else {
            // Writing to a String cannot fail.
            let _ = write!(url, "%{byte:02X}");
        }
    }
    url
}

#[cfg(test)]
mod tests {
    use rstest::rstest;

    use super::*;

    #[rstest]
    #[case::not_json("<html>", "it is no JSON document")]
    #[case::something_else("{}", "it is no snapshot: write one with kubectl nodeward ui --snapshot FILE")]
    #[case::later(
        r#"{ "format": 4 }"#,
        "its format is 4, and this version reads 3: use the version that wrote it"
    )]
    #[case::empty(
        r#"{ "format": 3, "state": {} }"#,
        "it has no nodes: write it with kubectl nodeward ui --snapshot FILE"
    )]
    fn file_that_is_no_snapshot_says_so(#[case] text: &str, #[case] told: &str) {
        assert_eq!(read(text).unwrap_err().to_string(), told);
    }

    #[test]
    fn page_needs_nothing_else() {
        let reason = "</script><img src=x onerror=alert(1)>";
        let kept = json!({ "format": 3, "state": { "nodes": { "n1": { "why": reason } } }, "nodeViews": {} });
        let page = page(&kept).unwrap();
        assert!(!page.contains("<img") && !page.contains("src=\"app.js\"") && !page.contains("href=\"style.css\""));
        let (_, json) = page.split_once("id=\"state\">").unwrap();
        let (json, _) = json.split_once("</script>").unwrap();
        assert_eq!(serde_json::from_str::<Value>(json).unwrap(), kept);
        // Each module imports by names that the map has.
        let (_, map) = page.split_once("\"importmap\">").unwrap();
        let map: Value = serde_json::from_str(map.split_once("</script>").unwrap().0).unwrap();
        for module in assets::modules() {
            assert!(
                !bare(module).contains("from \"./") && !bare(module).contains("from './"),
                "{}",
                module.name
            );
            for import in bare(module).split("from \"").skip(1) {
                let name = import.split('"').next().unwrap();
                assert!(map["imports"][name].is_string(), "{} imports {name}", module.name);
            }
        }
    }
}
