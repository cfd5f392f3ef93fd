//! `plan`: what draining a node would take. It shows the plan of the node's drain if there is one, else of a preview that
//! is made for the question and deleted.

use std::time::Duration;

use jiff::Timestamp;
use k8s_openapi::api::core::v1::Node;
use kube::api::PostParams;
use kube::runtime::wait::await_condition;
use kube::{Api, ResourceExt};
use nodeward_api::NodeDrain;
use nodeward_api::node_drain::{BlockedBy, DrainPlan, Phase, PlannedPod};
use nodeward_core::drain_request::{DrainRequest, new_drain};
use nodeward_core::id::NodeUid;
use nodeward_core::text::counted;
use serde::Serialize;

use super::request::{ATTEMPTS, changes_too_fast, if_unchanged, requester};
use crate::cluster::Cluster;
use crate::describe;
use crate::failure::Failure;
use crate::text::Style;
use crate::text::page::Page;
use crate::text::table::{Cell, Column, Table};

/// How long drain-lock may take to answer.
const ANSWER: Duration = Duration::from_secs(30);

#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct NodePlan {
    pub node: String,
    /// Whether it was made for this question alone; otherwise it is the plan of a drain that was asked for.
    pub dry_run: bool,
    /// Where that drain stands.
    pub phase: Option<Phase>,
    /// What it would wait for, or waits for, now.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub blocked_by: Vec<BlockedBy>,
    /// What becomes of each pod.
    pub plan: DrainPlan,
}

impl NodePlan {
    /// The plan of the node's drain, or of one that is asked for as `settings` say, and not done.
    pub async fn fetch(
        cluster: &Cluster,
        node: &str,
        settings: impl Fn(DrainRequest) -> DrainRequest,
    ) -> Result<Self, Failure> {
        cluster.require::<NodeDrain>()?;
        let drains: Api<NodeDrain> = Api::all(cluster.client.clone());
        for _ in 0..ATTEMPTS {
            if let Some(found) = cluster.ask(drains.get_opt(node)).await? {
                return Self::answered(&drains, found).await;
            }
            let request = DrainRequest::new(node.into(), node_uid(cluster, node).await?, requester(cluster).await?.1);
            let request = DrainRequest {
                purpose: Some("plan".to_owned()),
                dry_run: true,
                ..settings(request)
            };
            let preview = new_drain(&request, Timestamp::now());
            let preview = match cluster.ask(drains.create(&PostParams::default(), &preview)).await {
                Err(Failure::Conflict(_)) => continue,
                created => created?,
            };
            // The preview goes however this ends, Ctrl-C included.
            let plan = tokio::select! {
                plan = Self::answered(&drains, preview.clone()) => plan,
                _ = tokio::signal::ctrl_c() => Err(Failure::Other("interrupted".to_owned())),
            };
            remove_preview(cluster, &drains, &preview, &request.requester).await?;
            return plan;
        }
        Err(changes_too_fast(node))
    }

    /// Waits for the plan of this drain.
    async fn answered(drains: &Api<NodeDrain>, drain: NodeDrain) -> Result<Self, Failure> {
        let node = drain.name_any();
        let is_planned = |drain: Option<&NodeDrain>| {
            drain.is_none_or(|drain| drain.status.as_ref().is_some_and(|status| status.plan.is_some()))
        };
        let planned = if is_planned(Some(&drain)) {
            Some(drain)
        } else {
            let planned = await_condition(drains.clone(), &node, is_planned);
            let planned = tokio::time::timeout(ANSWER, planned).await.map_err(|_| {
                Failure::Other(format!(
                    "drain-lock has not planned the drain of {node} within {} s: is it running? See kubectl nodeward status",
                    ANSWER.as_secs()
                ))
            })?;
            planned.map_err(|error| Failure::Other(format!("the plan of {node} cannot be watched: {error}")))?
        };
        let deleted = || Failure::Other(format!("the drain of {node} was deleted before it was planned"));
        let drain = planned.ok_or_else(deleted)?;
        let status = drain.status.unwrap_or_default();
        Ok(Self {
            node,
            dry_run: drain.spec.dry_run,
            phase: status.phase.filter(|_| !drain.spec.dry_run),
            blocked_by: status.blocked_by,
            plan: status.plan.unwrap_or_default(),
        })
    }

    pub fn print(&self, page: &mut Page) {
        page.heading(format!("Plan for {}", self.node));
        match self.phase {
            Some(phase) if !self.dry_run => page.text(Style::Plain, format!("Of its drain, which is {phase}.")),
            _ => page.text(Style::Faint, "Planned only: nothing was cordoned, claimed or evicted."),
        }
        self.print_counts(page);
        self.print_obstacles(page);
        let plan = &self.plan;
        let needing = "Pods that need a disruption of each of their budgets before they go";
        print_pods(page, needing, &plan.held);
        let waited_for = "Pods that the drain waits for until they finish";
        print_pods(page, waited_for, &plan.waits_for);
        print_pods(page, "Pods that stay on the node through its reboot", &plan.retained);
        let left_out = "Pods that the drain goes on without, until somebody sees to them";
        print_pods(page, left_out, &plan.left_out);
        if self.plan.omitted > 0 {
            page.gap();
            page.text(Style::Faint, format!("{} more are not listed.", self.plan.omitted));
        }
    }

