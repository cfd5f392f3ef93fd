//! All nodes, and what is found among them: it stays so until one of them changes, and of thousands few do between two passes.

use std::collections::BTreeMap;
use std::ops::Deref;
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};

use nodeward_core::id::NodeName;

use super::{CheckName, NodeFacts};
use crate::plan::Survey;

type ByName = BTreeMap<NodeName, Arc<NodeFacts>>;

/// All nodes, by name. Clones share them.
#[derive(Debug, Clone, Default)]
pub struct Nodes(Arc<Content>);

#[derive(Debug, Default)]
struct Content {
    by_name: ByName,
    control_plane: OnceLock<Vec<Arc<NodeFacts>>>,
    surveys: Mutex<BTreeMap<CheckName, Arc<Survey>>>,
}

impl Nodes {
    /// Control-plane nodes.
    pub fn control_plane(&self) -> &[Arc<NodeFacts>] {
        self.0.control_plane.get_or_init(|| {
            let nodes = self.values().filter(|node| node.view.is_control_plane());
            nodes.cloned().collect()
        })
    }

    /// What was found among them, by NodeHealthCheck.
    pub(crate) fn surveys(&self) -> MutexGuard<'_, BTreeMap<CheckName, Arc<Survey>>> {
        self.0.surveys.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Changes them: nothing that was found among them holds any more.
    pub fn change<T>(&mut self, change: impl FnOnce(&mut ByName) -> T) -> T {
        let mut by_name = self.0.by_name.clone();
        let answer = change(&mut by_name);
        *self = by_name.into();
        answer
    }
}

impl From<ByName> for Nodes {
    fn from(by_name: ByName) -> Self {
        Self(Arc::new(Content {
            by_name,
            ..Content::default()
        }))
    }
}

impl Deref for Nodes {
    type Target = ByName;

    fn deref(&self) -> &ByName {
        &self.0.by_name
    }
}
