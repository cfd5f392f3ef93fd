//! An act: a fleet is upgraded on a real cluster, node by node, and drain-keeper unblocks it.

pub mod failures;
pub mod follow;
pub mod outcome;
mod owners;
mod protected;
mod scenario;
mod simulated_mco;
mod upgrader;

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Instant;

use anyhow::Result;
use nodeward_testkit::progress::Progress;

use self::failures::Failures;
use self::outcome::{Kept, Upgraded};
use self::simulated_mco::SimulatedMco;
use self::upgrader::Upgrader;
use super::Played;
use super::environment::Environment;
use super::narrator::Narrator;
use crate::budget_watch::BudgetWatch;
use crate::install;

/// With the binaries of both operators, or without any. On a user's cluster health-check has no part: no kinds are installed
/// there.
pub async fn play(env: &Environment, binary: Option<PathBuf>, health: Option<PathBuf>) -> Result<Played> {
    let without = binary.is_none();
    let health = health.filter(|_| env.plane.is_some());
    let progress = Progress::begin("fleet and workloads");
    scenario::create(env, &progress).await?;
    progress.done(&format!("{} nodes, all workloads ready", scenario::NODES));
    let keeper = match binary {
        Some(binary) => {
            if env.plane.is_none() {
                // With the run's label, by which it is found again.
                env.create_namespace("system").await?;
            }
            let config = SimulatedMco::of(env).config(env);
            let keeper = env.installation("drain-keeper", binary, config);
            Some(keeper.start(&env.cluster).await?)
        }
        None => None,
    };
    let health = match health {
        Some(binary) => {
            failures::create(env).await?;
            let health = env.installation("health-check", binary, failures::config(env));
            Some(health.start(&env.cluster).await?)
        }
        None => None,
    };

    let narrator = Arc::new(Narrator::new(env));
    introduce(&narrator, without, env);
    if health.is_some() {
        introduce_failures(&narrator);
    }
    let _events = follow::events(&narrator, env);
    let _conditions = follow::conditions(&narrator, env);
    let budgets = BudgetWatch::start(env.client(), &env.prefix);
    let _owners = owners::start(env, &narrator);
    let failures = match &health {
        Some(_) => Some(Failures::prepare(env, &narrator).await?),
        None => None,
    };
    let began = Instant::now();
    let patience = if without {
        scenario::PATIENCE_WITHOUT
    } else {
        scenario::PATIENCE
    };
    let upgrade = Upgrader::new(env, Arc::clone(&narrator))
        .upgrade_all(&scenario::nodes(env), patience, failures.as_ref())
        .await?;
    let took = began.elapsed();
    narrator.finish();
    let kept = match &keeper {
        Some(keeper) => {
            let progress = Progress::begin("drain-keeper cleans up after itself");
            let kept = Kept::gather(env, keeper).await?;
            progress.done(if kept.leftovers.is_empty() {
                "nothing is left on the nodes"
            } else {
                "something is left"
            });
            Some(kept)
        }
        None => None,
    };
    let remediated = match (&failures, &health) {
        (Some(failures), Some(health)) => {
            let remediated = failures.gather().await?;
            install::stop(health).await?;
            Some(remediated)
        }
        _ => None,
    };
    let upgraded = Upgraded {
        upgrade,
        took,
        violations: budgets.violations(),
        keeper: kept,
        remediated,
    };
    Ok(Played {
        outcome: upgraded.outcome(),
        operators: keeper.into_iter().collect(),
        _storage: None,
    })
}

fn introduce(narrator: &Narrator, without: bool, env: &Environment) {
    let who = if without {
        "without drain-keeper"
    } else {
        "with drain-keeper watching"
    };
    println!();
    let title = format!(
        "An upgrade of {} nodes, one by one, {who}. In its way:",
        scenario::NODES
    );
    narrator.preface(&title, 0);
    for (node, text) in scenario::OBSTACLES {
        narrator.preface(&format!("  {node:<13} {text}"), 16);
    }
    if !without {
        narrator.preface(
            "Minutes are seconds here: it waits 6 s, and 9 s where there is a budget.",
            0,
        );
    }
    if !env.prefix.is_empty() {
        narrator.preface(
            &format!(
                "All names begin with {}, which is left out below. All of it is removed at the end.",
                &env.prefix
            ),
            0,
        );
    }
}

fn introduce_failures(narrator: &Narrator) {
    let title = format!(
        "When it comes to {}, three nodes that still wait for it fail, with health-check watching:",
        failures::FAIL_WITH
    );
    narrator.preface(&title, 0);
    for (node, text) in failures::FAILURES {
        narrator.preface(&format!("  {node:<13} {text}"), 16);
    }
}
