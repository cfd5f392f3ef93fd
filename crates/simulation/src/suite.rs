//! Many runs: random topologies of several kinds, each beside the same drainers one node after another.

use std::collections::BTreeMap;
use std::fmt;
use std::sync::atomic::{AtomicUsize, Ordering};

use anyhow::Context;
use fastrand::Rng;

use crate::clock::{MINUTE, Millis};
use crate::judge::Violation;
use crate::run::{Outcome, Setup};
use crate::topology::{Drainer, Order, Shape, Topology};
use crate::world::Faults;

/// Who drains the nodes of a topology.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Kind {
    Parallel,
    HeldFirst,
    MovableFirst,
    Own,
    /// Each node by another.
    Mixed,
}

impl Kind {
    pub const ALL: [Self; 5] = [
        Self::Parallel,
        Self::HeldFirst,
        Self::MovableFirst,
        Self::Own,
        Self::Mixed,
    ];

    /// The kind of this seed: all take turns.
    pub fn of(seed: u64) -> Self {
        Self::ALL[usize::try_from(seed % 5).unwrap_or_default()]
    }

    fn drainers(self) -> &'static [Drainer] {
        const PARALLEL: Drainer = Drainer::Foreign(Order::Parallel);
        const HELD_FIRST: Drainer = Drainer::Foreign(Order::HeldFirst);
        const MOVABLE_FIRST: Drainer = Drainer::Foreign(Order::MovableFirst);
        match self {
            Self::Parallel => &[PARALLEL],
            Self::HeldFirst => &[HELD_FIRST],
            Self::MovableFirst => &[MOVABLE_FIRST],
            Self::Own => &[Drainer::Own],
            Self::Mixed => &[PARALLEL, HELD_FIRST, MOVABLE_FIRST, Drainer::Own],
        }
    }
}

impl fmt::Display for Kind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            Self::Parallel => "parallel",
            Self::HeldFirst => "held first",
            Self::MovableFirst => "movable first",
            Self::Own => "own",
            Self::Mixed => "mixed",
        })
    }
}

/// What a seed stands for.
pub fn draw(seed: u64) -> (Kind, Setup) {
    let mut rng = Rng::with_seed(seed);
    let kind = Kind::of(seed);
    let nodes = [2, 2, 3, 3, 4, 6][rng.usize(0..6)];
    let is_scarce = rng.u32(0..4) == 0;
    let shape = Shape {
        nodes,
        apps: nodes + rng.usize(0..=nodes),
        spread: rng.usize(2..=3).min(nodes),
        movable: [30, 50, 70][rng.usize(0..3)],
        cap: rng.i32(1..=2),
        per_node: [1, 1, 1, 3][rng.usize(0..4)],
        room: is_scarce.then(|| rng.usize(nodes.div_ceil(2)..=nodes + 2)),
        unbudgeted: if is_scarce { rng.usize(0..=2) } else { 0 },
        // Every third time that all kinds have had their turn.
        staying: if seed / 5 % 3 == 2 { 20 } else { 0 },
        rounds: if rng.u32(0..6) == 0 { 2 } else { 1 },
    };
    let mut topology = Topology::draw(shape, kind.drainers(), &mut rng);
    for drain in &mut topology.drains {
        if rng.u32(0..10) == 0 {
            drain.gives_up = Some(rng.i64(3 * MINUTE..8 * MINUTE));
        }
        if rng.u32(0..4) == 0 {
            drain.starts += rng.i64(0..2 * MINUTE);
        }
    }
    let faults = if rng.bool() {
        Faults::default()
    } else {
        Faults {
            death: 8,
            lost_answer: 10,
            webhook_timeout: 2,
            failing_pod: 20,
        }
    };
    let mut setup = Setup::new(topology, seed);
    setup.faults = faults;
    if rng.u32(0..3) == 0 {
        setup.keeper = Some(KEEPER);
    }
    (kind, setup)
}

/// Twelve nodes and twenty budgets, nothing else: what a rule costs on many nodes. A third has little room.
pub fn draw_large(seed: u64) -> (Kind, Setup) {
    let (kind, mut rng) = (Kind::of(seed), Rng::with_seed(seed));
    let is_scarce = rng.u32(0..3) == 0;
    let shape = Shape {
        nodes: 12,
        apps: 20,
        spread: 4,
        movable: 50,
        cap: 2,
        per_node: 1,
        room: is_scarce.then_some(20),
        unbudgeted: if is_scarce { 2 } else { 0 },
        staying: 0,
        rounds: 1,
    };
    let topology = Topology::draw(shape, kind.drainers(), &mut rng);
    (kind, Setup::new(topology, seed))
}

/// A drain-keeper that waits longer than any drain which goes on takes.
const KEEPER: &str = "upgradeSignal: always\noverrideBudgets: all\ncountsAsDrain: nodeDrain\n";

