//! Notices that files were changed, through every way in which files get replaced.

use std::path::{Path, PathBuf};
use std::time::Duration;

use notify::{RecommendedWatcher, RecursiveMode, Watcher};
use tokio::sync::mpsc;

/// A kubelet swaps a link, an editor renames or writes in several steps: wait until it is quiet.
const QUIET: Duration = Duration::from_millis(100);

/// A look without any sign of change: some file systems (network mounts, overlays) tell nothing.
const LOOK_ANYWAY: Duration = Duration::from_secs(30);

/// A watch over directories rather than files: a volume of a ConfigMap or a Secret replaces the link `..data`, and editors put
/// a new file in the old one's place; either way a watch on the file itself would go on looking at what is gone.
#[derive(Debug)]
pub(crate) struct FileChanges {
    changes: mpsc::Receiver<()>,
    _watcher: Option<RecommendedWatcher>,
}

impl FileChanges {
    /// Watches the directory that holds the file.
    pub(crate) fn beside(file: &Path) -> Self {
        Self::within(&[directory_of(file)])
    }

    /// Watches what stands in these directories, not below them.
    pub(crate) fn within(directories: &[PathBuf]) -> Self {
        let (sender, changes) = mpsc::channel(1);
        let watcher = Self::watcher(directories, sender)
            .map_err(|error| {
                tracing::warn!("{directories:?}: changes are not announced ({error}); looking every {LOOK_ANYWAY:?}");
            })
            .ok();
        Self {
            changes,
            _watcher: watcher,
        }
    }

    fn watcher(directories: &[PathBuf], changed: mpsc::Sender<()>) -> notify::Result<RecommendedWatcher> {
        let mut watcher = notify::recommended_watcher(move |event: notify::Result<notify::Event>| {
            // Our own reading is an access too, and would keep us reading for ever.
            if event.is_ok_and(|event| !event.kind.is_access()) {
                let _ = changed.try_send(());
            }
        })?;
        for directory in directories {
            watcher.watch(directory, RecursiveMode::NonRecursive)?;
        }
        Ok(watcher)
    }

    /// Returns when something may have changed: announced, and quiet since for a moment, or unannounced after a while.
    pub(crate) async fn next(&mut self) {
        tokio::select! {
            () = self.announced() => {}
            () = tokio::time::sleep(LOOK_ANYWAY) => {}
        }
    }

    async fn announced(&mut self) {
        if self.changes.recv().await.is_none() {
            return std::future::pending().await;
        }
        while tokio::time::timeout(QUIET, self.changes.recv())
            .await
            .is_ok_and(|change| change.is_some())
        {}
    }
}

/// The directory that a file stands in.
pub(crate) fn directory_of(file: &Path) -> PathBuf {
    let parent = file.parent().filter(|parent| !parent.as_os_str().is_empty());
    parent.unwrap_or(Path::new(".")).to_owned()
}
