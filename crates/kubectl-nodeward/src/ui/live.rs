//! The fleet as it is now: made anew when a watch has seen a change, and looked after while the API server is away.

use std::sync::Arc;
use std::time::Duration;

use jiff::Timestamp;
use tokio::sync::watch;
use tokio::time::{Instant, MissedTickBehavior, interval, sleep_until, timeout};

use super::fleet::{Fleet, Quiet, Source, Stale};
use super::sources::FleetWatches;
use crate::cluster::Cluster;
use crate::commands::printed::PrintedCommands;
use crate::fetch::{Known, Reader};

/// Changes of this time are shown together.
const GATHERED: Duration = Duration::from_millis(100);

/// How often the fleet is made anew without a change: countdowns end by themselves.
const AGAIN: Duration = Duration::from_secs(5);

/// How often the API server is asked for a sign of life, and how long it may take.
const BEAT: Duration = Duration::from_secs(3);

/// How often kinds are looked for that are installed later.
const DISCOVERY: Duration = Duration::from_mins(1);

/// How long the first reading of everything may take before what is there is shown.
const FIRST: Duration = Duration::from_secs(20);

/// The fleet as it is now. Clones share it.
#[derive(Clone)]
pub struct Live {
    fleets: watch::Receiver<Option<Arc<Fleet>>>,
    base: watch::Receiver<Base>,
    pub commands: PrintedCommands,
}

/// What a further reading rests on: kinds that were looked for, and what watches hold.
#[derive(Clone)]
pub struct Base {
    pub cluster: Cluster,
    known: Known,
}

impl Base {
    /// Reads what is not known.
    pub fn reader(&self) -> Reader<'_> {
        Reader {
            known: self.known.clone(),
            ..Reader::new(&self.cluster)
        }
    }
}

impl Live {
    /// Begins to watch. What it returns lives in the background until all that hold it are gone.
    pub fn begin(cluster: Cluster, source: Source, commands: PrintedCommands) -> Self {
        let (sender, fleets) = watch::channel(None);
        let (bases, base) = watch::channel(Base {
            cluster: cluster.clone(),
            known: Known::default(),
        });
        let live = Self {
            fleets,
            base,
            commands: commands.clone(),
        };
        let publisher = Publisher {
            watches: FleetWatches::open(&cluster),
            cluster,
            source,
            commands,
            answered: Timestamp::now(),
            bases,
            quiet: Quiet::default(),
        };
        tokio::spawn(publisher.run(sender));
        live
    }

    /// To be told of each new one.
    pub fn fleets(&self) -> watch::Receiver<Option<Arc<Fleet>>> {
        self.fleets.clone()
    }

    /// What a further reading rests on now.
    pub fn base(&self) -> Base {
        self.base.borrow().clone()
    }

    /// The fleet once all has been read that may be read.
    pub async fn first(&self) -> Option<Arc<Fleet>> {
        let mut fleets = self.fleets();
        let first = fleets.wait_for(Option::is_some).await.ok()?;
        first.clone()
    }
}

struct Publisher {
    watches: FleetWatches,
    cluster: Cluster,
    source: Source,
    commands: PrintedCommands,
    /// When the API server last gave a sign of life.
    answered: Timestamp,
    bases: watch::Sender<Base>,
    quiet: Quiet,
}

impl Publisher {
    async fn run(mut self, fleets: watch::Sender<Option<Arc<Fleet>>>) {
        let given_up = Instant::now() + FIRST;
        while Instant::now() < given_up {
            self.watches.follow_configuration(&self.cluster);
            if self.watches.is_complete() {
                break;
            }
            tokio::select! {
                () = self.watches.changed() => (),
                () = tokio::time::sleep(GATHERED) => (),
                () = fleets.closed() => return,
            }
        }
        let (mut beat, mut discovery) = (interval(BEAT), interval(DISCOVERY));
        beat.set_missed_tick_behavior(MissedTickBehavior::Delay);
        discovery.set_missed_tick_behavior(MissedTickBehavior::Delay);
        discovery.tick().await;
        loop {
            let began = Instant::now();
            self.publish(&fleets);
            // Not sooner than this after the last one, so that a busy cluster costs no more than a part of one core.
            sleep_until(began + GATHERED.max(began.elapsed() * 3)).await;
            tokio::select! {
                () = self.watches.changed() => (),
                () = sleep_until(began + AGAIN) => (),
                () = fleets.closed() => return,
                _ = beat.tick() => self.listen().await,
                _ = discovery.tick() => self.discover().await,
            }
        }
    }

    fn publish(&mut self, fleets: &watch::Sender<Option<Arc<Fleet>>>) {
        let (inputs, now) = (self.watches.read(), Timestamp::now());
        let fleet = Fleet::of(&inputs, &mut self.quiet, self.source.clone(), &self.commands, now);
        self.bases.send_replace(Base {
            cluster: self.cluster.clone(),
            known: self.watches.known(inputs),
        });
        fleets.send_replace(Some(Arc::new(fleet)));
    }

    /// A watch that is quiet looks like one whose server is away, so the server is asked.
    async fn listen(&mut self) {
        let answer = timeout(BEAT, self.cluster.client.apiserver_version()).await;
        let problem = match answer {
            Ok(Ok(_)) => None,
            // A refusal is an answer, too.
            Ok(Err(kube::Error::Api(status))) if status.code < 500 => None,
            Ok(Err(error)) => Some(self.cluster.failure(&error).to_string()),
            Err(_) => Some(format!("the API server has not answered for {} s", BEAT.as_secs())),
        };
        match problem {
            None => {
                self.answered = Timestamp::now();
                self.source.stale = None;
            }
            Some(message) => {
                let since = self.answered;
                self.source.stale = Some(Stale { since, message });
            }
        }
    }

    async fn discover(&mut self) {
        let mut cluster = self.cluster.clone();
        // Without an answer the next look finds out.
        if cluster.discover(false).await.is_ok() {
            self.watches.follow_served(&cluster);
            self.watches.follow_configuration(&cluster);
            self.cluster = cluster;
        }
    }
}
