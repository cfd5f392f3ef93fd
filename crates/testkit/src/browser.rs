//! A real browser without a screen: Chromium of Debian's packages, driven by way of WebDriver.

use std::path::{Path, PathBuf};

use anyhow::{Context, Result};
use fantoccini::wd::Capabilities;
use fantoccini::{Client, ClientBuilder};
use serde_json::json;

use crate::binaries::stdout_of;
use crate::debian;
use crate::names;
use crate::ports;
use crate::process::Process;
use crate::toolchain::cache_dir;
use crate::wait::{self, secs};

/// What is needed; what these depend on and the system lacks is fetched with them.
const PACKAGES: [&str; 3] = ["chromium", "chromium-driver", "fonts-dejavu-core"];

/// The version of axe-core.
const AXE: &str = "4.14.1";

/// A browser, which ends when this is dropped.
pub struct Browser {
    /// Drives it.
    pub client: Client,
    _driver: Process,
}

impl Browser {
    /// Starts one; its files and its log go to `dir`. `wants_dark` is what its user prefers.
    ///
    /// # Errors
    /// When Chromium cannot be fetched or started.
    pub async fn start(dir: &Path, wants_dark: bool) -> Result<Self> {
        let Programs { driver, browser, root } = tokio::task::spawn_blocking(Programs::find).await??;
        let dir = dir.join(names::unique("browser"));
        std::fs::create_dir_all(&dir).with_context(|| format!("create {}", dir.display()))?;
        let port = ports::free()?;
        let driver = Process::new("chromedriver", driver, dir.join("chromedriver.log"))
            .args([format!("--port={port}")])
            .env("LD_LIBRARY_PATH", debian::library_path(&root, "pulseaudio"))
            .env("FONTCONFIG_FILE", fonts(&root, &dir)?)
            .env("HOME", &dir)
            .env("XDG_CACHE_HOME", &dir);
        driver.start()?;
        let mut arguments = vec![
            "--headless=new".to_owned(),
            // The page is ours, and root has no sandbox.
            "--no-sandbox".to_owned(),
            "--disable-gpu".to_owned(),
            "--disable-dev-shm-usage".to_owned(),
            "--no-first-run".to_owned(),
            "--disable-background-networking".to_owned(),
            format!("--user-data-dir={}", dir.join("profile").display()),
        ];
        if wants_dark {
            arguments.push("--blink-settings=preferredColorScheme=0".to_owned());
        }
        let mut wanted = Capabilities::new();
        wanted.insert(
            "goog:chromeOptions".to_owned(),
            json!({ "binary": browser, "args": arguments }),
        );
        wanted.insert("goog:loggingPrefs".to_owned(), json!({ "browser": "ALL" }));
        let address = format!("http://127.0.0.1:{port}");
        let client = wait::until("the browser to start", secs(120), || async {
            let mut builder = ClientBuilder::new(hyper_util::client::legacy::connect::HttpConnector::new());
            Ok(builder.capabilities(wanted.clone()).connect(&address).await?)
        })
        .await?;
        Ok(Self {
            client,
            _driver: driver,
        })
    }

    /// Makes the window this large, in CSS pixels of the page.
    ///
    /// # Errors
    /// When the browser does not answer.
    pub async fn resize(&self, width: u32, height: u32) -> Result<()> {
        let params = json!({ "width": width, "height": height, "deviceScaleFactor": 1, "mobile": false });
        self.command("Emulation.setDeviceMetricsOverride", params).await
    }

    /// A command of Chromium's own protocol.
    ///
    /// # Errors
    /// When the browser does not answer, or refuses.
    pub async fn command(&self, name: &str, params: serde_json::Value) -> Result<()> {
        let command = Command(json!({ "cmd": name, "params": params }));
        self.client.issue_cmd(command).await?;
        Ok(())
    }

    /// What a script gives, once it is as it should be.
    ///
    /// # Errors
    /// When it is not in time.
    pub async fn until(&self, what: &str, script: &str) -> Result<()> {
        wait::until(what, secs(60), || async {
            let given = self.client.execute(script, Vec::new()).await?;
            anyhow::ensure!(given == json!(true), "{script}: {given}");
            Ok(())
        })
        .await
    }