/// What came of a seed.
#[derive(Debug, Clone)]
pub struct Judged {
    pub seed: u64,
    pub kind: Kind,
    /// How long the same drainers take one node after another; `None`: they do not end either.
    pub one_after_another: Option<Millis>,
    pub outcome: Outcome,
}

impl Judged {
    /// What speaks against it: where the drainers do not end one node after another either, their not ending does not.
    pub fn violations(&self) -> Vec<&Violation> {
        let counts = |violation: &&Violation| **violation != Violation::NoEnd || self.one_after_another.is_some();
        self.outcome.violations.iter().filter(counts).collect()
    }
}

/// Runs a setup, and the same one node after another.
///
/// # Errors
/// When a configuration cannot be read.
pub fn judge(seed: u64, kind: Kind, setup: &Setup) -> anyhow::Result<Judged> {
    Ok(Judged {
        seed,
        kind,
        one_after_another: setup.one_after_another().run()?.makespan,
        outcome: setup.run()?,
    })
}

/// Judges what `draw` makes of these seeds, on all processors, in their order. Their stories are left out.
///
/// # Errors
/// When a configuration cannot be read.
pub fn judge_seeds(
    seeds: impl IntoIterator<Item = u64>,
    draw: fn(u64) -> (Kind, Setup),
) -> anyhow::Result<Vec<Judged>> {
    let seeds: Vec<u64> = seeds.into_iter().collect();
    let next = AtomicUsize::new(0);
    let work = || -> anyhow::Result<Vec<Judged>> {
        let mut all = Vec::new();
        while let Some(&seed) = seeds.get(next.fetch_add(1, Ordering::Relaxed)) {
            let (kind, setup) = draw(seed);
            all.push(judge(seed, kind, &setup)?);
        }
        Ok(all)
    };
    let threads = std::thread::available_parallelism().map_or(1, usize::from);
    let mut all = Vec::new();
    std::thread::scope(|scope| {
        let workers: Vec<_> = (0..threads).map(|_| scope.spawn(work)).collect();
        for worker in workers {
            all.extend(worker.join().ok().context("a thread has panicked")??);
        }
        anyhow::Ok(())
    })?;
    all.sort_by_key(|judged| judged.seed);
    Ok(all)
}

/// The smallest setup that is objected to in the same way, with its story.
///
/// # Errors
/// When a configuration cannot be read.
pub fn shrink(judged: &Judged, setup: &Setup) -> anyhow::Result<(Setup, Judged)> {
    let kinds = |judged: &Judged| -> Vec<_> { judged.violations().into_iter().map(std::mem::discriminant).collect() };
    let (wanted, mut best) = (kinds(judged).first().copied(), (setup.clone(), judged.clone()));
    'smaller: loop {
        for topology in best.0.topology.smaller() {
            let less = Setup {
                topology: topology.into(),
                ..best.0.clone()
            };
            let judged = judge(judged.seed, judged.kind, &less)?;
            if wanted.is_some_and(|wanted| kinds(&judged).contains(&wanted)) {
                best = (less, judged);
                continue 'smaller;
            }
        }
        break;
    }
    best.0.tells = true;
    best.1.outcome = best.0.run()?;
    Ok(best)
}

/// How many of a kind end, and how fast.
#[derive(Debug, Default)]
pub struct Shares(BTreeMap<Kind, Share>);

#[derive(Debug, Default)]
struct Share {
    /// Topologies whose drains end one node after another.
    topologies: u32,
    ended: u32,
    /// Topologies that wedge even one node after another, and how many of these end.
    others: (u32, u32),
    objected: u32,
    makespan: Millis,
    one_after_another: Millis,
}

impl Shares {
    /// By kind, how many of a hundred topologies end of those that end one node after another.
    pub fn of_hundred(&self) -> impl Iterator<Item = (Kind, u32)> {
        let shares = self.0.iter();
        shares.map(|(kind, share)| (*kind, share.ended * 100 / share.topologies.max(1)))
    }

    pub fn add(&mut self, judged: &Judged) {
        let share = self.0.entry(judged.kind).or_default();
        let has_ended = u32::from(judged.outcome.makespan.is_some());
        if let Some(alone) = judged.one_after_another {
            share.topologies += 1;
            share.ended += has_ended;
            if let Some(makespan) = judged.outcome.makespan {
                share.makespan += makespan;
                share.one_after_another += alone;
            }
        } else {
            share.others.0 += 1;
            share.others.1 += has_ended;
        }
        let others = judged
            .violations()
            .into_iter()
            .filter(|violation| **violation != Violation::NoEnd);
        share.objected += u32::from(others.count() > 0);
    }
}

impl fmt::Display for Shares {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (kind, share) in &self.0 {
            let ratio = share.makespan * 100 / share.one_after_another.max(1);
            writeln!(
                f,
                "{kind:14} {:>5} of {:>5} end in {ratio:>3} % of the time of one after another; {} of {} that wedge even so; \
                 objected to otherwise: {}",
                share.ended, share.topologies, share.others.1, share.others.0, share.objected
            )?;
        }
        Ok(())
    }
}
