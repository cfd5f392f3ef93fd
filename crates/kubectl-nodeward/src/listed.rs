//! What a command lists, by name: `-o name`.

use std::collections::HashSet;

use k8s_openapi::api::apps::v1::Deployment;
use k8s_openapi::api::core::v1::{ConfigMap, Node, Pod};
use k8s_openapi::api::policy::v1::PodDisruptionBudget;
use kube::Resource;
use nodeward_api::pause::CONFIG_MAP;
use nodeward_api::{DisruptionHold, NodeDrain};
use serde::Serialize;

use crate::commands::ceph::Opened;
use crate::commands::check::Check;
use crate::commands::drain::progress::DrainProgress;
use crate::commands::locks::Locks;
use crate::commands::pause::Pauses;
use crate::commands::plan::NodePlan;
use crate::commands::release::{ReleaseOutcome, Releases};
use crate::commands::status::Status;
use crate::commands::uninstall::UninstallCheck;
use crate::commands::why::answers::{Explained, WhyAnswer};
use crate::describe;
use crate::model::locks::OwnerHold;
use crate::text::page::Page;

/// The result of a command.
pub trait Listed: Serialize {
    /// Its objects as `kubectl get -o name` prints them, without namespaces.
    fn names(&self) -> Vec<String>;

    /// What a reader of the names alone would miss.
    fn print_beside_names(&self, _page: &mut Page) {}
}

/// `node/NAME`, `nodedrain.nodeward.dev/NAME`.
fn named<K: Resource<DynamicType = ()>>(name: &str) -> String {
    let group = K::group(&());
    let group = describe::prefixed(".", Some(group).filter(|group| !group.is_empty()));
    format!("{}{group}/{name}", K::kind(&()).to_lowercase())
}

/// The name behind the namespace.
fn own_name(qualified: &str) -> &str {
    qualified.split_once('/').map_or(qualified, |(_, name)| name)
}

impl<T: Listed> Listed for Vec<T> {
    fn names(&self) -> Vec<String> {
        self.iter().flat_map(Listed::names).collect()
    }

    fn print_beside_names(&self, page: &mut Page) {
        for one in self {
            one.print_beside_names(page);
        }
    }
}

impl Listed for Status {
    /// The nodes that need a person, those that drain-keeper times, and the drains.
    fn names(&self) -> Vec<String> {
        let need_person = self.needs_person.iter().flat_map(|cause| &cause.nodes);
        let timed = self.timed.iter().map(|node| &node.name);
        let mut seen = HashSet::new();
        let nodes = need_person.chain(timed).filter(|name| seen.insert(*name));
        let nodes = nodes.map(|name| named::<Node>(name));
        let drains = self.drains.iter().map(|drain| named::<NodeDrain>(&drain.node));
        nodes.chain(drains).collect()
    }

    fn print_beside_names(&self, page: &mut Page) {
        describe::cannot_tell(page, &self.unread);
    }
}

impl Listed for WhyAnswer {
    fn names(&self) -> Vec<String> {
        vec![match &self.target {
            Explained::Node(why) => named::<Node>(&why.name),
            Explained::Pod(why) => named::<Pod>(own_name(&why.pod)),
            Explained::Budget(why) => named::<PodDisruptionBudget>(own_name(&why.locks.pdb)),
        }]
    }
}

impl Listed for NodePlan {
    fn names(&self) -> Vec<String> {
        vec![named::<Node>(&self.node)]
    }
}

impl Listed for Locks {
    /// The budgets; node groups are no objects.
    fn names(&self) -> Vec<String> {
        let budgets = self.budgets.iter();
        budgets
            .map(|budget| named::<PodDisruptionBudget>(own_name(&budget.pdb)))
            .collect()
    }

    fn print_beside_names(&self, page: &mut Page) {
        describe::cannot_tell(page, &self.unread);
    }
}

impl Listed for DrainProgress {
    fn names(&self) -> Vec<String> {
        let drains = self.drains.iter();
        drains.map(|watched| named::<NodeDrain>(&watched.drain.node)).collect()
    }
}

impl Listed for Releases {
    /// What was released.
    fn names(&self) -> Vec<String> {
        let released = self.released.iter();
        let released = released.filter(|released| released.outcome != ReleaseOutcome::Failed);
        released
            .map(|released| match released.target.strip_prefix("node/") {
                Some(node) => named::<NodeDrain>(node),
                None => named::<DisruptionHold>(released.target.rsplit('/').next().unwrap_or_default()),
            })
            .collect()
    }

