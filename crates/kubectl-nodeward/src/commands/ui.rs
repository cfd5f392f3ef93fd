//! `ui`: the fleet in a browser, live; or a moment of it to keep.

use std::fs;
use std::path::Path;

use anyhow::Context as _;

use super::Exit;
use super::printed::PrintedCommands;
use super::request;
use crate::args::{Global, UiArgs};
use crate::cluster::Cluster;
use crate::screen::Screen;
use crate::text::Style;
use crate::ui::fleet::Source;
use crate::ui::server::{Server, Shown};
use crate::ui::{Live, export};

/// Serves the page until Ctrl-C, or keeps a moment and ends.
pub async fn run(args: &UiArgs, global: &Global, screen: &Screen) -> anyhow::Result<Exit> {
    if let Some(file) = &args.from {
        let text = fs::read_to_string(file).with_context(|| format!("{} cannot be read", file.display()))?;
        let kept = export::read(&text).with_context(|| format!("{} cannot be shown", file.display()))?;
        if let Some(page) = &args.export {
            write(page, &export::page(&kept)?, screen)?;
            return Ok(Exit::Done);
        }
        return serve(args, Shown::Snapshot(kept.into()), screen).await;
    }
    let mut cluster = Cluster::connect(global).await?;
    cluster.discover(false).await?;
    let requester = request::requester(&cluster).await.ok();
    let source = Source {
        cluster: cluster.display_name(global),
        user: requester.as_ref().map(|(user, _)| user.clone()),
        stale: None,
        version: env!("CARGO_PKG_VERSION"),
    };
    let commands = PrintedCommands::new(global, requester.map(|(_, requester)| requester));
    let live = Live::begin(cluster, source, commands);
    if args.snapshot.is_none() && args.export.is_none() {
        return serve(args, Shown::Cluster(live.into()), screen).await;
    }
    let fleet = live.first().await.context("the cluster cannot be watched")?;
    let kept = export::snapshot(&live, &fleet).await?;
    if let Some(file) = &args.snapshot {
        write(file, &serde_json::to_string(&kept)?, screen)?;
    }
    if let Some(page) = &args.export {
        write(page, &export::page(&kept)?, screen)?;
    }
    Ok(Exit::Done)
}

fn write(file: &Path, content: &str, screen: &Screen) -> anyhow::Result<()> {
    fs::write(file, content).with_context(|| format!("{} cannot be written", file.display()))?;
    screen.say(|page| page.text(Style::Plain, format!("Written: {}", file.display())));
    Ok(())
}

async fn serve(args: &UiArgs, shown: Shown, screen: &Screen) -> anyhow::Result<Exit> {
    let server = Server::bind(args.port)
        .await
        .context("no address on loopback can be listened on")?;
    let address = server.first_address();
    if let Shown::Cluster(live) = &shown {
        let live = live.clone();
        let screen = screen.clone();
        tokio::spawn(async move {
            let Some(fleet) = live.first().await else { return };
            screen.say(|page| {
                for unread in &fleet.unread {
                    if unread.is_hidden {
                        page.text(Style::Warning, format!("Cannot tell: {}.", unread.text));
                    } else {
                        page.text(Style::Faint, format!("Not shown: {}.", unread.text));
                    }
                }
            });
        });
    }
    screen.say(|page| {
        page.text(Style::Strong, &address);
        page.text(
            Style::Faint,
            "Only this address opens the page, and only on this machine. Ctrl-C ends it.",
        );
    });
    if !args.no_open
        && let Err(error) = open::that_detached(&address)
    {
        screen.say(|page| page.text(Style::Warning, format!("No browser could be opened: {error}.")));
    }
    tokio::select! {
        served = server.serve(shown) => served.context("the page is not served any more")?,
        interrupted = tokio::signal::ctrl_c() => {
            interrupted.context("Ctrl-C cannot be awaited")?;
            screen.clear_line();
        }
    }
    Ok(Exit::Done)
}
