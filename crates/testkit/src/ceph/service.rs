//! Whether placement groups take requests.

use std::collections::{BTreeMap, BTreeSet};

use anyhow::{Context, Result};
use serde_json::{Value, json};

use super::Ceph;

/// Looks at placement groups again and again. One that takes no requests in two looks at different statistics is without
/// service; while it peers, as with each OSD that stops or starts, it is not. Ceph 20 also calls it unknown then, until its new primary
/// OSD reports it.
#[derive(Debug, Default)]
pub struct ServiceWatch {
    version: u64,
    states: BTreeMap<String, usize>,
    inactive: BTreeSet<String>,
    without_service: BTreeSet<String>,
}

impl ServiceWatch {
    /// Looks once.
    ///
    /// # Errors
    /// The manager does not tell.
    pub async fn look(&mut self, ceph: &Ceph) -> Result<()> {
        let dump = ceph
            .mgr_command(json!({"prefix": "pg dump", "dumpcontents": ["all"]}))
            .await?;
        self.see(dump.get("pg_map").unwrap_or(&dump))
    }

    fn see(&mut self, map: &Value) -> Result<()> {
        let version = map["version"].as_u64().context("no version")?;
        if version == self.version {
            return Ok(());
        }
        let groups = map["pg_stats"].as_array().context("no pg_stats")?;
        let (mut states, mut inactive) = (BTreeMap::new(), BTreeSet::new());
        for group in groups {
            let (id, state) = (group["pgid"].as_str(), group["state"].as_str().unwrap_or_default());
            *states.entry(state.to_owned()).or_default() += 1;
            if !["unknown", "peering", "activating", "active"]
                .iter()
                .any(|word| state.contains(word))
            {
                inactive.insert(format!("{}: {state}", id.context("no pgid")?));
            }
        }
        self.without_service
            .extend(inactive.intersection(&self.inactive).cloned());
        (self.version, self.states, self.inactive) = (version, states, inactive);
        Ok(())
    }

    /// How many there are in each state.
    pub fn states(&self) -> &BTreeMap<String, usize> {
        &self.states
    }

    /// Those that were ever without service, with their state.
    pub fn without_service(&self) -> &BTreeSet<String> {
        &self.without_service
    }
}

#[cfg(test)]
mod tests {
    use rstest::rstest;
    use serde_json::{Value, json};

    use super::ServiceWatch;

    fn map(version: u64, state: &str) -> Value {
        json!({"version": version, "pg_stats": [{"pgid": "1.0", "state": state}, {"pgid": "1.1", "state": "active+clean"}]})
    }

    #[rstest]
    #[case::twice([(1, "undersized+peered"), (2, "undersized+peered")], 1)]
    #[case::same_statistics([(1, "undersized+peered"), (1, "undersized+peered")], 0)]
    #[case::once([(1, "down"), (2, "active+undersized")], 0)]
    #[case::peering([(1, "peering"), (2, "remapped+peering")], 0)]
    #[case::not_reported([(1, "unknown"), (2, "unknown")], 0)]
    #[case::undersized([(1, "active+undersized"), (2, "active+undersized")], 0)]
    fn groups_lose_service_in_two_looks(#[case] looks: [(u64, &str); 2], #[case] expected: usize) {
        let mut watch = ServiceWatch::default();
        for (version, state) in looks {
            watch.see(&map(version, state)).unwrap();
        }
        assert_eq!(watch.without_service().len(), expected, "{watch:?}");
        assert_eq!(watch.states()["active+clean"], 1);
    }
}
