//! A person who uses kubectl: under a name of their own, and with the plugin on the PATH.

use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

use anyhow::{Context, Result, ensure};
use nodeward_testkit::kubectl::{Kubectl, Said};
use nodeward_testkit::proxy::Proxy;
use nodeward_testkit::{ControlPlane, names};
use serde_json::{Value, json};

/// How wide the pages may be: what people have.
pub const COLUMNS: usize = 80;

/// A person who uses kubectl.
#[derive(Debug, Clone)]
pub struct Person {
    kubectl: PathBuf,
    kubeconfig: PathBuf,
    home: PathBuf,
    /// Where the link is by which kubectl asks for completions.
    links: PathBuf,
    background: Kubectl,
}

/// What a command came to.
#[derive(Debug)]
pub struct Answer {
    pub code: i32,
    pub out: String,
    pub err: String,
}

/// Where the plugin is.
pub fn plugins() -> &'static Path {
    Path::new(env!("CARGO_BIN_EXE_kubectl-nodeward"))
        .parent()
        .expect("a binary is in a directory")
}

impl Person {
    /// The cluster's administrator.
    pub fn admin(plane: &ControlPlane) -> Result<Self> {
        Self::with(plane, plane.kubeconfig())
    }

    /// `name`, who may do what is bound to them or to `group`; the context's namespace is `namespace`.
    pub fn named(plane: &ControlPlane, name: &str, group: &str, namespace: &str) -> Result<Self> {
        let dir = plane.dir().join("people");
        std::fs::create_dir_all(&dir)?;
        let (certificate, key) = plane.client_certificate(name, group)?;
        let file = |what: &str| dir.join(format!("{name}.{what}"));
        std::fs::write(file("crt"), certificate)?;
        std::fs::write(file("key"), key)?;
        std::fs::write(file("ca"), plane.ca())?;
        let kubeconfig = json!({
            "apiVersion": "v1",
            "kind": "Config",
            "current-context": "testbed",
            "contexts": [{ "name": "testbed", "context": { "cluster": "testbed", "user": name, "namespace": namespace } }],
            "clusters": [{ "name": "testbed", "cluster": { "server": plane.url(), "certificate-authority": file("ca") } }],
            "users": [{ "name": name, "user": { "client-certificate": file("crt"), "client-key": file("key") } }],
        });
        std::fs::write(file("kubeconfig"), serde_yaml::to_string(&kubeconfig)?)?;
        Self::with(plane, file("kubeconfig"))
    }

    /// The administrator, who reaches the cluster through this proxy.
    pub fn through(plane: &ControlPlane, proxy: &Proxy) -> Result<Self> {
        let dir = plane.dir().join("people");
        std::fs::create_dir_all(&dir)?;
        let name = names::unique("far");
        let file = |what: &str| dir.join(format!("{name}.{what}"));
        std::fs::write(file("ca"), plane.ca())?;
        let kubeconfig = json!({
            "apiVersion": "v1",
            "kind": "Config",
            "current-context": "testbed",
            "contexts": [{ "name": "testbed", "context": { "cluster": "testbed", "user": "admin" } }],
            "clusters": [{ "name": "testbed", "cluster": { "server": proxy.url(), "certificate-authority": file("ca") } }],
            "users": [{ "name": "admin", "user": {} }],
        });
        std::fs::write(file("kubeconfig"), serde_yaml::to_string(&kubeconfig)?)?;
        Self::with(plane, file("kubeconfig"))
    }

    fn with(plane: &ControlPlane, kubeconfig: PathBuf) -> Result<Self> {
        let background = Kubectl::of(plane)?.kubeconfig(&kubeconfig).plugins(plugins());
        let links = plane.dir().join("links");
        std::fs::create_dir_all(&links)?;
        let link = links.join("kubectl_complete-nodeward");
        if let Err(error) = std::os::unix::fs::symlink(env!("CARGO_BIN_EXE_kubectl-nodeward"), link) {
            ensure!(error.kind() == std::io::ErrorKind::AlreadyExists, "{error}");
        }
        Ok(Self {
            links,
            kubectl: plane.tools().kubectl.clone(),
            kubeconfig,
            home: plane.dir().to_owned(),
            background,
        })
    }

    /// Runs `kubectl ARGS` to its end.
    pub async fn kubectl(&self, args: &[&str]) -> Result<Answer> {
        let mut path = OsString::from(plugins());
        path.push(":");
        path.push(&self.links);
        path.push(":");
        path.push(std::env::var_os("PATH").unwrap_or_default());
        let mut command = Command::new(&self.kubectl);
        command
            .args(args)
            .env("KUBECONFIG", &self.kubeconfig)
            .env("HOME", &self.home)
            .env("PATH", path)
            .env("COLUMNS", COLUMNS.to_string());
        let output = tokio::task::spawn_blocking(move || command.output()).await??;
        Answer::of(output)
    }

    /// Runs `kubectl nodeward ARGS` to its end.
    pub async fn nodeward(&self, args: &[&str]) -> Result<Answer> {
        self.kubectl(&[&["nodeward"], args].concat()).await
    }

    /// What `kubectl nodeward ARGS` says, which succeeds.
    pub async fn page(&self, args: &[&str]) -> Result<String> {
        self.nodeward(args).await?.page()
    }

    /// The result of `kubectl nodeward ARGS -o json`, which succeeds.
    pub async fn json(&self, args: &[&str]) -> Result<Value> {
        let answer = self.nodeward(&[args, &["-o", "json"]].concat()).await?;
        ensure!(answer.code == 0, "{answer:?}");
        serde_json::from_str(&answer.out).with_context(|| answer.out)
    }

    /// Starts `kubectl nodeward ARGS`.
    pub fn start(&self, args: &[&str]) -> Result<Said> {
        self.background.start([&["nodeward"], args].concat())
    }
}

impl Answer {
    fn of(output: Output) -> Result<Self> {
        Ok(Self {
            code: output.status.code().context("killed by a signal")?,
            out: String::from_utf8(output.stdout)?,
            err: String::from_utf8(output.stderr)?,
        })
    }

    /// Its page, which is fit for a terminal that it is not: of its width, and without colours.
    pub fn page(self) -> Result<String> {
        ensure!(self.code == 0 && self.err.is_empty(), "{self:?}");
        ensure!(!self.out.contains('\u{1b}'), "coloured: {self:?}");
        // Commands are not broken, so that they can be copied.
        let mut lines = self
            .out
            .lines()
            .filter(|line| !line.trim_start().starts_with("kubectl "));
        let wide = lines.find(|line| line.chars().count() > COLUMNS);
        ensure!(wide.is_none(), "too wide: {wide:?} in\n{}", self.out);
        Ok(self.out)
    }

    /// The one line of its error, with the exit code 1.
    pub fn error(self) -> Result<String> {
        ensure!(self.code == 1 && self.err.lines().count() == 1, "{self:?}");
        let error = self.err.trim_end().strip_prefix("error: ").map(str::to_owned);
        error.with_context(|| format!("{self:?}"))
    }
}

/// Checks that a page has these, wherever its lines are broken.
pub fn says(page: &str, parts: &[&str]) -> Result<()> {
    let words = |text: &str| text.split_whitespace().collect::<Vec<_>>().join(" ");
    let text = words(page);
    for part in parts {
        ensure!(text.contains(&words(part)), "{part:?} is not in:\n{page}");
    }
    Ok(())
}
