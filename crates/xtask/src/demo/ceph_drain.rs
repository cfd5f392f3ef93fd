//! An act: the hosts of a real Ceph are drained one after the other by plain `kubectl drain`, while clients write and somebody
//! tries to evict the OSDs of the other hosts all the while.

pub mod follow;
pub mod load;
mod outcome;

use std::path::PathBuf;
use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::{Result, ensure};
use console::Style;
use k8s_openapi::apimachinery::pkg::util::intstr::IntOrString;
use nodeward_testkit::ceph::{Ceph, CephOptions};
use nodeward_testkit::kubectl::Kubectl;
use nodeward_testkit::progress::Progress;
use nodeward_testkit::rook::{CLUSTER, Rook};
use nodeward_testkit::{fleet, wait};
use serde_json::json;

use self::load::{Evictor, Writer};
use self::outcome::Drains;
use super::Played;
use super::environment::Environment;
use super::narrator::{Line, Narrator, Voice};
use super::page::seconds;
use crate::maintenance::{Drainer, Maintenance, Step};

/// The pool that clients write to.
const POOL: &str = "data";

/// How long a host is away.
const AWAY: Duration = Duration::from_secs(3);

/// How long Ceph may take to be complete, and the budget to be open, on a loaded machine.
const WELL_WITHIN: Duration = Duration::from_mins(2);

/// How long the drains may take at all: a host's waits for the data of the one before.
const PATIENCE: Duration = Duration::from_mins(8);

/// With ceph-pdb's binary, or without ceph-pdb.
pub async fn play(env: &Environment, binary: Option<PathBuf>) -> Result<Played> {
    let progress = Progress::begin("Ceph on three hosts");
    progress.step("a monitor, a manager and three OSDs");
    let ceph = Arc::new(Ceph::start(CephOptions::default()).await?);
    progress.step("Rook's objects");
    env.create_namespace(CLUSTER).await?;
    let rook = Rook::start(&env.client(), &env.named(CLUSTER), ceph).await?;
    rook.add_pool(POOL, 3, 8, "host").await?;
    progress.done("all up and clean");
    let mut operator = None;
    if let Some(binary) = binary {
        let config = json!({"namespaces": [rook.namespace()]});
        let installation = env.installation("ceph-pdb", binary, config);
        operator = Some(installation.start(&env.cluster).await?);
        open(&rook).await?;
    }
    let narrator = Narrator::new(env);
    introduce(&narrator);
    let began = Instant::now();
    let (writer, evictor) = (Writer::default(), Evictor::default());
    let mut drains = Drains {
        of: rook.ceph().options().hosts,
        is_guarded: operator.is_some(),
        ..Drains::default()
    };
    let maintenance = Maintenance {
        client: env.client(),
        kubectl: Kubectl::of(&env.cluster)?,
        drainer: Drainer::Kubectl,
        away: AWAY,
    };
    let mut follower = follow::Follower::new(&rook, &narrator);
    tokio::select! {
        ended = drain_all(&rook, &narrator, &maintenance, &evictor, &mut drains) => ended?,
        failed = follower.run() => match failed? {},
        failed = evictor.run(&rook, &narrator) => match failed? {},
        never = writer.run(rook.ceph()) => match never {},
        () = tokio::time::sleep(PATIENCE) => {}
    }
    drains.took = began.elapsed();
    drains.without_service = follower.without_service();
    drop(follower);
    settle(&rook, &narrator, drains.is_guarded).await?;
    drains.answers = evictor.answers();
    (drains.written, drains.failed_writes) = writer.written();
    drains.lost = load::lost(rook.ceph(), drains.written).await?;
    drains.noout_left = rook.ceph().buckets_with_noout().await?;
    narrator.finish();
    Ok(Played {
        outcome: drains.outcome(),
        operators: operator.into_iter().collect(),
        _storage: None,
    })
}

fn introduce(narrator: &Narrator) {
    println!();
    narrator.preface(
        "Three hosts of a Ceph cluster are drained, rebooted and uncordoned, one after the other.",
        0,
    );
    narrator.preface(
        "  Each has an OSD, and of each object one copy of three. Two are needed to read and write it. Clients write all the while.",
        4,
    );
    narrator.preface(
        "  While a host is away, somebody else tries to evict the OSDs of the other two, over and over.",
        4,
    );
}

/// Drains one host after the other; the next one when its OSD is back.
async fn drain_all(
    rook: &Rook,
    narrator: &Narrator,
    maintenance: &Maintenance,
    evictor: &Evictor,
    drains: &mut Drains,
) -> Result<()> {
    for osd in 0..drains.of {
        let node = rook.node_of(osd);
        narrator.heading(&node, osd + 1, drains.of);
        // Else it would take what the budget allows before kubectl asks again.
        evictor.rest();
        let told = maintenance.of(&node, |step| {
            if matches!(step, Step::Drained(_)) {
                evictor.leave_alone(osd);
            }
            tell(narrator, &node, &step);
        });
        let told = told.await;
        if let Err(error) = told {
            drains.failed = Some(format!("{error:#}"));
            return Ok(());
        }
        drains.drained += 1;
        if drains.is_guarded {
            rook.ceph().all_up().await?;
        }
    }
    Ok(())
}

fn tell(narrator: &Narrator, node: &str, step: &Step) {
    match step {
        Step::Begins(command) => narrator.say(Voice::Kubectl, node, &format!("$ {command}")),
        Step::Says(line) if line.contains("error when evicting") => {
            narrator.say(Voice::Kubectl, node, "is refused, and asks again in 5 s");
        }
        Step::Says(_) => {}
        Step::Drained(took) => narrator.say(Voice::Kubectl, node, &format!("drained after {}", seconds(*took))),
        Step::Rebooted => narrator.say(Voice::Machine, node, "has rebooted"),
        Step::Done => narrator.say(Voice::Admin, node, "uncordons it"),
    }
}

/// Nobody drains or evicts any more: until all data is complete, and the budget open.
async fn settle(rook: &Rook, narrator: &Narrator, is_guarded: bool) -> Result<()> {
    for osd in 0..rook.ceph().options().hosts {
        fleet::uncordon(&rook.client(), &rook.node_of(osd)).await?;
    }
    rook.ceph().all_up().await?;
    rook.ceph().clean(WELL_WITHIN).await?;
    if is_guarded {
        open(rook).await?;
    }
    let well = Line::plain("all OSDs are up, all placement groups are active+clean").look(Style::new().green().bold());
    narrator.tell(Voice::Ceph, "", [well]);
    Ok(())
}

/// Waits until any OSD may be evicted.
async fn open(rook: &Rook) -> Result<()> {
    wait::until("the budget of OSDs to be open", WELL_WITHIN, || async {
        let budget = rook.budgets().get("rook-ceph-osd").await?;
        let limit = budget.spec.and_then(|spec| spec.max_unavailable);
        let allowed = budget.status.map(|status| status.disruptions_allowed);
        ensure!(
            limit == Some(IntOrString::Int(1)) && allowed == Some(1),
            "{limit:?}, {allowed:?}"
        );
        Ok(())
    })
    .await
}
