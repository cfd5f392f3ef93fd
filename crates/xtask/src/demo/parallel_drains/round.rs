//! All nodes are maintained at once; somebody looks on and says who waits for whom.

use nodeward_testkit::lock;
use std::collections::BTreeSet;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use anyhow::Result;
use console::Style;

use super::scenario;
use super::waits::{self, Member, Wait, Waiter};
use crate::demo::drains::{Counts, Drains};
use crate::demo::environment::Environment;
use crate::demo::narrator::{Line, Narrator, Voice};
use crate::maintenance::Maintenance;

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

/// Maintains all nodes at once, until that is done, or can never be.
pub async fn run(env: &Environment, narrator: &Arc<Narrator>, maintenance: &Maintenance, eyes: Eyes) -> Result<Round> {
    let nodes = scenario::nodes(env);
    let members = scenario::all_ready(env).await?;
    let began = Instant::now();
    let mut drains = Drains::new(narrator, maintenance, nodes.len());
    let mut round = Round {
        of: nodes.len(),
        is_by_luck: eyes == Eyes::Ours,
        ..Round::default()
    };
    drains.begin(nodes.into_iter().zip(scenario::BEGIN));
    let looker = look_on(env, narrator, members, drains.counts(), eyes);
    tokio::select! {
        failed = drains.ended() => round.failed = failed,
        wedge = looker => round.wedge = wedge?,
        () = tokio::time::sleep(PATIENCE) => {}
    }
    round.took = began.elapsed();
    let counts = drains.counts();
    // Those that still wait are ended here.
    drop(drains);
    let counts = lock(&counts);
    round.maintained = counts.maintained;
    round.refused = counts.refused;
    Ok(round)
}

/// Says who waits for whom, until that can never end.
async fn look_on(
    env: &Environment,
    narrator: &Narrator,
    mut members: Vec<Member>,
    counts: Arc<Mutex<Counts>>,
    eyes: Eyes,
) -> Result<Vec<Wait>> {
    let mut seen: Vec<(Waiter, Instant)> = Vec::new();
    let mut told: BTreeSet<Waiter> = BTreeSet::new();
    let mut wedged_since = None;
    loop {
        tokio::time::sleep(LOOKS_EVERY).await;
        scenario::look_at(env, &mut members).await?;
        let draining = lock(&counts).draining.clone();
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
