//! Which objects of which kind a dynamic cache is to hold.

use std::str::FromStr;

use kube::core::{ApiResource, DynamicObject, GroupVersion, GroupVersionKind};
use kube::{Api, Client, Resource};

use crate::cache::Selection;

/// Objects of a kind that need not exist, optionally only some of them.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DynamicTarget {
    kind: GroupVersionKind,
    namespace: Option<String>,
    name: Option<String>,
    labels: Option<String>,
}

/// An `apiVersion` is `version` or `group/version`.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0:?} is not an apiVersion; write it as in a manifest, for example \"v1\" or \"apps/v1\"")]
pub struct InvalidApiVersion(String);

impl DynamicTarget {
    /// All objects of a kind, by the `apiVersion` and `kind` of a manifest.
    pub fn kind(api_version: &str, kind: &str) -> Result<Self, InvalidApiVersion> {
        let invalid = || InvalidApiVersion(api_version.to_owned());
        let version = GroupVersion::from_str(api_version).map_err(|_| invalid())?;
        let has_empty_part = version.version.is_empty() || (api_version.contains('/') && version.group.is_empty());
        if has_empty_part || version.version.contains('/') || kind.is_empty() {
            return Err(invalid());
        }
        Ok(Self {
            kind: version.with_kind(kind),
            namespace: None,
            name: None,
            labels: None,
        })
    }

    /// All objects of a kind that is built in as a type.
    pub fn of<K: Resource<DynamicType = ()>>() -> Self {
        Self {
            kind: GroupVersionKind::gvk(&K::group(&()), &K::version(&()), &K::kind(&())),
            namespace: None,
            name: None,
            labels: None,
        }
    }

    /// Only those in a namespace.
    #[must_use]
    pub fn namespace(mut self, namespace: impl Into<String>) -> Self {
        self.namespace = Some(namespace.into());
        self
    }

    /// Only those of a name.
    #[must_use]
    pub fn name(mut self, name: impl Into<String>) -> Self {
        self.name = Some(name.into());
        self
    }

    /// Only those that match a label selector.
    #[must_use]
    pub fn labels(mut self, selector: impl Into<String>) -> Self {
        self.labels = Some(selector.into());
        self
    }

    /// Group, version and kind.
    pub fn group_version_kind(&self) -> &GroupVersionKind {
        &self.kind
    }

    pub(super) fn selection(&self) -> Selection {
        let mut selection = Selection::all();
        if let Some(name) = &self.name {
            selection = selection.fields(format!("metadata.name={name}"));
        }
        if let Some(labels) = &self.labels {
            selection = selection.labels(labels);
        }
        selection
    }

    /// A cluster-scoped kind has no namespaces to choose from, whatever was asked for.
    pub(super) fn api(&self, client: Client, resource: &ApiResource, namespaced: bool) -> Api<DynamicObject> {
        match &self.namespace {
            Some(namespace) if namespaced => Api::namespaced_with(client, namespace, resource),
            _ => Api::all_with(client, resource),
        }
    }
}

#[cfg(test)]
mod tests {
    use rstest::rstest;

    use super::DynamicTarget;
    use crate::cache::Selection;

    #[rstest]
    #[case("v1", "", "v1")]
    #[case("apps/v1", "apps", "v1")]
    fn an_api_version_is_read_as_in_a_manifest(#[case] given: &str, #[case] group: &str, #[case] version: &str) {
        let target = DynamicTarget::kind(given, "Thing").unwrap();
        let kind = target.group_version_kind();
        assert_eq!(
            (kind.group.as_str(), kind.version.as_str(), kind.kind.as_str()),
            (group, version, "Thing")
        );
    }

    #[rstest]
    #[case("", "Thing")]
    #[case("a/b/c", "Thing")]
    #[case("/v1", "Thing")]
    #[case("apps/", "Thing")]
    #[case("apps/v1", "")]
    fn nonsense_is_refused(#[case] api_version: &str, #[case] kind: &str) {
        assert!(DynamicTarget::kind(api_version, kind).is_err());
    }

    #[test]
    fn name_and_labels_are_left_to_the_server() {
        let target = DynamicTarget::kind("v1", "ConfigMap").unwrap().name("a").labels("b=c");
        assert_eq!(
            target.selection(),
            Selection::all().fields("metadata.name=a").labels("b=c")
        );
    }
}
