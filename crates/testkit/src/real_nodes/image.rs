//! Images made from files: a program linked statically, and what a registry would say about it.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result};
use serde_json::json;
use sha2::{Digest, Sha256};

use crate::binaries::stdout_of;

/// What pods of [`crate::workload::PodTemplate`] run: an HTTP server on port 8080, which SIGTERM ends at once. With the arguments
/// `stubborn` it takes no notice of SIGTERM.
pub const APP: &str = "registry.example/app:1";

/// What holds the namespaces of a pod.
pub const PAUSE: &str = "registry.example/pause:1";

const SOURCE: &str = include_str!("app.c");

/// Writes an archive of both images into `dir`, for `ctr images import`.
///
/// # Errors
/// When the C compiler or tar fails.
pub fn archive(dir: &Path) -> Result<PathBuf> {
    let layer = dir.join("layer");
    fs::create_dir_all(&layer)?;
    fs::write(dir.join("app.c"), SOURCE)?;
    let mut compile = Command::new("cc");
    compile
        .args(["-static", "-O1", "-o"])
        .arg(layer.join("app"))
        .arg(dir.join("app.c"));
    stdout_of(&mut compile).context("compile the program of the images")?;
    tar(&layer, "../layer.tar", &["app"])?;
    let digest = Sha256::digest(fs::read(dir.join("layer.tar"))?);
    let manifest = [(APP, "serve"), (PAUSE, "pause")].map(|(image, mode)| {
        let config = format!("{mode}.json");
        let content = json!({
            "architecture": if cfg!(target_arch = "aarch64") { "arm64" } else { "amd64" },
            "os": "linux",
            "config": {"Entrypoint": ["/app"], "Cmd": [mode]},
            "rootfs": {"type": "layers", "diff_ids": [format!("sha256:{digest:x}")]},
        });
        fs::write(dir.join(&config), content.to_string())?;
        anyhow::Ok(json!({"Config": config, "RepoTags": [image], "Layers": ["layer.tar"]}))
    });
    let manifest = manifest.into_iter().collect::<Result<Vec<_>>>()?;
    fs::write(dir.join("manifest.json"), json!(manifest).to_string())?;
    tar(
        dir,
        "images.tar",
        &["manifest.json", "serve.json", "pause.json", "layer.tar"],
    )?;
    Ok(dir.join("images.tar"))
}

fn tar(dir: &Path, archive: &str, files: &[&str]) -> Result<()> {
    let mut tar = Command::new("tar");
    tar.current_dir(dir)
        .args(["--create", "--owner=0", "--group=0", "--file", archive]);
    stdout_of(tar.args(files)).map(drop)
}
