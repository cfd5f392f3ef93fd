//! `why pod/NAME`: what an eviction of one pod would meet, and what its node's drain makes of it.

use std::collections::BTreeSet;
use std::sync::Arc;

use jiff::Timestamp;
use k8s_openapi::api::core::v1::Pod;
use nodeward_api::node_drain::{BlockedBy, NodeDrain};
use nodeward_core::budget::{BudgetView, Budgets};
use nodeward_core::pod::{Phase, PodView};
use serde::Serialize;

use super::next::{self, Step};
use super::pods::{EvictionAnswer, KeptBy, kept_by, try_eviction};
use super::rollout::Rollout;
use super::{look_at, print_counts, print_node};
use crate::cluster::Cluster;
use crate::commands::locks;
use crate::commands::printed::PrintedCommands;
use crate::describe::{self, prefixed};
use crate::failure::Failure;
use crate::fetch::Reader;
use crate::model::Unread;
use crate::model::budget_health::BudgetHealth;
use crate::model::drain::Drain;
use crate::model::locks::{BudgetLocks, Sources};
use crate::model::node::NodeSummary;
use crate::text::Style;
use crate::text::page::Page;
use crate::text::table::Cell;
use crate::text::time::{moment, with_distances};

/// What an eviction of a pod would meet.
#[derive(Debug, Clone, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct WhyPod {
    pub pod: String,
    /// Running, not Ready, …
    pub state: String,
    pub node: Option<NodeSummary>,
    /// Kind and name of its controller; absent: nothing would make it again.
    pub controller: Option<String>,
    /// What keeps it, by its own wishes and its budgets' statuses.
    pub kept_by: Option<KeptBy>,
    /// What the API server answered to its eviction, which it did not carry out.
    pub eviction: String,
    pub would_be_evicted: Option<bool>,
    /// What a rollout of its Deployment would do for it, where its budget keeps it on a cordoned node.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub rollout: Option<Rollout>,
    /// The drain of its node.
    pub drain: Option<Drain>,
    /// What the drain's plan does with it, in words.
    pub planned: Option<String>,
    /// What of the drain's obstacles is about it or its budgets.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub blocked_by: Vec<BlockedBy>,
    /// What drain-keeper says of it.
    pub drain_keeper: Option<String>,
    /// The budgets that select it.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub budgets: Vec<BudgetLocks>,
    /// Of these, those with pods that are not healthy, or with counts that are not true now.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub counts: Vec<BudgetHealth>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub unread: Vec<Unread>,
}

impl WhyPod {
    pub async fn fetch(cluster: &Cluster, namespace: &str, name: &str) -> Result<Self, Failure> {
        let mut reader = Reader::new(cluster);
        let pod = reader.pod(namespace, name).await?;
        let Some(seen) = PodView::project(&pod) else {
            return Err(Failure::Other(format!("pod {namespace}/{name} cannot be read")));
        };
        let all = reader.budgets(Some(namespace)).await?.unwrap_or_default();
        let views = Budgets::new(all.iter().filter_map(BudgetView::project).map(Arc::new));
        let matching = views.matching(&seen);
        let kept_by = kept_by(&seen, &matching, reader.now);
        let selecting: BTreeSet<String> = matching.iter().map(|budget| budget.key.to_string()).collect();
        let (eviction, would_be_evicted) = ask(cluster, &seen, kept_by).await?;
        let (mut node, mut drain) = (None, None);
        if let Some(name) = &seen.node {
            node = reader.node(name.as_str()).await?.flatten();
            drain = reader.drain(name.as_str()).await?.flatten();
        }
        let key = seen.key.to_string();
        let planned = drain.as_ref().and_then(|drain| planned(drain, &key));
        // Whoever fits no other node, or is to stay, moves by no rollout either.
        let rollout = match planned {
            Some(_) => None,
            None => Rollout::of(&mut reader, &seen, &matching, node.as_ref()).await?,
        };
        let ledger = reader.ledger().await?;
        let holds = reader.holds(Some(namespace)).await?.unwrap_or_default();
        let sources = Sources {
            ledger: ledger.as_deref(),
            budgets: all.iter().collect(),
            holds: holds.iter().collect(),
            namespace: Some(namespace),
        };
        let (budgets, counts) = look_at(&mut reader, &sources, &selecting).await?;
        let node = node.as_ref().map(NodeSummary::of);
        Ok(Self {
            state: state(&pod, &seen, reader.now),
            controller: seen
                .owner
                .as_ref()
                .map(|owner| format!("{} {}", owner.kind, owner.name)),
            kept_by,
            eviction,
            would_be_evicted,
            rollout,
            planned,
            blocked_by: drain
                .as_ref()
                .map(|drain| concerning(drain, &key, &selecting))
                .unwrap_or_default(),
            drain: drain.as_ref().map(Drain::of),
            drain_keeper: node.as_ref().and_then(|node| said_by_keeper(node, &key)),
            node,
            budgets,
            counts,
            pod: key,
            unread: reader.unread,
        })
    }

