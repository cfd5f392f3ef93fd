//! The name of a PodDisruptionBudget in Nodeward's own kinds.

use std::fmt;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// A PodDisruptionBudget. With its UID, so that one which was deleted and made again under its name is another.
#[derive(Debug, Clone, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct BudgetRef {
    /// Namespace of the PodDisruptionBudget.
    pub namespace: String,
    /// Name of the PodDisruptionBudget.
    pub name: String,
    /// UID of the PodDisruptionBudget.
    #[serde(default)]
    pub uid: String,
}

/// `namespace/name`.
impl fmt::Display for BudgetRef {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.namespace, self.name)
    }
}
