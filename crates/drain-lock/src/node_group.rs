//! Node groups: how many nodes of a group may be away at once.

use k8s_openapi::apimachinery::pkg::util::intstr::IntOrString;
use nodeward_core::selector::Selector;
use nodeward_runtime::ConfigError;

use crate::config::NodeGroupConfig;
use crate::snapshot::NodeFacts;

/// The group that exists without being configured: one node of the control plane away at a time.
pub const CONTROL_PLANE: &str = "control-plane";

/// Nodes of which only so many may be away at once.
#[derive(Debug, Clone)]
pub struct NodeGroup {
    pub name: String,
    /// `None`: the nodes with a role of the control plane.
    selector: Option<Selector>,
    limit: Limit,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Limit {
    Nodes(usize),
    /// Rounded down, but never below one node.
    Percent(usize),
}

impl NodeGroup {
    /// Checks and compiles the configured groups, and adds the built-in one unless an entry of its name replaces it.
    ///
    /// # Errors
    /// With the field and what to write instead.
    pub fn from_config(configured: Vec<NodeGroupConfig>) -> Result<Vec<Self>, ConfigError> {
        let mut groups: Vec<Self> = Vec::with_capacity(configured.len() + 1);
        for (index, group) in configured.into_iter().enumerate() {
            let at = |field: &str| format!("nodeGroups[{index}].{field}");
            if !is_name(&group.name) {
                let text = "must match ^[a-zA-Z0-9.-]+$, as FleetLock's groups do, and have at most 128 characters";
                return Err(ConfigError::at(at("name"), text));
            }
            if groups.iter().any(|known| known.name == group.name) {
                let text = format!(
                    "{:?} is configured twice; give each group a name of its own",
                    group.name
                );
                return Err(ConfigError::at(at("name"), text));
            }
            if group.selector.is_none() && group.name != CONTROL_PLANE {
                return Err(ConfigError::at(at("selector"), "is missing; write {} for all nodes"));
            }
            let limit = Limit::parse(&group.max_unavailable).ok_or_else(|| {
                let text = "must be a number of nodes from 1 up, or a percentage from 1% to 100%; \
                            to let none of them be drained, hold their budgets";
                ConfigError::at(at("maxUnavailable"), text)
            })?;
            groups.push(Self {
                name: group.name,
                selector: group.selector,
                limit,
            });
        }
        if groups.iter().all(|group| group.name != CONTROL_PLANE) {
            groups.push(Self {
                name: CONTROL_PLANE.to_owned(),
                selector: None,
                limit: Limit::Nodes(1),
            });
        }
        Ok(groups)
    }

    pub fn contains(&self, node: &NodeFacts) -> bool {
        match &self.selector {
            Some(selector) => selector.matches(&node.labels),
            None => node.is_control_plane(),
        }
    }

    /// How many of so many members may be away at once.
    pub fn max_unavailable(&self, members: usize) -> usize {
        match self.limit {
            Limit::Nodes(nodes) => nodes,
            Limit::Percent(percent) => (members * percent / 100).max(1),
        }
    }
}

impl Limit {
    fn parse(given: &IntOrString) -> Option<Self> {
        match given {
            IntOrString::Int(nodes) => usize::try_from(*nodes).ok().filter(|nodes| *nodes > 0).map(Self::Nodes),
            IntOrString::String(text) => {
                let digits = text.strip_suffix('%')?;
                let is_plain = digits.bytes().all(|byte| byte.is_ascii_digit());
                let percent = digits.parse().ok().filter(|_| is_plain)?;
                (1..=100).contains(&percent).then_some(Self::Percent(percent))
            }
        }
    }
}

fn is_name(text: &str) -> bool {
    let is_allowed = |byte: u8| byte.is_ascii_alphanumeric() || byte == b'.' || byte == b'-';
    !text.is_empty() && text.len() <= 128 && text.bytes().all(is_allowed)
}

/// The groups that a node is in, and asks before it goes. One that will not come back asks none: who removes it takes it from the
/// group, and would not wait.
pub fn groups_of<'a>(groups: &'a [NodeGroup], node: &NodeFacts) -> Vec<&'a NodeGroup> {
    let asks = |group: &&NodeGroup| !node.is_being_removed() && group.contains(node);
    groups.iter().filter(asks).collect()
}

/// Whether the group of a FleetLock client is one that its node is in.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ClientGroup {
    Member,
    Unknown,
    NotMember,
}

/// FleetLock's group `default` is all nodes, without a limit, unless it is configured.
pub fn client_group(groups: &[NodeGroup], name: &str, node: &NodeFacts) -> ClientGroup {
    match groups.iter().find(|group| group.name == name) {
        Some(group) if group.contains(node) => ClientGroup::Member,
        Some(_) => ClientGroup::NotMember,
        None if name == "default" => ClientGroup::Member,
        None => ClientGroup::Unknown,
    }
}

/// The names of groups, for a message.
pub fn names(groups: &[NodeGroup]) -> String {
    let names: Vec<&str> = groups.iter().map(|group| group.name.as_str()).collect();
    names.join(", ")
}

