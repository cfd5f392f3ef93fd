//! drain-lock's node groups, as its configuration has them. Its objects name those alone that a drain has a place in.

use k8s_openapi::api::core::v1::{ConfigMap, Node};
use kube::ResourceExt;
use nodeward_api::label::CONTROL_PLANE_ROLES;
use nodeward_core::selector::Selector;
use serde::Deserialize;

/// The group that drain-lock has without being told.
const CONTROL_PLANE: &str = "control-plane";

/// Nodes of which only so many may be away at once.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
pub struct NodeGroup {
    name: String,
    /// `None`: the nodes with a role of the control plane.
    selector: Option<Selector>,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Config {
    #[serde(default)]
    node_groups: Vec<NodeGroup>,
}

impl NodeGroup {
    /// The groups of drain-lock's ConfigMap, the built-in one with them; none where it configures none. A configuration that
    /// cannot be read is drain-lock's to report.
    pub fn configured(map: &ConfigMap) -> Vec<Self> {
        let text = map.data.as_ref().and_then(|data| data.get("config.yaml"));
        let config = text.and_then(|text| serde_yaml::from_str::<Config>(text).ok());
        let mut groups = config.map(|config| config.node_groups).unwrap_or_default();
        if !groups.is_empty() && groups.iter().all(|group| group.name != CONTROL_PLANE) {
            groups.push(Self {
                name: CONTROL_PLANE.to_owned(),
                selector: None,
            });
        }
        groups
    }

    fn has(&self, node: &Node) -> bool {
        let labels = node.labels();
        match &self.selector {
            Some(selector) => selector.matches_map(labels),
            None => CONTROL_PLANE_ROLES.iter().any(|role| labels.contains_key(*role)),
        }
    }

    /// The groups of a node, in one text.
    pub fn names_of(groups: &[Self], node: &Node) -> Option<String> {
        let own = groups.iter().filter(|group| group.has(node));
        let names: Vec<&str> = own.map(|group| group.name.as_str()).collect();
        (!names.is_empty()).then(|| names.join(" + "))
    }
}

#[cfg(test)]
mod tests {
    use rstest::rstest;
    use serde_json::{Value, json};

    use super::*;

    const GROUPS: &str = "
nodeGroups:
  - { name: gpu, selector: { pool: gpu }, maxUnavailable: 1 }
  - { name: all, selector: {}, maxUnavailable: 10% }
laterField: {}
";

    fn groups(config: &str) -> Vec<NodeGroup> {
        let map = json!({ "metadata": { "name": "nodeward-drain-lock" }, "data": { "config.yaml": config } });
        NodeGroup::configured(&serde_json::from_value(map).unwrap())
    }

    #[rstest]
    #[case::several(GROUPS, json!({ "pool": "gpu" }), Some("gpu + all"))]
    #[case::one(GROUPS, json!({}), Some("all"))]
    #[case::built_in(GROUPS, json!({ "node-role.kubernetes.io/control-plane": "" }), Some("all + control-plane"))]
    #[case::replaced("nodeGroups: [{ name: control-plane, maxUnavailable: 2 }]", json!({ "node-role.kubernetes.io/control-plane": "" }), Some("control-plane"))]
    #[case::in_none("nodeGroups: [{ name: gpu, selector: { pool: gpu } }]", json!({}), None)]
    #[case::none_configured("{}", json!({ "node-role.kubernetes.io/control-plane": "" }), None)]
    #[case::not_readable("nodeGroups: 1", json!({}), None)]
    fn node_is_in_the_groups_that_select_it(#[case] config: &str, #[case] labels: Value, #[case] names: Option<&str>) {
        let node: Node = serde_json::from_value(json!({ "metadata": { "name": "n1", "labels": labels } })).unwrap();
        assert_eq!(NodeGroup::names_of(&groups(config), &node).as_deref(), names);
    }
}
