//! Names and identities, parsed once at the edge.

use std::borrow::Borrow;
use std::fmt;
use std::sync::Arc;

use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use nodeward_api::budget_ref::BudgetRef;
use serde::{Deserialize, Serialize};

macro_rules! text_id {
    ($($(#[$meta:meta])* $name:ident,)+) => {$(
        $(#[$meta])*
        #[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
        #[serde(transparent)]
        pub struct $name(Arc<str>);

        impl $name {
            /// The text itself.
            pub fn as_str(&self) -> &str {
                &self.0
            }
        }

        impl From<&str> for $name {
            fn from(text: &str) -> Self {
                Self(text.into())
            }
        }

        impl From<String> for $name {
            fn from(text: String) -> Self {
                Self(text.into())
            }
        }

        impl From<Arc<str>> for $name {
            fn from(text: Arc<str>) -> Self {
                Self(text)
            }
        }

        /// Looked up by its text.
        impl Borrow<str> for $name {
            fn borrow(&self) -> &str {
                &self.0
            }
        }

        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str(&self.0)
            }
        }

        impl fmt::Debug for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                write!(f, "{:?}", &*self.0)
            }
        }
    )+};
}

text_id! {
    NodeName,
    /// UID of a Node: a node deleted and created again under its name is another node.
    NodeUid,
    /// UID of a Pod: a StatefulSet's next pod has the same name and another UID.
    PodUid,
    /// `metadata.resourceVersion`: opaque, compared for equality only.
    ResourceVersion,
}

/// Namespace and name of an object; cluster-scoped objects have an empty namespace and sort first.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct NamespacedName {
    /// Namespace; empty for a cluster-scoped object.
    pub namespace: Arc<str>,
    pub name: Arc<str>,
}

impl NamespacedName {
    /// Puts the two together.
    pub fn new(namespace: impl Into<Arc<str>>, name: impl Into<Arc<str>>) -> Self {
        Self {
            namespace: namespace.into(),
            name: name.into(),
        }
    }

    /// The name of a cluster-scoped object.
    pub fn cluster(name: impl Into<Arc<str>>) -> Self {
        Self::new(Arc::default(), name)
    }

    /// The name in an object's own metadata; `None` for an object without one, which the API server never sends.
    pub fn of(meta: &ObjectMeta) -> Option<Self> {
        let name = meta.name.as_deref().filter(|name| !name.is_empty())?;
        Some(Self::new(meta.namespace.as_deref().unwrap_or_default(), name))
    }
}

/// The budget of that name, be it the same object or one made again.
impl From<&BudgetRef> for NamespacedName {
    fn from(budget: &BudgetRef) -> Self {
        Self::new(budget.namespace.as_str(), budget.name.as_str())
    }
}

impl fmt::Display for NamespacedName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if !self.namespace.is_empty() {
            write!(f, "{}/", self.namespace)?;
        }
        f.write_str(&self.name)
    }
}

impl fmt::Debug for NamespacedName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{self}")
    }
}

pub type PodKey = NamespacedName;

/// Namespace and name of a PodDisruptionBudget.
pub type BudgetKey = NamespacedName;

#[cfg(test)]
mod tests {
    use rstest::rstest;

    use super::*;

    #[rstest]
    #[case::namespaced(Some("shop"), Some("web"), Some("shop/web"))]
    #[case::cluster_scoped(None, Some("n1"), Some("n1"))]
    #[case::nameless(Some("shop"), None, None)]
    #[case::empty_name(None, Some(""), None)]
    fn an_object_is_named_by_its_metadata(
        #[case] namespace: Option<&str>,
        #[case] name: Option<&str>,
        #[case] text: Option<&str>,
    ) {
        let meta = ObjectMeta {
            namespace: namespace.map(str::to_owned),
            name: name.map(str::to_owned),
            ..ObjectMeta::default()
        };
        assert_eq!(NamespacedName::of(&meta).map(|name| name.to_string()).as_deref(), text);
    }
}
