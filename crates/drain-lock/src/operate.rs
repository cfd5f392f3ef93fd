//! The loop: observe, plan, execute, report, and sleep until something changes or falls due.

use std::sync::Arc;
use std::time::Duration;

use jiff::Timestamp;
use nodeward_runtime::{Ended, LeaderState, OperatorContext, WebhookArgs, sleep_until};
use tokio::time::Instant;

use crate::execute::{Executor, Key, Outcome, Work};
use crate::fleet_lock;
use crate::observe::{Watched, World};
use crate::plan::stale_budget::StaleBudgets;
use crate::plan::{Plan, plan};
use crate::remember::Remember;
use crate::report::{Reporter, locked_by};
use crate::settings::Settings;
use crate::snapshot::{Asked, Snapshot};
use crate::webhook::Webhook;

/// A pass that takes longer than this means that the process is stuck.
const PASS_LIMIT: Duration = Duration::from_mins(1);

/// From one pass to the next at least, unless something falls due: a drain of many nodes changes hundreds of pods a second,
/// and one pass sees them all.
const PASS_SPACING: Duration = Duration::from_millis(30);

/// How long a world that is not believed is left alone before it is asked again.
const DOUBT: Duration = Duration::from_secs(5);

/// Runs until shutdown.
///
/// # Errors
/// When the address of the webhook or of FleetLock is taken. What goes wrong with one object is reported and tried again.
pub async fn operate(context: OperatorContext<Settings>, webhook: WebhookArgs) -> anyhow::Result<()> {
    let progress = context.liveness.watch("main loop", PASS_LIMIT);
    let (shutdown, wake) = (context.shutdown.clone(), context.wake.clone());
    let watched = Watched {
        medik8s_namespace: context.config.current().policy.medik8s_leases.clone(),
    };
    let world = World::open(&context, &watched);
    // Every replica answers reviews, whoever leads.
    let reviews = Webhook::open(&context, &world);
    let address = nodeward_runtime::webhook::serve(&context, &webhook, reviews.router()).await?;
    tracing::info!(%address, "the eviction webhook answers");
    fleet_lock::serve(&context, &world).await?;
    let mut drainer = Drainer::new(context, world);
    loop {
        let began = Instant::now();
        let next = {
            let _pass = progress.begin_pass();
            drainer.pass(Timestamp::now())
        };
        let changed = async {
            tokio::select! {
                () = wake.woken() => {}
                () = drainer.executor.wait() => {}
            }
            tokio::time::sleep_until(began + PASS_SPACING).await;
        };
        tokio::select! {
            () = shutdown.cancelled() => break,
            () = changed => {}
            () = sleep_until(next) => {}
        }
    }
    drainer.finish().await;
    Ok(())
}

/// Everything that lives as long as the process.
struct Drainer {
    context: OperatorContext<Settings>,
    world: Arc<World>,
    remember: Remember,
    stale_budgets: StaleBudgets,
    executor: Executor,
    reporter: Reporter,
    led: bool,
}

impl Drainer {
    fn new(context: OperatorContext<Settings>, world: Arc<World>) -> Self {
        Self {
            remember: Remember::nothing(context.args.dry_run),
            stale_budgets: StaleBudgets::default(),
            executor: Executor::new(
                context.clients.clone(),
                context.leadership.clone(),
                Arc::clone(&world),
                context.component.field_manager(),
                context.args.dry_run,
            ),
            reporter: Reporter::new(&context.metrics, context.events.clone()),
            led: false,
            world,
            context,
        }
    }

    /// One pass. Returns when the next is due at the latest.
    fn pass(&mut self, now: Timestamp) -> Option<Timestamp> {
        self.settle(now);
        if !matches!(self.context.leadership.state(), LeaderState::Leading { .. }) {
            self.stand_down();
            return None;
        }
        self.led = true;
        let Some(snapshot) = self.world.snapshot(&self.asked(), now) else {
            return now.checked_add(DOUBT).ok();
        };
        let snapshot = Arc::new(snapshot);
        let policy = Arc::clone(&self.context.config.current().policy);
        let mut plan = plan(&snapshot, self.remember.at(now), &policy, now);
        self.remember.departing(std::mem::take(&mut plan.departing), now);
        self.remember.reserved(std::mem::take(&mut plan.reserved));
        let shows = self.reporter.report(&snapshot, &plan, now);
        let requeue_at = plan.requeue_at;
        let (stale, look_at) = self.stale_budgets.due(&snapshot, now);
        let touches = stale.iter().filter_map(|key| locked_by::touch(&snapshot, key));
        let works = works(plan)
            .into_iter()
            .chain(touches.map(Work::Show))
            .chain(shows.into_iter().map(Work::Show));
        let delayed = works.filter_map(|work| self.begin(work, &snapshot, now)).min();
        [requeue_at, look_at, delayed].into_iter().flatten().min()
    }

    /// What the plan needs to see besides the nodes of drains and claims: the budgets that owners hold.
    fn asked(&self) -> Asked {
        let held = self.world.owner_holds().into_iter().map(|hold| hold.budget.clone());
        Asked {
            budgets: held.chain(self.remember.reserved_budgets().cloned()).collect(),
            ..Asked::default()
        }
    }

    /// Begins a work, unless it is too early for it. Returns when it is not, then.
    fn begin(&mut self, work: Work, snapshot: &Arc<Snapshot>, now: Timestamp) -> Option<Timestamp> {
        let key = work.key();
        if let Some(until) = self.remember.not_before(&key, now) {
            return Some(until);
        }
        let pods = work.pods();
        if self.executor.start(work, snapshot) {
            self.remember.started(&key, &pods, now);
        }
        None
    }

    fn settle(&mut self, now: Timestamp) {
        for ended in self.executor.ended() {
            self.take(&ended, now);
        }
    }

    fn take(&mut self, ended: &Ended<Key, Outcome>, now: Timestamp) {
        if let Some(outcome) = &ended.outcome {
            self.reporter.acted(&ended.key, outcome);
            self.remember.completed(&ended.key, outcome, now);
        }
    }

    /// Only the leader acts and speaks. What was remembered is too old by the time this process leads again.
    fn stand_down(&mut self) {
        if std::mem::take(&mut self.led) {
            self.remember = Remember::nothing(self.context.args.dry_run);
            self.stale_budgets = StaleBudgets::default();
            self.reporter.stand_down();
        }
    }

    /// Lets what is under way come to its end.
    async fn finish(mut self) {
        for ended in self.executor.finish().await {
            self.take(&ended, Timestamp::now());
        }
    }
}

/// What is to be done, the ledger first: everything else waits for it.
fn works(plan: Plan) -> Vec<Work> {
    let ledger = plan.ledger.map(Work::Ledger);
    ledger
        .into_iter()
        .chain(plan.actions.into_iter().map(Work::Act))
        .collect()
}