    fn print_beside_names(&self, page: &mut Page) {
        self.print(page);
    }
}

impl Listed for OwnerHold {
    fn names(&self) -> Vec<String> {
        let hold = self.name.iter();
        hold.map(|name| named::<DisruptionHold>(name)).collect()
    }
}

impl Listed for Check {
    /// The Deployments of the components.
    fn names(&self) -> Vec<String> {
        let deployments = self
            .components
            .iter()
            .filter_map(|component| component.deployment.as_ref());
        deployments.map(|name| named::<Deployment>(name)).collect()
    }

    fn print_beside_names(&self, page: &mut Page) {
        describe::cannot_tell(page, &self.unread);
        self.print_failures(page);
    }
}

impl Listed for UninstallCheck {
    /// What would block.
    fn names(&self) -> Vec<String> {
        let objects = self.blocks.iter().filter(|leftover| !leftover.resource.is_empty());
        let mut seen = HashSet::new();
        let names = objects.flat_map(|leftover| {
            let objects = leftover.objects.iter();
            objects.map(|object| format!("{}/{}", leftover.resource, own_name(object)))
        });
        names.filter(|name| seen.insert(name.clone())).collect()
    }

    fn print_beside_names(&self, page: &mut Page) {
        describe::cannot_tell(page, &self.unread);
    }
}

impl Listed for Pauses {
    fn names(&self) -> Vec<String> {
        let mut namespaces: Vec<&str> = self.pauses.iter().map(|pause| pause.namespace.as_str()).collect();
        namespaces.dedup();
        namespaces.iter().map(|_| named::<ConfigMap>(CONFIG_MAP)).collect()
    }

    fn print_beside_names(&self, page: &mut Page) {
        self.print(page);
    }
}

impl Listed for Opened {
    /// The budget that lets OSDs go.
    fn names(&self) -> Vec<String> {
        vec![named::<PodDisruptionBudget>(&self.budget)]
    }

    fn print_beside_names(&self, page: &mut Page) {
        self.print(page);
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::commands::release::Released;
    use crate::commands::status::Cause;
    use crate::model::Unread;
    use crate::model::answer::NodeState;
    use crate::model::drain::Drain;
    use crate::model::locks::BudgetLocks;
    use crate::model::node::NodeSummary;

    fn drain(node: &str) -> Drain {
        let drain = json!({
            "metadata": { "name": node },
            "spec": { "nodeName": node, "requesters": [] },
        });
        Drain::of(&serde_json::from_value(drain).unwrap())
    }

    fn status() -> Status {
        let timed = |name: &str| {
            let node = json!({ "metadata": { "name": name } });
            NodeSummary::of(&serde_json::from_value(node).unwrap())
        };
        Status {
            needs_person: vec![Cause {
                why: "NotReady".to_owned(),
                state: NodeState::NotReady,
                since: None,
                nodes: vec!["n2".to_owned(), "n3".to_owned()],
            }],
            timed: vec![timed("n1"), timed("n2")],
            drains: vec![drain("n2")],
            unread: vec![Unread::Undecodable {
                what: "claims",
                message: "m".to_owned(),
            }],
            ..Status::default()
        }
    }

    #[test]
    fn names_are_those_of_kubectl_each_once() {
        let names = status().names();
        assert_eq!(names, ["node/n2", "node/n3", "node/n1", "nodedrain.nodeward.dev/n2"]);
        let budget = BudgetLocks {
            pdb: "shop/web".to_owned(),
            ..BudgetLocks::default()
        };
        let locks = Locks {
            budgets: vec![budget],
            ..Locks::default()
        };
        assert_eq!(locks.names(), ["poddisruptionbudget.policy/web"]);
    }

    #[test]
    fn what_failed_is_not_named() {
        let released = |target: &str, outcome| Released {
            target: target.to_owned(),
            outcome,
            message: String::new(),
        };
        let releases = Releases {
            released: vec![
                released("node/n1", ReleaseOutcome::Ends),
                released("node/n2", ReleaseOutcome::Failed),
                released("hold/shop/web-1", ReleaseOutcome::Deleted),
            ],
        };
        let names = releases.names();
        assert_eq!(
            names,
            ["nodedrain.nodeward.dev/n1", "disruptionhold.nodeward.dev/web-1"]
        );
    }

    /// Names alone would pass for all that there is.
    #[test]
    fn what_cannot_be_told_is_said_beside_names() {
        let mut page = Page::new(80);
        status().print_beside_names(&mut page);
        assert_eq!(page.print(false), "Cannot tell: claims: m.\n");
    }
}
