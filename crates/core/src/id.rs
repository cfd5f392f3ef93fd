//! Names and identities, parsed once at the edge.

use std::borrow::Borrow;
use std::fmt;
use std::sync::Arc;

use nodeward_api::budget_ref::BudgetRef;
use serde::{Deserialize, Serialize};

macro_rules! text_id {
    ($(#[$meta:meta])* $name:ident) => {
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
    };
}

text_id! {
    /// Name of a Node.
    NodeName
}
text_id! {
    /// UID of a Node: a node deleted and created again under its name is another node.
    NodeUid
}
text_id! {
    /// UID of a Pod: a StatefulSet's next pod has the same name and another UID.
    PodUid
}
text_id! {
    /// `metadata.resourceVersion`: opaque, compared for equality only.
    ResourceVersion
}

/// Namespace and name of a namespaced object.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct NamespacedName {
    /// Namespace.
    pub namespace: Arc<str>,
    /// Name.
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
}

/// The budget of that name, be it the same object or one made again.
impl From<&BudgetRef> for NamespacedName {
    fn from(budget: &BudgetRef) -> Self {
        Self::new(budget.namespace.as_str(), budget.name.as_str())
    }
}

impl fmt::Display for NamespacedName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.namespace, self.name)
    }
}

impl fmt::Debug for NamespacedName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{self}")
    }
}

/// Namespace and name of a Pod.
pub type PodKey = NamespacedName;

/// Namespace and name of a PodDisruptionBudget.
pub type BudgetKey = NamespacedName;
