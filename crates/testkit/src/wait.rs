//! Waiting for a condition, with a deadline and a failure that says what was last seen.

use std::future::Future;
use std::time::{Duration, Instant};

use anyhow::{Result, anyhow, bail};

const FIRST_PAUSE: Duration = Duration::from_millis(20);
pub(crate) const LONGEST_PAUSE: Duration = Duration::from_millis(250);

/// How long the look at the deadline may take.
const LAST_LOOK: Duration = Duration::from_secs(5);

/// Asks `probe` until it gives `Ok`, at most for `deadline`.
///
/// An `Err` from the probe means "not yet" and describes the present state: `?` on an API call and
/// [`anyhow::ensure!`] on the condition are the usual way to write one.
///
/// # Errors
/// When the deadline passes; the message names what was waited for and the state seen last.
pub async fn until<T, F, Fut>(what: impl AsRef<str>, deadline: Duration, mut probe: F) -> Result<T>
where
    F: FnMut() -> Fut,
    Fut: Future<Output = Result<T>>,
{
    let began = Instant::now();
    let mut pause = FIRST_PAUSE;
    let mut last = String::from("nothing: the first look did not end");
    loop {
        let left = deadline.saturating_sub(began.elapsed());
        match tokio::time::timeout(left, probe()).await {
            Ok(Ok(value)) => return Ok(value),
            Ok(Err(not_yet)) => last = format!("{not_yet:#}"),
            Err(_) => break,
        }
        if began.elapsed() + pause >= deadline {
            tokio::time::sleep(deadline.saturating_sub(began.elapsed())).await;
            if let Ok(Ok(value)) = tokio::time::timeout(LAST_LOOK, probe()).await {
                return Ok(value);
            }
            break;
        }
        tokio::time::sleep(pause).await;
        pause = (pause * 2).min(LONGEST_PAUSE);
    }
    bail!("waited {deadline:?} for {}; last seen: {last}", what.as_ref())
}

/// Asks `probe` for the whole of `span` and fails as soon as it gives an `Err`: for what must *stay* so.
///
/// # Errors
/// The probe's first error, with the time at which it came.
pub async fn throughout<F, Fut>(what: impl AsRef<str>, span: Duration, mut probe: F) -> Result<()>
where
    F: FnMut() -> Fut,
    Fut: Future<Output = Result<()>>,
{
    let began = Instant::now();
    while began.elapsed() < span {
        probe().await.map_err(|broken| {
            anyhow!(
                "{} did not hold for {span:?}: {broken:#}, after {:?}",
                what.as_ref(),
                began.elapsed()
            )
        })?;
        tokio::time::sleep(LONGEST_PAUSE.min(span / 4)).await;
    }
    Ok(())
}

/// Seconds, as the deadlines of tests are written.
pub const fn secs(n: u64) -> Duration {
    Duration::from_secs(n)
}
