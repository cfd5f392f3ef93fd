//! How long one pass of an operator takes over a large fleet: no control plane, only the decision.

mod keeper;

use anyhow::Result;

use super::Figures;

#[derive(clap::Args)]
pub struct Args {}

pub async fn bench(_: &Args) -> Result<Figures> {
    let mut figures = Figures::default();
    figures.line("One pass over a fleet, by its nodes");
    keeper::bench(&mut figures).await?;
    Ok(figures)
}
