//! The loop: observe, plan, execute, report, and sleep until something changes or falls due.

use std::sync::Arc;
use std::time::Duration;

use jiff::Timestamp;
use nodeward_runtime::{LeaderState, OperatorContext, sleep_until};
use tokio::time::Instant;

use crate::execute::{Completion, Executor};
use crate::observe::Observer;
use crate::plan::plan;
use crate::policy_in_force::PolicyInForce;
use crate::remember::Remember;
use crate::report::Reporter;
use crate::settings::Settings;

/// A pass that takes longer than this means that the process is stuck.
const PASS_LIMIT: Duration = Duration::from_mins(1);

/// From one pass to the next at least, unless something falls due: a drain of many nodes changes hundreds of pods a second,
/// and one pass sees them all.
const PASS_SPACING: Duration = Duration::from_millis(50);

/// Runs until shutdown.
///
/// # Errors
/// None of its own: what goes wrong with one object is reported and tried again.
pub async fn operate(context: OperatorContext<Settings>) -> anyhow::Result<()> {
    let progress = context.liveness.watch("main loop", PASS_LIMIT);
    let (shutdown, wake) = (context.shutdown.clone(), context.wake.clone());
    let mut keeper = Keeper::new(context);
    loop {
        let began = Instant::now();
        let next = {
            let _pass = progress.begin_pass();
            keeper.pass(Timestamp::now())
        };
        let changed = async {
            tokio::select! {
                () = wake.woken() => {}
                () = keeper.executor.wait() => {}
                () = keeper.reporter.wait() => {}
            }
            tokio::time::sleep_until(began + PASS_SPACING).await;
        };
        tokio::select! {
            () = shutdown.cancelled() => break,
            () = changed => {}
            () = sleep_until(next) => {}
        }
    }
    keeper.finish().await;
    Ok(())
}

/// Everything that lives as long as the process.
struct Keeper {
    context: OperatorContext<Settings>,
    observer: Observer,
    remember: Remember,
    executor: Executor,
    reporter: Reporter,
    policy: PolicyInForce,
    led: bool,
}

impl Keeper {
    fn new(context: OperatorContext<Settings>) -> Self {
        let policy = PolicyInForce::new(&context);
        Self {
            observer: Observer::open(&context),
            remember: policy.remember_nothing(&context),
            executor: Executor::new(
                context.clients.clone(),
                context.leadership.clone(),
                context.args.dry_run,
            ),
            reporter: Reporter::new(&context),
            policy,
            led: false,
            context,
        }
    }

    /// One pass. Returns when the next is due at the latest.
    fn pass(&mut self, now: Timestamp) -> Option<Timestamp> {
        self.take_completed(now);
        let policy = self.policy.current(&self.context, &mut self.observer)?;
        self.executor.go_by(&policy);
        self.observer.follow_signal(&policy.signal);
        if !matches!(self.context.leadership.state(), LeaderState::Leading { .. }) {
            self.stand_down();
            return None;
        }
        self.led = true;
        let Some(mut snapshot) = self.observer.snapshot(self.remember.at(policy.forced_per_minute, now)) else {
            return self.observer.waits_until();
        };
        self.remember.compare(&mut snapshot);
        let snapshot = Arc::new(snapshot);
        let mut plan = plan(&snapshot, &policy, now);
        self.observer.follow_pods_of(&plan.watch_pods);
        self.remember.planned(&plan);
        for started in self
            .executor
            .start(std::mem::take(&mut plan.actions), &snapshot, &policy)
        {
            self.remember.started(&started, now);
        }
        let next_report = self.reporter.report(&snapshot, &plan, now);
        [plan.requeue_at, next_report].into_iter().flatten().min()
    }

    fn take_completed(&mut self, now: Timestamp) {
        for completion in self.executor.completed() {
            self.settle(&completion, now);
        }
    }

    fn settle(&mut self, completion: &Completion, now: Timestamp) {
        if let Completion::Pod(done) = completion {
            let is_first_attempt = self.remember.failures(&done.action.pod.uid) == 0;
            self.reporter.acted(done, is_first_attempt);
        }
        self.remember.completed(completion, now);
    }

    /// Only the leader acts and speaks. What was remembered is too old by the time this process leads again.
    fn stand_down(&mut self) {
        if std::mem::take(&mut self.led) {
            self.observer.follow_pods_of(&std::collections::BTreeSet::new());
            self.remember = self.policy.remember_nothing(&self.context);
            self.reporter.stand_down();
        }
    }

    /// Lets what is under way come to its end.
    async fn finish(mut self) {
        for completion in self.executor.finish().await {
            self.settle(&completion, Timestamp::now());
        }
        self.reporter.finish().await;
    }
}