#[cfg(test)]
mod tests {
    use rstest::rstest;
    use serde_json::{Value, json};

    use super::*;
    use crate::tests::fixture::{Cluster, node};

    fn groups(config: Value) -> Result<Vec<NodeGroup>, String> {
        let configured: Vec<NodeGroupConfig> = serde_json::from_value(config).map_err(|error| error.to_string())?;
        NodeGroup::from_config(configured).map_err(|error| error.to_string())
    }

    #[rstest]
    #[case(json!(1), 10, 1)]
    #[case(json!(3), 2, 3)]
    #[case(json!("10%"), 19, 1)]
    #[case(json!("10%"), 20, 2)]
    #[case(json!("10%"), 3, 1)]
    #[case(json!("100%"), 7, 7)]
    fn percentages_round_down_but_allow_one(#[case] limit: Value, #[case] members: usize, #[case] allowed: usize) {
        let groups = groups(json!([{ "name": "workers", "selector": {}, "maxUnavailable": limit }])).unwrap();
        assert_eq!(groups[0].max_unavailable(members), allowed);
    }

    #[rstest]
    #[case::none_at_all(json!({ "maxUnavailable": 0 }), "nodeGroups[0].maxUnavailable")]
    #[case::negative(json!({ "maxUnavailable": -1 }), "nodeGroups[0].maxUnavailable")]
    #[case::no_percent(json!({ "maxUnavailable": "0%" }), "nodeGroups[0].maxUnavailable")]
    #[case::too_many_percent(json!({ "maxUnavailable": "101%" }), "nodeGroups[0].maxUnavailable")]
    #[case::a_word(json!({ "maxUnavailable": "some" }), "nodeGroups[0].maxUnavailable")]
    #[case::signed(json!({ "maxUnavailable": "+5%" }), "nodeGroups[0].maxUnavailable")]
    #[case::no_name(json!({ "name": "" }), "nodeGroups[0].name")]
    #[case::bad_name(json!({ "name": "a b" }), "nodeGroups[0].name")]
    #[case::unknown_field(json!({ "minAvailable": 1 }), "minAvailable")]
    fn unusable_groups_are_refused(#[case] patch: Value, #[case] named: &str) {
        let mut group = json!({ "name": "workers", "selector": {}, "maxUnavailable": 1 });
        group
            .as_object_mut()
            .unwrap()
            .extend(patch.as_object().unwrap().clone());
        let error = groups(json!([group])).unwrap_err();
        assert!(error.contains(named), "{error}");
    }

    #[test]
    fn names_and_selectors_are_required() {
        let twice = json!({ "name": "workers", "selector": {}, "maxUnavailable": 1 });
        assert!(groups(json!([twice, twice])).unwrap_err().contains("twice"));
        let without = json!([{ "name": "workers", "maxUnavailable": 1 }]);
        assert!(groups(without).unwrap_err().contains("selector"));
    }

    #[test]
    fn control_plane_is_replaced_by_its_entry_alone() {
        let master = node(
            "m1",
            json!({ "metadata": { "labels": { "node-role.kubernetes.io/control-plane": "" } } }),
        );
        let snapshot = Cluster::new([master, node("n1", json!({}))], []).snapshot();
        let (master, worker) = (&snapshot.nodes["m1"], &snapshot.nodes["n1"]);
        let names = |groups: &[NodeGroup], node| -> Vec<String> {
            groups_of(groups, node).iter().map(|group| group.name.clone()).collect()
        };
        let all = groups(json!([{ "name": "all", "selector": {}, "maxUnavailable": 2 }])).unwrap();
        assert_eq!(names(&all, master), ["all", CONTROL_PLANE]);
        assert_eq!(names(&all, worker), ["all"]);
        let removed = node(
            "n2",
            json!({ "metadata": { "deletionTimestamp": "2026-01-01T12:00:00Z" } }),
        );
        let snapshot = Cluster::new([removed], []).snapshot();
        assert_eq!(names(&all, &snapshot.nodes["n2"]), [""; 0], "it will not come back");
        let replaced = groups(json!([{ "name": CONTROL_PLANE, "maxUnavailable": 2 }])).unwrap();
        assert_eq!(names(&replaced, master), [CONTROL_PLANE]);
        assert_eq!(replaced[0].max_unavailable(5), 2);
    }

    #[test]
    fn client_must_be_in_its_group() {
        let snapshot = Cluster::new([node("n1", json!({}))], []).snapshot();
        let worker = &snapshot.nodes["n1"];
        let of = |config: Value, name: &str| client_group(&groups(config).unwrap(), name, worker);
        assert_eq!(of(json!([]), "default"), ClientGroup::Member);
        assert_eq!(of(json!([]), "workers"), ClientGroup::Unknown);
        assert_eq!(of(json!([]), CONTROL_PLANE), ClientGroup::NotMember);
        let default =
            json!([{ "name": "default", "selector": { "matchLabels": { "no": "node" } }, "maxUnavailable": 1 }]);
        assert_eq!(of(default, "default"), ClientGroup::NotMember);
    }
}