    pub fn print(&self, page: &mut Page, next: &[Step], now: Timestamp) {
        page.heading(format!("pod {}", self.pod));
        describe::cannot_tell(page, &self.unread);
        let controller = match &self.controller {
            Some(controller) => format!("of {controller}"),
            None => "without a controller: nothing would make it again".to_owned(),
        };
        page.field("pod", format!("{}, {controller}", self.state));
        if let Some(node) = &self.node {
            print_node(page, node, now);
        }
        let style = match self.would_be_evicted {
            Some(true) => Style::Good,
            Some(false) => Style::Warning,
            None => Style::Plain,
        };
        page.field("eviction", Cell::new(style, &self.eviction));
        if let Some(Rollout::MovesNot(why)) = &self.rollout {
            page.field("rollout", format!("would not move it: {why}"));
        }
        if let Some(drain) = &self.drain {
            let (phase, meaning) = (describe::phase(drain), describe::phase_meaning(drain));
            page.field(
                "drain",
                Cell::new(describe::phase_style(drain.phase), format!("{phase}: {meaning}")),
            );
        }
        if let Some(planned) = &self.planned {
            page.field("planned", planned);
        }
        let blocked = describe::distinct(&self.blocked_by);
        let blocked = blocked.into_iter().map(describe::obstacle);
        page.fields("blocked by", blocked.map(|text| Cell::new(Style::Warning, text)));
        if let Some(said) = &self.drain_keeper {
            page.field("forced", with_distances(said, now));
        }
        next::print(page, next);
        for counts in &self.counts {
            print_counts(page, counts);
        }
        if !self.budgets.is_empty() {
            page.gap();
            page.table(0, locks::table(&self.budgets, now));
        }
        describe::not_installed(page, &self.unread);
    }

    pub(super) fn next(&self, commands: &PrintedCommands) -> Vec<Step> {
        // What the drain says of it is more exact than what the budget's status lets expect.
        let mut remedies: Vec<&str> = self.blocked_by.iter().map(|blocked| blocked.reason.remedy()).collect();
        if remedies.is_empty() {
            remedies.extend(self.kept_by.map(KeptBy::remedy));
        }
        remedies.dedup();
        let mut next: Vec<Step> = remedies.into_iter().map(Step::new).collect();
        if let (Some(Rollout::Moves(deployment)), Some((namespace, _))) = (&self.rollout, self.pod.split_once('/')) {
            next.push(Step::with(
                "or move it by a rollout of its Deployment, which starts the new pod first, where there is room",
                commands.kubectl(&format!("rollout restart deployment/{deployment} -n {namespace}")),
            ));
        }
        next.extend(self.budgets.iter().map(|budget| {
            let (namespace, name) = budget.pdb.split_once('/').unwrap_or_default();
            Step::with(
                "more on its budget",
                commands.nodeward("why", &format!("pdb/{name} -n {namespace}")),
            )
        }));
        let node = self.node.as_ref().filter(|node| node.cordoned || self.drain.is_some());
        next.extend(node.map(|node| Step::with("more on its node", commands.why(&node.name))));
        next
    }
}

