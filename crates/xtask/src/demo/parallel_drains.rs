//! An act: three nodes are drained at once by plain `kubectl drain`, which wedges; then by the very same commands with
//! drain-lock running, which ends.

pub mod follow;
mod outcome;
mod round;
pub mod scenario;
mod waits;

use std::path::PathBuf;
use std::sync::Arc;

use anyhow::Result;
use console::Style;
use nodeward_testkit::kubectl::Kubectl;
use nodeward_testkit::progress::Progress;

use self::outcome::Rounds;
use self::round::{Eyes, Round};
use self::waits::Waiter;
use super::Played;
use super::environment::Environment;
use super::narrator::{Line, Narrator, Voice};
use crate::budget_watch::BudgetWatch;
use crate::maintenance::{Drainer, Maintenance};

/// How often plain drains are begun, should they end by luck: one node may get both budgets before the others ask.
const ROUNDS: usize = 4;

/// With drain-lock's binary, or without drain-lock.
pub async fn play(env: &Environment, binary: Option<PathBuf>) -> Result<Played> {
    let progress = Progress::begin("three nodes and two StatefulSets");
    scenario::create(env).await?;
    progress.done("all members ready");
    let narrator = Arc::new(Narrator::new(env));
    introduce(&narrator);
    let maintenance = Maintenance {
        client: env.client(),
        kubectl: Kubectl::of(&env.cluster)?,
        drainer: Drainer::Kubectl,
        away: scenario::AWAY,
    };
    let budgets = BudgetWatch::start(env.client(), &env.prefix);

    let mut naive: Vec<Round> = Vec::new();
    while naive.len() < ROUNDS && naive.iter().all(Round::is_finished) {
        narrator.title("kubectl drain, three at once");
        let round = round::run(env, &narrator, &maintenance, Eyes::Ours).await?;
        tell_end(&narrator, &round);
        naive.push(round);
    }
    let mut operator = None;
    let mut locked = None;
    if let Some(binary) = binary {
        put_back(env, &narrator, &maintenance).await?;
        // The line that shows progress must not be in the way.
        narrator.finish();
        let lock = env.installation("drain-lock", binary, serde_json::json!({}));
        operator = Some(lock.start(&env.cluster).await?);
        let narrator = Arc::new(Narrator::new(env));
        narrator.title("the same commands, with drain-lock running");
        let _drains = follow::drains(&narrator, env);
        let round = round::run(env, &narrator, &maintenance, Eyes::DrainLocks).await?;
        tell_end(&narrator, &round);
        locked = Some(round);
        narrator.finish();
    }
    narrator.finish();
    let rounds = Rounds {
        naive,
        locked,
        violations: budgets.violations(),
    };
    Ok(Played {
        outcome: rounds.outcome(),
        operators: operator.into_iter().collect(),
        _storage: None,
    })
}

fn introduce(narrator: &Narrator) {
    println!();
    narrator.preface(
        "Three nodes are to be rebooted, and somebody drains all of them at once.",
        0,
    );
    narrator.preface(
        "  On them: kafka and mongo, three members each, one on each node, which can run nowhere else. Of each, one member \
         may be down (a PodDisruptionBudget).",
        4,
    );
    narrator.preface(
        "  A node reboots when its drain has ended. Then its members come back, kafka's sooner than mongo's.",
        4,
    );
}

fn tell_end(narrator: &Narrator, round: &Round) {
    let text = if round.is_finished() {
        let luck = if round.is_by_luck {
            " (by luck: no two of them ever had one budget each)"
        } else {
            ""
        };
        format!("all nodes are maintained after {:.0} s{luck}", round.took.as_secs_f32())
    } else if round.wedge.is_empty() {
        format!("{} of {} nodes are maintained", round.maintained, round.of)
    } else {
        "WEDGED: none of these can go on before another has, and kubectl goes on asking every 5 s for ever:".to_owned()
    };
    let look = if round.is_finished() {
        Style::new().green().bold()
    } else {
        Style::new().red().bold()
    };
    let waits = Waiter::all(&round.wedge).into_iter().map(|waiter| {
        let text = format!("- {} waits for {}", waiter.node, waiter.text());
        Line::plain(text).look(Style::new().red())
    });
    narrator.tell(
        Voice::Observer,
        "",
        [Line::plain(text).look(look)].into_iter().chain(waits),
    );
}

/// As `a, b and c`.
fn and(words: &[String]) -> String {
    match words {
        [] => String::new(),
        [word] => word.clone(),
        [first @ .., last] => format!("{} and {last}", first.join(", ")),
    }
}

/// As it was before the drains.
async fn put_back(env: &Environment, narrator: &Narrator, maintenance: &Maintenance) -> Result<()> {
    narrator.say(Voice::Admin, "", "interrupts them, and uncordons the nodes");
    for node in scenario::nodes(env) {
        maintenance.uncordon(&node).await?;
    }
    scenario::all_ready(env).await.map(drop)
}
