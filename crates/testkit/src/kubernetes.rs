//! The versions of Kubernetes that the testbed can run.
//!
//! Each is a Go module in `e2e/tools/kubernetes`, in a directory named after its minor. Tests take the one that the
//! environment names ([`VARIABLE`]), so that `cargo xtask test --kubernetes` runs all of them on another.

use std::fmt;
use std::fs;
use std::path::PathBuf;
use std::str::FromStr;

use anyhow::{Context, Result, bail, ensure};

use crate::binaries::workspace;

/// The minors, the oldest that Nodeward supports first, the newest that there is last.
pub const MINORS: [&str; 4] = ["1.33", "1.35", "1.36", "1.37"];

/// The one that runs unless another is asked for.
pub const DEFAULT: &str = "1.35";

/// The variable that asks for another.
pub const VARIABLE: &str = "NODEWARD_KUBERNETES";

/// One of [`MINORS`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Kubernetes(&'static str);

impl Kubernetes {
    /// The one that [`VARIABLE`] names, else [`DEFAULT`].
    ///
    /// # Errors
    /// When it names one that is not known.
    pub fn from_environment() -> Result<Self> {
        match std::env::var(VARIABLE) {
            Ok(minor) if !minor.is_empty() => minor.parse().context(VARIABLE),
            _ => Ok(Self(DEFAULT)),
        }
    }

    /// As in `1.35`.
    pub const fn minor(self) -> &'static str {
        self.0
    }

    /// The release that is pinned, as in `v1.35.4`.
    ///
    /// # Errors
    /// When its `go.mod` requires none of this minor.
    pub fn release(self) -> Result<String> {
        let path = self.module().join("go.mod");
        let text = fs::read_to_string(&path).with_context(|| format!("read {}", path.display()))?;
        let mut words = text.split_whitespace().skip_while(|word| *word != "k8s.io/kubernetes");
        let release = words.nth(1).unwrap_or_default();
        let is_of_minor = release.starts_with(&format!("v{}.", self.0));
        ensure!(
            is_of_minor,
            "{}: it requires k8s.io/kubernetes {release:?}",
            path.display()
        );
        Ok(release.to_owned())
    }

    /// The one whose kubelet serves this control plane: its own, but none newer than the default, whose kubelet takes the container
    /// runtime that Debian has.
    pub(crate) fn of_kubelet(self) -> Self {
        let place = |minor| MINORS.iter().position(|known| *known == minor);
        if place(self.0) > place(DEFAULT) {
            Self(DEFAULT)
        } else {
            self
        }
    }

    /// The directory of its Go module.
    pub(crate) fn module(self) -> PathBuf {
        workspace().join("e2e/tools/kubernetes").join(self.0)
    }
}

impl FromStr for Kubernetes {
    type Err = anyhow::Error;

    fn from_str(text: &str) -> Result<Self> {
        match MINORS.iter().find(|minor| **minor == text) {
            Some(minor) => Ok(Self(minor)),
            None => bail!("the testbed has no Kubernetes {text:?}; it has {}", MINORS.join(", ")),
        }
    }
}

impl fmt::Display for Kubernetes {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.0)
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use rstest::rstest;

    use super::*;

    #[rstest]
    #[case("")]
    #[case("1.32")]
    #[case("1.3")]
    #[case("v1.35")]
    #[case("1.35.4")]
    #[case("latest")]
    fn unknown_version_is_refused_with_the_known(#[case] text: &str) {
        let refusal = text.parse::<Kubernetes>().unwrap_err().to_string();
        assert_eq!(
            refusal,
            format!("the testbed has no Kubernetes {text:?}; it has {}", MINORS.join(", "))
        );
    }

    #[test]
    fn each_version_has_its_module_and_release() {
        let tools = workspace().join("e2e/tools/kubernetes");
        let there = fs::read_dir(tools).unwrap();
        let there: BTreeSet<String> = there
            .map(|dir| dir.unwrap().file_name().into_string().unwrap())
            .collect();
        assert_eq!(there, MINORS.map(str::to_owned).into());
        for minor in MINORS {
            minor.parse::<Kubernetes>().unwrap().release().unwrap();
        }
        assert!(MINORS.contains(&DEFAULT));
    }

    #[rstest]
    #[case("1.33", "1.33")]
    #[case("1.35", "1.35")]
    #[case("1.37", "1.35")]
    fn no_kubelet_is_newer_than_its_control_plane(#[case] control_plane: &str, #[case] kubelet: &str) {
        let control_plane: Kubernetes = control_plane.parse().unwrap();
        assert_eq!(control_plane.of_kubelet().minor(), kubelet);
        let module = fs::read_to_string(control_plane.of_kubelet().module().join("go.mod")).unwrap();
        assert!(module.contains("k8s.io/kubernetes/cmd/kubelet"));
    }

    #[test]
    fn nightly_workflow_tests_oldest_and_newest() {
        let workflow = fs::read_to_string(workspace().join(".github/workflows/nightly.yaml")).unwrap();
        let workflow: serde_json::Value = serde_yaml::from_str(&workflow).unwrap();
        let tested = &workflow["jobs"]["kubernetes"]["strategy"]["matrix"]["kubernetes"];
        assert_eq!(*tested, serde_json::json!([MINORS[0], MINORS[MINORS.len() - 1]]));
    }

    #[test]
    fn documentation_names_the_tested_versions() {
        let page = |name: &str| fs::read_to_string(workspace().join("docs").join(name)).unwrap();
        let oldest = MINORS[0];
        assert!(page("install.md").contains(&format!("Kubernetes {oldest} or later")));
        let compatibility = page("compatibility.md");
        assert!(compatibility.contains(&format!("| Kubernetes | {oldest} and later |")));
        for minor in MINORS {
            let release = minor.parse::<Kubernetes>().unwrap().release().unwrap();
            assert!(compatibility.contains(&format!("| {minor} | {release} |")), "{release}");
        }
    }
}