    fn print_counts(&self, page: &mut Page) {
        let plan = &self.plan;
        let movable = match plan.movable {
            ..=0 => "no pod".to_owned(),
            1 => "1 pod fits elsewhere and leaves as its budget allows".to_owned(),
            count => format!("{count} pods fit elsewhere and leave as their budgets allow"),
        };
        let held = match plan.held.as_slice() {
            [] => "no pod: the drain needs no claim and waits for no other drain".to_owned(),
            held => needs(held),
        };
        page.gap();
        page.field("movable", movable);
        page.field("held", held);
        if !plan.waits_for.is_empty() {
            let pods = counted(plan.waits_for.len(), "pod");
            page.field("waits for", format!("{pods} to finish"));
        }
        if !plan.retained.is_empty() {
            page.field("stay", counted(plan.retained.len(), "pod"));
        }
        if plan.ignored > 0 {
            let pods = counted(plan.ignored, "pod");
            page.field(
                "ignored",
                Cell::new(Style::Faint, format!("{pods} of DaemonSets, static or finished")),
            );
        }
    }

    /// The problems that a person must solve, and the obstacles that end by themselves; each once.
    fn print_obstacles(&self, page: &mut Page) {
        let problems = describe::distinct(&self.plan.problems);
        let all = [&self.plan.problems[..], &self.blocked_by].concat();
        let waits = describe::distinct(&all).split_off(problems.len());
        if problems.is_empty() && waits.is_empty() {
            return page.field("blocked by", Cell::new(Style::Good, "nothing"));
        }
        let waits_now = if self.dry_run { "Would wait now" } else { "Waits now" };
        for (title, style, obstacles) in [
            ("Needs attention", Style::Bad, problems),
            (waits_now, Style::Warning, waits),
        ] {
            if !obstacles.is_empty() {
                page.heading(title);
            }
            for obstacle in obstacles {
                page.point(style, describe::obstacle(obstacle));
            }
        }
    }
}

/// The budgets that the held pods need disruptions of.
fn needs(held: &[PlannedPod]) -> String {
    let mut pdbs: Vec<&str> = held.iter().flat_map(|pod| &pod.pdbs).map(String::as_str).collect();
    pdbs.sort_unstable();
    pdbs.dedup();
    let pods = counted(held.len(), "pod");
    let need = if held.len() == 1 {
        "needs a disruption"
    } else {
        "need disruptions"
    };
    match pdbs.len() {
        0 => format!("{pods} without a budget: down until the node is back"),
        1..=3 => format!("{pods} {need} of {}", pdbs.join(", ")),
        many => {
            let (named, hidden) = (pdbs[..2].join(", "), many - 2);
            format!("{pods} {need} of {named} and {hidden} more budgets")
        }
    }
}

fn print_pods(page: &mut Page, title: &str, pods: &[PlannedPod]) {
    if pods.is_empty() {
        return;
    }
    let mut table = Table::new([
        Column::Flexible("POD"),
        Column::Flexible("PDB"),
        Column::Flexible("WHY"),
    ]);
    for pod in pods {
        let (reason, explanation) = (pod.reason, pod.reason.explanation());
        let message = pod.message.as_ref().filter(|message| !message.contains(explanation));
        let message = describe::prefixed(": ", message);
        table.row([
            Cell::new(Style::Strong, &pod.pod),
            pod.pdbs.join(", ").into(),
            format!("{explanation}{message} [{reason}]").into(),
        ]);
    }
    page.heading(title);
    page.table(2, table);
}

/// The UID of the node; `None` if the caller may not read it.
pub async fn node_uid(cluster: &Cluster, node: &str) -> Result<Option<NodeUid>, Failure> {
    let nodes: Api<Node> = Api::all(cluster.client.clone());
    match cluster.ask(nodes.get_metadata_opt(node)).await {
        Ok(Some(found)) => Ok(found.uid().map(Into::into)),
        Ok(None) => Err(Failure::Other(format!("there is no node {node}"))),
        Err(Failure::MissingRight(_)) => Ok(None),
        Err(failure) => Err(failure),
    }
}

/// Deletes the preview, unless somebody has made a drain of it meanwhile.
async fn remove_preview(
    cluster: &Cluster,
    drains: &Api<NodeDrain>,
    drain: &NodeDrain,
    requester: &str,
) -> Result<(), Failure> {
    let node = drain.name_any();
    for _ in 0..ATTEMPTS {
        let found = cluster.ask(drains.get_opt(&node)).await?;
        let is_preview = |found: &NodeDrain| {
            found.uid() == drain.uid()
                && found.spec.dry_run
                && found.spec.requesters.iter().all(|one| one.name == requester)
        };
        let Some(found) = found.filter(is_preview) else {
            return Ok(());
        };
        match cluster.ask(drains.delete(&node, &if_unchanged(&found))).await {
            Ok(_) | Err(Failure::NotFound(_)) => return Ok(()),
            // Its status was written meanwhile.
            Err(Failure::Conflict(_)) => (),
            Err(failure) => return Err(failure),
        }
    }
    Err(Failure::Other(format!(
        "the preview NodeDrain {node} could not be deleted: kubectl delete nodedrain {node}"
    )))
}
