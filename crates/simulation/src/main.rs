//! Many seeds by hand: `cargo run -p simulation -- --seeds 20000`. A failing one is told as a short story.

use std::process::ExitCode;

use anyhow::Result;
use clap::Parser;
use simulation::suite::{Judged, Shares, draw, draw_large, judge, judge_seeds, shrink};

/// Runs drains in a simulated cluster, and judges them.
#[derive(Parser)]
struct Arguments {
    /// How many seeds.
    #[arg(long, default_value_t = 200)]
    seeds: u64,
    /// The first of them.
    #[arg(long, default_value_t = 0)]
    first: u64,
    /// Only those of this kind, by its place: parallel, held first, movable first, own, mixed.
    #[arg(long)]
    kind: Option<u64>,
    /// Twelve nodes and twenty budgets each.
    #[arg(long)]
    large: bool,
    /// Tell the story of each seed as it is, and not of a smaller one.
    #[arg(long)]
    whole: bool,
    /// How many failing seeds are told.
    #[arg(long, default_value_t = 1)]
    stories: usize,
}

fn main() -> Result<ExitCode> {
    let arguments = Arguments::parse();
    let draw = if arguments.large { draw_large } else { draw };
    let is_wanted = |seed: &u64| arguments.kind.is_none_or(|kind| kind == seed % 5);
    let all = judge_seeds(
        (arguments.first..arguments.first + arguments.seeds).filter(is_wanted),
        draw,
    )?;
    let mut shares = Shares::default();
    for judged in &all {
        shares.add(judged);
    }
    let failing: Vec<&Judged> = all.iter().filter(|judged| !judged.violations().is_empty()).collect();
    for judged in &failing {
        let violations: Vec<String> = judged.violations().iter().map(ToString::to_string).collect();
        println!("seed {} ({}): {}", judged.seed, judged.kind, violations.join("; "));
    }
    for judged in failing.iter().take(arguments.stories) {
        let (kind, mut setup) = draw(judged.seed);
        let told = if arguments.whole {
            setup.tells = true;
            judge(judged.seed, kind, &setup)?
        } else {
            let (smaller, told) = shrink(judged, &setup)?;
            setup = smaller;
            told
        };
        println!(
            "\nseed {} in short:\n{}{}\n",
            judged.seed,
            setup.topology,
            told.outcome.story.join("\n")
        );
    }
    print!("{shares}");
    Ok(if failing.is_empty() {
        ExitCode::SUCCESS
    } else {
        ExitCode::FAILURE
    })
}
