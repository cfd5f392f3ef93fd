//! The configuration file, followed through every way in which files get replaced.

use std::path::{Path, PathBuf};

use tokio_util::sync::CancellationToken;

use super::{ConfigError, ConfigHandle};
use crate::file_changes::FileChanges;

/// The longest text that is taken for a configuration, in bytes: a ConfigMap can hold no more.
const LONGEST: u64 = 1024 * 1024;

/// A configuration file and what watches over it.
#[derive(Debug)]
pub struct ConfigFile {
    path: PathBuf,
    changes: FileChanges,
}

/// Reads a configuration file.
pub fn read(path: &Path) -> Result<String, ConfigError> {
    let failed = |problem: String| ConfigError::new(problem).in_origin(path.display().to_string());
    let size = std::fs::metadata(path)
        .map_err(|error| failed(format!("cannot be read: {error}")))?
        .len();
    if size > LONGEST {
        return Err(failed(format!(
            "is {size} bytes long, and {LONGEST} are the most that a configuration can be"
        )));
    }
    let bytes = std::fs::read(path).map_err(|error| failed(format!("cannot be read: {error}")))?;
    String::from_utf8(bytes).map_err(|error| failed(format!("is not UTF-8 text: {error}")))
}

impl ConfigFile {
    /// Begins to watch the file.
    pub fn watch(path: &Path) -> Self {
        Self {
            path: path.to_owned(),
            changes: FileChanges::beside(path),
        }
    }

    /// Offers each new content to the handle, until `stop` is cancelled.
    pub async fn follow<T>(mut self, handle: ConfigHandle<T>, stop: CancellationToken) {
        let origin = self.path.display().to_string();
        // The first look comes before any change: one may have happened before the watch began.
        loop {
            match read(&self.path) {
                Ok(text) => handle.offer(&text, &origin),
                Err(error) => handle.reject(error),
            };
            tokio::select! {
                () = stop.cancelled() => return,
                () = self.changes.next() => {}
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::os::unix::fs::symlink;
    use std::path::Path;
    use std::time::Duration;

    use rstest::rstest;
    use tokio::time::timeout;
    use tokio_util::sync::CancellationToken;
    use tokio_util::task::AbortOnDropHandle;

    use super::{ConfigFile, LONGEST, read};
    use crate::component::Component;
    use crate::config::{ConfigError, ConfigHandle, from_yaml};
    use crate::metrics::Metrics;
    use crate::reconcile_trigger::ReconcileTrigger;

    const PATIENCE: Duration = Duration::from_mins(1);

    fn parse(text: &str) -> Result<u32, ConfigError> {
        from_yaml(text)
    }

    struct Followed {
        handle: ConfigHandle<u32>,
        trigger: ReconcileTrigger,
        _task: AbortOnDropHandle<()>,
    }

    impl Followed {
        fn start(path: &Path) -> Self {
            let trigger = ReconcileTrigger::new();
            let metrics = Metrics::new(Component::new("drain-keeper", "1.2.3"));
            let text = read(path).unwrap();
            let handle = ConfigHandle::first(parse, text, "f.yaml", trigger.clone(), &metrics).unwrap();
            let follow = ConfigFile::watch(path).follow(handle.clone(), CancellationToken::new());
            Self {
                handle,
                trigger,
                _task: AbortOnDropHandle::new(tokio::spawn(follow)),
            }
        }

        async fn until(&self, reached: impl Fn(&ConfigHandle<u32>) -> bool) {
            let waiting = async {
                while !reached(&self.handle) {
                    self.trigger.notified().await;
                }
            };
            timeout(PATIENCE, waiting).await.expect("the change is not noticed");
        }
    }

    fn write_in_place(path: &Path, text: &str) {
        fs::write(path, text).unwrap();
    }

    fn replace_as_an_editor_does(path: &Path, text: &str) {
        let new = path.with_extension("swp");
        fs::write(&new, text).unwrap();
        fs::rename(&new, path).unwrap();
    }

    fn remove_and_create(path: &Path, text: &str) {
        fs::remove_file(path).unwrap();
        fs::write(path, text).unwrap();
    }

    #[rstest]
    #[case::in_place(write_in_place)]
    #[case::renamed_over(replace_as_an_editor_does)]
    #[case::removed_and_created(remove_and_create)]
    #[tokio::test]
    async fn every_way_of_changing_a_file_is_noticed(#[case] change: fn(&Path, &str)) {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("f.yaml");
        fs::write(&path, "1").unwrap();
        let followed = Followed::start(&path);
        change(&path, "2");
        followed.until(|handle| *handle.current() == 2).await;
        change(&path, "broken");
        followed.until(|handle| handle.rejection().is_some()).await;
        assert_eq!(*followed.handle.current(), 2, "the last good one stays");
        change(&path, "3");
        followed
            .until(|handle| *handle.current() == 3 && handle.rejection().is_none())
            .await;
    }

    #[tokio::test]
    async fn swapped_config_map_volume_is_noticed() {
        let directory = tempfile::tempdir().unwrap();
        let volume = directory.path();
        let put = |generation: &str, text: &str| {
            fs::create_dir(volume.join(generation)).unwrap();
            fs::write(volume.join(generation).join("f.yaml"), text).unwrap();
            symlink(generation, volume.join("..data_tmp")).unwrap();
            fs::rename(volume.join("..data_tmp"), volume.join("..data")).unwrap();
        };
        put("..2026_01_01", "1");
        symlink("..data/f.yaml", volume.join("f.yaml")).unwrap();
        let followed = Followed::start(&volume.join("f.yaml"));
        put("..2026_01_02", "2");
        fs::remove_dir_all(volume.join("..2026_01_01")).unwrap();
        followed.until(|handle| *handle.current() == 2).await;
    }

    #[tokio::test]
    async fn a_file_that_vanishes_keeps_the_last_good_configuration() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("f.yaml");
        fs::write(&path, "1").unwrap();
        let followed = Followed::start(&path);
        fs::remove_file(&path).unwrap();
        followed.until(|handle| handle.rejection().is_some()).await;
        assert_eq!(*followed.handle.current(), 1);
        fs::write(&path, "1").unwrap();
        followed.until(|handle| handle.rejection().is_none()).await;
    }

    #[test]
    fn unusable_configuration_file_is_named() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("f.yaml");
        let refusal = |path: &Path| read(path).unwrap_err().to_string();
        assert!(
            refusal(&path).contains("f.yaml: cannot be read: No such file"),
            "{}",
            refusal(&path)
        );
        fs::write(&path, [0xff, 0xfe]).unwrap();
        assert!(refusal(&path).contains("not UTF-8"), "{}", refusal(&path));
        fs::File::create(&path).unwrap().set_len(LONGEST + 1).unwrap();
        assert!(
            refusal(&path).contains("the most that a configuration can be"),
            "{}",
            refusal(&path)
        );
    }
}
