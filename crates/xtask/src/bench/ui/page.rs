//! The page in a browser, and what is timed there.

use anyhow::{Context, Result};
use nodeward_testkit::browser::Browser;
use nodeward_testkit::wait::{self, secs};
use serde_json::{Value, json};

/// Tells whether the fleet is in the picture, and then since when, in milliseconds from the beginning of the navigation.
const FIRST_PICTURE: &str = r"
const done = arguments[arguments.length - 1];
const isThere = () => [...document.querySelectorAll('h2')].some((one) => one.innerText === `${arguments[0]} nodes`);
const look = () => (isThere() ? requestAnimationFrame(() => setTimeout(() => done(performance.now()))) : setTimeout(look, 5));
look();";

/// Scrolls the table, the cells and the page to their ends, and tells how long each frame took.
const SCROLL: &str = r"
const done = arguments[arguments.length - 1];
const frames = [];
const boxes = [document.querySelector('.rows'), document.querySelector('.cells'), document.scrollingElement].filter(Boolean);
let [last, box, step] = [performance.now(), 0, 0];
const frame = (now) => {
  frames.push(now - last);
  last = now;
  if (step++ >= 120) [box, step] = [box + 1, 0];
  if (box >= boxes.length) return done(frames.slice(2));
  boxes[box].scrollTop = (boxes[box].scrollHeight * step) / 120;
  requestAnimationFrame(frame);
};
requestAnimationFrame((now) => { last = now; requestAnimationFrame(frame); });";

/// Notes when the number of cordoned nodes is another in the picture.
const EXPECT_CHANGE: &str = r"
window.changedAt = null;
const text = () => document.querySelector('.chip.state-Cordoned')?.innerText;
const before = text();
const observer = new MutationObserver(() => {
  if (text() === before) return;
  observer.disconnect();
  requestAnimationFrame(() => setTimeout(() => { window.changedAt = Date.now(); }));
});
observer.observe(document.querySelector('.chips'), { subtree: true, childList: true, characterData: true });";

/// The page, open in a browser.
pub struct Page<'a> {
    browser: &'a Browser,
    nodes: usize,
}

impl<'a> Page<'a> {
    /// Opens it, and waits until the plugin has read the cluster.
    pub async fn open(browser: &'a Browser, address: &str, nodes: usize) -> Result<Self> {
        let page = Self { browser, nodes };
        browser.client.goto(address).await?;
        wait::until("the fleet in the page", secs(120), || async {
            let text = browser.text().await?;
            anyhow::ensure!(text.contains(&format!("{nodes} nodes")), "{text:.300}");
            Ok(())
        })
        .await?;
        Ok(page)
    }

    pub fn nodes(&self) -> usize {
        self.nodes
    }

    /// Loads it anew; gives the milliseconds until the fleet was in the picture.
    pub async fn load(&self) -> Result<f64> {
        self.browser.client.refresh().await?;
        self.number(FIRST_PICTURE, vec![json!(self.nodes)]).await
    }

    /// Scrolls through all of it; gives how many milliseconds each frame took.
    pub async fn scroll(&self) -> Result<Vec<f64>> {
        let frames = self.browser.client.execute_async(SCROLL, Vec::new()).await?;
        let frames = frames.as_array().context("frames")?;
        Ok(frames.iter().filter_map(Value::as_f64).collect())
    }

    /// From now on a change is noted.
    pub async fn expect_change(&self) -> Result<()> {
        self.browser.client.execute(EXPECT_CHANGE, Vec::new()).await?;
        Ok(())
    }

    /// When the change was in the picture, in milliseconds of the wall clock.
    pub async fn changed_at(&self) -> Result<f64> {
        wait::until("the change in the page", secs(30), || async {
            let at = self
                .browser
                .client
                .execute("return window.changedAt", Vec::new())
                .await?;
            at.as_f64().context("not yet")
        })
        .await
    }

    async fn number(&self, script: &str, arguments: Vec<Value>) -> Result<f64> {
        let number = self.browser.client.execute_async(script, arguments).await?;
        number.as_f64().with_context(|| format!("a number, not {number}"))
    }
}

pub fn greatest(values: &[f64]) -> f64 {
    values.iter().copied().fold(0.0, f64::max)
}
