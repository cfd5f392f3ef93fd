//! All nodes are maintained at once; somebody looks on and says who waits for whom.

use nodeward_testkit::lock;
use std::collections::BTreeSet;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use console::Style;
use tokio::task::JoinSet;

use super::scenario;
use super::waits::{self, Member, Wait, Waiter};
use crate::demo::environment::Environment;
use crate::demo::narrator::{Line, Narrator, Voice};
use crate::demo::page::seconds;
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

/// Who tells who waits for whom.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Eyes {
    /// The demo itself, from what it sees.
    Ours,
    /// drain-lock, from what it knows.
    DrainLocks,
}

/// What came of a round.
#[derive(Clone, Debug, Default)]
pub struct Round {
    /// Nodes that were drained, rebooted and uncordoned.
    pub maintained: usize,
    pub of: usize,
    /// Nobody saw to it that it ends, if it does.
    pub is_by_luck: bool,
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
pub async fn run(env: &Environment, narrator: &Arc<Narrator>, maintenance: &Maintenance, eyes: Eyes) -> Result<Round> {
    let nodes = scenario::nodes(env);
    let members = scenario::all_ready(env).await?;
    let began = Instant::now();
    let progress = Arc::new(Mutex::new(Progress::default()));
    let mut drains = JoinSet::new();
    for (node, begin) in nodes.iter().cloned().zip(scenario::BEGIN) {
        let (maintenance, narrator, progress) = (maintenance.clone(), Arc::clone(narrator), Arc::clone(&progress));
        drains.spawn(async move {
            tokio::time::sleep(begin).await;
            let mut teller = Teller::new(&narrator, &progress, &node);
            maintenance.of(&node, |step| teller.tell(&step)).await
        });
    }
    let mut round = Round {
        of: nodes.len(),
        is_by_luck: eyes == Eyes::Ours,
        ..Round::default()
    };
    let looker = look_on(env, narrator, members, &progress, eyes);
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
    let progress = lock(&progress);
    round.maintained = progress.maintained;
    round.refused = progress.refused;
    Ok(round)
}

/// Tells the maintenance of one node.
struct Teller<'a> {
    narrator: &'a Narrator,
    progress: &'a Mutex<Progress>,
    node: &'a str,
    /// Why it was refused last, but for the names in it.
    refused: Option<Vec<String>>,
}

impl<'a> Teller<'a> {
    const fn new(narrator: &'a Narrator, progress: &'a Mutex<Progress>, node: &'a str) -> Self {
        Self {
            narrator,
            progress,
            node,
            refused: None,
        }
    }

    fn tell(&mut self, step: &Step) {
        let mut progress = lock(self.progress);
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
                let said = Said::of(line);
                progress.refused += usize::from(matches!(said, Said::Refused { .. }));
                let text = match said {
                    // It asks again every 5 s, for each pod, and is told the same.
                    Said::Refused { pod, why } if self.refused.as_ref() != Some(&without_names(why)) => {
                        self.refused = Some(without_names(why));
                        Some(format!("{pod} is refused, asks again every 5 s: {why}"))
                    }
                    Said::Evicted => Some(line.clone()),
                    Said::Refused { .. } | Said::Else => None,
                };
                if let Some(text) = text {
                    remark(Voice::Kubectl, Line::plain(text).look(Style::new().dim()));
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

/// The words that are no names, as those of pods and nodes here, which have numbers.
fn without_names(text: &str) -> Vec<String> {
    let words = text.split_whitespace();
    let words = words.filter(|word| !word.contains(|char: char| char.is_ascii_digit() || char == '/'));
    words.map(str::to_owned).collect()
}

/// What `kubectl drain` says in a line.
#[derive(Debug, PartialEq, Eq)]
enum Said<'a> {
    /// An eviction was refused, and is tried again.
    Refused {
        pod: &'a str,
        why: &'a str,
    },
    /// A pod is gone.
    Evicted,
    Else,
}

impl<'a> Said<'a> {
    fn of(line: &'a str) -> Self {
        if let Some((pod, why)) = line.split_once("will retry after") {
            let why = why.split_once("): ").map_or(why, |(_, why)| why);
            return Self::Refused {
                pod: pod.split('"').nth(1).unwrap_or("a pod"),
                why: why.split_once("denied the request: ").map_or(why, |(_, why)| why),
            };
        }
        if line.starts_with("pod/") && line.ends_with(" evicted") {
            return Self::Evicted;
        }
        Self::Else
    }
}

/// Says who waits for whom, until that can never end.
async fn look_on(
    env: &Environment,
    narrator: &Narrator,
    mut members: Vec<Member>,
    progress: &Mutex<Progress>,
    eyes: Eyes,
) -> Result<Vec<Wait>> {
    let mut seen: Vec<(Waiter, Instant)> = Vec::new();
    let mut told: BTreeSet<Waiter> = BTreeSet::new();
    let mut wedged_since = None;
    loop {
        tokio::time::sleep(LOOKS_EVERY).await;
        scenario::look_at(env, &mut members).await?;
        let draining = lock(progress).draining.clone();
        let waits = waits::waits(&members, &draining, 1);
        let waiters = Waiter::all(&waits);
        told.retain(|waiter| waiters.contains(waiter));
        seen.retain(|(waiter, _)| waiters.contains(waiter));
        for waiter in waiters {
            if !seen.iter().any(|(known, _)| *known == waiter) {
                seen.push((waiter, Instant::now()));
            }
        }
        for (waiter, since) in &seen {
            if eyes == Eyes::Ours && since.elapsed() >= TOLD_AFTER && told.insert(waiter.clone()) {
                let line = Line::plain(format!("waits for {}", waiter.text()));
                narrator.remark(Voice::Observer, &waiter.node, line.look(Style::new().yellow()));
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

#[cfg(test)]
mod tests {
    use super::*;

    const BUDGET: &str = "Cannot evict pod as it would violate the pod's disruption budget.";

    #[rstest::rstest]
    #[case(
        r#"error when evicting pods/"kafka-1" -n "data" (will retry after 5s): Cannot evict pod as it would violate the pod's disruption budget."#,
        Said::Refused { pod: "kafka-1", why: BUDGET }
    )]
    #[case(
        r#"error when evicting pods/"kafka-1" -n "data" (will retry after 5s): admission webhook "evictions.example" denied the request: node db-2 has it"#,
        Said::Refused { pod: "kafka-1", why: "node db-2 has it" }
    )]
    #[case("evicting pod data/kafka-1", Said::Else)]
    #[case("pod/kafka-1 evicted", Said::Evicted)]
    #[case("node/db-1 cordoned", Said::Else)]
    #[case("node/db-1 evicted", Said::Else)]
    fn refusals_and_evictions_are_recognized(#[case] line: &str, #[case] said: Said<'_>) {
        assert_eq!(Said::of(line), said);
    }
}
