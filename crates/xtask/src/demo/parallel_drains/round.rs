//! All nodes are maintained at once; somebody looks on and says who waits for whom.

use std::collections::BTreeSet;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use console::Style;
use kube::ResourceExt;
use nodeward_testkit::workload;
use tokio::task::JoinSet;

use super::scenario::{self, Homes};
use super::waits::{self, Member, Wait};
use crate::demo::clock::seconds;
use crate::demo::narrator::{Line, Narrator, Voice};
use crate::demo::place::Place;
use crate::maintenance::{Maintenance, Step};

/// How often the cluster is looked at.
const LOOKS_EVERY: Duration = Duration::from_millis(250);

/// How long a wait lasts before it is told: most pass by themselves.
const TOLD_AFTER: Duration = Duration::from_millis(800);

/// How long drains have waited for each other when they count as wedged. `kubectl drain` asks again every 5 s: each has
/// been refused twice more.
const WEDGED_AFTER: Duration = Duration::from_secs(12);

/// How long a round may take at all.
const PATIENCE: Duration = Duration::from_mins(3);

/// What came of a round.
#[derive(Clone, Debug, Default)]
pub struct Round {
    /// Nodes that were drained, rebooted and uncordoned.
    pub maintained: usize,
    pub of: usize,
    pub took: Duration,
    /// Evictions that `kubectl drain` was refused.
    pub refused: usize,
    /// Who waited for whom when it was given up.
    pub wedge: Vec<Wait>,
    /// A drain that failed, in its own words.
    pub failed: Option<String>,
}

impl Round {
    pub const fn is_finished(&self) -> bool {
        self.maintained == self.of && self.failed.is_none()
    }
}

/// What the maintenance of all nodes has come to.
#[derive(Default)]
struct Progress {
    draining: BTreeSet<String>,
    maintained: usize,
    refused: usize,
}

/// Maintains all nodes at once, until that is done, or can never be.
pub async fn run(place: &Place, narrator: &Arc<Narrator>, maintenance: &Maintenance) -> Result<Round> {
    let nodes = scenario::nodes(place);
    let homes = scenario::all_ready(place).await?;
    let began = Instant::now();
    let progress = Arc::new(Mutex::new(Progress::default()));
    let mut drains = JoinSet::new();
    for node in nodes.clone() {
        let (maintenance, narrator, progress) = (maintenance.clone(), Arc::clone(narrator), Arc::clone(&progress));
        drains.spawn(async move {
            let mut teller = Teller::new(&narrator, &progress, &node);
            maintenance.of(&node, |step| teller.tell(&step)).await
        });
    }
    let mut round = Round {
        of: nodes.len(),
        ..Round::default()
    };
    let looker = look_on(place, narrator, &homes, &progress);
    let all = async {
        while let Some(ended) = drains.join_next().await {
            if let Err(error) = ended.context("a drain panicked").and_then(|outcome| outcome) {
                return Some(format!("{error:#}"));
            }
        }
        None
    };
    tokio::select! {
        failed = all => round.failed = failed,
        wedge = looker => round.wedge = wedge?,
        () = tokio::time::sleep(PATIENCE) => {}
    }
    round.took = began.elapsed();
    // Those that still wait are ended here.
    drop(drains);
    let progress = progress.lock().unwrap_or_else(PoisonError::into_inner);
    round.maintained = progress.maintained;
    round.refused = progress.refused;
    Ok(round)
}

/// Tells the maintenance of one node.
struct Teller<'a> {
    narrator: &'a Narrator,
    progress: &'a Mutex<Progress>,
    node: &'a str,
    said: BTreeSet<String>,
}

impl<'a> Teller<'a> {
    const fn new(narrator: &'a Narrator, progress: &'a Mutex<Progress>, node: &'a str) -> Self {
        Self {
            narrator,
            progress,
            node,
            said: BTreeSet::new(),
        }
    }

