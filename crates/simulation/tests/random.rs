//! Random topologies: `SEEDS=2000 cargo test -p simulation --test random` judges so many, and prints what shares of them end. One
//! that fails is told as a short story by `cargo run -p simulation -- --first SEED --seeds 1`.

use simulation::judge::Violation;
use simulation::suite::{Shares, draw, judge_seeds};

/// Two minutes of a processor: enough to meet each kind of drainer many times, with and without faults. Each night judges more of
/// them.
const SEEDS: u64 = 200;

/// Of a hundred topologies whose drains end one node after another, so many end at once. Where room is scarce, drainers that come
/// with a cordon of their own can take it from each other. Of thousands of seeds 96 do; of the thirty to forty of a kind that are
/// judged here three or four fewer are chance.
const END_AT_LEAST: u32 = 88;

#[test]
fn drains_end_and_break_nothing() {
    let seeds = std::env::var("SEEDS")
        .ok()
        .and_then(|seeds| seeds.parse().ok())
        .unwrap_or(SEEDS);
    let (mut shares, mut failing) = (Shares::default(), Vec::new());
    for judged in judge_seeds(0..seeds, draw).unwrap() {
        shares.add(&judged);
        let violations = judged.violations().into_iter();
        let violations = violations.filter(|violation| **violation != Violation::NoEnd);
        failing.extend(violations.map(|violation| format!("seed {} ({}): {violation}", judged.seed, judged.kind)));
    }
    println!("{shares}");
    assert!(failing.is_empty(), "{}\n{shares}", failing.join("\n"));
    for (kind, share) in shares.of_hundred() {
        assert!(share >= END_AT_LEAST, "{kind}\n{shares}");
    }
}

#[test]
fn a_seed_tells_one_story() {
    for seed in [4, 8] {
        let (_, mut setup) = draw(seed);
        setup.tells = true;
        assert_eq!(setup.run().unwrap().story, setup.run().unwrap().story, "seed {seed}");
    }
}
