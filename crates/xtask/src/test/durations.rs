//! How long each test binary took when all of its tests were last run on this machine: the longest is started first, so that
//! none is left to run alone at the end.

use std::cmp::Reverse;
use std::collections::BTreeMap;
use std::fs;
use std::path::PathBuf;
use std::time::Duration;

use nodeward_testkit::toolchain;

/// By name of the binary, in seconds.
#[derive(Default)]
pub struct Durations(BTreeMap<String, f64>);

impl Durations {
    /// Those of earlier runs; nothing is known where they cannot be read.
    pub fn load() -> Self {
        let text = file().and_then(|file| fs::read(file).ok()).unwrap_or_default();
        Self(serde_json::from_slice(&text).unwrap_or_default())
    }

    /// Adds what a run took, and keeps all for the next one. They only order the tests: a failure to write is told, no more.
    pub fn record(mut self, taken: impl IntoIterator<Item = (String, Duration)>) {
        self.0
            .extend(taken.into_iter().map(|(name, taken)| (name, taken.as_secs_f64())));
        let written = file().map(|file| fs::write(file, serde_json::json!(self.0).to_string()));
        if let Some(Err(error)) = written {
            eprintln!("the durations of the tests are not kept: {error}");
        }
    }

    /// The longest first. Before them those that have never run here, the largest first: nobody knows how long they take.
    pub fn longest_first<T>(&self, binaries: &mut [T], name_and_size: impl Fn(&T) -> (String, u64)) {
        binaries.sort_by_cached_key(|binary| {
            let (name, size) = name_and_size(binary);
            let taken = self.0.get(&name).map(|seconds| Duration::try_from_secs_f64(*seconds));
            let taken = taken.map_or(Duration::MAX, Result::unwrap_or_default);
            Reverse((taken, size))
        });
    }
}

/// Beside the testbed's programs, which all clones share, too.
fn file() -> Option<PathBuf> {
    Some(toolchain::cache_dir().ok()?.join("test-durations.json"))
}

#[cfg(test)]
mod tests {
    use super::Durations;

    #[test]
    fn unknown_binaries_run_first_then_the_longest() {
        let known = [("short", 1.0), ("long", 300.0), ("longer", 300.5)];
        let durations = Durations(known.map(|(name, seconds)| (name.to_owned(), seconds)).into());
        let mut binaries = [
            ("short", 9),
            ("new", 1),
            ("long", 5),
            ("longer", 1),
            ("new and large", 2),
        ];
        durations.longest_first(&mut binaries, |(name, size)| ((*name).to_owned(), *size));
        assert_eq!(
            binaries.map(|(name, _)| name),
            ["new and large", "new", "longer", "long", "short"]
        );
    }
}