    fn tell(&mut self, step: &Step) {
        let mut progress = self.progress.lock().unwrap_or_else(PoisonError::into_inner);
        let remark = |voice, line| self.narrator.remark(voice, self.node, line);
        match step {
            Step::Begins(command) => {
                progress.draining.insert(self.node.to_owned());
                remark(
                    Voice::Admin,
                    Line::plain(format!("$ {command}")).look(Style::new().bold()),
                );
            }
            Step::Says(line) => {
                let refused = is_refusal(line);
                progress.refused += usize::from(refused);
                // It repeats itself every 5 s.
                if (refused || is_eviction(line)) && self.said.insert(line.clone()) {
                    remark(Voice::Kubectl, Line::plain(line).look(Style::new().dim()));
                }
            }
            Step::Drained(after) => {
                progress.draining.remove(self.node);
                let text = format!("drained in {}; it reboots", seconds(*after));
                remark(Voice::Admin, Line::plain(text).look(Style::new().green()));
            }
            Step::Rebooted => {}
            Step::Done => {
                progress.maintained += 1;
                let text = "is back, and is uncordoned";
                remark(Voice::Admin, Line::plain(text).look(Style::new().green()));
                let all = scenario::NODE_COUNT;
                self.narrator.progress(progress.maintained, all, "");
            }
        }
    }
}

/// Of what `kubectl drain` says: an eviction was refused, and is tried again.
fn is_refusal(line: &str) -> bool {
    line.contains("will retry after")
}

/// A pod is gone.
fn is_eviction(line: &str) -> bool {
    line.starts_with("pod/") && line.ends_with(" evicted")
}

/// Says who waits for whom, until that can never end.
async fn look_on(place: &Place, narrator: &Narrator, homes: &Homes, progress: &Mutex<Progress>) -> Result<Vec<Wait>> {
    let mut seen: Vec<(Wait, Instant)> = Vec::new();
    let mut told: BTreeSet<Wait> = BTreeSet::new();
    let mut wedged_since = None;
    loop {
        tokio::time::sleep(LOOKS_EVERY).await;
        let members = members(place, homes).await?;
        let draining = progress.lock().unwrap_or_else(PoisonError::into_inner).draining.clone();
        let waits = waits::waits(&members, &draining, 1);
        told.retain(|wait| waits.contains(wait));
        seen.retain(|(wait, _)| waits.contains(wait));
        for wait in &waits {
            if !seen.iter().any(|(known, _)| known == wait) {
                seen.push((wait.clone(), Instant::now()));
            }
        }
        for (wait, since) in &seen {
            if since.elapsed() >= TOLD_AFTER && told.insert(wait.clone()) {
                tell_wait(narrator, wait);
            }
        }
        let wedged = waits::wedged(&waits);
        if wedged.is_empty() {
            wedged_since = None;
        } else if wedged_since.get_or_insert_with(Instant::now).elapsed() >= WEDGED_AFTER {
            return Ok(waits.into_iter().filter(|wait| wedged.contains(&wait.node)).collect());
        }
    }
}

fn tell_wait(narrator: &Narrator, wait: &Wait) {
    let text = format!("waits for budget {}: {}", wait.budget, holders(wait));
    narrator.remark(
        Voice::Observer,
        &wait.node,
        Line::plain(text).look(Style::new().yellow()),
    );
}

/// As `db-2 holds it (kafka-1 is down)`.
pub fn holders(wait: &Wait) -> String {
    let holders: Vec<String> = wait
        .held_by
        .iter()
        .map(|(node, pod)| format!("{node} holds it ({pod} is down)"))
        .collect();
    holders.join(", ")
}

/// The members as they are now; one that does not exist is down.
async fn members(place: &Place, homes: &Homes) -> Result<Vec<Member>> {
    let pods = scenario::members(place).await?;
    let member = |(name, home): (&String, &scenario::Home)| Member {
        name: name.clone(),
        set: home.set.clone(),
        home: home.node.clone(),
        is_up: pods
            .iter()
            .any(|pod| pod.name_any() == *name && workload::is_ready(pod) && pod.metadata.deletion_timestamp.is_none()),
    };
    Ok(homes.iter().map(member).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[rstest::rstest]
    #[case(
        r#"error when evicting pods/"kafka-1" -n "data" (will retry after 5s): Cannot evict pod as it would violate the pod's disruption budget."#,
        true,
        false
    )]
    #[case("evicting pod data/kafka-1", false, false)]
    #[case("pod/kafka-1 evicted", false, true)]
    #[case("node/db-1 cordoned", false, false)]
    #[case("node/db-1 evicted", false, false)]
    fn of_what_kubectl_drain_says_refusals_and_evictions_are_told(
        #[case] line: &str,
        #[case] refusal: bool,
        #[case] eviction: bool,
    ) {
        assert_eq!((is_refusal(line), is_eviction(line)), (refusal, eviction));
    }
}