/// What its eviction would meet, and whether it would go.
async fn ask(cluster: &Cluster, pod: &PodView, kept_by: Option<KeptBy>) -> Result<(String, Option<bool>), Failure> {
    if pod.deletion.is_some() {
        return Ok(("it terminates already".to_owned(), None));
    }
    if pod.mirror || pod.is_daemon() {
        return Ok(("drains leave it alone".to_owned(), None));
    }
    let key = &pod.key;
    let by_status = match kept_by {
        Some(kept_by) => format!("it {}", kept_by.explanation()),
        None => "its budgets would allow it".to_owned(),
    };
    let wish = kept_by.filter(|kept_by| kept_by.is_opt_out());
    let wish = prefixed("; but it ", wish.map(KeptBy::explanation));
    Ok(match try_eviction(cluster, &key.namespace, &key.name).await? {
        EvictionAnswer::Accepted => (
            format!("the API server would accept it now (a dry run, which drain-lock lets pass){wish}"),
            Some(wish.is_empty()),
        ),
        EvictionAnswer::Refused(said) => (format!("the API server would refuse it now: {said}"), Some(false)),
        EvictionAnswer::NotAllowed(missing) => (
            format!("{by_status}; the API server could not be asked: {missing}"),
            None,
        ),
    })
}

fn state(pod: &Pod, seen: &PodView, now: Timestamp) -> String {
    if let Some(deletion) = &seen.deletion {
        let finalizers = Some(seen.finalizers.join(", ")).filter(|finalizers| !finalizers.is_empty());
        let kept = prefixed(", kept by finalizers ", finalizers);
        return format!(
            "terminating, its grace ends at {}{kept}",
            moment(deletion.deadline, now)
        );
    }
    let phase = pod.status.as_ref().and_then(|status| status.phase.as_deref());
    let phase = phase.unwrap_or("Unknown");
    let ready = match (seen.phase, seen.ready) {
        (Phase::Running, true) => ", Ready",
        (Phase::Running, false) => ", not Ready",
        _ => "",
    };
    format!("{phase}{ready}")
}

/// What the drain's plan does with the pod.
fn planned(drain: &NodeDrain, pod: &str) -> Option<String> {
    let plan = drain.status.as_ref()?.plan.as_ref()?;
    let fates = [
        (&plan.held, "down until its node is back, so it needs a disruption"),
        (&plan.retained, "stays on the node"),
        (&plan.waits_for, "is waited for"),
        (&plan.left_out, "the drain goes on without it"),
    ];
    fates.into_iter().find_map(|(pods, fate)| {
        let found = pods.iter().find(|planned| planned.pod == pod)?;
        let message = prefixed(": ", found.message.as_ref());
        Some(format!(
            "{fate}: it {}{message} [{}]",
            found.reason.explanation(),
            found.reason
        ))
    })
}

fn concerning(drain: &NodeDrain, pod: &str, pdbs: &BTreeSet<String>) -> Vec<BlockedBy> {
    let blocked = drain.status.iter().flat_map(|status| &status.blocked_by);
    let concerns = |one: &&BlockedBy| match (&one.pod, &one.pdb) {
        (Some(about), _) => about == pod,
        (None, Some(pdb)) => pdbs.contains(pdb),
        (None, None) => false,
    };
    blocked.filter(concerns).cloned().collect()
}

fn said_by_keeper(node: &NodeSummary, pod: &str) -> Option<String> {
    let blocked = node.drain_keeper.as_ref()?.blocked.as_ref()?.pods.as_ref()?;
    let said = blocked
        .named
        .iter()
        .find_map(|named| named.strip_prefix(pod)?.strip_prefix(' '));
    said.map(|said| format!("it {said}"))
}