    /// The text that a person sees.
    ///
    /// # Errors
    /// When the browser does not answer.
    pub async fn text(&self) -> Result<String> {
        let text = self
            .client
            .execute("return document.body.innerText", Vec::new())
            .await?;
        Ok(text.as_str().unwrap_or_default().to_owned())
    }

    /// A picture of the window as PNG.
    ///
    /// # Errors
    /// When the browser does not answer.
    pub async fn picture(&self) -> Result<Vec<u8>> {
        Ok(self.client.screenshot().await?)
    }
}

/// Where the browser and its driver are.
struct Programs {
    driver: PathBuf,
    browser: PathBuf,
    /// Below which the libraries and fonts are.
    root: PathBuf,
}

impl Programs {
    /// Ubuntu has no such package of Chromium; where Chrome and its driver are installed, they do as well.
    fn find() -> Result<Self> {
        let chrome = Self {
            driver: "/usr/bin/chromedriver".into(),
            browser: "/usr/bin/google-chrome".into(),
            root: "/".into(),
        };
        if chrome.driver.is_file() && chrome.browser.is_file() {
            return Ok(chrome);
        }
        let root = debian::ensure_unpacked("chromium", &PACKAGES)?;
        Ok(Self {
            driver: root.join("usr/bin/chromedriver"),
            browser: root.join("usr/lib/chromium/chromium"),
            root,
        })
    }
}

/// Chromedriver's way to pass commands on.
#[derive(Debug)]
struct Command(serde_json::Value);

impl fantoccini::wd::WebDriverCompatibleCommand for Command {
    fn endpoint(&self, base: &url::Url, session: Option<&str>) -> Result<url::Url, url::ParseError> {
        base.join(&format!("session/{}/goog/cdp/execute", session.unwrap_or_default()))
    }

    fn method_and_body(&self, _: &url::Url) -> (http::Method, Option<String>) {
        (http::Method::POST, Some(self.0.to_string()))
    }
}

/// Says where the fonts are: those of the system, and those below `root`. Without any Chromium aborts.
fn fonts(root: &Path, dir: &Path) -> Result<PathBuf> {
    let file = dir.join("fonts.conf");
    // As a desktop has them: Chromium would take whichever font comes first.
    let plain = "<selectfont><rejectfont><glob>*DejaVuSerif*</glob><glob>*DejaVuMath*</glob></rejectfont></selectfont>";
    let alias = |name: &str| {
        format!(
            "<alias binding=\"same\"><family>{name}</family><prefer><family>DejaVu Sans Mono</family></prefer></alias>"
        )
    };
    let code = ["ui-monospace", "monospace"].map(alias).concat();
    let text = format!(
        "<?xml version=\"1.0\"?><fontconfig><dir>/usr/share/fonts</dir><dir>{}</dir><cachedir>{}</cachedir>{plain}{code}</fontconfig>\n",
        root.join("usr/share/fonts").display(),
        dir.join("fonts").display()
    );
    std::fs::write(&file, text).with_context(|| format!("write {}", file.display()))?;
    Ok(file)
}

/// The accessibility checker axe-core, as a script.
///
/// # Errors
/// When npm cannot fetch it.
pub async fn axe() -> Result<String> {
    tokio::task::spawn_blocking(|| {
        let cache = cache_dir()?.join(format!("axe-core-{AXE}"));
        let script = cache.join("package/axe.min.js");
        if !script.is_file() {
            std::fs::create_dir_all(&cache).with_context(|| format!("create {}", cache.display()))?;
            let fetched = tempfile::tempdir_in(&cache)?;
            let package = format!("axe-core@{AXE}");
            stdout_of(
                std::process::Command::new("npm")
                    .args(["pack", "--silent", &package])
                    .current_dir(fetched.path()),
            )
            .context("npm fetches the accessibility checker; install nodejs and npm")?;
            let archive = format!("axe-core-{AXE}.tgz");
            stdout_of(
                std::process::Command::new("tar")
                    .args(["xzf", &archive])
                    .current_dir(fetched.path()),
            )?;
            // Another test may have been first.
            if std::fs::rename(fetched.path().join("package"), cache.join("package")).is_err() && !script.is_file() {
                anyhow::bail!("the package {package} has no axe.min.js");
            }
        }
        std::fs::read_to_string(&script).with_context(|| format!("read {}", script.display()))
    })
    .await?
}
