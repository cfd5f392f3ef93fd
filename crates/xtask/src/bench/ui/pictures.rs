//! Pictures of the page: of every view for those who work on it, and a few for the documentation.

use std::path::Path;

use anyhow::{Context, Result};
use nodeward_testkit::ControlPlane;
use nodeward_testkit::browser::Browser;
use nodeward_testkit::wait::{self, secs};
use serde_json::json;

use crate::bench::fleet::size::node_name;

/// Every view, and what is in it when it is complete.
const VIEWS: [(&str, &str); 6] = [
    ("fleet", "main h2"),
    ("queue", ".detail h3"),
    ("node", ".blocks .field"),
    ("health", "main h2"),
    ("ceph", ".domains"),
    ("log", ".log li"),
];

/// Windows of a laptop and of a phone.
const WINDOWS: [(u32, u32); 2] = [(1280, 800), (390, 844)];

/// Every view in both windows, light and dark, as `VIEW-WIDTH-light.png`.
pub async fn all(plane: &ControlPlane, address: &str, dir: &Path) -> Result<()> {
    for (wants_dark, scheme) in [(false, "light"), (true, "dark")] {
        let browser = Browser::start(plane.dir(), wants_dark).await?;
        browser.client.goto(address).await?;
        for (width, height) in WINDOWS {
            browser.resize(width, height).await?;
            for (view, sign) in VIEWS {
                write(&browser, view, sign, &dir.join(format!("{view}-{width}-{scheme}.png"))).await?;
            }
        }
    }
    Ok(())
}

/// Three views in one window, as `ui-VIEW.png`.
pub async fn of_docs(plane: &ControlPlane, address: &str, dir: &Path) -> Result<()> {
    let browser = Browser::start(plane.dir(), false).await?;
    browser.client.goto(address).await?;
    browser.resize(1280, 800).await?;
    for (view, sign) in VIEWS.into_iter().take(3) {
        write(&browser, view, sign, &dir.join(format!("ui-{view}.png"))).await?;
    }
    Ok(())
}

async fn write(browser: &Browser, view: &str, sign: &str, file: &Path) -> Result<()> {
    let subject = if view == "node" {
        format!("node/{}", node_name(0))
    } else {
        view.to_owned()
    };
    let script = format!("location.hash = '#/{subject}'; scrollTo(0, 0)");
    browser.client.execute(&script, Vec::new()).await?;
    let is_there = format!("return document.querySelector({}) !== null", json!(sign));
    wait::until(view, secs(60), || async {
        let is_there = browser.client.execute(&is_there, Vec::new()).await?;
        anyhow::ensure!(
            is_there == json!(true),
            "{sign} is not there: {:.500}",
            browser.text().await?
        );
        Ok(())
    })
    .await?;
    // What is drawn on canvases comes a frame later.
    let drawn = "const done = arguments[0]; requestAnimationFrame(() => requestAnimationFrame(() => done(true)));";
    browser.client.execute_async(drawn, Vec::new()).await?;
    if let Some(dir) = file.parent() {
        std::fs::create_dir_all(dir).with_context(|| format!("create {}", dir.display()))?;
    }
    std::fs::write(file, browser.picture().await?).with_context(|| format!("write {}", file.display()))
}
